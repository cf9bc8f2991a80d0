// attention: projections, QK-norm, positions, causal attention, its gate, the output projection.
//
//   q, k, v = x W_q^T, x W_k^T, x W_v^T;  q, k normed over D, then rotated;  y = o W_o^T         (Qwen3)
//   --attn=g1..g5  a gate (layers/gate.cuh) on one value of that line, arXiv 2505.06708:
//                  g1 behind attention (o), g2 on v, g3 on k, g4 on q (both before QK-norm and RoPE), g5 behind W_o (y)
//   --attn-score   softmax, or a sigmoid of each score alone                        kernels/attention.cu
//   --attn-sink    a learnable logit per head, or a learnable key and value         kernels/sinks.cu
//   --window       how far back a query sees                                        kernels/attention.cu
//   --sdpa-out     RMSNorm of every head of o, or SiLU(o), before the gate          kernels/rmsnorm.cu, activation.cu
// shapes: x, y (N,C), N = B*T; q, o (B,T,H,D); k, v (B,T,K,D) | tests/test_model.cpp
#pragma once
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/sinks.h"
#include "layers/gate.cuh"
#include "layers/linear.cuh"
#include "layers/mixer.h"

namespace gated {

class Attention final : public Mixer {
 public:
  Attention(const AttentionConfig& config, size_t C)
      : c(config),
        C_(C),
        wq_(C, c.H * c.D, c.bias != AttentionBias::none),
        wk_(C, c.K * c.D, c.bias != AttentionBias::none),
        wv_(C, c.K * c.D, c.bias != AttentionBias::none),
        wo_(c.H * c.D, C, c.bias == AttentionBias::all, c.out_init),
        gate_(make_gate(config, C)) {}

  void parameters(const ParameterVisitor& visit) override {
    const Init one = Init::constant(c.zero_centred ? 0 : 1);
    const Decay decay = c.zero_centred ? Decay::yes : Decay::no;
    wq_.parameters(visit, "q_proj");
    wk_.parameters(visit, "k_proj");
    wv_.parameters(visit, "v_proj");
    if (c.gate_at != GatePosition::none) gate_.parameters(visit);
    wo_.parameters(visit, "o_proj");
    if (c.qk_norm) {
      visit(q_norm_, "q_norm.weight", {c.D}, one, decay, Use::scale);
      visit(k_norm_, "k_norm.weight", {c.D}, one, decay, Use::scale);
    }
    if (c.sink == AttentionSink::learned) visit(sink_, "sinks", {c.H}, Init::normal(), Decay::no, Use::scale);
    if (c.sink == AttentionSink::kv_bias) {
      visit(key_bias_, "kv_bias.key", {c.H, c.D}, Init::normal(), Decay::no, Use::scale);
      visit(value_bias_, "kv_bias.value", {c.H, c.D}, Init::normal(), Decay::no, Use::scale);
    }
    if (c.sdpa_out == SdpaOut::groupnorm) visit(out_norm_, "out_norm.weight", {c.D}, one, decay, Use::scale);
  }
  void activations(const TensorVisitor& visit, size_t N) override {
    visit(q_, "q", {N, c.H, c.D});
    visit(k_, "k", {N, c.K, c.D});
    visit(v_, "v", {N, c.K, c.D});
    if (c.qk_norm) {
      visit(q_r_, "q 1/rms", {N, c.H});
      visit(k_r_, "k 1/rms", {N, c.K});
    }
    if (c.qk_norm || c.rope) {
      visit(q_turned_, "q normed and rotated", {N, c.H, c.D});
      visit(k_turned_, "k normed and rotated", {N, c.K, c.D});
    }
    if (c.sink == AttentionSink::kv_bias) visit(sink_logit_, "logit of the kv bias", {N, c.H});
    visit(o_, "weighted values", {N, c.H, c.D});
    visit(lse_, "logsumexp", {N, c.H});
    if (c.sdpa_out == SdpaOut::groupnorm) visit(o_r_, "weighted values 1/rms", {N, c.H});
    if (c.sdpa_out != SdpaOut::plain) visit(o_out_, "weighted values, normed or activated", {N, c.H, c.D});
    if (c.gate_at != GatePosition::none) gate_.activations(visit, N);
    visit(y_, "output", {N, C_});
  }
  void temporaries(const TensorVisitor& visit, size_t N) override {
    visit(do_, "d attention", {N, c.H, c.D});
    visit(dq_, "d q", {N, c.H, c.D});
    visit(dk_, "d k", {N, c.K, c.D});
    visit(dv_, "d v", {N, c.K, c.D});
    if (c.sink != AttentionSink::none) {
      visit(sink_p_, "attention to the sink", {N, c.H});
      visit(sink_ds_, "d attention to the sink", {N, c.H});
    }
    if (c.gate_at != GatePosition::none) gate_.temporaries(visit, N);
  }

