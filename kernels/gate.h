// gate: y = x*s or x + s, where s is a score made from a logit z. What it computes, and how: kernels/gate.cu
#pragma once
#include "core/activation.cuh"
#include "core/context.cuh"

namespace gated {

// How a score is made, s = scale*act(z), and how it meets x: y = x*s, or y = x + s when additive.
struct GateOp {
  Activation act = Activation::sigmoid;  // sigmoid, ns_sigmoid, silu, tanh or identity; another is refused
  bool additive = false;
  float scale = 1;
};

// x, y (N,C); z (N,C/group): one logit for `group` neighbouring elements of a row. y is written; y may be x.
void gate_forward(float* y, const float* x, const float* z, size_t N, size_t C, size_t group, const GateOp& op,
                  Context& ctx);
// dx (N,C) and dz (N,C/group) are written; dx may be dy, dz may be z.
void gate_backward(float* dx, float* dz, const float* dy, const float* x, const float* z, size_t N, size_t C,
                   size_t group, const GateOp& op, Context& ctx);

template <class T>
void gate_forward_ref(T* y, const T* x, const T* z, size_t N, size_t C, size_t group, GateOp op);
template <class T>
void gate_backward_ref(T* dx, T* dz, const T* dy, const T* x, const T* z, size_t N, size_t C, size_t group, GateOp op);

// Their twins for training on the CPU: kernels/gate_cpu.cpp
void gate_forward_cpu(float* y, const float* x, const float* z, size_t N, size_t C, size_t group, const GateOp& op);
void gate_backward_cpu(float* dx, float* dz, const float* dy, const float* x, const float* z, size_t N, size_t C,
                       size_t group, const GateOp& op);

// ---- for the other operations that gate: shared_gate, static_gate, gated_norm

void require_gate(const char* operation, const GateOp& op);
// s (n) = scale*act(z (n)) and slope (n) = scale*act'(z), in vectors, on the calling thread.
void gate_scores_cpu(float* s, const float* z, size_t n, const GateOp& op);
void gate_scores_cpu(float* s, float* slope, const float* z, size_t n, const GateOp& op);

}  // namespace gated
