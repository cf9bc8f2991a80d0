// simt: the emulator itself. Indices, collectives against CUDA's definitions, orders, refusals, faults.
#include "core/simt.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/check.h"
#include "tests/catch.h"
#include "tests/refusal.h"
#include "tests/script.h"
#include "tests/simt_config.h"

using namespace gated;

namespace {

constexpr unsigned full = 0xFFFFFFFFu;

// What simt::launch says when it fails; "" when it does not.
template <class... P, class... A>
std::string fault(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, A... args) {
  return refusal([&] { simt::launch(kernel, grid, block, shared, args...); });
}

// ---- kernels that are right

struct Indices {
  uint3 thread, block;
  dim3 block_dim, grid_dim;
};

__global__ void indices_kernel(Indices* out, int* visits) {
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z),
                 block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z),
                 i = thread + blockDim.x * blockDim.y * blockDim.z * block;
  out[i] = {threadIdx, blockIdx, blockDim, gridDim};
  visits[i]++;
}

// Each round, a thread writes a number and reads its opposite's. The parity of the round picks the buffer:
// static shared memory for even rounds, dynamic for odd ones, so one barrier a round is enough.
__global__ void exchange_kernel(int* out, int rounds) {
  STATIC_SHARED(int, even, [1024]);
  DYNAMIC_SHARED(int, odd);
  const int n = blockDim.x, t = threadIdx.x;
  int sum = 0;
  for (int round = 0; round < rounds; round++) {
    int* buffer = round % 2 ? odd : even;
    buffer[t] = round * t + int(blockIdx.x);
    __syncthreads();
    sum += buffer[n - 1 - t];
  }
  out[blockIdx.x * n + t] = sum;
}

// Only threads below `stay` reach the collectives; the others have returned.
__global__ void votes_kernel(int* out, int stay) {
  const int t = threadIdx.x;
  if (t >= stay) return;
  __syncthreads();
  out[t] = int(__ballot_sync(full, t % 2 == 0));
}

template <class T>
__global__ void shuffle_kernel(T* out, const T* in, int argument, int width) {
  const unsigned t = threadIdx.x, n = blockDim.x;
  out[t] = __shfl_sync(full, in[t], argument, width);
  out[n + t] = __shfl_xor_sync(full, in[t], argument, width);
  out[2 * n + t] = __shfl_down_sync(full, in[t], unsigned(argument), width);
  out[3 * n + t] = __shfl_up_sync(full, in[t], unsigned(argument), width);
}

// The halves of a warp go their own ways: two exchanges side by side, then one of all.
__global__ void halves_kernel(int* out) {
  const int t = threadIdx.x;
  int v = t;
  if (t < 16)
    for (int o = 8; o > 0; o /= 2) v += __shfl_xor_sync(0x0000FFFFu, v, o);
  else
    v = __shfl_sync(0xFFFF0000u, v, 20);
  __syncwarp();
  out[t] = v + 1000 * __shfl_sync(full, v, 0);
}

// Lanes 20 and up return, or stay out of the mask; then lanes below read them.
__global__ void absent_lanes_kernel(float* out, bool returned) {
  const unsigned t = threadIdx.x;
  if (t >= 20 && returned) return;
  if (t >= 20) {
    __syncwarp(0xFFF00000u);
    return;
  }
  const float v = __shfl_xor_sync(returned ? full : 0x000FFFFFu, 1.0f, 16);
  out[t] = v > 0.5f ? v : 0.5f;  // a maximum hides a NaN
}

__global__ void atomics_kernel(int* i, unsigned* u, float* f) {
  atomicAdd(i, 2);
  atomicAdd(u, 1u);
  atomicAdd(f, 0.5f);
}

__global__ void record_order_kernel(int* order, int* next, int phases) {
  for (int p = 0; p < phases; p++) {
    order[atomicAdd(next, 1)] = threadIdx.x;
    __syncthreads();
  }
}

