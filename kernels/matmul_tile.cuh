// matmul_tile: one tile of a product of matrices, by one block. Included by kernels/matmul.cu, where the order of a sum
// and the layouts stand, and by kernels/grouped_matmul.cu.
//
// One thread an element would read 2K numbers for K multiply-adds, and memory would be the limit. So a block owns a
// tile of C, BM by BN, and walks along k in strips of 16. At each step it brings the strip of A (BM rows) and of B (BN
// columns) into shared memory once, and every number there serves a whole row or column of the tile:
//
//                                      N
//                         +-------------------------+
//                         |        |  B   |         |    of B: BN columns, 16 of k at a time
//                       K |        |strip |         |
//                         |        |  |   |         |
//                         |        |  v   |         |
//                         +-------------------------+
//            K
//      +-----------+      +-------------------------+
//      |           |      |        .      .         |
//      |-----------|      |........+------+         |
//    M | A strip ->|      |        | tile |         |    of C: BM x BN, one block
//      |-----------|      |........+------+         |
//      |           |      |                         |
//      +-----------+      +-------------------------+
//
// An element of A is read from memory N/BN times instead of N times, one of B M/BM times.
//
// From shared memory to registers the same idea once more: a thread owns TM by TN elements of the tile, and for every k
// reads TM numbers of A and TN of B for TM*TN multiply-adds. Its elements are squares of 4 x 4, spread over the tile,
// so that neighbouring threads read neighbouring quads. In the large tile (128 x 128, 256 threads as 16 x 16, 8 x 8
// elements each) the thread at ty 1, tx 2 owns the four squares marked #; for every k it reads two quads of A and two
// of B, and multiplies each with each:
//
//                   columns 0..63, in fours:     columns 64..127, in fours:
//               tx  0   1   2   3  ...  15        0   1   2   3  ...  15
//                 +---+---+---+---+---+---+     +---+---+---+---+---+---+
//          ty  0  |   |   |   |   |   |   |     |   |   |   |   |   |   |
//    rows      1  |   |   | # |   |   |   | <-- |   |   | # |   |   |   | <-- one quad of A: rows 4..7 of the tile
//    0..63    ... |   |   |   |   |   |   |     |   |   |   |   |   |   |
//             15  |   |   |   |   |   |   |     |   |   |   |   |   |   |
//                 +---+---+---+---+---+---+     +---+---+---+---+---+---+
//          ty  0  |   |   |   |   |   |   |     |   |   |   |   |   |   |
//    rows      1  |   |   | # |   |   |   | <-- |   |   | # |   |   |   | <-- the other one: rows 68..71
//    64..127  ... |   |   |   |   |   |   |     |   |   |   |   |   |   |
//             15  |   |   |   |   |   |   |     |   |   |   |   |   |   |
//                 +---+---+---+---+---+---+     +---+---+---+---+---+---+
//                           ^ one quad of B:              ^ the other one:
//                             columns 8..11                 columns 72..75
//
// Strips lie in shared memory k-major whatever their layout: strip[k][row], with `pitch` floats from one k to the next.
// An operand in which memory runs along k is transposed on the way: a thread has four neighbouring k of one row, and a
// warp writes 8 rows of k 0, 4, 8 and 12 at a time. Shared memory has 32 banks, float i in bank i mod 32, and threads
// of a warp that want different floats of one bank wait for each other. With a pitch of 128 all four k would meet in
// the same 8 banks. With 132 they fall on 16, two threads on each.
//
// Two pairs of strips take turns, so that one barrier a strip is enough:
//
//     registers -> pair 0 | barrier | memory -> registers, multiply pair 0
//     registers -> pair 1 | barrier | memory -> registers, multiply pair 1
//     registers -> pair 0 | ...
//
// The barrier says that the pair is complete. The write to pair 0 that follows needs no second barrier: a thread is
// there only after the barrier of pair 1, and no thread passes that one before it has multiplied pair 0. While a strip
// is multiplied, the next one is on its way from memory to registers, and nobody waits for it.

#pragma once
#include "core/quad.cuh"
#include "kernels/matmul.h"

namespace gated {

constexpr int strip_depth = 16;
static_assert(matmul_slice % strip_depth == 0, "a slice is a whole number of strips, so the walk goes straight on");

// One operand's strip, `rows` (of A, or columns of B) by strip_depth, on its way through a thread's registers.
// k_contiguous: memory runs along k. aligned: the lines of memory begin on 16-byte boundaries. A Quad:
// kernels/activation.cu.
template <int rows, int threads, bool k_contiguous, bool aligned>
struct MatmulStrip {
  static constexpr int pitch = rows + 4;  // keeps 16-byte boundaries
  static constexpr int floats = strip_depth * pitch;
  static constexpr int quads = rows * strip_depth / 4 / threads;        // of a thread
  static constexpr int line = (k_contiguous ? strip_depth : rows) / 4;  // quads of the strip along memory
  static_assert(quads * threads * 4 == rows * strip_depth && threads % line == 0);

