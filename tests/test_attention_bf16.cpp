// attention_bf16: the reference against attention in double; the CPU's code and the kernels against the reference, bit
// for bit; and what windows, sigmoid scores and sinks promise.
#include "kernels/bf16/attention_bf16.h"

#include <algorithm>

#include "tests/attention_cases.h"
#include "tests/fixtures.h"
#include "tests/refusal.h"

using namespace gated;
using namespace gated::attention_cases;

namespace {

using Inputs = InputsOf<bf16>;

struct Attended : AttentionTrial<bf16> {
  explicit Attended(const Inputs& in, Nan nan = Nan::refused, MmaArithmetic arithmetic = usual_mma())
      : AttentionTrial(in, nan), arithmetic(arithmetic) {
    reference([&] {
      call([&](const auto&... x) { attention_bf16_forward_ref(x..., arithmetic); },
           [&](const auto&... x) { attention_bf16_backward_ref(x..., arithmetic); });
    });
  }
  void on_every_device() {
    Trial::on_every_device(arithmetic, [&](Context& ctx) {
      call([&](const auto&... x) { attention_bf16_forward(x..., ctx); },
           [&](const auto&... x) { attention_bf16_backward(x..., ctx); });
      REQUIRE(ctx.most_scratch_used() ==
              std::max(attention_bf16_forward_scratch(s, ctx.device), attention_bf16_backward_scratch(s, ctx.device)));
    });
  }
  const MmaArithmetic arithmetic;
};

// What attention in double makes of the inputs, as floats: o, lse, dq, dk, dv, sink_p, sink_ds.
std::vector<std::vector<float>> in_double(const Inputs& in) {
  const auto wide = [](const std::vector<float>& x) { return std::vector<double>(x.begin(), x.end()); };
  const auto q = wide(in.q), k = wide(in.k), v = wide(in.v), dout = wide(in.dout), logit = wide(in.logit),
             key = wide(in.key), value = wide(in.value);
  SinkOf<double> sink;
  if (in.kind != Kind::none) sink.logit = logit.data(), sink.per_query = in.kind == Kind::kv_bias;
  if (in.kind == Kind::kv_bias) sink.key = key.data(), sink.value = value.data();
  std::vector<double> o(q.size()), lse(stat_size(in.s)), dq(q.size()), dk(k.size()), dv(k.size()),
      sink_p(sink.logit ? lse.size() : 0), sink_ds(sink_p.size());
  attention_forward_ref(o.data(), lse.data(), q.data(), k.data(), v.data(), in.s, sink);
  attention_backward_ref(dq.data(), dk.data(), dv.data(), sink_p.data(), sink_ds.data(), dout.data(), q.data(),
                         k.data(), v.data(), o.data(), lse.data(), in.s, sink);
  std::vector<std::vector<float>> all;
  for (const auto* x : {&o, &lse, &dq, &dk, &dv, &sink_p, &sink_ds}) all.emplace_back(x->begin(), x->end());
  return all;
}

}  // namespace

TEST_CASE("attention_bf16: the reference is attention", "[attention_bf16]") {
  for (const Inputs& in : {Inputs({1, 130, 2, 1, 32}, 2), Inputs(windowed({1, 130, 1, 1, 16}, 20), 2, Kind::sink),
                           Inputs({2, 66, 2, 2, 16}, 2, Kind::kv_bias), Inputs(sigmoid({1, 70, 2, 1, 16}, -3), 2)}) {
    INFO(describe(in.s, in.kind));
    const Attended attended(in);
    auto got = attended.attention();
    for (const auto& x : {attended.sink_p, attended.sink_ds})
      if (in.kind != Kind::none) got.push_back(x.values());
    const auto truth = in_double(in);
    // In bf16 the last bit is 2^-8 of a number: what is rounded once is off by 2^-9 of itself.
    const double bounds[] = {1.0 / 256, 1e-6, 1.0 / 128, 1.0 / 128, 1.0 / 128, 1e-6, 1.0 / 128};
    for (size_t i = 0; i < got.size(); i++) {
      INFO("array " << i);
      REQUIRE(relative_error(truth[i], got[i]) < bounds[i]);
    }
  }
}

