// linear_cross_entropy: the loss of a language model, from the last hidden states on
//
// 1. Softmax and cross-entropy of one row. Of the logits l (V) of a token, softmax makes probabilities p, and the loss
//    is -log of the target's:
//      p_v = e^l_v / sum over u of e^l_u        loss = -log p_target = lse - l_target,   lse = log(sum over u of e^l_u)
//    e^l overflows for l > 88, so the row's largest logit m is taken out first: lse = m + log(sum over u of e^(l_u-m)).
//    Backward. lse is the only part of the loss that knows every logit, and ∂lse/∂l_v = e^l_v / sum = p_v, so
//      dl_v = (p_v - [v = target]) dloss,       p_v = e^(l_v - lse)
//    A row's gradients are written over its logits, if both are floats: nobody needs these any more.
//
// 2. The output matmul in front of it. The logits of token n are products of its hidden state h_n (C) with every row of
//    the head's weight W (V,C):
//      logits = h W^T                                     (matmul.cu derives what follows)
//      dh = dlogits W                                     written
//      dW = dW + dlogits^T h                              accumulated over the batches of a step
//
// 3. Chunks. The logits are by far the largest activation of a small model: 65,536 tokens of 50,257 logits are 12 GiB.
//    So rows go in chunks through all of (2) and (1), into the same memory. Losses and dh do not know about chunks. Nor
//    does dW: its sum over tokens goes in slices of 1024 rows, each one chain from +0,
//      dW = ((dW + slice 0) + slice 1) + ...              one rounding each, ascending
//    and every chunk but the last is a whole number of slices. So any size of a chunk gives the same bits.
//
//    Cut Your Losses (Wijmans et al. 2024, arXiv 2411.09009) keeps no logits at all. A chunk of about a thousand rows
//    is of the size of W itself, and leaves the work to plain products.
//
// 4. With bf16. The three products multiply bf16 matrices (kernels/bf16/matmul_bf16.cu): h, a rounded copy of W, and
//    dlogits, which are rounded once as they are written, to memory of their own. Logits, which are sums, stay floats,
//    as do losses and dW, whose order is that of (3) but for the slice, which is that of every product of bf16
//    matrices, 4096 rows. dh is rounded once, at the end.
//    A slice is a pass over dW, and a chunk is at least a slice. With 1024 rows dW of (50257,768) would be read and
//    written 32 times for 32,768 tokens, 9.9 GB; with 4096 rows it is 8 times, 2.5 GB, and a product of four times the
//    depth fills and drains its pipeline a quarter as often. At V 151,936 and C 2048 the passes over slices of 1024
//    would take an H100 as long as the arithmetic at its peak. The price is memory: 4096 rows of 50,304 floats and as
//    many bf16 are 824 + 412 MB, where 1024 took 309 MB. In fp32, which is computed for its bits and on CPUs, a slice
//    stays matmul's.
//
// exactly: the sum over a row in the row order (core/reduce.cuh); the maximum of a row has no order
// shapes: h, dh (N,C) f32 or bf16; weight, dweight (V,C), losses (N) f32; weight_copy (V,C) bf16; targets (N)
//   of a chunk, overwritten: logits (chunk_rows, padded_vocab(V)) f32, dlogits the same in bf16
// twins: kernels/cpu/linear_cross_entropy_cpu.cpp
// Logits for sampling are matmul alone. | tests/test_linear_cross_entropy.cpp
#include "kernels/linear_cross_entropy.h"

#include <algorithm>

#include "core/launch.cuh"
#include "core/math.cuh"
#include "core/mma.cuh"
#include "core/quad.cuh"
#include "core/reduce.cuh"
#include "kernels/linear_cross_entropy.cuh"

