// model_config: everything that chooses an architecture, and what cannot go together.
// tests/test_model.cpp, tests/test_flags.cpp
#pragma once
#include "layers/layer_config.h"

namespace gated {

enum class Position { rope, learned, none };
enum class WindowLayers { all, even };

struct ModelConfig {
  size_t vocab = 256, context = 128, layers = 4, hidden = 128;
  NormConfig norm;
  double dyt_alpha_attention = 0.5;  // of the norms that attention reads; norm.dyt_alpha elsewhere
  NormPlacement placement = NormPlacement::pre;
  AttentionConfig attention;
  WindowLayers window_layers = WindowLayers::all;
  Position position = Position::rope;
  double rope_theta = 10000, rope_fraction = 1;
  FfnConfig ffn;
  bool tied = true, embedding_scale = false, depth_scaled_init = false;
  float clip_output = 0, clip_residual = 0;  // 0: no clipping
  float dropout = 0;

  // Dimensions of a head that rotate.
  size_t rope_dims() const { return 2 * size_t(double(attention.D) * rope_fraction / 2 + 1e-9); }
};

// Refuses what cannot work, naming the flag.
inline void validate(const ModelConfig& c) {
  const AttentionConfig& a = c.attention;
  for (auto [flag, value] : {std::pair{"--vocab", c.vocab},
                             {"--context", c.context},
                             {"--layers", c.layers},
                             {"--hidden", c.hidden},
                             {"--heads", a.H},
                             {"--kv-heads", a.KVH},
                             {"--head-dim", a.D},
                             {"--ffn-hidden", c.ffn.F},
                             {"--norm-rank", c.norm.gate.rank}})
    require(value > 0, "%s is 0, expected at least 1", flag);
  require(a.H % a.KVH == 0,
          "--heads=%zu does not divide by --kv-heads=%zu: every key/value head serves the same number of query heads",
          a.H, a.KVH);
  require(a.D <= 256, "--head-dim=%zu, expected at most 256", a.D);
  if (c.position == Position::rope) {
    require(a.D % 2 == 0, "--head-dim=%zu is odd, but --position=rope turns pairs: make it even", a.D);
    require(c.rope_dims() >= 2,
            "--rope-fraction=%g of --head-dim=%zu is no pair to turn: raise it, or take --position=none",
            c.rope_fraction, a.D);
  }
  require(c.vocab <= size_t{1} << 31, "--vocab=%zu, expected at most 2147483648 (token ids are int32)", c.vocab);

  const GatePosition g = a.gate_at;
  const bool headwise = a.gate.score == GateScore::headwise;
  require(!(headwise && a.qk_norm && !a.gate.op.additive && (g == GatePosition::g3 || g == GatePosition::g4)),
          "--gate=headwise with --attn=%s: QK-norm divides a head's score out again; take --gate=elementwise or "
          "--qk-norm=off",
          g == GatePosition::g3 ? "g3" : "g4");
  require(!(headwise && g == GatePosition::g5),
          "--gate=headwise with --attn=g5: behind the output projection there are no "
          "heads; take --gate=elementwise");
  require(!(headwise && (a.gate.shared || a.gate.input == GateInput::none)),
          "--gate=headwise with --gate-shared or --gate-input=none: both need a score for every element of a head; "
          "take --gate=elementwise");
  require(!(a.gate.shared && a.gate.input == GateInput::none),
          "--gate-shared with --gate-input=none: a score that no token changes is not averaged over heads; take one of "
          "them");
  const Activation act = a.gate.op.act;
  require(!(a.gate.input == GateInput::none && !a.gate.op.additive &&
            (act == Activation::silu || act == Activation::identity)),
          "--gate-input=none with --gate-act=%s: the gate would start at 0 and let nothing through; take sigmoid or "
          "ns-sigmoid",
          act == Activation::silu ? "silu" : "identity");
  require(!a.gate.shared || g == GatePosition::none || g == GatePosition::g1 || g == GatePosition::g2,
          "--gate-shared is for --attn=g1 and --attn=g2");
  require(a.score == AttentionScore::softmax || a.sink == AttentionSink::none,
          "--attn-score=sigmoid with an --attn-sink: sigmoid scores do not compete, so a sink has nothing to take; "
          "take --attn-sink=none");
  const NormGateConfig& n = c.norm.gate;
  require(
      !(n.zero_init && n.op.act != Activation::sigmoid),
      "--norm-gate-init=zero with --norm-gate-act=%s: the gate would start at 0 and output nothing; take sigmoid or "
      "--norm-gate-init=normal",
      n.op.act == Activation::tanh   ? "tanh"
      : n.op.act == Activation::silu ? "silu"
                                     : "identity");
  require(!c.norm.zero_centred || c.norm.divides_by_rms(),
          "--norm-weight=zero-centred is for the RMS norms (rmsnorm, preaffine, gated)");
  require(!(c.norm.kind == NormKind::none && c.placement != NormPlacement::pre),
          "--norm=none with --norm-placement: there is no norm to place; leave --norm-placement=pre");
}

}  // namespace gated
