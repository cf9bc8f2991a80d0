// inspect: what the last forward left inside a model, for those who look and change nothing.
//
// Model::inspect(inspector) goes through the model as its forward does and hands out one view after another. Their
// pointers are on the device and hold until the next block is shown, or the next forward. An inspector overrides what
// it wants to see: training/inspect/measures.h. | tests/test_measures.cpp
#pragma once
#include <string>

#include "kernels/attention.h"
#include "kernels/gated_delta.h"
#include "kernels/gated_norm.h"
#include "kernels/router.h"
#include "layers/layer_config.h"

namespace gated {

// A state of the residual stream: what a block reads, its last branch joined, or what the last block leaves.
struct StateView {
  ConstReals h;  // (B,T,C)
  size_t B, T, C;
};

// A norm that reads the stream or a branch. QK-norms are none of these.
struct NormView {
  std::string name;     // of its parameters, within its layer
  const char* part;     // attention_norm, ffn_norm; of a sandwich also attention_out_norm, ffn_out_norm; final_norm
  const float* weight;  // (C)
  const float* pre;     // (C), PreAffine's, or null
  float offset;         // the norm multiplies by offset + weight
  size_t C;
  const float *low, *up;  // of GatedNorm's gate: the score of a row is scale * act(SiLU(low) up^T); null without one
  GatedNormShape gate;
};

struct AttentionView {
  ConstReals q, k, v;  // as attention reads them
  const float* lse;    // (B,H,T)
  ConstReals o;        // (B,T,H,D), as the gate at G1 would read it
  ConstReals o_gated;  // after that gate, or null
  AttentionShape shape;
  Sink sink;
};

// The gate of attention, wherever it stands. It is shown before the attention that it belongs to.
struct GateView {
  GateConfig config;
  ConstReals z;          // logits (rows,columns)
  size_t rows, columns;  // one row for every token; of a static gate one row in all
  // A score is the mean over so many heads, which stand side by side in a row; 1: each is itself.
  size_t heads_averaged;
};

struct LinearAttentionView {
  const float *g, *beta;  // (B,T,Hv)
  ConstReals kept;        // (B,Hv,states,Dk,Dv), before tokens 64, 128, ...; in bf16 before token 0 too
  size_t states;
  GatedDeltaShape shape;
};

struct RoutingView {
  const int* expert;  // (N,k)
  RouterShape shape;
};

// What a part puts out: a norm, "attention" (or what stands in its place), "ffn"; and "final_output", which the output
// matmul reads, after the final norm where there is one.
struct OutputView {
  const char* part;
  ConstReals y;  // (N,C)
  size_t N, C;
};

// The loss of the target after every token, in nats. Shown where the model was asked for the loss of the last forward.
struct LossView {
  const float* losses;  // (B,T)
  size_t B, T;
};

class Inspector {
 public:
  virtual ~Inspector() = default;

  // Which block the views are of that follow, counted from 0. The number of blocks: what stands after them all.
  size_t layer = 0;

  // False: it wants what stands after all blocks alone. What is not kept of blocks is then not computed again.
  virtual bool looks_into_blocks() const { return true; }

  virtual void state(const StateView&) {}
  virtual void norm(const NormView&) {}
  virtual void attention(const AttentionView&) {}
  virtual void gate(const GateView&) {}
  virtual void linear_attention(const LinearAttentionView&) {}
  virtual void routing(const RoutingView&) {}
  virtual void output(const OutputView&) {}
  virtual void losses(const LossView&) {}
};

}  // namespace gated
