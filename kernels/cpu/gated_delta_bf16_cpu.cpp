// gated_delta_bf16 on the CPU: the steps of kernels/bf16/gated_delta_bf16_steps.h, with `lanes` outputs of a product
// side by side in a vector (core/mma_product_cpu.h). A factor is turned into what such a product reads, which costs as
// much as a few of its rows. Threads take key heads of sequences, with the value heads that read them.
// tests/test_gated_delta_bf16.cpp
#include "core/mma_product_cpu.h"
#include "kernels/bf16/gated_delta_bf16_steps.h"
#include "kernels/cpu/gated_delta_cpu.h"

namespace gated {
namespace gated_delta_bf16_cpu {

using gated_delta_bf16::Factor;
using gated_delta_bf16::tokens;

struct VectorProduct {
  MmaRow* rows;  // the factors of the product that is made
  MmaPanel* panels;
  MmaArithmetic arithmetic;

  VectorProduct(Pieces& pieces, const GatedDeltaShape& s, MmaArithmetic arithmetic) : arithmetic(arithmetic) {
    const size_t widest = std::max({tokens, s.Dk, s.Dv});
    rows = pieces.take<MmaRow>(tokens * widest / mma_depth);
    panels = pieces.take<MmaPanel>(std::max(tokens * widest, s.Dk * s.Dv) / lanes / mma_depth);
  }
  // (One copy, however often the steps call it.)
  [[gnu::noinline]] void operator()(float* C, size_t M, size_t N, Factor<float> left, Factor<float> right,
                                    size_t K) const {
    const size_t steps = K / mma_depth;
    for (size_t m = 0; m < M; m++)
      for (size_t s = 0; s < steps; s++) {
        float part[mma_depth];
        const float* const from = left.at + m * left.outer + s * mma_depth * left.along;
        for (size_t i = 0; i < mma_depth; i++) part[i] = from[i * left.along];
        mma_row_at(rows, m, s, steps) = mma_row_of(part);
      }
    for (size_t p = 0; p < N / lanes; p++)
      for (size_t k = 0; k < K; k++) {
        MmaPanel& panel = panels[p * steps + k / mma_depth];
        if (k % mma_depth == 0) panel.finite = true;
        const float* const from = right.at + p * lanes * right.outer + k * right.along;
        float part[lanes];
        for (size_t l = 0; l < lanes; l++) part[l] = from[l * right.outer];
        mma_put(panel, k % mma_depth, load(part));
      }
    mma_product(arithmetic, Chains::go_on, C, M, N, rows, panels, steps);
  }
};

using VectorSteps = gated_delta_bf16::Steps<float, VectorProduct>;

}  // namespace gated_delta_bf16_cpu

size_t gated_delta_bf16_cpu_scratch(const GatedDeltaShape& s) {
  return bytes_for_threads<gated_delta_bf16_cpu::VectorSteps>(s, MmaArithmetic());
}

void gated_delta_bf16_forward_cpu(const GatedDeltaBf16Out& out, const GatedDeltaBf16In& in, const GatedDeltaShape& s,
                                  Context& ctx) {
  gated_delta_cpu::for_each_key_head<gated_delta_bf16_cpu::VectorSteps>(
      s, ctx, [&](auto& steps, size_t b, size_t key_head) { steps.forward(out, in, b, key_head); }, ctx.mma_arithmetic);
}

void gated_delta_bf16_backward_cpu(const GatedDeltaBf16Gradients& out, const GatedDeltaBf16BackwardIn& back,
                                   const GatedDeltaBf16In& in, const GatedDeltaShape& s, Context& ctx) {
  gated_delta_cpu::for_each_key_head<gated_delta_bf16_cpu::VectorSteps>(
      s, ctx, [&](auto& steps, size_t b, size_t key_head) { steps.backward(out, back, in, b, key_head); },
      ctx.mma_arithmetic);
}

}  // namespace gated
