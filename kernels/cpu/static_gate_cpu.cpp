// static_gate on the CPU. The scores and slopes of the C logits are made once, in a vectorised loop, and rows are
// multiplied by them. dtheta comes first, in blocks of columns (core/reduce.cuh). The terms and their order are those
// of the reference, so the bits are the same.
#include <vector>

#include "core/reduce.cuh"
#include "kernels/static_gate.h"

namespace gated {

template <class S>
void static_gate_forward_cpu(S* y, const S* x, const float* theta, size_t N, size_t C, const GateOp& op) {
  std::vector<float> scores(C);
  gate_scores_cpu(scores.data(), theta, C, op);
#pragma omp parallel for if (worth_waking(N * C))
  for (size_t row = 0; row < N; row++) {
    const S* xr = x + row * C;
    S* yr = y + row * C;
    const float* s = scores.data();
    const bool additive = op.additive;
#pragma omp simd
    for (size_t c = 0; c < C; c++) store(yr[c], additive ? xr[c] + s[c] : xr[c] * s[c]);
  }
}
IN_FLOAT_AND_BF16(static_gate_forward_cpu);

template <class S>
void static_gate_backward_cpu(S* dx, float* dtheta, const S* dy, const S* x, const float* theta, size_t N, size_t C,
                              const GateOp& op) {
  std::vector<float> scores(C), slopes(C);
  gate_scores_and_slopes_cpu(scores.data(), slopes.data(), theta, C, op);
  const float* const slope = slopes.data();
  if (op.additive)
    column_reduce_add_cpu(
        dtheta, N, C, [=](float acc, size_t row, size_t c) { return fused(float(dy[row * C + c]), slope[c], acc); });
  else
    column_reduce_add_cpu(dtheta, N, C, [=](float acc, size_t row, size_t c) {
      return fused(float(dy[row * C + c]), x[row * C + c] * slope[c], acc);
    });
#pragma omp parallel for
  for (size_t row = 0; row < N; row++) {
    const S* dyr = dy + row * C;
    S* dxr = dx + row * C;
    const float* s = scores.data();
    const bool additive = op.additive;
#pragma omp simd
    for (size_t c = 0; c < C; c++) store(dxr[c], additive ? float(dyr[c]) : dyr[c] * s[c]);
  }
}
IN_FLOAT_AND_BF16(static_gate_backward_cpu);

}  // namespace gated
