// ffn: the feed-forward half of a block.                              (gated forms: Shazeer 2020, arXiv 2002.05202)
//
//   --ffn=swiglu|glu|geglu         y = W_down (act(W_gate x) * (W_up x)), act = SiLU, sigmoid, GELU   kernels/glu.cu
//   --ffn=swiglu-clamped           y = W_down ((clamp(W_up x) + 1) * swish(min(W_gate x, 7)))   kernels/glu.cu
//   --ffn=gelu|relu2               y = W_down act(W_up x), act = GELU, max(x,0)^2              kernels/activation.cu
//   --ffn=polynorm                 y = W_down PolyNorm(W_up x)           (arXiv 2411.03884)      kernels/polynorm.cu
//   --gelu=tanh|erf                which GELU
//
// FeedForward is the network itself, over N rows. Its matrices are a Linear's, one for all rows; or, in a mixture of
// experts, a GroupedLinear's, one for each expert (layers/moe.cuh). Ffn is the mixer of a dense block.
// shapes: x, y (N,C); W_gate, W_up (F,C); W_down (C,F) | tests/test_model.cpp
#pragma once
#include "kernels/activation.h"
#include "kernels/glu.h"
#include "kernels/polynorm.h"
#include "layers/linear.cuh"
#include "layers/maybe.cuh"
#include "layers/mixer.h"

namespace gated {

template <class Projection>
class FeedForward {
 public:
  // `more` is what a Projection wants besides its sizes, its bias and its start.
  template <class... More>
  FeedForward(const FfnConfig& config, size_t C, const More&... more)
      : config_(config),
        C_(C),
        gate_(form() == Form::gated || form() == Form::clamped, C, config.F, config.bias, Init::normal(), more...),
        up_(C, config.F, config.bias, Init::normal(), more...),
        down_(config.F, C, config.bias, Init::written(), more...) {}

  // Returns y. x must stay until backward.
  ConstReals forward(ConstReals x, size_t N, Context& ctx) {
    x_ = x;
    if (gate_) gate_->forward(g_, x, N, ctx);
    if (products_activate()) {
      up_.forward(u_, x, N, ctx, {a_.as<bf16>(), g_.as<bf16>(), activation()});
    } else {
      up_.forward(u_, x, N, ctx);
      recompute(N, ctx);
    }
    down_.forward(y_, a_, N, ctx);
    return y_;
  }

  // Writes the activation, from what W_gate and W_up made.
  void recompute(size_t N, Context& ctx) {
    const size_t F = config_.F;
    switch (form()) {
      case Form::plain: return activation_forward(a_, u_, N * F, activation(), ctx);
      case Form::gated: return glu_forward(a_, g_, u_, N * F, activation(), ctx);
      case Form::clamped: return swiglu_clamped_forward(a_, g_, u_, N * F, ctx);
      case Form::polynorm: return polynorm_forward(a_, r_, u_, poly_.value, poly_bias_.value, N, F, polynorm_eps, ctx);
    }
  }

  // dx is written or accumulated to; dy is read before that.
  void backward(Reals dx, Accumulate accumulate, ConstReals dy, size_t N, Context& ctx) {
    InputGradient alone = input_gradient(dx, accumulate, N, ctx);
    backward(alone, dy, N, ctx);
    alone.finish();
  }
  // The same where dx is that of other layers too.
  void backward(InputGradient& dx, ConstReals dy, size_t N, Context& ctx) {
    InputGradient da = down_.input_gradient(du_, Accumulate::no, N, ctx);
    down_.backward(da, dy, a_, N, ctx);
    if (products_activate()) {
      da.finish({.g = g_.as<bf16>(), .act = activation(), .u = u_.as<bf16>(), .dg = dg_.as<bf16>()});
    } else {
      da.finish();
      activation_backward(N, ctx);
    }
    if (gate_) gate_->backward(dx, dg_, x_, N, ctx);
    up_.backward(dx, du_, x_, N, ctx);
  }
  InputGradient input_gradient(Reals dx, Accumulate accumulate, size_t N, Context& ctx) const {
    return up_.input_gradient(dx, accumulate, N, ctx);
  }