namespace gated {

// Rows of one chain of dW: a slice is one product.
constexpr size_t weight_gradient_slice(Storage storage) {
  return storage == Storage::bf16 ? matmul_bf16_slice : matmul_slice;
}

// ---- reference
//
// log_sum_exp and dlogit are the formulas of (1), one line each in linear_cross_entropy.cuh. A target outside the
// vocabulary is not `known`, and log_sum_exp makes it NaN.

template <class T>
void cross_entropy_ref(T* losses, T* logits, const int* targets, T dloss, bool gradient, size_t rows, size_t V) {
  for (size_t row = 0; row < rows; row++) {
    T* l = logits + row * V;
    const int target = targets[row];
    const bool known = target_is_known(target, V);
    T max = -INFINITY;
    for (size_t v = 0; v < V; v++) max = max_of(l[v], max);
    RowSum<T> sum;
    for (size_t v = 0; v < V; v++) sum.add(exact_exp(l[v] - max));
    const T lse = log_sum_exp(max, sum.total(), known);
    losses[row] = lse - l[known ? target : 0];
    for (size_t v = 0; gradient && v < V; v++) l[v] = dlogit(l[v], lse, v == size_t(target) ? T(1) : T(0), dloss);
  }
}
IN_FLOAT_AND_DOUBLE(cross_entropy_ref);

// All rows at once.
template <class T>
void linear_cross_entropy_ref(T* losses, T* dh, T* dweight, T* logits, const T* h, const T* weight, const int* targets,
                              T dloss, size_t N, size_t C, size_t V) {
  matmul_ref(logits, h, weight, N, V, C, Layout::nt, Accumulate::no);
  cross_entropy_ref(losses, logits, targets, dloss, dh || dweight, N, V);
  if (dh) matmul_ref(dh, logits, weight, N, C, V, Layout::nn, Accumulate::no);
  if (!dweight) return;
  // One slice a product: a product of all rows would add its slices to each other before it adds them to dW.
  for (size_t n = 0; n < N; n += matmul_slice) {
    const size_t rows = std::min(matmul_slice, N - n);
    matmul_ref(dweight, logits + n * V, h + n * C, V, C, rows, Layout::tn, Accumulate::yes);
  }
}
IN_FLOAT_AND_DOUBLE(linear_cross_entropy_ref);

// ---- kernel: a block takes one row after another
//
// A row is too long for one warp, and so that memory is read once, a block keeps it. 50,257 logits are 200 kB; a
// multiprocessor has 256 KiB of registers, and 227 KiB of shared memory on an H100, 163 KiB on an A100. So a row is
// kept in the registers of a block, and shared memory is free for the next one, which comes while this one is computed
// (cp.async). A row that does not fit both stays where it is, and is read three times.
//
// Maximum, sum and gradient each go through the whole row. A thread owns quads (kernels/activation.cu): in a step, a
// `chunk`, the block covers four logits a thread. But for the target's, no other thread reads them. Only one long row
// fits a multiprocessor, where it must hide the latency of its own instructions: 16 warps take it. Short rows lie there
// side by side, and four warps take one.
//
// The sum alone has an order: element i belongs to chain i mod 128, and a chain is added by one thread. So all threads
// make exponentials, a chunk at a time, and lay them down in shared memory, from where the first 128 threads add them,
// thread j those of chain j:
//
//     element of the chunk      0  1  2  3  4  5  6  7  ...  127 | 128 129 ...  255 | 256 ...  2047
//     made by thread            0  0  0  0  1  1  1  1  ...   31 |  32  32 ...   63 |  64 ...   511
//     added by thread           0  1  2  3  4  5  6  7  ...  127 |   0   1 ...  127 |   0 ...   127
//
// One chunk is added while the next is made, so there are two places, and one barrier a chunk is enough: it says that
// the chunk is there, and, as its adders come to it when they have added the one before, that the place of the one
// before is free.
//
//     warps 0 to 3     make 0 | add 0, make 1 | add 1, make 2 | add 2, ...
//     the others       make 0 | make 1        | make 2        | ...
//                             barrier         barrier
//
// The chains meet as the row order combines them: lane l of 32 takes chains 4l to 4l+3. They go through shared memory
// once more, and each warp combines all 128 for itself, so that nothing needs to be sent back.

constexpr int long_row_threads = 512, short_row_threads = row_chains;

// Four logits of a row of V, from v on. Past the end they are -inf: no maximum, and as an exponential 0, which changes
// no chain. (Where all that is there is -inf or NaN, it is NaN, as the row's sum then is.)
__device__ inline Quad logits_from(const float* row, int v, int V) {
  if (v + 4 <= V) return load_four(row + v);
  Quad q;
  for (int k = 0; k < 4; k++) q.v[k] = v + k < V ? row[v + k] : -INFINITY;
  return q;
}

// What a thread has of a row, `quads`, decides how many registers it may take, and so how many blocks are on a
// multiprocessor.
constexpr int cross_entropy_blocks(int threads, int quads) {
  return quads == 0 ? 2048 / threads : quads <= 8 ? 1024 / threads : 1;
}

// A row of which each thread keeps `quads`; 0: it is not kept.
// (Columns are ints, as targets are: half of the registers and of the integer arithmetic of a size_t, which is as much
// as the exponentials.)
template <class S, int threads, int quads>
__global__ void __launch_bounds__(threads, cross_entropy_blocks(threads, quads))
    cross_entropy_kernel(float* losses, S* dlogits, const float* logits, const int* targets, float dloss, size_t rows,
                         int V) {
  STATIC_SHARED(float, maxima, [threads / 32]);
  STATIC_SHARED(float, chains, [row_chains]);
  DYNAMIC_SHARED(float, exps);  // two chunks of them, then the next row: `quads` chunks, which end in -inf
  constexpr int chunk = 4 * threads;
  const int first = 4 * int(threadIdx.x), whole = V / 4 * 4;  // whole quads end there
  const size_t ld = padded_vocab(size_t(V));
  float* const next = exps + 2 * chunk;
  AsyncCopies copies;
  const auto fetch = [&](size_t row) {
    if (quads > 0 && row < rows)
      for (int v = first; v < V; v += chunk)
        copies.copy16(next + v, logits + row * ld + v, sizeof(float) * unsigned(V - v < 4 ? V - v : 4));
    copies.commit();
  };
  for (int q = 0; q < quads; q++)
    if (q * chunk + first >= V) store_four(next + q * chunk + first, {{-INFINITY, -INFINITY, -INFINITY, -INFINITY}});
  fetch(blockIdx.x);

  for (size_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const float* const l = logits + row * ld;
    Quad own[quads > 0 ? quads : 1];
    // f(a quad of this thread's, its first column): every thread takes as many, past the row's end too.
    const auto each_quad = [&](auto f) {
#pragma unroll
      for (int q = 0; q < quads; q++) {
        if (q * chunk >= V) return;
        f(own[q], q * chunk + first);
      }
      if (quads == 0)
        for (int begin = 0; begin < V; begin += chunk) f(logits_from(l, begin + first, V), begin + first);
    };

    // A thread takes what it has copied itself, and meets nobody. When it has taken all, it asks for the next row's in
    // their place: a copy writes after it was asked for, never before.
    copies.template wait<0>();
    if (quads > 0 && first == whole % chunk)
      for (int v = V; v % 4 != 0; v++) next[v] = -INFINITY;
#pragma unroll
    for (int q = 0; q < quads; q++) own[q] = load_four(next + q * chunk + first);
    fetch(row + gridDim.x);

    const int target = targets[row];
    const bool known = target_is_known(target, size_t(V));
    const float at_target = l[known ? target : 0];  // before the barriers: gradients may go over the logits
    float max = -INFINITY;
    each_quad([&](const Quad& q, int) {
      for (int k = 0; k < 4; k++) max = max_of(q.v[k], max);
    });
    max = warp_max(max);
    if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = max;
    __syncthreads();  // the maxima are there
    max = warp_max(maxima[threadIdx.x % 32 % (threads / 32)]);

    float chain = 0.0f, *made = exps;
    each_quad([&](Quad q, int) {
      for (int k = 0; k < 4; k++) q.v[k] = exp_to_40(q.v[k] - max);
      store_four(made + first, q);
      __syncthreads();
      if (threadIdx.x < row_chains)
        for (int i = int(threadIdx.x); i < chunk; i += int(row_chains)) chain += made[i];
      made = made == exps ? exps + chunk : exps;
    });
    if (threadIdx.x < row_chains) chains[threadIdx.x] = chain;
    __syncthreads();  // all 128 are there, and both chunks are added
    const float lse = log_sum_exp(max, warp_chains_sum(load_four(chains + first % int(row_chains)).v), known);
    if (threadIdx.x == 0) losses[row] = lse - at_target;

    if (!dlogits) continue;
    S* const to = dlogits + row * ld;
    // What is left behind the whole quads of a row is at most three logits; the target's gradient comes last.
    each_quad([&](Quad q, int v) {
      for (int k = 0; k < 4; k++) q.v[k] = dlogit(q.v[k], lse, 0.0f, dloss);
      if (v < whole) store_four(to + v, q);
    });
    if (first == whole % chunk)
      for (int v = whole; v < V; v++) to[v] = S(dlogit(l[v], lse, 0.0f, dloss));
    if (known && first == target % chunk / 4 * 4) to[target] = S(dlogit(at_target, lse, 1.0f, dloss));
  }
}

// ---- launchers

void cross_entropy(float* losses, Reals dlogits, const float* logits, const int* targets, float dloss, size_t rows,
                   size_t V, Context& ctx) {
  with_storage(dlogits, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu) return cross_entropy_cpu(losses, dlogits.as<S>(), logits, targets, dloss, rows, V);
    // False where threads with so many quads do not keep a row, or shared memory has no room for the next one. 25 quads
    // are 100 of the 128 registers that a thread may have. With fewer more blocks are on a multiprocessor, or there is
    // room on an A100.
    const auto run = [&]<int threads, int quads>() {
      constexpr size_t chunk = 4 * threads, dynamic = (2 + quads) * chunk * sizeof(float);
      constexpr size_t fixed = (threads / 32 + row_chains) * sizeof(float);
      if (quads > 0 && (V > quads * chunk || fixed + dynamic > shared_limit())) return false;
      const auto kernel = cross_entropy_kernel<S, threads, quads>;
      launch(kernel, grid_of(std::min(rows, blocks_at_once(kernel, threads, dynamic))), threads, dynamic, ctx, losses,
             dlogits.as<S>(), logits, targets, dloss, rows, int(V));
      return true;
    };
    (void)(run.template operator()<short_row_threads, 8>() || run.template operator()<long_row_threads, 8>() ||
           run.template operator()<long_row_threads, 16>() || run.template operator()<long_row_threads, 25>() ||
           run.template operator()<long_row_threads, 0>());
  });
}

