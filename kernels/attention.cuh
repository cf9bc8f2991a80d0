// attention: o_i = sum_j p_ij v_j, p_i = softmax_j(s_ij), s_ij = q_i.k_j / sqrt(D), over keys j <= i
//   (Vaswani et al. 2017, arXiv 1706.03762; grouped queries: Ainslie et al. 2023, arXiv 2305.13245)
//   window W  over keys i-W < j <= i                                  (Beltagy et al. 2020, arXiv 2004.05150)
//   sigmoid   p_ij = sigmoid(s_ij + bias), not normalised           (Ramapuram et al. 2024, arXiv 2409.04431)
//   extra     one more position e that every query sees, whose logit e_i comes from outside:
//             a learnable sink, without a value             (gpt-oss: Agarwal et al. 2025, arXiv 2508.10925)
//             a kv bias, with a value v'                           (Sun et al. 2024, arXiv 2402.17762)
// backward, delta_i = do_i.o_i (Dao et al. 2022, arXiv 2205.14135, appendix B):
//   dp_ij = do_i.v_j    ds_ij = p_ij (dp_ij - delta_i), of sigmoid p_ij (1 - p_ij) dp_ij
//   dq_i = sum_j ds_ij k_j / sqrt(D)    dk_j = sum_i ds_ij q_i / sqrt(D)    dv_j = sum_i p_ij do_i
// shapes: q, o (B,T,H,D), k, v (B,T,K,D) f32, query head h reads kv head h/(H/K); saves lse (B,H,T), 0 with
//   sigmoid | o, lse, dq, dk, dv are written, and p_ie and ds_ie (B,H,T) of an extra position.
//   No T x T buffer on any device. Tiles that nobody sees are skipped: time is that of T min(T, W) pairs.
//
// Canonical order. "Chain" is a = fused(x, y, a) from +0 in ascending index; scale = 1/sqrt(D), from the
// host. The extra position stands before the first key: it is the first link of every chain over keys.
//   s_ij   = scale * (chain over d of q_id k_jd)
//   m_i    = max of e_i and of s_ij over the visible keys
//   p_ij   = exact_exp(s_ij - m_i)          p_ie = exact_exp(e_i - m_i)
//   l_i    = chain over e and keys of p_ij * 1, that is l = l + p_ij
//   o_id   = (chain over e and keys of p_ij v_jd) * (1 / l_i)
//   lse_i  = m_i + exact_log(l_i)
// and backward
//   delta_i = chain over d of do_id o_id
//   dp_ij   = chain over d of do_id v_jd    dp_ie = the same of v', +0 without
//   p_ij    = exact_exp(s_ij - lse_i)       p_ie = exact_exp(e_i - lse_i)
//   ds_ij   = p_ij * (dp_ij - delta_i)      ds_ie = p_ie * (dp_ie - delta_i)
//   dq_id   = scale * (chain over e and keys of ds_ij k_jd)
//   dk_jd   = scale * (chain over the group's query heads and, within a head, queries of ds_ij q_id)
//   dv_jd   = chain in the same order of p_ij do_id
// where a key or value that the extra position lacks has no link. Without an extra position e_i is -inf: p_ie
// is then +0, and every bit is that of the keys alone. Sigmoid has no m, l, lse and delta:
//   p_ij = exact_sigmoid(s_ij + bias)    o_id = chain over keys of p_ij v_jd
//   ds_ij = (p_ij * (1 - p_ij)) * dp_ij
// The code writes -bias for m and lse, 1 for l and 0 for delta: s - -b is s + b, x * 1 and x - 0 are x.
// Only visible pairs enter a chain. A hidden pair with weight 0 would not do: fused(0, x, -0) is +0, and
// 0*Inf is NaN. The max is order-free: where its bits could depend on the order (a NaN, the sign of a zero)
// the outputs do not, for s - m is then NaN, or a zero whose exponential is 1.
//
// --attn-score, --attn-sink, --window | tests/test_attention.cpp
#pragma once
#include <initializer_list>
#include <type_traits>
#include <vector>

#include "core/context.cuh"
#include "core/math.cuh"
#include "core/reduce.cuh"

namespace gated {

enum class AttentionScore { softmax, sigmoid };

// Sizes, where a head's rows lie, who sees whom (query i sees keys first_key(i) .. i), and what becomes of a
// score.
struct AttentionShape {
  size_t B, T, H, K, D;
  size_t window = 0;  // a query sees so many keys, itself included; 0: all up to its own
  AttentionScore score = AttentionScore::softmax;
  float bias = 0;  // of sigmoid

