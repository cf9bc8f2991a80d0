// attention_tile: the two matrix products that the kernels of attention are made of, over a tile of 64 x 64 pairs of a
// query and a key. kernels/attention.cu and kernels/attention_backward.cu say what they are for.
//
//   product      S[row][column]   = chain over d of A[row][d] * B[column][d]                   scores, and dp
//   accumulate   acc[row][d]     += chain over columns of weight[row][column] * X[column][d]   o, dq, dk and dv
//
// Rows are queries and columns keys for o and dq; for dk and dv it is the other way round. A block of 128 threads owns
// 64 rows and walks over tiles of 64 columns. Thread t, with ty = t / 8 and tx = t % 8, holds in registers
// rows 4ty .. 4ty+3 and, of every 32 columns, the four from 4tx:
//
//                                   columns
//                 0-3   4-7   8-11  ...  28-31 | 32-35 36-39  ...  60-63
//               +-----+-----+-----+-----+-----+-----+-----+-----+-----+
//   rows  0-3   |  t0 |  t1 |  t2 | ... |  t7 |  t0 |  t1 | ... |  t7 |
//   rows  4-7   |  t8 |  t9 | t10 | ... | t15 |  t8 |  t9 | ... | t15 |   a warp has
//   rows  8-11  | t16 |     |     |     | t23 | t16 |     |     | t23 |   16 whole rows
//   rows 12-15  | t24 |     |     |     | t31 | t24 |     |     | t31 |
//               +-----+-----+-----+-----+-----+-----+-----+-----+-----+
//   rows 16-19  | t32 |     |     |     | t39 | t32 |     |     | t39 |   the next warp
//     ...
//   rows 60-63  |t120 |t121 |     | ... |t127 |t120 |     | ... |t127 |
//
// The sums acc lie the same way, with d in the place of columns: 4 rows x columns/8 numbers a thread, where `columns`
// is D rounded up to 32, 64, 128 or 256. It is a template parameter only because an array in registers needs a
// size; chains run over the true D.
//
// Operands stream through shared memory in strips of 2048 numbers, whatever D is. A strip cuts no chain: it goes on in
// registers.
//
//   product: 32 of the D elements of 64 rows, transposed on the way
//
//      device memory, a row of D                     shared memory, a row of 64 + 4
//      row 0   | 0 1 2 .. 31 | 32 .. 63 | ..         d  0  | row 0 1 2 .. 63 | - - - - |
//      row 1   | 0 1 2 .. 31 | 32 .. 63 | ..   ==>   d  1  | row 0 1 2 .. 63 | - - - - |
//        ..                                            ..
//      row 63  | 0 1 2 .. 31 | 32 .. 63 | ..         d 31  | row 0 1 2 .. 63 | - - - - |
//                 strip 0       strip 1
//
//     So the numbers that a thread needs at one d are neighbours: 4 of A and twice 4 of B, three 16-byte reads for 32
//     multiply-adds. Of B the eight tx of a warp read 32 neighbouring numbers, all 32 banks once; of A the eight tx
//     of a ty read the same four, which is one access.
//     The 4 unused numbers serve the writes. A number goes to bank (d * pitch + row) mod 32. The lanes of a warp write
//     16 rows of d and of d + 4 at a time: with pitch 64 both would meet in the same 16 banks, as 4 * 64 mod 32 = 0;
//     with 68 it is 4 * 68 mod 32 = 16, and they fall on 32 different ones. 68 is also a multiple of 4, so rows
//     still begin on 16 bytes.
//
//   accumulate: 2048/columns rows of X as they are. At one column of the tile a thread reads its 4 weights, and of X
//     the quads that lie as the columns above. Weights pass through shared memory because acc needs all 64 columns of a
//     row, and a thread holds 8 of them.
#pragma once
#include <initializer_list>

#include "core/quad.cuh"
#include "core/storage.h"
#include "kernels/attention.h"

