// sinks: the parameters behind the one more position that every query of attention may see. What they compute, and how:
// kernels/sinks.cu
#pragma once
#include "core/storage.h"
#include "kernels/attention.h"

namespace gated {

// logit (B,H,T) of a kv bias, whose key is (H,D), from q (B,T,H,D), is written. KVH, window and score do not count.
void kv_bias_logits(float* logit, ConstReals q, const float* key, const AttentionShape& s, Context& ctx);

// dkey and dvalue (H,D) are accumulated. sink_p and sink_ds (B,H,T) are what attention_backward wrote; q and dout
// (B,T,H,D) lie as the shape says.
void kv_bias_backward(float* dkey, float* dvalue, const float* sink_p, const float* sink_ds, ConstReals q,
                      ConstReals dout, const AttentionShape& s, Context& ctx);
// Bytes of scratch that it takes.
size_t kv_bias_backward_scratch(const AttentionShape& s);

// dsink (H) is accumulated.
void sink_backward(float* dsink, const float* sink_ds, size_t B, size_t T, size_t H, Context& ctx);
size_t sink_backward_scratch(size_t B, size_t T, size_t H);

template <class Real>
void kv_bias_logits_ref(Real* logit, const Real* q, const Real* key, const AttentionShape& s);
template <class Real>
void kv_bias_backward_ref(Real* dkey, Real* dvalue, const Real* sink_p, const Real* sink_ds, const Real* q,
                          const Real* dout, const AttentionShape& s);
template <class Real>
void sink_backward_ref(Real* dsink, const Real* sink_ds, size_t B, size_t T, size_t H);

// kv_bias_logits_ref's bits, on all cores: kernels/cpu/sinks_cpu.cpp
template <class S>
void kv_bias_logits_cpu(float* logit, const S* q, const float* key, const AttentionShape& s);

}  // namespace gated
