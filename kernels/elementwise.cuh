// elementwise: the launch shape of an operation whose elements do not meet: a thread holds four neighbouring
// ones (a Quad), so that a warp reads 512 neighbouring bytes with one instruction.
#pragma once
#include "kernels/device.cuh"
#include "kernels/reduce.cuh"

namespace gated {

constexpr unsigned elementwise_block = 256;

inline dim3 elementwise_grid(size_t n) {
  return grid_of(ceil_div(n, 4 * elementwise_block));
}

// The first of this thread's four elements.
__device__ inline size_t elementwise_index() {
  return 4 * (threadIdx.x + size_t(blockDim.x) * blockIdx.x);
}

// Rows that end inside a quad: every row is rounded up to whole quads, so that a thread stays in one row.
struct RowQuad {
  size_t row, column;
};

inline dim3 row_quads_grid(size_t rows, size_t columns) {
  return elementwise_grid(4 * ceil_div(columns, 4) * rows);
}

__device__ inline RowQuad row_quad(size_t columns) {
  const size_t quad = elementwise_index() / 4, quads = ceil_div(columns, 4);
  return {quad / quads, 4 * (quad % quads)};
}

}  // namespace gated
