// gated_norm: GatedNorm (arXiv 2601.22966), a norm with a low-rank gate of its own, as one operation
//   n = RMSNorm(x) or DyT(x)      low = n W_down^T      z = SiLU(low) W_up^T      y = n*scale*act(z)
//   with a residual branch: x = the join of x0 and branch first (residual.cuh); gates as in gate.cuh
//   The score z is one for an element (W_up (C,rank)) or one for a row (W_up (1,rank)).
// backward: dz = (dy*n, or its row's sum) * scale*act'(z)      dlow = (dz W_up) * SiLU'(low)
//   dn = dy*scale*act(z) + dlow W_down, and from it dx and the base norm's gradients
//   dW_up += dz^T SiLU(low)      dW_down += dlow^T n
//   exactly what rmsnorm or dyt, matmul, activation, matmul and gate give one after the other: products in
//   slices of 1024 (matmul.cu), the mean square and the score's sum in the row order, dw, db and dalpha in
//   the column order (reduce.cuh).
// For the backward only x, r and low are kept; n and z are computed again. Arrays of (N,C) that cross the
// bus, of an elementwise gate behind a branch:
//                         here                                   the operations one by one
//   forward               x0, branch; sum, y             4       and n 3 times, z twice                   9
//   backward, by rows     x, dy, dresidual; dx           4   }   and dn 5 times, dz 3 times, n twice, z,
//   backward, by columns  x, dy, for every 16 of a rank  2   }   x once more                             16
//   A block of rows reads its own once or twice more, from the caches.
// shapes: x, branch, y, dy (N,C) f32; low (N,rank); W_down (rank,C); w, b (C); r (N), of RMSNorm
//   y, r, low, the sum and the gradients of residual.cuh are written, gradients of parameters accumulated
// --norm=gated|gated-dyt | tests/test_gated_norm.cpp
#pragma once
#include <omp.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "kernels/activation.cuh"
#include "kernels/gate.cuh"
#include "core/reduce.cuh"
#include "kernels/matmul.h"
#include "kernels/residual.cuh"
#include "kernels/rmsnorm.cuh"

namespace gated {

enum class NormGateBase { rmsnorm, dyt };
enum class NormGateScore { elementwise, tensorwise };

struct GatedNormShape {
  size_t N, C, rank;
  NormGateBase base = NormGateBase::rmsnorm;
  NormGateScore score = NormGateScore::elementwise;
  GateOp op = {};
  float offset = 0, eps = 0;  // of RMSNorm

  HD size_t scores() const { return score == NormGateScore::tensorwise ? 1 : C; }
};

// The parameters, or their gradients. alpha and b are DyT's.
template <class P>
struct GatedNormParameters {
  P alpha, w, b, down, up;
};
using GatedNormWeights = GatedNormParameters<const float*>;
using GatedNormGradients = GatedNormParameters<float*>;

using GateActivations = ActivationSet<Sigmoid, NsSigmoid, Silu, Tanh, Identity>;

// ---- formulas, shared by reference and kernels

// One element of the norm under the gate: n = affine(unit), unit = x*r or tanh(alpha*x). Kernels ask at run
// time which norm it is (Rms is bool); the loops of the reference, to vectorise, are compiled for either one
// (std::true_type, std::false_type).
template <class T, class Rms>
struct NormUnderGate {
  Rms rms;
  T offset, alpha;

  HD NormUnderGate(Rms rms, const GatedNormParameters<const T*>& weights, const GatedNormShape& shape)
      : rms(rms), offset(shape.offset), alpha(rms ? T(0) : *weights.alpha) {}

