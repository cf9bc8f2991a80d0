// attention_mixer: projections, QK-norm, positions, causal attention, its gate, the output projection.
//
//   q, k, v = x W_q^T, x W_k^T, x W_v^T;  q, k normed over D, then rotated;  y = o W_o^T         (Qwen3)
//
//        +-> q -(g4)-> norm -> RoPE --+
//   x ---+-> k -(g3)-> norm -> RoPE --+-> softmax(q k^T / sqrt(D)) v = o -(g1)-> W_o -(g5)-> y
//        +-> v -(g2)------------------+
//
//   --attn=g1..g5  a gate (layers/gating.cuh) at one of the five places, arXiv 2505.06708
//   --head-experts several matrices for each head of v, or of k and v (layers/switch_head.cuh), before g2 and g3
//   --attn-score   softmax, or a sigmoid of each score alone                        kernels/attention.cu
//   --attn-sink    a learnable logit per head, or a learnable key and value         kernels/sinks.cu
//   --window       how far back a query sees                                        kernels/attention.cu
//   --precision    over bf16 arrays the same on tensor cores                        kernels/bf16/attention_bf16.cu
//   --sdpa-out     RMSNorm of every head of o, or SiLU(o), before the gate          kernels/rmsnorm.cu, activation.cu
//
// Of sequences that grow token by token it keeps k and v as attention reads them, gated, normed and rotated: the KV cache.
// A layer with a window keeps as many tokens as the window has.                                    kernels/decode/cached_attention.cu
// shapes: x, y (N,C), N = B*T; q, o (B,T,H,D); k, v (B,T,KVH,D) | tests/test_model.cpp
#pragma once
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/bf16/attention_bf16.h"
#include "kernels/decode/cached_attention.h"
#include "kernels/decode/cached_attention_bf16.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/sinks.h"
#include "layers/gating.cuh"
#include "layers/switch_head.cuh"
#include "layers/linear.cuh"
#include "layers/mixer.h"

namespace gated {

class Attention final : public Mixer {
 public:
  Attention(const AttentionConfig& config, size_t C)
      : config_(config),
        C_(C),
        wq_(C, config.H * config.D, config.bias != AttentionBias::none),
        wk_(C, config.KVH * experts_of_k() * config.D, config.bias != AttentionBias::none),
        wv_(C, config.KVH * experts_of_v() * config.D, config.bias != AttentionBias::none),
        wo_(config.H * config.D, C, config.bias == AttentionBias::all, config.out_init),
        gate_(make_gate(config, C)),
        k_experts_(config.head_experts, "k", C, config.KVH, config.D),
        v_experts_(config.head_experts, "v", C, config.KVH, config.D) {}

  ConstReals forward(ConstReals x, const Pass& pass) override {
    Range range("attention");
    const size_t N = pass.N();
    Context& ctx = pass.ctx;
    x_ = x;
    wq_.forward(q_, x, N, ctx);
    wk_.forward(k_, x, N, ctx);
    wv_.forward(v_, x, N, ctx);
    q_in_ = gated(GatePosition::g4, q_, pass);
    k_in_ = gated(GatePosition::g3, has_k_experts() ? k_experts_.forward(k_, x, N, ctx) : ConstReals(k_), pass);
    norm_and_rotate(pass);
    v_seen_ = gated(GatePosition::g2, has_v_experts() ? v_experts_.forward(v_, x, N, ctx) : ConstReals(v_), pass);

    // Training in fp32 is attend(), then the gate G1, then W_o. Two things are added. Over bf16 the kernel of attention may apply
    // G1 itself (`gate`, which is empty in fp32). In generation (`growing`) new tokens join the KV cache, and after the first
    // forward grow() attends instead of attend().
    const AttentionShape s = shape(pass.batch());
    if (config_.sink == AttentionSink::kv_bias) kv_bias_logits(sink_logit_, q_seen_, key_bias_.value, s, ctx);
    const bool attends = !pass.growing || pass.growing->begins();
    const OutputGate gate = attends && gates_output() ? gate_.of_output(o_, x, N, ctx) : OutputGate();
    if (attends) attend(s, gate, ctx);
    if (pass.growing) grow(*pass.growing, pass);

    o_seen_ = gate.y ? ConstReals(gate.y) : gated(GatePosition::g1, after_attention(N, ctx), pass);
    wo_.forward(y_, o_seen_, N, ctx);
    return gated(GatePosition::g5, y_, pass);
  }

