// activation: y = act(x), element by element. What it computes, and how: kernels/activation.cu
#pragma once
#include "core/context.cuh"
#include "core/nonlinear.cuh"
#include "core/storage.h"

namespace gated {

// y (n) = act(x (n)). y may be x. act: one for of_plain (core/nonlinear.cuh); another is refused.
void activation_forward(Reals y, ConstReals x, size_t n, Activation act, Context& ctx);
// dx (n) = dy (n) * act'(x (n)). dx may be dy or x.
void activation_backward(Reals dx, ConstReals dy, ConstReals x, size_t n, Activation act, Context& ctx);

// The references take every activation.
template <class T>
void activation_forward_ref(T* y, const T* x, size_t n, Activation act);
template <class T>
void activation_backward_ref(T* dx, const T* dy, const T* x, size_t n, Activation act);

// Their twins for training on the CPU: kernels/cpu/activation_cpu.cpp
template <class S>
void activation_forward_cpu(S* y, const S* x, size_t n, Activation act);
template <class S>
void activation_backward_cpu(S* dx, const S* dy, const S* x, size_t n, Activation act);

}  // namespace gated
