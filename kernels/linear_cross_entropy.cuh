// linear_cross_entropy: the output matmul and the softmax cross-entropy over it, without the (N,V) logits
//   logits = h W^T      loss_n = lse_n - logits[n,target_n], lse_n = log(sum_v e^logits[n,v])
// backward: dlogits = (e^(logits - lse) - [v = target]) * dloss      dh = dlogits W      dW += dlogits^T h
//   exactly: m = max over v; lse = m + log(row sum of exp(logits - m)); loss = lse - logits[target]
// Rows go through in chunks: logits, losses, dlogits over the logits, dh and dW, then the next chunk. Losses
// and dh do not know about chunks. Nor does dW: its rows come in slices of 1024, each one fmaf chain from +0,
//   dW = ((dW + slice_0) + slice_1) + …     one rounding each, ascending;
// and every chunk but the last is a whole number of slices, so any chunk size gives the same bits.
// Cut Your Losses (Wijmans et al. 2024, arXiv 2411.09009) keeps no logits at all. A chunk of about a thousand
// rows is of the size of W itself, and leaves the work to plain matmuls.
// shapes: h, dh (N,C) f32; weight, dweight (V,C); targets, losses (N); logits (chunk_rows,V), overwritten
//   losses and dh are written, dweight is accumulated; dh or dweight may be null
// A target of -1 is ignored: loss 0, gradient 0. Any other outside [0,V) gives a NaN loss and NaN gradients.
// Logits for sampling are matmul alone. | tests/test_linear_cross_entropy.cpp
#pragma once
#include "core/context.cuh"
#include "core/math.cuh"
#include "kernels/matmul.cuh"
#include "core/reduce.cuh"