  void recompute(const Pass& pass) override {
    after_attention(pass.N(), pass.ctx);
    if (has_gate()) gate_.recompute(pass.N(), pass.ctx);
    norm_and_rotate(pass);
  }

  void backward(Reals dx, Accumulate accumulate, ConstReals dy, const Pass& pass) override {
    Range range("attention backward");
    const size_t N = pass.N();
    Context& ctx = pass.ctx;
    wo_.backward(do_, Accumulate::no, gated_backward(GatePosition::g5, dy, pass), o_seen_, N, ctx);
    ConstReals dout = after_attention_backward(gated_backward(GatePosition::g1, do_, pass), N, ctx);

    const AttentionShape s = shape(pass.batch());
    attend_backward(dout, s, ctx);
    if (config_.sink == AttentionSink::learned) sink_backward(sink_.grad, sink_ds_, pass.B, pass.T, config_.H, ctx);
    if (config_.sink == AttentionSink::kv_bias)
      kv_bias_backward(key_bias_.grad, value_bias_.grad, sink_p_, sink_ds_, q_seen_, dout, s, ctx);

    norm_and_rotate_backward(dq_, q_norm_, q_in_, q_r_, config_.H, pass);
    norm_and_rotate_backward(dk_, k_norm_, k_in_, k_r_, config_.KVH, pass);
    wq_.backward(dx, accumulate, gated_backward(GatePosition::g4, dq_, pass), x_, N, ctx);
    const ConstReals dk = gated_backward(GatePosition::g3, dk_, pass), dv = gated_backward(GatePosition::g2, dv_, pass);
    wk_.backward(dx, Accumulate::yes, has_k_experts() ? k_experts_.backward(dk, N, ctx) : dk, x_, N, ctx);
    wv_.backward(dx, Accumulate::yes, has_v_experts() ? v_experts_.backward(dv, N, ctx) : dv, x_, N, ctx);
    if (has_k_experts()) k_experts_.backward_hidden(dx, N, ctx);
    if (has_v_experts()) v_experts_.backward_hidden(dx, N, ctx);
    if (has_gate()) gate_.backward_hidden(dx, N, ctx);
  }

  std::string name() const override { return "self_attn"; }

  void parameters(const ParameterVisitor& visit) override {
    const size_t H = config_.H, D = config_.D;
    const Init one = Init::constant(config_.zero_centred ? 0 : 1);
    const Decay decay = config_.zero_centred ? Decay::yes : Decay::no;
    wq_.parameters(visit, "q_proj");
    wk_.parameters(visit, "k_proj");
    wv_.parameters(visit, "v_proj");
    if (has_k_experts()) k_experts_.parameters(visit);
    if (has_v_experts()) v_experts_.parameters(visit);
    if (has_gate()) gate_.parameters(visit);
    wo_.parameters(visit, "o_proj");
    if (config_.qk_norm) {
      visit(q_norm_, "q_norm.weight", {D}, one, decay, Use::scale);
      visit(k_norm_, "k_norm.weight", {D}, one, decay, Use::scale);
    }
    if (config_.sink == AttentionSink::learned) visit(sink_, "sinks", {H}, Init::normal(), Decay::no, Use::scale);
    if (config_.sink == AttentionSink::kv_bias) {
      visit(key_bias_, "kv_bias.key", {H, D}, Init::normal(), Decay::no, Use::scale);
      visit(value_bias_, "kv_bias.value", {H, D}, Init::normal(), Decay::no, Use::scale);
    }
    if (config_.sdpa_out == SdpaOut::groupnorm) visit(out_norm_, "out_norm.weight", {D}, one, decay, Use::scale);
  }

  void readers(const ReaderVisitor& visit) const override {
    for (const Linear* linear : {&wq_, &wk_, &wv_}) linear->reader(visit);
    if (has_k_experts()) k_experts_.reader(visit);
    if (has_v_experts()) v_experts_.reader(visit);
    if (has_gate()) gate_.reader(visit);
  }

