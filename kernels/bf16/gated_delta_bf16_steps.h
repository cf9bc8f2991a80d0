// gated_delta_bf16_steps: what kernels/bf16/gated_delta_bf16.cu says is computed, chunk after chunk, in plain loops.
// The reference and the CPU's code are these steps with another product of matrices each: one output after the other,
// or vectors of them.
//
// Numbers that are rounded to bf16 lie in floats. A Product is made as Product(pieces, shape, arithmetic) and called as
//   product(C, M, N, left, right, K)      C (M,N) goes on with chains over k < K of left(m,k) * right(k,n), rounded
//                                         numbers; M, N and K are multiples of 16
#pragma once
#include <algorithm>
#include <utility>

#include "core/pieces.h"
#include "kernels/bf16/gated_delta_bf16.cuh"

namespace gated::gated_delta_bf16 {

// Where element (m,k) of a left factor lies, or element (k,n) of a right one.
template <class Real>
struct Factor {
  const Real* at;
  size_t outer, along;  // from m to m + 1, or from n to n + 1; from k to k + 1
};

// What is stored, and what is multiplied.
template <class Real>
using StoredOf = std::conditional_t<std::is_same_v<Real, double>, double, bf16>;
template <class Real>
Real rounded(Real x) {
  return Real(StoredOf<Real>(x));
}

// The dot of two rows: element j joins chain j mod 8.
template <class Real>
Real row_dot(const Real* x, const Real* y, size_t n) {
  Real chain[8] = {};
  for (size_t j = 0; j < n; j += 8)
    for (size_t i = 0; i < 8; i++) chain[i] = fused(x[j + i], y[j + i], chain[i]);
  return sum_of_eight(chain);
}

// <S, dS>: element e joins chain e/8 mod 128, and chains add up as a tree of neighbours.
template <class Real>
Real state_dot(const Real* S, const Real* dS, size_t n) {
  Real chain[state_chains] = {};
  for (size_t e = 0; e < n; e++) chain[e / 8 % state_chains] = fused(S[e], dS[e], chain[e / 8 % state_chains]);
  for (size_t apart = 1; apart < state_chains; apart *= 2)
    for (size_t c = 0; c < state_chains; c += 2 * apart) chain[c] = chain[c] + chain[c + apart];
  return chain[0];
}

// A chunk of one key head and of one value head that reads it. After the last token of a sequence all is 0.
template <class Real, class Product>
class Steps {
  using Stored = StoredOf<Real>;

 public:
  Steps(Pieces& pieces, const GatedDeltaShape& s, MmaArithmetic arithmetic)
      : product(pieces, s, arithmetic), s(s), Dk(s.Dk), Dv(s.Dv), size(Dk * Dv) {
    const auto take = [&](size_t n) { return pieces.take_zeros<Real>(n); };
    states = take(s.group() * size);
    Sb = take(size), dSb = take(size);
    for (Real** x : {&kk, &qk, &gamma, &A, &inverse, &rounded_inverse, &P, &DP, &DL, &toP, &toL})
      *x = take(tokens * tokens);
    for (Real** x : {&q, &k, &dq, &plus, &minus, &dq_sum, &dk_sum}) *x = take(tokens * Dk);
    for (Real** x : {&v, &X, &Y, &u, &U, &o, &dout, &Du, &scaled}) *x = take(tokens * Dv);
    for (Real** x : {&c, &start, &end, &beta, &dc, &written}) *x = take(tokens);
  }

