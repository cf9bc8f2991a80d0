// gate: y = x*s or x + s, where s is a score made from a logit z. What it computes, and how: kernels/gate.cu
#pragma once
#include "core/context.cuh"
#include "core/nonlinear.cuh"
#include "core/storage.h"

namespace gated {

// How a score is made, s = scale*act(z), and how it meets x: y = x*s, or y = x + s when additive.
struct GateOp {
  Activation act = Activation::sigmoid;  // one for any_gate; another is refused
  bool additive = false;
  float scale = 1;
};

// x, y (N,C); z (N,C/group): one logit for `group` neighbouring elements of a row. y is written; y may be x.
void gate_forward(Reals y, ConstReals x, ConstReals z, size_t N, size_t C, size_t group, const GateOp& op,
                  Context& ctx);
// dx (N,C) and dz (N,C/group) are written; dx may be dy, dz may be z.
void gate_backward(Reals dx, Reals dz, ConstReals dy, ConstReals x, ConstReals z, size_t N, size_t C, size_t group,
                   const GateOp& op, Context& ctx);

template <class T>
void gate_forward_ref(T* y, const T* x, const T* z, size_t N, size_t C, size_t group, GateOp op);
template <class T>
void gate_backward_ref(T* dx, T* dz, const T* dy, const T* x, const T* z, size_t N, size_t C, size_t group, GateOp op);

// Their twins for training on the CPU: kernels/cpu/gate_cpu.cpp
template <class S>
void gate_forward_cpu(S* y, const S* x, const S* z, size_t N, size_t C, size_t group, const GateOp& op);
template <class S>
void gate_backward_cpu(S* dx, S* dz, const S* dy, const S* x, const S* z, size_t N, size_t C, size_t group,
                       const GateOp& op);

// ---- for the other operations that gate: shared_gate, static_gate, gated_norm

void require_gate(const char* operation, const GateOp& op);
// s (n) = scale*act(z (n)) and slope (n) = scale*act'(z), in vectors, on the calling thread.
template <class S>
void gate_scores_cpu(float* s, const S* z, size_t n, const GateOp& op);
template <class S>
void gate_scores_and_slopes_cpu(float* s, float* slope, const S* z, size_t n, const GateOp& op);

}  // namespace gated
