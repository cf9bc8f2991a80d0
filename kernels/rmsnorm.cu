// rmsnorm: y = x*r*w, r = 1/sqrt(mean(x^2) + eps)      (Zhang & Sennrich 2019, arXiv 1910.07467)
//
// A row x of C numbers is divided by its root mean square, and every column gets a weight of its own.
//
// backward, of one row. Write xh = x*r, so that y_c = xh_c*w_c, and g = dy*w, the gradient of xh.
//   dw_c += sum over the rows of dy_c*xh_c
//   x_c reaches the loss in two ways: directly, xh_c = x_c*r, and through r, on which the whole row depends:
//     dx_c = g_c*r + (sum_j g_j*x_j) * ∂r/∂x_c
//   r = (mean(x^2) + eps)^(-1/2)   =>   ∂r/∂x_c = -1/2 * r^3 * 2*x_c/C = -r^3*x_c/C
//     dx_c = r*g_c - r^3*x_c/C * sum_j g_j*x_j         and with x = xh/r:
//          = r*(g_c - xh_c * mean(g*xh))
// exactly: y = (x*r)*w; dx = r * fma(-xh, mean(g*xh), g). Both means are sums along a row, dw is one down a column, each
//   in its canonical order (core/reduce.cuh). A "chain" is a running sum that takes one element after the other:
//     RowSum      element i joins chain i mod 128, and then the 128 chains are added as a tree
//     ColumnSum   128 rows make a chain, and then the chains are added in the same way
// in bf16: everything is computed in float, and each number is rounded once, as it is stored
// shapes: x, y, dy, dx (N,C) f32 or bf16; w, dw (C); r (N), saved for the backward | dx is written, dw accumulated
// Over (B*T*H, D) rows the same operation is the QK-norm of Qwen3.
// --norm=rmsnorm|preaffine, --norm-weight, --qk-norm | tests/test_rmsnorm.cpp
#include "kernels/rmsnorm.h"

#include "core/launch_shape.cuh"
#include "core/reduce.cuh"
#include "core/rows_and_columns.cuh"
#include "kernels/residual.cuh"
#include "kernels/rmsnorm.cuh"

