// dyt on CPU cores: y, dx and each row's share of dalpha of kernels/dyt.cu, in one pass over memory.
//
// OpenMP shares the rows out among threads. A row is joined and goes through tanh while it is in a core's cache, and
// the 128 chains of its sum fill vector registers (row_reduce_cpu in core/reduce.cuh). Every element goes through the
// operations of the reference and every sum is in its canonical order, so no bit changes. dw and db are made beside dx
// (sums_along_rows.h); where there are too few rows for that, column_reduce_add makes them. tests/test_dyt.cpp
#include "kernels/cpu/sums_along_rows.h"
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

// A row in t, room for C numbers, which is left with its tanh. also(c, dy_c, t_c): done for every column.
template <class S, class Also>
static void dyt_backward_row(const DytGradientsOf<S>& out, const S* all_dy, const ResidualBackwardInOf<S>& in, float a,
                             const float* w, float* t, size_t row, size_t C, Also also) {
  const S *x = in.x + row * C, *dy = all_dy + row * C;
  for (size_t c = 0; c < C; c++) t[c] = exact_tanh(a * x[c]);
  auto dz = [=](size_t c) { return dy[c] * w[c] * fused(-t[c], t[c], 1.0f); };
  out.row_sums[row] = row_reduce_cpu<float>(C, [=](float acc, size_t c) { return fused(dz(c), float(x[c]), acc); });
  residual_backward_row_cpu(out.dx, out.dbranch, in, row, C, [=](size_t c) {
    also(c, dy[c], t[c]);
    return a * dz(c);
  });
}

template <class S>
bool dyt_backward_slices_cpu(const DytGradientsOf<S>& out, const S* dy, const ResidualBackwardInOf<S>& in,
                             const float* alpha, const float* w, size_t N, size_t C) {
  if (!enough_slices(N)) return false;
  std::vector<float> room(omp_get_max_threads() * C);
  return sums_along_rows_cpu(std::array{out.dw, out.db}, N, C, [&](size_t row, float* dw) {
    float *const db = dw + C, *const t = &room[omp_get_thread_num() * C];
    dyt_backward_row(out, dy, in, *alpha, w, t, row, C, [=](size_t c, float d, float tc) {
      dw[c] = fused(d, tc, dw[c]);
      db[c] = db[c] + d;
    });
  });
}
IN_FLOAT_AND_BF16(dyt_backward_slices_cpu);

template <class S>
void dyt_backward_rows_cpu(const DytGradientsOf<S>& out, const S* dy, const ResidualBackwardInOf<S>& in,
                           const float* alpha, const float* w, size_t N, size_t C) {
  std::vector<float> room(omp_get_max_threads() * C);
#pragma omp parallel for
  for (size_t row = 0; row < N; row++)
    dyt_backward_row(out, dy, in, *alpha, w, &room[omp_get_thread_num() * C], row, C, [](size_t, float, float) {});
}
IN_FLOAT_AND_BF16(dyt_backward_rows_cpu);

}  // namespace gated
