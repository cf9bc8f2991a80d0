// attention_cpu: the attention of kernels/attention.cuh on a CPU, near the speed of its matrix products, with
// the same bits.
//
// One shape serves o, dq, dk and dv. The rows of 64 outputs lie across vector lanes (queries for o and dq,
// keys for dk and dv), packed transposed: every output has its own lane and so its own chain. The rows of the
// other side stream past in the layout they have, one number broadcast to all lanes at a time:
//   product      out[row][lane] = chain over d of a[row][d] * bt[d][lane]       scores and dp
//   accumulate   acc[d][lane] = chain over rows of w[row][lane] * x[row][d]     o, dq, dk and dv
// both with 4 rows (or d) times `held` vectors of sums in registers. A lane that does not see a row keeps its
// sum by selection. Scratch for each thread: forward 64 x (min(T, W + 64) + 2D) floats, the scores of 64
// queries at once; backward 64 x (128 + 4D).
//
// Included by kernels/attention.cuh, which says what is computed. | tests/test_attention.cpp
#pragma once
#include <omp.h>

#include <algorithm>
#include <type_traits>

#include "kernels/attention.cuh"
#include "core/simd.h"

namespace gated {
namespace cpu_attention {

constexpr size_t tile = 64;                   // lanes
constexpr size_t chunk = 16;                  // rows at a time where not every lane sees every row
constexpr size_t held = lanes == 16 ? 4 : 2;  // vectors of sums in registers, for each of 4 rows

// Calls f(n) with 1 <= n <= most as a compile-time constant.
template <size_t most, class F>
void with_constant(size_t n, F f) {
  if constexpr (most > 1)
    if (n < most) return with_constant<most - 1>(n, f);
  f(std::integral_constant<size_t, most>());
}

// ---- who sees whom

// Lanes [lo, hi) of a tile see a row.
struct Span {
  size_t lo, hi;