__global__ void write_shared_kernel(int i) {
  simt::dynamic_shared[i] = 1;
}

// How many of its values are NaN when a block has just begun: of n dynamic floats, or of two static arrays of n.
template <size_t n>
__global__ void shared_is_nan_kernel(int* nan, bool dynamic) {
  STATIC_SHARED(float, front, [n]);
  STATIC_SHARED(float, back, [n]);
  DYNAMIC_SHARED(float, own);
  if (threadIdx.x > 0) return;
  for (float* values : dynamic ? std::vector{own} : std::vector{front, back})
    for (size_t i = 0; i < n; i++) {
      nan[blockIdx.x] += std::isnan(values[i]);
      values[i] = 1.0f;
    }
}

__global__ void deep_stack_kernel(int* out) {
  volatile int big[16 * 1024];
  for (int i = 0; i < 16 * 1024; i++) big[i] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = big[threadIdx.x * 7];
}

__global__ void own_copy_kernel(int* out, int n) {
  n += threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = n;
}

// ---- kernels that are wrong; reports must name the numbered lines, counted from first_wrong_line

// clang-format off
constexpr int first_wrong_line = __LINE__;
__global__ void deadlock_kernel() {
  if (threadIdx.x == 5) __syncwarp();      // 2
  if (threadIdx.x != 40) __syncthreads();  // 3
}
__global__ void two_barriers_kernel() {
  if (threadIdx.x < 64) __syncthreads();   // 6
  else __syncthreads();                    // 7
}
__global__ void masks_kernel(unsigned low, unsigned high) {
  __syncwarp(threadIdx.x < 16 ? low : high);  // 10
}
__device__ [[gnu::noinline]] void own_barrier(int* x) {
  atomicAdd(x, 1);
  __syncthreads();                         // 14
}
__device__ [[gnu::always_inline]] inline void inlined_barrier(int* x) {
  atomicAdd(x, 1);
  __syncthreads();                         // 18
}
__global__ void helper_kernel(int* x, bool inlined, bool once) {
  if (once) own_barrier(x);                // 21
  else if (inlined && threadIdx.x < 32) inlined_barrier(x);  // 22
  else if (inlined) inlined_barrier(x + 1);                  // 23
  else if (threadIdx.x < 32) own_barrier(x);                 // 24
  else own_barrier(x + 1);                                   // 25
}
// A compiler may copy a call, so what stands in one line is one barrier.
__global__ void one_line_kernel(int* x) {
  threadIdx.x < 32 ? inlined_barrier(x) : inlined_barrier(x + 1);
}
// clang-format on
std::string wrong_line(int line) {
  return format("tests/test_simt.cpp:%d", first_wrong_line + line);
}

// Lane 0 waits for 1, 1 for 2, 2 for 0; no two wait for each other.
__global__ void ring_kernel() {
  __syncwarp(threadIdx.x == 0 ? 0b011 : threadIdx.x == 1 ? 0b110 : 0b101);
}

__global__ void odd_lanes_kernel() {
  if (threadIdx.x % 2)
    __syncwarp();
  else
    __syncthreads();
}

__global__ void two_collectives_kernel() {
  if (threadIdx.x % 2)
    __shfl_sync(full, 1, 0);
  else
    __shfl_sync(full, 1.0, 0);
}

struct CountsDown {
  int* alive;
  ~CountsDown() { --*alive; }
};
__global__ void throw_kernel(int* alive) {
  ++*alive;
  CountsDown counts_down{alive};
  if (threadIdx.x < 70)
    __syncthreads();
  else if (blockIdx.x == 1 && threadIdx.x == 71)
    throw std::runtime_error("seventy-one");
}

__global__ void launch_kernel() {
  simt::launch(own_copy_kernel, 1, 1, 0, static_cast<int*>(nullptr), 0);
}