namespace gated {

// ---- reference: fused(a,b,c) is a*b + c, rounded once

template <class T>
void rmsnorm_forward_ref(T* y, T* r, const T* x, const T* w, size_t N, size_t C, T eps) {
  for (size_t n = 0; n < N; n++) {
    const T* xn = x + n * C;
    RowSum<T> squares;
    for (size_t c = 0; c < C; c++) squares.fma(xn[c], xn[c]);
    r[n] = T(1) / exact_sqrt(squares.total() / T(C) + eps);
    for (size_t c = 0; c < C; c++) y[n * C + c] = xn[c] * r[n] * w[c];
  }
}
IN_FLOAT_AND_DOUBLE(rmsnorm_forward_ref);

// dw comes first: it still reads dy where dx is in its place.
template <class T>
void rmsnorm_backward_ref(T* dx, T* dw, const T* dy, const T* x, const T* w, const T* r, size_t N, size_t C) {
  for (size_t c = 0; c < C; c++) {
    ColumnSum<T> sum;
    for (size_t n = 0; n < N; n++) sum.fma(dy[n * C + c], x[n * C + c] * r[n]);
    dw[c] = dw[c] + sum.total();
  }
  for (size_t n = 0; n < N; n++) {
    const T *xn = x + n * C, *dyn = dy + n * C;
    RowSum<T> sum;
    for (size_t c = 0; c < C; c++) sum.fma(dyn[c] * w[c], xn[c] * r[n]);
    const T mean = sum.total() / T(C);
    for (size_t c = 0; c < C; c++) {
      const T g = dyn[c] * w[c], xh = xn[c] * r[n];
      dx[n * C + c] = r[n] * fused(-xh, mean, g);
    }
  }
}
IN_FLOAT_AND_DOUBLE(rmsnorm_backward_ref);

// ---- the general form: three additions, each of which may be absent
//
//   residual branch   x = the join of the stream and of a branch (residual.cu); the sum is kept
//   PreAffine         z = pre*x takes the place of x: a second weight, in front (arXiv 2601.22966)
//   zero-centred      the weight is offset + w, offset = 1: w starts at 0, and weight decay draws offset + w towards 1
// so y = z*r*(offset + w), r = 1/sqrt(mean(z^2) + eps).
// backward: with dz as dx above, z_c = pre_c*x_c gives
//   dpre_c += sum over the rows of x_c*dz_c      dx = pre*dz
//   and the join turns dresidual + dx into the gradients of the stream and of the branch (residual.cu).
// Its arguments come in structs with named fields. RmsnormOutputs {y, r, sum}, RmsnormWeights {w, pre, offset} and
// RmsnormGradients {dx, dbranch, dw, dpre, mean} are in rmsnorm.h. ResidualIn {x, branch, join} is what is normalised, and
// ResidualBackwardIn {x, dresidual, branch, join} what the backward reads of it (residual.h). What is null is absent.
// Its reference is these operations, one after the other. The kernels do them in one pass over memory. offset + w and
// dz are rmsnorm_weight and rmsnorm_dz in rmsnorm.cuh, one line each, because gated_norm and the CPU's twin need them too.

namespace rmsnorm {
template <class T>
std::vector<T> weights_of(const RmsnormWeightsOf<T>& weights, size_t C) {
  std::vector<T> w(weights.w, weights.w + C);
  for (T& v : w) v = rmsnorm_weight(v, weights.offset);
  return w;
}

// (N,C) times a weight for every column; null: the weight 1.
template <class T>
std::vector<T> times_pre(const T* x, const T* pre, size_t N, size_t C) {
  std::vector<T> z(x, x + N * C);
  for (size_t i = 0; pre && i < N * C; i++) z[i] = pre[i % C] * x[i];
  return z;
}
}  // namespace rmsnorm

template <class T>
void rmsnorm_general_forward_ref(const RmsnormOutputsOf<T>& out, const ResidualInOf<T>& in,
                                 const RmsnormWeightsOf<T>& weights, size_t N, size_t C, T eps) {
  if (in.branch) residual_join_forward_ref(out.sum, in, N, C);
  const T* x = in.branch ? out.sum : in.x;
  const std::vector<T> z = rmsnorm::times_pre(x, weights.pre, N, C), w = rmsnorm::weights_of(weights, C);
  rmsnorm_forward_ref(out.y, out.r, z.data(), w.data(), N, C, eps);
}
IN_FLOAT_AND_DOUBLE(rmsnorm_general_forward_ref);

template <class T>
void rmsnorm_general_backward_ref(const RmsnormGradientsOf<T>& out, const T* dy, const ResidualBackwardInOf<T>& in,
                                  const RmsnormWeightsOf<T>& weights, const T* r, size_t N, size_t C) {
  const std::vector<T> z = rmsnorm::times_pre(in.x, weights.pre, N, C), w = rmsnorm::weights_of(weights, C);
  std::vector<T> dz(N * C);
  rmsnorm_backward_ref(dz.data(), out.dw, dy, z.data(), w.data(), r, N, C);
  for (size_t c = 0; weights.pre && c < C; c++) {
    ColumnSum<T> sum;
    for (size_t n = 0; n < N; n++) sum.fma(in.x[n * C + c], dz[n * C + c]);
    out.dpre[c] = out.dpre[c] + sum.total();
  }
  const std::vector<T> through_norm = rmsnorm::times_pre(dz.data(), weights.pre, N, C);
  residual_join_backward_ref(out.dx, out.dbranch, through_norm.data(), in, N, C);
}
IN_FLOAT_AND_DOUBLE(rmsnorm_general_backward_ref);

// ---- kernels along the rows: y, r and dx
//
// A warp owns a row. Its 32 lanes walk along it in steps of 128 columns, and a lane holds four neighbouring columns
// of every step: a Quad, which one 16-byte load brings, so that a warp reads 512 neighbouring bytes with one
// instruction (core/quad.cuh).
//
//     column   0 1 2 3 | 4 5 6 7 | ... | 124 .. 127 | 128 .. 131 | 132 .. 135 | ...
//     lane        0    |    1    | ... |     31     |     0      |     1      | ...
//     chain    0 1 2 3 | 4 5 6 7 | ... | 124 .. 127 |  0 1 2 3   |  4 5 6 7   | ...
//
// Element i of a row is in chain i mod 128 of the row's sum, so a lane carries four chains in registers from step to
// step. At the end the lane adds its four, and five shuffles add the lanes (warp_chains_sum). Lanes of a warp exchange
// registers: there is no shared memory and no barrier. A warp without a row returns as a whole.
// The second pass over a row finds it in a cache, L1 or L2. The memory bus: forward 8 bytes an element (x, y), with a branch
// 16 (x, branch, sum, y); backward 12 (dy, x, dx), with dresidual 16. In bf16 it is half.
// Plain RMSNorm: residual_join_quad and residual_quad load x, scaled() returns it, rmsnorm_weight() is w, `pre` is 1, and the
// backward ends in store_quad.

namespace rmsnorm {
// z of four columns.
__device__ inline Quad scaled(Quad x, const float* pre, size_t i, size_t C) {
  if (!pre) return x;
  const Quad p = load_quad(pre, i, C);
  for (int k = 0; k < 4; k++) x.v[k] = p.v[k] * x.v[k];
  return x;
}
}  // namespace rmsnorm

template <class S>
__global__ void __launch_bounds__(rows_block)
    rmsnorm_forward_kernel(RmsnormOutputsOf<S> out, ResidualInOf<S> in, RmsnormWeights weights, size_t N, size_t C,
                           float eps) {
  const size_t row = warp_row(), lane = threadIdx.x % 32;
  if (row >= N) return;

  float chain[4] = {};
  for (size_t i = 4 * lane; i < C; i += row_chains) {
    const Quad x = residual_join_quad(out.sum, in, row, i, C);  // x, or the sum, which it stores
    const Quad z = rmsnorm::scaled(x, weights.pre, i, C);
    for (int k = 0; k < 4; k++)
      if (i + k < C) chain[k] = fused(z.v[k], z.v[k], chain[k]);
  }
  const float r = 1.0f / exact_sqrt(warp_chains_sum(chain) / float(C) + eps);  // every lane has the sum
  if (lane == 0) out.r[row] = r;

  for (size_t i = 4 * lane; i < C; i += row_chains) {
    Quad q = rmsnorm::scaled(residual_quad(in, row, i, C), weights.pre, i, C);
    const Quad w = load_quad(weights.w, i, C);
    for (int k = 0; k < 4; k++) q.v[k] = q.v[k] * r * rmsnorm_weight(w.v[k], weights.offset);
    store_quad(out.y + row * C, i, C, q);
  }
}

namespace rmsnorm {
// What a lane needs of four columns, in both passes of the backward.
struct Columns {
  Quad x, pre, g, xh;
};

template <class S>
__device__ inline Columns load_columns(const S* dy, const S* x, const RmsnormWeights& weights, float r, size_t i,
                                       size_t C) {
  Columns q;
  q.x = load_quad(x, i, C);
  q.pre = weights.pre ? load_quad(weights.pre, i, C) : Quad{{1.0f, 1.0f, 1.0f, 1.0f}};
  const Quad d = load_quad(dy, i, C), w = load_quad(weights.w, i, C);
  for (int k = 0; k < 4; k++) {
    q.g.v[k] = d.v[k] * rmsnorm_weight(w.v[k], weights.offset);
    q.xh.v[k] = q.pre.v[k] * q.x.v[k] * r;
  }
  return q;
}
}  // namespace rmsnorm

// A row of dx. The kernel that calls this is in core/rows_and_columns.cuh, because it makes dw too.
template <class S>
struct RmsnormBackwardRows {
  RmsnormGradientsOf<S> out;
  const S* dy;
  ResidualBackwardInOf<S> in;
  RmsnormWeights weights;
  const float* r;
  size_t C;

