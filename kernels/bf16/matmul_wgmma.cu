// matmul_wgmma: products of bf16 matrices by wgmma, which reads its operands from shared memory itself: no ldmatrix, no
// fragments, one instruction where mma.sync takes 128 of a warp (core/wgmma.cuh); and by TMA, which brings them there
// itself: no thread copies (core/tma.cuh). For compute capability 9.0; others take the kernel of
// kernels/bf16/matmul_bf16.cu, where the order of a sum stands. It is the same here: a chain of ascending k in steps of
// 16, slices of 4096, an end by end_quads().
//
//   block      one a multiprocessor; it takes one tile of C after the other: 128 rows, 256 or 192 columns
//   cluster    two blocks, whose tiles lie one above the other: they read the same columns of B
//   strip      64 k of both operands: 128 + 256 lines of 128 bytes, 48 KiB. In a line runs k, or, where memory runs
//              along the rows, 64 of these: one line for each k, and the next 64 rows 64 lines on
//   ring       four stages, a strip in each. Of each two barriers: `full`, its bytes are there; `empty`, all warps that
//              read it have done so, eight of this block and eight of the other
//   producer   one thread, of a warpgroup of its own: waits for an empty stage, asks for its block's A and for every
//              second box of B, which comes into both blocks
//   consumers  two warpgroups, each with 64 rows and all columns, 128 sums a thread: wait for a full stage, multiply
//
//      stage        (s-1) % 4           s % 4           (s+1) % 4         (s+2) % 4
//              +-----------------+-----------------+-----------------+-----------------+
//              | strip s-1:      | strip s:        | strip s+1:      | strip s+2:      |     and round again
//              | may be read yet | is multiplied   | is there        | comes           |
//              +-----------------+-----------------+-----------------+-----------------+
//               given back by      waited for by
//               consumers, for     consumers: full
//               s+3: empty
//
//   Strip s is the (s / 4)th of its stage. Whoever waits for it waits for the phase of that number of `full`, and names
//   its parity. Before the producer asks for it, it waits for the phase of `empty` before that one; of the first four
//   strips there is none, which a new barrier says to those who wait for parity 1.
//
//              strip s   wait for full (s)
//                        ask for its products: four steps of 16 k, one group
//                        wait until those of s-1 are done: give its stage back
//
//   So the tensor core has strip s to do while a warp waits for the next, and the producer is up to three strips ahead,
//   past the end of a tile too: while the consumers end one, the first strips of the next arrive.
//
//           block 0           L2           block 1
//          +-------+                      +-------+
//          |  A 0  | <---- A 0            |  A 1  | <---- A 1
//          +-------+                      +-------+
//          | B box | <---- B box 0 -----> | B box |
//          | B box | <---- B box 1 -----> | B box |
//          +-------+                      +-------+
//
//   A strip of B is two boxes, or four (three) where rows run along the lines. Each block asks for every second one,
//   and L2 gives two thirds of the bytes that the two would ask for alone. A box may come before this block's producer
//   has announced its bytes: `full` still waits for that arrival. It cannot come before the stage is empty in both
//   blocks.
//
// Registers. They are given to four warps at a time, so a ninth warp takes as many as a third warpgroup, and a thread
// has 168. 128 are sums, and the end needs more than are left. So the producer's warpgroup gives most of its own away,
// and the consumers take them (setmaxnreg): 24 + 240 + 240 = 3 * 168.
//
// The end is a warp's own: its 16 rows go through a piece of shared memory that is not of the ring, 32 columns at a
// time, and no warp waits for another. A lane has four rows of four neighbours, and takes each step for all of them
// together: two warps a scheduler are too few to hide the latency of one after the other.
//
// Several products that are summed (matmul_bf16_joined()) are one walk of the producer's, from one's matrices to the
// next's. What is multiplied of which the consumers need not know: they count strips.
//
// Rows of experts (WgmmaGroups) go in pieces of 256, a cluster's two tiles, cut from each expert's first row on. A tile
// that is not full has rows of the next expert in it, which nobody stores, and the box of B that ends behind an
// expert's columns has those of the next one. In tn an expert's rows are k, and each expert has a C: they are slices
// that end anywhere.
//
// Where k ends inside a strip, the strip's other lines are the next expert's: in tn those of both operands; in nn those
// of B, times zeros of A from past its edge, but 0 times NaN is no 0. So the consumers clear them, tell wgmma's proxy
// of it (a fence), and meet at a barrier of their own before they multiply.
//
// Tiles go in bands of 16 tiles of rows, down the columns of a band first: what runs at once then reads few rows of A
// and few of B, and finds most of them in L2. Of an odd number of tiles the last cluster's second one lies outside: its
// A comes as 0, and nothing of it is stored.
//
// Why the bits stay: wgmma computes mma.sync's step, and those of one thread on the same sums run in the order in which
// they were asked for. Past the edge of a matrix is 0. What an order of instructions does not see is free: the tile,
// the stages, which thread holds which element, which block a tile is of.
//
// What is still to come: consumers that take turns, one ending its tile while the other multiplies.
// Attention in this way: kernels/bf16/attention_wgmma.cu.
//
// tests/test_matmul_bf16.cpp
#include "kernels/bf16/matmul_wgmma.h"

