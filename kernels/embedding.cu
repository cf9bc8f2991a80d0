// embedding: h[n] = weight[ids[n]], of token n: a row of a table is looked up
//   backward: row v of the table reaches the loss through every token whose id is v, unchanged, so the gradients of
//   those tokens add up:
//     dweight[v] += sum of dh[n] over the tokens n with ids[n] = v
//   Rows of ids that do not occur keep their bits.
// with extras: h[n] = weight[ids[n]] * scale + positions[n % T], T tokens a sequence; scale (one float) and positions
//   (T,C) are learned, and each may be missing. By the product rule,
//     dweight[v]    += scale * sum of dh[n] over the tokens n with ids[n] = v
//     dpositions[t] += sum of dh[n] over the tokens n with n % T = t: one of every sequence
//     dscale        += sum over n and c of dh[n][c] * weight[ids[n]][c]
// exactly: in the forward the product, then the sum, each rounded. In dweight the tokens of an id, n ascending, go in
//   pieces of 1024; a piece is one chain from +0, and the sum is ((piece 0 + piece 1) + piece 2) + ...: so a frequent
//   id is the work of many warps. Then the product with scale and the sum into dweight, each rounded. dpositions:
//   column order over the sequences. dscale: row order over c, column order over n (core/reduce.cuh).
// shapes: h, dh (N,C), weight (V,C), positions (T,C) f32 or bf16, all the same; dweight, dpositions, scale, dscale (1)
//   f32; ids (N) int | h is written, the gradients are accumulated
// With bf16 the tables are the rounded copies, which products read too. A row that nothing is done to is then its
//   master, rounded.
// An id outside [0,V) is refused where the host still sees it, in TokenGroups; the forward makes its h a row of NaN.
// twins: kernels/cpu/embedding_cpu.cpp
// --position=learned, --embedding-scale | tests/test_embedding.cpp
#include "kernels/embedding.h"

#include <algorithm>

#include "core/launch_shape.cuh"
#include "core/reduce.cuh"
#include "kernels/bias.h"

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
  std::vector<Real> total(V * C), piece(V * C);
  std::vector<size_t> occurs(V, 0);
  const auto end_piece = [&](size_t id) {
    for (size_t i = id * C; i < (id + 1) * C; i++)
      total[i] = occurs[id] <= embedding_piece ? piece[i] : total[i] + piece[i];
  };
  for (size_t n = 0; n < N; n++) {
    const size_t id = ids[n];
    const bool begins = occurs[id] % embedding_piece == 0;
    if (begins && occurs[id] > 0) end_piece(id);
    for (size_t i = id * C; i < (id + 1) * C; i++) piece[i] = (begins ? Real(0) : piece[i]) + dh[n * C + i - id * C];
    occurs[id]++;
  }
  for (size_t v = 0; v < V; v++) {
    if (occurs[v] == 0) continue;
    end_piece(v);
    for (size_t i = v * C; i < (v + 1) * C; i++) dweight[i] = dweight[i] + *scale * total[i];
  }
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
// The scatter-add is the problem of the backward on a GPU: tokens with one id want to add to one row at once. Atomic
// additions would be correct up to rounding, but they come in whatever order the hardware finds, and another order is
// another sum in its last bits. So the host sorts the tokens by id, which is a stable counting sort, O(N + V): the
// tokens of one id become a list in ascending order, and warps add it up, each a piece of at most 1024. ids 7 2 7 9 2 7
// 0 give
//
//   count   4
//   id      0   2     7       9
//   start   0   1     3       6   7
//   token   6 | 1 4 | 0 2 5 | 3
//
// and with pieces of 2 it would be
//
//   count   5
//   id      0   2     7     7   9
//   start   0   1     3     5   6   7
//   token   6 | 1 4 | 0 2 | 5 | 3

TokenGroups::TokenGroups(size_t N, size_t V, Context& ctx)
    : V_(V), most_tokens_(N), capacity_(most_groups(N, V)), place_(V) {
  require(N <= 0x3fffffff && V <= 0x7fffffff, "embedding: %zu tokens, %zu ids: too many for 32-bit numbers", N, V);
  lists_.resize(bytes(N, V) / sizeof(int));
  device_ = Buffer<int>(ctx.device, lists_.size());
}

size_t TokenGroups::bytes(size_t N, size_t V) {
  return (1 + most_groups(N, V) + most_groups(N, V) + 1 + N) * sizeof(int);
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
    for (int piece = 0; piece < occurs; piece += int(embedding_piece)) {
      id[groups] = int(v);
      start[groups] = first + piece;
      groups++;
    }
    place[v] = first;  // from here on: where the next token of this id goes
    first += occurs;
  }
  start[groups] = first;
  *count = groups;
  for (size_t n = 0; n < N; n++) token[place[ids[n]]++] = int(n);
  ctx.upload(device_.data(), lists_.data(), lists_.size() - (most_tokens_ - N));
}

