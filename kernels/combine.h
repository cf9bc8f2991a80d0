// combine: what a token's experts say, added up with their weights. What it computes, and how: kernels/combine.cu
#pragma once
#include "kernels/dispatch.h"

namespace gated {

// y (N,C) is written: the sum over a token's slots, in slot order, of weight (N,k) times its row of rows (M,C), and
// then plus (N,C), which may be null: a shared expert's output. y may be plus.
void combine_forward(Reals y, ConstReals rows, const float* weight, ConstReals plus, const Dispatch& d,
                     const DispatchShape& s, size_t C, Context& ctx);
// Both are written: drows (M,C) = weight * dy of its token, and may be rows; dweight (N,k) = the dot product of dy
// (N,C) of the token and of the slot's row. (The gradient of plus is dy.)
void combine_backward(Reals drows, float* dweight, ConstReals dy, ConstReals rows, const float* weight,
                      const Dispatch& d, const DispatchShape& s, size_t C, Context& ctx);

template <class T>
void combine_forward_ref(T* y, const T* rows, const T* weight, const T* plus, const Dispatch& d, const DispatchShape& s,
                         size_t C);
template <class T>
void combine_backward_ref(T* drows, T* dweight, const T* dy, const T* rows, const T* weight, const Dispatch& d,
                          const DispatchShape& s, size_t C);

// Twins for training on the CPU: kernels/cpu/combine_cpu.cpp
template <class S>
void combine_forward_cpu(S* y, const S* rows, const float* weight, const S* plus, const Dispatch& d,
                         const DispatchShape& s, size_t C);
template <class S>
void combine_backward_cpu(S* drows, float* dweight, const S* dy, const S* rows, const float* weight, const Dispatch& d,
                          const DispatchShape& s, size_t C);

}  // namespace gated
