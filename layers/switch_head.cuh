// switch_head: head experts. A key/value head has E matrices, of which a token takes k  (SwitchHead, arXiv 2312.07987)
//
//   v = sum over the chosen e of s_e * (x V_e^T),  s = sigmoid(x W_sel^T)       kernels/head_experts.cu
//
// The E products x V_e^T are one: that with a matrix of the rows [head][expert][D], the projection of v (or of k) as
// attention has it, E times as tall. It is computed for all experts, chosen or not. Of the five rows that arXiv
// 2505.06708 has of this, four choose all; and where few key/value heads serve many query heads, as there, the
// projection is a small part of a layer. FLOPs are counted as they are computed. With activations in bf16 scores are
// fp32, of logits that were not rounded: they choose.
// shapes: x (N,C); made by the experts (N,heads,E,D); y (N,heads,D)
// | tests/test_model.cpp
#pragma once
#include "kernels/head_experts.h"
#include "layers/linear.cuh"

namespace gated {

class HeadExperts {
 public:
  // `name` is what the experts make: "k" or "v".
  HeadExperts(const HeadExpertsConfig& config, const char* name, size_t C, size_t heads, size_t D)
      : config_(config),
        name_(name),
        heads_(heads),
        D_(D),
        select_(C, heads * config.E, false, Init::normal(), Use::product) {}

  void parameters(const ParameterVisitor& visit) { select_.parameters(visit, name_ + "_select"); }
  void reader(const ReaderVisitor& visit) const { select_.reader(visit); }
  void activations(const TensorVisitor& visit, size_t N) {
    visit(s_, "score of " + name_ + " experts", {N, heads_, config_.E});
    visit(y_, name_ + " of experts", {N, heads_, D_});
  }
  void temporaries(const TensorVisitor& visit, size_t N) {
    visit(ds_, "d score of " + name_ + " experts", {N, heads_, config_.E});
    visit(dmade_, "d made by " + name_ + " experts", {N, heads_, config_.E, D_});
  }
  void scratch(ScratchPlan& plan, size_t N) const { select_.scratch(plan, N); }

  // Returns y. x and `made` must stay until backward.
  ConstReals forward(ConstReals made, ConstReals x, size_t N, Context& ctx) {
    made_ = made;
    x_ = x;
    select_.forward(s_, x, N, ctx);
    head_experts_forward(y_, s_, made, s_, shape(N), ctx);
    return y_;
  }

  // Returns the gradient of what the experts made; that of x, by way of the selection, follows with backward_hidden.
  ConstReals backward(ConstReals dy, size_t N, Context& ctx) {
    head_experts_backward(dmade_, ds_, dy, made_, s_, shape(N), ctx);
    return dmade_;
  }
  void backward_hidden(InputGradient& dx, size_t N, Context& ctx) { select_.backward(dx, ds_, x_, N, ctx); }
  size_t hidden_depth() const { return select_.out(); }

 private:
  HeadExpertsShape shape(size_t N) const { return {.N = N, .H = heads_, .D = D_, .E = config_.E, .k = config_.k}; }

  HeadExpertsConfig config_;
  std::string name_;
  size_t heads_, D_;
  Linear select_;
  ConstReals made_, x_;
  float* s_ = nullptr;
  Reals y_, ds_, dmade_;
};

}  // namespace gated
