// layernorm: y = xh*w + b, xh = (x - mean)*r, r = 1/sqrt(mean((x - mean)^2) + eps)
//   (Ba, Kiros & Hinton 2016, arXiv 1607.06450)
//   with a residual branch: x = the join of x0 and branch first, in the same pass over memory (residual.cuh)
// backward, g = dy*w:
//   dx = r*(g - mean(g) - xh*mean(g*xh))      dw += column sum of dy*xh      db += column sum of dy
//   exactly: y = fma(xh, w, b); dx = r * fma(-xh, mean(g*xh), g - mean(g))
// The variance takes a second pass over the row, in cache: mean(x^2) - mean^2 cancels where x has a mean.
// shapes: x, y, dx (N,C) f32; w, b (C); saves mean, r (N) and, with a branch, the sum x (N,C)
//   y, mean, r and the gradients of residual.cuh are written, dw and db accumulated
// --norm=layernorm | tests/test_layernorm.cpp
#pragma once
#include "core/context.cuh"
#include "core/math.cuh"
#include "core/launch_shape.cuh"
#include "core/reduce.cuh"
#include "kernels/residual.cuh"

namespace gated {

// ---- formulas, one element each: reference and kernel share them

template <class T>
HD T layernorm_dx(T g, T xh, T mean_g, T mean_gxh, T r) {
  return r * fused(-xh, mean_gxh, g - mean_g);
}

// One term of dw and of db: a column fold.
template <class T>
struct LayernormParametersGrad {
  const T *dy, *x, *mean, *r;
  size_t C;
  HD void operator()(T (&acc)[2], size_t row, size_t c) const {
    const T dyc = dy[row * C + c];
    acc[0] = fused(dyc, (x[row * C + c] - mean[row]) * r[row], acc[0]);
    acc[1] = acc[1] + dyc;
  }
};

// ---- reference

template <class T>
void layernorm_forward_ref(T* y, T* mean, T* r, const ResidualForwardOf<T>& in, const T* w, const T* b, size_t N,
                           size_t C, T eps) {
#pragma omp parallel for
  for (size_t row = 0; row < N; row++) {
    const T* xr = residual_row_ref(in, row, C);
    const T m = row_reduce_ref<T>(C, [=](T acc, size_t c) { return acc + xr[c]; }) / T(C);
    const T squares = row_reduce_ref<T>(C, [=](T acc, size_t c) { return fused(xr[c] - m, xr[c] - m, acc); });
    const T scale = T(1) / exact_sqrt(squares / T(C) + eps);
    mean[row] = m;
    r[row] = scale;
    for (size_t c = 0; c < C; c++) y[row * C + c] = fused((xr[c] - m) * scale, w[c], b[c]);
  }
}

template <class T>
void layernorm_backward_ref(const ResidualBackwardOf<T>& out, T* dw, T* db, const T* dy, const T* w, const T* mean,
                            const T* r, size_t N, size_t C) {
  column_reduce_add_ref(std::array{dw, db}, N, C, LayernormParametersGrad<T>{dy, out.x, mean, r, C});
#pragma omp parallel for
  for (size_t row = 0; row < N; row++) {
    const T *xr = out.x + row * C, *dyr = dy + row * C;
    const T m = mean[row], scale = r[row];
    auto g = [=](size_t c) { return dyr[c] * w[c]; };
    auto xh = [=](size_t c) { return (xr[c] - m) * scale; };
    const T mean_g = row_reduce_ref<T>(C, [=](T acc, size_t c) { return acc + g(c); }) / T(C);
    const T mean_gxh = row_reduce_ref<T>(C, [=](T acc, size_t c) { return fused(g(c), xh(c), acc); }) / T(C);
    residual_backward_row_ref(out, row, C,
                              [=](size_t c) { return layernorm_dx(g(c), xh(c), mean_g, mean_gxh, scale); });
  }
}

// ---- kernels: one warp a row, a lane holds four neighbouring columns of every 128

// Reads x (and branch) from memory once: the later passes find their row in the L1 cache.
template <bool aligned>
__global__ void __launch_bounds__(rows_block)
    layernorm_forward_kernel(float* y, float* mean, float* r, ResidualForward in, const float* w, const float* b,
                             size_t N, size_t C, float eps) {
  const size_t row = warp_row();
  if (row >= N) return;
  const float sum = warp_row_reduce<aligned>(C, [&](float* chain, size_t i, int count) {
    const Quad q = residual_join_quad<aligned>(in, row, i, C);
    for (int k = 0; k < count; k++) chain[k] = chain[k] + q.v[k];
  });
  const float m = sum / float(C);
  const float squares = warp_row_reduce<aligned>(C, [&](float* chain, size_t i, int count) {
    const Quad q = residual_quad<aligned>(in, row, i, C);
    for (int k = 0; k < count; k++) chain[k] = fused(q.v[k] - m, q.v[k] - m, chain[k]);
  });
  const float scale = 1.0f / exact_sqrt(squares / float(C) + eps);
  if (threadIdx.x % 32 == 0) mean[row] = m, r[row] = scale;
  for (size_t i = 4 * (threadIdx.x % 32); i < C; i += row_chains) {
    Quad q = residual_quad<aligned>(in, row, i, C);
    const Quad wq = load_quad<aligned>(w, i, C), bq = load_quad<aligned>(b, i, C);
    for (int k = 0; k < 4; k++) q.v[k] = fused((q.v[k] - m) * scale, wq.v[k], bq.v[k]);
    store_quad<aligned>(y + row * C, i, C, q);
  }
}

template <bool aligned>
__global__ void __launch_bounds__(rows_block)
    layernorm_backward_kernel(ResidualBackward out, const float* dy, const float* w, const float* mean, const float* r,
                              size_t N, size_t C) {
  const size_t row = warp_row();
  if (row >= N) return;
  const float m = mean[row], scale = r[row];
  auto load_g = [&](size_t i) {
    Quad q = load_quad<aligned>(dy + row * C, i, C);
    const Quad wq = load_quad<aligned>(w, i, C);
    for (int k = 0; k < 4; k++) q.v[k] = q.v[k] * wq.v[k];
    return q;
  };
  const float sum_g = warp_row_reduce<aligned>(C, [&](float* chain, size_t i, int count) {
    const Quad g = load_g(i);
    for (int k = 0; k < count; k++) chain[k] = chain[k] + g.v[k];
  });
  const float sum_gxh = warp_row_reduce<aligned>(C, [&](float* chain, size_t i, int count) {
    const Quad g = load_g(i), x = load_quad<aligned>(out.x + row * C, i, C);
    for (int k = 0; k < count; k++) chain[k] = fused(g.v[k], (x.v[k] - m) * scale, chain[k]);
  });
  const float mean_g = sum_g / float(C), mean_gxh = sum_gxh / float(C);
  for (size_t i = 4 * (threadIdx.x % 32); i < C; i += row_chains) {
    Quad d = load_g(i);
    const Quad x = load_quad<aligned>(out.x + row * C, i, C);
    for (int k = 0; k < 4; k++) d.v[k] = layernorm_dx(d.v[k], (x.v[k] - m) * scale, mean_g, mean_gxh, scale);
    residual_backward_quad<aligned>(out, row, i, C, d, x);
  }
}

// ---- launchers

// y (N,C), mean (N), r (N) and, with a branch, its sum are written.
inline void layernorm_forward(float* y, float* mean, float* r, const ResidualForward& in, const float* w,
                              const float* b, size_t N, size_t C, float eps, Context& ctx) {
  require_residual("layernorm_forward", in, C);
  if (ctx.device == Device::cpu) return layernorm_forward_ref(y, mean, r, in, w, b, N, C, eps);
  auto* kernel = C % 4 == 0 ? layernorm_forward_kernel<true> : layernorm_forward_kernel<false>;
  launch(kernel, rows_grid(N), rows_block, 0, ctx, y, mean, r, in, w, b, N, C, eps);
}

// dx (and dbranch) are written, dw (C) and db (C) accumulated. dx may be dy.
inline void layernorm_backward(const ResidualBackward& out, float* dw, float* db, const float* dy, const float* w,
                               const float* mean, const float* r, size_t N, size_t C, Context& ctx) {
  require_residual("layernorm_backward", out, C);
  if (ctx.device == Device::cpu) return layernorm_backward_ref(out, dw, db, dy, w, mean, r, N, C);
  column_reduce_add(std::array{dw, db}, N, C, LayernormParametersGrad<float>{dy, out.x, mean, r, C}, ctx);
  auto* kernel = C % 4 == 0 ? layernorm_backward_kernel<true> : layernorm_backward_kernel<false>;
  launch(kernel, rows_grid(N), rows_block, 0, ctx, out, dy, w, mean, r, N, C);
}

}  // namespace gated
