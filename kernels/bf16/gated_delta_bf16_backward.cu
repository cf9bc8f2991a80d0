// gated_delta_bf16_backward: the kernels of gated_delta_bf16's backward. Maths, what is computed and references:
// kernels/bf16/gated_delta_bf16.cu. Panels and their product: kernels/bf16/gated_delta_bf16_tile.cuh
//
// Three kernels, one after the other:
//   make       c, R and P of every chunk, as for the forward        a block a chunk of a value head
//   dstate     du, Du, dv and the gradients of the states           a block 64 columns of a value head, backwards
//   gradient   dq, dk, dg and dbeta                                 a block a chunk of a key head, for its value heads
// Only `dstate` walks over a sequence.
// tests/test_gated_delta_bf16.cpp
#include "core/launch.cuh"
#include "core/thread_sums.cuh"
#include "kernels/bf16/gated_delta_bf16_state.cuh"

namespace gated {

namespace gated_delta_bf16 {

// Where value heads share a key: what those so far give to 64 of its columns, for 64 tokens.
using Given = ThreadSums<4 * sums, threads>;

// What `dstate` leaves for `gradient`, in scratch.
struct Left {
  bf16* dkept;             // (B,Hv,chunks,Dk,Dv): dS' of every chunk, rounded
  bf16* Du;                // (B,T,Hv,Dv)
  float *dq_sum, *dk_sum;  // (B,Hk,chunks,panels) of Given

  Left(Pieces& pieces, const GatedDeltaShape& s) {
    dkept = pieces.take<bf16>(gated_delta_bf16_kept_size(s));
    Du = pieces.take<bf16>(s.B * s.T * s.Hv * s.Dv);
    const size_t panels = s.B * s.Hk * gated_delta_bf16_chunks(s) * ceil_div(s.Dk, size_t{panel_columns});
    for (float** x : {&dq_sum, &dk_sum}) *x = pieces.take<float>(s.group() > 1 ? panels * Given::size : 0);
  }
};

// Bytes of shared memory with one chunk of k, q, R^, P^ and do in it, or with two: one that is multiplied and one that
// is copied.
constexpr size_t dstate_shared(size_t keys, size_t buffers) {
  return (buffers * (2 * keys / 64 + 3) + keys / 64 + 3) * panel * sizeof(bf16);
}

// The dot of two rows so far, of a lane: row_dot's chains of its columns (kernels/bf16/gated_delta_bf16_steps.h).
struct RowDot {
  float even = 0.0f, odd = 0.0f;
  __device__ void add(const Two& x, const Two& y) {
    even = fused(x.x[0], y.x[0], even);
    odd = fused(x.x[1], y.x[1], odd);
  }
  // All four lanes of a row get it.
  __device__ float total() const { return sum_of_quad(even + odd); }
};

// state_dot by the threads of a block; `sums_of_warps` (4) is shared, and the result is for those after the next
// barrier.
__device__ inline void state_dot_of_block(float* sums_of_warps, const bf16* S, const bf16* dS, size_t n) {
  float sum = 0.0f;
  for (size_t e = threadIdx.x * chunk; e < n; e += state_chains * chunk) {
    const Chunk x = *reinterpret_cast<const Chunk*>(S + e), y = *reinterpret_cast<const Chunk*>(dS + e);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      sum = fused(low_bf16(x.x[i]), low_bf16(y.x[i]), sum);
      sum = fused(high_bf16(x.x[i]), high_bf16(y.x[i]), sum);
    }
  }
  for (int flip = 1; flip < 32; flip *= 2) sum = sum + __shfl_xor_sync(0xffffffffu, sum, flip);
  if (threadIdx.x % 32 == 0) sums_of_warps[threadIdx.x / 32] = sum;
}

}  // namespace gated_delta_bf16

// ---- kernels

