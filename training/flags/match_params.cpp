#include "training/flags/match_params.h"

#include <cstdio>

#include "layers/model.h"
#include "training/flags/command_line.h"

namespace gated {

size_t total_parameters(const ModelConfig& config) {
  return Model(config).weights.total();
}

// The width that is chosen: of the experts, where there are any.
static size_t& chosen_width(ModelConfig& config) {
  return config.moe.E > 0 ? config.moe.F : config.ffn.F;
}

// The total is a straight line in the width.
MatchedWidth match_ffn_width(ModelConfig config, size_t wanted) {
  auto total_at = [&](size_t width) {
    chosen_width(config) = width;
    return total_parameters(config);
  };
  const size_t one = total_at(1), step = total_at(2) - one;
  require(
      wanted + step / 2 >= one,
      "%zu parameters are asked for, but without its FFN the model has %zu already: ask for more, or make it smaller",
      wanted, one - step);
  const size_t width = wanted <= one ? 1 : 1 + (wanted - one + step / 2) / step;
  return {width, total_at(width)};
}

void choose_ffn_width(Config& config) {
  const size_t wanted =
      config.match_params.empty() ? config.params : total_parameters(with_flags(config, config.match_params));
  if (wanted == 0) return;
  const MatchedWidth m = match_ffn_width(config.model, wanted);
  chosen_width(config.model) = m.ffn_hidden;
  printf("parameters %s=%zu gives %zu, %zu %s than the %zu asked for\n",
         config.model.moe.E > 0 ? "--expert-hidden" : "--ffn-hidden", m.ffn_hidden, m.total,
         m.total > wanted ? m.total - wanted : wanted - m.total, m.total > wanted ? "more" : "fewer", wanted);
}

}  // namespace gated
