// attention_bf16_backward: the kernels of attention_bf16's backward. Maths, what is computed and references:
// kernels/bf16/attention_bf16.cu. The two products, drawn: kernels/bf16/attention_bf16_tile.cuh
//
// Three kernels, one after the other, as in kernels/attention_backward.cu:
//   query   delta_i, and p_ie and ds_ie of a sink                    eight lanes a query
//   dq      dq_i       = scale * chain over keys of dS_ij k_j        a block has 64 queries, walks over keys
//   dkdv    dk_j, dv_j = chains over queries of dS_ij q_i, P_ij do_i a block has 64 keys, walks over queries
// So every output has one owner, and its chain one order; the price is that both of the latter make p and ds: 7
// products a pair where 5 would do. Compute capability 9.0 has dq and dkdv of its own for usual shapes:
// kernels/bf16/attention_wgmma.cu
//
// A block keeps two tiles of its own rows in shared memory, queries and do, or keys and values. The other two pass by
// in strips of 32 rows (16, where a row has more than 128 elements): chains have steps of 16, so strips of a tile, one
// after the other, are the tile. There are two pairs of strips. While one is multiplied, the copies of the next are
// under way:
//
//    pair       0           1           0           1
//    strip      0           1           2           3       ...
//             wait        wait        wait
//             | barrier | | barrier | | barrier |
//             copy 1      copy 2      copy 3
//             multiply 0  multiply 1  multiply 2
//
// One barrier a strip: it says that every thread's copies of strip n are there, and that every warp has multiplied
// strip n-1, whose pair the copy of strip n+1 overwrites.
//
// Scores of a strip are 16 x 32 numbers a warp: they stay in registers, become p and ds there, and are the left factor
// of the products that follow. In dkdv rows are keys: what it makes are the transposes of scores, P and dS.
// tests/test_attention_bf16.cpp
#include "core/launch.cuh"
#include "kernels/bf16/attention_bf16_tile.cuh"
#include "kernels/bf16/attention_wgmma.h"

namespace gated {

namespace attention_bf16 {

constexpr int strip_rows(int columns) {
  return columns <= 128 ? 32 : 16;
}

// Two tiles of a block's own rows, and two pairs of strips of the others.
template <int columns, bool whole>
struct Backward {
  using Rows64 = RowTile<columns, whole>;
  static constexpr int strip = strip_rows(columns);
  bf16 *own_a, *own_b, *strips;
  AsyncCopies copies;

