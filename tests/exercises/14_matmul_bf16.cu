// Exercise 14, matmul_bf16: C = A B^T of bf16 matrices, 16 x 8 x 16 at a time, by the tensor cores.
//
//     mma(c, a, b) adds to a tile of C (16,8) the product of one of A (16,16) and one of B (8,16), which lie in the
//     registers of a warp (core/mma.cuh). With g = lane / 4 and t = lane % 4 a lane holds, of two neighbouring k each,
//         a.x[0], a.x[1], a.x[2], a.x[3]      A[g][2t], A[g+8][2t], A[g][2t+8], A[g+8][2t+8]      and the next k
//         b.x[0], b.x[1]                      B[g][2t], B[g][2t+8]                                and the next k
//         c.x[0], c.x[1], c.x[2], c.x[3]      C[g][2t], C[g][2t+1], C[g+8][2t], C[g+8][2t+1]
//     A pair of bf16 is one 32-bit register, the first in its low half; X[i].bits is the 16 bits of a bf16.
// What a tensor core adds, and where it cuts, is in core/mma.h; the chain goes over ascending k, from +0, 16 a link.
// What lies outside A or B is 0: a term of 0 changes no bit.
// The chapter: kernels/bf16/matmul_bf16.cu. The launch: a block of one warp for each tile of 16 x 8.
//
// hint 1: Which m and which n does a lane load? Not those that it stores: look at g and t in all three lists.
//
// hint 2: All 32 lanes come to mma, also those whose elements lie outside: they bring zeros.
//
// hint 3: for k0 in steps of 16: a.x[j] is the pair at row m0 + g + j%2*8, column k0 + 2t + j/2*8; b.x[j] that at row
// n0 + g, column k0 + 2t + 8j. At the end c.x[j] goes to row m0 + g + j/2*8, column n0 + 2t + j%2.
//
// A wrong answer usually changes j%2 and j/2, of a or of c: the wrong rows lie 8 apart.
#include "tests/exercises/try.h"

#include "core/mma.cuh"

using namespace gated;

// ---- reference: in float what a Hopper tensor core computes, in double the sum

template <class T>
void matmul_bf16_nt_ref(T* C, const bf16* A, const bf16* B, size_t M, size_t N, size_t K) {
  for (size_t m = 0; m < M; m++)
    for (size_t n = 0; n < N; n++) {
      T chain = 0;
      for (size_t k0 = 0; k0 < K; k0 += mma_depth) {
        bf16 a[mma_depth] = {}, b[mma_depth] = {};
        for (size_t k = k0; k < K && k < k0 + mma_depth; k++) a[k - k0] = A[m * K + k], b[k - k0] = B[n * K + k];
        if constexpr (sizeof(T) == sizeof(float))
          chain = mma_ref(chain, a, b, MmaArithmetic::hopper);
        else
          for (size_t i = 0; i < mma_depth; i++) chain += double(a[i]) * double(b[i]);
      }
      C[m * N + n] = chain;
    }
}

// ---- yours: C (M,N) is written; A (M,K), B (N,K)

__global__ void matmul_kernel(float* C, const bf16* A, const bf16* B, size_t M, size_t N, size_t K) {
  // <<< solution
  const size_t m0 = blockIdx.y * 16, n0 = blockIdx.x * 8, g = threadIdx.x / 4, t = threadIdx.x % 4;
  const auto pair = [&](const bf16* X, size_t row, size_t rows, size_t k) {
    const auto at = [&](size_t k) { return row < rows && k < K ? uint32_t(X[row * K + k].bits) : 0u; };
    return at(k) | at(k + 1) << 16;
  };
  MmaC c = {};
  for (size_t k0 = 0; k0 < K; k0 += 16) {
    MmaA a;
    MmaB b;
    for (size_t j = 0; j < 4; j++) a.x[j] = pair(A, m0 + g + j % 2 * 8, M, k0 + 2 * t + j / 2 * 8);
    for (size_t j = 0; j < 2; j++) b.x[j] = pair(B, n0 + g, N, k0 + 2 * t + j * 8);
    mma(c, a, b);
  }
  for (size_t j = 0; j < 4; j++) {
    const size_t m = m0 + g + j / 2 * 8, n = n0 + 2 * t + j % 2;
    if (m < M && n < N) C[m * N + n] = c.x[j];
  }
  // >>>
}

// ---- how it is judged

void exercise(Try& t) {
  t.cases({"M", "N", "K"}, {{16, 8, 16}, {13, 5, 39}, {32, 16, 128}}, [&](size_t M, size_t N, size_t K) {
    // (A tensor core cuts where a float would be rounded, and keeps two bits more.)
    Tried& C = t.out("C", M, N).sums(2 * K).ordered_by("core/mma.h, 16 of k a link");
    std::vector<bf16> a, b;
    for (float x : random_values<float>(M * K, 1)) a.push_back(bf16(x));
    for (float x : random_values<float>(N * K, 2)) b.push_back(bf16(x));
    Tried &A = t.in_as("A", M, K, a), &B = t.in_as("B", N, K, b);
    t.reference([&](auto real) { matmul_bf16_nt_ref(C(real), a.data(), b.data(), M, N, K); });
    t.judge([&] { t.launch(matmul_kernel, dim3(ceil_div(N, 8), ceil_div(M, 16)), 32, 0, C, A, B, M, N, K); });
  });
}
