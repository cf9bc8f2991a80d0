// Exercise 13, attention_backward: queries by rows, keys and values by columns; the weights are computed again.
//
// do, o and lse of the forward are given (kernels/attention.cu derives these lines):
//     delta_i = do_i . o_i          p_ij  = e^(scale * (q_i . k_j) - lse_i)
//     dp_ij   = do_i . v_j          ds_ij = p_ij * (dp_ij - delta_i)
//     dq_i = scale * sum over j <= i of ds_ij k_j
//     dk_j = scale * sum over i >= j of ds_ij q_i
//     dv_j = sum over i >= j of p_ij do_i
// Every sum is one chain of fused from +0 over ascending d, j or i. dout is the array of do.
// The chapter: kernels/attention_backward.cu. The launches: blocks of 32 threads as in attention_forward, first for
// queries, then for keys. D is at most 64.
//
// hint 1: dq_i is the sum of a thread that owns query i, dk_j and dv_j those of one that owns key j: two kernels, and
// nobody adds to what another owns.
//
// hint 2: Both need p_ij and ds_ij of a pair, and compute them from the arrays: write that once.
//
// hint 3: The first kernel walks j = 0 to i, the second i = j to T-1. Small arrays of D floats in the thread hold the
// sums; scale comes at the end, of dq and dk.
//
// A wrong answer usually lets a thread of query i add to dk_j (a race), or forgets scale, or multiplies each link by
// it.
#include "tests/exercises/try.h"

using namespace gated;

// ---- reference
// <<< from kernels/attention.h: attention_scale
// <<< from kernels/attention.cu: plain_attention_forward_ref
// <<< from kernels/attention.cu: plain_attention_backward_ref

// ---- yours: dq, dk, dv (B,T,H,D) are written; dout, q, k, v, o (B,T,H,D), lse (B,H,T)

struct Given {
  const float *dout, *q, *k, *v, *o, *lse;
  float scale;
  size_t T, H, D;
};

// <<< solution
struct Pair {
  float p, ds;
};
__device__ inline float dot_of(const float* x, const float* y, size_t D) {
  float dot = 0;
  for (size_t d = 0; d < D; d++) dot = fused(x[d], y[d], dot);
  return dot;
}
__device__ inline Pair pair_of(const Given& g, size_t query, size_t key, float lse_i) {
  const float delta = dot_of(g.dout + query, g.o + query, g.D), dp = dot_of(g.dout + query, g.v + key, g.D);
  const float p = exact_exp(dot_of(g.q + query, g.k + key, g.D) * g.scale - lse_i);
  return {p, p * (dp - delta)};
}
// >>>

__global__ void dq_kernel(float* dq, Given g) {
  // <<< solution
  const size_t i = blockIdx.x * 32 + threadIdx.x, h = blockIdx.y, b = blockIdx.z, step = g.H * g.D;
  if (i >= g.T) return;
  const size_t head = (b * g.T * g.H + h) * g.D, query = head + i * step;
  float sum[64] = {};
  for (size_t j = 0; j <= i; j++) {
    const Pair pair = pair_of(g, query, head + j * step, g.lse[(b * g.H + h) * g.T + i]);
    for (size_t d = 0; d < g.D; d++) sum[d] = fused(pair.ds, g.k[head + j * step + d], sum[d]);
  }
  for (size_t d = 0; d < g.D; d++) dq[query + d] = g.scale * sum[d];
  // >>>
}

__global__ void dkdv_kernel(float* dk, float* dv, Given g) {
  // <<< solution
  const size_t j = blockIdx.x * 32 + threadIdx.x, h = blockIdx.y, b = blockIdx.z, step = g.H * g.D;
  if (j >= g.T) return;
  const size_t head = (b * g.T * g.H + h) * g.D, key = head + j * step;
  float to_k[64] = {}, to_v[64] = {};
  for (size_t i = j; i < g.T; i++) {
    const Pair pair = pair_of(g, head + i * step, key, g.lse[(b * g.H + h) * g.T + i]);
    for (size_t d = 0; d < g.D; d++) to_k[d] = fused(pair.ds, g.q[head + i * step + d], to_k[d]);
    for (size_t d = 0; d < g.D; d++) to_v[d] = fused(pair.p, g.dout[head + i * step + d], to_v[d]);
  }
  for (size_t d = 0; d < g.D; d++) dk[key + d] = g.scale * to_k[d], dv[key + d] = to_v[d];
  // >>>
}

// ---- how it is judged

void exercise(Try& t) {
  t.cases({"B", "T", "H", "D"}, {{1, 3, 1, 4}, {1, 32, 1, 8}, {2, 35, 2, 8}}, [&](auto B, auto T, auto H, auto D) {
    const size_t N = B * T * H;
    const auto out = [&](const char* name) -> Tried& {
      return t.out(name, N, D).sums(8 * (T + D)).ordered_by("kernels/attention.cu, section 2");
    };
    Tried &dq = out("dq"), &dk = out("dk"), &dv = out("dv");
    Tried &dout = t.in("dout", N, D), &q = t.in("q", N, D), &k = t.in("k", N, D), &v = t.in("v", N, D);
    std::vector<float> o_of(N * D), lse_of(N);
    plain_attention_forward_ref(o_of.data(), lse_of.data(), q(1.0f), k(1.0f), v(1.0f), B, T, H, D);
    Tried &o = t.in("o", N, D, o_of), &lse = t.in("lse", B * H, T, lse_of);
    std::vector<double> o_at(N * D), lse_at(N);
    const auto loss = [&](const double* q_at, const double* k_at, const double* v_at) {
      plain_attention_forward_ref(o_at.data(), lse_at.data(), q_at, k_at, v_at, B, T, H, D);
      double sum = 0;
      for (size_t i = 0; i < N * D; i++) sum += dout(1.0)[i] * o_at[i];
      return sum;
    };
    loss(q(1.0), k(1.0), v(1.0));
    std::copy(o_at.begin(), o_at.end(), o(1.0));
    std::copy(lse_at.begin(), lse_at.end(), lse(1.0));
    t.reference([&](auto real) {
      plain_attention_backward_ref(dq(real), dk(real), dv(real), dout(real), q(real), k(real), v(real), o(real),
                                   lse(real), B, T, H, D);
    });
    if (T == 3) {
      t.differences(dq, q, [&](const double* at) { return loss(at, k(1.0), v(1.0)); });
      t.differences(dk, k, [&](const double* at) { return loss(q(1.0), at, v(1.0)); });
      t.differences(dv, v, [&](const double* at) { return loss(q(1.0), k(1.0), at); });
    }
    const Given given = {dout, q, k, v, o, lse, attention_scale<float>(D), T, H, D};
    t.judge([&] {
      t.launch(dq_kernel, dim3(ceil_div(T, 32), H, B), 32, 0, dq, given);
      t.launch(dkdv_kernel, dim3(ceil_div(T, 32), H, B), 32, 0, dk, dv, given);
    });
    PROJECT(t, attention_backward(dq, dk, dv, nullptr, nullptr, dout, q, k, v, o, lse, {B, T, H, H, D}, {}, ctx));
  });
}
