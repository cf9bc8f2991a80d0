// attention_wgmma: attention by wgmma and TMA (core/wgmma.cuh, core/tma.cuh), in the structure of FlashAttention-3
// (Shah et al. 2024, arXiv 2407.08608), for compute capability 9.0. Maths, order of sums and references:
// kernels/bf16/attention_bf16.cu. The kernels are those of that file and of kernels/bf16/attention_bf16_backward.cu:
// forward and dq, where rows are queries, and dkdv, where they are keys.
//
//   block      one a multiprocessor; it takes one item after the other: 128 rows of one head
//   own        these rows of q, of q and do, or of k and v. They stay in shared memory for the item
//   ring       the two matrices of the others, tiles of 64 rows, pair after pair
//   producer   one thread, of a warpgroup of its own: asks for what the others will need
//   consumers  two warpgroups, each with 64 of the rows. For each pair of tiles:
//
//        S = own_a tile_a^T, backward dP = own_b tile_b^T      64 x 64 each, both operands in shared memory
//        P, dS                                                 in the registers of S and dP, rounded
//        o = alpha o + P tile_b                                left factor in registers
//        dq += dS tile_a     or     dk += dS tile_a, dv += P tile_b
//
//   While a warpgroup makes P and dS, the tensor core has what the other one asks for: nothing ties the two together
//   but the ring, in which one may be ahead. And where registers and ring have room for it (Plan::beside), it has the
//   sums of this one's pair before to do (for_each_pair).
//
// Barriers are those of kernels/bf16/matmul_wgmma.cu, `full` and `empty` for each stage of the ring, and for what is
// own. That is given back as soon as the last products are done, so that the next item's comes while this one's sums
// are stored.
//
// An item of dkdv, causal; a column is a tile of 64 queries, from j0 on:
//
//   keys j0 .. j0 + 63           # # # # # #     the first consumer
//   keys j0 + 64 .. j0 + 127     . # # # # #     the second gives the first tile back as it came
//
// It must not multiply that tile. All weights are 0 there, so a bit changes only where a number is infinite or NaN; but
// there it does.
//
// Heads of 256 fill what there is: sums of 64 x 256 are 128 registers of a thread, and 64 rows of two matrices 64 KiB.
// So their consumers share 64 keys in dkdv: the first makes dk and the second dv, and both the weights. dq's tiles have
// 32 rows. And what is own gives its place to what is stored, once all consumers are done with it.
//
// Both products read a tile in shared memory as it lies: lines of 64 d, once with k along the line, once across
// (core/wgmma.h). A row of 128 elements is two boxes, one behind the other.
//
// Why the bits stay: S, dP and the sums are chains of the same steps in the same order; what becomes of them in between
// is the same code.
//
// tests/test_attention_bf16.cpp
#include "kernels/bf16/attention_wgmma.h"

#include <algorithm>
#include <type_traits>

#include "core/launch.cuh"
#include "core/tma.cuh"
#include "core/wgmma.cuh"
#include "kernels/bf16/attention_bf16_tile.cuh"

namespace gated {

namespace attention_wgmma {

using namespace attention_bf16;

constexpr int groups = 2, consumers = groups * wgmma_threads, threads = consumers + wgmma_threads;
constexpr int producer_registers = 24, consumer_registers = 240;  // of a thread: 24 + 240 + 240 = 3 * 168

// Rows of one head.
template <int D, int count = int(block)>
struct Tile {
  static constexpr uint32_t box_bytes = count * wgmma_line_bytes, bytes = D / wgmma_line * box_bytes;

