// matmul_cpu: the product of kernels/matmul.cu on CPU cores, at the speed of their vector units.
//
// It differs from the reference in what is computed at the same time, never in an order of additions: an element of C
// has a vector lane of its own, which takes k in ascending order. So it has the bits of matmul_ref at every vector
// width and thread count.
//
// The blocking is that of Goto and van de Geijn ("Anatomy of High-Performance Matrix Multiplication", ACM TOMS 2008)
// and of BLIS (Van Zee and van de Geijn, ACM TOMS 2015), with two changes. Blocks are as deep as a slice, so that a
// chain stays in its register from its first k to its last; and threads share nothing: each packs what it needs.
//
//   part     the rectangle of C of one thread
//   panel    up to 3072 columns of the part, one slice of k: B, packed into strips of 32 columns          (memory)
//   block    up to 168 rows at a depth of 1024, more at less: A, packed into strips of 14 rows          (L2 cache)
//   tile     14 rows by 2 vectors of C in 28 registers: each k brings 2 vectors of B and 14 numbers of A, each of which
//            goes to all lanes                                                               (numbers for AVX-512)
//
// A copy into strips is work that multiplies nothing, and is left out where too little is multiplied with it:
//   - A few rows or columns of C read the other operand unpacked, once (compute_few(); up to 4 rows
//     core/row_dots_cpu.h). They take as long as memory needs to bring it, or as their multiplications.
//   - Where B lies by lines of k, its copy is made by the first tile that multiplies it.
//
// A strip is k-major: strip[k*width + i]. The last strip of B is filled up with zeros, columns that no output has. k is
// never filled up. tests/test_matmul.cpp
#include <omp.h>

#include <algorithm>
#include <bit>

#include "core/row_dots_cpu.h"
#include "core/simd.h"
#include "kernels/cpu/matmul_cpu.h"

namespace gated {
namespace tuned_matmul {

// 14 x 2 + 2 + 1 of AVX-512's 32 vector registers, 6 x 2 + 2 + 1 of AVX2's 16, 12 x 2 + 2 + 1 of 32 short ones.
constexpr size_t tile_rows = lanes == 16 ? 14 : lanes == 8 ? 6 : 12, half_rows = lanes == 8 ? 4 : 8;
static_assert(tile_rows < lanes || tile_rows % lanes == 0, "pack() stores whole vectors");
constexpr size_t unpacked_rows = lanes == 8 ? 6 : 12;  // where A is not packed: its rows' addresses take registers too
constexpr size_t tile_vecs = 2, tile_cols = tile_vecs * lanes;
constexpr size_t block_rows = 12 * tile_rows;
constexpr size_t cache_line = 16;  // floats
constexpr size_t panel_rows = 146 * tile_rows, panel_cols = 96 * tile_cols;

// The size of a piece when n is cut into as few equal pieces of at most `most` as it takes, in whole units.
constexpr size_t piece(size_t n, size_t most, size_t unit) {
  return round_up(ceil_div(n, ceil_div(n, most)), unit);
}

// The first n of a vector of sums go to C:  C = v,  C = C + v  or  C = bias + (...).
inline void put(float* C, vec v, size_t n, bool accumulate, const float* bias) {
  if (accumulate) v = load_first(C, n) + v;
  if (bias) v = load_first(bias, n) + v;
  store_first(C, v, n);
}

// ---- one tile

// Where chains go:  C = chain,  C = sum + chain,  C = C + chain,  C = C + (sum + chain)  or  C = bias + (...).
struct Destination {
  float* C;
  size_t ldc;
  const float* sum;  // of the slices before this one, or null
  size_t ldsum;
  bool accumulate;
  const float* bias;  // of these columns, or null
  size_t cols;        // that C has in this tile
  // C of the tile that memory is asked for: this one, or where too few k come before its end, the next one.
  float* soon = nullptr;
};

// Memory that will be wanted soon. Tiles ask for it, each for the lines of a few rows, one every 2^shift k: line n
// begins at data + (n % 2^log) * low + (n / 2^log) * high.
struct Ahead {
  const float* data;
  size_t low, high;
  unsigned log, shift;
  size_t step, tiles;  // from the first line of a tile to that of the next; so many tiles have lines

