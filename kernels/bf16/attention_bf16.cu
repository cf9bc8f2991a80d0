// attention_bf16: the attention of kernels/attention.cu over bf16 arrays, on tensor cores
//                                           (FlashAttention-2: Dao 2023, arXiv 2307.08691)
//
// Maths, backward and variants are those of kernels/attention.cu. What differs is the arithmetic: products are chains
// of a tensor core's instructions, each 16 products at once in an arithmetic known to the bit (core/mma.h), and weights
// are rounded to bf16 before they multiply values. And the keys are read once: a chain cannot wait for the largest
// score of all.
//
// 1. The online softmax (Milakov and Gimelshein 2018, arXiv 1805.02867). Keys come block by block; kept of all so far:
//     m = max of the scores,   l = sum of e^(s - m),   o = sum of e^(s - m) v
//   A block whose largest score is m* makes m' = max(m, m*). As e^(s - m') = e^(s - m) e^(m - m'), the sums over the
//   keys before it are put right by one factor, and its own terms are added:
//     alpha = e^(m - m')
//     l' = l alpha + sum over the block of e^(s - m')
//     o' = o alpha + sum over the block of e^(s - m') v
//   After the last block o / l is the output and m + log l is lse.
//   Each product with alpha rounds, so which keys make a block is a part of the result: it is fixed below, for every
//   device.
//   Every e^x is 2^(x log2 e), and scores are made in base two at once: a multiplication a score that is there anyway.
//   2^x then needs not much more than a weight's 8 bits. The exact e^x took two thirds of the forward's instructions.
//
// 2. What is computed, to the last bit. A chain is c = step(c, x, y) over 16 products at a time, in ascending order.
//   Queries and keys stand in tiles of 64 x 64, both from multiples of 64 on. A tile takes part if some pair of it is
//   visible, and then as a whole: a pair of it that is not visible is masked. After the last token a tile holds zeros,
//   whose pairs are masked.
//     c_ij    = chain over d of q_id k_jd, from +0                    of a visible pair; -inf of a masked one
//     a       = scale * log2 e                                        exp2: short_exp2, to 2^-18 (core/math.cuh)
//   For query i, tile by tile in ascending order of keys, from m = -inf, l = 0 and o = 0:
//     m'      = max of m and a * (the largest c_ij of the tile);      b = m', or 0 where m' is -inf
//     alpha   = exp2(m - b)
//     p_ij    = exp2(fused(c_ij, a, -b))                              so a masked pair has the weight +0
//     l       = fused(l, alpha, sum of p_ij), where key j of the tile is added to sum j mod 8, each in ascending
//               order, and the eight as ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7))
//     o_id    = chain over the tile's keys of P_ij v_jd, from o_id * alpha; P is p rounded to bf16
//   and at the end
//     o_id    = o_id * (1 / l), rounded to bf16                       lse_i = fused(m, ln 2, log(l))
//   Only P is rounded, not what l adds up: the errors of P average out over keys.
//   A sink stands before the first tile: m is its logit * log2 e, l is 1 and o_id its value, or 0.
//   A gate of the output (kernels/gate.cu) is applied to the rounded o, so it may be applied here or by gate_forward.
//   Sigmoid: p_ij = sigmoid(fused(c_ij, scale, bias)), alpha and l are 1, lse_i is 0.
//
//   Backward
//     delta_i = sum over d of do_id o_id, in floats: element d is a link (fused) of chain d/8 mod 8, the eight are
//     added as above
//     p_ij    = exp2(fused(c_ij, a, -lse_i * log2 e)), 0 of a masked pair; P_ij as above
//     dp_ij   = chain over d of do_id v_jd, from +0
//     ds_ij   = p_ij * (dp_ij - delta_i), 0 of a masked pair; dS is ds rounded to bf16
//     dq_id   = scale * (chain over keys of dS_ij k_jd)
//     dk_jd   = scale * (chain over queries of dS_ij q_id)
//     dv_jd   = chain over queries of P_ij do_id
//   each rounded to bf16 at the end. Chains run over the tiles that take part; those of dk and dv over the query heads
//   of the group and, within a head, over queries.
//   A sink: p_ie = exp(e_i - lse_i), ds_ie = p_ie * (dp_ie - delta_i), dp_ie the sum over d of do_id v'_d in the order
//   of delta; fused(ds_ie, k'_d, 0) begins dq_id.
//   Sigmoid: base -bias in the place of lse_i, no delta, ds_ij = (p_ij * (1 - p_ij)) * dp_ij.
//
// 3. What a masked pair may change. Its products are 0, and a term that is 0 changes no bit of a step (core/mma.h). So
//   keys and values that a query does not see change no bit of it, as long as they are finite; an infinite one or a NaN
//   makes the queries of its tile NaN. From scores of 2^30 on a weight means nothing: b is rounded by more than the
//   exponents that there are.
//
// shapes: q, o (B,T,H,D), k, v (B,T,KVH,D) bf16; saves lse (B,H,T) float | o, lse, dq, dk, dv are written, and p_ie and
//   ds_ie (B,H,T) of a sink
// The forward's kernel is at the end of this file, backward's are in kernels/bf16/attention_bf16_backward.cu. On the
// CPU: kernels/cpu/attention_bf16_cpu.cpp, the same bits (and the gate by gate_forward) | tests/test_attention_bf16.cpp
#include "kernels/bf16/attention_bf16.h"

