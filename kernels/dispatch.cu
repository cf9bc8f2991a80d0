// dispatch: the tokens of a batch, sorted by expert
//
// In a mixture of experts every token goes to k of E experts, and an expert multiplies all of its tokens at once. So
// the tokens of one expert must lie together. A token has k slots, one for each of its choices, and the slots are
// sorted:
//
//   N = 3 tokens, k = 2            slot     0  1 | 2  3 | 4  5       slot n*k + j: the j-th choice of token n
//                                  expert   2  0 | 0  1 | 2  1       what the router chose
//   sorted by (expert, slot)       row      0  1 | 2  3 | 4  5
//                                  slot     1  2 | 3  5 | 0  4       row_of_slot is 4 0 1 2 5 3
//                                  expert   0  0 | 1  1 | 2  2       row_start is 0 2 4 6
//   row row_of_slot[s] holds the x of the token of slot s, s / k
//
// Only the device knows how many rows an expert has, and nothing waits for it: whatever is launched goes by the number
// of all rows, M = N*k, which the routing does not change. No token is dropped, no row is padding.
// backward of the gather: x_n reaches the loss through its k rows, unchanged, so their gradients add up:
//     dx_n = sum over j of drows[row_of_slot[n*k + j]]
// exactly: the sum starts with the first slot's row and takes the others in slot order; with `accumulate` it is then
//   added to dx. A dx in bf16 is rounded once, after all of that.
// shapes: expert (N,k), row_start (E+1), row_of_slot (M), all int; x, dx (N,C) f32 or bf16; rows, drows (M,C)
// twins: kernels/cpu/dispatch_cpu.cpp
// --experts, --experts-per-token | tests/test_dispatch.cpp
#include "kernels/dispatch.h"

#include "core/launch_shape.cuh"
#include "core/quad.cuh"

