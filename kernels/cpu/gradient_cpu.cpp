// gradient on the CPU: elements and chunks are shared out among threads, and the 128 chains of a chunk advance side by
// side in vector registers. The bits are those of the reference (kernels/gradient.cu), because every chain is the same
// chain.
#include "core/reduce.cuh"
#include "kernels/gradient.h"

namespace gated {

// A thread owns a run of elements, which stays in its first cache from slice to slice.
void add_slices_cpu(float* total, bool first, const float* slices, size_t count, size_t step, size_t n) {
  constexpr size_t run = 2048;
#pragma omp parallel for
  for (size_t begin = 0; begin < n; begin += run) {
    const size_t end = n - begin < run ? n : begin + run;
    for (size_t s = 0; s < count; s++) {
      const float* g = slices + s * step;
      if (first && s == 0) {
#pragma omp simd
        for (size_t i = begin; i < end; i++) total[i] = 0.0f + g[i];
      } else {
#pragma omp simd
        for (size_t i = begin; i < end; i++) total[i] = total[i] + g[i];
      }
    }
  }
}

void gradient_squares_cpu(float* sums, const float* g, size_t n) {
#pragma omp parallel for
  for (size_t chunk = 0; chunk < buffer_chunks(n); chunk++) sums[chunk] = buffer_chunk_sum_cpu<true>(g, n, chunk);
}

void gradient_root_cpu(float* norm, const float* sums, size_t chunks) {
  *norm = exact_sqrt(row_reduce_cpu<float>(chunks, [=](float acc, size_t i) { return acc + sums[i]; }));
}

}  // namespace gated
