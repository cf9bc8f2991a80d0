// rmsnorm: RMSNorm, and its general form with PreAffine, zero-centred weights and a residual branch. What it computes,
// and how: kernels/rmsnorm.cu
#pragma once
#include "kernels/residual.h"

namespace gated {

// ---- plain RMSNorm

// y (N,C) = x*r*w, r (N) = 1/sqrt(mean(x^2) + eps): both are written. x (N,C), w (C).
void rmsnorm_forward(Reals y, float* r, ConstReals x, const float* w, size_t N, size_t C, float eps, Context& ctx);
// dx (N,C) is written and may be dy; dw (C) is accumulated.
void rmsnorm_backward(Reals dx, float* dw, ConstReals dy, ConstReals x, const float* w, const float* r, size_t N,
                      size_t C, Context& ctx);
// Bytes of scratch that a backward takes; of the general one with `pre` too.
size_t rmsnorm_backward_scratch(size_t N, size_t C, bool pre = false);

template <class T>
void rmsnorm_forward_ref(T* y, T* r, const T* x, const T* w, size_t N, size_t C, T eps);
template <class T>
void rmsnorm_backward_ref(T* dx, T* dw, const T* dy, const T* x, const T* w, const T* r, size_t N, size_t C);

// ---- the general form: y = z*r*(offset + w), z = pre*x, x the join of the stream and a branch

template <class T>
struct RmsnormWeightsOf {
  const T* w;              // (C)
  const T* pre = nullptr;  // (C), PreAffine; null: 1
  T offset = 0;            // 1: zero-centred weights

  bool plain() const { return !pre && offset == 0; }
};
using RmsnormWeights = RmsnormWeightsOf<float>;

// Wide<T> is what is never rounded to bf16, a float (core/storage.h).
// y, r and, where there is a branch, sum are written.
template <class T>
struct RmsnormOutputsOf {
  PointerTo<T> y;              // (N,C)
  Wide<T>* r;                  // (N)
  PointerTo<T> sum = nullptr;  // (N,C)

  template <class S>
  RmsnormOutputsOf<S> as() const {
    return {y.template as<S>(), r, sum.template as<S>()};
  }
};
using RmsnormOutputs = RmsnormOutputsOf<void>;

// dx and, where it is not null, dbranch are written (kernels/residual.h); dw and dpre are accumulated.
template <class T>
struct RmsnormGradientsOf {
  PointerTo<T> dx;                 // (N,C); may be dresidual, and without pre also dy
  PointerTo<T> dbranch = nullptr;  // (N,C)
  Wide<T>* dw;                     // (C)
  Wide<T>* dpre = nullptr;         // (C), with pre
  Wide<T>* mean = nullptr;         // (N), with pre: scratch

  template <class S>
  RmsnormGradientsOf<S> as() const {
    return {dx.template as<S>(), dbranch.template as<S>(), dw, dpre, mean};
  }
};
using RmsnormGradients = RmsnormGradientsOf<void>;

void rmsnorm_forward(const RmsnormOutputs& out, const ResidualIn& in, const RmsnormWeights& weights, size_t N, size_t C,
                     float eps, Context& ctx);
void rmsnorm_backward(const RmsnormGradients& out, ConstReals dy, const ResidualBackwardIn& in,
                      const RmsnormWeights& weights, const float* r, size_t N, size_t C, Context& ctx);

template <class T>
void rmsnorm_general_forward_ref(const RmsnormOutputsOf<T>& out, const ResidualInOf<T>& in,
                                 const RmsnormWeightsOf<T>& weights, size_t N, size_t C, T eps);
// (out.mean is not used.)
template <class T>
void rmsnorm_general_backward_ref(const RmsnormGradientsOf<T>& out, const T* dy, const ResidualBackwardInOf<T>& in,
                                  const RmsnormWeightsOf<T>& weights, const T* r, size_t N, size_t C);

// ---- the CPU's twin: kernels/cpu/rmsnorm_cpu.cpp

template <class S>
void rmsnorm_forward_cpu(const RmsnormOutputsOf<S>& out, const ResidualInOf<S>& in, const RmsnormWeights& weights,
                         size_t N, size_t C, float eps);
// dx and dbranch, and mean where it is not null, and dw and dpre are accumulated, in one pass; dx may be dy. False, and
// nothing is done, where a thread has too few rows for it.
template <class S>
bool rmsnorm_backward_slices_cpu(const RmsnormGradientsOf<S>& out, const S* dy, const ResidualBackwardInOf<S>& in,
                                 const RmsnormWeights& weights, const float* r, size_t N, size_t C);
// dx and dbranch, and mean where it is not null.
template <class S>
void rmsnorm_backward_rows_cpu(const RmsnormGradientsOf<S>& out, const S* dy, const ResidualBackwardInOf<S>& in,
                               const RmsnormWeights& weights, const float* r, size_t N, size_t C);

}  // namespace gated
