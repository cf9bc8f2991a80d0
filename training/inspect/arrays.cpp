#include "training/inspect/arrays.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "training/checkpoint/checkpoint.h"
#include "training/process/terminal.h"

namespace gated {

// training/inspect/arrays.h defines what these are of.
static constexpr size_t first_positions = 256, histogram_bins = 50;

// What the scores of a gate lie in; where they have no bounds, most of them.
static std::pair<double, double> range_of(const GateOp& op) {
  const bool positive = op.act == Activation::sigmoid || op.act == Activation::ns_sigmoid;
  const double scale = std::fabs(double(op.scale));
  return positive && op.scale > 0 ? std::pair(0.0, scale) : std::pair(-scale, scale);
}

static std::pair<double, double> gate_range(const ModelConfig& model) {
  std::pair<double, double> range = {0, 0};
  const auto include = [&](const GateOp& op) {
    const auto [low, high] = range_of(op);
    range = {std::min(range.first, low), std::max(range.second, high)};
  };
  if (model.attention.gate_at != GatePosition::none) include(model.attention.gate.op);
  if (model.norm.with_gate()) include(model.norm.gate.op);
  return range;
}

ArrayMeter::ArrayMeter(const ModelConfig& model, Device device)
    : model_(model),
      device_(device),
      T_(model.context),
      P_(std::min(T_, first_positions)),
      states_(model.layers + 1),
      final_output_(model.hidden) {
  for (State& s : states_) s = {Sums(P_ * model.hidden), Sums(model.hidden)};
  for (size_t i = 0; i < model.layers; i++)
    if (model.attends(i)) attention_layers_.push_back(i);
  const size_t H = model.attention.H, sinks = model.attention.sink == AttentionSink::none ? 0 : H;
  for (size_t i = 0; i < attention_layers_.size(); i++)
    attention_.push_back({.map = Sums(P_ * P_), .to_first = Sums(H), .to_sink = Sums(sinks), .value = Sums(T_)});
}

// ---- the stream, what is read from it, losses

void ArrayMeter::state(const StateView& view) {
  require(view.T == T_, "arrays: sequences of %zu tokens, expected the model's context, %zu", view.T, T_);
  if (layer == 0) sequences_ += view.B;
  State& s = states_[layer];
  const size_t C = view.C;
  const OnHost<float> h(device_, view.h, view.B * T_ * C);
  for (size_t n = 0; n < view.B * T_; n++)
    for (size_t c = 0; c < C; c++) {
      const double size = std::fabs(double(h[n * C + c]));
      s.by_dimension[c] += size;
      s.largest = std::max(s.largest, size);
      if (n % T_ < P_) s.by_token[n % T_ * C + c] += size;
    }
}

void ArrayMeter::output(const OutputView& view) {
  if (std::string_view(view.part) != "final_output") return;
  const OnHost<float> y(device_, view.y, view.N * view.C);
  for (size_t n = 0; n < view.N; n++)
    for (size_t c = 0; c < view.C; c++) final_output_[c] += std::fabs(double(y[n * view.C + c]));
}

void ArrayMeter::losses(const LossView& view) {
  const OnHost losses(device_, view.losses, view.B * view.T);
  losses_.resize(T_);
  for (size_t n = 0; n < view.B * view.T; n++) losses_[n % view.T] += double(losses[n]);
}

// ---- attention

void ArrayMeter::attention(const AttentionView& view) {
  const AttentionShape& s = view.shape;
  AttentionLayer& l = attention_[model_.attention_before(layer)];
  const AttentionWeights weights(view, device_);
  // A row is always the same thread's, which adds to it in the order of these loops, whatever the others are at.
#pragma omp parallel
  for (size_t b = 0; b < s.B; b++)
    for (size_t head = 0; head < s.H; head++)
#pragma omp for schedule(static, 1) nowait
      for (size_t i = 0; i < P_; i++)
        for (size_t j = s.first_key(i); j <= i; j++) l.map[i * P_ + j] += weights.key(b, head, i, j);

  const AttentionWeights::Sums sums = weights.to_first_and_sink();
  for (size_t i = 0; i < s.B * s.H; i++) {
    l.to_first[i % s.H] += sums.first[i];
    if (view.sink.logit) l.to_sink[i % s.H] += sums.sink[i];
  }

  const OnHost<float> v(device_, view.v, s.B * T_ * s.KVH * s.D);
  for (size_t row = 0; row < s.B * T_ * s.KVH; row++) l.value[row / s.KVH % T_] += length(&v[row * s.D], s.D);

  const OnHost<float> o(device_, view.o, s.B * T_ * s.H * s.D);
  add_outputs(l.before, o, 1);
  if (!view.o_gated) return;
  add_outputs(l.behind, OnHost<float>(device_, view.o_gated, s.B * T_ * s.H * s.D), 1);
  if (!model_.attention.gate.op.additive) add_outputs(l.scaled, o, l.gate.mean_of_batch);
}

void ArrayMeter::add_outputs(Outputs& to, const OnHost<float>& o, double factor) {
  for (float value : o) {
    const double size = std::fabs(double(value) * factor);
    to.size += size;
    to.count++;
    for (size_t k = to.below.size(); k-- > 0 && size < output_thresholds[k];) to.below[k]++;
  }
}

// ---- gates and norms

template <class View>
void ArrayMeter::add_scores(Scores& to, const View& view) const {
  const auto [low, high] = gate_range(model_);
  const double bins_a_unit = double(histogram_bins) / (high - low);
  double sum = 0;
  size_t count = 0;
  to.bins.resize(histogram_bins);
  each_score(view, device_, [&, low = low](double score) {
    const double bin = (score - low) * bins_a_unit;
    to.bins[bin >= double(histogram_bins) ? histogram_bins - 1 : bin > 0 ? size_t(bin) : 0]++;
    sum += score;
    count++;
  });
  to.sum += sum;
  to.count += count;
  to.mean_of_batch = sum / double(count);
}

void ArrayMeter::gate(const GateView& view) {
  add_scores(attention_[model_.attention_before(layer)].gate, view);
}

void ArrayMeter::norm(const NormView& view) {
  const std::string name =
      layer < model_.layers ? "layers." + std::to_string(layer) + "." + view.part : std::string(view.part);
  auto found = std::find_if(norms_.begin(), norms_.end(), [&](const NormLayer& norm) { return norm.name == name; });
  if (found == norms_.end()) {
    const OnHost weight(device_, view.weight, view.C), pre(device_, view.pre, view.pre ? view.C : 0);
    found = norms_.insert(found, {name, {weight.begin(), weight.end()}, {pre.begin(), pre.end()}, {}});
    for (float& w : found->weight) w += view.offset;
  }
  if (view.low) add_scores(found->gate, view);
}

// ---- the arrays

const Arrays::Array* Arrays::find(const std::string& name) const {
  const auto found = std::find_if(list.begin(), list.end(), [&](const Array& a) { return a.name == name; });
  return found == list.end() ? nullptr : &*found;
}

Arrays ArrayMeter::result() const {
  require(sequences_ > 0, "arrays: nothing was measured");
  const double sequences = double(sequences_), tokens = sequences * double(T_), queries = sequences * double(T_ - 1),
               H = double(model_.attention.H), KVH = double(model_.attention.KVH);
  Arrays arrays;
  // An array whose rows are those of a list, each the values that row(element) gives.
  const auto add = [&](const char* name, const auto& list, const Shape& shape_of_row, const auto& row) {
    Arrays::Array a = {name, {list.size()}, {}};
    a.shape.insert(a.shape.end(), shape_of_row.begin(), shape_of_row.end());
    for (const auto& element : list)
      for (double value : row(element)) a.values.push_back(float(value));
    if (!a.values.empty()) arrays.list.push_back(std::move(a));
  };
  const auto over = [](double count) { return [count](double sum) { return Sums{sum / count}; }; };
  const auto divided = [](const auto& sums, double count) {
    Sums means;
    for (const auto& sum : sums) means.push_back(double(sum) / count);
    return means;
  };

  add("loss_by_position", losses_, {}, over(sequences));
  add("final_output", final_output_, {}, over(tokens));
  const size_t C = model_.hidden;
  add("activation_by_token", states_, {P_, C}, [&](const State& s) { return divided(s.by_token, sequences); });
  add("activation_mean", states_, {C}, [&](const State& s) { return divided(s.by_dimension, tokens); });
  add("activation_largest", states_, {}, [](const State& s) { return Sums{s.largest}; });

  add("attention_map", attention_, {P_, P_}, [&](const auto& l) { return divided(l.map, sequences * H); });
  if (T_ > 1) {
    add("first_token_attention", attention_, {model_.attention.H},
        [&](const auto& l) { return divided(l.to_first, queries); });
    add("sink_attention", attention_, {model_.attention.H}, [&](const auto& l) { return divided(l.to_sink, queries); });
  }
  add("value_norm", attention_, {T_}, [&](const auto& l) { return divided(l.value, sequences * KVH); });
  // Shares of an output's values, or their mean; NaN where there is no such output.
  const auto of_output = [](const Outputs& o, double sum) { return o.count ? sum / double(o.count) : double(NAN); };
  add("attention_output_mean", attention_, {2}, [&](const auto& l) {
    return Sums{of_output(l.before, l.before.size), of_output(l.behind, l.behind.size)};
  });
  add("attention_output_below", attention_, {3, std::size(output_thresholds)}, [&](const auto& l) {
    Sums shares;
    for (const Outputs* o : {&l.before, &l.behind, &l.scaled})
      for (size_t below : o->below) shares.push_back(of_output(*o, double(below)));
    return shares;
  });

  std::vector<size_t> gates;
  std::vector<std::string> norms, norm_gates;
  std::vector<Scores> scores, norm_scores;
  for (size_t i = 0; i < attention_.size(); i++)
    if (attention_[i].gate.count > 0) gates.push_back(attention_layers_[i]), scores.push_back(attention_[i].gate);
  for (const NormLayer& norm : norms_) {
    norms.push_back(norm.name);
    if (norm.gate.count > 0) norm_gates.push_back(norm.name), norm_scores.push_back(norm.gate);
  }
  for (const auto& [name, list] : {std::pair(std::string("gate"), &scores), {"norm_gate", &norm_scores}}) {
    add((name + "_mean").c_str(), *list, {}, [](const Scores& s) { return Sums{s.sum / double(s.count)}; });
    add((name + "_histogram").c_str(), *list, {histogram_bins},
        [&](const Scores& s) { return divided(s.bins, double(s.count)); });
  }
  add("norm_weight", norms_, {C}, [](const NormLayer& norm) { return norm.weight; });
  add("pre_weight", norms_, {C}, [](const NormLayer& norm) { return norm.pre; });

  using Json = nlohmann::json;
  const auto [low, high] = gate_range(model_);
  arrays.metadata = {{"format", "gated.cu measures 1"},
                     {"context", std::to_string(T_)},
                     {"measured_tokens", std::to_string(sequences_ * T_)},
                     {"attention_layers", Json(attention_layers_).dump()},
                     {"gates", Json(gates).dump()},
                     {"norms", Json(norms).dump()},
                     {"norm_gates", Json(norm_gates).dump()},
                     {"thresholds", Json(output_thresholds).dump()}};
  if (high > low) arrays.metadata["gate_range"] = Json({low, high}).dump();
  if (model_.yarn != 1) arrays.metadata["yarn"] = format("%g", model_.yarn);
  const bool own = model_.context == model_.tokens_in_training() && model_.yarn == 1;
  arrays.file_name = "measures" + (own ? "" : format(".%zu", model_.context)) +
                     (model_.yarn == 1 ? "" : format(".yarn%g", model_.yarn)) + ".safetensors";
  return arrays;
}

// ---- on disk, and to read

void save_arrays(const std::string& folder, const Arrays& arrays, size_t step, double validation_loss,
                 const RunMetadata& run) {
  const std::string path = folder + "/" + arrays.file_name;
  std::map<std::string, std::string> metadata = arrays.metadata;
  metadata["step"] = std::to_string(step);
  metadata["validation_loss"] = nlohmann::json(validation_loss).dump();
  metadata["flags"] = nlohmann::json(changed_flags(run)).dump();
  std::vector<TensorView> tensors;
  for (const Arrays::Array& a : arrays.list) tensors.push_back({a.name, a.shape, a.values.data()});
  write_safetensors(path, tensors, metadata);
}

std::string loss_by_position_text(const Arrays& arrays, size_t width) {
  const std::vector<float>& losses = arrays.find("loss_by_position")->values;
  std::string text;
  for (size_t begin = 0, end = 1; begin < losses.size(); begin = end, end = 2 * end) {
    end = std::min(end, losses.size());
    double sum = 0;
    for (size_t i = begin; i < end; i++) sum += double(losses[i]);
    const std::string positions = end - begin == 1 ? std::to_string(begin) : format("%zu-%zu", begin, end - 1);
    text += format("%s%s: %.3f", begin ? ", " : "", positions.c_str(), sum / double(end - begin));
  }
  return wrapped(format("%-11s", "loss"), "after token " + text, 11, width);
}

}  // namespace gated
