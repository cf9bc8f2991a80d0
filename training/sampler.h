// sampler: the next token from logits: temperature, top-k, one uniform draw.
// A sample is a function of (logits, seed, index): it repeats on every machine.
// --temperature --top-k | tests/test_sampler.cpp
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gated {

struct Sampler {
  double temperature = 1.0;  // 0: the likeliest token
  size_t top_k = 0;          // 0: all tokens
  uint64_t seed = 0;

  // The index-th draw of the seed, over tokens in order of falling logit (ties: the lower id first).
  int draw(const std::vector<float>& logits, uint64_t index) const;
};

}  // namespace gated
