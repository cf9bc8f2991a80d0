// bias: y = x W^T + b is one matrix product whose bias joins its last slice (kernels/matmul.cuh).
// backward: db += column sum of dy, in the canonical column order (kernels/reduce.cuh)
// shapes: dy (N,C) f32, db (C) | db is accumulated
// --attn-bias, --ffn-bias | tests/test_bias.cpp
#pragma once
#include "kernels/reduce.cuh"

namespace gated {

template <class T>
struct BiasGrad {
  const T* dy;
  size_t C;
  HD T operator()(T acc, size_t row, size_t c) const { return acc + dy[row * C + c]; }
};

template <class T>
void bias_backward_ref(T* db, const T* dy, size_t N, size_t C) {
  column_reduce_add_ref(db, N, C, BiasGrad<T>{dy, C});
}

inline void bias_backward(float* db, const float* dy, size_t N, size_t C, Stream& stream) {
  column_reduce_add(db, N, C, BiasGrad<float>{dy, C}, stream);
}

}  // namespace gated
