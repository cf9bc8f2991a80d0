// gated_delta: the gated delta rule                             (Yang, Kautz & Hatamizadeh 2024, arXiv 2412.06464)
//
// Softmax attention keeps every key and value. Here a head keeps one matrix S (Dk,Dv), its state, that maps keys to
// values: S^T k is what the state has stored for the key k. A token first lets all of it decay by alpha = e^g, 0 <
// alpha <= 1, then corrects what is stored for its own key, and reads with its query:
//     alpha = e^g
//     e = v - alpha S^T k            what v is off from what the decayed state holds for k
//     u = beta e                     beta in [0,1]: how much of that is corrected; 1 replaces the old value if |k| = 1
//     S <- alpha S + k u^T           the delta rule: S^T k moves from alpha S^T k to v by the share beta |k|^2
//     o = S^T q
//   Column j of S meets v_j, e_j, u_j and o_j only: the columns of a state do not know each other.
//
// backward, of one token. S is the state before it, S' the one after it. dS' comes from the tokens after it and do from
// the output. Every line above is linear in each of its factors, so each gradient is the product of what it multiplies:
//     o = S'^T q                  dS' <- dS' + q do^T        dq = S' do
//     S' = alpha S + k u^T        du = dS'^T k               dk = dS' u         dS = alpha dS'      dalpha = <S, dS'>
//     u = beta e                  de = beta du               dbeta = du.e
//     e = v - alpha S^T k         dv = de                    dk <- dk - alpha S de
//                                 dS <- dS - alpha k de^T    dalpha <- dalpha - (S^T k).de
//   Write w = -alpha de. Then what the four lines give to dk and to dS adds up to
//     dk = dS' u + S w            dS = alpha dS' + k w^T
//   And dg = alpha dalpha = <S, alpha dS'> + (S^T k).w = <S, alpha dS' + k w^T> = <S, dS>: two states, element by
//   element. Heads of v that share a key and a query add up what they give to it.
//
// What backward needs is S before every token. S of every token would be T states of Dk*Dv numbers. So forward keeps
// one in 64 and e of every token, and backward goes from a kept state through its 64 tokens again, S <- alpha S + k u^T
// with the same u = beta e: the same operations, the same bits.
//
// order: "fused" is fused(a,b,c) = a*b + c, rounded once.
//   a dot over a key (S^T k, S^T q, dS^T k) has 16 chains: element i joins chain i mod 16, every chain starts at +0 and
//     ascends; the chains add up as a tree of neighbours, ((c0+c1) + (c2+c3)) + ... So up to 16 lanes of a GPU may
//     share a column, and a vector of a CPU may lie along a column as well as across 16 of them.
//   a sum over columns (dq, dk, dbeta, dg) is made in slices of 16 columns, which are added from +0 in ascending order;
//     for dq and dk heads of v that share a key follow each other in the same sum. So each slice may be made elsewhere.
//     In a slice
//     dq_i    is one ascending chain over j of S'_ij do_j
//     dk_i    is one such chain of dS'_ij u_j plus one such chain of S_ij w_j
//     dbeta   is a dot, as over a key, of du and e
//     dg      has a chain over j of S_ij dS_ij for every i, and these are added like the elements of a dot
//   elements: e = fused(-alpha, S^T k, v), S <- fused(k_i, u_j, alpha*S_ij), dS' <- fused(q_i, do_j, dS'_ij),
//     w = -alpha*dv, dS <- fused(k_i, w_j, alpha*dS'_ij)
//   A state that is carried over is the only thing that one token knows of those before it: a sequence that is cut
//   anywhere, with the state carried on, has the bits of the whole.
// shapes: q, k (B,T,Hk,Dk), v, o, e (B,T,Hv,Dv), g, beta (B,T,Hv), states (B,Hv,Dk,Dv) f32; value head h reads key head
//   h / (Hv/Hk), rounded down | all outputs are written
// q comes scaled and normalised, k normalised: kernels/l2norm.cu. g and beta: kernels/decay.cu
// The forward's kernel is at the end of this file, the backward's are in kernels/gated_delta_backward.cu.
// twins: kernels/cpu/gated_delta_cpu.cpp, kernels/bf16/gated_delta_bf16.cu
// --mixer=gated-delta|hybrid | tests/test_gated_delta.cpp
#include "kernels/gated_delta.cuh"

#include <vector>

#include "core/launch.cuh"

