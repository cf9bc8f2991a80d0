// grouped_matmul_bf16: rows in groups, each group multiplied with a matrix of its own, on tensor cores
//
// The products are those of kernels/grouped_matmul.cu, where they and their gradients stand;
// kernels/bf16/matmul_bf16.cu says what a product of bf16 matrices is, to the bit:
//   y_ro      = sum over i of x_ri W_e,oi (+ b_e,o)           nt   for the rows r of expert e
//   dx_ri     = sum over o of dy_ro W_e,oi                    nn
//   dW_e,oi  += sum over the rows r of e of dy_ro x_ri        tn   in floats
//
// Order: for each expert that of matmul_bf16() on its rows alone. So the slices of 4096 rows of a dW_e, and the 16 rows
// of an instruction, are counted from the expert's first row; after its last row the factors are 0, not those of the
// next expert.
//
// shapes: C (M,N) bf16, A (M,K), B (E,N,K) in nt, (E,K,N) in nn, bias (E,N) f32; in tn C (E,N,K) f32, A (M,N), B (M,K)
//         row_start (E+1) int
// on the CPU: one product after the other, each by all threads | tests/test_grouped_matmul_bf16.cpp
#include "kernels/bf16/grouped_matmul_bf16.h"

#include "core/launch.cuh"
#include "kernels/grouped_rows.cuh"
#include "kernels/bf16/matmul_bf16_tile.cuh"
#include "kernels/bf16/matmul_wgmma.h"

