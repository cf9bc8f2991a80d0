// gated_delta_cpu: the gated delta rule of kernels/gated_delta.cu on a CPU, near the speed of its arithmetic, with the
// same bits.
//
// Forward has two dots over a key in each token, so columns of a state lie across the lanes of a vector: a chain is a
// vector, and nothing is added across lanes. A task owns a head and goes through 64 tokens at a time, two vectors of
// columns after two others: their state, 128 x 32 numbers, then stays in the L1 cache. One pass over it does three
// things for row i, which is loaded and stored once:
//     S_i <- alpha S_i + k_i u        the update of token t
//     o   += q_i S_i                  what token t reads
//     P   += k'_i S_i                 what the state holds for the key of token t + 1
// Four operations for a vector of the state, and no more loads than a core has time for. The 16 chains of a dot are
// made four at a time, rows c .. c+3, c+16 .. c+19, ..., so that two dots of four chains of two vectors fill 16
// registers.
//
// Backward has three sums over columns and one dot over a key, so there a vector lies along a column: a sum over
// columns is a multiply-add with one number of each column, and the dot is a vector of 16 chains. A task owns a key
// head of a sequence with the value heads that read it, because dq and dk add these up. It goes through the 64 tokens
// of an interval, the last interval first, slice of 16 columns after slice. First it makes the states of the slice, and
// then walks back. One pass over dS and the state S between two tokens finishes the later one and begins the earlier:
//     dk  += dS u,  dk' += S w,  dS <- alpha dS + k w,  dg += S dS         of token t
//     dS  += q do,  dq += S do,  du += dS k                                of token t - 1
// Eight operations for a vector. Of the states every second is stored, which halves what the L2 cache has to hold and
// to move; the ones between are made in the pass that needs them, with two operations more.
//
// What tokens bring and take is copied, 64 rows at a time, from and to memory where rows lie far apart.
// Scratch: ForwardWorkspace and Workspace for each thread, 224 KiB and 657 KiB for heads of 128 with Hv/Hk = 2.
// tests/test_gated_delta.cpp
#include <omp.h>

#include <algorithm>
#include <type_traits>

#include "kernels/cpu/gated_delta_cpu.h"

namespace gated {
namespace gated_delta_cpu {

constexpr size_t slice = gated_delta_slice, interval = gated_delta_interval;
static_assert(slice == 16);

// ---- forward

constexpr size_t across = vector_registers / 16;  // vectors of columns
constexpr size_t width = across * lanes;

// The sums over rows of a[i] * S_i and b[i] * S_i, where S_i is row i after the update alpha * S_i + k[i] * u. Without
// `update` S stays as it is.
template <bool update>
void pass(vec (&to_a)[across], vec (&to_b)[across], float* S, const float* a, const float* b, float alpha,
          const float* k, const vec (&u)[across], size_t Dk) {
  const vec decay = broadcast(alpha);
  vec write[across];  // a copy: for all the compiler knows, a store into S changes u
#pragma GCC unroll 2
  for (size_t v = 0; v < across; v++) write[v] = u[v];
  vec four_a[4][across], four_b[4][across];  // sums of four neighbouring chains
#pragma GCC unroll 1
  for (size_t c = 0; c < chains; c += 4) {
    vec chain_a[4][across], chain_b[4][across];
#pragma GCC unroll 4
    for (size_t r = 0; r < 4; r++)
#pragma GCC unroll 2
      for (size_t v = 0; v < across; v++) chain_a[r][v] = chain_b[r][v] = vec{};
    const auto link = [&](size_t i, size_t r, vec ai, vec bi, vec ki) __attribute__((always_inline)) {
#pragma GCC unroll 2
      for (size_t v = 0; v < across; v++) {
        float* const at = S + i * width + v * lanes;
        vec x = load(at);
        if constexpr (update) {
          x = fma(ki, write[v], decay * x);
          store(at, x);
        }
        chain_a[r][v] = fma(ai, x, chain_a[r][v]);
        chain_b[r][v] = fma(bi, x, chain_b[r][v]);
      }
    };
    size_t i = c;
    for (; i + 4 <= Dk; i += chains) {
      Broadcasts<> ai{a + i}, bi{b + i}, ki{k + i};
#pragma GCC unroll 4
      for (size_t r = 0; r < 4; r++) link(i + r, r, ai(r), bi(r), ki(r));
    }
#pragma GCC unroll 4
    for (size_t r = 0; r < 4; r++)
      if (i + r < Dk) link(i + r, r, broadcast(a[i + r]), broadcast(b[i + r]), broadcast(k[i + r]));
#pragma GCC unroll 2
    for (size_t v = 0; v < across; v++) {
      four_a[c / 4][v] = (chain_a[0][v] + chain_a[1][v]) + (chain_a[2][v] + chain_a[3][v]);
      four_b[c / 4][v] = (chain_b[0][v] + chain_b[1][v]) + (chain_b[2][v] + chain_b[3][v]);
    }
  }
#pragma GCC unroll 2
  for (size_t v = 0; v < across; v++) {
    to_a[v] = (four_a[0][v] + four_a[1][v]) + (four_a[2][v] + four_a[3][v]);
    to_b[v] = (four_b[0][v] + four_b[1][v]) + (four_b[2][v] + four_b[3][v]);
  }
}

// Rows of `n` columns of a state between the task's memory and an array (Dk,Dv).
static void load_state(float* S, const float* from, size_t Dk, size_t Dv, size_t n) {
  for (size_t i = 0; i < Dk; i++)
    for (size_t l = 0; l < width; l += lanes)
      store(S + i * width + l, from && l < n ? load_first(from + i * Dv + l, n - l) : vec{});
}
static void store_state(float* to, const float* S, size_t Dk, size_t Dv, size_t n) {
  for (size_t i = 0; i < Dk; i++)
    for (size_t l = 0; l < n; l += lanes) store_first(to + i * Dv + l, load(S + i * width + l), n - l);
}

// What a thread works with: the states of its columns, padded to whole blocks (V), and the tokens of an interval.
struct ForwardWorkspace {
  float* S;              // (blocks, Dk, width)
  float *q, *k;          // (64, Dk)
  float *v, *error, *o;  // (64, V)

