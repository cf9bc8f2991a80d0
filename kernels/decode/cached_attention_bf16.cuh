// cached_attention_bf16: where the tokens of a cache stand. Shared by the kernel and the CPU's code of
// kernels/decode/cached_attention_bf16.cu.
#pragma once
#include "kernels/bf16/attention_bf16.cuh"
#include "kernels/decode/cached_attention_bf16.h"

namespace gated::attention_bf16 {

// Tokens of a sequence as the rows of a cache: those that are there are first .. end - 1.
struct CacheRows {
  const bf16* data;  // (slots,D)
  size_t slots, D, end;
  HD size_t first() const { return end < slots ? 0 : end - slots; }
  HD bool has(size_t token) const { return token >= first() && token < end; }
  HD size_t at(size_t token) const { return token % slots * D; }
};

HD CacheRows cache_rows(const bf16* cache, const CachedAttentionShape& s, size_t b, size_t kv_head) {
  return {cache + s.row(b, kv_head, 0), s.slots, s.D, s.tokens};
}

}  // namespace gated::attention_bf16
