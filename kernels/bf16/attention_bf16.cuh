// attention_bf16: the formulas that reference, kernels and the CPU's code of kernels/bf16/attention_bf16.cu share.
#pragma once
#include "core/sums.h"
#include "kernels/bf16/attention_bf16.h"

namespace gated::attention_bf16 {

constexpr size_t block = attention_bf16_block;

// The first key of the first tile that takes part for the queries from i0 on, i0 a multiple of 64. The last tile is
// that at i0.
HD size_t first_tile(const AttentionShape& s, size_t i0) {
  return s.first_key(i0) / block * block;
}
// Where the tiles of queries end that take part for the keys from j0 on. The first is that at j0.
HD size_t end_of_queries(const AttentionShape& s, size_t j0) {
  return s.end_query(j0 + block < s.T ? j0 + block - 1 : s.T - 1);
}

// The largest score so far, as a number that may be taken from others: 0 where a query has seen nothing.
HD float finite_max(float m) {
  return m == -INFINITY ? 0.0f : m;
}

// For a softmax in base two: log2 e times a score, or what is taken from it.
HD float for_weights(AttentionScore score, float x) {
  return score == AttentionScore::softmax ? x * 0x1.715476p+0f : x;
}
// What the sum over d is multiplied by for a weight.
inline float weight_scale(const AttentionShape& s) {
  return for_weights(s.score, attention_scale<float>(s.divisor()));
}
// m before the first key, and lse after the last.
HD float first_max(const Sink& sink, const AttentionShape& s, size_t b, size_t h, size_t t) {
  return for_weights(s.score, sink.logit_of(s, b, h, t));
}
HD float lse_of(float m, float l) {
  return fused(m, 0x1.62e43p-1f, exact_log(l));
}
// What the backward takes from the scores of a query.
HD float weight_base(const AttentionShape& s, const float* lse, size_t b, size_t h, size_t t) {
  return for_weights(s.score, s.base_of(lse, b, h, t));
}

// Of the sum over d of a score. -inf gives +0.
HD float weight_of(AttentionScore score, float sum, float scale, float base) {
  const float x = fused(sum, scale, -base);
  return score == AttentionScore::softmax ? short_exp2(x) : exact_sigmoid(x);
}
// dp becomes ds.
HD float gradient_of(AttentionScore score, float p, float dp, float delta) {
  return (score == AttentionScore::softmax ? p : p * (1.0f - p)) * (dp - delta);
}

// x . y, D a multiple of 8: element d belongs to chain d/8 mod 8.
template <class Y>
float row_dot(const bf16* x, const Y* y, size_t D) {
  float chain[8] = {};
  for (size_t d = 0; d < D; d++) chain[d / 8 % 8] = fused(float(x[d]), float(y[d]), chain[d / 8 % 8]);
  return sum_of_eight(chain);
}

}  // namespace gated::attention_bf16
