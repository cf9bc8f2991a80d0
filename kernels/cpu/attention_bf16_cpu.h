// attention_bf16 on the CPU: tiles as the factors of products, and the online softmax. Included by
// kernels/cpu/attention_bf16_cpu.cpp, which says how they serve, and by kernels/decode/cached_attention_bf16_cpu.cpp.
#pragma once
#include <algorithm>

#include "core/mma_product_cpu.h"
#include "core/pieces.h"
#include "kernels/bf16/attention_bf16.cuh"

namespace gated::attention_bf16_cpu {

using namespace attention_bf16;

constexpr size_t depth_of_block = block / mma_depth;  // steps of a chain over a tile

// ---- factors

// to (64,D): row_at(r) is row r, widened; 0 where it is null.
template <class RowAt>
void widen_rows(float* to, size_t D, RowAt row_at) {
  for (size_t r = 0; r < block; r++)
    if (const bf16* const row = row_at(r))
      for (size_t d = 0; d < D; d++) to[r * D + d] = row[d];
    else
      std::fill_n(to + r * D, D, 0.0f);
}
// The same of `count` rows that are so far apart.
inline void widen_rows(float* to, const bf16* x, size_t stride, size_t count, size_t D) {
  widen_rows(to, D, [&](size_t r) { return r < count ? x + r * stride : nullptr; });
}

// x (64, n) of bf16 numbers, n a multiple of 16, as the left factor of chains along n. Of the rows the first so many,
// in whole groups.
inline void make_rows(MmaRow* to, const float* x, size_t n, size_t rows = block) {
  const size_t steps = n / mma_depth;
  for (size_t r = 0; r < round_up(rows, mma_rows_together); r++)
    for (size_t s = 0; s < steps; s++) mma_row_at(to, r, s, steps) = mma_row_of(x + r * n + s * mma_depth);
}

// x (64, D) as the right factor of chains along D: row r is column r.
inline void make_panels_of_rows(MmaPanel* to, const float* x, size_t D) {
  for (size_t p = 0; p < block / lanes; p++)
    for (size_t d = 0; d < D; d += lanes) {
      vec part[lanes];
      for (size_t l = 0; l < lanes; l++) part[l] = load(x + (p * lanes + l) * D + d);
      transpose(part);
      MmaPanel& panel = to[p * (D / mma_depth) + d / mma_depth];
      if (d % mma_depth == 0) panel.finite = true;
      for (size_t l = 0; l < lanes; l++) mma_put(panel, d % mma_depth + l, part[l]);
    }
}

// x (64, D) as the right factor of chains along the 64 rows.
inline void make_panels_of_columns(MmaPanel* to, const float* x, size_t D) {
  for (size_t p = 0; p < D / lanes; p++)
    for (size_t r = 0; r < block; r++) {
      MmaPanel& panel = to[p * depth_of_block + r / mma_depth];
      if (r % mma_depth == 0) panel.finite = true;
      mma_put(panel, r % mma_depth, load(x + r * D + p * lanes));
    }
}

// ---- weights

// Which keys of a tile a query sees.
struct Seen {
  size_t begin, end;

  // Keys [first, past) of all, in the tile at j0.
  Seen(size_t first, size_t past, size_t j0) : begin(inside(first, j0)), end(inside(past, j0)) {}
  Seen(const AttentionShape& s, size_t i, size_t j0) : Seen(s.first_key(i), i + 1, j0) {}
  static size_t inside(size_t j, size_t j0) { return j < j0 ? 0 : std::min(j - j0, block); }
};

// What l is multiplied by, and the sums over the tile are added to.
struct Rescale {
  float alpha, added;
};

// Sums c over d of a query become weights, rounded. m is the query's maximum.
Rescale softmax_row(AttentionScore score, float* c, float& m, float scale, float bias, Seen seen);

// Rows of sums, times a factor, rounded.
inline void store_rows(bf16* to, size_t stride, const float* x, size_t count, size_t D, float factor) {
  for (size_t r = 0; r < count; r++)
    for (size_t d = 0; d < D; d++) to[r * stride + d] = bf16(x[r * D + d] * factor);
}

// ---- forward

struct ForwardMemory {
  float *wide, *score, *sum;
  MmaRow *queries, *weights;
  MmaPanel *keys, *values;

  ForwardMemory(Pieces& pieces, size_t D)
      : wide(pieces.take<float>(block * D)),
        score(pieces.take<float>(block * block)),
        sum(pieces.take<float>(block * D)),
        queries(pieces.take<MmaRow>(block * D / mma_depth)),
        weights(pieces.take<MmaRow>(block * depth_of_block)),
        keys(pieces.take<MmaPanel>(block / lanes * D / mma_depth)),
        values(pieces.take<MmaPanel>(D / lanes * depth_of_block)) {}
};

// The online softmax of up to 64 rows of queries, which are in w.queries, over tiles first, first + 64, ..., up to
// `last`. m, l and w.sum are what the rows begin with, and what they come to. key_at(j) and value_at(j) are rows, or
// null; seen(r, j0) is a Seen.
template <class KeyAt, class ValueAt, class SeenBy>
void walk_tiles(MmaArithmetic arithmetic, AttentionScore score, const ForwardMemory& w, float* m, float* l, size_t rows,
                size_t D, size_t first, size_t last, float scale, float bias, KeyAt key_at, ValueAt value_at,
                SeenBy seen) {
  std::fill_n(w.score, block * block, 0.0f);
  for (size_t j0 = first; j0 <= last; j0 += block) {
    widen_rows(w.wide, D, [&](size_t n) { return key_at(j0 + n); });
    make_panels_of_rows(w.keys, w.wide, D);
    mma_product(arithmetic, Chains::begin, w.score, rows, block, w.queries, w.keys, D / mma_depth);
    for (size_t r = 0; r < rows; r++) {
      const Rescale change = softmax_row(score, w.score + r * block, m[r], scale, bias, seen(r, j0));
      l[r] = fused(l[r], change.alpha, change.added);
      for (size_t d = 0; d < D; d++) w.sum[r * D + d] = w.sum[r * D + d] * change.alpha;
    }
    make_rows(w.weights, w.score, block, rows);
    widen_rows(w.wide, D, [&](size_t n) { return value_at(j0 + n); });
    make_panels_of_columns(w.values, w.wide, D);
    mma_product(arithmetic, Chains::go_on, w.sum, rows, D, w.weights, w.values, depth_of_block);
  }
}

}  // namespace gated::attention_bf16_cpu
