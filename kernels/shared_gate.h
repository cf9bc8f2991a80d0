// shared_gate: a gate (kernels/gate.h) whose score is one for all heads. What it computes, and how:
// kernels/shared_gate.cu
#pragma once
#include "kernels/gate.h"

namespace gated {

// x, z, y (N,H,D), H > 0. y is written; y may be x.
void shared_gate_forward(Reals y, ConstReals x, ConstReals z, size_t N, size_t H, size_t D, const GateOp& op,
                         Context& ctx);
// dx and dz (N,H,D) are written; dx may be dy, dz may be z.
void shared_gate_backward(Reals dx, Reals dz, ConstReals dy, ConstReals x, ConstReals z, size_t N, size_t H, size_t D,
                          const GateOp& op, Context& ctx);

template <class T>
void shared_gate_forward_ref(T* y, const T* x, const T* z, size_t N, size_t H, size_t D, GateOp op);
template <class T>
void shared_gate_backward_ref(T* dx, T* dz, const T* dy, const T* x, const T* z, size_t N, size_t H, size_t D,
                              GateOp op);

// Their twins for training on the CPU: kernels/cpu/shared_gate_cpu.cpp
template <class S>
void shared_gate_forward_cpu(S* y, const S* x, const S* z, size_t N, size_t H, size_t D, const GateOp& op);
template <class S>
void shared_gate_backward_cpu(S* dx, S* dz, const S* dy, const S* x, const S* z, size_t N, size_t H, size_t D,
                              const GateOp& op);

}  // namespace gated