__global__ void launch_from_a_thread_kernel(std::string* said) {
  std::thread([&] { *said = fault(own_copy_kernel, 1, 1, 0, static_cast<int*>(nullptr), 0); }).join();
}

}  // namespace

TEST_CASE("simt: every thread of every block runs once, with its indices") {
  in_every_order([] {
    for (auto [grid, block] :
         {std::pair{dim3(3, 2, 4), dim3(4, 3, 5)}, {dim3(1), dim3(1024)}, {dim3(7), dim3(1, 1, 33)}}) {
      const size_t block_size = block.x * block.y * block.z, n = block_size * grid.x * grid.y * grid.z;
      std::vector<Indices> out(n);
      std::vector<int> visits(n);
      simt::launch(indices_kernel, grid, block, 0, out.data(), visits.data());
      size_t wrong = 0;
      for (size_t i = 0; i < n; i++) {
        const Indices& o = out[i];
        const size_t t = i % block_size, b = i / block_size;
        wrong += visits[i] != 1 || o.thread.x != t % block.x || o.thread.y != t / block.x % block.y ||
                 o.thread.z != t / block.x / block.y || o.block.x != b % grid.x || o.block.y != b / grid.x % grid.y ||
                 o.block.z != b / grid.x / grid.y || o.block_dim.y != block.y || o.grid_dim.z != grid.z;
      }
      REQUIRE(wrong == 0);
    }
  });
}

TEST_CASE("simt: barriers keep a block together, in static and in dynamic shared memory") {
  in_every_order([] {
    for (unsigned n : {1u, 31u, 32u, 33u, 100u, 1024u}) {
      const int rounds = 7, blocks = 3;
      std::vector<int> out(n * blocks);
      simt::launch(exchange_kernel, blocks, n, n * sizeof(int), out.data(), rounds);
      size_t wrong = 0;
      for (unsigned i = 0; i < n * blocks; i++) {
        const int opposite = n - 1 - i % n, block = i / n;
        wrong += out[i] != opposite * rounds * (rounds - 1) / 2 + block * rounds;
      }
      REQUIRE(wrong == 0);
    }
  });
}

TEST_CASE("simt: a barrier and a vote are those of the threads that have not returned") {
  in_every_order([] {
    for (int stay : {1, 20, 50, 64, 96}) {
      std::vector<int> out(96, -1);
      simt::launch(votes_kernel, 1, 96, 0, out.data(), stay);
      for (int t = 0; t < stay; t++) {
        const int lanes = std::min(32, stay - t / 32 * 32);
        REQUIRE(out[t] == int(full >> (32 - lanes) & 0x55555555u));
      }
      for (int t = stay; t < 96; t++) REQUIRE(out[t] == -1);
    }
  });
}

// The PTX manual's shfl: segments of `width` lanes; a lane whose source lies outside its segment keeps its
// value.
template <class T>
void check_shuffles(const std::vector<T>& in, int width, int argument) {
  const int n = in.size();
  std::vector<T> out(4 * n);
  simt::launch(shuffle_kernel<T>, 1, n, 0, out.data(), in.data(), argument, width);
  const auto same = [](const T& a, const T& b) { return !memcmp(&a, &b, sizeof(T)); };
  int wrong = 0;
  for (int t = 0; t < n; t++) {
    const int lane = t % 32, warp = t - lane, low = lane / width * width, high = low + width - 1;
    const auto from = [&](int source) { return in[warp + source]; };
    wrong += !same(out[t], from(low + argument % width));
    wrong += !same(out[n + t], from((lane ^ argument) <= high ? lane ^ argument : lane));
    wrong += !same(out[2 * n + t], from(lane + argument <= high ? lane + argument : lane));
    wrong += !same(out[3 * n + t], from(lane - argument >= low ? lane - argument : lane));
  }
  INFO("width " << width << ", argument " << argument << ", " << sizeof(T) << " bytes");
  REQUIRE(wrong == 0);
}

