// pass: what one forward or backward over a batch is told: its sizes, its context, and what dropout draws.
//
// A backward gets the Pass of its forward, so that dropout draws the same bits again.
#pragma once
#include "core/philox.cuh"
#include "kernels/residual.h"
#include "kernels/rope.h"
#include "kernels/router.h"

namespace gated {

// A batch of B sequences of T tokens.
struct BatchShape {
  size_t B, T;
  size_t N() const { return B * T; }
};

// Which micro-batch of how many in its step.
struct MicroBatch {
  size_t index = 0, count = 1;
  bool first() const { return index == 0; }
  float share() const { return 1.0f / float(count); }  // of its loss in the step's
};

class Pass {
 public:
  const size_t B, T;  // sequences, tokens of each
  Context& ctx;
  const RopeTables* const rope;
  MicroBatch micro_batch;  // of a backward

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

  // Where a mixture of experts reports how it was routed: router_report_values floats a layer, written by its backward.
  void report_routing(float* reports) { reports_ = reports; }
  float* routing_report(size_t layer) const { return reports_ + layer * router_report_values; }

 private:
  Dropout dropout_;
  uint64_t first_ = 0;
  float* reports_ = nullptr;
};

}  // namespace gated