  // Outputs [first, end) of all, as lanes of the tile that starts at lane0.
  Span(size_t first, size_t end, size_t lane0) : lo(lane(first, lane0)), hi(lane(end, lane0)) {}
  static size_t lane(size_t i, size_t lane0) { return i < lane0 ? 0 : std::min(i - lane0, tile); }
  uint64_t bits() const { return below(hi) & ~below(lo); }
  static uint64_t below(size_t n) { return n < 64 ? (uint64_t{1} << n) - 1 : ~uint64_t{0}; }
};

// n rows from `row`, seen by lanes of the vectors [v0, v1) only; all_seen: by every lane that is in use.
struct Rows {
  size_t row, n, v0, v1;
  bool all_seen;
};

// Calls body(Rows) over rows [begin, end) in ascending order: as many as there are lanes where all is
// visible, which is all but the diagonal, and there a few at a time, so that vectors nobody needs are left
// out. span(row) never moves down as rows go up, so the first row has the lowest lane and the last row the
// highest. `count` lanes are in use.
template <class SpanOf, class Body>
void for_rows(size_t begin, size_t end, size_t count, SpanOf span, Body body) {
  for (size_t row = begin, n; row < end; row += n) {
    auto all_seen = [&] { return span(row + n - 1).lo == 0 && span(row).hi >= count; };
    n = std::min(tile, end - row);
    if (!all_seen()) n = std::min(chunk, end - row);
    body(Rows{row, n, span(row).lo / lanes, ceil_div(std::min(span(row + n - 1).hi, count), lanes), all_seen()});
  }
}

// a*b + c in the lanes whose bit is set, c in the others.
inline vec fma_where(uint64_t bits, vec a, vec b, vec c) {
#if defined(__AVX512F__)
  return (vec)_mm512_mask3_fmadd_ps((__m512)a, (__m512)b, (__m512)c, __mmask16(bits));
#else
  decltype(a < b) bit;
  for (size_t l = 0; l < lanes; l++) bit[l] = 1 << l;
  return (bit & int(bits & 0xffff)) != 0 ? fma(a, b, c) : c;
#endif
}

// ---- the two products

// R rows times V vectors of lanes: sums stay in registers over the whole of D, so each chain starts at +0
// here.
template <size_t R, size_t V>
void product_block(float* out, const float* a, size_t stride, const float* bt, size_t D) {
  vec sum[R][V];
#pragma GCC unroll 4
  for (size_t r = 0; r < R; r++)
#pragma GCC unroll 4
    for (size_t v = 0; v < V; v++) sum[r][v] = vec{};
  for (size_t d = 0; d < D; d++) {
    vec b[V];
#pragma GCC unroll 4
    for (size_t v = 0; v < V; v++) b[v] = load(bt + d * tile + v * lanes);
#pragma GCC unroll 4
    for (size_t r = 0; r < R; r++) {
      const vec x = broadcast(a[r * stride + d]);
#pragma GCC unroll 4
      for (size_t v = 0; v < V; v++) sum[r][v] = fma(x, b[v], sum[r][v]);
    }
  }
#pragma GCC unroll 4
  for (size_t r = 0; r < R; r++)
#pragma GCC unroll 4
    for (size_t v = 0; v < V; v++) store(out + r * tile + v * lanes, sum[r][v]);
}

// out and a begin at the first of the rows.
inline void product(float* out, const float* a, size_t stride, const float* bt, size_t D, const Rows& rows) {
  for (size_t v = rows.v0; v < rows.v1; v += held)
    with_constant<held>(std::min(held, rows.v1 - v), [&](auto V) {
      size_t r = 0;
      const size_t l = v * lanes;
      for (; r + 4 <= rows.n; r += 4) product_block<4, V>(out + r * tile + l, a + r * stride, stride, bt + l, D);
      for (; r < rows.n; r++) product_block<1, V>(out + r * tile + l, a + r * stride, stride, bt + l, D);
    });
}

// C of the d times V vectors of lanes, from lane0 on. Chains go on from acc, where the rows before left them.
template <size_t C, size_t V, bool all_seen, class SpanOf>
void accumulate_block(float* acc, const float* w, const float* x, size_t stride, const Rows& rows, size_t lane0,
                      SpanOf span) {
  vec sum[C][V];
#pragma GCC unroll 4
  for (size_t c = 0; c < C; c++)
#pragma GCC unroll 4
    for (size_t v = 0; v < V; v++) sum[c][v] = load(acc + c * tile + v * lanes);
  for (size_t r = 0; r < rows.n; r++) {
    const uint64_t bits = all_seen ? 0 : span(rows.row + r).bits() >> lane0;
    vec p[V];
#pragma GCC unroll 4
    for (size_t v = 0; v < V; v++) p[v] = load(w + r * tile + v * lanes);
#pragma GCC unroll 4
    for (size_t c = 0; c < C; c++) {
      const vec y = broadcast(x[r * stride + c]);
#pragma GCC unroll 4
      for (size_t v = 0; v < V; v++)
        sum[c][v] = all_seen ? fma(p[v], y, sum[c][v]) : fma_where(bits >> v * lanes, p[v], y, sum[c][v]);
    }
  }
#pragma GCC unroll 4
  for (size_t c = 0; c < C; c++)
#pragma GCC unroll 4
    for (size_t v = 0; v < V; v++) store(acc + c * tile + v * lanes, sum[c][v]);
}

// w and x begin at the first of the rows.
template <class SpanOf>
void accumulate(float* acc, const float* w, const float* x, size_t stride, size_t D, const Rows& rows, SpanOf span) {
  auto over_columns = [&](auto V, auto all_seen, size_t l) {
    size_t d = 0;
    for (; d + 4 <= D; d += 4)
      accumulate_block<4, V, all_seen>(acc + d * tile + l, w + l, x + d, stride, rows, l, span);
    for (; d < D; d++) accumulate_block<1, V, all_seen>(acc + d * tile + l, w + l, x + d, stride, rows, l, span);
  };
  for (size_t v = rows.v0; v < rows.v1; v += held)
    with_constant<held>(std::min(held, rows.v1 - v), [&](auto V) {
      if (rows.all_seen)
        over_columns(V, std::true_type(), v * lanes);
      else
        over_columns(V, std::false_type(), v * lanes);
    });
}

// ---- packing

// to[d][lane] = x[lane][d]; 0 in lanes from `count` on.
[[gnu::flatten]] inline void pack(float* to, const float* x, size_t stride, size_t count, size_t D) {
  for (size_t l = 0; l < tile; l += lanes)
    for (size_t d = 0; d < D; d += lanes) {
      const float* from = x + l * stride + d;
      const size_t n = std::min(lanes, D - d);
      vec block[lanes];
      if (l + lanes <= count && n == lanes) {
#pragma GCC unroll 16
        for (size_t i = 0; i < lanes; i++) block[i] = load(from + i * stride);
      } else {
        for (size_t i = 0; i < lanes; i++) block[i] = l + i < count ? load_first(from + i * stride, n) : vec{};
      }
      transpose(block);
      for (size_t i = 0; i < n; i++) store(to + (d + i) * tile + l, block[i]);
    }
}

// Asks for the rows that unpack will write: they lie H*D apart, where no hardware prefetcher looks.
inline void prefetch_rows(const float* x, size_t stride, size_t count, size_t D) {
  for (size_t l = 0; l < count; l++)
    for (size_t d = 0; d < D; d += 16) __builtin_prefetch(x + l * stride + d, 1, 2);
}

// x[lane][d] = acc[d][lane] * factor[lane]
[[gnu::flatten]] inline void unpack(float* x, size_t stride, const float* acc, size_t count, size_t D,
                                    const float* factor) {
  for (size_t l = 0; l < count; l += lanes)
    for (size_t d = 0; d < D; d += lanes) {
      const float* from = acc + d * tile + l;
      float* to = x + l * stride + d;
      const size_t n = std::min(lanes, D - d);
      const vec f = load(factor + l);
      vec block[lanes];
      if (l + lanes <= count && n == lanes) {
#pragma GCC unroll 16
        for (size_t i = 0; i < lanes; i++) block[i] = load(from + i * tile) * f;
        transpose(block);
#pragma GCC unroll 16
        for (size_t i = 0; i < lanes; i++) store(to + i * stride, block[i]);
      } else {
        for (size_t i = 0; i < lanes; i++) block[i] = i < n ? load(from + i * tile) * f : vec{};
        transpose(block);
        for (size_t i = 0; i < std::min(lanes, count - l); i++) store_first(to + i * stride, block[i], n);
      }
    }
}

// ---- softmax and its gradient, on rows of products
//
// Plain loops over lanes, which vectorise once exact_exp is inlined: hence gnu::flatten.

// m = max of the scores each lane sees.
template <class SpanOf>
void max_rows(float* m, const float* score, float scale, const Rows& rows, SpanOf span) {
  for (size_t r = 0; r < rows.n; r++) {
    const Span seen = span(rows.row + r);
    for (size_t lane = seen.lo; lane < seen.hi; lane++) m[lane] = max_of(score[r * tile + lane] * scale, m[lane]);
  }
}

// Scores become p, which l adds up. Where a lane does not see a row p is 0: the sum, never below +0, keeps
// its bits.
template <class SpanOf>
[[gnu::flatten]] void p_rows(AttentionScore kind, float* l, float* score, const float* m, float scale, const Rows& rows,
                             SpanOf span) {
  const size_t begin = rows.v0 * lanes, end = rows.v1 * lanes;
  attention_with_score(kind, [&](auto kind) {
    for (size_t r = 0; r < rows.n; r++) {
      float* const p = score + r * tile;
      for (size_t lane = begin; lane < end; lane++) p[lane] = attention_p(kind(), p[lane] * scale - m[lane]);
      if (!rows.all_seen) {
        const Span seen = span(rows.row + r);
        for (size_t lane = begin; lane < seen.lo; lane++) p[lane] = 0.0f;
        for (size_t lane = seen.hi; lane < end; lane++) p[lane] = 0.0f;
      }
      for (size_t lane = begin; lane < end; lane++) l[lane] = l[lane] + p[lane];
    }
  });
}

// Scores become p, dp becomes ds. Lanes are queries and have their own lse and delta, or rows are and have
// theirs.
template <bool lanes_are_queries>
[[gnu::flatten]] void gradient_rows(AttentionScore kind, float* score, float* dp, const float* lse, const float* delta,
                                    float scale, const Rows& rows) {
  attention_with_score(kind, [&](auto kind) {
    for (size_t r = 0; r < rows.n; r++) {
      float *const p = score + r * tile, *const ds = dp + r * tile;
      for (size_t lane = rows.v0 * lanes; lane < rows.v1 * lanes; lane++) {
        const size_t i = lanes_are_queries ? lane : r;
        p[lane] = attention_p(kind(), p[lane] * scale - lse[i]);
        ds[lane] = attention_ds(kind(), p[lane], ds[lane], delta[i]);
      }
    }
  });
}

// ---- the extra position

// logit[lane] of the queries i0 + lane, -inf in lanes without one.
inline void logit_lanes(float* logit, const AttentionExtra& extra, const AttentionShape& s, size_t b, size_t h,
                        size_t i0) {
  for (size_t lane = 0; lane < tile; lane++) logit[lane] = extra.logit_of(s, b, h, i0 + lane);
}

// acc[d][lane] = fused(w[lane], x[d], +0), +0 without x: where chains over keys begin.
[[gnu::flatten]] inline void begin_chains(float* acc, const float* w, const float* x, size_t D) {
  std::fill_n(acc, D * tile, 0.0f);
  if (!x) return;
  for (size_t d = 0; d < D; d++)
    for (size_t lane = 0; lane < tile; lane++) acc[d * tile + lane] = fused(w[lane], x[d], acc[d * tile + lane]);
}

}  // namespace cpu_attention

// ---- forward and backward: threads take tiles, those with the most rows first within a head

inline void attention_forward_cpu(float* o, float* lse, const float* q, const float* k, const float* v,
                                  const AttentionShape& s, const AttentionExtra& extra, Context& ctx) {
  using namespace cpu_attention;
  const float scale = attention_scale<float>(s.D);
  const size_t q_stride = s.H * s.D, kv_stride = s.K * s.D, packed = s.D * tile;
  const size_t tiles = ceil_div(s.T, tile), rows_seen = std::min(s.T, s.reach() + tile);
  const size_t per_thread = 2 * packed + rows_seen * tile;
  float* const scratch = ctx.scratch(per_thread * omp_get_max_threads());
#pragma omp parallel for schedule(dynamic)
  for (size_t n = 0; n < s.B * s.H * tiles; n++) {
    const size_t b = n / tiles / s.H, h = n / tiles % s.H, i0 = (tiles - 1 - n % tiles) * tile;
    const size_t count = std::min(tile, s.T - i0), j0 = s.first_key(i0);
    const size_t query = s.query_row(b, i0, h), key = s.key_row(b, 0, h / s.group());
    float* const qt = scratch + per_thread * omp_get_thread_num();
    float *const acc = qt + packed, *const score = acc + packed;
    float m[tile], l[tile];
    logit_lanes(l, extra, s, b, h, i0);
    std::copy_n(l, tile, m);
    pack(qt, q + query, q_stride, count, s.D);
    prefetch_rows(o + query, q_stride, count, s.D);

    auto span = [&](size_t j) { return Span(j, s.end_query(j), i0); };
    for_rows(j0, i0 + count, count, span, [&](const Rows& rows) {
      float* const out = score + (rows.row - j0) * tile;
      product(out, k + key + rows.row * kv_stride, kv_stride, qt, s.D, rows);
      if (!s.sigmoid()) max_rows(m, out, scale, rows, span);
    });
    if (s.sigmoid()) std::fill_n(m, tile, -s.bias);
    for (size_t lane = 0; lane < tile; lane++) l[lane] = exact_exp(l[lane] - m[lane]);
    begin_chains(acc, l, extra.value ? extra.value + h * s.D : nullptr, s.D);
    for_rows(j0, i0 + count, count, span, [&](const Rows& rows) {
      float* const p = score + (rows.row - j0) * tile;
      p_rows(s.score, l, p, m, scale, rows, span);
      accumulate(acc, p, v + key + rows.row * kv_stride, kv_stride, s.D, rows, span);
    });
    for (size_t lane = 0; lane < count; lane++) {
      lse[s.stat(b, h, i0 + lane)] = s.sigmoid() ? 0.0f : m[lane] + exact_log(l[lane]);
      l[lane] = s.sigmoid() ? 1.0f : 1.0f / l[lane];
    }
    unpack(o + query, q_stride, acc, count, s.D, l);
  }
}

inline void attention_backward_cpu(float* dq, float* dk, float* dv, float* extra_p, float* extra_ds, const float* dout,
                                   const float* q, const float* k, const float* v, const float* o, const float* lse,
                                   const AttentionShape& s, const AttentionExtra& extra, Context& ctx) {
  using namespace cpu_attention;
  const float scale = attention_scale<float>(s.D);
  const size_t q_stride = s.H * s.D, kv_stride = s.K * s.D, packed = s.D * tile;
  const size_t tiles = ceil_div(s.T, tile), per_thread = 4 * packed + 2 * tile * tile, threads = omp_get_max_threads();
  float* const scratch = ctx.scratch(per_thread * threads + s.B * s.H * s.T);
  float* const delta = scratch + per_thread * threads;
  float scales[tile], ones[tile], minus_bias[tile];
  std::fill_n(scales, tile, scale);
  std::fill_n(ones, tile, 1.0f);
  std::fill_n(minus_bias, tile, -s.bias);

#pragma omp parallel for schedule(dynamic)
  for (size_t n = 0; n < s.B * s.H * tiles; n++) {  // dq and delta: lanes are queries
    const size_t b = n / tiles / s.H, h = n / tiles % s.H, i0 = (tiles - 1 - n % tiles) * tile;
    const size_t count = std::min(tile, s.T - i0);
    const size_t query = s.query_row(b, i0, h), key = s.key_row(b, 0, h / s.group()), stat = s.stat(b, h, i0);
    float* const qt = scratch + per_thread * omp_get_thread_num();
    float *const dot = qt + packed, *const acc = dot + packed, *const p = qt + 4 * packed, *const ds = p + tile * tile;
    pack(qt, q + query, q_stride, count, s.D);
    pack(dot, dout + query, q_stride, count, s.D);
    prefetch_rows(dq + query, q_stride, count, s.D);
    float lse_lane[tile] = {}, delta_lane[tile] = {}, extra_lane[tile] = {};
    if (s.sigmoid())
      std::fill_n(lse_lane, tile, -s.bias);
    else {
      std::copy_n(lse + stat, count, lse_lane);
      pack(acc, o + query, q_stride, count, s.D);
      for (size_t d = 0; d < s.D; d++)
        for (size_t lane = 0; lane < tile; lane++)
          delta_lane[lane] = fused(dot[d * tile + lane], acc[d * tile + lane], delta_lane[lane]);
    }
    std::copy_n(delta_lane, count, delta + stat);
    if (extra.logit) {
      float p_lane[tile];
      logit_lanes(p_lane, extra, s, b, h, i0);
      if (extra.value)
        for (size_t d = 0; d < s.D; d++)
          for (size_t lane = 0; lane < tile; lane++)
            extra_lane[lane] = fused(dot[d * tile + lane], extra.value[h * s.D + d], extra_lane[lane]);
      for (size_t lane = 0; lane < tile; lane++) {
        p_lane[lane] = exact_exp(p_lane[lane] - lse_lane[lane]);
        extra_lane[lane] = attention_ds(AttentionScore::softmax, p_lane[lane], extra_lane[lane], delta_lane[lane]);
      }
      std::copy_n(p_lane, count, extra_p + stat);
      std::copy_n(extra_lane, count, extra_ds + stat);
    }
    begin_chains(acc, extra_lane, extra.key ? extra.key + h * s.D : nullptr, s.D);

    auto span = [&](size_t j) { return Span(j, s.end_query(j), i0); };
    for_rows(s.first_key(i0), i0 + count, count, span, [&](const Rows& rows) {
      const size_t at = key + rows.row * kv_stride;
      product(p, k + at, kv_stride, qt, s.D, rows);
      product(ds, v + at, kv_stride, dot, s.D, rows);
      gradient_rows<true>(s.score, p, ds, lse_lane, delta_lane, scale, rows);
      accumulate(acc, ds, k + at, kv_stride, s.D, rows, span);
    });
    unpack(dq + query, q_stride, acc, count, s.D, scales);
  }

#pragma omp parallel for schedule(dynamic)
  for (size_t n = 0; n < s.B * s.K * tiles; n++) {  // dk and dv: lanes are keys
    const size_t b = n / tiles / s.K, kv_head = n / tiles % s.K, j0 = n % tiles * tile;
    const size_t count = std::min(tile, s.T - j0), key = s.key_row(b, j0, kv_head);
    float* const kt = scratch + per_thread * omp_get_thread_num();
    float *const vt = kt + packed, *const dk_acc = vt + packed, *const dv_acc = dk_acc + packed;
    float *const p = kt + 4 * packed, *const ds = p + tile * tile;
    pack(kt, k + key, kv_stride, count, s.D);
    pack(vt, v + key, kv_stride, count, s.D);
    prefetch_rows(dk + key, kv_stride, count, s.D);
    prefetch_rows(dv + key, kv_stride, count, s.D);
    std::fill_n(dk_acc, packed, 0.0f);
    std::fill_n(dv_acc, packed, 0.0f);

    auto span = [&](size_t i) { return Span(s.first_key(i), i + 1, j0); };
    for (size_t h = kv_head * s.group(); h < (kv_head + 1) * s.group(); h++)
      for_rows(j0, s.end_query(j0 + count - 1), count, span, [&](const Rows& rows) {
        const size_t at = s.query_row(b, rows.row, h), stat = s.stat(b, h, rows.row);
        product(p, q + at, q_stride, kt, s.D, rows);
        product(ds, dout + at, q_stride, vt, s.D, rows);
        gradient_rows<false>(s.score, p, ds, s.sigmoid() ? minus_bias : lse + stat, delta + stat, scale, rows);
        accumulate(dv_acc, p, dout + at, q_stride, s.D, rows, span);
        accumulate(dk_acc, ds, q + at, q_stride, s.D, rows, span);
      });
    unpack(dk + key, kv_stride, dk_acc, count, s.D, scales);
    unpack(dv + key, kv_stride, dv_acc, count, s.D, ones);
  }
}

}  // namespace gated
