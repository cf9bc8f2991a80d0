// gated_delta_chunk_cpu: the chunk form of kernels/gated_delta_chunk.cu on a CPU, near the speed of its matrix
// products, with the same bits.
//
// Every sum of the file is a chain that goes on from a number that is there, C_ij <- C_ij + A_i0 B_0j + A_i1 B_1j +
// ..., so one product serves them all: 4 rows times 4 vectors of columns stay in registers while the links pass by.
// Where a row of A has no links after or before the diagonal, the 4 x 4 corner at the diagonal is done link by link.
// Columns of values lie across the lanes; for sums over columns the state, its gradient and u are transposed first.
// A task owns a key head of a sequence with the value heads that read it: k k^T and q k^T are made once for all of
// them. Scratch for each thread: Workspace, 1 MiB for heads of 128 with Hv/Hk = 2.
// tests/test_gated_delta_chunk.cpp
#include "kernels/cpu/gated_delta_cpu.h"
#include "kernels/gated_delta_chunk.h"

namespace gated {
namespace gated_delta_chunk_cpu {

using gated_delta_cpu::chains_sums;
using gated_delta_cpu::copy_rows;
using gated_delta_cpu::pieces;

constexpr size_t chunk = gated_delta_interval;
constexpr size_t held = vector_registers / 8;  // vectors of sums in registers, for each of 4 rows

// Which links m row i of a product has.
enum class Links { all, up_to, below, from, above };  // m < depth, m <= i, m < i, m >= i, m > i

// A_im = a[i*ai + m*am]
struct Factor {
  const float* a;
  size_t ai, am;
  float at(size_t i, size_t m) const { return a[i * ai + m * am]; }
};

template <Links links, size_t R, size_t V>
void product_block(float* C, size_t c_step, const Factor& A, const float* B, size_t b_step, size_t i0, size_t depth) {
  vec sum[R][V];
#pragma GCC unroll 4
  for (size_t r = 0; r < R; r++)
#pragma GCC unroll 4
    for (size_t v = 0; v < V; v++) sum[r][v] = load(C + (i0 + r) * c_step + v * lanes);
  const auto link = [&](size_t m, auto has) __attribute__((always_inline)) {
    vec b[V];
#pragma GCC unroll 4
    for (size_t v = 0; v < V; v++) b[v] = load_once(B + m * b_step + v * lanes);
#pragma GCC unroll 4
    for (size_t r = 0; r < R; r++)
      if (has(r)) {
        const vec a = broadcast(A.at(i0 + r, m));
#pragma GCC unroll 4
        for (size_t v = 0; v < V; v++) sum[r][v] = fma(a, b[v], sum[r][v]);
      }
  };
  const auto every = [](size_t) { return true; };
  const auto diagonal = [&] {
#pragma GCC unroll 4
    for (size_t m = 0; m < R; m++)
      link(i0 + m, [=](size_t r) {
        return links == Links::up_to ? m <= r : links == Links::below ? m < r : links == Links::from ? m >= r : m > r;
      });
  };
  if constexpr (links == Links::all) {
    for (size_t m = 0; m < depth; m++) link(m, every);
  } else if constexpr (links == Links::up_to || links == Links::below) {
    for (size_t m = 0; m < i0; m++) link(m, every);
    diagonal();
  } else {
    diagonal();
    for (size_t m = i0 + R; m < depth; m++) link(m, every);
  }
#pragma GCC unroll 4
  for (size_t r = 0; r < R; r++)
#pragma GCC unroll 4
    for (size_t v = 0; v < V; v++) store(C + (i0 + r) * c_step + v * lanes, sum[r][v]);
}

// Calls f(V, j) for blocks of V vectors of columns from j on; `columns` is a multiple of 16.
template <class F>
void for_columns(size_t columns, F f) {
  size_t j = 0;
  for (; j + held * lanes <= columns; j += held * lanes) f(std::integral_constant<size_t, held>(), j);
  for (; j < columns; j += lanes) f(std::integral_constant<size_t, 1>(), j);
}

// Rows i0 .. i1-1 of C, `columns` of them.
template <Links links>
void product(float* C, size_t c_step, const Factor& A, const float* B, size_t b_step, size_t i0, size_t i1,
             size_t columns, size_t depth) {
  for_columns(columns, [&](auto V, size_t j) {
    size_t i = i0;
    for (; i + 4 <= i1; i += 4) product_block<links, 4, V>(C + j, c_step, A, B + j, b_step, i, depth);
    for (; i < i1; i++) product_block<links, 1, V>(C + j, c_step, A, B + j, b_step, i, depth);
  });
}

// The part of an n x n product that is on the diagonal and below, and a little more.
static void lower_product(float* C, const Factor& A, const float* B, size_t n, size_t depth) {
  std::fill_n(C, chunk * chunk, 0.0f);
  for (size_t i = 0; i < n; i += 16) product<Links::all>(C, chunk, A, B, chunk, i, std::min(i + 16, n), i + 16, depth);
}

// R rows of a triangular system, solved in place one after the other, and y = beta*x:
//   x_i = x_i - sum_m l(i,m) y_m over the solved rows m, in the order in which they were solved
//   down   e from X, and u:     l(i,m) = L_im, and the rows in front of i0 are solved
//   up     du, and de of it:    l(i,m) = L_mi, and the rows after the R are solved, from n-1 on
enum class Solve { down, up };

template <Solve way, size_t R, size_t V>
void solve_block(float* x, float* y, const float* L, const float* beta, size_t step, size_t i0, size_t n) {
  constexpr bool down = way == Solve::down;
  const auto nth = [](size_t k) { return down ? k : R - 1 - k; };  // of the block's rows
  const auto less = [=](size_t i, size_t m) { return broadcast(down ? -L[i * chunk + m] : -L[m * chunk + i]); };
  vec sum[R][V], done[R][V];
#pragma GCC unroll 4
  for (size_t r = 0; r < R; r++)
#pragma GCC unroll 4
    for (size_t v = 0; v < V; v++) sum[r][v] = load(x + (i0 + r) * step + v * lanes);
  const size_t solved = down ? i0 : n - (i0 + R);
  for (size_t k = 0; k < solved; k++) {
    const size_t m = down ? k : n - 1 - k;
    vec b[V];
#pragma GCC unroll 4
    for (size_t v = 0; v < V; v++) b[v] = load_once(y + m * step + v * lanes);
#pragma GCC unroll 4
    for (size_t r = 0; r < R; r++) {
      const vec a = less(i0 + r, m);
#pragma GCC unroll 4
      for (size_t v = 0; v < V; v++) sum[r][v] = fma(a, b[v], sum[r][v]);
    }
  }
#pragma GCC unroll 4
  for (size_t k = 0; k < R; k++)
#pragma GCC unroll 4
    for (size_t v = 0; v < V; v++) {
      const size_t r = nth(k);
#pragma GCC unroll 4
      for (size_t j = 0; j < k; j++) sum[r][v] = fma(less(i0 + r, i0 + nth(j)), done[nth(j)][v], sum[r][v]);
      done[r][v] = broadcast(beta[i0 + r]) * sum[r][v];
      store(x + (i0 + r) * step + v * lanes, sum[r][v]);
      store(y + (i0 + r) * step + v * lanes, done[r][v]);
    }
}

// All n rows.
template <Solve way>
void solve(float* x, float* y, const float* L, const float* beta, size_t step, size_t n) {
  for_columns(step, [&](auto V, size_t j) {
    if (way == Solve::down) {
      size_t i = 0;
      for (; i + 4 <= n; i += 4) solve_block<way, 4, V>(x + j, y + j, L, beta, step, i, n);
      for (; i < n; i++) solve_block<way, 1, V>(x + j, y + j, L, beta, step, i, n);
    } else {
      size_t i = n;
      for (; i % 4 != 0; i--) solve_block<way, 1, V>(x + j, y + j, L, beta, step, i - 1, n);
      for (; i > 0; i -= 4) solve_block<way, 4, V>(x + j, y + j, L, beta, step, i - 4, n);
    }
  });
}

// row i of x, n numbers, times factor[i]
static void scale_rows(float* x, size_t step, const float* from, const float* factor, size_t rows, size_t n) {
  for (size_t i = 0; i < rows; i++)
#pragma omp simd
    for (size_t j = 0; j < n; j++) x[i * step + j] = factor[i] * from[i * step + j];
}

// to[i] = the dot of row i of a and row i of b, n numbers, a multiple of 16. Arrays have rows up to a multiple of 16.
static void dots_row_by_row(float* to, const float* a, const float* b, size_t rows, size_t n) {
  for (size_t i = 0; i < rows; i += lanes) {
    vec chain[lanes][pieces];
    for (size_t l = 0; l < lanes; l++)
      for (size_t p = 0; p < pieces; p++) {
        vec sum{};
        for (size_t d = p * lanes; d < n; d += 16) sum = fma(load(a + (i + l) * n + d), load(b + (i + l) * n + d), sum);
        chain[l][p] = sum;
      }
    store(to + i, chains_sums([&](size_t l, size_t p) { return chain[l][p]; }));
  }
}

// What a thread works with: a chunk of the key head and of one value head, and the states of all value heads of the
// group. Rows are padded with zeros to D = Dk and V = Dv rounded up to multiples of 16.
struct Workspace {
  float* state;                                      // (heads of the group, D, V): S or dS
  float *S, *transposed_S, *transposed_dS;           // backward: (D,V), (V,D), (V,D)
  float *q, *k, *scaled;                             // (64,D)
  float* transposed_k;                               // (D,64)
  float *dq, *dk, *to_q, *plus, *minus;              // (64,D)
  float *kk, *qk, *gamma, *L, *P, *dL, *dP;          // (64,64)
  float *u, *error, *o, *du, *de, *w, *dout;         // (64,V)
  float* transposed_u;                               // (V,64)
  float *start, *end, *less_start, *beta, *dots[5];  // (64)
  size_t D, V;

