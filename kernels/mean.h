// mean: of the losses of a batch. What it computes, and how: kernels/mean.cu
#pragma once
#include "core/context.cuh"

namespace gated {

// *out, on the device, = the mean of x (n). n = 0 is refused.
void mean(float* out, const float* x, size_t n, Context& ctx);
// Bytes of scratch that it takes.
size_t mean_scratch(size_t n);

template <class T>
void mean_ref(T* out, const T* x, size_t n);

}  // namespace gated
