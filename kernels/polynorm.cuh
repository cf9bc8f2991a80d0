// polynorm: y = w0*norm(x^3) + w1*norm(x^2) + w2*norm(x) + b    (Zhuo et al. 2024, arXiv 2411.03884)
//   norm(v) = v*r, r = 1/sqrt(mean of v^2 over the row + eps); an activation with a row's statistics
// backward, v_j = x^(3-j), n_j = v_j*r_j:
//   dx = sum over j of w_j*r_j * (dy - n_j*mean(dy*n_j)) * v_j'      v' = 3x^2, 2x, 1
//   dw_j += sum over rows and columns of dy*n_j                      db += sum of dy
//   mean(dy*n_j) is the row's share of dw_j over C: four sums a row serve both.
//   exactly: v_1 = x*x, v_0 = v_1*x, v_2 = x; sums over a row in the canonical row order, by fma(v, v, acc),
//   fma(dy, v*r, acc) and acc + dy; the rows' sums then in the canonical column order
//   y = fma(w0, v_0*r_0, fma(w1, v_1*r_1, fma(w2, v_2*r_2, b)))
//   d_j = fma(-(v_j*r_j), mean_j, dy), g_j = w_j*r_j
//   dx = fma(g_0*(3*v_1), d_0, fma(g_1*(2*x), d_1, g_2*d_2))
// shapes: x, y, dy, dx (N,C) f32; w, dw (3), b, db (1); saves r (N,3); row_sums (N,4) is scratch
//   y, dx written, dw, db accumulated; y may be x, dx may be dy or x
// --ffn=polynorm | tests/test_polynorm.cpp
#pragma once
#include "core/context.cuh"
#include "core/math.cuh"
#include "core/launch_shape.cuh"
#include "core/reduce.cuh"

