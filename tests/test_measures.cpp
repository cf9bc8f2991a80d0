// measures: each figure on activations made by hand, a model against plain loops in double over its own weights. (The
// same bits on every device: tests/test_arrays.cpp.)
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/contents.h"
#include "tests/harness.h"
#include "tests/plain_model.h"
#include "tests/small_models.h"
#include "training/inspect/measures.h"

using namespace gated;

namespace {

// ---- by hand

constexpr size_t B = 2, T = 4, C = 10;

// A meter that has seen a stream of ones, in a model of one block.
Meter fresh() {
  static const std::vector<float> ones(B * T * C, 1);
  Meter meter(Device::cpu);
  for (meter.layer = 0; meter.layer < 2; meter.layer++) meter.state({ones.data(), B, T, C});
  meter.layer = 0;
  return meter;
}

// What it says of one thing more.
template <class View>
Measures measures_of(void (Meter::*look)(const View&), const std::type_identity_t<View>& view) {
  Meter meter = fresh();
  (meter.*look)(view);
  return meter.result();
}

// A meter over these states of the stream, each (B,T,C).
Measures measures_of(const std::vector<std::vector<float>>& states) {
  Meter meter(Device::cpu);
  for (meter.layer = 0; meter.layer < states.size(); meter.layer++) meter.state({states[meter.layer].data(), B, T, C});
  return meter.result();
}

constexpr auto sigmoid = PlainModel::sigmoid;

size_t at(size_t b, size_t t, size_t c) {
  return (b * T + t) * C + c;
}

void require_peak(const Measures::Peak& p, double value, size_t state, size_t token, size_t dimension) {
  REQUIRE(std::tuple(p.value, p.state, p.token, p.dimension) == std::tuple(value, state, token, dimension));
}

// Of a weight of a norm.
void require_weight(const auto& w, double value, size_t layer, const std::string& norm, size_t dimension) {
  REQUIRE(std::tuple(w->value, w->layer, w->norm, w->dimension) == std::tuple(value, layer, norm, dimension));
}

}  // namespace

TEST_CASE("measures: the largest activation, with and without first tokens", "[measures]") {
  std::vector<std::vector<float>> h(3, std::vector<float>(B * T * C, 1));
  h[1][at(1, 0, 7)] = -900;
  h[2][at(0, 0, 3)] = 800;
  h[2][at(1, 2, 4)] = -50;
  h[0][at(0, 3, 9)] = 49;
  const Measures m = measures_of(h);
  require_peak(m.residual.largest, 900, 1, 0, 7);
  require_peak(m.residual.behind_first, 50, 2, 2, 4);
  REQUIRE(m.residual.largest_by_state == std::vector<double>{49, 900, 800});
  REQUIRE((m.tokens == B * T && m.context == T && m.layers == 2));
}

TEST_CASE("measures: the peak over the median, the top dimension, and the norms' weights there", "[measures]") {
  std::vector<float> h(B * T * C, 1), other(B * T * C, 2);
  for (size_t n = 0; n < B * T; n++) other[n * C + 4] = n < 6 ? 8 : 0.5f;  // the largest on 6 of 8 tokens
  h[at(1, 2, 7)] =
      -5;  // the largest of h, and on one of its 8 tokens; on the others dimension 0 is the first of ten equals
  other[at(0, 1, 3)] = 10;
  const std::vector<float> weight = {1, 1, 1, 1, -0.25f, 1, 1, 1, 1, 1}, centred = {0, 0, 0, 0, 1, 0, 0, 4, 0, 0};
  Meter meter(Device::cpu);
  meter.state({h.data(), B, T, C});
  const auto norm = [&](const std::vector<float>& w, float offset) {
    meter.norm({"norm", "attention_norm", w.data(), nullptr, offset, C, nullptr, nullptr, {}});
  };
  norm(weight, 0), norm(centred, 1);
  meter.layer = 1;
  meter.state({other.data(), B, T, C});
  meter.layer = 2;
  meter.state({other.data(), B, T, C});
  norm(weight, 0);
  const Measures::Residual r = meter.result().residual;
  REQUIRE(r.peak_over_median == 5);
  REQUIRE(r.top == 4);
  REQUIRE(r.top_over_median == (8.0 + 2 * (6 * 8 + 2 * 0.5)) / (8 + 2 * 16));
  REQUIRE(r.top_of_tokens == 5 * 2 / 24.0);  // on one of the six another one is larger
  REQUIRE(r.top_of_states == 1 / 3.0 + 1 / 3.0);
  REQUIRE(r.weight_at_top_by_layer.size() == 3);
  REQUIRE(r.weight_at_top_by_layer[0] == (1 / 0.925 + 5 / 1.5) / 2);  // h's own top dimension is 7
  REQUIRE(std::isnan(r.weight_at_top_by_layer[1]));
  REQUIRE(std::fabs(r.weight_at_top_by_layer[2] - 0.25 / 0.925) < 1e-15);
}

