// round: out = in, rounded to bf16, to nearest even: core/bf16.cuh
//   Makes the copies that products of bf16 matrices read of the master weights, after these were drawn or read from a
//   file. Every step after that, adamw writes the copy beside the master (kernels/adamw.cu).
// shapes: in (n) f32; out (n) bf16, written | tests/test_round.cpp
#include "kernels/bf16/round.h"

#include "core/launch_shape.cuh"
#include "core/quad.cuh"

namespace gated {

// Four neighbours a thread: 6 bytes an element cross the bus.
__global__ void __launch_bounds__(elementwise_block) round_to_bf16_kernel(bf16* out, const float* in, size_t n) {
  const size_t i = elementwise_index();
  if (i < n) store_quad(out, i, n, load_quad(in, i, n));
}

static void round_to_bf16_cpu(bf16* out, const float* in, size_t n) {
#pragma omp parallel for simd
  for (size_t i = 0; i < n; i++) store(out[i], in[i]);
}

void round_to_bf16(bf16* out, const float* in, size_t n, Context& ctx) {
  if (ctx.device == Device::cpu) return round_to_bf16_cpu(out, in, n);
  launch(round_to_bf16_kernel, elementwise_grid(n), elementwise_block, 0, ctx, out, in, n);
}

}  // namespace gated
