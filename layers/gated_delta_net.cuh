// gated_delta_net: linear attention with the gated delta rule: projections, a short convolution, the recurrence, a
// gated norm of every head, the output projection.                                  (Qwen3-Next; arXiv 2412.06464)
//
//                                        +-> q -> length 1/sqrt(Dk) --+
//        +-> W_qkv -> convolution, SiLU -+-> k -> length 1 -----------+
//        |                               +-> v -----------------------+-> gated delta rule = o
//   x ---+-> W_ba -+-> b -> beta = sigmoid(b) ------------------------+            |
//        |         +-> a -> g = -exp(A_log) softplus(a + dt_bias) ----+            v
//        +-> W_z ----------------------------------------------------> RMSNorm(o) * SiLU(z) -> W_o -> y
//
//   convolution  causal, of every channel of q, k and v by itself        kernels/short_conv.cu
//   lengths      L2 norm of every head; q takes 1/sqrt(Dk) along         kernels/l2norm.cu
//   g and beta   how much the state forgets, how much it takes in        kernels/decay.cu
//   the rule     one state (Dk,Dv) for every value head                  layers/delta_rule.cuh
//
// Of sequences that grow token by token the convolution keeps its last W-1 inputs, and the rule its state.
// It needs no positions: the state forgets by itself. A token costs the same wherever it stands.
// Qwen3-Next stores W_qkv, W_z and W_ba with their rows in groups of a key head; here they stand as they are read: all
// of q, then k, then v; all of b, then a.
// shapes: x, y (N,C), N = B*T; q, k (B,T,Hk,Dk); v, o, z (B,T,Hv,Dv); a, b (N,Hv) | tests/test_model.cpp
#pragma once
#include "kernels/decay.h"
#include "kernels/gate.h"
#include "kernels/l2norm.h"
#include "kernels/rmsnorm.h"
#include "kernels/short_conv.h"
#include "layers/delta_rule.cuh"
#include "layers/linear.cuh"
#include "layers/mixer.h"

namespace gated {

class GatedDeltaNet final : public Mixer {
 public:
  GatedDeltaNet(const LinearAttentionConfig& config, size_t C)
      : config_(config),
        C_(C),
        wqkv_(C, config.channels()),
        wz_(C, config.Hv * config.Dv),
        wba_(C, 2 * config.Hv),
        wo_(config.Hv * config.Dv, C, false, Init::written()),
        rule_(config) {}

  ConstReals forward(ConstReals x, const Pass& pass) override {
    Range range("gated delta net");
    const size_t N = pass.N();
    Context& ctx = pass.ctx;
    x_ = x;
    wqkv_.forward(qkv_in_, x, N, ctx);
    wz_.forward(z_, x, N, ctx);
    wba_.forward(ba_, x, N, ctx);
    convolve(pass);
    decay_forward(g_, beta_, a(ba_), b(ba_), A_log_.value, dt_bias_.value, decay_shape(N), ctx);
    rule_.forward(o_, rule_in(), pass);
    norm_and_gate(N, ctx);
    wo_.forward(y_, gated_, N, ctx);
    return y_;
  }

  void recompute(const Pass& pass) override {
    convolve(pass);
    norm_and_gate(pass.N(), pass.ctx);
  }

