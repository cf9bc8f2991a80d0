// polynorm on the CPU: rows are shared out among threads. In a row, the 128 chains of a sum advance side by side in
// vector registers, and columns are vectorised. The bits are those of the reference (kernels/polynorm.cu), because
// every chain is the same chain and every column is computed alone.
#include "core/reduce.cuh"
#include "kernels/polynorm.h"

namespace gated {

template <int j, class S>
static float inverse_rms(const S* x, size_t C, float eps) {
  const float squares = row_reduce_cpu<float>(C, [=](float acc, size_t c) {
    const float v = polynorm_power(float(x[c]), j);
    return fused(v, v, acc);
  });
  return 1.0f / exact_sqrt(squares / float(C) + eps);
}

template <int j, class S>
static float product_sum(const S* dy, const S* x, float r, size_t C) {
  return row_reduce_cpu<float>(
      C, [=](float acc, size_t c) { return fused(float(dy[c]), polynorm_power(float(x[c]), j) * r, acc); });
}

template <class S>
void polynorm_forward_cpu(S* y, float* r, const S* x, const float* w, const float* b, size_t N, size_t C, float eps) {
#pragma omp parallel for if (worth_waking(N * C))
  for (size_t n = 0; n < N; n++) {
    const S* xn = x + n * C;
    const float r0 = inverse_rms<0>(xn, C, eps), r1 = inverse_rms<1>(xn, C, eps), r2 = inverse_rms<2>(xn, C, eps);
    r[n * 3] = r0;
    r[n * 3 + 1] = r1;
    r[n * 3 + 2] = r2;
    const float w0 = w[0], w1 = w[1], w2 = w[2], bias = *b;
#pragma omp simd
    for (size_t c = 0; c < C; c++) {
      const float x1 = xn[c], x2 = x1 * x1;
      store(y[n * C + c], fused(w0, x2 * x1 * r0, fused(w1, x2 * r1, fused(w2, x1 * r2, bias))));
    }
  }
}
IN_FLOAT_AND_BF16(polynorm_forward_cpu);

template <class S>
void polynorm_backward_cpu(S* dx, float* row_sums, const S* dy, const S* x, const float* w, const float* r, size_t N,
                           size_t C) {
#pragma omp parallel for
  for (size_t n = 0; n < N; n++) {
    const S *xn = x + n * C, *dyn = dy + n * C;
    const float r0 = r[n * 3], r1 = r[n * 3 + 1], r2 = r[n * 3 + 2];
    float* sum = row_sums + n * 4;
    sum[0] = product_sum<0>(dyn, xn, r0, C);
    sum[1] = product_sum<1>(dyn, xn, r1, C);
    sum[2] = product_sum<2>(dyn, xn, r2, C);
    sum[3] = row_reduce_cpu<float>(C, [=](float acc, size_t c) { return acc + dyn[c]; });
    const float mean0 = sum[0] / float(C), mean1 = sum[1] / float(C), mean2 = sum[2] / float(C);
    const float g0 = w[0] * r0, g1 = w[1] * r1, g2 = w[2] * r2;
#pragma omp simd
    for (size_t c = 0; c < C; c++) {
      const float x1 = xn[c], x2 = x1 * x1;
      const float d0 = fused(-(x2 * x1 * r0), mean0, float(dyn[c]));
      const float d1 = fused(-(x2 * r1), mean1, float(dyn[c]));
      const float d2 = fused(-(x1 * r2), mean2, float(dyn[c]));
      store(dx[n * C + c], fused(g0 * (3.0f * x2), d0, fused(g1 * (2.0f * x1), d1, g2 * d2)));
    }
  }
}
IN_FLOAT_AND_BF16(polynorm_backward_cpu);

}  // namespace gated
