// round: floats to bf16. What it computes, and how: kernels/bf16/round.cu
#pragma once
#include "core/context.cuh"
#include "core/storage.h"

namespace gated {

// out (n) = in (n), rounded to nearest even.
void round_to_bf16(bf16* out, const float* in, size_t n, Context& ctx);

}  // namespace gated