  void backward(Reals dx, Accumulate accumulate, ConstReals dy, const Pass& pass) override {
    Range range("gated delta net backward");
    const size_t N = pass.N(), Hv = config_.Hv, Dv = config_.Dv;
    Context& ctx = pass.ctx;
    wo_.backward(do_, Accumulate::no, dy, gated_, N, ctx);
    gate_backward(do_, dz_, do_, normed_, z_, N, Hv * Dv, 1, silu, ctx);
    rmsnorm_backward(do_, norm_.grad, do_, o_, norm_.value, o_r_, N * Hv, Dv, ctx);
    rule_.backward({dqkv_, dg_, dbeta_}, do_, rule_in(), pass);
    decay_backward({a(dba_), b(dba_), A_log_.grad, dt_bias_.grad}, dg_, dbeta_, a(ba_), b(ba_), A_log_.value,
                   dt_bias_.value, decay_shape(N), ctx);
    l2norm_backward(rule_.q(dqkv_), rule_.q(dqkv_), rule_.q(qkv_), q_r_, q_norm_shape(N), ctx);
    l2norm_backward(rule_.k(dqkv_), rule_.k(dqkv_), rule_.k(qkv_), k_r_, k_norm_shape(N), ctx);
    short_conv_backward(dqkv_in_, conv_.grad, nullptr, dqkv_, nullptr, qkv_in_, conv_.value, nullptr,
                        conv_shape(pass.batch()), ctx);
    InputGradient sum = wqkv_.input_gradient(dx, accumulate, N, ctx);
    wqkv_.backward(sum, dqkv_in_, x_, N, ctx);
    wz_.backward(sum, dz_, x_, N, ctx);
    wba_.backward(sum, dba_, x_, N, ctx);
    sum.finish();
  }

  std::string name() const override { return "linear_attn"; }

  void parameters(const ParameterVisitor& visit) override {
    wqkv_.parameters(visit, "in_proj_qkv");
    wz_.parameters(visit, "in_proj_z");
    wba_.parameters(visit, "in_proj_ba");
    visit(conv_, "conv1d.weight", {config_.channels(), config_.W}, Init::normal(), Decay::yes, Use::scale);
    visit(A_log_, "A_log", {config_.Hv}, Init::log_of_uniform(), Decay::no, Use::scale);
    visit(dt_bias_, "dt_bias", {config_.Hv}, Init::time_step(), Decay::no, Use::scale);
    visit(norm_, "norm.weight", {config_.Dv}, Init::constant(1), Decay::no, Use::scale);
    wo_.parameters(visit, "out_proj");
  }

  void readers(const ReaderVisitor& visit) const override {
    for (const Linear* linear : {&wqkv_, &wz_, &wba_}) linear->reader(visit);
  }

  void activations(const TensorVisitor& visit, BatchShape batch) override {
    const size_t B = batch.B, T = batch.T, Hk = config_.Hk, Hv = config_.Hv, Dv = config_.Dv;
    visit(qkv_in_, "q, k, v projected", {B, T, config_.channels()});
    visit(qkv_, "q, k, v", {B, T, config_.channels()}, Lifetime::cheap);
    visit(q_r_, "q 1/length", {B, T, Hk});
    visit(k_r_, "k 1/length", {B, T, Hk});
    visit(z_, "z", {B, T, Hv, Dv});
    visit(ba_, "b, a", {B, T, 2 * Hv});
    visit(g_, "log decay", {B, T, Hv});
    visit(beta_, "beta", {B, T, Hv});
    rule_.activations(visit, batch);
    visit(o_, "output of the state", {B, T, Hv, Dv});
    visit(o_r_, "output of the state 1/rms", {B, T, Hv});
    visit(normed_, "normed", {B, T, Hv, Dv}, Lifetime::cheap);
    visit(gated_, "gated", {B, T, Hv, Dv}, Lifetime::cheap);
    visit(y_, "output", {batch.N(), C_});
  }

  void temporaries(const TensorVisitor& visit, BatchShape batch) override {
    const size_t B = batch.B, T = batch.T, Hv = config_.Hv, Dv = config_.Dv;
    visit(do_, "d output of the state", {B, T, Hv, Dv});
    visit(dz_, "d z", {B, T, Hv, Dv});
    visit(dqkv_, "d q, k, v", {B, T, config_.channels()});
    visit(dqkv_in_, "d q, k, v projected", {B, T, config_.channels()});
    visit(dg_, "d log decay", {B, T, Hv});
    visit(dbeta_, "d beta", {B, T, Hv});
    visit(dba_, "d b, a", {B, T, 2 * Hv});
  }