  static size_t padded(size_t n) { return round_up(n, 16); }
  Workspace(Pieces& pieces, const GatedDeltaShape& s) : D(padded(s.Dk)), V(padded(s.Dv)) {
    const auto take = [&](size_t n) { return pieces.take_zeros<float>(n); };
    state = take(s.group() * D * V);
    for (float** x : {&S, &transposed_S, &transposed_dS}) *x = take(D * V);
    for (float** x : {&q, &k, &scaled, &transposed_k, &dq, &dk, &to_q, &plus, &minus}) *x = take(chunk * D);
    for (float** x : {&kk, &qk, &gamma, &L, &P, &dL, &dP}) *x = take(chunk * chunk);
    for (float** x : {&u, &error, &o, &du, &de, &w, &dout, &transposed_u}) *x = take(chunk * V);
    for (float** x : {&start, &end, &less_start, &beta}) *x = take(chunk);
    for (float*& x : dots) x = take(chunk);
  }

  // The n tokens from t0 of the key head that value head h reads.
  void load_keys(const GatedDeltaIn& in, const GatedDeltaShape& s, size_t b, size_t h, size_t t0, size_t n) const {
    copy_rows(q, D, in.q + s.qk_row(b, t0, h), s.qk_step(), n, s.Dk);
    copy_rows(k, D, in.k + s.qk_row(b, t0, h), s.qk_step(), n, s.Dk);
    transpose(transposed_k, k, chunk, D);
    lower_product(kk, {k, D, 1}, transposed_k, n, s.Dk);
    lower_product(qk, {q, D, 1}, transposed_k, n, s.Dk);
  }
  void load_decay(const float* g, const float* betas, size_t step, size_t n) const {
    float c[chunk], from_start = 0;
    for (size_t i = 0; i < n; i++) {
      const float gi = g[i * step], *kki = kk + i * chunk, *qki = qk + i * chunk;
      float *row = gamma + i * chunk, *Li = L + i * chunk, *Pi = P + i * chunk;
      from_start = from_start + gi;
      start[i] = exact_exp(from_start);
      less_start[i] = -start[i];
      beta[i] = betas[i * step];
#pragma omp simd
      for (size_t j = 0; j < i; j++) c[j] = c[j] + gi;
      c[i] = 0;
#pragma omp simd
      for (size_t j = 0; j <= i; j++) {
        row[j] = exact_exp(c[j]);
        Li[j] = row[j] * kki[j];
        Pi[j] = row[j] * qki[j];
      }
    }
    std::copy_n(gamma + (n - 1) * chunk, n, end);
  }
};

// C = rows of A times B, from +0, every row times its factor.
static void scaled_product(float* C, size_t c_step, const float* A, size_t a_step, const float* B, size_t rows,
                           size_t columns, size_t depth, const float* factor) {
  for (size_t i = 0; i < rows; i++) std::fill_n(C + i * c_step, columns, 0.0f);
  product<Links::all>(C, c_step, {A, a_step, 1}, B, c_step, 0, rows, columns, depth);
  scale_rows(C, c_step, C, factor, rows, columns);
}

static void forward_group(const GatedDeltaOut& out, const GatedDeltaIn& in, const GatedDeltaShape& s,
                          const Workspace& x, size_t b, size_t key_head) {
  const size_t D = x.D, V = x.V, h0 = key_head * s.group(), h1 = h0 + s.group(), all = s.Hv * s.Dv;
  const auto state_of = [&](size_t h) { return x.state + (h - h0) * D * V; };
  for (size_t h = h0; in.initial && h < h1; h++)
    copy_rows(state_of(h), V, in.initial + s.state(b, h), s.Dv, s.Dk, s.Dv);
  for (size_t t0 = 0; t0 < s.T; t0 += chunk) {
    const size_t n = std::min(chunk, s.T - t0);
    x.load_keys(in, s, b, h0, t0, n);
    for (size_t h = h0; h < h1; h++) {
      const size_t number = s.number(b, t0, h), row = s.o_row(b, t0, h);
      float* const S = state_of(h);
      if (out.kept && t0 > 0) copy_rows(out.kept + s.kept_state(b, h, t0 / chunk - 1), s.Dv, S, V, s.Dk, s.Dv);
      x.load_decay(in.g + number, in.beta + number, s.Hv, n);

      std::fill_n(x.error, n * V, 0.0f);
      product<Links::all>(x.error, V, {x.k, D, 1}, S, V, 0, n, V, s.Dk);
      for (size_t i = 0; i < n; i++) {
        const float *v = in.v + s.v_row(b, t0 + i, h), less = x.less_start[i];
#pragma omp simd
        for (size_t j = 0; j < s.Dv; j++) x.error[i * V + j] = fused(less, x.error[i * V + j], v[j]);
      }
      solve<Solve::down>(x.error, x.u, x.L, x.beta, V, n);

      scaled_product(x.o, V, x.q, D, S, n, V, s.Dk, x.start);
      product<Links::up_to>(x.o, V, {x.P, chunk, 1}, x.u, V, 0, n, V, n);

      for (size_t e = 0; e < s.Dk * V; e++) S[e] = x.start[n - 1] * S[e];
      scale_rows(x.scaled, D, x.k, x.end, n, D);
      product<Links::all>(S, V, {x.scaled, 1, D}, x.u, V, 0, s.Dk, V, n);

      copy_rows(out.o + row, all, x.o, V, n, s.Dv);
      if (out.error) copy_rows(out.error + row, all, x.error, V, n, s.Dv);
    }
  }
  for (size_t h = h0; out.final && h < h1; h++) copy_rows(out.final + s.state(b, h), s.Dv, state_of(h), V, s.Dk, s.Dv);
}

// The numbers of dc and dg that a chunk of n tokens makes.
static void decay_gradients(const Workspace& x, float* dg, size_t step, size_t n, size_t Dv) {
  dots_row_by_row(x.dots[0], x.q, x.to_q, n, x.D);
  dots_row_by_row(x.dots[1], x.k, x.plus, n, x.D);
  dots_row_by_row(x.dots[2], x.k, x.minus, n, x.D);
  dots_row_by_row(x.dots[3], x.w, x.u, n, x.V);
  vec S_dS[pieces] = {};
  for (size_t d = 0; d < x.D; d += lanes) {
    vec row{};
    for (size_t j = 0; j < Dv; j++)
      row = fma(load(x.transposed_S + j * x.D + d), load(x.transposed_dS + j * x.D + d), row);
    S_dS[d / lanes % pieces] = S_dS[d / lanes % pieces] + row;
  }
  float written = 0, sum = 0;
  for (size_t i = 0; i < n; i++) written = written + x.dots[3][i];
  const float product = chains_sums([&](size_t, size_t p) { return S_dS[p]; })[0];
  const float last = x.start[n - 1] * product + written;
  for (size_t i = n; i-- > 0;) {
    const float dc = (x.dots[0][i] + x.dots[1][i]) - x.dots[2][i];
    sum = sum + (i == n - 1 ? dc + last : dc);
    dg[i * step] = sum;
  }
}

static void backward_group(const GatedDeltaGradients& out, const GatedDeltaBackwardIn& back, const GatedDeltaIn& in,
                           const GatedDeltaShape& s, const Workspace& x, size_t b, size_t key_head) {
  const size_t D = x.D, V = x.V, h0 = key_head * s.group(), h1 = h0 + s.group(), all = s.Hv * s.Dv;
  const auto state_of = [&](size_t h) { return x.state + (h - h0) * D * V; };
  for (size_t h = h0; back.dfinal && h < h1; h++)
    copy_rows(state_of(h), V, back.dfinal + s.state(b, h), s.Dv, s.Dk, s.Dv);
  for (size_t part = s.kept() + 1; part-- > 0;) {
    const size_t t0 = part * chunk, n = std::min(chunk, s.T - t0);
    x.load_keys(in, s, b, h0, t0, n);
    for (float* sum : {x.dq, x.dk}) std::fill_n(sum, n * D, 0.0f);
    for (size_t h = h0; h < h1; h++) {
      const size_t number = s.number(b, t0, h), row = s.o_row(b, t0, h);
      float* const dS = state_of(h);
      x.load_decay(in.g + number, in.beta + number, s.Hv, n);
      copy_rows(x.error, V, back.error + row, all, n, s.Dv);
      copy_rows(x.dout, V, back.dout + row, all, n, s.Dv);
      scale_rows(x.u, V, x.error, x.beta, n, V);
      transpose(x.transposed_u, x.u, chunk, V);
      const float* S = part > 0     ? back.kept + s.kept_state(b, h, part - 1)
                       : in.initial ? in.initial + s.state(b, h)
                                    : nullptr;
      if (S)
        copy_rows(x.S, V, S, s.Dv, s.Dk, s.Dv);
      else
        std::fill_n(x.S, D * V, 0.0f);
      transpose(x.transposed_S, x.S, D, V);
      transpose(x.transposed_dS, dS, D, V);

      scaled_product(x.w, V, x.k, D, dS, n, V, s.Dk, x.end);
      std::copy_n(x.w, n * V, x.du);
      product<Links::from>(x.du, V, {x.P, 1, chunk}, x.dout, V, 0, n, V, n);
      solve<Solve::up>(x.du, x.de, x.L, x.beta, V, n);
      copy_rows(out.dv + s.v_row(b, t0, h), s.v_step(), x.de, V, n, s.Dv);
      dots_row_by_row(x.dots[4], x.du, x.error, n, V);
      for (size_t i = 0; i < n; i++) out.dbeta[number + i * s.Hv] = 0.0f + x.dots[4][i];

      lower_product(x.dL, {x.de, V, 1}, x.transposed_u, n, s.Dv);
      lower_product(x.dP, {x.dout, V, 1}, x.transposed_u, n, s.Dv);
      for (size_t e = 0; e < n * chunk; e++) {
        x.dL[e] = -x.gamma[e] * x.dL[e];
        x.dP[e] = x.gamma[e] * x.dP[e];
      }
      scaled_product(x.to_q, D, x.dout, V, x.transposed_S, n, D, s.Dv, x.start);
      product<Links::up_to>(x.to_q, D, {x.dP, chunk, 1}, x.k, D, 0, n, D, n);
      scaled_product(x.plus, D, x.de, V, x.transposed_S, n, D, s.Dv, x.less_start);
      product<Links::below>(x.plus, D, {x.dL, chunk, 1}, x.k, D, 0, n, D, n);
      scaled_product(x.minus, D, x.u, V, x.transposed_dS, n, D, s.Dv, x.end);
      product<Links::from>(x.minus, D, {x.dP, 1, chunk}, x.q, D, 0, n, D, n);
      product<Links::above>(x.minus, D, {x.dL, 1, chunk}, x.k, D, 0, n, D, n);
      for (size_t e = 0; e < n * D; e++) {
        x.dq[e] = x.dq[e] + x.to_q[e];
        x.dk[e] = x.dk[e] + (x.plus[e] + x.minus[e]);
      }
      decay_gradients(x, out.dg + number, s.Hv, n, s.Dv);

      for (size_t e = 0; e < s.Dk * V; e++) dS[e] = x.start[n - 1] * dS[e];
      scale_rows(x.scaled, D, x.q, x.start, n, D);
      product<Links::all>(dS, V, {x.scaled, 1, D}, x.dout, V, 0, s.Dk, V, n);
      scale_rows(x.scaled, D, x.k, x.less_start, n, D);
      product<Links::all>(dS, V, {x.scaled, 1, D}, x.de, V, 0, s.Dk, V, n);
    }
    copy_rows(out.dq + s.qk_row(b, t0, h0), s.qk_step(), x.dq, D, n, s.Dk);
    copy_rows(out.dk + s.qk_row(b, t0, h0), s.qk_step(), x.dk, D, n, s.Dk);
  }
  for (size_t h = h0; out.dinitial && h < h1; h++)
    copy_rows(out.dinitial + s.state(b, h), s.Dv, state_of(h), V, s.Dk, s.Dv);
}

}  // namespace gated_delta_chunk_cpu

size_t gated_delta_chunk_cpu_scratch(const GatedDeltaShape& s) {
  return bytes_for_threads<gated_delta_chunk_cpu::Workspace>(s);
}

void gated_delta_chunk_forward_cpu(const GatedDeltaOut& out, const GatedDeltaIn& in, const GatedDeltaShape& s,
                                   Context& ctx) {
  using namespace gated_delta_chunk_cpu;
  gated_delta_cpu::for_each_key_head<Workspace>(
      s, ctx, [&](const Workspace& workspace, size_t b, size_t hk) { forward_group(out, in, s, workspace, b, hk); });
}

void gated_delta_chunk_backward_cpu(const GatedDeltaGradients& out, const GatedDeltaBackwardIn& back,
                                    const GatedDeltaIn& in, const GatedDeltaShape& s, Context& ctx) {
  using namespace gated_delta_chunk_cpu;
  gated_delta_cpu::for_each_key_head<Workspace>(s, ctx, [&](const Workspace& workspace, size_t b, size_t hk) {
    backward_group(out, back, in, s, workspace, b, hk);
  });
}

}  // namespace gated