namespace gated {

constexpr int ignored_target = -1;
constexpr size_t weight_gradient_slice = matmul_slice;  // rows of one chain of dW: a slice is one matmul

// Rows that fill about 64 MiB of logits, a whole number of slices, or all N when they are fewer.
inline size_t linear_cross_entropy_chunk_rows(size_t N, size_t V) {
  constexpr size_t floats = size_t{16} << 20;
  const size_t slices = floats / (V * weight_gradient_slice);
  const size_t rows = (slices ? slices : 1) * weight_gradient_slice;
  return rows < N ? rows : N;
}

// ---- formulas, shared by reference and kernel

HD bool target_is_known(int target, size_t V) {
  return target >= 0 && size_t(target) < V;
}

// What a target outside the vocabulary turns into: NaN that neither loss nor gradient can hide.
template <class T>
HD T log_sum_exp(T max, T sum, bool known) {
  return known ? max + exact_log(sum) : T(NAN);
}

template <class T>
HD T dlogit(T logit, T lse, T one_at_target, T dloss) {
  return (exact_exp(logit - lse) - one_at_target) * dloss;
}

// ---- reference

// The max in 128 independent chains, like a row's sum: the compiler may not reorder a single one.
template <class T>
T row_max_ref(const T* x, size_t n) {
  T chain[row_chains];
  for (T& c : chain) c = -INFINITY;
  size_t i = 0;
  for (; i + row_chains <= n; i += row_chains)
    for (size_t j = 0; j < row_chains; j++) chain[j] = max_of(x[i + j], chain[j]);
  for (size_t j = 0; i + j < n; j++) chain[j] = max_of(x[i + j], chain[j]);
  T max = chain[0];
  for (size_t j = 1; j < row_chains; j++) max = max_of(chain[j], max);
  return max;
}

// The row pass: losses from logits (rows,V) and, with `gradient`, dlogits over them.
template <class T>
void cross_entropy_ref(T* losses, T* logits, const int* targets, T dloss, bool gradient, size_t rows, size_t V) {
#pragma omp parallel for
  for (size_t row = 0; row < rows; row++) {
    T* l = logits + row * V;
    const int target = targets[row];
    if (target == ignored_target) {
      losses[row] = T(0);
      for (size_t v = 0; gradient && v < V; v++) l[v] = T(0);
      continue;
    }
    const bool known = target_is_known(target, V);
    const T at_target = l[known ? target : 0], max = row_max_ref(l, V);
    const T sum = row_reduce_ref<T>(V, [=](T acc, size_t v) { return acc + exact_exp(l[v] - max); });
    const T lse = log_sum_exp(max, sum, known);
    losses[row] = lse - at_target;
    if (!gradient) continue;
    for (size_t v = 0; v < V; v++) l[v] = dlogit(l[v], lse, T(0), dloss);
    if (known) l[target] = dlogit(at_target, lse, T(1), dloss);
  }
}

// The sequence of steps, over the matmul and the row pass of a device:
//   multiply(C, A, B, M, N, K, layout, accumulate)      rows_pass(losses, logits, targets, gradient, rows)
template <class T, class Multiply, class RowsPass>
void linear_cross_entropy_steps(T* losses, T* dh, T* dweight, T* logits, const T* h, const T* weight,
                                const int* targets, size_t N, size_t C, size_t V, size_t chunk_rows, Multiply multiply,
                                RowsPass rows_pass) {
  require(V > 0 && C > 0, "linear_cross_entropy: V is %zu and C is %zu, expected more than 0", V, C);
  require(chunk_rows >= N || (chunk_rows > 0 && chunk_rows % weight_gradient_slice == 0),
          "linear_cross_entropy: chunks of %zu rows, expected a multiple of %zu or at least all %zu", chunk_rows,
          weight_gradient_slice, N);
  const bool gradient = dh || dweight;
  for (size_t begin = 0; begin < N; begin += chunk_rows) {
    const size_t rows = N - begin < chunk_rows ? N - begin : chunk_rows;
    const T* hc = h + begin * C;
    multiply(logits, hc, weight, rows, V, C, Layout::nt, Accumulate::no);
    rows_pass(losses + begin, logits, targets + begin, gradient, rows);
    if (dh) multiply(dh + begin * C, logits, weight, rows, C, V, Layout::nn, Accumulate::no);
    // One slice a call: a longer matmul would add its slices to each other before it adds them to dW.
    for (size_t r = 0; dweight && r < rows; r += weight_gradient_slice) {
      const size_t slice = rows - r < weight_gradient_slice ? rows - r : weight_gradient_slice;
      multiply(dweight, logits + r * V, hc + r * C, V, C, slice, Layout::tn, Accumulate::yes);
    }
  }
}

template <class T>
void linear_cross_entropy_ref(T* losses, T* dh, T* dweight, T* logits, const T* h, const T* weight, const int* targets,
                              T dloss, size_t N, size_t C, size_t V, size_t chunk_rows) {
  linear_cross_entropy_steps(
      losses, dh, dweight, logits, h, weight, targets, N, C, V, chunk_rows,
      [](T* c, const T* a, const T* b, size_t m, size_t n, size_t k, Layout layout, Accumulate accumulate) {
        matmul_ref(c, a, b, m, n, k, layout, accumulate);
      },
      [&](T* losses, T* logits, const int* targets, bool gradient, size_t rows) {
        cross_entropy_ref(losses, logits, targets, dloss, gradient, rows, V);
      });
}

// ---- kernel: one block a row, thread j is chain j; max, sum and gradient each read the row once

// Every thread brings the value of its chain and gets the four chains of its lane, as the row order combines
// them.
__device__ inline Quad exchange_chains(float* shared, float chain) {
  __syncthreads();  // until here the row and the last exchange may still be read
  shared[threadIdx.x] = chain;
  __syncthreads();
  return load_quad<true>(shared, 4 * (threadIdx.x % 32), row_chains);
}

template <bool gradient, bool aligned>
__global__ void __launch_bounds__(row_chains)
    cross_entropy_kernel(float* losses, float* logits, const int* targets, float dloss, size_t V) {
  __shared__ __align__(16) float chains[row_chains];
  const size_t row = blockIdx.x, first = 4 * threadIdx.x;
  float* l = logits + row * V;
  const int target = targets[row];
  if (target == ignored_target) {
    if (threadIdx.x == 0) losses[row] = 0.0f;
    for (size_t v = first; gradient && v < V; v += 4 * row_chains) store_quad<aligned>(l, v, V, Quad{});
    return;
  }
  const bool known = target_is_known(target, V);
  const float at_target = l[known ? target : 0];

  float max = -INFINITY;
  for (size_t v = first; v < V; v += 4 * row_chains) {
    const Quad q = load_quad<aligned>(l, v, V);
    for (int k = 0; k < 4; k++)
      if (aligned || v + k < V) max = max_of(q.v[k], max);
  }
  const Quad maxima = exchange_chains(chains, max);
  max = warp_max(max_of(max_of(maxima.v[0], maxima.v[1]), max_of(maxima.v[2], maxima.v[3])));

  float sum = 0.0f;
  for (size_t v = threadIdx.x; v < V; v += row_chains) sum += exact_exp(l[v] - max);
  const Quad sums = exchange_chains(chains, sum);
  sum = warp_sum((sums.v[0] + sums.v[1]) + (sums.v[2] + sums.v[3]));

  const float lse = log_sum_exp(max, sum, known);
  if (threadIdx.x == 0) losses[row] = lse - at_target;
  // No thread is still reading the row: the second exchange had all of them done with it.
  for (size_t v = first; gradient && v < V; v += 4 * row_chains) {
    Quad q = load_quad<aligned>(l, v, V);
    for (int k = 0; k < 4; k++) q.v[k] = dlogit(q.v[k], lse, v + k == size_t(target) ? 1.0f : 0.0f, dloss);
    store_quad<aligned>(l, v, V, q);
  }
}

// ---- launchers

inline void cross_entropy(float* losses, float* logits, const int* targets, float dloss, bool gradient, size_t rows,
                          size_t V, Context& ctx) {
  if (ctx.device == Device::cpu) return cross_entropy_ref(losses, logits, targets, dloss, gradient, rows, V);
  const bool aligned = V % 4 == 0;
  auto* kernel = gradient ? (aligned ? cross_entropy_kernel<true, true> : cross_entropy_kernel<true, false>)
                          : (aligned ? cross_entropy_kernel<false, true> : cross_entropy_kernel<false, false>);
  launch(kernel, grid_of(rows), row_chains, 0, ctx, losses, logits, targets, dloss, V);
}

// dloss is the gradient of every row's loss: 1/N for their mean. logits holds min(chunk_rows, N) * V floats.
inline void linear_cross_entropy(float* losses, float* dh, float* dweight, float* logits, const float* h,
                                 const float* weight, const int* targets, float dloss, size_t N, size_t C, size_t V,
                                 size_t chunk_rows, Context& ctx) {
  linear_cross_entropy_steps(
      losses, dh, dweight, logits, h, weight, targets, N, C, V, chunk_rows,
      [&](float* c, const float* a, const float* b, size_t m, size_t n, size_t k, Layout layout,
          Accumulate accumulate) { matmul(c, a, b, m, n, k, layout, accumulate, ctx); },
      [&](float* losses, float* logits, const int* targets, bool gradient, size_t rows) {
        cross_entropy(losses, logits, targets, dloss, gradient, rows, V, ctx);
      });
}

}  // namespace gated
