// Exercise 11, matmul_tiled: the same product, with both factors through shared memory.
//
//     C_mn = sum over k of A_mk B_nk          the order is that of matmul_naive
//
// There every element of A was read N times, by threads that ask memory for one float of a row at a time. Here a block
// brings a tile of 16 x 16 of A and one of B into shared memory, in which its 256 threads find what each of them
// needs, and goes on to the next 16 of k. So memory is asked a sixteenth as often, and by neighbours for neighbours.
// The chapter: kernels/matmul.cu, kernels/matmul_tile.cuh. The launch: blocks of 16 x 16 threads, as in matmul_naive.
//
// hint 1: STATIC_SHARED(float, a, [16][17]) and the like for b. A thread brings one element of each tile. Which, so
// that neighbouring threads read neighbouring floats? (17: a column's elements then lie in 16 different banks.)
//
// hint 2: All threads of a block come to every barrier, those outside C too: none may return early. What lies outside A
// or B is not read.
//
// hint 3: for k0 in steps of 16: bring a[y][x] = A[m][k0+x] and b[y][x] = B[n0+y][k0+x]; meet; for k < 16 and k0+k < K:
// chain = fused(a[y][k], b[x][k], chain); meet again, before the next tile is written. 1024 is a multiple of 16.
//
// A wrong answer usually lacks the second barrier, or returns early and leaves a tile half filled.
#include "tests/exercises/try.h"

using namespace gated;

// ---- reference
// <<< from kernels/matmul.h: matmul_slice
// <<< from kernels/matmul.cu: matmul_nt_ref

// ---- yours: C (M,N) is written; A (M,K), B (N,K)

__global__ void matmul_kernel(float* C, const float* A, const float* B, size_t M, size_t N, size_t K) {
  // <<< solution
  STATIC_SHARED(float, a, [16][17]);
  STATIC_SHARED(float, b, [16][17]);
  const size_t x = threadIdx.x, y = threadIdx.y, m = blockIdx.y * 16 + y, n0 = blockIdx.x * 16;
  float total = 0, chain = 0;
  for (size_t k0 = 0; k0 < K; k0 += 16) {
    if (k0 > 0 && k0 % matmul_slice == 0) {
      total = k0 == matmul_slice ? chain : total + chain;
      chain = 0;
    }
    if (m < M && k0 + x < K) a[y][x] = A[m * K + k0 + x];
    if (n0 + y < N && k0 + x < K) b[y][x] = B[(n0 + y) * K + k0 + x];
    __syncthreads();
    if (m < M && n0 + x < N)
      for (size_t k = 0; k < 16 && k0 + k < K; k++) chain = fused(a[y][k], b[x][k], chain);
    __syncthreads();
  }
  if (m < M && n0 + x < N) C[m * N + n0 + x] = K <= matmul_slice ? chain : total + chain;
  // >>>
}

// ---- how it is judged

void exercise(Try& t) {
  t.cases({"M", "N", "K"}, {{3, 5, 7}, {16, 16, 1100}, {20, 40, 33}, {32, 32, 64}}, [&](size_t M, size_t N, size_t K) {
    Tried& C = t.out("C", M, N).sums(K).ordered_by("kernels/matmul.cu: slices of 1024, each a chain of fused");
    Tried &A = t.in("A", M, K), &B = t.in("B", N, K);
    t.reference([&](auto real) { matmul_nt_ref(C(real), A(real), B(real), M, N, K); });
    t.judge(
        [&] { t.launch(matmul_kernel, dim3(ceil_div(N, 16), ceil_div(M, 16)), dim3(16, 16), 0, C, A, B, M, N, K); });
    PROJECT(t, matmul(C.floats(), A, B, M, N, K, Layout::nt, Accumulate::no, ctx));
  });
}
