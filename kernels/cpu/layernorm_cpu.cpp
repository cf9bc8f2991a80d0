// layernorm on CPU cores: y, mean, r and dx of kernels/layernorm.cu, in one pass over memory.
//
// OpenMP shares the rows out among threads. A row is joined and normalised while it is in a core's cache, and the 128
// chains of its sums fill vector registers (row_reduce_cpu in core/reduce.cuh). Every element goes through the
// operations of the reference and every sum is in its canonical order, so no bit changes. dw and db are made beside dx
// (sums_along_rows.h); where there are too few rows for that, column_reduce_add makes them. tests/test_layernorm.cpp
#include "core/simd.h"
#include "kernels/cpu/sums_along_rows.h"
#include "kernels/layernorm.h"
#include "kernels/residual.cuh"

namespace gated {

template <class S>
void layernorm_forward_cpu(const LayernormOutputsOf<S>& out, const ResidualInOf<S>& in, const float* w, const float* b,
                           size_t N, size_t C, float eps) {
#pragma omp parallel for if (worth_waking(N * C))
  for (size_t row = 0; row < N; row++) {
    const S* x = residual_row_cpu(out.sum, in, row, C);
    S* y = out.y + row * C;
    const float mean = row_reduce_cpu<float>(C, [=](float acc, size_t c) { return acc + x[c]; }) / float(C);
    const float squares =
        row_reduce_cpu<float>(C, [=](float acc, size_t c) { return fused(x[c] - mean, x[c] - mean, acc); });
    const float r = 1.0f / exact_sqrt(squares / float(C) + eps);
    out.mean[row] = mean;
    out.r[row] = r;
    for (size_t c = 0; c < C; c++) y[c] = S(fused((x[c] - mean) * r, w[c], b[c]));
  }
}
IN_FLOAT_AND_BF16(layernorm_forward_cpu);

// also(c, dy_c, xhat_c): done for every column while it is in registers.
template <class S, class Also>
static void layernorm_backward_row(const LayernormGradientsOf<S>& out, const S* all_dy,
                                   const ResidualBackwardInOf<S>& in, const float* w, const float* mean,
                                   const float* all_r, size_t row, size_t C, Also also) {
  const S *x = in.x + row * C, *dy = all_dy + row * C;
  prefetch_row(out.dx + row * C, C);
  const float m = mean[row], r = all_r[row];
  auto g = [=](size_t c) { return dy[c] * w[c]; };
  auto xh = [=](size_t c) { return (x[c] - m) * r; };
  const float mean_g = row_reduce_cpu<float>(C, [=](float acc, size_t c) { return acc + g(c); }) / float(C);
  const float mean_gxh =
      row_reduce_cpu<float>(C, [=](float acc, size_t c) { return fused(g(c), xh(c), acc); }) / float(C);
  residual_backward_row_cpu(out.dx, out.dbranch, in, row, C, [=](size_t c) {
    also(c, dy[c], xh(c));
    return r * fused(-xh(c), mean_gxh, g(c) - mean_g);
  });
}

template <class S>
bool layernorm_backward_slices_cpu(const LayernormGradientsOf<S>& out, const S* dy, const ResidualBackwardInOf<S>& in,
                                   const float* w, const float* mean, const float* r, size_t N, size_t C) {
  return sums_along_rows_cpu(std::array{out.dw, out.db}, N, C, [&](size_t row, float* dw) {
    float* const db = dw + C;
    layernorm_backward_row(out, dy, in, w, mean, r, row, C, [=](size_t c, float d, float xh) {
      dw[c] = fused(d, xh, dw[c]);
      db[c] = db[c] + d;
    });
  });
}
IN_FLOAT_AND_BF16(layernorm_backward_slices_cpu);

template <class S>
void layernorm_backward_rows_cpu(const LayernormGradientsOf<S>& out, const S* dy, const ResidualBackwardInOf<S>& in,
                                 const float* w, const float* mean, const float* r, size_t N, size_t C) {
#pragma omp parallel for
  for (size_t row = 0; row < N; row++)
    layernorm_backward_row(out, dy, in, w, mean, r, row, C, [](size_t, float, float) {});
}
IN_FLOAT_AND_BF16(layernorm_backward_rows_cpu);

}  // namespace gated
