// cublas: what the tests of both matrix products ask of cuBLASLt beside its results.
#pragma once
#include "core/context.cuh"

namespace gated {

// From here on as if cuBLASLt had no algorithm that adds a bias to the products it has met.
inline void forget_bias_algorithms([[maybe_unused]] Context& ctx) {
#ifdef __CUDACC__
  for (auto& [shape, algorithm] : ctx.cublas().algorithms)
    if (shape[Cublas::epilogue_of_shape] == CUBLASLT_EPILOGUE_BIAS) algorithm = {};
#endif
}

}  // namespace gated
