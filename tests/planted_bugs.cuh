// planted_bugs: kernels with one fault each, and, with fault = false, the same kernel without it. What finds
// them is shown by test_planted_bugs.cpp. (What the emulator refuses in every build, barriers and lanes that do not
// meet: test_simt.cpp. What ldmatrix reads: test_mma.cpp.)
//
// All run on `blocks` blocks of `threads` threads with shared_bytes of dynamic shared memory, read x
// (elements floats) and write y, one float a thread.
#pragma once
#include "core/mma.cuh"

namespace gated::planted {

constexpr unsigned blocks = 3, threads = 256, warps = threads / 32, tiles = 4;
constexpr size_t elements = size_t{blocks} * threads, shared_bytes = threads * sizeof(float);

// A kernel that reads x and writes y, right or with its fault.
#define KERNEL(name)    \
  template <bool fault> \
  __global__ void name([[maybe_unused]] float* y, [[maybe_unused]] const float* x)

// This thread's place in x and y.
__device__ inline size_t own() {
  return size_t{blockIdx.x} * threads + threadIdx.x;
}

// Sum over a warp; every lane gets it.
__device__ inline float warp_sum(float v) {
  for (int o = 16; o > 0; o /= 2) v += __shfl_xor_sync(0xFFFFFFFFu, v, o);
  return v;
}

// Sum over the block through one float a warp; the caller must see to a barrier before the scratch is used
// again.
__device__ inline float block_sum(float v, float* scratch) {
  v = warp_sum(v);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
  __syncthreads();
  float sum = 0;
  for (unsigned w = 0; w < warps; w++) sum += scratch[w];
  return sum;
}

// A shuffle stands where __syncwarp should: it orders no memory.
KERNEL(shuffle_for_syncwarp) {
  DYNAMIC_SHARED(float, tile);
  tile[threadIdx.x] = x[own()];
  const float v = __shfl_xor_sync(0xFFFFFFFFu, x[own()], 1);
  if (!fault) __syncwarp();
  y[own()] = tile[threadIdx.x ^ 2] + v;
}

// Five lines race with one another: no barrier at all.
KERNEL(no_barriers) {
  DYNAMIC_SHARED(float, tile);
  tile[threadIdx.x] = x[own()];
  if (!fault) __syncthreads();
  float sum = tile[threads - 1 - threadIdx.x];
  sum += tile[(threadIdx.x + 32) % threads];
  sum += tile[(threadIdx.x + 64) % threads];
  sum += tile[(threadIdx.x + 96) % threads];
  if (!fault) __syncthreads();
  tile[threadIdx.x] = sum;
  if (!fault) __syncthreads();
  y[own()] = tile[threadIdx.x ^ 32];
}

// A tile is read before all of it has been loaded.
KERNEL(no_barrier_after_load) {
  DYNAMIC_SHARED(float, tile);
  tile[threadIdx.x] = x[own()];
  if (!fault) __syncthreads();
  y[own()] = tile[threads - 1 - threadIdx.x];
}

// The next tile is loaded over one that others still read.
KERNEL(no_barrier_before_overwrite) {
  DYNAMIC_SHARED(float, tile);
  float sum = 0;
  for (unsigned k = 0; k < tiles; k++) {
    tile[threadIdx.x] = x[own()] + float(k);
    __syncthreads();
    sum += tile[(threadIdx.x + 100) % threads];
    if (!fault) __syncthreads();
  }
  y[own()] = sum;
}

// A second sum overwrites the scratch of the first.
KERNEL(no_barrier_between_sums) {
  STATIC_SHARED(float, scratch, [warps]);
  const float sum = block_sum(x[own()], scratch);
  if (!fault) __syncthreads();
  y[own()] = sum + 2 * block_sum(x[own()] * x[own()], scratch);
}

// Lanes exchange through shared memory, trusting that a warp moves in step.
KERNEL(no_syncwarp) {
  DYNAMIC_SHARED(float, shared);
  shared[threadIdx.x] = x[own()];
  if (!fault) __syncwarp();
  y[own()] = shared[threadIdx.x ^ 1];
}

// A warp waits for its own lanes alone, and reads what another warp loads.
KERNEL(syncwarp_for_syncthreads) {
  DYNAMIC_SHARED(float, shared);
  shared[threadIdx.x] = x[own()];
  if (fault)
    __syncwarp();
  else
    __syncthreads();
  y[own()] = shared[(threadIdx.x + 32) % threads];
}

// Lane 2 reads what lane 0 wrote, without having met lane 1, which has met lane 0.
KERNEL(no_second_syncwarp) {
  DYNAMIC_SHARED(float, shared);
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane == 0) shared[warp] = x[own()];
  if (lane < 2) __syncwarp(0b011);
  if (!fault && (lane == 1 || lane == 2)) __syncwarp(0b110);
  if (lane == 2) y[own()] = shared[warp];
}

