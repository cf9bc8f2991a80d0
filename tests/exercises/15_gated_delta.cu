// Exercise 15, gated_delta: the gated delta rule, token by token: a matrix that remembers values by their keys.
//
// A head has a state S (Dk,Dv), at first 0. Every token in its turn:
//     alpha = e^g
//     e = v - alpha S^T k          exactly e_j = fused(-alpha, (S^T k)_j, v_j)
//     u = beta e
//     S <- alpha S + k u^T         exactly S_ij = fused(k_i, u_j, alpha * S_ij)
//     o = S^T q
// A dot over a key, S^T k and S^T q, has 16 chains: element i joins chain i mod 16, and the chains add up as a tree of
// neighbours. Dot<float> is that: dot.fma(i, a, b), dot.total(). exact_exp is e^g.
// The chapter: kernels/gated_delta.cu. The launch: a block of 64 threads for each head of each sequence, with Dk*Dv
// floats of dynamic shared memory for S: DYNAMIC_SHARED(float, S). blockIdx.x is the head, blockIdx.y the sequence. Dv
// is at most 64.
//
// hint 1: Column j of S meets v_j, e_j, u_j and o_j only. So one thread can own a column, and needs nobody: how many
// barriers is that?
//
// hint 2: q, k are (B,T,H,Dk), v, o (B,T,H,Dv), g, beta (B,T,H): number of token t of head h: n = (b*T + t)*H + h.
//
// hint 3: Thread j sets its column to 0. For each t: a Dot over i of S[i*Dv + j] and k_i; e, u; the new column; a Dot
// of that and q_i, which is o_j.
//
// A wrong answer usually reads the state before all of the column is new, lets alpha decay S twice, or never clears it.
#include "tests/exercises/try.h"

#include "kernels/gated_delta.cuh"

using namespace gated;
using gated::gated_delta::Dot;

// ---- reference
// <<< from kernels/gated_delta.cu: column_dot
// <<< from kernels/gated_delta.cu: step

template <class Real>
void gated_delta_plain_ref(Real* o, const Real* q, const Real* k, const Real* v, const Real* g, const Real* beta,
                           size_t B, size_t T, size_t H, size_t Dk, size_t Dv) {
  for (size_t b = 0; b < B; b++)
    for (size_t h = 0; h < H; h++) {
      std::vector<Real> S(Dk * Dv, Real(0)), error(Dv);
      for (size_t t = 0; t < T; t++) {
        const size_t n = (b * T + t) * H + h;
        step(S.data(), error.data(), k + n * Dk, v + n * Dv, g[n], beta[n], Dk, Dv);
        for (size_t j = 0; j < Dv; j++) o[n * Dv + j] = column_dot(S.data() + j, q + n * Dk, Dk, Dv);
      }
    }
}

// ---- yours: o (B,T,H,Dv) is written; q, k (B,T,H,Dk), v (B,T,H,Dv), g, beta (B,T,H)

__global__ void gated_delta_kernel(float* o, const float* q, const float* k, const float* v, const float* g,
                                   const float* beta, size_t T, size_t H, size_t Dk, size_t Dv) {
  // <<< solution
  DYNAMIC_SHARED(float, S);
  const size_t h = blockIdx.x, b = blockIdx.y, j = threadIdx.x;
  if (j >= Dv) return;
  for (size_t i = 0; i < Dk; i++) S[i * Dv + j] = 0;
  for (size_t t = 0; t < T; t++) {
    const size_t n = (b * T + t) * H + h;
    const float alpha = exact_exp(g[n]);
    Dot<float> stored, read;
    for (size_t i = 0; i < Dk; i++) stored.fma(i, S[i * Dv + j], k[n * Dk + i]);
    const float u = beta[n] * fused(-alpha, stored.total(), v[n * Dv + j]);
    for (size_t i = 0; i < Dk; i++) S[i * Dv + j] = fused(k[n * Dk + i], u, alpha * S[i * Dv + j]);
    for (size_t i = 0; i < Dk; i++) read.fma(i, S[i * Dv + j], q[n * Dk + i]);
    o[n * Dv + j] = read.total();
  }
  // >>>
}

// ---- how it is judged

void exercise(Try& t) {
  t.cases({"B", "T", "H", "Dk", "Dv"}, {{1, 2, 1, 3, 2}, {1, 5, 2, 20, 12}, {2, 7, 2, 32, 64}},
          [&](size_t B, size_t T, size_t H, size_t Dk, size_t Dv) {
            const size_t N = B * T * H;
            Tried& o =
                t.out("o", N, Dv).sums(T * Dk).ordered_by("kernels/gated_delta.cu: 16 chains of a dot over a key");
            Tried &q = t.in("q", N, Dk), &k = t.in("k", N, Dk, 0.3f), &v = t.in("v", N, Dv);
            std::vector<float> decay = random_values<float>(N, 4), share = random_values<float>(N, 5);
            for (float& x : decay) x = -0.5f - 0.5f * x;
            for (float& x : share) x = 0.5f + 0.5f * x;
            Tried &g = t.in("g", N, 1, decay), &beta = t.in("beta", N, 1, share);
            t.reference([&](auto real) {
              gated_delta_plain_ref(o(real), q(real), k(real), v(real), g(real), beta(real), B, T, H, Dk, Dv);
            });
            t.judge([&] {
              t.launch(gated_delta_kernel, dim3(H, B), 64, Dk * Dv * sizeof(float), o, q, k, v, g, beta, T, H, Dk, Dv);
            });
            PROJECT(t, gated_delta_forward({.o = o}, {.q = q, .k = k, .v = v, .g = g, .beta = beta},
                                           {B, T, H, H, Dk, Dv}, ctx));
          });
}
