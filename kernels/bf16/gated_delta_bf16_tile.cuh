// gated_delta_bf16_tile: panels in shared memory and the product that the kernels of gated_delta_bf16 are made of.
//
// A panel has rows of 64 bf16, in chunks of 8 (16 bytes): chunk c of row r lies at c xor r % 8, so that ldmatrix, which
// reads one chunk of eight rows at a time, finds them in different banks. A matrix of more columns is a row of panels.
// Every matrix of a product is a panel, either as it lies or turned, which ldmatrix does on the way:
//
//               as it lies                   turned
//    left       element (m,k) in row m       element (m,k) in row k
//    right      element (k,n) in row n       element (k,n) in row k
//
// A block has four warps. Each makes 16 rows of a product of 64 columns: eight tiles of 16 x 8 (core/mma.cuh). Or it
// has eight, and each makes 32 columns, four tiles.
#pragma once
#include "core/mma_tile.cuh"
#include "core/pieces.h"
#include "kernels/bf16/gated_delta_bf16.cuh"

namespace gated::gated_delta_bf16 {

using namespace mma_tile;

constexpr int panel_columns = 64, panel_chunks = panel_columns / chunk;
constexpr int panel = int(tokens) * panel_columns;  // elements of one with 64 rows
constexpr int sums = panel_columns / 8;             // tiles of a warp

// Room for so many elements of a key, in kernels that keep a state.
constexpr size_t key_room(size_t Dk) {
  return Dk <= 64 ? 64 : Dk <= 128 ? 128 : 256;
}

// The first of the warp's rows, and a lane's, of 64: of eight warps two have the same.
__device__ inline int row_of_warp() {
  return threadIdx.x % threads / 32 * 16;
}
__device__ inline int own_row(int half) {
  return row_of_lane(half, threadIdx.x % threads / 32);
}

__device__ inline int place(int row, int c) {
  return (row * panel_chunks + (c ^ row % 8)) * chunk;
}
// Where the two neighbours lie that a lane has of row `row` in tile n.
__device__ inline int pair_place(int row, int n) {
  return place(row, n) + column_of_lane(0, 0);
}
struct Two {
  float x[2];
};
using Pair = uint32_t __attribute__((may_alias));
__device__ inline Two load_two(const bf16* p) {
  const uint32_t pair = *reinterpret_cast<const Pair*>(p);
  return {{low_bf16(pair), high_bf16(pair)}};
}
__device__ inline void store_two(bf16* p, float low, float high) {
  *reinterpret_cast<Pair*>(p) = two_bf16(low, high);
}

// A matrix in global memory.
struct Matrix {
  const bf16* at;
  size_t stride, rows, columns;
};

// A thread of a block of 128 (256) has the same chunk of every 16th (32nd) row of a panel: chunk c of row `first`, of
// row first + 16, ... Rows 8 apart have their chunks in the same order, so that from one to the next an address grows
// by as much each time.
template <int block>
struct PanelThread {
  int c = threadIdx.x % panel_chunks, first = threadIdx.x / panel_chunks;
  static constexpr int apart = block / panel_chunks;
  static_assert(apart % 8 == 0);
  // Where this thread's rows end, of `count`, when so many rows and columns of the matrix are left.
  __device__ int end(size_t rows, size_t columns, int count) const {
    return size_t(c) * chunk >= columns ? 0 : rows < size_t(count) ? int(rows) : count;
  }
};

// Asks for `count` rows and 64 columns from (row0,column0) on, a place inside the matrix; what lies outside is 0.
template <int block = threads>
__device__ inline void copy_panel(bf16* to, const Matrix& x, size_t row0, size_t column0, int count,
                                  AsyncCopies& copies) {
  const PanelThread<block> me;
  const int end = me.end(x.rows - row0, x.columns - column0, count);
  const bf16* from = x.at + (row0 + me.first) * x.stride + column0 + me.c * chunk;
  to += place(me.first, me.c);
#pragma unroll 1  // so that addresses of one copy alone are in registers
  for (int row = me.first; row < count; row += me.apart) {
    copies.copy16(to, row < end ? from : x.at, row < end ? 16 : 0);
    from += me.apart * x.stride, to += me.apart * panel_columns;
  }
}
// The 64 rows from row0 on, in so many panels as the matrix has columns for.
template <int block = threads>
__device__ inline void copy_panels(bf16* to, const Matrix& x, size_t row0, AsyncCopies& copies) {
  for (size_t p = 0; p * panel_columns < x.columns; p++)
    copy_panel<block>(to + p * panel, x, row0, p * panel_columns, int(tokens), copies);
}
// A panel of up to `count` rows to global memory, as far as it is there.
template <int block>
__device__ inline void write_panel(bf16* to, size_t stride, size_t rows, size_t columns, const bf16* from, int count) {
  const PanelThread<block> me;
  const int end = me.end(rows, columns, count);
  to += me.first * stride + me.c * chunk, from += place(me.first, me.c);
  for (int row = me.first; row < end; row += me.apart) {
    *reinterpret_cast<Chunk*>(to) = *reinterpret_cast<const Chunk*>(from);
    to += me.apart * stride, from += me.apart * panel_columns;
  }
}

enum class Lies { straight, turned };

// sum goes on with the chains over k < depth, or over 64 where that is more: the rows are the warp's, and the columns
// are those of `tiles` tiles from `first` on. unrolled: so many steps of k in a row; each wants registers for its
// addresses.
template <Lies left_lies, Lies right_lies, int unrolled = 4, int tiles>
__device__ inline void multiply(MmaC (&sum)[tiles], const bf16* left, const bf16* right, size_t depth, int first = 0) {
  const int lane = threadIdx.x % 32, low = lane % 16, high = lane / 16;
  const int row = high * 8 + lane % 8, column = lane / 8 % 2;
#pragma unroll unrolled
  for (int k = 0; k < panel_columns; k += int(mma_depth)) {
    if (size_t(k) >= depth) break;
    MmaA a;
    if constexpr (left_lies == Lies::straight)
      ldmatrix<false>(a.x, left + place(row_of_warp() + low, k / chunk + high));
    else
      ldmatrix<true>(a.x, left + k * panel_columns + place(row, row_of_warp() / chunk + column));
#pragma unroll
    for (int n = 0; n < tiles; n += 2) {
      uint32_t b[4];
      if constexpr (right_lies == Lies::straight)
        ldmatrix<false>(b, right + 8 * (first + n) * panel_columns + place(row, k / chunk + column));
      else
        ldmatrix<true>(b, right + k * panel_columns + place(low, first + n + high));
      mma(sum[n], a, MmaB{{b[0], b[1]}});
      mma(sum[n + 1], a, MmaB{{b[2], b[3]}});
    }
  }
}

// The same over a contraction of D, in panels that lie one after the other.
template <Lies left_lies, Lies right_lies, int unrolled = 4, int tiles>
__device__ inline void multiply_panels(MmaC (&sum)[tiles], const bf16* left, const bf16* right, size_t D,
                                       int first = 0) {
  for (size_t p = 0; p * panel_columns < D; p++)
    multiply<left_lies, right_lies, unrolled>(sum, left + p * panel, right + p * panel, D - p * panel_columns, first);
}

// f(n, half) for every tile and both rows of a lane.
template <int tiles = sums, class F>
__device__ inline void for_each_pair(F f) {
#pragma unroll
  for (int n = 0; n < tiles; n++)
#pragma unroll
    for (int half = 0; half < 2; half++) f(n, half);
}

// A chunk of a value head, and its number among all.
struct Place {
  size_t b, h, n, number, t0;
  __device__ Place(const GatedDeltaShape& s, size_t head, size_t chunk_of_head)
      : b(head / s.Hv),
        h(head % s.Hv),
        n(chunk_of_head),
        number(head * gated_delta_bf16_chunks(s) + n),
        t0(n * tokens) {}
};
// What one kernel makes of q, k, g and beta of every chunk for the others, in scratch. After the last token c stays as
// it is, and beta is 0.
struct Made {
  float *c, *beta;  // (B,Hv,chunks,64)
  bf16 *R, *P;      // (B,Hv,chunks,64,64)

