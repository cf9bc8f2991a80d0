// grouped_matmul_bf16: the products of kernels/grouped_matmul.h, of bf16 matrices on tensor cores.
// What it computes, and how: kernels/bf16/grouped_matmul_bf16.cu
#pragma once
#include "kernels/grouped_matmul.h"
#include "kernels/bf16/matmul_bf16.h"

namespace gated {

// As grouped_matmul() and grouped_matmul_tn(), of the same shapes: for each expert the bits of matmul_bf16() on its
// rows alone.
// Layout::nt   C (M,N): row r of expert e = A (M,K) row r * B_e^T (+ bias_e)     B (E,N,K), bias (E,N) or null
// Layout::nn   C (M,N): row r of expert e = A (M,K) row r * B_e                  B (E,K,N)
// written, or added to C; a bias goes with a C that is written in layout nt. C is rounded once, at the end, and
// overlaps nothing else. On a GPU the kernels here compute it whatever ctx.matmul_engine() is. activated: as of
// matmul_bf16().
void grouped_matmul_bf16(bf16* C, const bf16* A, const bf16* B, const int* row_start, const GroupedShape& s,
                         Layout layout, Accumulate accumulate, Context& ctx, const float* bias = nullptr,
                         const Activated& activated = {});
// C (M,N): row r of expert e = the sum over i of A_i row r * B_ie, or C + that: as matmul_bf16_joined(), of A_i (M,K_i)
// and B_i (E,K_i,N) without gaps, and with its activated. s.K is not read; scratch is that of s.K = joined_depth().
void grouped_matmul_bf16_joined(bf16* C, std::span<const MmaFactors> factors, const int* row_start,
                                const GroupedShape& s, Accumulate accumulate, Context& ctx,
                                const Activated& activated = {});
// The gradient of the experts' matrices: C_e (N,K) += A_e^T B_e, the sum over the rows of expert e. A (M,N), B (M,K),
// C (E,N,K) of floats. One without rows keeps its C.
void grouped_matmul_bf16_tn(float* C, const bf16* A, const bf16* B, const int* row_start, const GroupedShape& s,
                            Context& ctx);

// Bytes of scratch that these take on a device, however the rows lie.
size_t grouped_matmul_bf16_scratch(const GroupedShape& s, Device device);
size_t grouped_matmul_bf16_tn_scratch(const GroupedShape& s, Device device);

// ---- reference

void grouped_matmul_bf16_ref(bf16* C, const bf16* A, const bf16* B, const int* row_start, const GroupedShape& s,
                             Layout layout, Accumulate accumulate, MmaArithmetic arithmetic, const float* bias);
void grouped_matmul_bf16_tn_ref(float* C, const bf16* A, const bf16* B, const int* row_start, const GroupedShape& s,
                                MmaArithmetic arithmetic);

}  // namespace gated
