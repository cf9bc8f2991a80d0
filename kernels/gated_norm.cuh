// gated_norm: the tile. What the kernels along the rows (kernels/gated_norm.cu) and down the columns
// (kernels/gated_norm_columns.cu) are made of: who owns which element, and the two products between columns and rank.
//
// A block of 8 warps owns 16 rows and walks along them in chunks of 128 columns. A warp has two of the rows. A lane has
// four neighbouring columns of both: a Quad each (kernels/activation.cu).
//
//   columns      0..3     4..7    ...   124..127     128..131   ...
//   row 0      lane 0   lane 1    ...   lane 31      lane 0     ...     warp 0
//   row 1      lane 0   lane 1    ...   lane 31      lane 0     ...     warp 0
//   row 2      lane 0   lane 1    ...   lane 31      lane 0     ...     warp 1
//    ...
//   row 15     lane 0   lane 1    ...   lane 31      lane 0     ...     warp 7
//              '----------- a chunk -----------'    '- the next
//
// So a lane carries four chains of each of its rows in registers, as in every operation along rows
// (kernels/rmsnorm.cu).
//
// A product from the rank to the columns, such as z = a W_up^T, is an "expand". An output is a sum over the rank, and
// the lane that owns the column makes it alone. All lanes of a warp want the same a[row][j], so a stands in shared
// memory, as [j][row], and W is read along the columns (which is why W_up is transposed first):
//   expand      out[row][c] = chain over j of values[j][row] * W[j][c]
//
// A product from the columns to the rank, such as low = n W_down^T, is a "contract". An output is a chain over all
// columns in ascending order, but the columns of a row are spread over 32 lanes. So they go through a tile in shared
// memory, 16 rows by 128 columns, and a thread takes one j and two rows through the chunk, column by column. Between
// chunks its two chains wait in shared memory:
//   contract    out[row][j] = chain over c of tile[row][c] * W[c][j], in slices of 1024 columns (kernels/matmul.cu)
// Two rows for a thread, because one number of W then serves two multiply-adds.
//
//   registers (columns)  -- store_tile, barrier -->  tile  -- contract -->  chains [j][row]  -- barrier, next chunk
//
// Both read W through the caches. Neighbouring threads read neighbouring numbers of it: columns c in an expand, j in a
// contract.
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

constexpr int warps = 8, threads = 32 * warps, warp_rows = 2, rows = warps * warp_rows;
// The pitch, floats from row to row of the tile, keeps Quads aligned and puts the same column of neighbouring rows into
// different banks (kernels/matmul_tile.cuh says what a bank is).
constexpr int chunk = row_chains, pitch = chunk + 4;
static_assert(matmul_slice % chunk == 0 && column_slice % rows == 0);

// Four neighbouring columns of a warp's two rows.
struct Quads {
  Quad row[warp_rows];
};

// f(k, e) for column e of row k. Unrolled, so that Quads stay in registers.
template <class F>
__device__ inline void each_element(F f) {
#pragma unroll
  for (int k = 0; k < warp_rows; k++)
#pragma unroll
    for (int e = 0; e < 4; e++) f(k, e);
}

template <class F>
__device__ inline Quads quads(F f) {
  Quads q;
  each_element([&](int k, int e) { q.row[k].v[e] = f(k, e); });
  return q;
}

__device__ inline size_t lane_column() {
  return threadIdx.x % 32 * 4;
}

// The first of this warp's rows, counted from the block's.
__device__ inline size_t warp_offset() {
  return threadIdx.x / 32 * warp_rows;
}

__device__ inline void store_tile(float* tile, const Quads& q) {
  for (int k = 0; k < warp_rows; k++)
    store_quad<true>(tile + (warp_offset() + k) * pitch, lane_column(), chunk, q.row[k]);
}

