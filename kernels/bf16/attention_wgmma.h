// attention_wgmma: attention of kernels/bf16/attention_bf16.h by Hopper's own instructions, with the same bits. How:
// kernels/bf16/attention_wgmma.cu
#pragma once
#include "kernels/bf16/attention_bf16.h"

namespace gated {

// Each of the two is for a GPU of compute capability 9.0 (an emulator that has its tensor cores and its shared memory),
// heads of 64, 128 and 256 elements and whole tiles of 64 tokens. It is false elsewhere: then nothing was done.

// What attention_bf16_forward() computes.
bool attention_wgmma_forward(bf16* o, float* lse, const bf16* q, const bf16* k, const bf16* v, const AttentionShape& s,
                             const Sink& sink, Context& ctx, const OutputGate& gate);

// dq, dk and dv of attention_bf16_backward() from delta (B,H,T) and, where the sink has a key, sink_ds (B,H,T).
bool attention_wgmma_backward(bf16* dq, bf16* dk, bf16* dv, const bf16* dout, const bf16* q, const bf16* k,
                              const bf16* v, const float* lse, const float* delta, const float* sink_ds,
                              const AttentionShape& s, const Sink& sink, Context& ctx);

}  // namespace gated