  static size_t padded(size_t n) { return round_up(n, width); }
  ForwardWorkspace(Pieces& pieces, const GatedDeltaShape& s) {
    const size_t V = padded(s.Dv);
    S = pieces.take<float>(V * s.Dk);
    for (float** x : {&q, &k}) *x = pieces.take<float>(interval * s.Dk);
    for (float** x : {&v, &error, &o}) *x = pieces.take<float>(interval * V);
  }
};

// Columns j0 .. j1-1 of one head. Block after block of columns goes through the tokens of an interval: meanwhile its
// state is in the L1 cache, and what the tokens bring and take in the L2. In memory tokens lie far apart; a store that
// waits for it would hold up all those after it.
static void forward_columns(const GatedDeltaOut& out, const GatedDeltaIn& in, const GatedDeltaShape& s,
                            const ForwardWorkspace& w, size_t b, size_t h, size_t j0, size_t j1) {
  const size_t block = width * s.Dk, V = ForwardWorkspace::padded(s.Dv), n = j1 - j0, all = s.Hv * s.Dv;
  const auto state_of = [&](size_t j) { return w.S + (j - j0) / width * block; };
  const auto columns = [&](size_t j) { return std::min(width, s.Dv - j); };
  for (size_t j = j0; j < j1; j += width)
    load_state(state_of(j), in.initial ? in.initial + s.state(b, h) + j : nullptr, s.Dk, s.Dv, columns(j));
  std::fill_n(w.v, interval * V, 0.0f);  // what is past the end of a row stays 0

  for (size_t t0 = 0; t0 < s.T; t0 += interval) {
    const size_t count = std::min(interval, s.T - t0), row = s.o_row(b, t0, h) + j0;
    copy_rows(w.q, s.Dk, in.q + s.qk_row(b, t0, h), s.qk_step(), count, s.Dk);
    copy_rows(w.k, s.Dk, in.k + s.qk_row(b, t0, h), s.qk_step(), count, s.Dk);
    copy_rows(w.v, V, in.v + s.v_row(b, t0, h) + j0, s.v_step(), count, n);
    for (size_t j = j0; j < j1; j += width) {
      float* const S = state_of(j);
      if (out.kept && t0 > 0)
        store_state(out.kept + s.kept_state(b, h, t0 / interval - 1) + j, S, s.Dk, s.Dv, columns(j));
      vec stored[across], o[across], u[across] = {};
      pass<false>(o, stored, S, w.k, w.k, 1.0f, w.k, u, s.Dk);
      for (size_t m = 0; m < count; m++) {
        const size_t number = s.number(b, t0 + m, h), at = m * V + j - j0;
        const float alpha = exact_exp(in.g[number]);
        for (size_t l = 0; l < width; l += lanes) {
          const vec error = fma(broadcast(-alpha), stored[l / lanes], load(w.v + at + l));
          store(w.error + at + l, error);
          u[l / lanes] = broadcast(in.beta[number]) * error;
        }
        const float *k = w.k + m * s.Dk, *next = m + 1 < count ? k + s.Dk : k;  // after the last nobody asks
        pass<true>(o, stored, S, w.q + m * s.Dk, next, alpha, k, u, s.Dk);
        for (size_t l = 0; l < width; l += lanes) store(w.o + at + l, o[l / lanes]);
      }
    }
    copy_rows(out.o + row, all, w.o, V, count, n);
    if (out.error) copy_rows(out.error + row, all, w.error, V, count, n);
  }
  for (size_t j = j0; out.final && j < j1; j += width)
    store_state(out.final + s.state(b, h) + j, state_of(j), s.Dk, s.Dv, columns(j));
}

// ---- backward
//
// A tile is 16 columns of a state, vectors of `lanes` rows one after the other: vector m of column j is number m*16 +
// j. A vector of 16 chains has 16/lanes pieces; vector m of a column belongs to piece m mod that.

// What a thread works with: the tokens of an interval, of the key head and of one value head. All rows are padded to
// multiples of 16 with zeros, D and V numbers.
struct Workspace {
  float* states;                 // (33, tile): before tokens 0, 2, 4, ...
  float* dS;                     // (heads of the group, slices, tile)
  float *q, *k, *dq, *dk;        // (64, D)
  float *u, *error, *dout, *dv;  // (64, V)
  float *alpha, *beta;           // (64)
  float *dg, *dbeta;             // (64, 16): chains of a slice

