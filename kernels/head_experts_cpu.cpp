// head_experts on the CPU: the references of kernels/head_experts.cu with heads shared out among threads. The scores are made
// in vectors first; the elements of a head are those of a vector, expert after expert, so the bits are the same.
// tests/test_head_experts.cpp
#include "core/math.cuh"
#include "core/reduce.cuh"
#include "kernels/head_experts.h"

namespace gated {

void head_experts_forward_cpu(float* y, float* s, const float* x, const float* z, const HeadExpertsShape& shape) {
  const size_t H = shape.H, D = shape.D, E = shape.E;
#pragma omp parallel for if (worth_waking(shape.N * H * E * D))
  for (size_t n = 0; n < shape.N; n++) {
    const size_t token = n * H * E;
    // "simd": s may be z.
#pragma omp simd
    for (size_t i = token; i < token + H * E; i++) s[i] = exact_sigmoid(z[i]);
    for (size_t head = n * H; head < (n + 1) * H; head++) {
      float *scores = s + head * E, *yh = y + head * D;
      head_experts_choose(scores, E, shape.k);
      bool first = true;
      for (size_t e = 0; e < E; e++) {
        const float score = scores[e], *xe = x + (head * E + e) * D;
        if (score < 0.0f) continue;
        if (first)
#pragma omp simd
          for (size_t d = 0; d < D; d++) yh[d] = xe[d] * score;
        else
#pragma omp simd
          for (size_t d = 0; d < D; d++) yh[d] = fused(xe[d], score, yh[d]);
        first = false;
      }
    }
  }
}

void head_experts_backward_cpu(float* dx, float* dz, const float* dy, const float* x, const float* s,
                               const HeadExpertsShape& shape) {
  const size_t D = shape.D, E = shape.E;
#pragma omp parallel for
  for (size_t expert = 0; expert < shape.N * shape.H * E; expert++) {
    const float score = s[expert], *dyh = dy + expert / E * D, *xe = x + expert * D;
    float* dxe = dx + expert * D;
    if (score < 0.0f) {
      for (size_t d = 0; d < D; d++) dxe[d] = 0.0f;
      dz[expert] = 0.0f;
      continue;
    }
    const float ds = row_reduce_cpu<float>(D, [=](float acc, size_t d) { return fused(dyh[d], xe[d], acc); });
    dz[expert] = ds * (score * (1.0f - score));
#pragma omp simd
    for (size_t d = 0; d < D; d++) dxe[d] = dyh[d] * score;
  }
}

}  // namespace gated
