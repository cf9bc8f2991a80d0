// fixtures: this code against what others wrote. tests/fixtures holds results of PyTorch and transformers,
// made by scripts/make_fixtures.py, which says what is stored and how.
#include <set>

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/dyt.h"
#include "kernels/gated_delta_chunk.h"
#include "kernels/glu.h"
#include "kernels/head_experts.h"
#include "kernels/layernorm.h"
#include "kernels/linear_cross_entropy.h"
#include "kernels/polynorm.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/shared_gate.h"
#include "kernels/sinks.h"
#include "kernels/static_gate.h"
#include "layers/model.h"
#include "tests/contents.h"
#include "tests/fixture_models.h"
#include "tests/gate_ops.h"

using namespace gated;

namespace {

std::map<std::string, std::vector<float>> results_of(const ModelConfig& config) {
  Context ctx(Device::cpu);
  Model model(config, 2, config.context, 1, ctx);
  model.weights.values.upload(fixture_weights(model));
  model.weights_changed();
  return gated::results_of(model, ctx);
}

// The stored results of one operation, each of which is to be compared once.
class Operation {
 public:
  explicit Operation(const std::string& name)
      : name_(name), results_(read_fixtures("ops.json").at("operations").at(name)) {}

  Numbers input(const std::string& input, size_t n, double scale = 1) const {
    return values_of<double>(name_ + " " + input, n, scale);
  }
  Numbers take(const std::string& result) {
    INFO(name_ << ", " << result);
    REQUIRE(results_.contains(result));
    const Numbers numbers = results_.at(result);
    results_.erase(result);
    return numbers;
  }
  // Results by name, behind what all of them begin with.
  void check(const std::string& at, const std::vector<std::pair<std::string, Numbers>>& results) {
    for (const auto& [result, got] : results) {
      const Numbers expected = take(at + result);
      INFO(name_ << ", " << at << result);
      REQUIRE(relative_error(expected, got) <= 1e-10);
    }
  }
  ~Operation() {
    INFO(name_ << ": not compared: " << results_.dump());
    CHECK(results_.empty());
  }

 private:
  std::string name_;
  json results_;
};

constexpr size_t N = 3, C = 13;  // rows of the norms

}  // namespace

TEST_CASE("fixtures: every model has one, without its dropout", "[fixtures]") {
  const json fixtures = read_fixtures("models.json");
  std::set<std::string> lines;
  for (const json& fixture : fixtures.at("models")) lines.insert(fixture.at("flags"));
  for (const std::string& line : small_models()) {
    INFO("run scripts/make_fixtures.py again for: " << line);
    REQUIRE(lines.count(replaced(line, "--dropout=\\S+ ?", "")) == 1);
  }
}

TEST_CASE("fixtures: loss, logits and every gradient of the models", "[fixtures]") {
  const Threads one(1);  // next to no work: waking a second thread costs more than it does
  const json fixtures = read_fixtures("models.json");
  for (const json& fixture : fixtures.at("models")) {
    const std::string flags = fixture.at("flags"), source = fixture.at("source");
    INFO(flags << " (" << source << ")");
    const auto got = results_of(small_model(flags));
    REQUIRE(fixture.at("results").size() == got.size());
    for (const auto& [name, x] : got) require_near(name, fixture.at("results").at(name), x, 1e-5);
  }
}

TEST_CASE("fixtures: rmsnorm", "[fixtures]") {
  Operation op("rmsnorm");
  const Numbers x = op.input("x", N * C), pre = op.input("pre", C), w = op.input("w", C), dy = op.input("dy", N * C);
  for (int offset : {0, 1})
    for (bool with_pre : {false, true}) {
      const double* p = with_pre ? pre.data() : nullptr;
      Numbers y(N * C), r(N), dx(N * C), dw(C), dpre(C);
      const RmsnormWeightsOf<double> weights = {w.data(), p, double(offset)};
      rmsnorm_general_forward_ref<double>({y.data(), r.data()}, {x.data()}, weights, N, C, 1e-6);
      rmsnorm_general_backward_ref<double>({.dx = dx.data(), .dw = dw.data(), .dpre = dpre.data()}, dy.data(),
                                           {x.data()}, weights, r.data(), N, C);
      const std::string at = format("%soffset %d: ", with_pre ? "pre, " : "", offset);
      op.check(at, {{"y", y}, {"dx", dx}, {"dw", dw}});
      if (with_pre) op.check(at, {{"dpre", dpre}});
    }
}

