// norm: what stands between the residual stream and a branch, with the residual add before it.
//
//   --norm=rmsnorm     y = x / rms(x) * w                     kernels/rmsnorm.cu
//   --norm=preaffine   y = RMSNorm(pre * x)                   kernels/rmsnorm.cu       (arXiv 2601.22966)
//   --norm=layernorm   y = (x - mean) / std * w + b           kernels/layernorm.cu
//   --norm=dyt         y = tanh(alpha x) * w + b              kernels/dyt.cu           (arXiv 2503.10622)
//   --norm=none        y = x                                  kernels/residual.cu
//   --norm=gated       y = n * act(W_up SiLU(W_down n)), n = RMSNorm(x): GatedNorm (arXiv 2601.22966)
//   --norm=gated-dyt   the same gate, n = DyT(x)
//   The gate's score is one for an element (W_up (C,rank)) or one for a token (W_up (1,rank)); kernels/gated_norm.cu
//   does all of it as one operation.
// shapes: x, branch, y (N,C) | tests/test_model.cpp
#pragma once
#include "kernels/dyt.h"
#include "kernels/gated_norm.h"
#include "kernels/layernorm.h"
#include "kernels/residual.h"
#include "kernels/rmsnorm.h"
#include "layers/inspect.h"
#include "layers/layer_config.h"

namespace gated {

// What a norm does before it normalises: nothing, or join a branch to the stream first.
enum class Residual { no, yes };

class Norm {
 public:
  Norm(const NormConfig& config, size_t C, Residual residual) : config_(config), C_(C), residual_(residual) {}

  // Returns y, the norm of x.
  ConstReals forward(ConstReals x, size_t N, Context& ctx) { return forward(x, nullptr, {}, N, ctx); }
  // Or of x joined by branch (null: there is none): then residual() is the sum, and branch must stay until backward.
  ConstReals forward(ConstReals x, ConstReals branch, const Join& join, size_t N, Context& ctx) {
    Range range("norm");
    x_ = branch ? ConstReals(sum_) : x;
    branch_ = branch;
    join_ = join;
    normalise({x, branch, join}, branch ? sum_ : nullptr, N, ctx);
    return config_.kind == NormKind::none ? x_ : y_;
  }
  ConstReals residual() const { return x_; }

  // Writes y again.
  void recompute(size_t N, Context& ctx) { normalise({x_}, nullptr, N, ctx); }

  // dx = gradient through the norm, of a forward without a branch; it is not dy. Returns dx.
  ConstReals backward(Reals dx, ConstReals dy, size_t N, Context& ctx) {
    return backward(dx, nullptr, dy, nullptr, N, ctx);
  }
  // dx = dresidual + gradient through the norm (dresidual null: the gradient through the norm alone), as the join
  // passes it on to x; it is not dy. Returns the gradient of the branch: dx too, or, where the join is not plain,
  // dbranch, which is then written.
  ConstReals backward(Reals dx, Reals dbranch, ConstReals dy, ConstReals dresidual, size_t N, Context& ctx) {
    Range range("norm backward");
    const bool alike = !branch_ || join_.plain();
    const Reals dbranch_written = alike ? nullptr : dbranch;
    const ResidualBackwardIn in = {x_, dresidual, branch_, join_};
    switch (config_.kind) {
      case NormKind::rmsnorm:
      case NormKind::preaffine:
        rmsnorm_backward(
            {.dx = dx, .dbranch = dbranch_written, .dw = weight_.grad, .dpre = pre_.grad, .mean = row_values_}, dy, in,
            rms_weights(), r_, N, C_, ctx);
        break;
      case NormKind::layernorm:
        layernorm_backward({.dx = dx, .dbranch = dbranch_written, .dw = weight_.grad, .db = bias_.grad}, dy, in,
                           weight_.value, mean_, r_, N, C_, ctx);
        break;
      case NormKind::dyt:
        dyt_backward({.dx = dx,
                      .dbranch = dbranch_written,
                      .dalpha = alpha_.grad,
                      .dw = weight_.grad,
                      .db = bias_.grad,
                      .row_sums = row_values_},
                     dy, in, alpha_.value, weight_.value, N, C_, ctx);
        break;
      case NormKind::gated:
      case NormKind::gated_dyt:
        gated_norm_backward(dx, dbranch_written, {alpha_.grad, weight_.grad, bias_.grad, down_.grad, up_.grad}, dy, in,
                            low_, r_, values(), shape(N), ctx);
        break;
      case NormKind::none: residual_backward(dx, dbranch_written, dy, in, N, C_, ctx);
    }
    return alike ? dx : dbranch;
  }

