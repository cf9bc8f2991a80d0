// cached_attention: the newest token of a sequence attends; of the tokens before it, keys and values are kept: the KV
// cache
//
// 1. Why that is enough. Row i of causal attention (kernels/attention.cu) reads one query, q_i, and the keys and values
// up to i:
//     o_i = sum over j <= i of p_ij v_j,  p_ij = e^(q_i.k_j / sqrt(D) - m_i) / l_i
//   Keys and values of old tokens do not change when a token is added, because nothing in the model looks ahead. So a
//   sequence that grows by one token needs one new row, and of the others their k and v. A row costs as many
//   multiply-adds as there are keys, and reading the keys and values is most of its time.
//
// 2. Why it has the same bits. attention_forward gives every row chains of its own, over the keys that the row sees, in
//   ascending order. This file walks through the same links in the same order: from the oldest token that is kept to
//   the newest. A cache that is a ring begins somewhere in the middle:
//
//       slots = 5, tokens = 8      slot    0   1   2   3   4          order of the chains: slots 3, 4, 0, 1, 2
//                                  token   5   6   7   3   4          (oldest() is 3: token 8 - 5 lies there)
//
//   With a window W a query sees the last W tokens, so W slots hold just what it sees. Sigmoid scores and sinks change
//   a row as they do in kernels/attention.cu, section 3.
//
// exactly: with fused(a,b,c) = a*b + c rounded once, a "chain" from +0, and scale = 1/sqrt(D):
//     s_j = scale * (chain over d of q_d k_jd)      m = max of the sink's logit and all s_j
//     p_j = exp(s_j - m), or sigmoid(s_j + bias)    l = chain over tokens of p_j, after exp(logit - m) of a sink
//     o_d = (chain over tokens of p_j v_jd, after the sink's value) * (1 / l), without the product for sigmoid
// shapes: q, o (B,H,D), keys, values (B,KVH,slots,D) f32 | o is written
// --generate | tests/test_cached_attention.cpp
#include "kernels/decode/cached_attention.h"

#include <vector>

#include "core/launch.cuh"
#include "kernels/attention_tile.cuh"