  // All chunks of a key head, and of the value heads that read it.
  void forward(const GatedDeltaBf16OutOf<Stored>& out, const GatedDeltaBf16InOf<Stored>& in, size_t b,
               size_t key_head) {
    const size_t h0 = key_head * s.group(), h1 = h0 + s.group();
    for (size_t h = h0; h < h1; h++) load_state(in.initial, b, h, h - h0);
    for (size_t t0 = 0; t0 < s.T; t0 += tokens) {
      load_keys(in, b, h0, t0);
      for (size_t h = h0; h < h1; h++) {
        Real* const S = states + (h - h0) * size;
        load_head(in, b, h, t0);
        Stored* const kept = out.kept + kept_state(s, b, h, t0 / tokens);
        for (size_t e = 0; e < size; e++) {
          kept[e] = Stored(S[e]);
          Sb[e] = Real(kept[e]);
        }

        std::fill_n(X, tokens * Dv, Real(0));
        product(X, tokens, Dv, {k, Dk, 1}, {Sb, 1, Dv}, Dk);
        for (size_t i = 0; i < tokens; i++)
          for (size_t j = 0; j < Dv; j++) {
            const size_t e = i * Dv + j;
            X[e] = fused(-start[i], X[e], v[e]);
            Y[e] = rounded(beta[i] * X[e]);
          }
        if (out.miss) store_values(out.miss, X, b, t0, h);
        std::fill_n(u, tokens * Dv, Real(0));
        product(u, tokens, Dv, {rounded_inverse, tokens, 1}, {Y, 1, Dv}, tokens);
        for (size_t i = 0; i < tokens; i++)
          for (size_t j = 0; j < Dv; j++) {
            const size_t e = i * Dv + j;
            U[e] = rounded(u[e]);
            scaled[e] = rounded(end[i] * u[e]);
          }
        store_values(out.u, U, b, t0, h);

        std::fill_n(o, tokens * Dv, Real(0));
        product(o, tokens, Dv, {q, Dk, 1}, {Sb, 1, Dv}, Dk);
        scale_rows(o, start, Dv);
        product(o, tokens, Dv, {P, tokens, 1}, {U, 1, Dv}, tokens);
        store_values(out.o, o, b, t0, h);

        for (size_t e = 0; e < size; e++) S[e] = start[tokens - 1] * S[e];
        product(S, Dk, Dv, {k, 1, Dk}, {scaled, 1, Dv}, tokens);
      }
    }
    for (size_t h = h0; out.final && h < h1; h++)
      std::copy_n(states + (h - h0) * size, size, out.final + s.state(b, h));
  }

  void backward(const GatedDeltaBf16GradientsOf<Stored>& out, const GatedDeltaBf16BackwardInOf<Stored>& back,
                const GatedDeltaBf16InOf<Stored>& in, size_t b, size_t key_head) {
    const size_t h0 = key_head * s.group(), h1 = h0 + s.group();
    for (size_t h = h0; h < h1; h++) load_state(back.dfinal, b, h, h - h0);
    for (size_t n = ceil_div(s.T, tokens); n-- > 0;) {
      load_keys(in, b, h0, n * tokens);
      for (size_t h = h0; h < h1; h++) backward_chunk(out, back, in, b, h, n * tokens, states + (h - h0) * size);
      store_keys(out.dq, dq_sum, b, h0, n * tokens);
      store_keys(out.dk, dk_sum, b, h0, n * tokens);
    }
    for (size_t h = h0; out.dinitial && h < h1; h++)
      std::copy_n(states + (h - h0) * size, size, out.dinitial + s.state(b, h));
  }

 private:
  void load_state(const Real* from, size_t b, size_t h, size_t of_group) const {
    if (from)
      std::copy_n(from + s.state(b, h), size, states + of_group * size);
    else
      std::fill_n(states + of_group * size, size, Real(0));
  }
  size_t count(size_t t0) const { return std::min(tokens, s.T - t0); }
  void load_rows(Real* to, const Stored* x, size_t stride, size_t n, size_t t0) const {
    for (size_t i = 0; i < count(t0); i++) std::copy_n(x + i * stride, n, to + i * n);
    std::fill(to + count(t0) * n, to + tokens * n, Real(0));
  }
  void store_rows(Stored* to, size_t stride, const Real* x, size_t n, size_t t0) const {
    for (size_t i = 0; i < count(t0); i++)
      for (size_t j = 0; j < n; j++) to[i * stride + j] = Stored(x[i * n + j]);
  }
  void store_values(Stored* to, const Real* x, size_t b, size_t t0, size_t h) const {
    store_rows(to + s.o_row(b, t0, h), s.Hv * Dv, x, Dv, t0);
  }
  void store_keys(Stored* to, const Real* x, size_t b, size_t h, size_t t0) const {
    store_rows(to + s.qk_row(b, t0, h), s.qk_step(), x, Dk, t0);
  }
  static void scale_rows(Real* x, const Real* factor, size_t n) {
    for (size_t i = 0; i < tokens; i++)
      for (size_t j = 0; j < n; j++) x[i * n + j] = factor[i] * x[i * n + j];
  }

