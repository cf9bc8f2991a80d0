// cached_attention: attention of the newest token of a sequence alone, to keys and values that are kept from the tokens
// before it. What it computes, and how: kernels/decode/cached_attention.cu
#pragma once
#include "core/storage.h"
#include "kernels/attention.h"

namespace gated {

// The cache of a layer holds keys and values (B,KVH,slots,D) of the last `slots` tokens of each sequence. Token t,
// counted from 0, lies in slot t % slots. So a query sees all that is there, and a window is a cache of as many slots.
struct CachedAttentionShape {
  size_t B;       // sequences, all equally long
  size_t H, KVH;  // query heads; key and value heads, each read by H/KVH query heads
  size_t D;       // elements of a head
  size_t slots;
  size_t tokens;  // of a sequence so far: the newest is token tokens - 1

  AttentionScore score = AttentionScore::softmax;
  float bias = 0;  // of sigmoid
  size_t score_dim = 0;

  HD size_t divisor() const { return score_dim ? score_dim : D; }
  HD size_t group() const { return H / KVH; }
  HD bool sigmoid() const { return score == AttentionScore::sigmoid; }
  HD size_t kept() const { return tokens < slots ? tokens : slots; }        // tokens of a sequence that are there
  HD size_t oldest() const { return tokens < slots ? 0 : tokens % slots; }  // the slot of the first of them
  // Where the D elements of a key or value begin, and of a query or its output.
  HD size_t row(size_t b, size_t kv_head, size_t slot) const { return ((b * KVH + kv_head) * slots + slot) * D; }
  HD size_t query(size_t b, size_t h) const { return (b * H + h) * D; }
  // The same queries as attention_forward would be told of them: for what is made of queries alone.
  HD AttentionShape queries() const {
    AttentionShape s{B, 1, H, KVH, D};
    s.score = score;
    s.bias = bias;
    s.score_dim = score_dim;
    return s;
  }
};

// Puts keys and values of tokens tokens - T .. tokens - 1 into the cache: k, v (B,T,KVH,D). Of more than `slots` tokens
// the last stay. Other slots keep what they hold. Refuses T = 0, and T > tokens.
void cached_attention_store(Reals keys, Reals values, ConstReals k, ConstReals v, size_t T,
                            const CachedAttentionShape& s, Context& ctx);

// o (B,H,D) from q (B,H,D) and the cache, which holds the newest token too: bit for bit the last row of
// attention_forward over the whole sequences, with a window of `slots`. o is written; it is none of the others. A
// sink's logits are (H), or (B,H) where they are per query. Refuses tokens = 0, and what attention_forward refuses.
void cached_attention(float* o, const float* q, const float* keys, const float* values, const CachedAttentionShape& s,
                      const Sink& sink, Context& ctx);
void require_cache(const char* name, const CachedAttentionShape& s);
// Bytes of scratch that it takes on every device.
size_t cached_attention_scratch(const CachedAttentionShape& s);

template <class Real>
void cached_attention_store_ref(Real* keys, Real* values, const Real* k, const Real* v, size_t T,
                                const CachedAttentionShape& s);
template <class Real>
void cached_attention_ref(Real* o, const Real* q, const Real* keys, const Real* values, const CachedAttentionShape& s,
                          const SinkOf<Real>& sink);

// ---- the same bits near the speed at which a CPU reads memory: kernels/decode/cached_attention_cpu.cpp
template <class S>
void cached_attention_store_cpu(S* keys, S* values, const S* k, const S* v, size_t T, const CachedAttentionShape& s);
void cached_attention_cpu(float* o, const float* q, const float* keys, const float* values,
                          const CachedAttentionShape& s, const Sink& sink, Context& ctx);

}  // namespace gated