// The errors are 2-norms over all of an array, relative to attention in double.
TEST_CASE("attention_bf16: errs at most half as much again as PyTorch's attention in bf16", "[attention_bf16]") {
  const json fixture = read_fixtures("bf16.json").at("attention");
  const AttentionShape s{1, fixture.at("T"), fixture.at("heads"), fixture.at("kv_heads"), fixture.at("D")};
  Inputs in(s, plain);
  for (const auto& [x, name, scale] :
       {std::tuple(&in.q, "q", 2.0f), {&in.k, "k", 2}, {&in.v, "v", 1}, {&in.dout, "dout", 1}})
    *x = stored<bf16>(values_of<float>(std::string("attention_bf16 ") + name, x->size(), scale));
  const auto truth = in_double(in), got = Attended(in).attention();
  for (const auto& [i, name] : {std::pair(0, "o"), {2, "dq"}, {3, "dk"}, {4, "dv"}}) {
    const double theirs = fixture.at(name), ours = norm_error(truth[size_t(i)], got[size_t(i)]);
    INFO(name << ": " << ours << ", PyTorch " << theirs);
    REQUIRE(ours <= 1.5 * theirs);
  }
}

TEST_CASE("attention_bf16: the online softmax by hand", "[attention_bf16]") {
  // Scores 0 of 64 keys, then one of 128: the second tile raises the maximum by 128, and e^-128 of what was is nothing
  // beside its own weight of 1. Had the first tile's sums stayed as they were, o would be 64 times the first value and
  // more.
  const AttentionShape s{1, 65, 1, 1, 16};
  Inputs in(s, 1);
  for (size_t t = 0; t < s.T; t++)
    for (size_t d = 0; d < s.D; d++) {
      in.q[t * s.D + d] = d == 0 ? 32 : 0;
      in.k[t * s.D + d] = t == 64 && d == 0 ? 16 : 0;
      in.v[t * s.D + d] = t == 64 ? -3 : 2;
    }
  const Attended got(in);
  for (size_t d = 0; d < s.D; d++) {
    REQUIRE(got.o.ref[63 * s.D + d] == 2);
    REQUIRE(got.o.ref[64 * s.D + d] == -3);
  }
  REQUIRE(got.lse.ref[0] == 0);
  REQUIRE(got.lse.ref[63] == exact_log(64.0f));
  REQUIRE(got.lse.ref[64] == 128);
}

TEST_CASE("attention_bf16: the CPU's code and the kernels have the bits of the reference",
          "[attention_bf16][bitwise]") {
  const SharedLimit of_a_block(shared_limit_sm_90);  // heads of 256 by whole tiles
  const Inputs cases[] = {
      {{1, 130, 2, 1, 16}, plain},
      {{2, 63, 2, 2, 32}, large, Kind::sink},
      {{1, 65, 3, 1, 64}, plain, Kind::kv_bias},
      {{1, 65, 1, 1, 128}, plain},
      // whole tiles of 64 tokens: a kernel of its own
      {{2, 192, 4, 2, 64}, plain, Kind::kv_bias},
      {{2, 64, 2, 2, 64}, large, Kind::sink},
      {windowed({1, 448, 1, 1, 64}, 330), plain},
      {sigmoid(windowed({1, 256, 1, 1, 64}, 70), -2), plain},
      {{1, 192, 3, 1, 128}, plain, Kind::kv_bias},
      {windowed({2, 128, 1, 1, 128}, 64), large},
      {{1, 192, 2, 1, 256}, plain, Kind::kv_bias},
      {windowed({1, 128, 1, 1, 256}, 70), large, Kind::sink},
      {{1, 17, 1, 1, 256}, plain, Kind::kv_bias},
      {windowed({1, 66, 1, 1, 144}, 30), large, Kind::sink},
      {windowed({1, 130, 1, 1, 16}, 33), plain},  // some queries see nothing of a tile that takes part
      {sigmoid({1, 66, 2, 1, 48}, -4.25f), plain},
      {sigmoid(windowed({1, 130, 1, 1, 16}, 17), -1), large},
      {{1, 1, 1, 1, 16}, plain},
      {{1, 70, 2, 1, 32}, plain},
      {{3, 20, 4, 2, 16}, plain}};
  for (const Inputs& in : cases) {
    INFO(describe(in.s, in.kind));
    Attended(in).on_every_device();
  }
  for (const Inputs& in :
       {Inputs({1, 65, 1, 1, 128}, plain), Inputs(windowed({2, 130, 2, 1, 16}, 20), large, Kind::kv_bias)})
    Attended(in, Nan::refused, MmaArithmetic::ampere).on_every_device();
}

