// input_gradient: dx (N,in) of an x that several linear layers read: the sum of their dy W, or dx + that.
// With experts (layers/grouped_linear.cuh) each row's W is that of its expert.
// In fp32 each product is added when it comes. Of bf16 they are one product, in the order in which they come, and dx is
// rounded once: finish() makes it, and every dy must stay until then.
// tests/test_model.cpp, tests/test_bf16.cpp
#pragma once
#include "kernels/grouped_matmul.h"
#include "kernels/matmul.h"
#include "kernels/bf16/grouped_matmul_bf16.h"
#include "kernels/bf16/matmul_bf16.h"
#include "layers/layer_config.h"

namespace gated {

// How deep the one product is, of layers with so many outputs.
inline size_t depth_of(std::initializer_list<size_t> outs) {
  size_t depth = 0;
  for (const size_t out : outs) depth += round_up(out, joined_unit);
  return depth;
}

class InputGradient {
 public:
  InputGradient(Reals dx, Accumulate accumulate, size_t N, size_t in, Context& ctx)
      : InputGradient(dx, accumulate, nullptr, {N, 1, in, 0}, ctx) {}
  // The same with experts: row_start (E+1) and s.E; s.N is the width of dx.
  InputGradient(Reals dx, Accumulate accumulate, const int* row_start, const GroupedShape& s, Context& ctx)
      : dx_(dx), accumulate_(accumulate), row_start_(row_start), s_(s), ctx_(ctx) {}
  InputGradient(const InputGradient&) = delete;

  // dx += dy W, of dy (N,out) and W (out,in), with experts (E,out,in).
  void add(ConstReals dy, const Weight& weight, size_t out) {
    if (dy.storage() == Storage::bf16) {
      require(count_ < most_factors, "linear: more than %zu layers read one x", most_factors);
      factors_[count_++] = {{dy.as<bf16>(), out}, {weight.copy, s_.N}, out};
      return;
    }
    s_.K = out;
    if (row_start_)
      grouped_matmul(dx_.as<float>(), dy.as<float>(), weight.value, row_start_, s_, Layout::nn, accumulate_, ctx_);
    else
      matmul(dx_.as<float>(), dy.as<float>(), weight.value, s_.M, s_.N, out, Layout::nn, accumulate_, ctx_);
    accumulate_ = Accumulate::yes;
  }

  // activated: x is the activation of a layer before, and what is made is the gradient of what that was made of.
  void finish(const Activated& activated = {}) {
    require(!activated.u || count_, "linear: a product of floats makes no activation's gradient");
    if (!count_) return;
    if (row_start_)
      grouped_matmul_bf16_joined(dx_.as<bf16>(), {factors_, count_}, row_start_, s_, accumulate_, ctx_, activated);
    else
      matmul_bf16_joined(dx_, {factors_, count_}, s_.M, s_.N, accumulate_, ctx_, activated);
  }

 private:
  Reals dx_;
  Accumulate accumulate_;
  const int* row_start_;
  GroupedShape s_;
  Context& ctx_;
  MmaFactors factors_[most_factors];
  size_t count_ = 0;
};

}  // namespace gated
