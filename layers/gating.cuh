// gating: a score for what attention computes, from the hidden state x       (Gated Attention, arXiv 2505.06708)
//
//   --gate=elementwise   y = in * act(x W_g^T)      a score for every element              kernels/gate.cu
//   --gate=headwise      y = in * act(x W_g^T)      a score for every head                 kernels/gate.cu
//   --gate=shared        y = in * mean over heads of act(x W_g^T)                          kernels/shared_gate.cu
//   --gate=static        y = in * act(theta)        learned, the same for every token      kernels/static_gate.cu
//   --gate-op=add        + in place of *
// shapes: x (N,C); in, y (N,heads,D) | tests/test_model.cpp
#pragma once
#include "kernels/bf16/attention_bf16.h"
#include "kernels/gate.h"
#include "kernels/shared_gate.h"
#include "kernels/static_gate.h"
#include "layers/inspect.h"
#include "layers/linear.cuh"

namespace gated {

class Gate {
 public:
  Gate(const GateConfig& config, size_t C, size_t heads, size_t D)
      : config_(config),
        heads_(heads),
        D_(D),
        group_(config.kind == GateKind::headwise ? D : 1),
        projection_(C, heads * D / group_) {}

  void parameters(const ParameterVisitor& visit) {
    if (config_.kind == GateKind::static_)
      visit(theta_, "gate.theta", {heads_, D_}, Init::constant(0), Decay::no, Use::scale);
    else
      projection_.parameters(visit, "g_proj");
  }
  void reader(const ReaderVisitor& visit) const {
    if (has_projection()) projection_.reader(visit);
  }
  void activations(const TensorVisitor& visit, size_t N) {
    if (has_projection()) visit(z_, "gate logit", {N, projection_.out()});
    visit(y_, "gate output", {N, heads_, D_}, Lifetime::cheap);
  }
  void temporaries(const TensorVisitor& visit, size_t N) {
    if (has_projection()) visit(dz_, "d gate logit", {N, projection_.out()});
    visit(din_, "d gate input", {N, heads_, D_});
  }

  void scratch(ScratchPlan& plan, size_t N) const {
    if (config_.kind == GateKind::static_)
      plan.kernels_need(static_gate_backward_scratch(N, heads_ * D_));
    else
      projection_.scratch(plan, N);
  }

  // Returns y. x and in must stay until backward.
  ConstReals forward(ConstReals in, ConstReals x, size_t N, Context& ctx) {
    begin(in, x, N, ctx);
    recompute(N, ctx);
    return y_;
  }
  // May attention over bf16 arrays apply it to its own output?
  bool fits_output_of_attention() const {
    return config_.kind == GateKind::elementwise || config_.kind == GateKind::headwise;
  }
  // As forward, for attention that will write `in` and y.
  OutputGate of_output(ConstReals in, ConstReals x, size_t N, Context& ctx) {
    begin(in, x, N, ctx);
    return {y_.as<bf16>(), z_.as<bf16>(), group_, config_.op};
  }
  // Writes y, from the logits.
  void recompute(size_t N, Context& ctx) {
    switch (config_.kind) {
      case GateKind::elementwise:
      case GateKind::headwise: return gate_forward(y_, in_, z_, N, heads_ * D_, group_, config_.op, ctx);
      case GateKind::shared: return shared_gate_forward(y_, in_, z_, N, heads_, D_, config_.op, ctx);
      case GateKind::static_: return static_gate_forward(y_, in_, theta_.value, N, heads_ * D_, config_.op, ctx);
    }
  }

  // Returns the gradient of `in`; that of x follows with backward_hidden.
  ConstReals backward(ConstReals dy, size_t N, Context& ctx) {
    const size_t C = heads_ * D_;
    switch (config_.kind) {
      case GateKind::elementwise:
      case GateKind::headwise: gate_backward(din_, dz_, dy, in_, z_, N, C, group_, config_.op, ctx); break;
      case GateKind::shared: shared_gate_backward(din_, dz_, dy, in_, z_, N, heads_, D_, config_.op, ctx); break;
      case GateKind::static_:
        static_gate_backward(din_, theta_.grad, dy, in_, theta_.value, N, C, config_.op, ctx);
        break;
    }
    return din_;
  }
  void backward_hidden(InputGradient& dx, size_t N, Context& ctx) {
    if (has_projection()) projection_.backward(dx, dz_, x_, N, ctx);
  }
  size_t hidden_depth() const { return has_projection() ? projection_.out() : 0; }  // of that product

  void inspect(Inspector& inspector, size_t N) const {
    const size_t averaged = config_.kind == GateKind::shared ? heads_ : 1;
    if (has_projection())
      inspector.gate({config_, z_, N, projection_.out(), averaged});
    else
      inspector.gate({config_, theta_.value, 1, heads_ * D_, averaged});
  }

 private:
  bool has_projection() const { return config_.kind != GateKind::static_; }
  void begin(ConstReals in, ConstReals x, size_t N, Context& ctx) {
    in_ = in;
    x_ = x;
    if (has_projection()) projection_.forward(z_, x, N, ctx);
  }

  GateConfig config_;
  size_t heads_, D_, group_;
  Linear projection_;
  Weight theta_;
  ConstReals in_, x_;
  Reals z_, y_, dz_, din_;
};

}  // namespace gated