// ---- kernels

// A warp owns a token, as it owns a row in kernels/rmsnorm.cu: a row of the table is read and a row of h is written,
// 512 neighbouring bytes at a time. scale and positions may be null.
template <class S>
__global__ void __launch_bounds__(rows_block)
    embedding_forward_kernel(S* h, const int* ids, const S* weight, const float* scale, const S* positions, size_t N,
                             size_t T, size_t C, size_t V) {
  const size_t n = warp_row();
  if (n >= N) return;
  const size_t id = ids[n];
  const float s = scale ? *scale : 1.0f;  // v * 1 is v for every v
  const S* const position = positions ? positions + n % T * C : nullptr;
  for (size_t c = 4 * (threadIdx.x % 32); c < C; c += row_chains) {
    Quad q = id < V ? load_quad(weight + id * C, c, C) : Quad{{NAN, NAN, NAN, NAN}};
    for (int k = 0; k < 4; k++) q.v[k] = q.v[k] * s;
    if (position) {
      const Quad p = load_quad(position, c, C);
      for (int k = 0; k < 4; k++) q.v[k] = q.v[k] + p.v[k];
    }
    store_quad(h + n * C, c, C, q);
  }
}

namespace embedding {
// Where the sum of a group waits for the others of its id. Full groups begin 1024 tokens apart or more, so start / 1024
// is a place of their own; and so do the last ones of the ids that have several.
__device__ inline size_t piece_place(const int* start, size_t g, size_t N) {
  const size_t begin = size_t(start[g]);
  const bool full = size_t(start[g + 1]) - begin == embedding_piece;
  return begin / embedding_piece + (full ? 0 : N / embedding_piece + 1);
}
__device__ inline bool goes_on(const int* id, size_t g, size_t count) {
  return g + 1 < count && id[g + 1] == id[g];
}
__device__ inline bool begins(const int* id, size_t g) {
  return g == 0 || id[g - 1] != id[g];
}
__device__ inline void add_to_row(float* row, const Quad& sum, const float* scale, size_t c, size_t C) {
  const float s = scale ? *scale : 1.0f;
  Quad q = load_quad(row, c, C);
  for (int k = 0; k < 4; k++) q.v[k] = q.v[k] + s * sum.v[k];
  store_quad(row, c, C, q);
}
}  // namespace embedding

// A warp owns 128 columns of one group, a lane four of them. There are warps for as many groups as a batch of N tokens
// can have, and those past the count return at once: so one CUDA graph serves every batch of N tokens. The only group
// of an id goes into dweight; one of several leaves its sum in pieces (2 * (N/1024 + 1), C).
//
// The loads of a group's rows do not depend on each other, only the additions do: eight rows are on their way at once.
template <class S>
__global__ void __launch_bounds__(rows_block)
    embedding_backward_kernel(float* dweight, float* pieces, const S* dh, const int* count, const int* id,
                              const int* start, const int* token, const float* scale, size_t N, size_t C) {
  const size_t warps_a_group = ceil_div(C, row_chains), groups = size_t(*count);
  const size_t g = warp_row() / warps_a_group, c = warp_row() % warps_a_group * row_chains + 4 * (threadIdx.x % 32);
  if (g >= groups || c >= C) return;
  Quad total = {};
#pragma unroll 8
  for (int t = start[g]; t < start[g + 1]; t++) {
    const Quad q = load_quad(dh + token[t] * C, c, C);
    for (int k = 0; k < 4; k++) total.v[k] = total.v[k] + q.v[k];
  }
  if (embedding::begins(id, g) && !embedding::goes_on(id, g, groups))
    embedding::add_to_row(dweight + id[g] * C, total, scale, c, C);
  else
    store_quad(pieces + embedding::piece_place(start, g, N) * C, c, C, total);
}

// dweight += the sums of ids with several groups. The first of them is full: if it begins among the tokens 1024 i to
// 1024 i + 1023, it is the last group that does. So i finds it by halving, and there is one i, with a warp for every
// 128 columns, for each 1024 tokens.
__global__ void __launch_bounds__(rows_block)
    embedding_pieces_kernel(float* dweight, const float* pieces, const int* count, const int* id, const int* start,
                            const float* scale, size_t N, size_t C) {
  const size_t warps_a_row = ceil_div(C, row_chains), groups = size_t(*count);
  const size_t i = warp_row() / warps_a_row, c = warp_row() % warps_a_row * row_chains + 4 * (threadIdx.x % 32);
  if (i * embedding_piece >= N || c >= C) return;
  size_t g = 0;
  for (size_t above = groups; above - g > 1;) {
    const size_t middle = g + (above - g) / 2;
    (size_t(start[middle]) < (i + 1) * embedding_piece ? g : above) = middle;
  }
  if (size_t(start[g]) < i * embedding_piece || !embedding::begins(id, g) || !embedding::goes_on(id, g, groups)) return;
  float* const row = dweight + id[g] * C;
  Quad total = load_quad(pieces + embedding::piece_place(start, g, N) * C, c, C);
  do {
    g++;
    const Quad q = load_quad(pieces + embedding::piece_place(start, g, N) * C, c, C);
    for (int k = 0; k < 4; k++) total.v[k] = total.v[k] + q.v[k];
  } while (embedding::goes_on(id, g, groups));
  embedding::add_to_row(row, total, scale, c, C);
}