  void activations(const TensorVisitor& visit, BatchShape batch) override {
    const size_t B = batch.B, T = batch.T, H = config_.H, KVH = config_.KVH, D = config_.D;
    visit(q_, "q", {B, T, H, D});
    visit(k_, "k", {B, T, KVH * experts_of_k(), D});
    visit(v_, "v", {B, T, KVH * experts_of_v(), D});
    if (has_k_experts()) k_experts_.activations(visit, batch.N());
    if (has_v_experts()) v_experts_.activations(visit, batch.N());
    if (config_.qk_norm) {
      visit(q_r_, "q 1/rms", {B, T, H});
      visit(k_r_, "k 1/rms", {B, T, KVH});
    }
    if (config_.qk_norm || config_.rope) {
      visit(q_rotated_, "q normed and rotated", {B, T, H, D}, Lifetime::cheap);
      visit(k_rotated_, "k normed and rotated", {B, T, KVH, D}, Lifetime::cheap);
    }
    if (config_.sink == AttentionSink::kv_bias) visit(sink_logit_, "logit of the kv bias", {B, H, T});
    visit(o_, "weighted values", {B, T, H, D});
    visit(lse_, "logsumexp", {B, H, T});
    if (config_.sdpa_out == SdpaOut::groupnorm) visit(o_r_, "weighted values 1/rms", {B, T, H});
    if (config_.sdpa_out != SdpaOut::plain)
      visit(o_out_, "weighted values, normed or activated", {B, T, H, D}, Lifetime::cheap);
    if (has_gate()) gate_.activations(visit, batch.N());
    visit(y_, "output", {batch.N(), C_});
  }

  void temporaries(const TensorVisitor& visit, BatchShape batch) override {
    const size_t B = batch.B, T = batch.T, H = config_.H, KVH = config_.KVH, D = config_.D;
    visit(do_, "d attention", {B, T, H, D});
    visit(dq_, "d q", {B, T, H, D});
    visit(dk_, "d k", {B, T, KVH, D});
    visit(dv_, "d v", {B, T, KVH, D});
    if (has_k_experts()) k_experts_.temporaries(visit, batch.N());
    if (has_v_experts()) v_experts_.temporaries(visit, batch.N());
    if (config_.sink != AttentionSink::none) {
      visit(sink_p_, "attention to the sink", {B, H, T});
      visit(sink_ds_, "d logit of the sink", {B, H, T});
    }
    if (has_gate()) gate_.temporaries(visit, batch.N());
  }

  void scratch(ScratchPlan& plan, BatchShape batch) const override {
    const size_t N = batch.N(), H = config_.H;
    for (const Linear* linear : {&wq_, &wk_, &wv_, &wo_}) linear->scratch(plan, N);
    if (has_k_experts()) k_experts_.scratch(plan, N);
    if (has_v_experts()) v_experts_.scratch(plan, N);
    if (has_gate()) gate_.scratch(plan, N);
    const bool narrow = plan.storage == Storage::bf16;
    plan.need((narrow ? attention_bf16_forward_scratch : attention_forward_scratch)(shape(batch), plan.device));
    plan.need((narrow ? attention_bf16_backward_scratch : attention_backward_scratch)(shape(batch), plan.device));
    plan.kernels_need(rmsnorm_backward_scratch(N * H, config_.D));
    if (config_.sink == AttentionSink::learned) plan.kernels_need(sink_backward_scratch(batch.B, batch.T, H));
    if (config_.sink == AttentionSink::kv_bias) plan.kernels_need(kv_bias_backward_scratch(shape(batch)));
  }

  void cache(const TensorVisitor& visit, BatchShape most) override {
    const CachedAttentionShape s = cached(most, most.T);
    visit(cached_k_, "keys kept", {s.B, s.KVH, s.slots, s.D});
    visit(cached_v_, "values kept", {s.B, s.KVH, s.slots, s.D});
  }
  void cache_scratch(ScratchPlan& plan, BatchShape most) const override {
    const CachedAttentionShape c = cached(most, most.T);
    plan.need(plan.storage == Storage::bf16 ? cached_attention_bf16_scratch(c, plan.device)
                                            : cached_attention_scratch(c));
  }

  void inspect(Inspector& inspector, BatchShape batch) const override {
    ConstReals o = config_.sdpa_out == SdpaOut::plain ? o_ : o_out_;
    ConstReals o_gated = config_.gate_at == GatePosition::g1 ? o_seen_ : nullptr;
    if (has_gate()) gate_.inspect(inspector, batch.N());
    inspector.attention({q_seen_, k_seen_, v_seen_, lse_, o, o_gated, shape(batch), sink()});
  }

  // Scores and weighted values: 2 D FLOPs each for a pair of a query head and a key that it sees, and twice that in the
  // backward. A query sees half of T tokens on average, or a window.
  double pair_flops(size_t T) const override {
    const double W = config_.window && config_.window < T ? double(config_.window) : double(T);
    return 12.0 * double(config_.H * config_.D) * (W - W * W / (2.0 * double(T)));
  }

