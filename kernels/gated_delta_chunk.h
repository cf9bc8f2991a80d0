// gated_delta_chunk: the gated delta rule (kernels/gated_delta.h), 64 tokens at a time in matrix products. What it
// computes, and how: kernels/gated_delta_chunk.cu
#pragma once
#include "kernels/gated_delta.h"

namespace gated {

// As gated_delta_forward and gated_delta_backward, with the same arrays and the same refusals, to other bits: how far
// they are from those is in kernels/gated_delta_chunk.cu. A backward wants what a forward of its own kind has left. A
// sequence that is cut after a multiple of 64 tokens, with the state carried on, has the bits of the whole.
void gated_delta_chunk_forward(const GatedDeltaOut& out, const GatedDeltaIn& in, const GatedDeltaShape& s,
                               Context& ctx);
void gated_delta_chunk_backward(const GatedDeltaGradients& out, const GatedDeltaBackwardIn& back,
                                const GatedDeltaIn& in, const GatedDeltaShape& s, Context& ctx);
// Bytes of scratch; on a CPU for the number of threads that OpenMP has now.
size_t gated_delta_chunk_forward_scratch(const GatedDeltaShape& s, Device device);
size_t gated_delta_chunk_backward_scratch(const GatedDeltaShape& s, Device device);

template <class Real>
void gated_delta_chunk_forward_ref(const GatedDeltaOutOf<Real>& out, const GatedDeltaInOf<Real>& in,
                                   const GatedDeltaShape& s);
template <class Real>
void gated_delta_chunk_backward_ref(const GatedDeltaGradientsOf<Real>& out, const GatedDeltaBackwardInOf<Real>& back,
                                    const GatedDeltaInOf<Real>& in, const GatedDeltaShape& s);

// ---- the same bits near the speed of a CPU's matrix products: kernels/cpu/gated_delta_chunk_cpu.cpp
void gated_delta_chunk_forward_cpu(const GatedDeltaOut& out, const GatedDeltaIn& in, const GatedDeltaShape& s,
                                   Context& ctx);
void gated_delta_chunk_backward_cpu(const GatedDeltaGradients& out, const GatedDeltaBackwardIn& back,
                                    const GatedDeltaIn& in, const GatedDeltaShape& s, Context& ctx);
size_t gated_delta_chunk_cpu_scratch(const GatedDeltaShape& s);

}  // namespace gated