  void load_keys(const GatedDeltaBf16InOf<Stored>& in, size_t b, size_t h, size_t t0) {
    load_rows(q, in.q + s.qk_row(b, t0, h), s.qk_step(), Dk, t0);
    load_rows(k, in.k + s.qk_row(b, t0, h), s.qk_step(), Dk, t0);
    for (auto [to, x] : {std::pair(kk, k), {qk, q}}) {
      std::fill_n(to, tokens * tokens, Real(0));
      product(to, tokens, tokens, {x, Dk, 1}, {k, Dk, 1}, Dk);
    }
  }

  // The decays, R, the inverse of I + A, and P.
  void load_head(const GatedDeltaBf16InOf<Stored>& in, size_t b, size_t h, size_t t0) {
    load_rows(v, in.v + s.v_row(b, t0, h), s.v_step(), Dv, t0);
    Real sum = 0;
    for (size_t i = 0; i < tokens; i++) {
      const bool there = i < count(t0);
      sum = sum + (there ? in.g[s.number(b, t0 + i, h)] : Real(0));
      c[i] = sum;
      beta[i] = there ? in.beta[s.number(b, t0 + i, h)] : Real(0);
    }
    for (size_t i = 0; i < tokens; i++) {
      start[i] = exact_exp(c[i]);
      end[i] = exact_exp(c[tokens - 1] - c[i]);
      for (size_t j = 0; j <= i; j++) gamma[i * tokens + j] = exact_exp(c[i] - c[j]);
      for (size_t j = 0; j <= i; j++) {
        const size_t at = i * tokens + j;
        A[at] = j < i ? beta[i] * (gamma[at] * kk[at]) : Real(0);
        P[at] = rounded(gamma[at] * qk[at]);
      }
    }
    for (size_t i = 0; i < tokens; i++) {
      Real* const row = inverse + i * tokens;
      for (size_t j = 0; j < tokens; j++) row[j] = i == j ? 1 : 0;
      for (size_t m = 0; m < i; m++) {
        const Real less = -A[i * tokens + m];
#pragma omp simd
        for (size_t j = 0; j < tokens; j++) row[j] = fused(less, inverse[m * tokens + j], row[j]);
      }
      for (size_t j = 0; j < tokens; j++) rounded_inverse[i * tokens + j] = rounded(row[j]);
    }
  }