namespace gated {

// ---- reference

template <class Real>
void cached_attention_store_ref(Real* keys, Real* values, const Real* k, const Real* v, size_t T,
                                const CachedAttentionShape& s) {
  for (size_t b = 0; b < s.B; b++)
    for (size_t t = 0; t < T; t++)  // a later token takes the slot of an earlier one
      for (size_t kv_head = 0; kv_head < s.KVH; kv_head++)
        for (size_t d = 0; d < s.D; d++) {
          const size_t from = ((b * T + t) * s.KVH + kv_head) * s.D + d;
          const size_t to = s.row(b, kv_head, (s.tokens - T + t) % s.slots) + d;
          keys[to] = k[from];
          values[to] = v[from];
        }
}
IN_FLOAT_AND_DOUBLE(cached_attention_store_ref);

// What is promised, said once: the last row of attention over the tokens that are kept. (The rows before it are
// computed and dropped.)
template <class Real>
void cached_attention_ref(Real* o, const Real* q, const Real* keys, const Real* values, const CachedAttentionShape& s,
                          const SinkOf<Real>& sink) {
  const size_t n = s.kept();
  AttentionShape one = s.queries();
  one.B = one.H = one.KVH = 1, one.T = n;
  std::vector<Real> queries(n * s.D), k(n * s.D), v(n * s.D), rows(n * s.D), lse(n);
  for (size_t b = 0; b < s.B; b++)
    for (size_t h = 0; h < s.H; h++) {
      for (size_t j = 0; j < n; j++)
        for (size_t d = 0; d < s.D; d++) {
          const size_t at = s.row(b, h / s.group(), (s.oldest() + j) % s.slots) + d;
          queries[j * s.D + d] = q[s.query(b, h) + d];
          k[j * s.D + d] = keys[at];
          v[j * s.D + d] = values[at];
        }
      const Real logit = sink.logit_of(s.queries(), b, h, 0);
      const SinkOf<Real> of_head = {sink.logit ? &logit : nullptr, false, nullptr,
                                    sink.value ? sink.value + h * s.D : nullptr};
      attention_forward_ref(rows.data(), lse.data(), queries.data(), k.data(), v.data(), one, of_head);
      for (size_t d = 0; d < s.D; d++) o[s.query(b, h) + d] = rows[(n - 1) * s.D + d];
    }
}
IN_FLOAT_AND_DOUBLE(cached_attention_ref);

// ---- kernels

namespace cached {

constexpr unsigned outputs = 256;           // threads that own a d, as many as a head may have
constexpr unsigned threads = outputs + 32;  // and a warp whose first thread owns l
constexpr unsigned warps = threads / 32;

}  // namespace cached

// A thread owns one element of k and of v. Of tokens that share a slot the last has it.
template <class S>
__global__ void cached_attention_store_kernel(S* keys, S* values, const S* k, const S* v, size_t T,
                                              CachedAttentionShape s) {
  const size_t n = threadIdx.x + size_t(blockDim.x) * blockIdx.x, width = s.KVH * s.D;
  if (n >= s.B * T * width) return;
  const size_t b = n / (T * width), t = n / width % T, kv_head = n / s.D % s.KVH, d = n % s.D;
  if (T - t > s.slots) return;
  const size_t to = s.row(b, kv_head, (s.tokens - T + t) % s.slots) + d;
  keys[to] = k[n];
  values[to] = v[n];
}

// A block owns a query head of a sequence. Its threads share out the work in two ways:
//
//     scores, weights     thread n owns keys n, n + 288, n + 576, ...: dots of a key are short, and there are many keys
//     sums over tokens    thread d owns output d, and thread 256 owns l: a chain over tokens is one thread's
//
// In between the weights lie in scratch memory, weight (B,H,slots), in the order of the slots: p_j is written by the
// thread that owns key j and read by all. A barrier orders memory for the threads of a block, and no other block reads
// these.
__global__ void __launch_bounds__(cached::threads)
    cached_attention_kernel(float* o, float* weight, const float* q, const float* keys, const float* values,
                            CachedAttentionShape s, Sink sink, float scale, bool aligned) {
  STATIC_SHARED(float, query, [cached::outputs]);
  STATIC_SHARED(float, largest, [cached::warps]);
  STATIC_SHARED(float, total, [1]);
  const size_t b = blockIdx.x / s.H, h = blockIdx.x % s.H, kept = s.kept(), d = threadIdx.x;
  const float *k = keys + s.row(b, h / s.group(), 0), *v = values + s.row(b, h / s.group(), 0);
  float* const p = weight + (b * s.H + h) * s.slots;

  if (d < s.D) query[d] = q[s.query(b, h) + d];
  __syncthreads();  // the query is there

  const float logit = sink.logit_of(s.queries(), b, h, 0);  // -inf without a sink
  float m = logit;
  for (size_t j = threadIdx.x; j < kept; j += cached::threads) {
    p[j] = attention::row_dot(query, k + j * s.D, s.D, aligned) * scale;
    m = max_of(p[j], m);
  }
  for (int flip = 16; flip > 0; flip /= 2) m = max_of(m, __shfl_xor_sync(0xffffffffu, m, flip));
  if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = m;
  __syncthreads();  // the largest score of every warp is there
  for (unsigned w = 0; w < cached::warps; w++) m = max_of(largest[w], m);
  for (size_t j = threadIdx.x; j < kept; j += cached::threads)
    p[j] = s.sigmoid() ? exact_sigmoid(p[j] + s.bias) : exp_to_40(p[j] - m);
  __syncthreads();  // all weights are there

  // The sink is the first link. Without one its weight is exp(-inf) = +0, where chains start anyway.
  const float p_sink = s.sigmoid() ? 0.0f : exact_exp(logit - m);
  const size_t oldest = s.oldest();
  float sum = 0.0f;
  if (d < s.D) {
    if (sink.value) sum = fused(p_sink, sink.value[h * s.D + d], sum);
    for (size_t j = oldest; j < kept; j++) sum = fused(p[j], v[j * s.D + d], sum);
    for (size_t j = 0; j < oldest; j++) sum = fused(p[j], v[j * s.D + d], sum);
  }
  if (threadIdx.x == cached::outputs) {
    float l = p_sink;
    for (size_t j = oldest; j < kept; j++) l = l + p[j];
    for (size_t j = 0; j < oldest; j++) l = l + p[j];
    *total = l;
  }
  __syncthreads();  // l is there
  if (d < s.D) o[s.query(b, h) + d] = s.sigmoid() ? sum : sum * (1.0f / *total);
}

// ---- launchers

void require_cache(const char* name, const CachedAttentionShape& s) {
  require(s.slots > 0 && s.tokens > 0, "%s: %zu tokens in %zu slots, expected at least 1 of each", name, s.tokens,
          s.slots);
}

void cached_attention_store(Reals keys, Reals values, ConstReals k, ConstReals v, size_t T,
                            const CachedAttentionShape& s, Context& ctx) {
  attention_require("cached_attention_store", s.queries(), {});
  require_cache("cached_attention_store", s);
  require(T > 0 && T <= s.tokens, "cached_attention_store: %zu tokens to store of %zu, expected 1 to as many", T,
          s.tokens);
  with_storage(keys, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu)
      return cached_attention_store_cpu(keys.as<S>(), values.as<S>(), k.as<S>(), v.as<S>(), T, s);
    launch(cached_attention_store_kernel<S>, grid_of(ceil_div(s.B * T * s.KVH * s.D, attention::threads)),
           attention::threads, 0, ctx, keys.as<S>(), values.as<S>(), k.as<S>(), v.as<S>(), T, s);
  });
}

void cached_attention(float* o, const float* q, const float* keys, const float* values, const CachedAttentionShape& s,
                      const Sink& sink, Context& ctx) {
  attention_require("cached_attention", s.queries(), sink);
  require_cache("cached_attention", s);
  if (ctx.device == Device::cpu) return cached_attention_cpu(o, q, keys, values, s, sink, ctx);
  float* const weight = ctx.scratch(cached_attention_scratch(s) / sizeof(float));
  launch(cached_attention_kernel, grid_of(s.B * s.H), cached::threads, 0, ctx, o, weight, q, keys, values, s, sink,
         attention_scale<float>(s.divisor()), attention::rows_are_aligned(s.queries(), {keys}));
}

size_t cached_attention_scratch(const CachedAttentionShape& s) {
  return s.B * s.H * s.slots * sizeof(float);
}

}  // namespace gated
