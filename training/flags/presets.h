// presets: models by name, each a line of flags that the flag table (training/flags/flags.cpp) reads.
// tests/test_describe.cpp
//
// Sizes: GPT-2 (Radford et al. 2019), Qwen3 (transformers' configuration of Qwen3-1.7B), P1 = Gated Attention for LLMs
// (arXiv 2505.06708), P2 = A Unified View of Attention and Residual Sinks (arXiv 2601.22966, table 5). P1 says 1.7B in
// 28 or 48 layers: here Qwen3-1.7B's shape, and for 48 layers the FFN width that keeps its total. Both papers'
// vocabulary is taken to be Qwen3's.
#pragma once
#include <string>
#include <vector>

namespace gated {

struct Preset {
  const char *name, *meaning;
  std::vector<std::string> flags;
};

const std::vector<Preset>& presets();

}  // namespace gated
