// gated_delta_net: linear attention with the gated delta rule: projections, a short convolution, the recurrence, a
// gated norm
// of every head, the output projection.                                             (Qwen3-Next; arXiv 2412.06464)
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
//   the rule     one state (Dk,Dv) for every value head; token by token  kernels/gated_delta.cu
//                with --delta=chunk 64 tokens at a time                  kernels/gated_delta_chunk.cu
//                over bf16 arrays the same on tensor cores               kernels/bf16/gated_delta_bf16.cu
//
// Of sequences that grow token by token it keeps the state, and of the convolution the last W-1 inputs. In chunks,
// whose sums have an order of their own, a token has the bits of its place in its chunk: so the state before the chunk
// is kept, and the tokens of the chunk so far. A new token goes through them once more.
//
// It needs no positions: the state forgets by itself. A token costs the same wherever it stands.
// Qwen3-Next stores W_qkv, W_z and W_ba with their rows in groups of a key head; here they stand as they are read: all
// of q, then k, then v; all of b, then a.
// shapes: x, y (N,C), N = B*T; q, k (B,T,Hk,Dk); v, o, z (B,T,Hv,Dv); a, b (N,Hv) | tests/test_model.cpp
#pragma once
#include "kernels/decay.h"
#include "kernels/gate.h"
#include "kernels/gated_delta.h"
#include "kernels/bf16/gated_delta_bf16.h"
#include "kernels/gated_delta_chunk.h"
#include "kernels/l2norm.h"
#include "kernels/rmsnorm.h"
#include "kernels/short_conv.h"
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
        wo_(config.Hv * config.Dv, C, false, config.out_init) {}

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

    if (pass.growing && in_chunks(o_.storage())) {
      if (continues(pass))
        next_of_chunk(pass);
      else
        begin_chunk(pass);
    } else if (o_.storage() == Storage::bf16) {
      gated_delta_bf16_forward({.o = o_.as<bf16>(), .kept = rounded_states_, .u = written_, .miss = missing_},
                               narrow_in(qkv_, g_, beta_), rule_shape(pass.batch()), ctx);
    } else {
      const auto rule = in_chunks(Storage::fp32) ? gated_delta_chunk_forward : gated_delta_forward;
      GatedDeltaIn in = rule_in(qkv_, g_, beta_);
      in.initial = continues(pass) ? state_ : nullptr;
      rule({.o = o_.as<float>(), .final = pass.growing ? state_ : nullptr, .error = error_, .kept = kept_}, in,
           rule_shape(pass.batch()), ctx);
    }

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

    const Reals dq = q(dqkv_), dk = k(dqkv_), dv = v(dqkv_);
    if (o_.storage() == Storage::bf16) {
      gated_delta_bf16_backward(
          {.dq = dq.as<bf16>(), .dk = dk.as<bf16>(), .dv = dv.as<bf16>(), .dg = dg_, .dbeta = dbeta_},
          {.dout = do_.as<bf16>(), .kept = rounded_states_, .u = written_, .miss = missing_},
          narrow_in(qkv_, g_, beta_), rule_shape(pass.batch()), ctx);
    } else {
      const auto rule_backward = in_chunks(Storage::fp32) ? gated_delta_chunk_backward : gated_delta_backward;
      rule_backward({.dq = dq.as<float>(), .dk = dk.as<float>(), .dv = dv.as<float>(), .dg = dg_, .dbeta = dbeta_},
                    {.dout = do_.as<float>(), .error = error_, .kept = kept_}, rule_in(qkv_, g_, beta_),
                    rule_shape(pass.batch()), ctx);
    }

    decay_backward({a(dba_), b(dba_), A_log_.grad, dt_bias_.grad}, dg_, dbeta_, a(ba_), b(ba_), A_log_.value,
                   dt_bias_.value, decay_shape(N), ctx);
    l2norm_backward(q(dqkv_), q(dqkv_), q(qkv_), q_r_, q_norm_shape(N), ctx);
    l2norm_backward(k(dqkv_), k(dqkv_), k(qkv_), k_r_, k_norm_shape(N), ctx);
    short_conv_backward(dqkv_in_, conv_.grad, nullptr, dqkv_, nullptr, qkv_in_, conv_.value, nullptr,
                        conv_shape(pass.batch()), ctx);
    wqkv_.backward(dx, accumulate, dqkv_in_, x_, N, ctx);
    wz_.backward(dx, Accumulate::yes, dz_, x_, N, ctx);
    wba_.backward(dx, Accumulate::yes, dba_, x_, N, ctx);
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
    const size_t B = batch.B, T = batch.T, Hk = config_.Hk, Hv = config_.Hv, Dk = config_.Dk, Dv = config_.Dv;
    visit(qkv_in_, "q, k, v projected", {B, T, config_.channels()});
    visit(qkv_, "q, k, v", {B, T, config_.channels()}, Lifetime::cheap);
    visit(q_r_, "q 1/length", {B, T, Hk});
    visit(k_r_, "k 1/length", {B, T, Hk});
    visit(z_, "z", {B, T, Hv, Dv});
    visit(ba_, "b, a", {B, T, 2 * Hv});
    visit(g_, "log decay", {B, T, Hv});
    visit(beta_, "beta", {B, T, Hv});
    if (visit.storage() == Storage::bf16) {
      visit(missing_, "v less what the state had", {B, T, Hv, Dv});
      visit(written_, "what tokens write", {B, T, Hv, Dv});
      visit(rounded_states_, "states before every chunk", {B, Hv, gated_delta_bf16_chunks(rule_shape(batch)), Dk, Dv});
    } else {
      visit(error_, "v less what the state had", {B, T, Hv, Dv});
      visit(kept_, "states before every 64th token", {B, Hv, rule_shape(batch).kept(), Dk, Dv});
    }
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
    for (const Linear* linear : {&wqkv_, &wz_, &wba_, &wo_}) linear->scratch(plan, N);
    plan.need(short_conv_forward_scratch(conv_shape(batch), plan.device));
    plan.need(short_conv_backward_scratch(conv_shape(batch), plan.device));
    const bool narrow = plan.storage == Storage::bf16, chunks = in_chunks(plan.storage);
    const auto rule = narrow   ? gated_delta_bf16_forward_scratch
                      : chunks ? gated_delta_chunk_forward_scratch
                               : gated_delta_forward_scratch;
    const auto rule_backward = narrow   ? gated_delta_bf16_backward_scratch
                               : chunks ? gated_delta_chunk_backward_scratch
                                        : gated_delta_backward_scratch;
    plan.need(rule(rule_shape(batch), plan.device));
    plan.need(rule_backward(rule_shape(batch), plan.device));
    plan.kernels_need(decay_backward_scratch(decay_shape(N)));
    plan.kernels_need(rmsnorm_backward_scratch(N * config_.Hv, config_.Dv));
  }

  void cache(const TensorVisitor& visit, BatchShape most) override {
    const size_t B = most.B, Hv = config_.Hv, Dv = config_.Dv;
    visit(cached_inputs_, "last inputs of the convolution", {B, config_.W - 1, config_.channels()});
    visit(state_, "state", {B, Hv, config_.Dk, Dv});
    if (!in_chunks(visit.storage())) return;
    visit(chunk_qkv_, "q, k, v of the chunk", {B, chunk, config_.channels()});
    visit(chunk_g_, "log decay of the chunk", {B, chunk, Hv});
    visit(chunk_beta_, "beta of the chunk", {B, chunk, Hv});
    visit(chunk_o_, "output of the chunk", {chunk, Hv, Dv});
    if (visit.storage() == Storage::bf16) visit(chunk_written_, "what the chunk writes", {chunk, Hv, Dv});
  }
  void cache_scratch(ScratchPlan& plan, BatchShape) const override {
    const auto rule =
        plan.storage == Storage::bf16 ? gated_delta_bf16_forward_scratch : gated_delta_chunk_forward_scratch;
    if (in_chunks(plan.storage)) plan.need(rule(rule_shape({1, chunk}), plan.device));
  }

  void inspect(Inspector& inspector, BatchShape batch) const override {
    const GatedDeltaShape s = rule_shape(batch);
    if (o_.storage() == Storage::bf16)
      inspector.linear_attention({g_, beta_, rounded_states_, gated_delta_bf16_chunks(s), s});
    else
      inspector.linear_attention({g_, beta_, kept_, s.kept(), s});
  }

  // The convolution, 2 W FLOPs a channel, and three products with the state of every head, 2 Dk Dv each; twice that in
  // the backward.
  double pair_flops(size_t) const override {
    return 6.0 * double(config_.W * config_.channels()) + 18.0 * double(config_.Hv * config_.Dk * config_.Dv);
  }

 private:
  static constexpr GateOp silu = {.act = Activation::silu};
  static constexpr size_t chunk = gated_delta_interval;
  bool in_chunks(Storage storage) const { return storage == Storage::bf16 || config_.form == DeltaForm::chunk; }
  static bool continues(const Pass& pass) { return pass.growing && !pass.growing->begins(); }

  // q, k and v, from what was projected.
  void convolve(const Pass& pass) {
    const Reals inputs = pass.growing ? cached_inputs_ : nullptr;
    short_conv_forward(qkv_, inputs, qkv_in_, conv_.value, continues(pass) ? inputs : Reals(), conv_shape(pass.batch()),
                       pass.ctx);
    l2norm_forward(q(qkv_), q_r_, q(qkv_), q_norm_shape(pass.N()), pass.ctx);
    l2norm_forward(k(qkv_), k_r_, k(qkv_), k_norm_shape(pass.N()), pass.ctx);
  }
  // What W_o reads, from the output of the state.
  void norm_and_gate(size_t N, Context& ctx) {
    const size_t Hv = config_.Hv, Dv = config_.Dv;
    rmsnorm_forward(normed_, o_r_, o_, norm_.value, N * Hv, Dv, config_.eps, ctx);
    gate_forward(gated_, normed_, z_, N, Hv * Dv, 1, silu, ctx);
  }

  // Puts the last `tokens` of the T tokens of each sequence into the chunk, as its tokens `first` and those after it.
  void keep_in_chunk(size_t first, size_t tokens, const Pass& pass) {
    const auto keep = [&](auto* to, const auto* from, size_t width) {
      copy_rows(to + first * width, chunk * width, from + (pass.T - tokens) * width, pass.T * width, pass.B,
                tokens * width, pass.ctx);
    };
    with_storage(qkv_, [&](auto stored) {
      using S = decltype(stored);
      keep(chunk_qkv_.as<S>(), qkv_.as<S>(), config_.channels());
    });
    keep(chunk_g_, g_, config_.Hv);
    keep(chunk_beta_, beta_, config_.Hv);
  }

  // The rule over so many tokens of one sequence, which begin a chunk. Over bf16 arrays `written` has room for what
  // they write.
  void rule_over(Reals o, float* final, bf16* written, Reals qkv, const float* g, const float* beta,
                 const float* initial, size_t tokens, Context& ctx) {
    const GatedDeltaShape s = rule_shape({1, tokens});
    if (o.storage() == Storage::bf16) {
      GatedDeltaBf16In in = narrow_in(qkv, g, beta);
      in.initial = initial;
      gated_delta_bf16_forward({.o = o.as<bf16>(), .final = final, .kept = rounded_states_, .u = written}, in, s, ctx);
    } else {
      GatedDeltaIn in = rule_in(qkv, g, beta);
      in.initial = initial;
      gated_delta_chunk_forward({.o = o.as<float>(), .final = final}, in, s, ctx);
    }
  }

  // The rule over sequences that begin: over their whole chunks, after which state_ is, and over the chunk that is
  // begun.
  void begin_chunk(const Pass& pass) {
    const size_t rest = pass.T % chunk, whole = pass.T - rest, width = config_.Hv * config_.Dv;
    for (size_t b = 0; b < pass.B; b++) {
      float* const state = state_ + rule_shape(pass.batch()).state(b, 0);
      const auto over = [&](size_t t, size_t tokens, const float* initial, float* final) {
        const size_t row = b * pass.T + t;
        rule_over(o_ + row * width, final, written_ ? written_ + row * width : nullptr, qkv_ + row * config_.channels(),
                  g_ + row * config_.Hv, beta_ + row * config_.Hv, initial, tokens, pass.ctx);
      };
      if (whole > 0) over(0, whole, nullptr, state);
      if (whole == 0) set_zero(state, config_.Hv * config_.Dk * config_.Dv, pass.ctx);
      if (rest > 0) over(whole, rest, state, nullptr);
    }
    if (rest > 0) keep_in_chunk(0, rest, pass);
  }

  // The next token of every sequence: the rule over its chunk so far, of which the last row is new.
  void next_of_chunk(const Pass& pass) {
    const size_t at = pass.growing->past % chunk, Hv = config_.Hv, width = Hv * config_.Dv;
    keep_in_chunk(at, 1, pass);
    for (size_t b = 0; b < pass.B; b++) {
      float* const state = state_ + rule_shape(pass.batch()).state(b, 0);
      rule_over(chunk_o_, at + 1 == chunk ? state : nullptr, chunk_written_,
                chunk_qkv_ + b * chunk * config_.channels(), chunk_g_ + b * chunk * Hv, chunk_beta_ + b * chunk * Hv,
                state, at + 1, pass.ctx);
      with_storage(o_, [&](auto stored) {
        using S = decltype(stored);
        copy_rows(o_.as<S>() + b * width, width, chunk_o_.as<S>() + at * width, width, 1, width, pass.ctx);
      });
    }
  }

  // Where the parts of a token's row begin.
  Reals q(Reals qkv) const { return qkv; }
  Reals k(Reals qkv) const { return qkv + config_.Hk * config_.Dk; }
  Reals v(Reals qkv) const { return qkv + 2 * config_.Hk * config_.Dk; }
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
  GatedDeltaShape rule_shape(BatchShape batch) const {
    return {.B = batch.B,
            .T = batch.T,
            .Hk = config_.Hk,
            .Hv = config_.Hv,
            .Dk = config_.Dk,
            .Dv = config_.Dv,
            .qk_stride = config_.channels(),
            .v_stride = config_.channels()};
  }
  GatedDeltaIn rule_in(Reals qkv, const float* g, const float* beta) const {
    return {.q = q(qkv).as<float>(), .k = k(qkv).as<float>(), .v = v(qkv).as<float>(), .g = g, .beta = beta};
  }
  GatedDeltaBf16In narrow_in(Reals qkv, const float* g, const float* beta) const {
    return {.q = q(qkv).as<bf16>(), .k = k(qkv).as<bf16>(), .v = v(qkv).as<bf16>(), .g = g, .beta = beta};
  }

  LinearAttentionConfig config_;
  size_t C_;
  Linear wqkv_, wz_, wba_, wo_;
  Weight conv_, A_log_, dt_bias_, norm_;

  ConstReals x_;
  Reals qkv_in_, qkv_, z_, ba_, o_, normed_, gated_, y_;
  float *q_r_ = nullptr, *k_r_ = nullptr, *o_r_ = nullptr, *g_ = nullptr, *beta_ = nullptr;
  float *error_ = nullptr, *kept_ = nullptr;                                  // of floats
  bf16 *missing_ = nullptr, *written_ = nullptr, *rounded_states_ = nullptr;  // of bf16
  Reals cached_inputs_, chunk_qkv_, chunk_o_;                                 // (B,W-1,channels), ...
  float *state_ = nullptr, *chunk_g_ = nullptr, *chunk_beta_ = nullptr;       // (B,Hv,Dk,Dv), ...
  bf16* chunk_written_ = nullptr;
  // The backward's own.
  Reals do_, dz_, dqkv_, dqkv_in_, dba_;
  float *dg_ = nullptr, *dbeta_ = nullptr;
};

}  // namespace gated