// Per chunk, with dS in registers:
//
//    dS'^ to shared memory | du = G_n k dS'^ + P^T do, a^ | Du = R^T du^, dv, z^ | dS = e^c_n dS' + q a^ + k z^
//                          A                              B                      C                             D
//   A   dS'^ is there, and k, q, R^, P^ and do of the chunk; with two buffers every warp is done with the chunk before,
//       into whose place the next is copied
//   B   du^ and a^ are there; nobody reads dS'^, P^ and do any more
//   C   z^ is there, and Du^ and dv^ in the places of do and P^; nobody reads du^ any more
//   D   with one buffer: every warp is done with the chunk
// Grid (B*Hv, columns).
template <int keys, int buffers>
__global__ void __launch_bounds__(gated_delta_bf16::walkers, keys <= 64 ? 2 : 1)
    gated_delta_bf16_dstate_kernel(GatedDeltaBf16Gradients out, GatedDeltaBf16BackwardIn back, GatedDeltaBf16In in,
                                   gated_delta_bf16::Made made, gated_delta_bf16::Left left, GatedDeltaShape s) {
  using namespace gated_delta_bf16;
  DYNAMIC_SHARED(bf16, shared);
  constexpr int buffer = (2 * keys / 64 + 3) * panel;
  bf16 *const rounded_dS = shared, *const du = rounded_dS + keys / 64 * panel, *const a = du + panel,
              *const z = a + panel;
  const auto buffer_of = [&](size_t n) { return z + panel + n % buffers * buffer; };
  const size_t column0 = size_t(blockIdx.y) * panel_columns;

  AsyncCopies copies;
  const auto copy = [&](size_t n) {
    const Place at(s, blockIdx.x, n);
    bf16 *const k = buffer_of(n), *const q = k + keys / 64 * panel, *const rest = q + keys / 64 * panel;
    copy_panels<walkers>(k, keys_of(in.k, s, at), at.t0, copies);
    copy_panels<walkers>(q, keys_of(in.q, s, at), at.t0, copies);
    copy_panel<walkers>(rest, made.R_of(at), 0, 0, int(tokens), copies);
    copy_panel<walkers>(rest + panel, made.P_of(at), 0, 0, int(tokens), copies);
    copy_panel<walkers>(rest + 2 * panel, outputs_of(back.dout, s, at), at.t0, column0, int(tokens), copies);
    copies.commit();
  };
  const size_t chunks = gated_delta_bf16_chunks(s);
  copy(chunks - 1);
  StateColumns<keys> state;
  const Place first(s, blockIdx.x, 0);
  state.load(back.dfinal ? back.dfinal + s.state(first.b, first.h) : nullptr, s, column0);

  for (size_t n = chunks; n-- > 0;) {
    const Place at(s, blockIdx.x, n);
    bf16 *const k = buffer_of(n), *const q = k + keys / 64 * panel, *const R = q + keys / 64 * panel,
                *const P = R + panel, *const dout = P + panel;
    const RowGates of_row(made, at);
    state.round_to(rounded_dS, s.Dk);
    copies.template wait<0>();
    __syncthreads();  // A
    if (buffers == 2 && n > 0) copy(n - 1);
    write_panel<walkers>(left.dkept + kept_state(s, at.b, at.h, n) + column0, s.Dv, s.Dk, s.Dv - column0, rounded_dS,
                         keys);

    MmaC sum[tiles] = {};
    multiply_panels<Lies::straight, Lies::turned>(sum, k, rounded_dS, s.Dk, first_tile());
    for_each_pair<tiles>([&](int tile, int half) {
      const int place = pair_place(own_row(half), first_tile() + tile);
      const float to_end = exact_exp(of_row.last - of_row.c[half]), start = exact_exp(of_row.c[half]);
      for (int e = 2 * half; e < 2 * half + 2; e++) sum[tile].x[e] = to_end * sum[tile].x[e];
      const Two d = load_two(dout + place);
      store_two(a + place, start * d.x[0], start * d.x[1]);
    });
    multiply<Lies::turned, Lies::turned>(sum, P, dout, tokens, first_tile());
    for_each_pair<tiles>([&](int tile, int half) {
      store_two(du + pair_place(own_row(half), first_tile() + tile), sum[tile].x[2 * half], sum[tile].x[2 * half + 1]);
    });
    __syncthreads();  // B
    MmaC Du[tiles] = {};
    multiply<Lies::turned, Lies::turned>(Du, R, du, tokens, first_tile());
    for_each_pair<tiles>([&](int tile, int half) {
      const int place = pair_place(own_row(half), first_tile() + tile);
      const float strength = of_row.beta[half], less = -(exact_exp(of_row.c[half]) * strength);
      const float low = Du[tile].x[2 * half], high = Du[tile].x[2 * half + 1];
      store_two(dout + place, low, high);
      store_two(P + place, strength * low, strength * high);
      store_two(z + place, less * low, less * high);
    });
    __syncthreads();  // C
    const size_t rows = s.T - at.t0, columns = s.Dv - column0;
    write_panel<walkers>(left.Du + s.o_row(at.b, at.t0, at.h) + column0, s.Hv * s.Dv, rows, columns, dout, int(tokens));
    write_panel<walkers>(out.dv + s.v_row(at.b, at.t0, at.h) + column0, s.v_step(), rows, columns, P, int(tokens));
    state.scale(exact_exp(of_row.last), s.Dk);
    state.add(q, a, s.Dk);
    state.add(k, z, s.Dk);
    if (buffers == 1) {
      __syncthreads();  // D
      if (n > 0) copy(n - 1);
    }
  }
  if (out.dinitial) state.store(out.dinitial + s.state(first.b, first.h), s, column0);
}

