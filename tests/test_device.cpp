// device: buffers, streams, and one spelling of a launch.
#include "core/context.cuh"

#include "core/launch.cuh"
#include "tests/contents.h"
#include "tests/harness.h"

using namespace gated;

namespace {

__global__ void fill_kernel(float* out, size_t n, float value) {
  const size_t i = threadIdx.x + size_t(blockDim.x) * blockIdx.x;
  if (i < n) out[i] = value + float(i);
}

// Reverses a block through dynamic shared memory.
__global__ void reverse_kernel(float* x) {
  DYNAMIC_SHARED(float, shared);
  shared[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

}  // namespace

TEST_CASE("device: what a process holds is counted with all of its code") {
  const std::string status = contents("/proc/self/status");
  const auto bytes = [&](const std::string& name) { return 1024 * std::stod(between(status, name + ":", " kB")); };
  const double expected = bytes("RssAnon") + bytes("VmExe") + bytes("VmLib");
  REQUIRE(std::abs(double(host_memory_held()) / expected - 1) < 0.02);
  REQUIRE(proc_bytes("/proc/self/status", {"Vm", "VmExe:"}) == 0);
  REQUIRE(proc_bytes("/nowhere", {"VmExe"}) == 0);
}

TEST_CASE("device: kernels are launched, buffers come back", "[bitwise]") {
  on_every_device([](Context& ctx) {
    if (ctx.device == Device::cpu) return;  // which runs no kernels
    Guarded x(ctx, 100);
    launch(fill_kernel, grid_of(ceil_div(100, 32)), 32, 0, ctx, static_cast<float*>(x), size_t(100), 0.5f);
    std::vector<float> expected(100);
    for (size_t i = 0; i < 100; i++) expected[i] = 0.5f + float(i);
    REQUIRE_BITWISE(expected, x.download());
    launch(reverse_kernel, 1, 100, 100 * sizeof(float), ctx, static_cast<float*>(x));
    std::reverse(expected.begin(), expected.end());
    REQUIRE_BITWISE(expected, x.download());
    launch(fill_kernel, dim3(0), 32, 0, ctx, static_cast<float*>(x), size_t(100), 9.0f);  // nothing to do
    REQUIRE_BITWISE(expected, x.download());
    set_zero(static_cast<float*>(x), 100, ctx);
    REQUIRE_BITWISE(std::vector<float>(100, 0.0f), x.download());
  });
}

TEST_CASE("device: fresh memory is NaN, and moves with its buffer", "[device]") {
  Buffer<float> a(Device::cpu, 10);
  for (float v : a.download()) REQUIRE(std::isnan(v));
  a.upload(std::vector<float>(10, 2.0f));
  Buffer<float> b = std::move(a), empty;
  REQUIRE(b.download() == std::vector<float>(10, 2.0f));
  empty = std::move(b);
  REQUIRE(empty.size() == 10);
  REQUIRE_THROWS_AS(empty.upload({1.0f}), Error);
}

TEST_CASE("device: what cannot be is refused", "[device][bitwise]") {
  Context cpu(Device::cpu);
  REQUIRE_THROWS_AS(launch(fill_kernel, 1, 1, 0, cpu, nullptr, size_t(0), 0.0f), Error);
  REQUIRE(grid_tiles("attention", 65535 * 64, 64) == 65535);
  REQUIRE_THROWS_WITH(grid_tiles("attention", 65535 * 64 + 1, 64),
                      "attention: T 4194241, expected at most 4194240: a grid holds 65535 tiles of 64 tokens");
  REQUIRE_THROWS_AS(Context(kernel_device == Device::cuda ? Device::emulated : Device::cuda), Error);
  REQUIRE_THROWS_AS(Buffer<float>(Device::cpu, SIZE_MAX / 2), Error);
  REQUIRE_THROWS_AS(Buffer<float>(Device::cpu, size_t{1} << 50), Error);
  REQUIRE_THROWS_AS(grid_of(size_t{1} << 31), Error);
  REQUIRE_NOTHROW(grid_of((size_t{1} << 31) - 1));
}

#ifdef __CUDACC__
TEST_CASE("device: memory that a GPU refuses for another reason is not called a lack of it", "[device][bitwise]") {
  Context ctx(kernel_device);
  CUDA_CHECK(cudaStreamBeginCapture(ctx.stream, cudaStreamCaptureModeThreadLocal));
  REQUIRE_THROWS_WITH(Buffer<float>(ctx.device, 10), Catch::Contains("not permitted when stream is capturing"));
  cudaGraph_t graph;
  cudaStreamEndCapture(ctx.stream, &graph);
  cudaGetLastError();
}

TEST_CASE("device: uploads go on behind a refusal of more staging memory", "[device][bitwise]") {
  Context ctx(kernel_device);
  const std::vector<float> host(100, 3.0f);
  Buffer<float> x(ctx.device, host.size());
  ctx.reserve_staging(1000);
  REQUIRE_THROWS_AS(ctx.reserve_staging(size_t{1} << 60), Error);
  ctx.upload(x.data(), host.data(), host.size());
  REQUIRE(x.download() == host);
}
#endif

TEST_CASE("device: scratch grows until it is planned, and a plan that is too small is an error", "[device][bitwise]") {
  Context ctx(kernel_device);
  float* small = ctx.scratch(10);
  REQUIRE(ctx.scratch(5) == small);
  REQUIRE(ctx.scratch(1000) != nullptr);
  REQUIRE(ctx.scratch_bytes() == 4000);
  REQUIRE(ctx.most_scratch_used() == 4000);
  ctx.reserve_scratch(800);
  REQUIRE(ctx.scratch<double>(100) != nullptr);
  REQUIRE_THROWS_AS(ctx.scratch(201), Error);
}

TEST_CASE("device: copies to the device and back are in the order of the launches", "[device][bitwise]") {
  on_every_device([](Context& ctx) {
    const size_t n = 100, rounds = 20;  // more rounds than staging buffers
    Buffer<float> x(ctx.device, n);
    Readback<float> sent[2] = {{n, ctx}, {n, ctx}};
    for (size_t round = 0; round < rounds; round++) {
      std::vector<float> host = random_values<float>(n, round);
      const std::vector<float> expected = host;
      ctx.upload(x.data(), host.data(), n);
      std::fill(host.begin(), host.end(), -1.0f);  // the copy does not depend on it any more
      sent[round % 2].start(x.data());
      set_zero(x.data(), n, ctx);
      const float* got = sent[round % 2].wait();
      REQUIRE_BITWISE(expected, std::vector<float>(got, got + n));
    }
    ctx.upload<float>(nullptr, nullptr, 0);
    Readback<float> nothing(0, ctx);
    nothing.start(nullptr);
    nothing.wait();
    Buffer<float> empty(ctx.device, 0);
    empty.upload({});
    REQUIRE(empty.download().empty());
  });
}
