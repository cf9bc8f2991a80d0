// attention_bf16: attention over bf16 arrays, on tensor cores. What it computes, and how:
// kernels/bf16/attention_bf16.cu
#pragma once
#include "core/mma.h"
#include "kernels/attention.h"
#include "kernels/gate.h"

namespace gated {

// Queries and keys meet in tiles of 64 x 64: a part of the result, as the slice of a product of matrices is.
constexpr size_t attention_bf16_block = 64;

// A gate of the output (G1 in Gated Attention, arXiv 2505.06708), applied while the output is still on the chip: y is
// what gate_forward makes of o and z, to the last bit. o is written beside it, for the backward.
struct OutputGate {
  bf16* y = nullptr;        // (B,T,H,D); null where there is no gate
  const bf16* z = nullptr;  // (B,T,H*D/group)
  size_t group = 1;         // 1, or D: one logit for a head
  GateOp op = {};
};

// o (B,T,H,D) and lse (B,H,T) from q (B,T,H,D), k and v (B,T,KVH,D). All are written whole; nothing may alias.
// Refuses what attention_forward refuses, D that is no multiple of 16, and arrays off 16-byte boundaries.
void attention_bf16_forward(bf16* o, float* lse, const bf16* q, const bf16* k, const bf16* v, const AttentionShape& s,
                            const Sink& sink, Context& ctx, const OutputGate& gate = {});
// Bytes of scratch that it takes; on a CPU for the number of threads that OpenMP has now.
size_t attention_bf16_forward_scratch(const AttentionShape& s, Device device);

// dq (B,T,H,D), dk and dv (B,T,KVH,D) are written; o and lse are what the forward wrote. With a sink, sink_p and
// sink_ds (B,H,T), its weight and the gradient of its logit, are written as well.
void attention_bf16_backward(bf16* dq, bf16* dk, bf16* dv, float* sink_p, float* sink_ds, const bf16* dout,
                             const bf16* q, const bf16* k, const bf16* v, const bf16* o, const float* lse,
                             const AttentionShape& s, const Sink& sink, Context& ctx);
size_t attention_bf16_backward_scratch(const AttentionShape& s, Device device);

// ---- references
void attention_bf16_forward_ref(bf16* o, float* lse, const bf16* q, const bf16* k, const bf16* v,
                                const AttentionShape& s, const Sink& sink, MmaArithmetic arithmetic);
void attention_bf16_backward_ref(bf16* dq, bf16* dk, bf16* dv, float* sink_p, float* sink_ds, const bf16* dout,
                                 const bf16* q, const bf16* k, const bf16* v, const bf16* o, const float* lse,
                                 const AttentionShape& s, const Sink& sink, MmaArithmetic arithmetic);

// ---- the same bits near the speed of a CPU's products of bf16: kernels/cpu/attention_bf16_cpu.cpp
void attention_bf16_forward_cpu(bf16* o, float* lse, const bf16* q, const bf16* k, const bf16* v,
                                const AttentionShape& s, const Sink& sink, Context& ctx);
void attention_bf16_backward_cpu(bf16* dq, bf16* dk, bf16* dv, float* sink_p, float* sink_ds, const bf16* dout,
                                 const bf16* q, const bf16* k, const bf16* v, const bf16* o, const float* lse,
                                 const AttentionShape& s, const Sink& sink, Context& ctx);
size_t attention_bf16_forward_cpu_scratch(const AttentionShape& s);
size_t attention_bf16_backward_cpu_scratch(const AttentionShape& s);

}  // namespace gated