 private:
  bool has_gate() const { return config_.gate_at != GatePosition::none; }
  bool has_v_experts() const { return config_.head_experts.E > 0; }
  bool has_k_experts() const { return has_v_experts() && config_.head_experts.of == HeadExpertsOf::kv; }
  size_t experts_of_v() const { return has_v_experts() ? config_.head_experts.E : 1; }
  size_t experts_of_k() const { return has_k_experts() ? config_.head_experts.E : 1; }
  static Gate make_gate(const AttentionConfig& c, size_t C) {
    const bool kv = c.gate_at == GatePosition::g2 || c.gate_at == GatePosition::g3;
    if (c.gate_at == GatePosition::g5) return Gate(c.gate, C, 1, C);
    return Gate(c.gate, C, kv ? c.KVH : c.H, c.D);
  }
  // The value at a place of the picture above: after the gate, if the gate is there.
  ConstReals gated(GatePosition place, ConstReals value, const Pass& pass) {
    return config_.gate_at == place ? gate_.forward(value, x_, pass.N(), pass.ctx) : value;
  }
  ConstReals gated_backward(GatePosition place, ConstReals d, const Pass& pass) {
    return config_.gate_at == place ? gate_.backward(d, pass.N(), pass.ctx) : d;
  }

  AttentionShape shape(BatchShape batch) const {
    return {.B = batch.B,
            .T = batch.T,
            .H = config_.H,
            .KVH = config_.KVH,
            .D = config_.D,
            .window = config_.window,
            .score = config_.score,
            .bias = config_.score_bias,
            .score_dim = config_.score_dim};
  }
  // Of sequences that have `tokens` tokens by now, and will have `most`.T at most.
  CachedAttentionShape cached(BatchShape most, size_t tokens) const {
    const AttentionShape s = shape(most);
    return {s.B, s.H, s.KVH, s.D, s.reach(), tokens, s.score, s.bias, s.score_dim};
  }
  Sink sink() const {
    if (config_.sink == AttentionSink::learned) return {.logit = sink_.value};
    if (config_.sink == AttentionSink::kv_bias)
      return {.logit = sink_logit_, .per_query = true, .key = key_bias_.value, .value = value_bias_.value};
    return {};
  }
  RmsnormWeights rms_weights(const Weight& norm) const {
    return {.w = norm.value, .offset = config_.zero_centred ? 1.0f : 0.0f};
  }

  const RopeTables& angles(const Pass& pass) const { return config_.window_rope ? pass.rope->window : pass.rope->all; }

  void norm_and_rotate(const Pass& pass) {
    q_seen_ = norm_and_rotate(q_rotated_, q_r_, q_in_, q_norm_, config_.H, pass);
    k_seen_ = norm_and_rotate(k_rotated_, k_r_, k_in_, k_norm_, config_.KVH, pass);
  }
  // QK-norm, then rotation, of all heads of q or k. Returns where the result is.
  ConstReals norm_and_rotate(Reals out, float* r, ConstReals in, const Weight& norm, size_t heads, const Pass& pass) {
    if (config_.qk_norm) {
      rmsnorm_forward({.y = out, .r = r}, {.x = in}, rms_weights(norm), pass.N() * heads, config_.D, config_.eps,
                      pass.ctx);
      in = out;
    }
    if (!config_.rope) return in;
    rope_forward(out, in, angles(pass), pass.first_position(), pass.B, pass.T, heads, config_.D, pass.ctx);
    return out;
  }
  // d: gradient after the rotation, replaced by that in front of the norm.
  void norm_and_rotate_backward(Reals d, const Weight& norm, ConstReals in, const float* r, size_t heads,
                                const Pass& pass) {
    if (config_.rope) rope_backward(d, d, angles(pass), 0, pass.B, pass.T, heads, config_.D, pass.ctx);
    if (config_.qk_norm)
      rmsnorm_backward({.dx = d, .dw = norm.grad}, d, {.x = in}, rms_weights(norm), r, pass.N() * heads, config_.D,
                       pass.ctx);
  }