  void on_cpu(size_t N) const { rmsnorm_backward_rows_cpu(out, dy, in, weights, r, N, C); }

  __device__ void operator()(size_t row) const {
    const size_t lane = threadIdx.x % 32;
    const S *dyr = dy + row * C, *xr = in.x + row * C;
    const float scale = r[row];

    float chain[4] = {};  // of the sum of g*xh
    for (size_t i = 4 * lane; i < C; i += row_chains) {
      const rmsnorm::Columns q = rmsnorm::load_columns(dyr, xr, weights, scale, i, C);
      for (int k = 0; k < 4; k++)
        if (i + k < C) chain[k] = fused(q.g.v[k], q.xh.v[k], chain[k]);
    }
    const float mean = warp_chains_sum(chain) / float(C);
    if (out.mean && lane == 0) out.mean[row] = mean;  // dpre will want it

    // A lane reads its columns of dy again before it writes those of dx, and no other lane reads them: dx may be dy.
    for (size_t i = 4 * lane; i < C; i += row_chains) {
      const rmsnorm::Columns q = rmsnorm::load_columns(dyr, xr, weights, scale, i, C);
      Quad d;
      for (int k = 0; k < 4; k++) d.v[k] = q.pre.v[k] * rmsnorm_dz(q.g.v[k], q.xh.v[k], mean, scale);
      if (!in.dresidual && !in.branch)
        store_quad(out.dx + row * C, i, C, d);  // the norm alone ends here
      else
        residual_backward_quad(out.dx, out.dbranch, in, row, i, C, d, q.x);  // adds dresidual, goes through the join
    }
  }
};

// ---- down the columns: dw and dpre
//
// A fold puts element (row,c) into the chains of column c. Two kernels call it, with the same order of additions:
//   with enough rows   rows_and_columns_kernel (core/rows_and_columns.cuh), which makes dx too. A block turns to 16 rows
//                      at a time, in both directions
//   with fewer         column_slices_kernel (core/reduce.cuh): a thread owns one column of a slice of 128 rows, and keeps
//                      its chains in registers. dy and x cross the bus a second time, 8 bytes an element
// Either way neighbouring threads have neighbouring columns, so that a warp reads 128 neighbouring bytes of a row. Then the
// slices' sums are added in the same way, 128 to a chain, until one is left. OneSum: the fold of a single sum.

// dw without pre.
template <class S>
struct RmsnormFoldDw {
  const S *dy, *x;
  const float* r;
  size_t C;
  HD float operator()(float acc, size_t row, size_t c) const {
    return fused(dy[row * C + c], x[row * C + c] * r[row], acc);
  }
};

// dw and dpre with pre. mean (N): what the rows have left, without which there is no dz.
template <class S>
struct RmsnormFoldDwDpre {
  const S *dy, *x;
  const float *r, *mean;
  RmsnormWeights weights;
  size_t C;
  HD void operator()(float (&acc)[2], size_t row, size_t c) const {
    const float dyc = dy[row * C + c], xc = x[row * C + c], xh = weights.pre[c] * xc * r[row];
    const float g = dyc * rmsnorm_weight(weights.w[c], weights.offset);
    acc[0] = fused(dyc, xh, acc[0]);
    acc[1] = fused(xc, rmsnorm_dz(g, xh, mean[row], r[row]), acc[1]);
  }
};

// ---- launchers

// The plain calls are the general form with nothing added.
void rmsnorm_forward(Reals y, float* r, ConstReals x, const float* w, size_t N, size_t C, float eps, Context& ctx) {
  rmsnorm_forward({.y = y, .r = r}, {.x = x}, {.w = w}, N, C, eps, ctx);
}

void rmsnorm_backward(Reals dx, float* dw, ConstReals dy, ConstReals x, const float* w, const float* r, size_t N,
                      size_t C, Context& ctx) {
  rmsnorm_backward({.dx = dx, .dw = dw}, dy, {.x = x}, {.w = w}, r, N, C, ctx);
}

void rmsnorm_forward(const RmsnormOutputs& out, const ResidualIn& in, const RmsnormWeights& weights, size_t N, size_t C,
                     float eps, Context& ctx) {
  require_residual("rmsnorm_forward", out.sum, in, C);
  with_storage(out.y, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu) return rmsnorm_forward_cpu(out.as<S>(), in.as<S>(), weights, N, C, eps);
    launch(rmsnorm_forward_kernel<S>, rows_grid(N), rows_block, 0, ctx, out.as<S>(), in.as<S>(), weights, N, C, eps);
  });
}

