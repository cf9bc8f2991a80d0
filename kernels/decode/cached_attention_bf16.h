// cached_attention_bf16: cached_attention over bf16 arrays, on tensor cores. What it computes, and how:
// kernels/decode/cached_attention_bf16.cu
#pragma once
#include "kernels/bf16/attention_bf16.h"
#include "kernels/decode/cached_attention.h"

namespace gated {

// o (B,H,D) from q (B,H,D) and a cache of keys and values (B,KVH,slots,D), which holds the newest token too: bit for
// bit the last row of attention_bf16_forward over the whole sequences, with a window of `slots`, where all keys and
// values are finite (kernels/bf16/attention_bf16.cu, section 3). o is written; it is none of the others. A sink's
// logits are (H), or (B,H) where they are per query. Refuses tokens = 0, and what attention_bf16_forward refuses. Its
// scratch is attention_bf16_forward's for heads of as many elements.
void cached_attention_bf16(bf16* o, const bf16* q, const bf16* keys, const bf16* values, const CachedAttentionShape& s,
                           const Sink& sink, Context& ctx);

// ---- on the CPU: kernels/decode/cached_attention_bf16_cpu.cpp
void cached_attention_bf16_cpu(bf16* o, const bf16* q, const bf16* keys, const bf16* values,
                               const CachedAttentionShape& s, const Sink& sink, Context& ctx);

}  // namespace gated
