// glu: y = act(g)*u, element by element, and the clamped SwiGLU of gpt-oss. What it computes, and how: kernels/glu.cu
#pragma once
#include "core/context.cuh"
#include "core/nonlinear.cuh"
#include "core/storage.h"

namespace gated {

// y (n) = act(g (n)) * u (n). y may be g or u. act: one for of_glu (core/nonlinear.cuh); another is refused.
void glu_forward(Reals y, ConstReals g, ConstReals u, size_t n, Activation act, Context& ctx);
// dg (n) = dy (n) * u (n) * act'(g (n)), du (n) = dy * act(g). dg may be g, and du may be u or dy: a layer that needs
// neither input afterwards keeps no memory for the gradients.
void glu_backward(Reals dg, Reals du, ConstReals dy, ConstReals g, ConstReals u, size_t n, Activation act,
                  Context& ctx);

// The same for gpt-oss's y = (uc + 1) * gc * sigmoid(1.702 gc), gc = min(g, 7), uc = u clamped to [-7, 7]. The gradient
// of an input beyond its bound is 0. The same arrays may be one.
void swiglu_clamped_forward(Reals y, ConstReals g, ConstReals u, size_t n, Context& ctx);
void swiglu_clamped_backward(Reals dg, Reals du, ConstReals dy, ConstReals g, ConstReals u, size_t n, Context& ctx);

// The references take every activation.
template <class T>
void glu_forward_ref(T* y, const T* g, const T* u, size_t n, Activation act);
template <class T>
void glu_backward_ref(T* dg, T* du, const T* dy, const T* g, const T* u, size_t n, Activation act);
template <class T>
void swiglu_clamped_forward_ref(T* y, const T* g, const T* u, size_t n);
template <class T>
void swiglu_clamped_backward_ref(T* dg, T* du, const T* dy, const T* g, const T* u, size_t n);

// Their twins for training on the CPU: kernels/cpu/glu_cpu.cpp
template <class S>
void glu_forward_cpu(S* y, const S* g, const S* u, size_t n, Activation act);
template <class S>
void glu_backward_cpu(S* dg, S* du, const S* dy, const S* g, const S* u, size_t n, Activation act);
template <class S>
void swiglu_clamped_forward_cpu(S* y, const S* g, const S* u, size_t n);
template <class S>
void swiglu_clamped_backward_cpu(S* dg, S* du, const S* dy, const S* g, const S* u, size_t n);

}  // namespace gated