  static size_t padded(size_t n) { return round_up(n, 16); }
  Workspace(Pieces& pieces, const GatedDeltaShape& s) {
    const size_t D = padded(s.Dk), V = padded(s.Dv), tile = D * slice;
    const auto take = [&](size_t n) { return pieces.take<float>(n); };
    states = take((interval / 2 + 1) * tile);
    dS = take(s.group() * s.slices() * tile);
    for (float** x : {&q, &k, &dq, &dk}) *x = take(interval * D);
    for (float** x : {&u, &error, &dout, &dv}) *x = take(interval * V);
    for (float** x : {&alpha, &beta}) *x = take(interval);
    for (float** x : {&dg, &dbeta}) *x = take(interval * slice);
  }
};

// Rows of a tile that are real are from 0 to Dk.
static void load_tile(float* tile, const float* from, size_t Dk, size_t Dv, size_t n) {
  for (size_t i0 = 0; i0 < Workspace::padded(Dk); i0 += lanes)
    for (size_t j0 = 0; j0 < slice; j0 += lanes) {
      vec x[lanes];
      for (size_t r = 0; r < lanes; r++)
        x[r] = from && i0 + r < Dk && j0 < n ? load_first(from + (i0 + r) * Dv + j0, n - j0) : vec{};
      transpose(x);
      for (size_t r = 0; r < lanes; r++) store(tile + i0 * slice + (j0 + r) * lanes, x[r]);
    }
}
static void store_tile(float* to, const float* tile, size_t Dk, size_t Dv, size_t n) {
  for (size_t i0 = 0; i0 < Dk; i0 += lanes)
    for (size_t j0 = 0; j0 < n; j0 += lanes) {
      vec x[lanes];
      for (size_t r = 0; r < lanes; r++) x[r] = load(tile + i0 * slice + (j0 + r) * lanes);
      transpose(x);
      for (size_t r = 0; r < lanes && i0 + r < Dk; r++) store_first(to + (i0 + r) * Dv + j0, x[r], n - j0);
    }
}

// What a token does to a state: S <- alpha S + k u.
struct Token {
  const float* k = nullptr;
  const float* u = nullptr;
  float alpha = 1;
};

static void two_steps(float* to, const float* S, const Token& first, const Token& second, size_t D) {
  const vec decay0 = broadcast(first.alpha), decay1 = broadcast(second.alpha);
  for (size_t i = 0; i < D; i += lanes) {
    const vec k0 = load(first.k + i), k1 = load(second.k + i);
    Broadcasts<> u0{first.u}, u1{second.u};
#pragma GCC unroll 16
    for (size_t j = 0; j < slice; j++) {
      const size_t at = i * slice + j * lanes;
      const vec between = fma(k0, u0(j), decay0 * load(S + at));
      store(to + at, fma(k1, u1(j), decay1 * between));
    }
  }
}

// What a pass does of the later and of the earlier of two tokens.
struct Later {
  Token token;
  float w[slice];
  float *dk = nullptr, *dg = nullptr;
};
struct Earlier {
  Token token;
  const float *q = nullptr, *dout = nullptr;
  float* dq = nullptr;
  float du[slice];
};

static vec first_lanes(size_t n, vec x, vec other) {
  decltype(x < other) index;
  for (size_t l = 0; l < lanes; l++) index[l] = int(l);
  return index < int(n) ? x : other;
}

// S: the state between the two, or where `make` is set the one before the earlier. whole: the slice has 16 columns.
template <bool finish, bool begin, bool make, bool whole>
void pass_back(float* dS, const float* S, Later& later, Earlier& earlier, size_t Dk, size_t columns) {
  const size_t n = whole ? slice : columns;
  vec du[pieces][slice];
#pragma GCC unroll 16
  for (size_t j = 0; j < slice; j++)
#pragma GCC unroll 4
    for (size_t p = 0; p < pieces; p++) du[p][j] = vec{};
  vec dg[pieces] = {};
  const vec decay = broadcast(later.token.alpha), decay_before = broadcast(earlier.token.alpha);

  const vec zero{};  // outside the lambda: inside, nvcc 13.0 fails at a constant vector
  const auto rows = [&](size_t i, auto partial) __attribute__((always_inline)) {
    const size_t p = i / lanes % pieces;
    vec to_q = zero, from_write = zero, from_error = zero, product = zero, later_k = zero, q = zero, k = zero;
    if constexpr (finish) later_k = load(later.token.k + i);
    if constexpr (begin) q = load(earlier.q + i), k = load(earlier.token.k + i);
    Broadcasts<whole> w{later.w}, u{later.token.u}, dout{earlier.dout}, earlier_u{earlier.token.u};
#pragma GCC unroll 16
    for (size_t j = 0; j < n; j++) {
      const size_t at = i * slice + j * lanes;
      vec d = load(dS + at), state = load(S + at);
      if constexpr (make) state = fma(k, earlier_u(j), decay_before * state);
      if constexpr (finish) {
        const vec wj = w(j);
        from_write = fma(d, u(j), from_write);
        from_error = fma(state, wj, from_error);
        d = fma(later_k, wj, decay * d);
        product = fma(state, d, product);
      }
      if constexpr (begin) {
        const vec dout_j = dout(j);
        d = fma(q, dout_j, d);
        to_q = fma(state, dout_j, to_q);
        const vec next = fma(d, k, du[p][j]);
        du[p][j] = partial ? first_lanes(Dk - i, next, du[p][j]) : next;
      }
      store(dS + at, d);
    }
    if constexpr (finish) {
      store(later.dk + i, load(later.dk + i) + (from_write + from_error));
      dg[p] = dg[p] + product;  // what adds up from +0 is never -0, so the +0 of rows past the end changes nothing
    }
    if constexpr (begin) store(earlier.dq + i, load(earlier.dq + i) + to_q);
  };
  size_t i = 0;
  for (; i + lanes <= Dk; i += lanes) rows(i, std::false_type());
  if (i < Dk) rows(i, std::true_type());

  if constexpr (finish)
#pragma GCC unroll 4
    for (size_t p = 0; p < pieces; p++) store(later.dg + p * lanes, dg[p]);
  if constexpr (begin)
#pragma GCC unroll 4
    for (size_t j0 = 0; j0 < slice; j0 += lanes)
      store(earlier.du + j0, chains_sums([&](size_t l, size_t p) { return du[p][j0 + l]; }));
}

template <bool finish, bool begin, bool make>
void pass_back(float* dS, const float* S, Later& later, Earlier& earlier, size_t Dk, size_t columns) {
  if (columns == slice)
    pass_back<finish, begin, make, true>(dS, S, later, earlier, Dk, columns);
  else
    pass_back<finish, begin, make, false>(dS, S, later, earlier, Dk, columns);
}

// total[m] += the sum of the 16 chains of row m.
static void add_chains(float* total, size_t step, const float* rows, size_t count) {
  for (size_t m0 = 0; m0 < count; m0 += lanes) {
    const vec sums = chains_sums([&](size_t l, size_t p) { return load(rows + (m0 + l) * chains + p * lanes); });
    for (size_t l = 0; l < lanes && m0 + l < count; l++) total[(m0 + l) * step] = total[(m0 + l) * step] + sums[l];
  }
}

// The slice of columns from j0 of value head h, for tokens t0 .. t0 + count - 1. `before`: the state before them
// (Dk,Dv), or null.
static void backward_slice(const Workspace& w, float* dS, const float* before, size_t j0, size_t Dk, size_t Dv,
                           size_t count) {
  const size_t D = Workspace::padded(Dk), V = Workspace::padded(Dv), tile = D * slice, n = std::min(slice, Dv - j0);
  const auto token = [&](size_t m) { return Token{w.k + m * D, w.u + m * V + j0, w.alpha[m]}; };
  load_tile(w.states, before ? before + j0 : nullptr, Dk, Dv, n);
  for (size_t m = 0; m + 2 <= count; m += 2)
    two_steps(w.states + (m / 2 + 1) * tile, w.states + m / 2 * tile, token(m), token(m + 1), D);

  Later later;
  Earlier earlier;
  for (size_t m = count; m-- > 0;) {  // the state after token m is stored where m is odd
    earlier.token = token(m);
    earlier.q = w.q + m * D, earlier.dq = w.dq + m * D, earlier.dout = w.dout + m * V + j0;
    const float* S = w.states + (m + 1) / 2 * tile;
    if (m == count - 1 && m % 2 == 0)
      pass_back<false, true, true>(dS, S, later, earlier, Dk, n);
    else if (m == count - 1)
      pass_back<false, true, false>(dS, S, later, earlier, Dk, n);
    else if (m % 2 == 0)
      pass_back<true, true, true>(dS, S, later, earlier, Dk, n);
    else
      pass_back<true, true, false>(dS, S, later, earlier, Dk, n);

    later.token = earlier.token;
    later.dk = w.dk + m * D, later.dg = w.dg + m * chains;
    float* const row = w.dv + m * V + j0;
    const float *error = w.error + m * V + j0, beta = w.beta[m], less_alpha = -w.alpha[m];
#pragma omp simd
    for (size_t l = 0; l < slice; l++) {
      const float du = earlier.du[l], dv = beta * du;
      row[l] = dv;
      later.w[l] = less_alpha * dv;
      w.dbeta[m * chains + l] = fused(du, error[l], 0.0f);
    }
  }
  pass_back<true, false, false>(dS, w.states, later, earlier, Dk, n);
}

static void backward_group(const GatedDeltaGradients& out, const GatedDeltaBackwardIn& back, const GatedDeltaIn& in,
                           const GatedDeltaShape& s, const Workspace& w, size_t b, size_t key_head) {
  const size_t D = Workspace::padded(s.Dk), V = Workspace::padded(s.Dv), tile = D * slice;
  const size_t h0 = key_head * s.group(), h1 = h0 + s.group();
  const auto dS_of = [&](size_t h, size_t j0) { return w.dS + ((h - h0) * s.slices() + j0 / slice) * tile; };
  for (size_t h = h0; h < h1; h++)
    for (size_t j0 = 0; j0 < s.Dv; j0 += slice)
      load_tile(dS_of(h, j0), back.dfinal ? back.dfinal + s.state(b, h) + j0 : nullptr, s.Dk, s.Dv,
                std::min(slice, s.Dv - j0));
  for (float* rows : {w.q, w.k}) std::fill_n(rows, interval * D, 0.0f);  // what is past the end of a row stays 0
  for (float* rows : {w.u, w.error, w.dout}) std::fill_n(rows, interval * V, 0.0f);
  for (float* rows : {w.dg, w.dbeta}) std::fill_n(rows, interval * slice, 0.0f);

  for (size_t part = s.kept() + 1; part-- > 0;) {
    const size_t t0 = part * interval, count = std::min(interval, s.T - t0);
    copy_rows(w.q, D, in.q + s.qk_row(b, t0, h0), s.qk_step(), count, s.Dk);
    copy_rows(w.k, D, in.k + s.qk_row(b, t0, h0), s.qk_step(), count, s.Dk);
    for (float* rows : {w.dq, w.dk}) std::fill_n(rows, interval * D, 0.0f);
    for (size_t h = h0; h < h1; h++) {
      const size_t number = s.number(b, t0, h);
      copy_rows(w.error, V, back.error + s.o_row(b, t0, h), s.Hv * s.Dv, count, s.Dv);
      copy_rows(w.dout, V, back.dout + s.o_row(b, t0, h), s.Hv * s.Dv, count, s.Dv);
      for (size_t m = 0; m < count; m++) {
        w.alpha[m] = exact_exp(in.g[number + m * s.Hv]);
        w.beta[m] = in.beta[number + m * s.Hv];
        for (size_t j = 0; j < s.Dv; j++) w.u[m * V + j] = w.beta[m] * w.error[m * V + j];
        out.dg[number + m * s.Hv] = out.dbeta[number + m * s.Hv] = 0;
      }
      const float* before = part > 0     ? back.kept + s.kept_state(b, h, part - 1)
                            : in.initial ? in.initial + s.state(b, h)
                                         : nullptr;
      for (size_t j0 = 0; j0 < s.Dv; j0 += slice) {
        backward_slice(w, dS_of(h, j0), before, j0, s.Dk, s.Dv, count);
        add_chains(out.dg + number, s.Hv, w.dg, count);
        add_chains(out.dbeta + number, s.Hv, w.dbeta, count);
      }
      copy_rows(out.dv + s.v_row(b, t0, h), s.v_step(), w.dv, V, count, s.Dv);
    }
    copy_rows(out.dq + s.qk_row(b, t0, h0), s.qk_step(), w.dq, D, count, s.Dk);
    copy_rows(out.dk + s.qk_row(b, t0, h0), s.qk_step(), w.dk, D, count, s.Dk);
  }
  for (size_t h = h0; out.dinitial && h < h1; h++)
    for (size_t j0 = 0; j0 < s.Dv; j0 += slice)
      store_tile(out.dinitial + s.state(b, h) + j0, dS_of(h, j0), s.Dk, s.Dv, std::min(slice, s.Dv - j0));
}

}  // namespace gated_delta_cpu

size_t gated_delta_forward_cpu_scratch(const GatedDeltaShape& s) {
  return bytes_for_threads<gated_delta_cpu::ForwardWorkspace>(s);
}

// A task has all columns of a head where there are heads enough for the threads, else one block of columns.
void gated_delta_forward_cpu(const GatedDeltaOut& out, const GatedDeltaIn& in, const GatedDeltaShape& s, Context& ctx) {
  using namespace gated_delta_cpu;
  unsigned char* const scratch = ctx.scratch<unsigned char>(gated_delta_forward_cpu_scratch(s));
  const size_t heads = s.B * s.Hv, all = round_up(s.Dv, width);
  const size_t share = heads < 4 * size_t(omp_get_max_threads()) ? width : all, tasks = all / share;
#pragma omp parallel for schedule(dynamic) if (worth_waking(s.T * heads * s.Dk * s.Dv))
  for (size_t n = 0; n < heads * tasks; n++) {
    const auto w = memory_of_thread<ForwardWorkspace>(scratch, s);
    const size_t b = n / tasks / s.Hv, h = n / tasks % s.Hv, j0 = n % tasks * share;
    forward_columns(out, in, s, w, b, h, j0, std::min(j0 + share, s.Dv));
  }
}

size_t gated_delta_backward_cpu_scratch(const GatedDeltaShape& s) {
  return bytes_for_threads<gated_delta_cpu::Workspace>(s);
}

void gated_delta_backward_cpu(const GatedDeltaGradients& out, const GatedDeltaBackwardIn& back, const GatedDeltaIn& in,
                              const GatedDeltaShape& s, Context& ctx) {
  using namespace gated_delta_cpu;
  for_each_key_head<Workspace>(s, ctx, [&](const Workspace& workspace, size_t b, size_t hk) {
    backward_group(out, back, in, s, workspace, b, hk);
  });
}

}  // namespace gated
