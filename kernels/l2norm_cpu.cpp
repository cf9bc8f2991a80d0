// l2norm on CPU cores: the references of kernels/l2norm.cu with rows shared out among threads. The 128 chains of a row's sum
// fill vector registers, in the same order.
// tests/test_l2norm.cpp
#include "core/reduce.cuh"
#include "kernels/l2norm.h"

namespace gated {

void l2norm_forward_cpu(float* all_y, float* r, const float* all_x, const L2normShape& s) {
#pragma omp parallel for if (worth_waking(s.N * s.H * s.D))
  for (size_t n = 0; n < s.N * s.H; n++) {
    const float* x = all_x + s.x_row(n);
    float* y = all_y + s.y_row(n);
    const float squares = row_reduce_cpu<float>(s.D, [=](float acc, size_t c) { return fused(x[c], x[c], acc); });
    const float scale = 1.0f / exact_sqrt(s.m * (squares + s.eps));
    r[n] = scale;
#pragma omp simd
    for (size_t c = 0; c < s.D; c++) y[c] = x[c] * scale;
  }
}

void l2norm_backward_cpu(float* all_dx, const float* all_dy, const float* all_y, const float* r, const L2normShape& s) {
#pragma omp parallel for
  for (size_t n = 0; n < s.N * s.H; n++) {
    const float *y = all_y + s.y_row(n), *dy = all_dy + s.y_row(n);
    float* dx = all_dx + s.x_row(n);
    const float dot = row_reduce_cpu<float>(s.D, [=](float acc, size_t c) { return fused(y[c], dy[c], acc); });
    const float scale = r[n], back = s.m * dot;
#pragma omp simd
    for (size_t c = 0; c < s.D; c++) dx[c] = scale * fused(-y[c], back, dy[c]);
  }
}

}  // namespace gated