  const float* matrix;
  size_t ld, at;  // at: this thread's first element of the strip to fetch next
  int rows_left;  // of the matrix, from the strip's first row on
  Quad next[quads];

  __device__ MatmulStrip(Matrix<const float> m, size_t row0, size_t count, size_t k0)
      : matrix(m.data), ld(m.ld), rows_left(count - row0 < rows ? int(count - row0) : rows) {
    const size_t row = row0 + row_of(0), k = k0 + k_of(0);
    at = k_contiguous ? row * ld + k : k * ld + row;
  }

  // Where in the strip this thread's q-th quad lies: its first row and k. Neighbouring threads take neighbours in
  // memory.
  __device__ static int row_of(int q) {
    return k_contiguous ? threadIdx.x / line + q * (threads / line) : threadIdx.x % line * 4;
  }
  __device__ static int k_of(int q) {
    return k_contiguous ? threadIdx.x % line * 4 : threadIdx.x / line + q * (threads / line);
  }

  // Elements past the last row, or at k_left and beyond, become 0: no output that is kept depends on them.
  __device__ void fetch(int k_left) {
#pragma unroll
    for (int q = 0; q < quads; q++) {
      const int row = row_of(q), k = k_of(q), count = k_contiguous ? k_left - k : rows_left - row;
      next[q] = {};
      if (row >= rows_left || k >= k_left) continue;
      const float* from = matrix + at + q * (threads / line) * ld;
      next[q] = aligned && count >= 4 ? load_quad<true>(from, 0, 4) : load_quad<false>(from, 0, count);
    }
    at += k_contiguous ? strip_depth : strip_depth * ld;
  }

  __device__ void store(float* shared) const {
#pragma unroll
    for (int q = 0; q < quads; q++) {
      float* to = shared + k_of(q) * pitch + row_of(q);
      if constexpr (k_contiguous)
        for (int i = 0; i < 4; i++) to[i * pitch] = next[q].v[i];
      else
        store_quad<true>(to, 0, 4, next[q]);
    }
  }
};

// What a block works on: rows from m0 and columns from n0 of C, as many as its tile has, where they come before m_end
// and n_end; and k from begin to end, in slices that are counted from begin. C, sum and bias point to the tile's first
// element. sum: where C is added to and there are several slices, their sum grows here while C waits.
struct MatmulBlock {
  Matrix<float> C, sum = {};
  Matrix<const float> A, B;
  const float* bias = nullptr;
  size_t m0 = 0, m_end, n0 = 0, n_end, begin = 0, end;
  bool accumulate = false;
  bool aligned;  // the rows of C, sum and bias begin on 16-byte boundaries
};

// row[n..n+3] + q
__device__ inline Quad matmul_add(const float* row, size_t n, size_t N, Quad q, bool aligned) {
  const Quad r = load_quad_inside(row, n, N, aligned);
  for (int j = 0; j < 4; j++) q.v[j] = r.v[j] + q.v[j];
  return q;
}

// The elements of C that a thread hands over as a slice of k ends; waiting() adds what has waited.
struct MatmulStore {
  const MatmulBlock& block;
  int rows_left, cols_left;
  bool waits;

  __device__ MatmulStore(const MatmulBlock& block, size_t BM, size_t BN)
      : block(block),
        rows_left(int(block.m_end - block.m0 < BM ? block.m_end - block.m0 : BM)),
        cols_left(int(block.n_end - block.n0 < BN ? block.n_end - block.n0 : BN)),
        waits(block.accumulate && block.end - block.begin > matmul_slice) {}