#include <algorithm>

#include "core/launch.cuh"
#include "core/tma.cuh"
#include "core/wgmma.cuh"
#include "kernels/bf16/matmul_bf16_tile.cuh"
#include "kernels/grouped_rows.cuh"

namespace gated {

static_assert(wgmma_tile_rows == 2 * wgmma_rows);
constexpr int wgmma_stages = 4;
constexpr int wgmma_consumers = 2 * wgmma_threads, wgmma_block = wgmma_consumers + wgmma_threads;  // threads
constexpr int wgmma_band = 16 / wgmma_ranks;                                  // rows of clusters in a band
constexpr int wgmma_producer_registers = 24, wgmma_consumer_registers = 240;  // of a thread
// Of the end, a warp: 16 rows of 32 columns. They lie 40 floats apart: as mma_end_pitch.
constexpr int wgmma_end_rows = 16, wgmma_end_columns = 32, wgmma_end_pitch = wgmma_end_columns + 8;
constexpr size_t wgmma_end_floats = size_t{wgmma_end_rows} * wgmma_end_pitch;
static_assert(matmul_bf16_slice % wgmma_line == 0, "a slice is a whole number of strips");

constexpr uint32_t wgmma_a_bytes = wgmma_tile_rows * wgmma_line_bytes;
constexpr uint32_t wgmma_stage_bytes(int columns) {
  return wgmma_a_bytes + uint32_t(columns) * wgmma_line_bytes;
}
// The ring, the ends of eight warps, the barriers; and what it takes to begin on a boundary of eight lines.
constexpr size_t wgmma_shared(int columns) {
  return wgmma_stages * size_t{wgmma_stage_bytes(columns)} + wgmma_consumers / 32 * wgmma_end_floats * sizeof(float) +
         (2 * wgmma_stages + 1) * sizeof(Mbarrier) + wgmma_group_bytes;
}

// One operand: `rows` rows of A, or columns of B, of a tile, and 64 k at a time. One that blocks share comes in at
// least as many boxes as they are.
template <bool rows_along, int rows, int ranks>
struct WgmmaStrip {
  static constexpr int box_rows = rows_along ? wgmma_line : rows / ranks,
                       box_lines = rows_along ? wgmma_line : box_rows;

  static TmaMatrix matrix(Matrix<const bf16> m, size_t all_rows, size_t K) {
    return tma_matrix(m.data, m.ld, rows_along ? all_rows : K, rows_along ? K : all_rows, box_lines);
  }

  // Asks for rows from row0 and k from k0 on; where they are shared, for every second box, and for all of the blocks.
  __device__ static void copy(unsigned char* stage, const TensorMap& map, int row0, int k0, Mbarrier& full) {
    const unsigned rank = cluster_rank();
#pragma unroll
    for (int i = 0; i < rows / box_rows; i++) {
      if (ranks > 1 && unsigned(i % ranks) != rank) continue;
      unsigned char* const to = stage + i * box_rows * wgmma_line_bytes;
      const int row = row0 + i * box_rows, x = rows_along ? row : k0, y = rows_along ? k0 : row;
      ranks > 1 ? tma_copy_to_all<ranks>(to, map, x, y, full) : tma_copy(to, map, x, y, full);
    }
  }

