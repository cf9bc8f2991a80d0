// matmul_bf16_tile: one tile of a product of bf16 matrices on tensor cores, by one block. The order of
// a sum and the layouts stand in kernels/bf16/matmul_bf16.cu.
//
// How a block computes a tile of C, from the outside in:
//
//   block   128 x 128 of C, 256 threads. It walks along k in strips of 32.
//   stages  three pairs of strips in shared memory. While one pair is multiplied, the copies of the next two are under
//           way (cp.async), so that the latency of memory is hidden behind two strips of arithmetic:
//
//              pair       0           1           2           0           1
//              strip      0           1           2           3           4       ...
//                       wait 0      wait 1      wait 2
//                       | barrier | | barrier | | barrier |
//                       copy 2      copy 3      copy 4
//                       multiply 0  multiply 1  multiply 2
//
//           One barrier a strip: it says that every thread's copies of strip s are there, and that every thread has
//           multiplied strip s-1, whose pair the copy of strip s+2 overwrites.
//   warp    64 x 32 of the tile; the eight warps stand as 2 x 4:
//
//                   0       32      64      96     128
//                 0 +-------+-------+-------+-------+
//                   | warp 0|   1   |   2   |   3   |
//                64 +-------+-------+-------+-------+
//                   |   4   |   5   |   6   |   7   |
//               128 +-------+-------+-------+-------+
//
//   lane    4 x 4 tiles of 16 x 8, of each four sums, two neighbours in each of two rows (core/mma.cuh): 64 registers.
//           For 16 k it loads four tiles of A and four of B with six ldmatrix and multiplies each with each: 16
//           instructions.
//
// A strip lies in shared memory as it lies in memory, so both kinds of operands are copied 16 bytes at a time; one in
// which memory does not run along k is transposed by ldmatrix on the way to the registers:
//
//   k along memory     128 lines of 32 k:  4 chunks of 8 elements a line
//   rows along memory  32 lines of 128 rows: 16 chunks a line
//
// ldmatrix reads eight lines at the same chunk. Were chunks stored where they belong, the eight would meet in the same
// banks: so chunk c of line l stands at c xor (a number made of l) instead, which spreads them over all 32 banks.

#pragma once
#include "core/mma.cuh"
#include "core/thread_sums.cuh"
#include "kernels/bf16/matmul_bf16.h"
#include "kernels/bf16/matmul_wgmma.h"

namespace gated {

constexpr int mma_tile_rows = 128, mma_strip_k = 32, mma_stages = 3, mma_chunk = 8;  // of bf16; a chunk is 16 bytes
constexpr int mma_threads = 256, mma_strip_elements = mma_tile_rows * mma_strip_k;
constexpr int mma_blocks = 2;  // side by side on a multiprocessor: the registers of 512 threads with 128 each
constexpr size_t mma_shared = size_t{mma_stages} * 2 * mma_strip_elements * sizeof(bf16);
constexpr size_t mma_most_k = size_t{1} << 35;  // strips are counted in ints
static_assert(matmul_bf16_slice % mma_strip_k == 0, "a slice is a whole number of strips");
static_assert(joined_unit == mma_strip_k, "the factors of a sum begin with a strip");

// What follows the first A, B and K where several products are summed (matmul_bf16_joined()).
struct MoreFactors {
  MmaFactors at[most_factors - 1];
  int count;
};

// Do the lines of a matrix begin on boundaries of a chunk?
HD bool mma_aligned(Matrix<const bf16> m) {
  return uintptr_t(m.data) % 16 == 0 && m.ld % mma_chunk == 0;
}

// One operand: 128 rows of it (of A; columns of B) and 32 k at a time, as one thread copies and reads it. What a strip
// does not change is worked out once: a strip then costs a thread little more than its copies and its ldmatrix.
template <bool k_along_memory, bool aligned>
class MmaStrip {
 public:
  // row: the first one in the tile that the thread's warp multiplies. Of A or of B: which lane names which line to
  // ldmatrix, so that the registers of an instruction's operand are neighbours.
  __device__ MmaStrip(int row, bool of_a) {
    const int lane = threadIdx.x % 32, low = lane % 8, third = lane / 8 % 2, fourth = lane / 16;
    const int row8 = of_a ? third : fourth, k8 = of_a ? fourth : third;  // 8x8 tile lane/8: its place among four
    read_ = k_along_memory ? place(row + 8 * row8 + low, k8) : place(8 * k8 + low, row / mma_chunk + row8);
    if (aligned) keep_in_register(read_);
  }

