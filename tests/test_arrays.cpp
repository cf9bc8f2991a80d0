// arrays: each against plain loops in double over a model's weights, the same bits on every device, and the file that
// they end in.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/hf_folder.h"
#include "tests/plain_model.h"
#include "tests/refusal.h"
#include "tests/small_models.h"
#include "training/checkpoint/safetensors.h"
#include "training/inspect/arrays.h"
#include "training/inspect/measures.h"

using namespace gated;

namespace {

// A model, and the same in plain loops, over the same two batches of two sequences.
struct Both {
  ModelConfig config;
  PlainModel plain;
  Arrays arrays;

  explicit Both(const std::string& flags) : config(small_model(flags)), plain(config) {
    ArrayMeter meter(config, Device::cpu);
    look_at_both(plain, meter, [] {});
    arrays = meter.result();
  }

  json metadata(const std::string& key) const { return json::parse(arrays.metadata.at(key)); }

  // Is the array there, of this shape, and are its values these? A value may be wrong by 5e-5 of the largest.
  void require(const std::string& name, const Shape& shape, const Vector& expected) const {
    INFO(name);
    const Arrays::Array* found = arrays.find(name);
    REQUIRE(found);
    REQUIRE(found->shape == shape);
    REQUIRE((found->values.size() == count(shape) && found->values.size() == expected.size()));
    double largest = 0;
    for (double x : expected) largest = std::max(largest, std::isnan(x) ? 0 : std::fabs(x));
    REQUIRE(largest > 0);
    for (size_t i = 0; i < expected.size(); i++) {
      INFO("element " << i << ": " << found->values[i] << ", expected " << expected[i]);
      REQUIRE(std::isnan(found->values[i]) == std::isnan(expected[i]));
      if (!std::isnan(expected[i])) REQUIRE(std::fabs(double(found->values[i]) - expected[i]) <= 5e-5 * largest);
    }
  }
};

Vector histogram(const Vector& scores, double low, double high) {
  Vector shares(50);
  for (double s : scores) shares[size_t((s - low) / (high - low) * 50)] += 1 / double(scores.size());
  return shares;
}

// What every model has.
void require_stream(const Both& m) {
  const size_t T = m.config.context, C = m.config.hidden, L = m.config.layers, P = std::min<size_t>(T, 256);
  const PlainModel& plain = m.plain;
  Vector losses, by_token, mean, largest;
  for (const Vector& at : plain.losses) losses.push_back(mean_of(at));
  m.require("loss_by_position", {T}, losses);
  for (const Vector& state : plain.states) {
    Vector sum(T * C);
    for (size_t i = 0; i < state.size(); i++) sum[i % (T * C)] += std::fabs(state[i]) / 4;
    by_token.insert(by_token.end(), sum.begin(), sum.begin() + std::ptrdiff_t(P * C));
    append(mean, mean_size(state, C));
    double peak = 0;
    for (double h : state) peak = std::max(peak, std::fabs(h));
    largest.push_back(peak);
  }
  m.require("activation_by_token", {L + 1, P, C}, by_token);
  m.require("activation_mean", {L + 1, C}, mean);
  m.require("activation_largest", {L + 1}, largest);
  m.require("final_output", {C}, mean_size(plain.outputs.at("final_norm"), C));
}

void require_attention(const Both& m) {
  const size_t T = m.config.context, L = m.config.layers, H = m.config.attention.H, P = std::min<size_t>(T, 256);
  Vector map, first, value;
  for (const PlainModel::Layer& l : m.plain.layers) {
    for (size_t i = 0; i < P; i++)
      for (size_t j = 0; j < P; j++) map.push_back(mean_of(l.given[i * T + j]));
    for (const Vector& head : l.to_first) first.push_back(mean_of(head));
    for (const Vector& at : l.v) value.push_back(mean_of(at));
  }
  m.require("attention_map", {L, P, P}, map);
  m.require("first_token_attention", {L, H}, first);
  m.require("value_norm", {L, T}, value);
}

const std::vector<std::string> norm_names = {"layers.0.attention_norm", "layers.0.ffn_norm", "layers.1.attention_norm",
                                             "layers.1.ffn_norm", "final_norm"};
const std::vector<std::string> norm_parameters = {
    "model.layers.0.input_layernorm.", "model.layers.0.post_attention_layernorm.", "model.layers.1.input_layernorm.",
    "model.layers.1.post_attention_layernorm.", "model.norm."};

}  // namespace

