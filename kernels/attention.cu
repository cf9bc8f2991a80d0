// attention: a query takes the average of the values up to its own token, weighted by how well their keys answer
//                                                                 (Vaswani et al. 2017, arXiv 1706.03762)
//
// 1. Plain causal attention. Every head by itself, for query i over the keys j <= i:
//     s_ij = q_i.k_j / sqrt(D)            how well key j answers query i
//     p_ij = e^s_ij / sum_k e^s_ik        softmax: weights above 0 that add up to 1
//     o_i  = sum_j p_ij v_j
//   e^s overflows a float above s = 88.7. p does not change when the same number is subtracted from every score of a
//   query: the largest is subtracted, m_i = max_j s_ij. Then every exponential is at most 1, and one of them is 1:
//     p_ij = e^(s_ij - m_i) / l_i         l_i = sum_j e^(s_ij - m_i)
//   The division is done once for each query: after the sum its output is multiplied by 1 / l_i. Backward wants p again
//   without m and l, so the forward saves one number for each query, lse_i = m_i + log l_i. Then
//   p_ij = e^(s_ij - lse_i).
//
//   Backward. do_i, the gradient of the loss by o_i, is given.
//   o_i = sum_j p_ij v_j is linear in the values and in the weights:
//     dv_j  = sum over i >= j of p_ij do_i
//     dp_ij = do_i.v_j
//   The derivative of softmax: raising s_ij raises e^s_ij in the numerator of p_ij and the denominator of every p_ik,
//     ∂p_ik / ∂s_ij = p_ik ([k = j] - p_ij)         [k = j]: 1 where k is j, else 0
//   so the chain rule sums over the keys k of the query:
//     ds_ij = sum_k dp_ik p_ik ([k = j] - p_ij) = p_ij (dp_ij - sum_k p_ik dp_ik)
//   That sum is the same for all j, and it needs no second look at the keys:
//     sum_k p_ik dp_ik = sum_k p_ik (do_i.v_k) = do_i.(sum_k p_ik v_k) = do_i.o_i =: delta_i
//   (Dao et al. 2022, arXiv 2205.14135, appendix B). And s_ij = q_i.k_j / sqrt(D) is linear in both:
//     ds_ij = p_ij (dp_ij - delta_i)
//     dq_i  = sum over j <= i of ds_ij k_j / sqrt(D)
//     dk_j  = sum over i >= j of ds_ij q_i / sqrt(D)
//   No array of T x T weights is stored on any device: backward computes scores and weights again.
//
// 2. The order of the sums, which decides their last bits. A "chain" is a = fused(x, y, a), that is x*y + a rounded
//   once, from +0 in ascending index; each step is a link. scale = 1/sqrt(D) comes from the host (or --score-dim in the
//   place of D).
//     s_ij    = scale * (chain over d of q_id k_jd)
//     m_i     = max over keys of s_ij
//     p_ij    = exp(s_ij - m_i)
//     l_i     = chain over keys of p_ij * 1, that is l = l + p_ij
//     o_id    = (chain over keys of p_ij v_jd) * (1 / l_i)
//     lse_i   = m_i + log(l_i)
//   and backward
//     delta_i = chain over d of do_id o_id
//     dp_ij   = chain over d of do_id v_jd
//     p_ij    = exp(s_ij - lse_i)
//     ds_ij   = p_ij * (dp_ij - delta_i)
//     dq_id   = scale * (chain over keys of ds_ij k_jd)
//     dk_jd   = scale * (chain over queries of ds_ij q_id)
//     dv_jd   = chain over queries of p_ij do_id
//   Only pairs that see each other are links of a chain. Others are left out, not given the weight 0: fused(0, x, -0)
//   is +0, and 0 * inf is NaN. The max needs no order: where its bits could depend on one (a NaN, the sign of a zero)
//   the outputs do not, for s - m is then NaN, or a zero whose exponential is 1.
//
//   Why the maximum is found first. FlashAttention reads the keys once: it keeps a running maximum m, and where a
//   tile of keys raises it to m', it multiplies l and o by e^(m - m'). Each such product rounds, and there is one for
//   every tile that raises m, so the last bits of o depend on how many keys a tile has: a GPU with tiles of 64 keys, a
//   CPU with tiles of 16 and the loops below would not agree. A chain that starts when m is known has no such product.
//   The price: a GPU, which cannot keep a query's scores, computes them twice, 3 products a pair instead of 2.
//   A CPU can keep them (kernels/cpu/attention_cpu.cpp).
//
// 3. Variants, each of them a change to a few of these lines.
//   Grouped queries   KVH < H heads of keys and values: query head h reads kv head h / (H/KVH), rounded down.
//     (Ainslie et al. 2023, arXiv 2305.13245) A key is then read by H/KVH heads, and its gradient adds all of them
//     up: the chains of dk and dv run over the heads of the group and, within a head, over queries.
//   Window W          query i sees keys i-W < j <= i, and key j is seen by queries j <= i < j+W: chains are shorter.
//     (Beltagy et al. 2020, arXiv 2004.05150)
//   Sigmoid           p_ij = sigmoid(s_ij + bias): each key is judged alone, and weights need not add up to 1.
//     (Ramapuram et al. 2024, arXiv 2409.04431) There is no m, l, lse (0 is written) and no delta, and
//     sigmoid' = sigmoid (1 - sigmoid):
//       o_id  = chain over keys of p_ij v_jd
//       ds_ij = (p_ij * (1 - p_ij)) * dp_ij
//   Sink              one more position e before the first key, which every query sees. Its logit e_i comes from:
//     learned for every head, without a value         (gpt-oss: Agarwal et al. 2025, arXiv 2508.10925)
//     a kv bias: q_i.k' / sqrt(D) of a learned key k', with a learned value v'      (Sun et al. 2024, arXiv 2402.17762)
//     A head that has nothing to say puts its weight there. It is the first link of the chains over keys:
//     m_i = max of e_i and the scores; p_ie = exp(e_i - m_i) begins l_i; fused(p_ie, v'_d, +0) begins o_id.
//     Backward treats it as a key: p_ie = exp(e_i - lse_i), ds_ie = p_ie * (dp_ie - delta_i) with dp_ie = the chain
//     over d of do_id v'_d, and fused(ds_ie, k'_d, +0) begins dq_id. Without v' dp_ie is +0; without k' or v' their
//     chains have no such link. p_ie and ds_ie are written: kernels/sinks.cu makes the gradients of its parameters from
//     them.
//
// shapes: q, o (B,T,H,D), k, v (B,T,KVH,D) f32; saves lse (B,H,T) | o, lse, dq, dk, dv are written, and p_ie and
//   ds_ie (B,H,T) of a sink. Time is that of T min(T, W) pairs.
// The forward's kernel is at the end of this file, backward's are in kernels/attention_backward.cu. In bf16 the
// operation has an order of its own, that of tensor cores.
// twins: kernels/cpu/attention_cpu.cpp, kernels/bf16/attention_bf16.cu, kernels/decode/cached_attention.cu
// --attn-score, --attn-sink, --window | tests/test_attention.cpp
#include "kernels/attention.h"

