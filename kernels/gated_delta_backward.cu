// gated_delta_backward: the kernels of the gated delta rule's backward. Maths, order of the sums and references:
// kernels/gated_delta.cu
//
// 64 tokens at a time, the last ones first: the tokens between two kept states. A block owns one slice of 16 columns of
// one state, and a thread one row of it, with S and dS in registers, 16 numbers each. What is summed along a row, dq_i,
// dk_i and the chain of dg, stays in the thread. Only du, the dot down a column, needs the other rows. They write dS
// into shared memory, and half a warp takes a column as in the forward, lane c the rows c, c+16, ...:
//
//              column 0  1  2 ... 15                      column 0  1  2 ... 15
//     row 0    | thread 0           |            row 0    |  .  .        | lane 0 of half warp j mod (threads/16)
//     row 1    | thread 1           |   ==>      row 1    |  .  .        | lane 1
//       ...                                        ...
//     row 127  | thread 127         |            row 127  |  .  .        | lane 15
//
// The states of the 64 tokens are made anew from the kept one. That many do not fit: a first walk leaves every fourth
// in scratch, and a second one, from each of these, the next four in shared memory. A thread makes and reads its own
// row, so none of that needs a barrier. A token has three: after dS, after du, and after the chains of dg.
// Sums over slices and heads come last, in a kernel of their own. Their parts (of 64 tokens) are in scratch.
// Shared memory: 5 tiles of 16 columns, 40 KiB for Dk = 128.
// twins: kernels/cpu/gated_delta_cpu.cpp, kernels/bf16/gated_delta_bf16_backward.cu
// tests/test_gated_delta.cpp
#include "core/launch.cuh"
#include "core/pieces.h"
#include "kernels/gated_delta.cuh"

namespace gated {

// ---- kernels

namespace gated_delta {

constexpr size_t slice = gated_delta_slice, interval = gated_delta_interval;
constexpr size_t walk = 4;  // states in shared memory

// What backward has in scratch. Rows are padded to whole warps: R is Dk rounded up to 32, and a slice is (16,R).
struct Scratch {
  float *dq, *dk;     // (B,Hv,slices,64,R): parts of their sums
  float *dg, *dbeta;  // (B,Hv,slices,64)
  float* dS;          // (B,Hv,slices,16,R): from one launch to the next
  float* states;      // (B,Hv,slices,64/4,16,R)

