// gated_norm: GatedNorm, a norm with a low-rank gate of its own. What it computes, and how: kernels/gated_norm.cu
#pragma once
#include "kernels/gate.h"
#include "kernels/residual.h"

namespace gated {

enum class NormGateBase { rmsnorm, dyt };              // what is gated
enum class NormGateScore { elementwise, tensorwise };  // a score for every element, or one for a row

struct GatedNormShape {
  size_t N, C, rank;  // rank: 1 to 1024
  NormGateBase base = NormGateBase::rmsnorm;
  NormGateScore score = NormGateScore::elementwise;
  GateOp op = {};
  float offset = 0, eps = 0;  // of RMSNorm; offset 1: its weight is 1 + w

  HD size_t scores() const { return score == NormGateScore::tensorwise ? 1 : C; }  // of a row
};

// The parameters, or their gradients. alpha and b are DyT's, null for RMSNorm.
template <class P>
struct GatedNormParameters {
  P alpha;  // (1)
  P w, b;   // (C)
  P down;   // (rank,C)
  P up;     // (scores,rank)
};
using GatedNormWeights = GatedNormParameters<const float*>;
using GatedNormGradients = GatedNormParameters<float*>;

// Activations of (N,C) are floats or bf16.
//
// y (N,C), r (N; RMSNorm), low (N,rank) and, after a branch, sum (N,C) are written. y is none of the inputs.
void gated_norm_forward(Reals y, float* r, float* low, Reals sum, const ResidualIn& in, const GatedNormWeights& weights,
                        const GatedNormShape& shape, Context& ctx);
// dx and, where it is not null, dbranch (N,C) are written (kernels/residual.h), the gradients of parameters
// accumulated. dx may be in.dresidual; neither dx nor dbranch is dy.
void gated_norm_backward(Reals dx, Reals dbranch, const GatedNormGradients& gradients, ConstReals dy,
                         const ResidualBackwardIn& in, const float* low, const float* r,
                         const GatedNormWeights& weights, const GatedNormShape& shape, Context& ctx);
// Bytes of scratch that they take.
size_t gated_norm_forward_scratch(const GatedNormShape& shape, Device device);
size_t gated_norm_backward_scratch(const GatedNormShape& shape, Device device);

// ---- references

// The plain case: RMSNorm, no branch, a sigmoid score for every element. down (rank,C), up (C,rank).
template <class T>
void gated_norm_forward_ref(T* y, T* r, T* low, const T* x, const T* w, const T* down, const T* up, size_t N, size_t C,
                            size_t rank, T eps);
template <class T>
void gated_norm_backward_ref(T* dx, T* dw, T* ddown, T* dup, const T* dy, const T* x, const T* low, const T* r,
                             const T* w, const T* down, const T* up, size_t N, size_t C, size_t rank);

template <class T>
void gated_norm_general_forward_ref(T* y, T* r, T* low, T* sum, const ResidualInOf<T>& in,
                                    const GatedNormParameters<const T*>& weights, const GatedNormShape& shape);
template <class T>
void gated_norm_general_backward_ref(T* dx, T* dbranch, const GatedNormParameters<T*>& gradients, const T* dy,
                                     const ResidualBackwardInOf<T>& in, const T* low, const T* r,
                                     const GatedNormParameters<const T*>& weights, const GatedNormShape& shape);

// ---- the CPU's twin: kernels/cpu/gated_norm_cpu.cpp

template <class S>
void gated_norm_forward_cpu(S* y, float* r, float* low, S* sum, const ResidualInOf<S>& in,
                            const GatedNormWeights& weights, const GatedNormShape& shape, float* scratch);
template <class S>
void gated_norm_backward_cpu(S* dx, S* dbranch, const GatedNormGradients& gradients, const S* dy,
                             const ResidualBackwardInOf<S>& in, const float* low, const float* r,
                             const GatedNormWeights& weights, const GatedNormShape& shape, float* scratch);
// Bytes of scratch.
size_t gated_norm_forward_cpu_scratch(const GatedNormShape& shape);
size_t gated_norm_backward_cpu_scratch(const GatedNormShape& shape);

}  // namespace gated
