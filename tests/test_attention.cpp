// attention: the references against finite differences and each other, the CPU's tuned twin and the kernels against the
// reference, and what windows, sigmoid scores and sinks promise.
#include "kernels/attention.h"

#include "tests/attention_cases.h"
#include "tests/refusal.h"

using namespace gated;
using namespace gated::attention_cases;

namespace {

AttentionShape divided(AttentionShape s, size_t score_dim) {
  s.score_dim = score_dim;
  return s;
}
using Inputs = InputsOf<float>;

struct Attended : AttentionTrial<float> {
  explicit Attended(const Inputs& in, Nan nan = Nan::refused) : AttentionTrial(in, nan) {
    reference([&] { call(attention_forward_ref<float>, attention_backward_ref<float>); });
  }
  void run(Context& ctx) const {
    call([&](const auto&... x) { attention_forward(x..., ctx); },
         [&](const auto&... x) {
           REQUIRE(ctx.most_scratch_used() == attention_forward_scratch(s, ctx.device));
           attention_backward(x..., ctx);
         });
    REQUIRE(ctx.most_scratch_used() ==
            std::max(attention_forward_scratch(s, ctx.device), attention_backward_scratch(s, ctx.device)));
  }
  void on_every_device() {
    Trial::on_every_device([&](Context& ctx) { run(ctx); });
  }
};

}  // namespace

// (Those of plain attention are the first case: its reference has the bits of the general one, below.)
TEST_CASE("attention: gradients of it and its variants against finite differences", "[gradcheck]") {
  const AttentionShape plain{1, 7, 4, 2, 5}, bounded = windowed(plain, 3);
  const std::pair<AttentionShape, bool> cases[] = {
      {plain, false}, {bounded, false}, {sigmoid(plain, -1.5), false}, {sigmoid(bounded, -1.5), false},
      {plain, true},  {bounded, true},  {divided(plain, 3), true},     {divided(sigmoid(bounded, -1.5), 9), false}};
  for (const auto& [shape, sink] : cases) {
    const auto& s = shape;  // (clang++ 14: a lambda captures no binding)
    INFO("window " << s.window << " sigmoid " << s.sigmoid() << " sink " << sink);
    auto q = random_values<double>(query_size(s), 1, 2.0), k = random_values<double>(key_size(s), 2, 2.0),
         v = random_values<double>(key_size(s), 3), logit = random_values<double>(stat_size(s), 5, 2.0);
    const auto dout = random_values<double>(query_size(s), 4), value = random_values<double>(s.H * s.D, 6);
    std::vector<double> o(q.size()), lse(stat_size(s)), dq(q.size()), dk(k.size()), dv(k.size()), sink_p(lse.size()),
        sink_ds(lse.size());
    const SinkOf<double> position = sink ? SinkOf<double>{logit.data(), true, nullptr, value.data()} : SinkOf<double>{};
    const auto loss = [&] {
      attention_forward_ref(o.data(), lse.data(), q.data(), k.data(), v.data(), s, position);
      return dot(o, dout);
    };
    loss();
    attention_backward_ref(dq.data(), dk.data(), dv.data(), sink_p.data(), sink_ds.data(), dout.data(), q.data(),
                           k.data(), v.data(), o.data(), lse.data(), s, position);
    check_gradients(loss, {{"q", q, dq}, {"k", k, dk}, {"v", v, dv}});
    if (sink) check_gradients(loss, {{"logit", logit, sink_ds}});
  }
}

TEST_CASE("attention: plain attention has the same bits from every reference and every call", "[bitwise]") {
  for (const Inputs& in : {Inputs({2, 66, 3, 3, 16}, plain), Inputs({1, 40, 2, 2, 5}, large)}) {
    Attended t(in);
    const AttentionShape& s = in.s;
    const std::vector<std::vector<float>> general = t.attention();
    t.reference([&] {
      plain_attention_forward_ref<float>(t.o, t.lse, t.q, t.k, t.v, s.B, s.T, s.H, s.D);
      plain_attention_backward_ref<float>(t.dq, t.dk, t.dv, t.dout, t.q, t.k, t.v, t.o, t.lse, s.B, s.T, s.H, s.D);
    });
    require_same(general, t.attention());
    t.on_every_device();
  }
}

