// Exercise 12, attention_forward: causal softmax attention, without an array of T x T weights.
//
//     s_ij = scale * (q_i . k_j)                    scale = attention_scale<float>(D), given
//     m_i  = max over j <= i of s_ij
//     p_ij = e^(s_ij - m_i),   l_i = sum over j of p_ij
//     o_i  = (sum over j of p_ij v_j) * (1 / l_i),   lse_i = m_i + log(l_i)
//
// Every sum is one chain from +0: q.k of fused over ascending d; l of additions, and o_d of fused, over ascending j.
// The maximum is found first, so the scores are computed twice (kernels/attention.cu says why a running maximum would
// change the bits). exact_exp, exact_log, max_of, fused are as before.
// The chapter: kernels/attention.cu. The launch: a block of 32 threads for 32 queries of one head: blockIdx.x the 32
// queries, blockIdx.y the head, blockIdx.z the sequence. D is at most 64.
//
// hint 1: A thread owns a query, and goes through the keys j = 0 to i twice.
//
// hint 2: q, o are (B,T,H,D): a token's heads stand side by side, so the next key of the same head is H*D floats away.
//
// hint 3: A small array of D floats in the thread holds o while it grows. First walk: m. Second walk: s again, p, l +=
// p, o_d = fused(p, v_d, o_d). Then times 1/l.
//
// A wrong answer usually stops at j < i, or divides each p by l: right, but in another order.
#include "tests/exercises/try.h"

using namespace gated;

// ---- reference
// <<< from kernels/attention.h: attention_scale
// <<< from kernels/attention.cu: plain_attention_forward_ref

// ---- yours: o (B,T,H,D) and lse (B,H,T) are written; q, k, v (B,T,H,D)

__global__ void attention_kernel(float* o, float* lse, const float* q, const float* k, const float* v, float scale,
                                 size_t T, size_t H, size_t D) {
  // <<< solution
  const size_t i = blockIdx.x * 32 + threadIdx.x, h = blockIdx.y, b = blockIdx.z;
  if (i >= T) return;
  const size_t head = (b * T * H + h) * D, step = H * D;  // of token 0; to the next token
  const auto score = [&](size_t j) {
    float dot = 0;
    for (size_t d = 0; d < D; d++) dot = fused(q[head + i * step + d], k[head + j * step + d], dot);
    return dot * scale;
  };
  float m = -INFINITY, l = 0, o_i[64] = {};
  for (size_t j = 0; j <= i; j++) m = max_of(score(j), m);
  for (size_t j = 0; j <= i; j++) {
    const float p = exact_exp(score(j) - m);
    l = l + p;
    for (size_t d = 0; d < D; d++) o_i[d] = fused(p, v[head + j * step + d], o_i[d]);
  }
  const float inverse = 1.0f / l;
  for (size_t d = 0; d < D; d++) o[head + i * step + d] = o_i[d] * inverse;
  lse[(b * H + h) * T + i] = m + exact_log(l);
  // >>>
}

// ---- how it is judged

void exercise(Try& t) {
  t.cases({"B", "T", "H", "D"}, {{1, 3, 1, 4}, {1, 32, 1, 8}, {2, 37, 2, 16}}, [&](auto B, auto T, auto H, auto D) {
    const char* const order = "kernels/attention.cu, section 2";
    Tried& o = t.out("o", B * T * H, D).sums(4 * (T + D)).ordered_by(order);
    Tried& lse = t.out("lse", B * H, T).sums(T + D).ordered_by(order);
    Tried &q = t.in("q", B * T * H, D, 3), &k = t.in("k", B * T * H, D), &v = t.in("v", B * T * H, D);
    t.reference(
        [&](auto real) { plain_attention_forward_ref(o(real), lse(real), q(real), k(real), v(real), B, T, H, D); });
    t.judge([&] {
      t.launch(attention_kernel, dim3(ceil_div(T, 32), H, B), 32, 0, o, lse, q, k, v, attention_scale<float>(D), T, H,
               D);
    });
    PROJECT(t, attention_forward(o, lse, q, k, v, {B, T, H, H, D}, {}, ctx));
  });
}
