// matmul_bf16_tile: one tile of a product of bf16 matrices on tensor cores, by one block. Included by kernels/matmul_bf16.cu,
// where the order of a sum and the layouts stand, and by kernels/grouped_matmul_bf16.cu.
//
// How a block computes a tile of C, from the outside in:
//
//   block   128 x 128 of C, 256 threads. It walks along k in strips of 32.
//   stages  three pairs of strips in shared memory. While one pair is multiplied, the copies of the next two are under way
//           (cp.async), so that the latency of memory is hidden behind two strips of arithmetic:
//
//              pair       0           1           2           0           1
//              strip      0           1           2           3           4       ...
//                       wait 0      wait 1      wait 2
//                       | barrier | | barrier | | barrier |
//                       copy 2      copy 3      copy 4
//                       multiply 0  multiply 1  multiply 2
//
//           One barrier a strip: it says that every thread's copies of strip s are there, and that every thread has multiplied
//           strip s-1, whose pair the copy of strip s+2 overwrites.
//   warp    64 x 32 of the tile; the eight warps stand as 2 x 4:
//
//                   0       32      64      96     128
//                 0 +-------+-------+-------+-------+
//                   | warp 0|   1   |   2   |   3   |
//                64 +-------+-------+-------+-------+
//                   |   4   |   5   |   6   |   7   |
//               128 +-------+-------+-------+-------+
//
//   lane    4 x 4 tiles of 16 x 8, of each four sums, two neighbours in each of two rows (core/mma.cuh): 64 registers.
//           For 16 k it loads four tiles of A and four of B with six ldmatrix and multiplies each with each: 16 instructions.
//
// A strip lies in shared memory as it lies in memory, so both kinds of operands are copied 16 bytes at a time; one in which
// memory does not run along k is transposed by ldmatrix on the way to the registers:
//
//   k along memory     128 lines of 32 k:  4 chunks of 8 elements a line
//   rows along memory  32 lines of 128 rows: 16 chunks a line
//
// ldmatrix reads eight lines at the same chunk. Were chunks stored where they belong, the eight would meet in the same banks: so
// chunk c of line l stands at c xor (a number made of l) instead, which spreads them over all 32 banks.

#pragma once
#include "core/mma.cuh"
#include "kernels/matmul_bf16.h"

namespace gated {

constexpr int mma_tile_rows = 128, mma_strip_k = 32, mma_stages = 3, mma_chunk = 8;  // of bf16; a chunk is 16 bytes
constexpr int mma_threads = 256, mma_strip_elements = mma_tile_rows * mma_strip_k;
constexpr size_t mma_shared = size_t{mma_stages} * 2 * mma_strip_elements * sizeof(bf16);
constexpr size_t mma_most_k = size_t{1} << 35;  // strips are counted in ints
static_assert(matmul_bf16_slice % mma_strip_k == 0, "a slice is a whole number of strips");

// One operand: 128 rows of it (of A; columns of B) and 32 k at a time.
template <bool k_along_memory, bool aligned>
struct MmaStrip {
  static constexpr int chunks = (k_along_memory ? mma_strip_k : mma_tile_rows) / mma_chunk;  // of a line

  Matrix<const bf16> matrix;
  size_t rows, K, row0;

  // Where chunk c of line l stands in shared memory. Eight neighbouring lines of 4 chunks: two lines fill the banks once, so
  // the pair's number is mixed in; a line of 16 chunks fills them twice, so its own number is.
  __device__ static int place(int line, int c) {
    return (line * chunks + (c ^ (k_along_memory ? line / 2 % 4 : line % 8))) * mma_chunk;
  }

  // Asks for the strip that begins at k0. A thread owns two chunks; what is past the matrix is 0.
  __device__ void copy(bf16* shared, size_t k0, AsyncCopies& copies) const {
    for (int i = threadIdx.x; i < mma_strip_elements / mma_chunk; i += mma_threads) {
      const int line = i / chunks, c = i % chunks;
      const size_t row = row0 + (k_along_memory ? line : c * mma_chunk),
                   k = k0 + (k_along_memory ? c * mma_chunk : line);
      const size_t at = k_along_memory ? row * matrix.ld + k : k * matrix.ld + row;
      const size_t left = row >= rows || k >= K ? 0 : k_along_memory ? K - k : rows - row;
      bf16* const to = shared + place(line, c);
      if constexpr (aligned) {  // ld is a multiple of 8, so a chunk is on its boundary; a line may end inside one
        const unsigned bytes = left < mma_chunk ? 2 * unsigned(left) : 16;
        copies.copy16(to, matrix.data + (bytes ? at : 0), bytes);
      } else {
        for (size_t j = 0; j < mma_chunk; j++) to[j] = j < left ? matrix.data[at + j] : bf16();
      }
    }
  }