TEST_CASE("attention: the CPU twin and the kernels equal the reference bit for bit", "[bitwise]") {
  const Inputs cases[] = {{{1, 63, 2, 1, 64}, plain},
                          {{1, 130, 3, 1, 20}, large},
                          {{2, 1, 2, 2, 7}, plain, Kind::kv_bias},
                          {{2, 9, 1, 1, 130}, plain, Kind::sink},
                          {{1, 66, 4, 2, 33}, plain, Kind::kv_bias},
                          {{1, 65, 1, 1, 128}, plain},
                          {{1, 20, 2, 1, 101}, plain},
                          {{3, 17, 6, 2, 1}, large, Kind::kv_bias},
                          {{1, 65, 1, 1, 256}, plain, Kind::kv_bias},
                          {windowed({1, 200, 1, 1, 8}, 70), plain},
                          {windowed({1, 131, 2, 2, 12}, 64), large, Kind::sink},
                          {windowed({1, 70, 1, 1, 8}, 63), plain},
                          {windowed({2, 130, 1, 1, 5}, 3), plain, Kind::kv_bias},
                          {sigmoid({1, 66, 4, 2, 33}, -4.25f), plain},
                          {sigmoid({2, 63, 1, 1, 16}, 0), large},
                          {divided({1, 66, 4, 2, 33}, 20), plain, Kind::kv_bias},
                          {sigmoid(windowed({1, 131, 2, 1, 8}, 17), -1), plain},
                          {{3, 65, 4, 2, 8}, plain},
                          {windowed({1, 130, 1, 1, 4}, 9), plain}};
  for (const Inputs& in : cases) {
    INFO(describe(in.s, in.kind));
    Attended(in).on_every_device();
  }
}

TEST_CASE("attention: no bit depends on what a query does not see", "[bitwise]") {
  for (auto [window, t] : {std::pair<size_t, size_t>{0, 1}, {0, 70}, {9, 65}})
    hidden_tokens<Attended>(Inputs(windowed({1, 80, 2, 1, 12}, window), plain, Kind::kv_bias), t, NAN, INFINITY,
                            Nan::expected);
}

TEST_CASE("attention: a window of the whole sequence or more is full attention", "[bitwise]") {
  const AttentionShape s{1, 66, 1, 1, 4};
  const Attended expected(Inputs(s, plain));
  for (size_t window : {s.T, SIZE_MAX}) {
    Attended t(Inputs(windowed(s, window), plain));
    require_same(expected.attention(), t.attention());
    t.on_every_device();
  }
}

TEST_CASE("attention: a sink with logit -inf is none", "[bitwise]") {
  for (Kind kind : {Kind::sink, Kind::kv_bias}) {
    const AttentionShape s = windowed({1, 66, 2, 1, 4}, kind == Kind::sink ? 0 : 5);
    Inputs in(s, plain, kind);
    std::fill(in.logit.begin(), in.logit.end(), -INFINITY);
    Attended t(in);
    require_same(Attended(Inputs(s, plain)).attention(), t.attention());
    REQUIRE_BITWISE(std::vector<float>(stat_size(s), 0.0f), t.sink_p.values());
    t.on_every_device();
  }
}

TEST_CASE("attention: a hidden key does not turn -0 into +0", "[bitwise]") {
  // Key 0 takes p = 1 and adds 0; the next have p = 1/e and v = -2^-149, whose product rounds to -0. So o is
  // -0 until the keys of the second half, with v = 1, are seen; a hidden one of weight 0 would make it +0.
  const AttentionShape s{1, 70, 1, 1, 4};
  Inputs in(s, plain);
  for (size_t t = 0; t < s.T; t++)
    for (size_t d = 0; d < s.D; d++) {
      in.q[t * s.D + d] = d == 0;
      in.k[t * s.D + d] = t > 0 && d == 0 ? -2 : 0;
      in.v[t * s.D + d] = t == 0 ? 0.0f : t < s.T / 2 ? -0x1p-149f : 1.0f;
    }
  Attended t(in);
  for (size_t i = s.D; i < s.T / 2 * s.D; i++) REQUIRE((t.o.ref[i] == 0 && std::signbit(t.o.ref[i])));
  t.on_every_device();
}

TEST_CASE("attention: what it refuses", "[refusal]") {
  Context ctx(Device::cpu);
  auto refused = [&](const AttentionShape& s, const Sink& sink = {}) {
    float* const no = nullptr;
    return refusal_of_both([&] { attention_forward(no, no, no, no, no, s, sink, ctx); },
                           [&] { attention_backward(no, no, no, no, no, no, no, no, no, no, no, s, sink, ctx); });
  };
  REQUIRE(refused({0, 8, 6, 2, 256}) == "");
  REQUIRE(refused({0, 8, 6, 4, 64}) ==
          "attention_forward: 6 query heads over 4 kv heads, expected a multiple of the kv heads");
  REQUIRE(refused({0, 8, 2, 0, 64}) ==
          "attention_forward: 2 query heads over 0 kv heads, expected a multiple of the kv heads");
  REQUIRE(refused({0, 8, 2, 2, 257}) == "attention_forward: head dimension 257, expected at most 256; use more heads");
  REQUIRE(refused({0, 0, 2, 2, 64}) == "attention_forward: 0 tokens of head dimension 64, expected at least 1 of each");
  const float one = 1;
  REQUIRE(refused({0, 8, 1, 1, 1}, {&one}) == "");
  REQUIRE(refused({0, 8, 1, 1, 1}, {nullptr, false, nullptr, &one}) ==
          "attention_forward: a sink's key or value without its logit");
  REQUIRE(refused(sigmoid({0, 8, 1, 1, 1}, 0), {&one}) ==
          "attention_forward: a sink with sigmoid scores, expected softmax: nothing else competes with it");
}
