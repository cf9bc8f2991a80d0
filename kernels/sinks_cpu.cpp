// sinks_cpu: the logits of kernels/sinks.cu on all cores of a CPU: threads take tokens, each logit is the chain of the
// reference. tests/test_sinks.cpp
#include "kernels/sinks.h"

namespace gated {

void kv_bias_logits_cpu(float* logit, const float* q, const float* key, const AttentionShape& s) {
  const float scale = attention_scale<float>(s.divisor());
#pragma omp parallel for if (worth_waking(s.B * s.T * s.H * s.D))
  for (size_t row = 0; row < s.B * s.T; row++)
    for (size_t h = 0; h < s.H; h++) {
      const size_t b = row / s.T, t = row % s.T;
      const float *q_t = q + s.q_row(b, t, h), *k_h = key + h * s.D;
      float dot = 0;
      for (size_t d = 0; d < s.D; d++) dot = fused(q_t[d], k_h[d], dot);
      logit[s.stat(b, h, t)] = scale * dot;
    }
}

}  // namespace gated