  // From here on strips are those of this matrix, of which the tile has the rows from row0 on, before row `rows`.
  __device__ void begin(Matrix<const bf16> matrix, size_t row0, size_t rows) {
    ld_ = matrix.ld;
    on_boundaries_ = aligned || mma_aligned(matrix);
    const size_t row = row0 + (k_along_memory ? line() : chunk() * mma_chunk);
    from_ = matrix.data + (k_along_memory ? row * ld_ + chunk() * mma_chunk : line() * ld_ + row);
    rows_ = row >= rows ? 0 : rows - row < mma_tile_rows ? int(rows - row) : mma_tile_rows;
  }

  // Does the matrix end inside the thread's chunks, or may it, of a strip of which `left` k are there?
  __device__ bool ends_inside(size_t left) const {
    return left < mma_strip_k || (!k_along_memory && rows_ % mma_chunk != 0);
  }

  // Asks for the next strip, of which `left` k are in the matrix. A thread owns two chunks, half of the strip's lines
  // apart; what is past the matrix is 0. in_parts: ends_inside(); a chunk that is there or not costs less.
  template <bool in_parts>
  __device__ void copy(bf16* shared, size_t left, AsyncCopies& copies) {
    bf16* const to = shared + place(line(), chunk());
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int apart = half * lines / 2;
      bf16* const chunk_to = to + apart * chunks * mma_chunk;
      const bf16* const chunk_from = from_ + apart * ld_;  // where none of it is there, it is not looked at
      int count = rows_ > (k_along_memory ? apart : 0) ? mma_chunk : 0;
      if (in_parts) {
        const int inside = int(left < mma_strip_k ? left : mma_strip_k);  // of a strip's k
        const int of_chunk = k_along_memory ? inside - chunk() * mma_chunk : inside > line() + apart ? rows_ : 0;
        count = of_chunk < count ? (of_chunk > 0 ? of_chunk : 0) : count;
      }
      if (aligned || on_boundaries_) {
        copies.copy16(chunk_to, chunk_from, 2 * unsigned(count));
      } else {
        for (int j = 0; j < mma_chunk; j++) chunk_to[j] = j < count ? chunk_from[j] : bf16();
      }
    }
    from_ += k_along_memory ? mma_strip_k : mma_strip_k * ld_;
  }

  // An operand's tiles of 8x8 for 16 rows, `rows` below the warp's first, and 16 k from k on, in the order of its
  // registers: of A by k and then by row, of B, which are two operands, by row and then by k. A step of 16 k, or of 16
  // rows, changes bits of a chunk's number that the lane's own do not reach: so it is an xor, as the place is.
  __device__ void read(uint32_t (&x)[4], const bf16* shared, int rows, int k) const {
    if constexpr (k_along_memory)
      ldmatrix<false>(x, shared + (read_ ^ k) + rows * mma_strip_k);
    else
      ldmatrix<true>(x, shared + (read_ ^ rows) + k * mma_tile_rows);
  }

 private:
  static constexpr int chunks = (k_along_memory ? mma_strip_k : mma_tile_rows) / mma_chunk;  // of a line
  static constexpr int lines = k_along_memory ? mma_tile_rows : mma_strip_k;
  static_assert(lines * chunks == 2 * mma_threads);

  // Where chunk c of line l stands in shared memory. Eight neighbouring lines of 4 chunks: two lines fill the banks
  // once, so the pair's number is mixed in; a line of 16 chunks fills them twice, so its own number is.
  __device__ static int place(int line, int c) {
    return (line * chunks + (c ^ (k_along_memory ? line / 2 % 4 : line % 8))) * mma_chunk;
  }
  __device__ static int line() {
    return int(threadIdx.x) / chunks;
  }
  __device__ static int chunk() {
    return int(threadIdx.x) % chunks;
  }

  int read_, rows_;   // the place of the lane's line for ldmatrix; rows from the thread's first chunk on, up to 128
  const bf16* from_;  // that chunk, of the next strip
  size_t ld_;
  bool on_boundaries_;
};

// What a block works on: rows from m0 and columns from n0 of C, 128 of each where they come before m_end and n_end, and
// k from 0 to K. C, A, B, bias and those of `activated` point to their first element, wherever the tile is. totals:
// where there are several slices, a SliceTotal for each tile, of which `total` is this one's.
template <class Out>
struct MmaBlock {
  Matrix<Out> C;
  float* totals;
  size_t total;
  Matrix<const bf16> A, B;
  const float* bias;  // or null
  size_t m0, m_end, n0, n_end, K;
  MoreFactors more;  // in nn; k from 0 to K is then that of A and B
  size_t depth;      // K, or that of all factors
  Accumulate accumulate;
  Activated activated;
};

