// residual on CPU cores: what kernels/residual.cu states, a row at a time.
//
// OpenMP shares the rows out among threads. A row goes through loops that vectorise: one without random numbers where
// there is no dropout, and one for each clip that is on. Each element is computed by itself, by the formula of the
// reference, so neither threads nor vectors change a bit. tests/test_residual.cpp
#include "kernels/residual.cuh"

namespace gated {

void residual_forward_cpu(float* sum, const ResidualIn& in, size_t N, size_t C) {
#pragma omp parallel for if (worth_waking(N * C))
  for (size_t row = 0; row < N; row++) residual_row_cpu(sum, in, row, C);
}

// Without dy, -0: x + -0 is x, for -0 too.
void residual_backward_cpu(float* dx, float* dbranch, const float* dy, const ResidualBackwardIn& in, size_t N,
                           size_t C) {
#pragma omp parallel for
  for (size_t row = 0; row < N; row++)
    residual_backward_row_cpu(dx, dbranch, in, row, C, [=](size_t c) { return dy ? dy[row * C + c] : -0.0f; });
}

}  // namespace gated
