// cached_attention_bf16: a sequence that grows token by token has the rows of attention_bf16 over all of it, bit for
// bit, with rings that wrap, sinks, sigmoid scores and grouped heads.
#include "kernels/decode/cached_attention_bf16.h"

#include <algorithm>

#include "tests/attention_cases.h"

using namespace gated;

namespace {

using Case = attention_cases::CachedCase;
using Kind = attention_cases::CachedKind;

}  // namespace

TEST_CASE("cached_attention_bf16: a sequence that grows token by token has the rows of attention over all of it",
          "[cached_attention_bf16][bitwise]") {
  // A ring that wraps inside a tile, and one that is a tile; 20 heads of a group: two blocks of 16; a head wider than
  // 128.
  for (const Case& c :
       {Case{1, 4, 2, 64, 130, 130, Kind::softmax}, Case{2, 2, 1, 16, 20, 70, Kind::softmax},
        Case{1, 20, 1, 32, 70, 66, Kind::kv_bias}, Case{1, 2, 2, 16, 64, 131, Kind::sink, 0, MmaArithmetic::ampere},
        Case{1, 1, 1, 144, 65, 66, Kind::sink}, Case{1, 2, 1, 16, 30, 67, Kind::sigmoid},
        Case{1, 1, 1, 128, 1, 3, Kind::kv_bias, 0, MmaArithmetic::ampere}, Case{1, 1, 1, 128, 1, 3, Kind::kv_bias}}) {
    const size_t T = c.tokens, slots = c.slots;
    INFO(c.text());
    CachedAttentionShape s = c.shape();
    const size_t queries = s.B * s.H * s.D, keys = s.B * s.KVH * s.D;
    const auto q = rounded(random_values<float>(T * queries, 1, 3.0f)),
               k = rounded(random_values<float>(T * keys, 2, 3.0f)),
               v = rounded(random_values<float>(T * keys, 3, 3.0f));
    const auto value = random_values<float>(s.H * s.D, 5), logit = random_values<float>(s.B * s.H * T, 4, 5.0f);
    std::vector<bf16> expected(T * queries);
    std::vector<float> lse(s.B * s.H * T);
    attention_bf16_forward_ref(expected.data(), lse.data(), q.data(), k.data(), v.data(), c.whole(T),
                               c.sink(logit.data(), value.data()), c.arithmetic);
    on_every_device([&](Context& ctx) {
      if (!multiplies_as(ctx, c.arithmetic)) return;
      const std::vector<bf16> nothing(keys * slots, bf16(NAN));
      const Buffer<bf16> cached_k(ctx.device, nothing), cached_v(ctx.device, nothing), o(ctx.device, queries);
      const size_t prompt = T > 4 ? T - 3 : 1;  // the prompt comes whole
      for (size_t t = prompt - 1; t < T; t++) {
        const size_t n = t < prompt ? prompt : 1;
        s.tokens = t + 1;
        const Buffer<bf16> new_k(ctx.device, tokens_of(k, s.B, T, t + 1 - n, n)),
            new_v(ctx.device, tokens_of(v, s.B, T, t + 1 - n, n)), query(ctx.device, tokens_of(q, s.B, T, t, 1));
        const Guarded logits(ctx, c.logits_at(logit, t, T)), values(ctx, value);
        cached_attention_store(cached_k.data(), cached_v.data(), new_k.data(), new_v.data(), n, s, ctx);
        cached_attention_bf16(o.data(), query.data(), cached_k.data(), cached_v.data(), s, c.sink(logits, values), ctx);
        ctx.synchronize();
        INFO("token " << t);
        REQUIRE_BITWISE(widened(tokens_of(expected, s.B, T, t, 1)), widened(o.download()));
        REQUIRE(ctx.most_scratch_used() == cached_attention_bf16_scratch(s, ctx.device));
      }
    });
  }
}

TEST_CASE("cached_attention_bf16: what it refuses", "[cached_attention_bf16]") {
  Context ctx(Device::cpu);
  const auto refused = [&](const CachedAttentionShape& s) {
    REQUIRE_THROWS_WITH(cached_attention_bf16(nullptr, nullptr, nullptr, nullptr, s, {}, ctx),
                        Catch::Contains("cached_attention_bf16: ") && Catch::Contains("expected"));
  };
  refused({1, 2, 1, 24, 3, 2});
  refused({1, 3, 2, 16, 3, 2});
  refused({1, 2, 1, 16, 0, 2});
  refused({1, 2, 1, 16, 3, 0});
  bf16* const none = nullptr;
  REQUIRE_THROWS_WITH(cached_attention_store(none, none, none, none, 3, {1, 2, 1, 16, 3, 2}, ctx),
                      Catch::Contains("3 tokens to store of 2"));
}