  // Row b * T + t of the matrix is token t of sequence b; the head's elements begin at d0.
  __device__ static void copy(unsigned char* to, const TensorMap& map, unsigned d0, unsigned row, Mbarrier& full) {
#pragma unroll
    for (int d = 0; d < D; d += wgmma_line) tma_copy(to + d / wgmma_line * box_bytes, map, int(d0) + d, int(row), full);
  }
  // Descriptors. Rows are rows, from d on: k of a product of scores.
  __device__ static uint64_t rows(uint32_t tile, int d) {
    return wgmma_further(wgmma_descriptor(tile, 0, wgmma_group_bytes),
                         d / wgmma_line * box_bytes + d % wgmma_line * uint32_t(sizeof(bf16)));
  }
  // Rows are k, from `row` on, and columns are d.
  __device__ static uint64_t columns(uint32_t tile, int row) {
    return wgmma_further(wgmma_descriptor(tile, box_bytes, wgmma_group_bytes), row * wgmma_line_bytes);
  }
};

// A block's share of a kernel, of whose matrices `owns` are own.
template <int D, bool rows_are_keys, int owns>
struct Plan {
  static constexpr bool wide = D > 128;
  static constexpr int sets = wide && rows_are_keys ? 1 : groups;  // of 64 own rows; one is of all consumers
  static constexpr int tile_rows = wide && owns > 1 && !rows_are_keys ? 32 : int(block);  // of the others
  static constexpr unsigned own_rows = sets * unsigned(block);
  using Own = Tile<D>;
  using Other = Tile<D, tile_rows>;
  static constexpr uint32_t pair = 2 * Other::bytes, own_bytes = sets * owns * Own::bytes;
  static constexpr size_t stored = wide ? 0 : own_rows * D;  // elements with a place of their own
  static constexpr int stages = wide ? (tile_rows == 32 ? 3 : 2) : D == 64 || owns == 1 ? 4 : 3;
  // Two sums of 64 x 128, the scores and the factors of both would be more than a thread has registers.
  static constexpr bool beside = rows_are_keys ? D == 64 : !wide;
  static constexpr int barriers = 3 + 2 * stages;
  static constexpr size_t shared =
      own_bytes + stages * size_t{pair} + stored * sizeof(bf16) + barriers * sizeof(Mbarrier) + wgmma_group_bytes;
  // The set of this thread's consumer.
  __device__ static unsigned set() { return sets == 1 ? 0 : threadIdx.x / wgmma_threads; }
};

// What is own, of each set its a, then its b; the ring; the rows that the consumers store; barriers.
template <class P>
struct Shared {
  unsigned char *own, *ring;
  bf16* stored;
  Mbarrier *own_full, *own_empty, *own_done, *full, *empty;

  // A barrier of the block: from here on those in shared memory are all that orders.
  __device__ explicit Shared(unsigned char* shared)
      : own(group_boundary(shared)),
        ring(own + P::own_bytes),
        stored(reinterpret_cast<bf16*>(P::wide ? own : ring + P::stages * P::pair)),
        own_full(reinterpret_cast<Mbarrier*>(ring + P::stages * P::pair + P::stored * sizeof(bf16))),
        own_empty(own_full + 1),
        own_done(own_empty + 1),
        full(own_done + 1),
        empty(full + P::stages) {
    if (threadIdx.x == 0) {
      for (Mbarrier* b = own_full; b < own_full + P::barriers; b++)
        b->init(b == own_full || (b >= full && b < empty) ? 1 : consumers / 32);
      fence_proxy_async();
    }
    __syncthreads();
  }
};

struct Maps {
  TensorMap own_a, own_b, others_a, others_b;
};

// An item: rows of a head from row0 on, and which others its consumers need, from begin to end; this thread's own
// consumer (the producer's: none) those from first to last. Heads of one position go one after the other, and the
// positions with the most tiles first.
template <class P, bool rows_are_keys>
struct Item {
  unsigned b, head, row0, begin, end, first, last;

  __device__ Item(const AttentionShape& s, unsigned item) {
    const unsigned heads = unsigned(rows_are_keys ? s.KVH : s.H), T = unsigned(s.T), B = unsigned(s.B),
                   position = item / (B * heads), positions = (T + P::own_rows - 1) / P::own_rows;
    b = item / heads % B, head = item % heads;
    row0 = (rows_are_keys ? position : positions - 1 - position) * P::own_rows;
    const unsigned row = row0 + P::set() * unsigned(block), last_row = row0 + P::own_rows - unsigned(block);
    begin = first_of(s, row0), end = end_of(s, last_row < T ? last_row : row0);
    first = row < T ? first_of(s, row) : end, last = row < T ? end_of(s, row) : end;
  }

