// pass: what one forward or backward over a batch is told: its sizes, its context, and what dropout draws.
//
// A backward gets the Pass of its forward, so that dropout draws the same bits again.
#pragma once
#include "core/philox.cuh"
#include "kernels/residual.h"
#include "kernels/rope.h"

namespace gated {

// A batch of B sequences of T tokens.
struct BatchShape {
  size_t B, T;
  size_t N() const { return B * T; }
};

class Pass {
 public:
  const size_t B, T;  // sequences, tokens of each
  Context& ctx;
  const RopeTables* const rope;

  Pass(size_t B, size_t T, Context& ctx, const RopeTables* rope) : B(B), T(T), ctx(ctx), rope(rope) {}

  size_t N() const { return B * T; }
  BatchShape batch() const { return {B, T}; }

  // Dropout of branch outputs: off outside training. `draw` counts micro-batches over the whole run; every branch of the
  // model is a site of its own.
  void drop(float p, uint64_t seed, uint64_t draw, size_t sites) {
    dropout_ = {p, seed, 0};
    first_ = draw * sites;
  }
  Dropout dropout_at(size_t site) const {
    return {dropout_.p, dropout_.seed, stream_of(Purpose::dropout, first_ + site)};
  }

 private:
  Dropout dropout_;
  uint64_t first_ = 0;
};

}  // namespace gated