size_t linear_cross_entropy_chunk_rows(size_t N, size_t V, Storage storage) {
  constexpr size_t floats = size_t{16} << 20;
  const size_t slice = weight_gradient_slice(storage), slices = floats / (V * slice);
  return std::min(std::max<size_t>(slices, 1) * slice, N);
}

size_t linear_cross_entropy_scratch(size_t N, size_t C, size_t V, size_t chunk_rows, Storage storage, Device device) {
  const size_t rows = std::min(chunk_rows, N), slice = std::min(rows, weight_gradient_slice(storage));
  const auto of_product = [&](size_t M, size_t N, size_t K, Layout layout, Accumulate accumulate) {
    return matmul_stored_scratch(M, N, K, layout, accumulate, storage, device);
  };
  return std::max({of_product(rows, V, C, Layout::nt, Accumulate::no),
                   of_product(rows, C, V, Layout::nn, Accumulate::no),
                   of_product(V, C, slice, Layout::tn, Accumulate::yes)});
}

size_t linear_cross_entropy_cpu_workspace(size_t N, size_t C, size_t V, size_t chunk_rows) {
  const size_t rows = std::min(chunk_rows, N), slice = std::min(rows, matmul_slice);
  return std::max({matmul_cpu_workspace(rows, V, C, Accumulate::no), matmul_cpu_workspace(rows, C, V, Accumulate::no),
                   matmul_cpu_workspace(V, C, slice, Accumulate::yes)});
}

