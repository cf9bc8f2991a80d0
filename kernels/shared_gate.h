// shared_gate: a gate (kernels/gate.h) whose score is one for all heads. What it computes, and how: kernels/shared_gate.cu
#pragma once
#include "kernels/gate.h"

namespace gated {

// x, z, y (N,H,D), H > 0. y is written; y may be x.
void shared_gate_forward(float* y, const float* x, const float* z, size_t N, size_t H, size_t D, const GateOp& op,
                         Context& ctx);
// dx and dz (N,H,D) are written; dx may be dy, dz may be z.
void shared_gate_backward(float* dx, float* dz, const float* dy, const float* x, const float* z, size_t N, size_t H,
                          size_t D, const GateOp& op, Context& ctx);

template <class T>
void shared_gate_forward_ref(T* y, const T* x, const T* z, size_t N, size_t H, size_t D, GateOp op);
template <class T>
void shared_gate_backward_ref(T* dx, T* dz, const T* dy, const T* x, const T* z, size_t N, size_t H, size_t D,
                              GateOp op);

// Their twins for training on the CPU: kernels/shared_gate_cpu.cpp
void shared_gate_forward_cpu(float* y, const float* x, const float* z, size_t N, size_t H, size_t D, const GateOp& op);
void shared_gate_backward_cpu(float* dx, float* dz, const float* dy, const float* x, const float* z, size_t N, size_t H,
                              size_t D, const GateOp& op);

}  // namespace gated
