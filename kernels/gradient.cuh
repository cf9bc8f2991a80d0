// gradient: what happens to the whole gradient between backward pass and update, and the mean of the losses
//   accumulate_gradient   total += g
//   gradient_norm         norm = sqrt(sum g^2)
//   mean                  out = (sum x) / n
// Each micro-batch's gradient starts from zero and is added in ascending order, so that N ranks of M
// micro-batches can give the bits of one rank with N*M.
// order of a sum over a whole buffer: chunks of 16384 elements, each summed in the canonical row order; the
// chunk sums are one more row. (Adding +0 changes nothing, so a buffer of one chunk has the bits of a row.)
// shapes: total, g, x (n) f32; norm, out one f32 on the device
//   total is accumulated, norm and out are written
// --micro-batches, --clip | tests/test_gradient.cpp
#pragma once
#include <vector>

#include "core/context.cuh"
#include "core/launch_shape.cuh"
#include "core/math.cuh"
#include "core/reduce.cuh"

namespace gated {

constexpr size_t buffer_chunk = 16384;

// ---- formulas: how an element enters its chain, and what becomes of the sum

struct RootSumSquares {
  template <class T>
  static HD T fold(T acc, T x) {
    return fused(x, x, acc);
  }
  template <class T>
  static HD T finish(T sum, size_t) {
    return exact_sqrt(sum);
  }
};

struct Mean {
  template <class T>
  static HD T fold(T acc, T x) {
    return acc + x;
  }
  template <class T>
  static HD T finish(T sum, size_t n) {
    return sum / T(n);
  }
};

// ---- reference

template <class T>
void accumulate_gradient_ref(T* total, const T* g, size_t n) {
#pragma omp parallel for simd
  for (size_t i = 0; i < n; i++) total[i] += g[i];
}

template <class Formula, class T>
void buffer_reduce_ref(T* out, const T* x, size_t n) {
  std::vector<T> sums(ceil_div(n, buffer_chunk));
#pragma omp parallel for
  for (size_t chunk = 0; chunk < sums.size(); chunk++) {
    const T* xc = x + chunk * buffer_chunk;
    const size_t left = n - chunk * buffer_chunk;
    sums[chunk] = row_reduce_ref<T>(left < buffer_chunk ? left : buffer_chunk,
                                    [=](T acc, size_t i) { return Formula::fold(acc, xc[i]); });
  }
  *out = Formula::finish(row_reduce_ref<T>(sums.size(), [&](T acc, size_t i) { return acc + sums[i]; }), n);
}

// ---- kernels

// A thread holds four neighbouring elements: three float4 cross the bus.
template <bool aligned>
__global__ void __launch_bounds__(elementwise_block)
    accumulate_gradient_kernel(float* total, const float* g, size_t n) {
  const size_t i = elementwise_index();
  if (i >= n) return;
  Quad sum = load_quad<aligned>(total, i, n);
  const Quad q = load_quad<aligned>(g, i, n);
  for (int k = 0; k < 4; k++) sum.v[k] += q.v[k];
  store_quad<aligned>(total, i, n, sum);
}

// One warp a chunk; every element is read once.
template <class Formula, bool aligned>
__global__ void __launch_bounds__(rows_block) buffer_chunks_kernel(float* sums, const float* x, size_t n) {
  const size_t chunk = warp_row(), begin = chunk * buffer_chunk;
  if (begin >= n) return;
  const float* xc = x + begin;
  const size_t size = n - begin < buffer_chunk ? n - begin : buffer_chunk;
  const float sum = warp_row_reduce<aligned>(size, [&](float* chain, size_t i, int count) {
    const Quad q = load_quad<aligned>(xc, i, size);
    for (int k = 0; k < count; k++) chain[k] = Formula::fold(chain[k], q.v[k]);
  });
  if (threadIdx.x % 32 == 0) sums[chunk] = sum;
}

// One warp: a billion elements leave 61036 chunk sums, 477 for every chain.
template <class Formula>
__global__ void buffer_finish_kernel(float* out, const float* sums, size_t chunks, size_t n) {
  const float sum = warp_row_reduce<false>(chunks, [&](float* chain, size_t i, int count) {
    for (int k = 0; k < count; k++) chain[k] += sums[i + k];
  });
  if (threadIdx.x == 0) *out = Formula::finish(sum, n);
}

// ---- launchers

inline void accumulate_gradient(float* total, const float* g, size_t n, Context& ctx) {
  if (ctx.device == Device::cpu) return accumulate_gradient_ref(total, g, n);
  auto* kernel = n % 4 == 0 ? accumulate_gradient_kernel<true> : accumulate_gradient_kernel<false>;
  launch(kernel, elementwise_grid(n), elementwise_block, 0, ctx, total, g, n);
}

template <class Formula>
void buffer_reduce(float* out, const float* x, size_t n, Context& ctx) {
  if (ctx.device == Device::cpu) return buffer_reduce_ref<Formula>(out, x, n);
  const size_t chunks = ceil_div(n, buffer_chunk);
  float* sums = ctx.scratch(chunks);
  auto* kernel = n % 4 == 0 ? buffer_chunks_kernel<Formula, true> : buffer_chunks_kernel<Formula, false>;
  launch(kernel, rows_grid(chunks), rows_block, 0, ctx, sums, x, n);
  launch(buffer_finish_kernel<Formula>, 1, 32, 0, ctx, out, sums, chunks, n);
}

// *norm is infinite when the sum of squares leaves the range of float (entries above about 1e19).
inline void gradient_norm(float* norm, const float* g, size_t n, Context& ctx) {
  buffer_reduce<RootSumSquares>(norm, g, n, ctx);
}

inline void mean(float* out, const float* x, size_t n, Context& ctx) {
  require(n > 0, "mean: a mean over no elements");
  buffer_reduce<Mean>(out, x, n, ctx);
}

}  // namespace gated
