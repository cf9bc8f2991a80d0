// matmul: products of matrices in the three layouts that training needs. What it computes, and how: kernels/matmul.cu
#pragma once
#include "core/context.cuh"
#include "core/storage.h"

namespace gated {

// Which way the operands lie in memory. All matrices are row-major; C is (M,N), and K is summed over.
//   nt   A (M,K)  B (N,K)    C = A B^T
//   nn   A (M,K)  B (K,N)    C = A B
//   tn   A (K,M)  B (K,N)    C = A^T B
enum class Layout { nt, nn, tn };
enum class Accumulate { no, yes };  // C = product, or C = C + product

// f<layout>()
template <class F>
auto by_layout(Layout layout, F f) {
  switch (layout) {
    case Layout::nt: return f.template operator()<Layout::nt>();
    case Layout::nn: return f.template operator()<Layout::nn>();
    case Layout::tn: break;
  }
  return f.template operator()<Layout::tn>();
}

// k is summed in slices of this many: the order of the sum, and so a part of the result. kernels/matmul.cu; of bf16
// matrices: kernels/bf16/matmul_bf16.cu
constexpr size_t matmul_slice = 1024, matmul_bf16_slice = 4096;

// A matrix inside wider rows: element (row, column) is data[row * ld + column]. ld, the leading dimension, is at least
// the number of columns. What lies between the columns and ld is neither read nor written.
template <class T>
struct Matrix {
  T* data;
  size_t ld;
};

// C = product (+ bias), or C = C + product, of matrices without gaps. bias (N) or null is added to every row of a C
// that is written. C overlaps neither operand. M, N or K may be 0: a sum over nothing is 0.
void matmul(float* C, const float* A, const float* B, size_t M, size_t N, size_t K, Layout layout,
            Accumulate accumulate, Context& ctx, const float* bias = nullptr);
// The same with each matrix inside wider rows.
void matmul(Matrix<float> C, Matrix<const float> A, Matrix<const float> B, size_t M, size_t N, size_t K, Layout layout,
            Accumulate accumulate, Context& ctx, const float* bias = nullptr);

// The same of matrices as they are stored: floats, or bf16 on tensor cores (kernels/bf16/matmul_bf16.cu), whose C may
// be either.
template <class Void>
struct StoredMatrix {
  RealsOf<Void> data;
  size_t ld;
};
void matmul_stored(StoredMatrix<void> C, StoredMatrix<const void> A, StoredMatrix<const void> B, size_t M, size_t N,
                   size_t K, Layout layout, Accumulate accumulate, Context& ctx);
// Bytes of scratch that suffice for so many rows of a batch and for fewer: M of them, in tn K.
size_t matmul_stored_scratch(size_t M, size_t N, size_t K, Layout layout, Accumulate accumulate, Storage storage,
                             Device device);

// Bytes of scratch that one product takes on a GPU and on the emulator.
size_t matmul_scratch(size_t M, size_t N, size_t K, Accumulate accumulate);
// The most that any product takes whose M and K are no larger than these: smaller products may take more, because more
// of their slices are computed at the same time. For planning a run whose batches vary.
size_t matmul_scratch_up_to(size_t M, size_t N, size_t K, Accumulate accumulate);

// C = C + (slice 0 + slice 1 + ...), or the sum (+ bias), which goes in ascending order: the last step of a product
// whose slices another kernel left side by side. slices (count,M,N), rows `pitch` elements apart. C may be slice 0.
void matmul_add_slices(Matrix<float> C, const float* slices, size_t pitch, size_t count, const float* bias, size_t M,
                       size_t N, Accumulate accumulate, Context& ctx);
// C (n) = C + that sum. slices (count,n).
void matmul_add_slices(float* C, const float* slices, size_t count, size_t n, Context& ctx);

// ---- how a product is cut up on a GPU; every choice gives the same bits

// Blocks that fill a GPU: two for each of the 132 multiprocessors of an H200.
constexpr size_t matmul_many_blocks = 264;

// Floats from row to row of a matrix in scratch, so that every row begins on a 16-byte boundary.
constexpr size_t matmul_scratch_pitch(size_t N) {
  return round_up(N, 4);
}

// Matrices (M,N) of floats that scratch holds, for slices of k that different blocks compute at the same time.
size_t matmul_slices_that_fit(size_t M, size_t N);

enum class Tile { large, small };  // 128 x 128 elements of C a block, 8 x 8 a thread; or 64 x 64, 4 x 4 a thread
struct MatmulPlan {
  Tile tile;
  size_t together;  // slices of k that different blocks compute at the same time; 1: a block goes through all of them
};
MatmulPlan matmul_plan(size_t M, size_t N, size_t K);
size_t matmul_plan_scratch(const MatmulPlan& plan, size_t M, size_t N, size_t K, Accumulate accumulate);
// The kernel by a given plan: matmul() takes matmul_plan()'s, tests any.
void matmul_by_plan(Matrix<float> C, Matrix<const float> A, Matrix<const float> B, size_t M, size_t N, size_t K,
                    Layout layout, Accumulate accumulate, const MatmulPlan& plan, Context& ctx,
                    const float* bias = nullptr);

// ---- on the CPU: kernels/cpu/matmul_cpu.cpp

void matmul_cpu(Matrix<float> C, Matrix<const float> A, Matrix<const float> B, size_t M, size_t N, size_t K,
                Layout layout, Accumulate accumulate, const float* bias = nullptr);
void matmul_cpu(float* C, const float* A, const float* B, size_t M, size_t N, size_t K, Layout layout,
                Accumulate accumulate, const float* bias = nullptr);
// The most bytes that a thread takes to pack its part of a product. It keeps them: of all products the largest counts.
size_t matmul_cpu_workspace(size_t M, size_t N, size_t K, Accumulate accumulate);

// ---- by cuBLASLt, where ctx.use_cublas() was called: kernels/bf16/matmul_cublas.cu

// What happens at the end of a product: any of the first two, or the third.
struct CublasEpilogue {
  const float* bias = nullptr;  // (N), is added to every row of a C that is written
  void* gelu = nullptr;   // (M,N) like C, without gaps, is written: gelu_tanh of each element before it is rounded
  float* sums = nullptr;  // (M), in tn, is written: the sum of each column of A
};
// K > 0. False, and C is not written, where cuBLASLt has no algorithm with this epilogue. Without an epilogue it fails
// instead. Takes scratch for a bias beside a C in bf16 alone, N elements of bf16.
template <class In, class Out>
bool matmul_cublas(Matrix<Out> C, Matrix<const In> A, Matrix<const In> B, size_t M, size_t N, size_t K, Layout layout,
                   Accumulate accumulate, const CublasEpilogue& epilogue, Context& ctx);

// ---- reference

// C = A B^T: the plain product.
template <class T>
void matmul_nt_ref(T* C, const T* A, const T* B, size_t M, size_t N, size_t K);
// Every form of it: without gaps, and inside wider rows.
template <class T>
void matmul_ref(T* C, const T* A, const T* B, size_t M, size_t N, size_t K, Layout layout, Accumulate accumulate,
                const T* bias = nullptr);
template <class T>
void matmul_strided_ref(Matrix<T> C, Matrix<const T> A, Matrix<const T> B, size_t M, size_t N, size_t K, Layout layout,
                        Accumulate accumulate, const T* bias = nullptr);

// The leading dimensions of matrices without gaps.
constexpr size_t packed_lda(size_t M, size_t K, Layout layout) {
  return layout == Layout::tn ? M : K;
}
constexpr size_t packed_ldb(size_t N, size_t K, Layout layout) {
  return layout == Layout::nt ? K : N;
}

}  // namespace gated