  // dS is the gradient of the state after the chunk, and becomes that of the one before it.
  void backward_chunk(const GatedDeltaBf16GradientsOf<Stored>& out, const GatedDeltaBf16BackwardInOf<Stored>& back,
                      const GatedDeltaBf16InOf<Stored>& in, size_t b, size_t h, size_t t0, Real* dS) {
    const size_t row = s.o_row(b, t0, h), stride = s.Hv * Dv;
    load_head(in, b, h, t0);
    load_rows(dout, back.dout + row, stride, Dv, t0);
    load_rows(U, back.u + row, stride, Dv, t0);
    load_rows(X, back.miss + row, stride, Dv, t0);
    std::copy_n(back.kept + kept_state(s, b, h, t0 / tokens), size, Sb);
    for (size_t e = 0; e < size; e++) dSb[e] = rounded(dS[e]);

    // du in u, rounded in Y; Du in v, rounded in Du
    std::fill_n(u, tokens * Dv, Real(0));
    product(u, tokens, Dv, {k, Dk, 1}, {dSb, 1, Dv}, Dk);
    scale_rows(u, end, Dv);
    product(u, tokens, Dv, {P, 1, tokens}, {dout, 1, Dv}, tokens);
    for (size_t e = 0; e < tokens * Dv; e++) Y[e] = rounded(u[e]);
    std::fill_n(v, tokens * Dv, Real(0));
    product(v, tokens, Dv, {rounded_inverse, 1, tokens}, {Y, 1, Dv}, tokens);
    for (size_t i = 0; i < tokens; i++)
      for (size_t j = 0; j < Dv; j++) {
        const size_t e = i * Dv + j;
        Du[e] = rounded(v[e]);
        scaled[e] = rounded(-(start[i] * beta[i]) * v[e]);
        v[e] = beta[i] * v[e];
        o[e] = rounded(start[i] * dout[e]);
      }
    store_rows(out.dv + s.v_row(b, t0, h), s.v_step(), v, Dv, t0);

    // what P and L get, and beta
    for (auto [to, x] : {std::pair(DP, dout), {DL, Du}}) {
      std::fill_n(to, tokens * tokens, Real(0));
      product(to, tokens, tokens, {x, Dv, 1}, {U, Dv, 1}, Dv);
    }
    for (size_t i = 0; i < tokens; i++) {
      Real chain[8] = {};
      for (size_t j = 0; j <= i; j++) {
        const size_t at = i * tokens + j;
        toP[at] = rounded(gamma[at] * DP[at]);
        if (j == i) continue;
        toL[at] = rounded(-(gamma[at] * (beta[i] * DL[at])));
        chain[j % 8] = fused(gamma[at] * kk[at], DL[at], chain[j % 8]);
      }
      const Real dbeta = row_dot(Du + i * Dv, X + i * Dv, Dv) - sum_of_eight(chain);
      if (i < count(t0)) out.dbeta[s.number(b, t0 + i, h)] = dbeta;
    }

    // dq and dk
    for (Real* x : {dq, plus, minus}) std::fill_n(x, tokens * Dk, Real(0));
    product(dq, tokens, Dk, {dout, Dv, 1}, {Sb, Dv, 1}, Dv);
    product(plus, tokens, Dk, {Du, Dv, 1}, {Sb, Dv, 1}, Dv);
    product(minus, tokens, Dk, {U, Dv, 1}, {dSb, Dv, 1}, Dv);
    for (size_t i = 0; i < tokens; i++) {
      const Real less = -(start[i] * beta[i]);
      for (size_t d = 0; d < Dk; d++) {
        const size_t e = i * Dk + d;
        dq[e] = start[i] * dq[e];
        plus[e] = less * plus[e];
        minus[e] = end[i] * minus[e];
      }
      written[i] = row_dot(k + i * Dk, minus + i * Dk, Dk);
    }
    product(dq, tokens, Dk, {toP, tokens, 1}, {k, 1, Dk}, tokens);
    product(plus, tokens, Dk, {toL, tokens, 1}, {k, 1, Dk}, tokens);
    product(minus, tokens, Dk, {toP, 1, tokens}, {q, 1, Dk}, tokens);
    product(minus, tokens, Dk, {toL, 1, tokens}, {k, 1, Dk}, tokens);
    const bool first = h % s.group() == 0;
    for (size_t e = 0; e < tokens * Dk; e++) {
      const Real to_k = plus[e] + minus[e];
      dq_sum[e] = first ? dq[e] : dq_sum[e] + dq[e];
      dk_sum[e] = first ? to_k : dk_sum[e] + to_k;
    }

    // dg
    Real all = 0, dg = 0;
    for (size_t i = 0; i < tokens; i++) {
      const size_t e = i * Dk;
      dc[i] = (row_dot(q + e, dq + e, Dk) + row_dot(k + e, plus + e, Dk)) - row_dot(k + e, minus + e, Dk);
      all = all + written[i];
    }
    dc[tokens - 1] = dc[tokens - 1] + fused(start[tokens - 1], state_dot(Sb, dSb, size), all);
    for (size_t i = tokens; i-- > 0;) {
      dg = dg + dc[i];
      if (i < count(t0)) out.dg[s.number(b, t0 + i, h)] = dg;
    }

    for (size_t e = 0; e < size; e++) dS[e] = start[tokens - 1] * dS[e];
    product(dS, Dk, Dv, {q, 1, Dk}, {o, 1, Dv}, tokens);
    product(dS, Dk, Dv, {k, 1, Dk}, {scaled, 1, Dv}, tokens);
  }

  Product product;
  GatedDeltaShape s;
  size_t Dk, Dv, size;
  Real* states;    // (heads of the group, Dk, Dv): S, or dS
  Real *Sb, *dSb;  // (Dk,Dv), rounded
  Real *kk, *qk, *gamma, *A, *inverse, *rounded_inverse, *P, *DP, *DL, *toP, *toL;  // (64,64); above the diagonal 0
  Real *q, *k, *dq, *plus, *minus, *dq_sum, *dk_sum;                                // (64,Dk)
  Real *v, *X, *Y, *u, *U, *o, *dout, *Du, *scaled;                                 // (64,Dv)
  Real *c, *start, *end, *beta, *dc, *written;                                      // (64)
};

}  // namespace gated::gated_delta_bf16