 private:
  __device__ static unsigned first_of(const AttentionShape& s, unsigned row) {
    return rows_are_keys ? row : unsigned(first_tile(s, row));
  }
  __device__ static unsigned end_of(const AttentionShape& s, unsigned row) {
    return rows_are_keys ? unsigned((end_of_queries(s, row) + block - 1) / block * block) : row + unsigned(block);
  }
};

template <int D, bool rows_are_keys, int owns, class P = Plan<D, rows_are_keys, owns>>
__device__ void produce(const Shared<P>& memory, const Maps& maps, const AttentionShape& s, unsigned items) {
  constexpr unsigned stages = P::stages;
  const unsigned group = unsigned(s.group()), heads = rows_are_keys ? group : 1;
  unsigned n = 0, taken = 0;  // pairs and items so far
  for (unsigned i = blockIdx.x; i < items; i += gridDim.x, taken++) {
    const Item<P, rows_are_keys> item(s, i);
    const unsigned row = item.b * unsigned(s.T);  // of token 0
    memory.own_empty->wait(taken % 2 ^ 1);
    memory.own_full->arrive(P::own_bytes);
#pragma unroll
    for (int set = 0; set < P::sets; set++) {
      unsigned char* const own = memory.own + set * owns * P::Own::bytes;
      const unsigned first = row + item.row0 + set * unsigned(block);
      P::Own::copy(own, maps.own_a, item.head * D, first, *memory.own_full);
      if (owns > 1) P::Own::copy(own + P::Own::bytes, maps.own_b, item.head * D, first, *memory.own_full);
    }
#pragma unroll 1
    for (unsigned h = 0; h < heads; h++) {
      const unsigned other = rows_are_keys ? item.head * heads + h : item.head / group;
#pragma unroll 1
      for (unsigned t = item.begin; t < item.end; t += P::tile_rows, n++) {
        Mbarrier& full = memory.full[n % stages];
        unsigned char* const pair = memory.ring + n % stages * P::pair;
        memory.empty[n % stages].wait(n / stages % 2 ^ 1);
        full.arrive(P::pair);
        P::Other::copy(pair, maps.others_a, other * D, row + t, full);
        P::Other::copy(pair + P::Other::bytes, maps.others_b, other * D, row + t, full);
      }
    }
  }
}

// x = own tile^T, later, of a tile of as many rows as x has columns.
template <int D, int rows>
__device__ void multiply(WgmmaSums<rows>& x, uint32_t own, uint32_t tile) {
  x.fence();
#pragma unroll
  for (int d = 0; d < D; d += int(mma_depth))
    x.template multiply<false, false>(Tile<D>::rows(own, d), Tile<D, rows>::rows(tile, d), d > 0);
}

// Columns of sums, rounded: the left factors of a step for each 16.
template <int rows>
struct Factors {
  MmaA step[rows / mma_depth] = {};
  template <class At>
  __device__ void round(At at) {
#pragma unroll
    for (int i = 0; i < rows / 2; i += 2) step[i / 8].x[i / 2 % 4] = two_bf16(at(i), at(i + 1));
  }
};

// to += factors * tile, later.
template <int D, int rows>
__device__ void accumulate(WgmmaSums<D>& to, const Factors<rows>& factors, uint32_t tile) {
  to.fence();
#pragma unroll
  for (int k = 0; k < rows / int(mma_depth); k++)
    to.template multiply<true>(factors.step[k], Tile<D, rows>::columns(tile, k * int(mma_depth)), true);
}

__device__ inline float2 load_two(const float* x) {
  return *reinterpret_cast<const float2*>(x);
}
__device__ inline float of_lane(float x, int lane) {
  return __shfl_sync(0xffffffffu, x, lane);
}

// factor times the sums of a lane, as mma has them.
template <int columns>
__device__ void as_tiles(MmaC (&to)[columns / 8], const WgmmaSums<columns>& sums, float factor = 1.0f) {
#pragma unroll
  for (int i = 0; i < WgmmaSums<columns>::count; i++) to[i / 4].x[i % 4] = factor * sums.x[i];
}

// x[row0 + row][...] = scale * sum, rounded, of this consumer's rows.
template <int D>
__device__ void store(bf16* x, size_t stride, size_t T, size_t row0, const WgmmaSums<D>& sums, float scale,
                      bf16* through) {
  MmaC scaled[D / 8];
  as_tiles(scaled, sums, scale);
  RowTile<D, true>::store(x, stride, T, row0, 0, D, scaled, through);
}

// A row of a lane in its consumer's 64.
__device__ inline int own_row(int half) {
  return row_of_lane(half) % int(block);
}

// An address that all lanes have, said so that the compiler sees it: descriptors are then made in a warp's own
// registers, where wgmma takes them from.
__device__ inline uint32_t of_warp(uint32_t x) {
  return __shfl_sync(0xffffffffu, x, 0);
}

// What a thread of a consumer knows: its 64 rows in shared memory, the first of them, and where they are stored from.
struct Consumer {
  uint32_t own;
  unsigned row0;
  bf16* stored;
};

// The ring as a consumer sees it.
template <class P>
struct Ring {
  const Shared<P>& memory;
  const bool arrives;  // for its warp
  unsigned taken = 0;