TEST_CASE("attention_bf16: it gates its output as a gate after it does", "[attention_bf16][bitwise]") {
  const SharedLimit of_a_block(shared_limit_sm_90);  // heads of 256 by whole tiles
  const std::tuple<AttentionShape, bool, GateOp> cases[] = {
      {{2, 65, 2, 1, 64}, false, {}},
      {{1, 70, 2, 2, 64}, true, {}},
      {windowed({1, 66, 3, 1, 80}, 9), false, {Activation::tanh, true, 1}},
      {{1, 40, 2, 1, 128}, true, {Activation::ns_sigmoid, false, 2}},
      {{1, 192, 2, 1, 64}, false, {Activation::tanh, true, 1}},  // by whole tiles
      {{2, 64, 2, 2, 128}, true, {}},
      {{1, 128, 1, 1, 256}, false, {}},
      {{1, 17, 1, 1, 144}, false, {Activation::silu, false, 1}}};
  for (const auto& [shape, headwise, op] : cases) {
    const AttentionShape s = shape;
    INFO("B " << s.B << " T " << s.T << " H " << s.H << " D " << s.D << " headwise " << headwise);
    const Inputs in(s, large, Kind::sink);
    const size_t group = headwise ? s.D : 1, rows = s.B * s.T, width = s.H * s.D;
    Attended t(in);
    const auto z = t.random<bf16>(rows * width / group, 5, 3.0f), y = t.out<bf16>(rows * width);
    gate_forward_ref(y.ref, t.o.ref, z.ref, rows, width, group, op);
    t.Trial::on_every_device([&, group = group, op = op](Context& ctx) {
      t.call(
          [&](const auto&... x) {
            attention_bf16_forward(x..., ctx, {y, z, group, op});
          },
          [&](const auto&... x) { attention_bf16_backward(x..., ctx); });
    });
  }
}

TEST_CASE("attention_bf16: no bit depends on what a query does not see", "[attention_bf16][bitwise]") {
  // (Of such scores weights mean nothing: the spoiled rows may be NaN.)
  for (size_t window : {0, 9})
    hidden_tokens<Attended>(Inputs(windowed({1, 80, 1, 1, 16}, window), plain, Kind::sink), 70, -1e30f, 1e30f,
                            Nan::expected);
}

TEST_CASE("attention_bf16: infinities and NaN come out as NaN", "[attention_bf16][bitwise]") {
  for (const AttentionShape& s : {AttentionShape{1, 66, 1, 1, 16}, AttentionShape{1, 128, 1, 1, 64}}) {
    const size_t D = s.D;
    Inputs in(s, plain);
    in.q[3 * D] = NAN;
    in.v[65 * D + 1] = in.dout[3 * D] = INFINITY;
    Attended t(in, Nan::expected);
    REQUIRE(std::isnan(t.o.ref[3 * D]));
    REQUIRE(std::isnan(t.lse.ref[3]));
    REQUIRE(t.o.ref[65 * D + 1] == INFINITY);
    // What takes no part in a tile has numbers.
    REQUIRE(std::isfinite(t.o.ref[4 * D + 1]));
    REQUIRE(std::isfinite(float(t.dv.ref[65 * D])));
    t.on_every_device();

    Inputs sunk(s, plain, Kind::sink);
    sunk.logit[0] = NAN;
    Attended u(sunk, Nan::expected);
    REQUIRE(std::isnan(u.lse.ref[s.T - 1]));
    u.on_every_device();
  }
}

TEST_CASE("attention_bf16: what it refuses", "[attention_bf16]") {
  Context ctx(Device::cpu);
  bf16* const no = nullptr;
  const auto refused = [&](const AttentionShape& s, bf16* q = nullptr) {
    return refusal_of_both(
        [&] { attention_bf16_forward(no, nullptr, q, no, no, s, {}, ctx); },
        [&] { attention_bf16_backward(no, no, no, nullptr, nullptr, no, q, no, no, no, nullptr, s, {}, ctx); });
  };
  const AttentionShape s{0, 8, 4, 2, 64};
  REQUIRE(refused(s) == "");
  REQUIRE(refused({0, 8, 4, 2, 72}) ==
          "attention_bf16_forward: head dimension 72, expected a multiple of 16, the depth of a tensor core's step");
  REQUIRE(refused({0, 8, 4, 3, 64}) ==
          "attention_bf16_forward: 4 query heads over 3 kv heads, expected a multiple of the kv heads");
  alignas(16) bf16 rows[16];
  REQUIRE_THAT(refused(s, rows + 1), Catch::Contains("expected its rows on 16-byte boundaries"));
  REQUIRE(refused(s, rows + 8) == "");

  const auto refused_gate = [&](AttentionShape shape, const OutputGate& gate) {
    return refusal([&] { attention_bf16_forward(no, nullptr, no, no, no, shape, {}, ctx, gate); });
  };
  REQUIRE(refused_gate(s, {rows, rows, 64}) == "");
  REQUIRE(refused_gate(s, {rows, rows, 32}) ==
          "attention_bf16_forward: a logit for 32 elements, expected 1 or the head dimension, 64");
  REQUIRE_THAT(refused_gate(s, {rows, rows + 1}), Catch::Contains("expected its rows on 16-byte boundaries"));
}
