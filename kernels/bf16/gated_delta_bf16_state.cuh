// gated_delta_bf16_state: 64 columns of a state in the registers of a block. Included by
// kernels/bf16/gated_delta_bf16.cu, which walks with one from chunk to chunk, and by
// kernels/bf16/gated_delta_bf16_backward.cu, which walks back with its gradient.
#pragma once
#include "kernels/bf16/gated_delta_bf16_tile.cuh"

namespace gated::gated_delta_bf16 {

// What the kernels that walk over chunks do with their 64 columns of a state, (Dk,64), in registers: warp w has rows
// 64x + 16w .. + 15 for every x.
template <int keys>
struct StateColumns {
  MmaC S[keys / 64][sums];
  // Steps that multiply() unrolls. A state of 256 keys leaves registers for one.
  static constexpr int unrolled = keys <= 128 ? 4 : 1;

  __device__ static bool has(int x, size_t Dk) { return size_t(64 * x + threadIdx.x / 32 * 16) < Dk; }
  // f(x, n, half, row) for what is there
  template <class F>
  __device__ static void for_each(size_t Dk, F f) {
#pragma unroll
    for (int x = 0; x < keys / 64; x++)
      if (has(x, Dk)) for_each_pair([&](int n, int half) { f(x, n, half, 64 * x + row_of_lane(half)); });
  }
  // From column0 on of a state, or 0 where it is null.
  __device__ void load(const float* state, const GatedDeltaShape& s, size_t column0) {
    for_each(s.Dk, [&](int x, int n, int half, int row) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const size_t column = column0 + column_of_lane(n, e);
        S[x][n].x[2 * half + e] = state && column < s.Dv ? state[row * s.Dv + column] : 0.0f;
      }
    });
  }
  __device__ void store(float* state, const GatedDeltaShape& s, size_t column0) const {
    for_each(s.Dk, [&](int x, int n, int half, int row) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const size_t column = column0 + column_of_lane(n, e);
        if (column < s.Dv) state[row * s.Dv + column] = S[x][n].x[2 * half + e];
      }
    });
  }
  // Rounded, into a panel of Dk rows.
  __device__ void round_to(bf16* to, size_t Dk) const {
    for_each(Dk, [&](int x, int n, int half, int row) {
      store_two(to + pair_place(row, n), S[x][n].x[2 * half], S[x][n].x[2 * half + 1]);
    });
  }
  __device__ void scale(float factor, size_t Dk) {
    for_each(Dk, [&](int x, int n, int half, int) {
      for (int e = 2 * half; e < 2 * half + 2; e++) S[x][n].x[e] = factor * S[x][n].x[e];
    });
  }
  // S_dj goes on with chains over tokens of x_id y_ij; x is (64,Dk), in panels, y a panel.
  __device__ void add(const bf16* x, const bf16* y, size_t Dk) {
#pragma unroll
    for (int part = 0; part < keys / 64; part++)
      if (has(part, Dk))
        multiply<Lies::turned, Lies::turned, unrolled>(S[part], x + part * panel, threadIdx.x / 32 * 16, y, tokens);
  }
};

// c and beta of a lane's rows, and c of the chunk's last. They are asked for before the barrier that a chunk begins
// with, so that their way from memory is behind them when they are wanted.
struct RowGates {
  float c[2], beta[2], last;
  __device__ RowGates(const Made& made, const Place& at) : last(made.c_of(at)[tokens - 1]) {
    for (int half = 0; half < 2; half++) {
      c[half] = made.c_of(at)[row_of_lane(half)];
      beta[half] = made.beta_of(at)[row_of_lane(half)];
    }
  }
};

}  // namespace gated::gated_delta_bf16