namespace gated::attention {

constexpr int tile = 64, threads = 128, strip = 2048, depth = strip / tile;
constexpr int pitch = tile + 4;

// f<columns>(): so many columns of sums have room in the registers of a kernel's threads, and hold the D of a row.
template <class F>
void by_columns(size_t D, F f) {
  if (D <= 32) return f.template operator()<32>();
  if (D <= 64) return f.template operator()<64>();
  if (D <= 128) return f.template operator()<128>();
  f.template operator()<256>();
}

struct Shared {
  float a[depth * pitch], b[depth * pitch];  // strips of a product; accumulate's is in a
  float weight[tile * pitch];                // p or ds, [column][row]
  float row_sum[tile];
};

// The T rows of one head: `stride` elements from one to the next.
struct Rows {
  const float* data;
  size_t stride, count;
  __device__ const float* operator[](size_t row) const { return data + row * stride; }
};

// May every row be read four elements at a time?
inline bool rows_are_aligned(const AttentionShape& s, std::initializer_list<ConstReals> arrays) {
  return s.D % 4 == 0 && begin_on_quads(arrays);
}

// ---- who holds what, and who sees whom

__device__ inline int row_of_thread() {
  return threadIdx.x / 8 * 4;
}
// The c-th of a thread's columns.
__device__ inline int column_of_thread(int c) {
  return c / 4 * 32 + threadIdx.x % 8 * 4 + c % 4;
}

// Do row and column of a tile see each other? Only i - j, the distance from query back to key, counts. It falls along
// one side of the tile and rises along the other.
struct Mask {
  size_t distance;  // at row 0 and column 0; unsigned, so below 0 it is out of reach
  size_t reach;
  int sign;  // +1: rows are queries, -1: rows are keys
  bool all;  // every row of the sequence sees every column

