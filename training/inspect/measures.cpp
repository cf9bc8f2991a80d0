#include "training/inspect/measures.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "core/host_math.h"
#include "training/inspect/inspection.h"

namespace gated {

namespace {

// training/inspect/measures.h defines what these are of.
constexpr double low_score = 0.1, massive_size = 100, massive_medians = 1000, sink_medians = 10, outlier_medians = 10;
constexpr size_t outlier_dimensions = 3;

// The middle one of n sizes |x|, the upper of two. The bits of floats that are not negative order as integers: the
// upper half of the bits of the middle one is counted out first, then the lower half among those that share it.
double median_size(const float* x, size_t n) {
  const auto bits = [x](size_t i) { return __builtin_bit_cast(uint32_t, x[i]) & 0x7FFFFFFF; };
  std::vector<size_t> counts(65536);
  size_t rank = n / 2;
  const auto count_out = [&] {
    uint32_t value = 0;
    while (rank >= counts[value]) rank -= counts[value++];
    return value;
  };
  for (size_t i = 0; i < n; i++) counts[bits(i) >> 16]++;
  const uint32_t upper = count_out();
  std::fill(counts.begin(), counts.end(), 0);
  for (size_t i = 0; i < n; i++)
    if (bits(i) >> 16 == upper) counts[bits(i) & 65535]++;
  return double(__builtin_bit_cast(float, upper << 16 | count_out()));
}

// Of those that are no NaN; nothing where there are none.
std::optional<double> average(const std::vector<double>& values) {
  double sum = 0;
  size_t count = 0;
  for (double value : values)
    if (!std::isnan(value)) sum += value, count++;
  return count ? std::optional(sum / double(count)) : std::nullopt;
}

// The dimensions, those of the largest values first.
std::vector<size_t> by_size(const std::vector<double>& values) {
  std::vector<size_t> dimensions(values.size());
  std::iota(dimensions.begin(), dimensions.end(), size_t{0});
  std::stable_sort(dimensions.begin(), dimensions.end(), [&](size_t a, size_t b) { return values[a] > values[b]; });
  return dimensions;
}

// What the three largest of all make up.
double sharpness_of(const std::vector<double>& sizes) {
  const std::vector<size_t> dimensions = by_size(sizes);
  double largest = 0;
  for (size_t i = 0; i < std::min(outlier_dimensions, sizes.size()); i++) largest += sizes[dimensions[i]];
  return largest / std::accumulate(sizes.begin(), sizes.end(), 0.0);
}

double massive_above(double median) {
  return std::max(massive_size, massive_medians * median);
}

void keep_larger(Measures::Peak& peak, const Measures::Peak& other) {
  if (other.value > peak.value) peak = other;
}

}  // namespace

Meter::Layer& Meter::here() {
  if (layers_.size() <= layer) layers_.resize(layer + 1);
  return layers_[layer];
}

// ---- the residual stream

void Meter::Dimensions::add(const float* row) {
  for (size_t c = 0; c < size.size(); c++) size[c] += std::fabs(double(row[c]));
  tokens++;
}

void Meter::state(const StateView& view) {
  Layer& l = here();
  const size_t N = view.B * view.T, C = view.C;
  const OnHost<float> h(device_, view.h, N * C);
  const double median = median_size(h.data(), N * C), is_massive = massive_above(median),
               is_large = sink_medians * median;
  l.large.resize(C);
  l.size.resize(C);
  l.top_of.resize(C);
  l.median.add(median);
  l.usual.size.resize(C);
  massive_tokens_.resize(N);
  for (size_t n = 0; n < N; n++) {
    const size_t massive_before = massive_;
    size_t top = 0;
    for (size_t c = 0; c < C; c++) {
      const double size = std::fabs(double(h[n * C + c]));
      if (size > std::fabs(double(h[n * C + top]))) top = c;
      const Measures::Peak peak = {size, layer, n % view.T, c};
      keep_larger(l.largest, peak);
      if (peak.token > 0) keep_larger(l.behind_first, peak);
      massive_ += size > is_massive;
      l.large[c] += size > is_large;
      l.size[c] += size;
    }
    l.top_of[top]++;
    massive_tokens_[n] = massive_ > massive_before;
    if (!massive_tokens_[n]) l.usual.add(&h[n * C]);
  }
  if (layer == 0) tokens_ += N;
  context_ = view.T;
}

void Meter::output(const OutputView& view) {
  const size_t N = view.N, C = view.C;
  require(N == massive_tokens_.size(), "measures: an output of %zu tokens, a state of %zu", N, massive_tokens_.size());
  const OnHost<float> y(device_, view.y, N * C);
  const double is_massive = massive_above(median_size(y.data(), N * C));
  Dimensions& usual = here().outputs[view.part];
  usual.size.resize(C);
  for (size_t n = 0; n < N; n++) {
    const float* row = &y[n * C];
    const bool massive = std::any_of(row, row + C, [=](float x) { return std::fabs(double(x)) > is_massive; });
    if (!massive && !massive_tokens_[n]) usual.add(row);
  }
}

// ---- attention

void Meter::attention(const AttentionView& view) {
  Layer& l = here();
  const AttentionShape& s = view.shape;
  const AttentionWeights::Sums sums = AttentionWeights(view, device_).to_first_and_sink();
  l.to_first.resize(s.H);
  for (size_t b = 0; b < s.B; b++)
    for (size_t head = 0; head < s.H; head++) {
      l.to_first[head].add(sums.first[b * s.H + head], s.T - 1);
      if (view.sink.logit) l.to_sink.add(sums.sink[b * s.H + head], s.T - 1);
    }
  Mean even;
  for (size_t i = 1; i < s.T; i++) even.add(s.first_key(i) == 0 ? 1 / double(i + 1) : 0);
  l.even = even.value();
  const size_t N = s.B * s.T;
  const OnHost<float> v(device_, view.v, N * s.KVH * s.D);
  for (size_t n = 0; n < N; n++)
    for (size_t head = 0; head < s.KVH; head++)
      (n % s.T ? l.other_value : l.first_value).add(length(&v[(n * s.KVH + head) * s.D], s.D));
  outputs(l.output, view.o, N * s.H * s.D);
  if (view.o_gated) outputs(l.output_gated, view.o_gated, N * s.H * s.D);
}

void Meter::outputs(Outputs& to, ConstReals data, size_t n) const {
  for (float value : OnHost<float>(device_, data, n)) {
    const double size = std::fabs(double(value));
    to.size.add(size);
    to.below_1e2.add(size < 1e-2);
    to.below_1e3.add(size < 1e-3);
  }
}

// ---- gates and norms

void Meter::Scores::add(double value) {
  score.add(value);
  below.add(std::fabs(value) < low_score);
}

void Meter::gate(const GateView& view) {
  Scores& scores = here().gate;
  each_score(view, device_, [&](double score) { scores.add(score); });
}

void Meter::norm(const NormView& view) {
  const auto furthest = [&](std::optional<Measures::NormWeight>& to, const float* data, float offset) {
    const OnHost w(device_, data, view.C);
    for (size_t c = 0; c < view.C; c++) {
      const double value = double(offset) + double(w[c]);
      if (!to || std::fabs(value - 1) > std::fabs(to->value - 1)) to = Measures::NormWeight{value, layer, c, view.name};
    }
  };
  furthest(norm_weight_, view.weight, view.offset);
  std::vector<double>& sizes = here().weights.emplace_back();
  for (float w : OnHost(device_, view.weight, view.C)) sizes.push_back(std::fabs(double(view.offset) + double(w)));
  if (view.pre) furthest(pre_weight_, view.pre, 0);
  if (!view.low) return;
  Scores& scores = here().norm_gate;
  each_score(view, device_, [&](double score) { scores.add(score); });
}

// ---- linear attention, experts

void Meter::linear_attention(const LinearAttentionView& view) {
  Layer& l = here();
  const GatedDeltaShape& s = view.shape;
  const size_t n = s.B * s.T * s.Hv;
  for (float g : OnHost(device_, view.g, n)) l.decay.add(host_exp(double(g)));
  for (float beta : OnHost(device_, view.beta, n)) l.beta.add(double(beta));
  if (s.kept() == 0) return;
  const size_t size = s.Dk * s.Dv, heads = s.B * s.Hv;
  const OnHost<float> states(device_, view.kept, heads * view.states * size);
  for (size_t head = 0; head < heads; head++)
    l.state_norm.add(length(&states[((head + 1) * view.states - 1) * size], size));
}

void Meter::routing(const RoutingView& view) {
  Layer& l = here();
  l.slots.resize(view.shape.E);
  for (int expert : OnHost(device_, view.expert, view.shape.N * view.shape.k)) l.slots[size_t(expert)]++;
}

// ---- the figures

// Of every block; NaN where it has none.
template <class Value>
std::vector<double> Meter::by_layer(Value value) const {
  std::vector<double> values;
  for (size_t i = 0; i + 1 < layers_.size(); i++) values.push_back(value(layers_[i]));
  return values;
}

Measures Meter::result() const {
  require(!layers_.empty() && tokens_ > 0, "measures: nothing was measured");
  Measures m;
  m.tokens = tokens_;
  m.context = context_;
  m.layers = layers_.size() - 1;
  m.residual = residual();
  if (context_ > 1) m.attention = attention();
  m.output = output(&Layer::output);
  m.output_gated = output(&Layer::output_gated);
  m.gate = gate(&Layer::gate);
  m.norm_gate = gate(&Layer::norm_gate);
  m.norm_weight = norm_weight_;
  m.pre_weight = pre_weight_;
  const auto decay = average(by_layer([](const Layer& l) { return l.decay.value(); }));
  const auto beta = average(by_layer([](const Layer& l) { return l.beta.value(); }));
  const auto state = average(by_layer([](const Layer& l) { return l.state_norm.value(); }));
  if (decay) m.linear = {*decay, *beta, state};
  m.experts = experts();
  for (const Layer& l : layers_) m.outliers.push_back(outliers(l));
  std::set<std::string> parts;
  for (size_t i = 0; i + 1 < layers_.size(); i++)
    for (const auto& [part, sums] : layers_[i].outputs) parts.insert(part);
  for (const std::string& part : parts)
    m.sharpness[part] = by_layer([&](const Layer& l) {
      const auto found = l.outputs.find(part);
      return found == l.outputs.end() ? double(NAN) : sharpness_of(found->second.size);
    });
  const Layer& last = layers_.back();
  if (const auto found = last.outputs.find("final_output"); found != last.outputs.end())
    for (double sum : found->second.size) m.final_output.push_back(sum / double(found->second.tokens));
  return m;
}

bool Measures::has_outlier() const {
  return std::any_of(outliers.begin(), outliers.end(),
                     [](const Outliers& o) { return o.sizes[0] > outlier_medians * o.median; });
}

Measures::Outliers Meter::outliers(const Layer& l) const {
  const std::vector<size_t> dimensions = by_size(l.usual.size);
  const auto mean = [&](size_t c) { return l.usual.size[c] / double(l.usual.tokens); };
  Measures::Outliers o;
  o.median = mean(dimensions[(dimensions.size() - 1) / 2]);
  for (size_t i = 0; i < std::min(outlier_dimensions, dimensions.size()); i++) {
    o.dimensions.push_back(dimensions[i]);
    o.sizes.push_back(mean(dimensions[i]));
  }
  return o;
}

Measures::Residual Meter::residual() const {
  Measures::Residual r;
  r.massive = massive_;
  std::vector<double> size(layers_[0].size.size());
  std::vector<bool> sinks(size.size());
  for (const Layer& l : layers_) {
    r.peak_over_median = std::max(r.peak_over_median, l.largest.value / l.median.value());
    keep_larger(r.largest, l.largest);
    keep_larger(r.behind_first, l.behind_first);
    r.largest_by_state.push_back(l.largest.value);
    for (size_t c = 0; c < size.size(); c++) {
      size[c] += l.size[c];
      sinks[c] = sinks[c] || 2 * l.large[c] > tokens_;
    }
  }
  const std::vector<size_t> ordered = by_size(size);
  r.top = ordered[0];
  r.top_over_median = size[r.top] / size[ordered[(ordered.size() - 1) / 2]];
  for (const Layer& l : layers_) {
    const size_t top = by_size(l.size)[0];
    r.top_of_tokens += double(l.top_of[r.top]) / double(tokens_ * layers_.size());
    r.top_of_states += double(top == r.top) / double(layers_.size());
    Mean at_top;
    for (const std::vector<double>& weights : l.weights)
      at_top.add(weights[top] * double(weights.size()) / std::accumulate(weights.begin(), weights.end(), 0.0));
    r.weight_at_top_by_layer.push_back(at_top.value());
  }
  for (const size_t c : ordered)
    if (sinks[c]) r.sink_dimensions.push_back(c);
  return r;
}

std::optional<Measures::Attention> Meter::attention() const {
  Measures::Attention a;
  a.first_token_by_layer = by_layer([](const Layer& l) {
    Mean all;
    for (const Mean& head : l.to_first) all.add(head.value());
    return all.value();
  });
  const auto first_token = average(a.first_token_by_layer);
  if (!first_token) return {};
  a.first_token = *first_token;
  for (size_t i = 0; i < layers_.size(); i++)
    for (size_t head = 0; head < layers_[i].to_first.size(); head++) {
      const double mean = layers_[i].to_first[head].value();
      if (mean > a.largest_head) a.largest_head = mean, a.layer = i, a.head = head;
    }
  a.sink = average(by_layer([](const Layer& l) { return l.to_sink.value(); }));
  a.first_value = *average(by_layer([](const Layer& l) { return l.first_value.value() / l.other_value.value(); }));
  a.even = *average(by_layer([](const Layer& l) { return l.even; }));
  return a;
}

std::optional<Measures::Output> Meter::output(Outputs Layer::*outputs) const {
  const auto size = average(by_layer([&](const Layer& l) { return (l.*outputs).size.value(); }));
  if (!size) return {};
  return Measures::Output{*size, *average(by_layer([&](const Layer& l) { return (l.*outputs).below_1e2.value(); })),
                          *average(by_layer([&](const Layer& l) { return (l.*outputs).below_1e3.value(); }))};
}

std::optional<Measures::Gate> Meter::gate(Scores Layer::*scores) const {
  Measures::Gate gate;
  Mean score, below;
  for (const Layer& l : layers_) {
    const Scores& here = l.*scores;
    gate.mean_by_layer.push_back(here.score.value());
    score.add(here.score.sum, here.score.count);
    below.add(here.below.sum, here.below.count);
  }
  if (score.count == 0) return {};
  gate.mean = score.value();
  gate.below = below.value();
  return gate;
}

std::optional<Measures::Experts> Meter::experts() const {
  Measures::Experts e;
  const auto entropy = average(by_layer([&](const Layer& l) {
    if (l.slots.empty()) return double(NAN);
    const double all = double(std::accumulate(l.slots.begin(), l.slots.end(), size_t{0}));
    double entropy = 0;
    for (size_t slots : l.slots) {
      const double share = double(slots) / all;
      e.busiest = std::max(e.busiest, share);
      if (slots > 0) entropy -= share * host_log(share);
      e.idle += slots == 0;
    }
    e.experts = l.slots.size();
    return entropy;
  }));
  if (!entropy) return {};
  e.entropy = *entropy;
  return e;
}

}  // namespace gated
