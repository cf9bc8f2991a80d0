// moe: a mixture of experts in the place of the feed-forward network: many networks, of which a token takes a few.
//                                                                (Qwen3-MoE, Qwen3-Next; arXiv 1701.06538, 2006.16668)
//
//        +-> W_router -> softmax -> the k largest of E: experts and weights w        kernels/router.cu
//        |                                  |
//   x ---+-> rows sorted by expert -> FFN of each expert -> y = sum of w * row ---+-> y  kernels/{dispatch,combine}.cu
//        |                                                                        |
//        +-> shared expert, a FFN that every token takes -> * sigmoid(w_s x) -----+
//
//   --experts, --experts-per-token, --expert-hidden     E, k, width of an expert; --ffn says what an expert computes
//   --shared-experts, --shared-expert-gate              so many experts' width in one FFN for all tokens, and its gate
//   --router-renormalise                                the k weights are divided by their sum (as gpt-oss's are)
//   --router-bias                                       logits x W_router^T + b (gpt-oss)
//
// Left to itself a router sends everything to the few experts that learned first. Two losses join that of the model:
//   balance   --balance-loss * E * sum over e of f_e P_e       f_e: e's share of the slots, P_e: its mean probability
//   z         --z-loss * mean over tokens of logsumexp(logits)^2
// f is counted and has no gradient. Without its factor the balance loss is 1 where all f_e are equal, and more where
// busy experts are the likely ones too. The shares are those of the micro-batch, or (--balance-over=global, arXiv
// 2501.11873) of all micro-batches of the slice so far: experts may then specialise within a micro-batch as long as the
// slice is balanced. Slices of a step do not know of each other: they may be computed side by side. By default, with up
// to eight micro-batches, a slice is one micro-batch, and both values mean the same; --slices=1 counts the step. The
// losses that a run prints do not contain these two.
//
// With activations in bf16 the router still chooses in fp32: its logits are the product's sums, not rounded, of x and
// of the rounded copy of W_router; probabilities, weights and both losses are fp32. Its gradients dlogits are rounded,
// for they are multiplied twice.
//
// The number of rows that an expert gets is known to the device alone, and no host waits for it: N k rows in all are
// computed, whoever they belong to. No token is dropped.
// shapes: x, y (N,C), N = B*T; M = N k rows | tests/test_moe.cpp
#pragma once
#include "kernels/combine.h"
#include "kernels/dispatch.h"
#include "kernels/gate.h"
#include "kernels/router.h"
#include "layers/ffn.cuh"
#include "layers/grouped_linear.cuh"
#include "layers/maybe.cuh"

namespace gated {

class Moe final : public Mixer {
 public:
  // layer: the block's place in the model. experts: what one computes; its F is the width of an expert.
  Moe(const MoeConfig& config, const FfnConfig& experts, size_t C, size_t layer)
      : config_(config),
        C_(C),
        layer_(layer),
        router_(C, config.E, config.router_bias, Init::normal(), Use::product),
        experts_(experts, C, config.E, double(config.k) / double(config.E), &rows_.row_start),
        shared_(config.shared > 0, shared_config(config, experts), C),
        shared_gate_(config.shared > 0 && config.shared_gate, C, 1, false, Init::normal(), Use::product) {}
  Moe(const Moe&) = delete;  // the experts know where row_start is kept

  std::string name() const override { return "mlp"; }

  ConstReals forward(ConstReals x, const Pass& pass) override {
    Range range("mixture of experts");
    const size_t N = pass.N();
    Context& ctx = pass.ctx;
    x_ = x;
    router_.forward(logits_, x, N, ctx);
    router_forward(routed_, logits_, router_shape(N), ctx);
    dispatch_sort(rows_, routed_.expert, dispatch_shape(N), ctx);
    gather(N, ctx);
    y_rows_ = experts_.forward(x_rows_, N * config_.k, ctx);
    ConstReals joined;  // what of the shared expert joins y; null where there is none
    if (shared_) joined = shared_y_ = shared_->forward(x, N, ctx);
    if (shared_gate_) {
      shared_gate_->forward(shared_z_, x, N, ctx);
      gate_forward(y_, shared_y_, shared_z_, N, C_, C_, sigmoid, ctx);
      joined = y_;
    }
    combine_forward(y_, y_rows_, routed_.weight, joined, rows_, dispatch_shape(N), C_, ctx);
    return y_;
  }

  void recompute(const Pass& pass) override {
    const size_t N = pass.N();
    gather(N, pass.ctx);
    experts_.recompute(N * config_.k, pass.ctx);
    if (shared_) shared_->recompute(N, pass.ctx);
  }