TEST_CASE("fixtures: layernorm", "[fixtures]") {
  Operation op("layernorm");
  const Numbers x = op.input("x", N * C), w = op.input("w", C), b = op.input("b", C), dy = op.input("dy", N * C);
  Numbers y(N * C), mean(N), r(N), dx(N * C), dw(C), db(C);
  layernorm_forward_ref<double>(y.data(), mean.data(), r.data(), x.data(), w.data(), b.data(), N, C, 1e-5);
  layernorm_backward_ref<double>(dx.data(), dw.data(), db.data(), dy.data(), x.data(), w.data(), mean.data(), r.data(),
                                 N, C);
  op.check("", {{"y", y}, {"dx", dx}, {"dw", dw}, {"db", db}});
}

TEST_CASE("fixtures: dyt", "[fixtures]") {
  Operation op("dyt");
  const Numbers x = op.input("x", N * C), alpha = op.input("alpha", 1), w = op.input("w", C), b = op.input("b", C),
                dy = op.input("dy", N * C);
  Numbers y(N * C), dx(N * C), dalpha(1), dw(C), db(C);
  dyt_forward_ref<double>(y.data(), x.data(), alpha.data(), w.data(), b.data(), N, C);
  dyt_backward_ref<double>(dx.data(), dalpha.data(), dw.data(), db.data(), dy.data(), x.data(), alpha.data(), w.data(),
                           N, C);
  op.check("", {{"y", y}, {"dx", dx}, {"dalpha", dalpha}, {"dw", dw}, {"db", db}});
}

TEST_CASE("fixtures: polynorm", "[fixtures]") {
  Operation op("polynorm");
  const Numbers x = op.input("x", N * C), w = op.input("w", 3), b = op.input("b", 1), dy = op.input("dy", N * C);
  Numbers y(N * C), r(3 * N), dx(N * C), dw(3), db(1);
  polynorm_forward_ref<double>(y.data(), r.data(), x.data(), w.data(), b.data(), N, C, 1e-6);
  polynorm_backward_ref<double>(dx.data(), dw.data(), db.data(), dy.data(), x.data(), w.data(), r.data(), N, C);
  op.check("", {{"y", y}, {"dx", dx}, {"dw", dw}, {"db", db}});
}

TEST_CASE("fixtures: attention", "[fixtures]") {
  const size_t B = 2, T = 5, H = 4, K = 2, D = 3;
  Operation op("attention");
  const Numbers q = op.input("q", B * T * H * D, 2), k = op.input("k", B * T * K * D, 2),
                v = op.input("v", B * T * K * D);
  const Numbers sink = op.input("sink", H), key = op.input("key", H * D), value = op.input("value", H * D);
  const Numbers dout = op.input("dy", B * T * H * D);
  for (size_t window : {0, 3})
    for (const std::string kind : {"softmax", "sigmoid", "sink", "kv bias"}) {
      AttentionShape shape{B, T, H, K, D, window};
      if (kind == "sigmoid") shape.score = AttentionScore::sigmoid, shape.bias = -1.5f;
      SinkOf<double> position;
      Numbers logit(B * H * T), o(q.size()), lse(B * H * T), sink_p(lse.size()), sink_ds(lse.size());
      if (kind == "sink") position = {sink.data(), false, nullptr, nullptr};
      if (kind == "kv bias") {
        kv_bias_logits_ref(logit.data(), q.data(), key.data(), shape);
        position = {logit.data(), true, key.data(), value.data()};
      }
      Numbers dq(q.size()), dk(k.size()), dv(v.size());
      attention_forward_ref(o.data(), lse.data(), q.data(), k.data(), v.data(), shape, position);
      attention_backward_ref(dq.data(), dk.data(), dv.data(), sink_p.data(), sink_ds.data(), dout.data(), q.data(),
                             k.data(), v.data(), o.data(), lse.data(), shape, position);
      const std::string at = format("%s, window %zu: ", kind.c_str(), window);
      op.check(at, {{"y", o}, {"dq", dq}, {"dk", dk}, {"dv", dv}});
      if (kind != "sigmoid") op.check(at, {{"lse", lse}});
      if (kind == "sink") {
        Numbers dsink(H);
        sink_backward_ref(dsink.data(), sink_ds.data(), B, T, H);
        op.check(at, {{"dsink", dsink}});
      }
      if (kind == "kv bias") {
        Numbers dkey(H * D), dvalue(H * D);
        kv_bias_backward_ref(dkey.data(), dvalue.data(), sink_p.data(), sink_ds.data(), q.data(), dout.data(), shape);
        op.check(at, {{"dkey", dkey}, {"dvalue", dvalue}});
      }
    }
}

