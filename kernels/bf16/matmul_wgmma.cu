// matmul_wgmma: products of bf16 matrices by wgmma, which reads its operands from shared memory itself: no ldmatrix, no
// fragments, one instruction where mma.sync takes 128 of a warp (core/wgmma.cuh). For compute capability 9.0; others
// take the kernel of kernels/bf16/matmul_bf16.cu, where the order of a sum stands. It is the same here: a chain of
// ascending k in steps of 16, slices of 4096, an end by end_quad().
//
//   block   128 x 256 of C, 256 threads: two warpgroups, each with 64 rows and all columns, 128 sums a thread
//   strip   64 k of both: 128 + 256 lines of 128 bytes, 48 KiB. In a line runs k, or, where memory runs along the rows,
//           64 of these: one line for each k, and the next 64 rows 64 lines on. Chunks are exchanged as wgmma wants it.
//   stages  four pairs of strips. Two are on their way (cp.async), one is being multiplied, and one may still be:
//
//              strip s    every thread: its copies of s are there, and seen by the tensor core     wait, fence
//                         barrier: so are all others', and all products of s-2 are done
//                         ask for the products of s: four steps of 16 k, one group
//                         ask for strip s+2, into the stage of s-2
//                         wait until the products of s-1 are done
//
//           So while threads wait at the barrier of s+1, the tensor core has the products of s to do.
//
// Why the bits stay: wgmma computes mma.sync's step, and those of one thread on the same sums run in the order in which
// they were asked for. Past the edge of a matrix is 0. What an order of instructions does not see is free: the tile,
// the stages, which thread holds which element.
//
// What is still to come:
//   TMA       one thread asks for a whole box of a matrix. The hardware computes the addresses, fills with zeros past
//             the edge, writes the box as wgmma wants it, and counts the bytes that have arrived at a barrier in shared
//             memory. A third warpgroup does nothing else, and gives most of its registers away (setmaxnreg). Two
//             barriers a stage: one flips when its bytes are there, the other when both consumers have read it.
//   the grid  one block an SM, which takes one tile after the other: the producer is at the next tile while the
//             consumers end this one. Tiles go in groups of eight rows, so that A and B are found in L2.
//   the end   rounded sums go through stmatrix into a stage that is free, and from there by TMA.
// Attention gains in the same way: a producer for K and V, two consumers with 64 queries each that take turns, so that
// one computes its exponentials while the tensor core multiplies for the other. Its tiles of 64 keys are part of the
// result: two of them may lie in one stage, but their maxima are taken one after the other.
//
// On an H200 every shape of tests/test_matmul_bf16.cpp has these bits, at 0.30 to 0.55 of cuBLASLt's speed
// (docs/gpu.md): the eight warps issue in 40 % of the slots, and wait in the others.
//
// tests/test_matmul_bf16.cpp
#include "kernels/bf16/matmul_wgmma.h"

#include "core/launch.cuh"
#include "core/wgmma.cuh"
#include "kernels/bf16/matmul_bf16_tile.cuh"

namespace gated {

constexpr int wgmma_tile_rows = 2 * wgmma_rows, wgmma_block = 2 * wgmma_threads, wgmma_stages = 4;
constexpr uint32_t wgmma_a_bytes = wgmma_tile_rows * wgmma_line_bytes, wgmma_b_bytes = wgmma_columns * wgmma_line_bytes;
constexpr uint32_t wgmma_stage_bytes = wgmma_a_bytes + wgmma_b_bytes;
// (and what it takes to begin on a boundary of eight lines)
constexpr size_t wgmma_shared = size_t{wgmma_stages} * wgmma_stage_bytes + wgmma_group_bytes;
constexpr int wgmma_end_pitch = wgmma_columns + 8;  // as mma_end_pitch
static_assert(matmul_bf16_slice % wgmma_line == 0, "a slice is a whole number of strips");
static_assert(wgmma_tile_rows * wgmma_end_pitch * sizeof(float) <= wgmma_shared - wgmma_group_bytes);

// One operand: `rows` rows of A, or columns of B, of a block, and 64 k at a time.
template <bool rows_along, int rows>
struct WgmmaStrip {
  Matrix<const bf16> matrix;
  size_t row0, end, K;

