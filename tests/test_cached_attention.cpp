// cached_attention: a sequence that grows token by token against attention over all of it, and the CPU's code and the kernels
// against the reference, with rings that wrap, sinks, sigmoid scores and grouped heads.
#include "kernels/decode/cached_attention.h"

#include "tests/attention_cases.h"

using namespace gated;

namespace {

using Case = attention_cases::CachedCase;
using Kind = attention_cases::CachedKind;

// (D 70: four vectors and a rest that is no vector; 1 slot: a query that sees itself alone)
const std::vector<Case> cases = {
    {1, 1, 1, 1, 1, 1, Kind::softmax},      {2, 4, 2, 6, 9, 5, Kind::softmax},     {1, 2, 2, 64, 70, 70, Kind::softmax},
    {2, 3, 1, 16, 17, 18, Kind::softmax},   {1, 2, 1, 70, 33, 100, Kind::softmax}, {1, 1, 1, 256, 5, 4, Kind::softmax},
    {2, 2, 2, 8, 1, 7, Kind::softmax},      {1, 2, 2, 33, 40, 63, Kind::sigmoid},  {2, 4, 2, 6, 9, 5, Kind::sigmoid},
    {2, 4, 1, 7, 20, 31, Kind::sink},       {1, 2, 2, 12, 300, 299, Kind::sink},   {2, 4, 2, 6, 4, 9, Kind::kv_bias},
    {1, 3, 3, 32, 290, 600, Kind::kv_bias}, {2, 4, 2, 6, 9, 12, Kind::kv_bias, 11}};

}  // namespace

TEST_CASE("cached_attention: a sequence that grows token by token has the rows of attention over all of it",
          "[bitwise]") {
  for (Case c : cases) {
    const size_t T = std::min<size_t>(c.tokens, 80), slots = c.slots;
    INFO("H " << c.H << " D " << c.D << " slots " << slots << " tokens " << T << " kind " << int(c.kind));
    CachedAttentionShape s = c.shape();
    AttentionShape whole{s.B, T, s.H, s.KVH, s.D, slots};
    whole.score = s.score, whole.bias = s.bias, whole.score_dim = s.score_dim;
    const size_t queries = s.B * s.H * s.D, keys = s.B * s.KVH * s.D;
    const auto q = random_values<float>(T * queries, 1, 3.0f), k = random_values<float>(T * keys, 2, 3.0f);
    const auto v = random_values<float>(T * keys, 3), value = random_values<float>(s.H * s.D, 5);
    const auto logit = random_values<float>(s.B * s.H * T, 4, 5.0f);
    std::vector<float> expected(T * queries), lse(s.B * s.H * T);
    attention_forward_ref(expected.data(), lse.data(), q.data(), k.data(), v.data(), whole,
                          c.sink(logit.data(), value.data()));

    // The tokens of all sequences at one time, as a step of generation has them.
    const auto tokens_of = [&](const std::vector<float>& x, size_t t, size_t n) {
      const size_t width = x.size() / s.B / T;
      std::vector<float> rows;
      for (size_t b = 0; b < s.B; b++) {
        const auto from = x.begin() + ptrdiff_t((b * T + t) * width);
        rows.insert(rows.end(), from, from + ptrdiff_t(n * width));
      }
      return rows;
    };
    const size_t prompt = (T + 1) / 2;
    std::vector<float> cached_k(keys * slots, NAN), cached_v(keys * slots, NAN), o(queries);
    for (size_t t = prompt - 1; t < T; t++) {
      const size_t n = t < prompt ? prompt : 1;  // the prompt comes whole
      s.tokens = t + 1;
      cached_attention_store_ref(cached_k.data(), cached_v.data(), tokens_of(k, t + 1 - n, n).data(),
                                 tokens_of(v, t + 1 - n, n).data(), n, s);
      std::vector<float> now(logit.begin(), logit.begin() + ptrdiff_t(s.H));  // of a learned sink
      if (c.kind == Kind::kv_bias) {
        now.clear();
        for (size_t bh = 0; bh < s.B * s.H; bh++) now.push_back(logit[bh * T + t]);
      }
      cached_attention_ref(o.data(), tokens_of(q, t, 1).data(), cached_k.data(), cached_v.data(), s,
                           c.sink(now.data(), value.data()));
      INFO("token " << t);
      REQUIRE_BITWISE(tokens_of(expected, t, 1), o);
    }
  }
}

TEST_CASE("cached_attention: the CPU's code and the kernels equal the reference bit for bit", "[bitwise]") {
  for (const Case& c : cases) {
    const CachedAttentionShape s = c.shape();
    INFO("B " << s.B << " H " << s.H << " KVH " << s.KVH << " D " << s.D << " slots " << s.slots << " tokens "
              << s.tokens << " kind " << int(c.kind));
    const size_t queries = s.B * s.H * s.D, keys = s.B * s.KVH * s.D;
    const auto q = random_values<float>(queries, 1, 3.0f), keys0 = random_values<float>(keys * s.slots, 2, 3.0f);
    const auto values0 = random_values<float>(keys * s.slots, 3), logit = random_values<float>(s.B * s.H, 4, 5.0f);
    const auto value = random_values<float>(s.H * s.D, 5);
    for (size_t T : {size_t{1}, std::min(s.slots, s.tokens), s.tokens}) {
      const auto k = random_values<float>(keys * T, 6, 3.0f), v = random_values<float>(keys * T, 7);
      std::vector<float> keys1 = keys0, values1 = values0, o(queries, NAN);
      cached_attention_store_ref(keys1.data(), values1.data(), k.data(), v.data(), T, s);
      cached_attention_ref(o.data(), q.data(), keys1.data(), values1.data(), s, c.sink(logit.data(), value.data()));
      on_every_device([&](Context& ctx) {
        Guarded gq(ctx, q), gk(ctx, k), gv(ctx, v), gkeys(ctx, keys0), gvalues(ctx, values0);
        Guarded glogit(ctx, logit), gvalue(ctx, value), go(ctx, queries);
        cached_attention_store(gkeys, gvalues, gk, gv, T, s, ctx);
        REQUIRE_BITWISE(keys1, gkeys.download());
        REQUIRE_BITWISE(values1, gvalues.download());
        cached_attention(go, gq, gkeys, gvalues, s, c.sink(glogit, gvalue), ctx);
        REQUIRE_BITWISE(o, go.download());
      });
    }
  }
}

TEST_CASE("cached_attention: sizes that cannot work are refused", "[errors]") {
  Context ctx(Device::cpu);
  float x[64] = {};
  const CachedAttentionShape good{1, 2, 1, 4, 3, 2};
  REQUIRE_NOTHROW(cached_attention(x, x + 32, x, x + 16, good, {}, ctx));
  const auto refused = [&](CachedAttentionShape s, size_t T) {
    REQUIRE_THROWS_AS(cached_attention_store(x, x, x, x, T, s, ctx), Error);
  };
  refused(good, 0);
  refused(good, 3);
  refused({1, 2, 1, 4, 0, 2}, 1);
  refused({1, 3, 2, 4, 3, 2}, 1);
  refused({1, 1, 1, 257, 3, 2}, 1);
  REQUIRE_THROWS_AS(cached_attention(x, x, x, x, {1, 2, 1, 4, 3, 0}, {}, ctx), Error);
}