namespace gated_delta_bf16 {

// What the rows of a lane are multiplied by.
struct RowFactors {
  float start[2], less[2], to_end[2];  // e^c_i, -f_i, e^(c_n - c_i)
};

__device__ inline void scale_rows(MmaC (&x)[sums], const float (&factor)[2]) {
  for_each_pair([&](int tile, int half) {
    for (int e = 2 * half; e < 2 * half + 2; e++) x[tile].x[e] = factor[half] * x[tile].x[e];
  });
}

// The dots of rows that dc is made of.
struct RowDots {
  RowDot q_dq[2], k_plus[2], k_minus[2], k_written[2];
};

// What is multiplied between two barriers: of value head r, 64 columns of values from column0 on; in the second pass
// with panel p of a key. In the first p is -1.
struct Step {
  size_t r;
  int p;
  size_t column0;
};

// A block of the gradient kernel: what all its value heads share. `at` is the head whose turn it is, number r of those
// that read the key head.
struct GradientBlock {
  const GatedDeltaBf16Gradients& out;
  const GatedDeltaBf16BackwardIn& back;
  const Left& left;
  const GatedDeltaShape& s;
  AsyncCopies& copies;
  bf16 *keys, *queries;                              // panels of the whole key
  bf16 *toP, *toL, *dout, *Du, *u, *fourth, *fifth;  // panels
  float *c, *beta, *dc, *written;                    // (64)
  int panels;                                        // of a key
  Place first;                                       // of the first value head

  __device__ Place place_of(size_t r) const { return Place(s, first.b * s.Hv + first.h + r, first.n); }
  __device__ Step after(Step step) const {
    if ((step.column0 += panel_columns) < s.Dv) return step;
    return ++step.p < panels ? Step{step.r, step.p, 0} : Step{step.r + 1, -1, 0};
  }

  // Asks for what a step multiplies: 64 columns of what has values, and in the second pass the states' rows of the
  // key's panel with them.
  __device__ void ask_for(const Step& step) const {
    if (step.r == s.group()) return;
    const Place at = place_of(step.r);
    const auto copy_values = [&](bf16* to, const bf16* x) {
      copy_panel(to, outputs_of(x, s, at), at.t0, step.column0, int(tokens), copies);
    };
    const auto copy_states = [&](bf16* to, const bf16* x) {
      copy_panel(to, state_of(x, s, at), size_t(step.p) * panel_columns, step.column0, panel_columns, copies);
    };
    __syncthreads();  // nobody reads what was there before
    copy_values(dout, back.dout);
    copy_values(Du, left.Du);
    copy_values(u, back.u);
    if (step.p < 0) {
      copy_values(fourth, back.miss);
    } else {
      copy_states(fourth, back.kept);
      copy_states(fifth, left.dkept);
    }
    copies.commit();
  }
  // After it what was asked for is there.
  __device__ void wait_for_panels() const {
    copies.template wait<0>();
    __syncthreads();
  }

  // dP, DL, and Du.X of the lane's rows. The first columns have been asked for.
  __device__ void multiply_values(MmaC (&dP)[sums], MmaC (&dL)[sums], RowDot (&to_beta)[2], size_t r) const {
    for (size_t column0 = 0; column0 < s.Dv; column0 += panel_columns) {
      wait_for_panels();
      multiply<Lies::straight, Lies::straight>(dP, dout, u, s.Dv - column0);
      multiply<Lies::straight, Lies::straight>(dL, Du, u, s.Dv - column0);
      for_each_pair([&](int tile, int half) {
        const int place = pair_place(own_row(half), tile);
        if (column0 + tile * 8 < s.Dv) to_beta[half].add(load_two(Du + place), load_two(fourth + place));
      });
      ask_for(after({r, -1, column0}));
    }
  }