TEST_CASE("measures: a massive activation is above 100 and above 1000 medians", "[measures]") {
  std::vector<float> h(B * T * C, 0.5f);
  h[at(0, 0, 1)] = 500;  // 1000 medians
  h[at(0, 0, 2)] = 501, h[at(1, 3, 2)] = -501;
  std::vector<float> small(B * T * C, 0.0625f);
  small[at(0, 1, 1)] = 100;  // 1600 medians
  small[at(0, 1, 2)] = 100.5f;
  REQUIRE(measures_of({h}).residual.massive == 2);
  REQUIRE(measures_of({small}).residual.massive == 1);
  REQUIRE(measures_of({h, small}).residual.massive == 3);
  Meter batches(Device::cpu);  // each has a median of its own
  for (const auto* batch : {&h, &small}) batches.state({batch->data(), B, T, C});
  REQUIRE(batches.result().residual.massive == 3);
}

TEST_CASE("measures: a residual-sink dimension is above 10 medians on more than half of the tokens of a state",
          "[measures]") {
  std::vector<float> h(B * T * C, 1), other = h;
  for (size_t n = 0; n < B * T; n++) {
    h[n * C + 2] = -11;                                // on all tokens
    if (n < 5) h[n * C + 4] = 200;                     // on 5 of 8
    if (n < 4) h[n * C + 5] = other[n * C + 5] = 300;  // on half of them, in two states
    h[n * C + 6] = 10;
    other[n * C + 8] = 12;
  }
  const Measures both = measures_of({h, other});
  REQUIRE(both.residual.sink_dimensions == std::vector<size_t>{4, 8, 2});
  REQUIRE(contains(measures_text(both, 80), "residual-sink dimensions: 3 (4, 8, 2)\n"));
  REQUIRE(measures_of({h}).residual.sink_dimensions == std::vector<size_t>{4, 2});
  REQUIRE(measures_of({std::vector<float>(B * T * C, 1)}).residual.sink_dimensions.empty());
}

TEST_CASE("measures: outlier dimensions of a state, without tokens that have a massive activation", "[measures]") {
  std::vector<float> h(B * T * C), other(B * T * C, 1);
  for (size_t n = 0; n < B * T; n++)
    for (size_t c = 0; c < C; c++) h[n * C + c] = float(n % 2 ? -1 : 1) * float(c + 1) * 0.25f;
  h[at(1, 0, 2)] = -2000;  // leaves this token out, and with it the next
  h[at(1, 0, 5)] = 90;
  h[at(0, 3, 4)] = 8.25f;  // 7 above what it was: 1 on the mean of 7 tokens
  const Measures m = measures_of({h, other});
  REQUIRE(m.outliers.size() == 2);
  REQUIRE(m.outliers[0].dimensions == std::vector<size_t>{9, 4, 8});
  REQUIRE(m.outliers[0].sizes == std::vector<double>{2.5, 2.25, 2.25});
  REQUIRE(m.outliers[0].median == 1.75);  // of 0.25, 0.5, 0.75, 1, 1.5, 1.75, 2, 2.25, 2.25, 2.5 the upper middle one
  REQUIRE(m.outliers[1].dimensions == std::vector<size_t>{0, 1, 2});
  REQUIRE(!m.has_outlier());
  for (size_t n = 0; n < B * T; n++) other[n * C + 7] = 10;
  REQUIRE(!measures_of({h, other}).has_outlier());
  for (size_t n = 0; n < B * T; n++) other[n * C + 7] = 10.25f;
  REQUIRE(measures_of({h, other}).has_outlier());
  for (size_t n = 0; n < B * T; n++) other[n * C] = 1e6f;  // on every token
  const Measures none = measures_of({other});
  REQUIRE(std::isnan(none.outliers[0].median));
  REQUIRE(!none.has_outlier());
  REQUIRE(nlohmann::json::parse(measures_entry(1, none))["median_by_state"][0].is_null());
  REQUIRE(!contains(measures_text(none, 80), "nan"));
}

