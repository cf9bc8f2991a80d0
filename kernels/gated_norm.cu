// gated_norm: GatedNorm, a norm whose output is gated by a small network of its own
//   ("A unified view of attention and residual sinks", arXiv 2601.22966)
//
//   1  n   = RMSNorm(x), or DyT(x)       (N,C)
//   2  low = n W_down^T                  (N,rank)     rank is small: 16
//   3  a   = SiLU(low)                   (N,rank)
//   4  z   = a W_up^T                    (N,C)        or (N,1): one score for a row, "tensorwise"
//   5  y   = n * s, s = scale*act(z)     (N,C)        or n + s: the gate of kernels/gate.cu
//
// backward, given dy: the chain rule through one step after the other, the last first.
//   5  dn  = dy * s          dz = dy*n * scale*act'(z)        tensorwise: the terms of a row add up, for they share z
//   4  z_ic = sum over j of a_ij * U_cj, U = W_up.  a_ij is in every z_ic of row i: da_ij  = sum over c of dz_ic * U_cj
//                                             U_cj is in z_ic of every row i:  dU_cj += sum over i of dz_ic * a_ij
//      da  = dz W_up         dW_up += dz^T a
//   3  dlow = da * SiLU'(low)
//   2  in the same way as 4, and n now has two gradients: the gate reads it, and the gate multiplies it. They add up:
//      dn  = dn + dlow W_down                dW_down += dlow^T n
//   1  from dn what RMSNorm or DyT makes of it: dx, dw (kernels/rmsnorm.cu), or dx, dalpha, dw, db (kernels/dyt.cu)
//
// After a residual branch, x is the join of the stream and the branch (kernels/residual.cu), and is kept as sum.
// order: that of the operations above, one by one: products in slices of 1024 (kernels/matmul.cu), the mean square and
//   a row's score in the row order, dw, db and dalpha in the column order (core/reduce.cuh)
// in bf16: everything is computed in float, and each number is rounded once, as it is stored
// shapes: x, branch, sum, y, dy, dx (N,C) f32 or bf16; low (N,rank); W_down (rank,C); W_up (C,rank) or (1,rank); w, b
//   (C); r (N) | y, r, low, sum, dx and dbranch are written, gradients of parameters accumulated
// twins: kernels/cpu/gated_norm_cpu.cpp
// --norm=gated|gated-dyt | tests/test_gated_norm.cpp
#include "kernels/gated_norm.h"

#include <vector>

#include "core/launch_shape.cuh"
#include "core/pieces.h"
#include "kernels/activation.h"
#include "kernels/dyt.h"
#include "kernels/gated_norm.cuh"
#include "kernels/residual.cuh"
#include "kernels/rmsnorm.h"

