// matmul_bf16: products of bf16 matrices on tensor cores. What it computes, and how: kernels/matmul_bf16.cu
#pragma once
#include "core/mma.h"
#include "core/storage.h"
#include "kernels/matmul.h"

namespace gated {

// k is summed in slices of this many: a part of the result, as matmul_slice is of a product of floats.
constexpr size_t matmul_bf16_slice = 4096;

// C (M,N) = product (+ bias), or C = C + product, of matrices without gaps in one of the layouts of kernels/matmul.h; a C of
// bf16 is rounded once, at the end. bias (N) or null is added to every row of a C that is written. C overlaps neither operand.
// M, N or K may be 0: a sum over nothing is 0.
void matmul_bf16(Reals C, const bf16* A, const bf16* B, size_t M, size_t N, size_t K, Layout layout,
                 Accumulate accumulate, Context& ctx, const float* bias = nullptr);

// A C inside wider rows, as Matrix is (kernels/matmul.h).
struct RealsMatrix {
  Reals data;
  size_t ld;
};
// The same with each matrix inside wider rows.
void matmul_bf16(RealsMatrix C, Matrix<const bf16> A, Matrix<const bf16> B, size_t M, size_t N, size_t K, Layout layout,
                 Accumulate accumulate, Context& ctx, const float* bias = nullptr);

// Bytes of scratch that one product takes on a device, at most: with a C of floats in tn, of either in the others. Of products of
// the same M and N the one with the largest K takes the most.
size_t matmul_bf16_scratch(size_t M, size_t N, size_t K, Layout layout, Device device, bool bias = false);

// ---- on the CPU: kernels/matmul_bf16_cpu.cpp

template <class Out>
void matmul_bf16_cpu(Matrix<Out> C, Matrix<const bf16> A, Matrix<const bf16> B, size_t M, size_t N, size_t K,
                     Layout layout, Accumulate accumulate, const float* bias, Context& ctx);
size_t matmul_bf16_cpu_scratch(size_t M, size_t N, size_t K);

// ---- reference, of matrices without gaps

template <class Out>
void matmul_bf16_ref(Out* C, const bf16* A, const bf16* B, size_t M, size_t N, size_t K, Layout layout,
                     Accumulate accumulate, MmaArithmetic arithmetic, const float* bias);

}  // namespace gated
