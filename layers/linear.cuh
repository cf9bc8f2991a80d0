// linear: y = x W^T, or x W^T + b, and its backward (derived in kernels/matmul.cu)
//   dx = dy W      dW += dy^T x      db += column sum of dy
// Several layers may read one x, as W_q, W_k and W_v do: then dx is the sum of their dy W (layers/input_gradient.cuh).
// Where x is bf16, products are those of tensor cores, with the rounded copy of W; dW stays fp32.
// kernels/matmul.cu, kernels/bf16/matmul_bf16.cu, kernels/bias.h
// shapes: x, dx (N,in); y, dy (N,out); W (out,in); b (out) | tests/test_model.cpp
#pragma once
#include "kernels/bias.h"
#include "kernels/matmul.h"
#include "kernels/bf16/matmul_bf16.h"
#include "layers/input_gradient.cuh"
#include "layers/layer_config.h"
#include "layers/quantizer.h"

namespace gated {

class Linear {
 public:
  Linear(size_t in, size_t out, bool bias = false, Init init = Init::normal(), Use use = Use::linear)
      : in_(in), out_(out), has_bias_(bias), init_(init), use_(use) {}

  void parameters(const ParameterVisitor& visit, const std::string& name) {
    visit(weight_, name + ".weight", {out_, in_}, init_, Decay::yes, use_);
    if (has_bias_) visit(bias_, name + ".bias", {out_}, Init::constant(0), Decay::no, Use::scale);
  }

  void reader(const ReaderVisitor& visit) const { visit(weight_, out_, use_); }

  // y is written; of a y in bf16 so is what `activated` asks for.
  void forward(Reals y, ConstReals x, size_t N, Context& ctx, const Activated& activated = {}) {
    require(!activated.y || x.storage() == Storage::bf16, "linear: a product of floats makes no activation");
    if (weight_.quantizer) x = weight_.quantizer->rows(x.as<float>(), N, in_);
    if (x.storage() == Storage::bf16)
      matmul_bf16(y, x.as<bf16>(), weight_.copy, N, out_, in_, Layout::nt, Accumulate::no, ctx, bias_.value, activated);
    else
      matmul(y.as<float>(), x.as<float>(), weight_.value, N, out_, in_, Layout::nt, Accumulate::no, ctx, bias_.value);
  }

  // dx is written, or accumulated to; it is not dy. The parameters' gradients are accumulated.
  void backward(Reals dx, Accumulate accumulate, ConstReals dy, ConstReals x, size_t N, Context& ctx) {
    InputGradient alone = input_gradient(dx, accumulate, N, ctx);
    backward(alone, dy, x, N, ctx);
    alone.finish();
  }
  // The same where dx is that of other layers too.
  void backward(InputGradient& dx, ConstReals dy, ConstReals x, size_t N, Context& ctx) {
    if (x.storage() == Storage::bf16) {
      linear_gradients_bf16(weight_.grad, bias_.grad, dy.as<bf16>(), x.as<bf16>(), N, out_, in_, ctx);
    } else {
      if (has_bias_) bias_backward(bias_.grad, dy, N, out_, ctx);
      matmul(weight_.grad, dy.as<float>(), x.as<float>(), out_, in_, N, Layout::tn, Accumulate::yes, ctx);
    }
    dx.add(dy, weight_, out_);
  }
  InputGradient input_gradient(Reals dx, Accumulate accumulate, size_t N, Context& ctx) const {
    return InputGradient(dx, accumulate, N, in_, ctx);
  }

  // For products over at most N rows; `depth` is that of dx, where it is that of other layers too.
  void scratch(ScratchPlan& plan, size_t N, size_t depth = 0) const {
    const auto product = [&](size_t rows, size_t columns, size_t K, Layout layout, Accumulate accumulate) {
      if (plan.storage == Storage::bf16)
        return plan.need(matmul_bf16_scratch(rows, columns, K, layout, plan.device, has_bias_));
      plan.kernels_need(matmul_scratch_up_to(rows, columns, K, accumulate));
      plan.cpu_thread_keeps(matmul_cpu_workspace(rows, columns, K, accumulate));
    };
    product(N, out_, in_, Layout::nt, Accumulate::no);
    product(N, in_, out_, Layout::nn, Accumulate::yes);
    if (depth && plan.storage == Storage::bf16) product(N, in_, depth, Layout::nn, Accumulate::yes);
    product(out_, in_, N, Layout::tn, Accumulate::yes);
    if (has_bias_) plan.kernels_need(bias_backward_scratch(N, out_));
  }

  size_t out() const { return out_; }

 private:
  size_t in_, out_;
  bool has_bias_;
  Init init_;
  Use use_;
  Weight weight_, bias_;
};

}  // namespace gated