namespace gated {

// ---- reference: the five steps, each over all rows, of the plain case: RMSNorm, and a sigmoid score for every element

template <class T>
void gated_norm_forward_ref(T* y, T* r, T* low, const T* x, const T* w, const T* down, const T* up, size_t N, size_t C,
                            size_t rank, T eps) {
  std::vector<T> n(N * C), a(N * rank), z(N * C);
  rmsnorm_forward_ref(n.data(), r, x, w, N, C, eps);
  matmul_nt_ref(low, n.data(), down, N, rank, C);
  for (size_t i = 0; i < N * rank; i++) a[i] = silu(low[i]);
  matmul_nt_ref(z.data(), a.data(), up, N, C, rank);
  for (size_t i = 0; i < N * C; i++) y[i] = n[i] * exact_sigmoid(z[i]);
}
IN_FLOAT_AND_DOUBLE(gated_norm_forward_ref);

template <class T>
void gated_norm_backward_ref(T* dx, T* dw, T* ddown, T* dup, const T* dy, const T* x, const T* low, const T* r,
                             const T* w, const T* down, const T* up, size_t N, size_t C, size_t rank) {
  // The forward keeps x, r and low. n, a and z are computed again.
  std::vector<T> n(N * C), a(N * rank), z(N * C);
  for (size_t i = 0; i < N * C; i++) n[i] = x[i] * r[i / C] * w[i % C];
  for (size_t i = 0; i < N * rank; i++) a[i] = silu(low[i]);
  matmul_nt_ref(z.data(), a.data(), up, N, C, rank);

  std::vector<T> dn(N * C), dz(N * C), da(N * rank), dlow(N * rank);
  // 5
  for (size_t i = 0; i < N * C; i++) {
    dn[i] = dy[i] * exact_sigmoid(z[i]);
    dz[i] = dy[i] * n[i] * sigmoid_slope(z[i]);
  }
  // 4
  matmul_ref(da.data(), dz.data(), up, N, rank, C, Layout::nn, Accumulate::no);
  matmul_ref(dup, dz.data(), a.data(), C, rank, N, Layout::tn, Accumulate::yes);
  // 3
  for (size_t i = 0; i < N * rank; i++) dlow[i] = da[i] * silu_slope(low[i]);
  // 2
  matmul_ref(dn.data(), dlow.data(), down, N, C, rank, Layout::nn, Accumulate::yes);
  matmul_ref(ddown, dlow.data(), n.data(), rank, C, N, Layout::tn, Accumulate::yes);
  // 1
  rmsnorm_backward_ref(dx, dw, dn.data(), x, w, r, N, C);
}
IN_FLOAT_AND_DOUBLE(gated_norm_backward_ref);

// ---- the general form: any gate, one score for a row, DyT, zero-centred weights, a residual branch
//
// Its reference is the same five steps. The norm and the gate are now the general references of their own files.

// Step 1, and the join before it.
template <class T>
void gated_norm_base_ref(T* n, T* r, T* sum, const ResidualInOf<T>& in, const GatedNormParameters<const T*>& weights,
                         const GatedNormShape& shape) {
  const size_t N = shape.N, C = shape.C;
  if (shape.base == NormGateBase::rmsnorm)
    rmsnorm_general_forward_ref<T>({.y = n, .r = r, .sum = sum}, in, {.w = weights.w, .offset = T(shape.offset)}, N, C,
                                   T(shape.eps));
  else
    dyt_general_forward_ref<T>({.y = n, .sum = sum}, in, weights.alpha, weights.w, weights.b, N, C);
}

template <class T>
void gated_norm_general_forward_ref(T* y, T* r, T* low, T* sum, const ResidualInOf<T>& in,
                                    const GatedNormParameters<const T*>& weights, const GatedNormShape& shape) {
  const size_t N = shape.N, C = shape.C, rank = shape.rank, scores = shape.scores();
  std::vector<T> n(N * C), a(N * rank), z(N * scores);
  gated_norm_base_ref(n.data(), r, sum, in, weights, shape);
  matmul_nt_ref(low, n.data(), weights.down, N, rank, C);
  activation_forward_ref(a.data(), low, N * rank, Activation::silu);
  matmul_nt_ref(z.data(), a.data(), weights.up, N, scores, rank);
  gate_forward_ref(y, n.data(), z.data(), N, C, C / scores, shape.op);
}
IN_FLOAT_AND_DOUBLE(gated_norm_general_forward_ref);

template <class T>
void gated_norm_general_backward_ref(T* dx, T* dbranch, const GatedNormParameters<T*>& gradients, const T* dy,
                                     const ResidualBackwardInOf<T>& in, const T* low, const T* r,
                                     const GatedNormParameters<const T*>& weights, const GatedNormShape& shape) {
  const size_t N = shape.N, C = shape.C, rank = shape.rank, scores = shape.scores();
  std::vector<T> r_again(N), n(N * C), a(N * rank), z(N * scores);
  gated_norm_base_ref<T>(n.data(), r_again.data(), nullptr, {.x = in.x}, weights, shape);
  activation_forward_ref(a.data(), low, N * rank, Activation::silu);
  matmul_nt_ref(z.data(), a.data(), weights.up, N, scores, rank);

  std::vector<T> dn(N * C), dz(N * scores), da(N * rank), dlow(N * rank);
  // 5
  gate_backward_ref(dn.data(), dz.data(), dy, n.data(), z.data(), N, C, C / scores, shape.op);
  // 4
  matmul_ref(da.data(), dz.data(), weights.up, N, rank, scores, Layout::nn, Accumulate::no);
  matmul_ref(gradients.up, dz.data(), a.data(), scores, rank, N, Layout::tn, Accumulate::yes);
  // 3
  activation_backward_ref(dlow.data(), da.data(), low, N * rank, Activation::silu);
  // 2
  matmul_ref(dn.data(), dlow.data(), weights.down, N, C, rank, Layout::nn, Accumulate::yes);
  matmul_ref(gradients.down, dlow.data(), n.data(), rank, C, N, Layout::tn, Accumulate::yes);
  // 1
  if (shape.base == NormGateBase::rmsnorm)
    rmsnorm_general_backward_ref<T>({.dx = dx, .dbranch = dbranch, .dw = gradients.w}, dn.data(), in,
                                    {.w = weights.w, .offset = T(shape.offset)}, r, N, C);
  else
    dyt_general_backward_ref<T>(
        {.dx = dx, .dbranch = dbranch, .dalpha = gradients.alpha, .dw = gradients.w, .db = gradients.b}, dn.data(), in,
        weights.alpha, weights.w, N, C);
}
IN_FLOAT_AND_DOUBLE(gated_norm_general_backward_ref);

// ---- kernels along the rows
//
// One by one, the five steps would send n, z, dn and dz over the bus again and again. A row needs no other row until
// the gradients of parameters, so one kernel takes 16 rows through all steps, and n and z are computed again wherever
// they are wanted. dn is not: three passes want it, and each time it would be two expands and an activation, some 60
// instructions an element where a load is one of a quarter. So it waits in scratch memory, as floats. Arrays of (N,C)
// that cross the bus, with a branch and a score for every element:
//
//                         here                                   the operations one by one
//   forward               x0, branch; sum, y             4       x0, branch, sum, y, n 3 times, z twice         9
//   backward, by rows     x, dy, dresidual; dx, dn       5
//   backward, by columns  x, dy, dn, for every 16 of
//                         a rank                         3
//   backward              both                           8       dy, dresidual, dx, x twice, n twice, z,
//                                                                dn 5 times, dz 3 times                        16
//
// (x0 is the stream before the join. A block reads its rows, and dn, once or twice more, from the caches.)
// kernels/gated_norm.cuh draws the 16 rows and says what expand and contract are. Gradients of parameters are sums over
// rows, and need every row: kernels/gated_norm_columns.cu.

// out (columns,rows) = in (rows,columns) transposed: a weight of the gate, small beside the activations.
__global__ void gated_norm_transpose_kernel(float* out, const float* in, size_t rows, size_t columns) {
  const size_t i = threadIdx.x + size_t(blockDim.x) * blockIdx.x;
  if (i < rows * columns) out[i] = in[i % rows * columns + i / rows];
}

template <class S>
__global__ void __launch_bounds__(gated_norm::threads, 4)
    gated_norm_forward_kernel(S* y, float* r, float* low, S* sum, ResidualInOf<S> in, GatedNormWeights weights,
                              const float* up_t, GatedNormShape shape) {
  using namespace gated_norm;
  // DYNAMIC_SHARED(T, name): shared memory of the size that the launch names.
  DYNAMIC_SHARED(float, a);     // [j][row]
  float* const low_chains = a;  // stand there before a does
  const size_t C = shape.C, rank = shape.rank;
  float* const total = a + AlongRows::rows * rank;
  AlongRows block(shape, weights, size_t(blockIdx.x) * AlongRows::rows);

  // 1, the row's part: the join, and the mean square. From here on x is the sum. A lane reads again only columns that
  // it wrote itself, so no barrier is needed. All loads of a patch come before its first store, to be under way at
  // once.
  const S* x = in.branch ? sum : in.x;
  if (block.norm.rms || in.branch) {
    float chain[4][4] = {};
    for (size_t c = block.column_offset(); c < C; c += AlongRows::width) {
      Patch q = in.x ? block.load(in.x, c) : patch([](int, int) { return -0.0f; });  // v + -0 is v for every v
      if (in.branch) {
        const Patch b = block.load(in.branch, c);
#pragma unroll
        for (unsigned k = 0; k < 4; k++)
          if (k < block.count) q.row[k] = JoinedRows<S>{sum, in}.join(block.row0 + k, c, C, q.row[k], b.row[k]);
      }
      each_element([&](int k, int e) { chain[k][e] = fused(q.row[k].v[e], q.row[k].v[e], chain[k][e]); });
    }
#pragma unroll
    for (unsigned k = 0; k < 4; k++) {
      block.r[k] = 1.0f / exact_sqrt(warp_chains_sum(chain[k]) / float(C) + shape.eps);
      if (block.norm.rms && block.column_offset() == 0 && k < block.count) r[block.row0 + k] = block.r[k];
    }
  }

  // 2
  block.contract(total, low_chains, weights.down, [&](size_t c) { return block.n(block.unit(block.load(x, c)), c); });

  // 3: a thread has the totals of its own chains. The barrier: next, a thread wants every j of its rows.
  block.each_chain([&](size_t at, size_t j) {
    for (unsigned k = 0; k < 2; k++) {
      const size_t row = block.first + block.chain_row() + k;
      a[at + k] = silu(total[at + k]);
      if (row < shape.N) low[row * rank + j] = total[at + k];
    }
  });
  __syncthreads();

  // 4 and 5: n once more, from the caches.
  for (size_t c = block.column_offset(); c < C; c += AlongRows::width) {
    const Patch n = block.n(block.unit(block.load(x, c)), c);
    const Patch s = scores(shape.op, block.expand(a, up_t, shape.scores(), c)).s;
    block.store(y, c, patch([&](int k, int e) { return gate_y(shape.op, n.row[k].v[e], s.row[k].v[e]); }));
  }
}

template <class S>
__global__ void __launch_bounds__(gated_norm::threads, 3)
    gated_norm_backward_kernel(S* dx, S* dbranch, GatedNormLeft left, const S* dy, ResidualBackwardInOf<S> in,
                               const float* low, const float* r, GatedNormWeights weights, const float* up_t,
                               GatedNormShape shape) {
  using namespace gated_norm;
  constexpr unsigned rows = AlongRows::rows;
  DYNAMIC_SHARED(float, a);  // [j][row]
  const size_t N = shape.N, C = shape.C, rank = shape.rank, scores_of_row = shape.scores();
  float *const dlows = a + rows * rank, *const total = dlows + rows * rank;
  float* const da_chains = dlows;  // stand there before dlow does
  const GateOp op = shape.op;
  AlongRows block(shape, weights, size_t(blockIdx.x) * rows);
  const bool rms = block.norm.rms, first_lane = block.column_offset() == 0;
  block.load_r(r);
  for (size_t i = threadIdx.x; i < rows * rank; i += threads) {
    const size_t row = block.first + i % rows, j = i / rows;
    a[i] = row < N ? silu(low[row * rank + j]) : 0.0f;
    if (row < N) left.a[j * N + row] = a[i];
  }
  __syncthreads();  // a is whole
  const auto z = [&](size_t c) { return block.expand(a, up_t, scores_of_row, c); };

  // 5 and 4: dy*s, of dn, waits in memory; dz, and from it da = dz W_up into total.
  const auto store_through_gate = [&](size_t c, const Patch& d, const Patch& s) {
    block.store(left.dn, c, patch([&](int k, int e) { return d.row[k].v[e] * gate_dy_dx(op, s.row[k].v[e]); }));
  };
  if (scores_of_row == C) {
    block.contract(total, da_chains, up_t, [&](size_t c) {
      const Patch x = block.load(in.x, c), d = block.load(dy, c);
      const Scores of = scores(op, z(c));
      store_through_gate(c, d, of.s);
      const Patch n = block.n(block.unit(x), c);
      return patch([&](int k, int e) { return d.row[k].v[e] * gate_dy_ds(op, n.row[k].v[e]) * of.slope.row[k].v[e]; });
    });
  } else {
    // One score for a row: its gradient is the row's sum of dy*n, which a warp makes alone, and da has one term.
    const Scores of = scores(op, z(0));
    float chain[4][4] = {};
    for (size_t c = block.column_offset(); c < C; c += AlongRows::width) {
      const Patch n = block.n(block.unit(block.load(in.x, c)), c), d = block.load(dy, c);
      each_element([&](int k, int e) {
        if (c + e < C) chain[k][e] = fused(d.row[k].v[e], gate_dy_ds(op, n.row[k].v[e]), chain[k][e]);
      });
      store_through_gate(c, d, of.s);
    }
#pragma unroll
    for (unsigned k = 0; k < 4; k++) {
      const float dz = warp_chains_sum(chain[k]) * of.slope.row[k].v[0];
      if (first_lane && k < block.count) left.dscores[block.row0 + k] = dz;
      for (size_t j = threadIdx.x % 32; j < rank; j += 32)
        total[j * rows + block.row_offset() + k] = fused(dz, weights.up[j], 0.0f);
    }
    __syncthreads();  // other threads than wrote total read it
  }

  // 3: dlow. The barrier: next, a thread wants every j of its rows.
  block.each_chain([&](size_t at, size_t j) {
    for (unsigned k = 0; k < 2; k++) {
      const size_t row = block.first + block.chain_row() + k;
      dlows[at + k] = row < N ? total[at + k] * silu_slope(low[row * rank + j]) : 0.0f;
      if (row < N) left.dlow[j * N + row] = dlows[at + k];
    }
  });
  __syncthreads();

  // 2 and 1: dn = dy*s + dlow W_down, and from it dx. RMSNorm's dx waits for the mean over the row, so it takes two
  // passes, of which the second finds dn in a cache; in it the sum is made again, and not used. DyT's does not wait: it
  // leaves in the pass that adds up dalpha.
  float mean[4] = {};
  for (int pass = rms ? 0 : 1; pass < 2; pass++) {
    float chain[4][4] = {};
    for (size_t c = block.column_offset(); c < C; c += AlongRows::width) {
      const Patch x = block.load(in.x, c);
      Patch dn = block.load(left.dn, c);
      if (pass == 0 || !rms) {
        const Patch by_low = block.expand(dlows, weights.down, C, c);
        each_element([&](int k, int e) { dn.row[k].v[e] = dn.row[k].v[e] + by_low.row[k].v[e]; });
        block.store(left.dn, c, dn);
      }
      const Patch unit = block.unit(x);
      const Quad w = load_quad(weights.w, c, C);
      Patch through_norm = patch([&](int k, int e) {
        const float u = unit.row[k].v[e], g = block.norm.g(dn.row[k].v[e], u, w.v[e]);
        if (c + e < C) chain[k][e] = block.norm.add_to_row(chain[k][e], g, u, x.row[k].v[e]);
        return block.norm.dx(g, u, mean[k], block.r[k]);
      });
      if (pass == 0) continue;
      if (in.dresidual) {
        const Patch other = block.load(in.dresidual, c);
        each_element([&](int k, int e) { through_norm.row[k].v[e] = other.row[k].v[e] + through_norm.row[k].v[e]; });
      }
#pragma unroll
      for (unsigned k = 0; k < 4; k++)
        if (k < block.count)
          JoinedGradient<S>{dx, dbranch, in}.store_sum(block.row0 + k, c, C, through_norm.row[k], x.row[k]);
    }
#pragma unroll
    for (unsigned k = 0; k < 4; k++) {
      const float sum = warp_chains_sum(chain[k]);
      mean[k] = sum / float(C);
      if (!rms && first_lane && k < block.count) left.row_sums[block.row0 + k] = sum;
    }
  }
}

// ---- launchers

static void require_gated_norm(const char* op, const GatedNormWeights& weights, const GatedNormShape& shape) {
  require(shape.rank > 0 && shape.rank <= matmul_slice, "%s: rank is %zu, expected 1 to %zu", op, shape.rank,
          matmul_slice);
  require(shape.base == NormGateBase::rmsnorm || (weights.alpha && weights.b), "%s: DyT has alpha and b", op);
  require_gate(op, shape.op);
}

static void gated_norm_transpose(float* out, const float* in, size_t rows, size_t columns, Context& ctx) {
  launch(gated_norm_transpose_kernel, grid_of(ceil_div(rows * columns, 256)), 256, 0, ctx, out, in, rows, columns);
}

// W_up, transposed.
size_t gated_norm_forward_scratch(const GatedNormShape& s, Device device) {
  return device == Device::cpu ? gated_norm_forward_cpu_scratch(s) : s.scores() * s.rank * sizeof(float);
}

void gated_norm_forward(Reals y, float* r, float* low, Reals sum, const ResidualIn& in, const GatedNormWeights& weights,
                        const GatedNormShape& shape, Context& ctx) {
  require_residual("gated_norm_forward", sum, in, shape.C);
  require_gated_norm("gated_norm_forward", weights, shape);
  float* scratch = ctx.scratch(gated_norm_forward_scratch(shape, ctx.device) / sizeof(float));
  with_storage(y, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu)
      return gated_norm_forward_cpu(y.as<S>(), r, low, sum.as<S>(), in.as<S>(), weights, shape, scratch);
    constexpr unsigned rows = gated_norm::AlongRows::rows;
    gated_norm_transpose(scratch, weights.up, shape.scores(), shape.rank, ctx);
    launch(gated_norm_forward_kernel<S>, grid_of(ceil_div(shape.N, rows)), gated_norm::threads,
           2 * rows * shape.rank * sizeof(float), ctx, y.as<S>(), r, low, sum.as<S>(), in.as<S>(), weights, scratch,
           shape);
  });
}