TEST_CASE("simt: shuffles do what the PTX manual says, for every width and type") {
  in_every_order([] {
    std::vector<float> floats(96);
    std::vector<double> doubles(32);
    std::vector<uint8_t> bytes(32);
    std::vector<float4> vectors(64);
    for (size_t i = 0; i < 96; i++) floats[i] = 1.5f * i - 7;
    for (size_t i = 0; i < 32; i++) doubles[i] = 1 / (1.0 + i), bytes[i] = 3 * i;
    for (float i = 0; i < 64; i++) vectors[i] = make_float4(i, i + 1, -i, 2 * i);
    for (int width = 1; width <= 32; width *= 2)
      for (int argument = 0; argument < 32; argument++) check_shuffles(floats, width, argument);
    for (int width : {8, 32}) {
      check_shuffles(doubles, width, 3);
      check_shuffles(bytes, width, 5);
      check_shuffles(vectors, width, 1);
    }
  });
}

TEST_CASE("simt: groups of lanes exchange side by side, and see nothing of the others") {
  in_every_order([] {
    std::vector<int> out(32);
    simt::launch(halves_kernel, 1, 32, 0, out.data());
    for (int t = 0; t < 32; t++) REQUIRE(out[t] == (t < 16 ? 120 : 20) + 1000 * 120);
  });
}

TEST_CASE("simt: a shuffle that reads a lane that is not there is a fault, and is named") {
  in_every_order([] {
    std::vector<float> out(32);
    for (bool returned : {false, true}) {
      REQUIRE(says(fault(absent_lanes_kernel, 1, 32, 0, out.data(), returned),
                   {"a shuffle at tests/test_simt.cpp:", "which is not in its mask or has returned"}));
    }
  });
}

TEST_CASE("simt: atomics and bits") {
  in_every_order([] {
    int i = 0;
    unsigned u = 0;
    float f = 0;
    simt::launch(atomics_kernel, 2, 100, 0, &i, &u, &f);
    REQUIRE((i == 400 && u == 200 && f == 100.0f));
  });
  REQUIRE(std::array{__popc(0xF0F0u), __ffs(0), __ffs(8)} == std::array{8, 0, 4});
  REQUIRE(std::array{sizeof(float4), alignof(float4), alignof(int2)} == std::array<size_t, 3>{16, 16, 8});
}

TEST_CASE("simt: orders differ, and are those of their seed") {
  const int n = 96, phases = 2;
  const auto order_of = [&](simt::Order order, uint64_t seed) {
    const KeepsSimtConfig restore;
    simt::config = {order, seed};
    std::vector<int> seen(n * phases);
    int next = 0;
    simt::launch(record_order_kernel, 1, n, 0, seen.data(), &next, phases);
    for (int p = 0; p < phases; p++)
      REQUIRE(std::set<int>(seen.begin() + p * n, seen.begin() + (p + 1) * n).size() == n);
    return seen;
  };
  std::vector<int> ascending, descending;
  for (int i = 0; i < n * phases; i++) ascending.push_back(i % n), descending.push_back(n - 1 - i % n);
  REQUIRE(order_of(simt::Order::forward, 1) == ascending);
  REQUIRE(order_of(simt::Order::reverse, 1) == descending);
  std::set<std::vector<int>> different;
  for (uint64_t seed : {1, 2, 3})
    for (simt::Order order : {simt::Order::random, simt::Order::priority}) {
      different.insert(order_of(order, seed));
      REQUIRE(order_of(order, seed) == order_of(order, seed));
    }
  REQUIRE(different.size() == 6);
  const std::vector<int> priority = order_of(simt::Order::priority, 5);
  for (int i = 0; i < n * phases; i++) REQUIRE(priority[i] / 32 == priority[i / 32 * 32] / 32);  // warp by warp
}

