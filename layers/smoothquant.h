// smoothquant: moves outliers from activations into weights before both are rounded (arXiv 2211.10438).
//
//   x W^T = (x / s) (W s)^T for any s > 0 of each column. Where a column of x is far larger than the others, its scale
//   rounds these away; divided by s they are alike, and the columns of W take what x lost:
//
//     s_j = max|x_j|^alpha / max|W_j|^(1-alpha)      1 where either is 0
//
//   x is what a norm writes. 1/s goes into its weight and bias, and in GatedNorm s into W_down, which reads x inside
//   the norm: its gate stays what it was. s goes into the columns of every matrix that reads the norm: of a router too.
//   max|W_j| is over those that will be rounded. max|x_j| is over the rows that see() was shown.
//   The model computes what it did but for rounding: no more than 2^-24 of each weight that is changed, where a norm's
//   weights are not zero-centred. With s a power of two it computes the same bits.
//
// Norms that have no mixer for themselves stay as they are: the final norm and a sandwich's outer norms are read by
// what is not rounded. --norm=none has no weight, and with --norm-placement=post norms write the stream itself:
// refused.
// tests/test_quantized_model.cpp
#pragma once
#include <vector>

#include "layers/model.h"

namespace gated {

// Divides what the norm writes by s, column by column, and multiplies what reads it.
void fold_scales(Norm& norm, Mixer& reader, const std::vector<float>& s, Context& ctx);

class SmoothQuant {
 public:
  SmoothQuant(Model& model, Context& ctx);

  // Takes in what the last forward, over N tokens, left of the norms.
  void see(size_t N);
  // Folds the scales into the model.
  void fold(double alpha);

 private:
  struct Pair {
    Norm& norm;
    Mixer& mixer;
    std::vector<float> largest;  // |x_j|
  };
  Model& model_;
  size_t C_;
  Context& ctx_;
  std::vector<Pair> pairs_;
};

}  // namespace gated
