// rmsnorm on CPU cores: y, r and dx of kernels/rmsnorm.cu, in one pass over memory.
//
// What it does differently from the references, and why no bit changes:
//   - OpenMP shares the rows out among threads. One thread makes the sum of a row.
//   - A row is joined, multiplied by pre and normalised while it is in a core's cache. Every element goes through the
//     same operations, only sooner.
//   - The 128 chains of a row's sum fill vector registers (row_reduce_cpu in core/reduce.cuh), in the canonical order.
//   - dw needs what dx reads. So a thread that has a slice of dw's column sum, 128 rows, makes their dx beside it, and
//     memory is read once. Where there are too few slices to share out, and with pre, whose dpre takes the rows' means,
//     dw is column_reduce_add's.
// tests/test_rmsnorm.cpp
#include <omp.h>

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

// also(c, dy_c, x_c r): done for every column while it is in registers.
template <class S, class Pre, class Also>
void rmsnorm_backward_row(const RmsnormGradientsOf<S>& out, const S* all_dy, const ResidualBackwardInOf<S>& in, Pre pre,
                          const float* w, float offset, const float* all_r, size_t row, size_t C, Also also) {
  const S *x = in.x + row * C, *dy = all_dy + row * C;
  const float r = all_r[row];
  auto g = [=](size_t c) { return dy[c] * rmsnorm_weight(w[c], offset); };
  auto xh = [=](size_t c) { return pre[c] * x[c] * r; };
  const float mean = row_reduce_cpu<float>(C, [=](float acc, size_t c) { return fused(g(c), xh(c), acc); }) / float(C);
  if (out.mean) out.mean[row] = mean;
  residual_backward_row_cpu(out.dx, out.dbranch, in, row, C, [=](size_t c) {
    also(c, dy[c], x[c] * r);
    return pre[c] * rmsnorm_dz(g(c), xh(c), mean, r);
  });
}

template <class S, class Pre>
void rmsnorm_backward_rows(const RmsnormGradientsOf<S>& out, const S* dy, const ResidualBackwardInOf<S>& in, Pre pre,
                           const float* w, float offset, const float* r, size_t N, size_t C) {
#pragma omp parallel for
  for (size_t row = 0; row < N; row++)
    rmsnorm_backward_row(out, dy, in, pre, w, offset, r, row, C, [](size_t, float, float) {});
}

template <class S>
void rmsnorm_backward_slices(const RmsnormGradientsOf<S>& out, const S* dy, const ResidualBackwardInOf<S>& in,
                             const float* w, float offset, const float* r, size_t N, size_t C) {
  const size_t slices = ceil_div(N, column_slice);
  std::vector<float> sums(slices * C);
#pragma omp parallel for
  for (size_t slice = 0; slice < slices; slice++) {
    float* const dw = &sums[slice * C];
    for (size_t row = slice * column_slice; row < N && row < (slice + 1) * column_slice; row++)
      rmsnorm_backward_row(out, dy, in, RmsnormOnes(), w, offset, r, row, C,
                           [=](size_t c, float d, float xh) { dw[c] = fused(d, xh, dw[c]); });
  }
  column_add_slices_cpu(std::array{out.dw}, sums.data(), slices, C);
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
  // With four slices or more a thread, none works alone for long.
  if (weights.pre || ceil_div(N, column_slice) < 4 * size_t(omp_get_max_threads())) return false;
  rmsnorm_backward_slices(out, dy, in, weights.w, weights.offset, r, N, C);
  return true;
}
IN_FLOAT_AND_BF16(rmsnorm_backward_slices_cpu);

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