TEST_CASE("measures: sharpness of outputs, by part and layer", "[measures]") {
  Meter meter(Device::cpu);
  const std::vector<float> ones(B * T * C, 1), y = {3, 1, -1, 0, 2, -1, 1, 0, 0, 0, -2, 0};  // two rows of six
  for (meter.layer = 0; meter.layer < 3; meter.layer++) {
    meter.state({ones.data(), 1, 2, C});
    if (meter.layer == 1) meter.output({"ffn", y.data(), 2, 6});
    if (meter.layer < 2) meter.output({"attention", ones.data(), 2, C});
    if (meter.layer == 2) meter.output({"final_output", y.data(), 2, 6});
  }
  const Measures m = meter.result();
  REQUIRE(m.sharpness.size() == 2);
  REQUIRE(m.sharpness.at("attention")[0] == Approx(0.3));
  REQUIRE(std::isnan(m.sharpness.at("ffn")[0]));
  REQUIRE(m.sharpness.at("ffn")[1] == (4 + 4 + 1) / 11.0);  // by dimension 4, 1, 1, 0, 4, 1
  const nlohmann::json entry = nlohmann::json::parse(measures_entry(7, m));
  REQUIRE(entry["sharpness_3"]["ffn"][0].is_null());
  REQUIRE(entry["sharpness_3"]["ffn"][1] == m.sharpness.at("ffn")[1]);
  REQUIRE(entry["final_output_by_dimension"] == std::vector<double>{2, 0.5, 0.5, 0, 2, 0.5});
  REQUIRE(entry["first_outlier_step"].is_null());
  REQUIRE(!entry.contains("gradient_norm_by_layer"));
}

TEST_CASE(
    "measures: outputs without the tokens that have a massive activation in front of their block or in the output",
    "[measures]") {
  // Two batches of two blocks. Tokens 0 and 1 are massive in one state, token 2 in the next, token 3 in the last.
  const size_t N = B * T;
  const std::vector<float> even(N * C, 1);
  std::vector<std::vector<float>> h(3, even);
  h[0][at(0, 0, 4)] = 1500, h[0][at(0, 1, 0)] = -2000;
  h[1][at(0, 2, 7)] = 1001, h[1][at(1, 1, 7)] = 1000;  // the second is 1000 medians, not more
  h[2][at(0, 3, 9)] = -3000;
  // Dimension 3 of token n is 2^n, and of the last token more than 1000 medians, of the one before it 1000.
  std::vector<float> y = even, more = y;
  for (size_t n = 0; n < N; n++) y[n * C + 3] = more[n * C + 3] = float(1 << n);
  more[at(1, 2, 3)] = -1000, more[at(1, 3, 3)] = -1001;
  Meter meter(Device::cpu);
  for (size_t batch : {0, 1})
    for (meter.layer = 0; meter.layer < 3; meter.layer++) {
      meter.state({batch ? even.data() : h[meter.layer].data(), B, T, C});
      const auto output = [&](const char* part, const std::vector<float>& first) {
        meter.output({part, batch ? even.data() : first.data(), N, C});
      };
      if (meter.layer == 2) {
        output("final_output", y);
        continue;
      }
      for (const char* part : {"attention_norm", "attention", "ffn_norm"}) output(part, y);
      output("ffn", more);
    }
  const Measures m = meter.result();
  // Of so many tokens, whose dimension 3 adds up to this; the other nine are 1.
  const auto sharpness = [](double tokens, double third) { return (third + 2 * tokens) / (third + 9 * tokens); };
  for (const char* part : {"attention_norm", "attention", "ffn_norm"}) {
    INFO(part);
    REQUIRE(m.sharpness.at(part) == std::vector<double>{sharpness(6 + 8, 252 + 8), sharpness(7 + 8, 251 + 8)});
  }
  REQUIRE(m.sharpness.at("ffn") ==
          std::vector<double>{sharpness(5 + 8, 60 + 1000 + 8), sharpness(6 + 8, 59 + 1000 + 8)});
  REQUIRE(m.final_output == std::vector<double>{1, 1, 1, (255 - 8 + 8) / 15.0, 1, 1, 1, 1, 1, 1});
  REQUIRE(m.outliers[0].sizes[0] == 1);  // the stream's own are not told by outputs
  const nlohmann::json entry = nlohmann::json::parse(measures_entry(1, m));
  REQUIRE(entry["final_output_by_dimension"] == std::vector<double>{1, 1, 1, 17, 1, 1, 1, 1, 1, 1});

  // What an FFN writes on a first token is not its sharpness.
  std::vector<float> written = even;
  written[at(0, 0, 5)] = 5000;
  const auto of_ffn = [&] { return measures_of(&Meter::output, {"ffn", written.data(), N, C}).sharpness.at("ffn")[0]; };
  REQUIRE(of_ffn() == 3 / 10.0);
  // An output's median is that of all its rows.
  std::fill_n(written.begin(), C, 200.0f);
  written[at(1, 2, 5)] = 1500;
  REQUIRE(of_ffn() == 3 / 10.0);

  // Of no token there is nothing to say.
  std::vector<float> all = even;
  for (size_t n = 0; n < N; n++) all[n * C] = 1e6f;
  Meter none(Device::cpu);
  for (none.layer = 0; none.layer < 2; none.layer++) {
    none.state({all.data(), B, T, C});
    none.output({none.layer ? "final_output" : "ffn", y.data(), N, C});
  }
  const nlohmann::json nothing = nlohmann::json::parse(measures_entry(1, none.result()));
  REQUIRE(nothing["sharpness_3"]["ffn"][0].is_null());
  REQUIRE(nothing["final_output_by_dimension"][0].is_null());
}

