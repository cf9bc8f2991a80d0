#include "training/measures.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/host_math.h"
#include "kernels/activation.h"
#include "kernels/matmul.h"

namespace gated {

namespace {

// training/measures.h defines what these are of.
constexpr double low_score = 0.1, massive_size = 100, massive_medians = 1000, sink_medians = 10;

// The middle one of n sizes |x|, the upper of two. The bits of floats that are not negative order as integers: the upper half
// of the bits of the middle one is counted out first, then the lower half among those that share it.
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

double dot(const float* a, const float* b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; i++) sum += double(a[i]) * double(b[i]);
  return sum;
}

double length(const float* x, size_t n) {
  return std::sqrt(dot(x, x, n));
}

// Of those that are no NaN; nothing where there are none.
std::optional<double> average(const std::vector<double>& values) {
  double sum = 0;
  size_t count = 0;
  for (double value : values)
    if (!std::isnan(value)) sum += value, count++;
  return count ? std::optional(sum / double(count)) : std::nullopt;
}

void keep_larger(Measures::Peak& peak, const Measures::Peak& other) {
  if (other.value > peak.value) peak = other;
}

}  // namespace

Meter::Layer& Meter::here() {
  if (layers_.size() <= layer) layers_.resize(layer + 1);
  return layers_[layer];
}

template <class T>
Meter::OnHost<T>::OnHost(Device device, const T* data, size_t n) : data_(data), n_(n) {
  if (device != Device::cuda) return;
  copy_.resize(n);
  Buffer<T>::copy_to_host(device, copy_.data(), data, n);
  data_ = copy_.data();
}

// ---- the residual stream

void Meter::state(const StateView& view) {
  Layer& l = here();
  const size_t N = view.B * view.T, C = view.C;
  const OnHost h = host(view.h, N * C);
  const double median = median_size(h.data(), N * C);
  const double is_massive = std::max(massive_size, massive_medians * median), is_large = sink_medians * median;
  l.large.resize(C);
  l.size.resize(C);
  for (size_t n = 0; n < N; n++)
    for (size_t c = 0; c < C; c++) {
      const double size = std::fabs(double(h[n * C + c]));
      const Measures::Peak peak = {size, layer, n % view.T, c};
      keep_larger(l.largest, peak);
      if (peak.token > 0) keep_larger(l.behind_first, peak);
      massive_ += size > is_massive;
      l.large[c] += size > is_large;
      l.size[c] += size;
    }
  if (layer == 0) tokens_ += N;
  context_ = view.T;
}

// ---- attention

void Meter::attention(const AttentionView& view) {
  Layer& l = here();
  const AttentionShape& s = view.shape;
  const size_t N = s.B * s.T, stats = s.B * s.H * s.T;
  const OnHost q = host(view.q, N * s.H * s.D), k = host(view.k, N * s.KVH * s.D), v = host(view.v, N * s.KVH * s.D),
               lse = host(view.lse, stats),
               logit = host(view.sink.logit, !view.sink.logit      ? 0
                                             : view.sink.per_query ? stats
                                                                   : s.H);
  const Sink sink = {logit.empty() ? nullptr : logit.data(), view.sink.per_query};
  const double scale = 1 / std::sqrt(double(s.D));
  l.to_first.resize(s.H);
  std::vector<double> first(s.B * s.H), to_sink(s.B * s.H);
#pragma omp parallel for collapse(2)
  for (size_t b = 0; b < s.B; b++)
    for (size_t head = 0; head < s.H; head++)
      for (size_t i = 1; i < s.T; i++) {
        const double total = double(lse[s.stat(b, head, i)]);
        to_sink[b * s.H + head] += sink.logit ? host_exp(double(sink.logit_of(s, b, head, i)) - total) : 0;
        if (!s.visible(i, 0)) continue;
        const double score = scale * dot(&q[s.q_row(b, i, head)], &k[s.kv_row(b, 0, head / s.group())], s.D);
        first[b * s.H + head] += s.sigmoid() ? 1 / (1 + host_exp(-(score + double(s.bias)))) : host_exp(score - total);
      }
  for (size_t b = 0; b < s.B; b++)
    for (size_t head = 0; head < s.H; head++) {
      l.to_first[head].add(first[b * s.H + head], s.T - 1);
      if (sink.logit) l.to_sink.add(to_sink[b * s.H + head], s.T - 1);
    }
  for (size_t n = 0; n < N; n++)
    for (size_t head = 0; head < s.KVH; head++)
      (n % s.T ? l.other_value : l.first_value).add(length(&v[(n * s.KVH + head) * s.D], s.D));
  outputs(l.output, view.o, N * s.H * s.D);
  if (view.o_gated) outputs(l.output_gated, view.o_gated, N * s.H * s.D);
}

