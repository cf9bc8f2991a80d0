// Exercise 10, matmul_naive: C = A B^T, a thread for each element of C.
//
//     C_mn = sum over k of A_mk B_nk
//
// The order (kernels/matmul.cu): k goes in slices of 1024 (matmul_slice); a slice is one chain of fused from +0 in
// ascending k; the total is ((slice 0 + slice 1) + slice 2) + ...
// The chapter: kernels/matmul.cu. The launch: blocks of 16 x 16 threads, threadIdx.x along n, threadIdx.y along m; as
// many blocks as there are tiles of 16 x 16, rounded up.
//
// hint 1: Which element? n from blockIdx.x and threadIdx.x, m from blockIdx.y and threadIdx.y. Some lie outside C.
//
// hint 2: Two loops: over slices, and over k within one. Two sums.
//
// hint 3: chain = fused(A[m*K + k], B[n*K + k], chain); at the end of a slice total += chain, but the first is the
// total.
//
// A wrong answer usually changes m and n, or forgets that M and N need not be multiples of 16. See what its warps ask
// of memory: the next exercise is about that.
#include "tests/exercises/try.h"

using namespace gated;

// ---- reference
// <<< from kernels/matmul.h: matmul_slice
// <<< from kernels/matmul.cu: matmul_nt_ref

// ---- yours: C (M,N) is written; A (M,K), B (N,K)

__global__ void matmul_kernel(float* C, const float* A, const float* B, size_t M, size_t N, size_t K) {
  // <<< solution
  const size_t m = blockIdx.y * 16 + threadIdx.y, n = blockIdx.x * 16 + threadIdx.x;
  if (m >= M || n >= N) return;
  float total = 0;
  for (size_t k0 = 0; k0 < K; k0 += matmul_slice) {
    float chain = 0;
    for (size_t k = k0; k < K && k < k0 + matmul_slice; k++) chain = fused(A[m * K + k], B[n * K + k], chain);
    total = k0 == 0 ? chain : total + chain;
  }
  C[m * N + n] = total;
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