TEST_CASE("measures: the median is the upper middle one by size", "[measures]") {
  // A dimension is a sink above 10 medians, so a probe on all tokens finds where the median lies.
  for (uint64_t seed : {1, 2, 3}) {
    std::vector<float> h = random_values<float>(B * T * C, seed);
    std::vector<float> sizes;
    for (size_t n = 0; n < B * T; n++) h[n * C] = 1e6f;
    for (float x : h) sizes.push_back(std::fabs(x));
    std::sort(sizes.begin(), sizes.end());
    const float median = sizes[sizes.size() / 2];
    for (size_t n = 0; n < B * T; n++) h[n * C] = 10 * median;  // 10 * median rounds, and stays above the median itself
    const bool rounded_up = double(10 * median) > 10 * double(median);
    REQUIRE(measures_of({h}).residual.sink_dimensions.size() == size_t(rounded_up));
    for (size_t n = 0; n < B * T; n++) h[n * C] = std::nextafterf(std::nextafterf(10 * median, 1e9f), 1e9f);
    REQUIRE(measures_of({h}).residual.sink_dimensions == std::vector<size_t>{0});
  }
}

TEST_CASE("measures: attention to the first token, by head and layer, under windows, sinks and sigmoids",
          "[measures]") {
  // One kv head of one element for two query heads. Keys 2, 0, 0, 0; queries ln 3 / 2 in head 0, 0 in head 1.
  const float third = float(std::log(3.0) / 2);
  std::vector<float> q(B * T * 2), k(B * T), v(B * T), o(B * T * 2), lse(B * 2 * T), logit = {0, 0};
  for (size_t n = 0; n < B * T; n++) {
    q[2 * n] = third;
    k[n] = n % T ? 0 : 2;
    v[n] = n % T ? -4 : 1;
  }
  AttentionShape s = {.B = B, .T = T, .H = 2, .KVH = 1, .D = 1};
  const auto measure = [&](Sink sink) {
    for (size_t b = 0; b < B; b++)
      for (size_t i = 0; i < T; i++)
        for (size_t head : {0, 1}) {
          double total = sink.logit ? 1 : 0;
          for (size_t j = s.first_key(i); j <= i; j++) total += head == 0 && j == 0 ? 3 : 1;
          lse[s.stat(b, head, i)] = float(std::log(total));
        }
    return *measures_of(&Meter::attention, {q.data(), k.data(), v.data(), lse.data(), o.data(), nullptr, s, sink})
                .attention;
  };
  const auto near = [](double value) { return Approx(value).epsilon(1e-6); };

  Measures::Attention a = measure({});
  const double head0 = (3.0 / 4 + 3.0 / 5 + 3.0 / 6) / 3, head1 = (1.0 / 2 + 1.0 / 3 + 1.0 / 4) / 3;
  REQUIRE(a.first_token == near((head0 + head1) / 2));
  REQUIRE(a.even == near(head1));
  REQUIRE(a.largest_head == near(head0));
  REQUIRE((a.layer == 0 && a.head == 0 && !a.sink));
  REQUIRE(a.first_value == near(0.25));
  REQUIRE(a.first_token_by_layer.size() == 1);

  s.window = 2;  // of the queries that count, the first alone still sees token 0
  REQUIRE(measure({}).first_token == near((3.0 / 4 + 1.0 / 2) / 3 / 2));
  REQUIRE(measure({}).even == near(1.0 / 2 / 3));
  s.window = 0;

  a = measure({.logit = logit.data()});
  REQUIRE(a.first_token == near(((3.0 / 5 + 3.0 / 6 + 3.0 / 7) + (1.0 / 3 + 1.0 / 4 + 1.0 / 5)) / 6));
  REQUIRE(*a.sink == near(((1.0 / 5 + 1.0 / 6 + 1.0 / 7) + (1.0 / 3 + 1.0 / 4 + 1.0 / 5)) / 6));
  const std::vector<float> logits(B * 2 * T, 0);
  REQUIRE(*measure({.logit = logits.data(), .per_query = true}).sink == *a.sink);

  s.score = AttentionScore::sigmoid;
  s.bias = -1;
  REQUIRE(measure({}).first_token == near((3 / (3 + std::exp(1.0)) + 1 / (1 + std::exp(1.0))) / 2));
}