TEST_CASE("arrays: of a model with gates, against plain loops in double over its weights", "[arrays]") {
  const Both m("--norm=gated --norm-rank=3 --attn=g1");
  const size_t L = m.config.layers, C = m.config.hidden;
  require_stream(m);
  require_attention(m);

  const Vector thresholds = m.metadata("thresholds").get<Vector>();
  Vector sizes, below, gate_mean, gate_histogram, norm_gate_mean, norm_gate_histogram, norm_weight;
  for (const PlainModel::Layer& l : m.plain.layers) {
    // Before the gate times the mean score: a batch has its own mean.
    Vector scaled = l.before;
    const size_t half = l.before.size() / 2;
    for (size_t batch : {0, 1}) {
      const auto begin = l.gate.begin() + std::ptrdiff_t(batch * half);
      const double mean = mean_of(Vector(begin, begin + std::ptrdiff_t(half)));
      for (size_t i = 0; i < half; i++) scaled[batch * half + i] *= mean;
    }
    for (const Vector* o : {&l.before, &l.behind, static_cast<const Vector*>(&scaled)})
      for (double threshold : thresholds)
        below.push_back(
            double(std::count_if(o->begin(), o->end(), [=](double x) { return std::fabs(x) < threshold; })) /
            double(o->size()));
    append(sizes, {mean_size(l.before, 1)[0], mean_size(l.behind, 1)[0]});
    gate_mean.push_back(mean_of(l.gate));
    append(gate_histogram, histogram(l.gate, 0, 1));
  }
  m.require("attention_output_mean", {L, 2}, sizes);
  m.require("attention_output_below", {L, 3, thresholds.size()}, below);
  m.require("gate_mean", {L}, gate_mean);
  m.require("gate_histogram", {L, 50}, gate_histogram);
  REQUIRE(std::count(below.begin(), below.end(), 0.0) < std::ptrdiff_t(below.size() / 2));
  REQUIRE(std::is_sorted(thresholds.begin(), thresholds.end()));

  for (size_t i = 0; i < norm_names.size(); i++) {
    const Vector& scores = m.plain.norm_gates.at(norm_names[i]);
    norm_gate_mean.push_back(mean_of(scores));
    append(norm_gate_histogram, histogram(scores, 0, 1));
    append(norm_weight, m.plain.w.at(norm_parameters[i] + "weight"));
  }
  m.require("norm_gate_mean", {norm_names.size()}, norm_gate_mean);
  m.require("norm_gate_histogram", {norm_names.size(), 50}, norm_gate_histogram);
  m.require("norm_weight", {norm_names.size(), C}, norm_weight);

  for (const char* key : {"norms", "norm_gates"}) REQUIRE(m.metadata(key) == norm_names);
  for (const char* key : {"gates", "attention_layers", "gate_range"}) REQUIRE(m.metadata(key) == json{0, 1});
  REQUIRE((m.metadata("context") == 9 && m.metadata("measured_tokens") == 36));
  REQUIRE(m.arrays.metadata.at("format") == "gated.cu measures 1");
  for (const char* name : {"sink_attention", "pre_weight"}) REQUIRE(!m.arrays.find(name));
}

TEST_CASE("arrays: of a model with a sink, a window and PreAffine, longer than what a map shows", "[arrays]") {
  const Both m("--norm=preaffine --norm-weight=zero-centred --attn-sink=learned --window=120 --context=260");
  const size_t L = m.config.layers, C = m.config.hidden, H = m.config.attention.H;
  require_stream(m);
  require_attention(m);

  Vector sink, sizes, norm_weight, pre_weight;
  for (const PlainModel::Layer& l : m.plain.layers) {
    for (const Vector& head : l.to_sink) sink.push_back(mean_of(head));
    append(sizes, {mean_size(l.before, 1)[0], NAN});
  }
  for (const std::string& name : norm_parameters) {
    for (double w : m.plain.w.at(name + "weight")) norm_weight.push_back(1 + w);
    append(pre_weight, m.plain.w.at(name + "pre_weight"));
  }
  m.require("sink_attention", {L, H}, sink);
  m.require("attention_output_mean", {L, 2}, sizes);
  m.require("norm_weight", {norm_names.size(), C}, norm_weight);
  m.require("pre_weight", {norm_names.size(), C}, pre_weight);
  const Arrays::Array& below = *m.arrays.find("attention_output_below");
  const size_t K = m.metadata("thresholds").size();
  for (size_t i = 0; i < below.values.size(); i++) REQUIRE(std::isnan(below.values[i]) == (i / K % 3 > 0));

  for (const char* name : {"gate_mean", "gate_histogram", "norm_gate_mean", "norm_gate_histogram"})
    REQUIRE(!m.arrays.find(name));
  for (const char* key : {"gates", "norm_gates"}) REQUIRE(m.metadata(key).empty());
  REQUIRE(!m.arrays.metadata.contains("gate_range"));
}

