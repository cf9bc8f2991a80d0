// model_config: everything that chooses an architecture. Which flags set it, and which of them contradict each other:
// training/flags/flags.cpp, training/flags/check_flags.cpp.
// tests/test_model.cpp
#pragma once
#include "kernels/rope.h"
#include "layers/layer_config.h"

namespace gated {

enum class Position { rope, learned, none };
enum class WindowLayers { all, even, not_nth };
// What lets tokens meet: softmax attention, the gated delta rule, or one layer of attention after several of the other.
enum class MixerKind { attention, gated_delta, hybrid };
// What of the activations is not kept for the backward, which computes it again (layers/model.h).
enum class Recompute { none, light, full };

struct ModelConfig {
  size_t vocab = 256, context = 128, layers = 4, hidden = 128;
  NormConfig norm;
  double dyt_alpha_attention = 0.5;  // of the norms that attention reads; norm.dyt_alpha elsewhere
  NormPlacement placement = NormPlacement::pre;
  MixerKind mixer = MixerKind::attention;
  size_t attention_every = 4;  // of a hybrid: the last of so many layers is attention
  AttentionConfig attention;
  LinearAttentionConfig linear;
  WindowLayers window_layers = WindowLayers::all;
  size_t full_every = 6;  // of not_nth: the last of so many layers with attention sees all
  Position position = Position::rope;
  double rope_theta = 10000, rope_fraction = 1;
  double window_rope_theta = 0;  // of layers with a window, which are not scaled; 0: rotary angles as in the others
  RopeScaling rope_scaling;
  // Of a model that is evaluated: the context that it was trained with (0: `context`), and YaRN's scale
  // (kernels/rope.h).
  size_t trained_context = 0;
  double yarn = 1;
  FfnConfig ffn;
  MoeConfig moe;
  size_t dense_layers = 0;  // so many layers at the beginning have no experts
  bool tied = true, embedding_scale = false;
  InitRule init;
  float embedding_factor = 1;  // fixed
  bool residual = true;
  float clip_output = 0, clip_residual = 0;  // 0: no clipping
  float dropout = 0;
  Storage storage = Storage::fp32;  // of activations; with bf16 products are those of tensor cores
  Recompute recompute = Recompute::none;

  // Is a layer softmax attention, and how many layers before it are?
  bool attends(size_t layer) const {
    return mixer == MixerKind::attention || (mixer == MixerKind::hybrid && (layer + 1) % attention_every == 0);
  }
  size_t attention_before(size_t layer) const { return mixer == MixerKind::hybrid ? layer / attention_every : layer; }
  bool has_attention() const { return mixer != MixerKind::gated_delta; }
  bool has_linear() const { return mixer != MixerKind::attention; }

  // Is a layer's FFN a mixture of experts?
  bool mixes_experts(size_t layer) const { return moe.E > 0 && layer >= dense_layers; }
  bool has_experts() const { return mixes_experts(layers - 1); }

  // Tokens that a query of a layer with attention sees; 0: all.
  size_t window_of(size_t layer) const {
    const size_t place = attention_before(layer);
    const bool all = (window_layers == WindowLayers::even && place % 2 == 1) ||
                     (window_layers == WindowLayers::not_nth && (place + 1) % full_every == 0);
    return all ? 0 : attention.window;
  }
  // Have layers with a window a rotary base of their own?
  bool has_window_rope() const { return position == Position::rope && attention.window > 0 && window_rope_theta > 0; }
  // Tables of RoPE.
  size_t rope_tables() const { return position == Position::rope && has_attention() ? 1 + has_window_rope() : 0; }
  RopeScaling scaling() const { return yarn == 1 ? rope_scaling : gated::yarn(yarn, tokens_in_training()); }

  size_t tokens_in_training() const { return trained_context ? trained_context : context; }

  // Dimensions of a head that rotate.
  size_t rope_dims() const { return 2 * size_t(double(attention.D) * rope_fraction / 2 + 1e-9); }
};

// Refuses sizes that no layer can work with, wherever they come from. Flags that contradict each other are refused
// before, by their names and with a remedy (training/flags/check_flags.cpp).
inline void check_sizes(const ModelConfig& c) {
  const AttentionConfig& a = c.attention;
  const LinearAttentionConfig& l = c.linear;
  for (auto [what, size] : {std::pair{"tokens in the vocabulary", c.vocab},
                            {"tokens in the context", c.context},
                            {"layers", c.layers},
                            {"hidden channels", c.hidden},
                            {"query heads", a.H},
                            {"key/value heads", a.KVH},
                            {"dimensions of a head", a.D},
                            {"linear key heads", l.Hk},
                            {"linear value heads", l.Hv},
                            {"dimensions of a linear key head", l.Dk},
                            {"dimensions of a linear value head", l.Dv},
                            {"taps of the convolution", l.W},
                            {"layers from one with attention to the next", c.attention_every},
                            {"channels inside the FFN", c.ffn.F},
                            {"channels inside an expert", c.moe.F},
                            {"experts of a token", c.moe.k},
                            {"layers from one that sees all to the next", c.full_every},
                            {"ranks of GatedNorm's gate", c.norm.gate.rank}})
    require(size > 0, "model: 0 %s, expected at least 1", what);
  require(c.vocab <= size_t{1} << 31, "model: a vocabulary of %zu, expected at most 2147483648: token ids are int32",
          c.vocab);
  require(a.H % a.KVH == 0, "model: %zu query heads are no multiple of %zu key/value heads", a.H, a.KVH);
  require(a.head_experts.k >= 1 && (a.head_experts.E == 0 || a.head_experts.k <= a.head_experts.E),
          "model: a token takes %zu experts of a head, expected 1 to its %zu", a.head_experts.k, a.head_experts.E);
  require(c.moe.shared == 0 || c.moe.shared_width() > 0,
          "model: a shared expert of %g experts of width %zu has no width", c.moe.shared, c.moe.F);
  require(c.moe.E == 0 || c.moe.k <= c.moe.E, "model: a token takes %zu experts, expected at most the %zu there are",
          c.moe.k, c.moe.E);
  require(l.Hv % l.Hk == 0, "model: %zu linear value heads are no multiple of %zu linear key heads", l.Hv, l.Hk);
  require(l.Dk <= 256, "model: %zu dimensions of a linear key head, expected at most 256", l.Dk);
  require(c.mixer != MixerKind::hybrid || c.attention_every <= c.layers,
          "model: a hybrid of %zu layers with attention in every %zuth has none", c.layers, c.attention_every);
  require(a.D <= 256, "model: %zu dimensions of a head, expected at most 256", a.D);
  require(c.position != Position::rope || (a.D % 2 == 0 && c.rope_dims() >= 2),
          "model: %zu of a head's %zu dimensions rotate, expected at least 2 of an even number", c.rope_dims(), a.D);
}

}  // namespace gated