  Made(Pieces& pieces, const GatedDeltaShape& s) {
    const size_t chunks = s.B * s.Hv * gated_delta_bf16_chunks(s);
    for (bf16** x : {&R, &P}) *x = pieces.take<bf16>(chunks * panel);
    for (float** x : {&c, &beta}) *x = pieces.take<float>(chunks * tokens);
  }
  __device__ const float* c_of(const Place& at) const { return c + at.number * tokens; }
  __device__ const float* beta_of(const Place& at) const { return beta + at.number * tokens; }
  __device__ Matrix R_of(const Place& at) const {
    return {R + at.number * panel, panel_columns, tokens, panel_columns};
  }
  __device__ Matrix P_of(const Place& at) const {
    return {P + at.number * panel, panel_columns, tokens, panel_columns};
  }
};

__device__ inline Matrix keys_of(const bf16* x, const GatedDeltaShape& s, const Place& at) {
  return {x + s.qk_row(at.b, 0, at.h), s.qk_step(), s.T, s.Dk};
}
__device__ inline Matrix values_of(const bf16* x, const GatedDeltaShape& s, const Place& at) {  // v
  return {x + s.v_row(at.b, 0, at.h), s.v_step(), s.T, s.Dv};
}
__device__ inline Matrix outputs_of(const bf16* x, const GatedDeltaShape& s, const Place& at) {  // all else
  return {x + s.o_row(at.b, 0, at.h), s.Hv * s.Dv, s.T, s.Dv};
}
__device__ inline Matrix state_of(const bf16* x, const GatedDeltaShape& s, const Place& at) {
  return {x + kept_state(s, at.b, at.h, at.n), s.Dv, s.Dk, s.Dv};
}

void require_shape(const char* name, const GatedDeltaShape& s, std::initializer_list<const bf16*> arrays);
// Launches that kernel.
Made make(Pieces& pieces, const GatedDeltaBf16In& in, const GatedDeltaShape& s, Context& ctx);

}  // namespace gated::gated_delta_bf16