void Meter::outputs(Outputs& to, const float* data, size_t n) const {
  for (float value : host(data, n)) {
    const double size = std::fabs(double(value));
    to.size.add(size);
    to.below_1e2.add(size < 1e-2);
    to.below_1e3.add(size < 1e-3);
  }
}

// ---- gates and norms

// z (rows,columns) becomes the scores that the model made of it.
void Meter::scores(Scores& to, std::vector<float>& z, size_t columns, size_t heads_averaged, const GateOp& op) {
  gate_scores_cpu(z.data(), z.data(), z.size(), op);
  const size_t heads = heads_averaged, width = columns / heads;
  for (size_t row = 0; row < z.size(); row += columns)
    for (size_t i = 0; i < width; i++) {
      double score = 0;
      for (size_t head = 0; head < heads; head++) score += double(z[row + head * width + i]);
      score /= double(heads);
      to.score.add(score);
      to.below.add(std::fabs(score) < low_score);
    }
}

void Meter::gate(const GateView& view) {
  const OnHost logits = host(view.z, view.rows * view.columns);
  std::vector<float> z(logits.begin(), logits.end());
  scores(here().gate, z, view.columns, view.heads_averaged, view.config.op);
}

void Meter::norm(const NormView& view) {
  const auto furthest = [&](std::optional<Measures::NormWeight>& to, const float* data, float offset) {
    const OnHost w = host(data, view.C);
    for (size_t c = 0; c < view.C; c++) {
      const double value = double(offset) + double(w[c]);
      if (!to || std::fabs(value - 1) > std::fabs(to->value - 1)) to = Measures::NormWeight{value, layer, c, view.name};
    }
  };
  furthest(norm_weight_, view.weight, view.offset);
  if (view.pre) furthest(pre_weight_, view.pre, 0);
  if (!view.low) return;

  const size_t N = view.gate.N, rank = view.gate.rank, columns = view.gate.scores();
  const OnHost low = host(view.low, N * rank), up = host(view.up, columns * rank);
  std::vector<float> a(N * rank), z(N * columns);
  activation_forward_cpu(a.data(), low.data(), a.size(), Activation::silu);
  matmul_cpu(z.data(), a.data(), up.data(), N, columns, rank, Layout::nt, Accumulate::no);
  scores(here().norm_gate, z, columns, 1, view.gate.op);
}

// ---- linear attention, experts

void Meter::linear_attention(const LinearAttentionView& view) {
  Layer& l = here();
  const GatedDeltaShape& s = view.shape;
  const size_t n = s.B * s.T * s.Hv;
  for (float g : host(view.g, n)) l.decay.add(host_exp(double(g)));
  for (float beta : host(view.beta, n)) l.beta.add(double(beta));
  if (s.kept() == 0) return;
  const OnHost states = host(view.kept, s.kept_size());
  for (size_t b = 0; b < s.B; b++)
    for (size_t head = 0; head < s.Hv; head++)
      l.state_norm.add(length(&states[s.kept_state(b, head, s.kept() - 1)], s.Dk * s.Dv));
}

void Meter::routing(const RoutingView& view) {
  Layer& l = here();
  l.slots.resize(view.shape.E);
  for (int expert : host(view.expert, view.shape.N * view.shape.k)) l.slots[size_t(expert)]++;
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
  return m;
}

Measures::Residual Meter::residual() const {
  Measures::Residual r;
  r.massive = massive_;
  std::vector<double> size(layers_[0].size.size());
  std::vector<bool> sinks(size.size());
  for (const Layer& l : layers_) {
    keep_larger(r.largest, l.largest);
    keep_larger(r.behind_first, l.behind_first);
    r.largest_by_state.push_back(l.largest.value);
    for (size_t c = 0; c < size.size(); c++) {
      size[c] += l.size[c];
      sinks[c] = sinks[c] || 2 * l.large[c] > tokens_;
    }
  }
  std::vector<size_t>& dimensions = r.sink_dimensions;
  for (size_t c = 0; c < sinks.size(); c++)
    if (sinks[c]) dimensions.push_back(c);
  std::stable_sort(dimensions.begin(), dimensions.end(), [&](size_t a, size_t b) { return size[a] > size[b]; });
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
  Mean even;
  for (size_t i = 1; i < context_; i++) even.add(1 / double(i + 1));
  a.even = even.value();
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
