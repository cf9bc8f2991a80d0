// gated_delta_bf16: the gated delta rule of kernels/gated_delta.cu over bf16, 64 tokens at a time on tensor cores
//                                                             (Yang, Wang, Zhang, Shen & Kim 2024, arXiv 2406.06484)
//
// Why a chunk of tokens becomes products of matrices, and the backward of that: kernels/gated_delta_chunk.cu. The same
// lines here, so arranged that every product is one of a tensor core's. S is the state in front of the chunk, c_i = g_1
// + ... + g_i, G_ij = e^(c_i - c_j) for j <= i, n the last token:
//
// 1. Forward.
//     X_i = v_i - e^c_i S^T k_i                    what v is off from what the state in front of the chunk holds for k
//     A_ij = beta_i G_ij (k_i.k_j)   (j < i)           how much token j's write is in the way of token i
//     R   = (I + A)^-1                                 so u = R diag(beta) X solves (I + A) u = diag(beta) X
//     P_ij = G_ij (q_i.k_j)          (j <= i)
//     u   = R Y,   Y_i = beta_i X_i
//     o_i = e^c_i S^T q_i + sum over j <= i of P_ij u_j
//     S  <- e^c_n S + sum over i of k_i (G_ni u_i)^T
//   R is made of keys and decays alone, for all chunks at once; only X, u and S wait for the chunk before. To make it,
//   rows of R are solved downwards: R_i = (row i of I) - sum over m < i of A_im R_m.
//
// 2. Backward. do and dS', the gradient of the state after the chunk, are given.
//     du_i = G_ni dS'^T k_i + sum over m >= i of P_mi do_m
//   Y = R^-1 u is a product with R, so its gradient is one with R^T:
//     Du   = R^T du                 dv_i = beta_i Du_i                dbeta_i = Du_i.X_i + what A gets from beta_i
//   A is in R = (I + A)^-1, whose differential is -R dA R: A gets -(R^T du) (R Y)^T = -Du u^T. With
//   L_ij = G_ij (k_i.k_j)
//     dA_ij = -Du_i.u_j        dL_ij = -beta_i Du_i.u_j        dbeta_i = Du_i.X_i - sum over j < i of L_ij (Du_i.u_j)
//     dP_ij = do_i.u_j
//     dq_i    = e^c_i S do_i         + sum over j <= i of dP_ij G_ij k_j
//     plus_i  = -e^c_i beta_i S Du_i + sum over j < i of dL_ij G_ij k_j
//     minus_i = G_ni dS' u_i         + sum over m >= i of dP_mi G_mi q_m + sum over m > i of dL_mi G_mi k_m
//     dk_i    = plus_i + minus_i
//     dS      = e^c_n dS' + sum over i of q_i (e^c_i do_i)^T - sum over i of k_i (e^c_i beta_i Du_i)^T
//   c_i stands as +c_i in the terms of dq and plus, as -c_i in those of minus, and c_n in e^c_n S and every G_ni too:
//     dc_i  = q_i.dq_i + k_i.plus_i - k_i.minus_i
//     dc_n += <e^c_n S, dS'> + sum over i of k_i.(G_ni dS' u_i)
//   g_i is in c_i and all c after it: dg_i = sum over m >= i of dc_m.
//   The forward keeps u, X and the states in front of the chunks, rounded.
//
// 3. What is computed, to the last bit. A chain is c = step(c, x, y) over 16 products at a time, in ascending order
//   (core/mma.h), of numbers rounded to bf16, from +0, or where the text says. After the last token q, k, v, do, g and
//   beta are 0 up to a whole chunk: such a token changes nothing. fused(a,b,c) = a*b + c, rounded once. What is rounded
//   to bf16 has a hat.
//     c_i     a chain of additions from +0; G_ij = exp(c_i - c_j), n = 63 in the chunk
//     A_ij    = beta_i * (G_ij * (chain over d of k_id k_jd)), R_ij = from 1 where i = j, else 0,
//               fused(-A_im, R_mj, .) for m < i, ascending: floats; then R^
//     P^_ij   = G_ij * (chain of q_id k_jd), 0 for j > i
//     X_ij    = fused(-e^c_i, chain over d of k_id S^_dj, v_ij), Y^ = beta_i * X
//     u_ij    = chain over m of R^_im Y^_mj
//     o_ij    = from e^c_i * (chain over d of q_id S^_dj) a chain over m of P^_im u^_mj
//     S_dj    = from e^c_n * S_dj a chain over i of k_id w^_ij, w = G_ni * u_ij; S itself stays a float
//   backward, u^ and X^ as they are stored, f_i = e^c_i * beta_i:
//     du_ij   = from G_ni * (chain over d of k_id dS'^_dj) a chain over m of P^_mi do_mj
//     Du_ij   = chain over m of R^_mi du^_mj, dv = beta_i * Du
//     dP      = chain over columns of do_i u^_j, DL of Du^_i u^_j; toP^ = G_ij * dP, toL^ = -(G_ij * (beta_i * DL_ij));
//               both are 0 for j > i, and toL for j = i too
//     dbeta_i = Du^_i.X^_i - sum over j < i of fused(G_ij * (chain of k_id k_jd), DL_ij, .)
//     dq_id   = from e^c_i * (chain over j of do_ij S^_dj) a chain over m of toP^_im k_md
//     plus_id = from -f_i * (chain over j of Du^_ij S^_dj) a chain over m of toL^_im k_md
//     minus_id = from G_ni * (chain over j of u^_ij dS'^_dj) a chain over m of toP^_mi q_md, then one of toL^_mi k_md
//     dk      = plus + minus; value heads that share a key are added in ascending order, from the first
//     dc_i    = (q.dq + k.plus) - k.minus; k.(G_ni dS' u) is added up from +0 over i, then fused(e^c_n, <S^,dS'^>, .)
//               comes to dc_n; dg is a chain of dc, descending
//     dS_dj   = from e^c_n * dS'_dj a chain over i of q_id a^_ij, a = e^c_i * do_ij, then one of k_id z^_ij,
//               z = -f_i * Du_ij
//   A row's dot has 8 chains of fused, element j in chain j mod 8, added as ((0+1) + (2+3)) + ((4+5) + (6+7)); so has
//   the sum in dbeta. <S,dS'> has 128 chains, elements 8 by 8, and a tree of neighbours.
//   As in the kernels of flash-linear-attention R, Y, u, S and P are rounded where they are multiplied, and c_i - c_j
//   is a difference. (That errs by 2^-24 |c|, less than what rounding to bf16 makes of G while a chunk decays by no
//   more than e^-10000.) The other usual form, u = R diag(beta) V - (R diag(beta e^c) K) S, rounds one more matrix
//   of keys.
//
// 4. A row knows no row after it. Its sums have zeros in their place, and a term that is 0 changes no bit of a step
//   (core/mma.h). So tokens after a token change no bit of its o, as long as they are finite; infinities and NaN reach
//   their whole chunk. A chunk that is begun, with the state in front of it, is thus all that the next token needs.
//
// How far from the recurrence in double, as 2-norms over all of an array, for T = 300, heads of 64 and g down to 0,
// -0.01, -0.5 and -10:
//   o, dq and dv 0.0036 at most, dk and dbeta 0.0045, dg 0.0067, states 0.0034. Rounding an output to bf16 makes 0.0017
//   of that; 1/128 is promised (tests/test_gated_delta_bf16.cpp).
// shapes: q, k (B,T,Hk,Dk), v, o, u, X (B,T,Hv,Dv) bf16, g, beta (B,T,Hv) float, states (B,Hv,Dk,Dv) float, kept ones
//   bf16 | all outputs are written. The steps on a host: kernels/bf16/gated_delta_bf16_steps.h. Backward's kernels:
//   kernels/bf16/gated_delta_bf16_backward.cu. On the CPU: kernels/cpu/gated_delta_bf16_cpu.cpp, the same bits
// --precision=bf16 --mixer=gated-delta|hybrid | tests/test_gated_delta_bf16.cpp
#include "kernels/bf16/gated_delta_bf16.h"

