// sinks: a sink and a kv bias through the whole attention against finite differences, the CPU's code and the kernels
// against the reference, and a kv bias against a key that stands before the first.
#include "kernels/sinks.h"

#include "tests/harness.h"

using namespace gated;

TEST_CASE("sinks: gradients through attention against finite differences", "[gradcheck]") {
  AttentionShape s{2, 5, 4, 2, 3};
  for (size_t window : {0, 2})
    for (bool sink : {true, false}) {
      INFO("window " << window << (sink ? ", sink" : ", kv bias"));
      s.window = window;
      s.score_dim = window ? 7 : 0;
      const size_t queries = s.B * s.T * s.H * s.D, keys = queries / s.group(), stats = s.B * s.H * s.T;
      const auto q = random_values<double>(queries, 1, 2.0), k = random_values<double>(keys, 2, 2.0);
      const auto v = random_values<double>(keys, 3), dout = random_values<double>(queries, 4);
      const auto sinks = random_values<double>(s.H, 5, 2.0), key = random_values<double>(s.H * s.D, 6, 2.0);
      const auto value = random_values<double>(s.H * s.D, 7);
      std::vector<double> o(queries), lse(stats), logit(stats);
      using V = const std::vector<double>&;
      auto position = [&](V q, V sinks, V key, V value) -> SinkOf<double> {
        if (sink) return {sinks.data()};
        kv_bias_logits_ref(logit.data(), q.data(), key.data(), s);
        return {logit.data(), true, key.data(), value.data()};
      };
      auto loss = [&](V q, V k, V v, V sinks, V key, V value) {
        attention_forward_ref(o.data(), lse.data(), q.data(), k.data(), v.data(), s, position(q, sinks, key, value));
        return dot(o, dout);
      };
      loss(q, k, v, sinks, key, value);
      std::vector<double> dq(queries), dk(keys), dv(keys), p(stats), ds(stats), dsink(s.H), dkey(s.H * s.D),
          dvalue(s.H * s.D);
      attention_backward_ref(dq.data(), dk.data(), dv.data(), p.data(), ds.data(), dout.data(), q.data(), k.data(),
                             v.data(), o.data(), lse.data(), s, position(q, sinks, key, value));
      check_gradient(
          "q", [&](auto& x) { return loss(x, k, v, sinks, key, value); }, q, dq);
      check_gradient(
          "k", [&](auto& x) { return loss(q, x, v, sinks, key, value); }, k, dk);
      check_gradient(
          "v", [&](auto& x) { return loss(q, k, x, sinks, key, value); }, v, dv);
      if (sink) {
        sink_backward_ref(dsink.data(), ds.data(), s.B, s.T, s.H);
        check_gradient(
            "sink", [&](auto& x) { return loss(q, k, v, x, key, value); }, sinks, dsink);
      } else {
        kv_bias_backward_ref(dkey.data(), dvalue.data(), p.data(), ds.data(), q.data(), dout.data(), s);
        check_gradient(
            "key", [&](auto& x) { return loss(q, k, v, sinks, x, value); }, key, dkey);
        check_gradient(
            "value", [&](auto& x) { return loss(q, k, v, sinks, key, x); }, value, dvalue);
      }
    }
}

template <class S>
static void require_sinks_bits(size_t B, size_t T, size_t H, size_t D, size_t score_dim) {
  INFO("B " << B << " T " << T << " H " << H << " D " << D << ", " << name_of(storage_of<S>));
  AttentionShape s{B, T, H, H, D};
  s.score_dim = score_dim;
  const size_t stats = B * H * T;
  const auto q = stored<S>(random_values<float>(B * T * s.q_step(), 1, 2.0f));
  const auto dout = stored<S>(random_values<float>(B * T * s.q_step(), 2));
  const auto p = random_values<float>(stats, 3), ds = random_values<float>(stats, 4);
  const auto key = random_values<float>(H * D, 5, 2.0f), dkey0 = random_values<float>(H * D, 6);
  const auto dvalue0 = random_values<float>(H * D, 7), dsink0 = random_values<float>(H, 8);
  std::vector<float> logit(stats, NAN), dkey = dkey0, dvalue = dvalue0, dsink = dsink0;
  kv_bias_logits_ref(logit.data(), q.data(), key.data(), s);
  kv_bias_backward_ref(dkey.data(), dvalue.data(), p.data(), ds.data(), q.data(), dout.data(), s);
  sink_backward_ref(dsink.data(), ds.data(), B, T, H);
  on_every_device([&](Context& ctx) {
    GuardedOf<S> gq(ctx, q), gdout(ctx, dout);
    Guarded gp(ctx, p), gds(ctx, ds), gkey(ctx, key);
    Guarded glogit(ctx, stats), gdkey(ctx, dkey0), gdvalue(ctx, dvalue0), gdsink(ctx, dsink0);
    kv_bias_logits(glogit, gq, gkey, s, ctx);
    sink_backward(gdsink, gds, B, T, H, ctx);
    if (ctx.device != Device::cpu) REQUIRE(ctx.most_scratch_used() == sink_backward_scratch(B, T, H));
    kv_bias_backward(gdkey, gdvalue, gp, gds, gq, gdout, s, ctx);
    if (ctx.device != Device::cpu) REQUIRE(ctx.most_scratch_used() == kv_bias_backward_scratch(s));
    REQUIRE_BITWISE(logit, glogit.download());
    REQUIRE_BITWISE(dkey, gdkey.download());
    REQUIRE_BITWISE(dvalue, gdvalue.download());
    REQUIRE_BITWISE(dsink, gdsink.download());
  });
}