  // Does attention apply G1 itself? Over bf16 arrays it can, where nothing stands between the two.
  bool gates_output() const {
    return config_.gate_at == GatePosition::g1 && gate_.fits_output_of_attention() &&
           config_.sdpa_out == SdpaOut::plain && o_.storage() == Storage::bf16;
  }
  // Over bf16 arrays by tensor cores.
  void attend(const AttentionShape& s, const OutputGate& gate, Context& ctx) {
    if (o_.storage() == Storage::bf16)
      attention_bf16_forward(o_.as<bf16>(), lse_, q_seen_.as<bf16>(), k_seen_.as<bf16>(), v_seen_.as<bf16>(), s, sink(),
                             ctx, gate);
    else
      attention_forward(o_.as<float>(), lse_, q_seen_.as<float>(), k_seen_.as<float>(), v_seen_.as<float>(), s, sink(),
                        ctx);
  }
  void attend_backward(ConstReals dout, const AttentionShape& s, Context& ctx) {
    if (o_.storage() == Storage::bf16)
      attention_bf16_backward(dq_.as<bf16>(), dk_.as<bf16>(), dv_.as<bf16>(), sink_p_, sink_ds_, dout.as<bf16>(),
                              q_seen_.as<bf16>(), k_seen_.as<bf16>(), v_seen_.as<bf16>(), o_.as<bf16>(), lse_, s,
                              sink(), ctx);
    else
      attention_backward(dq_.as<float>(), dk_.as<float>(), dv_.as<float>(), sink_p_, sink_ds_, dout.as<float>(),
                         q_seen_.as<float>(), k_seen_.as<float>(), v_seen_.as<float>(), o_.as<float>(), lse_, s, sink(),
                         ctx);
  }

  // The new tokens join the cache. One that follows others reads it.
  void grow(const Growing& growing, const Pass& pass) {
    const CachedAttentionShape c = cached({pass.B, growing.capacity}, growing.past + pass.T);
    with_storage(o_, [&](auto stored) {
      using S = decltype(stored);
      S *const keys = cached_k_.as<S>(), *const values = cached_v_.as<S>();
      cached_attention_store(keys, values, k_seen_.as<S>(), v_seen_.as<S>(), pass.T, c, pass.ctx);
      if (growing.begins()) return;
      if constexpr (std::is_same_v<S, bf16>)
        cached_attention_bf16(o_.as<S>(), q_seen_.as<S>(), keys, values, c, sink(), pass.ctx);
      else
        cached_attention(o_.as<S>(), q_seen_.as<S>(), keys, values, c, sink(), pass.ctx);
    });
  }

  // --sdpa-out: what becomes of o before the gate.
  ConstReals after_attention(size_t N, Context& ctx) {
    const size_t H = config_.H, D = config_.D;
    if (config_.sdpa_out == SdpaOut::plain) return o_;
    if (config_.sdpa_out == SdpaOut::groupnorm)
      rmsnorm_forward({.y = o_out_, .r = o_r_}, {.x = o_}, rms_weights(out_norm_), N * H, D, config_.eps, ctx);
    else
      activation_forward(o_out_, o_, N * H * D, Activation::silu, ctx);
    return o_out_;
  }
  ConstReals after_attention_backward(ConstReals d, size_t N, Context& ctx) {
    const size_t H = config_.H, D = config_.D;
    if (config_.sdpa_out == SdpaOut::plain) return d;
    if (config_.sdpa_out == SdpaOut::groupnorm)
      rmsnorm_backward({.dx = do_, .dw = out_norm_.grad}, d, {.x = o_}, rms_weights(out_norm_), o_r_, N * H, D, ctx);
    else
      activation_backward(do_, d, o_, N * H * D, Activation::silu, ctx);
    return do_;
  }

  AttentionConfig config_;
  size_t C_;
  Linear wq_, wk_, wv_, wo_;
  Gate gate_;
  HeadExperts k_experts_, v_experts_;
  Weight q_norm_, k_norm_, sink_, key_bias_, value_bias_, out_norm_;

  // What the forward leaves: tensors of its own, and where the value at each place of the picture lies.
  Reals q_, k_, v_, q_rotated_, k_rotated_, o_, o_out_, y_;
  float *q_r_ = nullptr, *k_r_ = nullptr, *sink_logit_ = nullptr, *lse_ = nullptr, *o_r_ = nullptr;
  ConstReals x_, q_in_, k_in_, q_seen_, k_seen_, v_seen_, o_seen_;
  Reals cached_k_, cached_v_;  // (B,KVH,slots,D)
  // The backward's own.
  Reals do_, dq_, dk_, dv_;
  float *sink_p_ = nullptr, *sink_ds_ = nullptr;
};

}  // namespace gated
