// match_params: the FFN width that gives a model a wanted number of parameters (--params, --match-params).
//
// Both papers compare dense variants at equal size: where a variant adds parameters, the FFN shrinks.
// tests/test_describe.cpp
#pragma once
#include "training/flags/config.h"

namespace gated {

size_t total_parameters(const ModelConfig& config);

struct MatchedWidth {
  size_t ffn_hidden, total;
};

// The width whose total comes nearest to `wanted`.
MatchedWidth match_ffn_width(ModelConfig config, size_t wanted);

// --params and --match-params: sets the FFN's width, and says so.
void choose_ffn_width(Config& config);

}  // namespace gated