  // Of the strip at this address, from row `row` (a multiple of 64) and k on.
  __device__ static uint64_t descriptor(uint32_t address, uint32_t row, uint32_t k) {
    return wgmma_descriptor(address + row * wgmma_line_bytes + k * (rows_along ? wgmma_line_bytes : sizeof(bf16)),
                            wgmma_line * wgmma_line_bytes, wgmma_group_bytes);
  }
};

// The tiles of all slices that go side by side, in the order in which clusters take them, one for each block.
struct WgmmaTiles {
  unsigned rows, columns, slices;  // rows of clusters; tiles side by side; slices
  size_t M;
  WgmmaGroups groups;

  // Of a cluster's tiles: rows from m0 on, those before m_end; which columns, which slice, whose B.
  struct Place {
    size_t m0, m_end;
    unsigned column, slice, expert;
    __device__ bool is_empty() const { return m0 >= m_end; }
  };
  __device__ unsigned count() const { return rows * columns * slices; }
  template <Layout layout>
  __device__ Place at(unsigned tile) const {
    const unsigned slice = tile / (rows * columns), in_slice = tile % (rows * columns);
    const unsigned band = in_slice / (wgmma_band * columns), in_band = in_slice % (wgmma_band * columns);
    const unsigned first = band * wgmma_band, high = rows - first < wgmma_band ? rows - first : wgmma_band;
    const unsigned row = first + in_band % high, column = in_band / high;
    if (layout == Layout::tn || !groups.row_start) return {size_t{row} * wgmma_cluster_rows, M, column, slice, 0};
    const GroupRows piece = group_rows(groups.row_start, groups.E, wgmma_cluster_rows, row);
    return {piece.begin, piece.end, column, slice, unsigned(piece.expert)};
  }