  void parameters(const ParameterVisitor& visit) {
    const NormKind kind = config_.base();
    if (kind == NormKind::none) return;
    if (kind == NormKind::preaffine) visit(pre_, "pre_weight", {C_}, Init::constant(1), Decay::no, Use::scale);
    if (kind == NormKind::dyt) visit(alpha_, "alpha", {1}, Init::constant(config_.dyt_alpha), Decay::no, Use::scale);
    // Qwen3-Next centres the weight on 0 so that it can decay.
    visit(weight_, "weight", {C_}, Init::constant(config_.zero_centred ? 0 : 1),
          config_.zero_centred ? Decay::yes : Decay::no, Use::scale);
    if (kind == NormKind::layernorm || kind == NormKind::dyt)
      visit(bias_, "bias", {C_}, Init::constant(0), Decay::no, Use::scale);
    if (!config_.with_gate()) return;
    const NormGateConfig& gate = config_.gate;
    const Init up = gate.zero_init ? Init::constant(0) : Init::normal();
    visit(down_, "gate_down.weight", {gate.rank, C_}, Init::normal(), Decay::yes, Use::fp32_product);
    visit(up_, "gate_up.weight", {shape(0).scores(), gate.rank}, up, Decay::yes, Use::fp32_product);
  }
  // output: how long y is needed.
  void activations(const TensorVisitor& visit, size_t N, Lifetime output = Lifetime::pass) {
    const NormKind kind = config_.base();
    if (kind == NormKind::layernorm) visit(mean_, "mean", {N});
    if (kind == NormKind::layernorm || config_.divides_by_rms()) visit(r_, "1/deviation", {N});
    if (residual_ == Residual::yes) visit(sum_, "residual stream", {N, C_});
    if (config_.with_gate()) visit(low_, "gate, low rank", {N, config_.gate.rank});
    if (kind != NormKind::none) visit(y_, "output", {N, C_}, output);
  }
  void temporaries(const TensorVisitor& visit, size_t N) {
    if (!config_.with_gate() && (config_.kind == NormKind::preaffine || config_.kind == NormKind::dyt))
      visit(row_values_, "means or sums of rows", {N});
  }

  // What the last forward wrote. --norm=none writes nothing of its own.
  ConstReals output() const { return y_; }
  // Changes the weights so that column c of the output is what it was, over s[c]. A gate of the norm stays what it was.
  void divide_columns(const std::vector<float>& s, Device device) {
    const double offset = config_.zero_centred ? 1 : 0;
    edit_on_host(device, weight_.value, C_, [&](float* w) {
      for (size_t c = 0; c < C_; c++) w[c] = float((offset + double(w[c])) / double(s[c]) - offset);
    });
    if (bias_.value)
      edit_on_host(device, bias_.value, C_, [&](float* b) {
        for (size_t c = 0; c < C_; c++) b[c] /= s[c];
      });
    if (down_.value)
      edit_on_host(device, down_.value, config_.gate.rank * C_, [&](float* down) {
        for (size_t i = 0; i < config_.gate.rank * C_; i++) down[i] *= s[i % C_];
      });
  }

  void inspect(Inspector& inspector, const char* part, const std::string& name, size_t N) const {
    if (config_.kind == NormKind::none) return;
    inspector.norm({name, part, weight_.value, pre_.value, offset(), C_, low_, up_.value, shape(N)});
    inspector.output({part, y_, N, C_});
  }

  void scratch(ScratchPlan& plan, size_t N) const {
    switch (config_.kind) {
      case NormKind::rmsnorm: return plan.kernels_need(rmsnorm_backward_scratch(N, C_));
      case NormKind::preaffine: return plan.kernels_need(rmsnorm_backward_scratch(N, C_, true));
      case NormKind::layernorm: return plan.kernels_need(layernorm_backward_scratch(N, C_));
      case NormKind::dyt: return plan.kernels_need(dyt_backward_scratch(N, C_));
      case NormKind::gated:
      case NormKind::gated_dyt:
        plan.need(gated_norm_forward_scratch(shape(N), plan.device));
        return plan.need(gated_norm_backward_scratch(shape(N), plan.device));
      case NormKind::none: return;
    }
  }

 private:
  // Writes y and what the backward wants beside it; of a branch that joins also the sum.
  void normalise(const ResidualIn& in, Reals sum, size_t N, Context& ctx) {
    switch (config_.kind) {
      case NormKind::rmsnorm:
      case NormKind::preaffine:
        rmsnorm_forward({.y = y_, .r = r_, .sum = sum}, in, rms_weights(), N, C_, config_.epsilon(), ctx);
        break;
      case NormKind::layernorm:
        layernorm_forward({.y = y_, .mean = mean_, .r = r_, .sum = sum}, in, weight_.value, bias_.value, N, C_,
                          config_.epsilon(), ctx);
        break;
      case NormKind::dyt:
        dyt_forward({.y = y_, .sum = sum}, in, alpha_.value, weight_.value, bias_.value, N, C_, ctx);
        break;
      case NormKind::gated:
      case NormKind::gated_dyt: gated_norm_forward(y_, r_, low_, sum, in, values(), shape(N), ctx); break;
      case NormKind::none:
        if (in.branch) residual_forward(sum, in, N, C_, ctx);
    }
  }

  float offset() const { return config_.zero_centred ? 1.0f : 0.0f; }
  RmsnormWeights rms_weights() const { return {.w = weight_.value, .pre = pre_.value, .offset = offset()}; }
  GatedNormWeights values() const { return {alpha_.value, weight_.value, bias_.value, down_.value, up_.value}; }
  GatedNormShape shape(size_t N) const {
    const NormGateBase base = config_.base() == NormKind::dyt ? NormGateBase::dyt : NormGateBase::rmsnorm;
    return {N, C_, config_.gate.rank, base, config_.gate.score, config_.gate.op, offset(), config_.epsilon()};
  }

  NormConfig config_;
  size_t C_;
  Residual residual_;
  Weight pre_, alpha_, weight_, bias_, down_, up_;
  ConstReals x_, branch_;
  Join join_;
  Reals sum_, y_;
  float *mean_ = nullptr, *r_ = nullptr, *low_ = nullptr, *row_values_ = nullptr;
};

}  // namespace gated
