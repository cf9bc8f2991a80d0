// polynorm: an activation made of normed powers. What it computes, and how: kernels/polynorm.cu
#pragma once
#include "core/context.cuh"
#include "core/math.cuh"
#include "core/storage.h"

namespace gated {

// y (N,C) = w[0]*norm(x^3) + w[1]*norm(x^2) + w[2]*norm(x) + *b, row by row; w (3). Saves r (N,3). y may be x. C = 0 is
// refused.
void polynorm_forward(Reals y, float* r, ConstReals x, const float* w, const float* b, size_t N, size_t C, float eps,
                      Context& ctx);
// dx (N,C) is written and may be dy or x; dw (3) and *db are accumulated. row_sums (N,4) is written: what every row
// adds to dw and db. r: of the forward.
void polynorm_backward(Reals dx, float* dw, float* db, float* row_sums, ConstReals dy, ConstReals x, const float* w,
                       const float* r, size_t N, size_t C, Context& ctx);
// Bytes of scratch that it takes.
size_t polynorm_backward_scratch(size_t N);

// v_j = x^(3-j). (The CPU's loops know j as they are compiled: a choice inside a loop keeps g++ from vectorising it.)
template <class T>
HD T polynorm_power(T x, int j) {
  const T square = x * x;
  return j == 0 ? square * x : j == 1 ? square : x;
}

template <class T>
void polynorm_forward_ref(T* y, T* r, const T* x, const T* w, const T* b, size_t N, size_t C, T eps);
template <class T>
void polynorm_backward_ref(T* dx, T* dw, T* db, const T* dy, const T* x, const T* w, const T* r, size_t N, size_t C);

// Twins for training on the CPU: kernels/cpu/polynorm_cpu.cpp. That of the backward writes dx and row_sums.
template <class S>
void polynorm_forward_cpu(S* y, float* r, const S* x, const float* w, const float* b, size_t N, size_t C, float eps);
template <class S>
void polynorm_backward_cpu(S* dx, float* row_sums, const S* dy, const S* x, const float* w, const float* r, size_t N,
                           size_t C);

}  // namespace gated