namespace gated {

// ---- formulas, one element each: reference and kernels share them

template <class T>
struct Powers {
  T v[3];
};

template <class T>
HD Powers<T> powers(T x) {
  const T x2 = x * x;
  return {{x2 * x, x2, x}};
}

template <class T>
HD T polynorm_value(T x, const T* r, const T* w, T b) {
  const Powers<T> p = powers(x);
  return fused(w[0], p.v[0] * r[0], fused(w[1], p.v[1] * r[1], fused(w[2], p.v[2] * r[2], b)));
}

template <class T>
HD T polynorm_slope(T x, T dy, const T* r, const T* w, const T* mean) {
  const Powers<T> p = powers(x);
  T d[3];
  for (int j = 0; j < 3; j++) d[j] = fused(-(p.v[j] * r[j]), mean[j], dy);
  return fused(w[0] * r[0] * (T(3) * p.v[1]), d[0], fused(w[1] * r[1] * (T(2) * p.v[2]), d[1], w[2] * r[2] * d[2]));
}

// ---- reference

// One sum over a row. j is a template parameter: a choice of the power inside the loop keeps g++ from
// vectorising it.
template <int j, class T>
T sum_squares_ref(const T* x, size_t C) {
  return row_reduce_ref<T>(C, [=](T acc, size_t c) {
    const T v = powers(x[c]).v[j];
    return fused(v, v, acc);
  });
}

template <int j, class T>
T sum_products_ref(const T* dy, const T* x, T r, size_t C) {
  return row_reduce_ref<T>(C, [=](T acc, size_t c) { return fused(dy[c], powers(x[c]).v[j] * r, acc); });
}

template <class T>
void polynorm_forward_ref(T* y, T* r, const T* x, const T* w, const T* b, size_t N, size_t C, T eps) {
#pragma omp parallel for
  for (size_t row = 0; row < N; row++) {
    const T* xr = x + row * C;
    T rr[3] = {sum_squares_ref<0>(xr, C), sum_squares_ref<1>(xr, C), sum_squares_ref<2>(xr, C)};
    for (T& v : rr) v = T(1) / exact_sqrt(v / T(C) + eps);
    for (int j = 0; j < 3; j++) r[row * 3 + j] = rr[j];
    const T wr[3] = {w[0], w[1], w[2]}, br = *b;
#pragma omp simd
    for (size_t c = 0; c < C; c++) y[row * C + c] = polynorm_value(xr[c], rr, wr, br);
  }
}

// dw and db in one pass over row_sums (N,4).
template <class T>
struct PolynormParameterGrad {
  const T* row_sums;
  HD void operator()(T (&acc)[4], size_t row, size_t) const {
    for (int k = 0; k < 4; k++) acc[k] = acc[k] + row_sums[row * 4 + k];
  }
};

template <class T>
void polynorm_backward_ref(T* dx, T* dw, T* db, T* row_sums, const T* dy, const T* x, const T* w, const T* r, size_t N,
                           size_t C) {
#pragma omp parallel for
  for (size_t row = 0; row < N; row++) {
    const T *xr = x + row * C, *dyr = dy + row * C;
    const T wr[3] = {w[0], w[1], w[2]}, rr[3] = {r[row * 3], r[row * 3 + 1], r[row * 3 + 2]};
    T* sum = row_sums + row * 4;
    sum[0] = sum_products_ref<0>(dyr, xr, rr[0], C);
    sum[1] = sum_products_ref<1>(dyr, xr, rr[1], C);
    sum[2] = sum_products_ref<2>(dyr, xr, rr[2], C);
    sum[3] = row_reduce_ref<T>(C, [=](T acc, size_t c) { return acc + dyr[c]; });
    const T mean[3] = {sum[0] / T(C), sum[1] / T(C), sum[2] / T(C)};
#pragma omp simd
    for (size_t c = 0; c < C; c++) dx[row * C + c] = polynorm_slope(xr[c], dyr[c], rr, wr, mean);
  }
  column_reduce_add_ref(std::array{dw, dw + 1, dw + 2, db}, N, 1, PolynormParameterGrad<T>{row_sums});
}

// ---- kernels: one warp a row, a lane holds four neighbouring columns of every 128
// The second pass over a row finds it in the L1 cache.

// sum[0..K-1] = K sums over a row in one pass, each in the canonical row order; every lane has them.
// fold(chain, i, count) puts elements i..i+count-1 into chain[k][0..count-1].
template <bool aligned, int K, class Fold>
__device__ inline void warp_row_sums(float (&sum)[K], size_t n, Fold fold) {
  float chain[K][4] = {};
  for (size_t i = 4 * (threadIdx.x % 32); i < n; i += row_chains)
    fold(chain, i, aligned || n - i >= 4 ? 4 : int(n - i));
  for (int k = 0; k < K; k++) sum[k] = warp_sum((chain[k][0] + chain[k][1]) + (chain[k][2] + chain[k][3]));
}

template <bool aligned>
__global__ void __launch_bounds__(rows_block)
    polynorm_forward_kernel(float* y, float* r, const float* x, const float* w, const float* b, size_t N, size_t C,
                            float eps) {
  const size_t row = warp_row();
  if (row >= N) return;
  const float* xr = x + row * C;
  float rr[3];
  warp_row_sums<aligned>(rr, C, [&](float(&chain)[3][4], size_t i, int count) {
    const Quad q = load_quad<aligned>(xr, i, C);
    for (int k = 0; k < count; k++) {
      const Powers<float> p = powers(q.v[k]);
      for (int j = 0; j < 3; j++) chain[j][k] = fused(p.v[j], p.v[j], chain[j][k]);
    }
  });
  for (float& v : rr) v = 1.0f / exact_sqrt(v / float(C) + eps);
  if (threadIdx.x % 32 == 0)
    for (int j = 0; j < 3; j++) r[row * 3 + j] = rr[j];
  const float wr[3] = {w[0], w[1], w[2]}, br = *b;
  for (size_t i = 4 * (threadIdx.x % 32); i < C; i += row_chains) {
    Quad q = load_quad<aligned>(xr, i, C);
    for (int k = 0; k < 4; k++) q.v[k] = polynorm_value(q.v[k], rr, wr, br);
    store_quad<aligned>(y + row * C, i, C, q);
  }
}

template <bool aligned>
__global__ void __launch_bounds__(rows_block)
    polynorm_backward_kernel(float* dx, float* row_sums, const float* dy, const float* x, const float* w,
                             const float* r, size_t N, size_t C) {
  const size_t row = warp_row();
  if (row >= N) return;
  const float *xr = x + row * C, *dyr = dy + row * C;
  const float wr[3] = {w[0], w[1], w[2]}, rr[3] = {r[row * 3], r[row * 3 + 1], r[row * 3 + 2]};
  float sum[4];
  warp_row_sums<aligned>(sum, C, [&](float(&chain)[4][4], size_t i, int count) {
    const Quad q = load_quad<aligned>(xr, i, C), dyq = load_quad<aligned>(dyr, i, C);
    for (int k = 0; k < count; k++) {
      const Powers<float> p = powers(q.v[k]);
      for (int j = 0; j < 3; j++) chain[j][k] = fused(dyq.v[k], p.v[j] * rr[j], chain[j][k]);
      chain[3][k] += dyq.v[k];
    }
  });
  if (threadIdx.x % 32 == 0)
    for (int k = 0; k < 4; k++) row_sums[row * 4 + k] = sum[k];
  const float mean[3] = {sum[0] / float(C), sum[1] / float(C), sum[2] / float(C)};
  for (size_t i = 4 * (threadIdx.x % 32); i < C; i += row_chains) {
    Quad q = load_quad<aligned>(xr, i, C);
    const Quad dyq = load_quad<aligned>(dyr, i, C);
    for (int k = 0; k < 4; k++) q.v[k] = polynorm_slope(q.v[k], dyq.v[k], rr, wr, mean);
    store_quad<aligned>(dx + row * C, i, C, q);
  }
}

// ---- launchers

inline void polynorm_forward(float* y, float* r, const float* x, const float* w, const float* b, size_t N, size_t C,
                             float eps, Context& ctx) {
  require(C > 0, "polynorm_forward: rows have no columns");
  if (ctx.device == Device::cpu) return polynorm_forward_ref(y, r, x, w, b, N, C, eps);
  auto* kernel = C % 4 == 0 ? polynorm_forward_kernel<true> : polynorm_forward_kernel<false>;
  launch(kernel, rows_grid(N), rows_block, 0, ctx, y, r, x, w, b, N, C, eps);
}

inline void polynorm_backward(float* dx, float* dw, float* db, float* row_sums, const float* dy, const float* x,
                              const float* w, const float* r, size_t N, size_t C, Context& ctx) {
  require(C > 0, "polynorm_backward: rows have no columns");
  if (ctx.device == Device::cpu) return polynorm_backward_ref(dx, dw, db, row_sums, dy, x, w, r, N, C);
  auto* kernel = C % 4 == 0 ? polynorm_backward_kernel<true> : polynorm_backward_kernel<false>;
  launch(kernel, rows_grid(N), rows_block, 0, ctx, dx, row_sums, dy, x, w, r, N, C);
  column_reduce_add(std::array{dw, dw + 1, dw + 2, db}, N, 1, PolynormParameterGrad<float>{row_sums}, ctx);
}

}  // namespace gated