#include <vector>

#include "core/launch.cuh"
#include "kernels/gated_delta.cuh"
#include "kernels/bf16/gated_delta_bf16_steps.h"
#include "kernels/bf16/gated_delta_bf16_state.cuh"

namespace gated {

// ---- references

namespace gated_delta_bf16 {

// One output after the other; in double plain sums.
template <class Real>
struct PlainProduct {
  PlainProduct(Pieces&, const GatedDeltaShape&, MmaArithmetic arithmetic) : arithmetic(arithmetic) {}
  const MmaArithmetic arithmetic;

  void operator()(Real* C, size_t M, size_t N, Factor<Real> left, Factor<Real> right, size_t K) const {
    for (size_t m = 0; m < M; m++)
      for (size_t n = 0; n < N; n++)
        for (size_t k = 0; k < K; k += mma_depth)
          C[m * N + n] = step(C[m * N + n], left.at + m * left.outer + k * left.along, left.along,
                              right.at + n * right.outer + k * right.along, right.along);
  }
  float step(float c, const float* x, size_t x_step, const float* y, size_t y_step) const {
    bf16 a[mma_depth], b[mma_depth];
    for (size_t i = 0; i < mma_depth; i++) a[i] = bf16(x[i * x_step]), b[i] = bf16(y[i * y_step]);
    return mma_ref(c, a, b, arithmetic);
  }
  double step(double c, const double* x, size_t x_step, const double* y, size_t y_step) const {
    for (size_t i = 0; i < mma_depth; i++) c += x[i * x_step] * y[i * y_step];
    return c;
  }
};

// f(steps, b, key head)
template <class Stored, class F>
void for_each_key_head_in_order(const GatedDeltaShape& s, MmaArithmetic arithmetic, F f) {
  using AllSteps = Steps<Wide<Stored>, PlainProduct<Wide<Stored>>>;
  std::vector<unsigned char> memory(bytes_of_memory<AllSteps>(s, arithmetic));
  for (size_t b = 0; b < s.B; b++)
    for (size_t head = 0; head < s.Hk; head++) {
      Pieces pieces(memory.data());
      AllSteps steps(pieces, s, arithmetic);
      f(steps, b, head);
    }
}

}  // namespace gated_delta_bf16

template <class Stored>
void gated_delta_bf16_forward_ref(const GatedDeltaBf16OutOf<Stored>& out, const GatedDeltaBf16InOf<Stored>& in,
                                  const GatedDeltaShape& s, MmaArithmetic arithmetic) {
  gated_delta_bf16::for_each_key_head_in_order<Stored>(
      s, arithmetic, [&](auto& steps, size_t b, size_t head) { steps.forward(out, in, b, head); });
}
template <class Stored>
void gated_delta_bf16_backward_ref(const GatedDeltaBf16GradientsOf<Stored>& out,
                                   const GatedDeltaBf16BackwardInOf<Stored>& back, const GatedDeltaBf16InOf<Stored>& in,
                                   const GatedDeltaShape& s, MmaArithmetic arithmetic) {
  gated_delta_bf16::for_each_key_head_in_order<Stored>(
      s, arithmetic, [&](auto& steps, size_t b, size_t head) { steps.backward(out, back, in, b, head); });
}
// What tests call.
[[gnu::used]] static const auto gated_delta_bf16_references =
    std::tuple(&gated_delta_bf16_forward_ref<bf16>, &gated_delta_bf16_forward_ref<double>,
               &gated_delta_bf16_backward_ref<bf16>, &gated_delta_bf16_backward_ref<double>);

// ---- kernels
//
// Three, one after the other:
//   make     c, R and P of every chunk                            a block a chunk of a value head
//   state    X, u and the states, from chunk to chunk             a block 64 columns of a value head's state
//   output   o                                                    a block 64 columns of a chunk
// Only `state` walks over a sequence, so it does as little as it can.

// Column j of R is thread j's. It makes eight rows at a time: what the rows before them give comes first, each R_mj
// read once for all eight, and then what they give to each other, in registers.
__global__ void __launch_bounds__(gated_delta_bf16::threads)
    gated_delta_bf16_make_kernel(gated_delta_bf16::Made made, const bf16* q, const bf16* k, const float* g,
                                 const float* beta, GatedDeltaShape s) {
  using namespace gated_delta_bf16;
  DYNAMIC_SHARED(bf16, shared);
  // Of A. 2 * 68 mod 32 is 8: the four columns and eight rows that a warp writes at a time fall on 32 banks.
  constexpr int pitch = tokens + 4;
  const Place at(s, blockIdx.x / gated_delta_bf16_chunks(s), blockIdx.x % gated_delta_bf16_chunks(s));
  const int panels = int(ceil_div(s.Dk, size_t{panel_columns})), i = threadIdx.x;
  bf16 *const keys = shared, *const queries = keys + panels * panel;
  float* const less_A = reinterpret_cast<float*>(queries + panels * panel);  // -A transposed
  float *const R = less_A + tokens * pitch, *const c = R + tokens * tokens, *const betas = c + tokens;

  AsyncCopies copies;
  copy_panels(keys, keys_of(k, s, at), at.t0, copies);
  copy_panels(queries, keys_of(q, s, at), at.t0, copies);
  copies.commit();
  if (i < int(tokens)) {
    const bool there = at.t0 + i < s.T;
    c[i] = there ? g[s.number(at.b, at.t0 + i, at.h)] : 0.0f;
    betas[i] = there ? beta[s.number(at.b, at.t0 + i, at.h)] : 0.0f;
    made.beta[at.number * tokens + i] = betas[i];
  }
  __syncthreads();  // every g is there
  if (i == 0) {
    float sum = 0.0f;
    for (int j = 0; j < int(tokens); j++) c[j] = sum = sum + c[j];
  }
  copies.wait<0>();
  __syncthreads();  // c, keys and queries are there
  if (i < int(tokens)) made.c[at.number * tokens + i] = c[i];

  MmaC kk[sums] = {}, qk[sums] = {};
  multiply_panels<Lies::straight, Lies::straight>(kk, keys, keys, s.Dk);
  multiply_panels<Lies::straight, Lies::straight>(qk, queries, keys, s.Dk);
  for_each_pair([&](int n, int half) {
    const int row = own_row(half);
    float p[2];
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int column = column_of_lane(n, e);
      const float gamma = column <= row ? exact_exp(c[row] - c[column]) : 0.0f;
      p[e] = column <= row ? gamma * qk[n].x[2 * half + e] : 0.0f;
      if (column < row) less_A[column * pitch + row] = -(betas[row] * (gamma * kk[n].x[2 * half + e]));
    }
    store_two(made.P + at.number * panel + row * panel_columns + column_of_lane(n, 0), p[0], p[1]);
  });
  __syncthreads();  // A is there
  if (i >= int(tokens)) return;
  constexpr int together = 8;
  for (int first = 0; first < int(tokens); first += together) {
    float x[together];
#pragma unroll
    for (int r = 0; r < together; r++) x[r] = first + r == i ? 1.0f : 0.0f;
    for (int m = 0; m < first; m++) {
      const float t = R[m * tokens + i];
#pragma unroll
      for (int r = 0; r < together; r++) x[r] = fused(less_A[m * pitch + first + r], t, x[r]);
    }
#pragma unroll
    for (int r = 1; r < together; r++)
#pragma unroll
      for (int m = 0; m < r; m++) x[r] = fused(less_A[(first + m) * pitch + first + r], x[m], x[r]);
#pragma unroll
    for (int r = 0; r < together; r++) {
      R[(first + r) * tokens + i] = x[r];
      made.R[at.number * panel + (first + r) * tokens + i] = bf16(x[r]);
    }
  }
}

