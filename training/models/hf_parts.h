// hf_parts: what a config.json of transformers is made of. Each part is read into flags, and written from a model.
// Which parts an architecture has: training/models/hf_config.cpp
#pragma once
#include <string>
#include <vector>

#include "training/flags/config.h"
#include "training/models/hf_keys.h"

namespace gated::hf_parts {

// Flags as a command line has them.
using Words = std::vector<std::string>;

struct Part {
  void (*read)(const Keys&, Words&);
  void (*write)(const Config&, nlohmann::json&);
};

extern const Part sizes, heads, qwen2_heads, llama_heads, dense_ffn, rms_norm, tied, all_biases, mlp_bias, rope,
    gpt_oss_rope, gemma3_layers, gemma3_scales, partial_rope, released_gates, qwen_experts, shared_expert,
    linear_layers, gpt_oss_experts, window_of_even_layers, gpt2_sizes, gpt2_activation;

}  // namespace gated::hf_parts