#include <vector>

#include "core/launch.cuh"
#include "kernels/attention_tile.cuh"

namespace gated {

// ---- reference: plain attention, sections 1 and 2

template <class Real>
void plain_attention_forward_ref(Real* o, Real* lse, const Real* q, const Real* k, const Real* v, size_t B, size_t T,
                                 size_t H, size_t D) {
  const Real scale = attention_scale<Real>(D);
  std::vector<Real> score(T);
  for (size_t b = 0; b < B; b++)
    for (size_t h = 0; h < H; h++)
      for (size_t i = 0; i < T; i++) {
        const Real* q_i = q + ((b * T + i) * H + h) * D;
        Real* o_i = o + ((b * T + i) * H + h) * D;

        Real m = -INFINITY;
        for (size_t j = 0; j <= i; j++) {
          const Real* k_j = k + ((b * T + j) * H + h) * D;
          Real dot = 0;
          for (size_t d = 0; d < D; d++) dot = fused(q_i[d], k_j[d], dot);
          score[j] = dot * scale;
          m = max_of(score[j], m);
        }

        Real l = 0;
        for (size_t d = 0; d < D; d++) o_i[d] = 0;
        for (size_t j = 0; j <= i; j++) {
          const Real* v_j = v + ((b * T + j) * H + h) * D;
          const Real p = exact_exp(score[j] - m);
          l = l + p;
          for (size_t d = 0; d < D; d++) o_i[d] = fused(p, v_j[d], o_i[d]);
        }

        const Real inverse = Real(1) / l;
        for (size_t d = 0; d < D; d++) o_i[d] = o_i[d] * inverse;
        lse[(b * H + h) * T + i] = m + exact_log(l);
      }
}
IN_FLOAT_AND_DOUBLE(plain_attention_forward_ref);

// One walk over the pairs serves all three gradients: dq_i meets its keys in ascending order, and dk_j and dv_j meet
// their queries in ascending order.
template <class Real>
void plain_attention_backward_ref(Real* dq, Real* dk, Real* dv, const Real* dout, const Real* q, const Real* k,
                                  const Real* v, const Real* o, const Real* lse, size_t B, size_t T, size_t H,
                                  size_t D) {
  const Real scale = attention_scale<Real>(D);
  for (size_t n = 0; n < B * T * H * D; n++) dq[n] = dk[n] = dv[n] = 0;
  for (size_t b = 0; b < B; b++)
    for (size_t h = 0; h < H; h++)
      for (size_t i = 0; i < T; i++) {
        const size_t query = ((b * T + i) * H + h) * D;
        Real delta = 0;
        for (size_t d = 0; d < D; d++) delta = fused(dout[query + d], o[query + d], delta);
        for (size_t j = 0; j <= i; j++) {
          const size_t key = ((b * T + j) * H + h) * D;
          Real dot = 0, dp = 0;
          for (size_t d = 0; d < D; d++) dot = fused(q[query + d], k[key + d], dot);
          for (size_t d = 0; d < D; d++) dp = fused(dout[query + d], v[key + d], dp);
          const Real p = exact_exp(dot * scale - lse[(b * H + h) * T + i]);
          const Real ds = p * (dp - delta);
          for (size_t d = 0; d < D; d++) {
            dq[query + d] = fused(ds, k[key + d], dq[query + d]);
            dk[key + d] = fused(ds, q[query + d], dk[key + d]);
            dv[key + d] = fused(p, dout[query + d], dv[key + d]);
          }
        }
      }
  for (size_t n = 0; n < B * T * H * D; n++) {
    dq[n] = scale * dq[n];
    dk[n] = scale * dk[n];
  }
}
IN_FLOAT_AND_DOUBLE(plain_attention_backward_ref);

// ---- reference: with the variants of section 3. On plain attention it gives the bits of the plain one.

template <class Real>
static Real chain_dot(const Real* x, const Real* y, size_t D) {
  Real sum = 0;
  for (size_t d = 0; d < D; d++) sum = fused(x[d], y[d], sum);
  return sum;
}

// One link of the D chains of a row.
template <class Real>
static void add_link(Real* row, Real weight, const Real* x, size_t D) {
  for (size_t d = 0; d < D; d++) row[d] = fused(weight, x[d], row[d]);
}

template <class Real>
void attention_forward_ref(Real* o, Real* lse, const Real* q, const Real* k, const Real* v, const AttentionShape& s,
                           const SinkOf<Real>& sink) {
  const Real scale = attention_scale<Real>(s.divisor());
  std::vector<Real> score(s.T);
  for (size_t b = 0; b < s.B; b++)
    for (size_t h = 0; h < s.H; h++)
      for (size_t i = 0; i < s.T; i++) {
        const size_t kv_head = h / s.group();
        const Real* q_i = q + s.q_row(b, i, h);
        Real* o_i = o + s.q_row(b, i, h);

        Real m = sink.logit_of(s, b, h, i);  // -inf without a sink
        for (size_t j = s.first_key(i); j <= i; j++) {
          score[j] = chain_dot(q_i, k + s.kv_row(b, j, kv_head), s.D) * scale;
          m = max_of(score[j], m);
        }

        Real l = 0;
        for (size_t d = 0; d < s.D; d++) o_i[d] = 0;
        if (sink.logit) {
          l = exact_exp(sink.logit_of(s, b, h, i) - m);
          if (sink.value) add_link(o_i, l, sink.value + h * s.D, s.D);
        }
        for (size_t j = s.first_key(i); j <= i; j++) {
          const Real p = s.sigmoid() ? exact_sigmoid(score[j] + Real(s.bias)) : exact_exp(score[j] - m);
          l = l + p;
          add_link(o_i, p, v + s.kv_row(b, j, kv_head), s.D);
        }

        if (s.sigmoid()) {
          lse[s.stat(b, h, i)] = 0;
        } else {
          const Real inverse = Real(1) / l;
          for (size_t d = 0; d < s.D; d++) o_i[d] = o_i[d] * inverse;
          lse[s.stat(b, h, i)] = m + exact_log(l);
        }
      }
}
IN_FLOAT_AND_DOUBLE(attention_forward_ref);

template <class Real>
void attention_backward_ref(Real* dq, Real* dk, Real* dv, Real* sink_p, Real* sink_ds, const Real* dout, const Real* q,
                            const Real* k, const Real* v, const Real* o, const Real* lse, const AttentionShape& s,
                            const SinkOf<Real>& sink) {
  const Real scale = attention_scale<Real>(s.divisor());
  const size_t keys = s.B * s.T * s.kv_step();
  for (size_t n = 0; n < keys; n++) dk[n] = dv[n] = 0;

  for (size_t b = 0; b < s.B; b++)
    for (size_t h = 0; h < s.H; h++)  // the heads of a group in ascending order
      for (size_t i = 0; i < s.T; i++) {
        const size_t kv_head = h / s.group(), query = s.q_row(b, i, h), stat = s.stat(b, h, i);
        const Real* do_i = dout + s.q_row(b, i, h);
        const Real delta = chain_dot(do_i, o + s.q_row(b, i, h), s.D);
        for (size_t d = 0; d < s.D; d++) dq[query + d] = 0;
        if (sink.logit) {
          const Real dp = sink.value ? chain_dot(do_i, sink.value + h * s.D, s.D) : Real(0);
          sink_p[stat] = exact_exp(sink.logit_of(s, b, h, i) - lse[stat]);
          sink_ds[stat] = sink_p[stat] * (dp - delta);
          if (sink.key) add_link(dq + query, sink_ds[stat], sink.key + h * s.D, s.D);
        }
        for (size_t j = s.first_key(i); j <= i; j++) {
          const size_t key = s.kv_row(b, j, kv_head);
          const Real score = chain_dot(q + query, k + key, s.D) * scale, dp = chain_dot(do_i, v + key, s.D);
          const Real p = s.sigmoid() ? exact_sigmoid(score + Real(s.bias)) : exact_exp(score - lse[stat]);
          const Real ds = s.sigmoid() ? (p * (Real(1) - p)) * dp : p * (dp - delta);
          add_link(dq + query, ds, k + key, s.D);
          add_link(dk + key, ds, q + query, s.D);
          add_link(dv + key, p, do_i, s.D);
        }
        for (size_t d = 0; d < s.D; d++) dq[query + d] = scale * dq[query + d];
      }

  for (size_t n = 0; n < keys; n++) dk[n] = scale * dk[n];
}
IN_FLOAT_AND_DOUBLE(attention_backward_ref);

// ---- the forward's kernel
//
// A block owns 64 queries of one head and walks twice over the tiles of 64 keys that they see:
//
//                    keys
//            tile 0    tile 1    tile 2
//          +---------+---------+---------+
//  queries |  whole  |  whole  | \       |    walk 1: scores, for the maximum alone
//   of the |         |         |   \     |    walk 2: scores again, their exponentials, and the sums over values
//    block |         |         |     \   |    tiles past the diagonal are never visited
//          +---------+---------+---------+
//
// Three products a pair. Which thread holds which scores, and how a product goes through shared memory, is drawn in
// kernels/attention_tile.cuh. A row of scores lies across 8 threads, so its maximum takes three shuffles. Its sum l
// is one chain, which one thread adds up: thread t of the first 64 walks down the weights of row t.
//
// Each product reads 64 x D keys or values for its 64 x 64 x D multiply-adds, and scores read as many of the queries
// again: about 10 multiply-adds for every byte. Most come out of the L2 cache, where the blocks of a head find the same
// keys.
//
// Sigmoid needs no walk 1. The code writes -bias for m and 1 for 1/l: s - -b is s + b, and x * 1 is x.
// Plain attention: logit_of() is -inf and so p_sink +0, s.sigmoid() is false, kv_head is h, first_tile is 0.

// Grid (B*H, tiles): the last queries see the most keys and start first.
template <bool aligned, int columns>
__global__ void __launch_bounds__(attention::threads, attention::blocks_an_sm(columns))
    attention_forward_kernel(float* o, float* lse, const float* q, const float* k, const float* v, AttentionShape s,
                             Sink sink, float scale) {
  using namespace attention;
  DYNAMIC_SHARED(Shared, shared);
  const size_t b = blockIdx.x / s.H, h = blockIdx.x % s.H, kv_head = h / s.group();
  const size_t i0 = size_t(gridDim.y - 1 - blockIdx.y) * tile, end = i0 + tile < s.T ? i0 + tile : s.T;
  const size_t first_tile = s.first_key(i0) / tile * tile;
  const Rows queries{q + s.q_row(b, 0, h), s.q_step(), s.T};
  const Rows keys{k + s.kv_row(b, 0, kv_head), s.kv_step(), s.T}, values{v + s.kv_row(b, 0, kv_head), s.kv_step(), s.T};

  // Walk 1. A thread takes the maximum of the scores that it holds; then the 8 threads of a row, which are
  // neighbouring lanes, exchange theirs. Without a sink m starts at -inf.
  float score[4][8], sink_logit[4], m[4];
  for (int r = 0; r < 4; r++) m[r] = sink_logit[r] = sink.logit_of(s, b, h, i0 + row_of_thread() + r);
  if (s.sigmoid()) {
    for (int r = 0; r < 4; r++) m[r] = -s.bias;
  } else {
    for (size_t j0 = first_tile; j0 < end; j0 += tile) {
      product<aligned>(score, queries, i0, keys, j0, s.D, *shared);
      const Mask seen = rows_are_queries(s, i0, j0);
      for (int r = 0; r < 4; r++)
        for (int c = 0; c < 8; c++)
          if (seen(row_of_thread() + r, column_of_thread(c))) m[r] = max_of(score[r][c] * scale, m[r]);
    }
    for (int r = 0; r < 4; r++)
      for (int flip = 4; flip > 0; flip /= 2) m[r] = max_of(m[r], __shfl_xor_sync(0xffffffffu, m[r], flip));
  }

  // The sink is the first link of every chain. Without one its weight is exp(-inf) = +0, where chains start anyway.
  float p_sink[4];
  for (int r = 0; r < 4; r++) p_sink[r] = exact_exp(sink_logit[r] - m[r]);
  if (threadIdx.x % 8 == 0)
    for (int r = 0; r < 4; r++) shared->row_sum[row_of_thread() + r] = p_sink[r];
  float acc[4][columns / 8];
  begin_chains<columns>(acc, p_sink, sink.value ? sink.value + h * s.D : nullptr, s.D);

  // Walk 2.
  for (size_t j0 = first_tile; j0 < end; j0 += tile) {
    product<aligned>(score, queries, i0, keys, j0, s.D, *shared);
    for (int r = 0; r < 4; r++)
      for (int c = 0; c < 8; c++) score[r][c] = score[r][c] * scale - m[r];
    weights_p(*shared, s.score, score);
    const Mask seen = rows_are_queries(s, i0, j0);
    accumulate<aligned, columns>(acc, values, j0, 0, s.D, seen, *shared);
    // No barrier here: weights are next written after the barriers of the next product, which wait for these threads
    // too. row_sum was begun by other threads; the barriers of product and accumulate lie between.
    if (threadIdx.x < tile && !s.sigmoid()) {
      float l = shared->row_sum[threadIdx.x];
      for (int key = 0; key < tile; key++)
        if (seen(threadIdx.x, key)) l = l + shared->weight[key * pitch + threadIdx.x];
      shared->row_sum[threadIdx.x] = l;
    }
  }

  __syncthreads();  // a row's sum was made by another thread
  for (int r = 0; r < 4; r++) {
    const size_t i = i0 + row_of_thread() + r;
    const float l = shared->row_sum[row_of_thread() + r], inverse = s.sigmoid() ? 1.0f : 1.0f / l;
    for (int c = 0; c < columns / 8; c++) acc[r][c] = acc[r][c] * inverse;
    if (i < s.T && threadIdx.x % 8 == 0) lse[s.stat(b, h, i)] = s.sigmoid() ? 0.0f : m[r] + exact_log(l);
  }
  store_tile<aligned, columns>(o + s.q_row(b, 0, h), s.q_step(), s.T, i0, 0, s.D, acc);
}

// ---- launchers

void attention_require(const char* name, const AttentionShape& s, const Sink& sink) {
  require(s.T > 0 && s.D > 0, "%s: %zu tokens of head dimension %zu, expected at least 1 of each", name, s.T, s.D);
  require(s.KVH > 0 && s.H % s.KVH == 0, "%s: %zu query heads over %zu kv heads, expected a multiple of the kv heads",
          name, s.H, s.KVH);
  require(s.D <= 256, "%s: head dimension %zu, expected at most 256; use more heads", name, s.D);
  require(sink.logit || (!sink.key && !sink.value), "%s: a sink's key or value without its logit", name);
  require(!sink.logit || !s.sigmoid(),
          "%s: a sink with sigmoid scores, expected softmax: nothing else competes with it", name);
}

void attention_forward(float* o, float* lse, const float* q, const float* k, const float* v, const AttentionShape& s,
                       const Sink& sink, Context& ctx) {
  attention_require("attention_forward", s, sink);
  if (ctx.device == Device::cpu) return attention_forward_cpu(o, lse, q, k, v, s, sink, ctx);
  const bool aligned = attention::rows_are_aligned(s, {o, q, k, v});
  const dim3 grid(grid_of(s.B * s.H).x, grid_tiles("attention_forward", s.T, attention::tile));
  attention::by_columns(s.D, [&]<int columns>() {
    launch(aligned ? attention_forward_kernel<true, columns> : attention_forward_kernel<false, columns>, grid,
           attention::threads, sizeof(attention::Shared), ctx, o, lse, q, k, v, s, sink,
           attention_scale<float>(s.divisor()));
  });
}

size_t attention_forward_scratch(const AttentionShape& s, Device device) {
  return device == Device::cpu ? attention_forward_cpu_scratch(s) : 0;
}

}  // namespace gated