  HD T unit(T x, T r) const { return rms ? x * r : exact_tanh(alpha * x); }
  HD T n(T unit, T w, T b) const { return rms ? unit * rmsnorm_weight(w, offset) : fused(w, unit, b); }
  // The gradient of x*r or alpha*x, r being a constant; the term of its row's sum; the gradient of x. The sum
  // over C is the mean that RMSNorm takes away; in DyT the sum is the row's share of dalpha.
  HD T g(T dn, T unit, T w) const { return rms ? dn * rmsnorm_weight(w, offset) : dn * w * fused(-unit, unit, T(1)); }
  HD T add_to_row(T acc, T g, T unit, T x) const { return fused(g, rms ? unit : x, acc); }
  HD T dx(T g, T unit, T mean, T r) const { return rms ? rmsnorm_dz(g, unit, mean, r) : alpha * g; }
};

// *out += the column sum whose slices have these sums, `stride` apart, which are overwritten.
template <class T>
HD void add_column_slices(T* out, T* sums, size_t slices, size_t stride) {
  for (; slices > 1; slices = (slices + column_slice - 1) / column_slice)
    for (size_t i = 0; i < slices; i += column_slice) {
      T acc = 0;
      for (size_t s = i; s < slices && s < i + column_slice; s++) acc = acc + sums[s * stride];
      sums[i / column_slice * stride] = acc;
    }
  *out = *out + *sums;
}

// ---- reference: the operations one by one, on blocks of rows that stay in a core's cache
//
// Only what the gradients of W_up and W_down multiply is kept of all rows, in scratch, until every block is
// done. multiply is matmul_ref, or the tuned matmul_cpu.

// Half a MiB of floats, or less to give every thread a block; whole slices of a column sum.
inline size_t gated_norm_block_rows(size_t N, size_t C) {
  const size_t fit = (size_t{1} << 17) / C, share = ceil_div(N, omp_get_max_threads());
  return std::max<size_t>(1, std::min(fit, share) / column_slice) * column_slice;
}

// n numbers for one block, which the calling thread keeps from block to block.
template <class T>
T* gated_norm_block_memory(size_t n) {
  static thread_local Buffer<T> memory;
  if (memory.size() < n) memory = Buffer<T>(Device::cpu, n);
  return memory.data();
}

inline void gate_forward_of(float* y, const float* x, const float* z, size_t N, size_t C, size_t group,
                            const GateOp& op) {
  gate_forward_cpu(y, x, z, N, C, group, op);
}
inline void gate_forward_of(double* y, const double* x, const double* z, size_t N, size_t C, size_t group,
                            const GateOp& op) {
  gate_forward_ref(y, x, z, N, C, group, op);
}
inline void gate_backward_of(float* dx, float* dz, const float* dy, const float* x, const float* z, size_t N, size_t C,
                             size_t group, const GateOp& op) {
  gate_backward_cpu(dx, dz, dy, x, z, N, C, group, op);
}
inline void gate_backward_of(double* dx, double* dz, const double* dy, const double* x, const double* z, size_t N,
                             size_t C, size_t group, const GateOp& op) {
  gate_backward_ref(dx, dz, dy, x, z, N, C, group, op);
}

template <class F>
void with_norm_under_gate(NormGateBase base, F f) {
  base == NormGateBase::rmsnorm ? f(std::true_type()) : f(std::false_type());
}

template <class Act, class T, class Multiply>
void gated_norm_forward_steps(T* y, T* r, T* low, T* sum, const ResidualInOf<T>& in,
                              const GatedNormParameters<const T*>& weights, const GatedNormShape& shape,
                              Multiply multiply) {
  const size_t N = shape.N, C = shape.C, rank = shape.rank, scores = shape.scores();
  const size_t block_rows = gated_norm_block_rows(N, C);
#pragma omp parallel for
  for (size_t row0 = 0; row0 < N; row0 += block_rows) {
    const size_t rows = std::min(block_rows, N - row0);
    T *act = gated_norm_block_memory<T>(rows * (rank + scores)), *z = act + rows * rank;
    T *lows = low + row0 * rank, *ns = y + row0 * C;  // n waits where y will be
    with_norm_under_gate(shape.base, [&](auto rms) {
      const NormUnderGate<T, decltype(rms)> norm(rms, weights, shape);
      for (size_t row = row0; row < row0 + rows; row++) {
        const T *x = residual_row_cpu(sum, in, row, C), *w = weights.w, *b = weights.b;
        T *n = y + row * C, scale = 0;
        if (rms) {
          const T squares = row_reduce_ref<T>(C, [=](T acc, size_t c) { return fused(x[c], x[c], acc); });
          r[row] = scale = T(1) / exact_sqrt(squares / T(C) + T(shape.eps));
        }
        for (size_t c = 0; c < C; c++) n[c] = norm.n(norm.unit(x[c], scale), w[c], rms ? T(0) : b[c]);
      }
    });
    multiply(lows, ns, weights.down, rows, rank, C, Layout::nt, Accumulate::no);
    activation_forward_ref<Silu>(act, lows, rows * rank);
    multiply(z, act, weights.up, rows, scores, rank, Layout::nt, Accumulate::no);
    gate_forward_of(ns, ns, z, rows, C, C / scores, shape.op);
  }
}

// scratch: gated_norm_scratch(shape) numbers.
inline size_t gated_norm_scratch(const GatedNormShape& s) {
  return s.N * (s.C + s.scores() + 2 * s.rank) + ceil_div(s.N, column_slice) * (2 * s.C + 1);
}

template <class Act, class T, class Multiply>
void gated_norm_backward_steps(T* dx, T* dbranch, const GatedNormParameters<T*>& gradients, const T* dy,
                               const ResidualBackwardInOf<T>& in, const T* low, const T* r,
                               const GatedNormParameters<const T*>& weights, const GatedNormShape& shape, T* scratch,
                               Multiply multiply) {
  const size_t N = shape.N, C = shape.C, rank = shape.rank, scores = shape.scores();
  const size_t slices = ceil_div(N, column_slice), columns = 2 * C + 1;
  const size_t block_rows = gated_norm_block_rows(N, C);
  T *const all_n = scratch, *const all_dz = all_n + N * C, *const all_act = all_dz + N * scores;
  T *const all_dlow = all_act + N * rank, *const column_sums = all_dlow + N * rank;  // of dw, db and dalpha
  std::fill(column_sums, column_sums + slices * columns, T(0));
#pragma omp parallel for
  for (size_t row0 = 0; row0 < N; row0 += block_rows) {
    const size_t rows = std::min(block_rows, N - row0);
    T *units = gated_norm_block_memory<T>(2 * rows * C), *dns = units + rows * C;
    T *ns = all_n + row0 * C, *dz = all_dz + row0 * scores;
    T *act = all_act + row0 * rank, *dlow = all_dlow + row0 * rank;
    const T *lows = low + row0 * rank, *w = weights.w, *b = weights.b;
    with_norm_under_gate(shape.base, [&](auto rms) {
      const NormUnderGate<T, decltype(rms)> norm(rms, weights, shape);
      for (size_t row = 0; row < rows; row++) {
        const T *x = in.x + (row0 + row) * C, scale = rms ? r[row0 + row] : T(0);
        T *unit = units + row * C, *n = ns + row * C;
        for (size_t c = 0; c < C; c++) unit[c] = norm.unit(x[c], scale);
        for (size_t c = 0; c < C; c++) n[c] = norm.n(unit[c], w[c], rms ? T(0) : b[c]);
      }
    });
    activation_forward_ref<Silu>(act, lows, rows * rank);
    multiply(dz, act, weights.up, rows, scores, rank, Layout::nt, Accumulate::no);  // z, until dz is over it
    gate_backward_of(dns, dz, dy + row0 * C, ns, dz, rows, C, C / scores, shape.op);
    multiply(dlow, dz, weights.up, rows, rank, scores, Layout::nn, Accumulate::no);
    activation_backward_ref<Silu>(dlow, dlow, lows, rows * rank);
    multiply(dns, dlow, weights.down, rows, C, rank, Layout::nn, Accumulate::yes);
    with_norm_under_gate(shape.base, [&](auto rms) {
      const NormUnderGate<T, decltype(rms)> norm(rms, weights, shape);
      for (size_t row = 0; row < rows; row++) {
        const T *x = in.x + (row0 + row) * C, *unit = units + row * C, *dn = dns + row * C;
        T *dw = column_sums + (row0 + row) / column_slice * columns, *db = dw + C, *dalpha = db + C;
        for (size_t c = 0; c < C; c++) dw[c] = fused(dn[c], unit[c], dw[c]);
        for (size_t c = 0; !rms && c < C; c++) db[c] = db[c] + dn[c];
        const T sum = row_reduce_ref<T>(
            C, [=](T acc, size_t c) { return norm.add_to_row(acc, norm.g(dn[c], unit[c], w[c]), unit[c], x[c]); });
        *dalpha = *dalpha + sum;
        const T mean = sum / T(C), scale = rms ? r[row0 + row] : T(0);
        residual_backward_row_cpu(dx, dbranch, in, row0 + row, C, [=](size_t c) {
          return norm.dx(norm.g(dn[c], unit[c], w[c]), unit[c], mean, scale);
        });
      }
    });
  }
  multiply(gradients.down, all_dlow, all_n, rank, C, N, Layout::tn, Accumulate::yes);
  multiply(gradients.up, all_dz, all_act, scores, rank, N, Layout::tn, Accumulate::yes);
  const bool dyt = shape.base == NormGateBase::dyt;
  for (size_t c = 0; c < C; c++) add_column_slices(gradients.w + c, column_sums + c, slices, columns);
  for (size_t c = 0; dyt && c < C; c++) add_column_slices(gradients.b + c, column_sums + C + c, slices, columns);
  if (dyt) add_column_slices(gradients.alpha, column_sums + 2 * C, slices, columns);
}

template <class T>
void gated_norm_forward_ref(T* y, T* r, T* low, T* sum, const ResidualInOf<T>& in,
                            const GatedNormParameters<const T*>& weights, const GatedNormShape& shape) {
  with_activation(GateActivations{}, "gated_norm_forward", shape.op.act, [&](auto act) {
    gated_norm_forward_steps<decltype(act)>(y, r, low, sum, in, weights, shape, [](auto... a) { matmul_ref<T>(a...); });
  });
}

template <class T>
void gated_norm_backward_ref(T* dx, T* dbranch, const GatedNormParameters<T*>& gradients, const T* dy,
                             const ResidualBackwardInOf<T>& in, const T* low, const T* r,
                             const GatedNormParameters<const T*>& weights, const GatedNormShape& shape) {
  with_activation(GateActivations{}, "gated_norm_backward", shape.op.act, [&](auto act) {
    std::vector<T> scratch(gated_norm_scratch(shape));
    gated_norm_backward_steps<decltype(act)>(dx, dbranch, gradients, dy, in, low, r, weights, shape, scratch.data(),
                                             [](auto... a) { matmul_ref<T>(a...); });
  });
}

// ---- kernels
//
// A block of 8 warps owns 16 rows and walks along them in chunks of 128 columns. A warp has two of the rows,
// a lane four neighbouring columns of both: the chains of a row sum (reduce.cuh), and of a product that ends
// in columns,
//   expand      sum[row][c] = chain over j of value[row][j] * W[j][c]
// A product along the columns needs them in order, so its factor goes through a tile in shared memory, and a
// thread carries the chains of one j and two rows from chunk to chunk:
//   contract    sum[row][j] = chain over c of tile[row][c] * W[c][j], in slices of 1024
// Both read W from the caches, along what neighbouring threads differ in: expand wants W_up transposed,
// contract wants W_down. Values of the rank lie in shared memory as [j][row].

namespace gated_norm {

constexpr int warps = 8, threads = 32 * warps, warp_rows = 2, rows = warps * warp_rows;
constexpr int chunk = row_chains, pitch = chunk + 4;
static_assert(matmul_slice % chunk == 0 && column_slice % rows == 0);

// Four neighbouring columns of a warp's rows.
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

// The sum of a row, of whose chains every lane has four.
__device__ inline float row_sum(const float (&chain)[4]) {
  return warp_sum((chain[0] + chain[1]) + (chain[2] + chain[3]));
}

// The 16 rows from `first` on, as a thread sees them. Rows and columns that do not exist are 0.
template <bool aligned>
struct Block {
  const GatedNormShape& shape;
  const GatedNormWeights& weights;
  const float* up_t;
  NormUnderGate<float, bool> norm;
  size_t first, row0;  // row0: this warp's first
  float r[warp_rows] = {};

