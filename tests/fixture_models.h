// fixture_models: what a model makes of weights and tokens that scripts make from the same names.
#pragma once
#include <map>

#include "tests/fixtures.h"
#include "tests/small_models.h"

namespace gated {

// In their flat order: around 1 where a parameter scales, around 0 elsewhere.
inline std::vector<float> fixture_weights(const Model& model) {
  std::vector<float> flat(model.weights.flat_size(), 0.0f);
  for (const Parameter& p : model.weights.list()) {
    const bool scales = p.name.ends_with("pre_weight") || p.name.ends_with("alpha") ||
                        p.name.ends_with("embed_scale") || p.name.ends_with("linear_attn.norm.weight") ||
                        (p.name.ends_with("norm.weight") && !model.config.norm.zero_centred);
    const std::vector<float> w = values_of<float>(p.name, p.size, 0.25f);
    for (size_t i = 0; i < p.size; i++) flat[p.offset + i] = w[i] + float(scales);
  }
  return flat;
}

// Of two sequences: the loss, the logits behind each, and the gradients by name.
inline std::map<std::string, std::vector<float>> results_of(Model& model, Context& ctx) {
  const size_t B = 2, T = model.config.context, vocab = model.config.vocab;
  const auto ids = tokens_of("ids", B * T, vocab), targets = tokens_of("targets", B * T, vocab);
  const float loss = forward_backward(model, {ids, targets, B, T}, ctx);
  auto results = by_name(model.weights, model.weights.grads);
  results["loss"] = {loss};
  for (size_t b = 0; b < B; b++)
    for (float x : model.next_token_logits({&ids[b * T], &ids[b * T] + T})) results["logits"].push_back(x);
  return results;
}

// Is x what a fixture has stored of it? Adding to all scores of a query changes nothing: the gradient of a key's bias,
// without QK-norm and RoPE, is 0.
inline void require_near(const std::string& name, const Numbers& expected, const std::vector<float>& x, double bound) {
  INFO(name);
  const Numbers here = stored(name, {x.begin(), x.end()}, expected.size());
  if (std::sqrt(dot(expected, expected)) < 1e-12)
    REQUIRE(std::sqrt(dot(here, here)) < 1e-6);
  else
    REQUIRE(relative_error(expected, here) <= bound);
}

}  // namespace gated