TEST_CASE("simt: static and dynamic shared memory are NaN when a block starts") {
  for (bool dynamic : {false, true}) {
    std::vector<int> nan(4);
    const std::string said = fault(shared_is_nan_kernel<100>, 4, 32, 400, nan.data(), dynamic);
    INFO("dynamic " << dynamic << ": " << said);
    REQUIRE(nan == std::vector<int>(4, dynamic ? 100 : 200));
    if (simt::under_race_shadow)
      REQUIRE(contains(said, "no thread of its block has written"));
    else
      REQUIRE(said == "");
  }
}

// Two arrays of 2048 floats are 16384 bytes.
TEST_CASE("simt: static and dynamic shared memory share one limit") {
  int nan = 0;
  const auto said = [&](size_t dynamic) { return fault(shared_is_nan_kernel<2048>, 1, 1, dynamic, &nan, false); };
  for (size_t limit : {shared_limit_consumer, shared_limit_sm_80, shared_limit_sm_90}) {
    const SharedLimit of_a_block(limit);
    REQUIRE(!contains(said(limit - 16384), "launch"));
    REQUIRE(contains(said(limit - 16383), format("launch: 16384 bytes of static and %zu of dynamic shared memory, "
                                                 "expected at most %zu in all",
                                                 limit - 16383, limit)));
  }
  REQUIRE(contains(fault(shared_is_nan_kernel<6145>, 1, 1, 0, &nan, false),
                   "launch: 49160 bytes of static shared memory, expected at most 49152"));
  const SharedLimit of_a_block(10000);
  REQUIRE(contains(said(0), "16384 bytes of static and 0 of dynamic"));
}

// CUDA's rule, as the launch on a GPU follows it.
TEST_CASE("simt: shared memory is asked for from 48 KiB in all") {
  for (const auto& [fixed, most] : {std::pair<size_t, size_t>{0, 49152}, {33792, 15360}}) {
    REQUIRE(!shared_must_be_asked_for(fixed, most, shared_limit_sm_90));
    REQUIRE(shared_must_be_asked_for(fixed, most + 1, shared_limit_sm_90));
  }
  REQUIRE(shared_must_be_asked_for(8448, 223999, shared_limit_sm_90));
  REQUIRE_THROWS_AS(shared_must_be_asked_for(8448, 224001, shared_limit_sm_90), Error);
  REQUIRE_THROWS_AS(shared_must_be_asked_for(1, SIZE_MAX, shared_limit_sm_90), Error);
}

TEST_CASE("simt: dynamic shared memory is aligned and as large as asked for") {
  const size_t limit = simt::config.shared_limit;
  REQUIRE(limit == 163 * 1024);
  REQUIRE(fault(write_shared_kernel, 1, 1, limit, int(limit) - 1) == "");
  REQUIRE(reinterpret_cast<uintptr_t>(simt::dynamic_shared) % 1024 == 0);
  REQUIRE(contains(fault(write_shared_kernel, 1, 1, limit + 1, 0),
                   "0 bytes of static and 166913 of dynamic shared memory, expected at most 166912"));
  {
    const SharedLimit twice(2 * limit);
    REQUIRE(fault(write_shared_kernel, 1, 1, 2 * limit, int(2 * limit) - 1) == "");
  }
  if (simt::under_asan) return;  // which ends the process there: see test_planted_bugs
  REQUIRE(contains(fault(write_shared_kernel, 2, 1, 100, 103), "block (0,0,0) wrote byte 103 of 100 bytes"));
  REQUIRE(fault(write_shared_kernel, 2, 1, 100, 99) == "");
}

TEST_CASE("simt: stacks are deep, arguments are each thread's own") {
  std::vector<int> out(1024);
  simt::launch(deep_stack_kernel, 1, 256, 0, out.data());
  for (int t = 0; t < 256; t++) REQUIRE(out[t] == t);
  simt::launch(own_copy_kernel, 1, 1024, 0, out.data(), 5);
  for (int t = 0; t < 1024; t++) REQUIRE(out[t] == t + 5);
}

