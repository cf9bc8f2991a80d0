// attention_bf16 on the CPU: the bits of kernels/bf16/attention_bf16.cu, with `lanes` sums of a product side by side in
// a vector.
//
// An instruction of a tensor core on vectors (core/mma_lanes.h) wants rows of its left factor and panels of its right
// one as floats beside their exponents. A tile of 64 tokens is turned into what its products need:
//
//   product            left factor, rows of            right factor, panels of
//   scores = q k^T     q, along d                      k, a key a lane, along d
//   dp = do v^T        do, along d                     v, a key a lane, along d
//   o += P v           P, along keys                   v, a d a lane, along keys
//   dq += dS k         dS, along keys                  k, a d a lane, along keys
//   dv += P^T do       P^T, along queries              do, a d a lane, along queries
//   dk += dS^T q       dS^T, along queries             q, a d a lane, along queries
//
// Every product is 64 x 64 or 64 x D, so one function serves all (core/mma_product_cpu.h). Turning a tile costs as much
// as a few of its 64 rows' products.
//
// Threads of the forward take tiles of 64 queries. In backward a thread owns a kv head of a sequence and makes p and ds
// of a tile once for all three gradients, 5 products; where there are too few heads for the threads, backward walks
// twice, over tiles of queries for dq and over tiles of keys for dk and dv, 7 products.
// tests/test_attention_bf16.cpp
#include "kernels/cpu/attention_bf16_cpu.h"

namespace gated {
namespace attention_bf16_cpu {

// ---- rows of weights: plain loops, which vectorise once short_exp2 is inlined: so gnu::flatten, and a constant score

template <AttentionScore score>
[[gnu::flatten]] static Rescale softmax_row_of(float* c, float& m, float scale, float bias, Seen seen) {
  std::fill(c, c + seen.begin, -INFINITY);
  std::fill(c + seen.end, c + block, -INFINITY);
  float base = -bias, alpha = 1;
  if (score == AttentionScore::softmax) {
    float largest[lanes];
    for (size_t n = 0; n < lanes; n++) largest[n] = c[n];
    for (size_t n = lanes; n < block; n += lanes)
      for (size_t i = 0; i < lanes; i++) largest[i] = max_of(c[n + i], largest[i]);
    for (size_t n = 1; n < lanes; n++) largest[0] = max_of(largest[n], largest[0]);
    const float before = m;
    m = max_of(largest[0] * scale, before);
    base = finite_max(m);
    alpha = short_exp2(before - base);
  }
  for (size_t n = 0; n < block; n++) c[n] = weight_of(score, c[n], scale, base);
  float added[8] = {};
  for (size_t n = 0; n < block; n += 8)
    for (size_t i = 0; i < 8; i++) added[i] = added[i] + c[n + i];
  for (size_t n = 0; n < block; n++) c[n] = bf16(c[n]);
  return {alpha, sum_of_eight(added)};
}

Rescale softmax_row(AttentionScore score, float* c, float& m, float scale, float bias, Seen seen) {
  const auto of = score == AttentionScore::softmax ? softmax_row_of<AttentionScore::softmax>
                                                   : softmax_row_of<AttentionScore::sigmoid>;
  return of(c, m, scale, bias, seen);
}

template <AttentionScore score>
[[gnu::flatten]] static void gradient_row_of(float* c, float* dp, float scale, float base, float delta, Seen seen) {
  for (size_t n = 0; n < block; n++) {
    const float p = weight_of(score, c[n], scale, base);
    c[n] = bf16(p);
    dp[n] = bf16(gradient_of(score, p, dp[n], delta));
  }
  for (float* x : {c, dp}) {
    std::fill(x, x + seen.begin, 0.0f);
    std::fill(x + seen.end, x + block, 0.0f);
  }
}

// Of a query: sums over d become weights p, and dp becomes ds, both rounded.
static void gradient_row(AttentionScore score, float* c, float* dp, float scale, float base, float delta, Seen seen) {
  const auto of = score == AttentionScore::softmax ? gradient_row_of<AttentionScore::softmax>
                                                   : gradient_row_of<AttentionScore::sigmoid>;
  of(c, dp, scale, base, delta, seen);
}

// ---- forward

struct Forward {
  bf16* o;
  float* lse;
  const bf16 *q, *k, *v;
  const AttentionShape& s;
  const Sink& sink;
  MmaArithmetic arithmetic;
  float scale;
};

// o and lse of queries i0 .. i0 + 63 of a head.
static void forward_queries(const Forward& a, const ForwardMemory& w, size_t b, size_t h, size_t i0) {
  const AttentionShape& s = a.s;
  const size_t count = std::min(block, s.T - i0), D = s.D;
  widen_rows(w.wide, a.q + s.q_row(b, i0, h), s.q_step(), count, D);
  make_rows(w.queries, w.wide, D);
  float m[block], l[block];
  for (size_t r = 0; r < block; r++) {
    m[r] = first_max(a.sink, s, b, h, i0 + r);
    l[r] = a.sink.logit ? 1.0f : 0.0f;
    for (size_t d = 0; d < D; d++) w.sum[r * D + d] = a.sink.value ? a.sink.value[h * D + d] : 0.0f;
  }
  const size_t kv_head = h / s.group();
  const auto row_of = [&](const bf16* x) {
    return [&s, x, b, kv_head](size_t j) { return j < s.T ? x + s.kv_row(b, j, kv_head) : nullptr; };
  };
  walk_tiles(a.arithmetic, s.score, w, m, l, count, D, first_tile(s, i0), i0, a.scale, s.bias, row_of(a.k), row_of(a.v),
             [&](size_t r, size_t j0) { return Seen(s, i0 + r, j0); });
  for (size_t r = 0; r < count; r++) {
    a.lse[s.stat(b, h, i0 + r)] = s.sigmoid() ? 0.0f : lse_of(m[r], l[r]);
    store_rows(a.o + s.q_row(b, i0 + r, h), 0, w.sum + r * D, 1, D, s.sigmoid() ? 1.0f : 1.0f / l[r]);
  }
}

static void forward(const Forward& a, unsigned char* scratch) {
  const size_t tiles = ceil_div(a.s.T, block);
  // Tiles with the most keys first within a head.
#pragma omp parallel for schedule(dynamic)
  for (size_t n = 0; n < a.s.B * a.s.H * tiles; n++)
    forward_queries(a, memory_of_thread<ForwardMemory>(scratch, a.s.D), n / tiles / a.s.H, n / tiles % a.s.H,
                    (tiles - 1 - n % tiles) * block);
}

// ---- backward

struct Gradients {
  bf16 *dq, *dk, *dv;
  float *sink_p, *sink_ds;
  const bf16 *dout, *q, *k, *v, *o;
  const float* lse;
  const AttentionShape& s;
  const Sink& sink;
  MmaArithmetic arithmetic;
  float scale;
};

struct BackwardMemory {
  float *wide, *score, *dp, *transposed, *dq_sum, *dk_sum, *dv_sum;
  float *base, *delta;  // of 64 queries
  MmaRow *queries, *douts, *weights;
  MmaPanel *keys_by_d, *values_by_d, *keys, *query_panels, *dout_panels;