// row_sums[n] = dh[n].weight[ids[n]]: the row order, as in kernels/rmsnorm.cu.
template <class S>
__global__ void __launch_bounds__(rows_block)
    embedding_row_sums_kernel(float* row_sums, const S* dh, const int* ids, const S* weight, size_t N, size_t C,
                              size_t V) {
  const size_t n = warp_row();
  if (n >= N) return;
  const size_t id = ids[n];
  float chain[4] = {};
  for (size_t c = 4 * (threadIdx.x % 32); c < C && id < V; c += row_chains) {
    const Quad d = load_quad(dh + n * C, c, C), q = load_quad(weight + id * C, c, C);
    for (int k = 0; k < 4 && c + k < C; k++) chain[k] = fused(d.v[k], q.v[k], chain[k]);
  }
  const float sum = warp_chains_sum(chain);
  if (threadIdx.x % 32 == 0) row_sums[n] = id < V ? sum : NAN;
}

// ---- launchers

void embedding_forward(Reals h, const int* ids, ConstReals weight, const EmbeddingExtras& extras, size_t N, size_t C,
                       size_t V, Context& ctx) {
  require(extras.T > 0 || !extras.positions, "embedding_forward: positions of sequences without tokens");
  with_storage(h, [&](auto stored) {
    using S = decltype(stored);
    const S *const table = weight.as<S>(), *const positions = extras.positions.as<S>();
    if (ctx.device == Device::cpu) return embedding_forward_cpu(h.as<S>(), ids, table, extras, N, C, V);
    launch(embedding_forward_kernel<S>, rows_grid(N), rows_block, 0, ctx, h.as<S>(), ids, table, extras.scale,
           positions, N, extras.T, C, V);
  });
}

void embedding_backward(float* dweight, ConstReals dh, const TokenGroups& groups, const float* scale, size_t C,
                        Context& ctx) {
  with_storage(dh, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu) return embedding_backward_cpu(dweight, dh.as<S>(), groups, scale, C);
    const size_t N = groups.tokens(), warps = ceil_div(C, row_chains), scratch = embedding_backward_scratch(N, C);
    float* const pieces = scratch ? ctx.scratch(scratch / sizeof(float)) : nullptr;
    launch(embedding_backward_kernel<S>, rows_grid(groups.most_groups() * warps), rows_block, 0, ctx, dweight, pieces,
           dh.as<S>(), groups.count(), groups.id(), groups.start(), groups.token(), scale, N, C);
    if (pieces)
      launch(embedding_pieces_kernel, rows_grid(ceil_div(N, embedding_piece) * warps), rows_block, 0, ctx, dweight,
             pieces, groups.count(), groups.id(), groups.start(), scale, N, C);
  });
}

size_t embedding_backward_scratch(size_t N, size_t C) {
  return N <= embedding_piece ? 0 : 2 * (N / embedding_piece + 1) * C * sizeof(float);
}

// The sequences are rows of T*C columns.
size_t embedding_positions_backward_scratch(size_t B, size_t T, size_t C) {
  return bias_backward_scratch(B, T * C);
}

void embedding_positions_backward(float* dpositions, ConstReals dh, size_t B, size_t T, size_t C, Context& ctx) {
  bias_backward(dpositions, dh, B, T * C, ctx);
}

size_t embedding_scale_backward_scratch(size_t N) {
  return column_reduce_scratch(N, 1);
}

void embedding_scale_backward(float* dscale, float* row_sums, ConstReals dh, const int* ids, ConstReals weight,
                              size_t N, size_t C, size_t V, Context& ctx) {
  with_storage(dh, [&](auto stored) {
    using S = decltype(stored);
    const S* const table = weight.as<S>();
    if (ctx.device == Device::cpu) return embedding_row_sums_cpu(row_sums, dh.as<S>(), ids, table, N, C, V);
    launch(embedding_row_sums_kernel<S>, rows_grid(N), rows_block, 0, ctx, row_sums, dh.as<S>(), ids, table, N, C, V);
  });
  column_reduce_add(dscale, N, 1, AddRows<float>{row_sums, 1}, ctx);
}

}  // namespace gated
