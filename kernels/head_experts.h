// head_experts: a head's value as the weighted sum of what its chosen experts make. What it computes, and how:
// kernels/head_experts.cu
#pragma once
#include "core/context.cuh"
#include "core/storage.h"

namespace gated {

struct HeadExpertsShape {
  size_t N, H, D;  // tokens, heads, elements of a head
  size_t E;        // experts of a head, at most 32
  size_t k;        // how many of them a token takes, 1 to E
};

// x (N,H,E,D): what each expert makes of a token. z (N,H,E): logits. Writes y (N,H,D) and, for the backward, s (N,H,E):
// the score of an expert that was chosen, -1 of one that was not. s may be z. Scores choose: they and their logits are
// fp32 beside x and y of either storage.
void head_experts_forward(Reals y, float* s, ConstReals x, const float* z, const HeadExpertsShape& shape, Context& ctx);
// dx (N,H,E,D) and dz (N,H,E), of the storage of dy, are written: 0 where an expert was not chosen. dz of fp32 may be
// s.
void head_experts_backward(Reals dx, Reals dz, ConstReals dy, ConstReals x, const float* s,
                           const HeadExpertsShape& shape, Context& ctx);

template <class T>
void head_experts_forward_ref(T* y, T* s, const T* x, const T* z, const HeadExpertsShape& shape);
template <class T>
void head_experts_backward_ref(T* dx, T* dz, const T* dy, const T* x, const T* s, const HeadExpertsShape& shape);

// Their twins for training on the CPU: kernels/cpu/head_experts_cpu.cpp
template <class S>
void head_experts_forward_cpu(S* y, float* s, const S* x, const float* z, const HeadExpertsShape& shape);
template <class S>
void head_experts_backward_cpu(S* dx, S* dz, const S* dy, const S* x, const float* s, const HeadExpertsShape& shape);

// Replaces the scores of one head's E experts by -1 where they are not chosen, for the references and the CPU.
template <class T>
void head_experts_choose(T* scores, size_t E, size_t k) {
  if (k == E) return;
  bool chosen[32];
  for (size_t e = 0; e < E; e++) {
    size_t before = 0;  // experts that come before e: those with a larger score, and the lower ones with an equal score
    for (size_t f = 0; f < e; f++) before += scores[f] >= scores[e];
    for (size_t f = e + 1; f < E; f++) before += scores[f] > scores[e];
    chosen[e] = before < k;
  }
  for (size_t e = 0; e < E; e++)
    if (!chosen[e]) scores[e] = T(-1);
}

}  // namespace gated
