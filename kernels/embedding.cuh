// embedding: h[n] = weight[ids[n]] * scale + positions[n % T]: of token n, at position n % T of its sequence
//   scale (one float) and positions (T,C) are learned, or null for none: then h[n] is a copy
//   exactly: the product, then the sum, each rounded
// backward: dweight[v] += scale * sum of dh[n] over the tokens n whose id is v
//   exactly: total = one chain from +0 over those n, ascending; dweight[v] += scale * total, product and sum
//   rounded each. Rows of other ids keep their bits.
//   dpositions[t] += sum of dh[n] over the tokens n at position t, in the column order over the sequences
//   dscale += sum over n of the dot product dh[n].weight[ids[n]]: row order, then column order over n
// shapes: h, dh (N,C) f32, weight, dweight (V,C) f32, positions, dpositions (T,C) f32, ids (N) int
//   h is written, the gradients are accumulated
// An id outside [0,V) is refused where the host still sees it, in TokenGroups; embedding_forward makes its h
// a row of NaN.
// --position=learned, --embedding-scale | tests/test_embedding.cpp
#pragma once
#include <algorithm>

#include "core/context.cuh"
#include "core/math.cuh"
#include "core/launch_shape.cuh"
#include "core/reduce.cuh"

namespace gated {

// ---- tokens grouped by id

// Scattering rows into dweight from many threads would need atomics, whose order nobody decides. Sorted by id
// (a stable counting sort on the host, O(N + V)), the rows of one id are a list, and one warp adds a list up
// in its order.
class TokenGroups {
 public:
  // ids: N token ids in host memory. The device memory grows to the largest batch seen and is then reused.
  void build(const int* ids, size_t N, size_t V, Context& ctx) {
    require(N <= 0x3fffffff && V <= 0x7fffffff, "embedding: %zu tokens, %zu ids: too many for 32-bit numbers", N, V);
    for (size_t n = 0; n < N; n++)  // as a size_t, a negative id is a huge one
      require(size_t(ids[n]) < V, "embedding: token %zu has id %d, expected 0 <= id < %zu", n, ids[n], V);
    next_.assign(V, 0);
    for (size_t n = 0; n < N; n++) next_[ids[n]]++;
    groups_ = V - std::count(next_.begin(), next_.end(), 0);

    packed_.resize(2 * groups_ + 1 + N);
    int *id = packed_.data(), *start = id + groups_, *token = start + groups_ + 1;
    int first = 0;
    for (size_t v = 0; v < V; v++) {
      if (next_[v] == 0) continue;
      *id++ = int(v);
      *start++ = first;
      first += std::exchange(next_[v], first);  // from the id's count to the place of its next token
    }
    *start = first;
    for (size_t n = 0; n < N; n++) token[next_[ids[n]]++] = int(n);

    const size_t most = N + 2 * std::min(N, V) + 1;  // every token another id: no batch of N needs more
    ctx.synchronize();                               // the backward before this one may still read the lists
    if (device_.size() < most || device_.device() != ctx.device) device_ = Buffer<int>(ctx.device, most);
    Buffer<int>::copy_to_device(ctx.device, device_.data(), packed_.data(), packed_.size());
  }

  size_t size() const { return groups_; }  // distinct ids

  // On the stream's device: id (size), start (size+1), token (N). Group g holds the tokens token[start[g]] to
  // token[start[g+1] - 1]; ids and the tokens of a group ascend.
  const int* id() const { return device_.data(); }
  const int* start() const { return id() + groups_; }
  const int* token() const { return start() + groups_ + 1; }