// In tn, where slices go side by side: a block has this one alone, and C is the first of as many matrices (M, C.ld).
template <class Out>
__device__ void take_slice(MmaBlock<Out>& block, size_t slice) {
  const size_t k = slice * matmul_bf16_slice;
  block.depth = block.K = block.K - k < matmul_bf16_slice ? block.K - k : matmul_bf16_slice;
  block.A.data += k * block.A.ld;
  block.B.data += k * block.B.ld;
  block.C.data += slice * block.m_end * block.C.ld;
}

// What the slices of a tile that are done sum to.
constexpr int mma_sums = mma_tile_rows * mma_tile_rows / mma_threads;  // of a thread
using SliceTotal = ThreadSums<mma_sums, mma_threads>;

// ---- the end of a tile
//
// A lane's sums are pairs of neighbours in many rows: stored from there, each store of a warp would touch eight rows.
// So they go through shared memory, where the strips are no longer needed, half a tile at a time, as floats:
//
//   every warp lays the upper half of its 64 x 32 down      rows 0 .. 31 and 64 .. 95 of the tile
//   barrier
//   every warp takes whole rows: lane i the four neighbours 4i .. 4i+3, and stores them with bias and activation
//   barrier
//   the same with the lower halves                          rows 32 .. 63 and 96 .. 127
//
// Halves of every warp, and not first those of four warps: registers are needed by what comes after, and half of the
// sums are out of them then. Rows lie 136 floats apart: the four rows in which half a warp lays its pairs down, 8 bytes
// each, are in banks of their own.
constexpr int mma_end_rows = mma_tile_rows / 2, mma_end_pitch = mma_tile_rows + 8;
static_assert(mma_end_rows * mma_end_pitch * sizeof(float) <= mma_shared);

// Do all rows of a matrix begin on boundaries of four elements?
template <class T>
__device__ bool rows_on_quads(const T* data, size_t ld) {
  return uintptr_t(data) % (4 * sizeof(T)) == 0 && ld % 4 == 0;
}

// May end_quads() take whole quads wherever they lie inside the matrix?
template <class Out>
__device__ bool all_on_quads(const MmaBlock<Out>& block) {
  const Activated& a = block.activated;
  return rows_on_quads(block.C.data, block.C.ld) && rows_on_quads(block.bias, 4) && rows_on_quads(a.y, block.C.ld) &&
         rows_on_quads(a.g, block.C.ld) && rows_on_quads(a.u, block.C.ld) && rows_on_quads(a.dg, block.C.ld);
}