  void backward(Reals dx, Accumulate accumulate, ConstReals dy, const Pass& pass) override {
    Range range("mixture of experts backward");
    const size_t N = pass.N();
    Context& ctx = pass.ctx;
    combine_backward(dy_rows_, dweight_, dy, y_rows_, routed_.weight, rows_, dispatch_shape(N), C_, ctx);
    if (shared_gate_) gate_backward(dshared_, dshared_z_, dy, shared_y_, shared_z_, N, C_, C_, sigmoid, ctx);
    if (shared_) {
      InputGradient sum = shared_->input_gradient(dx, accumulate, N, ctx);
      shared_->backward(sum, shared_gate_ ? ConstReals(dshared_) : dy, N, ctx);
      if (shared_gate_) shared_gate_->backward(sum, dshared_z_, x_, N, ctx);
      sum.finish();
      accumulate = Accumulate::yes;
    }
    experts_.backward(dx_rows_, Accumulate::no, dy_rows_, N * config_.k, ctx);
    dispatch_gather_backward(dx, accumulate, dx_rows_, rows_, dispatch_shape(N), C_, ctx);

    const bool first = config_.balance_over == BalanceOver::micro_batch || pass.micro_batch.begins_slice();
    dispatch_count(counts_, rows_.row_start, first, config_.E, ctx);
    const float share = pass.micro_batch.share();
    router_backward(dlogits_, dweight_, routed_, {share * config_.balance, share * config_.z, counts_}, router_shape(N),
                    ctx);
    router_.backward(dx, Accumulate::yes, dlogits_, x_, N, ctx);
    router_report(pass.routing_report(layer_), routed_.p, routed_.lse, counts_, router_shape(N), ctx);
  }

  void parameters(const ParameterVisitor& visit) override {
    router_.parameters(visit, "gate");
    experts_.parameters(visit.under("experts."));
    if (shared_) shared_->parameters(visit.under("shared_expert."));
    if (shared_gate_) shared_gate_->parameters(visit, "shared_expert_gate");
  }

  void readers(const ReaderVisitor& visit) const override {
    router_.reader(visit);
    experts_.readers(visit);
    if (shared_) shared_->readers(visit);
    if (shared_gate_) shared_gate_->reader(visit);
  }

  void activations(const TensorVisitor& visit, BatchShape batch) override {
    const size_t N = batch.N(), E = config_.E, k = config_.k, M = N * k;
    visit(logits_, "router logits", {N, E});
    visit(routed_.p, "probabilities", {N, E});
    visit(routed_.lse, "logsumexp of the logits", {N});
    visit(routed_.expert, "experts", {N, k});
    visit(routed_.weight, "weights", {N, k});
    visit(rows_.row_start, "first row of an expert", {E + 1});
    visit(rows_.row_of_slot, "row of a slot", {M});
    visit(counts_, "slots of an expert in the slice", {E}, Lifetime::step);
    visit(x_rows_, "x, sorted by expert", {M, C_}, Lifetime::cheap);
    experts_.activations(visit.of(name() + ", experts"), M);
    if (shared_) shared_->activations(visit.of(name() + ", shared expert"), N);
    if (shared_gate_) visit(shared_z_, "gate of the shared expert", {N, 1});
    visit(y_, "output", {N, C_});
  }

  void temporaries(const TensorVisitor& visit, BatchShape batch) override {
    const size_t N = batch.N(), M = N * config_.k;
    visit(dy_rows_, "d experts' outputs", {M, C_});
    visit(dx_rows_, "d experts' inputs", {M, C_});
    visit(dweight_, "d weights", {N, config_.k});
    visit(dlogits_, "d router logits", {N, config_.E});
    experts_.temporaries(visit, M);
    if (shared_) shared_->temporaries(visit, N);
    if (shared_gate_) {
      visit(dshared_, "d shared expert", {N, C_});
      visit(dshared_z_, "d gate of the shared expert", {N, 1});
    }
  }

  void scratch(ScratchPlan& plan, BatchShape batch) const override {
    const size_t N = batch.N();
    router_.scratch(plan, N);
    experts_.scratch(plan, N * config_.k);
    if (shared_) shared_->scratch(plan, N);
    if (shared_gate_) shared_gate_->scratch(plan, N, shared_->hidden_depth() + depth_of({1}));
    plan.kernels_need(dispatch_sort_scratch(dispatch_shape(N)));
    plan.kernels_need(router_backward_scratch(router_shape(N), plan.storage));
    plan.kernels_need(router_report_scratch(router_shape(N)));
  }

  void inspect(Inspector& inspector, BatchShape batch) const override {
    inspector.routing({routed_.expert, router_shape(batch.N())});
  }

 private:
  static constexpr GateOp sigmoid = {.act = Activation::sigmoid};
  void gather(size_t N, Context& ctx) { dispatch_gather(x_rows_, x_, rows_, dispatch_shape(N), C_, ctx); }
  static FfnConfig shared_config(const MoeConfig& config, FfnConfig expert) {
    expert.F = config.shared_width();
    return expert;
  }
  RouterShape router_shape(size_t N) const { return {N, config_.E, config_.k, config_.renormalise}; }
  DispatchShape dispatch_shape(size_t N) const { return {N, config_.E, config_.k}; }

  MoeConfig config_;
  size_t C_, layer_;
  Dispatch rows_ = {};
  Linear router_;
  FeedForward<GroupedLinear> experts_;
  Maybe<FeedForward<Linear>> shared_;
  Maybe<Linear> shared_gate_;

  ConstReals x_, y_rows_, shared_y_;
  RouterOut routed_ = {};
  size_t* counts_ = nullptr;
  float* logits_ = nullptr;
  Reals x_rows_, shared_z_, y_;
  // The backward's own.
  Reals dy_rows_, dx_rows_, dshared_, dshared_z_, dlogits_;
  float* dweight_ = nullptr;
};

}  // namespace gated