  __device__ explicit Backward(bf16* shared)
      : own_a(shared), own_b(own_a + block * columns), strips(own_b + block * columns) {}
  __device__ bf16* strip_a(size_t n) const { return strips + n % 2 * 2 * strip * columns; }
  __device__ bf16* strip_b(size_t n) const { return strip_a(n) + strip * columns; }
  __device__ void copy_own(const Rows& a, const Rows& b, size_t row0, size_t D) {
    Rows64::copy(own_a, a, row0, block, D, copies);
    Rows64::copy(own_b, b, row0, block, D, copies);
  }
  __device__ void copy_strips(size_t n, const Rows& a, const Rows& b, size_t row0, size_t D) {
    Rows64::copy(strip_a(n), a, row0, strip, D, copies);
    Rows64::copy(strip_b(n), b, row0, strip, D, copies);
    copies.commit();
  }
  // Strip n is there, and the other pair is free.
  __device__ void wait() {
    copies.template wait<0>();
    __syncthreads();
  }
};
constexpr size_t backward_shared(size_t columns) {
  return (2 * block + 4 * strip_rows(int(columns))) * columns * sizeof(bf16);
}

struct Eight {
  float v[chunk];
};
__device__ inline Eight load_eight(const bf16* x) {
  const Chunk c = *reinterpret_cast<const Chunk*>(x);
  Eight r;
  for (int i = 0; i < chunk; i++) r.v[i] = i % 2 ? high_bf16(c.x[i / 2]) : low_bf16(c.x[i / 2]);
  return r;
}
__device__ inline Eight load_eight(const float* x) {
  Eight r;
  for (int i = 0; i < chunk; i++) r.v[i] = x[i];
  return r;
}

// row_dot of kernels/bf16/attention_bf16.cuh by eight neighbouring lanes, of which each has a chain. All eight get it.
template <class Y>
__device__ inline float row_dot_of_lanes(const bf16* x, const Y* y, size_t D) {
  float sum = 0.0f;
  for (size_t d = threadIdx.x % 8 * chunk; d < D; d += 8 * chunk) {
    const Eight a = load_eight(x + d), b = load_eight(y + d);
    for (int i = 0; i < chunk; i++) sum = fused(a.v[i], b.v[i], sum);
  }
  for (int flip = 1; flip < 8; flip *= 2) sum = sum + __shfl_xor_sync(0xffffffffu, sum, flip);
  return sum;
}

}  // namespace attention_bf16

// ---- kernels

// Grid (B*H, tiles of 64 queries), eight threads a query.
__global__ void __launch_bounds__(8 * attention_bf16::block)
    attention_bf16_query_kernel(float* delta, float* sink_p, float* sink_ds, const bf16* dout, const bf16* o,
                                const float* lse, AttentionShape s, Sink sink) {
  using namespace attention_bf16;
  const unsigned heads = unsigned(s.H), b = blockIdx.x / heads, h = blockIdx.x % heads;
  const size_t own = size_t(blockIdx.y) * block + threadIdx.x / 8;
  const size_t t = own < s.T ? own : s.T - 1;  // lanes without a query work along: shuffles need them
  const size_t n = blockIdx.x * s.T + t, row = s.q_row(b, t, h);
  const float sum = s.sigmoid() ? 0.0f : row_dot_of_lanes(dout + row, o + row, s.D);
  const float dp = sink.value ? row_dot_of_lanes(dout + row, sink.value + h * s.D, s.D) : 0.0f;
  if (own >= s.T || threadIdx.x % 8 > 0) return;
  delta[n] = sum;
  if (!sink.logit) return;
  const float p = exact_exp(sink.logit_of(s, b, h, t) - lse[n]);
  sink_p[n] = p;
  sink_ds[n] = p * (dp - sum);
}

// Rows are queries. Grid (B*H, tiles): the last queries see the most keys and start first.
template <int columns, bool whole>
__global__ void __launch_bounds__(attention_bf16::threads, attention_bf16::blocks_an_sm(columns))
    attention_bf16_dq_kernel(bf16* dq, const bf16* dout, const bf16* q, const bf16* k, const bf16* v, const float* lse,
                             const float* delta, const float* sink_ds, AttentionShape s, Sink sink, float scale) {
  using namespace attention_bf16;
  DYNAMIC_SHARED(bf16, shared);
  using Rows64 = RowTile<columns, whole>;
  constexpr int strip = strip_rows(columns);
  const size_t b = blockIdx.x / s.H, h = blockIdx.x % s.H, kv_head = h / s.group();
  const size_t i0 = size_t(gridDim.y - 1 - blockIdx.y) * block, first = first_tile(s, i0), end = i0 + block;
  const Rows queries{q + s.q_row(b, 0, h), s.q_step(), s.T}, douts{dout + s.q_row(b, 0, h), s.q_step(), s.T};
  const Rows keys{k + s.kv_row(b, 0, kv_head), s.kv_step(), s.T}, values{v + s.kv_row(b, 0, kv_head), s.kv_step(), s.T};

  Backward<columns, whole> memory(shared);
  memory.copy_own(queries, douts, i0, s.D);
  memory.copy_strips(0, keys, values, first, s.D);

  float base[2], delta_i[2];
  MmaC sum[columns / 8];
  for (int r = 0; r < 2; r++) {
    base[r] = weight_base(s, lse, b, h, i0 + row_of_lane(r));
    delta_i[r] = s.of_query(delta, b, h, i0 + row_of_lane(r));
  }
  float sink_weight[2] = {};
  if (sink.key)
    for (int r = 0; r < 2; r++) sink_weight[r] = s.of_query(sink_ds, b, h, i0 + row_of_lane(r));
#pragma unroll
  for (int n = 0; n < columns / 8; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const size_t d = column_of_lane(n, e);
      sum[n].x[e] = sink.key && d < s.D ? fused(sink_weight[e / 2], sink.key[h * s.D + d], 0.0f) : 0.0f;
    }

  for (size_t n = 0, j0 = first; j0 < end; n++, j0 += strip) {
    memory.wait();
    if (j0 + strip < end) memory.copy_strips(n + 1, keys, values, j0 + strip, s.D);
    MmaC score[strip / 8] = {}, ds[strip / 8] = {};
    Rows64::template product<strip>(score, Rows64::own(memory.own_a), memory.strip_a(n), s.D);
    Rows64::template product<strip>(ds, Rows64::own(memory.own_b), memory.strip_b(n), s.D);
    weights_of(score, s.score, for_weights(s.score, scale), [&](int, int e) { return base[e / 2]; });
    const Mask seen(s, i0, block, j0, strip);
#pragma unroll
    for (int c = 0; c < strip / 8; c++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const bool pair = seen.all() || seen(row_of_lane(e / 2), column_of_lane(c, e));
        ds[c].x[e] = pair ? gradient_of(s.score, score[c].x[e], ds[c].x[e], delta_i[e / 2]) : 0.0f;
      }
    Rows64::template accumulate<strip>(sum, ds, memory.strip_a(n), 0, s.D);
  }
#pragma unroll
  for (int n = 0; n < columns / 8; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) sum[n].x[e] = scale * sum[n].x[e];
  Rows64::store(dq + s.q_row(b, 0, h), s.q_step(), s.T, i0, 0, s.D, sum, memory.own_a);
}

// Rows are keys, columns are queries: head h of the group, then head h + 1, ...
// Grid (B*KVH, tiles, parts): the first keys are seen by the most queries and start first. The sums of 256 columns of
// dk and dv would not fit the registers: a block takes at most 128, and makes the weights for them again.
template <int columns, bool whole>
__global__ void __launch_bounds__(attention_bf16::threads, attention_bf16::blocks_an_sm(2 * columns))
    attention_bf16_dkdv_kernel(bf16* dk, bf16* dv, const bf16* dout, const bf16* q, const bf16* k, const bf16* v,
                               const float* lse, const float* delta, AttentionShape s, float scale) {
  using namespace attention_bf16;
  DYNAMIC_SHARED(bf16, shared);
  using Rows64 = RowTile<columns, whole>;
  constexpr int strip = strip_rows(columns), part = columns < 128 ? columns : 128;
  const size_t b = blockIdx.x / s.KVH, kv_head = blockIdx.x % s.KVH, j0 = size_t(blockIdx.y) * block;
  const int column0 = int(blockIdx.z) * part;
  const Rows keys{k + s.kv_row(b, 0, kv_head), s.kv_step(), s.T}, values{v + s.kv_row(b, 0, kv_head), s.kv_step(), s.T};
  const size_t strips = ceil_div(end_of_queries(s, j0) - j0, block) * (block / strip);  // of a head

  Backward<columns, whole> memory(shared);
  const auto copy = [&](size_t n) {
    const size_t h = kv_head * s.group() + n / strips;
    if (n / strips < s.group())
      memory.copy_strips(n, {q + s.q_row(b, 0, h), s.q_step(), s.T}, {dout + s.q_row(b, 0, h), s.q_step(), s.T},
                         j0 + n % strips * strip, s.D);
  };
  memory.copy_own(keys, values, j0, s.D);
  copy(0);

  MmaC dk_sum[part / 8] = {}, dv_sum[part / 8] = {};
  for (size_t n = 0; n < strips * s.group(); n++) {
    const size_t h = kv_head * s.group() + n / strips, i0 = j0 + n % strips * strip;
    memory.wait();
    copy(n + 1);
    float base[strip / 8][2], delta_i[strip / 8][2];  // of the lane's columns
#pragma unroll
    for (int c = 0; c < strip / 8; c++)
#pragma unroll
      for (int odd = 0; odd < 2; odd++) {
        base[c][odd] = weight_base(s, lse, b, h, i0 + column_of_lane(c, odd));
        delta_i[c][odd] = s.of_query(delta, b, h, i0 + column_of_lane(c, odd));
      }
    MmaC p[strip / 8] = {}, ds[strip / 8] = {};
    Rows64::template product<strip>(p, Rows64::own(memory.own_a), memory.strip_a(n), s.D);
    Rows64::template product<strip>(ds, Rows64::own(memory.own_b), memory.strip_b(n), s.D);
    weights_of(p, s.score, for_weights(s.score, scale), [&](int c, int e) { return base[c][e % 2]; });
    const Mask seen(s, i0, strip, j0, block);
#pragma unroll
    for (int c = 0; c < strip / 8; c++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const bool pair = seen.all() || seen(column_of_lane(c, e), row_of_lane(e / 2));
        if (!pair) p[c].x[e] = 0.0f;
        ds[c].x[e] = pair ? gradient_of(s.score, p[c].x[e], ds[c].x[e], delta_i[c][e % 2]) : 0.0f;
      }
    Rows64::template accumulate<strip>(dv_sum, p, memory.strip_b(n), column0, s.D);
    Rows64::template accumulate<strip>(dk_sum, ds, memory.strip_a(n), column0, s.D);
  }
#pragma unroll
  for (int n = 0; n < part / 8; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) dk_sum[n].x[e] = scale * dk_sum[n].x[e];
  Rows64::store(dk + s.kv_row(b, 0, kv_head), s.kv_step(), s.T, j0, column0, s.D, dk_sum, memory.own_a);
  Rows64::store(dv + s.kv_row(b, 0, kv_head), s.kv_step(), s.T, j0, column0, s.D, dv_sum, memory.own_b);
}

// ---- launchers

void attention_bf16_backward(bf16* dq, bf16* dk, bf16* dv, float* sink_p, float* sink_ds, const bf16* dout,
                             const bf16* q, const bf16* k, const bf16* v, const bf16* o, const float* lse,
                             const AttentionShape& s, const Sink& sink, Context& ctx) {
  using namespace attention_bf16;
  require_shape("attention_bf16_backward", s, sink, {dq, dk, dv, dout, q, k, v, o});
  if (ctx.device == Device::cpu)
    return attention_bf16_backward_cpu(dq, dk, dv, sink_p, sink_ds, dout, q, k, v, o, lse, s, sink, ctx);
  emulate_mma(ctx);
  const float scale = attention_scale<float>(s.divisor());
  float* const delta = ctx.scratch(attention_bf16_backward_scratch(s, ctx.device) / sizeof(float));
  const unsigned tiles = grid_tiles("attention_bf16_backward", s.T, block);
  launch(attention_bf16_query_kernel, dim3(grid_of(s.B * s.H).x, tiles), unsigned(8 * block), 0, ctx, delta, sink_p,
         sink_ds, dout, o, lse, s, sink);
  if (attention_wgmma_backward(dq, dk, dv, dout, q, k, v, lse, delta, sink_ds, s, sink, ctx)) return;
  by_room(s.D, [&]<int columns, bool whole>() {
    launch(attention_bf16_dq_kernel<columns, whole>, dim3(grid_of(s.B * s.H).x, tiles), threads,
           backward_shared(columns), ctx, dq, dout, q, k, v, lse, delta, sink_ds, s, sink, scale);
    launch(attention_bf16_dkdv_kernel<columns, whole>,
           dim3(grid_of(s.B * s.KVH).x, tiles, unsigned(ceil_div(s.D, size_t{128}))), threads, backward_shared(columns),
           ctx, dk, dv, dout, q, k, v, lse, delta, s, scale);
  });
}

// delta
size_t attention_bf16_backward_scratch(const AttentionShape& s, Device device) {
  return device == Device::cpu ? attention_bf16_backward_cpu_scratch(s) : s.B * s.H * s.T * sizeof(float);
}

}  // namespace gated
