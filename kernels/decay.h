// decay: how much a state forgets and how much it takes in, from the logits of a token. What it computes, and how:
// kernels/decay.cu
#pragma once
#include "core/context.cuh"
#include "core/math.cuh"
#include "core/storage.h"

namespace gated {

struct DecayShape {
  size_t N, H;        // tokens, heads
  size_t stride = 0;  // of a, b, da and db: elements from one token to the next; 0: packed
  HD size_t at(size_t n, size_t h) const { return n * (stride ? stride : H) + h; }
};

// g (N,H) = -exp(A_log)*softplus(a + dt_bias), beta (N,H) = sigmoid(b): both are written. a, b (N,H); A_log, dt_bias
// (H).
void decay_forward(float* g, float* beta, ConstReals a, ConstReals b, const float* A_log, const float* dt_bias,
                   const DecayShape& s, Context& ctx);

// da and db are written and may be a and b; dA_log and ddt_bias are accumulated.
struct DecayGradients {
  Reals da, db;              // (N,H)
  float *dA_log, *ddt_bias;  // (H)
};
void decay_backward(const DecayGradients& out, const float* dg, const float* dbeta, ConstReals a, ConstReals b,
                    const float* A_log, const float* dt_bias, const DecayShape& s, Context& ctx);
// Bytes of scratch that it takes on a GPU.
size_t decay_backward_scratch(const DecayShape& s);

template <class T>
void decay_forward_ref(T* g, T* beta, const T* a, const T* b, const T* A_log, const T* dt_bias, const DecayShape& s);
template <class T>
void decay_backward_ref(T* da, T* db, T* dA_log, T* ddt_bias, const T* dg, const T* dbeta, const T* a, const T* b,
                        const T* A_log, const T* dt_bias, const DecayShape& s);

}  // namespace gated
