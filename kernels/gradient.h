// gradient: what happens to the whole gradient between backward pass and update. What it computes, and how:
// kernels/gradient.cu
#pragma once
#include "core/context.cuh"

namespace gated {

// total (n) += g (n).
void accumulate_gradient(float* total, const float* g, size_t n, Context& ctx);

// *norm, on the device, = the square root of the sum of g (n) squared. It is infinite where the sum leaves the range of
// float (entries above about 1e19).
void gradient_norm(float* norm, const float* g, size_t n, Context& ctx);
// Bytes of scratch that it takes.
size_t gradient_norm_scratch(size_t n);

template <class T>
void accumulate_gradient_ref(T* total, const T* g, size_t n);
template <class T>
void gradient_norm_ref(T* norm, const T* g, size_t n);

// Their twins for training on the CPU: kernels/cpu/gradient_cpu.cpp
void accumulate_gradient_cpu(float* total, const float* g, size_t n);
void gradient_norm_cpu(float* norm, const float* g, size_t n, float* sums);

}  // namespace gated