  void parameters(const ParameterVisitor& visit) {
    if (gate_) gate_->parameters(visit, "gate_proj");
    up_.parameters(visit, "up_proj");
    down_.parameters(visit, "down_proj");
    if (form() != Form::polynorm) return;
    visit(poly_, "poly.weight", {3}, Init::constant(1.0 / 3), Decay::no, Use::scale);
    visit(poly_bias_, "poly.bias", {1}, Init::constant(0), Decay::no, Use::scale);
  }
  void readers(const ReaderVisitor& visit) const {
    if (gate_) gate_->reader(visit);
    up_.reader(visit);
  }
  void activations(const TensorVisitor& visit, size_t N) {
    if (gate_) visit(g_, "gate", {N, config_.F});
    visit(u_, "up", {N, config_.F});
    if (form() == Form::polynorm) visit(r_, "1/norms", {N, 3});
    visit(a_, "activation", {N, config_.F}, Lifetime::cheap);
    visit(y_, "output", {N, C_});
  }
  void temporaries(const TensorVisitor& visit, size_t N) {
    if (gate_) visit(dg_, "d ffn gate", {N, config_.F});
    visit(du_, "d ffn up", {N, config_.F});
    if (form() == Form::polynorm) visit(row_sums_, "ffn row sums", {N, 4});
  }

  void scratch(ScratchPlan& plan, size_t N) const {
    up_.scratch(plan, N, hidden_depth());  // W_gate is as W_up
    down_.scratch(plan, N);
    if (form() == Form::polynorm) plan.kernels_need(polynorm_backward_scratch(N));
  }

  size_t hidden_depth() const { return depth_of({config_.F, gate_ ? config_.F : 0}); }  // of dx

 private:
  static constexpr float polynorm_eps = 1e-6f;
  // What makes the activation: act(u), act(g) * u, or an operation of its own.
  enum class Form { plain, gated, clamped, polynorm };
  Form form() const {
    switch (config_.kind) {
      case FfnKind::gelu:
      case FfnKind::relu2: return Form::plain;
      case FfnKind::swiglu:
      case FfnKind::glu:
      case FfnKind::geglu: return Form::gated;
      case FfnKind::swiglu_clamped: return Form::clamped;
      case FfnKind::polynorm: return Form::polynorm;
    }
    fail("ffn: no kind %d", int(config_.kind));
  }
  Activation activation() const {
    switch (config_.kind) {
      case FfnKind::swiglu: return Activation::silu;
      case FfnKind::glu: return Activation::sigmoid;
      case FfnKind::relu2: return Activation::relu2;
      case FfnKind::gelu:
      case FfnKind::geglu: return config_.gelu;
      case FfnKind::swiglu_clamped:
      case FfnKind::polynorm: break;
    }
    fail("ffn: kind %d has no activation of one element", int(config_.kind));
  }
  // Can the product of W_up make the activation in its end, and that of W_down its backward? PolyNorm needs whole rows
  // first; the clamped form is no act(g) * u.
  bool products_activate() const {
    return u_.storage() == Storage::bf16 && (form() == Form::plain || form() == Form::gated);
  }
  // du, and dg where there is a gate, from da, which stands where du will.
  void activation_backward(size_t N, Context& ctx) {
    const size_t F = config_.F;
    switch (form()) {
      case Form::plain: return gated::activation_backward(du_, du_, u_, N * F, activation(), ctx);
      case Form::gated: return glu_backward(dg_, du_, du_, g_, u_, N * F, activation(), ctx);
      case Form::clamped: return swiglu_clamped_backward(dg_, du_, du_, g_, u_, N * F, ctx);
      case Form::polynorm:
        return polynorm_backward(du_, poly_.grad, poly_bias_.grad, row_sums_, du_, u_, poly_.value, r_, N, F, ctx);
    }
  }

  FfnConfig config_;
  size_t C_;
  Maybe<Projection> gate_;
  Projection up_, down_;
  Weight poly_, poly_bias_;
  ConstReals x_;
  Reals g_, u_, a_, y_;
  float* r_ = nullptr;
  Reals dg_, du_;
  float* row_sums_ = nullptr;
};

class Ffn final : public Mixer {
 public:
  Ffn(const FfnConfig& config, size_t C) : net_(config, C) {}

  std::string name() const override { return "mlp"; }

  ConstReals forward(ConstReals x, const Pass& pass) override {
    Range range("ffn");
    return net_.forward(x, pass.N(), pass.ctx);
  }
  void recompute(const Pass& pass) override { net_.recompute(pass.N(), pass.ctx); }
  void backward(Reals dx, Accumulate accumulate, ConstReals dy, const Pass& pass) override {
    Range range("ffn backward");
    net_.backward(dx, accumulate, dy, pass.N(), pass.ctx);
  }

  void parameters(const ParameterVisitor& visit) override { net_.parameters(visit); }
  void readers(const ReaderVisitor& visit) const override { net_.readers(visit); }
  void activations(const TensorVisitor& visit, BatchShape batch) override { net_.activations(visit, batch.N()); }
  void temporaries(const TensorVisitor& visit, BatchShape batch) override { net_.temporaries(visit, batch.N()); }
  void scratch(ScratchPlan& plan, BatchShape batch) const override { net_.scratch(plan, batch.N()); }

 private:
  FeedForward<Linear> net_;
};

}  // namespace gated