  std::string name() const override { return "self_attn"; }
  // Scores and weighted values: 2 D FLOPs each for a pair of a query head and a key that it sees, and twice that in the
  // backward. A query sees half of T tokens on average, or a window.
  double pair_flops(size_t T) const override {
    const double W = c.window && c.window < T ? double(c.window) : double(T);
    return 12.0 * double(c.H * c.D) * (W - W * W / (2.0 * double(T)));
  }

  // Returns y. x must stay until backward.
  const float* forward(const float* x, const Pass& pass) override {
    Range range("attention");
    const size_t N = pass.N();
    Context& ctx = pass.ctx;
    x_ = x;
    wq_.forward(q_, x, N, ctx);
    wk_.forward(k_, x, N, ctx);
    wv_.forward(v_, x, N, ctx);
    auto at = [&](GatePosition position, const float* value) {
      return c.gate_at == position ? gate_.forward(value, x, N, ctx) : value;
    };
    q_in_ = at(GatePosition::g4, q_);
    k_in_ = at(GatePosition::g3, k_);
    q_seen_ = turn(q_turned_, q_r_, q_in_, q_norm_, c.H, pass);
    k_seen_ = turn(k_turned_, k_r_, k_in_, k_norm_, c.K, pass);
    v_seen_ = at(GatePosition::g2, v_);
    if (c.sink == AttentionSink::kv_bias) kv_bias_logits(sink_logit_, q_seen_, key_bias_.value, shape(pass), ctx);
    attention_forward(o_, lse_, q_seen_, k_seen_, v_seen_, shape(pass), sink(), ctx);
    const float* o = o_;
    if (c.sdpa_out == SdpaOut::groupnorm) {
      rmsnorm_forward({.y = o_out_, .r = o_r_}, {.x = o_}, rms_weights(out_norm_), N * c.H, c.D, c.eps, ctx);
      o = o_out_;
    }
    if (c.sdpa_out == SdpaOut::silu) activation_forward(o_out_, o_, N * c.H * c.D, Activation::silu, ctx), o = o_out_;
    o_seen_ = at(GatePosition::g1, o);
    wo_.forward(y_, o_seen_, N, ctx);
    return at(GatePosition::g5, y_);
  }