 private:
  size_t groups_ = 0;
  std::vector<int> next_, packed_;  // kept from step to step for their memory; packed_ is id | start | token
  Buffer<int> device_;
};

// ---- reference

template <class T>
void embedding_forward_ref(T* h, const int* ids, const T* weight, const T* positions, const T* scale, size_t N,
                           size_t context, size_t C, size_t V) {
#pragma omp parallel for
  for (size_t n = 0; n < N; n++) {
    T* hn = h + n * C;
    const size_t id = ids[n];
    if (id < V)
      std::copy_n(weight + id * C, C, hn);
    else
      std::fill_n(hn, C, T(NAN));
    if (scale) {
      const T s = *scale;
      for (size_t c = 0; c < C; c++) hn[c] = hn[c] * s;
    }
    if (positions) {
      const T* p = positions + n % context * C;
      for (size_t c = 0; c < C; c++) hn[c] = hn[c] + p[c];
    }
  }
}

constexpr size_t embedding_columns = 128;  // what a warp holds of a row: one float4 a lane

template <class T>
void embedding_backward_ref(T* dweight, const T* dh, const TokenGroups& groups, const T* scale, size_t C) {
  const T s = scale ? *scale : T(1);
  const int *id = groups.id(), *start = groups.start(), *token = groups.token();
  const size_t blocks = ceil_div(C, embedding_columns);
#pragma omp parallel for schedule(dynamic, 64)
  for (size_t unit = 0; unit < groups.size() * blocks; unit++) {
    const size_t g = unit / blocks, c0 = unit % blocks * embedding_columns;
    const size_t count = std::min(embedding_columns, C - c0);
    T total[embedding_columns] = {};
    for (int t = start[g]; t < start[g + 1]; t++) {
      const T* row = dh + token[t] * C + c0;
      for (size_t c = 0; c < count; c++) total[c] += row[c];
    }
    T* out = dweight + id[g] * C + c0;
    for (size_t c = 0; c < count; c++) out[c] += s * total[c];
  }
}

template <class T>
void embedding_positions_backward_ref(T* dpositions, const T* dh, size_t B, size_t context, size_t C) {
  column_reduce_add_ref(dpositions, B, context * C, AddRows<T>{dh, context * C});
}

template <class T>
void embedding_scale_backward_ref(T* dscale, T* row_sums, const T* dh, const int* ids, const T* weight, size_t N,
                                  size_t C, size_t V) {
#pragma omp parallel for
  for (size_t n = 0; n < N; n++) {
    const size_t id = ids[n];
    auto product = [=](T acc, size_t c) { return fused(dh[n * C + c], weight[id * C + c], acc); };
    row_sums[n] = id < V ? row_reduce_ref<T>(C, product) : T(NAN);
  }
  column_reduce_add_ref(dscale, N, 1, AddRows<T>{row_sums, 1});
}

// ---- kernels

// One warp a token.
template <bool aligned>
__global__ void __launch_bounds__(rows_block)
    embedding_forward_kernel(float* h, const int* ids, const float* weight, const float* positions, const float* scale,
                             size_t N, size_t T, size_t C, size_t V) {
  const size_t n = warp_row();
  if (n >= N) return;
  const size_t id = ids[n];
  const float s = scale ? *scale : 1.0f;
  for (size_t c = 4 * (threadIdx.x % 32); c < C; c += row_chains) {
    Quad q = id < V ? load_quad<aligned>(weight + id * C, c, C) : Quad{{NAN, NAN, NAN, NAN}};
    for (int k = 0; k < 4; k++) q.v[k] = q.v[k] * s;
    if (positions) {
      const Quad p = load_quad<aligned>(positions + n % T * C, c, C);
      for (int k = 0; k < 4; k++) q.v[k] = q.v[k] + p.v[k];
    }
    store_quad<aligned>(h + n * C, c, C, q);
  }
}

// One warp a (distinct id, block of 128 columns). A frequent id makes a long list: its rows' loads do not
// depend on each other, only the additions do, so several rows are on their way at once.
template <bool aligned>
__global__ void __launch_bounds__(rows_block)
    embedding_backward_kernel(float* dweight, const float* dh, const int* id, const int* start, const int* token,
                              size_t groups, const float* scale, size_t C) {
  const size_t blocks = (C + embedding_columns - 1) / embedding_columns;
  const size_t g = warp_row() / blocks, c = warp_row() % blocks * embedding_columns + 4 * (threadIdx.x % 32);
  if (g >= groups || c >= C) return;
  Quad total = {};
  for (int t = start[g]; t < start[g + 1]; t++) {
    const Quad q = load_quad<aligned>(dh + token[t] * C, c, C);
    for (int k = 0; k < 4; k++) total.v[k] += q.v[k];
  }
  const float s = scale ? *scale : 1.0f;
  float* out = dweight + id[g] * C;
  Quad q = load_quad<aligned>(out, c, C);
  for (int k = 0; k < 4; k++) q.v[k] += s * total.v[k];
  store_quad<aligned>(out, c, C, q);
}

// One warp a token.
template <bool aligned>
__global__ void __launch_bounds__(rows_block)
    embedding_scale_backward_kernel(float* row_sums, const float* dh, const int* ids, const float* weight, size_t N,
                                    size_t C, size_t V) {
  const size_t n = warp_row();
  if (n >= N) return;
  const size_t id = ids[n];
  const float sum = warp_row_reduce<aligned>(id < V ? C : 0, [&](float* chain, size_t c, int count) {
    const Quad d = load_quad<aligned>(dh + n * C, c, C), q = load_quad<aligned>(weight + id * C, c, C);
    for (int k = 0; k < count; k++) chain[k] = fused(d.v[k], q.v[k], chain[k]);
  });
  if (threadIdx.x % 32 == 0) row_sums[n] = id < V ? sum : NAN;
}

// ---- launchers

// T: the tokens of a sequence.
inline void embedding_forward(float* h, const int* ids, const float* weight, const float* positions, const float* scale,
                              size_t N, size_t T, size_t C, size_t V, Context& ctx) {
  require(T > 0 || !positions, "embedding_forward: positions of sequences without tokens");
  if (ctx.device == Device::cpu) return embedding_forward_ref(h, ids, weight, positions, scale, N, T, C, V);
  auto* kernel = C % 4 == 0 ? embedding_forward_kernel<true> : embedding_forward_kernel<false>;
  launch(kernel, rows_grid(N), rows_block, 0, ctx, h, ids, weight, positions, scale, N, T, C, V);
}

// groups: built from the ids of dh's tokens with the number of rows of dweight.
inline void embedding_backward(float* dweight, const float* dh, const TokenGroups& groups, const float* scale, size_t C,
                               Context& ctx) {
  if (ctx.device == Device::cpu) return embedding_backward_ref(dweight, dh, groups, scale, C);
  auto* kernel = C % 4 == 0 ? embedding_backward_kernel<true> : embedding_backward_kernel<false>;
  launch(kernel, rows_grid(groups.size() * ceil_div(C, embedding_columns)), rows_block, 0, ctx, dweight, dh,
         groups.id(), groups.start(), groups.token(), groups.size(), scale, C);
}

// dpositions (T,C), dh (B*T,C): the sequences are rows of T*C columns.
inline void embedding_positions_backward(float* dpositions, const float* dh, size_t B, size_t T, size_t C,
                                         Context& ctx) {
  column_reduce_add(dpositions, B, T * C, AddRows<float>{dh, T * C}, ctx);
}

// row_sums (N): scratch.
inline void embedding_scale_backward(float* dscale, float* row_sums, const float* dh, const int* ids,
                                     const float* weight, size_t N, size_t C, size_t V, Context& ctx) {
  if (ctx.device == Device::cpu) return embedding_scale_backward_ref(dscale, row_sums, dh, ids, weight, N, C, V);
  auto* kernel = C % 4 == 0 ? embedding_scale_backward_kernel<true> : embedding_scale_backward_kernel<false>;
  launch(kernel, rows_grid(N), rows_block, 0, ctx, row_sums, dh, ids, weight, N, C, V);
  column_reduce_add(dscale, N, 1, AddRows<float>{row_sums, 1}, ctx);
}

}  // namespace gated
