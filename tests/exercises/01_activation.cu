// Exercise 1, activation: the backward of y = silu(x), element by element.
//
//     silu(x) = x / (1 + e^-x)          dx_i = dy_i * silu'(x_i)
//
// Elements do not meet: a thread takes its own and asks nobody. silu_slope(x) is the derivative (core/nonlinear.cuh).
// The chapter: kernels/activation.cu. The launch: 256 threads a block, as many blocks as there are 256 elements,
// rounded up. n need not be a multiple of 256.
//
// hint 1: Which element is yours? A thread knows threadIdx.x in its block, blockIdx.x, and blockDim.x.
//
// hint 2: The last block has threads for which there is no element. They must neither read nor write.
//
// hint 3: i = blockIdx.x * blockDim.x + threadIdx.x; return where i >= n; dx[i] = dy[i] * silu_slope(x[i]).
//
// A wrong answer usually forgets the end (out of bounds), or writes i <= n for i < n, which is out by one.
#include "tests/exercises/try.h"

using namespace gated;

// ---- reference
// <<< from kernels/activation.cu: activation_backward_ref

// ---- yours: dx (n) is written; dy, x (n)

__global__ void backward_kernel(float* dx, const float* dy, const float* x, size_t n) {
  // <<< solution
  const size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  dx[i] = dy[i] * silu_slope(x[i]);
  // >>>
}

// ---- how it is judged

void exercise(Try& t) {
  t.cases({"n"}, {{10}, {256}, {3000}}, [&](size_t n) {
    Tried &dx = t.out("dx", 1, n), &dy = t.in("dy", 1, n), &x = t.in("x", 1, n, 5);
    t.reference([&](auto real) { activation_backward_ref(dx(real), dy(real), x(real), n, Activation::silu); });
    if (n == 10)
      t.differences(dx, x, [&](const double* at) {
        double loss = 0;
        for (size_t i = 0; i < n; i++) loss += dy(0.0)[i] * silu(at[i]);
        return loss;
      });
    t.judge([&] { t.launch(backward_kernel, ceil_div(n, 256), 256, 0, dx, dy, x, n); });
    PROJECT(t, activation_backward(dx.floats(), dy.floats(), x.floats(), n, Activation::silu, ctx));
  });
}
