// embedding: h[n] = weight[ids[n]], of token n: a row of a table is looked up
//   backward: row v of the table reaches the loss through every token whose id is v, unchanged, so the gradients of those
//   tokens add up:
//     dweight[v] += sum of dh[n] over the tokens n with ids[n] = v
//   Rows of ids that do not occur keep their bits.
// with extras: h[n] = weight[ids[n]] * scale + positions[n % T], T tokens a sequence; scale (one float) and positions (T,C)
//   are learned, and each may be missing. By the product rule,
//     dweight[v]    += scale * sum of dh[n] over the tokens n with ids[n] = v
//     dpositions[t] += sum of dh[n] over the tokens n with n % T = t: one of every sequence
//     dscale        += sum over n and c of dh[n][c] * weight[ids[n]][c]
// exactly: in the forward the product, then the sum, each rounded. The sum in dweight is one chain from +0, n ascending; then
//   the product with scale and the sum into dweight, each rounded. dpositions: column order over the sequences. dscale: row
//   order over c, column order over n (core/reduce.cuh).
// shapes: h, dh (N,C) f32 or bf16; weight, dweight (V,C), positions, dpositions (T,C), scale, dscale (1) f32; ids (N) int
//   h is written, the gradients are accumulated
// An id outside [0,V) is refused where the host still sees it, in TokenGroups; the forward makes its h a row of NaN.
// --position=learned, --embedding-scale | tests/test_embedding.cpp
#include "kernels/embedding.h"

#include <algorithm>

#include "core/launch_shape.cuh"
#include "core/reduce.cuh"

