// mean: out = (sum over i of x_i) / n, the loss of a batch from the losses of its tokens
// backward: every token's loss has the weight 1/n, which the loss's own backward takes as a factor
//   (kernels/linear_cross_entropy.cu); nothing is left to do here
// order: a buffer (core/reduce.cuh): every 16384 elements are a chunk, summed as a row; the sums of the chunks are one
//   more row
// shapes: x (n) f32, n > 0; out one f32 on the device, written
// twins: none; the CPU's loops stand in this file
// tests/test_mean.cpp
#include "kernels/mean.h"

#include "core/launch_shape.cuh"
#include "core/reduce.cuh"

namespace gated {

// ---- reference

template <class T>
void mean_ref(T* out, const T* x, size_t n) {
  BufferSum<T> sum;
  for (size_t i = 0; i < n; i++) sum.add(x[i]);
  *out = sum.total() / T(n);
}
IN_FLOAT_AND_DOUBLE(mean_ref);

// ---- kernels

// One warp adds up the chunks.
__global__ void mean_kernel(float* out, const float* sums, size_t chunks, size_t n) {
  const float sum = warp_row_sum(sums, chunks);
  if (threadIdx.x == 0) *out = sum / float(n);
}

// ---- the CPU: the 128 chains of a chunk advance side by side in vector registers, and are the same chains

static void mean_cpu(float* out, const float* x, size_t n) {
  RowSum<float> chunks;
  for (size_t chunk = 0; chunk < buffer_chunks(n); chunk++) chunks.add(buffer_chunk_sum_cpu<false>(x, n, chunk));
  *out = chunks.total() / float(n);
}

// ---- launchers

size_t mean_scratch(size_t n) {
  return buffer_chunks(n) * sizeof(float);
}

void mean(float* out, const float* x, size_t n, Context& ctx) {
  require(n > 0, "mean: a mean over no elements");
  if (ctx.device == Device::cpu) return mean_cpu(out, x, n);
  const size_t chunks = buffer_chunks(n);
  float* sums = ctx.scratch(chunks);
  launch(buffer_chunks_kernel<false>, rows_grid(chunks), rows_block, 0, ctx, sums, x, n);
  launch(mean_kernel, 1, 32, 0, ctx, out, sums, chunks, n);
}

}  // namespace gated