// Per chunk, with S in registers:
//
//    S^ to shared memory | X = v - e^c k S^, Y^ | u = R^ Y^ | w^ = G_n u | S = e^c_n S + k w^
//                        A                      B           C            D
//   A   S^ is there, and k, R^ and v of the chunk; every warp is done with the chunk before, into whose place the
//       next is copied
//   B   Y^ is there; nobody reads S^ any more
//   C   nobody reads R^ and Y^ any more
//   D   w^ is there, and u^ and X^ in the places of R^ and v
// Grid (B*Hv, columns).
template <int keys>
__global__ void __launch_bounds__(gated_delta_bf16::walkers, keys <= 128 ? 2 : 1)
    gated_delta_bf16_state_kernel(GatedDeltaBf16Out out, GatedDeltaBf16In in, gated_delta_bf16::Made made,
                                  GatedDeltaShape s) {
  using namespace gated_delta_bf16;
  DYNAMIC_SHARED(bf16, shared);
  constexpr int buffer = (keys / 64 + 2) * panel;
  bf16 *const rounded_S = shared, *const Y = rounded_S + keys / 64 * panel, *const w = Y + panel,
              *const buffers = w + panel;
  const size_t chunks = gated_delta_bf16_chunks(s), column0 = size_t(blockIdx.y) * panel_columns;

  AsyncCopies copies;
  const auto copy = [&](size_t n) {
    const Place at(s, blockIdx.x, n);
    bf16 *const k = buffers + n % 2 * buffer, *const R = k + keys / 64 * panel, *const v = R + panel;
    copy_panels<walkers>(k, keys_of(in.k, s, at), at.t0, copies);
    copy_panel<walkers>(R, made.R_of(at), 0, 0, int(tokens), copies);
    copy_panel<walkers>(v, values_of(in.v, s, at), at.t0, column0, int(tokens), copies);
    copies.commit();
  };
  copy(0);
  StateColumns<keys> state;
  const Place first(s, blockIdx.x, 0);
  state.load(in.initial ? in.initial + s.state(first.b, first.h) : nullptr, s, column0);

  for (size_t n = 0; n < chunks; n++) {
    const Place at(s, blockIdx.x, n);
    bf16 *const k = buffers + n % 2 * buffer, *const R = k + keys / 64 * panel, *const v = R + panel;
    const RowGates of_row(made, at);
    state.round_to(rounded_S, s.Dk);
    copies.template wait<0>();
    __syncthreads();  // A
    if (n + 1 < chunks) copy(n + 1);
    write_panel<walkers>(out.kept + kept_state(s, at.b, at.h, n) + column0, s.Dv, s.Dk, s.Dv - column0, rounded_S,
                         keys);

    MmaC x[tiles] = {};
    multiply_panels<Lies::straight, Lies::turned>(x, k, rounded_S, s.Dk, first_tile());
    for_each_pair<tiles>([&](int tile, int half) {
      const int place = pair_place(own_row(half), first_tile() + tile);
      const float less = -exact_exp(of_row.c[half]);
      const Two value = load_two(v + place);
      float(&to)[4] = x[tile].x;
#pragma unroll
      for (int e = 0; e < 2; e++) to[2 * half + e] = fused(less, to[2 * half + e], value.x[e]);
      store_two(v + place, to[2 * half], to[2 * half + 1]);
      store_two(Y + place, of_row.beta[half] * to[2 * half], of_row.beta[half] * to[2 * half + 1]);
    });
    __syncthreads();  // B
    MmaC u[tiles] = {};
    multiply<Lies::straight, Lies::turned>(u, R, Y, tokens, first_tile());
    __syncthreads();  // C
    for_each_pair<tiles>([&](int tile, int half) {
      const int place = pair_place(own_row(half), first_tile() + tile);
      const float low = u[tile].x[2 * half], high = u[tile].x[2 * half + 1],
                  left = exact_exp(of_row.last - of_row.c[half]);
      store_two(R + place, low, high);
      store_two(w + place, left * low, left * high);
    });
    __syncthreads();  // D
    const size_t output = s.o_row(at.b, at.t0, at.h) + column0, rows = s.T - at.t0, columns = s.Dv - column0;
    if (out.miss) write_panel<walkers>(out.miss + output, s.Hv * s.Dv, rows, columns, v, int(tokens));
    write_panel<walkers>(out.u + output, s.Hv * s.Dv, rows, columns, R, int(tokens));
    state.scale(exact_exp(of_row.last), s.Dk);
    state.add(k, w, s.Dk);
  }
  if (out.final) state.store(out.final + s.state(first.b, first.h), s, column0);
}