  HD size_t group() const { return H / K; }
  HD size_t query_row(size_t b, size_t t, size_t h) const { return ((b * T + t) * H + h) * D; }
  HD size_t key_row(size_t b, size_t t, size_t kv_head) const { return ((b * T + t) * K + kv_head) * D; }
  HD size_t stat(size_t b, size_t h, size_t t) const { return (b * H + h) * T + t; }
  // lse or delta of a query, 0 past the last.
  HD float stat_of(const float* x, size_t b, size_t h, size_t t) const { return t < T ? x[stat(b, h, t)] : 0.0f; }
  // What is subtracted from the scores of a query in backward.
  HD float lse_of(const float* lse, size_t b, size_t h, size_t t) const {
    return sigmoid() ? -bias : stat_of(lse, b, h, t);
  }

  // A query sees keys less than reach() before it; one after it is, unsigned, out of reach.
  HD size_t reach() const { return window && window < T ? window : T; }
  HD bool visible(size_t i, size_t j) const { return i - j < reach(); }
  HD size_t first_key(size_t i) const { return i < reach() ? 0 : i + 1 - reach(); }
  // Key j is seen by queries j .. end_query(j) - 1.
  HD size_t end_query(size_t j) const { return reach() < T - j ? j + reach() : T; }
  // Do all of queries [i0, i1) see all of keys [j0, j1)?
  HD bool all_visible(size_t i0, size_t i1, size_t j0, size_t j1) const { return j1 <= i0 + 1 && visible(i1 - 1, j0); }

  HD bool sigmoid() const { return score == AttentionScore::sigmoid; }
};

// p of a pair whose score less m, or lse, is x.
template <class Real>
HD Real attention_p(AttentionScore score, Real x) {
  return score == AttentionScore::sigmoid ? exact_sigmoid(x) : exact_exp(x);
}
template <class Real>
HD Real attention_ds(AttentionScore score, Real p, Real dp, Real delta) {
  return (score == AttentionScore::sigmoid ? p * (Real(1) - p) : p) * (dp - delta);
}

// Calls f(score) with a compile-time constant: one branch around a loop, none in it. constexpr and not HD, so
// that nvcc lets f be of either side.
template <class F>
constexpr void attention_with_score(AttentionScore score, F f) {
  if (score == AttentionScore::sigmoid)
    f(std::integral_constant<AttentionScore, AttentionScore::sigmoid>());
  else
    f(std::integral_constant<AttentionScore, AttentionScore::softmax>());
}

// One more position that every query sees, before the first key: a learnable sink (a logit per head, no
// value) or a kv bias (a logit q.k'/sqrt(D) per query, a value). kernels/attention_extra.cuh makes and
// differentiates them.
template <class Real>
struct AttentionExtraOf {
  const Real* logit = nullptr;  // (H): the same for every query of a head; null: no extra position
  bool per_query = false;       // logit is (B,H,T)
  const Real* key = nullptr;    // (H,D), for its share in dq, or null
  const Real* value = nullptr;  // (H,D), or null