// Lane 1 reads in good order what lane 0 wrote; another warp does not.
KERNEL(no_barrier_for_second_reader) {
  DYNAMIC_SHARED(float, shared);
  if (threadIdx.x == 0) shared[0] = x[own()];
  __syncwarp();
  if (threadIdx.x == 1) y[own()] = shared[0];
  if (!fault) __syncthreads();
  if (threadIdx.x == 32) y[own()] = shared[0];
}

// A plain store, then atomics, to one word; another warp's atomic may come before the store.
KERNEL(store_among_atomics) {
  float* sum = y + size_t{blockIdx.x} * threads;
  if (threadIdx.x == 0) {
    *sum = x[own()];
    atomicAdd(sum, 1.0f);
  }
  if (!fault) __syncthreads();
  if (threadIdx.x == 32) atomicAdd(sum, 1.0f);
}

// A full warp adds up one float a warp: 32 floats, of which 8 were written.
template <bool fault>
__device__ inline void sum_of_partials(float* y, const float* x, float* partial) {
  const unsigned lane = threadIdx.x % 32;
  const float v = warp_sum(x[own()]);
  if (lane == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  y[own()] = warp_sum(fault || lane < warps ? partial[lane] : 0.0f);
}
KERNEL(unwritten_dynamic) {
  DYNAMIC_SHARED(float, partial);
  sum_of_partials<fault>(y, x, partial);
}
KERNEL(unwritten_static) {
  STATIC_SHARED(float, partial, [32]);
  sum_of_partials<fault>(y, x, partial);
}

// All blocks add to one word. Integers, so that the order of the additions does not show.
KERNEL(add_without_atomic) {
  if (threadIdx.x > 0) return;
  if (fault)
    y[0] += 1;
  else
    atomicAdd(y, 1.0f);
}

// y = x + (x of the blocks before), the latter taken from what the block before wrote.
KERNEL(read_other_block) {
  float before = 0;
  if (fault && blockIdx.x > 0) before = y[own() - threads];
  if (!fault)
    for (unsigned b = 0; b < blockIdx.x; b++) before += x[size_t{b} * threads + threadIdx.x];
  y[own()] = x[own()] + before;
}

// The last thread's right neighbour is past the end of x.
KERNEL(past_the_end_global) {
  y[own()] = x[own()] + (!fault && own() + 1 == elements ? 0.0f : x[own() + 1]);
}

// The last thread's right neighbour is past the end of the tile.
template <bool fault>
__device__ inline void add_neighbour(float* y, const float* x, float* tile) {
  tile[threadIdx.x] = x[own()];
  __syncthreads();
  y[own()] = tile[threadIdx.x] + (!fault && threadIdx.x + 1 == threads ? 0.0f : tile[threadIdx.x + 1]);
}
KERNEL(past_the_end_dynamic) {
  DYNAMIC_SHARED(float, tile);
  add_neighbour<fault>(y, x, tile);
}
KERNEL(past_the_end_static) {
  STATIC_SHARED(float, tile, [threads]);
  add_neighbour<fault>(y, x, tile);
}

// Chunks of a row come through two stages of shared memory: while one is read, the next is copied.
enum class Slip { none, no_wait, waits_for_the_group_before, no_barrier_behind_wait, no_barrier_before_copy };
template <Slip slip>
__global__ void two_stages(float* y, const float* x) {
  constexpr unsigned chunk = threads / 4;
  DYNAMIC_SHARED(float, stages);
  AsyncCopies copies;
  const auto fetch = [&](unsigned k) {
    if (threadIdx.x < chunk / 4 && k < 4)
      copies.copy16(stages + k % 2 * chunk + 4 * threadIdx.x,
                    x + size_t{blockIdx.x} * threads + k * chunk + 4 * threadIdx.x);
    copies.commit();
  };
  float sum = 0;
  fetch(0);
  for (unsigned k = 0; k < 4; k++) {
    fetch(k + 1);
    if (slip == Slip::waits_for_the_group_before)
      copies.wait<2>();
    else if (slip != Slip::no_wait)
      copies.wait<1>();
    if (slip != Slip::no_barrier_behind_wait) __syncthreads();
    sum += float(k + 1) * stages[k % 2 * chunk + threadIdx.x * 5 % chunk];
    if (slip != Slip::no_barrier_before_copy) __syncthreads();
  }
  y[own()] = sum;
}
#undef KERNEL

}  // namespace gated::planted
