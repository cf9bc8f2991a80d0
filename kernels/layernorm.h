// layernorm: LayerNorm, and LayerNorm after a residual branch. What it computes, and how: kernels/layernorm.cu
#pragma once
#include "kernels/residual.h"

namespace gated {

// y, mean, r and, where there is a branch, sum are written.
template <class T>
struct LayernormOutputsOf {
  PointerTo<T> y;              // (N,C)
  Wide<T>* mean;               // (N)
  Wide<T>* r;                  // (N)
  PointerTo<T> sum = nullptr;  // (N,C)

  template <class S>
  LayernormOutputsOf<S> as() const {
    return {y.template as<S>(), mean, r, sum.template as<S>()};
  }
};
using LayernormOutputs = LayernormOutputsOf<void>;

// dx and, where it is not null, dbranch are written (kernels/residual.h); dw and db are accumulated.
template <class T>
struct LayernormGradientsOf {
  PointerTo<T> dx;                 // (N,C); may be dresidual or dy
  PointerTo<T> dbranch = nullptr;  // (N,C)
  Wide<T>* dw;                     // (C)
  Wide<T>* db;                     // (C)

  template <class S>
  LayernormGradientsOf<S> as() const {
    return {dx.template as<S>(), dbranch.template as<S>(), dw, db};
  }
};
using LayernormGradients = LayernormGradientsOf<void>;

// y = (x - mean)*r*w + b, x = in.x or its join with a branch; w, b (C).
void layernorm_forward(const LayernormOutputs& out, const ResidualIn& in, const float* w, const float* b, size_t N,
                       size_t C, float eps, Context& ctx);
void layernorm_backward(const LayernormGradients& out, ConstReals dy, const ResidualBackwardIn& in, const float* w,
                        const float* mean, const float* r, size_t N, size_t C, Context& ctx);
// Bytes of scratch that a backward takes.
size_t layernorm_backward_scratch(size_t N, size_t C);

// ---- references: plain, and with a branch

template <class T>
void layernorm_forward_ref(T* y, T* mean, T* r, const T* x, const T* w, const T* b, size_t N, size_t C, T eps);
template <class T>
void layernorm_backward_ref(T* dx, T* dw, T* db, const T* dy, const T* x, const T* w, const T* mean, const T* r,
                            size_t N, size_t C);
template <class T>
void layernorm_general_forward_ref(const LayernormOutputsOf<T>& out, const ResidualInOf<T>& in, const T* w, const T* b,
                                   size_t N, size_t C, T eps);
template <class T>
void layernorm_general_backward_ref(const LayernormGradientsOf<T>& out, const T* dy, const ResidualBackwardInOf<T>& in,
                                    const T* w, const T* mean, const T* r, size_t N, size_t C);

// ---- the CPU's twin: kernels/cpu/layernorm_cpu.cpp

template <class S>
void layernorm_forward_cpu(const LayernormOutputsOf<S>& out, const ResidualInOf<S>& in, const float* w, const float* b,
                           size_t N, size_t C, float eps);
// dx and dbranch, and dw and db are accumulated, in one pass; dx may be dy. False, and nothing is done, where a thread
// has too few rows for it.
template <class S>
bool layernorm_backward_slices_cpu(const LayernormGradientsOf<S>& out, const S* dy, const ResidualBackwardInOf<S>& in,
                                   const float* w, const float* mean, const float* r, size_t N, size_t C);
// dx and dbranch.
template <class S>
void layernorm_backward_rows_cpu(const LayernormGradientsOf<S>& out, const S* dy, const ResidualBackwardInOf<S>& in,
                                 const float* w, const float* mean, const float* r, size_t N, size_t C);

}  // namespace gated
