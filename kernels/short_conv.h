// short_conv: a causal convolution of every channel by itself over the last few tokens, and SiLU. What it computes, and
// how: kernels/short_conv.cu
#pragma once
#include "core/context.cuh"
#include "core/storage.h"

namespace gated {

struct ShortConvShape {
  size_t B, T, C;  // sequences, tokens of each, channels of a token
  size_t W;        // taps: the token itself and the W-1 before it
};

// y (B,T,C) is written. x (B,T,C), w (C,W), the last tap is the token's own; if W = 4 it begins on a boundary of 16
// bytes. A state (B,W-1,C) holds the last W-1 inputs, the oldest first: `initial` those before the sequence (null: 0),
// `final`, where it is not null, receives those at its end; it may be `initial`. y is not x. Refuses W = 0 and T = 0.
void short_conv_forward(Reals y, Reals final, ConstReals x, const float* w, ConstReals initial, const ShortConvShape& s,
                        Context& ctx);
// dx (B,T,C) and, where it is not null, dinitial (B,W-1,C) are written; dw (C,W) is accumulated. dfinal (B,W-1,C) may
// be null: 0. Neither dx nor dinitial is dy, dfinal or x.
void short_conv_backward(Reals dx, float* dw, Reals dinitial, ConstReals dy, ConstReals dfinal, ConstReals x,
                         const float* w, ConstReals initial, const ShortConvShape& s, Context& ctx);
// Bytes of scratch; on a CPU for the number of threads that OpenMP has now.
size_t short_conv_forward_scratch(const ShortConvShape& s, Device device);
size_t short_conv_backward_scratch(const ShortConvShape& s, Device device);

template <class Real>
void short_conv_forward_ref(Real* y, Real* final, const Real* x, const Real* w, const Real* initial,
                            const ShortConvShape& s);
template <class Real>
void short_conv_backward_ref(Real* dx, Real* dw, Real* dinitial, const Real* dy, const Real* dfinal, const Real* x,
                             const Real* w, const Real* initial, const ShortConvShape& s);

// ---- their twins for training on the CPU: kernels/cpu/short_conv_cpu.cpp
template <class S>
void short_conv_forward_cpu(S* y, S* final, const S* x, const float* w, const S* initial, const ShortConvShape& s,
                            Context& ctx);
template <class S>
void short_conv_backward_cpu(S* dx, float* dw, S* dinitial, const S* dy, const S* dfinal, const S* x, const float* w,
                             const S* initial, const ShortConvShape& s, Context& ctx);
size_t short_conv_forward_cpu_scratch(const ShortConvShape& s);
size_t short_conv_backward_cpu_scratch(const ShortConvShape& s);

}  // namespace gated
