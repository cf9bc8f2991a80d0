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

inline std::string describe(const AttentionShape& s, Kind kind) {
  return format("B %zu T %zu H %zu KVH %zu D %zu window %zu sigmoid %d sink %d", s.B, s.T, s.H, s.KVH, s.D, s.window,
                int(s.sigmoid()), int(kind));
}

// Scales of q and k. Random scores are of a few units, or of some hundred: then weights span all that floats hold,
// denormals and 0 included.
constexpr float plain = 1, large = 9;

// Packed arrays, of numbers that S can store.
template <class S>
struct InputsOf {
  AttentionShape s;
  Kind kind;
  float scale;
  std::vector<float> q = stored<S>(random_values<float>(query_size(s), 1, scale)),
                     k = stored<S>(random_values<float>(key_size(s), 2, scale)),
                     v = stored<S>(random_values<float>(key_size(s), 3)),
                     dout = stored<S>(random_values<float>(query_size(s), 4)),
                     logit = random_values<float>(kind == Kind::sink ? s.H : stat_size(s), 5, 2 * scale),
                     key = random_values<float>(s.H * s.D, 6), value = random_values<float>(s.H * s.D, 7);
  InputsOf(const AttentionShape& s, float scale, Kind kind = Kind::none) : s(s), kind(kind), scale(scale) {}
};

// The reference beside what the program runs.
template <class S>
struct AttentionTrial : Trial {
  const InputsOf<S> x;
  const AttentionShape s = x.s;
  const Kind kind = x.kind;
  const Array<S> q = in<S>(x.q), k = in<S>(x.k), v = in<S>(x.v), dout = in<S>(x.dout), o = out<S>(x.q.size()),
                 dq = out<S>(x.q.size()), dk = out<S>(x.k.size()), dv = out<S>(x.k.size());
  const Array<float> logit = in(x.logit), key = in(x.key), value = in(x.value), lse = out(stat_size(s)),
                     sink_p = of_sink(), sink_ds = of_sink();

  AttentionTrial(const InputsOf<S>& x, Nan nan) : Trial(nan), x(x) {}
  // The extra position, as it is where the arrays are.
  Sink sink() const {
    if (kind == Kind::none) return {};
    if (kind == Kind::sink) return {logit};
    return {logit, true, key, value};
  }
  template <class Forward, class Backward>
  void call(Forward forward, Backward backward) const {
    forward(o, lse, q, k, v, s, sink());
    backward(dq, dk, dv, sink_p, sink_ds, dout, q, k, v, o, lse, s, sink());
  }
  std::vector<std::vector<float>> attention() const {
    return {o.values(), lse.values(), dq.values(), dk.values(), dv.values()};
  }

 private:
  Array<float> of_sink() { return kind == Kind::none ? Array<float>() : out(stat_size(s)); }
};