TEST_CASE("sinks: the CPU's code and the kernels equal the reference bit for bit", "[bitwise]") {
  const struct {
    size_t B, T, H, D, score_dim;
  } sizes[] = {{2, 63, 3, 8, 0}, {1, 1, 1, 1, 0}, {3, 50, 2, 33, 0}, {1, 7, 2, 256, 0}, {2, 70, 2, 4, 7}},
    of_bf16[] = {{2, 63, 3, 8, 0}, {1, 7, 2, 33, 0}, {2, 70, 2, 4, 7}};
  for (auto [B, T, H, D, score_dim] : sizes) require_sinks_bits<float>(B, T, H, D, score_dim);
  for (auto [B, T, H, D, score_dim] : of_bf16) require_sinks_bits<bf16>(B, T, H, D, score_dim);
}

TEST_CASE("sinks: a kv bias is a key before the first", "[bitwise]") {
  // Attention over one more token, whose key and value are k' and v' and whose own query nobody asks for.
  // 1/sqrt(D) is a power of two and the rows are one slice of a column, so even dkey has the bits of dk.
  const AttentionShape s{1, 70, 2, 2, 16}, longer{1, s.T + 1, s.H, s.KVH, s.D};
  const size_t row = s.H * s.D, n = s.T * row;
  const auto q = random_values<float>(n + row, 1, 2.0f), k = random_values<float>(n + row, 2, 2.0f);
  const auto v = random_values<float>(n + row, 3);
  auto dout = random_values<float>(n + row, 4);
  std::fill_n(dout.begin(), row, 0.0f);
  auto first = [&](const std::vector<float>& x) { return std::vector(x.begin(), x.begin() + row); };
  auto others = [&](const std::vector<float>& x) { return std::vector(x.begin() + row, x.end()); };

  std::vector<float> o(n + row), lse(s.H * longer.T), dq(n + row), dk(n + row), dv(n + row);
  plain_attention_forward_ref(o.data(), lse.data(), q.data(), k.data(), v.data(), 1, longer.T, s.H, s.D);
  plain_attention_backward_ref(dq.data(), dk.data(), dv.data(), dout.data(), q.data(), k.data(), v.data(), o.data(),
                               lse.data(), 1, longer.T, s.H, s.D);
  on_every_device([&](Context& ctx) {
    Guarded gq(ctx, others(q)), gk(ctx, others(k)), gv(ctx, others(v)), gdout(ctx, others(dout));
    Guarded key(ctx, first(k)), value(ctx, first(v)), logit(ctx, s.H * s.T), go(ctx, n), glse(ctx, s.H * s.T);
    Guarded gdq(ctx, n), gdk(ctx, n), gdv(ctx, n), p(ctx, s.H * s.T), ds(ctx, s.H * s.T);
    const std::vector<float> zeros(row);
    Guarded dkey(ctx, zeros), dvalue(ctx, zeros);
    kv_bias_logits(logit, gq, key, s, ctx);
    const Sink bias{logit, true, key, value};
    attention_forward(go, glse, gq, gk, gv, s, bias, ctx);
    attention_backward(gdq, gdk, gdv, p, ds, gdout, gq, gk, gv, go, glse, s, bias, ctx);
    kv_bias_backward(dkey, dvalue, p, ds, gq, gdout, s, ctx);
    REQUIRE_BITWISE(others(o), go.download());
    REQUIRE_BITWISE(others(dq), gdq.download());
    REQUIRE_BITWISE(others(dk), gdk.download());
    REQUIRE_BITWISE(others(dv), gdv.download());
    REQUIRE_BITWISE(first(dk), dkey.download());
    REQUIRE_BITWISE(first(dv), dvalue.download());
  });
}