// (One choice of the activation for all eight elements, not one for each.)
__device__ inline Quads scores(const GateOp& op, const Quads& z) {
  Quads s;
  with_known_activation<any_gate>(op.act, [&](auto act) {
    s = quads([&](int k, int e) { return op.scale * activation_value(decltype(act)::value, z.row[k].v[e]); });
  });
  return s;
}

__device__ inline Quads slopes(const GateOp& op, const Quads& z) {
  Quads s;
  with_known_activation<any_gate>(op.act, [&](auto act) {
    s = quads([&](int k, int e) { return op.scale * activation_slope(decltype(act)::value, z.row[k].v[e]); });
  });
  return s;
}

// Both at once, so that what they share is computed once.
__device__ inline void scores_and_slopes(Quads& s, Quads& slope, const GateOp& op, const Quads& z) {
  with_known_activation<any_gate>(op.act, [&](auto act) {
    each_element([&](int k, int e) {
      s.row[k].v[e] = op.scale * activation_value(decltype(act)::value, z.row[k].v[e]);
      slope.row[k].v[e] = op.scale * activation_slope(decltype(act)::value, z.row[k].v[e]);
    });
  });
}

template <bool aligned>
__device__ inline Quads expand(const float* values, const float* W, size_t rank, size_t columns, size_t c) {
  Quads sum = {};
  for (size_t j = 0; j < rank; j++) {
    const Quad w = load_quad<aligned>(W + j * columns, c, columns);
    for (int k = 0; k < warp_rows; k++) {
      const float value = values[j * rows + warp_offset() + k];
      for (int e = 0; e < 4; e++) sum.row[k].v[e] = fused(value, w.v[e], sum.row[k].v[e]);
    }
  }
  return sum;
}

// The 16 rows from `first` on, as a thread sees them. Rows and columns that do not exist are 0.
struct Rows {
  const GatedNormShape& shape;
  const GatedNormWeights& weights;
  NormUnderGate norm;
  size_t first, row0;       // row0: this warp's first
  float r[warp_rows] = {};  // of RMSNorm

  __device__ Rows(const GatedNormShape& shape, const GatedNormWeights& weights, size_t first)
      : shape(shape), weights(weights), norm(weights, shape), first(first), row0(first + warp_offset()) {}

  __device__ bool has(size_t row) const { return row < shape.N; }

  __device__ void load_r(const float* from) {
    for (int k = 0; k < warp_rows; k++)
      if (norm.rms && has(row0 + k)) r[k] = from[row0 + k];
  }
  template <class S>
  __device__ Quads load(const S* p, size_t c) const {
    Quads q = {};
    for (int k = 0; k < warp_rows; k++)
      if (has(row0 + k) && c < shape.C) q.row[k] = load_quad(p + (row0 + k) * shape.C, c, shape.C);
    return q;
  }
  __device__ Quads unit(const Quads& x) const {
    return quads([&](int k, int e) { return norm.unit(x.row[k].v[e], r[k]); });
  }
  __device__ Quads n(const Quads& unit, size_t c) const {
    if (c >= shape.C) return {};
    const Quad w = load_quad(weights.w, c, shape.C);
    const Quad b = norm.rms ? Quad{} : load_quad(weights.b, c, shape.C);
    return quads([&](int k, int e) { return norm.n(unit.row[k].v[e], w.v[e], b.v[e]); });
  }

  // The 16 rows of low or dlow (N,rank) into values [j][row], through SiLU if wanted, with zeros after the rank up to
  // `width`.
  __device__ void load_values(float* values, const float* from, unsigned width, bool through_silu) const {
    for (unsigned i = threadIdx.x; i < rows * width; i += threads) {
      const unsigned row = i / width, j = i % width;
      const bool exists = has(first + row) && j < shape.rank;
      const float value = exists ? from[(first + row) * shape.rank + j] : 0.0f;
      values[j * rows + row] = exists && through_silu ? silu(value) : value;
    }
  }

