// simt: the CUDA execution model on the CPU, so that the kernels' own sources run, are tested and are stepped
// through in gdb without a GPU. A CUDA thread is a fiber; a collective suspends it until its partners come.
//
//   launch   blocks run one after another on the calling OS thread, a block's threads cooperatively: a thread
//            runs until it returns or waits. So a kernel must not spin on what another has yet to write. The blocks of
//            a cluster run together, as threads of one block would; messages number their threads through.
//   order    SIMT_ORDER=forward|reverse|random|priority and SIMT_SEED=n, or simt::config: which runnable
//            thread goes on. A correct kernel gives the same bits in every order; one that lacks a barrier
//            seldom does.
//   memory   shared memory is NaN (0xFF bytes) when a block starts, and so is a margin after the dynamic part.
//            Static shared memory is a C++ static. The first thread of a block that comes past its declaration,
//            STATIC_SHARED, fills it and counts it: static and dynamic bytes together must be within the limit
//            of a GPU, simt::config.shared_limit (SIMT_SHARED=consumer|sm_80|sm_90).
//   faults   a launch the GPU would refuse, a deadlock, threads at different barriers, lanes with different
//            masks and any exception thrown in a kernel come out of simt::launch as one gated::Error. Two calls of
//            one function lead to two barriers; that is seen where kernels are compiled with
//            -fno-omit-frame-pointer -fno-optimize-sibling-calls -g1.
//
// Build: g++ -std=c++20 -I. <files> core/simt.cpp -lboost_context; -fsanitize=address,undefined on all of
// them checks bounds, those of shared memory too. tests/test_simt.cpp, tests/test_planted_bugs.cpp
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/shared_memory.h"

// ---- keywords (__restrict__ is one of g++'s and clang's own)
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define DYNAMIC_SHARED(T, name) T* const name = reinterpret_cast<T*>(simt::dynamic_shared)
// STATIC_SHARED(float, tile, [32][33]); one copy serves all blocks, as they run in sequence. Not thread_local: ASan
// guards plain statics only. constinit: g++ would give an array of a class with constructors, such as bf16, a flag that
// says whether it is initialised, and every thread would read that.
#define STATIC_SHARED(T, name, extents)          \
  alignas(16) constinit static T name extents{}; \
  simt::enter_static_shared(&name, sizeof name)
#define __shared__ static_assert(false, "STATIC_SHARED(T, name, extents) is the spelling that the emulator can count");

// ---- built-in types and variables
struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

#define SIMT_VECTOR(T, name)                             \
  struct alignas(2 * sizeof(T)) name##2 {                \
    T x, y;                                              \
  };                                                     \
  struct alignas(4 * sizeof(T)) name##4 {                \
    T x, y, z, w;                                        \
  };                                                     \
  constexpr name##2 make_##name##2(T x, T y) {           \
    return {x, y};                                       \
  }                                                      \
  constexpr name##4 make_##name##4(T x, T y, T z, T w) { \
    return {x, y, z, w};                                 \
  }
SIMT_VECTOR(int, int)
SIMT_VECTOR(unsigned, uint)
SIMT_VECTOR(float, float)
#undef SIMT_VECTOR

