// gated_delta: the gated delta rule, a linear attention with a state of fixed size, token by token. What it computes,
// and how: kernels/gated_delta.cu
#pragma once
#include "core/context.cuh"
#include "core/math.cuh"

namespace gated {

// These decide bits, and how much a forward keeps for its backward.
constexpr size_t gated_delta_chains = 16;    // of a dot product
constexpr size_t gated_delta_slice = 16;     // columns of the state that one chain of a sum over columns takes
constexpr size_t gated_delta_interval = 64;  // tokens from one kept state to the next

struct GatedDeltaShape {
  size_t B, T;    // sequences, tokens of each
  size_t Hk, Hv;  // heads of q and k; heads of v, of which Hv/Hk read the same q and k
  size_t Dk, Dv;  // elements of a key, of a value: a state is (Dk,Dv)

  // Elements from one token to the next, where the heads of a token lie in a wider row; 0: packed.
  size_t qk_stride = 0;  // of q, k, dq and dk
  size_t v_stride = 0;   // of v and dv

  HD size_t qk_step() const { return qk_stride ? qk_stride : Hk * Dk; }
  HD size_t v_step() const { return v_stride ? v_stride : Hv * Dv; }
  HD size_t group() const { return Hv / Hk; }
  HD size_t slices() const { return ceil_div(Dv, gated_delta_slice); }

  // Where a head begins; h is a value head.
  HD size_t qk_row(size_t b, size_t t, size_t h) const { return (b * T + t) * qk_step() + h / group() * Dk; }
  HD size_t v_row(size_t b, size_t t, size_t h) const { return (b * T + t) * v_step() + h * Dv; }
  HD size_t o_row(size_t b, size_t t, size_t h) const { return number(b, t, h) * Dv; }
  HD size_t number(size_t b, size_t t, size_t h) const { return (b * T + t) * Hv + h; }  // in g, beta
  HD size_t state(size_t b, size_t h) const { return (b * Hv + h) * Dk * Dv; }

  // A forward keeps the states before tokens 64, 128, ...; that before token 0 is the caller's.
  HD size_t kept() const { return (T - 1) / gated_delta_interval; }
  HD size_t kept_state(size_t b, size_t h, size_t n) const { return ((b * Hv + h) * kept() + n) * Dk * Dv; }
};

template <class Real>
struct GatedDeltaInOf {
  const Real *q, *k;              // (B,T,Hk,Dk)
  const Real* v;                  // (B,T,Hv,Dv)
  const Real *g, *beta;           // (B,T,Hv): the logarithm of the decay, at most 0; the strength of a write
  const Real* initial = nullptr;  // (B,Hv,Dk,Dv), the state before the first token; null: 0
};
using GatedDeltaIn = GatedDeltaInOf<float>;

// All that is not null is written whole.
template <class Real>
struct GatedDeltaOutOf {
  Real* o;                // (B,T,Hv,Dv)
  Real* final = nullptr;  // (B,Hv,Dk,Dv), the state after the last token; may be `initial`
  // What a backward needs; null where there will be none.
  Real* error = nullptr;  // (B,T,Hv,Dv): v less what the state had for its key
  Real* kept = nullptr;   // (B,Hv,kept(),Dk,Dv)
};
using GatedDeltaOut = GatedDeltaOutOf<float>;

template <class Real>
struct GatedDeltaBackwardInOf {
  const Real* dout;              // (B,T,Hv,Dv)
  const Real* dfinal = nullptr;  // (B,Hv,Dk,Dv), the gradient of the final state; null: 0
  const Real *error, *kept;      // as the forward left them
};
using GatedDeltaBackwardIn = GatedDeltaBackwardInOf<float>;

// Written whole; none may be an input but where it says so.
template <class Real>
struct GatedDeltaGradientsOf {
  Real *dq, *dk;             // (B,T,Hk,Dk)
  Real* dv;                  // (B,T,Hv,Dv)
  Real *dg, *dbeta;          // (B,T,Hv)
  Real* dinitial = nullptr;  // (B,Hv,Dk,Dv), or null; may be `dfinal`
};
using GatedDeltaGradients = GatedDeltaGradientsOf<float>;

// Refuses T = 0, Dk > 256, Hv that is no multiple of Hk, strides below a token's width, and `error` without `kept`
// where T > 64. The forward takes no scratch on a GPU.
void gated_delta_forward(const GatedDeltaOut& out, const GatedDeltaIn& in, const GatedDeltaShape& s, Context& ctx);
void gated_delta_backward(const GatedDeltaGradients& out, const GatedDeltaBackwardIn& back, const GatedDeltaIn& in,
                          const GatedDeltaShape& s, Context& ctx);
// Bytes of scratch; on a CPU for the number of threads that OpenMP has now.
size_t gated_delta_forward_scratch(const GatedDeltaShape& s, Device device);
size_t gated_delta_backward_scratch(const GatedDeltaShape& s, Device device);

template <class Real>
void gated_delta_forward_ref(const GatedDeltaOutOf<Real>& out, const GatedDeltaInOf<Real>& in,
                             const GatedDeltaShape& s);
// (It takes neither `error` nor `kept`: it goes through the whole sequence again.)
template <class Real>
void gated_delta_backward_ref(const GatedDeltaGradientsOf<Real>& out, const GatedDeltaBackwardInOf<Real>& back,
                              const GatedDeltaInOf<Real>& in, const GatedDeltaShape& s);

// ---- the same bits near the speed of a CPU's arithmetic: kernels/cpu/gated_delta_cpu.cpp
void gated_delta_forward_cpu(const GatedDeltaOut& out, const GatedDeltaIn& in, const GatedDeltaShape& s, Context& ctx);
void gated_delta_backward_cpu(const GatedDeltaGradients& out, const GatedDeltaBackwardIn& back, const GatedDeltaIn& in,
                              const GatedDeltaShape& s, Context& ctx);
size_t gated_delta_forward_cpu_scratch(const GatedDeltaShape& s);
size_t gated_delta_backward_cpu_scratch(const GatedDeltaShape& s);

}  // namespace gated
