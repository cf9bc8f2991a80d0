// quad: four neighbouring elements of a row, as one thread holds them.
//
// A thread that reads four floats with one 16-byte load makes a warp read 512 neighbouring bytes with one
// instruction: the widest access that a GPU has. `load_quad(row, i, n)` does that for elements i to i+3 where the
// rows of an array stand on 16-byte boundaries (n a multiple of 4), and reads one by one where they do not.
#pragma once
#include "core/context.cuh"

namespace gated {

struct Quad {
  float v[4];
};

// Elements i..i+3 of a row of n. `aligned` (n a multiple of 4, row 16-byte aligned) loads them at once;
// otherwise elements past the end read as 0 and must not join a sum.
template <bool aligned>
__device__ inline Quad load_quad(const float* row, size_t i, size_t n) {
  Quad q;
  if constexpr (aligned) {
    const float4 f = *reinterpret_cast<const float4*>(row + i);
    q = {{f.x, f.y, f.z, f.w}};
  } else {
    for (int k = 0; k < 4; k++) q.v[k] = i + k < n ? row[i + k] : 0.0f;
  }
  return q;
}

template <bool aligned>
__device__ inline void store_quad(float* row, size_t i, size_t n, Quad q) {
  if constexpr (aligned) {
    *reinterpret_cast<float4*>(row + i) = make_float4(q.v[0], q.v[1], q.v[2], q.v[3]);
  } else {
    for (int k = 0; k < 4; k++)
      if (i + k < n) row[i + k] = q.v[k];
  }
}

// The same, choosing at run time: every thread of a launch takes the same side, so the choice costs next to nothing.
__device__ inline Quad load_quad(const float* row, size_t i, size_t n) {
  return n % 4 == 0 ? load_quad<true>(row, i, n) : load_quad<false>(row, i, n);
}
__device__ inline void store_quad(float* row, size_t i, size_t n, Quad q) {
  if (n % 4 == 0)
    store_quad<true>(row, i, n, q);
  else
    store_quad<false>(row, i, n, q);
}

// A row of n elements inside wider rows that begin on 16-byte boundaries (`aligned`): whole quads at once, whatever n is,
// and the last few elements one by one. What lies behind the row is neither read nor written.
__device__ inline Quad load_quad_inside(const float* row, size_t i, size_t n, bool aligned) {
  return aligned && i + 4 <= n ? load_quad<true>(row, i, n) : load_quad<false>(row, i, n);
}
__device__ inline void store_quad_inside(float* row, size_t i, size_t n, Quad q, bool aligned) {
  if (aligned && i + 4 <= n)
    store_quad<true>(row, i, n, q);
  else
    store_quad<false>(row, i, n, q);
}

}  // namespace gated
