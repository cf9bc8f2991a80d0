// gated_delta_bf16: what reference, kernels and the CPU's code of kernels/bf16/gated_delta_bf16.cu share.
#pragma once
#include "core/sums.h"
#include "kernels/bf16/gated_delta_bf16.h"

namespace gated::gated_delta_bf16 {

constexpr size_t tokens = gated_delta_bf16_chunk;
constexpr size_t state_chains = 128;  // of <S, dS>

// Where the state before chunk n begins in `kept`.
HD size_t kept_state(const GatedDeltaShape& s, size_t b, size_t h, size_t n) {
  return ((b * s.Hv + h) * gated_delta_bf16_chunks(s) + n) * s.Dk * s.Dv;
}

}  // namespace gated::gated_delta_bf16
