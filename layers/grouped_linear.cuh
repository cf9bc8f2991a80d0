// grouped linear: y = x W_e^T, or x W_e^T + b_e, with a matrix for each of E experts; rows are sorted by expert.
//   dx = dy W_e      dW_e += dy^T x over the rows of e      db_e += column sum of dy over the rows of e
// What layers/linear.cuh is to one matrix: where x is bf16, products are those of tensor cores, with the rounded copies
// of W_e. | kernels/grouped_matmul.cu, kernels/bf16/grouped_matmul_bf16.cu
// shapes: x, dx (M,in); y, dy (M,out); W (E,out,in); b (E,out) | tests/test_model.cpp
#pragma once
#include "kernels/grouped_matmul.h"
#include "kernels/bf16/grouped_matmul_bf16.h"
#include "layers/input_gradient.cuh"
#include "layers/layer_config.h"
#include "layers/quantizer.h"

namespace gated {

class GroupedLinear {
 public:
  // share: of all tokens, those that an expert gets. row_start: where the layer keeps the address of the (E+1) row
  // numbers, which is read when a product is computed.
  GroupedLinear(size_t in, size_t out, bool bias, Init init, size_t experts, double share, int* const* row_start)
      : in_(in), out_(out), experts_(experts), has_bias_(bias), init_(init), share_(share), row_start_(row_start) {}

  void parameters(const ParameterVisitor& visit_all, const std::string& name) {
    const ParameterVisitor visit = visit_all.for_share(share_);
    visit(weight_, name + ".weight", {experts_, out_, in_}, init_, Decay::yes, Use::linear);
    if (has_bias_) visit(bias_, name + ".bias", {experts_, out_}, Init::constant(0), Decay::no, Use::scale);
  }

  void reader(const ReaderVisitor& visit) const { visit(weight_, experts_ * out_, Use::linear); }

  // y is written; of a y in bf16 so is what `activated` asks for.
  void forward(Reals y, ConstReals x, size_t M, Context& ctx, const Activated& activated = {}) {
    require(!activated.y || x.storage() == Storage::bf16, "linear: a product of floats makes no activation");
    if (weight_.quantizer) x = weight_.quantizer->rows(x.as<float>(), M, in_);
    const GroupedShape s = {M, experts_, out_, in_};
    if (x.storage() == Storage::bf16)
      grouped_matmul_bf16(y.as<bf16>(), x.as<bf16>(), weight_.copy, *row_start_, s, Layout::nt, Accumulate::no, ctx,
                          bias_.value, activated);
    else
      grouped_matmul(y.as<float>(), x.as<float>(), weight_.value, *row_start_, s, Layout::nt, Accumulate::no, ctx,
                     bias_.value);
  }

  // dy W_e is added to dx, which is not dy. The parameters' gradients are accumulated.
  void backward(InputGradient& dx, ConstReals dy, ConstReals x, size_t M, Context& ctx) {
    const GroupedShape of_weight = {M, experts_, out_, in_};
    if (has_bias_) grouped_bias_backward(bias_.grad, dy, *row_start_, M, experts_, out_, ctx);
    if (x.storage() == Storage::bf16)
      grouped_matmul_bf16_tn(weight_.grad, dy.as<bf16>(), x.as<bf16>(), *row_start_, of_weight, ctx);
    else
      grouped_matmul_tn(weight_.grad, dy.as<float>(), x.as<float>(), *row_start_, of_weight, ctx);
    dx.add(dy, weight_, out_);
  }
  InputGradient input_gradient(Reals dx, Accumulate accumulate, size_t M, Context& ctx) const {
    return InputGradient(dx, accumulate, *row_start_, {M, experts_, in_, out_}, ctx);
  }

  // For products over at most M rows; `depth` is that of dx, where it is that of other layers too.
  void scratch(ScratchPlan& plan, size_t M, size_t depth = 0) const {
    const GroupedShape forward = {M, experts_, out_, in_}, backward = {M, experts_, in_, out_},
                       joined = {M, experts_, in_, depth};
    if (has_bias_) plan.kernels_need(grouped_bias_backward_scratch(M, experts_, out_));
    if (plan.storage == Storage::bf16) {
      plan.need(grouped_matmul_bf16_scratch(forward, plan.device));
      plan.need(grouped_matmul_bf16_scratch(backward, plan.device));
      plan.need(grouped_matmul_bf16_scratch(joined, plan.device));
      return plan.need(grouped_matmul_bf16_tn_scratch(forward, plan.device));
    }
    plan.kernels_need(grouped_matmul_scratch(forward, Accumulate::no));
    plan.kernels_need(grouped_matmul_scratch(backward, Accumulate::yes));
    plan.kernels_need(grouped_matmul_tn_scratch(forward));
    plan.cpu_thread_keeps(grouped_matmul_cpu_workspace(forward, Accumulate::no));
    plan.cpu_thread_keeps(grouped_matmul_cpu_workspace(backward, Accumulate::yes));
    plan.cpu_thread_keeps(grouped_matmul_tn_cpu_workspace(forward));
  }

 private:
  size_t in_, out_, experts_;
  bool has_bias_;
  Init init_;
  double share_;
  int* const* row_start_;
  Weight weight_, bias_;
};

}  // namespace gated
