// measures_text: measures as a line of the log, and as lines to read.
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "training/inspect/measures.h"
#include "training/process/terminal.h"

namespace gated {

using Json = nlohmann::ordered_json;

static Json place_of(const Measures::Peak& peak) {
  return {{"state", peak.state}, {"token", peak.token}, {"dimension", peak.dimension}};
}

// With four digits: of long lists, which a picture shows.
static double shortened(double value) {
  return std::strtod(format("%.4g", value).c_str(), nullptr);
}

std::string measures_entry(size_t step, const Measures& m) {
  Json entry = {{"step", step}, {"measured_tokens", m.tokens}};
  if (m.attention) {
    const Measures::Attention& a = *m.attention;
    entry["first_token_attention"] = a.first_token;
    entry["first_token_attention_even"] = a.even;
    entry["first_token_attention_by_layer"] = a.first_token_by_layer;
    entry["first_token_attention_largest"] = a.largest_head;
    entry["first_token_attention_largest_at"] = {{"layer", a.layer}, {"head", a.head}};
    entry["first_token_value_norm"] = a.first_value;
    if (a.sink) entry["sink_attention"] = *a.sink;
  }
  const Measures::Residual& r = m.residual;
  entry["largest_activation"] = r.largest.value;
  entry["largest_activation_at"] = place_of(r.largest);
  entry["largest_activation_by_state"] = r.largest_by_state;
  if (m.context > 1) {
    entry["largest_activation_behind_first"] = r.behind_first.value;
    entry["largest_activation_behind_first_at"] = place_of(r.behind_first);
  }
  entry["peak_over_median"] = r.peak_over_median;
  entry["massive_activations"] = r.massive;
  entry["top_dimension"] = r.top;
  entry["top_dimension_over_median"] = r.top_over_median;
  entry["top_dimension_of_tokens"] = r.top_of_tokens;
  entry["top_dimension_of_states"] = r.top_of_states;
  entry["norm_weight_at_top_by_layer"] = r.weight_at_top_by_layer;
  entry["residual_sink_dimensions"] = r.sink_dimensions;
  const auto of_states = [&](auto value) {
    Json values = Json::array();
    for (const Measures::Outliers& o : m.outliers) values.push_back(value(o));
    return values;
  };
  entry["outliers_by_state"] = of_states([](const Measures::Outliers& o) { return o.dimensions; });
  entry["outlier_sizes_by_state"] = of_states([](const Measures::Outliers& o) { return o.sizes; });
  entry["median_by_state"] = of_states([](const Measures::Outliers& o) { return o.median; });
  entry["first_outlier_step"] = m.first_outlier_step ? Json(*m.first_outlier_step) : Json();
  entry["sharpness_3"] = m.sharpness;
  if (!m.final_output.empty()) {
    Json sizes = Json::array();
    for (double size : m.final_output) sizes.push_back(shortened(size));
    entry["final_output_by_dimension"] = sizes;
  }
  if (!m.gradient_norm_by_layer.empty()) entry["gradient_norm_by_layer"] = m.gradient_norm_by_layer;
  const auto output = [&](const std::string& name, const std::optional<Measures::Output>& o) {
    if (!o) return;
    entry[name + "_mean"] = o->mean;
    entry[name + "_below_0.01"] = o->below_1e2;
    entry[name + "_below_0.001"] = o->below_1e3;
  };
  output("attention_output", m.output);
  output("attention_output_gated", m.output_gated);
  const auto gate = [&](const std::string& name, const std::optional<Measures::Gate>& g, size_t layers) {
    if (!g) return;
    entry[name + "_score_mean"] = g->mean;
    entry[name + "_score_mean_by_layer"] =
        std::vector<double>(g->mean_by_layer.begin(), g->mean_by_layer.begin() + std::ptrdiff_t(layers));
    entry[name + "_score_below_0.1"] = g->below;
  };
  gate("gate", m.gate, m.layers);
  gate("norm_gate", m.norm_gate, m.layers + 1);
  const auto weight = [&](const std::string& name, const std::optional<Measures::NormWeight>& w) {
    if (!w) return;
    entry[name] = w->value;
    entry[name + "_at"] = {{"layer", w->layer}, {"norm", w->norm}, {"dimension", w->dimension}};
  };
  weight("norm_weight_furthest", m.norm_weight);
  weight("pre_weight_furthest", m.pre_weight);
  if (m.linear) {
    entry["decay_mean"] = m.linear->decay;
    entry["beta_mean"] = m.linear->beta;
    if (m.linear->state) entry["state_norm"] = *m.linear->state;
  }
  if (m.experts) {
    entry["busiest_expert"] = m.experts->busiest;
    entry["routing_entropy"] = m.experts->entropy;
    entry["idle_experts"] = m.experts->idle;
  }
  return entry.dump();
}

std::string measures_text(const Measures& m, size_t width) {
  std::string text;
  const auto line = [&](const char* name, const std::string& what) {
    text += wrapped(format("%-11s", name), what, 11, width);
  };
  line("measures",
       format("of %zu tokens of validation data; layers, heads, tokens and dimensions count from 0", m.tokens));
  const auto percent = [](double share) { return format("%.1f %%", 100 * share); };
  if (m.attention) {
    const Measures::Attention& a = *m.attention;
    line("attention",
         format("to token 0: %s (spread evenly: %s); most in head %zu of layer %zu: %s", percent(a.first_token).c_str(),
                percent(a.even).c_str(), a.head, a.layer, percent(a.largest_head).c_str()));
    if (a.sink) line("", "to the learned sink: " + percent(*a.sink));
    line("", format("length of v at token 0: %.2f of that at the others", a.first_value));
  }
  if (m.output) {
    const auto shares = [&](const Measures::Output& o) {
      return percent(o.below_1e2) + " below 0.01, " + percent(o.below_1e3) + " below 0.001";
    };
    line("", format("output: mean %.3f, %s", m.output->mean, shares(*m.output).c_str()));
    if (m.output_gated)
      line("", format("gated:  mean %.3f, %s", m.output_gated->mean, shares(*m.output_gated).c_str()));
  }
  if (m.gate) line("gate", format("mean score %.3f, %s below 0.1", m.gate->mean, percent(m.gate->below).c_str()));
  if (m.linear) {
    line("linear", format("mean decay %.3f, mean beta %.3f", m.linear->decay, m.linear->beta) +
                       (m.linear->state ? format(", length of a state %.3f", *m.linear->state) : ""));
  }
  const auto name_of_state = [](size_t state) {
    return state == 0 ? "the embedding" : format("the stream after layer %zu", state - 1);
  };
  const auto where = [&](const Measures::Peak& p) {
    return format("%.4g at token %zu, dimension %zu of %s", p.value, p.token, p.dimension,
                  name_of_state(p.state).c_str());
  };
  const Measures::Residual& r = m.residual;
  line("residual", "largest |h|: " + where(r.largest));
  if (m.context > 1 && r.largest.token == 0) line("", "without token 0: " + where(r.behind_first));
  line("", format("peak: %.1f times the median of its state; massive activations: %zu", r.peak_over_median, r.massive));
  std::string weights;
  for (size_t l = 0; l < r.weight_at_top_by_layer.size(); l++)
    if (!std::isnan(r.weight_at_top_by_layer[l])) weights += format(" %.2f", r.weight_at_top_by_layer[l]);
  line("", format("top dimension: %zu, %.1f times the median one; the largest on %s of the tokens, in %s of the states",
                  r.top, r.top_over_median, percent(r.top_of_tokens).c_str(), percent(r.top_of_states).c_str()));
  if (!weights.empty()) line("", "norms' weight at the top dimension over their mean, by layer:" + weights);
  std::string dimensions;
  for (size_t i = 0; i < r.sink_dimensions.size() && i < 8; i++)
    dimensions += format(i ? ", %zu" : "%zu", r.sink_dimensions[i]);
  if (r.sink_dimensions.size() > 8) dimensions += ", ...";
  line("", format("residual-sink dimensions: %zu", r.sink_dimensions.size()) +
               (dimensions.empty() ? "" : " (" + dimensions + ")"));
  size_t state = 0;  // whose largest dimension stands out most; NaN never does
  const auto medians = [&](size_t s) { return m.outliers[s].sizes[0] / m.outliers[s].median; };
  for (size_t s = 0; s < m.outliers.size(); s++)
    if (medians(s) > medians(state) || std::isnan(medians(state))) state = s;
  if (!std::isnan(medians(state)))
    line("", format("dimension furthest above the median: %zu of %s, %.1f times%s", m.outliers[state].dimensions[0],
                    name_of_state(state).c_str(), medians(state),
                    m.first_outlier_step ? format("; above 10 since step %zu", *m.first_outlier_step).c_str() : ""));
  const auto weight = [&](const char* what, const Measures::NormWeight& w) {
    const std::string norm =
        w.layer == m.layers ? "the final norm" : format("%s of layer %zu", w.norm.c_str(), w.layer);
    return format("%s furthest from 1: %.3f at dimension %zu of %s", what, w.value, w.dimension, norm.c_str());
  };
  if (m.norm_weight) line("norms", weight("weight", *m.norm_weight));
  if (m.pre_weight) line("", weight("weight before the norm", *m.pre_weight));
  if (m.norm_gate)
    line("", format("gate: mean score %.3f, %s below 0.1", m.norm_gate->mean, percent(m.norm_gate->below).c_str()));
  if (m.experts)
    line("experts", format("busiest %s, entropy %.2f of %.2f nats, idle %zu", percent(m.experts->busiest).c_str(),
                           m.experts->entropy, std::log(double(m.experts->experts)), m.experts->idle));
  return text;
}

}  // namespace gated
