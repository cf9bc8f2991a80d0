// head_experts on the CPU: the references of kernels/head_experts.cu with heads shared out among threads. The scores
// are made in vectors first; the elements of a head are those of a vector, expert after expert, 128 at a time in
// registers, so the bits are the same.
// tests/test_head_experts.cpp
#include <algorithm>

#include "core/math.cuh"
#include "core/reduce.cuh"
#include "kernels/head_experts.h"

namespace gated {

template <class S>
void head_experts_forward_cpu(S* y, float* s, const S* x, const float* z, const HeadExpertsShape& shape) {
  const size_t H = shape.H, D = shape.D, E = shape.E;
#pragma omp parallel for if (worth_waking(shape.N * H * E * D))
  for (size_t n = 0; n < shape.N; n++) {
    const size_t token = n * H * E;
    // "simd": s may be z.
#pragma omp simd
    for (size_t i = token; i < token + H * E; i++) s[i] = exact_sigmoid(z[i]);
    for (size_t head = n * H; head < (n + 1) * H; head++) {
      float* scores = s + head * E;
      head_experts_choose(scores, E, shape.k);
      for (size_t d0 = 0; d0 < D; d0 += sums_width) {
        const size_t count = std::min(sums_width, D - d0);
        float sum[sums_width];
        bool first = true;
        for (size_t e = 0; e < E; e++) {
          const float score = scores[e];
          const S* xe = x + (head * E + e) * D + d0;
          if (score < 0.0f) continue;
          if (first)
            for (size_t d = 0; d < count; d++) sum[d] = xe[d] * score;
          else
            for (size_t d = 0; d < count; d++) sum[d] = fused(float(xe[d]), score, sum[d]);
          first = false;
        }
        S* yh = y + head * D + d0;
        for (size_t d = 0; d < count; d++) store(yh[d], sum[d]);
      }
    }
  }
}
IN_FLOAT_AND_BF16(head_experts_forward_cpu);

template <class S>
void head_experts_backward_cpu(S* dx, S* dz, const S* dy, const S* x, const float* s, const HeadExpertsShape& shape) {
  const size_t D = shape.D, E = shape.E;
#pragma omp parallel for
  for (size_t expert = 0; expert < shape.N * shape.H * E; expert++) {
    const float score = s[expert];
    const S *dyh = dy + expert / E * D, *xe = x + expert * D;
    S* dxe = dx + expert * D;
    if (score < 0.0f) {
      for (size_t d = 0; d < D; d++) dxe[d] = S(0.0f);
      dz[expert] = S(0.0f);
      continue;
    }
    const float ds =
        row_reduce_cpu<float>(D, [=](float acc, size_t d) { return fused(float(dyh[d]), float(xe[d]), acc); });
    dz[expert] = S(ds * (score * (1.0f - score)));
#pragma omp simd
    for (size_t d = 0; d < D; d++) store(dxe[d], dyh[d] * score);
  }
}
IN_FLOAT_AND_BF16(head_experts_backward_cpu);

}  // namespace gated
