// rmsnorm: y = z*r*(offset + w), r = 1/sqrt(mean(z^2) + eps)      (Zhang & Sennrich 2019, arXiv 1910.07467)
//   z = x, or pre*x with a second weight in front: PreAffine (arXiv 2601.22966)
//   offset 0, or 1 for zero-centred weights: w starts at 0, and decay draws offset + w towards 1
//   with a residual branch: x = the join of x0 and branch first, in the same pass over memory (residual.cuh)
// backward, g = dy*(offset + w) and xh = z*r:
//   dz = r*(g - xh*mean(g*xh))      the gradient of x is pre*dz
//   dw += column sum of dy*xh       dpre += column sum of x*dz
// shapes: x, y, dx (N,C) f32; w, pre (C); saves r (N) and, with a branch, the sum x (N,C)
//   y, r and the gradients of residual.cuh are written, dw and dpre accumulated
// The same operation over (B*T*H, D) rows is the QK-norm of Qwen3.
// --norm=rmsnorm|preaffine | tests/test_rmsnorm.cpp
#pragma once
#include "core/context.cuh"
#include "core/math.cuh"
#include "core/launch_shape.cuh"
#include "core/reduce.cuh"
#include "kernels/residual.cuh"

namespace gated {

// ---- formulas, one element each: reference and kernel share them

// offset + w. Without an offset w keeps its bits: w - 0 is w, and 0 + -0 would not be -0.
template <class T>
HD T rmsnorm_weight(T w, T offset) {
  return w - (T(0) - offset);
}

template <class T>
HD T rmsnorm_dz(T g, T xh, T mean, T r) {
  return r * fused(-xh, mean, g);
}

// One term of dw: a column fold.
template <class T>
struct RmsnormWeightGrad {
  const T *dy, *x, *r;
  size_t C;
  HD T operator()(T acc, size_t row, size_t c) const { return fused(dy[row * C + c], x[row * C + c] * r[row], acc); }
};

// One term of dw and of dpre. mean: the rows' mean(g*xh), which the pass over rows has left.
template <class T>
struct RmsnormWeightsGrad {
  const T *dy, *x, *pre, *w, *r, *mean;
  T offset;
  size_t C;
  HD void operator()(T (&acc)[2], size_t row, size_t c) const {
    const T dyc = dy[row * C + c], xc = x[row * C + c], xh = pre[c] * xc * r[row];
    acc[0] = fused(dyc, xh, acc[0]);
    acc[1] = fused(xc, rmsnorm_dz(dyc * rmsnorm_weight(w[c], offset), xh, mean[row], r[row]), acc[1]);
  }
};

// ---- reference

// The weights in front where there are none: without a load, the loops over a row vectorise.
template <class T>
struct Ones {
  T operator[](size_t) const { return T(1); }
};

template <class T>
void rmsnorm_forward_ref(T* y, T* r, const ResidualForwardOf<T>& in, const T* pre, const T* w, T offset, size_t N,
                         size_t C, T eps) {
  auto rows = [=, &in](auto pre) {
#pragma omp parallel for
    for (size_t row = 0; row < N; row++) {
      const T* xr = residual_row_ref(in, row, C);
      auto z = [=](size_t c) { return pre[c] * xr[c]; };
      const T squares = row_reduce_ref<T>(C, [=](T acc, size_t c) { return fused(z(c), z(c), acc); });
      const T scale = T(1) / exact_sqrt(squares / T(C) + eps);
      r[row] = scale;
      for (size_t c = 0; c < C; c++) y[row * C + c] = z(c) * scale * rmsnorm_weight(w[c], offset);
    }
  };
  pre ? rows(pre) : rows(Ones<T>());
}

template <class T>
void rmsnorm_backward_ref(const ResidualBackwardOf<T>& out, T* dw, T* dpre, T* mean, const T* dy, const T* pre,
                          const T* w, T offset, const T* r, size_t N, size_t C) {
  auto rows = [=, &out](auto pre) {
#pragma omp parallel for
    for (size_t row = 0; row < N; row++) {
      const T *xr = out.x + row * C, *dyr = dy + row * C;
      const T scale = r[row];
      // (spelt out for clang 14, which does not find a default capture through the two lambdas around it)
      auto g = [=, w = w, offset = offset](size_t c) { return dyr[c] * rmsnorm_weight(w[c], offset); };
      auto xh = [=](size_t c) { return pre[c] * xr[c] * scale; };
      const T m = row_reduce_ref<T>(C, [=](T acc, size_t c) { return fused(g(c), xh(c), acc); }) / T(C);
      if (mean) mean[row] = m;
      residual_backward_row_ref(out, row, C, [=](size_t c) { return pre[c] * rmsnorm_dz(g(c), xh(c), m, scale); });
    }
  };
  if (!pre) {
    column_reduce_add_ref(dw, N, C, RmsnormWeightGrad<T>{dy, out.x, r, C});
    rows(Ones<T>());
  } else {
    rows(pre);
    column_reduce_add_ref(std::array{dw, dpre}, N, C, RmsnormWeightsGrad<T>{dy, out.x, pre, w, r, mean, offset, C});
  }
}

// ---- kernels: one warp a row, a lane holds four neighbouring columns of every 128

// Reads x (and branch) from memory once: the second pass finds its row in the L1 cache.
template <bool aligned>
__global__ void __launch_bounds__(rows_block)
    rmsnorm_forward_kernel(float* y, float* r, ResidualForward in, const float* pre, const float* w, float offset,
                           size_t N, size_t C, float eps) {
  const size_t row = warp_row();
  if (row >= N) return;
  auto scaled = [&](Quad q, size_t i) {
    if (!pre) return q;
    const Quad preq = load_quad<aligned>(pre, i, C);
    for (int k = 0; k < 4; k++) q.v[k] = preq.v[k] * q.v[k];
    return q;
  };
  const float squares = warp_row_reduce<aligned>(C, [&](float* chain, size_t i, int count) {
    const Quad z = scaled(residual_join_quad<aligned>(in, row, i, C), i);
    for (int k = 0; k < count; k++) chain[k] = fused(z.v[k], z.v[k], chain[k]);
  });
  const float scale = 1.0f / exact_sqrt(squares / float(C) + eps);
  if (threadIdx.x % 32 == 0) r[row] = scale;
  for (size_t i = 4 * (threadIdx.x % 32); i < C; i += row_chains) {
    Quad z = scaled(residual_quad<aligned>(in, row, i, C), i);
    const Quad wq = load_quad<aligned>(w, i, C);
    for (int k = 0; k < 4; k++) z.v[k] = z.v[k] * scale * rmsnorm_weight(wq.v[k], offset);
    store_quad<aligned>(y + row * C, i, C, z);
  }
}

template <bool aligned>
__global__ void __launch_bounds__(rows_block)
    rmsnorm_backward_kernel(ResidualBackward out, float* mean, const float* dy, const float* pre, const float* w,
                            float offset, const float* r, size_t N, size_t C) {
  const size_t row = warp_row();
  if (row >= N) return;
  const float scale = r[row];
  struct Elements {
    Quad x, pre, g, xh;
  };
  auto load = [&](size_t i) {
    Elements e;
    e.x = load_quad<aligned>(out.x + row * C, i, C);
    e.pre = pre ? load_quad<aligned>(pre, i, C) : Quad{{1.0f, 1.0f, 1.0f, 1.0f}};
    const Quad dyq = load_quad<aligned>(dy + row * C, i, C), wq = load_quad<aligned>(w, i, C);
    for (int k = 0; k < 4; k++) {
      e.g.v[k] = dyq.v[k] * rmsnorm_weight(wq.v[k], offset);
      e.xh.v[k] = e.pre.v[k] * e.x.v[k] * scale;
    }
    return e;
  };
  const float sum = warp_row_reduce<aligned>(C, [&](float* chain, size_t i, int count) {
    const Elements e = load(i);
    for (int k = 0; k < count; k++) chain[k] = fused(e.g.v[k], e.xh.v[k], chain[k]);
  });
  const float m = sum / float(C);
  if (mean && threadIdx.x % 32 == 0) mean[row] = m;
  for (size_t i = 4 * (threadIdx.x % 32); i < C; i += row_chains) {
    const Elements e = load(i);
    Quad d;
    for (int k = 0; k < 4; k++) d.v[k] = e.pre.v[k] * rmsnorm_dz(e.g.v[k], e.xh.v[k], m, scale);
    residual_backward_quad<aligned>(out, row, i, C, d, e.x);
  }
}

// ---- launchers

// y (N,C), r (N) and, with a branch, its sum are written. pre may be null.
inline void rmsnorm_forward(float* y, float* r, const ResidualForward& in, const float* pre, const float* w,
                            float offset, size_t N, size_t C, float eps, Context& ctx) {
  require_residual("rmsnorm_forward", in, C);
  if (ctx.device == Device::cpu) return rmsnorm_forward_ref(y, r, in, pre, w, offset, N, C, eps);
  auto* kernel = C % 4 == 0 ? rmsnorm_forward_kernel<true> : rmsnorm_forward_kernel<false>;
  launch(kernel, rows_grid(N), rows_block, 0, ctx, y, r, in, pre, w, offset, N, C, eps);
}

// dx (and dbranch) are written, dw (C) and dpre (C) accumulated. mean (N): scratch that dpre needs.
// dpre takes the means of whole rows, so there the columns come last and still read dy; without pre they come
// first, and dx may be dy.
inline void rmsnorm_backward(const ResidualBackward& out, float* dw, float* dpre, float* mean, const float* dy,
                             const float* pre, const float* w, float offset, const float* r, size_t N, size_t C,
                             Context& ctx) {
  require_residual("rmsnorm_backward", out, C);
  require(!pre || (dpre && mean && out.dx != dy), "rmsnorm_backward: pre needs dpre, mean and a dx that is not dy");
  if (ctx.device == Device::cpu) return rmsnorm_backward_ref(out, dw, dpre, mean, dy, pre, w, offset, r, N, C);
  if (!pre) column_reduce_add(dw, N, C, RmsnormWeightGrad<float>{dy, out.x, r, C}, ctx);
  auto* kernel = C % 4 == 0 ? rmsnorm_backward_kernel<true> : rmsnorm_backward_kernel<false>;
  launch(kernel, rows_grid(N), rows_block, 0, ctx, out, mean, dy, pre, w, offset, r, N, C);
  if (pre)
    column_reduce_add(std::array{dw, dpre}, N, C, RmsnormWeightsGrad<float>{dy, out.x, pre, w, r, mean, offset, C},
                      ctx);
}

}  // namespace gated