  // dlow W_down, of columns c to c+3.
  __device__ Quads dlow_down(const float* dlows, size_t c) const {
    if (c >= shape.C) return {};
    return shape.C % 4 == 0 ? expand<true>(dlows, weights.down, shape.rank, shape.C, c)
                            : expand<false>(dlows, weights.down, shape.rank, shape.C, c);
  }
  // The logits z = a W_up^T of columns c to c+3; of a single score, that score for each of them. up_t (rank,scores).
  __device__ Quads z(const float* a, const float* up_t, size_t c) const {
    const size_t scores = shape.scores();
    if (scores == shape.C && c >= shape.C) return {};
    if (scores == shape.C)
      return scores % 4 == 0 ? expand<true>(a, up_t, shape.rank, scores, c)
                             : expand<false>(a, up_t, shape.rank, scores, c);
    float sum[warp_rows] = {};
    for (size_t j = 0; j < shape.rank; j++)
      for (int k = 0; k < warp_rows; k++) sum[k] = fused(a[j * rows + warp_offset() + k], up_t[j], sum[k]);
    return quads([&](int k, int) { return sum[k]; });
  }

  // visit(at, row, j) for the chains that this thread carries through a contract: those of j, of row at [at] and of row
  // + 1 after it. Neighbouring threads have neighbouring j.
  template <class Visit>
  __device__ void each_chain(Visit visit) const {
    const unsigned rank = unsigned(shape.rank);
    for (unsigned i = threadIdx.x; i < rows / 2 * rank; i += threads) {
      const unsigned row = i / rank * 2, j = i % rank;
      visit(j * rows + row, row, j);
    }
  }
  // One chunk, from column c0, with W (C,rank). `chain` and `total` are [j][row]; after the last chunk the sums stand
  // in total. At the end of a slice of 1024 columns its chain is added to the total, and the next slice starts a new
  // one.
  __device__ void contract(float* chain, float* total, const float* tile, const float* W, size_t c0) const {
    const size_t C = shape.C, end = c0 + chunk < C ? c0 + chunk : C;
    const bool begins = c0 % matmul_slice == 0, ends = end % matmul_slice == 0 || end == C;
    each_chain([&](size_t at, size_t row, size_t j) {
      float sum[2] = {};
      if (!begins) {
        sum[0] = chain[at];
        sum[1] = chain[at + 1];
      }
      const float* w = W + c0 * shape.rank + j;
      auto step = [&](int c, int n) {
        Quad q[2];
        for (int k = 0; k < 2; k++) q[k] = load_quad<true>(tile + (row + k) * pitch, c, chunk);
        for (int e = 0; e < n; e++, w += shape.rank)
          for (int k = 0; k < 2; k++) sum[k] = fused(q[k].v[e], *w, sum[k]);
      };
      // No column is padded: fused(0, w, -0) is +0, so a padded chain could end with other bits.
      const int count = int(end - c0), whole = count / 4 * 4;
      for (int c = 0; c < whole; c += 4) step(c, 4);
      if (whole < count) step(whole, count - whole);
      for (int k = 0; k < 2; k++) {
        chain[at + k] = sum[k];
        if (ends) total[at + k] = c0 < matmul_slice ? sum[k] : total[at + k] + sum[k];
      }
    });
  }
};

}  // namespace gated_norm

// ---- kernels/gated_norm_columns.cu

// Where it leaves the sums of slices: of 1024 rows for dW_up and dW_down, of 128 rows for dw and db.
struct GatedNormSlices {
  float *up, *down;  // (slices,scores,rank), (slices,rank,C)
  float *w, *b;      // (slices,C); b null: RMSNorm
};
void gated_norm_columns(const GatedNormSlices& out, ConstReals x, ConstReals dy, const float* low, const float* dlow,
                        const float* dscores, const float* r, const GatedNormWeights& weights, const float* up_t,
                        const GatedNormShape& shape, Context& ctx);

}  // namespace gated