// Grid (B*Hv*chunks, columns).
__global__ void __launch_bounds__(gated_delta_bf16::threads)
    gated_delta_bf16_output_kernel(bf16* o, const bf16* q, const bf16* kept, const bf16* u, gated_delta_bf16::Made made,
                                   GatedDeltaShape s) {
  using namespace gated_delta_bf16;
  DYNAMIC_SHARED(bf16, shared);
  const Place at(s, blockIdx.x / gated_delta_bf16_chunks(s), blockIdx.x % gated_delta_bf16_chunks(s));
  const size_t column0 = size_t(blockIdx.y) * panel_columns;
  const int panels = int(ceil_div(s.Dk, size_t{panel_columns}));
  bf16 *const queries = shared, *const S = queries + panels * panel, *const P = S + panels * panel,
              *const writes = P + panel;
  AsyncCopies copies;
  copy_panels(queries, keys_of(q, s, at), at.t0, copies);
  copy_panel(S, state_of(kept, s, at), 0, column0, panels * panel_columns, copies);
  copy_panel(P, made.P_of(at), 0, 0, int(tokens), copies);
  copy_panel(writes, outputs_of(u, s, at), at.t0, column0, int(tokens), copies);
  copies.commit();
  copies.wait<0>();
  __syncthreads();  // all are there

  MmaC sum[sums] = {};
  multiply_panels<Lies::straight, Lies::turned>(sum, queries, S, s.Dk);
  for_each_pair([&](int n, int half) {
    const float start = exact_exp(made.c_of(at)[own_row(half)]);
    for (int e = 2 * half; e < 2 * half + 2; e++) sum[n].x[e] = start * sum[n].x[e];
  });
  multiply<Lies::straight, Lies::turned>(sum, P, writes, tokens);
  for_each_pair([&](int n, int half) {
    const size_t t = at.t0 + own_row(half), column = column0 + column_of_lane(n, 0);
    if (t < s.T && column < s.Dv)
      store_two(o + s.o_row(at.b, t, at.h) + column, sum[n].x[2 * half], sum[n].x[2 * half + 1]);
  });
}

