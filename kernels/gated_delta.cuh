// gated_delta: what kernels/gated_delta.cu, kernels/gated_delta_backward.cu and kernels/gated_delta_chunk.cu share.
#pragma once
#include "kernels/gated_delta.h"

namespace gated {

void require_gated_delta(const char* name, const GatedDeltaShape& s);
void require_gated_delta(const char* name, const GatedDeltaOut& out, const GatedDeltaShape& s);

namespace gated_delta {

// Adds in 16 chains, and then these as a tree of neighbours.
template <class Real>
struct Dot {
  Real chain[gated_delta_chains] = {};

  HD void fma(size_t i, Real a, Real b) {
    Real& c = chain[i % gated_delta_chains];
    c = fused(a, b, c);
  }
  HD void add(size_t i, Real a) {
    Real& c = chain[i % gated_delta_chains];
    c = c + a;
  }
  HD Real total() const {
    Real sum[gated_delta_chains];
    for (size_t c = 0; c < gated_delta_chains; c++) sum[c] = chain[c];
    for (size_t apart = 1; apart < gated_delta_chains; apart *= 2)
      for (size_t c = 0; c < gated_delta_chains; c += 2 * apart) sum[c] = sum[c] + sum[c + apart];
    return sum[0];
  }
};

// The sum of the chains of 16 lanes, in all of them.
__device__ inline float chains_sum(float chain) {
  const unsigned half = 0xffffu << (threadIdx.x & 16);
  for (int apart = 1; apart < 16; apart *= 2) chain += __shfl_xor_sync(half, chain, apart, 16);
  return chain;
}

}  // namespace gated_delta
}  // namespace gated
