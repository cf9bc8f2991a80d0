// cached_attention: a sequence that grows token by token against attention over all of it, and the CPU's code and the
// kernels against the reference, with rings that wrap, sinks, sigmoid scores and grouped heads.
#include "kernels/decode/cached_attention.h"

#include "tests/attention_cases.h"

using namespace gated;
using attention_cases::require_grows;

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
  for (const Case& c : cases) {
    const size_t T = std::min<size_t>(c.tokens, 80);
    require_grows<float>(
        c, T, (T + 1) / 2, [](auto... x) { attention_forward_ref(x...); }, [](auto&&... x) { cached_attention(x...); });
  }
}

TEST_CASE("cached_attention: the CPU's code and the kernels equal the reference bit for bit", "[bitwise]") {
  for (const Case& c : cases) {
    const CachedAttentionShape s = c.shape();
    INFO(c.text());
    const size_t queries = s.B * s.H * s.D, keys = s.B * s.KVH * s.D;
    for (size_t T : {size_t{1}, std::min(s.slots, s.tokens), s.tokens}) {
      Trial t;
      const auto q = t.random(queries, 1, 3.0f), k = t.random(keys * T, 6, 3.0f), v = t.random(keys * T, 7),
                 logit = t.random(s.B * s.H, 4, 5.0f), value = t.random(s.H * s.D, 5), o = t.out(queries),
                 cached_k = t.sum(random_values<float>(keys * s.slots, 2, 3.0f)), cached_v = t.sum(keys * s.slots, 3);
      cached_attention_store_ref(cached_k.ref, cached_v.ref, k.ref, v.ref, T, s);
      cached_attention_ref(o.ref, q.ref, cached_k.ref, cached_v.ref, s, c.sink(logit.ref, value.ref));
      t.on_every_device([&](Context& ctx) {
        cached_attention_store(cached_k, cached_v, k, v, T, s, ctx);
        cached_attention(o, q, cached_k, cached_v, s, c.sink(logit, value), ctx);
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
