// matmul_bf16: products of bf16 matrices on tensor cores. What it computes, and how: kernels/bf16/matmul_bf16.cu
#pragma once
#include <span>

#include "core/nonlinear.cuh"
#include "core/mma.h"
#include "core/storage.h"
#include "kernels/matmul.h"

namespace gated {

// What stands in the middle of a feed-forward layer, made in the end of the product beside it, which has the elements
// at hand. The bits are those of kernels/activation.h, or of kernels/glu.h where there is a g, and the activations
// those that they take; but cuBLASLt makes gelu_tanh of C before it is rounded.
//   forward, layout nt    y = act(C), or y = act(g) * C, of C as it is stored
//   backward, layout nn   the product, rounded, is dy; C = dy * act'(u), or dg = dy*u * act'(g) and C = dy * act(g)
// y, g, u, dg (M,N) without gaps, apart from one another and from C. Without a y and a u nothing is made.
struct Activated {
  bf16* y = nullptr;
  const bf16* g = nullptr;
  Activation act = Activation::identity;
  const bf16* u = nullptr;
  bf16* dg = nullptr;
};

// C (M,N) = product (+ bias), or C = C + product, of matrices without gaps in one of the layouts of kernels/matmul.h; a
// C of bf16 is rounded once, at the end. bias (N) or null is added to every row of a C that is written. C overlaps
// neither operand. M, N or K may be 0: a sum over nothing is 0. activated: of a C in bf16 that is written.
void matmul_bf16(Reals C, const bf16* A, const bf16* B, size_t M, size_t N, size_t K, Layout layout,
                 Accumulate accumulate, Context& ctx, const float* bias = nullptr, const Activated& activated = {});

// The same with each matrix inside wider rows.
void matmul_bf16(StoredMatrix<void> C, Matrix<const bf16> A, Matrix<const bf16> B, size_t M, size_t N, size_t K,
                 Layout layout, Accumulate accumulate, Context& ctx, const float* bias = nullptr);

// What is multiplied in one of several products that are summed.
struct MmaFactors {
  Matrix<const bf16> A, B;
  size_t K;
};
constexpr size_t most_factors = 6;
// The k of all of them stand behind one another, each beginning at a multiple of joined_unit; how deep that is.
constexpr size_t joined_unit = 32;
size_t joined_depth(std::span<const MmaFactors> factors);

// C (M,N) = A_0 B_0 + A_1 B_1 + ..., or C + that: one sum, rounded once. Layout nn: A_i (M,K_i), B_i (K_i,N), of up to
// most_factors, K_i > 0. Scratch: that of a product of K = joined_depth(). cuBLASLt multiplies one after the other, and
// rounds a C of bf16 after each. activated: as of matmul_bf16().
void matmul_bf16_joined(Reals C, std::span<const MmaFactors> factors, size_t M, size_t N, Accumulate accumulate,
                        Context& ctx, const Activated& activated = {});

// Both gradients of a linear layer y = x W^T + b: dW (out,in) += dy^T x, db (out) += column sum of dy; db may be null.
// x (N,in), dy (N,out). With cuBLASLt one product makes both.
void linear_gradients_bf16(float* dW, float* db, const bf16* dy, const bf16* x, size_t N, size_t out, size_t in,
                           Context& ctx);

// Bytes of scratch that one product takes on a device, at most: with a C of floats in tn, of either in the others. Of
// products of the same M and N the one with the largest K takes the most. bias: with a bias, or in tn its gradient;
// what bias_backward() takes is not counted.
size_t matmul_bf16_scratch(size_t M, size_t N, size_t K, Layout layout, Device device, bool bias = false);

// ---- for launchers of products

// Makes of C (n) what is asked for, by a kernel or a loop of its own: where the product's end did not.
void activate(const Activated& to, bf16* C, size_t n, Context& ctx);
// Refuses what cannot be activated so.
void require_activated(const char* operation, const Activated& to, Layout layout, Accumulate accumulate,
                       Storage stored);

// ---- on the CPU: kernels/cpu/matmul_bf16_cpu.cpp

// Several factors: in layout nn.
template <class Out>
void matmul_bf16_cpu(Matrix<Out> C, std::span<const MmaFactors> factors, size_t M, size_t N, Layout layout,
                     Accumulate accumulate, const float* bias, Context& ctx);
size_t matmul_bf16_cpu_scratch(size_t M, size_t N, size_t K);

// ---- reference, of matrices without gaps

template <class Out>
void matmul_bf16_ref(Out* C, const bf16* A, const bf16* B, size_t M, size_t N, size_t K, Layout layout,
                     Accumulate accumulate, MmaArithmetic arithmetic, const float* bias);
template <class Out>
void matmul_bf16_joined_ref(Out* C, std::span<const MmaFactors> factors, size_t M, size_t N, Accumulate accumulate,
                            MmaArithmetic arithmetic);

}  // namespace gated
