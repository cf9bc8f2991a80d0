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
// Of sequences that grow token by token it keeps k and v as attention reads them, gated, normed and rotated: the KV
// cache (kernels/decode/cached_attention.cu). A layer with a window keeps as many tokens as the window has.
// shapes: x, y (N,C), N = B*T; q, o (B,T,H,D); k, v (B,T,KVH,D) | tests/test_model.cpp
#pragma once
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/bf16/attention_bf16.h"
#include "kernels/decode/cached_attention.h"
#include "kernels/decode/cached_attention_bf16.h"
#include "kernels/rope.h"
#include "layers/attention_parts.cuh"
#include "layers/gating.cuh"
#include "layers/switch_head.cuh"
#include "layers/linear.cuh"
#include "layers/maybe.cuh"
#include "layers/mixer.h"

namespace gated {

class Attention final : public Mixer {
 public:
  Attention(const AttentionConfig& config, size_t C)
      : config_(config),
        C_(C),
        k_experts_(config.head_experts.E > 0 && config.head_experts.of == HeadExpertsOf::kv, config.head_experts, "k",
                   C, config.KVH, config.D),
        v_experts_(config.head_experts.E > 0, config.head_experts, "v", C, config.KVH, config.D),
        wq_(C, config.H * config.D, config.bias != AttentionBias::none),
        wk_(C, made_for(k_experts_) * config.D, config.bias != AttentionBias::none),
        wv_(C, made_for(v_experts_) * config.D, config.bias != AttentionBias::none),
        wo_(config.H * config.D, C, config.bias == AttentionBias::all, Init::written()),
        gate_(make_gate(config, C)),
        q_norm_(config.qk_norm, config, config.H),
        k_norm_(config.qk_norm, config, config.KVH),
        out_norm_(config.sdpa_out == SdpaOut::groupnorm, config, config.H),
        first_(config) {}

  ConstReals forward(ConstReals x, const Pass& pass) override {
    Range range("attention");
    const size_t N = pass.N();
    Context& ctx = pass.ctx;
    x_ = x;
    wq_.forward(q_, x, N, ctx);
    wk_.forward(k_, x, N, ctx);
    wv_.forward(v_, x, N, ctx);
    q_in_ = gated(GatePosition::g4, q_, pass);
    k_in_ = gated(GatePosition::g3, k_experts_.forward(k_, x, N, ctx), pass);
    v_seen_ = gated(GatePosition::g2, v_experts_.forward(v_, x, N, ctx), pass);
    norm_and_rotate(pass);

    // Training in fp32 is attend(), then the gate G1, then W_o. Two things are added. Over bf16 the kernel of attention
    // may apply G1 itself (`gate`, which is empty in fp32). In generation (`growing`) new tokens join the KV cache, and
    // after the first forward grow() attends instead of attend().
    const AttentionShape s = shape(pass.batch());
    first_.forward(q_seen_, s, ctx);
    const bool attends = !pass.growing || pass.growing->begins();
    const OutputGate gate = attends && gates_output() ? gate_->of_output(o_, x, N, ctx) : OutputGate();
    if (attends) attend(s, gate, ctx);
    if (pass.growing) grow(*pass.growing, pass);

    o_seen_ = gate.y ? ConstReals(gate.y) : gated(GatePosition::g1, after_attention(N, ctx), pass);
    wo_.forward(y_, o_seen_, N, ctx);
    return gated(GatePosition::g5, y_, pass);
  }

  void recompute(const Pass& pass) override {
    after_attention(pass.N(), pass.ctx);
    if (gate_) gate_->recompute(pass.N(), pass.ctx);
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
    first_.backward(q_seen_, dout, s, ctx);

    norm_and_rotate_backward(dq_, q_norm_, config_.H, pass);
    norm_and_rotate_backward(dk_, k_norm_, config_.KVH, pass);
    InputGradient sum = wq_.input_gradient(dx, accumulate, N, ctx);
    wq_.backward(sum, gated_backward(GatePosition::g4, dq_, pass), x_, N, ctx);
    const ConstReals dk = gated_backward(GatePosition::g3, dk_, pass), dv = gated_backward(GatePosition::g2, dv_, pass);
    wk_.backward(sum, k_experts_.backward(dk, N, ctx), x_, N, ctx);
    wv_.backward(sum, v_experts_.backward(dv, N, ctx), x_, N, ctx);
    each_of([&](auto& part) { part.backward_hidden(sum, N, ctx); }, k_experts_, v_experts_, gate_);
    sum.finish();
  }

