// cached_attention_bf16: the newest token of a sequence attends; of the tokens before it, bf16 keys and values are kept
//
// Why that is enough: kernels/decode/cached_attention.cu. Why it has the bits of attention_bf16_forward's last row: it
// takes the same steps. The tiles of 64 keys are those of the whole sequence, from multiples of 64 on, wherever the
// ring that the cache is begins, and what a query does not see, or the cache holds no more, is masked:
//
//     slots = 100, tokens = 170   tokens kept: 70 .. 169    tiles: 64 .. 127, 128 .. 191   masked: 64 .. 69, 170 .. 191
//
// What is computed is in kernels/bf16/attention_bf16.cu, section 2; the softmax is attention_bf16_tile's
// online_softmax.
// shapes: q, o (B,H,D), keys, values (B,KVH,slots,D) bf16 | o is written
// on the CPU: kernels/decode/cached_attention_bf16_cpu.cpp, the same bits | tests/test_cached_attention_bf16.cpp
#include "kernels/decode/cached_attention_bf16.h"

#include "core/launch.cuh"
#include "kernels/bf16/attention_bf16_tile.cuh"
#include "kernels/decode/cached_attention_bf16.cuh"

namespace gated {

// ---- kernel
//
// A block owns up to 16 query heads that read one kv head, the rows of its tiles: a key or value is read once for all
// of them. Its four warps share a tile out in two ways:
//
//    scores     warp w has keys 16w .. 16w + 15 of the tile
//    weights    every warp has all of them: it makes what it needs itself, from scores in shared memory
//    o          warp w has the w-th quarter of the columns
//
// Keys and values are copied as in attention_bf16_forward_kernel: one is copied while the other is multiplied.
//
// Grid (B*KVH, 16 heads of the group each). Rows of scores lie 72 floats apart: the four rows and four pairs of half a
// warp fall on the 16 pairs of banks.

namespace attention_bf16 {

constexpr int head_rows = 16, score_pitch = block + 8;

constexpr size_t cached_shared(size_t columns) {
  return (head_rows + 2 * block) * columns * sizeof(bf16) + head_rows * score_pitch * sizeof(float);
}

}  // namespace attention_bf16

template <int columns, bool whole>
__global__ void __launch_bounds__(attention_bf16::threads, 4)
    cached_attention_bf16_kernel(bf16* o, const bf16* q, const bf16* keys, const bf16* values, CachedAttentionShape s,
                                 Sink sink, float scale) {
  using namespace attention_bf16;
  DYNAMIC_SHARED(bf16, shared);
  using Rows64 = RowTile<columns, whole>;
  constexpr int quarter = columns / 4, warp_keys = block / 4;
  bf16 *const queries_tile = shared, *const keys_tile = queries_tile + head_rows * columns,
              *const values_tile = keys_tile + block * columns;
  float* const scores = reinterpret_cast<float*>(values_tile + block * columns);
  const size_t b = blockIdx.x / s.KVH, kv_head = blockIdx.x % s.KVH;
  const size_t head0 = kv_head * s.group() + size_t(blockIdx.y) * head_rows, past_heads = (kv_head + 1) * s.group();
  const int warp = threadIdx.x / 32, column0 = warp * quarter;
  const int row = threadIdx.x % 32 / 4;  // and row + 8: query heads head0 + row
  const Rows queries{q + s.query(b, 0), s.D, past_heads};
  const CacheRows cached_keys = cache_rows(keys, s, b, kv_head), cached_values = cache_rows(values, s, b, kv_head);

  const size_t first = cached_keys.first() / block * block;
  AsyncCopies copies;
  Rows64::copy(queries_tile, queries, head0, head_rows, s.D, copies);
  Rows64::copy(keys_tile, cached_keys, first, block, s.D, copies);
  copies.commit();

  float m[2], l[2];
  MmaC sum[quarter / 8];
  for (int r = 0; r < 2; r++) {
    const size_t h = head0 + row + 8 * r;
    m[r] = h < past_heads ? first_max(sink, s.queries(), b, h, 0) : -INFINITY;
    l[r] = sink.logit ? 1.0f : 0.0f;
#pragma unroll
    for (int n = 0; n < quarter / 8; n++)
#pragma unroll
      for (int e = 2 * r; e < 2 * r + 2; e++) {
        const size_t d = column0 + column_of_lane(n, e);
        sum[n].x[e] = sink.value && h < past_heads && d < s.D ? sink.value[h * s.D + d] : 0.0f;
      }
  }

  for (size_t j0 = first; j0 < s.tokens; j0 += block) {
    copies.template wait<0>();
    __syncthreads();  // the keys are there; nobody reads the values and the scores before any more
    Rows64::copy(values_tile, cached_values, j0, block, s.D, copies);
    copies.commit();
    MmaC part[warp_keys / 8] = {};
    Rows64::template product<warp_keys>(part, queries_tile, Rows64::own(keys_tile), s.D);
    for (int n = 0; n < warp_keys / 8; n++)
      for (int half = 0; half < 2; half++) {
        const int key = warp * warp_keys + column_of_lane(n, 0);
        const auto score = [&](int e) { return cached_keys.has(j0 + key + e) ? part[n].x[2 * half + e] : -INFINITY; };
        *reinterpret_cast<float2*>(scores + (row + 8 * half) * score_pitch + key) = {score(0), score(1)};
      }
    copies.template wait<0>();
    __syncthreads();  // the values and the scores are there; nobody reads the keys any more
    if (j0 + block < s.tokens) Rows64::copy(keys_tile, cached_keys, j0 + block, block, s.D, copies);
    copies.commit();

    MmaC score[block / 8];
    float alpha[2];
#pragma unroll
    for (int n = 0; n < int(block) / 8; n++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float* const pair = scores + (row + 8 * half) * score_pitch + column_of_lane(n, 0);
        const auto [low, high] = *reinterpret_cast<const float2*>(pair);
        score[n].x[2 * half] = low, score[n].x[2 * half + 1] = high;
      }
    online_softmax(score, m, l, alpha, s.score, s.bias, scale);
#pragma unroll
    for (int n = 0; n < quarter / 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) sum[n].x[e] = sum[n].x[e] * alpha[e / 2];
    Rows64::template accumulate<block>(sum, score, values_tile, column0, s.D);
  }

  for (int r = 0; r < 2; r++) {
    const size_t h = head0 + row + 8 * r;
    const float inverse = s.sigmoid() ? 1.0f : 1.0f / l[r];
    for (int n = 0; n < quarter / 8; n++)
      for (int e = 2 * r; e < 2 * r + 2; e++) {
        const size_t d = column0 + column_of_lane(n, e);
        if (h < past_heads && d < s.D) o[s.query(b, h) + d] = bf16(sum[n].x[e] * inverse);
      }
  }
}

// ---- launchers

void cached_attention_bf16(bf16* o, const bf16* q, const bf16* keys, const bf16* values, const CachedAttentionShape& s,
                           const Sink& sink, Context& ctx) {
  using namespace attention_bf16;
  require_shape("cached_attention_bf16", s.queries(), sink, {o, q, keys, values});
  require_cache("cached_attention_bf16", s);
  if (ctx.device == Device::cpu) return cached_attention_bf16_cpu(o, q, keys, values, s, sink, ctx);
  emulate_mma(ctx);
  const dim3 grid(grid_of(s.B * s.KVH).x, unsigned(ceil_div(s.group(), size_t{head_rows})));
  by_room(s.D, [&]<int columns, bool whole>() {
    launch(cached_attention_bf16_kernel<columns, whole>, grid, threads, cached_shared(columns), ctx, o, q, keys, values,
           s, sink, weight_scale(s.queries()));
  });
}

}  // namespace gated
