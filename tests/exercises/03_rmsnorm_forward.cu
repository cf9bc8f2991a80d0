// Exercise 3, rmsnorm_forward: a row divided by its root mean square. The first sum that threads make together.
//
//     r = 1 / sqrt(mean(x^2) + eps)          y_c = x_c * r * w_c
//
// The order of a sum along a row (core/reduce.cuh): element i joins chain i mod 128; every chain begins at +0 and
// ascends; then lane l of 32 adds (c[4l] + c[4l+1]) + (c[4l+2] + c[4l+3]), and a butterfly adds what lanes 16, 8, 4, 2
// and 1 apart hold. warp_sum(v) is that butterfly: every lane of a warp calls it and has the sum.
// fused(a, b, c) is a*b + c, rounded once. exact_sqrt is the square root.
// The chapter: kernels/rmsnorm.cu. The launch: a block of 128 threads for each row.
//
// hint 1: Thread j of a block can carry chain j by itself. Which columns are that?
//
// hint 2: Lane l needs chains 4l to 4l+3, which four threads hold: they meet in shared memory, STATIC_SHARED(float,
// chains, [128]), and nobody may read before everybody has written: __syncthreads().
//
// hint 3: float chain = 0; for c = threadIdx.x, c < C, in steps of 128: chain = fused(x, x, chain). Store it, meet, and
// let every warp add all 128 chains for itself: then every thread knows r. One thread writes it.
//
// A wrong answer usually lacks the barrier (a race), or lets a column past C into the sum.
#include "tests/exercises/try.h"

using namespace gated;

// ---- reference
// <<< from kernels/rmsnorm.cu: rmsnorm_forward_ref

// ---- yours: y (N,C) and r (N) are written; x (N,C), w (C)

__global__ void rmsnorm_kernel(float* y, float* r, const float* x, const float* w, size_t C, float eps) {
  // <<< solution
  STATIC_SHARED(float, chains, [128]);
  const size_t row = blockIdx.x, j = threadIdx.x;
  const float* x_row = x + row * C;
  float chain = 0;
  for (size_t c = j; c < C; c += 128) chain = fused(x_row[c], x_row[c], chain);
  chains[j] = chain;
  __syncthreads();
  const float* four = chains + 4 * (j % 32);
  const float sum = warp_sum((four[0] + four[1]) + (four[2] + four[3]));
  const float r_row = 1.0f / exact_sqrt(sum / float(C) + eps);
  if (j == 0) r[row] = r_row;
  for (size_t c = j; c < C; c += 128) y[row * C + c] = x_row[c] * r_row * w[c];
  // >>>
}

// ---- how it is judged

void exercise(Try& t) {
  constexpr float eps = 1e-5f;
  t.cases({"N", "C"}, {{3, 100}, {64, 128}, {3, 700}}, [&](size_t N, size_t C) {
    const char* const order = "core/reduce.cuh: row, of the sum of squares";
    Tried &y = t.out("y", N, C).sums(C).ordered_by(order), &r = t.out("r", N, 1).sums(C).ordered_by(order);
    Tried &x = t.in("x", N, C), &w = t.in("w", 1, C);
    t.reference([&](auto real) { rmsnorm_forward_ref(y(real), r(real), x(real), w(real), N, C, decltype(real)(eps)); });
    t.judge([&] { t.launch(rmsnorm_kernel, N, 128, 0, y, r, x, w, C, eps); });
    PROJECT(t, rmsnorm_forward(y.floats(), r, x.floats(), w, N, C, eps, ctx));
  });
}