// What the kernels of a backward hand on to each other.
struct GatedNormBackwardScratch {
  GatedNormSlices slices = {};
  GatedNormLeft left = {};
  float *up_t, *alpha_sums = nullptr;

  GatedNormBackwardScratch(Pieces& pieces, const GatedNormShape& s) {
    const size_t product_slices = ceil_div(s.N, matmul_slice);
    const size_t column_sums = column_reduce_scratch(s.N, s.C) / sizeof(float);
    slices.down = pieces.take<float>(product_slices * s.rank * s.C);
    slices.up = pieces.take<float>(product_slices * s.scores() * s.rank);
    slices.w = pieces.take<float>(column_sums);
    up_t = pieces.take<float>(s.scores() * s.rank);
    left.dn = pieces.take<float>(s.N * s.C);
    left.a = pieces.take<float>(s.N * s.rank);
    left.dlow = pieces.take<float>(s.N * s.rank);
    left.dscores = pieces.take<float>(s.N);
    if (s.base == NormGateBase::rmsnorm) return;
    slices.b = pieces.take<float>(column_sums);
    alpha_sums = pieces.take<float>(column_reduce_scratch(s.N, 1) / sizeof(float));
    left.row_sums = pieces.take<float>(s.N);
  }
};

size_t gated_norm_backward_scratch(const GatedNormShape& shape, Device device) {
  return device == Device::cpu ? gated_norm_backward_cpu_scratch(shape)
                               : bytes_of_memory<GatedNormBackwardScratch>(shape);
}