// ---- by hand

namespace {

// Of attention's gate over these logits, in a model of one layer.
Arrays arrays_of_gate(const std::string& flags, const std::vector<float>& z) {
  const ModelConfig config = small_model("--layers=1 --context=1 " + flags);
  ArrayMeter meter(config, Device::cpu);
  const std::vector<float> h(config.hidden);
  for (meter.layer = 0; meter.layer < 2; meter.layer++) {
    meter.state({h.data(), 1, 1, config.hidden});
    if (meter.layer == 0) meter.gate({config.attention.gate, z.data(), 1, z.size(), 1});
  }
  return meter.result();
}

}  // namespace

TEST_CASE("arrays: what a histogram of scores covers, and what lies outside", "[arrays]") {
  // Logits, the bin of half of their scores, and those of a quarter each. (Ranges are of both gates.)
  for (const auto& [flags, range, z, bins] :
       {std::tuple("--attn=g1", "[0.0,1.0]", std::vector<float>{0, 100, -100, -100}, std::array{0, 25, 49}),
        {"--attn=g1 --gate-act=identity --norm=gated --norm-gate-scale=0.5",
         "[-1.0,1.0]",
         {-7, -0.99f, 0.5f, 90},
         {0, 37, 49}},
        {"--attn=g1 --norm=gated --norm-rank=3 --norm-gate-scale=2", "[0.0,2.0]", {0, 9, -9, -9}, {0, 12, 24}},
        {"--attn=g1 --norm=gated --norm-rank=3 --norm-gate-act=tanh", "[-1.0,1.0]", {0, 9, -9, -9}, {25, 37, 49}}}) {
    INFO(flags);
    const Arrays arrays = arrays_of_gate(flags, z);
    const std::vector<float>& shares = arrays.find("gate_histogram")->values;
    REQUIRE(arrays.metadata.at("gate_range") == range);
    REQUIRE((shares[bins[0]] == 0.5f && shares[bins[1]] == 0.25f && shares[bins[2]] == 0.25f));
  }
}

TEST_CASE("arrays: the loss by position is printed by octaves, in lines that fit", "[arrays]") {
  Arrays arrays;
  arrays.list.push_back({"loss_by_position", {11}, {4, 3, 2, 1, 1, 1, 1, 2, 0.5f, 1, 0}});
  REQUIRE(loss_by_position_text(arrays, 200) ==
          "loss       after token 0: 4.000, 1: 3.000, 2-3: 1.500, 4-7: 1.250, 8-10: 0.500\n");
  for (const std::string& line : lines_of(loss_by_position_text(arrays, 40))) REQUIRE(line.size() <= 40);
}

// ---- every model

TEST_CASE("arrays: after a forward alone there is no loss by position", "[arrays]") {
  const ModelConfig config = small_model();
  Context ctx(Device::cpu);
  Model model(config, 2, config.context, 3, ctx);
  const std::vector<int> ids = some_ids(config.context, config.vocab, 5);
  const Batch batch = {ids, ids, 1, config.context};
  model.loss(batch);
  model.upload(batch);
  model.forward();
  ArrayMeter meter(config, ctx.device);
  model.inspect(meter);
  REQUIRE(!meter.result().find("loss_by_position"));
  REQUIRE(meter.result().find("final_output"));
}