  __device__ Block(const GatedNormShape& shape, const GatedNormWeights& weights, const float* up_t, size_t first)
      : shape(shape),
        weights(weights),
        up_t(up_t),
        norm(shape.base == NormGateBase::rmsnorm, weights, shape),
        first(first),
        row0(first + warp_offset()) {}

  __device__ bool has(size_t row) const { return row < shape.N; }
  __device__ void load_r(const float* from) {
    for (int k = 0; k < warp_rows; k++)
      if (norm.rms && has(row0 + k)) r[k] = from[row0 + k];
  }
  __device__ Quads load(const float* p, size_t c) const {
    Quads q = {};
    for (int k = 0; k < warp_rows; k++)
      if (has(row0 + k) && c < shape.C) q.row[k] = load_quad<aligned>(p + (row0 + k) * shape.C, c, shape.C);
    return q;
  }
  __device__ Quads unit(const Quads& x) const {
    return quads([&](int k, int e) { return norm.unit(x.row[k].v[e], r[k]); });
  }
  __device__ Quads n(const Quads& unit, size_t c) const {
    if (c >= shape.C) return {};
    const Quad w = load_quad<aligned>(weights.w, c, shape.C);
    const Quad b = norm.rms ? Quad{} : load_quad<aligned>(weights.b, c, shape.C);
    return quads([&](int k, int e) { return norm.n(unit.row[k].v[e], w.v[e], b.v[e]); });
  }

