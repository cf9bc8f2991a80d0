// attention_bf16_tile: what the kernels of attention_bf16 are made of: two products, the mask, the softmax that goes
// along with them, and the end of the forward.
//
//   product      S[row][column]  += chain over d of A[row][d] * B[column][d]                   scores, and dp
//   accumulate   acc[row][d]     += chain over columns of weight[row][column] * X[column][d]   o, dq, dk and dv
//
// A block has 128 threads and 64 rows, a warp 16 of them: A and the rows of S and acc are its own, B and X are for all.
// A lane holds of S and acc what core/mma.cuh says of C, in tiles of 16 x 8. With g = lane / 4 and t = lane % 4:
//
//               columns of one step of accumulate: 16
//               S[2n]   0 1  2 3  4 5  6 7 | S[2n+1]  8 9  10 11  12 13  14 15
//    row g      x[0..1] t=0  t=1  t=2  t=3 | x[0..1]  t=0   t=1    t=2    t=3
//    row g+8    x[2..3]                    | x[2..3]
//
// As a left factor (A in core/mma.cuh) a lane holds of row g the columns 2t, 2t+1 and 2t+8, 2t+9, and the same of row
// g+8: those are the numbers that it has. So weights, rounded, two to a register, are the next product's factor as they
// stand:
//
//    A.x[0] = S[2n].x[0..1]   A.x[1] = S[2n].x[2..3]   A.x[2] = S[2n+1].x[0..1]   A.x[3] = S[2n+1].x[2..3]
//
// Rows of D elements lie in shared memory in chunks of 8 (16 bytes), chunk c of row r at c xor r % 8: ldmatrix reads
// one chunk of eight rows at a time, which would else all lie in the same banks.
//
// D may be any multiple of 16. `columns` is what registers and shared memory have room for; `whole` says that D is just
// that, so that no loop asks.
#pragma once
#include <initializer_list>

#include "core/mma_tile.cuh"
#include "kernels/bf16/attention_bf16.cuh"
#include "kernels/gate.cuh"

namespace gated::attention_bf16 {

using namespace mma_tile;
using attention::blocks_an_sm;

// f<columns, whole>(): the usual widths have kernels of their own, and two serve for what lies between.
template <class F>
void by_room(size_t D, F f) {
  if (D == 64) return f.template operator()<64, true>();
  if (D == 128) return f.template operator()<128, true>();
  if (D < 128) return f.template operator()<128, false>();
  f.template operator()<256, false>();
}

void require_shape(const char* name, const AttentionShape& s, const Sink& sink,
                   std::initializer_list<const bf16*> arrays);

// The T rows of one head: `stride` elements from one to the next.
struct Rows {
  const bf16* data;
  size_t stride, count;
  __device__ bool has(size_t row) const { return row < count; }
  __device__ size_t at(size_t row) const { return row * stride; }
};

// Which of the queries i0 .. i0 + queries - 1, as far as they are tokens, see which of the keys j0 .. j0 + keys - 1.
// There are fewer than 2^31 tokens: a grid of tiles has no more (grid_tiles()), nor has what TMA copies.
class Mask {
 public:
  __device__ Mask(const AttentionShape& s, size_t i0, int queries, size_t j0, int keys)
      : behind_(int(i0) - int(j0)),
        reach_(int(s.reach())),
        tokens_(int(s.T) - int(i0)),
        all_(behind_ >= keys - 1 && behind_ + queries <= reach_ && queries <= tokens_) {}
  __device__ bool all() const { return all_; }
  __device__ bool operator()(int query, int key) const {
    return query < tokens_ && unsigned(behind_ + (query - key)) < unsigned(reach_);
  }