TEST_CASE("measures: layers without attention are left out of its means", "[measures]") {
  Meter meter = fresh();
  const std::vector<float> ones(B * T, 1), lse(B * T, float(std::log(2.0)) + 1);
  const AttentionShape s = {.B = B, .T = T, .H = 1, .KVH = 1, .D = 1};
  for (meter.layer = 0; meter.layer < 4; meter.layer++) {
    meter.state({ones.data(), B, T, 1});
    if (meter.layer == 2)
      meter.attention({ones.data(), ones.data(), ones.data(), lse.data(), ones.data(), nullptr, s, {}});
  }
  const Measures m = meter.result();
  REQUIRE(m.attention->first_token == Approx(0.5).epsilon(1e-6));
  REQUIRE(m.attention->layer == 2);
  REQUIRE(m.output->mean == 1);
  const nlohmann::json entry = nlohmann::json::parse(measures_entry(7, m));
  REQUIRE(entry["step"] == 7);
  const nlohmann::json by_layer = entry["first_token_attention_by_layer"];
  REQUIRE(by_layer == nlohmann::json{nullptr, nullptr, m.attention->first_token});
  for (const char* absent : {"gate_score_mean", "norm_weight_furthest", "decay_mean", "busiest_expert"})
    REQUIRE(!entry.contains(absent));
}

TEST_CASE("measures: sparsity of attention's output, before and after the gate", "[measures]") {
  const std::vector<float> x(8, 0), before = {1, -0.0099f, 0.0011f, -1e-4f, 2, 0, 0.5f, -0.02f},
                                    behind = {0.5f, -0.005f, 0.0005f, 0, 1e-3f, 0, 0.1f, -0.002f};
  const AttentionShape s = {.B = 2, .T = 4, .H = 1, .KVH = 1, .D = 1};
  const Measures m =
      measures_of(&Meter::attention, {x.data(), x.data(), x.data(), x.data(), before.data(), behind.data(), s, {}});
  REQUIRE(m.output->below_1e2 == 4.0 / 8);
  REQUIRE(m.output->below_1e3 == 2.0 / 8);
  REQUIRE(m.output->mean == Approx((1 + 0.0099 + 0.0011 + 1e-4 + 2 + 0.5 + 0.02) / 8));
  REQUIRE(m.output_gated->below_1e2 == 6.0 / 8);
  REQUIRE(m.output_gated->below_1e3 == 3.0 / 8);  // 1e-3f lies above 1e-3
}

