// gradient: the whole gradient, one flat buffer, between backward pass and update
//   add_slices      total_i = (((total_i + s_0i) + s_1i) + ...), or from 0 where the first slice is the sum's first
//   gradient norm   norm = sqrt(sum over i of g_i^2), in two parts: gradient_squares, gradient_root
//   The loss of a step is the mean over its micro-batches, so the gradient of a step is the sum of theirs (each already
//   divided by their number). Slices of a step start from zero each and are added in ascending order
//   (training/optimizer.cuh): so it does not matter which of them were computed side by side.
//   The norm is a length: AdamW shortens the gradient to at most --clip (kernels/adamw.cu).
// order: a buffer (core/reduce.cuh): every 16384 elements are a chunk, summed as a row; the sums of the chunks are one
//   more row. No padding matters: a zero adds nothing.
// shapes: total, g (n), slices (count, n) with rows `step` apart, f32; sums (chunks); norm one f32 on the device
// twins: kernels/cpu/gradient_cpu.cpp
// --micro-batches, --clip | tests/test_gradient.cpp
#include "kernels/gradient.h"

#include "core/launch_shape.cuh"
#include "core/reduce.cuh"

namespace gated {

// ---- reference

template <class T>
void add_slices_ref(T* total, bool first, const T* slices, size_t count, size_t step, size_t n) {
  for (size_t i = 0; i < n; i++) {
    T sum = first ? T(0) : total[i];
    for (size_t s = 0; s < count; s++) sum = sum + slices[s * step + i];
    total[i] = sum;
  }
}

template <class T>
void gradient_norm_ref(T* norm, const T* g, size_t n) {
  BufferSum<T> squares;
  for (size_t i = 0; i < n; i++) squares.fma(g[i], g[i]);
  *norm = exact_sqrt(squares.total());
}
IN_FLOAT_AND_DOUBLE(add_slices_ref);
IN_FLOAT_AND_DOUBLE(gradient_norm_ref);

// ---- kernels

// A thread owns four neighbouring elements, a Quad (kernels/activation.cu), and walks through the slices. 8 bytes an
// element cross the bus, 4 where the sum begins, and 4 for each slice.
__global__ void __launch_bounds__(elementwise_block)
    add_slices_kernel(float* total, bool first, const float* slices, size_t count, size_t step, size_t n) {
  const size_t i = elementwise_index();
  if (i >= n) return;
  Quad sum = {};
  if (!first) sum = load_quad(total, i, n);
  for (size_t s = 0; s < count; s++) {
    const Quad q = load_quad(slices + s * step, i, n);
    for (int k = 0; k < 4; k++) sum.v[k] = sum.v[k] + q.v[k];
  }
  store_quad(total, i, n, sum);
}

// One warp adds up the chunks: a billion elements leave 61036 of them, 477 for every chain.
__global__ void gradient_root_kernel(float* norm, const float* sums, size_t chunks) {
  const float sum = warp_row_sum(sums, chunks);
  if (threadIdx.x == 0) *norm = exact_sqrt(sum);
}

// ---- launchers

void add_slices(float* total, bool first, const float* slices, size_t count, size_t step, size_t n, Context& ctx) {
  require(count > 0, "add_slices: there are no slices");
  if (ctx.device == Device::cpu) return add_slices_cpu(total, first, slices, count, step, n);
  launch(add_slices_kernel, elementwise_grid(n), elementwise_block, 0, ctx, total, first, slices, count, step, n);
}

void gradient_squares(float* sums, const float* g, size_t n, Context& ctx) {
  if (ctx.device == Device::cpu) return gradient_squares_cpu(sums, g, n);
  launch(buffer_chunks_kernel<true>, rows_grid(buffer_chunks(n)), rows_block, 0, ctx, sums, g, n);
}

void gradient_root(float* norm, const float* sums, size_t chunks, Context& ctx) {
  if (ctx.device == Device::cpu) return gradient_root_cpu(norm, sums, chunks);
  launch(gradient_root_kernel, 1, 32, 0, ctx, norm, sums, chunks);
}

}  // namespace gated