  std::string name() const override { return "self_attn"; }

  void parameters(const ParameterVisitor& visit) override {
    wq_.parameters(visit, "q_proj");
    wk_.parameters(visit, "k_proj");
    wv_.parameters(visit, "v_proj");
    each_of([&](auto& part) { part.parameters(visit); }, k_experts_, v_experts_, gate_);
    wo_.parameters(visit, "o_proj");
    if (q_norm_) q_norm_->parameters(visit, "q_norm");
    if (k_norm_) k_norm_->parameters(visit, "k_norm");
    first_.parameters(visit);
    if (out_norm_) out_norm_->parameters(visit, "out_norm");
  }

  void readers(const ReaderVisitor& visit) const override {
    for (const Linear* linear : {&wq_, &wk_, &wv_}) linear->reader(visit);
    each_of([&](const auto& part) { part.reader(visit); }, k_experts_, v_experts_, gate_);
  }

  void activations(const TensorVisitor& visit, BatchShape batch) override {
    const size_t B = batch.B, T = batch.T, H = config_.H, KVH = config_.KVH, D = config_.D;
    visit(q_, "q", {B, T, H, D});
    visit(k_, "k", {B, T, made_for(k_experts_), D});
    visit(v_, "v", {B, T, made_for(v_experts_), D});
    each_of([&](auto& part) { part.activations(visit, batch.N()); }, k_experts_, v_experts_);
    if (q_norm_) q_norm_->activations(visit, "q", batch);
    if (k_norm_) k_norm_->activations(visit, "k", batch);
    if (config_.qk_norm || config_.rope) {
      visit(q_rotated_, "q normed and rotated", {B, T, H, D}, Lifetime::cheap);
      visit(k_rotated_, "k normed and rotated", {B, T, KVH, D}, Lifetime::cheap);
    }
    first_.activations(visit, batch);
    visit(o_, "weighted values", {B, T, H, D});
    visit(lse_, "logsumexp", {B, H, T});
    if (out_norm_) out_norm_->activations(visit, "weighted values", batch);
    if (config_.sdpa_out != SdpaOut::plain)
      visit(o_out_, "weighted values, normed or activated", {B, T, H, D}, Lifetime::cheap);
    if (gate_) gate_->activations(visit, batch.N());
    visit(y_, "output", {batch.N(), C_});
  }

  void temporaries(const TensorVisitor& visit, BatchShape batch) override {
    const size_t B = batch.B, T = batch.T, H = config_.H, KVH = config_.KVH, D = config_.D;
    visit(do_, "d attention", {B, T, H, D});
    visit(dq_, "d q", {B, T, H, D});
    visit(dk_, "d k", {B, T, KVH, D});
    visit(dv_, "d v", {B, T, KVH, D});
    first_.temporaries(visit, batch);
    each_of([&](auto& part) { part.temporaries(visit, batch.N()); }, k_experts_, v_experts_, gate_);
  }

  void scratch(ScratchPlan& plan, BatchShape batch) const override {
    const size_t N = batch.N();
    size_t depth = depth_of({wq_.out(), wk_.out(), wv_.out()});
    each_of([&](const auto& part) { depth += depth_of({part.hidden_depth()}); }, k_experts_, v_experts_, gate_);
    for (const Linear* linear : {&wq_, &wk_, &wv_, &wo_}) linear->scratch(plan, N, linear == &wq_ ? depth : 0);
    each_of([&](const auto& part) { part.scratch(plan, N); }, k_experts_, v_experts_, gate_);
    const bool narrow = plan.storage == Storage::bf16;
    plan.need((narrow ? attention_bf16_forward_scratch : attention_forward_scratch)(shape(batch), plan.device));
    plan.need((narrow ? attention_bf16_backward_scratch : attention_backward_scratch)(shape(batch), plan.device));
    if (!narrow) plan.need(cached_attention_scratch(cached({1, batch.T}, batch.T)));
    plan.kernels_need(rmsnorm_backward_scratch(N * config_.H, config_.D));
    first_.scratch(plan, shape(batch));
  }

