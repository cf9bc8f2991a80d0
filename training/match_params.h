// match_params: the FFN width that gives a model a wanted number of parameters (--params, --match-params).
//
// Both papers compare dense variants at equal size: where a variant adds parameters, the FFN shrinks. tests/test_describe.cpp
#pragma once
#include "layers/model.h"
#include "training/command_line.h"

namespace gated {

inline size_t total_parameters(const ModelConfig& c) {
  return Model(c).weights.total();
}

struct MatchedWidth {
  size_t ffn_hidden, total;
};

// The width whose total comes nearest to `wanted`: the total is a straight line in the width.
inline MatchedWidth match_ffn_width(ModelConfig c, size_t wanted) {
  auto total_at = [&](size_t width) {
    c.ffn.F = width;
    return total_parameters(c);
  };
  const size_t one = total_at(1), step = total_at(2) - one;
  require(
      wanted + step / 2 >= one,
      "%zu parameters are asked for, but without its FFN the model has %zu already: ask for more, or make it smaller",
      wanted, one - step);
  const size_t width = wanted <= one ? 1 : 1 + (wanted - one + step / 2) / step;
  return {width, total_at(width)};
}

// --params and --match-params: sets the FFN's width, and says so.
inline void choose_ffn_width(Config& config) {
  const size_t wanted =
      config.match_params.empty() ? config.params : total_parameters(with_flags(config, config.match_params));
  if (wanted == 0) return;
  const MatchedWidth m = match_ffn_width(config.model, wanted);
  config.model.ffn.F = m.ffn_hidden;
  printf("parameters --ffn-hidden=%zu gives %zu, %zu %s than the %zu asked for\n", m.ffn_hidden, m.total,
         m.total > wanted ? m.total - wanted : wanted - m.total, m.total > wanted ? "more" : "fewer", wanted);
}

}  // namespace gated