  void scratch(ScratchPlan& plan, BatchShape batch) const override {
    const size_t N = batch.N();
    const size_t depth = depth_of({wqkv_.out(), wz_.out(), wba_.out()});
    for (const Linear* linear : {&wqkv_, &wz_, &wba_, &wo_}) linear->scratch(plan, N, linear == &wqkv_ ? depth : 0);
    plan.need(short_conv_forward_scratch(conv_shape(batch), plan.device));
    plan.need(short_conv_backward_scratch(conv_shape(batch), plan.device));
    rule_.scratch(plan, batch);
    plan.kernels_need(decay_backward_scratch(decay_shape(N)));
    plan.kernels_need(rmsnorm_backward_scratch(N * config_.Hv, config_.Dv));
  }

  void cache(const TensorVisitor& visit, BatchShape most) override {
    visit(cached_inputs_, "last inputs of the convolution", {most.B, config_.W - 1, config_.channels()});
    rule_.cache(visit, most);
  }

  void inspect(Inspector& inspector, BatchShape batch) const override { rule_.inspect(inspector, rule_in(), batch); }

  // The convolution, 2 W FLOPs a channel, and three products with the state of every head, 2 Dk Dv each; twice that in
  // the backward.
  double pair_flops(size_t) const override {
    return 6.0 * double(config_.W * config_.channels()) + 18.0 * double(config_.Hv * config_.Dk * config_.Dv);
  }

 private:
  static constexpr GateOp silu = {.act = Activation::silu};

  // q, k and v, from what was projected.
  void convolve(const Pass& pass) {
    const Reals last = pass.growing ? cached_inputs_ : nullptr;
    const bool goes_on = pass.growing && !pass.growing->begins();
    short_conv_forward(qkv_, last, qkv_in_, conv_.value, goes_on ? last : Reals(), conv_shape(pass.batch()), pass.ctx);
    l2norm_forward(rule_.q(qkv_), q_r_, rule_.q(qkv_), q_norm_shape(pass.N()), pass.ctx);
    l2norm_forward(rule_.k(qkv_), k_r_, rule_.k(qkv_), k_norm_shape(pass.N()), pass.ctx);
  }
  // What W_o reads, from the output of the state.
  void norm_and_gate(size_t N, Context& ctx) {
    const size_t Hv = config_.Hv, Dv = config_.Dv;
    rmsnorm_forward(normed_, o_r_, o_, norm_.value, N * Hv, Dv, config_.eps, ctx);
    gate_forward(gated_, normed_, z_, N, Hv * Dv, 1, silu, ctx);
  }

  // Where the parts of a token's row begin.
  Reals b(Reals ba) const { return ba; }
  Reals a(Reals ba) const { return ba + config_.Hv; }

  ShortConvShape conv_shape(BatchShape batch) const { return {batch.B, batch.T, config_.channels(), config_.W}; }
  L2normShape q_norm_shape(size_t N) const {
    L2normShape s = k_norm_shape(N);
    s.m = float(config_.Dk);
    return s;
  }
  L2normShape k_norm_shape(size_t N) const {
    return {.N = N, .H = config_.Hk, .D = config_.Dk, .x_stride = config_.channels(), .y_stride = config_.channels()};
  }
  DecayShape decay_shape(size_t N) const { return {.N = N, .H = config_.Hv, .stride = 2 * config_.Hv}; }
  DeltaIn rule_in() const { return {qkv_, g_, beta_}; }

  LinearAttentionConfig config_;
  size_t C_;
  Linear wqkv_, wz_, wba_, wo_;
  DeltaRule rule_;
  Weight conv_, A_log_, dt_bias_, norm_;

  ConstReals x_;
  Reals qkv_in_, qkv_, z_, ba_, o_, normed_, gated_, y_;
  float *q_r_ = nullptr, *k_r_ = nullptr, *o_r_ = nullptr, *g_ = nullptr, *beta_ = nullptr;
  Reals cached_inputs_;  // (B,W-1,channels)
  // The backward's own.
  Reals do_, dz_, dqkv_, dqkv_in_, dba_;
  float *dg_ = nullptr, *dbeta_ = nullptr;
};

}  // namespace gated
