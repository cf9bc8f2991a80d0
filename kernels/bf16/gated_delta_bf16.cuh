// gated_delta_bf16: what reference, kernels and the CPU's code of kernels/bf16/gated_delta_bf16.cu share.
#pragma once
#include "kernels/bf16/gated_delta_bf16.h"

namespace gated::gated_delta_bf16 {

constexpr size_t tokens = gated_delta_bf16_chunk;
constexpr size_t state_chains = 128;  // of <S, dS>

HD size_t chunks_of(const GatedDeltaShape& s) {
  return (s.T + tokens - 1) / tokens;
}
// Where the state before chunk n begins in `kept`.
HD size_t kept_state(const GatedDeltaShape& s, size_t b, size_t h, size_t n) {
  return ((b * s.Hv + h) * chunks_of(s) + n) * s.Dk * s.Dv;
}

// What eight chains give together: neighbours first.
template <class Real>
HD Real sum_of_eight(const Real (&c)[8]) {
  return ((c[0] + c[1]) + (c[2] + c[3])) + ((c[4] + c[5]) + (c[6] + c[7]));
}

}  // namespace gated::gated_delta_bf16