// (How far floats are from it: tests/test_gated_delta_chunk.cpp.)
TEST_CASE("fixtures: the gated delta rule, token by token and in chunks", "[fixtures]") {
  const GatedDeltaShape s{1, 130, 1, 2, 5, 3};
  const size_t numbers = s.T * s.Hv;
  Operation op("gated_delta");
  const Numbers q = op.input("q", s.T * s.Hk * s.Dk), k = op.input("k", q.size(), 0.75),
                v = op.input("v", numbers * s.Dv), state = op.input("state", s.Hv * s.Dk * s.Dv);
  Numbers g = op.input("g", numbers), beta = op.input("beta", numbers);
  for (double& x : g) x = -std::fabs(x);
  for (double& x : beta) x = (1 + x) / 2;
  const Numbers expected_o = op.take("o"), expected_final = op.take("final");

  for (const auto rule : {gated_delta_forward_ref<double>, gated_delta_chunk_forward_ref<double>}) {
    Numbers o(v.size()), final(state.size());
    rule({o.data(), final.data()}, {q.data(), k.data(), v.data(), g.data(), beta.data(), state.data()}, s);
    REQUIRE(relative_error(expected_o, o) <= 1e-12);
    REQUIRE(relative_error(expected_final, final) <= 1e-12);
  }
}

TEST_CASE("fixtures: gates", "[fixtures]") {
  const size_t N = 2, H = 3, D = 4, n = N * H * D;
  Operation op("gate");
  const Numbers x = op.input("x", n), z = op.input("z", n, 4), theta = op.input("theta", H * D, 4),
                dy = op.input("dy", n);
  for (const GateOp& gate : gate_ops) {
    Numbers y(n), dx(n), dz(n), dz_head(N * H), dtheta(H * D);
    auto check = [&](const char* kind, const char* score, const Numbers& dscore) {
      const std::string at = describe(gate) + ", " + kind + ": ";
      op.check(at, {{"y", y}, {"dx", dx}, {score, dscore}});
    };
    gate_forward_ref(y.data(), x.data(), z.data(), N, H * D, 1, gate);
    gate_backward_ref(dx.data(), dz.data(), dy.data(), x.data(), z.data(), N, H * D, 1, gate);
    check("element", "dz", dz);
    gate_forward_ref(y.data(), x.data(), z.data(), N, H * D, D, gate);
    gate_backward_ref(dx.data(), dz_head.data(), dy.data(), x.data(), z.data(), N, H * D, D, gate);
    check("head", "dz", dz_head);
    shared_gate_forward_ref(y.data(), x.data(), z.data(), N, H, D, gate);
    shared_gate_backward_ref(dx.data(), dz.data(), dy.data(), x.data(), z.data(), N, H, D, gate);
    check("shared", "dz", dz);
    static_gate_forward_ref(y.data(), x.data(), theta.data(), N, H * D, gate);
    static_gate_backward_ref(dx.data(), dtheta.data(), dy.data(), x.data(), theta.data(), N, H * D, gate);
    check("static", "dtheta", dtheta);
  }
}

TEST_CASE("fixtures: head_experts", "[fixtures]") {
  const size_t N = 3, H = 2, E = 5, D = 4;
  Operation op("head_experts");
  const Numbers x = op.input("x", N * H * E * D), z = op.input("z", N * H * E, 4), dy = op.input("dy", N * H * D);
  for (size_t k : {1, 3, 5}) {
    Numbers y(dy.size()), s(z.size()), dx(x.size()), dz(z.size());
    head_experts_forward_ref(y.data(), s.data(), x.data(), z.data(), {N, H, D, E, k});
    head_experts_backward_ref(dx.data(), dz.data(), dy.data(), x.data(), s.data(), {N, H, D, E, k});
    const std::string at = format("%zu of %zu: ", k, E);
    op.check(at, {{"y", y}, {"dx", dx}, {"dz", dz}});
  }
}

TEST_CASE("fixtures: glu and activations", "[fixtures]") {
  const size_t n = 24;
  Operation glu("glu"), activation("activation");
  const Numbers g = glu.input("g", n, 4), u = glu.input("u", n), dy = glu.input("dy", n);
  for (Activation kind : {Activation::sigmoid, Activation::silu, Activation::gelu_tanh, Activation::gelu_erf}) {
    const std::string at = std::string(name_of(kind)) + ": ";
    Numbers y(n), dg(n), du(n);
    glu_forward_ref(y.data(), g.data(), u.data(), n, kind);
    glu_backward_ref(dg.data(), du.data(), dy.data(), g.data(), u.data(), n, kind);
    glu.check(at, {{"y", y}, {"dg", dg}, {"du", du}});
  }

  Operation clamped("swiglu_clamped");
  const Numbers cg = clamped.input("g", n, 10), cu = clamped.input("u", n, 10), cdy = clamped.input("dy", n);
  Numbers cy(n), cdg(n), cdu(n);
  swiglu_clamped_forward_ref(cy.data(), cg.data(), cu.data(), n);
  swiglu_clamped_backward_ref(cdg.data(), cdu.data(), cdy.data(), cg.data(), cu.data(), n);
  clamped.check("", {{"y", cy}, {"dg", cdg}, {"du", cdu}});

  const Numbers x = activation.input("x", n, 4), dact = activation.input("dy", n);
  for (Activation kind : {Activation::silu, Activation::gelu_tanh, Activation::gelu_erf, Activation::relu2}) {
    const std::string at = std::string(name_of(kind)) + ": ";
    Numbers y(n), dx(n);
    activation_forward_ref(y.data(), x.data(), n, kind);
    activation_backward_ref(dx.data(), dact.data(), x.data(), n, kind);
    activation.check(at, {{"y", y}, {"dx", dx}});
  }
}

