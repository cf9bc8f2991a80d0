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
// exactly: y = (x*r)*w; dx = r * fma(-xh, mean(g*xh), g). Both means are sums along a row, dw is one down a column,
//   each in its canonical order (core/reduce.cuh). A "chain" is a running sum that takes one element after the other:
//     RowSum      element i joins chain i mod 128, and then the 128 chains are added as a tree
//     ColumnSum   128 rows make a chain, and then the chains are added in the same way
// in bf16: everything is computed in float, and each number is rounded once, as it is stored
// shapes: x, y, dy, dx (N,C) f32 or bf16; w, dw (C); r (N), saved for the backward | dx is written, dw accumulated
// Over (B*T*H, D) rows the same operation is the QK-norm of Qwen3.
// twins: kernels/cpu/rmsnorm_cpu.cpp
// --norm=rmsnorm|preaffine, --norm-weight, --qk-norm | tests/test_rmsnorm.cpp
#include "kernels/rmsnorm.h"

#include "core/launch_shape.cuh"
#include "core/reduce.cuh"
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

// ---- kernels along the rows: y, r and dx
//
// A warp owns a row. Its 32 lanes walk along it in steps of 128 columns, and a lane holds four neighbouring columns of
// every step, a Quad (kernels/activation.cu). Element i of a row is in chain i mod 128 of the row's sum, so a lane
// carries four chains in registers from step to step:
//
//     column   0 1 2 3 | 4 5 6 7 | ... | 124 .. 127 | 128 .. 131 | 132 .. 135 | ...
//     lane        0    |    1    | ... |     31     |     0      |     1      | ...
//     chain    0 1 2 3 | 4 5 6 7 | ... | 124 .. 127 |  0 1 2 3   |  4 5 6 7   | ...
//
// At the end the lane adds its four, and then the warp its 32 lanes, in five shuffles: with __shfl_xor_sync a lane
// reads a register of the lane that is so far away (warp_chains_sum in core/reduce.cuh). Of 8 lanes it would be three:
//
//     lane        0     1     2     3     4     5     6     7
//     4 apart    0+4   1+5   2+6   3+7   4+0   5+1   6+2   7+3
//     2 apart    0+4+2+6 ...             every lane adds what the lane 2 away holds
//     1 apart    the sum of all eight, in every lane
//
// There is no shared memory and no barrier. A warp without a row returns as a whole. The second pass over a row finds
// it in a cache, L1 or L2. The memory bus: forward 8 bytes an element (x, y), backward 12 (dy, x, dx). In bf16 it is
// half.
//
// x, w and dx are what the kernel is given: x.first(row, i, C) is the Quad of columns i to i+3, x.again the same in a
// later pass, w(i, C) that of the weights, and dx.store stores one. For RMSNorm itself that is all. The general form,
// further down, puts functions that do more in their place.

template <class S, class X, class W>
__global__ void __launch_bounds__(rows_block)
    rmsnorm_forward_kernel(S* y, float* all_r, X x, W w, size_t N, size_t C, float eps) {
  const size_t row = warp_row(), lane = threadIdx.x % 32;
  if (row >= N) return;
  by_alignment(C, [&](auto) {
    float chain[4] = {};
    for (size_t i = 4 * lane; i < C; i += row_chains) {
      const Quad q = x.first(row, i, C);
      for (int k = 0; k < 4; k++) chain[k] = fused(q.v[k], q.v[k], chain[k]);
    }
    const float r = 1.0f / exact_sqrt(warp_chains_sum(chain) / float(C) + eps);  // every lane has the sum
    if (lane == 0) all_r[row] = r;

    for (size_t i = 4 * lane; i < C; i += row_chains) {
      Quad q = x.again(row, i, C);
      const Quad wq = w(i, C);
      for (int k = 0; k < 4; k++) q.v[k] = q.v[k] * r * wq.v[k];
      store_quad(y + row * C, i, C, q);
    }
  });
}

// A lane reads its columns of dy again before it writes those of dx, and no other lane reads them: dx may be dy.
template <class S, class Dx, class X, class W>
__global__ void __launch_bounds__(rows_block)
    rmsnorm_backward_kernel(Dx dx, float* all_means, const S* dy, X x, W w, const float* all_r, size_t N, size_t C) {
  const size_t row = warp_row(), lane = threadIdx.x % 32;
  if (row >= N) return;
  by_alignment(C, [&](auto aligned) {
    const float r = all_r[row];

    float chain[4] = {};  // of the sum of g*xh
    for (size_t i = 4 * lane; i < C; i += row_chains) {
      const Quad d = load_quad(dy + row * C, i, C), q = x.first(row, i, C), wq = w(i, C);
      for (int k = 0; k < 4; k++)
        if (aligned || i + k < C) chain[k] = fused(d.v[k] * wq.v[k], q.v[k] * r, chain[k]);
    }
    const float mean = warp_chains_sum(chain) / float(C);
    if (all_means && lane == 0) all_means[row] = mean;  // for PreAffine's dpre

    for (size_t i = 4 * lane; i < C; i += row_chains) {
      Quad d = load_quad(dy + row * C, i, C);
      const Quad q = x.again(row, i, C), wq = w(i, C);
      for (int k = 0; k < 4; k++) d.v[k] = rmsnorm_dz(d.v[k] * wq.v[k], q.v[k] * r, mean, r);
      dx.store(row, i, C, d);
    }
  });
}

