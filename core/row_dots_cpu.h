// row_dots_cpu: dot products with the rows of a matrix, each row read once and as it lies in memory. A product with one
// or a few rows (kernels/cpu/matmul_cpu.cpp) and the scores of one query (kernels/decode/cached_attention_cpu.cpp) are
// made of these. Their time is that of reading the matrix, so nothing is packed first.
//
//   chain[m][j] = chain over k of x[m][k] * row[j][k]
//
// A lane owns a row. Of `lanes` rows, `lanes` numbers are loaded at a time and transposed in registers; then vector k
// holds number k of every row, and meets x[k] in all lanes:
//
//              k  k+1 k+2 k+3                    row 0   1   2   3
//      row 0 | a   b   c   d  |   transpose   k   | a   e   i   m |   chain = fma(x[k],   (a e i m), chain)
//      row 1 | e   f   g   h  |   ========>   k+1 | b   f   j   n |   chain = fma(x[k+1], (b f j n), chain)
//      row 2 | i   j   k   l  |                   | c   g   k   o |   ...
//      row 3 | m   n   o   p  |                   | d   h   l   p |                   (drawn for 4 lanes)
#pragma once
#include <algorithm>

#include "core/simd.h"

namespace gated {

// Chains of rows 0 .. count-1, 1 <= count <= lanes, ld floats apart; lanes without a row hold what row count-1 has. x
// has M rows, ldx floats apart. `next` rows further on lie those that will be wanted next.
template <size_t M>
inline void row_dots(vec (&chain)[M], const float* rows, size_t ld, size_t count, size_t next, const float* x,
                     size_t ldx, size_t depth) {
#pragma GCC unroll 8
  for (size_t m = 0; m < M; m++) chain[m] = vec{};
  // Number c of the rows, and of each x from k on.
  const auto link = [&](const vec& numbers, auto& xs, size_t c) __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (size_t m = 0; m < M; m++) chain[m] = fma(xs[m](c), numbers, chain[m]);
  };
  size_t k = 0;
  if (count == lanes)
    for (; k + lanes <= depth; k += lanes) {
      vec square[lanes];
#pragma GCC unroll 16
      for (size_t r = 0; r < lanes; r++) {
        square[r] = load(rows + r * ld + k);
        __builtin_prefetch(rows + (next + r) * ld + k, 0, 2);
      }
      transpose(square);
      Broadcasts<> xs[M];
      for (size_t m = 0; m < M; m++) xs[m].x = x + m * ldx + k;
#pragma GCC unroll 16
      for (size_t c = 0; c < lanes; c++) link(square[c], xs, c);
    }
  for (; k < depth; k += lanes) {  // fewer rows, or what is left of k
    const size_t n = std::min(lanes, depth - k);
    vec square[lanes];
    for (size_t r = 0; r < lanes; r++) square[r] = load_first(rows + std::min(r, count - 1) * ld + k, n);
    transpose(square);
    Broadcasts<false> xs[M];
    for (size_t m = 0; m < M; m++) xs[m].x = x + m * ldx + k;
    for (size_t c = 0; c < n; c++) link(square[c], xs, c);
  }
}

}  // namespace gated
