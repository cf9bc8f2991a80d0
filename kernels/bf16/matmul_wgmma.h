// matmul_wgmma: the products of kernels/bf16/matmul_bf16.h by Hopper's own instructions, with the same bits. How:
// kernels/bf16/matmul_wgmma.cu
#pragma once
#include "kernels/bf16/matmul_bf16.h"

namespace gated {

// A block makes tiles of 128 rows. A cluster's two blocks make two of them, one above the other.
constexpr int wgmma_tile_rows = 128, wgmma_ranks = 2, wgmma_cluster_rows = wgmma_ranks * wgmma_tile_rows;

// Tiles of so many columns.
constexpr size_t matmul_wgmma_tiles(size_t M, size_t N, int columns) {
  return ceil_div(M, wgmma_tile_rows) * ceil_div(N, columns);
}

// The width of tiles that is done first: where there are too few wide ones, or few in the last wave, narrow ones are.
// A cluster takes two tiles though the lower one lie outside.
constexpr int matmul_wgmma_columns(size_t M, size_t N, size_t slices, size_t multiprocessors) {
  const auto time = [&](int columns) {
    return ceil_div(slices * matmul_wgmma_tiles(round_up(M, wgmma_cluster_rows), N, columns), multiprocessors) *
           columns;
  };
  return time(192) < time(256) ? 192 : 256;
}

// Rows that belong to experts, each with a B of its own: those of expert e are row_start[e] to row_start[e + 1] - 1,
// and B, and the bias, stand E times one after the other. In tn rows are k, and C stands E times. On the device, as the
// counts are (kernels/grouped_rows.cuh).
struct WgmmaGroups {
  const int* row_start = nullptr;  // null: one product
  size_t E = 1;
};

// Floats that matmul_wgmma() wants as `totals`, where there is more than one slice of k: a tile for each block.
size_t matmul_wgmma_totals();

// C (M,N) = product (+ bias), or C = C + product, where this kernel can make it: on a GPU of compute capability 9.0 (an
// emulator that has its tensor cores and its shared memory), of A and B on boundaries of 16 bytes, their rows too, and
// K > 0. False where it cannot: then nothing was done. factors: one, or in nn several whose products are summed
// (matmul_bf16_joined()), where all that end before the last slice are whole strips of 64 k. columns: 256 or 192, of a
// tile. totals: matmul_wgmma_totals() floats, where there is more than one slice. bias, activated: as of matmul_bf16().
// slices: where it is more than 1, in tn, all of K's go side by side, and C is the first of as many matrices (M, C.ld),
// each of one slice. groups: in tn `slices` is E; of an expert's rows the bits are those of the product of these rows
// alone.
template <class Out>
bool matmul_wgmma(Matrix<Out> C, std::span<const MmaFactors> factors, size_t M, size_t N, Layout layout,
                  Accumulate accumulate, float* totals, const float* bias, const Activated& activated, Context& ctx,
                  int columns, size_t slices = 1, const WgmmaGroups& groups = {});

}  // namespace gated