  __device__ bool operator()(int row, int column) const {
    return distance + size_t(ptrdiff_t(sign * (row - column))) < reach;
  }
};

// All of a tile is seen where its first query sees its last key and its last query sees its first key.
__device__ inline bool tile_is_whole(const AttentionShape& s, size_t i0, size_t i_last, size_t j0, size_t j_last) {
  return j_last <= i0 && s.visible(i_last, j0);
}
__device__ inline Mask rows_are_queries(const AttentionShape& s, size_t i0, size_t j0) {
  const size_t i_end = i0 + tile < s.T ? i0 + tile : s.T;
  return {i0 - j0, s.reach(), 1, tile_is_whole(s, i0, i_end - 1, j0, j0 + tile - 1)};
}
__device__ inline Mask rows_are_keys(const AttentionShape& s, size_t i0, size_t j0) {
  const size_t j_end = j0 + tile < s.T ? j0 + tile : s.T;
  return {i0 - j0, s.reach(), -1, tile_is_whole(s, i0, i0 + tile - 1, j0, j_end - 1)};
}

// ---- product

// to[d - d0][row - row0] = x[row][d] for 64 rows and 32 d; 0 past the last row and past D. The two lanes of a row read
// 32 neighbouring bytes of it, the least that a memory access brings.
template <bool aligned>
__device__ inline void stage_transposed(float* to, const Rows& x, size_t row0, size_t d0, size_t D) {
  const unsigned lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 2;
  for (unsigned d = lane % 2 * 4; d < depth; d += 8) {
    Quad q{};  // four neighbouring elements: load_quad<true> reads them at once
    if (row0 + row < x.count && d0 + d < D) q = load_quad<aligned>(x[row0 + row], d0 + d, D);
    for (int k = 0; k < 4; k++) to[(d + k) * pitch + row] = q.v[k];
  }
}

// out[r][c] = chain over d of a[a0 + row_of_thread() + r][d] * b[b0 + column_of_thread(c)][d].
template <bool aligned>
__device__ inline void product(float (&out)[4][8], const Rows& a, size_t a0, const Rows& b, size_t b0, size_t D,
                               Shared& shared) {
  for (auto& row : out)
    for (float& x : row) x = 0.0f;
  for (size_t d0 = 0; d0 < D; d0 += depth) {
    __syncthreads();  // nobody reads the strips before, or the weights, any more
    stage_transposed<aligned>(shared.a, a, a0, d0, D);
    stage_transposed<aligned>(shared.b, b, b0, d0, D);
    __syncthreads();  // the strips are complete
    const int n = D - d0 < depth ? int(D - d0) : depth;
    for (int d = 0; d < n; d++) {
      float x[4], y[8];
      for (int r = 0; r < 4; r++) x[r] = shared.a[d * pitch + row_of_thread() + r];
      for (int c = 0; c < 8; c++) y[c] = shared.b[d * pitch + column_of_thread(c)];
      for (int r = 0; r < 4; r++)
        for (int c = 0; c < 8; c++) out[r][c] = fused(x[r], y[c], out[r][c]);
    }
  }
}

// ---- weights
//
// A thread writes the weights of the pairs that it holds, and may change them, between the last barrier of a product
// and the first one of accumulate: nobody else looks at them then.

__device__ inline float& weight(Shared& shared, int r, int c) {
  return shared.weight[column_of_thread(c) * pitch + row_of_thread() + r];
}

// They become p. x is the score less m or lse; less -bias with sigmoid.
__device__ inline void weights_p(Shared& shared, AttentionScore score, const float (&x)[4][8]) {
  if (score == AttentionScore::softmax) {
    for (int c = 0; c < 8; c++)
      for (int r = 0; r < 4; r++) weight(shared, r, c) = exp_to_40(x[r][c]);
  } else {
    for (int c = 0; c < 8; c++)
      for (int r = 0; r < 4; r++) weight(shared, r, c) = exact_sigmoid(x[r][c]);
  }
}

// ---- accumulate

// The links of n columns of the tile from column k0 on, whose rows of X are in shared.a.
template <int columns, bool all>
__device__ inline void accumulate_strip(float (&acc)[4][columns / 8], int k0, int n, const Mask& seen,
                                        const Shared& shared) {
  for (int k = 0; k < n; k++) {
    float w[4];
    for (int r = 0; r < 4; r++) w[r] = shared.weight[(k0 + k) * pitch + row_of_thread() + r];
    for (int c = 0; c < columns / 8; c++) {
      const float y = shared.a[k * columns + column_of_thread(c)];
      for (int r = 0; r < 4; r++)
        if (all || seen(row_of_thread() + r, k0 + k)) acc[r][c] = fused(w[r], y, acc[r][c]);
    }
  }
}

// acc[r][c] goes on with the chain over k of weight[k][row_of_thread() + r] * x[x0 + k][column0 + column_of_thread(c)],
// over the columns k of this tile that the row sees.
template <bool aligned, int columns>
__device__ inline void accumulate(float (&acc)[4][columns / 8], const Rows& x, size_t x0, size_t column0, size_t D,
                                  const Mask& seen, Shared& shared) {
  constexpr int rows = strip / columns;
  const int count = x.count - x0 < tile ? int(x.count - x0) : tile;
  for (int k0 = 0; k0 < count; k0 += rows) {
    __syncthreads();  // nobody reads the strip before any more, and all weights are written
    for (int i = threadIdx.x * 4; i < strip; i += threads * 4) {
      const size_t row = x0 + k0 + i / columns, d = column0 + i % columns;
      Quad q{};
      if (row < x.count && d < D) q = load_quad<aligned>(x[row], d, D);
      store_quad<true>(shared.a, i, strip, q);
    }
    __syncthreads();  // the strip is complete
    const int n = count - k0 < rows ? count - k0 : rows;
    if (seen.all)  // no question in the loop: all tiles but those on the diagonal and at the end of a window
      accumulate_strip<columns, true>(acc, k0, n, seen, shared);
    else
      accumulate_strip<columns, false>(acc, k0, n, seen, shared);
  }
}

// ---- where chains begin, and where they end

// acc[r][c] = fused(w[r], x[column_of_thread(c)], +0): a sink's link, the first one. +0 without x.
template <int columns>
__device__ inline void begin_chains(float (&acc)[4][columns / 8], const float (&w)[4], const float* x, size_t D) {
  for (int c = 0; c < columns / 8; c++) {
    const size_t d = column_of_thread(c);
    for (int r = 0; r < 4; r++) acc[r][c] = x && d < D ? fused(w[r], x[d], 0.0f) : 0.0f;
  }
}

// x[row0 + row_of_thread() + r][column0 + column_of_thread(c)] = acc[r][c] where that exists.
template <bool aligned, int columns>
__device__ inline void store_tile(float* x, size_t stride, size_t T, size_t row0, size_t column0, size_t D,
                                  const float (&acc)[4][columns / 8]) {
  for (int r = 0; r < 4; r++) {
    const size_t row = row0 + row_of_thread() + r;
    for (int c = 0; c < columns / 8; c += 4) {
      const size_t d = column0 + column_of_thread(c);
      const Quad q{{acc[r][c], acc[r][c + 1], acc[r][c + 2], acc[r][c + 3]}};
      if (row < T && d < D) store_quad<aligned>(x + row * stride, d, D, q);
    }
  }
}

// The chain over d of x[d] * y[d], by one thread.
template <class X, class Y>
__device__ inline float row_dot(const X* x, const Y* y, size_t D, bool aligned) {
  float sum = 0.0f;
  if (aligned) {
    for (size_t d = 0; d < D; d += 4) {
      const Quad a = load_quad<true>(x, d, D), b = load_quad<true>(y, d, D);
      for (int k = 0; k < 4; k++) sum = fused(a.v[k], b.v[k], sum);
    }
  } else {
    for (size_t d = 0; d < D; d++) sum = fused(float(x[d]), float(y[d]), sum);
  }
  return sum;
}

}  // namespace gated::attention
