// attention_backward: the kernels of attention's backward. Maths, order of the sums and references:
// kernels/attention.cu. The tile and its two products, drawn: kernels/attention_tile.cuh
//
// Three kernels, one after the other:
//   query   delta_i = do_i.o_i, and p_ie and ds_ie of a sink               one thread a query
//   dq      dq_i   = scale * chain over keys of ds_ij k_j                  a block has 64 queries, walks over keys
//   dkdv    dk_j, dv_j = chains over queries of ds_ij q_i and p_ij do_i    a block has 64 keys, walks over queries
// Both of the latter make p and ds of a tile anew: 3 products a pair and 4, where one kernel for all three gradients
// would need 5. But its blocks would all have to add to the same dq, in an order that nobody fixes (atomic
// additions), or wait for each other. So every output has one owner, and its chain one order.
//
// `product`, `accumulate` and `weight` are those of attention_tile.cuh.
// A tile of a backward kernel, in registers (dot) and in shared memory (weight):
//   dot <- product(q, k)        weight <- p = exp(scale * dot - lse)
//   dot <- product(do, v)       weight <- ds = p * (dot - delta)
//   acc <- accumulate(weight, ...)
// dkdv accumulates dv between the two, while the weights are p.
//
// Sigmoid: -bias stands for lse and 0 for delta. s - -b is s + b, and x - 0 is x.
// twins: kernels/cpu/attention_cpu.cpp, kernels/bf16/attention_bf16_backward.cu
// tests/test_attention.cpp
#include "core/launch.cuh"
#include "kernels/attention_tile.cuh"