  __device__ void make_toP(const MmaC (&dP)[sums]) const {
    for_each_pair([&](int tile, int half) {
      const int row = own_row(half);
      float p[2] = {};
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int column = column_of_lane(tile, e);
        if (column <= row) p[e] = exact_exp(c[row] - c[column]) * dP[tile].x[2 * half + e];
      }
      store_two(toP + pair_place(row, tile), p[0], p[1]);
    });
  }

  // less_beta: the sum over L_ij DL_ij.
  __device__ void make_toL(RowDot (&less_beta)[2], const MmaC (&dL)[sums]) const {
    MmaC kk[sums] = {};
    multiply_panels<Lies::straight, Lies::straight>(kk, keys, keys, s.Dk);
    for_each_pair([&](int tile, int half) {
      const int row = own_row(half);
      float l[2] = {};
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int column = column_of_lane(tile, e);
        if (column >= row) continue;
        const float gamma = exact_exp(c[row] - c[column]), DL = dL[tile].x[2 * half + e];
        l[e] = -(gamma * (beta[row] * DL));
        float& chain = e ? less_beta[half].odd : less_beta[half].even;
        chain = fused(gamma * kk[tile].x[2 * half + e], DL, chain);
      }
      store_two(toL + pair_place(row, tile), l[0], l[1]);
    });
  }

  // toP, toL and dbeta.
  __device__ void make_gradients_of_scores(const Place& at, size_t r) const {
    MmaC dP[sums] = {}, dL[sums] = {};
    RowDot to_beta[2], less_beta[2];
    multiply_values(dP, dL, to_beta, r);
    // (one after the other, as registers have not room for three such sums and what comes of them)
    make_toP(dP);
    make_toL(less_beta, dL);
    for (int half = 0; half < 2; half++) {
      const size_t t = at.t0 + own_row(half);
      const float dbeta = to_beta[half].total() - less_beta[half].total();
      if (threadIdx.x % 4 == 0 && t < s.T) out.dbeta[s.number(at.b, t, at.h)] = dbeta;
    }
  }

  __device__ RowFactors row_factors() const {
    RowFactors f;
    for (int half = 0; half < 2; half++) {
      const int row = own_row(half);
      f.start[half] = exact_exp(c[row]);
      f.less[half] = -(f.start[half] * beta[row]);
      f.to_end[half] = exact_exp(c[tokens - 1] - c[row]);
    }
    return f;
  }

  // Dots of rows of 64 columns of a key, from d0 on, and of x.
  __device__ void add_dots(RowDot (&to)[2], const bf16* rows, const MmaC (&x)[sums], size_t d0) const {
    for_each_pair([&](int tile, int half) {
      if (d0 + tile * 8 < s.Dk)
        to[half].add(load_two(rows + pair_place(own_row(half), tile)),
                     {{x[tile].x[2 * half], x[tile].x[2 * half + 1]}});
    });
  }

  // x joins what the heads before have given, and goes out with the last.
  __device__ void give(bf16* to, float* so_far, MmaC (&x)[sums], const Place& at, size_t r, int p) const {
    const Given given(so_far, size_t{blockIdx.x} * panels + p);
    const auto four = [&](int tile) { return x[tile].x; };
    if (r > 0) given.template add_to<sums>(four);
    if (r + 1 < s.group()) return given.keep(four);
    for_each_pair([&](int tile, int half) {
      const size_t t = at.t0 + own_row(half), column = size_t(p) * panel_columns + column_of_lane(tile, 0);
      if (t < s.T && column < s.Dk)
        store_two(to + s.qk_row(at.b, t, at.h) + column, x[tile].x[2 * half], x[tile].x[2 * half + 1]);
    });
  }

  // 64 columns of dq and of dk, of panel p. dk is plus and minus. The first columns of values have been asked for;
  // while the second half of the work is done, which needs none, the next panel's first ones come.
  __device__ void make_dq_and_dk(RowDots& dots, const Place& at, size_t r, int p) const {
    const RowFactors factors = row_factors();
    const size_t d0 = size_t(p) * panel_columns;
    const bf16 *const k = keys + p * panel, *const q = queries + p * panel;
    MmaC dq[sums] = {}, plus[sums] = {}, minus[sums] = {};
    constexpr int unrolled = 2;  // (beside three sums there are registers for the addresses of two)
    for (size_t column0 = 0; column0 < s.Dv; column0 += panel_columns) {
      wait_for_panels();  // (toP and toL are there, too)
      multiply<Lies::straight, Lies::straight, unrolled>(dq, dout, fourth, s.Dv - column0);
      multiply<Lies::straight, Lies::straight, unrolled>(plus, Du, fourth, s.Dv - column0);
      multiply<Lies::straight, Lies::straight, unrolled>(minus, u, fifth, s.Dv - column0);
      ask_for(after({r, p, column0}));
    }
    scale_rows(dq, factors.start);
    multiply<Lies::straight, Lies::turned>(dq, toP, k, tokens);
    add_dots(dots.q_dq, q, dq, d0);
    give(out.dq, left.dq_sum, dq, at, r, p);
    scale_rows(plus, factors.less);
    scale_rows(minus, factors.to_end);
    add_dots(dots.k_written, k, minus, d0);
    multiply<Lies::straight, Lies::turned>(plus, toL, k, tokens);
    multiply<Lies::turned, Lies::turned>(minus, toP, q, tokens);
    multiply<Lies::turned, Lies::turned>(minus, toL, k, tokens);
    add_dots(dots.k_plus, k, plus, d0);
    add_dots(dots.k_minus, k, minus, d0);
    for_each_pair([&](int tile, int half) {
      for (int e = 2 * half; e < 2 * half + 2; e++) plus[tile].x[e] = plus[tile].x[e] + minus[tile].x[e];
    });
    give(out.dk, left.dk_sum, plus, at, r, p);
  }

  // dg, of the dots and of <S, dS'>, which state_sums (4) has.
  __device__ void make_dg(RowDots& dots, const float* state_sums, const Place& at) const {
    const int i = threadIdx.x;
    for (int half = 0; half < 2; half++) {
      const float of_row = (dots.q_dq[half].total() + dots.k_plus[half].total()) - dots.k_minus[half].total();
      const float of_write = dots.k_written[half].total();
      if (i % 4 > 0) continue;
      dc[own_row(half)] = of_row;
      written[own_row(half)] = of_write;
    }
    __syncthreads();  // dc and written are there
    if (i == 0) {
      float all = 0.0f, dg = 0.0f;
      for (int j = 0; j < int(tokens); j++) all = all + written[j];
      const float product = (state_sums[0] + state_sums[1]) + (state_sums[2] + state_sums[3]);
      dc[tokens - 1] = dc[tokens - 1] + fused(exact_exp(c[tokens - 1]), product, all);
      for (int j = int(tokens); j-- > 0;) dc[j] = dg = dg + dc[j];
    }
    __syncthreads();  // dg is there; the next head may write c, beta and state_sums
    if (i < int(tokens) && at.t0 + i < s.T) out.dg[s.number(at.b, at.t0 + i, at.h)] = dc[i];
  }
};

}  // namespace gated_delta_bf16