  // dk_sum and dv_sum are of so many keys.
  BackwardMemory(Pieces& pieces, size_t D, size_t keys_of_sums)
      : wide(pieces.take<float>(block * D)),
        score(pieces.take<float>(block * block)),
        dp(pieces.take<float>(block * block)),
        transposed(pieces.take<float>(block * block)),
        dq_sum(pieces.take<float>(block * D)),
        dk_sum(pieces.take<float>(keys_of_sums * D)),
        dv_sum(pieces.take<float>(keys_of_sums * D)),
        base(pieces.take<float>(block)),
        delta(pieces.take<float>(block)),
        queries(pieces.take<MmaRow>(block * D / mma_depth)),
        douts(pieces.take<MmaRow>(block * D / mma_depth)),
        weights(pieces.take<MmaRow>(block * depth_of_block)),
        keys_by_d(pieces.take<MmaPanel>(block / lanes * D / mma_depth)),
        values_by_d(pieces.take<MmaPanel>(block / lanes * D / mma_depth)),
        keys(pieces.take<MmaPanel>(D / lanes * depth_of_block)),
        query_panels(pieces.take<MmaPanel>(D / lanes * depth_of_block)),
        dout_panels(pieces.take<MmaPanel>(D / lanes * depth_of_block)) {}
};

// The factors that queries i0 .. i0 + 63 of a head are, and their base and delta. Returns how many there are.
static size_t load_queries(const Gradients& a, const BackwardMemory& w, size_t b, size_t h, size_t i0) {
  const AttentionShape& s = a.s;
  const size_t count = std::min(block, s.T - i0), D = s.D;
  widen_rows(w.wide, a.q + s.q_row(b, i0, h), s.q_step(), count, D);
  make_rows(w.queries, w.wide, D);
  make_panels_of_columns(w.query_panels, w.wide, D);
  widen_rows(w.wide, a.dout + s.q_row(b, i0, h), s.q_step(), count, D);
  make_rows(w.douts, w.wide, D);
  make_panels_of_columns(w.dout_panels, w.wide, D);
  for (size_t r = 0; r < count; r++) {
    const size_t row = s.q_row(b, i0 + r, h);
    w.base[r] = weight_base(s, a.lse, b, h, i0 + r);
    w.delta[r] = s.sigmoid() ? 0.0f : row_dot(a.dout + row, a.o + row, D);
  }
  return count;
}

// The factors that keys j0 .. j0 + 63 are, and their values.
static void load_keys(const Gradients& a, const BackwardMemory& w, size_t b, size_t kv_head, size_t j0) {
  const AttentionShape& s = a.s;
  const size_t count = std::min(block, s.T - j0), row = s.kv_row(b, j0, kv_head);
  widen_rows(w.wide, a.k + row, s.kv_step(), count, s.D);
  make_panels_of_rows(w.keys_by_d, w.wide, s.D);
  make_panels_of_columns(w.keys, w.wide, s.D);
  widen_rows(w.wide, a.v + row, s.kv_step(), count, s.D);
  make_panels_of_rows(w.values_by_d, w.wide, s.D);
}

// score becomes P and dp becomes dS of the tile that is loaded; 0 after the last query.
static void weights_of_tile(const Gradients& a, const BackwardMemory& w, size_t i0, size_t j0, size_t count) {
  const size_t steps = a.s.D / mma_depth;
  mma_product(a.arithmetic, Chains::begin, w.score, count, block, w.queries, w.keys_by_d, steps);
  mma_product(a.arithmetic, Chains::begin, w.dp, count, block, w.douts, w.values_by_d, steps);
  for (size_t r = 0; r < count; r++)
    gradient_row(a.s.score, w.score + r * block, w.dp + r * block, for_weights(a.s.score, a.scale), w.base[r],
                 w.delta[r], Seen(a.s, i0 + r, j0));
  for (float* x : {w.score, w.dp}) std::fill(x + count * block, x + block * block, 0.0f);
}

static void add_dq(const Gradients& a, const BackwardMemory& w, size_t count) {
  make_rows(w.weights, w.dp, block);
  mma_product(a.arithmetic, Chains::go_on, w.dq_sum, count, a.s.D, w.weights, w.keys, depth_of_block);
}

static void add_dkdv(const Gradients& a, const BackwardMemory& w, float* dk_sum, float* dv_sum) {
  transpose(w.transposed, w.score, block, block);
  make_rows(w.weights, w.transposed, block);
  mma_product(a.arithmetic, Chains::go_on, dv_sum, block, a.s.D, w.weights, w.dout_panels, depth_of_block);
  transpose(w.transposed, w.dp, block, block);
  make_rows(w.weights, w.transposed, block);
  mma_product(a.arithmetic, Chains::go_on, dk_sum, block, a.s.D, w.weights, w.query_panels, depth_of_block);
}

// What a sink takes from the queries that are loaded, and what it begins their dq with.
static void begin_dq(const Gradients& a, const BackwardMemory& w, size_t b, size_t h, size_t i0, size_t count) {
  const AttentionShape& s = a.s;
  for (size_t r = 0; r < block; r++) {
    float ds = 0;
    if (a.sink.logit && r < count) {
      const size_t stat = s.stat(b, h, i0 + r);
      const float p = exact_exp(a.sink.logit_of(s, b, h, i0 + r) - a.lse[stat]);
      const float dp = a.sink.value ? row_dot(a.dout + s.q_row(b, i0 + r, h), a.sink.value + h * s.D, s.D) : 0.0f;
      ds = p * (dp - w.delta[r]);
      a.sink_p[stat] = p;
      a.sink_ds[stat] = ds;
    }
    for (size_t d = 0; d < s.D; d++)
      w.dq_sum[r * s.D + d] = a.sink.key ? fused(ds, a.sink.key[h * s.D + d], 0.0f) : 0.0f;
  }
}

// dq of queries i0 .. i0 + 63 of a head. With keys_too they join the chains of dk and dv, which are those of all keys.
static void backward_queries(const Gradients& a, const BackwardMemory& w, size_t b, size_t h, size_t i0,
                             bool keys_too) {
  const AttentionShape& s = a.s;
  const size_t count = load_queries(a, w, b, h, i0);
  begin_dq(a, w, b, h, i0, count);
  for (size_t j0 = first_tile(s, i0); j0 <= i0; j0 += block) {
    load_keys(a, w, b, h / s.group(), j0);
    weights_of_tile(a, w, i0, j0, count);
    add_dq(a, w, count);
    if (keys_too) add_dkdv(a, w, w.dk_sum + j0 * s.D, w.dv_sum + j0 * s.D);
  }
  store_rows(a.dq + s.q_row(b, i0, h), s.q_step(), w.dq_sum, count, s.D, a.scale);
}

static void store_keys(const Gradients& a, const BackwardMemory& w, size_t b, size_t kv_head, size_t j0, size_t count) {
  const size_t row = a.s.kv_row(b, j0, kv_head);
  store_rows(a.dk + row, a.s.kv_step(), w.dk_sum, count, a.s.D, a.scale);
  store_rows(a.dv + row, a.s.kv_step(), w.dv_sum, count, a.s.D, 1.0f);
}

static void backward_one_walk(const Gradients& a, unsigned char* scratch) {
  const AttentionShape& s = a.s;
  const size_t keys = round_up(s.T, block);
#pragma omp parallel for schedule(dynamic)
  for (size_t n = 0; n < s.B * s.KVH; n++) {
    const auto w = memory_of_thread<BackwardMemory>(scratch, s.D, keys);
    const size_t b = n / s.KVH, kv_head = n % s.KVH;
    for (float* sum : {w.dk_sum, w.dv_sum}) std::fill_n(sum, keys * s.D, 0.0f);
    for (size_t h = kv_head * s.group(); h < (kv_head + 1) * s.group(); h++)
      for (size_t i0 = 0; i0 < s.T; i0 += block) backward_queries(a, w, b, h, i0, true);
    store_keys(a, w, b, kv_head, 0, s.T);
  }
}

static void backward_two_walks(const Gradients& a, unsigned char* scratch) {
  const AttentionShape& s = a.s;
  const size_t tiles = ceil_div(s.T, block);
  // Tiles with the most rows first within a head.
#pragma omp parallel for schedule(dynamic)
  for (size_t n = 0; n < s.B * s.H * tiles; n++)
    backward_queries(a, memory_of_thread<BackwardMemory>(scratch, s.D, block), n / tiles / s.H, n / tiles % s.H,
                     (tiles - 1 - n % tiles) * block, false);
#pragma omp parallel for schedule(dynamic)
  for (size_t n = 0; n < s.B * s.KVH * tiles; n++) {
    const auto w = memory_of_thread<BackwardMemory>(scratch, s.D, block);
    const size_t b = n / tiles / s.KVH, kv_head = n / tiles % s.KVH, j0 = n % tiles * block;
    for (float* sum : {w.dk_sum, w.dv_sum}) std::fill_n(sum, block * s.D, 0.0f);
    load_keys(a, w, b, kv_head, j0);
    for (size_t h = kv_head * s.group(); h < (kv_head + 1) * s.group(); h++)
      for (size_t i0 = j0; i0 < end_of_queries(s, j0); i0 += block) {
        const size_t count = load_queries(a, w, b, h, i0);
        weights_of_tile(a, w, i0, j0, count);
        add_dkdv(a, w, w.dk_sum, w.dv_sum);
      }
    store_keys(a, w, b, kv_head, j0, std::min(block, s.T - j0));
  }
}

}  // namespace attention_bf16_cpu

size_t attention_bf16_forward_cpu_scratch(const AttentionShape& s) {
  return bytes_for_threads<attention_bf16_cpu::ForwardMemory>(s.D);
}

void attention_bf16_forward_cpu(bf16* o, float* lse, const bf16* q, const bf16* k, const bf16* v,
                                const AttentionShape& s, const Sink& sink, Context& ctx) {
  using namespace attention_bf16_cpu;
  unsigned char* const scratch = ctx.scratch<unsigned char>(attention_bf16_forward_cpu_scratch(s));
  const Forward a{o, lse, q, k, v, s, sink, ctx.mma_arithmetic, weight_scale(s)};
  forward(a, scratch);
}

size_t attention_bf16_backward_cpu_scratch(const AttentionShape& s) {
  using namespace attention_bf16_cpu;
  const size_t keys = attention_cpu::kv_heads_fill_threads(s) ? round_up(s.T, block) : block;
  return bytes_for_threads<BackwardMemory>(s.D, keys);
}

void attention_bf16_backward_cpu(bf16* dq, bf16* dk, bf16* dv, float* sink_p, float* sink_ds, const bf16* dout,
                                 const bf16* q, const bf16* k, const bf16* v, const bf16* o, const float* lse,
                                 const AttentionShape& s, const Sink& sink, Context& ctx) {
  using namespace attention_bf16_cpu;
  unsigned char* const scratch = ctx.scratch<unsigned char>(attention_bf16_backward_cpu_scratch(s));
  const float scale = attention_scale<float>(s.divisor());
  const Gradients a{dq, dk, dv, sink_p, sink_ds, dout, q, k, v, o, lse, s, sink, ctx.mma_arithmetic, scale};
  if (attention_cpu::kv_heads_fill_threads(s))
    backward_one_walk(a, scratch);
  else
    backward_two_walks(a, scratch);
}

}  // namespace gated
