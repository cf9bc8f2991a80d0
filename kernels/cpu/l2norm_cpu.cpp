// l2norm on CPU cores: the references of kernels/l2norm.cu with rows shared out among threads. The 128 chains of a
// row's sum fill vector registers, in the same order.
// tests/test_l2norm.cpp
#include "core/reduce.cuh"
#include "kernels/l2norm.h"

namespace gated {

template <class S>
void l2norm_forward_cpu(S* all_y, float* r, const S* all_x, const L2normShape& s) {
#pragma omp parallel for if (worth_waking(s.N * s.H * s.D))
  for (size_t n = 0; n < s.N * s.H; n++) {
    const S* x = all_x + s.x_row(n);
    S* y = all_y + s.y_row(n);
    const float squares =
        row_reduce_cpu<float>(s.D, [=](float acc, size_t c) { return fused(float(x[c]), float(x[c]), acc); });
    const float scale = 1.0f / exact_sqrt(s.m * (squares + s.eps));
    r[n] = scale;
#pragma omp simd
    for (size_t c = 0; c < s.D; c++) store(y[c], x[c] * scale);
  }
}
IN_FLOAT_AND_BF16(l2norm_forward_cpu);

template <class S>
void l2norm_backward_cpu(S* all_dx, const S* all_dy, const S* all_y, const float* r, const L2normShape& s) {
#pragma omp parallel for
  for (size_t n = 0; n < s.N * s.H; n++) {
    const S *y = all_y + s.y_row(n), *dy = all_dy + s.y_row(n);
    S* dx = all_dx + s.x_row(n);
    const float dot =
        row_reduce_cpu<float>(s.D, [=](float acc, size_t c) { return fused(float(y[c]), float(dy[c]), acc); });
    const float scale = r[n], back = s.m * dot;
#pragma omp simd
    for (size_t c = 0; c < s.D; c++) store(dx[c], scale * fused(-y[c], back, float(dy[c])));
  }
}
IN_FLOAT_AND_BF16(l2norm_backward_cpu);

}  // namespace gated