  // Two 8x8 tiles beside one another in k, of 8 rows each, for both halves of 16 rows: x[0] and x[1] are rows 0-7 and 8-15 at
  // k 0-7, x[2] and x[3] at k 8-15.
  __device__ static void load(uint32_t (&x)[4], const bf16* shared, int row, int k) {
    const int lane = threadIdx.x % 32;
    if constexpr (k_along_memory) {
      ldmatrix<false>(x, shared + place(row + lane % 16, k / mma_chunk + lane / 16));
    } else {
      // A line is one k: tile i has lines k + i/2*8 .., and rows row + i%2*8 .. in a chunk.
      ldmatrix<true>(x, shared + place(k + lane / 16 * 8 + lane % 8, row / mma_chunk + lane / 8 % 2));
    }
  }
};

// What a block works on: rows from m0 and columns from n0 of C, 128 of each where they come before m_end and n_end, and k from 0
// to K. C, A, B, bias and totals point to their first element, wherever the tile is.
// totals: where there are several slices, the sum of those that are done.
template <class Out>
struct MmaBlock {
  Matrix<Out> C;
  Matrix<float> totals;
  Matrix<const bf16> A, B;
  const float* bias;  // or null
  size_t m0, m_end, n0, n_end, K;
  bool accumulate;
};

// One element at the end of a slice; the last slice writes C.
template <class Out>
__device__ inline void end_slice(const MmaBlock<Out>& block, size_t m, size_t n, float sum, bool first, bool last) {
  if (m >= block.m_end || n >= block.n_end) return;
  const size_t at = m * block.totals.ld + n;
  const float total = first ? sum : block.totals.data[at] + sum;
  if (!last) {
    block.totals.data[at] = total;
    return;
  }
  Out& c = block.C.data[m * block.C.ld + n];
  c = Out(block.accumulate ? c + total : block.bias ? block.bias[n] + total : total);
}

// shared: mma_shared bytes.
template <Layout layout, bool aligned, class Out>
__device__ __forceinline__ void multiply_tile(const MmaBlock<Out>& block, bf16* shared) {
  using StripA = MmaStrip<layout != Layout::tn, aligned>;
  using StripB = MmaStrip<layout == Layout::nt, aligned>;
  const StripA strip_a{block.A, block.m_end, block.K, block.m0};
  const StripB strip_b{block.B, block.n_end, block.K, block.n0};
  const int warp = threadIdx.x / 32, row = warp / 4 * 64, column = warp % 4 * 32;
  const int strips = int((block.K + mma_strip_k - 1) / mma_strip_k);

  AsyncCopies copies;
  const auto pair = [&](int s) { return shared + s % mma_stages * 2 * mma_strip_elements; };
  const auto copy = [&](int s) {
    if (s < strips) {
      strip_a.copy(pair(s), size_t(s) * mma_strip_k, copies);
      strip_b.copy(pair(s) + mma_strip_elements, size_t(s) * mma_strip_k, copies);
    }
    copies.commit();  // an empty group where there is no strip, so that groups count strips
  };
  copy(0);
  copy(1);

  MmaC sum[4][4] = {};
  const int lane = threadIdx.x % 32;
  const auto end = [&](bool first, bool last) {
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) {
        for (int e = 0; e < 4; e++)
          end_slice(block, block.m0 + row + 16 * i + lane / 4 + e / 2 * 8,
                    block.n0 + column + 8 * j + lane % 4 * 2 + e % 2, sum[i][j].x[e], first, last);
        sum[i][j] = {};
      }
  };
  constexpr int strips_of_slice = matmul_bf16_slice / mma_strip_k;
  for (int s = 0; s < strips; s++) {
    copies.template wait<1>();  // all but strip s+1
    __syncthreads();
    copy(s + 2);
    const bf16 *a = pair(s), *b = a + mma_strip_elements;
#pragma unroll
    for (int k = 0; k < mma_strip_k; k += int(mma_depth)) {
      MmaA fragments_a[4];
      MmaB fragments_b[4];
#pragma unroll
      for (int i = 0; i < 4; i++) StripA::load(fragments_a[i].x, a, row + 16 * i, k);
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        uint32_t x[4];
        StripB::load(x, b, column + 8 * j, k);
        fragments_b[j] = {{x[0], x[2]}};
        fragments_b[j + 1] = {{x[1], x[3]}};
      }
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) mma(sum[i][j], fragments_a[i], fragments_b[j]);
    }
    if ((s + 1) % strips_of_slice == 0 && s + 1 < strips) end(s < strips_of_slice, false);
  }
  end(strips <= strips_of_slice, true);
}

// ---- for launchers

// Do the lines of a matrix begin on boundaries of a chunk?
inline bool mma_aligned(Matrix<const bf16> m) {
  return uintptr_t(m.data) % 16 == 0 && m.ld % mma_chunk == 0;
}

}  // namespace gated
