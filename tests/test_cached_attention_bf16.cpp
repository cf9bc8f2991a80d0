// cached_attention_bf16: a sequence that grows token by token has the rows of attention_bf16 over all of it, bit for
// bit, with rings that wrap, sinks, sigmoid scores and grouped heads.
#include "kernels/decode/cached_attention_bf16.h"

#include "tests/attention_cases.h"

using namespace gated;
using attention_cases::require_grows;

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
    const size_t T = c.tokens;
    require_grows<bf16>(
        c, T, T > 4 ? T - 3 : 1, [&](auto... x) { attention_bf16_forward_ref(x..., c.arithmetic); },
        [](bf16* o, const bf16* q, const bf16* k, const bf16* v, const CachedAttentionShape& s, Sink sink,
           Context& ctx) {
          cached_attention_bf16(o, q, k, v, s, sink, ctx);
          REQUIRE(ctx.most_scratch_used() == attention_bf16_forward_scratch(s.queries(), ctx.device));
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
