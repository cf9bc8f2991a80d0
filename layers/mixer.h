// mixer: what stands on a branch of a block, behind one interface. A token mixer lets tokens of a sequence meet
// (attention); a channel mixer works on each token alone (the feed-forward network). A block has one of each, chosen
// layer by layer in layers/block_parts.cuh, and knows no more of them than this.
// shapes: x, dx, dy and what forward returns are (N,C), N = B*T
#pragma once
#include "kernels/matmul.h"
#include "layers/inspect.h"
#include "layers/parameters.h"
#include "layers/pass.h"

namespace gated {

class Mixer {
 public:
  virtual ~Mixer() = default;

  // The name that its parameters stand under in a checkpoint.
  virtual std::string name() const = 0;

  virtual void parameters(const ParameterVisitor& visit) = 0;
  // The matrices that x is multiplied by.
  virtual void readers(const ReaderVisitor& visit) const = 0;
  virtual void activations(const TensorVisitor& visit, BatchShape batch) = 0;
  virtual void temporaries(const TensorVisitor& visit, BatchShape batch) = 0;
  // Of a forward and a backward over B sequences of T tokens, and of one sequence that grows to T.
  virtual void scratch(ScratchPlan& plan, BatchShape batch) const = 0;

  // What it keeps of B sequences while they grow to up to T tokens (layers/pass.h), for the tokens to come. A mixer
  // that works on each token alone keeps nothing.
  virtual void cache(const TensorVisitor&, BatchShape) {}

  // FLOPs a token that are not products with parameters, forward and backward, at T tokens in a sequence.
  virtual double pair_flops(size_t) const { return 0; }

  // Returns f(x). x must stay until backward.
  virtual ConstReals forward(ConstReals x, const Pass& pass) = 0;

  // After a forward that generates nothing: writes the activations again that it calls cheap (layers/parameters.h).
  virtual void recompute(const Pass& pass) = 0;

  // dx is written or accumulated to, parameters' gradients are accumulated. dy is read before that: dx may be dy.
  virtual void backward(Reals dx, Accumulate accumulate, ConstReals dy, const Pass& pass) = 0;

  // Shows what the last forward, over `batch`, left of what is worth looking at.
  virtual void inspect(Inspector&, BatchShape) const {}
};

}  // namespace gated
