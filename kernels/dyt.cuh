// dyt: y = w*tanh(alpha*x) + b, one alpha for all elements
//   (Zhu et al. 2025, "Transformers without normalization", arXiv 2503.10622)
//   with a residual branch: x = the join of x0 and branch first, in the same pass over memory (residual.cuh)
// backward, t = tanh(alpha*x) and dz = dy*w*(1 - t^2), the gradient of alpha*x:
//   dx = alpha*dz      dalpha += sum of dz*x over all elements
//   dw += column sum of dy*t      db += column sum of dy
//   exactly: y = fma(w, t, b); dz = (dy*w) * fma(-t, t, 1)
//   dalpha: the rows' sums in the row order, added down the rows in the column order
// shapes: x, y, dx (N,C) f32; w, b (C); alpha, dalpha (1)
//   y and the gradients of residual.cuh are written, dalpha, dw and db accumulated
// --norm=dyt | tests/test_dyt.cpp
#pragma once
#include "core/context.cuh"
#include "core/math.cuh"
#include "core/launch_shape.cuh"
#include "core/reduce.cuh"
#include "kernels/residual.cuh"

namespace gated {

// ---- formulas, one element each: reference and kernel share them

template <class T>
HD T dyt_dz(T dy, T w, T x, T alpha) {
  const T t = exact_tanh(alpha * x);
  return dy * w * fused(-t, t, T(1));
}

// One term of dw and of db: a column fold.
template <class T>
struct DytParametersGrad {
  const T *dy, *x, *alpha;
  size_t C;
  HD void operator()(T (&acc)[2], size_t row, size_t c) const {
    const T dyc = dy[row * C + c];
    acc[0] = fused(dyc, exact_tanh(*alpha * x[row * C + c]), acc[0]);
    acc[1] = acc[1] + dyc;
  }
};

// ---- reference

template <class T>
void dyt_forward_ref(T* y, const ResidualForwardOf<T>& in, const T* alpha, const T* w, const T* b, size_t N, size_t C) {
  const T a = *alpha;
#pragma omp parallel for
  for (size_t row = 0; row < N; row++) {
    const T* xr = residual_row_ref(in, row, C);
    for (size_t c = 0; c < C; c++) y[row * C + c] = fused(w[c], exact_tanh(a * xr[c]), b[c]);
  }
}

template <class T>
void dyt_backward_ref(const ResidualBackwardOf<T>& out, T* dalpha, T* dw, T* db, T* row_sums, const T* dy,
                      const T* alpha, const T* w, size_t N, size_t C) {
  column_reduce_add_ref(std::array{dw, db}, N, C, DytParametersGrad<T>{dy, out.x, alpha, C});
  const T a = *alpha;
#pragma omp parallel for
  for (size_t row = 0; row < N; row++) {
    const T *xr = out.x + row * C, *dyr = dy + row * C;
    auto dz = [=](size_t c) { return dyt_dz(dyr[c], w[c], xr[c], a); };
    row_sums[row] = row_reduce_ref<T>(C, [=](T acc, size_t c) { return fused(dz(c), xr[c], acc); });
    residual_backward_row_ref(out, row, C, [=](size_t c) { return a * dz(c); });
  }
  column_reduce_add_ref(dalpha, N, 1, AddRows<T>{row_sums, 1});
}

// ---- kernels: one warp a row, a lane holds four neighbouring columns of every 128

template <bool aligned>
__global__ void __launch_bounds__(rows_block) dyt_forward_kernel(float* y, ResidualForward in, const float* alpha,
                                                                 const float* w, const float* b, size_t N, size_t C) {
  const size_t row = warp_row();
  if (row >= N) return;
  const float a = *alpha;
  for (size_t i = 4 * (threadIdx.x % 32); i < C; i += row_chains) {
    Quad q = residual_join_quad<aligned>(in, row, i, C);
    const Quad wq = load_quad<aligned>(w, i, C), bq = load_quad<aligned>(b, i, C);
    for (int k = 0; k < 4; k++) q.v[k] = fused(wq.v[k], exact_tanh(a * q.v[k]), bq.v[k]);
    store_quad<aligned>(y + row * C, i, C, q);
  }
}

// dx waits for no sum, so it leaves in the pass that adds up dalpha.
template <bool aligned>
__global__ void __launch_bounds__(rows_block)
    dyt_backward_kernel(ResidualBackward out, float* row_sums, const float* dy, const float* alpha, const float* w,
                        size_t N, size_t C) {
  const size_t row = warp_row();
  if (row >= N) return;
  const float a = *alpha;
  const float sum = warp_row_reduce<aligned>(C, [&](float* chain, size_t i, int count) {
    Quad d = load_quad<aligned>(dy + row * C, i, C);
    const Quad x = load_quad<aligned>(out.x + row * C, i, C), wq = load_quad<aligned>(w, i, C);
    for (int k = 0; k < 4; k++) d.v[k] = dyt_dz(d.v[k], wq.v[k], x.v[k], a);
    for (int k = 0; k < count; k++) chain[k] = fused(d.v[k], x.v[k], chain[k]);
    for (int k = 0; k < 4; k++) d.v[k] = a * d.v[k];
    residual_backward_quad<aligned>(out, row, i, C, d, x);
  });
  if (threadIdx.x % 32 == 0) row_sums[row] = sum;
}

// ---- launchers

// y (N,C) and, with a branch, its sum are written.
inline void dyt_forward(float* y, const ResidualForward& in, const float* alpha, const float* w, const float* b,
                        size_t N, size_t C, Context& ctx) {
  require_residual("dyt_forward", in, C);
  if (ctx.device == Device::cpu) return dyt_forward_ref(y, in, alpha, w, b, N, C);
  auto* kernel = C % 4 == 0 ? dyt_forward_kernel<true> : dyt_forward_kernel<false>;
  launch(kernel, rows_grid(N), rows_block, 0, ctx, y, in, alpha, w, b, N, C);
}

// dx (and dbranch) are written, dalpha (1), dw (C), db (C) accumulated; dx may be dy. row_sums (N): scratch.
// The argument without a name is b, on which no gradient depends.
inline void dyt_backward(const ResidualBackward& out, float* dalpha, float* dw, float* db, float* row_sums,
                         const float* dy, const float* alpha, const float* w, size_t N, size_t C, Context& ctx) {
  require_residual("dyt_backward", out, C);
  if (ctx.device == Device::cpu) return dyt_backward_ref(out, dalpha, dw, db, row_sums, dy, alpha, w, N, C);
  column_reduce_add(std::array{dw, db}, N, C, DytParametersGrad<float>{dy, out.x, alpha, C}, ctx);
  auto* kernel = C % 4 == 0 ? dyt_backward_kernel<true> : dyt_backward_kernel<false>;
  launch(kernel, rows_grid(N), rows_block, 0, ctx, out, row_sums, dy, alpha, w, N, C);
  column_reduce_add(dalpha, N, 1, AddRows<float>{row_sums, 1}, ctx);
}

}  // namespace gated
