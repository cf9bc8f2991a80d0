// wgmma: products of tiles in shared memory, in each of the four ways and in every width, against the definition
// (core/mma.h), on the emulator or by the instruction on a GPU; and what the emulator says of a kernel that does not
// wait, or does not fence. The kernels that stand on it: tests/test_matmul_bf16.cpp, tests/test_attention_bf16.cpp.
#include "core/wgmma.cuh"

#include <random>

#include "core/launch.cuh"
#include "tests/environment.h"
#include "tests/harness.h"
#include "tests/refusal.h"

using namespace gated;

namespace {

constexpr int rows = 64, most_columns = 256, depth = 64;
constexpr size_t a_bytes = size_t{rows} * depth * sizeof(bf16);
constexpr size_t shared_bytes = a_bytes + size_t{most_columns} * depth * sizeof(bf16) + wgmma_group_bytes;

struct Tiles {
  std::vector<float> A, B, C;  // (rows,depth), (columns,depth), (rows,columns)
  explicit Tiles(int columns) : A(rows * depth), B(columns * depth), C(rows * columns) {
    std::mt19937 any(11);
    for (std::vector<float>* numbers : {&A, &B, &C})
      for (float& x : *numbers) x = std::ldexp(float(int(any() % 511) - 255), int(any() % 25) - 20);
  }
  // C + A B, or A B, of the first k.
  std::vector<float> expected(int k_end, bool add) const {
    const std::vector<bf16> a = rounded(A), b = rounded(B);
    const int columns = int(B.size()) / depth;
    std::vector<float> sums = C;
    for (int i = 0; i < rows * columns; i++) {
      if (!add) sums[i] = 0;
      for (int k = 0; k < k_end; k += 16)
        sums[i] = mma_ref(sums[i], &a[i / columns * depth + k], &b[i % columns * depth + k], MmaArithmetic::hopper);
    }
    return sums;
  }
};

enum class Mistake {
  none,
  no_fence,
  fences_too_early,
  no_wait,
  waits_for_too_few,
  writes_too_early,
  touches_sums,
  plain_descriptor,
  changes_factor
};

// A tile (n,depth) as wgmma reads it: along k, or along n in groups of 64, of `lines` lines each.
__device__ void put(unsigned char* tile, const bf16* from, int n, int k_end, bool along, int lines) {
  for (int i = int(threadIdx.x); i < n * k_end; i += wgmma_threads) {
    const int row = i / k_end, k = i % k_end;
    const int line = along ? row / 64 * lines + k : row, element = along ? row % 64 : k;
    reinterpret_cast<bf16*>(tile)[line * 64 + ((element / 8) ^ (line % 8)) * 8 + element % 8] = from[row * depth + k];
  }
}

// One product of 64 x `columns` x 64: four instructions, two groups.
template <bool a_along, bool b_along, int columns>
__global__ void product_kernel(float* out, const bf16* A, const bf16* B, const float* C, bool add, Mistake mistake) {
  DYNAMIC_SHARED(unsigned char, shared);
  // Shared memory does not begin on a boundary of 1024: the tiles do.
  unsigned char* const tiles = group_boundary(shared);
  put(tiles, A, rows, depth, a_along, depth);
  put(tiles + a_bytes, B, columns, depth, b_along, depth);
  WgmmaSums<columns> sums;
  for_wgmma_sums(0, columns / 2, [&](int i, int m, int n) { sums.x[i] = C[m * columns + n]; });
  fence_proxy_async();
  __syncthreads();
  if (mistake != Mistake::no_fence) sums.fence();
  if (mistake == Mistake::fences_too_early) sums.x[5] = 1;
  const uint32_t a = shared_address(tiles), b = a + uint32_t(a_bytes);
  for (uint32_t k = 0; k < depth; k += 16) {
    uint64_t of_a = wgmma_descriptor(a + (a_along ? 128 * k : 2 * k), 0, 1024);
    if (mistake == Mistake::plain_descriptor) of_a &= ~(uint64_t{1} << 62);
    sums.template multiply<a_along, b_along>(of_a, wgmma_descriptor(b + (b_along ? 128 * k : 2 * k), 8192, 1024),
                                             add || k > 0);
    if (k == 16 || k == 48) sums.commit();
    if (mistake == Mistake::touches_sums) sums.x[5] = 1;
  }
  if (mistake == Mistake::writes_too_early) tiles[threadIdx.x] = 0x7f;
  if (mistake == Mistake::waits_for_too_few)
    sums.template wait<1>();
  else if (mistake != Mistake::no_wait)
    sums.template wait<0>();
  if (mistake == Mistake::none) {  // a wait for nothing changes nothing
    sums.x[7] = -sums.x[7];
    sums.template wait<0>();
    sums.x[7] = -sums.x[7];
  }
  for_wgmma_sums(0, columns / 2, [&](int i, int m, int n) { out[m * columns + n] = sums.x[i]; });
}

// 64 x `columns` x 16 with A in registers, as mma has it, columns of B along the lines.
template <int columns, int lines>
__global__ void registers_kernel(float* out, const bf16* A, const bf16* B, const float* C, Mistake mistake) {
  DYNAMIC_SHARED(unsigned char, shared);
  unsigned char* const tile = group_boundary(shared);
  put(tile, B, columns, 16, true, lines);
  const int first = int(threadIdx.x) / 32 * 16 + int(threadIdx.x) % 32 / 4, t = int(threadIdx.x) % 4;
  const auto two = [&](int row, int k) {
    return A[row * depth + k].bits | uint32_t(A[row * depth + k + 1].bits) << 16;
  };
  MmaA a[] = {{{two(first, 2 * t), two(first + 8, 2 * t), two(first, 2 * t + 8), two(first + 8, 2 * t + 8)}}};
  WgmmaSums<columns> sums;
  for_wgmma_sums(0, columns / 2, [&](int i, int m, int n) { sums.x[i] = C[m * columns + n]; });
  fence_proxy_async();
  __syncthreads();
  sums.fence();
  sums.template multiply<true>(a[0], wgmma_descriptor(shared_address(tile), 128 * lines, 1024), true);
  sums.commit();
  if (mistake == Mistake::changes_factor) a[0].x[3] = 0;
  wait_for_all(sums);
  in_use(a);
  for_wgmma_sums(0, columns / 2, [&](int i, int m, int n) { out[m * columns + n] = sums.x[i]; });
}

template <class... P, class... Rest>
void require_right(void (*kernel)(float*, const bf16*, const bf16*, const float*, P...), int columns, int k_end,
                   bool add, Rest... rest) {
  const Tiles tiles(columns);
  Trial t;
  const auto A = t.in<bf16>(tiles.A), B = t.in<bf16>(tiles.B);
  const auto C = t.in(tiles.C), out = t.expect(tiles.expected(k_end, add));
  on_every_device([&](Context& ctx) {
    if (ctx.device != kernel_device || !multiplies_as(ctx, MmaArithmetic::hopper) || !runs_wgmma(ctx)) return;
    t.on(ctx, [&](Context& ctx) { launch(kernel, 1, wgmma_threads, shared_bytes, ctx, out, A, B, C, rest...); });
  });
}

template <int columns>
void require_right_in_all_ways() {
  INFO(columns << " columns");
  for (bool add : {true, false}) {
    require_right(product_kernel<false, false, columns>, columns, depth, add, add, Mistake::none);
    require_right(product_kernel<false, true, columns>, columns, depth, add, add, Mistake::none);
    require_right(product_kernel<true, false, columns>, columns, depth, add, add, Mistake::none);
    require_right(product_kernel<true, true, columns>, columns, depth, add, add, Mistake::none);
  }
}

}  // namespace