// A value head takes two passes. The first adds up dP, DL and Du.X over panels of values, and makes toP and toL of
// them; the second makes dq, plus and minus, 64 columns of a key at a time, over panels of values and of states.
// Queries and keys stay in shared memory, what has values passes by. Grid (B*Hk*chunks).
__global__ void __launch_bounds__(gated_delta_bf16::threads, 2)
    gated_delta_bf16_gradient_kernel(GatedDeltaBf16Gradients out, GatedDeltaBf16BackwardIn back, GatedDeltaBf16In in,
                                     gated_delta_bf16::Made made, gated_delta_bf16::Left left, GatedDeltaShape s) {
  using namespace gated_delta_bf16;
  DYNAMIC_SHARED(bf16, shared);
  STATIC_SHARED(float, c, [tokens]);
  STATIC_SHARED(float, beta, [tokens]);
  STATIC_SHARED(float, dc, [tokens]);
  STATIC_SHARED(float, written, [tokens]);
  STATIC_SHARED(float, state_sums, [threads / 32]);
  const size_t chunks = gated_delta_bf16_chunks(s), n = blockIdx.x % chunks, b = blockIdx.x / chunks / s.Hk,
               key_head = blockIdx.x / chunks % s.Hk;
  const int panels = int(ceil_div(s.Dk, size_t{panel_columns})), i = threadIdx.x;
  bf16 *const queries = shared + panels * panel, *const rest = queries + panels * panel;

  AsyncCopies copies;
  const Place first(s, b * s.Hv + key_head * s.group(), n);
  copy_panels(shared, keys_of(in.k, s, first), first.t0, copies);
  copy_panels(queries, keys_of(in.q, s, first), first.t0, copies);

  const GradientBlock block = {.out = out,
                               .back = back,
                               .left = left,
                               .s = s,
                               .copies = copies,
                               .keys = shared,
                               .queries = queries,
                               .toP = rest,
                               .toL = rest + panel,
                               .dout = rest + 2 * panel,
                               .Du = rest + 3 * panel,
                               .u = rest + 4 * panel,
                               .fourth = rest + 5 * panel,
                               .fifth = rest + 6 * panel,
                               .c = c,
                               .beta = beta,
                               .dc = dc,
                               .written = written,
                               .panels = panels,
                               .first = first};
  block.ask_for({0, -1, 0});
  for (size_t r = 0; r < s.group(); r++) {
    const Place at = block.place_of(r);
    if (i < int(tokens)) {
      c[i] = made.c_of(at)[i];
      beta[i] = made.beta_of(at)[i];
    }
    const size_t state = kept_state(s, at.b, at.h, n);
    state_dot_of_block(state_sums, back.kept + state, left.dkept + state, s.Dk * s.Dv);

    block.make_gradients_of_scores(at, r);
    RowDots dots;
    for (int p = 0; p < panels; p++) block.make_dq_and_dk(dots, at, r, p);
    block.make_dg(dots, state_sums, at);
  }
}

