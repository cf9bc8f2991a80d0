// gradient on the CPU: elements and chunks are shared out among threads, and the 128 chains of a chunk advance side by
// side in vector registers. The bits are those of the reference (kernels/gradient.cu), because every chain is the same
// chain.
#include "core/reduce.cuh"
#include "kernels/gradient.h"

namespace gated {

void accumulate_gradient_cpu(float* total, const float* g, size_t n) {
#pragma omp parallel for simd
  for (size_t i = 0; i < n; i++) total[i] = total[i] + g[i];
}

// sums: one float for every chunk.
void gradient_norm_cpu(float* norm, const float* g, size_t n, float* sums) {
  const size_t chunks = ceil_div(n, buffer_chunk);
#pragma omp parallel for
  for (size_t chunk = 0; chunk < chunks; chunk++) {
    const float* gc = g + chunk * buffer_chunk;
    const size_t left = n - chunk * buffer_chunk, size = left < buffer_chunk ? left : buffer_chunk;
    sums[chunk] = row_reduce_cpu<float>(size, [=](float acc, size_t i) { return fused(gc[i], gc[i], acc); });
  }
  *norm = exact_sqrt(row_reduce_cpu<float>(chunks, [=](float acc, size_t i) { return acc + sums[i]; }));
}

}  // namespace gated
