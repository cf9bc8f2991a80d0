// Exercise 9, gated_norm: a norm, two small products of matrices and a gate, in one kernel.
//
//     n   = x * r * w,  r = 1 / sqrt(mean(x^2) + eps)          the sum in the order of a row, as in rmsnorm_forward
//     low_j = sum over c of n_c * down_jc                      (rank) numbers; one chain of fused over ascending c
//     a_j = silu(low_j)
//     z_c = sum over j of a_j * up_cj                          one chain of fused over ascending j
//     y_c = n_c * exact_sigmoid(z_c)
//
// C is at most 1024, so a chain over c is one slice of a product of matrices (kernels/matmul.cu).
// The chapter: kernels/gated_norm.cu. The launch: a block of 128 threads for each row, with C floats of dynamic shared
// memory: DYNAMIC_SHARED(float, n). The rank is at most 32.
//
// hint 1: Three steps, each of which needs what all threads made in the one before: r, then n, then a.
//
// hint 2: n of the row stays in shared memory: the first product reads all of it, and y reads it again.
//
// hint 3: After rmsnorm_forward into n: meet. Thread j < rank makes low_j and puts silu(low_j) into shared memory:
// meet. Then column c: a chain over j, and y.
//
// A wrong answer usually lacks one of the three barriers, or adds the first product's columns in parts: another order.
#include "tests/exercises/try.h"

using namespace gated;

// ---- reference
// <<< from kernels/matmul.h: matmul_slice
// <<< from kernels/rmsnorm.cu: rmsnorm_forward_ref
// <<< from kernels/matmul.cu: matmul_nt_ref
// <<< from kernels/gated_norm.cu: gated_norm_forward_ref

// ---- yours: y (N,C), r (N) and low (N,rank) are written; x (N,C), w (C), down (rank,C), up (C,rank)

__global__ void gated_norm_kernel(float* y, float* r, float* low, const float* x, const float* w, const float* down,
                                  const float* up, size_t C, size_t rank, float eps) {
  // <<< solution
  DYNAMIC_SHARED(float, n);
  STATIC_SHARED(float, chains, [128]);
  STATIC_SHARED(float, a, [32]);
  const size_t row = blockIdx.x, j = threadIdx.x;
  const float *x_row = x + row * C, *four = chains + 4 * (j % 32);
  float chain = 0;
  for (size_t c = j; c < C; c += 128) chain = fused(x_row[c], x_row[c], chain);
  chains[j] = chain;
  __syncthreads();
  const float sum = warp_sum((four[0] + four[1]) + (four[2] + four[3]));
  const float r_row = 1.0f / exact_sqrt(sum / float(C) + eps);
  if (j == 0) r[row] = r_row;
  for (size_t c = j; c < C; c += 128) n[c] = x_row[c] * r_row * w[c];
  __syncthreads();
  if (j < rank) {
    float low_j = 0;
    for (size_t c = 0; c < C; c++) low_j = fused(n[c], down[j * C + c], low_j);
    low[row * rank + j] = low_j;
    a[j] = silu(low_j);
  }
  __syncthreads();
  for (size_t c = j; c < C; c += 128) {
    float z = 0;
    for (size_t i = 0; i < rank; i++) z = fused(a[i], up[c * rank + i], z);
    y[row * C + c] = n[c] * exact_sigmoid(z);
  }
  // >>>
}

// ---- how it is judged

void exercise(Try& t) {
  t.cases({"N", "C", "rank"}, {{2, 10, 3}, {16, 128, 16}, {2, 300, 16}}, [&](size_t N, size_t C, size_t rank) {
    Tried& y = t.out("y", N, C).sums(4 * C).ordered_by("kernels/gated_norm.cu: those of its five steps");
    Tried& r = t.out("r", N, 1).sums(C).ordered_by("core/reduce.cuh: row, of the sum of squares");
    Tried& low = t.out("low", N, rank).sums(4 * C).ordered_by("kernels/matmul.cu: a chain over ascending c");
    Tried &x = t.in("x", N, C), &w = t.in("w", 1, C), &down = t.in("down", rank, C), &up = t.in("up", C, rank);
    t.reference([&](auto real) {
      gated_norm_forward_ref(y(real), r(real), low(real), x(real), w(real), down(real), up(real), N, C, rank,
                             decltype(real)(1e-5f));
    });
    t.judge([&] { t.launch(gated_norm_kernel, N, 128, C * sizeof(float), y, r, low, x, w, down, up, C, rank, 1e-5f); });
    PROJECT(t, gated_norm_forward(y.floats(), r, low, {}, {.x = x.floats()}, {.w = w, .down = down, .up = up},
                                  {.N = N, .C = C, .rank = rank, .eps = 1e-5f}, ctx));
  });
}
