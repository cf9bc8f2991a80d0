// bias: the gradient of a bias. What it computes, and how: kernels/bias.cu
#pragma once
#include "core/context.cuh"
#include "core/storage.h"

namespace gated {

// db (C) += column sum of dy (N,C).
void bias_backward(float* db, ConstReals dy, size_t N, size_t C, Context& ctx);
// Bytes of scratch that it takes.
size_t bias_backward_scratch(size_t N, size_t C);

template <class T>
void bias_backward_ref(T* db, const T* dy, size_t N, size_t C);

}  // namespace gated
