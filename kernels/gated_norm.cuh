// gated_norm: the tile. What the kernels along the rows (kernels/gated_norm.cu) and down the columns
// (kernels/gated_norm_columns.cu) are made of: who owns which element, and the two products between columns and rank.
//
// A thread has a Patch: four neighbouring columns of four neighbouring rows. The 128 threads of a block lie side by
// side over a tile and, where it ends, below each other. Along the rows it is 128 columns wide, so that a warp has
// whole rows; the block walks along them, tile by tile:
//
//   columns      0..3     4..7    ...   124..127     128..131   ...
//   rows 0..3    lane 0   lane 1   ...   lane 31      lane 0     ...     warp 0
//        4..7    lane 0   lane 1   ...   lane 31      lane 0     ...     warp 1
//        8..11   lane 0   lane 1   ...   lane 31      lane 0     ...     warp 2
//       12..15   lane 0   lane 1   ...   lane 31      lane 0     ...     warp 3
//               '----------- a tile ------------'    '- the next
//
// So a lane carries four chains of each of its rows in registers, as in every operation along rows
// (kernels/rmsnorm.cu). Down the columns a tile is 32 columns wide and 64 rows high.
//
// A product from the rank to the columns, such as z = a W_up^T, is an "expand". An output is a sum over the rank, and
// the thread that owns the element makes it alone. a stands in shared memory, as [j][row], and W is read along the
// columns, (rank,C), which is why W_up is transposed first:
//   expand      out[row][c] = chain over j of values[j][row] * W[j][c]
// For one j a thread reads a Quad of each, and multiplies all pairs: 16 multiply-adds.
//
// A product from the columns to the rank, such as low = n W_down^T, is a "contract". An output is a chain over all
// columns in ascending order, but the columns of a row are spread over 32 lanes. So they go through shared memory, and
// so does W, for 16 of the rank at a time. A thread takes one j and two rows through the tile, column by column.
// Between tiles its two chains wait in shared memory:
//   contract    out[row][j] = chain over c of tile[row][c] * W[j][c], in slices of 1024 columns (kernels/matmul.cu)
// Two rows for a thread, because one number of W then serves two multiply-adds.
//
//   registers, patch of n  -->  tile    16 rows by 128 columns  |
//                                                               |- barrier - contract - barrier, the next tile
//   registers, patch of W  -->  W_tile  16 j by 128 columns     |
#pragma once
#include "core/reduce.cuh"
#include "kernels/gate.cuh"
#include "kernels/gated_norm.h"
#include "kernels/matmul.h"
#include "kernels/rmsnorm.cuh"

namespace gated {

// One element of the norm under the gate: n(unit), unit = x*r for RMSNorm, tanh(alpha*x) for DyT.
struct NormUnderGate {
  bool rms;
  float offset, alpha;

  HD NormUnderGate(const GatedNormWeights& weights, const GatedNormShape& shape)
      : rms(shape.base == NormGateBase::rmsnorm), offset(shape.offset), alpha(rms ? 0.0f : *weights.alpha) {}

  HD float unit(float x, float r) const { return rms ? x * r : exact_tanh(alpha * x); }
  HD float n(float unit, float w, float b) const { return rms ? unit * rmsnorm_weight(w, offset) : fused(w, unit, b); }
  // The gradient of unit, for RMSNorm; of alpha*x, for DyT.
  HD float g(float dn, float unit, float w) const {
    return rms ? dn * rmsnorm_weight(w, offset) : dn * w * fused(-unit, unit, 1.0f);
  }
  // The term of the row's sum: over C it is the mean that RMSNorm takes away from g; for DyT the row's share of dalpha.
  HD float add_to_row(float acc, float g, float unit, float x) const { return fused(g, rms ? unit : x, acc); }
  HD float dx(float g, float unit, float mean, float r) const { return rms ? rmsnorm_dz(g, unit, mean, r) : alpha * g; }
};

namespace gated_norm {

constexpr unsigned threads = 128;
constexpr unsigned piece = 16;  // of the rank at a time, where a part of W or of the values waits in shared memory

struct Patch {
  Quad row[4];
};

// f(k, e) for column e of row k. Unrolled, so that a Patch stays in registers.
template <class F>
__device__ inline void each_element(F f) {
#pragma unroll
  for (int k = 0; k < 4; k++)
#pragma unroll
    for (int e = 0; e < 4; e++) f(k, e);
}

template <class F>
__device__ inline Patch patch(F f) {
  Patch p;
  each_element([&](int k, int e) { p.row[k].v[e] = f(k, e); });
  return p;
}

// Columns c to c+3 of `count` rows of p (N,C), which begins with the first of them; beyond rows and columns there is 0.
template <class S>
__device__ inline Patch load_patch(const S* p, unsigned count, size_t c, size_t C) {
  Patch q = {};
  if (count == 4 && c < C && C % 4 == 0) {
    for (unsigned k = 0; k < 4; k++) q.row[k] = load_quad<true>(p + k * C, c, C);
  } else {
    for (unsigned k = 0; k < 4; k++)
      if (k < count) q.row[k] = load_quad<false>(p + k * C, c, C);
  }
  return q;
}

template <class S>
__device__ inline void store_patch(S* p, unsigned count, size_t c, size_t C, const Patch& q) {
  if (count == 4 && c < C && C % 4 == 0) {
    for (unsigned k = 0; k < 4; k++) store_quad<true>(p + k * C, c, C, q.row[k]);
  } else {
    for (unsigned k = 0; k < 4; k++)
      if (k < count) store_quad<false>(p + k * C, c, C, q.row[k]);
  }
}

// How many of the four from `first` on are below `end`.
__device__ inline unsigned count_of_four(size_t first, size_t end) {
  return first >= end ? 0 : end - first < 4 ? unsigned(end - first) : 4;
}

struct Scores {
  Patch s, slope;
};

// Both at once, so that what they share is computed once; a caller that takes one of them computes that one alone. (One
// choice of the activation for all elements, not one for each.)
__device__ inline Scores scores(const GateOp& op, const Patch& z) {
  Scores of;
  with_known_activation<any_gate>(op.act, [&](auto act) {
    each_element([&](int k, int e) {
      of.s.row[k].v[e] = op.scale * activation_value(decltype(act)::value, z.row[k].v[e]);
      of.slope.row[k].v[e] = op.scale * activation_slope(decltype(act)::value, z.row[k].v[e]);
    });
  });
  return of;
}

// A tile, as a thread sees it: the block's rows from `first` on.
template <unsigned tile_width>
struct Tile {
  static constexpr unsigned width = tile_width, across = width / 4, rows = threads / across * 4;
  // The pitch, floats from row to row in shared memory, keeps Quads aligned and, where threads read below each other,
  // puts the same column of neighbouring rows into different banks (kernels/matmul_tile.cuh says what a bank is).
  static constexpr unsigned pitch = width == 128 ? width + 4 : width;
  static_assert(matmul_slice % width == 0 && column_slice % rows == 0);

