// dyt on CPU cores: y, dx and each row's share of dalpha of kernels/dyt.cu, in one pass over memory.
//
// OpenMP shares the rows out among threads. A row is joined and goes through tanh while it is in a core's cache, and
// the 128 chains of its sum fill vector registers (row_reduce_cpu in core/reduce.cuh). Every element goes through the
// operations of the reference and every sum is in its canonical order, so no bit changes. tests/test_dyt.cpp
#include "core/reduce.cuh"
#include "kernels/dyt.h"
#include "kernels/residual.cuh"

namespace gated {

template <class S>
void dyt_forward_cpu(const DytOutputsOf<S>& out, const ResidualInOf<S>& in, const float* alpha, const float* w,
                     const float* b, size_t N, size_t C) {
  const float a = *alpha;
#pragma omp parallel for if (worth_waking(N * C))
  for (size_t row = 0; row < N; row++) {
    const S* x = residual_row_cpu(out.sum, in, row, C);
    S* y = out.y + row * C;
    for (size_t c = 0; c < C; c++) y[c] = S(fused(w[c], exact_tanh(a * x[c]), b[c]));
  }
}
IN_FLOAT_AND_BF16(dyt_forward_cpu);

// tanh is computed twice, once for the sum and once for dx: that costs less than to keep it.
template <class S>
void dyt_backward_rows_cpu(const DytGradientsOf<S>& out, const S* all_dy, const ResidualBackwardInOf<S>& in,
                           const float* alpha, const float* w, size_t N, size_t C) {
  const float a = *alpha;
#pragma omp parallel for
  for (size_t row = 0; row < N; row++) {
    const S *x = in.x + row * C, *dy = all_dy + row * C;
    auto dz = [=](size_t c) {
      const float t = exact_tanh(a * x[c]);
      return dy[c] * w[c] * fused(-t, t, 1.0f);
    };
    out.row_sums[row] = row_reduce_cpu<float>(C, [=](float acc, size_t c) { return fused(dz(c), float(x[c]), acc); });
    residual_backward_row_cpu(out.dx, out.dbranch, in, row, C, [=](size_t c) { return a * dz(c); });
  }
}
IN_FLOAT_AND_BF16(dyt_backward_rows_cpu);

}  // namespace gated
