// sinks: the parameters behind the one more position e that every query may see (kernels/attention.cu, section 3)
//   A softmax has to put its weight somewhere. Heads that have nothing to say learn to put it on the first token, whose
//   activations grow huge for it; a sink gives them a place.
//
//   sink     a learned logit for every query head              (gpt-oss: Agarwal et al. 2025, arXiv 2508.10925)
//     e_bht = sink_h for every query: its gradient adds up the gradients of all these logits,
//       dsink_h += sum over b and t of ds_bht
//     (which is -p_bht do_bht.o_bht, as a sink has no value: it can only take weight from the keys)
//
//   kv bias  a learned key k' and value v' for every query head       (Sun et al. 2024, arXiv 2402.17762)
//     e_bht = scale * q_bht.k'_h, scale = 1/sqrt(D): a key like any other, at no position
//     e is linear in q and in k', and o is linear in v', with p as the factor:
//       dk'_h += sum over b and t of scale * ds_bht * q_bht
//       dv'_h += sum over b and t of p_bht * do_bht
//     The share of dq, scale * ds_bht * k'_h, is in attention_backward.
//   p and ds are what attention_backward wrote.
// order: a dot product is a chain over d; sums are those of a column (core/reduce.cuh) over the rows b*T + t
// shapes: q, dout (B,T,H,D) f32 or bf16; logit, p, ds (B,H,T), sink (H), k', v' (H,D) f32
//   logit is written, dsink, dkey and dvalue are accumulated
// twins: kernels/cpu/sinks_cpu.cpp
// --attn-sink=learned|kv-bias | tests/test_sinks.cpp
#include "kernels/sinks.h"

#include "core/launch.cuh"
#include "core/reduce.cuh"
#include "kernels/attention_tile.cuh"

namespace gated {

// ---- reference

template <class Real>
void kv_bias_logits_ref(Real* logit, const Real* q, const Real* key, const AttentionShape& s) {
  const Real scale = attention_scale<Real>(s.divisor());
  for (size_t b = 0; b < s.B; b++)
    for (size_t h = 0; h < s.H; h++)
      for (size_t t = 0; t < s.T; t++) {
        const Real* q_t = q + s.q_row(b, t, h);
        Real dot = 0;
        for (size_t d = 0; d < s.D; d++) dot = fused(q_t[d], key[h * s.D + d], dot);
        logit[s.stat(b, h, t)] = scale * dot;
      }
}
IN_FLOAT_AND_DOUBLE(kv_bias_logits_ref);

template <class Real>
void kv_bias_backward_ref(Real* dkey, Real* dvalue, const Real* sink_p, const Real* sink_ds, const Real* q,
                          const Real* dout, const AttentionShape& s) {
  const Real scale = attention_scale<Real>(s.divisor());
  for (size_t h = 0; h < s.H; h++)
    for (size_t d = 0; d < s.D; d++) {
      ColumnSum<Real> key, value;
      for (size_t b = 0; b < s.B; b++)
        for (size_t t = 0; t < s.T; t++) {
          key.fma(scale * sink_ds[s.stat(b, h, t)], q[s.q_row(b, t, h) + d]);
          value.fma(sink_p[s.stat(b, h, t)], dout[s.q_row(b, t, h) + d]);
        }
      dkey[h * s.D + d] = dkey[h * s.D + d] + key.total();
      dvalue[h * s.D + d] = dvalue[h * s.D + d] + value.total();
    }
}
IN_FLOAT_AND_DOUBLE(kv_bias_backward_ref);

template <class Real>
void sink_backward_ref(Real* dsink, const Real* sink_ds, size_t B, size_t T, size_t H) {
  for (size_t h = 0; h < H; h++) {
    ColumnSum<Real> sum;
    for (size_t b = 0; b < B; b++)
      for (size_t t = 0; t < T; t++) sum.add(sink_ds[(b * H + h) * T + t]);
    dsink[h] = dsink[h] + sum.total();
  }
}
IN_FLOAT_AND_DOUBLE(sink_backward_ref);

// ---- kernel: one thread a logit, which reads its query's row by itself (row_dot: kernels/attention_tile.cuh)

template <class S>
__global__ void kv_bias_logits_kernel(float* logit, const S* q, const float* key, AttentionShape s, float scale,
                                      bool aligned) {
  const size_t n = threadIdx.x + size_t(blockDim.x) * blockIdx.x;
  if (n >= s.B * s.H * s.T) return;
  const size_t b = n / (s.H * s.T), h = n / s.T % s.H, t = n % s.T;
  logit[n] = scale * attention::row_dot(q + s.q_row(b, t, h), key + h * s.D, s.D, aligned);
}

// ---- launchers
//
// The kernels of a column sum are in core/reduce.cuh. They take a fold, which puts one element into its chain: here row
// b*T + t into the chain of its column.

struct SinkFold {
  const float* ds;
  AttentionShape s;
  HD float operator()(float acc, size_t row, size_t h) const { return acc + ds[s.stat(row / s.T, h, row % s.T)]; }
};

// Of the key: w is ds, x is q, factor is the scale. Of the value: w is p, x is dout, factor is 1.
template <class S>
struct KvBiasFold {
  const float* w;
  const S* x;
  float factor;
  AttentionShape s;
  HD float operator()(float acc, size_t row, size_t c) const {
    return fused(factor * w[s.stat(row / s.T, c / s.D, row % s.T)], float(x[row * s.q_step() + c]), acc);
  }
};

void kv_bias_logits(float* logit, ConstReals q, const float* key, const AttentionShape& s, Context& ctx) {
  const float scale = attention_scale<float>(s.divisor());
  with_storage(q, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu) return kv_bias_logits_cpu(logit, q.as<S>(), key, s);
    launch(kv_bias_logits_kernel<S>, grid_of(ceil_div(s.B * s.H * s.T, attention::threads)), attention::threads, 0, ctx,
           logit, q.as<S>(), key, s, scale, attention::rows_are_aligned(s, {q, key}));
  });
}

void kv_bias_backward(float* dkey, float* dvalue, const float* sink_p, const float* sink_ds, ConstReals q,
                      ConstReals dout, const AttentionShape& s, Context& ctx) {
  const size_t N = s.B * s.T, C = s.H * s.D;
  const float scale = attention_scale<float>(s.divisor());
  with_storage(q, [&](auto stored) {
    using S = decltype(stored);
    column_reduce_add(dkey, N, C, KvBiasFold<S>{sink_ds, q.as<S>(), scale, s}, ctx);
    column_reduce_add(dvalue, N, C, KvBiasFold<S>{sink_p, dout.as<S>(), 1.0f, s}, ctx);
  });
}

size_t kv_bias_backward_scratch(const AttentionShape& s) {
  return column_reduce_scratch(s.B * s.T, s.H * s.D);
}

void sink_backward(float* dsink, const float* sink_ds, size_t B, size_t T, size_t H, Context& ctx) {
  column_reduce_add(dsink, B * T, H, SinkFold{sink_ds, {B, T, H, H, 1}}, ctx);
}

size_t sink_backward_scratch(size_t B, size_t T, size_t H) {
  return column_reduce_scratch(B * T, H);
}

}  // namespace gated
