// pass: what one forward or backward over a batch is told: its sizes, its context, what dropout draws, and where its
// tokens stand in sequences that are generated.
//
// A backward gets the Pass of its forward, so that dropout draws the same bits again.
#pragma once
#include <optional>

#include "kernels/residual.h"
#include "kernels/rope.h"
#include "kernels/router.h"

namespace gated {

// A batch of B sequences of T tokens.
struct BatchShape {
  size_t B, T;
  size_t N() const { return B * T; }
};

// What a forward that generates is told: each of its sequences has `past` tokens already, of which the mixers' caches
// hold what later tokens need, and room for `capacity` in all. The tokens of the forward follow them, and join the
// caches.
struct Growing {
  size_t past, capacity;
  bool begins() const { return past == 0; }
};

// The tables of RoPE: of layers that see all tokens, and of those with a window where these have a base of their own.
struct Positions {
  RopeTables all, window;
};

// Which micro-batch of how many in its step, which goes in slices of so many (training/optimizer.cuh).
struct MicroBatch {
  size_t index = 0, count = 1, in_slice = count;
  bool begins_slice() const { return index % in_slice == 0; }
  bool ends_slice() const { return (index + 1) % in_slice == 0; }
  size_t slice() const { return index / in_slice; }
  float share() const { return 1.0f / float(count); }  // of its loss in the step's
};

class Pass {
 public:
  const size_t B, T;  // sequences, tokens of each
  Context& ctx;
  const Positions* const rope;
  MicroBatch micro_batch;  // of a backward
  // With it a forward is over sequences that grow: over any number of tokens where they begin, then over one at a time.
  std::optional<Growing> growing;

  Pass(size_t B, size_t T, Context& ctx, const Positions* rope) : B(B), T(T), ctx(ctx), rope(rope) {}

  size_t N() const { return B * T; }
  BatchShape batch() const { return {B, T}; }
  size_t first_position() const { return growing ? growing->past : 0; }

  // Dropout of branch outputs: off outside training. Every branch of the model is a site of its own; streams, on the
  // device, has one for each.
  void drop(float p, uint64_t seed, const uint64_t* streams) { dropout_ = {p, seed, streams}; }
  Dropout dropout_at(size_t site) const {
    if (dropout_.p == 0) return {};
    return {dropout_.p, dropout_.seed, dropout_.stream + site};
  }

  // Where a mixture of experts reports how it was routed: router_report_values floats a layer, written by its backward.
  void report_routing(float* reports) { reports_ = reports; }
  float* routing_report(size_t layer) const { return reports_ + layer * router_report_values; }

 private:
  Dropout dropout_;
  float* reports_ = nullptr;
};

}  // namespace gated