TEST_CASE("arrays: every small model has those of its parts, and they and measures have the same bits on every device",
          "[bitwise]") {
  for (const std::string& flags : small_models()) {
    INFO(flags);
    const ModelConfig config = small_model(flags);
    std::optional<Arrays> expected;
    std::string measured;
    on_every_device([&](Context& ctx) {
      Meter meter(ctx.device);
      ArrayMeter array_meter(config, ctx.device);
      look_at(config, ctx, {&meter, &array_meter});
      const Arrays arrays = array_meter.result();
      const std::string entry = measures_entry(1, meter.result());
      if (!expected) expected = arrays, measured = entry;
      REQUIRE(entry == measured);
      REQUIRE(arrays.metadata == expected->metadata);
      REQUIRE(arrays.list.size() == expected->list.size());
      for (size_t i = 0; i < arrays.list.size(); i++) {
        INFO(arrays.list[i].name);
        REQUIRE(arrays.list[i].name == expected->list[i].name);
        REQUIRE(arrays.list[i].shape == expected->list[i].shape);
        REQUIRE(std::memcmp(arrays.list[i].values.data(), expected->list[i].values.data(),
                            arrays.list[i].values.size() * sizeof(float)) == 0);  // there are NaN
      }
    });
    const Arrays& arrays = *expected;
    const auto has = [&](const char* word) { return contains(flags, word); };
    const auto rows = [&](const char* name) {
      const Arrays::Array* found = arrays.find(name);
      return found ? found->shape[0] : 0;
    };
    const size_t A =
        size_t(config.attends(config.layers - 1)) * (config.mixer == MixerKind::hybrid ? 1 : config.layers);
    const size_t norms = has("--norm=none")                 ? 0
                         : has("--norm-placement=post")     ? 2 * config.layers
                         : has("--norm-placement=sandwich") ? 4 * config.layers + 1
                                                            : 2 * config.layers + 1;
    for (const char* name : {"attention_map", "first_token_attention", "value_norm", "attention_output_mean"})
      REQUIRE(rows(name) == A);
    REQUIRE(json::parse(arrays.metadata.at("attention_layers")).size() == A);
    REQUIRE(rows("sink_attention") == (has("--attn-sink=") ? A : 0));
    REQUIRE(rows("gate_histogram") == (has("--attn=g") ? A : 0));
    REQUIRE(rows("norm_weight") == norms);
    REQUIRE(rows("pre_weight") == (has("--norm=preaffine") ? norms : 0));
    REQUIRE(rows("norm_gate_mean") == (has("--norm=gated") ? norms : 0));
    REQUIRE(rows("loss_by_position") == config.context);
    REQUIRE(rows("final_output") == config.hidden);
    for (const Arrays::Array& a : arrays.list) {
      INFO(a.name);
      REQUIRE(a.values.size() == count(a.shape));
      const bool of_gate = a.name.starts_with("attention_output");
      for (float x : a.values) REQUIRE((std::isfinite(x) || (of_gate && (!has("--attn=g1") || has("--gate-op=add")))));
    }
  }
}

// ---- the file

TEST_CASE("arrays: the file holds what was measured, and takes the place of an older one", "[arrays]") {
  const Folder folder;
  Context ctx(Device::cpu);
  const RunMetadata run = {{"flag--attn", "g1"}, {"flag--lr", "0.5"}, {"flag--norm", "rmsnorm"}, {"data", "a text"}};
  const ModelConfig config = small_model("--attn=g1");
  ArrayMeter meter(config, ctx.device);
  look_at(config, ctx, {&meter});
  const Arrays arrays = meter.result();
  const std::string path = folder.write("measures.safetensors", "an older one");
  save_arrays(folder.path, arrays, 70, 1.25, run);

  TensorMap tensors;
  for (const Arrays::Array& a : arrays.list) tensors[a.name] = {"F32", a.shape, bytes_of(a.values)};
  REQUIRE(tensors.size() == arrays.list.size());
  REQUIRE(tensors_in(path) == tensors);
  std::map<std::string, std::string> metadata = arrays.metadata;
  // (the norm is at its default)
  metadata.merge(RunMetadata{{"step", "70"}, {"validation_loss", "1.25"}, {"flags", R"(["--attn=g1","--lr=0.5"])"}});
  REQUIRE(SafetensorsFile(path).header().metadata == metadata);
  REQUIRE(folder.names().size() == 1);

  fs::remove(path);
  fs::create_directory(path);
  CHECK_REFUSED(save_arrays(folder.path, arrays, 70, 1.25, run), "not a regular file");
  CHECK_REFUSED(save_arrays(folder / "missing", arrays, 70, 1.25, run), "missing/measures.safetensors");
}
