// mma_tile: what kernels on tensor cores have in common: a block of 128 threads and tiles of 64 rows, a warp 16 of
// them; which numbers of its sums a lane has (core/mma.cuh), and how it stores them.
#pragma once
#include <initializer_list>

#include "core/mma.cuh"

namespace gated::mma_tile {

constexpr int threads = 128, chunk = 8;  // chunk: elements of bf16 in 16 bytes

// ---- what a lane holds: number e of its four in each tile of 16 x 8

__device__ inline int row_of_lane(int half, int warp = threadIdx.x / 32) {
  return warp * 16 + threadIdx.x % 32 / 4 + 8 * half;
}
__device__ inline int column_of_lane(int n, int e) {
  return 8 * n + threadIdx.x % 4 * 2 + e % 2;
}

// The numbers of the four lanes of a quad, neighbours first. All four get it.
__device__ inline float sum_of_quad(float x) {
  for (int flip = 1; flip < 4; flip *= 2) x = x + __shfl_xor_sync(0xffffffffu, x, flip);
  return x;
}

struct __attribute__((may_alias, aligned(16))) Chunk {
  uint32_t x[4];
};

inline void require_boundaries(const char* name, std::initializer_list<const bf16*> arrays) {
  for (const bf16* p : arrays)
    require(uintptr_t(p) % 16 == 0, "%s: an array at %p, expected its rows on 16-byte boundaries", name,
            static_cast<const void*>(p));
}

}  // namespace gated::mma_tile