TEST_CASE("simt: what the GPU would refuse is refused") {
  const struct {
    dim3 grid, block;
    const char* said;
  } launches[] = {{1, 1025, "block of (1025,1,1) threads, expected 1 to 1024"},
                  {1, dim3(32, 33), "block of (32,33,1)"},
                  {1, dim3(1, 1, 65), "at most 64 in z"},
                  {1, dim3(65536, 65536), "block of (65536,65536,1)"},
                  {1, 0, "block of (0,1,1)"},
                  {0, 1, "grid of (0,1,1) blocks"},
                  {dim3(1, 65536), 1, "grid of (1,65536,1)"},
                  {dim3(1, 1, 65536), 1, "grid of (1,1,65536)"},
                  {dim3(0x80000000u), 1, "grid of (2147483648,1,1)"}};
  for (const auto& [grid, block, said] : launches)
    REQUIRE(says(fault(own_copy_kernel, grid, block, 0, static_cast<int*>(nullptr), 0), {said}));
  REQUIRE(contains(fault(launch_kernel, 1, 1, 0), "thread 0: simt: a launch while a kernel runs"));
  std::string said;
  simt::launch(launch_from_a_thread_kernel, 1, 1, 0, &said);
  REQUIRE(contains(said, "a launch while a kernel runs"));
}

TEST_CASE("simt: faults name every waiting thread, many in a few ranges, and the next launch works") {
  in_every_order([] {
    std::vector<int> out(256), expected(256);
    std::iota(expected.rbegin(), expected.rend(), 0);
    const auto works = [&] { return simt::launch(exchange_kernel, 1, 256, 1024, out.data(), 2), out == expected; };
    REQUIRE(says(
        fault(deadlock_kernel, 2, 96, 0),
        {"simt: block (0,0,0): thread ", "deadlock",
         "at a block barrier in " + wrong_line(3) + ": threads 0-4, 6-39, 41-95",
         "at a warp collective of lanes 0xffffffff in " + wrong_line(2) + ": threads 5;", "; returned: threads 40"}));
    REQUIRE(works());
    REQUIRE(says(fault(two_barriers_kernel, 1, 128, 0), {"different barriers", wrong_line(6), wrong_line(7)}));
    REQUIRE(works());

    // Two calls of one function.
    int counts[2] = {};
    for (bool inlined : {false, true}) {
      const std::string barrier = "at a block barrier in " + wrong_line(inlined ? 18 : 14);
      REQUIRE(says(fault(helper_kernel, 1, 64, 0, counts, inlined, false),
                   {"different barriers", barrier + ", called from " + wrong_line(inlined ? 22 : 24),
                    barrier + ", called from " + wrong_line(inlined ? 23 : 25)}));
    }
    REQUIRE(fault(helper_kernel, 1, 64, 0, counts, false, true) == "");
    REQUIRE(fault(one_line_kernel, 1, 64, 0, counts) == "");
    REQUIRE(works());

    REQUIRE(says(fault(masks_kernel, 1, 32, 0, full, 0xFFFF8000u),
                 {"meet with masks 0x", "at a warp collective of lanes 0xffffffff in " + wrong_line(10),
                  "at a warp collective of lanes 0xffff8000 in " + wrong_line(10)}));
    REQUIRE(says(fault(masks_kernel, 1, 32, 0, 0x0000FFFFu, 0x0000FFFFu), {"is not in its own mask 0x0000ffff"}));
    for (const auto& [low, high] : {std::pair(full, full),
                                    {0x0000FFFFu, 0xFFFF0000u},
                                    {full, 0xFFFF0000u}})  // the upper half returns, the lower goes on
      REQUIRE(fault(masks_kernel, 1, 32, 0, low, high) == "");
    REQUIRE(says(fault(ring_kernel, 1, 3, 0), {"deadlock; at a warp collective of lanes 0x0000000"}));
    REQUIRE(says(fault(two_collectives_kernel, 1, 32, 0), {"different collectives"}));
    REQUIRE(works());

    const std::string many = fault(odd_lanes_kernel, 1, 1024, 0);
    REQUIRE(says(many, {"at a block barrier", ": threads 0, 2, 4, 6, 8, 10, 12, 14, ... (512 in all)"}));
    REQUIRE(many.size() < 400);
  });
}

