// attention_cpu: the attention of kernels/attention.cu on a CPU, near the speed of its matrix products, with the same
// bits.
//
// The rows of 64 queries lie across vector lanes, packed transposed: every lane has a query of its own, and so chains
// of its own. Keys and values stream past in the layout they have, one number broadcast to all lanes at a time:
//   product      out[key][lane] = chain over d of a[key][d] * bt[d][lane]        scores and dp
//   accumulate   acc[d][lane]   = chain over keys of w[key][lane] * x[key][d]    o and dq
// In backward, where the keys have sums too, their elements d lie across the lanes:
//   gather       sum[key][d]    = chain over lanes of w[key][lane] * x[lane][d]  dk and dv
// Each holds 4 rows (or d) times `held` vectors of sums in registers. A lane that does not see a row keeps its sum by
// selection, so the links of every chain, and their order, are those of the references.
//
// What differs from the kernels is how often scores are computed. Forward keeps those of its 64 queries in a buffer,
// so the maximum and the sums are made from the same ones: 2 products a pair instead of 3.
// Backward makes p and ds of a tile once for all three gradients: 5 products a pair instead of 7. For that, one thread
// walks over the heads of a group, the queries of a head and the keys of a query, all in ascending order: dq_i meets
// its keys and dk_j and dv_j meet their queries as their chains ask. So a thread owns a whole kv head of a sequence,
// and where there are too few of them for the threads, backward walks twice, over queries for dq and over keys for dk
// and dv (there the rows of keys lie across the lanes, and queries stream past).
//
// Scratch for each thread: forward 64 x (min(T, W + 64) + 2D) floats, backward 64 x (128 + 5D) with D rounded up
// to whole vectors.
// tests/test_attention.cpp
#include <omp.h>

#include <algorithm>
#include <type_traits>

#include "core/pieces.h"
#include "core/simd.h"
#include "kernels/attention.h"

namespace gated {
namespace attention_cpu {

constexpr size_t tile = 64;                    // lanes
constexpr size_t chunk = 16;                   // rows at a time where not every lane sees every row
constexpr size_t held = vector_registers / 8;  // vectors of sums in registers, for each of 4 rows

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

// Which lanes see key j, where queries lie across them from i0 on.
struct QueriesOfKey {
  const AttentionShape& s;
  size_t i0;
  Span operator()(size_t j) const { return Span(j, s.end_query(j), i0); }
};
// Which lanes see query i, where keys lie across them from j0 on.
struct KeysOfQuery {
  const AttentionShape& s;
  size_t j0;
  Span operator()(size_t i) const { return Span(s.first_key(i), i + 1, j0); }
};

// n rows from `row`, seen by lanes of the vectors [v0, v1) only; all_seen: by every lane that is in use.
struct Rows {
  size_t row, n, v0, v1;
  bool all_seen;
};

// Calls body(Rows) over rows [begin, end) in ascending order: as many as there are lanes where all is visible, which is
// all but the diagonal, and there a few at a time, so that vectors nobody needs are left out. span(row) never moves
// down as rows go up, so the first row has the lowest lane and the last row the highest. `count` lanes are in use.
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
static vec fma_where(uint64_t bits, vec a, vec b, vec c) {
#if defined(__AVX512F__)
  return (vec)_mm512_mask3_fmadd_ps((__m512)a, (__m512)b, (__m512)c, __mmask16(bits));
#else
  decltype(a < b) bit;
  for (size_t l = 0; l < lanes; l++) bit[l] = 1 << l;
  return (bit & int(bits & 0xffff)) != 0 ? fma(a, b, c) : c;
#endif
}

// ---- the products

// R rows times V vectors of lanes: sums stay in registers over the whole of D, so each chain starts at +0 here.
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
    for (size_t v = 0; v < V; v++) b[v] = load_once(bt + d * tile + v * lanes);
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
static void product(float* out, const float* a, size_t stride, const float* bt, size_t D, const Rows& rows) {
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
    for (size_t v = 0; v < V; v++) p[v] = load_once(w + r * tile + v * lanes);
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
      // (Beside the diagonal there are lanes that see all of these rows.)
      const size_t l = v * lanes;
      if (rows.all_seen || (span(rows.row + rows.n - 1).lo <= l && span(rows.row).hi >= l + V * lanes))
        over_columns(V, std::true_type(), l);
      else
        over_columns(V, std::false_type(), l);
    });
}

