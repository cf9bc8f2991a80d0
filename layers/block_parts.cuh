// block_parts: what block i of a model is made of. tests/test_model.cpp
#pragma once
#include "core/host_math.h"
#include "layers/attention_mixer.cuh"
#include "layers/block.cuh"
#include "layers/ffn.cuh"
#include "layers/gated_delta_net.cuh"
#include "layers/model_config.h"
#include "layers/moe.cuh"

namespace gated {

inline BlockConfig block_config(const ModelConfig& model) {
  BlockConfig b;
  b.placement = model.placement;
  b.attention_norm = b.ffn_norm = model.norm;
  b.attention_norm.dyt_alpha = model.dyt_alpha_attention;
  b.residual = model.residual;
  if (model.clip_output > 0) b.clip_branch = model.clip_output;
  if (model.clip_residual > 0) b.clip_residual = model.clip_residual;
  return b;
}

inline std::unique_ptr<Mixer> make_linear_attention(const ModelConfig& model) {
  LinearAttentionConfig l = model.linear;
  l.eps = model.norm.rms_epsilon();
  return std::make_unique<GatedDeltaNet>(l, model.hidden);
}

inline std::unique_ptr<Mixer> make_attention(const ModelConfig& model, size_t layer) {
  AttentionConfig a = model.attention;
  a.rope = model.position == Position::rope;
  a.zero_centred = model.norm.zero_centred;
  a.eps = model.norm.rms_epsilon();
  a.score_bias = float(-host_log(double(model.tokens_in_training())));
  a.window = model.window_of(layer);
  a.window_rope = a.window > 0 && model.has_window_rope();
  return std::make_unique<Attention>(a, model.hidden);
}

inline std::unique_ptr<Mixer> make_token_mixer(const ModelConfig& model, size_t layer) {
  return model.attends(layer) ? make_attention(model, layer) : make_linear_attention(model);
}

inline std::unique_ptr<Mixer> make_channel_mixer(const ModelConfig& model, size_t layer) {
  FfnConfig f = model.ffn;
  if (model.mixes_experts(layer)) {
    f.F = model.moe.F;
    return std::make_unique<Moe>(model.moe, f, model.hidden, layer);
  }
  return std::make_unique<Ffn>(f, model.hidden);
}

inline Block make_block(const ModelConfig& model, size_t layer) {
  return Block(block_config(model), make_token_mixer(model, layer), make_channel_mixer(model, layer), model.hidden,
               layer);
}

}  // namespace gated
