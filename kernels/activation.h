// activation: y = act(x), element by element. What it computes, and how: kernels/activation.cu
#pragma once
#include "core/activation.cuh"
#include "core/context.cuh"

namespace gated {

// act: silu, gelu_tanh, gelu_erf or relu2; another is refused.

// y (n) = act(x (n)). y may be x.
void activation_forward(float* y, const float* x, size_t n, Activation act, Context& ctx);
// dx (n) = dy (n) * act'(x (n)). dx may be dy or x.
void activation_backward(float* dx, const float* dy, const float* x, size_t n, Activation act, Context& ctx);

// The references take every activation.
template <class T>
void activation_forward_ref(T* y, const T* x, size_t n, Activation act);
template <class T>
void activation_backward_ref(T* dx, const T* dy, const T* x, size_t n, Activation act);

// Their twins for training on the CPU: kernels/activation_cpu.cpp
void activation_forward_cpu(float* y, const float* x, size_t n, Activation act);
void activation_backward_cpu(float* dx, const float* dy, const float* x, size_t n, Activation act);

}  // namespace gated
