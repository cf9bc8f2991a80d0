// gated_delta_bf16_state: 64 columns of a state in the registers of a block. Included by
// kernels/bf16/gated_delta_bf16.cu, which walks with one from chunk to chunk, and by
// kernels/bf16/gated_delta_bf16_backward.cu, which walks back with its gradient.
#pragma once
#include "kernels/bf16/gated_delta_bf16_tile.cuh"

namespace gated::gated_delta_bf16 {

// A kernel that walks over chunks has few blocks, one for 64 columns of a head's state. So each has eight warps: a
// scheduler has two, and the one works while the other waits for what it has just made. Warps w and w + 4 have the same
// rows, and each half of the columns: `tiles` tiles from first_tile() on.
constexpr int walkers = 2 * threads, tiles = sums / 2;
__device__ inline int first_tile() {
  return threadIdx.x / threads * tiles;
}

// What such a kernel does with its 64 columns of a state, (Dk,64), in registers: warps w and w + 4 have rows
// 64x + 16w .. + 15 for every x.
template <int keys>
struct StateColumns {
  MmaC S[keys / 64][tiles];

  __device__ static bool has(int x, size_t Dk) { return size_t(64 * x + row_of_warp()) < Dk; }
  // f(two neighbours, the tile of their columns, their row) for what is there
  template <class State, class F>
  __device__ static void for_each(State& S, size_t Dk, F f) {
#pragma unroll
    for (int x = 0; x < keys / 64; x++)
      if (has(x, Dk))
        for_each_pair<tiles>(
            [&](int n, int half) { f(&S[x][n].x[2 * half], first_tile() + n, 64 * x + own_row(half)); });
  }
  // From column0 on of a state, or 0 where it is null.
  __device__ void load(const float* state, const GatedDeltaShape& s, size_t column0) {
    for_each(S, s.Dk, [&](float* two, int tile, int row) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const size_t column = column0 + column_of_lane(tile, e);
        two[e] = state && column < s.Dv ? state[row * s.Dv + column] : 0.0f;
      }
    });
  }
  __device__ void store(float* state, const GatedDeltaShape& s, size_t column0) const {
    for_each(S, s.Dk, [&](const float* two, int tile, int row) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const size_t column = column0 + column_of_lane(tile, e);
        if (column < s.Dv) state[row * s.Dv + column] = two[e];
      }
    });
  }
  // Rounded, into a panel of Dk rows.
  __device__ void round_to(bf16* to, size_t Dk) const {
    for_each(S, Dk,
             [&](const float* two, int tile, int row) { store_two(to + pair_place(row, tile), two[0], two[1]); });
  }
  __device__ void scale(float factor, size_t Dk) {
    for_each(S, Dk, [&](float* two, int, int) { two[0] = factor * two[0], two[1] = factor * two[1]; });
  }
  // S_dj goes on with chains over tokens of x_id y_ij; x is (64,Dk), in panels, y a panel.
  __device__ void add(const bf16* x, const bf16* y, size_t Dk) {
#pragma unroll
    for (int part = 0; part < keys / 64; part++)
      if (has(part, Dk)) multiply<Lies::turned, Lies::turned>(S[part], x + part * panel, y, tokens, first_tile());
  }
};

// c and beta of a lane's rows, and c of the chunk's last. They are asked for before the barrier that a chunk begins
// with, so that their way from memory is behind them when they are wanted.
struct RowGates {
  float c[2], beta[2], last;
  __device__ RowGates(const Made& made, const Place& at) : last(made.c_of(at)[tokens - 1]) {
    for (int half = 0; half < 2; half++) {
      c[half] = made.c_of(at)[own_row(half)];
      beta[half] = made.beta_of(at)[own_row(half)];
    }
  }
};

}  // namespace gated::gated_delta_bf16