namespace gated {

// ---- reference

template <class Real>
void embedding_forward_ref(Real* h, const int* ids, const Real* weight, size_t N, size_t C, size_t V) {
  for (size_t n = 0; n < N; n++) {
    const size_t id = ids[n];  // as a size_t, a negative id is a huge one
    for (size_t c = 0; c < C; c++) h[n * C + c] = id < V ? weight[id * C + c] : Real(NAN);
  }
}

// A scatter-add into a table of zeros, which is then added to dweight.
template <class Real>
void embedding_scaled_backward_ref(Real* dweight, const Real* dh, const int* ids, const Real* scale, size_t N, size_t C,
                                   size_t V) {
  std::vector<Real> total(V * C, Real(0));
  std::vector<bool> occurs(V, false);
  for (size_t n = 0; n < N; n++) {
    const size_t id = ids[n];
    occurs[id] = true;
    for (size_t c = 0; c < C; c++) total[id * C + c] = total[id * C + c] + dh[n * C + c];
  }
  for (size_t v = 0; v < V; v++)
    for (size_t c = 0; c < C && occurs[v]; c++) dweight[v * C + c] = dweight[v * C + c] + *scale * total[v * C + c];
}

template <class Real>
void embedding_backward_ref(Real* dweight, const Real* dh, const int* ids, size_t N, size_t C, size_t V) {
  const Real one = 1;
  embedding_scaled_backward_ref(dweight, dh, ids, &one, N, C, V);
}
IN_FLOAT_AND_DOUBLE(embedding_forward_ref);
IN_FLOAT_AND_DOUBLE(embedding_scaled_backward_ref);
IN_FLOAT_AND_DOUBLE(embedding_backward_ref);

// The extras.

template <class Real>
void embedding_scale_forward_ref(Real* h, const Real* scale, size_t N, size_t C) {
  for (size_t i = 0; i < N * C; i++) h[i] = h[i] * *scale;
}

template <class Real>
void embedding_positions_forward_ref(Real* h, const Real* positions, size_t N, size_t T, size_t C) {
  for (size_t n = 0; n < N; n++)
    for (size_t c = 0; c < C; c++) h[n * C + c] = h[n * C + c] + positions[n % T * C + c];
}

template <class Real>
void embedding_positions_backward_ref(Real* dpositions, const Real* dh, size_t B, size_t T, size_t C) {
  for (size_t i = 0; i < T * C; i++) {
    ColumnSum<Real> sum;
    for (size_t b = 0; b < B; b++) sum.add(dh[b * T * C + i]);
    dpositions[i] = dpositions[i] + sum.total();
  }
}

template <class Real>
void embedding_scale_backward_ref(Real* dscale, const Real* dh, const int* ids, const Real* weight, size_t N, size_t C,
                                  size_t V) {
  ColumnSum<Real> sum;
  for (size_t n = 0; n < N; n++) {
    const size_t id = ids[n];
    RowSum<Real> product;
    for (size_t c = 0; c < C && id < V; c++) product.fma(dh[n * C + c], weight[id * C + c]);
    sum.add(id < V ? product.total() : Real(NAN));
  }
  *dscale = *dscale + sum.total();
}
IN_FLOAT_AND_DOUBLE(embedding_scale_forward_ref);
IN_FLOAT_AND_DOUBLE(embedding_positions_forward_ref);
IN_FLOAT_AND_DOUBLE(embedding_positions_backward_ref);
IN_FLOAT_AND_DOUBLE(embedding_scale_backward_ref);

// ---- tokens grouped by id
//
// The scatter-add is the problem of the backward on a GPU: tokens with one id want to add to one row at once. Atomic additions
// would be correct up to rounding, but they come in whatever order the hardware finds, and another order is another sum in
// its last bits. So the host sorts the tokens by id, which is a stable counting sort, O(N + V): the tokens of one id become a
// list in ascending order, and one warp adds up a list. ids 7 2 7 9 2 7 0 give
//
//   count   4
//   id      0   2     7       9
//   start   0   1     3       6   7
//   token   6 | 1 4 | 0 2 5 | 3

TokenGroups::TokenGroups(size_t N, size_t V, Context& ctx)
    : V_(V), most_tokens_(N), capacity_(std::min(N, V)), place_(V) {
  require(N <= 0x3fffffff && V <= 0x7fffffff, "embedding: %zu tokens, %zu ids: too many for 32-bit numbers", N, V);
  lists_.resize(bytes(N, V) / sizeof(int));
  device_ = Buffer<int>(ctx.device, lists_.size());
}

size_t TokenGroups::bytes(size_t N, size_t V) {
  return (1 + std::min(N, V) + std::min(N, V) + 1 + N) * sizeof(int);
}

void TokenGroups::build(const int* ids, size_t N, Context& ctx) {
  require(N <= most_tokens_, "embedding: a batch of %zu tokens, expected at most %zu", N, most_tokens_);
  for (size_t n = 0; n < N; n++)
    require(size_t(ids[n]) < V_, "embedding: token %zu has id %d, expected 0 <= id < %zu", n, ids[n], V_);
  tokens_ = N;
  int *count = lists_.data(), *id = count + 1, *start = id + capacity_, *token = start + capacity_ + 1;
  int* const place = place_.data();

  std::fill(place_.begin(), place_.end(), 0);
  for (size_t n = 0; n < N; n++) place[ids[n]]++;  // how often an id occurs
  int groups = 0, first = 0;
  for (size_t v = 0; v < V_; v++) {
    const int occurs = place[v];
    if (occurs == 0) continue;
    id[groups] = int(v);
    start[groups] = first;
    place[v] = first;  // from here on: where the next token of this id goes
    first += occurs;
    groups++;
  }
  start[groups] = first;
  *count = groups;
  for (size_t n = 0; n < N; n++) token[place[ids[n]]++] = int(n);
  ctx.upload(device_.data(), lists_.data(), lists_.size() - (most_tokens_ - N));
}

// ---- kernels

// A warp owns a token. Lane l holds columns 4l to 4l+3 (a Quad: one load of 16 bytes where C is a multiple of 4) of every 128.
// A row of the table is read and a row of h is written, 512 neighbouring bytes at a time. scale and positions may be null.
template <class S>
__global__ void __launch_bounds__(rows_block)
    embedding_forward_kernel(S* h, const int* ids, const float* weight, const float* scale, const float* positions,
                             size_t N, size_t T, size_t C, size_t V) {
  const size_t n = warp_row();
  if (n >= N) return;
  const size_t id = ids[n];
  const float s = scale ? *scale : 1.0f;
  for (size_t c = 4 * (threadIdx.x % 32); c < C; c += 128) {
    Quad q = id < V ? load_quad(weight + id * C, c, C) : Quad{{NAN, NAN, NAN, NAN}};
    for (int k = 0; k < 4; k++) q.v[k] = q.v[k] * s;
    if (positions) {
      const Quad p = load_quad(positions + n % T * C, c, C);
      for (int k = 0; k < 4; k++) q.v[k] = q.v[k] + p.v[k];
    }
    store_quad(h + n * C, c, C, q);
  }
}

// A warp owns 128 columns of one group, a lane four of them. There are warps for as many groups as a batch of N tokens can
// have, min(N,V), and those past the count return at once: so one CUDA graph serves every batch of N tokens.
//
// A frequent id makes a long list. The loads of its rows do not depend on each other, only the additions do: several rows are
// on their way at once.
template <class S>
__global__ void __launch_bounds__(rows_block)
    embedding_backward_kernel(float* dweight, const S* dh, const int* count, const int* id, const int* start,
                              const int* token, const float* scale, size_t C) {
  const size_t warps_a_group = (C + 127) / 128;
  const size_t g = warp_row() / warps_a_group, c = warp_row() % warps_a_group * 128 + 4 * (threadIdx.x % 32);
  if (g >= size_t(*count) || c >= C) return;
  Quad total = {};
  for (int t = start[g]; t < start[g + 1]; t++) {
    const Quad q = load_quad(dh + token[t] * C, c, C);
    for (int k = 0; k < 4; k++) total.v[k] = total.v[k] + q.v[k];
  }
  const float s = scale ? *scale : 1.0f;
  float* out = dweight + id[g] * C;
  Quad q = load_quad(out, c, C);
  for (int k = 0; k < 4; k++) q.v[k] = q.v[k] + s * total.v[k];
  store_quad(out, c, C, q);
}

// row_sums[n] = dh[n].weight[ids[n]]. A warp owns a token, and each of a lane's four columns of every 128 feeds a chain of
// its own: the row order.
template <class S>
__global__ void __launch_bounds__(rows_block)
    embedding_row_sums_kernel(float* row_sums, const S* dh, const int* ids, const float* weight, size_t N, size_t C,
                              size_t V) {
  const size_t n = warp_row();
  if (n >= N) return;
  const size_t id = ids[n];
  float chain[4] = {};
  for (size_t c = 4 * (threadIdx.x % 32); c < C && id < V; c += row_chains) {
    const Quad d = load_quad(dh + n * C, c, C), q = load_quad(weight + id * C, c, C);
    for (int k = 0; k < 4 && c + k < C; k++) chain[k] = fused(d.v[k], q.v[k], chain[k]);
  }
  const float sum = warp_sum((chain[0] + chain[1]) + (chain[2] + chain[3]));
  if (threadIdx.x % 32 == 0) row_sums[n] = id < V ? sum : NAN;
}

// ---- launchers

void embedding_forward(Reals h, const int* ids, const float* weight, const EmbeddingExtras& extras, size_t N, size_t C,
                       size_t V, Context& ctx) {
  require(extras.T > 0 || !extras.positions, "embedding_forward: positions of sequences without tokens");
  with_storage(h, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu) return embedding_forward_cpu(h.as<S>(), ids, weight, extras, N, C, V);
    launch(embedding_forward_kernel<S>, rows_grid(N), rows_block, 0, ctx, h.as<S>(), ids, weight, extras.scale,
           extras.positions, N, extras.T, C, V);
  });
}