  // dx is written, or accumulated to: dy is read before that, so that dx may be dy.
  void backward(float* dx, Accumulate accumulate, const float* dy, const Pass& pass) override {
    Range range("attention backward");
    const size_t N = pass.N();
    Context& ctx = pass.ctx;
    auto at = [&](GatePosition position, const float* d) {
      return c.gate_at == position ? gate_.backward(d, N, ctx) : d;
    };
    wo_.backward(do_, Accumulate::no, at(GatePosition::g5, dy), o_seen_, N, ctx);
    const float* dout = at(GatePosition::g1, do_);
    if (c.sdpa_out == SdpaOut::groupnorm) {
      rmsnorm_backward({.dx = do_, .dw = out_norm_.grad}, dout, {.x = o_}, rms_weights(out_norm_), o_r_, N * c.H, c.D,
                       ctx);
      dout = do_;
    }
    if (c.sdpa_out == SdpaOut::silu)
      activation_backward(do_, dout, o_, N * c.H * c.D, Activation::silu, ctx), dout = do_;
    attention_backward(dq_, dk_, dv_, sink_p_, sink_ds_, dout, q_seen_, k_seen_, v_seen_, o_, lse_, shape(pass), sink(),
                       ctx);
    if (c.sink == AttentionSink::learned) sink_backward(sink_.grad, sink_ds_, pass.B, pass.T, c.H, ctx);
    if (c.sink == AttentionSink::kv_bias)
      kv_bias_backward(key_bias_.grad, value_bias_.grad, sink_p_, sink_ds_, q_seen_, dout, shape(pass), ctx);
    turn_backward(dq_, q_norm_, q_in_, q_r_, c.H, pass);
    turn_backward(dk_, k_norm_, k_in_, k_r_, c.K, pass);
    wq_.backward(dx, accumulate, at(GatePosition::g4, dq_), x_, N, ctx);
    wk_.backward(dx, Accumulate::yes, at(GatePosition::g3, dk_), x_, N, ctx);
    wv_.backward(dx, Accumulate::yes, at(GatePosition::g2, dv_), x_, N, ctx);
    if (c.gate_at != GatePosition::none) gate_.backward_hidden(dx, N, ctx);
  }

 private:
  static Gate make_gate(const AttentionConfig& c, size_t C) {
    const bool kv = c.gate_at == GatePosition::g2 || c.gate_at == GatePosition::g3;
    if (c.gate_at == GatePosition::g5) return Gate(c.gate, C, 1, C);
    return Gate(c.gate, C, kv ? c.K : c.H, c.D);
  }
  AttentionShape shape(const Pass& pass) const {
    return {pass.B, pass.T, c.H, c.K, c.D, c.window, c.score, c.score_bias};
  }
  Sink sink() const {
    if (c.sink == AttentionSink::learned) return {sink_.value, false, nullptr, nullptr};
    if (c.sink == AttentionSink::kv_bias) return {sink_logit_, true, key_bias_.value, value_bias_.value};
    return {};
  }
  RmsnormWeights rms_weights(const Weight& norm) const {
    return {.w = norm.value, .offset = c.zero_centred ? 1.0f : 0.0f};
  }

  // QK-norm, then rotation, of all heads of q or k. Returns where the result is.
  const float* turn(float* out, float* r, const float* in, const Weight& norm, size_t heads, const Pass& pass) {
    if (c.qk_norm) {
      rmsnorm_forward({.y = out, .r = r}, {.x = in}, rms_weights(norm), pass.N() * heads, c.D, c.eps, pass.ctx);
      in = out;
    }
    if (c.rope) rope_forward(out, in, *pass.rope, 0, pass.B, pass.T, heads, c.D, pass.ctx), in = out;
    return in;
  }
  // d: gradient behind the rotation, replaced by that in front of the norm.
  void turn_backward(float* d, const Weight& norm, const float* in, const float* r, size_t heads, const Pass& pass) {
    if (c.rope) rope_backward(d, d, *pass.rope, 0, pass.B, pass.T, heads, c.D, pass.ctx);
    if (c.qk_norm)
      rmsnorm_backward({.dx = d, .dw = norm.grad}, d, {.x = in}, rms_weights(norm), r, pass.N() * heads, c.D, pass.ctx);
  }

  AttentionConfig c;
  size_t C_;
  Linear wq_, wk_, wv_, wo_;
  Gate gate_;
  Weight q_norm_, k_norm_, sink_, key_bias_, value_bias_, out_norm_;
  const float *x_ = nullptr, *q_in_ = nullptr, *k_in_ = nullptr, *q_seen_ = nullptr, *k_seen_ = nullptr,
              *v_seen_ = nullptr, *o_seen_ = nullptr;
  float *q_, *k_, *v_, *q_r_ = nullptr, *k_r_ = nullptr, *q_turned_ = nullptr, *k_turned_ = nullptr, *o_, *lse_,
                       *sink_logit_ = nullptr, *o_r_ = nullptr, *o_out_ = nullptr, *y_;
  float *do_, *dq_, *dk_, *dv_, *sink_p_ = nullptr, *sink_ds_ = nullptr;
};

}  // namespace gated