// R rows times V vectors of their elements, over lanes [lo, hi). Chains go on from sum, where the lanes before left
// them. n elements of a row are left; x has rows of whole vectors.
template <size_t R, size_t V>
void gather_block(float* sum, size_t stride, const float* w, const float* x, size_t x_stride, size_t lo, size_t hi,
                  size_t n) {
  vec total[R][V];
#pragma GCC unroll 4
  for (size_t r = 0; r < R; r++)
#pragma GCC unroll 4
    for (size_t v = 0; v < V; v++) total[r][v] = load_first(sum + r * stride + v * lanes, n - v * lanes);
  for (size_t lane = lo; lane < hi; lane++) {
    vec y[V];
#pragma GCC unroll 4
    for (size_t v = 0; v < V; v++) y[v] = load_once(x + lane * x_stride + v * lanes);
#pragma GCC unroll 4
    for (size_t r = 0; r < R; r++) {
      const vec p = broadcast(w[r * tile + lane]);
#pragma GCC unroll 4
      for (size_t v = 0; v < V; v++) total[r][v] = fma(p, y[v], total[r][v]);
    }
  }
#pragma GCC unroll 4
  for (size_t r = 0; r < R; r++)
#pragma GCC unroll 4
    for (size_t v = 0; v < V; v++) store_first(sum + r * stride + v * lanes, total[r][v], n - v * lanes);
}

// sum and w begin at the first of the rows. Rows go four at a time over the lanes that all four see; the lanes before
// and after them, on the diagonal and at the end of a window, go row by row.
static void gather(float* sum, size_t stride, const float* w, const float* x, size_t x_stride, size_t D, size_t count,
                   const Rows& rows, QueriesOfKey span) {
  for (size_t d = 0; d < D; d += held * lanes)
    with_constant<held>(std::min(held, ceil_div(D - d, lanes)), [&](auto V) {
      auto one = [&](size_t r, size_t lo, size_t hi) {
        if (lo < hi) gather_block<1, V>(sum + r * stride + d, stride, w + r * tile, x + d, x_stride, lo, hi, D - d);
      };
      for (size_t r = 0; r < rows.n; r += 4) {
        const size_t end = std::min(r + 4, rows.n);
        const size_t lo = span(rows.row + end - 1).lo, hi = std::min(span(rows.row + r).hi, count);
        const bool together = end == r + 4 && lo < hi;
        for (size_t i = r; i < end; i++) {
          const Span seen = span(rows.row + i);
          one(i, seen.lo, together ? lo : std::min(seen.hi, count));
        }
        if (!together) continue;
        gather_block<4, V>(sum + r * stride + d, stride, w + r * tile, x + d, x_stride, lo, hi, D - d);
        for (size_t i = r; i < end; i++) one(i, hi, std::min(span(rows.row + i).hi, count));
      }
    });
}

// ---- packing

