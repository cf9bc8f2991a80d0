// attention_extra: the parameters behind the extra position of kernels/attention.cuh
//   sink     a learnable logit for every query head        (gpt-oss: Agarwal et al. 2025, arXiv 2508.10925)
//     backward: dsink_h += column sum of ds_bht, by its formula -p_bht (do.o)
//   kv bias  a learnable key k' and value v' for every query head    (Sun et al. 2024, arXiv 2402.17762)
//     logit: e_bht = scale * (chain over d of q_bthd k'_hd), scale = 1/sqrt(D): as for any key
//     backward: dk'_hd += column sum of (scale * ds_bht) * q_bthd, dv'_hd += column sum of p_bht * do_bthd,
//       a row's term by fused(); the share of dq is in attention_backward
//   Column sums are over the rows b*T + t; p and ds are what attention_backward wrote.
// shapes: q, dout (B,T,H,D), logit, p, ds (B,H,T), sink (H), k', v' (H,D) f32
//   logit is written, dsink, dkey and dvalue are accumulated
//
// --attn-sink=learned|kv-bias | tests/test_attention_extra.cpp
#pragma once
#include "kernels/attention.cuh"

namespace gated {

// ---- reference

template <class Real>
void kv_bias_logits_ref(Real* logit, const Real* q, const Real* key, size_t B, size_t T, size_t H, size_t D) {
  const AttentionShape s{B, T, H, H, D};
  const Real scale = attention_scale<Real>(D);
#pragma omp parallel for
  for (size_t row = 0; row < B * T; row++)
    for (size_t h = 0; h < H; h++)
      logit[s.stat(row / T, h, row % T)] = scale * attention_dot(q + (row * H + h) * D, key + h * D, D);
}

template <class Real>
struct SinkGrad {
  const Real* ds;
  AttentionShape s;
  HD Real operator()(Real acc, size_t row, size_t h) const { return acc + ds[s.stat(row / s.T, h, row % s.T)]; }
};

// Of the key, with w = ds and x = q, or of the value, with w = p, x = dout and no factor.
template <class Real>
struct KvBiasGrad {
  const Real *w, *x;
  Real factor;
  AttentionShape s;
  HD Real operator()(Real acc, size_t row, size_t c) const {
    return fused(factor * w[s.stat(row / s.T, c / s.D, row % s.T)], x[row * s.H * s.D + c], acc);
  }
};

template <class Real>
void sink_backward_ref(Real* dsink, const Real* extra_ds, size_t B, size_t T, size_t H) {
  column_reduce_add_ref(dsink, B * T, H, SinkGrad<Real>{extra_ds, {B, T, H, H, 1}});
}

template <class Real>
void kv_bias_backward_ref(Real* dkey, Real* dvalue, const Real* extra_p, const Real* extra_ds, const Real* q,
                          const Real* dout, size_t B, size_t T, size_t H, size_t D) {
  const AttentionShape s{B, T, H, H, D};
  column_reduce_add_ref(dkey, B * T, H * D, KvBiasGrad<Real>{extra_ds, q, attention_scale<Real>(D), s});
  column_reduce_add_ref(dvalue, B * T, H * D, KvBiasGrad<Real>{extra_p, dout, Real(1), s});
}

// ---- kernel: one thread a logit

template <bool aligned>
__global__ void kv_bias_logits_kernel(float* logit, const float* q, const float* key, AttentionShape s, float scale) {
  const size_t n = threadIdx.x + size_t(blockDim.x) * blockIdx.x;
  if (n >= s.B * s.H * s.T) return;
  const size_t b = n / (s.H * s.T), h = n / s.T % s.H, t = n % s.T;
  logit[n] = scale * attention_row_dot<aligned>(q + s.query_row(b, t, h), key + h * s.D, s.D);
}

// ---- launchers

inline void kv_bias_logits(float* logit, const float* q, const float* key, size_t B, size_t T, size_t H, size_t D,
                           Context& ctx) {
  if (ctx.device == Device::cpu) return kv_bias_logits_ref(logit, q, key, B, T, H, D);
  attention_with_class(D, {q, key}, [&](auto aligned, auto) {
    launch(kv_bias_logits_kernel<aligned>, grid_of(ceil_div(B * H * T, attention::threads)), attention::threads, 0, ctx,
           logit, q, key, AttentionShape{B, T, H, H, D}, attention_scale<float>(D));
  });
}

inline void sink_backward(float* dsink, const float* extra_ds, size_t B, size_t T, size_t H, Context& ctx) {
  column_reduce_add(dsink, B * T, H, SinkGrad<float>{extra_ds, {B, T, H, H, 1}}, ctx);
}

inline void kv_bias_backward(float* dkey, float* dvalue, const float* extra_p, const float* extra_ds, const float* q,
                             const float* dout, size_t B, size_t T, size_t H, size_t D, Context& ctx) {
  const AttentionShape s{B, T, H, H, D};
  column_reduce_add(dkey, B * T, H * D, KvBiasGrad<float>{extra_ds, q, attention_scale<float>(D), s}, ctx);
  column_reduce_add(dvalue, B * T, H * D, KvBiasGrad<float>{extra_p, dout, 1.0f, s}, ctx);
}

}  // namespace gated
