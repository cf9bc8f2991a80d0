// layer_config: what chooses the parts of a layer. Which flag sets a field: training/flags/flags.cpp.
#pragma once
#include "kernels/attention.h"
#include "kernels/gate.h"
#include "kernels/gated_norm.h"
#include "layers/parameters.h"

namespace gated {

// ---- norms (layers/norm.cuh)

enum class NormKind { rmsnorm, preaffine, layernorm, dyt, none, gated, gated_dyt };

struct NormGateConfig {
  size_t rank = 16;
  NormGateScore score = NormGateScore::elementwise;
  GateOp op;
  bool zero_init = false;  // W_up starts at 0: every sigmoid score at one half
};

struct NormConfig {
  NormKind kind = NormKind::rmsnorm;
  NormGateConfig gate;
  float eps = 0;              // 0: what the norm's authors use, 1e-5 for LayerNorm and 1e-6 for the others
  bool zero_centred = false;  // RMSNorm's weight is 1 + w, w starting at 0
  double dyt_alpha = 0.5;

  bool with_gate() const { return kind == NormKind::gated || kind == NormKind::gated_dyt; }
  // The norm itself, under the gate.
  NormKind base() const {
    return kind == NormKind::gated ? NormKind::rmsnorm : kind == NormKind::gated_dyt ? NormKind::dyt : kind;
  }
  bool divides_by_rms() const { return base() == NormKind::rmsnorm || base() == NormKind::preaffine; }
  float epsilon() const { return kind == NormKind::layernorm && eps == 0 ? 1e-5f : rms_epsilon(); }
  float rms_epsilon() const { return eps > 0 ? eps : 1e-6f; }  // of QK-norm too
};

// ---- the gate of attention (layers/gating.cuh)

enum class GateKind { elementwise, headwise, shared, static_ };

struct GateConfig {
  GateKind kind = GateKind::elementwise;
  GateOp op;
};

// ---- the experts of a head (layers/switch_head.cuh)

enum class HeadExpertsOf { v, kv };

struct HeadExpertsConfig {
  size_t E = 0;  // matrices of a key/value head; 0: one, without a score
  size_t k = 1;  // of them a token takes
  HeadExpertsOf of = HeadExpertsOf::v;
};

// ---- attention (layers/attention_mixer.cuh)

enum class GatePosition { none, g1, g2, g3, g4, g5 };
enum class AttentionSink { none, learned, kv_bias };
enum class SdpaOut { plain, groupnorm, silu };
enum class AttentionBias { none, qkv, all };

struct AttentionConfig {
  size_t H = 4, KVH = 2, D = 32;  // query heads, key and value heads, elements of a head
  GatePosition gate_at = GatePosition::none;
  GateConfig gate;
  HeadExpertsConfig head_experts;
  AttentionScore score = AttentionScore::softmax;
  float score_bias = 0;  // of sigmoid attention
  AttentionSink sink = AttentionSink::none;
  size_t window = 0;
  bool window_rope = false;  // positions of layers with a window have a table of their own
  size_t score_dim = 0;      // scores are divided by its root; 0: by that of D
  SdpaOut sdpa_out = SdpaOut::plain;
  bool rope = true, qk_norm = true, zero_centred = false;
  AttentionBias bias = AttentionBias::none;
  float eps = 1e-6f;  // of QK-norm and groupnorm
};

// ---- linear attention (layers/gated_delta_net.cuh)

enum class DeltaForm { recurrent, chunk };

struct LinearAttentionConfig {
  size_t Hk = 2, Hv = 4, Dk = 32, Dv = 32;  // heads of q and k, heads of v, elements of a head
  size_t W = 4;                             // taps of the convolution
  DeltaForm form = DeltaForm::recurrent;
  float eps = 1e-6f;  // of the norm of the output

  size_t channels() const { return 2 * Hk * Dk + Hv * Dv; }  // of q, k and v together
};

// ---- the feed-forward network (layers/ffn.cuh)

enum class FfnKind { swiglu, glu, geglu, swiglu_clamped, gelu, relu2, polynorm };

struct FfnConfig {
  size_t F = 384;  // hidden width
  FfnKind kind = FfnKind::swiglu;
  Activation gelu = Activation::gelu_tanh;
  bool bias = false;
};

// ---- a mixture of experts (layers/moe.cuh)

enum class BalanceOver { micro_batch, global };

struct MoeConfig {
  size_t E = 0, k = 2, F = 192;  // experts (0: a dense FFN), experts of a token, width of an expert
  double shared = 0;             // width, in experts, of the one that every token takes; of any size (Qwen3-Next)
  bool shared_gate = true;
  bool renormalise = true, router_bias = false;
  float balance = 1e-3f, z = 1e-3f;  // factors of the router's losses
  BalanceOver balance_over = BalanceOver::global;

  size_t shared_width() const { return size_t(shared * double(F) + 0.5); }
};

// ---- the block (layers/block.cuh)

enum class NormPlacement { pre, post, sandwich };

struct BlockConfig {
  NormPlacement placement = NormPlacement::pre;
  NormConfig attention_norm, ffn_norm;  // of what attention reads, and of the others
  bool residual = true;                 // a branch is added to the stream; false: it replaces it
  float clip_branch = INFINITY, clip_residual = INFINITY;
};

}  // namespace gated