// to[d][lane] = x[lane][d]; 0 in lanes from `count` on.
[[gnu::flatten]] static void pack(float* to, const float* x, size_t stride, size_t count, size_t D) {
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

// to[lane][d] = x[lane][d] with rows of `width` elements, whole vectors; 0 from D on.
static void pad_rows(float* to, size_t width, const float* x, size_t stride, size_t count, size_t D) {
  for (size_t l = 0; l < count; l++) {
    std::copy_n(x + l * stride, D, to + l * width);
    std::fill_n(to + l * width + D, width - D, 0.0f);
  }
}

// Asks for the rows that unpack will write: they lie a token apart, where no hardware prefetcher looks.
static void prefetch_rows(const float* x, size_t stride, size_t count, size_t D) {
  for (size_t l = 0; l < count; l++) prefetch_row(x + l * stride, D);
}

// x[lane][d] = acc[d][lane] * factor[lane]
[[gnu::flatten]] static void unpack(float* x, size_t stride, const float* acc, size_t count, size_t D,
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
// Plain loops over lanes, which vectorise once exp_to_40 is inlined: hence gnu::flatten, and a constant score.

template <AttentionScore score>
float weight_of(float x) {
  return score == AttentionScore::softmax ? exp_to_40(x) : exact_sigmoid(x);
}

// m = max of the scores each lane sees.
static void max_rows(float* m, const float* score, float scale, const Rows& rows, QueriesOfKey span) {
  for (size_t r = 0; r < rows.n; r++) {
    const Span seen = span(rows.row + r);
    for (size_t lane = seen.lo; lane < seen.hi; lane++) m[lane] = max_of(score[r * tile + lane] * scale, m[lane]);
  }
}

template <AttentionScore kind>
[[gnu::flatten]] static void p_rows_of(float* l, float* score, const float* m, float scale, const Rows& rows,
                                       QueriesOfKey span) {
  const size_t begin = rows.v0 * lanes, end = rows.v1 * lanes;
  for (size_t r = 0; r < rows.n; r++) {
    float* const p = score + r * tile;
    for (size_t lane = begin; lane < end; lane++) p[lane] = weight_of<kind>(p[lane] * scale - m[lane]);
    if (!rows.all_seen) {
      const Span seen = span(rows.row + r);
      for (size_t lane = begin; lane < seen.lo; lane++) p[lane] = 0.0f;
      for (size_t lane = seen.hi; lane < end; lane++) p[lane] = 0.0f;
    }
    for (size_t lane = begin; lane < end; lane++) l[lane] = l[lane] + p[lane];
  }
}

// Scores become p, which l adds up. Where a lane does not see a row p is 0: the sum, never below +0, keeps its bits.
static void p_rows(AttentionScore kind, float* l, float* score, const float* m, float scale, const Rows& rows,
                   QueriesOfKey span) {
  const auto of =
      kind == AttentionScore::softmax ? p_rows_of<AttentionScore::softmax> : p_rows_of<AttentionScore::sigmoid>;
  of(l, score, m, scale, rows, span);
}

template <AttentionScore kind, bool lanes_are_queries>
[[gnu::flatten]] static void gradient_rows_of(float* score, float* dp, const float* lse, const float* delta,
                                              float scale, const Rows& rows) {
  for (size_t r = 0; r < rows.n; r++) {
    float *const p = score + r * tile, *const ds = dp + r * tile;
    for (size_t lane = rows.v0 * lanes; lane < rows.v1 * lanes; lane++) {
      const size_t i = lanes_are_queries ? lane : r;
      p[lane] = weight_of<kind>(p[lane] * scale - lse[i]);
      const float slope = kind == AttentionScore::softmax ? p[lane] : p[lane] * (1.0f - p[lane]);
      ds[lane] = slope * (ds[lane] - delta[i]);
    }
  }
}

// Scores become p, dp becomes ds. Lanes are queries and have their own lse and delta, or rows are and have theirs.
template <bool lanes_are_queries>
static void gradient_rows(AttentionScore kind, float* score, float* dp, const float* lse, const float* delta,
                          float scale, const Rows& rows) {
  const auto of = kind == AttentionScore::softmax ? gradient_rows_of<AttentionScore::softmax, lanes_are_queries>
                                                  : gradient_rows_of<AttentionScore::sigmoid, lanes_are_queries>;
  of(score, dp, lse, delta, scale, rows);
}

// ---- the sink

// logit[lane] of the queries i0 + lane, -inf in lanes without one.
static void logit_lanes(float* logit, const Sink& sink, const AttentionShape& s, size_t b, size_t h, size_t i0) {
  for (size_t lane = 0; lane < tile; lane++) logit[lane] = sink.logit_of(s, b, h, i0 + lane);
}

// acc[d][lane] = fused(w[lane], x[d], +0), +0 without x: where chains over keys begin.
[[gnu::flatten]] static void begin_chains(float* acc, const float* w, const float* x, size_t D) {
  std::fill_n(acc, D * tile, 0.0f);
  if (!x) return;
  for (size_t d = 0; d < D; d++)
    for (size_t lane = 0; lane < tile; lane++) acc[d * tile + lane] = fused(w[lane], x[d], acc[d * tile + lane]);
}

// The chain over d of xt[d][lane] * yt[d][lane] of each lane.
[[gnu::flatten]] static void dot_lanes(float* out, const float* xt, const float* yt, size_t D) {
  std::fill_n(out, tile, 0.0f);
  for (size_t d = 0; d < D; d++)
    for (size_t lane = 0; lane < tile; lane++) out[lane] = fused(xt[d * tile + lane], yt[d * tile + lane], out[lane]);
}

// ---- forward: threads take tiles of 64 queries

static size_t forward_floats_a_thread(const AttentionShape& s) {
  return (2 * s.D + std::min(s.T, s.reach() + tile)) * tile;
}

// ---- backward

struct Backward {
  float *dq, *dk, *dv, *sink_p, *sink_ds;
  const float *dout, *q, *k, *v, *o, *lse;
  const AttentionShape& s;
  const Sink& sink;
  float scale;
};

// The scratch of a thread.
struct Workspace {
  float *qt, *dot, *acc;      // packed [d][lane]: q, dout, and the sums of dq
  float *q_rows, *dout_rows;  // [lane][d], rows of whole vectors
  float *p, *ds;              // [row][lane]
  size_t width;

  Workspace(Pieces& pieces, size_t D) : width(round_up(D, lanes)) {
    for (float** x : {&qt, &dot, &acc, &q_rows, &dout_rows}) *x = pieces.take<float>(tile * width);
    for (float** x : {&p, &ds}) *x = pieces.take<float>(tile * tile);
  }
};

// dq of queries i0 .. i0 + 63 of head h, one a lane, and what the sink takes from them. delta[lane] is written. With
// keys_too these queries join the chains of dk and dv as well.
static void backward_queries(const Backward& a, const Workspace& w, float* delta, size_t b, size_t h, size_t i0,
                             bool keys_too) {
  const AttentionShape& s = a.s;
  const size_t count = std::min(tile, s.T - i0), q_step = s.q_step(), kv_step = s.kv_step();
  const size_t query = s.q_row(b, i0, h), key = s.kv_row(b, 0, h / s.group());
  pack(w.qt, a.q + query, q_step, count, s.D);
  pack(w.dot, a.dout + query, q_step, count, s.D);
  if (keys_too) {
    pad_rows(w.q_rows, w.width, a.q + query, q_step, count, s.D);
    pad_rows(w.dout_rows, w.width, a.dout + query, q_step, count, s.D);
  }
  prefetch_rows(a.dq + query, q_step, count, s.D);

  float lse[tile] = {}, sink_ds[tile] = {};
  std::fill_n(delta, tile, 0.0f);
  if (s.sigmoid()) {
    std::fill_n(lse, tile, -s.bias);
  } else {
    std::copy_n(a.lse + s.stat(b, h, i0), count, lse);
    pack(w.acc, a.o + query, q_step, count, s.D);
    dot_lanes(delta, w.dot, w.acc, s.D);
  }
  if (a.sink.logit) {
    float p[tile];
    logit_lanes(p, a.sink, s, b, h, i0);
    if (a.sink.value) product(sink_ds, a.sink.value + h * s.D, s.D, w.dot, s.D, {0, 1, 0, tile / lanes, true});
    for (size_t lane = 0; lane < tile; lane++) {
      p[lane] = exp_to_40(p[lane] - lse[lane]);
      sink_ds[lane] = p[lane] * (sink_ds[lane] - delta[lane]);
    }
    std::copy_n(p, count, a.sink_p + s.stat(b, h, i0));
    std::copy_n(sink_ds, count, a.sink_ds + s.stat(b, h, i0));
  }
  begin_chains(w.acc, sink_ds, a.sink.key ? a.sink.key + h * s.D : nullptr, s.D);

  const QueriesOfKey span = {s, i0};
  for_rows(s.first_key(i0), i0 + count, count, span, [&](const Rows& rows) {
    const size_t at = key + rows.row * kv_step;
    product(w.p, a.k + at, kv_step, w.qt, s.D, rows);
    product(w.ds, a.v + at, kv_step, w.dot, s.D, rows);
    gradient_rows<true>(s.score, w.p, w.ds, lse, delta, a.scale, rows);
    accumulate(w.acc, w.ds, a.k + at, kv_step, s.D, rows, span);
    if (keys_too) {
      gather(a.dv + at, kv_step, w.p, w.dout_rows, w.width, s.D, count, rows, span);
      gather(a.dk + at, kv_step, w.ds, w.q_rows, w.width, s.D, count, rows, span);
    }
  });
  float scales[tile];
  std::fill_n(scales, tile, a.scale);
  unpack(a.dq + query, q_step, w.acc, count, s.D, scales);
}

// dk and dv of keys j0 .. j0 + 63 of a kv head, one a lane. delta (B,H,T) is there.
static void backward_keys(const Backward& a, const Workspace& w, const float* delta, size_t b, size_t kv_head,
                          size_t j0) {
  const AttentionShape& s = a.s;
  const size_t count = std::min(tile, s.T - j0), q_step = s.q_step(), kv_step = s.kv_step();
  const size_t key = s.kv_row(b, j0, kv_head);
  float *const kt = w.qt, *const vt = w.dot, *const dk_acc = w.acc, *const dv_acc = w.q_rows;
  pack(kt, a.k + key, kv_step, count, s.D);
  pack(vt, a.v + key, kv_step, count, s.D);
  prefetch_rows(a.dk + key, kv_step, count, s.D);
  prefetch_rows(a.dv + key, kv_step, count, s.D);
  std::fill_n(dk_acc, s.D * tile, 0.0f);
  std::fill_n(dv_acc, s.D * tile, 0.0f);
  float scales[tile], ones[tile], minus_bias[tile];
  std::fill_n(scales, tile, a.scale);
  std::fill_n(ones, tile, 1.0f);
  std::fill_n(minus_bias, tile, -s.bias);

  const KeysOfQuery span = {s, j0};
  for (size_t h = kv_head * s.group(); h < (kv_head + 1) * s.group(); h++)
    for_rows(j0, s.end_query(j0 + count - 1), count, span, [&](const Rows& rows) {
      const float *const q = a.q + s.q_row(b, rows.row, h), *const dout = a.dout + s.q_row(b, rows.row, h);
      const size_t stat = s.stat(b, h, rows.row);
      product(w.p, q, q_step, kt, s.D, rows);
      product(w.ds, dout, q_step, vt, s.D, rows);
      gradient_rows<false>(s.score, w.p, w.ds, s.sigmoid() ? minus_bias : a.lse + stat, delta + stat, a.scale, rows);
      accumulate(dv_acc, w.p, dout, q_step, s.D, rows, span);
      accumulate(dk_acc, w.ds, q, q_step, s.D, rows, span);
    });
  unpack(a.dk + key, kv_step, dk_acc, count, s.D, scales);
  unpack(a.dv + key, kv_step, dv_acc, count, s.D, ones);
}

bool kv_heads_fill_threads(const AttentionShape& s) {
  const size_t heads = s.B * s.KVH, threads = omp_get_max_threads();
  return 5 * round_up(heads, threads) <= 7 * heads;
}

static void backward_one_walk(const Backward& a, unsigned char* scratch) {
  const AttentionShape& s = a.s;
#pragma omp parallel for schedule(dynamic)
  for (size_t n = 0; n < s.B * s.KVH; n++) {
    const auto w = memory_of_thread<Workspace>(scratch, s.D);
    const size_t b = n / s.KVH, kv_head = n % s.KVH, key = s.kv_row(b, 0, kv_head);
    for (size_t j = 0; j < s.T; j++) {
      std::fill_n(a.dk + key + j * s.kv_step(), s.D, 0.0f);
      std::fill_n(a.dv + key + j * s.kv_step(), s.D, 0.0f);
    }
    float delta[tile];
    for (size_t h = kv_head * s.group(); h < (kv_head + 1) * s.group(); h++)
      for (size_t i0 = 0; i0 < s.T; i0 += tile) backward_queries(a, w, delta, b, h, i0, true);
    for (size_t j = 0; j < s.T; j++)
      for (size_t d = 0; d < s.D; d++) {
        float& dk = a.dk[key + j * s.kv_step() + d];
        dk = a.scale * dk;
      }
  }
}

static void backward_two_walks(const Backward& a, unsigned char* scratch, float* delta) {
  const AttentionShape& s = a.s;
  const size_t tiles = ceil_div(s.T, tile);
  // Tiles with the most rows first within a head.
#pragma omp parallel for schedule(dynamic)
  for (size_t n = 0; n < s.B * s.H * tiles; n++) {
    const auto w = memory_of_thread<Workspace>(scratch, s.D);
    const size_t b = n / tiles / s.H, h = n / tiles % s.H, i0 = (tiles - 1 - n % tiles) * tile;
    float delta_lane[tile];
    backward_queries(a, w, delta_lane, b, h, i0, false);
    std::copy_n(delta_lane, std::min(tile, s.T - i0), delta + s.stat(b, h, i0));
  }
#pragma omp parallel for schedule(dynamic)
  for (size_t n = 0; n < s.B * s.KVH * tiles; n++) {
    const auto w = memory_of_thread<Workspace>(scratch, s.D);
    backward_keys(a, w, delta, n / tiles / s.KVH, n / tiles % s.KVH, n % tiles * tile);
  }
}

}  // namespace attention_cpu

size_t attention_forward_cpu_scratch(const AttentionShape& s) {
  return attention_cpu::forward_floats_a_thread(s) * omp_get_max_threads() * sizeof(float);
}

void attention_forward_cpu(float* o, float* lse, const float* q, const float* k, const float* v,
                           const AttentionShape& s, const Sink& sink, Context& ctx) {
  using namespace attention_cpu;
  const float scale = attention_scale<float>(s.divisor());
  const size_t tiles = ceil_div(s.T, tile), per_thread = forward_floats_a_thread(s), kv_step = s.kv_step();
  float* const scratch = ctx.scratch(attention_forward_cpu_scratch(s) / sizeof(float));
  // Tiles with the most keys first within a head.
#pragma omp parallel for schedule(dynamic)
  for (size_t n = 0; n < s.B * s.H * tiles; n++) {
    const size_t b = n / tiles / s.H, h = n / tiles % s.H, i0 = (tiles - 1 - n % tiles) * tile;
    const size_t count = std::min(tile, s.T - i0), j0 = s.first_key(i0), key = s.kv_row(b, 0, h / s.group());
    float* const qt = scratch + per_thread * omp_get_thread_num();
    float *const acc = qt + s.D * tile, *const score = acc + s.D * tile;
    float m[tile], l[tile];
    logit_lanes(l, sink, s, b, h, i0);
    std::copy_n(l, tile, m);
    pack(qt, q + s.q_row(b, i0, h), s.q_step(), count, s.D);
    prefetch_rows(o + s.q_row(b, i0, h), s.q_step(), count, s.D);

    const QueriesOfKey span = {s, i0};
    for_rows(j0, i0 + count, count, span, [&](const Rows& rows) {
      float* const out = score + (rows.row - j0) * tile;
      product(out, k + key + rows.row * kv_step, kv_step, qt, s.D, rows);
      if (!s.sigmoid()) max_rows(m, out, scale, rows, span);
    });
    if (s.sigmoid()) std::fill_n(m, tile, -s.bias);
    for (size_t lane = 0; lane < tile; lane++) l[lane] = exp_to_40(l[lane] - m[lane]);
    begin_chains(acc, l, sink.value ? sink.value + h * s.D : nullptr, s.D);
    for_rows(j0, i0 + count, count, span, [&](const Rows& rows) {
      float* const p = score + (rows.row - j0) * tile;
      p_rows(s.score, l, p, m, scale, rows, span);
      accumulate(acc, p, v + key + rows.row * kv_step, kv_step, s.D, rows, span);
    });
    for (size_t lane = 0; lane < count; lane++) {
      lse[s.stat(b, h, i0 + lane)] = s.sigmoid() ? 0.0f : m[lane] + exact_log(l[lane]);
      l[lane] = s.sigmoid() ? 1.0f : 1.0f / l[lane];
    }
    unpack(o + s.q_row(b, i0, h), s.q_step(), acc, count, s.D, l);
  }
}

size_t attention_backward_cpu_scratch(const AttentionShape& s) {
  using namespace attention_cpu;
  const size_t delta = kv_heads_fill_threads(s) ? 0 : s.B * s.H * s.T;
  return bytes_for_threads<Workspace>(s.D) + delta * sizeof(float);
}

void attention_backward_cpu(float* dq, float* dk, float* dv, float* sink_p, float* sink_ds, const float* dout,
                            const float* q, const float* k, const float* v, const float* o, const float* lse,
                            const AttentionShape& s, const Sink& sink, Context& ctx) {
  using namespace attention_cpu;
  const Backward a{dq, dk, dv, sink_p, sink_ds, dout, q, k, v, o, lse, s, sink, attention_scale<float>(s.divisor())};
  unsigned char* const scratch = ctx.scratch<unsigned char>(attention_backward_cpu_scratch(s));
  float* const delta = reinterpret_cast<float*>(scratch + bytes_for_threads<Workspace>(s.D));
  if (kv_heads_fill_threads(s))
    backward_one_walk(a, scratch);
  else
    backward_two_walks(a, scratch, delta);
}

}  // namespace gated