// ---- launchers

namespace gated_delta_bf16 {

void require_shape(const char* name, const GatedDeltaShape& s, std::initializer_list<const bf16*> arrays) {
  require_gated_delta(name, s);
  require(s.Dk % mma_depth == 0 && s.Dv % mma_depth == 0,
          "%s: keys of %zu and values of %zu elements, expected multiples of 16, the depth of a tensor core's step",
          name, s.Dk, s.Dv);
  require(s.qk_step() % 8 == 0 && s.v_step() % 8 == 0,
          "%s: strides are %zu and %zu, expected multiples of 8: a row of bf16 begins on 16 bytes", name, s.qk_step(),
          s.v_step());
  require_boundaries(name, arrays);
}

Made make(Pieces& pieces, const GatedDeltaBf16In& in, const GatedDeltaShape& s, Context& ctx) {
  const Made made(pieces, s);
  const size_t shared = 2 * ceil_div(s.Dk, size_t{panel_columns}) * panel * sizeof(bf16) +
                        tokens * (tokens + 4 + tokens + 2) * sizeof(float);
  launch(gated_delta_bf16_make_kernel, grid_of(s.B * s.Hv * gated_delta_bf16_chunks(s)), threads, shared, ctx, made,
         in.q, in.k, in.g, in.beta, s);
  return made;
}

}  // namespace gated_delta_bf16