// No bit of tokens up to t depends on later ones, nor of tokens in a window on what is before it: what these queries do
// not see is `before` or `after`.
template <class Attended, class Inputs>
void hidden_tokens(const Inputs& in, size_t t, float before, float after, Nan nan) {
  const AttentionShape& s = in.s;
  INFO("window " << s.window << " token " << t);
  // Tokens [from, to) of (T, heads, D).
  const auto tokens = [&](const auto& x, size_t from, size_t to) {
    return tokens_of(x.values(), s.B, s.T, from, to - from);
  };
  const auto spoil = [&](std::vector<float>& x, size_t from, size_t to, float with) {
    const size_t row = x.size() / s.T;
    std::fill(x.begin() + ptrdiff_t(from * row), x.begin() + ptrdiff_t(to * row), with);
  };
  // Queries [from, t) may see keys [first_key(from), t) only, keys [t + 1, to) only queries below end_query(to - 1).
  const size_t from = s.window ? t - 1 : 0, to = s.window ? t + 2 : s.T;
  Inputs keys = in, queries = in;
  for (auto* x : {&keys.k, &keys.v}) spoil(*x, 0, s.first_key(from), before), spoil(*x, t, s.T, after);
  for (auto* x : {&queries.q, &queries.dout}) spoil(*x, 0, t + 1, before), spoil(*x, s.end_query(to - 1), s.T, after);
  Attended expected(in), of_keys(keys, nan), of_queries(queries, nan);
  for (const auto& [x, y] : {std::pair(&expected.o, &of_keys.o), {&expected.dq, &of_keys.dq}}) {
    REQUIRE_BITWISE(tokens(*x, from, t), tokens(*y, from, t));
    REQUIRE(tokens(*x, t, s.T) != tokens(*y, t, s.T));
  }
  for (size_t h = 0; h < s.H; h++)
    REQUIRE_BITWISE(std::vector(&expected.lse.ref[h * s.T + from], &expected.lse.ref[h * s.T + t]),
                    std::vector(&of_keys.lse.ref[h * s.T + from], &of_keys.lse.ref[h * s.T + t]));
  for (const auto& [x, y] : {std::pair(&expected.dk, &of_queries.dk), {&expected.dv, &of_queries.dv}})
    REQUIRE_BITWISE(tokens(*x, t + 1, to), tokens(*y, t + 1, to));
  for (Attended* a : {&expected, &of_keys, &of_queries}) a->on_every_device();
}

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
  // Attention over the first T tokens, whose window is the ring.
  AttentionShape whole(size_t T) const {
    const CachedAttentionShape s = shape();
    AttentionShape whole{B, T, H, KVH, D, slots};
    whole.score = s.score, whole.bias = s.bias, whole.score_dim = s.score_dim;
    return whole;
  }
  Sink sink(const float* logit, const float* value) const {
    if (kind == CachedKind::sink) return {logit};
    if (kind == CachedKind::kv_bias) return {logit, true, nullptr, value};
    return {};
  }
  // Of logits (B,H,T), or of a learned sink's H: those of token t.
  std::vector<float> logits_at(const std::vector<float>& logit, size_t t, size_t T) const {
    std::vector<float> now(logit.begin(), logit.begin() + ptrdiff_t(H));
    if (kind != CachedKind::kv_bias) return now;
    now.clear();
    for (size_t bh = 0; bh < B * H; bh++) now.push_back(logit[bh * T + t]);
    return now;
  }
  std::string text() const {
    return format("B %zu H %zu KVH %zu D %zu slots %zu tokens %zu kind %d", B, H, KVH, D, slots, tokens, int(kind));
  }
};

// A sequence whose first tokens come at once, as a prompt, and the others one by one, has the rows of attention over
// all of it. whole(o, lse, q, k, v, shape, sink) is that; cached(o, q, keys, values, shape, sink, ctx) attends once.
template <class S, class Whole, class Cached>
void require_grows(const CachedCase& c, size_t T, size_t prompt, Whole whole, Cached cached) {
  INFO(c.text());
  CachedAttentionShape s = c.shape();
  const size_t queries = s.B * s.H * s.D, keys = s.B * s.KVH * s.D;
  const auto numbers = [](size_t n, uint64_t seed) {
    const std::vector<float> x = random_values<float>(n, seed, 3.0f);
    return std::vector<S>(x.begin(), x.end());
  };
  const std::vector<S> q = numbers(T * queries, 1), k = numbers(T * keys, 2), v = numbers(T * keys, 3);
  const auto value = random_values<float>(s.H * s.D, 5), logit = random_values<float>(s.B * s.H * T, 4, 5.0f);
  std::vector<S> expected(T * queries);
  std::vector<float> lse(s.B * s.H * T);
  whole(expected.data(), lse.data(), q.data(), k.data(), v.data(), c.whole(T), c.sink(logit.data(), value.data()));
  on_every_device([&](Context& ctx) {
    if (!multiplies_as(ctx, c.arithmetic)) return;
    const std::vector<S> nothing(keys * s.slots, S(NAN));
    const Buffer<S> cached_k(ctx.device, nothing), cached_v(ctx.device, nothing);
    for (size_t t = prompt - 1; t < T; t++) {
      INFO("token " << t);
      const size_t n = t < prompt ? prompt : 1;
      s.tokens = t + 1;
      const auto here = [&](const std::vector<S>& x, size_t n) {
        return Buffer<S>(ctx.device, tokens_of(x, s.B, T, t + 1 - n, n));
      };
      const Buffer<S> query = here(q, 1), new_k = here(k, n), new_v = here(v, n);
      const Guarded logits(ctx, c.logits_at(logit, t, T)), values(ctx, value);
      const GuardedOf<S> o(ctx, queries);
      cached_attention_store(cached_k.data(), cached_v.data(), new_k.data(), new_v.data(), n, s, ctx);
      cached(o, query.data(), cached_k.data(), cached_v.data(), s, c.sink(logits, values), ctx);
      const std::vector<S> rows = tokens_of(expected, s.B, T, t, 1);
      REQUIRE_BITWISE(std::vector<float>(rows.begin(), rows.end()), o.download());
    }
  });
}

}  // namespace gated::attention_cases