TEST_CASE("wgmma: sums of the definition, tiles along k and along rows", "[wgmma][bitwise]") {
  require_right_in_all_ways<32>();
  require_right_in_all_ways<64>();
  require_right_in_all_ways<192>();
  require_right_in_all_ways<256>();
}

TEST_CASE("wgmma: a factor in registers", "[wgmma][bitwise]") {
  require_right(registers_kernel<64, 64>, 64, 16, true, Mistake::none);
  require_right(registers_kernel<128, 64>, 128, 16, true, Mistake::none);
  require_right(registers_kernel<256, 64>, 256, 16, true, Mistake::none);
  require_right(registers_kernel<256, 32>, 256, 16, true, Mistake::none);
}

TEST_CASE("wgmma: the environment may leave it out, and name fewer multiprocessors", "[wgmma][bitwise]") {
  on_both_devices([](Context& ctx) {
    if (ctx.device != kernel_device) return;
    const bool hopper = multiplies_as(ctx, MmaArithmetic::hopper);
    const auto runs = [&](const char* wanted) {
      const Environment says("GATED_WGMMA", wanted);
      return runs_wgmma(ctx);
    };
    CHECK_FALSE(runs("off"));
    CHECK(runs("on") == runs(""));
    CHECK(hopper >= runs("on"));
#ifdef __CUDACC__
    const auto named = [&](const char* number) {
      const Environment says("GATED_MULTIPROCESSORS", number);
      return multiprocessors();
    };
    CHECK(named("2") == 2);
    CHECK(named("0") == 1);
    CHECK(named("100000") >= multiprocessors());
#else
    CHECK(runs("on"));
#endif
  });
}

#ifndef __CUDACC__

TEST_CASE("wgmma: what a kernel does too early is seen", "[wgmma]") {
  const Tiles t(most_columns);
  const std::vector<bf16> A = rounded(t.A), B = rounded(t.B);
  const auto product = [&](Mistake mistake) {
    std::vector<float> out(t.C.size());
    simt::launch(product_kernel<false, false, most_columns>, 1, wgmma_threads, shared_bytes, out.data(), A.data(),
                 B.data(), t.C.data(), true, mistake);
    return out;
  };
  in_every_order([&] { REQUIRE_BITWISE(t.expected(depth, true), product(Mistake::none)); });
  REQUIRE(simt::races().empty());
  for (Mistake mistake : {Mistake::no_wait, Mistake::waits_for_too_few})
    for (float x : product(mistake)) REQUIRE(x != x);
  const auto refused = [&](Mistake mistake) { return refusal([&] { product(mistake); }); };
  if (simt::under_race_shadow)
    CHECK(contains(refused(Mistake::writes_too_early), "unordered"));
  else
    REQUIRE(bitwise_difference(t.expected(depth, true), product(Mistake::writes_too_early)) != "");
  for (Mistake mistake : {Mistake::no_fence, Mistake::fences_too_early})
    CHECK(contains(refused(mistake), "expected a fence"));
  CHECK(contains(refused(Mistake::touches_sums), "written to before they were waited for"));
  CHECK(contains(refused(Mistake::plain_descriptor), "swizzle of 128 bytes"));
  CHECK(contains(refusal([&] {
                   std::vector<float> out(t.C.size());
                   simt::launch(registers_kernel<most_columns, 64>, 1, wgmma_threads, shared_bytes, out.data(),
                                A.data(), B.data(), t.C.data(), Mistake::changes_factor);
                 }),
                 "a factor in registers was written over"));
}

#endif