void gated_norm_backward(Reals dx, Reals dbranch, const GatedNormGradients& gradients, ConstReals dy,
                         const ResidualBackwardIn& in, const float* low, const float* r,
                         const GatedNormWeights& weights, const GatedNormShape& shape, Context& ctx) {
  require_residual_backward("gated_norm_backward", dbranch, in, shape.C);
  require_gated_norm("gated_norm_backward", weights, shape);
  require(dx != dy && (!dbranch || dbranch != dy),
          "gated_norm_backward: dx or dbranch is dy, which is read again after they are written");
  if (shape.N == 0) return;
  auto* scratch = ctx.scratch<unsigned char>(gated_norm_backward_scratch(shape, ctx.device));
  if (ctx.device == Device::cpu) {
    with_storage(dx, [&](auto stored) {
      using S = decltype(stored);
      gated_norm_backward_cpu(dx.as<S>(), dbranch.as<S>(), gradients, dy.as<S>(), in.as<S>(), low, r, weights, shape,
                              reinterpret_cast<float*>(scratch));
    });
    return;
  }
  const size_t N = shape.N, C = shape.C, rank = shape.rank, scores = shape.scores();
  Pieces pieces(scratch);
  const GatedNormBackwardScratch s(pieces, shape);
  gated_norm_transpose(s.up_t, weights.up, scores, rank, ctx);
  with_storage(dx, [&](auto stored) {
    using S = decltype(stored);
    constexpr unsigned rows = gated_norm::AlongRows::rows;
    launch(gated_norm_backward_kernel<S>, grid_of(ceil_div(N, rows)), gated_norm::threads,
           3 * rows * rank * sizeof(float), ctx, dx.as<S>(), dbranch.as<S>(), s.left, dy.as<S>(), in.as<S>(), low, r,
           weights, s.up_t, shape);
  });
  gated_norm_columns(s.slices, in.x, dy, s.left, r, weights, s.up_t, shape, ctx);

  const size_t product_slices = ceil_div(N, matmul_slice), column_slices = ceil_div(N, column_slice);
  matmul_add_slices(gradients.down, s.slices.down, product_slices, rank * C, ctx);
  matmul_add_slices(gradients.up, s.slices.up, product_slices, scores * rank, ctx);
  column_add_slices(std::array{gradients.w}, s.slices.w, column_slices, C, ctx);
  if (shape.base == NormGateBase::rmsnorm) return;
  column_add_slices(std::array{gradients.b}, s.slices.b, column_slices, C, ctx);
  const OneSum<AddRows<float>> add_rows = {{s.left.row_sums, 1}};
  column_reduce_add_in(s.alpha_sums, std::array{gradients.alpha}, N, 1, add_rows, ctx);
}

}  // namespace gated