  HD Real logit_of(const AttentionShape& s, size_t b, size_t h, size_t t) const {
    if (!logit || t >= s.T) return -INFINITY;
    return logit[per_query ? s.stat(b, h, t) : h];
  }
};
using AttentionExtra = AttentionExtraOf<float>;

template <class Real>
Real attention_scale(size_t D) {
  return Real(1) / exact_sqrt(Real(D));
}

// ---- reference

template <class Real>
Real attention_dot(const Real* a, const Real* b, size_t D) {
  Real sum = 0;
  for (size_t d = 0; d < D; d++) sum = fused(a[d], b[d], sum);
  return sum;
}

// row[d] = fused(weight, x[d], row[d]): one link of D chains.
template <class Real>
void attention_link(Real* row, Real weight, const Real* x, size_t D) {
  for (size_t d = 0; d < D; d++) row[d] = fused(weight, x[d], row[d]);
}

template <class Real>
void attention_forward_ref(Real* o, Real* lse, const Real* q, const Real* k, const Real* v, const AttentionShape& s,
                           const AttentionExtraOf<Real>& extra) {
  const size_t D = s.D;
  const Real scale = attention_scale<Real>(D);
#pragma omp parallel for collapse(2)
  for (size_t b = 0; b < s.B; b++)
    for (size_t h = 0; h < s.H; h++) {
      std::vector<Real> score(s.T);
      for (size_t i = 0; i < s.T; i++) {
        const Real e = extra.logit_of(s, b, h, i);
        Real m = e;
        for (size_t j = s.first_key(i); j <= i; j++) {
          score[j] = attention_dot(q + s.query_row(b, i, h), k + s.key_row(b, j, h / s.group()), D) * scale;
          m = max_of(score[j], m);
        }
        if (s.sigmoid()) m = -Real(s.bias);
        Real* row = o + s.query_row(b, i, h);
        for (size_t d = 0; d < D; d++) row[d] = 0;
        Real l = exact_exp(e - m);
        if (extra.value) attention_link(row, l, extra.value + h * D, D);
        for (size_t j = s.first_key(i); j <= i; j++) {
          const Real p = attention_p(s.score, score[j] - m);
          l = l + p;
          attention_link(row, p, v + s.key_row(b, j, h / s.group()), D);
        }
        const Real inverse = s.sigmoid() ? Real(1) : Real(1) / l;
        for (size_t d = 0; d < D; d++) row[d] = row[d] * inverse;
        lse[s.stat(b, h, i)] = s.sigmoid() ? Real(0) : m + exact_log(l);
      }
    }
}

template <class Real>
void attention_backward_ref(Real* dq, Real* dk, Real* dv, Real* extra_p, Real* extra_ds, const Real* dout,
                            const Real* q, const Real* k, const Real* v, const Real* o, const Real* lse,
                            const AttentionShape& s, const AttentionExtraOf<Real>& extra) {
  const size_t D = s.D;
  const Real scale = attention_scale<Real>(D);
  std::vector<Real> delta(s.B * s.H * s.T);
  struct Pair {
    Real p, ds;
  };
  auto pair = [&](size_t b, size_t h, size_t i, size_t j) -> Pair {
    const size_t query = s.query_row(b, i, h), key = s.key_row(b, j, h / s.group()), stat = s.stat(b, h, i);
    const Real x = attention_dot(q + query, k + key, D) * scale;
    const Real p = attention_p(s.score, x - (s.sigmoid() ? -Real(s.bias) : lse[stat]));
    return {p, attention_ds(s.score, p, attention_dot(dout + query, v + key, D), delta[stat])};
  };
#pragma omp parallel for collapse(2)
  for (size_t b = 0; b < s.B; b++)
    for (size_t h = 0; h < s.H; h++)
      for (size_t i = 0; i < s.T; i++) {
        const size_t query = s.query_row(b, i, h), stat = s.stat(b, h, i);
        delta[stat] = s.sigmoid() ? Real(0) : attention_dot(dout + query, o + query, D);
        for (size_t d = 0; d < D; d++) dq[query + d] = 0;
        if (extra.logit) {
          const Real dp = extra.value ? attention_dot(dout + query, extra.value + h * D, D) : Real(0);
          extra_p[stat] = exact_exp(extra.logit_of(s, b, h, i) - lse[stat]);
          extra_ds[stat] = attention_ds(s.score, extra_p[stat], dp, delta[stat]);
          if (extra.key) attention_link(dq + query, extra_ds[stat], extra.key + h * D, D);
        }
        for (size_t j = s.first_key(i); j <= i; j++)
          attention_link(dq + query, pair(b, h, i, j).ds, k + s.key_row(b, j, h / s.group()), D);
        for (size_t d = 0; d < D; d++) dq[query + d] = scale * dq[query + d];
      }
#pragma omp parallel for collapse(2)
  for (size_t b = 0; b < s.B; b++)
    for (size_t kv_head = 0; kv_head < s.K; kv_head++)
      for (size_t j = 0; j < s.T; j++) {
        const size_t key = s.key_row(b, j, kv_head);
        for (size_t d = 0; d < D; d++) dk[key + d] = dv[key + d] = 0;
        for (size_t h = kv_head * s.group(); h < (kv_head + 1) * s.group(); h++)
          for (size_t i = j; i < s.end_query(j); i++) {
            const Pair w = pair(b, h, i, j);
            attention_link(dk + key, w.ds, q + s.query_row(b, i, h), D);
            attention_link(dv + key, w.p, dout + s.query_row(b, i, h), D);
          }
        for (size_t d = 0; d < D; d++) dk[key + d] = scale * dk[key + d];
      }
}

// ---- kernels
//
// A block of 128 threads owns a tile of 64 rows (queries for o and dq, keys for dk and dv) and walks over
// tiles of 64 columns (keys, or queries). Thread (ty, tx) of 16 x 8 holds rows 4ty .. 4ty+3 of every product
// and, of each 32 columns, the four from 4tx: 16-byte shared reads without bank conflicts. Both products
// stream their operands through shared memory in slices of 2048 numbers, which do not grow with D:
//   product      out[row][column] = chain over d of a[row][d] * b[column][d]          slices of 32 d
//   accumulate   acc[row][d] = chain over columns of weight[column][row] * x[column][d]   of 2048/D columns
// D is a template class (32, 64, 128, 256) only for the width of acc: chains run over the true D, T and
// visible pairs. Products per pair: forward 3 (scores twice: the max first; sigmoid 2), dq 3, dk and dv 4.

namespace attention {

constexpr int tile = 64, threads = 128, slice = 2048, depth = slice / tile;
// Forward and dq: what 64K registers of an SM hold, 128, 168 or 255 for each thread.
constexpr int blocks_an_sm(int columns) {
  return columns <= 64 ? 4 : columns <= 128 ? 3 : 2;
}
// Row length of a transposed slice: rows stay on 16 bytes, and lanes that store two quads of 16 rows meet
// 32 different banks.
constexpr int pitch = tile + 4;

struct Shared {
  float a[depth * pitch], b[depth * pitch];  // staged slices; accumulate's is in a
  float weight[tile * pitch];                // p or ds, [column][row]
  float row_sum[tile];
};

// The T rows of one head.
struct Rows {
  const float* data;
  size_t stride, count;
  __device__ const float* operator[](size_t row) const { return data + row * stride; }
};

__device__ inline Rows query_rows(const float* x, const AttentionShape& s, size_t b, size_t h) {
  return {x + s.query_row(b, 0, h), s.H * s.D, s.T};
}
__device__ inline Rows key_rows(const float* x, const AttentionShape& s, size_t b, size_t kv_head) {
  return {x + s.key_row(b, 0, kv_head), s.K * s.D, s.T};
}

__device__ inline int row_of_thread() {
  return threadIdx.x / 8 * 4;
}
__device__ inline int column_of_thread(int c) {
  return c / 4 * 32 + threadIdx.x % 8 * 4 + c % 4;
}

// to[d - d0][row - row0] = x[row][d] for a tile of rows and `depth` d; 0 past the last row and past D.
template <bool aligned>
__device__ inline void stage_transposed(float* to, const Rows& x, size_t row0, size_t d0, size_t D) {
  const unsigned lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 2;
  for (unsigned d = lane % 2 * 4; d < depth; d += 8) {
    Quad q{};
    if (row0 + row < x.count && d0 + d < D) q = load_quad<aligned>(x[row0 + row], d0 + d, D);
    for (int k = 0; k < 4; k++) to[(d + k) * pitch + row] = q.v[k];
  }
}

// out[r][c] = chain over d of a[a0 + row_of_thread() + r][d] * b[b0 + column_of_thread(c)][d].
template <bool aligned>
__device__ inline void product(float (&out)[4][8], const Rows& a, size_t a0, const Rows& b, size_t b0, size_t D,
                               Shared& shared) {
  for (auto& row : out)
    for (float& x : row) x = 0.0f;
  for (size_t d0 = 0; d0 < D; d0 += depth) {
    __syncthreads();
    stage_transposed<aligned>(shared.a, a, a0, d0, D);
    stage_transposed<aligned>(shared.b, b, b0, d0, D);
    __syncthreads();
    const int n = D - d0 < depth ? int(D - d0) : depth;
    for (int d = 0; d < n; d++) {
      float x[4], y[8];
      for (int r = 0; r < 4; r++) x[r] = shared.a[d * pitch + row_of_thread() + r];
      for (int c = 0; c < 8; c++) y[c] = shared.b[d * pitch + column_of_thread(c)];
      for (int r = 0; r < 4; r++)
        for (int c = 0; c < 8; c++) out[r][c] = fused(x[r], y[c], out[r][c]);
    }
  }
}

// acc[r][c] = chain over k of weight[k][row_of_thread() + r] * x[x0 + k][column0 + column_of_thread(c)],
// going on from acc, over the rows of x from x0 in this tile; where not `whole`, over those k for which
// visible(row, k).
template <bool aligned, int columns, class Visible>
__device__ inline void accumulate(float (&acc)[4][columns / 8], const Rows& x, size_t x0, size_t column0, size_t D,
                                  bool whole, Shared& shared, Visible visible) {
  constexpr int rows = slice / columns;
  const int count = x.count - x0 < tile ? int(x.count - x0) : tile;
  for (int k0 = 0; k0 < count; k0 += rows) {
    __syncthreads();
    for (int i = threadIdx.x * 4; i < slice; i += threads * 4) {
      const size_t row = x0 + k0 + i / columns, d = column0 + i % columns;
      Quad q{};
      if (row < x.count && d < D) q = load_quad<aligned>(x[row], d, D);
      store_quad<true>(shared.a, i, slice, q);
    }
    __syncthreads();
    const int n = count - k0 < rows ? count - k0 : rows;
    auto links = [&](auto link) {
      for (int k = 0; k < n; k++) {
        float w[4];
        for (int r = 0; r < 4; r++) w[r] = shared.weight[(k0 + k) * pitch + row_of_thread() + r];
        for (int c = 0; c < columns / 8; c++) {
          const float y = shared.a[k * columns + column_of_thread(c)];
          for (int r = 0; r < 4; r++) acc[r][c] = link(r, k0 + k, w[r], y, acc[r][c]);
        }
      }
    };
    if (whole)
      links([](int, int, float w, float y, float a) { return fused(w, y, a); });
    else
      links([&](int r, int k, float w, float y, float a) {
        return visible(row_of_thread() + r, k) ? fused(w, y, a) : a;
      });
  }
}

// This thread's weights. Nobody else reads them between a barrier of product and the next of accumulate.
__device__ inline float& weight(Shared& shared, int r, int c) {
  return shared.weight[column_of_thread(c) * pitch + row_of_thread() + r];
}

// They become p, where x(r, c) is the score less m or lse ...
template <class X>
__device__ inline void weights_p(Shared& shared, AttentionScore kind, X x) {
  attention_with_score(kind, [&](auto score) {
    for (int c = 0; c < 8; c++)
      for (int r = 0; r < 4; r++) weight(shared, r, c) = attention_p(score(), x(r, c));
  });
}

// ... and p becomes ds.
template <class Delta>
__device__ inline void weights_ds(Shared& shared, AttentionScore kind, const float (&dp)[4][8], Delta delta) {
  attention_with_score(kind, [&](auto score) {
    for (int c = 0; c < 8; c++)
      for (int r = 0; r < 4; r++)
        weight(shared, r, c) = attention_ds(score(), weight(shared, r, c), dp[r][c], delta(r, c));
  });
}

// acc[r][c] = fused(w[r], x[column_of_thread(c)], +0), +0 without x: where chains over keys begin.
template <int columns>
__device__ inline void begin_chains(float (&acc)[4][columns / 8], const float (&w)[4], const float* x, size_t D) {
  for (int c = 0; c < columns / 8; c++) {
    const size_t d = column_of_thread(c);
    for (int r = 0; r < 4; r++) acc[r][c] = x && d < D ? fused(w[r], x[d], 0.0f) : 0.0f;
  }
}

// x[row0 + row_of_thread() + r][column0 + column_of_thread(c)] = value(r, c) where that exists.
template <bool aligned, int columns, class Value>
__device__ inline void store_tile(float* x, size_t stride, size_t T, size_t row0, size_t column0, size_t D,
                                  Value value) {
  for (int r = 0; r < 4; r++) {
    const size_t row = row0 + row_of_thread() + r;
    for (int c = 0; c < columns / 8; c += 4) {
      const size_t d = column0 + column_of_thread(c);
      const Quad q{{value(r, c), value(r, c + 1), value(r, c + 2), value(r, c + 3)}};
      if (row < T && d < D) store_quad<aligned>(x + row * stride, d, D, q);
    }
  }
}

}  // namespace attention

// Grid (B*H, tiles): the last queries see the most keys and start first.
template <bool aligned, int columns>
__global__ void __launch_bounds__(attention::threads, attention::blocks_an_sm(columns))
    attention_forward_kernel(float* o, float* lse, const float* q, const float* k, const float* v, AttentionShape s,
                             AttentionExtra extra, float scale) {
  using namespace attention;
  DYNAMIC_SHARED(Shared, shared);
  const size_t b = blockIdx.x / s.H, h = blockIdx.x % s.H, kv_head = h / s.group();
  const size_t i0 = size_t(gridDim.y - 1 - blockIdx.y) * tile, end = i0 + tile < s.T ? i0 + tile : s.T;
  const size_t j_first = s.first_key(i0) / tile * tile;
  const Rows queries = query_rows(q, s, b, h), keys = key_rows(k, s, b, kv_head), values = key_rows(v, s, b, kv_head);

  float m[4], first[4], score[4][8];
  for (int r = 0; r < 4; r++) {
    first[r] = extra.logit_of(s, b, h, i0 + row_of_thread() + r);
    m[r] = s.sigmoid() ? -s.bias : first[r];
  }
  if (!s.sigmoid()) {
    for (size_t j0 = j_first; j0 < end; j0 += tile) {
      product<aligned>(score, queries, i0, keys, j0, s.D, *shared);
      for (int r = 0; r < 4; r++)
        for (int c = 0; c < 8; c++)
          if (s.visible(i0 + row_of_thread() + r, j0 + column_of_thread(c))) m[r] = max_of(score[r][c] * scale, m[r]);
    }
    for (int r = 0; r < 4; r++)
      for (int flip = 4; flip > 0; flip /= 2) m[r] = max_of(m[r], __shfl_xor_sync(0xffffffffu, m[r], flip));
  }

  for (int r = 0; r < 4; r++) first[r] = exact_exp(first[r] - m[r]);
  if (threadIdx.x % 8 == 0)
    for (int r = 0; r < 4; r++) shared->row_sum[row_of_thread() + r] = first[r];
  float acc[4][columns / 8];
  begin_chains<columns>(acc, first, extra.value ? extra.value + h * s.D : nullptr, s.D);
  for (size_t j0 = j_first; j0 < end; j0 += tile) {
    product<aligned>(score, queries, i0, keys, j0, s.D, *shared);
    weights_p(*shared, s.score, [&](int r, int c) { return score[r][c] * scale - m[r]; });
    accumulate<aligned, columns>(acc, values, j0, 0, s.D, s.all_visible(i0, end, j0, j0 + tile), *shared,
                                 [&](int row, int key) { return s.visible(i0 + row, j0 + key); });
    if (threadIdx.x < tile && !s.sigmoid()) {  // thread t adds up row t
      float l = shared->row_sum[threadIdx.x];
      for (int key = 0; key < tile; key++)
        if (s.visible(i0 + threadIdx.x, j0 + key)) l = l + shared->weight[key * pitch + threadIdx.x];
      shared->row_sum[threadIdx.x] = l;
    }
  }
  __syncthreads();
  float inverse[4];
  for (int r = 0; r < 4; r++) {
    const size_t i = i0 + row_of_thread() + r;
    const float l = shared->row_sum[row_of_thread() + r];
    inverse[r] = s.sigmoid() ? 1.0f : 1.0f / l;
    if (i < s.T && threadIdx.x % 8 == 0) lse[s.stat(b, h, i)] = s.sigmoid() ? 0.0f : m[r] + exact_log(l);
  }
  store_tile<aligned, columns>(o + s.query_row(b, 0, h), queries.stride, s.T, i0, 0, s.D,
                               [&](int r, int c) { return acc[r][c] * inverse[r]; });
}

// The chain over d of x[d] * y[d], by one thread.
template <bool aligned>
__device__ inline float attention_row_dot(const float* x, const float* y, size_t D) {
  float sum = 0.0f;
  for (size_t d = 0; d < D; d += 4) {
    const Quad a = load_quad<aligned>(x, d, D), b = load_quad<aligned>(y, d, D);
    for (int k = 0; k < 4; k++)
      if (aligned || d + k < D) sum = fused(a.v[k], b.v[k], sum);
  }
  return sum;
}

// One thread a query: delta (B,H,T), and what the extra position takes from it.
template <bool aligned>
__global__ void attention_backward_query_kernel(float* delta, float* extra_p, float* extra_ds, const float* dout,
                                                const float* o, const float* lse, AttentionShape s,
                                                AttentionExtra extra) {
  const size_t n = threadIdx.x + size_t(blockDim.x) * blockIdx.x;
  if (n >= s.B * s.H * s.T) return;
  const size_t b = n / (s.H * s.T), h = n / s.T % s.H, t = n % s.T, row = s.query_row(b, t, h);
  const float of_query = s.sigmoid() ? 0.0f : attention_row_dot<aligned>(dout + row, o + row, s.D);
  delta[n] = of_query;
  if (!extra.logit) return;
  const float dp = extra.value ? attention_row_dot<aligned>(dout + row, extra.value + h * s.D, s.D) : 0.0f;
  const float p = exact_exp(extra.logit_of(s, b, h, t) - lse[n]);
  extra_p[n] = p;
  extra_ds[n] = attention_ds(s.score, p, dp, of_query);
}

// Grid (B*H, tiles), as the forward.
template <bool aligned, int columns>
__global__ void __launch_bounds__(attention::threads, attention::blocks_an_sm(columns))
    attention_backward_dq_kernel(float* dq, const float* dout, const float* q, const float* k, const float* v,
                                 const float* lse, const float* delta, const float* extra_ds, AttentionShape s,
                                 AttentionExtra extra, float scale) {
  using namespace attention;
  DYNAMIC_SHARED(Shared, shared);
  const size_t b = blockIdx.x / s.H, h = blockIdx.x % s.H, kv_head = h / s.group();
  const size_t i0 = size_t(gridDim.y - 1 - blockIdx.y) * tile, end = i0 + tile < s.T ? i0 + tile : s.T;
  const Rows queries = query_rows(q, s, b, h), douts = query_rows(dout, s, b, h);
  const Rows keys = key_rows(k, s, b, kv_head), values = key_rows(v, s, b, kv_head);

  float acc[4][columns / 8], dot[4][8], of_query[4] = {};
  if (extra.key)
    for (int r = 0; r < 4; r++) of_query[r] = s.stat_of(extra_ds, b, h, i0 + row_of_thread() + r);
  begin_chains<columns>(acc, of_query, extra.key ? extra.key + h * s.D : nullptr, s.D);
  for (size_t j0 = s.first_key(i0) / tile * tile; j0 < end; j0 += tile) {
    product<aligned>(dot, queries, i0, keys, j0, s.D, *shared);
    for (int r = 0; r < 4; r++) of_query[r] = s.lse_of(lse, b, h, i0 + row_of_thread() + r);
    weights_p(*shared, s.score, [&](int r, int c) { return dot[r][c] * scale - of_query[r]; });
    product<aligned>(dot, douts, i0, values, j0, s.D, *shared);
    for (int r = 0; r < 4; r++) of_query[r] = s.stat_of(delta, b, h, i0 + row_of_thread() + r);
    weights_ds(*shared, s.score, dot, [&](int r, int) { return of_query[r]; });
    accumulate<aligned, columns>(acc, keys, j0, 0, s.D, s.all_visible(i0, end, j0, j0 + tile), *shared,
                                 [&](int row, int key) { return s.visible(i0 + row, j0 + key); });
  }
  store_tile<aligned, columns>(dq + s.query_row(b, 0, h), queries.stride, s.T, i0, 0, s.D,
                               [&](int r, int c) { return scale * acc[r][c]; });
}

// Grid (B*K, tiles, columns): the first keys are seen by the most queries and start first. Both accumulators
// of 256 columns would not fit the registers: a block takes at most 128, and makes the weights for them
// again.
template <bool aligned, int columns>
__global__ void __launch_bounds__(attention::threads)
    attention_backward_dkdv_kernel(float* dk, float* dv, const float* dout, const float* q, const float* k,
                                   const float* v, const float* lse, const float* delta, AttentionShape s,
                                   float scale) {
  using namespace attention;
  DYNAMIC_SHARED(Shared, shared);
  const size_t b = blockIdx.x / s.K, kv_head = blockIdx.x % s.K, column0 = size_t(blockIdx.z) * columns;
  const size_t j0 = size_t(blockIdx.y) * tile, end = j0 + tile < s.T ? j0 + tile : s.T;
  const Rows keys = key_rows(k, s, b, kv_head), values = key_rows(v, s, b, kv_head);

  float dk_acc[4][columns / 8] = {}, dv_acc[4][columns / 8] = {}, dot[4][8], of_query[8];
  for (size_t h = kv_head * s.group(); h < (kv_head + 1) * s.group(); h++) {
    const Rows queries = query_rows(q, s, b, h), douts = query_rows(dout, s, b, h);
    for (size_t i0 = j0; i0 < s.end_query(end - 1); i0 += tile) {
      const bool whole = s.all_visible(i0, i0 + tile, j0, end);
      auto visible = [&](int row, int query) { return s.visible(i0 + query, j0 + row); };
      product<aligned>(dot, keys, j0, queries, i0, s.D, *shared);
      for (int c = 0; c < 8; c++) of_query[c] = s.lse_of(lse, b, h, i0 + column_of_thread(c));
      weights_p(*shared, s.score, [&](int r, int c) { return dot[r][c] * scale - of_query[c]; });
      accumulate<aligned, columns>(dv_acc, douts, i0, column0, s.D, whole, *shared, visible);
      product<aligned>(dot, values, j0, douts, i0, s.D, *shared);
      for (int c = 0; c < 8; c++) of_query[c] = s.stat_of(delta, b, h, i0 + column_of_thread(c));
      weights_ds(*shared, s.score, dot, [&](int, int c) { return of_query[c]; });
      accumulate<aligned, columns>(dk_acc, queries, i0, column0, s.D, whole, *shared, visible);
    }
  }
  const size_t base = s.key_row(b, 0, kv_head);
  store_tile<aligned, columns>(dk + base, keys.stride, s.T, j0, column0, s.D,
                               [&](int r, int c) { return scale * dk_acc[r][c]; });
  store_tile<aligned, columns>(dv + base, keys.stride, s.T, j0, column0, s.D,
                               [&](int r, int c) { return dv_acc[r][c]; });
}

}  // namespace gated

