// residual on CPU cores: what kernels/residual.cu states, a row at a time.
//
// OpenMP shares the rows out among threads. A row goes through loops that vectorise: one without random numbers where
// there is no dropout, and one for each clip that is on. Each element is computed by itself, by the formula of the
// reference, so neither threads nor vectors change a bit. tests/test_residual.cpp
#include "kernels/residual.cuh"

namespace gated {

template <class S>
void residual_forward_cpu(S* sum, const ResidualInOf<S>& in, size_t N, size_t C) {
#pragma omp parallel for if (worth_waking(N * C))
  for (size_t row = 0; row < N; row++) residual_row_cpu(sum, in, row, C);
}
IN_FLOAT_AND_BF16(residual_forward_cpu);

// Without dy, -0: x + -0 is x, for -0 too.
template <class S>
void residual_backward_cpu(S* dx, S* dbranch, const S* dy, const ResidualBackwardInOf<S>& in, size_t N, size_t C) {
#pragma omp parallel for
  for (size_t row = 0; row < N; row++)
    residual_backward_row_cpu(dx, dbranch, in, row, C, [=](size_t c) { return dy ? float(dy[row * C + c]) : -0.0f; });
}
IN_FLOAT_AND_BF16(residual_backward_cpu);

}  // namespace gated
