// bias: the gradient of the bias of y = x W^T + b
//   Row n of y is (x W^T)_n + b, so every row of dy is a gradient of b, and they add up:
//     db_c += sum over n of dy_nc
//   The forward is in matmul.cu, which adds b as it writes y.
// order: a column (core/reduce.cuh)
// shapes: dy (N,C) f32 or bf16; db (C) f32, accumulated
// twins: none; the CPU's loops stand in core/reduce.cuh
// --attn-bias, --ffn-bias | tests/test_bias.cpp
#include "kernels/bias.h"

#include "core/reduce.cuh"

namespace gated {

// ---- reference

template <class T>
void bias_backward_ref(T* db, const T* dy, size_t N, size_t C) {
  for (size_t c = 0; c < C; c++) {
    ColumnSum<T> sum;
    for (size_t n = 0; n < N; n++) sum.add(dy[n * C + c]);
    db[c] = db[c] + sum.total();
  }
}
IN_FLOAT_AND_DOUBLE(bias_backward_ref);

// ---- launcher: the kernels of a column sum are in core/reduce.cuh

size_t bias_backward_scratch(size_t N, size_t C) {
  return column_reduce_scratch(N, C);
}

void bias_backward(float* db, ConstReals dy, size_t N, size_t C, Context& ctx) {
  with_storage(dy, [&](auto stored) {
    using S = decltype(stored);
    column_reduce_add(db, N, C, AddRows<S>{dy.as<S>(), C}, ctx);
  });
}

}  // namespace gated