namespace gated {

// ---- reference: a counting sort. The CPU runs it as it is

void dispatch_sort_ref(const Dispatch& d, const int* expert, const DispatchShape& s) {
  std::vector<int> next(s.E + 1, 0);  // where the next slot of an expert goes
  for (size_t slot = 0; slot < s.M(); slot++) next[expert[slot] + 1]++;
  for (size_t e = 0; e < s.E; e++) next[e + 1] += next[e];
  std::copy(next.begin(), next.end(), d.row_start);
  for (size_t slot = 0; slot < s.M(); slot++) d.row_of_slot[slot] = next[expert[slot]]++;
}

void dispatch_count_ref(size_t* counts, const int* row_start, bool first, size_t E) {
  for (size_t e = 0; e < E; e++) counts[e] = (first ? 0 : counts[e]) + size_t(row_start[e + 1] - row_start[e]);
}

template <class T>
void dispatch_gather_ref(T* rows, const T* x, const Dispatch& d, const DispatchShape& s, size_t C) {
  for (size_t slot = 0; slot < s.M(); slot++)
    for (size_t c = 0; c < C; c++) rows[d.row_of_slot[slot] * C + c] = x[slot / s.k * C + c];
}
IN_FLOAT_AND_DOUBLE(dispatch_gather_ref);

template <class T>
void dispatch_gather_backward_ref(T* dx, Accumulate accumulate, const T* drows, const Dispatch& d,
                                  const DispatchShape& s, size_t C) {
  for (size_t n = 0; n < s.N; n++)
    for (size_t c = 0; c < C; c++) {
      T sum = drows[d.row_of_slot[n * s.k] * C + c];
      for (size_t j = 1; j < s.k; j++) sum = sum + drows[d.row_of_slot[n * s.k + j] * C + c];
      dx[n * C + c] = accumulate == Accumulate::yes ? dx[n * C + c] + sum : sum;
    }
}
IN_FLOAT_AND_DOUBLE(dispatch_gather_backward_ref);

// ---- kernels of the sort
//
// The row of a slot is the number of slots that come before it: all of lower experts, and those of its own expert with
// a lower slot. Slots are cut into tiles of 1024, and the number is a sum of three, which four kernels find:
//
//     row = row_start[expert] + slots of the expert in earlier tiles + earlier slots of the expert in its own tile
//           3. a warp           2. a warp an expert                    1. a warp a tile
//
// and the fourth adds them up. An atomic counter for every expert would be shorter, but it hands out rows in whatever
// order the hardware finds, and another order of rows is another order of sums in every weight gradient.

constexpr size_t dispatch_tile = 1024;

namespace dispatch {
// Every lane returns the sum of v over itself and the lanes below.
__device__ inline int warp_prefix(int v) {
  for (int apart = 1; apart < 32; apart *= 2) {
    const int below = __shfl_up_sync(0xffffffffu, v, apart);
    if (threadIdx.x % 32 >= unsigned(apart)) v += below;
  }
  return v;
}

// The lanes that hold the same number as this one, a bit each. Numbers are equal where all of their bits are, and a
// ballot tells every lane who has a bit set.
__device__ inline unsigned lanes_with(unsigned number, unsigned below) {
  unsigned same = 0xffffffffu;
  for (unsigned bit = 1; bit < below; bit *= 2) {
    const unsigned set = __ballot_sync(0xffffffffu, (number & bit) != 0);
    same &= number & bit ? set : ~set;
  }
  return same;
}
}  // namespace dispatch

// 1. A warp, which is a block, owns a tile and walks through it, 32 slots at a time. seen[e], in shared memory, counts
// the slots of expert e so far. A lane's slot has as many before it as seen[e] says, and one for every lower lane of
// its expert; the highest of these lanes then takes the counter on. in_tile[slot] = that number, and tiles[e][tile] =
// all of the tile.
__global__ void __launch_bounds__(32)
    dispatch_rank_kernel(int* in_tile, int* tiles, const int* expert, size_t M, size_t E) {
  DYNAMIC_SHARED(int, seen);
  const size_t lane = threadIdx.x, begin = blockIdx.x * dispatch_tile;
  const size_t end = begin + dispatch_tile < M ? begin + dispatch_tile : M;
  for (size_t e = lane; e < E; e += 32) seen[e] = 0;
  __syncwarp();  // the counters are 0 for every lane
  for (size_t first = begin; first < end; first += 32) {
    const size_t slot = first + lane;
    const bool there = slot < end;
    const unsigned e = there ? unsigned(expert[slot]) : unsigned(E);  // beyond the last slot: an expert of its own
    const unsigned same = dispatch::lanes_with(e, unsigned(E) + 1);
    const int before = __popc(same & ((1u << lane) - 1));
    const int rank = there ? seen[e] + before : 0;
    __syncwarp();  // every lane has read the counters of these 32 slots: they may change
    if (there) in_tile[slot] = rank;
    if (there && same >> lane == 1) seen[e] = rank + 1;
    __syncwarp();  // they have changed: the next 32 slots, or the copy to tiles, may read them
  }
  for (size_t e = lane; e < E; e += 32) tiles[e * gridDim.x + blockIdx.x] = seen[e];
}

// 2. A warp owns an expert. A count becomes the sum of those in front of it, 32 tiles at a time. row_start[e + 1] = the
// sum of all, for now.
__global__ void __launch_bounds__(rows_block)
    dispatch_tiles_kernel(int* row_start, int* tiles, size_t tile_count, size_t E) {
  const size_t e = warp_row(), lane = threadIdx.x % 32;
  if (e >= E) return;
  int before = 0;
  for (size_t first = 0; first < tile_count; first += 32) {
    const size_t t = first + lane;
    const int count = t < tile_count ? tiles[e * tile_count + t] : 0;
    const int through = before + dispatch::warp_prefix(count);
    if (t < tile_count) tiles[e * tile_count + t] = through - count;
    before = __shfl_sync(0xffffffffu, through, 31);
  }
  if (lane == 0) row_start[e + 1] = before;
}

// 3. One warp: the same along the experts.
__global__ void __launch_bounds__(32) dispatch_starts_kernel(int* row_start, size_t E) {
  const size_t lane = threadIdx.x;
  int before = 0;
  if (lane == 0) row_start[0] = 0;
  for (size_t first = 0; first < E; first += 32) {
    const size_t e = first + lane;
    const int through = before + dispatch::warp_prefix(e < E ? row_start[e + 1] : 0);
    if (e < E) row_start[e + 1] = through;
    before = __shfl_sync(0xffffffffu, through, 31);
  }
}

// 4. A thread owns a slot. row_of_slot comes with the number from its own tile in it.
__global__ void __launch_bounds__(rows_block)
    dispatch_rows_kernel(Dispatch d, const int* expert, const int* tiles, size_t tile_count, size_t M) {
  const size_t slot = threadIdx.x + size_t(blockDim.x) * blockIdx.x;
  if (slot >= M) return;
  const size_t e = expert[slot];
  d.row_of_slot[slot] += d.row_start[e] + tiles[e * tile_count + slot / dispatch_tile];
}

// A thread owns an expert.
__global__ void __launch_bounds__(rows_block)
    dispatch_count_kernel(size_t* counts, const int* row_start, bool first, size_t E) {
  const size_t e = threadIdx.x + size_t(blockDim.x) * blockIdx.x;
  if (e >= E) return;
  counts[e] = (first ? 0 : counts[e]) + size_t(row_start[e + 1] - row_start[e]);
}

// ---- kernels of the rows
//
// A thread owns four neighbouring columns of a token, a Quad: it reads them once and writes them to k rows, or reads k
// rows and writes their sum once. Wherever a row lies, a warp meets 128 neighbouring elements of it. The bus: 1 + k
// elements for one of x, either way, and one more with accumulate.

template <class S>
__global__ void __launch_bounds__(elementwise_block)
    dispatch_gather_kernel(S* rows, const S* x, const int* row_of_slot, size_t N, size_t k, size_t C) {
  const auto [n, c] = row_quad(C);
  if (n >= N) return;
  const Quad q = load_quad(x + n * C, c, C);
  for (size_t j = 0; j < k; j++) store_quad(rows + row_of_slot[n * k + j] * C, c, C, q);
}

template <class S>
__global__ void __launch_bounds__(elementwise_block)
    dispatch_gather_backward_kernel(S* dx, bool accumulate, const S* drows, const int* row_of_slot, size_t N, size_t k,
                                    size_t C) {
  const auto [n, c] = row_quad(C);
  if (n >= N) return;
  Quad sum = load_quad(drows + row_of_slot[n * k] * C, c, C);
  for (size_t j = 1; j < k; j++) {
    const Quad q = load_quad(drows + row_of_slot[n * k + j] * C, c, C);
    for (int i = 0; i < 4; i++) sum.v[i] = sum.v[i] + q.v[i];
  }
  if (accumulate) {
    const Quad q = load_quad(dx + n * C, c, C);
    for (int i = 0; i < 4; i++) sum.v[i] = q.v[i] + sum.v[i];
  }
  store_quad(dx + n * C, c, C, sum);
}

// ---- launchers

void require_dispatch(const char* operation, const DispatchShape& s) {
  require(s.E > 0 && s.E <= dispatch_experts_most, "%s: %zu experts, expected 1 to %zu", operation, s.E,
          dispatch_experts_most);
  require(s.k > 0 && s.k <= s.E, "%s: %zu experts of a token, expected 1 to %zu, the number of experts", operation, s.k,
          s.E);
  require(s.N <= 0x7fffffff / s.k, "%s: %zu tokens with %zu experts each, expected at most 2147483647 rows", operation,
          s.N, s.k);
}

size_t dispatch_sort_scratch(const DispatchShape& s) {
  return s.E * ceil_div(s.M(), dispatch_tile) * sizeof(int);
}

void dispatch_sort(const Dispatch& d, const int* expert, const DispatchShape& s, Context& ctx) {
  require_dispatch("dispatch_sort", s);
  if (ctx.device == Device::cpu) return dispatch_sort_ref(d, expert, s);
  const size_t tile_count = ceil_div(s.M(), dispatch_tile);
  int* tiles = ctx.scratch<int>(s.E * tile_count);  // (E, tile_count)
  launch(dispatch_rank_kernel, grid_of(tile_count), 32, s.E * sizeof(int), ctx, d.row_of_slot, tiles, expert, s.M(),
         s.E);
  launch(dispatch_tiles_kernel, rows_grid(s.E), rows_block, 0, ctx, d.row_start, tiles, tile_count, s.E);
  launch(dispatch_starts_kernel, 1, 32, 0, ctx, d.row_start, s.E);
  launch(dispatch_rows_kernel, grid_of(ceil_div(s.M(), rows_block)), rows_block, 0, ctx, d, expert, tiles, tile_count,
         s.M());
}

void dispatch_count(size_t* counts, const int* row_start, bool first, size_t E, Context& ctx) {
  if (ctx.device == Device::cpu) return dispatch_count_ref(counts, row_start, first, E);
  launch(dispatch_count_kernel, grid_of(ceil_div(E, rows_block)), rows_block, 0, ctx, counts, row_start, first, E);
}

void dispatch_gather(Reals rows, ConstReals x, const Dispatch& d, const DispatchShape& s, size_t C, Context& ctx) {
  require_dispatch("dispatch_gather", s);
  with_storage(rows, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu) return dispatch_gather_cpu(rows.as<S>(), x.as<S>(), d, s, C);
    launch(dispatch_gather_kernel<S>, row_quads_grid(s.N, C), elementwise_block, 0, ctx, rows.as<S>(), x.as<S>(),
           d.row_of_slot, s.N, s.k, C);
  });
}

void dispatch_gather_backward(Reals dx, Accumulate accumulate, ConstReals drows, const Dispatch& d,
                              const DispatchShape& s, size_t C, Context& ctx) {
  require_dispatch("dispatch_gather_backward", s);
  with_storage(dx, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu) return dispatch_gather_backward_cpu(dx.as<S>(), accumulate, drows.as<S>(), d, s, C);
    launch(dispatch_gather_backward_kernel<S>, row_quads_grid(s.N, C), elementwise_block, 0, ctx, dx.as<S>(),
           accumulate == Accumulate::yes, drows.as<S>(), d.row_of_slot, s.N, s.k, C);
  });
}

}  // namespace gated