namespace gated {

namespace attention {

// Weights p become ds; dp_less_delta is dp - delta.
__device__ inline void weights_ds(Shared& shared, AttentionScore score, const float (&dp_less_delta)[4][8]) {
  if (score == AttentionScore::softmax) {
    for (int c = 0; c < 8; c++)
      for (int r = 0; r < 4; r++) weight(shared, r, c) = weight(shared, r, c) * dp_less_delta[r][c];
  } else {
    for (int c = 0; c < 8; c++)
      for (int r = 0; r < 4; r++) {
        const float p = weight(shared, r, c);
        weight(shared, r, c) = (p * (1.0f - p)) * dp_less_delta[r][c];
      }
  }
}

}  // namespace attention

// ---- kernels

__global__ void attention_backward_query_kernel(float* delta, float* sink_p, float* sink_ds, const float* dout,
                                                const float* o, const float* lse, AttentionShape s, Sink sink,
                                                bool aligned) {
  const size_t n = threadIdx.x + size_t(blockDim.x) * blockIdx.x;
  if (n >= s.B * s.H * s.T) return;
  const size_t b = n / (s.H * s.T), h = n / s.T % s.H, t = n % s.T, row = s.q_row(b, t, h);
  delta[n] = s.sigmoid() ? 0.0f : attention::row_dot(dout + row, o + row, s.D, aligned);
  if (!sink.logit) return;
  const float dp = sink.value ? attention::row_dot(dout + row, sink.value + h * s.D, s.D, aligned) : 0.0f;
  const float p = exact_exp(sink.logit_of(s, b, h, t) - lse[n]);
  sink_p[n] = p;
  sink_ds[n] = p * (dp - delta[n]);
}

// Rows are queries, as in the forward; so is the grid (B*H, tiles), the last queries first. lse and delta of its 4 rows
// are read for every tile: kept, they would cost 8 of the registers that acc and dot fill.
template <bool aligned, int columns>
__global__ void __launch_bounds__(attention::threads, attention::blocks_an_sm(columns))
    attention_backward_dq_kernel(float* dq, const float* dout, const float* q, const float* k, const float* v,
                                 const float* lse, const float* delta, const float* sink_ds, AttentionShape s,
                                 Sink sink, float scale) {
  using namespace attention;
  DYNAMIC_SHARED(Shared, shared);
  const size_t b = blockIdx.x / s.H, h = blockIdx.x % s.H, kv_head = h / s.group();
  const size_t i0 = size_t(gridDim.y - 1 - blockIdx.y) * tile, end = i0 + tile < s.T ? i0 + tile : s.T;
  const Rows queries{q + s.q_row(b, 0, h), s.q_step(), s.T}, douts{dout + s.q_row(b, 0, h), s.q_step(), s.T};
  const Rows keys{k + s.kv_row(b, 0, kv_head), s.kv_step(), s.T}, values{v + s.kv_row(b, 0, kv_head), s.kv_step(), s.T};

  float acc[4][columns / 8], dot[4][8], ds_sink[4] = {};
  if (sink.key)
    for (int r = 0; r < 4; r++) ds_sink[r] = s.of_query(sink_ds, b, h, i0 + row_of_thread() + r);
  begin_chains<columns>(acc, ds_sink, sink.key ? sink.key + h * s.D : nullptr, s.D);

  for (size_t j0 = s.first_key(i0) / tile * tile; j0 < end; j0 += tile) {
    product<aligned>(dot, queries, i0, keys, j0, s.D, *shared);
    float row_lse[4], row_delta[4];
    for (int r = 0; r < 4; r++) row_lse[r] = s.base_of(lse, b, h, i0 + row_of_thread() + r);
    for (int r = 0; r < 4; r++)
      for (int c = 0; c < 8; c++) dot[r][c] = dot[r][c] * scale - row_lse[r];
    weights_p(*shared, s.score, dot);
    product<aligned>(dot, douts, i0, values, j0, s.D, *shared);
    for (int r = 0; r < 4; r++) row_delta[r] = s.of_query(delta, b, h, i0 + row_of_thread() + r);
    for (int r = 0; r < 4; r++)
      for (int c = 0; c < 8; c++) dot[r][c] = dot[r][c] - row_delta[r];
    weights_ds(*shared, s.score, dot);
    accumulate<aligned, columns>(acc, keys, j0, 0, s.D, rows_are_queries(s, i0, j0), *shared);
  }
  for (auto& row : acc)
    for (float& sum : row) sum = scale * sum;
  store_tile<aligned, columns>(dq + s.q_row(b, 0, h), s.q_step(), s.T, i0, 0, s.D, acc);
}

// Rows are keys, columns are queries:
//
//                       queries
//             tile 0    tile 1    tile 2
//           +---------+---------+---------+
//    keys   | \       |  whole  |  whole  |   head h of the group, then head h + 1, ...
//   of the  |   \     |         |         |
//    block  |     \   |         |         |   tiles before the diagonal see none of these keys
//           +---------+---------+---------+
//
// Grid (B*KVH, tiles, columns): the first keys are seen by the most queries and start first. Both accumulators of 256
// columns would not fit the registers: a block takes at most 128, and makes the weights for them again.
template <bool aligned, int columns>
__global__ void __launch_bounds__(attention::threads, attention::blocks_an_sm(2 * columns))
    attention_backward_dkdv_kernel(float* dk, float* dv, const float* dout, const float* q, const float* k,
                                   const float* v, const float* lse, const float* delta, AttentionShape s,
                                   float scale) {
  using namespace attention;
  DYNAMIC_SHARED(Shared, shared);
  const size_t b = blockIdx.x / s.KVH, kv_head = blockIdx.x % s.KVH, column0 = size_t(blockIdx.z) * columns;
  const size_t j0 = size_t(blockIdx.y) * tile, end = j0 + tile < s.T ? j0 + tile : s.T;
  const Rows keys{k + s.kv_row(b, 0, kv_head), s.kv_step(), s.T}, values{v + s.kv_row(b, 0, kv_head), s.kv_step(), s.T};

  float dk_acc[4][columns / 8] = {}, dv_acc[4][columns / 8] = {}, dot[4][8];
  for (size_t h = kv_head * s.group(); h < (kv_head + 1) * s.group(); h++) {
    const Rows queries{q + s.q_row(b, 0, h), s.q_step(), s.T}, douts{dout + s.q_row(b, 0, h), s.q_step(), s.T};
    for (size_t i0 = j0; i0 < s.end_query(end - 1); i0 += tile) {
      const Mask seen = rows_are_keys(s, i0, j0);
      product<aligned>(dot, keys, j0, queries, i0, s.D, *shared);
      float column_lse[8], column_delta[8];
      for (int c = 0; c < 8; c++) column_lse[c] = s.base_of(lse, b, h, i0 + column_of_thread(c));
      for (int r = 0; r < 4; r++)
        for (int c = 0; c < 8; c++) dot[r][c] = dot[r][c] * scale - column_lse[c];
      weights_p(*shared, s.score, dot);
      accumulate<aligned, columns>(dv_acc, douts, i0, column0, s.D, seen, *shared);
      product<aligned>(dot, values, j0, douts, i0, s.D, *shared);
      for (int c = 0; c < 8; c++) column_delta[c] = s.of_query(delta, b, h, i0 + column_of_thread(c));
      for (int r = 0; r < 4; r++)
        for (int c = 0; c < 8; c++) dot[r][c] = dot[r][c] - column_delta[c];
      weights_ds(*shared, s.score, dot);
      accumulate<aligned, columns>(dk_acc, queries, i0, column0, s.D, seen, *shared);
    }
  }
  for (auto& row : dk_acc)
    for (float& sum : row) sum = scale * sum;
  store_tile<aligned, columns>(dk + s.kv_row(b, 0, kv_head), s.kv_step(), s.T, j0, column0, s.D, dk_acc);
  store_tile<aligned, columns>(dv + s.kv_row(b, 0, kv_head), s.kv_step(), s.T, j0, column0, s.D, dv_acc);
}

// ---- launchers

void attention_backward(float* dq, float* dk, float* dv, float* sink_p, float* sink_ds, const float* dout,
                        const float* q, const float* k, const float* v, const float* o, const float* lse,
                        const AttentionShape& s, const Sink& sink, Context& ctx) {
  attention_require("attention_backward", s, sink);
  if (ctx.device == Device::cpu)
    return attention_backward_cpu(dq, dk, dv, sink_p, sink_ds, dout, q, k, v, o, lse, s, sink, ctx);
  const float scale = attention_scale<float>(s.divisor());
  const size_t queries = s.B * s.H * s.T;
  float* delta = ctx.scratch(attention_backward_scratch(s, ctx.device) / sizeof(float));
  const bool aligned = attention::rows_are_aligned(s, {dq, dk, dv, dout, q, k, v, o, sink.value});
  const unsigned tiles = grid_tiles("attention_backward", s.T, attention::tile);

  launch(attention_backward_query_kernel, grid_of(ceil_div(queries, attention::threads)), attention::threads, 0, ctx,
         delta, sink_p, sink_ds, dout, o, lse, s, sink, aligned);
  attention::by_columns(s.D, [&]<int columns>() {
    constexpr int part = columns < 128 ? columns : 128;
    launch(aligned ? attention_backward_dq_kernel<true, columns> : attention_backward_dq_kernel<false, columns>,
           dim3(grid_of(s.B * s.H).x, tiles), attention::threads, sizeof(attention::Shared), ctx, dq, dout, q, k, v,
           lse, delta, sink_ds, s, sink, scale);
    launch(aligned ? attention_backward_dkdv_kernel<true, part> : attention_backward_dkdv_kernel<false, part>,
           dim3(grid_of(s.B * s.KVH).x, tiles, columns / part), attention::threads, sizeof(attention::Shared), ctx, dk,
           dv, dout, q, k, v, lse, delta, s, scale);
  });
}

// delta
size_t attention_backward_scratch(const AttentionShape& s, Device device) {
  return device == Device::cpu ? attention_backward_cpu_scratch(s) : s.B * s.H * s.T * sizeof(float);
}

}  // namespace gated
