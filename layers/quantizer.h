// quantizer: what the linear layers of a model go through in a quantized evaluation (kernels/quantize.cu).
//
//   y = x^ W^^T: Model::quantize() rounds the weights once, in place, and hands them the quantizer of their inputs,
//   which rounds the rows of x whenever a forward multiplies them.
//
// Rounded are the products that make up a block: the projections of attention and of its gate, those of linear
// attention, the FFN, experts. That is what W8A8 and W4A4 mean for the models of arXiv 2601.22966, too. Not rounded are
//   the embedding and the output matmul: their errors go straight into the logits
//   routers, the scores of a head's experts, the gate of a shared expert: they choose, and a small error changes that
//   norms and their gates, QK-norm, attention itself, the recurrence: no products of a weight, or next to no FLOPs
// tests/test_quantized_model.cpp
#pragma once
#include "kernels/quantize.h"
#include "layers/parameters.h"

namespace gated {

class RowQuantizer {
 public:
  RowQuantizer(QuantizedFormat format, Context& ctx) : format_(format), ctx_(ctx) {}

  // x (N,C), rounded. It stays until the next call.
  const float* rows(const float* x, size_t N, size_t C) {
    if (rows_.size() < N * C) rows_ = Buffer<float>(ctx_.device, N * C);
    quantize_rows(rows_.data(), x, N, C, format_, ctx_);
    return rows_.data();
  }

 private:
  QuantizedFormat format_;
  Context& ctx_;
  Buffer<float> rows_;
};

}  // namespace gated
