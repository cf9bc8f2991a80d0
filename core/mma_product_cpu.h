// mma_product_cpu: a product of matrices in the arithmetic of core/mma_lanes.h. The caller turns the factors into the
// form of that header, as it knows how they lie and how often each serves.
#pragma once
#include "core/device.cuh"
#include "core/mma_lanes.h"

namespace gated {

constexpr size_t mma_rows_together = 4;  // rows of a left factor that meet a panel at a time

// A left factor stands by group of four rows, step and row; a right one by panel and step.
inline MmaRow& mma_row_at(MmaRow* left, size_t row, size_t step, size_t steps) {
  return left[(row / mma_rows_together * steps + step) * mma_rows_together + row % mma_rows_together];
}

// Chains begin with +0, or go on from what is there.
enum class Chains { begin, go_on };

// (One copy, however many products a file has.)
template <MmaArithmetic arithmetic>
[[gnu::noinline]] void mma_product_as(Chains chains, float* out, size_t rows, size_t columns, const MmaRow* left,
                                      const MmaPanel* right, size_t steps) {
  for (size_t p = 0; p < columns / lanes; p++)
    for (size_t g = 0; g < ceil_div(rows, mma_rows_together); g++) {
      float* const to = out + g * mma_rows_together * columns + p * lanes;
      vec sum[mma_rows_together] = {};
      if (chains == Chains::go_on)
        for (size_t r = 0; r < mma_rows_together; r++) sum[r] = load(to + r * columns);
      for (size_t s = 0; s < steps; s++)
        mma_lanes<arithmetic>(sum, left + (g * steps + s) * mma_rows_together, right[p * steps + s]);
      for (size_t r = 0; r < mma_rows_together; r++) store(to + r * columns, sum[r]);
    }
}

// out (rows, columns) = chains of so many steps. columns is a multiple of `lanes`; out and left have whole groups of
// rows, and all rows of a group are made.
inline void mma_product(MmaArithmetic arithmetic, Chains chains, float* out, size_t rows, size_t columns,
                        const MmaRow* left, const MmaPanel* right, size_t steps) {
  const auto as = arithmetic == MmaArithmetic::hopper ? mma_product_as<MmaArithmetic::hopper>
                                                      : mma_product_as<MmaArithmetic::ampere>;
  as(chains, out, rows, columns, left, right, steps);
}

}  // namespace gated