size_t rmsnorm_backward_scratch(size_t N, size_t C, bool pre) {
  return column_reduce_scratch(N, C, pre ? 2 : 1);
}

// Without pre the columns come first, so that dx may be dy. dpre takes the means of whole rows: there the rows come
// first, and the columns still read dy.
void rmsnorm_backward(const RmsnormGradients& out, ConstReals dy, const ResidualBackwardIn& in,
                      const RmsnormWeights& weights, const float* r, size_t N, size_t C, Context& ctx) {
  require_residual_backward("rmsnorm_backward", out.dbranch, in, C);
  require(!weights.pre || (out.dpre && out.mean && out.dx != dy && (!out.dbranch || out.dbranch != dy)),
          "rmsnorm_backward: pre needs dpre, mean, and a dx and a dbranch that are not dy");
  with_storage(out.dx, [&](auto stored) {
    using S = decltype(stored);
    const S *d = dy.as<S>(), *x = in.x.as<S>();
    const RmsnormBackwardRows<S> rows = {out.as<S>(), d, in.as<S>(), weights, r, C};
    if (weights.pre)
      rows_and_columns<First::rows>(std::array{out.dw, out.dpre}, N, C, rows,
                                    RmsnormFoldDwDpre<S>{d, x, r, out.mean, weights, C}, ctx);
    else
      rows_and_columns<First::columns>(std::array{out.dw}, N, C, rows, OneSum<RmsnormFoldDw<S>>{{d, x, r, C}}, ctx);
  });
}

}  // namespace gated
