// sampler: the next token from logits: temperature, top-k, top-p, one uniform draw.
// A sample is a function of (logits, seed, stream, index): it repeats on every machine.
// --temperature --top-k --top-p | tests/test_sampler.cpp
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gated {

struct Sampler {
  double temperature = 1.0;  // 0: the likeliest token
  size_t top_k = 0;          // of the likeliest so many are left; 0: all tokens
  uint64_t seed = 0;
  double top_p = 1.0;  // of those the likeliest are left whose probabilities reach this share; 1: all

  // The index-th draw of a stream of the seed, over tokens in order of falling logit (ties: the lower id first).
  int draw(const std::vector<float>& logits, uint64_t index, uint64_t stream = 0) const;
};

}  // namespace gated