  Scratch(Pieces& pieces, const GatedDeltaShape& s) {
    const size_t all = s.B * s.Hv * s.slices(), R = round_up(s.Dk, 32);
    for (float** x : {&dq, &dk}) *x = pieces.take<float>(all * interval * R);
    for (float** x : {&dg, &dbeta}) *x = pieces.take<float>(all * interval);
    dS = pieces.take<float>(all * slice * R);
    states = pieces.take<float>(all * (interval / walk) * slice * R);
  }
};

struct Shared {
  float u[slice], w[slice];  // beta*e and -alpha*dv of the token
  float du_e[slice];
};

}  // namespace gated_delta

// Tokens t0 .. t0 + count - 1. dS comes from dfinal, or from the launch before; at token 0 it goes to dinitial.
__global__ void __launch_bounds__(256)
    gated_delta_backward_kernel(GatedDeltaGradients out, GatedDeltaBackwardIn back, GatedDeltaIn in, GatedDeltaShape s,
                                gated_delta::Scratch scratch, size_t t0, size_t count) {
  using namespace gated_delta;
  DYNAMIC_SHARED(Shared, shared);
  const size_t R = blockDim.x, i = threadIdx.x, tile = slice * R;
  float* const column = reinterpret_cast<float*>(shared + 1);  // dS (16,R)
  float* const history = column + tile;                        // (4,16,R)
  float* const chain = history + walk * tile;                  // of dg (R)
  const size_t n = blockIdx.x, b = n / s.slices() / s.Hv, h = n / s.slices() % s.Hv, j0 = n % s.slices() * slice;
  const size_t J = j0 + slice < s.Dv ? slice : s.Dv - j0;  // columns of this slice
  const bool row = i < s.Dk;
  const size_t lane = i % 16;

  // Element j of this thread's row. Rows and columns that do not exist are 0.
  const auto load_row = [&](float(&x)[slice], const float* state) {
    for (size_t j = 0; j < slice; j++) x[j] = state && row && j < J ? state[i * s.Dv + j0 + j] : 0.0f;
  };
  float S[slice], dS[slice];
  // One token further.
  const auto step = [&](size_t t) {
    const float alpha = exact_exp(in.g[s.number(b, t, h)]), beta = in.beta[s.number(b, t, h)];
    const float k = row ? in.k[s.qk_row(b, t, h) + i] : 0.0f;
    for (size_t j = 0; j < slice; j++)
      if (j < J) S[j] = fused(k, beta * back.error[s.o_row(b, t, h) + j0 + j], alpha * S[j]);
  };

  load_row(S, t0 > 0       ? back.kept + s.kept_state(b, h, t0 / interval - 1)
              : in.initial ? in.initial + s.state(b, h)
                           : nullptr);
  float* const states = scratch.states + n * (interval / walk) * tile;
  for (size_t m = 0; m < count; m++) {
    if (m % walk == 0)
      for (size_t j = 0; j < slice; j++) states[(m / walk * slice + j) * R + i] = S[j];
    step(t0 + m);
  }
  float after[slice];
  for (size_t j = 0; j < slice; j++) after[j] = S[j];

  if (t0 + count == s.T)
    load_row(dS, back.dfinal ? back.dfinal + s.state(b, h) : nullptr);
  else
    for (size_t j = 0; j < slice; j++) dS[j] = scratch.dS[n * tile + j * R + i];

  for (size_t m = count; m-- > 0;) {
    if (m % walk == walk - 1 || m == count - 1) {  // the states before tokens m0 .. m
      const size_t m0 = m / walk * walk;
      for (size_t j = 0; j < slice; j++) S[j] = states[(m0 / walk * slice + j) * R + i];
      for (size_t at = m0; at <= m; at++) {
        for (size_t j = 0; j < slice; j++) history[((at - m0) * slice + j) * R + i] = S[j];
        if (at < m) step(t0 + at);
      }
    }
    const size_t t = t0 + m, number = s.number(b, t, h), key = s.qk_row(b, t, h), value = s.o_row(b, t, h) + j0;
    const float alpha = exact_exp(in.g[number]), beta = in.beta[number];
    const float q = row ? in.q[key + i] : 0.0f, k = row ? in.k[key + i] : 0.0f;

    float dq = 0.0f;
    for (size_t j = 0; j < slice; j++)
      if (j < J) {
        const float dout = back.dout[value + j];
        dS[j] = fused(q, dout, dS[j]);
        dq = fused(after[j], dout, dq);
        column[j * R + i] = dS[j];
      }
    __syncthreads();  // dS is whole
    for (size_t j = i / 16; j < slice; j += R / 16) {
      float dot = 0.0f;
      for (size_t r = lane; r < s.Dk && j < J; r += 16) dot = fused(column[j * R + r], in.k[key + r], dot);
      const float du = chains_sum(dot);
      if (lane != 0) continue;
      const float error = j < J ? back.error[value + j] : 0.0f, dv = beta * du;
      shared->u[j] = beta * error;
      shared->w[j] = -alpha * dv;
      shared->du_e[j] = fused(du, error, 0.0f);
      if (j < J) out.dv[s.v_row(b, t, h) + j0 + j] = dv;
    }
    __syncthreads();  // du is whole
    float from_write = 0.0f, from_error = 0.0f, product = 0.0f;
    for (size_t j = 0; j < slice; j++)
      if (j < J) {
        const float before = history[(m % walk * slice + j) * R + i], w = shared->w[j];
        from_write = fused(dS[j], shared->u[j], from_write);
        from_error = fused(before, w, from_error);
        dS[j] = fused(k, w, alpha * dS[j]);
        product = fused(before, dS[j], product);
        after[j] = before;
      }
    scratch.dq[(n * interval + m) * R + i] = dq;
    scratch.dk[(n * interval + m) * R + i] = from_write + from_error;
    chain[i] = product;
    __syncthreads();  // the products are whole, and nobody reads u and w any more
    if (i < 16) {
      const float dbeta = chains_sum(shared->du_e[i]);
      float sum = 0.0f;
      for (size_t r = i; r < s.Dk; r += 16) sum = sum + chain[r];
      const float dg = chains_sum(sum);
      if (i == 0) {
        scratch.dbeta[n * interval + m] = dbeta;
        scratch.dg[n * interval + m] = dg;
      }
    }
  }

  for (size_t j = 0; j < slice; j++) {
    scratch.dS[n * tile + j * R + i] = dS[j];
    if (t0 == 0 && out.dinitial && row && j < J) out.dinitial[s.state(b, h) + i * s.Dv + j0 + j] = dS[j];
  }
}

// The sums over slices and over heads that share a key, for the tokens of one launch. A thread owns one element of dq
// and dk, and those after them one number of dg and dbeta.
__global__ void __launch_bounds__(256)
    gated_delta_backward_sums_kernel(GatedDeltaGradients out, GatedDeltaShape s, gated_delta::Scratch scratch,
                                     size_t t0, size_t count) {
  using namespace gated_delta;
  const size_t keys = s.B * count * s.Hk * s.Dk, R = round_up(s.Dk, 32), slices = s.slices();
  size_t n = threadIdx.x + size_t(blockDim.x) * blockIdx.x;
  if (n < keys) {
    const size_t i = n % s.Dk, key_head = n / s.Dk % s.Hk, m = n / s.Dk / s.Hk % count, b = n / s.Dk / s.Hk / count;
    float dq = 0.0f, dk = 0.0f;
    for (size_t h = key_head * s.group(); h < (key_head + 1) * s.group(); h++)
      for (size_t p = (b * s.Hv + h) * slices; p < (b * s.Hv + h + 1) * slices; p++) {
        dq = dq + scratch.dq[(p * interval + m) * R + i];
        dk = dk + scratch.dk[(p * interval + m) * R + i];
      }
    const size_t to = s.qk_row(b, t0 + m, key_head * s.group()) + i;
    out.dq[to] = dq;
    out.dk[to] = dk;
    return;
  }
  n -= keys;
  if (n >= s.B * count * s.Hv) return;
  const size_t h = n % s.Hv, m = n / s.Hv % count, b = n / s.Hv / count;
  float dg = 0.0f, dbeta = 0.0f;
  for (size_t p = (b * s.Hv + h) * slices; p < (b * s.Hv + h + 1) * slices; p++) {
    dg = dg + scratch.dg[p * interval + m];
    dbeta = dbeta + scratch.dbeta[p * interval + m];
  }
  out.dg[s.number(b, t0 + m, h)] = dg;
  out.dbeta[s.number(b, t0 + m, h)] = dbeta;
}

// ---- launchers

void gated_delta_backward(const GatedDeltaGradients& out, const GatedDeltaBackwardIn& back, const GatedDeltaIn& in,
                          const GatedDeltaShape& s, Context& ctx) {
  require_gated_delta("gated_delta_backward", s);
  if (ctx.device == Device::cpu) return gated_delta_backward_cpu(out, back, in, s, ctx);
  using namespace gated_delta;
  Pieces pieces(ctx.scratch<unsigned char>(gated_delta_backward_scratch(s, ctx.device)));
  const Scratch scratch(pieces, s);
  const unsigned R = unsigned(round_up(s.Dk, 32));
  const size_t shared = sizeof(Shared) + ((1 + walk) * slice + 1) * R * sizeof(float);
  for (size_t part = s.kept() + 1; part-- > 0;) {
    const size_t t0 = part * interval, count = s.T - t0 < interval ? s.T - t0 : interval;
    launch(gated_delta_backward_kernel, grid_of(s.B * s.Hv * s.slices()), R, shared, ctx, out, back, in, s, scratch, t0,
           count);
    launch(gated_delta_backward_sums_kernel, grid_of(ceil_div(s.B * count * (s.Hk * s.Dk + s.Hv), 256)), 256, 0, ctx,
           out, s, scratch, t0, count);
  }
}

size_t gated_delta_backward_scratch(const GatedDeltaShape& s, Device device) {
  return device == Device::cpu ? gated_delta_backward_cpu_scratch(s) : bytes_of_memory<gated_delta::Scratch>(s);
}

}  // namespace gated