// ---- launchers

void gated_delta_bf16_backward(const GatedDeltaBf16Gradients& out, const GatedDeltaBf16BackwardIn& back,
                               const GatedDeltaBf16In& in, const GatedDeltaShape& s, Context& ctx) {
  using namespace gated_delta_bf16;
  require_shape("gated_delta_bf16_backward", s,
                {out.dq, out.dk, out.dv, back.dout, back.kept, back.u, back.miss, in.q, in.k, in.v});
  if (ctx.device == Device::cpu) return gated_delta_bf16_backward_cpu(out, back, in, s, ctx);
  emulate_mma(ctx);
  Pieces scratch(ctx.scratch<unsigned char>(gated_delta_bf16_backward_scratch(s, ctx.device)));
  const Made made = make(scratch, in, s, ctx);
  const Left left(scratch, s);
  const size_t room = key_room(s.Dk), panels = ceil_div(s.Dk, size_t{panel_columns});
  // Two chunks where a block has room for them: on an A100 or H100 with keys of up to 128.
  const bool two = room <= 128 && dstate_shared(room, 2) <= shared_limit();
  const auto dstate_kernel =
      room == 64    ? two ? gated_delta_bf16_dstate_kernel<64, 2> : gated_delta_bf16_dstate_kernel<64, 1>
         : room == 128 ? two ? gated_delta_bf16_dstate_kernel<128, 2> : gated_delta_bf16_dstate_kernel<128, 1>
                       : gated_delta_bf16_dstate_kernel<256, 1>;
  launch(dstate_kernel, dim3(grid_of(s.B * s.Hv).x, unsigned(ceil_div(s.Dv, size_t{panel_columns}))), walkers,
         dstate_shared(room, two ? 2 : 1), ctx, out, back, in, made, left, s);
  launch(gated_delta_bf16_gradient_kernel, grid_of(s.B * s.Hk * gated_delta_bf16_chunks(s)), threads,
         (2 * panels + 7) * panel * sizeof(bf16), ctx, out, back, in, made, left, s);
}

size_t gated_delta_bf16_backward_scratch(const GatedDeltaShape& s, Device device) {
  using namespace gated_delta_bf16;
  return device == Device::cpu ? gated_delta_bf16_cpu_scratch(s) : bytes_of_memory<Made>(s) + bytes_of_memory<Left>(s);
}

}  // namespace gated
