// gradient: what happens to the whole gradient between backward pass and update. What it computes, and how:
// kernels/gradient.cu
#pragma once
#include "core/context.cuh"
#include "core/sums.h"

namespace gated {

// total (n) += slices (count, n), one after the other; from 0 where they are its `first`. A slice begins `step`
// elements after the one before it, a multiple of 4 where there are several. count = 0 is refused.
void add_slices(float* total, bool first, const float* slices, size_t count, size_t step, size_t n, Context& ctx);
// total (n) += g (n).
inline void accumulate_gradient(float* total, const float* g, size_t n, Context& ctx) {
  add_slices(total, false, g, 1, 0, n, ctx);
}

// The norm of a gradient in two halves, for its parts lie in several places. sums (buffer_chunks(n)) of the squares of
// every 16384 elements of g (n):
void gradient_squares(float* sums, const float* g, size_t n, Context& ctx);
// *norm, on the device, = the square root of all sums together. It is infinite where they leave the range of float
// (entries of g above about 1e19).
void gradient_root(float* norm, const float* sums, size_t chunks, Context& ctx);

template <class T>
void add_slices_ref(T* total, bool first, const T* slices, size_t count, size_t step, size_t n);
template <class T>
void gradient_norm_ref(T* norm, const T* g, size_t n);

// Their twins for training on the CPU: kernels/cpu/gradient_cpu.cpp
void add_slices_cpu(float* total, bool first, const float* slices, size_t count, size_t step, size_t n);
void gradient_squares_cpu(float* sums, const float* g, size_t n);
void gradient_root_cpu(float* norm, const float* sums, size_t chunks);

}  // namespace gated
