// sinks_cpu: the logits of kernels/sinks.cu on all cores of a CPU: threads take tokens, each logit is the chain of the
// reference. tests/test_sinks.cpp
#include "kernels/sinks.h"

namespace gated {

template <class S>
void kv_bias_logits_cpu(float* logit, const S* q, const float* key, const AttentionShape& s) {
  const float scale = attention_scale<float>(s.divisor());
#pragma omp parallel for if (worth_waking(s.B * s.T * s.H * s.D))
  for (size_t row = 0; row < s.B * s.T; row++)
    for (size_t h = 0; h < s.H; h++) {
      const size_t b = row / s.T, t = row % s.T;
      const S* q_t = q + s.q_row(b, t, h);
      const float* k_h = key + h * s.D;
      float dot = 0;
      for (size_t d = 0; d < s.D; d++) dot = fused(float(q_t[d]), k_h[d], dot);
      logit[s.stat(b, h, t)] = scale * dot;
    }
}
IN_FLOAT_AND_BF16(kv_bias_logits_cpu);

}  // namespace gated