  const GatedNormShape& shape;
  const GatedNormWeights& weights;
  NormUnderGate norm;
  size_t first, row0;  // row0: this thread's first
  unsigned count;      // of its four rows that exist
  float r[4] = {};     // of RMSNorm

  // Counted from the tile's.
  static __device__ unsigned row_offset() { return threadIdx.x / across * 4; }
  static __device__ unsigned column_offset() { return threadIdx.x % across * 4; }

  __device__ Tile(const GatedNormShape& shape, const GatedNormWeights& weights, size_t first)
      : shape(shape),
        weights(weights),
        norm(weights, shape),
        first(first),
        row0(first + row_offset()),
        count(count_of_four(row0, shape.N)) {}

  static __device__ void store(float* tile, const Patch& p) {
    for (int k = 0; k < 4; k++) store_quad<true>(tile + (row_offset() + k) * pitch, column_offset(), width, p.row[k]);
  }

  __device__ void load_r(const float* from) {
    for (unsigned k = 0; k < 4; k++)
      if (norm.rms && k < count) r[k] = from[row0 + k];
  }
  template <class S>
  __device__ Patch load(const S* p, size_t c) const {
    return load_patch(p + row0 * shape.C, count, c, shape.C);
  }
  template <class S>
  __device__ void store(S* p, size_t c, const Patch& q) const {
    store_patch(p + row0 * shape.C, count, c, shape.C, q);
  }
  __device__ Patch unit(const Patch& x) const {
    const auto all = [&](bool rms) {  // a constant in each call: one choice of the norm, not one for each element
      NormUnderGate known = norm;
      known.rms = rms;
      return patch([&](int k, int e) { return known.unit(x.row[k].v[e], r[k]); });
    };
    return norm.rms ? all(true) : all(false);
  }
  __device__ Patch n(const Patch& unit, size_t c) const {
    if (c >= shape.C) return {};
    const Quad w = load_quad(weights.w, c, shape.C);
    const Quad b = norm.rms ? Quad{} : load_quad(weights.b, c, shape.C);
    return patch([&](int k, int e) { return norm.n(unit.row[k].v[e], w.v[e], b.v[e]); });
  }

  // Adds to `sum` the terms of `ranks` numbers j, of which `at_once` are read before they are used. values [j][row];
  // w(j): the four numbers of W.
  template <int at_once, class Load>
  static __device__ void expand(Patch& sum, const float* values, unsigned ranks, Load w) {
#pragma unroll at_once
    for (unsigned j = 0; j < ranks; j++) {
      const Quad of_row = load_quad<true>(values + j * rows, row_offset(), rows), of_column = w(j);
      each_element([&](int k, int e) { sum.row[k].v[e] = fused(of_row.v[k], of_column.v[e], sum.row[k].v[e]); });
    }
  }
  // Columns c to c+3 of an expand with W (rank,columns) in global memory. Where W has one column, all have it.
  __device__ Patch expand(const float* values, const float* W, size_t columns, size_t c) const {
    Patch sum = {};
    if (columns % 4 == 0 && c < columns)
      expand<4>(sum, values, unsigned(shape.rank),
                [&](size_t j) { return load_quad<true>(W + j * columns, c, columns); });
    else
      expand<1>(sum, values, unsigned(shape.rank), [&](size_t j) {
        return columns == 1 ? Quad{{W[j], W[j], W[j], W[j]}} : load_quad<false>(W + j * columns, c, columns);
      });
    return sum;
  }

