// sinks: a sink and a kv bias through the whole attention against finite differences, the CPU's code and the kernels
// against the reference.
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
      auto q = random_values<double>(queries, 1, 2.0), k = random_values<double>(keys, 2, 2.0),
           v = random_values<double>(keys, 3), sinks = random_values<double>(s.H, 5, 2.0),
           key = random_values<double>(s.H * s.D, 6, 2.0), value = random_values<double>(s.H * s.D, 7);
      const auto dout = random_values<double>(queries, 4);
      std::vector<double> o(queries), lse(stats), logit(stats), dq(queries), dk(keys), dv(keys), p(stats), ds(stats),
          dsink(s.H), dkey(s.H * s.D), dvalue(s.H * s.D);
      const SinkOf<double> position =
          sink ? SinkOf<double>{sinks.data()} : SinkOf<double>{logit.data(), true, key.data(), value.data()};
      const auto loss = [&] {
        if (!sink) kv_bias_logits_ref(logit.data(), q.data(), key.data(), s);
        attention_forward_ref(o.data(), lse.data(), q.data(), k.data(), v.data(), s, position);
        return dot(o, dout);
      };
      loss();
      attention_backward_ref(dq.data(), dk.data(), dv.data(), p.data(), ds.data(), dout.data(), q.data(), k.data(),
                             v.data(), o.data(), lse.data(), s, position);
      sink_backward_ref(dsink.data(), ds.data(), s.B, s.T, s.H);
      kv_bias_backward_ref(dkey.data(), dvalue.data(), p.data(), ds.data(), q.data(), dout.data(), s);
      check_gradients(loss, {{"q", q, dq}, {"k", k, dk}, {"v", v, dv}});
      if (sink) check_gradients(loss, {{"sink", sinks, dsink}});
      if (!sink) check_gradients(loss, {{"key", key, dkey}, {"value", value, dvalue}});
    }
}

template <class S>
static void require_sinks_bits(size_t B, size_t T, size_t H, size_t D, size_t score_dim) {
  INFO("B " << B << " T " << T << " H " << H << " D " << D << ", " << name_of(storage_of<S>));
  AttentionShape s{B, T, H, H, D};
  s.score_dim = score_dim;
  const size_t stats = B * H * T;
  Trial t;
  const auto q = t.random<S>(B * T * s.q_step(), 1, 2.0f), dout = t.random<S>(B * T * s.q_step(), 2);
  const auto p = t.random(stats, 3), ds = t.random(stats, 4), key = t.random(H * D, 5, 2.0f), logit = t.out(stats),
             dkey = t.sum(H * D, 6), dvalue = t.sum(H * D, 7), dsink = t.sum(H, 8);
  kv_bias_logits_ref(logit.ref, q.ref, key.ref, s);
  kv_bias_backward_ref(dkey.ref, dvalue.ref, p.ref, ds.ref, q.ref, dout.ref, s);
  sink_backward_ref(dsink.ref, ds.ref, B, T, H);
  t.on_every_device([&](Context& ctx) {
    kv_bias_logits(logit, q, key, s, ctx);
    sink_backward(dsink, ds, B, T, H, ctx);
    if (ctx.device != Device::cpu) REQUIRE(ctx.most_scratch_used() == sink_backward_scratch(B, T, H));
    kv_bias_backward(dkey, dvalue, p, ds, q, dout, s, ctx);
    if (ctx.device != Device::cpu) REQUIRE(ctx.most_scratch_used() == kv_bias_backward_scratch(s));
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