  // The k of a slice, of K: 4096, or in tn the rows of an expert, of whose C the slice then is.
  struct Depth {
    size_t begin, depth;
  };
  template <Layout layout>
  __device__ Depth depth_of(unsigned slice, size_t K) const {
    if (layout == Layout::tn && groups.row_start) {
      const size_t begin = size_t(groups.row_start[slice]);
      return {begin, size_t(groups.row_start[slice + 1]) - begin};
    }
    const size_t begin = slice * matmul_bf16_slice, left = K - begin;
    return {begin, slices > 1 && left > matmul_bf16_slice ? matmul_bf16_slice : left};
  }
};

// The lines from `line` on of each group of 64 rows become 0, by all consumers.
__device__ inline void clear_lines(unsigned char* groups, uint32_t bytes, int line) {
  constexpr int group = wgmma_line * wgmma_line_bytes, chunk = 16;
  const int of_group = (wgmma_line - line) * wgmma_line_bytes / chunk;
  for (int i = int(threadIdx.x); i < int(bytes) / group * of_group; i += wgmma_consumers)
    store_four(reinterpret_cast<float*>(groups + i / of_group * group + line * wgmma_line_bytes + i % of_group * chunk),
               Quad{});
  fence_proxy_async();
}

// The matrices of a product, in nn of several that are summed.
template <Layout layout>
struct WgmmaMaps {
  static constexpr bool joins = layout == Layout::nn;
  static constexpr size_t most = joins ? most_factors : 1;
  TensorMap a[most], b[most];
};

template <Layout layout, int columns, class Out>
__global__ void __launch_bounds__(wgmma_block, 1)
    matmul_wgmma_kernel(const __grid_constant__ WgmmaMaps<layout> maps, const MmaBlock<Out> product,
                        const WgmmaTiles tiles) {
  constexpr bool a_along = layout == Layout::tn, b_along = layout != Layout::nt;
  using StripA = WgmmaStrip<a_along, wgmma_tile_rows, 1>;
  using StripB = WgmmaStrip<b_along, columns, wgmma_ranks>;
  constexpr uint32_t stage_bytes = wgmma_stage_bytes(columns);
  DYNAMIC_SHARED(unsigned char, shared);
  unsigned char* const stages = group_boundary(shared);
  float* const ends = reinterpret_cast<float*>(stages + wgmma_stages * stage_bytes);
  Mbarrier* const full = reinterpret_cast<Mbarrier*>(ends + wgmma_consumers / 32 * wgmma_end_floats);
  Mbarrier* const empty = full + wgmma_stages;
  Mbarrier& cleared = empty[wgmma_stages];
  if (threadIdx.x == 0) {
    cleared.init(wgmma_consumers);
    for (int i = 0; i < wgmma_stages; i++) {
      full[i].init(1);
      empty[i].init(wgmma_ranks * wgmma_consumers / 32);
    }
    fence_proxy_async();
    fence_mbarrier_init();
  }
  cluster_barrier();  // the barriers are there, in both blocks: from here on they are all that orders

  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int joined = maps.joins ? product.more.count : 0;
  const unsigned clusters = gridDim.x / wgmma_ranks, first_tile = blockIdx.x / wgmma_ranks;
  const unsigned rank = cluster_rank();
  unsigned s = 0;  // strips so far

  if (threadIdx.x >= wgmma_consumers) {
    give_registers<wgmma_producer_registers>();
    if (threadIdx.x > wgmma_consumers) return;
    for (unsigned tile = first_tile; tile < tiles.count(); tile += clusters) {
      const auto place = tiles.template at<layout>(tile);
      if (place.is_empty()) continue;
      const auto first = tiles.template depth_of<layout>(place.slice, product.K);
      const int row = int(place.m0) + int(rank) * wgmma_tile_rows, column = int(place.column) * columns;
#pragma unroll
      for (int f = 0; f < int(maps.most); f++) {
        if (f > joined) break;
        int k = f == 0 ? int(first.begin) : 0;
        const int K = int(f == 0 ? product.K : product.more.at[f - 1].K);
        const int end = f == 0 ? k + int(first.depth) : K;
        const int of_expert = int(place.expert) * (b_along ? K : int(product.n_end));  // lines of B before its own
#pragma unroll 1
        for (; k < end; k += wgmma_line, s++) {
          const unsigned i = s % wgmma_stages;
          unsigned char* const stage = stages + i * stage_bytes;
          empty[i].wait(s / wgmma_stages % 2 ^ 1);
          full[i].arrive(stage_bytes);
          StripA::copy(stage, maps.a[f], row, k, full[i]);
          StripB::copy(stage + wgmma_a_bytes, maps.b[f], column + (b_along ? 0 : of_expert),
                       k + (b_along ? of_expert : 0), full[i]);
        }
      }
    }
    return;
  }

  take_registers<wgmma_consumer_registers>();
  // What the warp has read may be written over. (Also what clear_lines() stored: it was fenced, and read.)
  const auto give_back = [&](unsigned strip) {
    for (unsigned to = 0; lane == 0 && to < wgmma_ranks; to++) empty[strip % wgmma_stages].arrive_at(to);
  };
  const int first_row = warp / 4 * wgmma_rows;  // of this warpgroup
  WgmmaSums<columns> sums;
  constexpr int strips_of_slice = matmul_bf16_slice / wgmma_line;
  const auto strips_of = [](int depth) { return (depth + wgmma_line - 1) / wgmma_line; };
  unsigned cleared_strips = 0;
  int joined_strips = 0;
#pragma unroll
  for (int f = 0; f < int(maps.most) - 1; f++)
    if (f < joined) joined_strips += strips_of(int(product.more.at[f].K));
#pragma unroll 1
  for (unsigned tile = first_tile; tile < tiles.count(); tile += clusters) {
    const auto place = tiles.template at<layout>(tile);
    const auto of_slice = tiles.template depth_of<layout>(place.slice, product.K);
    const int depth = int(of_slice.depth);
    if (place.is_empty() || depth == 0) continue;
    MmaBlock<Out> block = product;
    block.m0 = place.m0 + rank * wgmma_tile_rows, block.m_end = place.m_end;
    if (block.bias) block.bias += place.expert * block.n_end;
    block.n0 = size_t{place.column} * columns;
    const bool may_clear = layout != Layout::nt && tiles.groups.row_start;
    if (layout == Layout::tn) block.C.data += place.slice * product.m_end * product.C.ld;
    const int strips = strips_of(depth) + joined_strips;
    int factor = 0, left = depth;  // of the factor's k
#pragma unroll 1
    for (int begin = 0, end; begin < strips; begin = end) {  // a slice of k: one chain
      end = strips - begin < strips_of_slice ? strips : begin + strips_of_slice;
#pragma unroll 1
      for (int strip = begin; strip < end; strip++, s++) {
        full[s % wgmma_stages].wait(s / wgmma_stages % 2);
        unsigned char* const stage = stages + s % wgmma_stages * stage_bytes;
        if (may_clear && left < wgmma_line) {
          constexpr uint32_t from = layout == Layout::tn ? 0 : wgmma_a_bytes;
          clear_lines(stage + from, stage_bytes - from, left);
          cleared.arrive();
          cleared.wait(cleared_strips++ % 2);
        }
        left -= wgmma_line;
        if (maps.joins && may_clear && left <= 0) {
#pragma unroll
          for (int f = 0; f < int(maps.most) - 1; f++)  // (a parameter has no index at run time)
            if (f == factor) left = int(product.more.at[f].K);
          factor++;
        }
        const uint32_t a = shared_address(stage), b = a + wgmma_a_bytes;
        sums.fence();
#pragma unroll
        for (int k = 0; k < wgmma_line; k += int(mma_depth))
          sums.template multiply<a_along, b_along>(StripA::descriptor(a, first_row, k), StripB::descriptor(b, 0, k),
                                                   strip > begin || k > 0);
        sums.commit();
        sums.template wait<1>();
        if (strip > begin) give_back(s - 1);
      }
      sums.template wait<0>();
      give_back(s - 1);
      if (strips > strips_of_slice) {  // of several
        const ThreadSums<sums.count, wgmma_consumers> total(product.totals, blockIdx.x);
        const auto four = [&](int q) { return sums.x + 4 * q; };
        if (begin > 0) total.template add_to<8>(four);
        if (end < strips) total.keep(four);
      }
    }

    float* const staged = ends + warp * wgmma_end_floats;
    block.m0 += size_t(warp * wgmma_end_rows);
    const bool on_quads = all_on_quads(block) && block.m0 + wgmma_end_rows <= block.m_end;
#pragma unroll 1
    for (int c0 = 0; c0 < columns; c0 += wgmma_end_columns) {
#pragma unroll
      for (int part = 0; part < columns; part += wgmma_end_columns)  // (registers have no numbers at run time)
        if (part == c0)
          for_wgmma_sums(part / 2, part / 2 + wgmma_end_columns / 2, [&](int i, int r, int c) {
            if (i % 2 == 0)
              *reinterpret_cast<float2*>(staged + r % wgmma_end_rows * wgmma_end_pitch + c - part) = {sums.x[i],
                                                                                                      sums.x[i + 1]};
          });
      __syncwarp();
      constexpr int apart = 4, rows = wgmma_end_rows / apart;  // eight lanes have a row, a lane four rows
      const int first = lane / 8, c = lane % 8 * 4;
      const size_t n = block.n0 + size_t(c0 + c);
      const auto end = [&]<bool whole, int count>(int row) {
        Quad x[count];
        for (int i = 0; i < count; i++) x[i] = load_four(staged + (row + i * apart) * wgmma_end_pitch + c);
        end_quads<layout, whole>(block, block.m0 + size_t(row), apart, n, x);
      };
      if (on_quads && block.n0 + size_t(c0 + wgmma_end_columns) <= block.n_end) {
        end.template operator()<true, rows>(first);
      } else {
#pragma unroll 1
        for (int row = first; row < wgmma_end_rows; row += apart)
          if (block.m0 + size_t(row) < block.m_end && n < block.n_end) end.template operator()<false, 1>(row);
      }
      __syncwarp();
    }
  }
  // Behind it nobody comes to this block's barriers, nor a box into its ring: the other block's consumers have had all
  // that its producer asked for.
  cluster_barrier();
}

// Each of several factors begins with a strip of its own, which may end in zeros: more of them than joined_depth() has,
// and a step over zeros changes no sum (none is -0). But slices must end where those of joined_depth() do: only in the
// last one may a factor end inside a strip.
static bool slices_are_strips(std::span<const MmaFactors> factors) {
  const size_t last_slice = (joined_depth(factors) - 1) / matmul_bf16_slice * matmul_bf16_slice;
  size_t k = 0, strips = 0;
  for (const MmaFactors& f : factors) {
    k = round_up(k, joined_unit);
    if (k <= last_slice && k != strips * wgmma_line) return false;
    k += f.K, strips += ceil_div(f.K, wgmma_line);
  }
  return strips * wgmma_line <= last_slice + matmul_bf16_slice;
}

size_t matmul_wgmma_totals() {
  return multiprocessors() * ThreadSums<WgmmaSums<256>::count, wgmma_consumers>::size;
}

template <class Out>
bool matmul_wgmma(Matrix<Out> C, std::span<const MmaFactors> factors, size_t M, size_t N, Layout layout,
                  Accumulate accumulate, float* totals, const float* bias, const Activated& activated, Context& ctx,
                  int columns, size_t slices, const WgmmaGroups& groups) {
  const size_t rows = groups.row_start && layout != Layout::tn ? group_rows_grid(M, groups.E, wgmma_cluster_rows).x
                                                               : ceil_div(M, wgmma_cluster_rows);
  const size_t tiles_side_by_side = ceil_div(N, columns), depth = joined_depth(factors);
  const size_t count = wgmma_ranks * rows * tiles_side_by_side * slices;
  if (depth == 0 || std::max({M, groups.E * N, groups.E * depth, count}) > tma_most_coordinate ||
      !slices_are_strips(factors))
    return false;
  const WgmmaTiles tiles = {unsigned(rows), unsigned(tiles_side_by_side), unsigned(slices), M, groups};
  if (!runs_wgmma(ctx) || shared_limit() < wgmma_shared(columns)) return false;
  const MmaBlock<Out> product = {.C = C,
                                 .totals = totals,
                                 .total = 0,  // (each block has one)
                                 .A = factors[0].A,
                                 .B = factors[0].B,
                                 .bias = bias,
                                 .m0 = 0,
                                 .m_end = M,
                                 .n0 = 0,
                                 .n_end = N,
                                 .K = factors[0].K,
                                 .more = more_factors("matmul_wgmma", factors),
                                 .depth = depth,
                                 .accumulate = accumulate,
                                 .activated = activated};
  const auto run = [&]<Layout l, int width>() {
    WgmmaMaps<l> maps = {};
    if (factors.size() > maps.most) return false;
    for (size_t f = 0; f < factors.size(); f++) {
      // (B of all experts is one matrix, in nt of columns, in nn of k, one after the other)
      const size_t K = factors[f].K, n = l == Layout::nt ? groups.E * N : N, k = l == Layout::nn ? groups.E * K : K;
      const TmaMatrix a = WgmmaStrip<l == Layout::tn, wgmma_tile_rows, 1>::matrix(factors[f].A, M, K);
      const TmaMatrix b = WgmmaStrip<l != Layout::nt, width, wgmma_ranks>::matrix(factors[f].B, n, k);
      if (tma_refuses(a) || tma_refuses(b)) return false;
      maps.a[f] = tensor_map(a), maps.b[f] = tensor_map(b);
    }
    const size_t clusters = std::min(count, multiprocessors()) / wgmma_ranks;
    if (clusters == 0) return false;
    launch_clusters(matmul_wgmma_kernel<l, width, Out>, grid_of(clusters * wgmma_ranks), wgmma_block, wgmma_ranks,
                    wgmma_shared(width), ctx, maps, product, tiles);
    return true;
  };
  return by_layout(layout, [&]<Layout l>() {
    return columns == 192 ? run.template operator()<l, 192>() : run.template operator()<l, 256>();
  });
}
template bool matmul_wgmma(Matrix<float>, std::span<const MmaFactors>, size_t, size_t, Layout, Accumulate, float*,
                           const float*, const Activated&, Context&, int, size_t, const WgmmaGroups&);
template bool matmul_wgmma(Matrix<bf16>, std::span<const MmaFactors>, size_t, size_t, Layout, Accumulate, float*,
                           const float*, const Activated&, Context&, int, size_t, const WgmmaGroups&);

}  // namespace gated