namespace gated {

// ---- reference: a loop over experts

void grouped_matmul_bf16_ref(bf16* C, const bf16* A, const bf16* B, const int* row_start, const GroupedShape& s,
                             Layout layout, Accumulate accumulate, MmaArithmetic arithmetic, const float* bias) {
  for_every_expert(row_start, s.E, [&](size_t e, size_t row, size_t rows) {
    matmul_bf16_ref(C + row * s.N, A + row * s.K, B + e * s.N * s.K, rows, s.N, s.K, layout, accumulate, arithmetic,
                    bias ? bias + e * s.N : nullptr);
  });
}

void grouped_matmul_bf16_tn_ref(float* C, const bf16* A, const bf16* B, const int* row_start, const GroupedShape& s,
                                MmaArithmetic arithmetic) {
  for_every_expert(row_start, s.E, [&](size_t e, size_t row, size_t rows) {
    matmul_bf16_ref(C + e * s.N * s.K, A + row * s.N, B + row * s.K, s.N, s.K, rows, Layout::tn, Accumulate::yes,
                    arithmetic, nullptr);
  });
}

// ---- kernel
//
// A block computes one tile, as in a product of two matrices (kernels/bf16/matmul_bf16_tile.cuh): the tile sees an
// expert's matrices, and ends where the expert's rows do.
//   nt, nn   the tile's rows are a piece of an expert's rows (kernels/grouped_rows.cuh): blockIdx.x numbers the pieces,
//            blockIdx.y the tiles along N
//   tn       the tile lies in the C of expert blockIdx.z, and k runs over the expert's rows
// Where there is such a GPU, kernels/bf16/matmul_wgmma.cu makes what has enough rows.
// Totals stand in scratch where there are several slices: in nt and nn where K > 4096, in tn for the tiles of experts
// with more than 4096 rows.

template <class Out>
struct GroupedMmaJob {
  Out* C;
  float* totals;
  const bf16 *A, *B;
  const int* row_start;
  size_t E, N, K, depth;  // depth: K, or that of all factors
  Accumulate accumulate;
  const float* bias = nullptr;
  MoreFactors more = {};  // in nn
  size_t tall = 0;        // tall_groups(), in tn
  Activated activated = {};
};

template <Layout layout, bool aligned, class Out>
__global__ void __launch_bounds__(mma_threads, mma_blocks) grouped_matmul_bf16_kernel(GroupedMmaJob<Out> job) {
  DYNAMIC_SHARED(bf16, shared);
  MmaBlock<Out> block;
  block.n0 = size_t{blockIdx.y} * mma_tile_rows;
  block.totals = job.totals, block.total = size_t{blockIdx.y} * gridDim.x + blockIdx.x;
  block.accumulate = job.accumulate;
  block.activated = job.activated;
  if constexpr (layout == Layout::tn) {
    const size_t e = blockIdx.z, begin = size_t(job.row_start[e]), matrix = job.N * job.K;
    block.K = size_t(job.row_start[e + 1]) - begin;
    if (block.K == 0) return;
    block.depth = block.K;
    block.m0 = size_t{blockIdx.x} * mma_tile_rows, block.m_end = job.N, block.n_end = job.K;
    block.A = {job.A + begin * job.N, job.N}, block.B = {job.B + begin * job.K, job.K}, block.bias = nullptr;
    block.C = {job.C + e * matrix, job.K};
    block.total += tall_group_place(job.tall, begin, e, job.E, matmul_bf16_slice) * gridDim.x * gridDim.y;
  } else {
    const GroupRows rows = group_rows(job.row_start, job.E, mma_tile_rows, blockIdx.x);
    if (rows.begin >= rows.end) return;
    block.m0 = rows.begin, block.m_end = rows.end, block.n_end = job.N, block.K = job.K;
    block.more = job.more, block.depth = job.depth;
    for (MmaFactors& f : block.more.at) f.B.data += rows.expert * job.N * f.K;
    block.A = {job.A, job.K}, block.B = {job.B + rows.expert * job.N * job.K, layout == Layout::nt ? job.K : job.N};
    block.bias = layout == Layout::nt && job.bias ? job.bias + rows.expert * job.N : nullptr;
    block.C = {job.C, job.N};
  }
  multiply_tile<layout, aligned>(block, shared);
}

// ---- on the CPU: one product after the other, each by all threads. The scratch is that of an expert with all rows.

static void grouped_matmul_bf16_cpu(bf16* C, const bf16* A, const bf16* B, const int* row_start, const GroupedShape& s,
                                    Layout layout, Accumulate accumulate, Context& ctx, const float* bias) {
  const size_t ldb = packed_ldb(s.N, s.K, layout);
  for_every_expert(row_start, s.E, [&](size_t e, size_t row, size_t rows) {
    const MmaFactors factors = {{A + row * s.K, s.K}, {B + e * s.N * s.K, ldb}, s.K};
    matmul_bf16_cpu<bf16>({C + row * s.N, s.N}, {&factors, 1}, rows, s.N, layout, accumulate,
                          bias ? bias + e * s.N : nullptr, ctx);
  });
}

static void grouped_matmul_bf16_tn_cpu(float* C, const bf16* A, const bf16* B, const int* row_start,
                                       const GroupedShape& s, Context& ctx) {
  for_every_expert(row_start, s.E, [&](size_t e, size_t row, size_t rows) {
    const MmaFactors factors = {{A + row * s.N, s.N}, {B + row * s.K, s.K}, rows};
    matmul_bf16_cpu<float>({C + e * s.N * s.K, s.K}, {&factors, 1}, s.N, s.K, Layout::tn, Accumulate::yes, nullptr,
                           ctx);
  });
}

// f of expert e, whose rows begin with `row`.
static MmaFactors factors_of_expert(MmaFactors f, size_t e, size_t row, size_t N) {
  return {{f.A.data + row * f.K, f.K}, {f.B.data + e * f.K * N, N}, f.K};
}

static void grouped_matmul_bf16_joined_cpu(bf16* C, std::span<const MmaFactors> factors, const int* row_start,
                                           const GroupedShape& s, Accumulate accumulate, Context& ctx) {
  for_every_expert(row_start, s.E, [&](size_t e, size_t row, size_t rows) {
    MmaFactors of_expert[most_factors];
    for (size_t i = 0; i < factors.size(); i++) of_expert[i] = factors_of_expert(factors[i], e, row, s.N);
    matmul_bf16_cpu<bf16>({C + row * s.N, s.N}, {of_expert, factors.size()}, rows, s.N, Layout::nn, accumulate, nullptr,
                          ctx);
  });
}

// ---- launchers

size_t grouped_matmul_bf16_scratch(const GroupedShape& s, Device device) {
  if (device == Device::cpu) return matmul_bf16_scratch(s.M, s.N, s.K, Layout::nt, device);
  return mma_totals(group_rows_grid(s.M, s.E, mma_tile_rows).x, s.N, s.K) * sizeof(float);
}

size_t grouped_matmul_bf16_tn_scratch(const GroupedShape& s, Device device) {
  if (device == Device::cpu) return matmul_bf16_scratch(s.N, s.K, s.M, Layout::tn, device);
  const size_t tall = tall_groups(s.M, s.E, matmul_bf16_slice);
  return tall == 0 ? 0 : mma_totals(tall * ceil_div(s.N, mma_tile_rows), s.K, s.M) * sizeof(float);
}

// By wgmma, where an expert has half of a cluster's rows on average: with fewer most of them would be empty. In tn they
// are two strips.
template <Layout layout, class Out>
static bool grouped_by_wgmma(const GroupedMmaJob<Out>& job, size_t M, Context& ctx) {
  if (M < job.E * (wgmma_cluster_rows / 2)) return false;
  const WgmmaGroups groups = {job.row_start, job.E};
  if constexpr (layout == Layout::tn) {
    const MmaFactors factors = {{job.A, job.N}, {job.B, job.K}, M};
    return matmul_wgmma(Matrix<Out>{job.C, job.K}, {&factors, 1}, job.N, job.K, layout, job.accumulate, job.totals,
                        nullptr, {}, ctx, matmul_wgmma_columns(job.N, job.K, job.E, multiprocessors()), job.E, groups);
  } else {
    MmaFactors factors[most_factors] = {{{job.A, job.K}, {job.B, packed_ldb(job.N, job.K, layout)}, job.K}};
    std::copy_n(job.more.at, job.more.count, factors + 1);
    return matmul_wgmma(Matrix<Out>{job.C, job.N}, std::span(factors, size_t(job.more.count) + 1), M, job.N, layout,
                        job.accumulate, job.totals, job.bias, job.activated, ctx,
                        matmul_wgmma_columns(M, job.N, 1, multiprocessors()), 1, groups);
  }
}

template <Layout layout, class Out>
static void grouped_mma_launch(const GroupedMmaJob<Out>& job, size_t M, Context& ctx) {
  constexpr bool tn = layout == Layout::tn;
  emulate_mma(ctx);
  if (grouped_by_wgmma<layout>(job, M, ctx)) return;
  const bool aligned =
      mma_aligned({job.A, tn ? job.N : job.K}, {job.B, layout == Layout::nn ? job.N : job.K}, job.more);
  auto* kernel =
      aligned ? grouped_matmul_bf16_kernel<layout, true, Out> : grouped_matmul_bf16_kernel<layout, false, Out>;
  dim3 grid = tn ? grid_of(ceil_div(job.N, mma_tile_rows)) : group_rows_grid(M, job.E, mma_tile_rows);
  const size_t columns = ceil_div(tn ? job.K : job.N, mma_tile_rows), deep = tn ? job.E : 1;
  require(columns <= 65535 && deep <= 65535 && job.depth <= mma_most_k,
          "grouped_matmul_bf16: N %zu, K %zu or %zu experts are too large for a grid", job.N, job.K, job.E);
  grid.y = unsigned(columns), grid.z = unsigned(deep);
  launch(kernel, grid, mma_threads, mma_shared, ctx, job);
}

void grouped_matmul_bf16(bf16* C, const bf16* A, const bf16* B, const int* row_start, const GroupedShape& s,
                         Layout layout, Accumulate accumulate, Context& ctx, const float* bias,
                         const Activated& activated) {
  require(layout != Layout::tn,
          "grouped_matmul_bf16: expected layout nt or nn; grouped_matmul_bf16_tn() is the weight gradient");
  require(!bias || (layout == Layout::nt && accumulate == Accumulate::no),
          "grouped_matmul_bf16: a bias is for a product that is written in layout nt, not accumulated");
  require_activated("grouped_matmul_bf16", activated, layout, accumulate, Storage::bf16);
  require_groups("grouped_matmul_bf16", s.M, s.E, row_start, ctx);
  if (s.M == 0 || s.N == 0) return;
  if (ctx.device == Device::cpu) {
    grouped_matmul_bf16_cpu(C, A, B, row_start, s, layout, accumulate, ctx, bias);
    return activate(activated, C, s.M * s.N, ctx);
  }
  const size_t scratch = grouped_matmul_bf16_scratch(s, ctx.device);
  float* const totals = scratch ? ctx.scratch(scratch / sizeof(float)) : nullptr;
  const GroupedMmaJob<bf16> job = {.C = C,
                                   .totals = totals,
                                   .A = A,
                                   .B = B,
                                   .row_start = row_start,
                                   .E = s.E,
                                   .N = s.N,
                                   .K = s.K,
                                   .depth = s.K,
                                   .accumulate = accumulate,
                                   .bias = bias,
                                   .activated = activated};
  if (layout == Layout::nt)
    grouped_mma_launch<Layout::nt>(job, s.M, ctx);
  else
    grouped_mma_launch<Layout::nn>(job, s.M, ctx);
}

void grouped_matmul_bf16_joined(bf16* C, std::span<const MmaFactors> factors, const int* row_start,
                                const GroupedShape& s, Accumulate accumulate, Context& ctx,
                                const Activated& activated) {
  const MoreFactors more = more_factors("grouped_matmul_bf16_joined", factors);
  require_activated("grouped_matmul_bf16_joined", activated, Layout::nn, accumulate, Storage::bf16);
  require_groups("grouped_matmul_bf16_joined", s.M, s.E, row_start, ctx);
  if (s.M == 0 || s.N == 0) return;
  if (ctx.device == Device::cpu) {
    grouped_matmul_bf16_joined_cpu(C, factors, row_start, s, accumulate, ctx);
    return activate(activated, C, s.M * s.N, ctx);
  }
  const size_t depth = joined_depth(factors);
  const size_t scratch = grouped_matmul_bf16_scratch({s.M, s.E, s.N, depth}, ctx.device);
  const GroupedMmaJob<bf16> job = {.C = C,
                                   .totals = scratch ? ctx.scratch(scratch / sizeof(float)) : nullptr,
                                   .A = factors[0].A.data,
                                   .B = factors[0].B.data,
                                   .row_start = row_start,
                                   .E = s.E,
                                   .N = s.N,
                                   .K = factors[0].K,
                                   .depth = depth,
                                   .accumulate = accumulate,
                                   .more = more,
                                   .activated = activated};
  grouped_mma_launch<Layout::nn>(job, s.M, ctx);
}

void grouped_matmul_bf16_tn(float* C, const bf16* A, const bf16* B, const int* row_start, const GroupedShape& s,
                            Context& ctx) {
  require_groups("grouped_matmul_bf16_tn", s.M, s.E, row_start, ctx);
  if (s.M == 0 || s.N == 0 || s.K == 0) return;
  if (ctx.device == Device::cpu) return grouped_matmul_bf16_tn_cpu(C, A, B, row_start, s, ctx);
  const size_t scratch = grouped_matmul_bf16_tn_scratch(s, ctx.device);
  float* const totals = scratch ? ctx.scratch(scratch / sizeof(float)) : nullptr;
  const GroupedMmaJob<float> job = {.C = C,
                                    .totals = totals,
                                    .A = A,
                                    .B = B,
                                    .row_start = row_start,
                                    .E = s.E,
                                    .N = s.N,
                                    .K = s.K,
                                    .depth = s.K,
                                    .accumulate = Accumulate::yes,
                                    .tall = tall_groups(s.M, s.E, matmul_bf16_slice)};
  grouped_mma_launch<Layout::tn>(job, s.M, ctx);
}

}  // namespace gated
