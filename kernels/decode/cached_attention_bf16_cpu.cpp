// cached_attention_bf16 on the CPU: threads take kv heads, and the query heads that read one are the rows of its tiles,
// 64 at a time (kernels/cpu/attention_bf16_cpu.h). tests/test_cached_attention_bf16.cpp
#include "kernels/cpu/attention_bf16_cpu.h"
#include "kernels/decode/cached_attention_bf16.cuh"

namespace gated {

void cached_attention_bf16_cpu(bf16* o, const bf16* q, const bf16* keys, const bf16* values,
                               const CachedAttentionShape& s, const Sink& sink, Context& ctx) {
  using namespace attention_bf16_cpu;
  unsigned char* const scratch = ctx.scratch<unsigned char>(attention_bf16_forward_cpu_scratch(s.queries()));
  const float scale = weight_scale(s.queries());
  const size_t D = s.D, parts = ceil_div(s.group(), block);
#pragma omp parallel for schedule(dynamic) if (worth_waking(s.B * s.H * s.kept() * D))
  for (size_t n = 0; n < s.B * s.KVH * parts; n++) {
    const auto w = memory_of_thread<ForwardMemory>(scratch, D);
    const size_t b = n / parts / s.KVH, kv_head = n / parts % s.KVH;
    const size_t head0 = kv_head * s.group() + n % parts * block;
    const size_t heads = std::min(block, (kv_head + 1) * s.group() - head0);
    const CacheRows cached_keys = cache_rows(keys, s, b, kv_head), cached_values = cache_rows(values, s, b, kv_head);
    const auto row_of = [](const CacheRows& rows) {
      return [&rows](size_t token) { return rows.has(token) ? rows.data + rows.at(token) : nullptr; };
    };

    widen_rows(w.wide, q + s.query(b, head0), D, heads, D);
    make_rows(w.queries, w.wide, D, heads);
    float m[block], l[block];
    std::fill_n(w.sum, block * D, 0.0f);
    for (size_t r = 0; r < heads; r++) {
      m[r] = first_max(sink, s.queries(), b, head0 + r, 0);
      l[r] = sink.logit ? 1.0f : 0.0f;
      if (sink.value) std::copy_n(sink.value + (head0 + r) * D, D, w.sum + r * D);
    }
    walk_tiles(ctx.mma_arithmetic, s.score, w, m, l, heads, D, cached_keys.first() / block * block, s.tokens - 1, scale,
               s.bias, row_of(cached_keys), row_of(cached_values),
               [&](size_t, size_t j0) { return Seen(cached_keys.first(), cached_keys.end, j0); });
    for (size_t r = 0; r < heads; r++)
      store_rows(o + s.query(b, head0 + r), 0, w.sum + r * D, 1, D, s.sigmoid() ? 1.0f : 1.0f / l[r]);
  }
}

}  // namespace gated