using cudaStream_t = void*;
// (hidden: in a shared library too they stand where the code knows, and a program beside it launches no kernels)
#define SIMT_HIDDEN __attribute__((visibility("hidden")))
extern SIMT_HIDDEN uint3 threadIdx, blockIdx;
extern SIMT_HIDDEN dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace simt {

// Which runnable thread goes on: the first, the last, any one, or the first in an order of warps and lanes that is
// drawn anew for each block. The draws depend on the seed and the launch alone.
enum class Order { forward, reverse, random, priority };

struct Config {
  Order order = Order::forward;
  uint64_t seed = 1;
  // Of static and dynamic shared memory. By default that of the smallest GPU on which everything runs; what a
  // consumer's lacks: docs/gpu.md.
  size_t shared_limit = gated::shared_limit_sm_80;
};
extern Config config;

// The emulator's count of multiprocessors, with one block at once on each. It is small, so that small launches fill the
// device, and a block of them takes several pieces of work.
constexpr size_t multiprocessors = 2;

// What watches the kernels' memory. The build of the emulator and the kernels says it; their caller may be of another
// build.
extern const bool under_asan, under_race_shadow;

// The distinct data races of the last launch, in words. Empty in a build without the race shadow.
const std::vector<std::string>& races();

// The source line that calls a collective.
struct Place {
  const char* file;
  int line;
  static constexpr Place here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};
#define SIMT_HERE simt::Place at = simt::Place::here()

// Waits for every thread of the block that has not returned.
void barrier(Place at);

// Waits for every lane of `mask` that has not returned. Only a collective without `combine`, __syncwarp, orders memory:
// after a shuffle or a vote a lane may not rely on what another has written before. Each lane brings a record on its
// own stack; before any of them goes on, the last to come runs combine(records), records[lane] being null for a lane
// that is not there.
using Combine = void (*)(void* const* records);
void collective(unsigned mask, void* record, Combine combine, Place at);

inline unsigned lane() {
  return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % warpSize;
}

[[noreturn]] void missing_lane(unsigned source, Place at);

// The value of lane `source`. A lane that is not in the mask, or has returned, has none: CUDA leaves the result
// undefined, and here it is a fault.
template <class T>
T shuffle(unsigned mask, T value, unsigned source, Place at) {
  static_assert(std::is_trivially_copyable_v<T>);
  struct Record {
    T value, result;
    unsigned source;
    bool missing;
  } record{value, value, source, false};
  const auto exchange = [](void* const* records) {
    for (int lane = 0; lane < warpSize; lane++) {
      Record* const to = static_cast<Record*>(records[lane]);
      if (!to) continue;
      if (const Record* const from = static_cast<Record*>(records[to->source]))
        to->result = from->value;
      else
        to->missing = true;
    }
  };
  collective(mask, &record, exchange, at);
  if (record.missing) missing_lane(source, at);
  return record.result;
}

// The lanes of `mask` that vote yes.
inline unsigned ballot(unsigned mask, bool vote, Place at) {
  struct Record {
    bool vote;
    unsigned result;
  } record{vote, 0};
  const auto count = [](void* const* records) {
    unsigned votes = 0;
    for (int lane = 0; lane < warpSize; lane++)
      if (records[lane] && static_cast<Record*>(records[lane])->vote) votes |= 1u << lane;
    for (int lane = 0; lane < warpSize; lane++)
      if (records[lane]) static_cast<Record*>(records[lane])->result = votes;
  };
  collective(mask, &record, count, at);
  return record.result;
}

extern SIMT_HIDDEN unsigned char* dynamic_shared;
void enter_static_shared(void* begin, size_t bytes);
void run_grid(dim3 grid, dim3 block, unsigned cluster, size_t shared_bytes, void (*body)(void*), void* argument);

// kernel<<<grid, block, shared_bytes>>>(args...) in clusters of so many neighbours in x; returns when every thread has.
template <class... P, class... A>
void launch_clusters(void (*kernel)(P...), dim3 grid, dim3 block, unsigned cluster, size_t shared_bytes, A&&... args) {
  struct Call {
    void (*kernel)(P...);
    std::tuple<P...> args;
  } call{kernel, std::tuple<P...>(std::forward<A>(args)...)};
  const auto body = [](void* p) { std::apply(static_cast<Call*>(p)->kernel, static_cast<Call*>(p)->args); };
  run_grid(grid, block, cluster, shared_bytes, body, &call);
}
template <class... P, class... A>
void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, A&&... args) {
  launch_clusters(kernel, grid, block, 1, shared_bytes, std::forward<A>(args)...);
}

}  // namespace simt

// ---- block collective
inline void __syncthreads(SIMT_HERE) {
  simt::barrier(at);
}

// ---- warp collectives; `width` cuts the warp into segments that exchange among themselves
inline void __syncwarp(unsigned mask = ~0u, SIMT_HERE) {
  simt::collective(mask, nullptr, nullptr, at);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize, SIMT_HERE) {
  return simt::shuffle(mask, value, (simt::lane() & -width) | (source & (width - 1)), at);
}
// Unlike the others it reaches into earlier segments, as on the GPU.
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int flip, int width = warpSize, SIMT_HERE) {
  const unsigned lane = simt::lane(), source = lane ^ flip;
  return simt::shuffle(mask, value, source < (lane & -width) + width ? source : lane, at);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize, SIMT_HERE) {
  const unsigned lane = simt::lane(), room = width - 1 - (lane & (width - 1));
  return simt::shuffle(mask, value, delta <= room ? lane + delta : lane, at);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize, SIMT_HERE) {
  const unsigned lane = simt::lane();
  return simt::shuffle(mask, value, delta <= (lane & (width - 1)) ? lane - delta : lane, at);
}
inline unsigned __ballot_sync(unsigned mask, int vote, SIMT_HERE) {
  return simt::ballot(mask, vote, at);
}
#undef SIMT_HERE

// ---- atomic; no other thread runs meanwhile, but the compiler's atomics tell the race shadow what they are
template <class T>
T atomicAdd(T* p, std::type_identity_t<T> value) {
  T old, next;
  __atomic_load(p, &old, __ATOMIC_RELAXED);
  do next = old + value;
  while (!__atomic_compare_exchange(p, &old, &next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return old;
}

// ---- bits
inline int __popc(unsigned v) {
  return __builtin_popcount(v);
}
inline int __ffs(int v) {
  return __builtin_ffs(v);
}
