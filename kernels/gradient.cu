// gradient: the whole gradient, one flat buffer, between backward pass and update
//   accumulate_gradient   total_i += g_i
//   gradient_norm         norm = sqrt(sum over i of g_i^2)
//   The loss of a step is the mean over its micro-batches, so the gradient of a step is the sum of theirs (each already
//   divided by their number). Every micro-batch's gradient starts from zero and is added in ascending order, so that
//   N ranks of M micro-batches can give the bits of one rank with N*M.
//   The norm is a length: AdamW shortens the gradient to at most --clip (kernels/adamw.cu).
// order: a buffer (core/reduce.cuh): every 16384 elements are a chunk, summed as a row; the sums of the chunks are one
//   more row. No padding matters: a zero adds nothing.
// shapes: total, g (n) f32; norm one f32 on the device | total is accumulated, norm is written
// twins: kernels/cpu/gradient_cpu.cpp
// --micro-batches, --clip | tests/test_gradient.cpp
#include "kernels/gradient.h"

#include "core/launch_shape.cuh"
#include "core/reduce.cuh"

namespace gated {

// ---- reference

template <class T>
void accumulate_gradient_ref(T* total, const T* g, size_t n) {
  for (size_t i = 0; i < n; i++) total[i] = total[i] + g[i];
}

template <class T>
void gradient_norm_ref(T* norm, const T* g, size_t n) {
  BufferSum<T> squares;
  for (size_t i = 0; i < n; i++) squares.fma(g[i], g[i]);
  *norm = exact_sqrt(squares.total());
}
IN_FLOAT_AND_DOUBLE(accumulate_gradient_ref);
IN_FLOAT_AND_DOUBLE(gradient_norm_ref);

// ---- kernels

// A thread owns four neighbouring elements, a Quad (kernels/activation.cu). 12 bytes an element cross the bus.
__global__ void __launch_bounds__(elementwise_block)
    accumulate_gradient_kernel(float* total, const float* g, size_t n) {
  const size_t i = elementwise_index();
  if (i >= n) return;
  Quad sum = load_quad(total, i, n);
  const Quad q = load_quad(g, i, n);
  for (int k = 0; k < 4; k++) sum.v[k] = sum.v[k] + q.v[k];
  store_quad(total, i, n, sum);
}

// sums[chunk] = sum of squares of one chunk. A warp owns a chunk, as it owns a row in kernels/rmsnorm.cu; no warp waits
// for another. Every element is read once.
__global__ void __launch_bounds__(rows_block) gradient_squares_kernel(float* sums, const float* g, size_t n) {
  const size_t chunk = warp_row(), begin = chunk * buffer_chunk;
  if (begin >= n) return;
  const size_t size = n - begin < buffer_chunk ? n - begin : buffer_chunk;
  float chain[4] = {};
  for (size_t i = 4 * (threadIdx.x % 32); i < size; i += row_chains) {
    const Quad q = load_quad(g + begin, i, size);
    for (int k = 0; k < 4; k++) chain[k] = fused(q.v[k], q.v[k], chain[k]);  // past the end q is 0, which adds nothing
  }
  const float sum = warp_chains_sum(chain);
  if (threadIdx.x % 32 == 0) sums[chunk] = sum;
}

// One warp adds up the chunks: a billion elements leave 61036 of them, 477 for every chain.
__global__ void gradient_root_kernel(float* norm, const float* sums, size_t chunks) {
  const float sum = warp_row_sum(sums, chunks);
  if (threadIdx.x == 0) *norm = exact_sqrt(sum);
}

// ---- launchers

void accumulate_gradient(float* total, const float* g, size_t n, Context& ctx) {
  if (ctx.device == Device::cpu) return accumulate_gradient_cpu(total, g, n);
  launch(accumulate_gradient_kernel, elementwise_grid(n), elementwise_block, 0, ctx, total, g, n);
}

size_t gradient_norm_scratch(size_t n) {
  return ceil_div(n, buffer_chunk) * sizeof(float);
}

void gradient_norm(float* norm, const float* g, size_t n, Context& ctx) {
  const size_t chunks = ceil_div(n, buffer_chunk);
  float* sums = ctx.scratch(chunks);
  if (ctx.device == Device::cpu) return gradient_norm_cpu(norm, g, n, sums);
  launch(gradient_squares_kernel, rows_grid(chunks), rows_block, 0, ctx, sums, g, n);
  launch(gradient_root_kernel, 1, 32, 0, ctx, norm, sums, chunks);
}

}  // namespace gated
