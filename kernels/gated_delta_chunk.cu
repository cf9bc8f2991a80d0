// gated_delta_chunk: the gated delta rule of kernels/gated_delta.cu, 64 tokens at a time
//                                                             (Yang, Wang, Zhang, Shen & Kim 2024, arXiv 2406.06484)
//
// The rule goes token by token: every token passes over the whole state, and does little with each number of it. Here
// the state is looked at once in 64 tokens. What a token does to those after it within its chunk goes through products
// of keys and queries, 64 x 64 numbers, and everything becomes a product of matrices, which a machine does fastest.
//
// 1. Unroll the rule over a chunk. S is the state in front of it, c_i = g_1 + ... + g_i, and for j <= i
//   G_ij = e^(c_i - c_j) is what is left at token i of what token j wrote:
//     S_i = alpha_i S_(i-1) + k_i u_i^T   =>   S_i = e^c_i S + sum over j <= i of G_ij k_j u_j^T
//   Put that into e_i = v_i - alpha_i S_(i-1)^T k_i and o_i = S_i^T q_i. S_i without its last term is alpha_i S_(i-1):
//     e_i = v_i - e^c_i S^T k_i - sum over j < i of L_ij u_j        L_ij = G_ij (k_i.k_j)
//     u_i = beta_i e_i
//     o_i = e^c_i S^T q_i       + sum over j <= i of P_ij u_j       P_ij = G_ij (q_i.k_j)
//     S  <- e^c_n S + sum over i of (G_ni k_i) u_i^T                at the end of the chunk, n its last token
//   With X_i = v_i - e^c_i S^T k_i the first two lines are a triangular system for u, of which a row is a token:
//     (I + diag(beta) L) u = diag(beta) X
//   Its inverse R = (I + diag(beta) L)^-1 makes u = R diag(beta) V - (R diag(beta e^c) K) S = U - W S, the "WY form" in
//   which the rule is mostly written. U and W do not know S, so they could be made for all chunks at once. But here a
//   chunk's state must be there anyway before the next chunk, and to solve the system downwards, u_1, then u_2, ..., is
//   less work than R, U and W, and rounds less.
//
// 2. Backward. do and dS', the gradient of the state after the chunk, are given. From the lines of o and S:
//     du_i = sum over m >= i of P_mi do_m + G_ni dS'^T k_i
//   But u_i is also in every e_m with m > i, and e_i leads to u_i: de_i = beta_i Du_i. The whole gradient of u, Du, is
//     Du_i = du_i - sum over m > i of L_mi de_m
//   a triangular system again, solved upwards. Then, each line by the product rule:
//     dv_i    = de_i                                                dbeta_i = Du_i.e_i
//     dL_ij   = -de_i.u_j    (j < i)                                dP_ij   = do_i.u_j    (j <= i)
//     dq_i    = e^c_i S do_i  + sum over j <= i of dP_ij G_ij k_j
//     dk_i    = plus_i + minus_i
//     plus_i  = -e^c_i S de_i + sum over j < i of dL_ij G_ij k_j
//     minus_i = G_ni dS' u_i  + sum over m >= i of dP_mi G_mi q_m + sum over m > i of dL_mi G_mi k_m
//     dS      = e^c_n dS' + sum over i of e^c_i (q_i do_i^T - k_i de_i^T)
//   dk is in two parts for the sake of c. c_i stands in exponents only, as +c_i in e^c_i and in G_ij: there ∂/∂c_i
//   leaves the term as it is, and all terms in which it stands so are those of dq_i.q_i and plus_i.k_i. As -c_i it
//   stands in G_mi, the terms of minus_i.k_i. So
//     dc_i = q_i.dq_i + k_i.plus_i - k_i.minus_i       and, as c_n is in e^c_n S and in every G_ni,
//     dc_n += <e^c_n S, dS'> + sum over i of u_i.(G_ni dS'^T k_i)
//   g_i is in c_i and all c after it: dg_i = sum over m >= i of dc_m.
//   The forward keeps e and the states in front of the chunks, as the recurrence does: backward then needs neither X
//   nor the system for u.
//
// order: fused(a,b,c) = a*b + c, rounded once. A "chain" starts at +0, or where the text says, and ascends. A "dot" has
//   16 chains and a tree (kernels/gated_delta.cuh).
//   c_i - c_j is made by adding g_(j+1) .. g_i from +0, not as a difference, which would lose what a strong decay
//     before j has made of c. G = exp of that, c_i is a chain too.
//   L_ij = G_ij * (chain over d of k_id k_jd), P_ij = G_ij * (chain of q_id k_jd)
//   e_i: from X_i = fused(-e^c_i, chain over d of k_id S_dj, v_i) a chain over j of -L_ij u_j; u = beta*e
//   o_i: from e^c_i * (chain over d of q_id S_dj) a chain over j <= i of P_ij u_j
//   S: from e^c_n * S a chain over i of (G_ni*k_id) u_ij
//   w_i = G_ni * (chain over d of k_id dS'_dj); du_i: from w_i a chain over m of P_mi do_m; Du_i: from du_i a chain
//     over m, descending, of -L_mi de_m; de = beta*Du; dbeta is a dot
//   dL_ij G_ij = -G_ij * (chain over columns of de_i u_j), dP_ij G_ij = G_ij * (chain of do_i u_j)
//   dq_i: from e^c_i * (chain over columns of do_ij S_dj), plus_i: from -e^c_i * (chain of de_ij S_dj), minus_i: from
//     G_ni * (chain of u_ij dS'_dj), chains in the order of the terms above; plus and minus are added last, and heads
//     of v that share a key are added to +0 in ascending order
//   dc_i = (q.dq + k.plus) - k.minus, three dots. What comes to dc_n is e^c_n * (for every d a chain over columns of
//     S dS', and these added like the elements of a dot) + the chain over i of the dots w_i.u_i. dg_i is a chain of dc,
//     descending.
//   dS: from e^c_n * dS' a chain over i of (e^c_i*q_id) do_ij and then one of -(e^c_i*k_id) de_ij
//   A last chunk of fewer tokens is a smaller chunk.
//
// What proves these formulas: in double the reference is the recurrence, to 1e-12, and its gradients are held to finite
//   differences (tests/test_gated_delta_chunk.cpp).
// How far from the recurrence, in fp32: the largest difference over the largest number of an array, for T to 2048 and g
//   from 0 down to -30, was 9e-7 for o and the final state, and 2e-6 for gradients; 2e-6 and 1e-5 are promised.
// Which is faster: per token and head the recurrence does 4 operations for each of the Dk*Dv numbers of a state forward
//   and 10 backward, this form 3 and 6, and about 32 * (4 and 10) for each of the D = Dk = Dv numbers of a key: at D =
//   128 as many forward, and a sixth less backward. With more than 64 tokens for a state of few numbers the recurrence
//   does less.
// shapes: those of kernels/gated_delta.cu
// twins: kernels/cpu/gated_delta_chunk_cpu.cpp
// --delta=chunk | tests/test_gated_delta_chunk.cpp
#include "kernels/gated_delta_chunk.h"

