// pass: what one forward or backward over a batch is told: its sizes, its queue, and whether it trains.
//
// A backward gets the Pass of its forward, so that dropout draws the same bits again.
#pragma once
#include "core/philox.cuh"
#include "kernels/residual.cuh"
#include "kernels/rope.h"

namespace gated {

struct Pass {
  size_t B, T;  // sequences, tokens of each
  Context& ctx;
  const RopeTables* rope = nullptr;

  // Dropout of branch outputs: off where p is 0, as it is outside training. `draw` counts micro-batches over the
  // whole run; every branch of the model is a site.
  float dropout = 0;
  uint64_t seed = 0, draw = 0;
  size_t sites = 1;

  size_t N() const { return B * T; }
  Dropout dropout_at(size_t site) const { return {dropout, seed, stream_of(Purpose::dropout, draw * sites + site)}; }
};

}  // namespace gated
