// gated_delta on a CPU: what the code of its three forms shares: kernels/cpu/gated_delta_cpu.cpp,
// gated_delta_chunk_cpu.cpp, gated_delta_bf16_cpu.cpp.
#pragma once
#include <algorithm>

#include "core/pieces.h"
#include "core/simd.h"
#include "kernels/gated_delta.h"

namespace gated::gated_delta_cpu {

constexpr size_t chains = gated_delta_chains;
static_assert(chains == 16 && chains % lanes == 0);

// As copy_rows of core/context.cuh, at once.
inline void copy_rows(float* to, size_t to_step, const float* from, size_t from_step, size_t rows, size_t n) {
  for (size_t m = 0; m < rows; m++) std::copy_n(from + m * from_step, n, to + m * to_step);
}

// ---- the tree over 16 chains, which lie in 16/lanes vectors, the pieces of a row

constexpr size_t pieces = chains / lanes;

// x becomes, in every lane, one total: lane l that of the `lanes` numbers of x[l], as a tree of neighbours.
template <size_t apart = 1>
vec totals(vec (&x)[lanes]) {
#pragma GCC unroll 8
  for (size_t i = 0; i < lanes; i += 2 * apart) {
    exchange<apart>(x[i], x[i + apart]);
    x[i] = x[i] + x[i + apart];
  }
  if constexpr (2 * apart < lanes)
    return totals<2 * apart>(x);
  else
    return x[0];
}

// The sums of the chains of `lanes` rows; piece(l, p) is piece p of row l.
template <class Piece>
vec chains_sums(Piece piece) {
  vec sum[4] = {};
#pragma GCC unroll 4
  for (size_t p = 0; p < pieces; p++) {
    vec x[lanes];
#pragma GCC unroll 16
    for (size_t l = 0; l < lanes; l++) x[l] = piece(l, p);
    sum[p] = totals(x);
  }
  if constexpr (pieces == 1) return sum[0];
  if constexpr (pieces == 2) return sum[0] + sum[1];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// ---- threads share the key heads of all sequences

// body(workspace, b, hk), of a Workspace that is made of s and `more`.
template <class Workspace, class Body, class... More>
void for_each_key_head(const GatedDeltaShape& s, Context& ctx, Body body, const More&... more) {
  unsigned char* const scratch = ctx.scratch<unsigned char>(bytes_for_threads<Workspace>(s, more...));
#pragma omp parallel for schedule(dynamic)
  for (size_t n = 0; n < s.B * s.Hk; n++) {
    auto workspace = memory_of_thread<Workspace>(scratch, s, more...);
    body(workspace, n / s.Hk, n % s.Hk);
  }
}

}  // namespace gated::gated_delta_cpu
