// layernorm: LayerNorm, and LayerNorm behind a residual branch. What it computes, and how: kernels/layernorm.cu
#pragma once
#include "kernels/residual.h"

namespace gated {

// ---- plain LayerNorm

// y (N,C) = (x - mean)*r*w + b; mean, r (N): all three are written. x (N,C); w, b (C).
void layernorm_forward(float* y, float* mean, float* r, const float* x, const float* w, const float* b, size_t N,
                       size_t C, float eps, Context& ctx);
// dx (N,C) is written and may be dy; dw and db (C) are accumulated.
void layernorm_backward(float* dx, float* dw, float* db, const float* dy, const float* x, const float* w,
                        const float* mean, const float* r, size_t N, size_t C, Context& ctx);
// Bytes of scratch that a backward takes, the general one too.
size_t layernorm_backward_scratch(size_t N, size_t C);

template <class T>
void layernorm_forward_ref(T* y, T* mean, T* r, const T* x, const T* w, const T* b, size_t N, size_t C, T eps);
template <class T>
void layernorm_backward_ref(T* dx, T* dw, T* db, const T* dy, const T* x, const T* w, const T* mean, const T* r,
                            size_t N, size_t C);

// ---- the general form: x is the join of the stream and a branch

// y, mean, r and, where there is a branch, sum are written.
template <class T>
struct LayernormOutputsOf {
  T* y;              // (N,C)
  T *mean, *r;       // (N)
  T* sum = nullptr;  // (N,C)
};
using LayernormOutputs = LayernormOutputsOf<float>;

// dx and, where it is not null, dbranch are written (kernels/residual.h); dw and db are accumulated.
template <class T>
struct LayernormGradientsOf {
  T* dx;                 // (N,C); may be dresidual or dy
  T* dbranch = nullptr;  // (N,C)
  T *dw, *db;            // (C)
};
using LayernormGradients = LayernormGradientsOf<float>;

void layernorm_forward(const LayernormOutputs& out, const ResidualIn& in, const float* w, const float* b, size_t N,
                       size_t C, float eps, Context& ctx);
void layernorm_backward(const LayernormGradients& out, const float* dy, const ResidualBackwardIn& in, const float* w,
                        const float* mean, const float* r, size_t N, size_t C, Context& ctx);

template <class T>
void layernorm_general_forward_ref(const LayernormOutputsOf<T>& out, const ResidualInOf<T>& in, const T* w, const T* b,
                                   size_t N, size_t C, T eps);
template <class T>
void layernorm_general_backward_ref(const LayernormGradientsOf<T>& out, const T* dy, const ResidualBackwardInOf<T>& in,
                                    const T* w, const T* mean, const T* r, size_t N, size_t C);

// ---- the CPU's twin: kernels/layernorm_cpu.cpp

void layernorm_forward_cpu(const LayernormOutputs& out, const ResidualIn& in, const float* w, const float* b, size_t N,
                           size_t C, float eps);
// dx and dbranch.
void layernorm_backward_rows_cpu(const LayernormGradients& out, const float* dy, const ResidualBackwardIn& in,
                                 const float* w, const float* mean, const float* r, size_t N, size_t C);

}  // namespace gated