  // Elements n to n+3 of row m of the tile: what a slice has come to.
  __device__ void slice(int m, int n, Quad q, bool first, bool last) const {
    if (m >= rows_left || n >= cols_left) return;
    const Matrix<float> to = waits ? block.sum : block.C;
    float* const row = to.data + m * to.ld;
    if (!first || (block.accumulate && !waits)) q = matmul_add(row, n, cols_left, q, block.aligned);
    if (last && block.bias) q = matmul_add(block.bias, n, cols_left, q, block.aligned);
    store_quad_inside(row, n, cols_left, q, block.aligned);
  }
  __device__ void waiting(int m, int n) const {
    if (m >= rows_left || n >= cols_left) return;
    const Quad q = load_quad_inside(block.sum.data + m * block.sum.ld, n, cols_left, block.aligned);
    float* const row = block.C.data + m * block.C.ld;
    store_quad_inside(row, n, cols_left, matmul_add(row, n, cols_left, q, block.aligned), block.aligned);
  }
};

// C of the tile. The strips come from memory by StripA and StripB, and the results leave by MatmulStore.
template <Layout layout, int BM, int BN, int TM, int TN, bool aligned>
__device__ __forceinline__ void matmul_tile(const MatmulBlock& block) {
  constexpr int threads = BM / TM * BN / TN;
  using StripA = MatmulStrip<BM, threads, layout != Layout::tn, aligned>;
  using StripB = MatmulStrip<BN, threads, layout == Layout::nt, aligned>;
  // STATIC_SHARED(T, name, [n]) is `__shared__ T name[n]`, on 16 bytes, and one spelling for GPU and emulator.
  STATIC_SHARED(float, a_shared, [2][StripA::floats]);
  STATIC_SHARED(float, b_shared, [2][StripB::floats]);

  // A warp is 4 threads high and 8 wide: it reads few distinct quads of shared memory, 4 of A and 8 of B.
  constexpr int warps_across = BN / TN / 8;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int ty = warp / warps_across * 4 + lane / 8, tx = warp % warps_across * 8 + lane % 8;
  auto row_of = [&](int square) { return square * (4 * BM / TM) + ty * 4; };
  auto col_of = [&](int square) { return square * (4 * BN / TN) + tx * 4; };

  // One k: every element of A's column times every element of B's row.
  float chain[TM][TN] = {};  // in registers: every index below is a constant once its loop is unrolled
  auto step = [&](const float* a_strip, const float* b_strip, int k) {
    Quad a[TM / 4], b[TN / 4];
#pragma unroll
    for (int g = 0; g < TM / 4; g++) a[g] = load_quad<true>(a_strip + k * StripA::pitch, row_of(g), BM);
#pragma unroll
    for (int g = 0; g < TN / 4; g++) b[g] = load_quad<true>(b_strip + k * StripB::pitch, col_of(g), BN);
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
      for (int j = 0; j < TN; j++) chain[i][j] = fused(a[i / 4].v[i % 4], b[j / 4].v[j % 4], chain[i][j]);
  };

  // The walk along k: a strip after the other, and after a slice its chains leave and begin again at +0.
  const size_t begin = block.begin, end = block.end;
  auto depth_at = [&](size_t k) { return k >= end ? 0 : end - k < strip_depth ? int(end - k) : strip_depth; };
  const MatmulStore result(block, BM, BN);
  StripA a(block.A, block.m0, block.m_end, begin);
  StripB b(block.B, block.n0, block.n_end, begin);
  a.fetch(depth_at(begin));
  b.fetch(depth_at(begin));
  int pair = 0;
  size_t k0 = begin;
  for (bool first = true, last = false; !last; first = false) {
    const size_t slice_end = k0 + matmul_slice < end ? k0 + matmul_slice : end;
    for (; k0 < slice_end; k0 += strip_depth, pair ^= 1) {
      a.store(a_shared[pair]);
      b.store(b_shared[pair]);
      __syncthreads();  // this pair is complete, and nobody reads the other one any more
      a.fetch(depth_at(k0 + strip_depth));
      b.fetch(depth_at(k0 + strip_depth));
      const int depth = depth_at(k0);
      if (depth == strip_depth) {
#pragma unroll
        for (int k = 0; k < strip_depth; k++) step(a_shared[pair], b_shared[pair], k);
      } else {
#pragma unroll 1
        for (int k = 0; k < depth; k++) step(a_shared[pair], b_shared[pair], k);
      }
    }
    last = slice_end == end;
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
      for (int g = 0; g < TN / 4; g++) {
        Quad q;
        for (int j = 0; j < 4; j++) {
          q.v[j] = chain[i][4 * g + j];
          chain[i][4 * g + j] = 0;
        }
        result.slice(row_of(i / 4) + i % 4, col_of(g), q, first, last);
      }
  }
  if (!result.waits) return;
#pragma unroll 1  // it is not worth any registers
  for (int i = 0; i < TM; i++)
#pragma unroll 1
    for (int g = 0; g < TN / 4; g++) result.waiting(row_of(i / 4) + i % 4, col_of(g));
}

// ---- for launchers

inline bool matmul_rows_aligned(const float* p, size_t ld) {
  return ld % 4 == 0 && reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

}  // namespace gated