 private:
  int behind_, reach_, tokens_;
  bool all_;
};

// f<score>(), so that the question which score stands outside of its loops.
template <class F>
__device__ inline void by_score(AttentionScore score, F f) {
  if (score == AttentionScore::softmax)
    f.template operator()<AttentionScore::softmax>();
  else
    f.template operator()<AttentionScore::sigmoid>();
}

// Sums over d become weights; base(n, e) is that of an element.
template <int tiles, class Base>
__device__ inline void weights_of(MmaC (&x)[tiles], AttentionScore score, float scale, Base base) {
  by_score(score, [&]<AttentionScore kind>() {
#pragma unroll
    for (int n = 0; n < tiles; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) x[n].x[e] = weight_of(kind, x[n].x[e], scale, base(n, e));
  });
}

// A tile of scores c becomes the weights of the online softmax, as far as the two rows of a lane go: -inf is the score
// of a masked pair, m and l are those of the tiles before and become those with this one, and alpha is what sums over
// values are multiplied by. The reference has max_of, which is two instructions. Where max_number differs, no bit does:
// zeros weigh alike, and a NaN makes a NaN of its own weight, or, where a sink has it, of alpha.
__device__ inline void online_softmax(MmaC (&score)[block / 8], float (&m)[2], float (&l)[2], float (&alpha)[2],
                                      AttentionScore kind, float bias, float scale) {
  float base[2] = {-bias, -bias};
  alpha[0] = alpha[1] = 1.0f;
  if (kind == AttentionScore::softmax)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float largest = max_number(score[0].x[2 * r], score[0].x[2 * r + 1]);
#pragma unroll
      for (int n = 1; n < int(block) / 8; n++)
        largest = max_number(max_number(score[n].x[2 * r], score[n].x[2 * r + 1]), largest);
      for (int flip = 1; flip < 4; flip *= 2)
        largest = max_number(__shfl_xor_sync(0xffffffffu, largest, flip), largest);
      const float before = m[r];
      m[r] = max_number(largest * scale, before);
      base[r] = finite_max(m[r]);
      alpha[r] = short_exp2(before - base[r]);
    }
  weights_of(score, kind, scale, [&](int, int e) { return base[e / 2]; });
  // Columns of a lane are 2t and 2t + 1 mod 8: two of the eight sums.
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float even = score[0].x[2 * r], odd = score[0].x[2 * r + 1];
#pragma unroll
    for (int n = 1; n < int(block) / 8; n++) {
      even = even + score[n].x[2 * r];
      odd = odd + score[n].x[2 * r + 1];
    }
    l[r] = fused(l[r], alpha[r], sum_of_quad(even + odd));
  }
}

// ---- tiles in shared memory: rows of up to `columns` elements

template <int columns, bool whole>
struct RowTile {
  static constexpr int chunks = columns / chunk;

  // Eight rows on is 8 * columns on: as a constant that is a part of the instruction, by place() it is two more.
  __device__ static int place(int row, int c) { return (row * chunks + (c ^ row % 8)) * chunk; }
  __device__ static bool inside(int d, size_t D) { return whole || size_t(d) < D; }

  // Asks for `count` rows from row0 on; those that are not there are 0. A thread copies the same chunk of every
  // threads / chunks-th row.
  template <class RowsOf>
  __device__ static void copy(bf16* to, const RowsOf& x, size_t row0, int count, size_t D, AsyncCopies& copies) {
    const int c = threadIdx.x % chunks, first = threadIdx.x / chunks;
    if (!inside(c * chunk, D)) return;
#pragma unroll
    for (int row = first; row < first + count; row += threads / chunks) {
      const bool there = x.has(row0 + row);
      copies.copy16(to + place(row, c), there ? x.data + x.at(row0 + row) + c * chunk : x.data, there ? 16 : 0);
    }
  }

  // Of 64 rows those of this warp.
  __device__ static const bf16* own(const bf16* tile) {
    return tile + threadIdx.x / 32 * 16 * columns;
  }

