// gated_delta_bf16: the gated delta rule over bf16 arrays, 64 tokens at a time on tensor cores. What it computes, and
// how: kernels/bf16/gated_delta_bf16.cu
#pragma once
#include "core/mma.h"
#include "core/storage.h"
#include "kernels/gated_delta.h"

namespace gated {

// Tokens of a chunk, from multiples of 64 on: a part of the result.
constexpr size_t gated_delta_bf16_chunk = 64;

HD size_t gated_delta_bf16_chunks(const GatedDeltaShape& s) {
  return ceil_div(s.T, gated_delta_bf16_chunk);
}
// Elements of `kept`.
inline size_t gated_delta_bf16_kept_size(const GatedDeltaShape& s) {
  return s.B * s.Hv * gated_delta_bf16_chunks(s) * s.Dk * s.Dv;
}

// Stored is bf16; in references it may be double, and then nothing is rounded.
template <class Stored>
struct GatedDeltaBf16InOf {
  const Stored *q, *k;                    // (B,T,Hk,Dk)
  const Stored* v;                        // (B,T,Hv,Dv)
  const Wide<Stored>*g, *beta;            // (B,T,Hv): the logarithm of the decay, at most 0; the strength of a write
  const Wide<Stored>* initial = nullptr;  // (B,Hv,Dk,Dv), the state before the first token; null: 0
};
using GatedDeltaBf16In = GatedDeltaBf16InOf<bf16>;

// All that is not null is written whole.
template <class Stored>
struct GatedDeltaBf16OutOf {
  Stored* o;                      // (B,T,Hv,Dv)
  Wide<Stored>* final = nullptr;  // (B,Hv,Dk,Dv), the state after the last token; may be `initial`
  Stored* kept;                   // (B,Hv,chunks,Dk,Dv): the state before every chunk, rounded
  Stored* u;                      // (B,T,Hv,Dv): what a token writes at its key
  Stored* miss = nullptr;  // (B,T,Hv,Dv): v less what the state before the chunk has for the key. A backward needs it.
};
using GatedDeltaBf16Out = GatedDeltaBf16OutOf<bf16>;

template <class Stored>
struct GatedDeltaBf16BackwardInOf {
  const Stored* dout;                    // (B,T,Hv,Dv)
  const Wide<Stored>* dfinal = nullptr;  // (B,Hv,Dk,Dv), the gradient of the final state; null: 0
  const Stored *kept, *u, *miss;         // as the forward left them
};
using GatedDeltaBf16BackwardIn = GatedDeltaBf16BackwardInOf<bf16>;

// Written whole; none may be an input.
template <class Stored>
struct GatedDeltaBf16GradientsOf {
  Stored *dq, *dk;                   // (B,T,Hk,Dk)
  Stored* dv;                        // (B,T,Hv,Dv)
  Wide<Stored>*dg, *dbeta;           // (B,T,Hv)
  Wide<Stored>* dinitial = nullptr;  // (B,Hv,Dk,Dv), or null; may be `dfinal`
};
using GatedDeltaBf16Gradients = GatedDeltaBf16GradientsOf<bf16>;

// Strides are those of the shape; kept() of the shape is the recurrence's. Refuses what gated_delta_forward refuses, Dk
// and Dv that are no multiples of 16, and rows of bf16 off 16-byte boundaries. A sequence that is cut after a multiple
// of 64 tokens, with the state carried on, has the bits of the whole; so has the last row of a sequence those of its
// row in a longer one.
void gated_delta_bf16_forward(const GatedDeltaBf16Out& out, const GatedDeltaBf16In& in, const GatedDeltaShape& s,
                              Context& ctx);
void gated_delta_bf16_backward(const GatedDeltaBf16Gradients& out, const GatedDeltaBf16BackwardIn& back,
                               const GatedDeltaBf16In& in, const GatedDeltaShape& s, Context& ctx);
// Bytes of scratch; on a CPU for the number of threads that OpenMP has now.
size_t gated_delta_bf16_forward_scratch(const GatedDeltaShape& s, Device device);
size_t gated_delta_bf16_backward_scratch(const GatedDeltaShape& s, Device device);

// ---- references
template <class Stored>
void gated_delta_bf16_forward_ref(const GatedDeltaBf16OutOf<Stored>& out, const GatedDeltaBf16InOf<Stored>& in,
                                  const GatedDeltaShape& s, MmaArithmetic arithmetic);
template <class Stored>
void gated_delta_bf16_backward_ref(const GatedDeltaBf16GradientsOf<Stored>& out,
                                   const GatedDeltaBf16BackwardInOf<Stored>& back, const GatedDeltaBf16InOf<Stored>& in,
                                   const GatedDeltaShape& s, MmaArithmetic arithmetic);

// ---- the same bits near the speed of a CPU's products of bf16: kernels/cpu/gated_delta_bf16_cpu.cpp
void gated_delta_bf16_forward_cpu(const GatedDeltaBf16Out& out, const GatedDeltaBf16In& in, const GatedDeltaShape& s,
                                  Context& ctx);
void gated_delta_bf16_backward_cpu(const GatedDeltaBf16Gradients& out, const GatedDeltaBf16BackwardIn& back,
                                   const GatedDeltaBf16In& in, const GatedDeltaShape& s, Context& ctx);
size_t gated_delta_bf16_cpu_scratch(const GatedDeltaShape& s);

}  // namespace gated