namespace gated {

// ---- reference

namespace gated_delta {

// S^T x of one column: S begins at that column of row 0.
template <class Real>
Real column_dot(const Real* S, const Real* x, size_t Dk, size_t Dv) {
  Dot<Real> dot;
  for (size_t i = 0; i < Dk; i++) dot.fma(i, S[i * Dv], x[i]);
  return dot.total();
}

// One token's turn: S becomes the state after it, `error` is written.
template <class Real>
void step(Real* S, Real* error, const Real* k, const Real* v, Real g, Real beta, size_t Dk, size_t Dv) {
  const Real alpha = exact_exp(g);
  for (size_t j = 0; j < Dv; j++) {
    error[j] = fused(-alpha, column_dot(S + j, k, Dk, Dv), v[j]);
    const Real u = beta * error[j];
    for (size_t i = 0; i < Dk; i++) S[i * Dv + j] = fused(k[i], u, alpha * S[i * Dv + j]);
  }
}

template <class Real>
std::vector<Real> state_or_zero(const Real* state, size_t at, size_t n) {
  return state ? std::vector<Real>(state + at, state + at + n) : std::vector<Real>(n, Real(0));
}

}  // namespace gated_delta

template <class Real>
void gated_delta_forward_ref(const GatedDeltaOutOf<Real>& out, const GatedDeltaInOf<Real>& in,
                             const GatedDeltaShape& s) {
  using namespace gated_delta;
  for (size_t b = 0; b < s.B; b++)
    for (size_t h = 0; h < s.Hv; h++) {
      std::vector<Real> S = state_or_zero(in.initial, s.state(b, h), s.Dk * s.Dv), error(s.Dv);
      for (size_t t = 0; t < s.T; t++) {
        if (out.kept && t > 0 && t % gated_delta_interval == 0)
          std::copy(S.begin(), S.end(), out.kept + s.kept_state(b, h, t / gated_delta_interval - 1));
        const size_t n = s.number(b, t, h), key = s.qk_row(b, t, h), row = s.o_row(b, t, h);
        step(S.data(), error.data(), in.k + key, in.v + s.v_row(b, t, h), in.g[n], in.beta[n], s.Dk, s.Dv);
        if (out.error) std::copy(error.begin(), error.end(), out.error + row);
        for (size_t j = 0; j < s.Dv; j++) out.o[row + j] = column_dot(S.data() + j, in.q + key, s.Dk, s.Dv);
      }
      if (out.final) std::copy(S.begin(), S.end(), out.final + s.state(b, h));
    }
}
IN_FLOAT_AND_DOUBLE(gated_delta_forward_ref);

namespace gated_delta {

// One token's turn backwards. `after` and `before` are the states around it; dS is the gradient of `after` without what
// comes through this token's output, and becomes that of `before`. dq and dk (Dk) are added to.
template <class Real>
void step_backward(Real* dS, Real* dq, Real* dk, Real* dv, Real* dg, Real* dbeta, const Real* dout, const Real* after,
                   const Real* before, const Real* error, const Real* q, const Real* k, Real g, Real beta, size_t Dk,
                   size_t Dv) {
  const Real alpha = exact_exp(g);
  *dbeta = *dg = 0;
  for (size_t j0 = 0; j0 < Dv; j0 += gated_delta_slice) {
    const size_t j1 = j0 + gated_delta_slice < Dv ? j0 + gated_delta_slice : Dv;
    Dot<Real> du_e, S_dS;
    for (size_t j = j0; j < j1; j++) {
      for (size_t i = 0; i < Dk; i++) dS[i * Dv + j] = fused(q[i], dout[j], dS[i * Dv + j]);
      const Real du = column_dot(dS + j, k, Dk, Dv);
      du_e.fma(j, du, error[j]);
      dv[j] = beta * du;
    }
    for (size_t i = 0; i < Dk; i++) {
      Real to_q = 0, from_write = 0, from_error = 0, product = 0;
      for (size_t j = j0; j < j1; j++) {
        const size_t ij = i * Dv + j;
        const Real u = beta * error[j], w = -alpha * dv[j];
        to_q = fused(after[ij], dout[j], to_q);
        from_write = fused(dS[ij], u, from_write);
        from_error = fused(before[ij], w, from_error);
        dS[ij] = fused(k[i], w, alpha * dS[ij]);
        product = fused(before[ij], dS[ij], product);
      }
      dq[i] = dq[i] + to_q;
      dk[i] = dk[i] + (from_write + from_error);
      S_dS.add(i, product);
    }
    *dbeta = *dbeta + du_e.total();
    *dg = *dg + S_dS.total();
  }
}

}  // namespace gated_delta

template <class Real>
void gated_delta_backward_ref(const GatedDeltaGradientsOf<Real>& out, const GatedDeltaBackwardInOf<Real>& back,
                              const GatedDeltaInOf<Real>& in, const GatedDeltaShape& s) {
  using namespace gated_delta;
  const size_t size = s.Dk * s.Dv;
  for (size_t b = 0; b < s.B; b++)
    for (size_t h = 0; h < s.Hv; h++) {
      std::vector<Real> states = state_or_zero(in.initial, s.state(b, h), size), error(s.T * s.Dv);
      states.resize((s.T + 1) * size);  // before every token, and after the last
      for (size_t t = 0; t < s.T; t++) {
        Real* S = &states[(t + 1) * size];
        std::copy(S - size, S, S);
        const size_t n = s.number(b, t, h);
        step(S, &error[t * s.Dv], in.k + s.qk_row(b, t, h), in.v + s.v_row(b, t, h), in.g[n], in.beta[n], s.Dk, s.Dv);
      }
      std::vector<Real> dS = state_or_zero(back.dfinal, s.state(b, h), size);
      for (size_t t = s.T; t-- > 0;) {
        const size_t n = s.number(b, t, h), key = s.qk_row(b, t, h);
        if (h % s.group() == 0)
          for (size_t i = 0; i < s.Dk; i++) out.dq[key + i] = out.dk[key + i] = 0;
        step_backward(dS.data(), out.dq + key, out.dk + key, out.dv + s.v_row(b, t, h), out.dg + n, out.dbeta + n,
                      back.dout + s.o_row(b, t, h), &states[(t + 1) * size], &states[t * size], &error[t * s.Dv],
                      in.q + key, in.k + key, in.g[n], in.beta[n], s.Dk, s.Dv);
      }
      if (out.dinitial) std::copy(dS.begin(), dS.end(), out.dinitial + s.state(b, h));
    }
}
IN_FLOAT_AND_DOUBLE(gated_delta_backward_ref);

// ---- forward kernel
//
// Sixteen lanes, half a warp, own four columns of a state and walk over all tokens. Lane c has rows c, c+16, c+32, ...
// of them in registers, which are the rows of chain c:
//
//                      column 0   1   2   3 | 4   5   6   7
//     row  0   lane 0         .   .   .   . | .   .   .   .
//     row  1   lane 1         .   .   .   . | .   .   .   .
//       ...                   half warp 0   |  half warp 1         `rows` rows a lane: Dk = 128 makes 8, 32 registers
//     row 15   lane 15        .   .   .   . | .   .   .   .
//     row 16   lane 0         .   .   .   . | .   .   .   .
//       ...
//
// A dot is then a chain in every lane and four shuffles: the state never leaves the registers. Every half warp loads k
// and q of a token for itself, 64 neighbouring bytes at a time; the Dv/4 half warps of a head find them in the cache.
// Memory sees v and o once, with e 12 bytes for each element of a value, and a kept state every 64 tokens.
// Rows past Dk are in no chain, columns past Dv have no memory.

namespace gated_delta {

constexpr unsigned threads = 128;
constexpr int columns = 4;  // of a half warp

// The rows of lane c: c + 16m, m < rows; 0 past the end.
template <int rows>
struct Lane {
  float x[rows];
  __device__ void load(const float* p, size_t step, size_t Dk) {
    for (int m = 0; m < rows; m++) {
      const size_t i = threadIdx.x % 16 + 16 * m;
      x[m] = i < Dk ? p[i * step] : 0.0f;
    }
  }
  __device__ void store(float* p, size_t step, size_t Dk) const {
    for (int m = 0; m < rows; m++) {
      const size_t i = threadIdx.x % 16 + 16 * m;
      if (i < Dk) p[i * step] = x[m];
    }
  }
  __device__ float dot(const Lane& y, size_t Dk) const {
    float chain = 0.0f;
    for (int m = 0; m < rows; m++)
      if (threadIdx.x % 16 + 16 * m < Dk) chain = fused(x[m], y.x[m], chain);
    return chains_sum(chain);
  }
};

}  // namespace gated_delta

template <int rows>
__global__ void __launch_bounds__(gated_delta::threads)
    gated_delta_forward_kernel(GatedDeltaOut out, GatedDeltaIn in, GatedDeltaShape s) {
  using namespace gated_delta;
  const size_t n = (size_t(blockIdx.x) * threads + threadIdx.x) / 16, blocks = ceil_div(s.Dv, columns);
  const size_t b = n / blocks / s.Hv, h = n / blocks % s.Hv, j0 = n % blocks * columns;
  if (b >= s.B) return;
  const bool first_lane = threadIdx.x % 16 == 0;

  Lane<rows> S[columns] = {};
  for (int c = 0; c < columns; c++)
    if (in.initial && j0 + c < s.Dv) S[c].load(in.initial + s.state(b, h) + j0 + c, s.Dv, s.Dk);
  for (size_t t = 0; t < s.T; t++) {
    if (out.kept && t > 0 && t % gated_delta_interval == 0)
      for (int c = 0; c < columns; c++)
        if (j0 + c < s.Dv) S[c].store(out.kept + s.kept_state(b, h, t / gated_delta_interval - 1) + j0 + c, s.Dv, s.Dk);
    Lane<rows> k, q;
    k.load(in.k + s.qk_row(b, t, h), 1, s.Dk);
    q.load(in.q + s.qk_row(b, t, h), 1, s.Dk);
    const float alpha = exact_exp(in.g[s.number(b, t, h)]), beta = in.beta[s.number(b, t, h)];
    for (int c = 0; c < columns; c++) {
      const size_t j = j0 + c, row = s.o_row(b, t, h);
      const float v = j < s.Dv ? in.v[s.v_row(b, t, h) + j] : 0.0f;
      const float error = fused(-alpha, S[c].dot(k, s.Dk), v), u = beta * error;
      for (int m = 0; m < rows; m++) S[c].x[m] = fused(k.x[m], u, alpha * S[c].x[m]);
      const float o = S[c].dot(q, s.Dk);
      if (!first_lane || j >= s.Dv) continue;
      out.o[row + j] = o;
      if (out.error) out.error[row + j] = error;
    }
  }
  for (int c = 0; c < columns; c++)
    if (out.final && j0 + c < s.Dv) S[c].store(out.final + s.state(b, h) + j0 + c, s.Dv, s.Dk);
}

// ---- launchers

void require_gated_delta(const char* name, const GatedDeltaShape& s) {
  require(s.T > 0, "%s: no tokens", name);
  require(s.Hk > 0 && s.Hv > 0 && s.Hv % s.Hk == 0, "%s: %zu value heads, expected a multiple of the %zu key heads",
          name, s.Hv, s.Hk);
  require(s.Dk > 0 && s.Dk <= 256, "%s: keys have %zu elements, expected 1 to 256", name, s.Dk);
  require(s.Dv > 0, "%s: values have no elements", name);
  require(s.qk_step() >= s.Hk * s.Dk && s.v_step() >= s.Hv * s.Dv,
          "%s: strides are %zu and %zu, expected at least the %zu and %zu elements of a token", name, s.qk_step(),
          s.v_step(), s.Hk * s.Dk, s.Hv * s.Dv);
}

void require_gated_delta(const char* name, const GatedDeltaOut& out, const GatedDeltaShape& s) {
  require_gated_delta(name, s);
  require(!out.error == !out.kept || s.kept() == 0, "%s: a backward needs both error and kept", name);
}

void gated_delta_forward(const GatedDeltaOut& out, const GatedDeltaIn& in, const GatedDeltaShape& s, Context& ctx) {
  require_gated_delta("gated_delta_forward", out, s);
  if (ctx.device == Device::cpu) return gated_delta_forward_cpu(out, in, s, ctx);
  using namespace gated_delta;
  const auto kernel = s.Dk <= 16    ? gated_delta_forward_kernel<1>
                      : s.Dk <= 32  ? gated_delta_forward_kernel<2>
                      : s.Dk <= 64  ? gated_delta_forward_kernel<4>
                      : s.Dk <= 128 ? gated_delta_forward_kernel<8>
                                    : gated_delta_forward_kernel<16>;
  const size_t half_warps = s.B * s.Hv * ceil_div(s.Dv, columns);
  launch(kernel, grid_of(ceil_div(half_warps, threads / 16)), threads, 0, ctx, out, in, s);
}

size_t gated_delta_forward_scratch(const GatedDeltaShape& s, Device device) {
  return device == Device::cpu ? gated_delta_forward_cpu_scratch(s) : 0;
}

}  // namespace gated
