// l2norm: every head gets the length 1/sqrt(m). What it computes, and how: kernels/l2norm.cu
#pragma once
#include "core/context.cuh"
#include "core/math.cuh"
#include "core/storage.h"

namespace gated {

struct L2normShape {
  size_t N, H, D;  // tokens, heads of each, elements of a head
  float m = 1;     // 1 for keys; D for queries, whose dot products then need no factor 1/sqrt(D)
  float eps = 1e-6f;

  // Elements from one token to the next, where its heads lie in a wider row; 0: packed.
  size_t x_stride = 0;  // of x and dx
  size_t y_stride = 0;  // of y and dy

  // Where row n of N*H begins.
  HD size_t x_row(size_t n) const { return n / H * (x_stride ? x_stride : H * D) + n % H * D; }
  HD size_t y_row(size_t n) const { return n / H * (y_stride ? y_stride : H * D) + n % H * D; }
};

// y (N,H,D) = x*r, r (N,H) = 1/sqrt(m*(sum of x^2 + eps)): both are written. y may be x, if their strides are the same.
void l2norm_forward(Reals y, float* r, ConstReals x, const L2normShape& s, Context& ctx);
// dx (N,H,D) is written, from what the forward wrote; it may be dy.
void l2norm_backward(Reals dx, ConstReals dy, ConstReals y, const float* r, const L2normShape& s, Context& ctx);

template <class T>
void l2norm_forward_ref(T* y, T* r, const T* x, const L2normShape& s);
template <class T>
void l2norm_backward_ref(T* dx, const T* dy, const T* y, const T* r, const L2normShape& s);

// Their twins for training on the CPU: kernels/cpu/l2norm_cpu.cpp
template <class S>
void l2norm_forward_cpu(S* y, float* r, const S* x, const L2normShape& s);
template <class S>
void l2norm_backward_cpu(S* dx, const S* dy, const S* y, const float* r, const L2normShape& s);

}  // namespace gated