TEST_CASE("fixtures: rope", "[fixtures]") {
  const size_t B = 2, T = 5, H = 2, D = 6;
  Operation op("rope");
  const Numbers x = op.input("x", B * T * H * D), dy = op.input("dy", x.size());
  for (size_t R : {6, 4}) {
    const std::string at = format("%zu turn: ", R);
    const Numbers cos = op.take(at + "cos"), sin = op.take(at + "sin");
    const RopeTables tables = make_rope_tables(T, R, 10000.0, Device::cpu);
    const std::vector<float> table_cos = tables.cos.download(), table_sin = tables.sin.download();
    REQUIRE(relative_error(cos, Numbers(table_cos.begin(), table_cos.end())) <= 1e-7);
    REQUIRE(relative_error(sin, Numbers(table_sin.begin(), table_sin.end())) <= 1e-7);
    Numbers y(x.size()), dx(x.size());
    rope_forward_ref(y.data(), x.data(), cos.data(), sin.data(), B, T, H, D, R);
    rope_backward_ref(dx.data(), dy.data(), cos.data(), sin.data(), B, T, H, D, R);
    op.check(at, {{"y", y}, {"dx", dx}});
  }
}

TEST_CASE("fixtures: YaRN's frequencies and factor", "[fixtures]") {
  Operation op("yarn");
  for (const auto& [theta, R, trained, scale] : {std::tuple<double, size_t, size_t, double>{1e6, 128, 32768, 4},
                                                 {1e4, 32, 128, 4},
                                                 {1e4, 32, 128, 1.5},
                                                 {500, 12, 64, 8}}) {
    const std::string at = format("%zu turn, trained with %zu, times %g: ", R, trained, scale);
    const Numbers expected = op.take(at + "frequencies"), got = rope_frequencies(R, theta, yarn(scale, trained));
    REQUIRE(expected.size() == got.size());
    for (size_t i = 0; i < got.size(); i++) REQUIRE(got[i] == Approx(expected[i]).epsilon(1e-6));
    REQUIRE(yarn(scale, trained).factor() == Approx(op.take(at + "factor")[0]).epsilon(1e-12));
  }
}

TEST_CASE("fixtures: linear layer and cross-entropy", "[fixtures]") {
  const size_t N = 6, C = 5, V = 11;
  Operation op("linear_cross_entropy");
  const Numbers h = op.input("h", N * C, 2), w = op.input("w", V * C, 2);
  const std::vector<int> targets = tokens_of("linear_cross_entropy targets", N, V);
  Numbers losses(N), dh(N * C), dw(V * C), logits(N * V);
  linear_cross_entropy_ref(losses.data(), dh.data(), dw.data(), logits.data(), h.data(), w.data(), targets.data(),
                           1.0 / double(N), N, C, V);
  op.check("", {{"losses", losses}, {"dh", dh}, {"dw", dw}});
}

// The errors are 2-norms over all values of a kind, relative to the truth: our fp32, which is within 1e-5 of it.
TEST_CASE("fixtures: bf16 errs at most half as much again as that of PyTorch", "[fixtures][bf16]") {
  const json fixtures = read_fixtures("bf16.json");
  for (const json& fixture : fixtures.at("models")) {
    const std::string flags = fixture.at("flags"), source = fixture.at("source");
    INFO(flags << " (" << source << ")");
    ModelConfig config = small_model(flags);
    const auto truth = results_of(config);
    config.storage = Storage::bf16;
    const auto got = results_of(config);
    std::vector<float> gradients[2];
    for (const auto& [name, numbers] : truth) {
      if (name == "loss" || name == "logits") continue;
      gradients[0].insert(gradients[0].end(), numbers.begin(), numbers.end());
      gradients[1].insert(gradients[1].end(), got.at(name).begin(), got.at(name).end());
    }
    const double logits = norm_error(truth.at("logits"), got.at("logits"));
    const double gradient = norm_error(gradients[0], gradients[1]);
    INFO("logits " << logits << ", gradient " << gradient);
    REQUIRE(logits <= 1.5 * double(fixture.at("logits")));
    REQUIRE(gradient <= 1.5 * double(fixture.at("gradient")));
    REQUIRE(logits > 1e-4);
  }
}
