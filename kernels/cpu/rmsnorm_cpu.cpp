// rmsnorm on CPU cores: y, r and dx of kernels/rmsnorm.cu, in one pass over memory.
//
// What it does differently from the references, and why no bit changes:
//   - OpenMP shares the rows out among threads. One thread makes the sum of a row.
//   - A row is joined, multiplied by pre and normalised while it is in a core's cache. Every element goes through the
//     same operations, only sooner.
//   - The 128 chains of a row's sum fill vector registers (row_reduce_cpu in core/reduce.cuh), in the canonical order.
//   - dw and dpre are made beside dx (sums_along_rows.h). Where there are too few rows for that, column_reduce_add
//     makes them.
// tests/test_rmsnorm.cpp
#include "core/simd.h"
#include "kernels/cpu/sums_along_rows.h"
#include "kernels/residual.cuh"
#include "kernels/rmsnorm.cuh"
#include "kernels/rmsnorm.h"

namespace gated {
namespace {

// The weights in front where there are none: without a load, the loops over a row vectorise.
struct RmsnormOnes {
  float operator[](size_t) const { return 1.0f; }
};

template <class S, class Pre>
void rmsnorm_forward_rows(const RmsnormOutputsOf<S>& out, const ResidualInOf<S>& in, Pre pre, const float* w,
                          float offset, size_t N, size_t C, float eps) {
#pragma omp parallel for if (worth_waking(N * C))
  for (size_t row = 0; row < N; row++) {
    const S* x = residual_row_cpu(out.sum, in, row, C);
    S* y = out.y + row * C;
    auto z = [=](size_t c) { return pre[c] * x[c]; };
    const float squares = row_reduce_cpu<float>(C, [=](float acc, size_t c) { return fused(z(c), z(c), acc); });
    const float r = 1.0f / exact_sqrt(squares / float(C) + eps);
    out.r[row] = r;
    for (size_t c = 0; c < C; c++) y[c] = S(z(c) * r * rmsnorm_weight(w[c], offset));
  }
}

// also(c, dy_c, xhat_c, x_c, dz_c): done for every column while it is in registers.
template <class S, class Pre, class Also>
void rmsnorm_backward_row(const RmsnormGradientsOf<S>& out, const S* all_dy, const ResidualBackwardInOf<S>& in, Pre pre,
                          const RmsnormWeights& weights, const float* all_r, size_t row, size_t C, Also also) {
  const S *x = in.x + row * C, *dy = all_dy + row * C;
  prefetch_row(out.dx + row * C, C);
  const float *w = weights.w, offset = weights.offset, r = all_r[row];
  auto g = [=](size_t c) { return dy[c] * rmsnorm_weight(w[c], offset); };
  auto xh = [=](size_t c) { return pre[c] * x[c] * r; };
  const float mean = row_reduce_cpu<float>(C, [=](float acc, size_t c) { return fused(g(c), xh(c), acc); }) / float(C);
  if (out.mean) out.mean[row] = mean;
  residual_backward_row_cpu(out.dx, out.dbranch, in, row, C, [=](size_t c) {
    const float dz = rmsnorm_dz(g(c), xh(c), mean, r);
    also(c, dy[c], xh(c), x[c], dz);
    return pre[c] * dz;
  });
}

template <class S, class Pre>
void rmsnorm_backward_rows(const RmsnormGradientsOf<S>& out, const S* dy, const ResidualBackwardInOf<S>& in, Pre pre,
                           const RmsnormWeights& weights, const float* r, size_t N, size_t C) {
#pragma omp parallel for
  for (size_t row = 0; row < N; row++)
    rmsnorm_backward_row(out, dy, in, pre, weights, r, row, C, [](size_t, float, float, float, float) {});
}

}  // namespace

template <class S>
void rmsnorm_forward_cpu(const RmsnormOutputsOf<S>& out, const ResidualInOf<S>& in, const RmsnormWeights& weights,
                         size_t N, size_t C, float eps) {
  if (weights.pre)
    rmsnorm_forward_rows(out, in, weights.pre, weights.w, weights.offset, N, C, eps);
  else
    rmsnorm_forward_rows(out, in, RmsnormOnes(), weights.w, weights.offset, N, C, eps);
}
IN_FLOAT_AND_BF16(rmsnorm_forward_cpu);

template <class S>
bool rmsnorm_backward_slices_cpu(const RmsnormGradientsOf<S>& out, const S* dy, const ResidualBackwardInOf<S>& in,
                                 const RmsnormWeights& weights, const float* r, size_t N, size_t C) {
  if (!weights.pre)
    return sums_along_rows_cpu(std::array{out.dw}, N, C, [&](size_t row, float* dw) {
      rmsnorm_backward_row(out, dy, in, RmsnormOnes(), weights, r, row, C,
                           [=](size_t c, float d, float xh, float, float) { dw[c] = fused(d, xh, dw[c]); });
    });
  return sums_along_rows_cpu(std::array{out.dw, out.dpre}, N, C, [&](size_t row, float* dw) {
    float* const dpre = dw + C;
    rmsnorm_backward_row(out, dy, in, weights.pre, weights, r, row, C,
                         [=](size_t c, float d, float xh, float x, float dz) {
                           dw[c] = fused(d, xh, dw[c]);
                           dpre[c] = fused(x, dz, dpre[c]);
                         });
  });
}
IN_FLOAT_AND_BF16(rmsnorm_backward_slices_cpu);

template <class S>
void rmsnorm_backward_rows_cpu(const RmsnormGradientsOf<S>& out, const S* dy, const ResidualBackwardInOf<S>& in,
                               const RmsnormWeights& weights, const float* r, size_t N, size_t C) {
  if (weights.pre)
    rmsnorm_backward_rows(out, dy, in, weights.pre, weights, r, N, C);
  else
    rmsnorm_backward_rows(out, dy, in, RmsnormOnes(), weights, r, N, C);
}
IN_FLOAT_AND_BF16(rmsnorm_backward_rows_cpu);

}  // namespace gated
