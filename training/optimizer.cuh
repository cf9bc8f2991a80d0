// optimizer: AdamW over every parameter, with the gradient of a step summed over its micro-batches.
//
// A step is G slices (--slices) of as many consecutive micro-batches each. A slice starts from zero, and its
// micro-batches add to it in place, as a backward does. Slices add up in ascending order, eight to a group, and groups
// in ascending order:
//
//   total = ((s_0 + s_1) + ... + s_7)  +  ((s_8 + s_9) + ... + s_15)  +  ...
//
// So a slice has the same bits wherever and whenever it is computed, and so has their sum.
//
// What is AdamW's stands here and nowhere else: the states that it keeps, the tables that it reads, its update.
// Checkpoints, memory and the run's header ask for them by name or in bytes. Its settings are flags
// (training/flags/flags.cpp).
// tests/test_trainer.cpp
#pragma once
#include "kernels/adamw.h"
#include "kernels/gradient.h"
#include "layers/parameters.h"
#include "layers/pass.h"

namespace gated {

class Optimizer {
 public:
  static constexpr const char* name = "AdamW";
  // What it keeps from step to step: of every parameter an array of the same shape, which starts at 0. Together they
  // are a flat buffer, as the weights are. A checkpoint names them by prefix and parameter.
  struct State {
    std::string prefix;
    Buffer<float> values;
  };
  static constexpr const char* state_prefixes[] = {"optimizer.m.", "optimizer.v."};  // the first and the second moment
  static size_t state_bytes(const Parameters& weights) {
    return std::size(state_prefixes) * weights.flat_size() * sizeof(float);
  }

  // How many flat buffers the gradients of a step take: that of a slice, the sum, and of more than one group the group.
  static constexpr size_t group = 8;
  static size_t gradient_buffers(size_t slices) { return 1 + (slices > 1) + (slices > group); }

  Optimizer(Parameters& weights, size_t slices, Context& ctx)
      : weights_(weights), ctx_(ctx), slices_(slices), plan_(tensors(weights), ctx), norm_(ctx.device, 1), part_norm_(ctx.device, 1) {
    for (const char* prefix : state_prefixes) {
      states.push_back({prefix, Buffer<float>(ctx.device, weights.flat_size())});
      set_zero(states.back().values.data(), weights.flat_size(), ctx_);
    }
    if (slices > 1) total_ = Buffer<float>(ctx.device, weights.flat_size());
    if (slices > group) group_ = Buffer<float>(ctx.device, weights.flat_size());
  }

  void begin_slice() { set_zero(weights_.grads.data(), weights_.grads.size(), ctx_); }
  // In ascending order. What the slice's micro-batches left joins its group, and a group that is whole the sum.
  void end_slice(size_t slice) {
    if (slices_ == 1) return;
    const size_t n = weights_.flat_size();
    Buffer<float>& sum = slice < group ? total_ : group_;  // the first group is what the others are added to
    add_slices(sum.data(), slice % group == 0, weights_.grads.data(), 1, 0, n, ctx_);
    const bool whole = (slice + 1) % group == 0 || slice + 1 == slices_;
    if (slice >= group && whole) accumulate_gradient(total_.data(), group_.data(), n, ctx_);
  }

  // What the updates from here on are told goes up to the device. The gradient is scaled down to a norm of `clip` where
  // its norm is larger.
  void set_step(AdamWHyperparameters settings, float learning_rate, size_t step, float clip) {
    settings.learning_rate = learning_rate;
    plan_.set_step(adamw_at_step(settings, step, clip), ctx_);
  }
  // Moves every parameter.
  void update() {
    Range range("optimizer");
    gradient_norm(norm_.data(), gradient(), weights_.flat_size(), ctx_);
    bf16* const copies = weights_.copies.size() ? weights_.copies.data() : nullptr;
    float *const m = states[0].values.data(), *const v = states[1].values.data();
    adamw_update(weights_.values.data(), m, v, copies, gradient(), norm_.data(), plan_, ctx_);
  }
  // The norm of a part of that gradient, before clipping: n elements of the flat buffer, which begin where a parameter
  // does. Waits for the device.
  float norm_of(size_t begin, size_t n) {
    gradient_norm(part_norm_.data(), gradient() + begin, n, ctx_);
    ctx_.synchronize();
    return part_norm_.download()[0];
  }
  static void scratch(ScratchPlan& plan, const Parameters& weights) {
    plan.kernels_need(gradient_norm_scratch(weights.flat_size()));
  }
  static size_t table_bytes(const Parameters& weights) { return AdamWPlan::bytes(tensors(weights)); }

  // The norm of the gradient of the last update, before clipping: one float on the device.
  const float* norm() const { return norm_.data(); }

 private:
  static std::vector<AdamWTensor> tensors(const Parameters& weights) {
    std::vector<AdamWTensor> list;
    for (const Parameter& p : weights.list()) list.push_back({p.offset, p.size, p.decay == Decay::yes});
    return list;
  }
  const float* gradient() const { return slices_ > 1 ? total_.data() : weights_.grads.data(); }

  Parameters& weights_;
  Context& ctx_;
  const size_t slices_;
  AdamWPlan plan_;
  Buffer<float> norm_, part_norm_, total_, group_;

 public:
  std::vector<State> states;  // in the order of their prefixes
};

}  // namespace gated