// Of RMSNorm itself: these, and PlainRows (core/quad.cuh) for x and dx.
struct RmsnormPlainWeights {
  const float* w;
  __device__ Quad operator()(size_t i, size_t C) const { return load_quad(w, i, C); }
};

// ---- down the columns: dw
//
// The fold puts element (row,c) into the chain of column c. A thread owns one column of a slice of 128 rows and keeps
// its chain in a register; then the slices' sums are added in the same way (column_slices_kernel and column_add_kernel
// in core/reduce.cuh, with drawings).
//
// So dy and x cross the bus twice, once for dx and once for dw. One kernel for both would save a hundredth of a step at
// best (docs/gpu_model.md), so there are two.

template <class S>
struct RmsnormFoldDw {
  const S *dy, *x;
  const float* r;
  size_t C;
  HD float operator()(float acc, size_t row, size_t c) const {
    return fused(dy[row * C + c], x[row * C + c] * r[row], acc);
  }
};

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
// RmsnormGradients {dx, dbranch, dw, dpre, mean} are in rmsnorm.h. ResidualIn {x, branch, join} is what is normalised,
// and ResidualBackwardIn {x, dresidual, branch, join} what the backward reads of it (residual.h). What is null is
// absent. Its reference is these operations, one after the other. The kernels above do them in the same passes over
// memory, with what follows in place of plain loads and stores: with a branch 16 bytes an element forward (x, branch,
// sum, y), with dresidual 16 backward. offset + w and dz are rmsnorm_weight and rmsnorm_dz in rmsnorm.cuh, one line
// each, because gated_norm and the CPU's twin need them too.

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

namespace rmsnorm {
__device__ inline Quad times_pre(Quad q, const float* pre, size_t i, size_t C) {
  if (!pre) return q;
  const Quad p = load_quad(pre, i, C);
  for (int k = 0; k < 4; k++) q.v[k] = p.v[k] * q.v[k];
  return q;
}

// z of Rows: of JoinedRows, or of the x that a backward reads.
template <class Rows>
struct Scaled {
  Rows x;
  const float* pre;
  __device__ Quad first(size_t row, size_t i, size_t C) const { return times_pre(x.first(row, i, C), pre, i, C); }
  __device__ Quad again(size_t row, size_t i, size_t C) const { return times_pre(x.again(row, i, C), pre, i, C); }
};

struct OffsetWeights {
  const float* w;
  float offset;
  __device__ Quad operator()(size_t i, size_t C) const {
    Quad q = load_quad(w, i, C);
    for (int k = 0; k < 4; k++) q.v[k] = rmsnorm_weight(q.v[k], offset);
    return q;
  }
};

// dz on its way to dx and dbranch.
template <class S>
struct Gradient {
  JoinedGradient<S> dx;
  const float* pre;
  __device__ void store(size_t row, size_t i, size_t C, Quad dz) const {
    dx.store(row, i, C, times_pre(dz, pre, i, C));
  }
};

// dw and dpre. mean (N): what the rows have left, without which there is no dz.
template <class S>
struct FoldDwDpre {
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
}  // namespace rmsnorm

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
    const auto run = [&](auto x, auto w) {
      launch(rmsnorm_forward_kernel<S, decltype(x), decltype(w)>, rows_grid(N), rows_block, 0, ctx, out.y.as<S>(),
             out.r, x, w, N, C, eps);
    };
    if (weights.plain() && !in.branch) return run(PlainRows<const S>{in.x.as<S>()}, RmsnormPlainWeights{weights.w});
    run(rmsnorm::Scaled<JoinedRows<S>>{{out.sum.as<S>(), in.as<S>()}, weights.pre},
        rmsnorm::OffsetWeights{weights.w, weights.offset});
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
    const RmsnormGradientsOf<S> to = out.as<S>();
    const auto rows = [&](auto dx, auto z, auto w) {
      launch(rmsnorm_backward_kernel<S, decltype(dx), decltype(z), decltype(w)>, rows_grid(N), rows_block, 0, ctx, dx,
             out.mean, d, z, w, r, N, C);
    };
    if (ctx.device == Device::cpu && rmsnorm_backward_slices_cpu(to, d, in.as<S>(), weights, r, N, C)) return;
    if (!weights.pre) column_reduce_add(out.dw, N, C, RmsnormFoldDw<S>{d, x, r, C}, ctx);
    if (ctx.device == Device::cpu)
      rmsnorm_backward_rows_cpu(to, d, in.as<S>(), weights, r, N, C);
    else if (weights.plain() && !in.branch && !in.dresidual)
      rows(PlainRows<S>{to.dx}, PlainRows<const S>{x}, RmsnormPlainWeights{weights.w});
    else
      rows(rmsnorm::Gradient<S>{{to.dx, to.dbranch, in.as<S>()}, weights.pre},
           rmsnorm::Scaled<PlainRows<const S>>{{x}, weights.pre}, rmsnorm::OffsetWeights{weights.w, weights.offset});
    if (weights.pre)
      column_reduce_add(std::array{out.dw, out.dpre}, N, C, rmsnorm::FoldDwDpre<S>{d, x, r, out.mean, weights, C}, ctx);
  });
}

}  // namespace gated