  // W (rank,columns), a column for each of C, or one for all of them.
  __device__ Quads expand(const float* values, const float* W, size_t columns, size_t c) const {
    Quads sum = {};
    if (columns > 1 && c >= columns) return sum;
    for (size_t j = 0; j < shape.rank; j++) {
      const Quad w = columns == 1 ? Quad{{W[j], W[j], W[j], W[j]}} : load_quad<aligned>(W + j * columns, c, columns);
      for (int k = 0; k < warp_rows; k++) {
        const float value = values[j * rows + warp_offset() + k];
        for (int e = 0; e < 4; e++) sum.row[k].v[e] = fused(value, w.v[e], sum.row[k].v[e]);
      }
    }
    return sum;
  }
  __device__ Quads z(const float* act, size_t c) const { return expand(act, up_t, shape.scores(), c); }

  // visit(at, row, j) for the chains that this thread carries: those of j, of row at [at] and row + 1 behind.
  template <class Visit>
  __device__ void each_chain(Visit visit) const {
    const unsigned rank = unsigned(shape.rank);
    for (unsigned i = threadIdx.x; i < rows / 2 * rank; i += threads) {
      const unsigned row = i / rank * 2, j = i % rank;
      visit(j * rows + row, row, j);
    }
  }
  // One chunk, from column c0, with W (C,rank). After the last the sums stand in total.
  __device__ void contract(float* chain, float* total, const float* tile, const float* W, size_t c0) const {
    const size_t C = shape.C, end = c0 + chunk < C ? c0 + chunk : C;
    const bool begins = c0 % matmul_slice == 0, ends = end % matmul_slice == 0 || end == C;
    each_chain([&](size_t at, size_t row, size_t j) {
      float sum[2] = {};
      if (!begins) sum[0] = chain[at], sum[1] = chain[at + 1];
      const float* w = W + c0 * shape.rank + j;
      auto step = [&](int c, int n) {
        Quad q[2];
        for (int k = 0; k < 2; k++) q[k] = load_quad<true>(tile + (row + k) * pitch, c, chunk);
        for (int e = 0; e < n; e++, w += shape.rank)
          for (int k = 0; k < 2; k++) sum[k] = fused(q[k].v[e], *w, sum[k]);
      };
      const int count = int(end - c0), whole = count / 4 * 4;
      for (int c = 0; c < whole; c += 4) step(c, 4);
      if (whole < count) step(whole, count - whole);
      for (int k = 0; k < 2; k++) {
        chain[at + k] = sum[k];
        if (ends) total[at + k] = c0 < matmul_slice ? sum[k] : total[at + k] + sum[k];
      }
    });
  }
  // f of these rows of low or dlow, with zeros behind the rank up to `width`.
  template <class F>
  __device__ void load_low(float* values, const float* low, unsigned width, F f) const {
    for (unsigned i = threadIdx.x; i < rows * width; i += threads) {
      const unsigned row = i / width, j = i % width;
      const bool exists = has(first + row) && j < shape.rank;
      values[j * rows + row] = exists ? f(low[(first + row) * shape.rank + j]) : 0.0f;
    }
  }
};

}  // namespace gated_norm

// out (columns,rows) = in (rows,columns) transposed: a weight of the gate, small beside the activations.
__global__ inline void gated_norm_transpose_kernel(float* out, const float* in, size_t rows, size_t columns) {
  const size_t i = threadIdx.x + size_t(blockDim.x) * blockIdx.x;
  if (i < rows * columns) out[i] = in[i % rows * columns + i / rows];
}

// Along the rows for the join and the sum of squares, for low, and for z and y.
template <class Act, bool aligned>
__global__ void __launch_bounds__(gated_norm::threads)
    gated_norm_forward_kernel(float* y, float* r, float* low, float* sum, ResidualIn in, GatedNormWeights weights,
                              const float* down_t, const float* up_t, GatedNormShape shape) {
  using namespace gated_norm;
  __shared__ __align__(16) float tile[rows * pitch];
  DYNAMIC_SHARED(float, act);  // chains of low, then SiLU(low)
  const size_t C = shape.C;
  float* const total = act + rows * shape.rank;
  const float* x = in.branch ? sum : in.x;
  const GateOp op = shape.op;
  Block<aligned> block(shape, weights, up_t, size_t(blockIdx.x) * rows);
  const bool rms = block.norm.rms;

  for (int k = 0; k < warp_rows && (rms || in.branch); k++) {
    const size_t row = block.row0 + k;
    if (!block.has(row)) break;
    const float squares = warp_row_reduce<aligned>(C, [&](float* chain, size_t i, int count) {
      const Quad q = residual_join_quad(sum, in, row, i, C);
      for (int e = 0; e < count; e++) chain[e] = fused(q.v[e], q.v[e], chain[e]);
    });
    block.r[k] = 1.0f / exact_sqrt(squares / float(C) + shape.eps);
    if (rms && threadIdx.x % 32 == 0) r[row] = block.r[k];
  }
  for (size_t c0 = 0; c0 < C; c0 += chunk) {
    const size_t c = c0 + lane_column();
    store_tile(tile, block.n(block.unit(block.load(x, c)), c));
    __syncthreads();
    block.contract(act, total, tile, down_t, c0);
    __syncthreads();
  }
  block.each_chain([&](size_t at, size_t row, size_t j) {
    for (int k = 0; k < 2; k++) {
      act[at + k] = Silu::value(total[at + k]);
      if (block.has(block.first + row + k)) low[(block.first + row + k) * shape.rank + j] = total[at + k];
    }
  });
  __syncthreads();

  for (size_t c = lane_column(); c < C; c += chunk) {
    const Quads n = block.n(block.unit(block.load(x, c)), c), z = block.z(act, c);
    const Quads q =
        quads([&](int k, int e) { return gate_y(op, n.row[k].v[e], op.scale * Act::value(z.row[k].v[e])); });
    for (int k = 0; k < warp_rows; k++)
      if (block.has(block.row0 + k)) store_quad<aligned>(y + (block.row0 + k) * C, c, C, q.row[k]);
  }
}

// Along the rows for dlow, for the mean of RMSNorm, and for dx. dscores (N): dz where a row has one score.
template <class Act, bool aligned>
__global__ void __launch_bounds__(gated_norm::threads)
    gated_norm_backward_kernel(float* dx_out, float* dbranch, float* dlow, float* dscores, float* row_sums,
                               const float* dy, ResidualBackwardIn in, const float* low, const float* r,
                               GatedNormWeights weights, const float* up_t, GatedNormShape shape) {
  using namespace gated_norm;
  __shared__ __align__(16) float tile[rows * pitch];
  DYNAMIC_SHARED(float, act);  // SiLU(low)
  const size_t C = shape.C, rank = shape.rank;
  float *const dlows = act + rows * rank, *const total = dlows + rows * rank;  // dlows: first its chains
  const GateOp op = shape.op;
  Block<aligned> block(shape, weights, up_t, size_t(blockIdx.x) * rows);
  const bool rms = block.norm.rms, first_lane = threadIdx.x % 32 == 0;
  block.load_r(r);
  block.load_low(act, low, rank, [](float v) { return Silu::value(v); });
  __syncthreads();

  if (shape.scores() == C) {
    for (size_t c0 = 0; c0 < C; c0 += chunk) {
      const size_t c = c0 + lane_column();
      const Quads n = block.n(block.unit(block.load(in.x, c)), c), z = block.z(act, c);
      const Quads d = block.load(dy, c);
      store_tile(tile, quads([&](int k, int e) {
                   return d.row[k].v[e] * gate_dy_ds(op, n.row[k].v[e]) * (op.scale * Act::slope(z.row[k].v[e]));
                 }));
      __syncthreads();
      block.contract(dlows, total, tile, weights.up, c0);
      __syncthreads();
    }
  } else {
    float chain[warp_rows][4] = {};
    for (size_t c = lane_column(); c < C; c += chunk) {
      const Quads n = block.n(block.unit(block.load(in.x, c)), c), d = block.load(dy, c);
      each_element([&](int k, int e) {
        if (c + e < C) chain[k][e] = fused(d.row[k].v[e], gate_dy_ds(op, n.row[k].v[e]), chain[k][e]);
      });
    }
    const Quads z = block.z(act, 0);
#pragma unroll
    for (int k = 0; k < warp_rows; k++) {
      const float dz = row_sum(chain[k]) * (op.scale * Act::slope(z.row[k].v[0]));
      if (first_lane && block.has(block.row0 + k)) dscores[block.row0 + k] = dz;
      for (size_t j = threadIdx.x % 32; j < rank; j += 32)
        total[j * rows + warp_offset() + k] = fused(dz, weights.up[j], 0.0f);
    }
    __syncthreads();
  }
  block.each_chain([&](size_t at, size_t row, size_t j) {
    for (int k = 0; k < 2; k++) {
      const size_t i = (block.first + row + k) * rank + j;
      const bool exists = block.has(block.first + row + k);
      dlows[at + k] = exists ? total[at + k] * Silu::slope(low[i]) : 0.0f;
      if (exists) dlow[i] = dlows[at + k];
    }
  });
  __syncthreads();

  // RMSNorm's dx waits for the row's sum. DyT's does not: it leaves in the pass that adds up dalpha.
  float mean[warp_rows] = {};
  for (int pass = rms ? 0 : 1; pass < 2; pass++) {
    float chain[warp_rows][4] = {};
    for (size_t c = lane_column(); c < C; c += chunk) {
      const Quads x = block.load(in.x, c), unit = block.unit(x), z = block.z(act, c), d = block.load(dy, c);
      const Quads by_low = block.expand(dlows, weights.down, C, c);
      const Quad w = load_quad<aligned>(weights.w, c, C);
      const Quads dx = quads([&](int k, int e) {
        const float u = unit.row[k].v[e], s = op.scale * Act::value(z.row[k].v[e]);
        const float g = block.norm.g(d.row[k].v[e] * gate_dy_dx(op, s) + by_low.row[k].v[e], u, w.v[e]);
        if (c + e < C) chain[k][e] = block.norm.add_to_row(chain[k][e], g, u, x.row[k].v[e]);
        return block.norm.dx(g, u, mean[k], block.r[k]);
      });
#pragma unroll
      for (int k = 0; k < warp_rows; k++)
        if (pass == 1 && block.has(block.row0 + k))
          residual_backward_quad(dx_out, dbranch, in, block.row0 + k, c, C, dx.row[k], x.row[k]);
    }
#pragma unroll
    for (int k = 0; k < warp_rows; k++) {
      const float sum = row_sum(chain[k]);
      mean[k] = sum / float(C);
      if (!rms && first_lane && block.has(block.row0 + k)) row_sums[block.row0 + k] = sum;
    }
  }
}

// Down the columns: a block has 128 of them and a slice of 1024 rows, and takes 16 rows at a time. They go to
// tiles, from which every thread feeds chains of its own: four columns by four j of dW_up (half of the block)
// or of dW_down, and one column of dw or of db. blockIdx.y: which 16 of the rank.
template <class Act, bool aligned>
__global__ void __launch_bounds__(gated_norm::threads)
    gated_norm_columns_kernel(float* up_slices, float* down_slices, float* column_sums, const float* x, const float* dy,
                              const float* low, const float* dlow, const float* dscores, const float* r,
                              GatedNormWeights weights, const float* up_t, GatedNormShape shape) {
  using namespace gated_norm;
  __shared__ __align__(16) float units[rows * pitch], ns[rows * pitch], dzs[rows * pitch], dns[rows * pitch];
  DYNAMIC_SHARED(float, act);  // SiLU(low)
  const size_t N = shape.N, C = shape.C, rank = shape.rank, scores = shape.scores(), width = 16 * gridDim.y;
  float* const dlows = act + rows * width;
  const GateOp op = shape.op;
  const size_t across = (C + chunk - 1) / chunk, slice = blockIdx.x / across;
  const size_t c0 = blockIdx.x % across * chunk, c = c0 + lane_column();
  const bool up = threadIdx.x < threads / 2;
  const size_t j0 = 16 * blockIdx.y + threadIdx.x / 32 % (warps / 2) * 4, column = c0 + threadIdx.x % chunk;

  float chain[4][4] = {}, column_sum = 0;
  const size_t end = (slice + 1) * matmul_slice < N ? (slice + 1) * matmul_slice : N;
  for (size_t first = slice * matmul_slice; first < end; first += rows) {
    Block<aligned> block(shape, weights, up_t, first);
    block.load_r(r);
    block.load_low(act, low, width, [](float v) { return Silu::value(v); });
    block.load_low(dlows, dlow, width, [](float v) { return v; });
    __syncthreads();
    const Quads unit = block.unit(block.load(x, c)), n = block.n(unit, c), z = block.z(act, c);
    const Quads d = block.load(dy, c), by_low = block.expand(dlows, weights.down, C, c);
    store_tile(units, unit);
    store_tile(ns, n);
    store_tile(dzs, quads([&](int k, int e) {
                 if (scores < C) return block.has(block.row0 + k) ? dscores[block.row0 + k] : 0.0f;
                 return d.row[k].v[e] * gate_dy_ds(op, n.row[k].v[e]) * (op.scale * Act::slope(z.row[k].v[e]));
               }));
    store_tile(dns, quads([&](int k, int e) {
                 return d.row[k].v[e] * gate_dy_dx(op, op.scale * Act::value(z.row[k].v[e])) + by_low.row[k].v[e];
               }));
    __syncthreads();

    const size_t count = end - first < rows ? end - first : rows;
    const float *tile = up ? dzs : ns, *values = (up ? act : dlows) + j0 * rows;
    for (size_t row = 0; row < count; row++) {
      const Quad q = load_quad<true>(tile + row * pitch, lane_column(), chunk);
      for (int j = 0; j < 4; j++)
        for (int e = 0; e < 4; e++) chain[j][e] = fused(q.v[e], values[j * rows + row], chain[j][e]);
    }
    for (size_t row = 0, at = threadIdx.x % chunk; row < count; row++, at += pitch)
      column_sum = up ? fused(dns[at], units[at], column_sum) : column_sum + dns[at];
    if ((first + rows) % column_slice == 0 || first + rows >= N) {
      if (blockIdx.y == 0 && column < C) column_sums[(first / column_slice * 2 + !up) * C + column] = column_sum;
      column_sum = 0;
    }
    __syncthreads();
  }
  for (size_t j = 0; j < 4 && j0 + j < rank; j++) {
    if (up) {
      for (size_t e = 0; e < 4 && c + e < scores; e++)
        up_slices[(slice * scores + c + e) * rank + j0 + j] = chain[j][e];
    } else if (c < C) {
      const Quad q = {{chain[j][0], chain[j][1], chain[j][2], chain[j][3]}};
      store_quad<aligned>(down_slices + (slice * rank + j0 + j) * C, c, C, q);
    }
  }
}

// out[c] += the column sum of these slices, which are overwritten.
__global__ inline void gated_norm_add_columns_kernel(float* out, float* sums, size_t slices, size_t stride,
                                                     size_t columns) {
  const size_t c = threadIdx.x + size_t(blockDim.x) * blockIdx.x;
  if (c < columns) add_column_slices(out + c, sums + c, slices, stride);
}

// ---- launchers

inline void require_gated_norm(const char* op, const GatedNormWeights& weights, const GatedNormShape& shape) {
  require(shape.rank > 0 && shape.rank <= matmul_slice, "%s: rank is %zu, expected 1 to %zu", op, shape.rank,
          matmul_slice);
  require(shape.base == NormGateBase::rmsnorm || (weights.alpha && weights.b), "%s: DyT has alpha and b", op);
}

inline void gated_norm_transpose(float* out, const float* in, size_t rows, size_t columns, Context& ctx) {
  launch(gated_norm_transpose_kernel, grid_of(ceil_div(rows * columns, 256)), 256, 0, ctx, out, in, rows, columns);
}

// y (N,C), r (N; of RMSNorm), low (N,rank) and, with a branch, its sum are written. y is none of the inputs.
inline void gated_norm_forward(float* y, float* r, float* low, float* sum, const ResidualIn& in,
                               const GatedNormWeights& weights, const GatedNormShape& shape, Context& ctx) {
  require_residual("gated_norm_forward", sum, in, shape.C);
  require_gated_norm("gated_norm_forward", weights, shape);
  with_activation(GateActivations{}, "gated_norm_forward", shape.op.act, [&](auto a) {
    using Act = decltype(a);
    if (ctx.device == Device::cpu)
      return gated_norm_forward_steps<Act>(y, r, low, sum, in, weights, shape, [](auto... a) { matmul_cpu(a...); });
    const size_t C = shape.C, rank = shape.rank, scores = shape.scores();
    float *down_t = ctx.scratch((C + scores) * rank), *up_t = down_t + C * rank;
    gated_norm_transpose(down_t, weights.down, rank, C, ctx);
    gated_norm_transpose(up_t, weights.up, scores, rank, ctx);
    auto* kernel = C % 4 == 0 ? gated_norm_forward_kernel<Act, true> : gated_norm_forward_kernel<Act, false>;
    launch(kernel, grid_of(ceil_div(shape.N, gated_norm::rows)), gated_norm::threads,
           2 * gated_norm::rows * rank * sizeof(float), ctx, y, r, low, sum, in, weights, down_t, up_t, shape);
  });
}

// dx (and dbranch) are written, the parameters' gradients accumulated. dx is not dy.
inline void gated_norm_backward(float* dx, float* dbranch, const GatedNormGradients& gradients, const float* dy,
                                const ResidualBackwardIn& in, const float* low, const float* r,
                                const GatedNormWeights& weights, const GatedNormShape& shape, Context& ctx) {
  require_residual_backward("gated_norm_backward", dbranch, in, shape.C);
  require_gated_norm("gated_norm_backward", weights, shape);
  require(dx != dy, "gated_norm_backward: dx is dy, which is read again after dx is written");
  if (shape.N == 0) return;
  with_activation(GateActivations{}, "gated_norm_backward", shape.op.act, [&](auto a) {
    using Act = decltype(a);
    if (ctx.device == Device::cpu)
      return gated_norm_backward_steps<Act>(dx, dbranch, gradients, dy, in, low, r, weights, shape,
                                            ctx.scratch(gated_norm_scratch(shape)),
                                            [](auto... a) { matmul_cpu(a...); });
    using namespace gated_norm;
    const size_t N = shape.N, C = shape.C, rank = shape.rank, scores = shape.scores();
    const size_t slices = ceil_div(N, matmul_slice), column_slices = ceil_div(N, column_slice);
    const size_t ranks = ceil_div(rank, 16);
    float* next = ctx.scratch((slices * (C + scores) + scores) * rank + column_slices * (2 * C + 1) + N * (rank + 2));
    auto take = [&](size_t n) { return std::exchange(next, next + n); };
    // What is read or written four numbers at a time comes first.
    float *down_slices = take(slices * rank * C), *up_t = take(scores * rank);
    float *up_slices = take(slices * scores * rank), *column_sums = take(column_slices * 2 * C);
    float *alpha_sums = take(column_slices), *dlow = take(N * rank), *dscores = take(N), *row_sums = take(N);

    gated_norm_transpose(up_t, weights.up, scores, rank, ctx);
    auto* by_rows = C % 4 == 0 ? gated_norm_backward_kernel<Act, true> : gated_norm_backward_kernel<Act, false>;
    launch(by_rows, grid_of(ceil_div(N, rows)), threads, 3 * rows * rank * sizeof(float), ctx, dx, dbranch, dlow,
           dscores, row_sums, dy, in, low, r, weights, up_t, shape);
    auto* by_columns = C % 4 == 0 ? gated_norm_columns_kernel<Act, true> : gated_norm_columns_kernel<Act, false>;
    const dim3 grid(grid_of(slices * ceil_div(C, chunk)).x, unsigned(ranks));
    launch(by_columns, grid, threads, 2 * rows * 16 * ranks * sizeof(float), ctx, up_slices, down_slices, column_sums,
           in.x, dy, low, dlow, dscores, r, weights, up_t, shape);

    auto add_slices = [&](float* gradient, const float* of_slices, size_t n) {
      matmul_add_slices(gradient, of_slices, slices, n, ctx);
    };
    add_slices(gradients.down, down_slices, rank * C);
    add_slices(gradients.up, up_slices, scores * rank);
    auto add_columns = [&](float* gradient, float* sums, size_t stride, size_t columns) {
      launch(gated_norm_add_columns_kernel, grid_of(ceil_div(columns, 128)), 128, 0, ctx, gradient, sums, column_slices,
             stride, columns);
    };
    add_columns(gradients.w, column_sums, 2 * C, C);
    if (shape.base == NormGateBase::rmsnorm) return;
    add_columns(gradients.b, column_sums + C, 2 * C, C);
    const OneSum<AddRows<float>> add_rows = {{row_sums, 1}};
    launch(column_slices_kernel<1, OneSum<AddRows<float>>>, grid_of(column_slices), 32, 0, ctx, alpha_sums, N,
           size_t{1}, add_rows);
    add_columns(gradients.alpha, alpha_sums, 1, 1);
  });
}

}  // namespace gated