void embedding_forward(Reals h, const int* ids, const float* weight, size_t N, size_t C, size_t V, Context& ctx) {
  embedding_forward(h, ids, weight, EmbeddingExtras{}, N, C, V, ctx);
}

void embedding_backward(float* dweight, ConstReals dh, const TokenGroups& groups, const float* scale, size_t C,
                        Context& ctx) {
  with_storage(dh, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu) return embedding_backward_cpu(dweight, dh.as<S>(), groups, scale, C);
    launch(embedding_backward_kernel<S>, rows_grid(groups.most_groups() * ceil_div(C, 128)), rows_block, 0, ctx,
           dweight, dh.as<S>(), groups.count(), groups.id(), groups.start(), groups.token(), scale, C);
  });
}

void embedding_backward(float* dweight, ConstReals dh, const TokenGroups& groups, size_t C, Context& ctx) {
  embedding_backward(dweight, dh, groups, nullptr, C, ctx);
}

// The sequences are rows of T*C columns: a column sum, whose kernels are in core/reduce.cuh.
size_t embedding_positions_backward_scratch(size_t B, size_t T, size_t C) {
  return column_reduce_scratch(B, T * C);
}

void embedding_positions_backward(float* dpositions, ConstReals dh, size_t B, size_t T, size_t C, Context& ctx) {
  with_storage(dh, [&](auto stored) {
    using S = decltype(stored);
    column_reduce_add(dpositions, B, T * C, AddRows<S>{dh.as<S>(), T * C}, ctx);
  });
}

size_t embedding_scale_backward_scratch(size_t N) {
  return column_reduce_scratch(N, 1);
}

void embedding_scale_backward(float* dscale, float* row_sums, ConstReals dh, const int* ids, const float* weight,
                              size_t N, size_t C, size_t V, Context& ctx) {
  with_storage(dh, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu) return embedding_row_sums_cpu(row_sums, dh.as<S>(), ids, weight, N, C, V);
    launch(embedding_row_sums_kernel<S>, rows_grid(N), rows_block, 0, ctx, row_sums, dh.as<S>(), ids, weight, N, C, V);
  });
  column_reduce_add(dscale, N, 1, AddRows<float>{row_sums, 1}, ctx);
}

}  // namespace gated
