// rmsnorm on CPU cores: y, r and dx of kernels/rmsnorm.cu, in one pass over memory.
//
// What it does differently from the references, and why no bit changes:
//   - OpenMP shares the rows out among threads. One thread makes the sum of a row.
//   - A row is joined, multiplied by pre and normalised while it is in a core's cache. Every element goes through the
//     same operations, only sooner.
//   - The 128 chains of a row's sum fill vector registers (row_reduce_cpu in core/reduce.cuh), in the canonical order.
// dw and dpre need no twin: column_reduce_add has a CPU side of its own.
// tests/test_rmsnorm.cpp
#include "core/reduce.cuh"
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

template <class S, class Pre>
void rmsnorm_backward_rows(const RmsnormGradientsOf<S>& out, const S* all_dy, const ResidualBackwardInOf<S>& in,
                           Pre pre, const float* w, float offset, const float* all_r, size_t N, size_t C) {
#pragma omp parallel for
  for (size_t row = 0; row < N; row++) {
    const S *x = in.x + row * C, *dy = all_dy + row * C;
    const float r = all_r[row];
    auto g = [=](size_t c) { return dy[c] * rmsnorm_weight(w[c], offset); };
    auto xh = [=](size_t c) { return pre[c] * x[c] * r; };
    const float mean =
        row_reduce_cpu<float>(C, [=](float acc, size_t c) { return fused(g(c), xh(c), acc); }) / float(C);
    if (out.mean) out.mean[row] = mean;
    residual_backward_row_cpu(out.dx, out.dbranch, in, row, C,
                              [=](size_t c) { return pre[c] * rmsnorm_dz(g(c), xh(c), mean, r); });
  }
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
void rmsnorm_backward_rows_cpu(const RmsnormGradientsOf<S>& out, const S* dy, const ResidualBackwardInOf<S>& in,
                               const RmsnormWeights& weights, const float* r, size_t N, size_t C) {
  if (weights.pre)
    rmsnorm_backward_rows(out, dy, in, weights.pre, weights.w, weights.offset, r, N, C);
  else
    rmsnorm_backward_rows(out, dy, in, RmsnormOnes(), weights.w, weights.offset, r, N, C);
}
IN_FLOAT_AND_BF16(rmsnorm_backward_rows_cpu);

}  // namespace gated