void gated_delta_bf16_forward(const GatedDeltaBf16Out& out, const GatedDeltaBf16In& in, const GatedDeltaShape& s,
                              Context& ctx) {
  using namespace gated_delta_bf16;
  require_shape("gated_delta_bf16_forward", s, {out.o, out.kept, out.u, out.miss, in.q, in.k, in.v});
  if (ctx.device == Device::cpu) return gated_delta_bf16_forward_cpu(out, in, s, ctx);
  emulate_mma(ctx);
  Pieces scratch(ctx.scratch<unsigned char>(gated_delta_bf16_forward_scratch(s, ctx.device)));
  const Made made = make(scratch, in, s, ctx);
  const unsigned columns = unsigned(ceil_div(s.Dv, size_t{panel_columns}));
  const size_t room = key_room(s.Dk), panels = ceil_div(s.Dk, size_t{panel_columns});
  const auto state_kernel = room == 64    ? gated_delta_bf16_state_kernel<64>
                            : room == 128 ? gated_delta_bf16_state_kernel<128>
                                          : gated_delta_bf16_state_kernel<256>;
  launch(state_kernel, dim3(grid_of(s.B * s.Hv).x, columns), walkers, (3 * room / 64 + 6) * panel * sizeof(bf16), ctx,
         out, in, made, s);
  launch(gated_delta_bf16_output_kernel, dim3(grid_of(s.B * s.Hv * gated_delta_bf16_chunks(s)).x, columns), threads,
         (2 * panels + 2) * panel * sizeof(bf16), ctx, out.o, in.q, out.kept, out.u, made, s);
}

size_t gated_delta_bf16_forward_scratch(const GatedDeltaShape& s, Device device) {
  return device == Device::cpu ? gated_delta_bf16_cpu_scratch(s) : bytes_of_memory<gated_delta_bf16::Made>(s);
}

}  // namespace gated