// Four neighbours in each of `count` rows of C, m, m + apart, ..., from column n on; x: their sums over all slices.
// whole: all of them are inside, and all_on_quads(). Then no branch parts one row's arithmetic from another's, and
// loads are on their way together.
template <Layout layout, bool whole, int count, class Out>
__device__ void end_quads(const MmaBlock<Out>& block, size_t m, size_t apart, size_t n, Quad (&x)[count]) {
  keep_in_register(n);  // (it ends in zeros)
  const bool quads = whole || rows_on_quads(block.C.data, block.C.ld);
  const auto load = [&](const auto* data, size_t ld, int i, bool aligned) {
    const auto* const row = data + (m + i * apart) * ld;
    return whole ? load_four(row + n) : load_quad_inside(row, n, block.n_end, aligned);
  };
  const auto add_to = [&](const Quad(&y)[count]) {
    for (int i = 0; i < count; i++)
      for (int k = 0; k < 4; k++) x[i].v[k] = y[i].v[k] + x[i].v[k];
  };
  const auto store = [&](auto* data, const Quad(&y)[count], bool aligned) {
    for (int i = 0; i < count; i++) {
      auto* const row = data + (m + i * apart) * block.C.ld;
      whole ? store_four(row + n, y[i]) : store_quad_inside(row, n, block.n_end, y[i], aligned);
    }
  };
  Quad y[count];
  if (block.accumulate == Accumulate::yes) {
    for (int i = 0; i < count; i++) y[i] = load(block.C.data, block.C.ld, i, quads);
    add_to(y);
  } else if (block.bias) {
    y[0] = whole ? load_four(block.bias + n) : load_quad<false>(block.bias, n, block.n_end);
    for (int i = 1; i < count; i++) y[i] = y[0];
    add_to(y);
  }
  const Activated& a = block.activated;
  const bool on_quads = whole || all_on_quads(block);
  if constexpr (layout == Layout::nn && storage_of<Out> == Storage::bf16) {
    if (a.u) {
      Quad u[count];
      for (int i = 0; i < count; i++) u[i] = load(a.u, block.C.ld, i, on_quads);
      for (int i = 0; i < count; i++) x[i] = stored_quad<Out>(x[i]);
      if (a.g) {
        for (int i = 0; i < count; i++) y[i] = load(a.g, block.C.ld, i, on_quads);
        with_known_activation<of_glu>(a.act, [&](auto act) {
#pragma unroll  // (a loop over `count` that were not unrolled would keep these in memory)
          for (int i = 0; i < count; i++)
            for (int k = 0; k < 4; k++) {
              const float dy = x[i].v[k], g = y[i].v[k];
              y[i].v[k] = dy * u[i].v[k] * activation_slope(decltype(act)::value, g);
              x[i].v[k] = dy * activation_value(decltype(act)::value, g);
            }
        });
        store(a.dg, y, on_quads);
      } else {
        with_known_activation<of_plain>(a.act, [&](auto act) {
#pragma unroll
          for (int i = 0; i < count; i++)
            for (int k = 0; k < 4; k++) x[i].v[k] = x[i].v[k] * activation_slope(decltype(act)::value, u[i].v[k]);
        });
      }
    }
  }
  store(block.C.data, x, quads);
  if constexpr (layout == Layout::nt && storage_of<Out> == Storage::bf16) {
    if (!a.y) return;
    for (int i = 0; i < count; i++) x[i] = stored_quad<Out>(x[i]);
    for (int i = 0; i < count; i++) y[i] = a.g ? load(a.g, block.C.ld, i, on_quads) : x[i];
    with_known_activation<of_glu | of_plain>(a.act, [&](auto act) {
      for (int i = 0; i < count; i++)
        for (int k = 0; k < 4; k++) {
          y[i].v[k] = activation_value(decltype(act)::value, y[i].v[k]);
          if (a.g) y[i].v[k] = y[i].v[k] * x[i].v[k];
        }
    });
    store(a.y, y, on_quads);
  }
}