void linear_cross_entropy(float* losses, Reals dh, float* dweight, float* logits, bf16* dlogits, ConstReals h,
                          const float* weight, const bf16* weight_copy, const int* targets, float dloss, size_t N,
                          size_t C, size_t V, size_t chunk_rows, Context& ctx) {
  require(V > 0 && C > 0, "linear_cross_entropy: V is %zu and C is %zu, expected more than 0", V, C);
  require(V <= size_t{1} << 30, "linear_cross_entropy: V is %zu, expected at most 2^30: kernels count with ints", V);
  const size_t whole_slice = weight_gradient_slice(h.storage());
  require(chunk_rows >= N || (chunk_rows > 0 && chunk_rows % whole_slice == 0),
          "linear_cross_entropy: chunks of %zu rows, expected a multiple of %zu or at least all %zu", chunk_rows,
          whole_slice, N);
  const bool of_bf16 = h.storage() == Storage::bf16, gradient = dh || dweight;
  require(!of_bf16 || (weight_copy && (dlogits || !gradient)),
          "linear_cross_entropy: h is bf16, expected a bf16 copy of the weight and memory for dlogits");
  const ConstReals w = of_bf16 ? ConstReals(weight_copy) : ConstReals(weight);
  const Reals dl = of_bf16 ? Reals(dlogits) : Reals(logits);
  // Of the operands it is the first, of logits or their gradients, whose rows are padded.
  const auto product = [&](StoredMatrix<void> out, ConstReals a, size_t lda, ConstReals b, size_t M, size_t N, size_t K,
                           Layout layout, Accumulate accumulate) {
    matmul_stored(out, {a, lda}, {b, C}, M, N, K, layout, accumulate, ctx);
  };
  const size_t ld = padded_vocab(V);
  for (size_t begin = 0; begin < N; begin += chunk_rows) {
    const size_t rows = std::min(chunk_rows, N - begin);
    const ConstReals x = h + begin * C;
    product({logits, ld}, x, C, w, rows, V, C, Layout::nt, Accumulate::no);
    cross_entropy(losses + begin, gradient ? dl : Reals(), logits, targets + begin, dloss, rows, V, ctx);
    if (dh) product({dh + begin * C, C}, dl, ld, w, rows, C, V, Layout::nn, Accumulate::no);
    for (size_t n = 0; dweight && n < rows; n += whole_slice) {
      const size_t slice = std::min(whole_slice, rows - n);
      product({dweight, C}, dl + n * ld, ld, x + n * C, V, C, slice, Layout::tn, Accumulate::yes);
    }
  }
}

void linear_cross_entropy_losses(float* losses, float* logits, ConstReals h, const float* weight,
                                 const bf16* weight_copy, const int* targets, size_t N, size_t C, size_t V,
                                 size_t chunk_rows, Context& ctx) {
  constexpr float dloss = 0;  // which only gradients read
  linear_cross_entropy(losses, nullptr, nullptr, logits, nullptr, h, weight, weight_copy, targets, dloss, N, C, V,
                       chunk_rows, ctx);
}

}  // namespace gated
