// static_gate on the CPU. The scores and slopes of the C logits are made once, in a vectorised loop, and rows are multiplied
// by them. dtheta comes first, in blocks of columns (core/reduce.cuh). The terms and their order are those of the reference,
// so the bits are the same.
#include <vector>

#include "core/reduce.cuh"
#include "kernels/static_gate.h"

namespace gated {

void static_gate_forward_cpu(float* y, const float* x, const float* theta, size_t N, size_t C, const GateOp& op) {
  std::vector<float> scores(C);
  gate_scores_cpu(scores.data(), theta, C, op);
#pragma omp parallel for if (worth_waking(N * C))
  for (size_t row = 0; row < N; row++) {
    const float *xr = x + row * C, *s = scores.data();
    float* yr = y + row * C;
    const bool additive = op.additive;
#pragma omp simd
    for (size_t c = 0; c < C; c++) yr[c] = additive ? xr[c] + s[c] : xr[c] * s[c];
  }
}

namespace {

// One term of dtheta.
struct MultiplicativeTerm {
  const float *dy, *x, *slope;
  size_t C;
  float operator()(float acc, size_t row, size_t c) const {
    return fused(dy[row * C + c], x[row * C + c] * slope[c], acc);
  }
};
struct AdditiveTerm {
  const float *dy, *slope;
  size_t C;
  float operator()(float acc, size_t row, size_t c) const { return fused(dy[row * C + c], slope[c], acc); }
};

}  // namespace

void static_gate_backward_cpu(float* dx, float* dtheta, const float* dy, const float* x, const float* theta, size_t N,
                              size_t C, const GateOp& op) {
  std::vector<float> scores(C), slopes(C);
  gate_scores_and_slopes_cpu(scores.data(), slopes.data(), theta, C, op);
  if (op.additive)
    column_reduce_add_cpu(dtheta, N, C, AdditiveTerm{dy, slopes.data(), C});
  else
    column_reduce_add_cpu(dtheta, N, C, MultiplicativeTerm{dy, x, slopes.data(), C});
#pragma omp parallel for
  for (size_t row = 0; row < N; row++) {
    const float *dyr = dy + row * C, *s = scores.data();
    float* dxr = dx + row * C;
    const bool additive = op.additive;
#pragma omp simd
    for (size_t c = 0; c < C; c++) dxr[c] = additive ? dyr[c] : dyr[c] * s[c];
  }
}

}  // namespace gated