TEST_CASE("measures: scores of attention's gate", "[measures]") {
  const std::vector<float> z = {0, -4, -2.19f, -2.2f};  // of which sigmoids are 0.5, 0.018, 0.1006 and 0.0998
  const double mean = (sigmoid(0) + sigmoid(-4) + sigmoid(-2.19) + sigmoid(-2.2)) / 4;
  Measures m = measures_of(&Meter::gate, {{GateKind::elementwise, {}}, z.data(), 2, 2, 1});
  REQUIRE(m.gate->mean == Approx(mean).epsilon(1e-6));
  REQUIRE(m.gate->below == 2.0 / 4);
  REQUIRE(!m.norm_gate);

  // Shared: the mean over two heads, so 0.1 beside 0.5 is no score below 0.1.
  m = measures_of(&Meter::gate, {{GateKind::shared, {}}, z.data(), 1, 4, 2});
  REQUIRE(m.gate->below == 1.0 / 2);  // elements 1 and 3
  REQUIRE(m.gate->mean == Approx(mean).epsilon(1e-6));

  // Another activation, and a scale: below is the size of the score.
  const GateOp half = {.act = Activation::identity, .scale = 0.5f};
  m = measures_of(&Meter::gate, {{GateKind::elementwise, half}, z.data(), 2, 2, 1});
  REQUIRE((m.gate->mean == (-4 + double(z[2]) + double(z[3])) / 8 && m.gate->below == 1.0 / 4));
}

TEST_CASE("measures: weights of norms, and the scores of GatedNorm's gate", "[measures]") {
  const std::vector<float> w = {1.25f, 0.5f, 1}, pre = {3, -2, 1};
  Meter meter = fresh();
  const GatedNormShape none = {};
  meter.norm({"first", "", w.data(), pre.data(), 0, 3, nullptr, nullptr, none});
  meter.layer = 1;
  meter.norm({"second", "", pre.data(), nullptr, 1, 3, nullptr, nullptr, none});
  const Measures m = meter.result();
  require_weight(m.norm_weight, 4, 1, "second", 0);  // zero-centred: 1 + 3
  require_weight(m.pre_weight, -2, 0, "first", 1);

  // Two rows of rank 2. SiLU(0) = 0, SiLU(1) = 0.731: z is 0 in the first row, 0.731 * (4, -4, 0) in the second.
  const std::vector<float> low = {0, 0, 0, 1}, up = {9, 4, 9, -4, 9, 0};
  const Measures gated = measures_of(
      &Meter::norm, {"gated", "", w.data(), nullptr, 0, 3, low.data(), up.data(), {.N = 2, .C = 3, .rank = 2}});
  const double z = 4 * sigmoid(1);
  REQUIRE(gated.norm_gate->mean == Approx((4 * 0.5 + sigmoid(z) + sigmoid(-z)) / 6).epsilon(1e-6));
  REQUIRE(gated.norm_gate->below == 1.0 / 6);
}

TEST_CASE("measures: decay, beta and states of linear attention; routing", "[measures]") {
  const size_t tokens = 129;
  std::vector<float> g(tokens, 0), beta(tokens, 0.25f),
      kept = {1, 1, 1, 1, 3, 0, 0, -4};  // the state before token 64, then before token 128
  g[0] = float(-std::log(2.0));
  GatedDeltaShape shape = {.B = 1, .T = tokens, .Hk = 1, .Hv = 1, .Dk = 2, .Dv = 2};
  Measures m = measures_of(&Meter::linear_attention, {g.data(), beta.data(), kept.data(), 2, shape});
  REQUIRE(m.linear->decay == Approx(128.5 / 129).epsilon(1e-6));
  REQUIRE(m.linear->beta == 0.25);
  REQUIRE(*m.linear->state == 5);
  shape.T = 64;
  REQUIRE(!measures_of(&Meter::linear_attention, {g.data(), beta.data(), nullptr, 0, shape}).linear->state);

  const std::vector<int> expert = {0, 1, 0, 1, 0, 3, 0, 1};
  m = measures_of(&Meter::routing, {expert.data(), {.N = 4, .E = 4, .k = 2, .renormalise = true}});
  REQUIRE((m.experts->busiest == 0.5 && m.experts->idle == 1 && m.experts->experts == 4));
  REQUIRE(m.experts->entropy == Approx(0.5 * std::log(2.0) + 0.375 * std::log(8 / 3.0) + 0.125 * std::log(8.0)));
}

// ---- a model