  // Waits for the next pair, and says where it is.
  __device__ uint32_t take() {
    const unsigned stage = wait();
    return of_warp(shared_address(memory.ring) + stage * P::pair);
  }
  // Gives back the pair that was taken last; the one before it.
  __device__ void give() const { give(taken - 1); }
  __device__ void give_before() const { give(taken - 2); }
  // Only the other consumer needs this one.
  __device__ void skip() {
    wait();
    __syncwarp();  // no lane waits any more for what is given back
    give();
  }

 private:
  __device__ void give(unsigned pair) const {
    if (arrives) memory.empty[pair % P::stages].arrive();
  }
  __device__ unsigned wait() {
    const unsigned stage = taken % P::stages;
    memory.full[stage].wait(taken++ / P::stages % 2);
    return stage;
  }
};

// A block's work. f(item, consumer, walk) is called for each of its items by the threads of the consumers; there
// walk(g) calls g(ring, head) for each head of the others' group, and g takes the pairs from item.first to item.last.
template <int D, bool rows_are_keys, int owns, class F>
__device__ __forceinline__ void for_each_item(unsigned char* shared, const Maps& maps, const AttentionShape& s,
                                              unsigned items, F f) {
  using P = Plan<D, rows_are_keys, owns>;
  const Shared<P> memory(shared);
  if (threadIdx.x >= consumers) {
    give_registers<producer_registers>();
    if (threadIdx.x == consumers) produce<D, rows_are_keys, owns>(memory, maps, s, items);
    return;
  }
  take_registers<consumer_registers>();
  const unsigned heads = rows_are_keys ? unsigned(s.group()) : 1;
  const uint32_t own = of_warp(shared_address(memory.own) + P::set() * owns * P::Own::bytes);
  Ring<P> ring{memory, threadIdx.x % 32 == 0};
  unsigned taken = 0;
  for (unsigned i = blockIdx.x; i < items; i += gridDim.x, taken++) {
    const Item<P, rows_are_keys> item(s, i);
    const auto walk = [&](auto g) {
      memory.own_full->wait(taken % 2);
#pragma unroll 1
      for (unsigned head = 0; head < heads; head++) {
#pragma unroll 1
        for (unsigned row = item.begin; row < item.first; row += P::tile_rows) ring.skip();
        g(ring, head);
#pragma unroll 1
        for (unsigned row = item.last; row < item.end; row += P::tile_rows) ring.skip();
      }
      if (ring.arrives) (P::wide ? memory.own_done : memory.own_empty)->arrive();
      if (P::wide) memory.own_done->wait(taken % 2);
    };
    f(item, Consumer{own, item.row0 + P::set() * unsigned(block), memory.stored}, walk);
    if (!P::wide) continue;
    fence_proxy_async();  // copies come over what was stored
    __syncwarp();
    if (ring.arrives) memory.own_empty->arrive();
  }
}

// A consumer's way through the pairs of an item that are its own, in steps that each kernel has:
//   ask(pair)                   asks for S, and in backward for dP
//   weigh(newest, head, row)    waits for them, while the newest groups may be under way; makes weights, or gradients.
//                               row: the pair's first
//   round()                     makes the next product's left factor of them
//   add(pair)                   asks for that product, which is added to the sums
//   finish()                    waits for it
// Where there is room, the next pair is weighed beside add(pair) (FlashAttention-3's algorithm 2):
//
//   tensor core   S1                   S2   sums 1                    S3   sums 2
//   consumer         weigh 1   round 1    weigh 2    finish   round 2    weigh 3    finish   round 3
//
template <class Item, class Walk, class Ask, class Weigh, class Round, class Add, class Finish>
__device__ __forceinline__ void for_each_pair(const Item& item, Walk walk, Ask ask, Weigh weigh, Round round, Add add,
                                              Finish finish) {
  constexpr std::integral_constant<int, 0> none;
  constexpr std::integral_constant<int, 1> one;
  walk([&]<class P>(Ring<P>& ring, unsigned head) {
    if constexpr (!P::beside) {
#pragma unroll 1
      for (unsigned row = item.first; row < item.last; row += P::tile_rows) {
        const uint32_t pair = ring.take();
        ask(pair);
        weigh(none, head, row);
        round();
        add(pair);
        finish();
        ring.give();
      }
    } else if (item.first < item.last) {
      uint32_t pair = ring.take();
      ask(pair);
      weigh(none, head, item.first);
      round();
#pragma unroll 1
      for (unsigned row = item.first + P::tile_rows; row < item.last; row += P::tile_rows) {
        const uint32_t next = ring.take();
        ask(next);
        add(pair);
        weigh(one, head, row);
        finish();
        ring.give_before();
        round();
        pair = next;
      }
      add(pair);
      finish();
      ring.give();
    }
  });
}

}  // namespace attention_wgmma

// ---- kernels

// Rows are queries.
template <int D>
__global__ void __launch_bounds__(attention_wgmma::threads, 1)
    attention_wgmma_forward_kernel(const __grid_constant__ attention_wgmma::Maps maps, bf16* o, float* lse,
                                   AttentionShape s, Sink sink, float scale, OutputGate gate, unsigned items) {
  using namespace attention_wgmma;
  DYNAMIC_SHARED(unsigned char, shared);
  for_each_item<D, false, 1>(shared, maps, s, items, [&](const auto& item, const Consumer& me, auto walk) {
    float m[2], l[2];
    for (int r = 0; r < 2; r++) {
      const size_t query = item.row0 + size_t(row_of_lane(r));
      m[r] = query < s.T ? first_max(sink, s, item.b, item.head, query) : 0.0f;
      l[r] = sink.logit ? 1.0f : 0.0f;
    }
    WgmmaSums<D> sum;
#pragma unroll
    for (int j = 0; j < sum.count; j++)
      sum.x[j] = sink.value ? sink.value[item.head * D + column_of_lane(j / 4, j)] : 0.0f;

    WgmmaSums<int(block)> scores;
    MmaC weights[block / 8];
    float alpha[2];
    Factors<int(block)> factors;
    const auto ask = [&](uint32_t pair) {
      multiply<D>(scores, me.own, pair);
      commit(scores);
    };
    const auto weigh = [&](auto newest, unsigned, unsigned j0) {
      wait_for_all<newest>(scores);
      as_tiles(weights, scores);
      if (const Mask seen(s, me.row0, block, j0, block); !seen.all())
#pragma unroll
        for (int j = 0; j < scores.count; j++)
          if (!seen(own_row(j / 2 % 2), column_of_lane(j / 4, j))) weights[j / 4].x[j % 4] = -INFINITY;
      online_softmax(weights, m, l, alpha, s.score, s.bias, scale);
    };
    const auto round = [&] {
      // Once the largest scores have come, alpha is 1 for all rows of a warp.
      if (__ballot_sync(0xffffffffu, alpha[0] != 1.0f || alpha[1] != 1.0f))
#pragma unroll
        for (int j = 0; j < sum.count; j++) sum.x[j] = sum.x[j] * alpha[j / 2 % 2];
      factors.round([&](int j) { return weights[j / 4].x[j % 4]; });
    };
    const auto add = [&](uint32_t pair) {
      accumulate<D>(sum, factors, pair + Tile<D>::bytes);
      commit(sum);
    };
    const auto finish = [&] {
      wait_for_all(sum);
      in_use(factors.step);
    };
    for_each_pair(item, walk, ask, weigh, round, add, finish);
    MmaC ended[D / 8];
    as_tiles(ended, sum);
    end_forward<RowTile<D, true>>(o, lse, ended, m, l, s, item.b, item.head, item.row0, me.stored, gate);
  });
}

// Rows are queries.
template <int D>
__global__ void __launch_bounds__(attention_wgmma::threads, 1)
    attention_wgmma_dq_kernel(const __grid_constant__ attention_wgmma::Maps maps, bf16* dq, const float* lse,
                              const float* delta, const float* sink_ds, AttentionShape s, Sink sink, float scale,
                              unsigned items) {
  using namespace attention_wgmma;
  DYNAMIC_SHARED(unsigned char, shared);
  for_each_item<D, false, 2>(shared, maps, s, items, [&](const auto& item, const Consumer& me, auto walk) {
    float base[2], delta_i[2], sink_weight[2] = {};
    for (int r = 0; r < 2; r++) {
      const size_t query = item.row0 + size_t(row_of_lane(r));
      base[r] = weight_base(s, lse, item.b, item.head, query);
      delta_i[r] = s.of_query(delta, item.b, item.head, query);
      if (sink.key) sink_weight[r] = s.of_query(sink_ds, item.b, item.head, query);
    }
    WgmmaSums<D> sum;
#pragma unroll
    for (int j = 0; j < sum.count; j++)
      sum.x[j] =
          sink.key ? fused(sink_weight[j / 2 % 2], sink.key[item.head * D + column_of_lane(j / 4, j)], 0.0f) : 0.0f;

    using P = Plan<D, false, 2>;
    WgmmaSums<P::tile_rows> score, ds;
    Factors<P::tile_rows> factors;
    const auto ask = [&](uint32_t pair) {
      multiply<D>(score, me.own, pair);
      multiply<D>(ds, me.own + P::Own::bytes, pair + P::Other::bytes);
      commit(score, ds);
    };
    const auto weigh = [&](auto newest, unsigned, unsigned j0) {
      wait_for_all<newest>(score, ds);
      by_score(s.score, [&]<AttentionScore kind>() {
#pragma unroll
        for (int j = 0; j < score.count; j++) {
          const int r = j / 2 % 2;
          const float p = weight_of(kind, score.x[j], for_weights(kind, scale), base[r]);
          ds.x[j] = gradient_of(kind, p, ds.x[j], delta_i[r]);
        }
      });
      if (const Mask seen(s, me.row0, block, j0, P::tile_rows); !seen.all())
#pragma unroll
        for (int j = 0; j < ds.count; j++)
          if (!seen(own_row(j / 2 % 2), column_of_lane(j / 4, j))) ds.x[j] = 0.0f;
    };
    const auto round = [&] { factors.round([&](int j) { return ds.x[j]; }); };
    const auto add = [&](uint32_t pair) {
      accumulate<D>(sum, factors, pair);
      commit(sum);
    };
    const auto finish = [&] {
      wait_for_all(sum);
      in_use(factors.step);
    };
    for_each_pair(item, walk, ask, weigh, round, add, finish);
    store<D>(dq + s.q_row(item.b, 0, item.head), s.q_step(), s.T, item.row0, sum, scale, me.stored);
  });
}

// Rows are keys, others are queries: head h of the group, then head h + 1, ...
template <int D>
__global__ void __launch_bounds__(attention_wgmma::threads, 1)
    attention_wgmma_dkdv_kernel(const __grid_constant__ attention_wgmma::Maps maps, bf16* dk, bf16* dv,
                                const float* lse, const float* delta, AttentionShape s, float scale, unsigned items) {
  using namespace attention_wgmma;
  DYNAMIC_SHARED(unsigned char, shared);
  using P = Plan<D, true, 2>;
  const int lane = int(threadIdx.x) % 32;
  for_each_item<D, true, 2>(shared, maps, s, items, [&](const auto& item, const Consumer& me, auto walk) {
    const auto make = [&]<bool makes_dk, bool makes_dv>() {
      WgmmaSums<D> dk_sum, dv_sum;
#pragma unroll
      for (int j = 0; j < dk_sum.count; j++) dk_sum.x[j] = dv_sum.x[j] = 0.0f;

      WgmmaSums<int(block)> p, ds;
      Factors<int(block)> of_v, of_k;
      const auto ask = [&](uint32_t pair) {
        multiply<D>(p, me.own, pair);
        if constexpr (makes_dk) multiply<D>(ds, me.own + P::Own::bytes, pair + P::Other::bytes);
        commit(p, ds);
      };
      const auto weigh = [&](auto newest, unsigned head, unsigned i0) {
        // A lane has the numbers of two queries of a tile, and gets those of its columns from the lanes that have them.
        const size_t queries = s.stat(item.b, item.head * s.group() + head, i0) + 2 * size_t(lane);
        const float2 two_bases = s.sigmoid() ? float2{-s.bias, -s.bias} : load_two(lse + queries),
                     two_deltas = load_two(delta + queries);
        const float base_x = for_weights(s.score, two_bases.x), base_y = for_weights(s.score, two_bases.y);
        if constexpr (makes_dk)
          wait_for_all<newest>(p, ds);
        else
          wait_for_all<newest>(p);
        by_score(s.score, [&]<AttentionScore kind>() {
#pragma unroll
          for (int c = 0; c < int(block) / 8; c++) {
            const int from = 4 * c + lane % 4;
            const float base[2] = {of_lane(base_x, from), of_lane(base_y, from)},
                        delta_i[2] = {of_lane(two_deltas.x, from), of_lane(two_deltas.y, from)};
#pragma unroll
            for (int j = 4 * c; j < 4 * c + 4; j++) {
              p.x[j] = weight_of(kind, p.x[j], for_weights(kind, scale), base[j % 2]);
              if constexpr (makes_dk) ds.x[j] = gradient_of(kind, p.x[j], ds.x[j], delta_i[j % 2]);
            }
          }
        });
        if (const Mask seen(s, i0, block, me.row0, block); !seen.all())
#pragma unroll
          for (int j = 0; j < p.count; j++)
            if (!seen(column_of_lane(j / 4, j), own_row(j / 2 % 2))) p.x[j] = ds.x[j] = 0.0f;
      };
      const auto round = [&] {
        of_v.round([&](int j) { return p.x[j]; });
        if constexpr (makes_dk) of_k.round([&](int j) { return ds.x[j]; });
      };
      const auto add = [&](uint32_t pair) {
        if constexpr (makes_dv) accumulate<D>(dv_sum, of_v, pair + P::Other::bytes);
        if constexpr (makes_dk) accumulate<D>(dk_sum, of_k, pair);
        commit(dv_sum, dk_sum);
      };
      const auto finish = [&] {
        if constexpr (makes_dk && makes_dv)
          wait_for_all(dv_sum, dk_sum);
        else
          wait_for_all(makes_dk ? dk_sum : dv_sum);
        if constexpr (makes_dv) in_use(of_v.step);
        if constexpr (makes_dk) in_use(of_k.step);
      };
      for_each_pair(item, walk, ask, weigh, round, add, finish);
      const size_t head = s.kv_row(item.b, 0, item.head);
      // (rows of a lane are those of the block's consumers; in dv alone they are the second's)
      if constexpr (makes_dk) store<D>(dk + head, s.kv_step(), s.T, item.row0, dk_sum, scale, me.stored);
      if constexpr (makes_dv)
        store<D>(dv + head, s.kv_step(), s.T, makes_dk ? item.row0 : item.row0 - size_t{block}, dv_sum, 1.0f,
                 me.stored);
    };
    if constexpr (!P::wide)
      make.template operator()<true, true>();
    else if (threadIdx.x < wgmma_threads)
      make.template operator()<true, false>();
    else
      make.template operator()<false, true>();
  });
}

// ---- launchers

// May the kernels run, and are these what copies can read?
static bool are_for(const AttentionShape& s, std::initializer_list<TmaMatrix> matrices, Context& ctx) {
  using namespace attention_wgmma;
  if ((s.D != 64 && s.D != 128 && s.D != 256) || s.T % block > 0 || s.B * s.T == 0 || !runs_wgmma(ctx)) return false;
  if (s.B * s.H * s.T > tma_most_coordinate) return false;
  for (const TmaMatrix& m : matrices)
    if (tma_refuses(m)) return false;
  return true;
}
// Rows (B,T,width): copies bring `rows` of them.
static TmaMatrix rows_of(const bf16* x, size_t width, const AttentionShape& s, int rows = int(attention_wgmma::block)) {
  return tma_matrix(x, width, width, s.B * s.T, rows);
}
// f<D>()
template <class F>
static bool by_width(size_t D, F f) {
  return D == 64 ? f.template operator()<64>() : D == 128 ? f.template operator()<128>() : f.template operator()<256>();
}
// Launches a kernel of this Plan, for `heads` heads.
template <class P, class Kernel, class... Args>
static void launch_plan(Kernel kernel, const AttentionShape& s, size_t heads, Context& ctx, Args... args) {
  const size_t items = s.B * heads * ceil_div(s.T, P::own_rows);
  launch(kernel, grid_of(std::min(items, multiprocessors())), attention_wgmma::threads, P::shared, ctx, args...,
         unsigned(items));
}

bool attention_wgmma_forward(bf16* o, float* lse, const bf16* q, const bf16* k, const bf16* v, const AttentionShape& s,
                             const Sink& sink, Context& ctx, const OutputGate& gate) {
  using namespace attention_wgmma;
  const TmaMatrix of_q = rows_of(q, s.q_step(), s), of_k = rows_of(k, s.kv_step(), s),
                  of_v = rows_of(v, s.kv_step(), s);
  if (!are_for(s, {of_q, of_k, of_v}, ctx)) return false;
  return by_width(s.D, [&]<int D>() {
    using P = Plan<D, false, 1>;
    if (shared_limit() < P::shared) return false;
    const TensorMap queries = tensor_map(of_q);
    launch_plan<P>(attention_wgmma_forward_kernel<D>, s, s.H, ctx,
                   Maps{queries, queries, tensor_map(of_k), tensor_map(of_v)}, o, lse, s, sink, weight_scale(s), gate);
    return true;
  });
}

bool attention_wgmma_backward(bf16* dq, bf16* dk, bf16* dv, const bf16* dout, const bf16* q, const bf16* k,
                              const bf16* v, const float* lse, const float* delta, const float* sink_ds,
                              const AttentionShape& s, const Sink& sink, Context& ctx) {
  using namespace attention_wgmma;
  const TmaMatrix of_q = rows_of(q, s.q_step(), s), of_dout = rows_of(dout, s.q_step(), s),
                  of_k = rows_of(k, s.kv_step(), s), of_v = rows_of(v, s.kv_step(), s);
  if (!are_for(s, {of_q, of_dout, of_k, of_v}, ctx)) return false;
  if (uintptr_t(lse) % sizeof(float2) > 0 || uintptr_t(delta) % sizeof(float2) > 0) return false;
  return by_width(s.D, [&]<int D>() {
    using OfDq = Plan<D, false, 2>;
    using OfDkdv = Plan<D, true, 2>;
    if (shared_limit() < std::max(OfDq::shared, OfDkdv::shared)) return false;
    const TensorMap queries = tensor_map(of_q), douts = tensor_map(of_dout), keys = tensor_map(of_k),
                    values = tensor_map(of_v);
    const auto others = [&](const bf16* x) { return tensor_map(rows_of(x, s.kv_step(), s, OfDq::tile_rows)); };
    const float scale = attention_scale<float>(s.divisor());
    launch_plan<OfDq>(attention_wgmma_dq_kernel<D>, s, s.H, ctx, Maps{queries, douts, others(k), others(v)}, dq, lse,
                      delta, sink_ds, s, sink, scale);
    launch_plan<OfDkdv>(attention_wgmma_dkdv_kernel<D>, s, s.KVH, ctx, Maps{keys, values, queries, douts}, dk, dv, lse,
                        delta, s, scale);
    return true;
  });
}

}  // namespace gated