  void cache(const TensorVisitor& visit, BatchShape most) override {
    const CachedAttentionShape s = cached(most, most.T);
    visit(cached_k_, "keys kept", {s.B, s.KVH, s.slots, s.D});
    visit(cached_v_, "values kept", {s.B, s.KVH, s.slots, s.D});
  }

  void inspect(Inspector& inspector, BatchShape batch) const override {
    ConstReals o = config_.sdpa_out == SdpaOut::plain ? o_ : o_out_;
    ConstReals o_gated = config_.gate_at == GatePosition::g1 ? o_seen_ : nullptr;
    if (gate_) gate_->inspect(inspector, batch.N());
    inspector.attention({q_seen_, k_seen_, v_seen_, lse_, o, o_gated, shape(batch), first_.seen()});
  }

  // Scores and weighted values: 2 D FLOPs each for a pair of a query head and a key that it sees, and twice that in the
  // backward. A query sees half of T tokens on average, or a window.
  double pair_flops(size_t T) const override {
    const double W = config_.window && config_.window < T ? double(config_.window) : double(T);
    return 12.0 * double(config_.H * config_.D) * (W - W * W / (2.0 * double(T)));
  }

 private:
  // The vectors of D that a token's projection to k or v makes: one for every head, or for every expert of a head.
  size_t made_for(const Maybe<HeadExperts>& experts) const {
    return config_.KVH * (experts ? config_.head_experts.E : 1);
  }
  static Maybe<Gate> make_gate(const AttentionConfig& c, size_t C) {
    const bool kv = c.gate_at == GatePosition::g2 || c.gate_at == GatePosition::g3,
               of_y = c.gate_at == GatePosition::g5;
    return Maybe<Gate>(c.gate_at != GatePosition::none, c.gate, C, of_y ? 1 : kv ? c.KVH : c.H, of_y ? C : c.D);
  }
  // The value at a place of the picture above: after the gate, if the gate is there.
  ConstReals gated(GatePosition place, ConstReals value, const Pass& pass) {
    return config_.gate_at == place ? gate_->forward(value, x_, pass.N(), pass.ctx) : value;
  }
  ConstReals gated_backward(GatePosition place, ConstReals d, const Pass& pass) {
    return config_.gate_at == place ? gate_->backward(d, pass.N(), pass.ctx) : d;
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
  const RopeTables& angles(const Pass& pass) const { return config_.window_rope ? pass.rope->window : pass.rope->all; }

  void norm_and_rotate(const Pass& pass) {
    q_seen_ = norm_and_rotate(q_rotated_, q_in_, q_norm_, config_.H, pass);
    k_seen_ = norm_and_rotate(k_rotated_, k_in_, k_norm_, config_.KVH, pass);
  }
  // QK-norm, then rotation, of all heads of q or k. Returns where the result is.
  ConstReals norm_and_rotate(Reals out, ConstReals in, Maybe<HeadNorm>& norm, size_t heads, const Pass& pass) {
    in = norm.forward_to(out, in, pass.N(), pass.ctx);
    if (!config_.rope) return in;
    rope_forward(out, in, angles(pass), pass.first_position(), pass.B, pass.T, heads, config_.D, pass.ctx);
    return out;
  }
  // d: gradient after the rotation, replaced by that in front of the norm.
  void norm_and_rotate_backward(Reals d, Maybe<HeadNorm>& norm, size_t heads, const Pass& pass) {
    if (config_.rope) rope_backward(d, d, angles(pass), 0, pass.B, pass.T, heads, config_.D, pass.ctx);
    norm.backward_to(d, d, pass.N(), pass.ctx);
  }

  // Does attention apply G1 itself? Over bf16 arrays it can, where nothing stands between the two.
  bool gates_output() const {
    return config_.gate_at == GatePosition::g1 && gate_->fits_output_of_attention() &&
           config_.sdpa_out == SdpaOut::plain && o_.storage() == Storage::bf16;
  }
  // Over bf16 arrays by tensor cores.
  void attend(const AttentionShape& s, const OutputGate& gate, Context& ctx) {
    if (o_.storage() == Storage::bf16)
      attention_bf16_forward(o_.as<bf16>(), lse_, q_seen_.as<bf16>(), k_seen_.as<bf16>(), v_seen_.as<bf16>(), s,
                             first_.seen(), ctx, gate);
    else
      attention_forward(o_.as<float>(), lse_, q_seen_.as<float>(), k_seen_.as<float>(), v_seen_.as<float>(), s,
                        first_.seen(), ctx);
  }
  void attend_backward(ConstReals dout, const AttentionShape& s, Context& ctx) {
    if (o_.storage() == Storage::bf16)
      attention_bf16_backward(dq_.as<bf16>(), dk_.as<bf16>(), dv_.as<bf16>(), first_.p, first_.ds, dout.as<bf16>(),
                              q_seen_.as<bf16>(), k_seen_.as<bf16>(), v_seen_.as<bf16>(), o_.as<bf16>(), lse_, s,
                              first_.seen(), ctx);
    else
      attention_backward(dq_.as<float>(), dk_.as<float>(), dv_.as<float>(), first_.p, first_.ds, dout.as<float>(),
                         q_seen_.as<float>(), k_seen_.as<float>(), v_seen_.as<float>(), o_.as<float>(), lse_, s,
                         first_.seen(), ctx);
  }

  // The new tokens join the cache. One that follows others reads it.
  void grow(const Growing& growing, const Pass& pass) {
    const CachedAttentionShape c = cached({pass.B, growing.capacity}, growing.past + pass.T);
    cached_attention_store(cached_k_, cached_v_, k_seen_, v_seen_, pass.T, c, pass.ctx);
    if (growing.begins()) return;
    if (o_.storage() == Storage::bf16)
      cached_attention_bf16(o_.as<bf16>(), q_seen_.as<bf16>(), cached_k_.as<bf16>(), cached_v_.as<bf16>(), c,
                            first_.seen(), pass.ctx);
    else
      cached_attention(o_.as<float>(), q_seen_.as<float>(), cached_k_.as<float>(), cached_v_.as<float>(), c,
                       first_.seen(), pass.ctx);
  }

  // --sdpa-out: what becomes of o before the gate.
  ConstReals after_attention(size_t N, Context& ctx) {
    if (config_.sdpa_out != SdpaOut::silu) return out_norm_.forward_to(o_out_, o_, N, ctx);
    activation_forward(o_out_, o_, N * config_.H * config_.D, Activation::silu, ctx);
    return o_out_;
  }
  ConstReals after_attention_backward(ConstReals d, size_t N, Context& ctx) {
    if (config_.sdpa_out != SdpaOut::silu) return out_norm_.backward_to(do_, d, N, ctx);
    activation_backward(do_, d, o_, N * config_.H * config_.D, Activation::silu, ctx);
    return do_;
  }

  AttentionConfig config_;
  size_t C_;
  Maybe<HeadExperts> k_experts_, v_experts_;
  Linear wq_, wk_, wv_, wo_;
  Maybe<Gate> gate_;
  Maybe<HeadNorm> q_norm_, k_norm_, out_norm_;
  FirstPosition first_;

  // What the forward leaves: tensors of its own, and where the value at each place of the picture lies.
  Reals q_, k_, v_, q_rotated_, k_rotated_, o_, o_out_, y_;
  float* lse_ = nullptr;
  ConstReals x_, q_in_, k_in_, q_seen_, k_seen_, v_seen_, o_seen_;
  Reals cached_k_, cached_v_;  // (B,KVH,slots,D)
  Reals do_, dq_, dk_, dv_;    // the backward's own
};

}  // namespace gated