  const float* line_at(size_t k) const {
    const size_t n = k >> shift;
    return data + (n & ((size_t{1} << log) - 1)) * low + (n >> log) * high;
  }
  // The lines of a tile; where there are none, `nothing`, which is in the cache.
  Ahead of(size_t tile, const float* nothing) const {
    if (tile >= tiles) return {nothing, 0, 0, 0, 0, 0, 0};
    Ahead part = *this;
    part.data += tile * step;
    return part;
  }
};

// `rows` rows along which k runs, for `tiles` tiles: as many k as a line has floats give 2^log lines.
inline Ahead ahead_along_k(const float* data, size_t ld, size_t rows, size_t tiles) {
  unsigned log = 0;
  while (log < 4 && tiles << log < rows) log++;
  return {data, ld, cache_line, log, 4 - log, ld << log, rows >> log};
}

// `depth` rows of 2^log lines, a row for each k.
inline Ahead ahead_across_k(const float* data, size_t ld, unsigned log, size_t depth, size_t tiles) {
  unsigned shift = 4;
  while (shift > 0 && tiles >> shift < size_t{1} << log) shift--;
  const size_t rows = std::max<size_t>(1, depth >> shift >> log);
  return {data, cache_line, ld, log, shift, rows * ld, ceil_div(depth, rows)};
}

// A strip of A and one of B, packed; and B unpacked, by lines of k, from where the first tile of a strip, which
// `packs_b`, takes it beside its multiplications.
struct Strips {
  const float* a;
  float* b;
  const float* unpacked_b;
  size_t ldb;
};

template <size_t rows, size_t vecs, bool packs_b>
void tile(const Destination& to, const Strips& from, const Ahead& next, size_t nth, size_t depth) {
  const Ahead ahead = next.of(nth, from.b);
  constexpr size_t distance = 16;  // how many k ahead of their use A and B come from L2 to L1
  constexpr size_t far = 24;       // and lines of B that are not packed from memory to L2
  const float *a = from.a, *line = from.unpacked_b;
  float* b = from.b;
  const size_t ldb = from.ldb;
  vec chain[rows][vecs];
#pragma GCC unroll 16
  for (size_t i = 0; i < rows; i++)
#pragma GCC unroll 2
    for (size_t j = 0; j < vecs; j++) chain[i][j] = vec{};
  // C is asked for a few rows at a time: all at once would fill the queue of misses, and A and B would wait.
  size_t k = 0;
  for (size_t top = 0; top < rows; top += 4) {
    const size_t bottom = std::min(top + 4, rows), stop = depth * bottom / rows;
    for (size_t i = top; i < bottom; i++)
      for (size_t j = 0; j < vecs; j++) __builtin_prefetch(to.soon + i * to.ldc + j * lanes, 1);
    for (; k < stop; k++, a += rows, b += vecs * lanes) {
      vec bk[vecs];
#pragma GCC unroll 2
      for (size_t j = 0; j < vecs; j++) {
        if (packs_b) {
          bk[j] = load(line + j * lanes);
          store(b + j * lanes, bk[j]);
          __builtin_prefetch(line + far * ldb + j * lanes, 0, 2);
        } else {
          bk[j] = load_once(b + j * lanes);
          __builtin_prefetch(b + (distance * vecs + j) * lanes);
        }
      }
      if (packs_b) line += ldb;
      __builtin_prefetch(a + distance * rows);
      if (vecs > 1) __builtin_prefetch(ahead.line_at(k), 0, 2);
      Broadcasts<rows % lanes == 0> numbers{a};
#pragma GCC unroll 16
      for (size_t i = 0; i < rows; i++) {
        const vec ai = numbers(i);
#pragma GCC unroll 2
        for (size_t j = 0; j < vecs; j++) chain[i][j] = fma(ai, bk[j], chain[i][j]);
      }
    }
  }
  const Destination end = to;  // (in registers: what is stored could change `to`)
  const bool plain = end.cols >= vecs * lanes && !end.sum && !end.bias;
#pragma GCC unroll 16
  for (size_t i = 0; i < rows; i++)
#pragma GCC unroll 2
    for (size_t j = 0; j < vecs; j++) {
      float* c = end.C + i * end.ldc + j * lanes;
      vec v = chain[i][j];
      if (plain) {  // as most are: these three are not asked for each vector
        put(c, v, lanes, end.accumulate, nullptr);
        continue;
      }
      const size_t n = end.cols - j * lanes;
      if (end.sum) v = load_first(end.sum + i * end.ldsum + j * lanes, n) + v;
      put(c, v, n, end.accumulate, end.bias ? end.bias + j * lanes : nullptr);
    }
}

using TileFunction = void (*)(const Destination&, const Strips&, const Ahead&, size_t, size_t);

// f<rows>(), for the rows that next_rows() gives.
template <size_t most, class F>
auto by_tile_rows(size_t rows, F f) {
  if (rows == most) return f.template operator()<most>();
  if (rows == half_rows) return f.template operator()<half_rows>();
  return rows == 4 ? f.template operator()<4>() : rows == 2 ? f.template operator()<2>() : f.template operator()<1>();
}

template <size_t vecs, bool packs_b>
TileFunction tile_of(size_t rows) {
  return by_tile_rows<tile_rows>(rows, []<size_t r>() -> TileFunction { return tile<r, vecs, packs_b>; });
}

// Rows of the next tile, at most `most`, when `left` are left. Tiles of one or two rows have too few chains to keep the
// fma units busy, so 16 rows are 8 + 8 rather than 14 + 2.
inline size_t next_rows(size_t left, size_t most = tile_rows) {
  if (left >= most && left != 2 * half_rows) return most;
  return left >= half_rows ? half_rows : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

// ---- packing

// Rows [i0, i0 + n) at k in [k0, k0 + depth) go to strips of `width` rows, `pitch` floats apart; rows that
// the matrix does not have are 0. Whole vectors are stored: what runs over the end of a strip's line is
// overwritten by the next line, and after the last line there must be room.
inline void pack(float* strips, size_t pitch, size_t width, const Operand& x, size_t i0, size_t n, size_t k0,
                 size_t depth) {
  if (!x.k_contiguous) {
    for (size_t k = 0; k < depth; k++) {
      const float* line = x.data + (k0 + k) * x.ld;
      float* to = strips + k * width;
      for (size_t s = i0; s < i0 + n; s += width, to += pitch)
        for (size_t i = s; i < s + width; i += lanes) {
          __builtin_prefetch(line + i + 16 * x.ld);
          store(to + (i - s), i < x.count ? load_first(line + i, x.count - i) : vec{});
        }
    }
    return;
  }
  for (size_t s = i0; s < i0 + n; s += width, strips += pitch)
    for (size_t i = 0; i < width; i += lanes) {
      const float* from = x.data + (s + i) * x.ld + k0;
      const size_t present = s + i < x.count ? std::min({lanes, width - i, x.count - s - i}) : 0;
      for (size_t k = 0; k < depth; k += lanes) {
        const size_t lines = std::min(lanes, depth - k);
        vec square[lanes];
#pragma GCC unroll 16
        for (size_t r = 0; r < lanes; r++) {
          square[r] = r < present ? load_first(from + r * x.ld + k, lines) : vec{};
          __builtin_prefetch(from + r * x.ld + k + 4 * lanes);
        }
        transpose(square);
        float* to = strips + k * width + i;
        if (lines == lanes) {
#pragma GCC unroll 16
          for (size_t c = 0; c < lanes; c++) store(to + c * width, square[c]);
        } else {
          for (size_t c = 0; c < lines; c++) store(to + c * width, square[c]);
        }
      }
    }
}

// ---- one thread's part

constexpr size_t spare = 2;  // floats a row of A that pack() may run over
static_assert(round_up(tile_rows, lanes) <= tile_rows * (1 + spare));
constexpr size_t wide_group = 4 * tile_cols;
static_assert(panel_cols % wide_group == 0);

// Columns packed at a time. Where k is not contiguous memory runs across columns.
constexpr size_t group_of(const Operand& B) {
  return B.k_contiguous ? tile_cols : wide_group;
}

constexpr size_t short_depth = 128;

// Rows of a block, so that its A takes about the same memory at every depth that is not small.
constexpr size_t least_depth = 256;
constexpr size_t block_rows_at(size_t depth) {
  return block_rows * (matmul_slice / std::max(depth, least_depth));
}

// So many rows or columns of C are few, and where rows are read as they lie so many floats of the other operand, which
// stay in the cache. Of lines of k so many are read, of so many columns.
constexpr size_t few = 64, few_floats = 1 << 18, unpacked_lines = 32, unpacked_panel = 960;
static_assert(matmul_slice % unpacked_lines == 0);

static thread_local Buffer<float> workspace;

static constexpr size_t workspace_a(size_t block, size_t depth) {
  return round_up(block * (depth + spare) + lanes, lanes);
}

static void reserve_floats(size_t n) {
  if (workspace.size() >= n) return;
  workspace = {};  // the old one goes before the new one comes
  workspace = Buffer<float>(Device::cpu, n);
}

size_t workspace_floats(size_t M, size_t N, size_t K, bool accumulate) {
  const size_t depth = std::min(K, matmul_slice), wide = std::min(round_up(N, wide_group), panel_cols);
  const size_t rows = round_up(M, tile_rows), high = accumulate && K > matmul_slice ? std::min(rows, panel_rows) : 0;
  // (the most that a block takes at any depth: rows (depth + spare) with as many rows as block_rows_at() has)
  const size_t largest = workspace_a(block_rows, matmul_slice + (matmul_slice / least_depth - 1) * spare);
  const size_t larger = std::max(M, N), few_wide = round_up(std::min(few, larger), tile_cols);
  const size_t of_few = std::max(std::min(few_wide * K, few_floats) + few_wide * 2 * unpacked_rows,
                                 few_wide * (unpacked_lines + 2 * std::min(larger, unpacked_panel)));
  return std::max(of_few, std::min(workspace_a(rows, depth), largest) + wide * depth + high * wide);
}

void reserve_workspace(size_t M, size_t N, size_t K, bool accumulate) {
  reserve_floats(workspace_floats(M, N, K, accumulate));
}

// ---- a few rows or columns

// M rows of C from `row` on, their columns `cols`.
template <size_t M>
void compute_rows(float* C, size_t ldc, const Operand& A, const Operand& B, const float* bias, size_t row,
                  Interval cols, size_t K, bool accumulate) {
  for (size_t j = cols.begin; j < cols.end; j += lanes) {
    const size_t n = std::min(lanes, cols.end - j);
    vec total[M] = {};
    for (size_t k = 0; k < K; k += matmul_slice) {
      vec chain[M];
      row_dots(chain, B.data + j * B.ld + k, B.ld, n, lanes, A.data + row * A.ld + k, A.ld,
               std::min(matmul_slice, K - k));
      for (size_t m = 0; m < M; m++) total[m] = k ? total[m] + chain[m] : chain[m];
    }
    for (size_t m = 0; m < M; m++) put(C + (row + m) * ldc + j, total[m], n, accumulate, bias ? bias + j : nullptr);
  }
}

// A tile of A's rows, which are read as they lie, and of a packed strip of B: chains (rows, vecs vectors) that begin at
// 0 or go on from where they are. Meanwhile what lies `next` further on comes from memory: where A lies by rows those
// of the next tile, else lines of the next k.
template <size_t rows, size_t vecs, bool by_rows>
void unpacked_tile(float* chains, size_t ldchain, bool begin, const float* A, size_t lda, const float* b, size_t depth,
                   size_t next) {
  vec chain[rows][vecs];
#pragma GCC unroll 16
  for (size_t i = 0; i < rows; i++)
#pragma GCC unroll 2
    for (size_t j = 0; j < vecs; j++) chain[i][j] = begin ? vec{} : load(chains + i * ldchain + j * lanes);
  const auto link = [&](size_t k) __attribute__((always_inline)) {
    vec bk[vecs];
#pragma GCC unroll 2
    for (size_t j = 0; j < vecs; j++) bk[j] = load_once(b + j * lanes);
    b += vecs * lanes;
    if (!by_rows) __builtin_prefetch(A + k * lda + (rows - 1) + next, 0, 2);
#pragma GCC unroll 16
    for (size_t i = 0; i < rows; i++) {
      const vec ai = broadcast(A[by_rows ? i * lda + k : k * lda + i]);
#pragma GCC unroll 2
      for (size_t j = 0; j < vecs; j++) chain[i][j] = fma(ai, bk[j], chain[i][j]);
    }
  };
  size_t k = 0;
  for (; by_rows && k + cache_line <= depth; k += cache_line)
#pragma GCC unroll 4
    for (size_t quarter = 0; quarter < 4; quarter++) {
#pragma GCC unroll 4
      for (size_t i = quarter * unpacked_rows / 4; i < (quarter + 1) * unpacked_rows / 4; i++)
        __builtin_prefetch(A + i * lda + k + next, 0, 2);
#pragma GCC unroll 4
      for (size_t n = 0; n < cache_line / 4; n++) link(k + quarter * (cache_line / 4) + n);
    }
  for (; k < depth; k++) link(k);
#pragma GCC unroll 16
  for (size_t i = 0; i < rows; i++)
#pragma GCC unroll 2
    for (size_t j = 0; j < vecs; j++) store(chains + i * ldchain + j * lanes, chain[i][j]);
}

template <size_t vecs, bool by_rows>
auto unpacked_tile_of(size_t rows) {
  return by_tile_rows<unpacked_rows>(rows, []<size_t r>() { return unpacked_tile<r, vecs, by_rows>; });
}

// C[rows][cols], a few columns of the product of A and B. `transposed`, it is C[cols][rows]: a few rows of the product
// of B and A, in which the two exchange their parts.
//
// Memory is read in the order in which it lies. Rows of A are read to their ends, tile by tile. Of lines of k, which
// all rows share, 32 are read before the next ones; meanwhile chains wait in the cache.
template <bool by_rows>
void compute_few(float* C, size_t ldc, const Operand& A, const Operand& B, const float* bias, Interval rows,
                 Interval cols, size_t K, bool accumulate, bool transposed) {
  const size_t width = round_up(cols.size(), tile_cols), panel = by_rows ? unpacked_rows : unpacked_panel;
  const size_t most = by_rows ? matmul_slice : unpacked_lines, high = std::min(panel, rows.size());
  const size_t packed = by_rows ? K : unpacked_lines;  // k of B at once
  reserve_floats(width * (packed + 2 * high));
  float *const strips = workspace.data(), *const chains = strips + width * packed, *totals = chains + width * high;
  const auto pack_strips = [&](size_t k, size_t depth) {
    for (size_t j = cols.begin; j < cols.end; j += tile_cols) {
      const size_t n = std::min(tile_cols, cols.end - j);
      pack(strips + (j - cols.begin) * packed, 0, round_up(n, lanes), B, j, n, k, depth);
    }
  };
  if (by_rows) pack_strips(0, K);
  for (size_t i0 = rows.begin; i0 < rows.end; i0 += panel) {
    const size_t i1 = std::min(i0 + panel, rows.end);
    for (size_t k = 0; k == 0 || k < K; k += most) {
      const size_t depth = std::min(most, K - k);
      if (!by_rows) pack_strips(k, depth);
      for (size_t i = i0, tall; i < i1; i += tall) {
        tall = next_rows(i1 - i, unpacked_rows);
        const float* const a = A.data + (by_rows ? i * A.ld + k : k * A.ld + i);
        const size_t next = by_rows ? (i + tall < rows.end ? tall * A.ld : 0) : k + most < K ? most * A.ld : 0;
        for (size_t j = 0; j < width; j += tile_cols) {
          const bool wide = cols.size() - j > lanes;
          const auto compute = wide ? unpacked_tile_of<tile_vecs, by_rows>(tall) : unpacked_tile_of<1, by_rows>(tall);
          compute(chains + (i - i0) * width + j, width, k % matmul_slice == 0, a, A.ld,
                  strips + j * packed + (by_rows ? k * (wide ? tile_cols : lanes) : 0), depth, j == 0 ? next : 0);
        }
      }
      if (K > matmul_slice && ((k + depth) % matmul_slice == 0 || k + depth == K))
        for (size_t n = 0; n < (i1 - i0) * width; n += lanes)
          store(totals + n, k < matmul_slice ? load(chains + n) : load(totals + n) + load(chains + n));
    }
    const float* const sums = K > matmul_slice ? totals : chains;
    const auto to = [&](size_t i, size_t j, vec v, size_t n) {
      put(C + i * ldc + j, v, n, accumulate, bias ? bias + j : nullptr);
    };
    for (size_t j = cols.begin; j < cols.end; j += lanes)
      for (size_t i = i0; i < i1; i += lanes) {
        const size_t m = std::min(lanes, i1 - i), n = std::min(lanes, cols.end - j);
        vec square[lanes];
        for (size_t r = 0; r < lanes; r++)
          square[r] = r < m ? load(sums + (i - i0 + r) * width + (j - cols.begin)) : vec{};
        if (transposed) transpose(square);
        for (size_t r = 0; r < (transposed ? n : m); r++)
          transposed ? to(j + r, i, square[r], m) : to(i + r, j, square[r], n);
      }
  }
}

void compute_part(float* C, size_t ldc, const Operand& A, const Operand& B, const float* bias, Interval rows,
                  Interval cols, size_t K, bool accumulate) {
  if (rows.size() <= 4 && A.k_contiguous && B.k_contiguous) {
    const auto compute = rows.size() == 4   ? compute_rows<4>
                         : rows.size() == 3 ? compute_rows<3>
                         : rows.size() == 2 ? compute_rows<2>
                                            : compute_rows<1>;
    if (rows.size()) compute(C, ldc, A, B, bias, rows.begin, cols, K, accumulate);
    return;
  }
  const auto read_unpacked = [&](const Operand& x, const Operand& packed, Interval i, Interval j, bool transposed) {
    const auto compute = x.k_contiguous ? compute_few<true> : compute_few<false>;
    compute(C, ldc, x, packed, bias, i, j, K, accumulate, transposed);
  };
  const auto fits = [&](size_t n) { return n <= few && round_up(n, tile_cols) * K <= few_floats; };
  // Lines of k make up for the chains' way to the cache and back where a row's tiles are neither half empty nor two.
  if (B.k_contiguous ? fits(rows.size()) : rows.size() > half_rows && rows.size() <= tile_cols)
    return read_unpacked(B, A, cols, rows, true);
  if (A.k_contiguous ? fits(cols.size()) : cols.size() <= few) return read_unpacked(A, B, rows, cols, false);
  const size_t group = group_of(B);
  const size_t slices = std::max<size_t>(1, ceil_div(K, matmul_slice)), deepest = std::min(K, matmul_slice);
  const bool totals = accumulate && slices > 1;  // C waits for the sum of its slices, which grows beside it
  const size_t high = totals ? piece(rows.size(), panel_rows, tile_rows) : rows.size();
  // Where C takes longer to come than its tiles to be computed, they follow each other along its rows.
  const bool along_rows = accumulate && deepest < short_depth;
  const size_t wide = piece(cols.size(), panel_cols, group);
  const size_t block = along_rows ? tile_rows : piece(high, block_rows_at(deepest), tile_rows);

  const size_t a_size = workspace_a(block, deepest), b_size = wide * deepest;
  reserve_floats(a_size + b_size + (totals ? high * wide : 0));
  float *a_strips = workspace.data(), *b_strips = a_strips + a_size, *total = b_strips + b_size;

  for (size_t j0 = cols.begin; j0 < cols.end; j0 += wide)
    for (size_t i0 = rows.begin; i0 < rows.end; i0 += high)
      for (size_t slice = 0; slice < slices; slice++) {
        const size_t i1 = std::min(i0 + high, rows.end), j1 = std::min(j0 + wide, cols.end);
        const size_t k0 = slice * matmul_slice, depth = std::min(matmul_slice, K - k0);
        const bool to_total = totals && slice + 1 < slices;
        for (size_t m0 = i0; m0 < i1; m0 += block) {
          const size_t m1 = std::min(m0 + block, i1);
          auto a_strip = [&](size_t m) { return a_strips + (m - m0) * (depth + spare); };
          size_t m = m0;
          while (next_rows(m1 - m) == tile_rows) m += tile_rows;
          pack(a_strips, tile_rows * (depth + spare), tile_rows, A, m0, m - m0, k0, depth);
          for (size_t n; m < m1; m += n) {
            n = next_rows(m1 - m);
            pack(a_strip(m), 0, n, A, m, n, k0, depth);
          }
          const size_t tiles = std::max<size_t>(1, (m1 - m0) / tile_rows);
          const bool packed = m0 > i0;
          for (size_t n0 = j0, n1; n0 < j1; n0 = n1) {
            // B is packed, a group at a time, when the first block wants it, and kept if there are others.
            n1 = packed ? j1 : std::min(n0 + group, j1);
            float* b_group = b_strips + (i1 - i0 > block ? n0 - j0 : 0) * depth;
            const size_t whole = (n1 - n0) / tile_cols * tile_cols, rest = n1 - n0 - whole;
            const bool tiles_pack = !packed && !B.k_contiguous && depth >= short_depth;
            if (!packed) {
              if (!tiles_pack) pack(b_group, tile_cols * depth, tile_cols, B, n0, whole, k0, depth);
              if (rest) pack(b_group + whole * depth, 0, round_up(rest, lanes), B, n0 + whole, rest, k0, depth);
            }
            // While this group is multiplied, the next one of this slice comes from memory.
            Ahead ahead = {};
            const size_t group_tiles = tiles * ceil_div(n1 - n0, tile_cols);
            if (!packed && n1 < j1)
              ahead = B.k_contiguous ? ahead_along_k(B.data + n1 * B.ld + k0, B.ld, tile_cols, group_tiles)
                                     : ahead_across_k(B.data + k0 * B.ld + n1, B.ld,
                                                      std::countr_zero(wide_group / cache_line), depth, group_tiles);
            size_t done = 0;  // tiles
            for (size_t n = n0; n < n1; n += tile_cols) {
              const size_t width = std::min(tile_cols, n1 - n);
              float* b = b_group + (n - n0) * depth;
              if (packed) {  // then it is the next strip that comes nearer
                ahead = ahead_across_k(b + tile_cols * depth, tile_cols, tile_cols > cache_line, depth, tiles);
                done = 0;
              }
              float *c = C + m0 * ldc + n, *sum = total + (m0 - i0) * wide + (n - j0);
              Destination to = {.C = to_total ? sum : c,
                                .ldc = to_total ? wide : ldc,
                                .sum = slice == 0 ? nullptr
                                       : totals   ? sum
                                                  : c,
                                .ldsum = totals ? wide : ldc,
                                .accumulate = accumulate && !to_total,
                                .bias = bias && slice + 1 == slices ? bias + n : nullptr,
                                .cols = width};
              for (size_t m = m0, tall; m < m1; m += tall, done++) {
                tall = next_rows(m1 - m);
                to.soon = along_rows ? to.C + tile_cols : to.C;
                const Strips strips = {a_strip(m), b, B.data + k0 * B.ld + n, B.ld};
                const bool first = tiles_pack && m == m0 && width == tile_cols;
                const auto compute = first           ? tile_of<tile_vecs, true>(tall)
                                     : width > lanes ? tile_of<tile_vecs, false>(tall)
                                                     : tile_of<1, false>(tall);
                compute(to, strips, ahead, done, depth);
                to.C += tall * to.ldc;
                if (to.sum) to.sum += tall * to.ldsum;
              }
            }
          }
        }
      }
}

Cut least_work_cut(size_t M, size_t N, size_t parts) {
  auto share = [](size_t n, size_t ways, size_t unit) { return std::min(n, round_up(ceil_div(n, ways), unit)); };
  Cut best = {M, N};
  size_t least = SIZE_MAX;
  for (size_t down = 1; down <= parts; down++) {
    const size_t r = share(M, down, tile_rows), c = share(N, parts / down, tile_cols), work = part_work(r, c, 1);
    if (work < least) least = work, best = {r, c};
  }
  return best;
}

// One part a thread; a thread is worth waking for half a million fmas. Of a few rows a number of B is read for as long
// as 8 take.
static Cut cut_among_threads(size_t M, size_t N, size_t K) {
  const size_t most = std::max<size_t>(1, (std::max<size_t>(M, 8) * N * K) >> 19);
  return least_work_cut(M, N, std::min<size_t>(omp_get_max_threads(), most));
}

}  // namespace tuned_matmul

size_t matmul_cpu_workspace(size_t M, size_t N, size_t K, Accumulate accumulate) {
  const tuned_matmul::Cut cut = tuned_matmul::cut_among_threads(M, N, K);
  return tuned_matmul::workspace_floats(cut.rows, cut.cols, K, accumulate == Accumulate::yes) * sizeof(float);
}

void matmul_cpu(Matrix<float> C, Matrix<const float> A, Matrix<const float> B, size_t M, size_t N, size_t K,
                Layout layout, Accumulate accumulate, const float* bias) {
  using namespace tuned_matmul;
  if (M == 0 || N == 0) return;
  const Operand a{A.data, A.ld, M, layout != Layout::tn}, b{B.data, B.ld, N, layout == Layout::nt};

  const Cut cut = cut_among_threads(M, N, K);
  const size_t down = ceil_div(M, cut.rows), across = ceil_div(N, cut.cols);
#pragma omp parallel for schedule(static, 1) if (down * across > 1)
  for (size_t part = 0; part < down * across; part++) {
    const size_t i = part / across * cut.rows, j = part % across * cut.cols;
    compute_part(C.data, C.ld, a, b, bias, {i, std::min(i + cut.rows, M)}, {j, std::min(j + cut.cols, N)}, K,
                 accumulate == Accumulate::yes);
  }
}

void matmul_cpu(float* C, const float* A, const float* B, size_t M, size_t N, size_t K, Layout layout,
                Accumulate accumulate, const float* bias) {
  matmul_cpu({C, N}, {A, packed_lda(M, K, layout)}, {B, packed_ldb(N, K, layout)}, M, N, K, layout, accumulate, bias);
}

}  // namespace gated
