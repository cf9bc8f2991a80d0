// cached_attention_cpu: kernels/decode/cached_attention.cu on CPU cores, at the speed at which they read keys and
// values.
//
// Threads take query heads. Of the scores every lane has a key (core/row_dots_cpu.h), of the sums over tokens every
// lane has an element of the head, and up to 4 vectors of them stay in registers while the values stream past. The
// chains are those of the reference, in its order. tests/test_cached_attention.cpp
#include "core/row_dots_cpu.h"
#include "kernels/decode/cached_attention.h"

namespace gated {
namespace {

// Scores of all slots that hold a key, in the order of the slots. Returns the largest of them and `logit`.
[[gnu::flatten]] float scores_of(float* p, const float* q, const float* keys, size_t kept, size_t D, float scale,
                                 float logit) {
  for (size_t j = 0; j < kept; j += lanes) {
    vec dots[1];
    row_dots(dots, keys + j * D, D, std::min(lanes, kept - j), lanes, q, 0, D);
    store_first(p + j, dots[0] * broadcast(scale), kept - j);
  }
  float m = logit;
  for (size_t j = 0; j < kept; j++) m = max_of(p[j], m);
  return m;
}

// Scores become weights.
[[gnu::flatten]] void weights_of(float* p, size_t kept, float m, const CachedAttentionShape& s) {
  if (s.sigmoid())
    for (size_t j = 0; j < kept; j++) p[j] = exact_sigmoid(p[j] + s.bias);
  else
    for (size_t j = 0; j < kept; j++) p[j] = exp_to_40(p[j] - m);
}

// acc[d] = chain from acc[d] over slots [begin, end) of p_j v_jd, for V vectors of elements, n elements in all.
template <size_t V>
void add_values(float* acc, const float* p, const float* values, size_t begin, size_t end, size_t D, size_t n) {
  vec sum[V];
#pragma GCC unroll 4
  for (size_t v = 0; v < V; v++) sum[v] = load_first(acc + v * lanes, n - v * lanes);
  for (size_t j = begin; j < end; j++) {
    const vec weight = broadcast(p[j]);
#pragma GCC unroll 4
    for (size_t v = 0; v < V; v++) {
      const float* const at = values + j * D + v * lanes;
      sum[v] = fma(weight, V * lanes <= n ? load(at) : load_first(at, n - v * lanes), sum[v]);
    }
  }
#pragma GCC unroll 4
  for (size_t v = 0; v < V; v++) store_first(acc + v * lanes, sum[v], n - v * lanes);
}

void add_values(float* acc, const float* p, const float* values, size_t begin, size_t end, size_t D) {
  for (size_t d = 0; d < D;) {
    const size_t left = ceil_div(D - d, lanes), vectors = left >= 4 ? 4 : left >= 2 ? 2 : 1;
    const auto add = vectors == 4 ? add_values<4> : vectors == 2 ? add_values<2> : add_values<1>;
    add(acc + d, p, values + d, begin, end, D, D - d);
    d += vectors * lanes;
  }
}

}  // namespace

template <class S>
void cached_attention_store_cpu(S* keys, S* values, const S* k, const S* v, size_t T, const CachedAttentionShape& s) {
  const size_t first = T > s.slots ? T - s.slots : 0;  // tokens before it would be overwritten
  for (size_t b = 0; b < s.B; b++)
    for (size_t t = first; t < T; t++)
      for (size_t kv_head = 0; kv_head < s.KVH; kv_head++) {
        const size_t from = ((b * T + t) * s.KVH + kv_head) * s.D, slot = (s.tokens - T + t) % s.slots;
        std::copy_n(k + from, s.D, keys + s.row(b, kv_head, slot));
        std::copy_n(v + from, s.D, values + s.row(b, kv_head, slot));
      }
}

IN_FLOAT_AND_BF16(cached_attention_store_cpu);

void cached_attention_cpu(float* o, const float* q, const float* keys, const float* values,
                          const CachedAttentionShape& s, const Sink& sink, Context& ctx) {
  float* const weights = ctx.scratch(cached_attention_scratch(s) / sizeof(float));
  const float scale = attention_scale<float>(s.divisor());
  const size_t kept = s.kept(), oldest = s.oldest();
#pragma omp parallel for if (worth_waking(s.B * s.H * kept * s.D))
  for (size_t head = 0; head < s.B * s.H; head++) {
    const size_t b = head / s.H, h = head % s.H, row = s.row(b, h / s.group(), 0);
    float *const p = weights + head * s.slots, *const out = o + s.query(b, h);

    const float logit = sink.logit_of(s.queries(), b, h, 0);
    const float m = scores_of(p, q + s.query(b, h), keys + row, kept, s.D, scale, logit);
    weights_of(p, kept, m, s);

    float l = s.sigmoid() ? 0.0f : exact_exp(logit - m);
    for (size_t d = 0; d < s.D; d++) out[d] = sink.value ? fused(l, sink.value[h * s.D + d], 0.0f) : 0.0f;
    for (size_t j = oldest; j < kept; j++) l = l + p[j];
    for (size_t j = 0; j < oldest; j++) l = l + p[j];
    add_values(out, p, values + row, oldest, kept, s.D);
    add_values(out, p, values + row, 0, oldest, s.D);

    const float inverse = s.sigmoid() ? 1.0f : 1.0f / l;
    for (size_t d = 0; d < s.D; d++) out[d] = out[d] * inverse;
  }
}

}  // namespace gated