// shared: mma_shared bytes.
template <Layout layout, bool aligned, class Out>
__device__ __forceinline__ void multiply_tile(const MmaBlock<Out>& block, bf16* shared) {
  using StripA = MmaStrip<layout != Layout::tn, aligned>;
  using StripB = MmaStrip<layout == Layout::nt, aligned>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = warp / 4 * 64, column = warp % 4 * 32;
  const int strips = int(ceil_div(block.depth, mma_strip_k));

  // Of several products a thread needs other addresses from some strip on. They stand in shared memory: registers are
  // for sums. `joined` is the number of the factors that come next, `left` the k of the present ones that no strip has.
  constexpr bool joins = layout == Layout::nn;
  STATIC_SHARED(MmaFactors, factors, [joins ? most_factors : 1]);
  int joined = 1;
  if constexpr (joins) {
    if (threadIdx.x == 0) {
      factors[0] = {block.A, block.B, block.K};
#pragma unroll
      for (int i = 0; i < int(most_factors) - 1; i++)
        if (i < block.more.count) factors[i + 1] = block.more.at[i];
    }
    __syncthreads();  // they are there
  }

  AsyncCopies copies;
  StripA strip_a(row, true);
  StripB strip_b(column, false);
  size_t left;
  const auto begin = [&](const MmaFactors& f) {
    strip_a.begin(f.A, block.m0, block.m_end);
    strip_b.begin(f.B, block.n0, block.n_end);
    left = f.K;
  };
  begin({block.A, block.B, block.K});
  const auto pair = [&](int stage) { return shared + stage * 2 * mma_strip_elements; };
  const auto copy = [&](int s, int stage) {
    if (s < strips) {
      if constexpr (joins)
        if (left == 0) begin(factors[joined++]);
      bf16 *const a = pair(stage), *const b = a + mma_strip_elements;
      if (!aligned || strip_a.ends_inside(left) || strip_b.ends_inside(left)) {
        strip_a.template copy<true>(a, left, copies);
        strip_b.template copy<true>(b, left, copies);
      } else {
        strip_a.template copy<false>(a, left, copies);
        strip_b.template copy<false>(b, left, copies);
      }
      left = left < mma_strip_k ? 0 : left - mma_strip_k;
    }
    copies.commit();  // an empty group where there is no strip, so that groups count strips
  };
  copy(0, 0);
  copy(1, 1);

  MmaC sum[4][4] = {};
  // f(two neighbours of this lane's sums, their row in the tile, the first one's column), of tiles `first` to `last` -
  // 1 of 16 rows
  const auto for_every_pair = [&](int first, int last, auto f) {
#pragma unroll
    for (int i = first; i < last; i++)
#pragma unroll
      for (int j = 0; j < 4; j++)
#pragma unroll
        for (int e = 0; e < 4; e += 2)
          f(&sum[i][j].x[e], row + 16 * i + lane / 4 + e / 2 * 8, column + 8 * j + lane % 4 * 2);
  };
  constexpr int strips_of_slice = matmul_bf16_slice / mma_strip_k;
  for (int s = 0, stage = 0; s < strips; s++, stage = stage == mma_stages - 1 ? 0 : stage + 1) {
    copies.template wait<1>();  // all but strip s+1
    __syncthreads();
    copy(s + 2, stage == 0 ? mma_stages - 1 : stage - 1);
    const bf16 *a = pair(stage), *b = a + mma_strip_elements;
#pragma unroll
    for (int k = 0; k < mma_strip_k; k += int(mma_depth)) {
      MmaA fragments_a[4];
      MmaB fragments_b[4];
#pragma unroll
      for (int i = 0; i < 4; i++) strip_a.read(fragments_a[i].x, a, 16 * i, k);
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        uint32_t x[4];
        strip_b.read(x, b, 8 * j, k);
        fragments_b[j] = {{x[0], x[1]}};
        fragments_b[j + 1] = {{x[2], x[3]}};
      }
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) mma(sum[i][j], fragments_a[i], fragments_b[j]);
    }
    const bool last = s + 1 == strips;
    if (strips > strips_of_slice && ((s + 1) % strips_of_slice == 0 || last)) {  // a slice of several ends
      const SliceTotal total(block.totals, block.total);
      const auto four = [&](int q) { return sum[q / 4][q % 4].x; };
      if (s >= strips_of_slice) total.template add_to<4>(four);
      if (!last) {
        total.keep(four);
        for_every_pair(0, 4, [](float* x, int, int) { x[0] = x[1] = 0; });
      }
    }
  }

  float* const staged = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int half = 0; half < 2; half++) {
    __syncthreads();  // the last strip is multiplied, or the first half is stored
    for_every_pair(2 * half, 2 * half + 2, [&](const float* x, int r, int c) {
      *reinterpret_cast<float2*>(staged + (r / 64 * 32 + r % 32) * mma_end_pitch + c) = {x[0], x[1]};
    });
    __syncthreads();
#pragma unroll 1
    for (int r = warp; r < mma_end_rows; r += mma_threads / 32) {
      const size_t m = block.m0 + r / 32 * 64 + half * 32 + r % 32, n = block.n0 + 4 * lane;
      if (m < block.m_end && n < block.n_end) {
        Quad x[1] = {load_four(staged + r * mma_end_pitch + 4 * lane)};
        end_quads<layout, false>(block, m, 0, n, x);
      }
    }
  }
}

// ---- for launchers

// Floats of scratch for so many rows of tiles of a C with N columns, by either kernel.
inline size_t mma_totals(size_t tiles, size_t N, size_t K) {
  const size_t all = tiles * ceil_div(N, mma_tile_rows);
  return K <= matmul_bf16_slice ? 0 : std::max(all * SliceTotal::size, matmul_wgmma_totals());
}

// Do all lines begin on boundaries of a chunk?
inline bool mma_aligned(Matrix<const bf16> A, Matrix<const bf16> B, const MoreFactors& more) {
  bool aligned = mma_aligned(A) && mma_aligned(B);
  for (int i = 0; i < more.count; i++) aligned = aligned && mma_aligned(more.at[i].A) && mma_aligned(more.at[i].B);
  return aligned;
}

// All but the first of several factors.
inline MoreFactors more_factors(const char* operation, std::span<const MmaFactors> factors) {
  require(!factors.empty() && factors.size() <= most_factors, "%s: %zu products, expected 1 to %zu", operation,
          factors.size(), most_factors);
  for (const MmaFactors& f : factors) require(f.K > 0, "%s: a product over nothing", operation);
  MoreFactors more = {};
  for (; more.count < int(factors.size()) - 1; more.count++) more.at[more.count] = factors[size_t(more.count) + 1];
  return more;
}

}  // namespace gated
