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

// Of the sum over d of a score. -inf gives +0.
HD float weight_of(AttentionScore score, float sum, float scale, float base) {
  const float x = fused(sum, scale, -base);
  return score == AttentionScore::softmax ? exp_to_40(x) : exact_sigmoid(x);
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