  // ---- along the rows

  // Of a piece of the rank from j0 on, a thread makes in a contract the chains of one j, of chain_row() and the row
  // after it.
  //
  //   lane    0 1   2 3   4 5  ...  14 15   16 17   18 19  ...  30 31
  //   rows    0 2   0 2   0 2        0  2    4  6    4  6         4  6     and the one after each
  //   j        0     1     2           7       0       1            7
  //
  // Neighbours in both directions, so that few Quads serve a warp: 8 of W and 8 of the tile.
  static __device__ unsigned chain_row() {
    return threadIdx.x % 2 * 2 + threadIdx.x / 16 % 4 * 4;
  }
  static __device__ unsigned chain_j() {
    return threadIdx.x / 2 % 8 + threadIdx.x / 64 * 8;
  }

  // visit(at, j) for each j of which this thread makes chains: they wait in [at] and, of the next row, [at + 1].
  template <class Visit>
  __device__ void each_chain(Visit visit) const {
    for (size_t j = chain_j(); j < shape.rank; j += piece) visit(j * rows + chain_row(), j);
  }

  // total [j][row] = the sums over columns c of make(c) * W[j][c], W (rank,C); chains [j][row] is where chains wait. At
  // the end of a slice of 1024 columns its chain is added to the total, and the next slice starts a new one. No column
  // is padded: fused(0, w, -0) is +0, so a padded chain could end with other bits.
  template <class Make>
  __device__ void contract(float* total, float* chains, const float* W, Make make) const {
    STATIC_SHARED(float, tile, [rows * pitch]);
    STATIC_SHARED(float, W_tile, [piece * pitch]);
    const size_t C = shape.C;
    for (size_t c0 = 0; c0 < C; c0 += width) {
      const size_t end = c0 + width < C ? c0 + width : C, c = c0 + column_offset();
      const bool begins = c0 % matmul_slice == 0, ends = end % matmul_slice == 0 || end == C;
      for (size_t j0 = 0; j0 < shape.rank; j0 += piece) {
        const size_t j1 = j0 + row_offset();
        const Patch w = load_patch(W + j1 * C, count_of_four(j1, shape.rank), c, C);
        if (j0 == 0) store(tile, make(c));
        store(W_tile, w);
        __syncthreads();  // both tiles are whole
        if (const size_t j = j0 + chain_j(); j < shape.rank) {
          const size_t at = j * rows + chain_row();
          float sum[2] = {begins ? 0.0f : chains[at], begins ? 0.0f : chains[at + 1]};
          const float *of_rows = tile + chain_row() * pitch, *of_W = W_tile + chain_j() * pitch;
          const auto step = [&](unsigned column, unsigned count) {
            const Quad w = load_quad<true>(of_W, column, width);
            Quad q[2];
            for (int k = 0; k < 2; k++) q[k] = load_quad<true>(of_rows + k * pitch, column, width);
            for (unsigned e = 0; e < 4; e++)
              if (e < count)
                for (int k = 0; k < 2; k++) sum[k] = fused(q[k].v[e], w.v[e], sum[k]);
          };
          const unsigned count = unsigned(end - c0), whole = count / 4 * 4;
#pragma unroll 4
          for (unsigned column = 0; column < whole; column += 4) step(column, 4);
          if (whole < count) step(whole, count - whole);
          for (int k = 0; k < 2; k++) {
            chains[at + k] = sum[k];
            if (ends) total[at + k] = c0 < matmul_slice ? sum[k] : total[at + k] + sum[k];
          }
        }
        __syncthreads();  // all have read what comes next into the tiles
      }
    }
  }
};

using AlongRows = Tile<128>;
using DownColumns = Tile<32>;
static_assert(AlongRows::rows * piece == 2 * threads && AlongRows::rows == piece);

}  // namespace gated_norm

// ---- kernels/gated_norm_columns.cu

// What the kernel along the rows leaves for it.
struct GatedNormLeft {
  float *a, *dlow;  // (rank,N)
  float* dn;        // (N,C)
  float* dscores;   // (N): with one score for a row, dz
  float* row_sums;  // (N): the rows' shares of dalpha, of DyT; not read by the columns kernel
};
// Where it leaves the sums of slices: of 1024 rows for dW_up and dW_down, of 128 rows for dw and db.
struct GatedNormSlices {
  float *up, *down;  // (slices,scores,rank), (slices,rank,C)
  float *w, *b;      // (slices,C); b null: RMSNorm
};
void gated_norm_columns(const GatedNormSlices& out, ConstReals x, ConstReals dy, const GatedNormLeft& left,
                        const float* r, const GatedNormWeights& weights, const float* up_t, const GatedNormShape& shape,
                        Context& ctx);

}  // namespace gated