// ---- the CPU's tuned twin
#include "kernels/attention_cpu.h"

// ---- launchers

namespace gated {

inline void attention_require(const char* name, const AttentionShape& s, const AttentionExtra& extra) {
  require(s.T > 0 && s.D > 0, "%s: %zu tokens of head dimension %zu, expected at least 1 of each", name, s.T, s.D);
  require(s.K > 0 && s.H % s.K == 0, "%s: %zu query heads over %zu kv heads, expected a multiple of the kv heads", name,
          s.H, s.K);
  require(s.D <= 256, "%s: head dimension %zu, expected at most 256; use more heads", name, s.D);
  require(extra.logit || (!extra.key && !extra.value), "%s: an extra position's key or value without its logit", name);
  require(!extra.logit || !s.sigmoid(),
          "%s: an extra position with sigmoid scores, expected softmax: nothing else competes with it", name);
}

// Calls run(aligned, columns) with both as compile-time constants: may rows be read 16 bytes at a time, and
// the class of D.
template <class Run>
void attention_with_class(size_t D, std::initializer_list<const float*> rows, Run run) {
  bool aligned = D % 4 == 0;
  for (const float* p : rows) aligned = aligned && reinterpret_cast<uintptr_t>(p) % 16 == 0;
  auto with_columns = [&](auto aligned_constant) {
    if (D <= 32) return run(aligned_constant, std::integral_constant<int, 32>());
    if (D <= 64) return run(aligned_constant, std::integral_constant<int, 64>());
    if (D <= 128) return run(aligned_constant, std::integral_constant<int, 128>());
    return run(aligned_constant, std::integral_constant<int, 256>());
  };
  aligned ? with_columns(std::true_type()) : with_columns(std::false_type());
}

// o (B,T,H,D) and lse (B,H,T) are written.
inline void attention_forward(float* o, float* lse, const float* q, const float* k, const float* v,
                              const AttentionShape& s, const AttentionExtra& extra, Context& ctx) {
  attention_require("attention_forward", s, extra);
  if (ctx.device == Device::cpu) return attention_forward_cpu(o, lse, q, k, v, s, extra, ctx);
  const dim3 grid(grid_of(s.B * s.H).x, grid_of(ceil_div(s.T, attention::tile)).x);
  attention_with_class(s.D, {o, q, k, v}, [&](auto aligned, auto columns) {
    launch(attention_forward_kernel<aligned, columns>, grid, attention::threads, sizeof(attention::Shared), ctx, o, lse,
           q, k, v, s, extra, attention_scale<float>(s.D));
  });
}

// dq (B,T,H,D), dk and dv (B,T,K,D) are written, and with an extra position its p and ds (B,H,T), null
// without one; o and lse are what the forward wrote.
inline void attention_backward(float* dq, float* dk, float* dv, float* extra_p, float* extra_ds, const float* dout,
                               const float* q, const float* k, const float* v, const float* o, const float* lse,
                               const AttentionShape& s, const AttentionExtra& extra, Context& ctx) {
  attention_require("attention_backward", s, extra);
  if (ctx.device == Device::cpu)
    return attention_backward_cpu(dq, dk, dv, extra_p, extra_ds, dout, q, k, v, o, lse, s, extra, ctx);
  const float scale = attention_scale<float>(s.D);
  const size_t queries = s.B * s.H * s.T;
  float* delta = ctx.scratch(queries);
  const unsigned tiles = grid_of(ceil_div(s.T, attention::tile)).x;
  attention_with_class(s.D, {dq, dk, dv, dout, q, k, v, o, extra.value}, [&](auto aligned, auto columns) {
    launch(attention_backward_query_kernel<aligned>, grid_of(ceil_div(queries, attention::threads)), attention::threads,
           0, ctx, delta, extra_p, extra_ds, dout, o, lse, s, extra);
    launch(attention_backward_dq_kernel<aligned, columns>, dim3(grid_of(s.B * s.H).x, tiles), attention::threads,
           sizeof(attention::Shared), ctx, dq, dout, q, k, v, lse, delta, extra_ds, s, extra, scale);
    constexpr int at_once = columns < 128 ? columns : 128;
    launch(attention_backward_dkdv_kernel<aligned, at_once>,
           dim3(grid_of(s.B * s.K).x, tiles, unsigned(ceil_div(s.D, at_once))), attention::threads,
           sizeof(attention::Shared), ctx, dk, dv, dout, q, k, v, lse, delta, s, scale);
  });
}

}  // namespace gated
