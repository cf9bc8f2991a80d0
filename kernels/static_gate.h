// static_gate: a gate (kernels/gate.h) whose logits are parameters. What it computes, and how: kernels/static_gate.cu
#pragma once
#include "kernels/gate.h"

namespace gated {

// x, y (N,C); theta (C): one logit a column. y is written; y may be x.
void static_gate_forward(Reals y, ConstReals x, const float* theta, size_t N, size_t C, const GateOp& op, Context& ctx);
// dx (N,C) is written, dtheta (C) accumulated; dx may be dy.
void static_gate_backward(Reals dx, float* dtheta, ConstReals dy, ConstReals x, const float* theta, size_t N, size_t C,
                          const GateOp& op, Context& ctx);
// Bytes of scratch that it takes on a GPU.
size_t static_gate_backward_scratch(size_t N, size_t C);

template <class T>
void static_gate_forward_ref(T* y, const T* x, const T* theta, size_t N, size_t C, GateOp op);
template <class T>
void static_gate_backward_ref(T* dx, T* dtheta, const T* dy, const T* x, const T* theta, size_t N, size_t C, GateOp op);

// Their twins for training on the CPU: kernels/cpu/static_gate_cpu.cpp
template <class S>
void static_gate_forward_cpu(S* y, const S* x, const float* theta, size_t N, size_t C, const GateOp& op);
template <class S>
void static_gate_backward_cpu(S* dx, float* dtheta, const S* dy, const S* x, const float* theta, size_t N, size_t C,
                              const GateOp& op);

}  // namespace gated