  // sum[n] goes on with the chains over D of 16 rows of `a` and rows 8n .. 8n + 7 of `b`, which has `count` rows. Both
  // begin at a multiple of 8 rows of a tile.
  template <int count>
  __device__ static void product(MmaC (&sum)[count / 8], const bf16* a, const bf16* b, size_t D) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int d = 0; d < columns; d += int(mma_depth)) {
      if (!inside(d, D)) break;
      MmaA left;
      ldmatrix<false>(left.x, a + place(lane % 16, d / chunk + lane / 16));
#pragma unroll
      for (int n = 0; n < count / 8; n += 2) {
        uint32_t x[4];
        ldmatrix<false>(x, b + 8 * n * columns + place(lane / 16 * 8 + lane % 8, d / chunk + lane / 8 % 2));
        mma(sum[n], left, MmaB{{x[0], x[1]}});
        mma(sum[n + 1], left, MmaB{{x[2], x[3]}});
      }
    }
  }

  // sum[n] goes on with the chains over the `count` rows of x of weight[row] * x[row][column0 + 8n ..].
  template <int count, int sums>
  __device__ static void accumulate(MmaC (&sum)[sums], const MmaC (&weight)[count / 8], const bf16* x, int column0,
                                    size_t D) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < count / 8; k += 2) {
      const MmaC &w = weight[k], &next = weight[k + 1];
      const MmaA left = {{two_bf16(w.x[0], w.x[1]), two_bf16(w.x[2], w.x[3]), two_bf16(next.x[0], next.x[1]),
                          two_bf16(next.x[2], next.x[3])}};
#pragma unroll
      for (int n = 0; n < sums; n += 2) {
        if (!inside(column0 + 8 * n, D)) break;
        uint32_t right[4];
        ldmatrix<true>(right, x + 8 * k * columns + place(lane % 16, column0 / chunk + n + lane / 16));
        mma(sum[n], left, MmaB{{right[0], right[1]}});
        mma(sum[n + 1], left, MmaB{{right[2], right[3]}});
      }
    }
  }

  // x[row0 + row][column0 + column] = sum, rounded, where that exists. It passes through the warp's own rows of a tile
  // that nobody reads any more: so a warp writes 16 neighbouring bytes a lane.
  template <int sums>
  __device__ static void store(bf16* x, size_t stride, size_t T, size_t row0, int column0, size_t D,
                               const MmaC (&sum)[sums], bf16* tile) {
    using Pair = uint32_t __attribute__((may_alias));
    __syncwarp();  // the rows have been read
#pragma unroll
    for (int n = 0; n < sums; n++)
#pragma unroll
      for (int half = 0; half < 2; half++)
        *reinterpret_cast<Pair*>(tile + place(row_of_lane(half), n) + column_of_lane(0, 0)) =
            two_bf16(sum[n].x[2 * half], sum[n].x[2 * half + 1]);
    __syncwarp();  // the rows are written
    const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16;
    for (int i = lane; i < 16 * sums; i += 32) {
      const int row = warp_row + i / sums, c = i % sums;
      if (row0 + row < T && inside(column0 + c * chunk, D))
        *reinterpret_cast<Chunk*>(x + (row0 + row) * stride + column0 + c * chunk) =
            *reinterpret_cast<const Chunk*>(tile + place(row, c));
    }
  }
  // f(row, column, quad, load(row, column)) for the numbers of whole rows that this warp has stored last. Neighbouring
  // lanes have neighbouring quads. The next one's load is on its way while one is at work.
  template <class Load, class F>
  __device__ static void each_stored_quad(size_t T, size_t row0, size_t D, const bf16* tile, Load load, F f) {
    constexpr int quads = 16 * columns / 4;
    const auto where = [&](int i, auto g) {
      const int row = int(threadIdx.x) / 32 * 16 + i / (columns / 4), d = i % (columns / 4) * 4;
      if (i < quads && row0 + row < T && inside(d, D)) g(row, d);
    };
    FourBf16 next = {};
    const auto ask = [&](int i) { where(i, [&](int row, int d) { next = load(row0 + row, d); }); };
    const int lane = threadIdx.x % 32;
    ask(lane);
#pragma unroll 1
    for (int i = lane; i < quads; i += 32) {
      const FourBf16 now = next;
      ask(i + 32);
      where(i, [&](int row, int d) { f(row0 + row, d, load_four(tile + place(row, d / chunk) + d % chunk), now); });
    }
  }
};

// ---- the end of the forward

// A lane's sums over values, and m and l, of two queries of the block whose first is i0: o and lse, and y where there
// is a gate. `tile` is nobody's any more.
template <class Tile, int sums>
__device__ inline void end_forward(bf16* o, float* lse, MmaC (&sum)[sums], const float (&m)[2], const float (&l)[2],
                                   const AttentionShape& s, size_t b, size_t h, size_t i0, bf16* tile,
                                   const OutputGate& gate) {
  for (int r = 0; r < 2; r++) {
    const size_t i = i0 + row_of_lane(r);
    const float inverse = s.sigmoid() ? 1.0f : 1.0f / l[r];
#pragma unroll
    for (int n = 0; n < sums; n++)
#pragma unroll
      for (int e = 2 * r; e < 2 * r + 2; e++) sum[n].x[e] = sum[n].x[e] * inverse;
    if (i < s.T && threadIdx.x % 4 == 0) lse[s.stat(b, h, i)] = s.sigmoid() ? 0.0f : lse_of(m[r], l[r]);
  }
  Tile::store(o + s.q_row(b, 0, h), s.q_step(), s.T, i0, 0, s.D, sum, tile);
  if (!gate.y) return;
  const auto head = [&](size_t i) { return (b * s.T + i) * s.H + h; };
  with_known_activation<any_gate>(gate.op.act, [&](auto act) {
    Tile::each_stored_quad(
        s.T, i0, s.D, tile,
        [&](size_t i, int d) {
          if (gate.group == 1) return *reinterpret_cast<const FourBf16*>(gate.z + head(i) * s.D + d);
          const bf16 z = gate.z[head(i)];
          return FourBf16{{z, z, z, z}};
        },
        [&](size_t i, int d, Quad x, const FourBf16& z) {
          const GateOp op{act, gate.op.additive, gate.op.scale};
          for (int k = 0; k < 4; k++) x.v[k] = gate_y(op, x.v[k], gate_score(op, z.v[k]));
          store_four(gate.y + head(i) * s.D + d, x);
        });
  });
}

}  // namespace gated::attention_bf16
