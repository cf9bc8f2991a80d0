// attention: causal softmax attention, and its variants. What it computes, and how: kernels/attention.cu
#pragma once
#include "core/context.cuh"
#include "core/math.cuh"

namespace gated {

enum class AttentionScore { softmax, sigmoid };

// {B, T, H, KVH, D} is causal softmax attention over packed arrays. What follows is for its variants.
struct AttentionShape {
  size_t B, T;    // sequences, tokens of each
  size_t H, KVH;  // query heads; key and value heads, each read by H/KVH query heads
  size_t D;       // elements of a head

  size_t window = 0;  // a query sees so many keys, itself included; 0: all up to its own
  AttentionScore score = AttentionScore::softmax;
  float bias = 0;  // of sigmoid

  size_t score_dim = 0;  // scores are divided by its root; 0: by that of D

  // Elements from one token to the next: of q, o and their gradients, of k, v and theirs.
  HD size_t q_step() const { return H * D; }
  HD size_t kv_step() const { return KVH * D; }

  // Where the D elements of a head begin.
  HD size_t q_row(size_t b, size_t t, size_t h) const { return (b * T + t) * q_step() + h * D; }
  HD size_t kv_row(size_t b, size_t t, size_t kv_head) const { return (b * T + t) * kv_step() + kv_head * D; }
  // Where a number of a query lies in an array (B,H,T).
  HD size_t stat(size_t b, size_t h, size_t t) const { return (b * H + h) * T + t; }
  // That number, 0 past the last query. And what the backward subtracts from the scores of a query.
  HD float of_query(const float* stats, size_t b, size_t h, size_t t) const {
    return t < T ? stats[stat(b, h, t)] : 0.0f;
  }
  HD float base_of(const float* lse, size_t b, size_t h, size_t t) const {
    return sigmoid() ? -bias : of_query(lse, b, h, t);
  }

  HD size_t divisor() const { return score_dim ? score_dim : D; }
  HD size_t group() const { return H / KVH; }  // query heads that read one kv head
  HD bool sigmoid() const { return score == AttentionScore::sigmoid; }

  // Query i sees key j where 0 <= i - j < reach(). The difference is unsigned: below 0 it is out of reach.
  HD size_t reach() const { return window && window < T ? window : T; }
  HD bool visible(size_t i, size_t j) const { return i - j < reach(); }
  // So query i sees keys first_key(i) .. i, and key j is seen by queries j .. end_query(j) - 1.
  HD size_t first_key(size_t i) const { return i < reach() ? 0 : i + 1 - reach(); }
  HD size_t end_query(size_t j) const { return reach() < T - j ? j + reach() : T; }
};

// One more position that every query sees, before the first key: a learned logit for every head, or a kv bias
// (kernels/sinks.cu). Without a logit there is none.
template <class Real>
struct SinkOf {
  const Real* logit = nullptr;  // (H): the same for all queries of a head
  bool per_query = false;       // logit is (B,H,T)
  const Real* key = nullptr;    // (H,D), for its share in dq, or null
  const Real* value = nullptr;  // (H,D), or null

  // -inf, whose weight is 0, where there is no sink or no such query.
  HD Real logit_of(const AttentionShape& s, size_t b, size_t h, size_t t) const {
    if (!logit || t >= s.T) return -INFINITY;
    return logit[per_query ? s.stat(b, h, t) : h];
  }
};
using Sink = SinkOf<float>;

// What scores are multiplied by: 1/sqrt(divisor).
template <class Real>
Real attention_scale(size_t divisor) {
  return Real(1) / exact_sqrt(Real(divisor));
}

// o (B,T,H,D) and lse (B,H,T) from q (B,T,H,D), k and v (B,T,KVH,D). All are written whole; nothing may alias.
// Refuses D > 256, H that is no multiple of KVH, and a sink with sigmoid scores.
void attention_forward(float* o, float* lse, const float* q, const float* k, const float* v, const AttentionShape& s,
                       const Sink& sink, Context& ctx);
// Bytes of scratch that it takes; on a CPU for the number of threads that OpenMP has now.
size_t attention_forward_scratch(const AttentionShape& s, Device device);

// dq (B,T,H,D), dk and dv (B,T,KVH,D) are written; o and lse are what the forward wrote. With a sink, sink_p and
// sink_ds (B,H,T), its weight and the gradient of its logit, are written as well.
void attention_backward(float* dq, float* dk, float* dv, float* sink_p, float* sink_ds, const float* dout,
                        const float* q, const float* k, const float* v, const float* o, const float* lse,
                        const AttentionShape& s, const Sink& sink, Context& ctx);
size_t attention_backward_scratch(const AttentionShape& s, Device device);

void attention_require(const char* name, const AttentionShape& s, const Sink& sink);

// ---- references: plain attention is packed and has a key and a value for every query head
template <class Real>
void plain_attention_forward_ref(Real* o, Real* lse, const Real* q, const Real* k, const Real* v, size_t B, size_t T,
                                 size_t H, size_t D);
template <class Real>
void plain_attention_backward_ref(Real* dq, Real* dk, Real* dv, const Real* dout, const Real* q, const Real* k,
                                  const Real* v, const Real* o, const Real* lse, size_t B, size_t T, size_t H,
                                  size_t D);
template <class Real>
void attention_forward_ref(Real* o, Real* lse, const Real* q, const Real* k, const Real* v, const AttentionShape& s,
                           const SinkOf<Real>& sink);
template <class Real>
void attention_backward_ref(Real* dq, Real* dk, Real* dv, Real* sink_p, Real* sink_ds, const Real* dout, const Real* q,
                            const Real* k, const Real* v, const Real* o, const Real* lse, const AttentionShape& s,
                            const SinkOf<Real>& sink);

// ---- the same bits near the speed of a CPU's matrix products: kernels/cpu/attention_cpu.cpp
void attention_forward_cpu(float* o, float* lse, const float* q, const float* k, const float* v,
                           const AttentionShape& s, const Sink& sink, Context& ctx);
void attention_backward_cpu(float* dq, float* dk, float* dv, float* sink_p, float* sink_ds, const float* dout,
                            const float* q, const float* k, const float* v, const float* o, const float* lse,
                            const AttentionShape& s, const Sink& sink, Context& ctx);
size_t attention_forward_cpu_scratch(const AttentionShape& s);
size_t attention_backward_cpu_scratch(const AttentionShape& s);
namespace attention_cpu {
// May a thread own whole kv heads in backward? They cost 5 products a pair instead of 7; but a round of all threads
// takes as long when it is not full.
bool kv_heads_fill_threads(const AttentionShape& s);
}  // namespace attention_cpu

namespace attention {
// How many blocks an SM (a multiprocessor) shall hold at once, where a row has so many columns of sums. It decides how
// many of the SM's 64K registers a thread may have: 128, 168 or 255.
constexpr int blocks_an_sm(int columns) {
  return columns <= 64 ? 4 : columns <= 128 ? 3 : 2;
}
}  // namespace attention

}  // namespace gated