#include <vector>

#include "core/launch.cuh"
#include "kernels/gated_delta.cuh"

namespace gated {

// ---- one head: the steps of reference and kernel
//
// A step makes all elements of its arrays from those of the steps before, in any order: each(n, f) calls f(e) for all e
// < n, in a loop or by the threads of a block, and returns when all are done.

namespace gated_delta_chunk {

constexpr size_t chunk = gated_delta_interval;

// What the steps write. Tokens of a chunk are i, j, m < n <= 64, d < Dk, columns < Dv.
// Of the maths above gamma is G, start[i] is e^c_i, end[i] is G_ni, and error is e, for in the code e counts elements.
// A Work is named w too, so that the w of the maths is w.w.
template <class Real>
struct Work {
  Real *gamma, *L, *P, *dL, *dP;  // (64,64); dL and dP times gamma
  Real *start, *end;              // (64): e^c_i; G_ni
  Real* S;                        // (Dk,Dv): forward the state, backward dS
  Real *u, *error, *du, *de, *w;  // (64,Dv); du becomes Du
  Real *dq, *plus, *minus;        // (64,Dk)
  Real *row, *dc, *written;       // (Dk): sum over columns of S dS'; (64); (64): w_i.u_i

  static size_t floats(const GatedDeltaShape& s) {
    return 5 * chunk * chunk + 4 * chunk + s.Dk * s.Dv + 5 * chunk * s.Dv + 3 * chunk * s.Dk + s.Dk;
  }
  HD Work(Real* p, const GatedDeltaShape& s) {
    const auto take = [&](size_t n) {
      Real* const at = p;
      p += n;
      return at;
    };
    gamma = take(chunk * chunk), L = take(chunk * chunk), P = take(chunk * chunk);
    dL = take(chunk * chunk), dP = take(chunk * chunk);
    start = take(chunk), end = take(chunk);
    S = take(s.Dk * s.Dv);
    u = take(chunk * s.Dv), error = take(chunk * s.Dv), du = take(chunk * s.Dv), de = take(chunk * s.Dv);
    w = take(chunk * s.Dv);
    dq = take(chunk * s.Dk), plus = take(chunk * s.Dk), minus = take(chunk * s.Dk);
    row = take(s.Dk), dc = take(chunk), written = take(chunk);
  }
};

// from + chain over m < n of a[m*a_step] * b[m*b_step]
template <class Real>
HD Real chain(Real from, const Real* a, size_t a_step, const Real* b, size_t b_step, size_t n) {
  for (size_t m = 0; m < n; m++) from = fused(a[m * a_step], b[m * b_step], from);
  return from;
}

// G, e^c, G_n, L and P of the n tokens from t0.
template <class Real, class Each>
HD void matrices(const Work<Real>& w, const GatedDeltaInOf<Real>& in, const GatedDeltaShape& s, size_t b, size_t h,
                 size_t t0, size_t n, Each each) {
  const Real *q = in.q + s.qk_row(b, t0, h), *k = in.k + s.qk_row(b, t0, h), *g = in.g + s.number(b, t0, h);
  const size_t step = s.qk_step();
  each(n + 1, [=](size_t j) {
    const bool from_start = j == n;
    Real c = 0;
    for (size_t i = from_start ? 0 : j; i < n; i++) {
      if (from_start || i > j) c = c + g[i * s.Hv];
      (from_start ? w.start[i] : w.gamma[i * chunk + j]) = exact_exp(c);
    }
    if (!from_start) w.end[j] = w.gamma[(n - 1) * chunk + j];
  });
  each(n * n, [=](size_t ij) {
    const size_t i = ij / n, j = ij % n, at = i * chunk + j;
    if (j < i) w.L[at] = w.gamma[at] * chain(Real(0), k + i * step, 1, k + j * step, 1, s.Dk);
    if (j <= i) w.P[at] = w.gamma[at] * chain(Real(0), q + i * step, 1, k + j * step, 1, s.Dk);
  });
}

template <class Real, class Each>
HD void forward(const Work<Real>& w, const GatedDeltaOutOf<Real>& out, const GatedDeltaInOf<Real>& in,
                const GatedDeltaShape& s, size_t b, size_t h, Each each) {
  const size_t state = s.state(b, h), size = s.Dk * s.Dv, Dv = s.Dv, step = s.qk_step();
  each(size, [=](size_t e) { w.S[e] = in.initial ? in.initial[state + e] : Real(0); });
  for (size_t t0 = 0; t0 < s.T; t0 += chunk) {
    const size_t n = s.T - t0 < chunk ? s.T - t0 : chunk, row = s.o_row(b, t0, h), row_step = s.Hv * Dv;
    const Real *q = in.q + s.qk_row(b, t0, h), *k = in.k + s.qk_row(b, t0, h);
    const Real *v = in.v + s.v_row(b, t0, h), *beta = in.beta + s.number(b, t0, h);
    if (out.kept && t0 > 0) {
      Real* const kept = out.kept + s.kept_state(b, h, t0 / chunk - 1);
      each(size, [=](size_t e) { kept[e] = w.S[e]; });
    }
    matrices(w, in, s, b, h, t0, n, each);

    each(n * Dv, [=](size_t e) {  // X
      const size_t i = e / Dv, j = e % Dv;
      const Real stored = chain(Real(0), k + i * step, 1, w.S + j, Dv, s.Dk);
      w.error[e] = fused(-w.start[i], stored, v[i * s.v_step() + j]);
    });
    each(Dv, [=](size_t j) {  // e and u, downwards
      for (size_t i = 0; i < n; i++) {
        Real e = w.error[i * Dv + j];
        for (size_t m = 0; m < i; m++) e = fused(-w.L[i * chunk + m], w.u[m * Dv + j], e);
        if (out.error) out.error[row + i * row_step + j] = e;
        w.u[i * Dv + j] = beta[i * s.Hv] * e;
      }
    });
    each(n * Dv, [=](size_t e) {
      const size_t i = e / Dv, j = e % Dv;
      const Real from = w.start[i] * chain(Real(0), q + i * step, 1, w.S + j, Dv, s.Dk);
      out.o[row + i * row_step + j] = chain(from, w.P + i * chunk, 1, w.u + j, Dv, i + 1);
    });
    each(size, [=](size_t e) {
      const size_t d = e / Dv, j = e % Dv;
      Real sum = w.start[n - 1] * w.S[e];
      for (size_t i = 0; i < n; i++) sum = fused(w.end[i] * k[i * step + d], w.u[i * Dv + j], sum);
      w.S[e] = sum;
    });
  }
  if (out.final) each(size, [=](size_t e) { out.final[state + e] = w.S[e]; });
}

template <class Real, class Each>
HD void backward(const Work<Real>& w, const GatedDeltaGradientsOf<Real>& out, const GatedDeltaBackwardInOf<Real>& back,
                 const GatedDeltaInOf<Real>& in, const GatedDeltaShape& s, size_t b, size_t h, Each each) {
  using gated_delta::Dot;
  const size_t state = s.state(b, h), size = s.Dk * s.Dv, Dk = s.Dk, Dv = s.Dv, step = s.qk_step();
  const Real* const dS = w.S;
  each(size, [=](size_t e) { w.S[e] = back.dfinal ? back.dfinal[state + e] : Real(0); });
  for (size_t part = s.kept() + 1; part-- > 0;) {
    const size_t t0 = part * chunk, n = s.T - t0 < chunk ? s.T - t0 : chunk;
    const size_t row = s.o_row(b, t0, h), row_step = s.Hv * Dv, number = s.number(b, t0, h), key = s.qk_row(b, t0, h);
    const Real *q = in.q + key, *k = in.k + key, *dout = back.dout + row, *error = back.error + row;
    const Real *beta = in.beta + number, *S = part > 0     ? back.kept + s.kept_state(b, h, part - 1)
                                              : in.initial ? in.initial + state
                                                           : nullptr;
    // chain over columns of a[column] * S_d,column
    const auto S_row = [=](const Real* a, size_t d) { return S ? chain(Real(0), a, 1, S + d * Dv, 1, Dv) : Real(0); };
    matrices(w, in, s, b, h, t0, n, each);

    each(n * Dv, [=](size_t e) {
      const size_t i = e / Dv, j = e % Dv;
      w.u[e] = beta[i * s.Hv] * error[i * row_step + j];
      w.w[e] = w.end[i] * chain(Real(0), k + i * step, 1, dS + j, Dv, Dk);
      w.du[e] = chain(w.w[e], w.P + i * chunk + i, chunk, dout + i * row_step + j, row_step, n - i);
    });
    each(Dv, [=](size_t j) {  // Du and de, upwards
      for (size_t i = n; i-- > 0;) {
        Real du = w.du[i * Dv + j];
        for (size_t m = n; --m > i;) du = fused(-w.L[m * chunk + i], w.de[m * Dv + j], du);
        w.du[i * Dv + j] = du;
        w.de[i * Dv + j] = beta[i * s.Hv] * du;
        out.dv[s.v_row(b, t0 + i, h) + j] = w.de[i * Dv + j];
      }
    });
    each(n * n, [=](size_t ij) {
      const size_t i = ij / n, j = ij % n, at = i * chunk + j;
      if (j < i) w.dL[at] = -w.gamma[at] * chain(Real(0), w.de + i * Dv, 1, w.u + j * Dv, 1, Dv);
      if (j <= i) w.dP[at] = w.gamma[at] * chain(Real(0), dout + i * row_step, 1, w.u + j * Dv, 1, Dv);
    });
    each(n * Dk, [=](size_t e) {
      const size_t i = e / Dk, d = e % Dk;
      const Real dq = chain(w.start[i] * S_row(dout + i * row_step, d), w.dP + i * chunk, 1, k + d, step, i + 1);
      const Real plus = chain(-w.start[i] * S_row(w.de + i * Dv, d), w.dL + i * chunk, 1, k + d, step, i);
      Real minus = w.end[i] * chain(Real(0), w.u + i * Dv, 1, dS + d * Dv, 1, Dv);
      minus = chain(minus, w.dP + i * chunk + i, chunk, q + i * step + d, step, n - i);
      minus = chain(minus, w.dL + (i + 1) * chunk + i, chunk, k + (i + 1) * step + d, step, n - 1 - i);
      w.dq[e] = dq;
      w.plus[e] = plus;
      w.minus[e] = minus;
      Real &to_q = out.dq[key + i * step + d], &to_k = out.dk[key + i * step + d];
      const bool first = h % s.group() == 0;
      to_q = (first ? Real(0) : to_q) + dq;
      to_k = (first ? Real(0) : to_k) + (plus + minus);
    });
    each(Dk, [=](size_t d) { w.row[d] = S_row(dS + d * Dv, d); });
    each(n, [=](size_t i) {
      Dot<Real> q_dq, k_plus, k_minus, du_e, w_u;
      for (size_t d = 0; d < Dk; d++) {
        q_dq.fma(d, q[i * step + d], w.dq[i * Dk + d]);
        k_plus.fma(d, k[i * step + d], w.plus[i * Dk + d]);
        k_minus.fma(d, k[i * step + d], w.minus[i * Dk + d]);
      }
      for (size_t j = 0; j < Dv; j++) {
        du_e.fma(j, w.du[i * Dv + j], error[i * row_step + j]);
        w_u.fma(j, w.w[i * Dv + j], w.u[i * Dv + j]);
      }
      w.dc[i] = (q_dq.total() + k_plus.total()) - k_minus.total();
      w.written[i] = w_u.total();
      out.dbeta[number + i * s.Hv] = Real(0) + du_e.total();  // never -0, whatever a vector is filled up with
    });
    each(1, [=](size_t) {
      Dot<Real> S_dS;
      for (size_t d = 0; d < Dk; d++) S_dS.add(d, w.row[d]);
      Real written = 0, dg = 0;
      for (size_t i = 0; i < n; i++) written = written + w.written[i];
      const Real last = w.start[n - 1] * S_dS.total() + written;
      for (size_t i = n; i-- > 0;) {
        dg = dg + (i == n - 1 ? w.dc[i] + last : w.dc[i]);
        out.dg[number + i * s.Hv] = dg;
      }
    });
    each(size, [=](size_t e) {
      const size_t d = e / Dv, j = e % Dv;
      Real sum = w.start[n - 1] * w.S[e];
      for (size_t i = 0; i < n; i++) sum = fused(w.start[i] * q[i * step + d], dout[i * row_step + j], sum);
      for (size_t i = 0; i < n; i++) sum = fused(-(w.start[i] * k[i * step + d]), w.de[i * Dv + j], sum);
      w.S[e] = sum;
    });
  }
  if (out.dinitial) each(size, [=](size_t e) { out.dinitial[state + e] = w.S[e]; });
}

}  // namespace gated_delta_chunk

// ---- references

namespace gated_delta_chunk {

struct EachInOrder {
  template <class F>
  HD void operator()(size_t n, F f) const {
    for (size_t e = 0; e < n; e++) f(e);
  }
};

}  // namespace gated_delta_chunk

template <class Real>
void gated_delta_chunk_forward_ref(const GatedDeltaOutOf<Real>& out, const GatedDeltaInOf<Real>& in,
                                   const GatedDeltaShape& s) {
  using namespace gated_delta_chunk;
  std::vector<Real> memory(Work<Real>::floats(s));
  for (size_t b = 0; b < s.B; b++)
    for (size_t h = 0; h < s.Hv; h++) forward(Work<Real>(memory.data(), s), out, in, s, b, h, EachInOrder());
}
IN_FLOAT_AND_DOUBLE(gated_delta_chunk_forward_ref);

template <class Real>
void gated_delta_chunk_backward_ref(const GatedDeltaGradientsOf<Real>& out, const GatedDeltaBackwardInOf<Real>& back,
                                    const GatedDeltaInOf<Real>& in, const GatedDeltaShape& s) {
  using namespace gated_delta_chunk;
  std::vector<Real> memory(Work<Real>::floats(s));
  for (size_t b = 0; b < s.B; b++)
    for (size_t h = 0; h < s.Hv; h++) backward(Work<Real>(memory.data(), s), out, back, in, s, b, h, EachInOrder());
}
IN_FLOAT_AND_DOUBLE(gated_delta_chunk_backward_ref);

// ---- kernels
//
// Forward a block owns a head, backward a key head with the heads that share it, one after the other, for they add to
// the same dq and dk. Its threads share out the elements of a step, neighbours to neighbours, and meet at a barrier
// after it. Arrays of a step are in scratch. For one head with Dk = Dv = 128 that is 102,784 floats, about 400 KiB,
// which come from the L2 cache.

namespace gated_delta_chunk {

constexpr unsigned threads = 256;

struct EachByThreads {
  template <class F>
  __device__ void operator()(size_t n, F f) const {
    for (size_t e = threadIdx.x; e < n; e += blockDim.x) f(e);
    __syncthreads();
  }
};

}  // namespace gated_delta_chunk

__global__ void __launch_bounds__(gated_delta_chunk::threads)
    gated_delta_chunk_forward_kernel(GatedDeltaOut out, GatedDeltaIn in, GatedDeltaShape s, float* scratch,
                                     size_t floats) {
  using namespace gated_delta_chunk;
  forward(Work<float>(scratch + blockIdx.x * floats, s), out, in, s, blockIdx.x / s.Hv, blockIdx.x % s.Hv,
          EachByThreads());
}

__global__ void __launch_bounds__(gated_delta_chunk::threads)
    gated_delta_chunk_backward_kernel(GatedDeltaGradients out, GatedDeltaBackwardIn back, GatedDeltaIn in,
                                      GatedDeltaShape s, float* scratch, size_t floats) {
  using namespace gated_delta_chunk;
  const Work<float> w(scratch + blockIdx.x * floats, s);
  for (size_t r = 0; r < s.group(); r++)
    backward(w, out, back, in, s, blockIdx.x / s.Hk, blockIdx.x % s.Hk * s.group() + r, EachByThreads());
}

// ---- launchers

void gated_delta_chunk_forward(const GatedDeltaOut& out, const GatedDeltaIn& in, const GatedDeltaShape& s,
                               Context& ctx) {
  require_gated_delta("gated_delta_chunk_forward", out, s);
  if (ctx.device == Device::cpu) return gated_delta_chunk_forward_cpu(out, in, s, ctx);
  using namespace gated_delta_chunk;
  float* const scratch = ctx.scratch(gated_delta_chunk_forward_scratch(s, ctx.device) / sizeof(float));
  launch(gated_delta_chunk_forward_kernel, grid_of(s.B * s.Hv), threads, 0, ctx, out, in, s, scratch,
         Work<float>::floats(s));
}

void gated_delta_chunk_backward(const GatedDeltaGradients& out, const GatedDeltaBackwardIn& back,
                                const GatedDeltaIn& in, const GatedDeltaShape& s, Context& ctx) {
  require_gated_delta("gated_delta_chunk_backward", s);
  if (ctx.device == Device::cpu) return gated_delta_chunk_backward_cpu(out, back, in, s, ctx);
  using namespace gated_delta_chunk;
  float* const scratch = ctx.scratch(gated_delta_chunk_backward_scratch(s, ctx.device) / sizeof(float));
  launch(gated_delta_chunk_backward_kernel, grid_of(s.B * s.Hk), threads, 0, ctx, out, back, in, s, scratch,
         Work<float>::floats(s));
}

size_t gated_delta_chunk_forward_scratch(const GatedDeltaShape& s, Device device) {
  if (device == Device::cpu) return gated_delta_chunk_cpu_scratch(s);
  return s.B * s.Hv * gated_delta_chunk::Work<float>::floats(s) * sizeof(float);
}

size_t gated_delta_chunk_backward_scratch(const GatedDeltaShape& s, Device device) {
  if (device == Device::cpu) return gated_delta_chunk_cpu_scratch(s);
  return s.B * s.Hk * gated_delta_chunk::Work<float>::floats(s) * sizeof(float);
}

}  // namespace gated