// (What else a model shows: tests/test_arrays.cpp.)
TEST_CASE("measures: of a model, those of what plain loops in double over its weights compute", "[measures]") {
  const ModelConfig config = small_model("--norm=gated --norm-rank=3 --attn=g1");
  const size_t T = config.context, width = config.hidden;
  PlainModel plain(config);
  Meter meter(Device::cpu), of_loops(Device::cpu);
  look_at_both(plain, meter, [&] {
    const auto here = [&](const Vector& x) { return std::vector<float>(x.end() - ptrdiff_t(2 * T * width), x.end()); };
    const auto output = [&](const char* part, const std::string& name) {
      of_loops.output({part, here(plain.outputs.at(name)).data(), 2 * T, width});
    };
    for (of_loops.layer = 0; of_loops.layer <= config.layers; of_loops.layer++) {
      of_loops.state({here(plain.states[of_loops.layer]).data(), 2, T, width});
      if (of_loops.layer == config.layers) break;
      for (const char* part : {"attention_norm", "attention", "ffn_norm", "ffn"})
        output(part, format("layers.%zu.%s", of_loops.layer, part));
    }
    output("final_output", "final_norm");
  });
  const Measures m = meter.result();
  const auto near = [](double value) { return Approx(value).epsilon(2e-5).margin(1e-9); };
  REQUIRE(m.tokens == 4 * T);
  REQUIRE(m.residual.massive > 0);
  REQUIRE(m.residual.largest.dimension == 6);
  REQUIRE(m.residual.sink_dimensions == std::vector<size_t>{6});
  const nlohmann::json entry = nlohmann::json::parse(measures_entry(1, m)).flatten(),
                       expected = nlohmann::json::parse(measures_entry(1, of_loops.result())).flatten();
  REQUIRE(expected.size() > 60);
  for (const auto& [place, value] : expected.items()) {
    INFO(place << ": " << value << ", found " << entry.at(place));
    if (value.is_number_float()) REQUIRE(double(entry.at(place)) == near(value));
    if (!value.is_number_float() && !value.is_null()) REQUIRE(entry.at(place) == value);
  }

  Vector heads, ratios;  // the second: of a layer's mean length of v at the first token to that at the others
  Vector before, behind, gate, norm_gate;
  for (const PlainModel::Layer& l : plain.layers) {
    for (const Vector& head : l.to_first) heads.push_back(mean_of(head));
    Vector others;
    for (size_t t = 1; t < T; t++) append(others, l.v[t]);
    ratios.push_back(mean_of(l.v[0]) / mean_of(others));
    append(before, l.before), append(behind, l.behind), append(gate, l.gate);
  }
  for (const auto& [name, scores] : plain.norm_gates) append(norm_gate, scores);
  const Measures::Attention& a = *m.attention;
  REQUIRE(a.first_token == near(mean_of(heads)));
  REQUIRE(a.largest_head == near(*std::max_element(heads.begin(), heads.end())));
  REQUIRE(a.largest_head == near(heads[a.layer * config.attention.H + a.head]));
  REQUIRE(a.first_value == near(mean_of(ratios)));
  REQUIRE(m.output->mean == near(mean_size(before, 1)[0]));
  REQUIRE(m.output_gated->mean == near(mean_size(behind, 1)[0]));
  REQUIRE(m.gate->mean == near(mean_of(gate)));
  REQUIRE(m.norm_gate->mean == near(mean_of(norm_gate)));
  require_weight(m.norm_weight, 0.25, 1, "input_layernorm", 13);
}

TEST_CASE("measures: what is printed fits the terminal and says everything that the model has", "[measures]") {
  Context ctx(Device::cpu);
  for (const std::string& flags : small_models()) {
    Meter meter(ctx.device);
    look_at(small_model(flags), ctx, {&meter});
    const std::string text = measures_text(meter.result(), 80);
    INFO(flags << "\n" << text);
    for (const std::string& line : lines_of(text)) REQUIRE(line.size() <= 80);
    REQUIRE(!contains(text, "nan"));
    REQUIRE(contains(text, "largest |h|"));
    REQUIRE(contains(text, "to token 0") == !contains(flags, "--mixer=gated-delta"));
    REQUIRE(contains(text, "weight furthest") == !contains(flags, "--norm=none"));
    for (const auto& [words, flag] : {std::pair("to the learned sink", "--attn-sink="),
                                      {"gate       mean score", "--attn=g"},
                                      {"gate: mean score", "--norm=gated"},
                                      {"gated: mean", "--attn=g1"},
                                      {"mean decay", "--mixer="},
                                      {"weight before the norm", "--norm=preaffine"}})
      REQUIRE(contains(text, words) == contains(flags, flag));
  }
}
