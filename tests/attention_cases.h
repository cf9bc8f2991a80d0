// attention_cases: shapes, inputs and outputs that the tests of attention share, of floats and of bf16.
#pragma once
#include "kernels/decode/cached_attention.h"
#include "tests/harness.h"

namespace gated::attention_cases {

inline size_t query_size(const AttentionShape& s) {
  return s.B * s.T * s.H * s.D;
}
inline size_t key_size(const AttentionShape& s) {
  return s.B * s.T * s.KVH * s.D;
}
inline size_t stat_size(const AttentionShape& s) {
  return s.B * s.H * s.T;
}

inline AttentionShape windowed(AttentionShape s, size_t window) {
  s.window = window;
  return s;
}
inline AttentionShape sigmoid(AttentionShape s, float bias) {
  s.score = AttentionScore::sigmoid, s.bias = bias;
  return s;
}

// kv_bias has logits of its own here, not those of its key.
enum class Kind { none, sink, kv_bias };

// Packed arrays, of numbers that S can store.
template <class S>
struct InputsOf {
  AttentionShape s;
  Kind kind;
  std::vector<float> q, k, v, dout, logit, key, value;
  InputsOf(const AttentionShape& s, float scale, Kind kind = Kind::none)
      : s(s),
        kind(kind),
        q(stored<S>(random_values<float>(query_size(s), 1, scale))),
        k(stored<S>(random_values<float>(key_size(s), 2, scale))),
        v(stored<S>(random_values<float>(key_size(s), 3))),
        dout(stored<S>(random_values<float>(query_size(s), 4))),
        logit(random_values<float>(kind == Kind::sink ? s.H : stat_size(s), 5, 2 * scale)),
        key(random_values<float>(s.H * s.D, 6)),
        value(random_values<float>(s.H * s.D, 7)) {}
  Sink position(const float* logit, const float* key, const float* value) const {
    if (kind == Kind::none) return {};
    if (kind == Kind::sink) return {logit};
    return {logit, true, key, value};
  }
};

struct Outputs {
  std::vector<float> o, lse, dq, dk, dv, sink_p, sink_ds;
};

// ---- with a cache

enum class CachedKind { softmax, sigmoid, sink, kv_bias };

struct CachedCase {
  size_t B, H, KVH, D, slots, tokens;
  CachedKind kind;
  size_t score_dim = 0;
  MmaArithmetic arithmetic = usual_mma();  // of bf16

  CachedAttentionShape shape() const {
    CachedAttentionShape s{B, H, KVH, D, slots, tokens};
    s.score_dim = score_dim;
    if (kind == CachedKind::sigmoid) s.score = AttentionScore::sigmoid, s.bias = -1.5f;
    return s;
  }
  Sink sink(const float* logit, const float* value) const {
    if (kind == CachedKind::sink) return {logit};
    if (kind == CachedKind::kv_bias) return {logit, true, nullptr, value};
    return {};
  }
};

}  // namespace gated::attention_cases
