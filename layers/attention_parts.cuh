// attention_parts: parts of an attention layer (layers/attention_mixer.cuh) with parameters of their own: the norm of
// heads, and what stands behind the one more position that every query may see. tests/test_model.cpp
#pragma once
#include "kernels/rmsnorm.h"
#include "kernels/sinks.h"
#include "layers/layer_config.h"
#include "layers/pass.h"

namespace gated {

// RMSNorm of every head of q, k or o, with one weight (D) for all of them.                           kernels/rmsnorm.cu
class HeadNorm {
 public:
  HeadNorm(const AttentionConfig& config, size_t heads) : config_(config), heads_(heads) {}

  void parameters(const ParameterVisitor& visit, const std::string& name) {
    const bool zero = config_.zero_centred;
    visit(weight_, name + ".weight", {config_.D}, Init::constant(zero ? 0 : 1), zero ? Decay::yes : Decay::no,
          Use::scale);
  }
  void activations(const TensorVisitor& visit, const std::string& name, BatchShape batch) {
    visit(r_, name + " 1/rms", {batch.B, batch.T, heads_});
  }
  // y is written and returned. x must stay until backward.
  ConstReals forward(Reals y, ConstReals x, size_t N, Context& ctx) {
    x_ = x;
    rmsnorm_forward({.y = y, .r = r_}, {.x = x}, weights(), N * heads_, config_.D, config_.eps, ctx);
    return y;
  }
  // dx is written and returned; it may be dy.
  ConstReals backward(Reals dx, ConstReals dy, size_t N, Context& ctx) {
    rmsnorm_backward({.dx = dx, .dw = weight_.grad}, dy, {.x = x_}, weights(), r_, N * heads_, config_.D, ctx);
    return dx;
  }

 private:
  RmsnormWeights weights() const { return {.w = weight_.value, .offset = config_.zero_centred ? 1.0f : 0.0f}; }

  AttentionConfig config_;
  size_t heads_;
  Weight weight_;
  ConstReals x_;
  float* r_ = nullptr;
};

// The position before the first token: a logit for every head, or a key and a value; none does nothing.
// kernels/sinks.cu
class FirstPosition {
 public:
  explicit FirstPosition(const AttentionConfig& config) : kind_(config.sink), H_(config.H), D_(config.D) {}

  void parameters(const ParameterVisitor& visit) {
    const auto list = [&](Weight& w, const char* name, Shape shape) {
      visit(w, name, shape, Init::normal(), Decay::no, Use::scale);
    };
    if (kind_ == AttentionSink::learned) list(sink_, "sinks", {H_});
    if (kind_ != AttentionSink::kv_bias) return;
    list(key_, "kv_bias.key", {H_, D_});
    list(value_, "kv_bias.value", {H_, D_});
  }
  void activations(const TensorVisitor& visit, BatchShape batch) {
    if (kind_ == AttentionSink::kv_bias) visit(logit_, "logit of the kv bias", {batch.B, H_, batch.T});
  }
  void temporaries(const TensorVisitor& visit, BatchShape batch) {
    if (kind_ == AttentionSink::none) return;
    visit(p, "attention to the sink", {batch.B, H_, batch.T});
    visit(ds, "d logit of the sink", {batch.B, H_, batch.T});
  }
  void scratch(ScratchPlan& plan, const AttentionShape& s) const {
    if (kind_ == AttentionSink::learned) plan.kernels_need(sink_backward_scratch(s.B, s.T, H_));
    if (kind_ == AttentionSink::kv_bias) plan.kernels_need(kv_bias_backward_scratch(s));
  }

  // Before attention: what the queries see.
  void forward(ConstReals q, const AttentionShape& s, Context& ctx) {
    if (kind_ == AttentionSink::kv_bias) kv_bias_logits(logit_, q, key_.value, s, ctx);
  }
  Sink seen() const {
    if (kind_ == AttentionSink::kv_bias) return {logit_, true, key_.value, value_.value};
    return {.logit = sink_.value};
  }
  // After attention's backward, which has written p and ds.
  void backward(ConstReals q, ConstReals dout, const AttentionShape& s, Context& ctx) {
    if (kind_ == AttentionSink::learned) sink_backward(sink_.grad, ds, s.B, s.T, H_, ctx);
    if (kind_ == AttentionSink::kv_bias) kv_bias_backward(key_.grad, value_.grad, p, ds, q, dout, s, ctx);
  }
  float *p = nullptr, *ds = nullptr;  // (B,H,T): its weight, and the gradient of its logit

 private:
  AttentionSink kind_;
  size_t H_, D_;
  Weight sink_, key_, value_;
  float* logit_ = nullptr;
};

}  // namespace gated