  // Asks for the strip from k0 on; what is past the matrix is 0. A thread has chunk threadIdx.x % 8 of each 32nd line.
  __device__ void copy(unsigned char* shared, size_t k0, AsyncCopies& copies) const {
    const int c = int(threadIdx.x) % 8;
#pragma unroll
    for (int i = 0; i < rows / 32; i++) {
      const int line = int(threadIdx.x) / 8 + 32 * i;
      const size_t row = row0 + (rows_along ? line / wgmma_line * wgmma_line + c * mma_chunk : line),
                   k = k0 + (rows_along ? line % wgmma_line : c * mma_chunk);
      const size_t left = row >= end || k >= K ? 0 : rows_along ? end - row : K - k;
      const size_t at = left == 0 ? 0 : rows_along ? k * matrix.ld + row : row * matrix.ld + k;
      copies.copy16(shared + line * wgmma_line_bytes + (c ^ line % 8) * 16, matrix.data + at,
                    left < mma_chunk ? 2 * unsigned(left) : 16);
    }
  }

  // Of the strip at this address, from row `row` (a multiple of 64) and k on.
  __device__ static uint64_t descriptor(uint32_t address, uint32_t row, uint32_t k) {
    return wgmma_descriptor(address + row * wgmma_line_bytes + k * (rows_along ? wgmma_line_bytes : sizeof(bf16)),
                            wgmma_line * wgmma_line_bytes, wgmma_group_bytes);
  }
};

template <Layout layout, class Out>
__global__ void __launch_bounds__(wgmma_block, 1) matmul_wgmma_kernel(MmaBlock<Out> block) {
  DYNAMIC_SHARED(unsigned char, shared);
  unsigned char* const stages = shared + (-shared_address(shared) & (wgmma_group_bytes - 1));
  block.m0 = size_t{blockIdx.x} * wgmma_tile_rows;
  block.n0 = size_t{blockIdx.y} * wgmma_columns;
  if constexpr (layout == Layout::tn)
    if (gridDim.z > 1) take_slice(block);
  constexpr bool a_along = layout == Layout::tn, b_along = layout != Layout::nt;
  using StripA = WgmmaStrip<a_along, wgmma_tile_rows>;
  using StripB = WgmmaStrip<b_along, wgmma_columns>;
  const StripA strip_a{block.A, block.m0, block.m_end, block.K};
  const StripB strip_b{block.B, block.n0, block.n_end, block.K};
  const int strips = int((block.K + wgmma_line - 1) / wgmma_line);
  const int first_row = int(threadIdx.x) / wgmma_threads * wgmma_rows;  // of this warpgroup

  AsyncCopies copies;
  const auto stage = [&](int s) { return stages + s % wgmma_stages * wgmma_stage_bytes; };
  const auto copy = [&](int s) {
    if (s < strips) {
      strip_a.copy(stage(s), size_t(s) * wgmma_line, copies);
      strip_b.copy(stage(s) + wgmma_a_bytes, size_t(s) * wgmma_line, copies);
    }
    copies.commit();  // an empty group where there is no strip, so that groups count strips
  };
  copy(0);
  copy(1);

  WgmmaSums sums;
  constexpr int strips_of_slice = matmul_bf16_slice / wgmma_line;
#pragma unroll 1
  for (int s = 0; s < strips; s++) {
    copies.template wait<1>();  // all but strip s+1
    fence_proxy_async();
    __syncthreads();
    const uint32_t a = shared_address(stage(s)), b = a + wgmma_a_bytes;
    sums.fence();
#pragma unroll
    for (int k = 0; k < wgmma_line; k += int(mma_depth))
      sums.template multiply<a_along, b_along>(StripA::descriptor(a, first_row, k), StripB::descriptor(b, 0, k),
                                               s % strips_of_slice != 0 || k > 0);
    sums.commit();
    copy(s + 2);
    if ((s + 1) % strips_of_slice == 0 && s + 1 < strips) {  // a slice ends that is not the last
      sums.template wait<0>();
      for_wgmma_sums(0, wgmma_sums, [&](int i, int r, int c) {
        const size_t m = block.m0 + first_row + r, n = block.n0 + c;
        if (m >= block.m_end || n >= block.n_end) return;
        float& total = block.totals.data[m * block.totals.ld + n];
        total = s < strips_of_slice ? sums.x[i] : total + sums.x[i];
      });
    } else {
      sums.template wait<1>();
    }
  }
  sums.template wait<0>();
  __syncthreads();  // all products are made: the strips are no longer needed

  float* const staged = reinterpret_cast<float*>(stages);
  for_wgmma_sums(0, wgmma_sums, [&](int i, int r, int c) {
    if (i % 2 == 0)
      *reinterpret_cast<float2*>(staged + (first_row + r) * wgmma_end_pitch + c) = {sums.x[i], sums.x[i + 1]};
  });
  __syncthreads();
  const int lane = int(threadIdx.x) % 32;
#pragma unroll 1
  for (int r = int(threadIdx.x) / 32; r < wgmma_tile_rows; r += wgmma_block / 32)
#pragma unroll 1
    for (int c = 4 * lane; c < wgmma_columns; c += 4 * 32)
      if (block.m0 + r < block.m_end && block.n0 + c < block.n_end)
        end_quad<layout == Layout::nt && storage_of<Out> == Storage::bf16>(block, block.m0 + r, block.n0 + c,
                                                                           load_four(staged + r * wgmma_end_pitch + c));
}

template <class Out>
bool matmul_wgmma(Matrix<Out> C, Matrix<const bf16> A, Matrix<const bf16> B, size_t M, size_t N, size_t K,
                  Layout layout, Accumulate accumulate, float* totals, const float* bias, const Activated& activated,
                  Context& ctx, size_t slices) {
  const size_t columns = ceil_div(N, wgmma_columns);
  if (K == 0 || K > mma_most_k || columns > 65535 || !mma_aligned(A) || !mma_aligned(B)) return false;
#ifdef __CUDACC__
  if (compute_capability() != 90) return false;
#endif
  if (ctx.mma_arithmetic != MmaArithmetic::hopper || shared_limit() < wgmma_shared) return false;
  const MmaBlock<Out> product = {.C = C,
                                 .totals = {totals, N},
                                 .A = A,
                                 .B = B,
                                 .bias = bias,
                                 .m0 = 0,
                                 .m_end = M,
                                 .n0 = 0,
                                 .n_end = N,
                                 .K = K,
                                 .more = {},
                                 .depth = K,
                                 .accumulate = accumulate == Accumulate::yes,
                                 .activated = activated};
  const dim3 grid(grid_of(ceil_div(M, wgmma_tile_rows)).x, unsigned(columns), unsigned(slices));
  const auto run = [&](auto kernel) { launch(kernel, grid, wgmma_block, wgmma_shared, ctx, product); };
  switch (layout) {
    case Layout::nt: run(matmul_wgmma_kernel<Layout::nt, Out>); break;
    case Layout::nn: run(matmul_wgmma_kernel<Layout::nn, Out>); break;
    case Layout::tn: run(matmul_wgmma_kernel<Layout::tn, Out>); break;
  }
  return true;
}
template bool matmul_wgmma(Matrix<float>, Matrix<const bf16>, Matrix<const bf16>, size_t, size_t, size_t, Layout,
                           Accumulate, float*, const float*, const Activated&, Context&, size_t);
template bool matmul_wgmma(Matrix<bf16>, Matrix<const bf16>, Matrix<const bf16>, size_t, size_t, size_t, Layout,
                           Accumulate, float*, const float*, const Activated&, Context&, size_t);

}  // namespace gated