#include <vector>

#include "core/launch.cuh"
#include "kernels/bf16/attention_bf16_tile.cuh"
#include "kernels/bf16/attention_wgmma.h"

namespace gated {

// ---- reference

// A chain from c over n products, n a multiple of 16: x and y lie so many elements apart, and y holds 0 from `there`
// on.
static float chain_of(float c, const bf16* x, size_t x_step, const bf16* y, size_t y_step, size_t there, size_t n,
                      MmaArithmetic arithmetic) {
  for (size_t k = 0; k < n; k += mma_depth) {
    bf16 a[mma_depth] = {}, b[mma_depth] = {};
    for (size_t i = 0; i < mma_depth; i++) {
      a[i] = x[(k + i) * x_step];
      if (k + i < there) b[i] = y[(k + i) * y_step];
    }
    c = mma_ref(c, a, b, arithmetic);
  }
  return c;
}

void attention_bf16_forward_ref(bf16* o, float* lse, const bf16* q, const bf16* k, const bf16* v,
                                const AttentionShape& s, const Sink& sink, MmaArithmetic arithmetic) {
  using namespace attention_bf16;
  const float scale = weight_scale(s);
  std::vector<float> sum(s.D);
  for (size_t b = 0; b < s.B; b++)
    for (size_t h = 0; h < s.H; h++)
      for (size_t i = 0; i < s.T; i++) {
        const size_t kv_head = h / s.group();
        float m = first_max(sink, s, b, h, i), l = sink.logit ? 1 : 0;
        for (size_t d = 0; d < s.D; d++) sum[d] = sink.value ? sink.value[h * s.D + d] : 0;

        for (size_t j0 = first_tile(s, i / block * block); j0 <= i; j0 += block) {
          float c[block], largest = -INFINITY;
          for (size_t n = 0; n < block; n++) {
            c[n] = -INFINITY;
            if (s.visible(i, j0 + n))
              c[n] = chain_of(0, q + s.q_row(b, i, h), 1, k + s.kv_row(b, j0 + n, kv_head), 1, s.D, s.D, arithmetic);
            largest = max_of(c[n], largest);
          }
          float base = -s.bias, alpha = 1;
          if (!s.sigmoid()) {
            const float before = m;
            m = max_of(largest * scale, m);
            base = finite_max(m);
            alpha = short_exp2(before - base);
          }

          float added[8] = {};
          bf16 P[block];
          for (size_t n = 0; n < block; n++) {
            const float p = weight_of(s.score, c[n], scale, base);
            added[n % 8] = added[n % 8] + p;
            P[n] = bf16(p);
          }
          l = fused(l, alpha, sum_of_eight(added));
          for (size_t d = 0; d < s.D; d++)
            sum[d] = chain_of(sum[d] * alpha, P, 1, v + s.kv_row(b, j0, kv_head) + d, s.kv_step(), s.T - j0, block,
                              arithmetic);
        }

        const float inverse = s.sigmoid() ? 1 : 1 / l;
        for (size_t d = 0; d < s.D; d++) o[s.q_row(b, i, h) + d] = bf16(sum[d] * inverse);
        lse[s.stat(b, h, i)] = s.sigmoid() ? 0 : lse_of(m, l);
      }
}

void attention_bf16_backward_ref(bf16* dq, bf16* dk, bf16* dv, float* sink_p, float* sink_ds, const bf16* dout,
                                 const bf16* q, const bf16* k, const bf16* v, const bf16* o, const float* lse,
                                 const AttentionShape& s, const Sink& sink, MmaArithmetic arithmetic) {
  using namespace attention_bf16;
  const float scale = attention_scale<float>(s.divisor()), for_weight = weight_scale(s);
  std::vector<float> delta(s.T), dq_sum(block * s.D), dk_sum(s.T * s.D), dv_sum(s.T * s.D);
  for (size_t b = 0; b < s.B; b++)
    for (size_t kv_head = 0; kv_head < s.KVH; kv_head++) {
      std::fill(dk_sum.begin(), dk_sum.end(), 0.0f);
      std::fill(dv_sum.begin(), dv_sum.end(), 0.0f);
      for (size_t h = kv_head * s.group(); h < (kv_head + 1) * s.group(); h++)
        for (size_t i0 = 0; i0 < s.T; i0 += block) {
          const size_t count = s.T - i0 < block ? s.T - i0 : block;
          const bf16 *const queries = q + s.q_row(b, i0, h), *const douts = dout + s.q_row(b, i0, h);
          for (size_t m = 0; m < count; m++) {
            const size_t i = i0 + m, stat = s.stat(b, h, i);
            const bf16* const do_i = dout + s.q_row(b, i, h);
            delta[i] = s.sigmoid() ? 0 : row_dot(do_i, o + s.q_row(b, i, h), s.D);
            float ds = 0;
            if (sink.logit) {
              const float p = exact_exp(sink.logit_of(s, b, h, i) - lse[stat]);
              ds = p * ((sink.value ? row_dot(do_i, sink.value + h * s.D, s.D) : 0) - delta[i]);
              sink_p[stat] = p;
              sink_ds[stat] = ds;
            }
            for (size_t d = 0; d < s.D; d++)
              dq_sum[m * s.D + d] = sink.key ? fused(ds, sink.key[h * s.D + d], 0.0f) : 0;
          }

          for (size_t j0 = first_tile(s, i0); j0 <= i0; j0 += block) {
            const bf16 *const keys = k + s.kv_row(b, j0, kv_head), *const values = v + s.kv_row(b, j0, kv_head);
            bf16 P[block][block] = {}, dS[block][block] = {};
            for (size_t m = 0; m < count; m++)
              for (size_t n = 0; n < block; n++) {
                const size_t i = i0 + m;
                if (!s.visible(i, j0 + n)) continue;
                const bf16 *const key = keys + n * s.kv_step(), *const value = values + n * s.kv_step();
                const float c = chain_of(0, queries + m * s.q_step(), 1, key, 1, s.D, s.D, arithmetic);
                const float dp = chain_of(0, douts + m * s.q_step(), 1, value, 1, s.D, s.D, arithmetic);
                const float p = weight_of(s.score, c, for_weight, weight_base(s, lse, b, h, i));
                P[m][n] = bf16(p);
                dS[m][n] = bf16(gradient_of(s.score, p, dp, delta[i]));
              }
            for (size_t d = 0; d < s.D; d++) {
              for (size_t m = 0; m < count; m++) {
                float& sum = dq_sum[m * s.D + d];
                sum = chain_of(sum, dS[m], 1, keys + d, s.kv_step(), s.T - j0, block, arithmetic);
              }
              for (size_t n = 0; n < block && j0 + n < s.T; n++) {
                float &dk_nd = dk_sum[(j0 + n) * s.D + d], &dv_nd = dv_sum[(j0 + n) * s.D + d];
                dk_nd = chain_of(dk_nd, &dS[0][n], block, queries + d, s.q_step(), count, block, arithmetic);
                dv_nd = chain_of(dv_nd, &P[0][n], block, douts + d, s.q_step(), count, block, arithmetic);
              }
            }
          }
          for (size_t m = 0; m < count; m++)
            for (size_t d = 0; d < s.D; d++) dq[s.q_row(b, i0 + m, h) + d] = bf16(scale * dq_sum[m * s.D + d]);
        }
      for (size_t j = 0; j < s.T; j++)
        for (size_t d = 0; d < s.D; d++) {
          dk[s.kv_row(b, j, kv_head) + d] = bf16(scale * dk_sum[j * s.D + d]);
          dv[s.kv_row(b, j, kv_head) + d] = bf16(dv_sum[j * s.D + d]);
        }
    }
}

// ---- the forward's kernel
//
// A block owns 64 queries of one head, a warp 16 of them, and walks over the tiles of keys. Scores become weights in
// the registers where the tensor core left them, and are its left factor there (kernels/bf16/attention_bf16_tile.cuh).
//
// Shared memory holds the queries, one tile of keys and one of values. While one of the two is multiplied, the other is
// copied:
//
//    keys      copied | c = q k                |  copied (the next)              | c = q k
//    values           | copied                 | softmax | o = o alpha + P v     | copied (the next)
//              .......A........................B.................................A......
//
//   A   the keys are there, for every thread; every warp has multiplied the values before, which are now overwritten
//   B   the values are there, for every thread; every warp has multiplied the keys
// A lane has numbers of two rows of queries, so it keeps m and l of two; the four lanes of a quad have the same.
//
// At the end the output passes through the place of the queries, so that a warp writes whole rows. There it meets the
// logits of a gate: a kernel of its own would read it again.

// Grid (B*H, tiles): the last queries see the most keys and start first.
template <int columns, bool whole>
__global__ void __launch_bounds__(attention_bf16::threads, attention_bf16::blocks_an_sm(columns))
    attention_bf16_forward_kernel(bf16* o, float* lse, const bf16* q, const bf16* k, const bf16* v, AttentionShape s,
                                  Sink sink, float scale, OutputGate gate) {
  using namespace attention_bf16;
  DYNAMIC_SHARED(bf16, shared);
  using Rows64 = RowTile<columns, whole>;
  bf16 *const queries_tile = shared, *const keys_tile = queries_tile + block * columns,
              *const values_tile = keys_tile + block * columns;
  const size_t b = blockIdx.x / s.H, h = blockIdx.x % s.H, kv_head = h / s.group();
  const size_t i0 = size_t(gridDim.y - 1 - blockIdx.y) * block, first = first_tile(s, i0);
  const Rows queries{q + s.q_row(b, 0, h), s.q_step(), s.T};
  const Rows keys{k + s.kv_row(b, 0, kv_head), s.kv_step(), s.T}, values{v + s.kv_row(b, 0, kv_head), s.kv_step(), s.T};

  AsyncCopies copies;
  Rows64::copy(queries_tile, queries, i0, block, s.D, copies);
  Rows64::copy(keys_tile, keys, first, block, s.D, copies);
  copies.commit();

  float m[2], l[2];
  MmaC sum[columns / 8];
  for (int r = 0; r < 2; r++) {
    m[r] = first_max(sink, s, b, h, i0 + row_of_lane(r));
    l[r] = sink.logit ? 1.0f : 0.0f;
  }
#pragma unroll
  for (int n = 0; n < columns / 8; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const size_t d = column_of_lane(n, e);
      sum[n].x[e] = sink.value && d < s.D ? sink.value[h * s.D + d] : 0.0f;
    }

  for (size_t j0 = first; j0 <= i0; j0 += block) {
    copies.template wait<0>();
    __syncthreads();  // A
    Rows64::copy(values_tile, values, j0, block, s.D, copies);
    copies.commit();
    MmaC score[block / 8] = {};
    Rows64::template product<block>(score, Rows64::own(queries_tile), keys_tile, s.D);
    if (const Mask seen(s, i0, block, j0, block); !seen.all()) {
#pragma unroll
      for (int n = 0; n < int(block) / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
          if (!seen(row_of_lane(e / 2), column_of_lane(n, e))) score[n].x[e] = -INFINITY;
    }
    copies.template wait<0>();
    __syncthreads();  // B
    if (j0 < i0) Rows64::copy(keys_tile, keys, j0 + block, block, s.D, copies);
    copies.commit();

    float alpha[2];
    online_softmax(score, m, l, alpha, s.score, s.bias, scale);
#pragma unroll
    for (int n = 0; n < columns / 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) sum[n].x[e] = sum[n].x[e] * alpha[e / 2];
    Rows64::template accumulate<block>(sum, score, values_tile, 0, s.D);
  }

  end_forward<Rows64>(o, lse, sum, m, l, s, b, h, i0, queries_tile, gate);
}

// ---- launchers

void attention_bf16::require_shape(const char* name, const AttentionShape& s, const Sink& sink,
                                   std::initializer_list<const bf16*> arrays) {
  attention_require(name, s, sink);
  require(s.D % mma_depth == 0, "%s: head dimension %zu, expected a multiple of 16, the depth of a tensor core's step",
          name, s.D);
  require_boundaries(name, arrays);
}

void attention_bf16_forward(bf16* o, float* lse, const bf16* q, const bf16* k, const bf16* v, const AttentionShape& s,
                            const Sink& sink, Context& ctx, const OutputGate& gate) {
  using namespace attention_bf16;
  require_shape("attention_bf16_forward", s, sink, {o, q, k, v, gate.y, gate.z});
  if (gate.y) {
    require_gate("attention_bf16_forward", gate.op);
    require(gate.group == 1 || gate.group == s.D,
            "attention_bf16_forward: a logit for %zu elements, expected 1 or the head dimension, %zu", gate.group, s.D);
  }
  if (ctx.device == Device::cpu) {
    attention_bf16_forward_cpu(o, lse, q, k, v, s, sink, ctx);
    if (gate.y) gate_forward_cpu(gate.y, o, gate.z, s.B * s.T, s.H * s.D, gate.group, gate.op);
    return;
  }
  emulate_mma(ctx);
  if (attention_wgmma_forward(o, lse, q, k, v, s, sink, ctx, gate)) return;
  const dim3 grid(grid_of(s.B * s.H).x, grid_tiles("attention_bf16_forward", s.T, block));
  by_room(s.D, [&]<int columns, bool whole>() {
    launch(attention_bf16_forward_kernel<columns, whole>, grid, threads, 3 * block * columns * sizeof(bf16), ctx, o,
           lse, q, k, v, s, sink, weight_scale(s), gate);
  });
}

size_t attention_bf16_forward_scratch(const AttentionShape& s, Device device) {
  return device == Device::cpu ? attention_bf16_forward_cpu_scratch(s) : 0;
}

}  // namespace gated
