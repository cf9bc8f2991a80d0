// engines: what multiplies the matrices of a run: the project's own kernels, cuBLASLt, or the tensor cores of one
// generation; and whether its launches are recorded.
#pragma once
#include "training/flags/config.h"

namespace gated {

// As --matmul, --tf32, --precision, --mma and --graph say. Refuses what the device of `ctx` does not have.
void use_engines(Context& ctx, const Config& config);

}  // namespace gated