TEST_CASE("simt: an exception in a kernel ends the launch and unwinds every thread") {
  in_every_order([] {
    int alive = 0;
    const std::string said = fault(throw_kernel, 3, 96, 0, &alive);
    REQUIRE(said == "simt: block (1,0,0): thread 71: seventy-one");
    REQUIRE(alive == 0);
    REQUIRE(fault(two_barriers_kernel, 1, 64, 0) == "");
  });
}

TEST_CASE("simt: code outside kernels runs unwatched, in any number of threads") {
  std::vector<int> sums(1000);
  int n = 0;
#pragma omp parallel for reduction(+ : n)
  for (int i = 0; i < 1000; i++) {
    for (int k = 0; k < i; k++) sums[i] += k;
    n += sums[i] >= 0;
  }
  REQUIRE(n == 1000);
  std::atomic<bool> stop = false;
  std::vector<int> out(256);
  std::thread busy([&] {
    for (volatile int beside = 0; !stop;) beside = beside + 1;
  });
  for (int i = 0; i < 20; i++) simt::launch(exchange_kernel, 2, 128, 512, out.data(), 4);
  stop = true;
  busy.join();
  REQUIRE(simt::races().empty());
}

// ---- the environment is read when a program starts: this one starts itself

TEST_CASE("simt: prints its configuration", "[.config]") {
  printf("order %d seed %llu shared %zu\n", int(simt::config.order), static_cast<unsigned long long>(simt::config.seed),
         simt::config.shared_limit);
}

TEST_CASE("simt: order, seed and limit come from the environment, and nonsense is refused") {
  const char* under = getenv("GATED_RUN_UNDER");  // the program that runs those of another CPU (scripts/run_tests.sh)
  const struct {
    const char* environment;
    bool accepted;
    const char* expected;
  } cases[] = {{"SIMT_ORDER=forward SIMT_SEED=0", true, "order 0 seed 0 shared 166912\n"},
               {"SIMT_ORDER=reverse", true, "order 1 seed "},
               {"SIMT_ORDER=random SIMT_SEED=18446744073709551615", true, "order 2 seed 18446744073709551615 shared"},
               {"SIMT_ORDER=priority SIMT_SEED=7", true, "order 3 seed 7 shared"},
               {"SIMT_SHARED=consumer", true, "shared 101376\n"},
               {"SIMT_SHARED=sm_80", true, "shared 166912\n"},
               {"SIMT_SHARED=sm_90", true, "shared 232448\n"},
               {"SIMT_SHARED=large", false, "SIMT_SHARED=large, expected consumer, sm_80 or sm_90\n"},
               {"SIMT_ORDER=sideways", false, "SIMT_ORDER=sideways, expected forward, reverse, random or priority\n"},
               {"SIMT_ORDER=", false, "SIMT_ORDER=, expected"},
               {"SIMT_SEED=", false, "expected an integer from 0 to 2^64-1\n"},
               {"SIMT_SEED=-1", false, "expected an integer from 0 to 2^64-1\n"},
               {"SIMT_SEED=1x", false, "expected an integer from 0 to 2^64-1\n"},
               {"SIMT_SEED=18446744073709551616", false, "expected an integer from 0 to 2^64-1\n"}};
  for (const auto& [environment, accepted, expected] : cases) {
    INFO(environment);
    const std::string program = fs::read_symlink("/proc/self/exe");
    const Said said = Folder().run(format("%s %s '%s' '[.config]'", environment, under ? under : "", program.c_str()));
    REQUIRE((said.exit_code == 0) == accepted);
    REQUIRE(says(said.text, {expected}));
  }
}
