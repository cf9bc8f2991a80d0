// linear_cross_entropy: the loss of a language model, from the last hidden states on
//
// 1. Softmax and cross-entropy of one row. Of the logits l (V) of a token, softmax makes probabilities p, and the loss
// is
//    -log of the target's:
//      p_v = e^l_v / sum over u of e^l_u        loss = -log p_target = lse - l_target,   lse = log(sum over u of e^l_u)
//    e^l overflows for l > 88, so the row's largest logit m is taken out first:  lse = m + log(sum over u of e^(l_u - m)).
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
// So
//    rows go in chunks through all of (2) and (1), into the same memory. Losses and dh do not know about chunks. Nor
//    does dW: its sum over tokens goes in slices of 1024 rows, each one chain from +0,
//      dW = ((dW + slice 0) + slice 1) + ...              one rounding each, ascending
//    and every chunk but the last is a whole number of slices. So any size of a chunk gives the same bits.
//
//    Cut Your Losses (Wijmans et al. 2024, arXiv 2411.09009) keeps no logits at all. A chunk of about a thousand rows
//    is of the size of W itself, and leaves the work to plain products.
//
// 4. With bf16. The three products multiply bf16 matrices (kernels/bf16/matmul_bf16.cu): h, a rounded copy of W, and
//    dlogits, which are rounded once as they are written, to memory of their own. Logits, which are sums, stay floats, as do losses
//    and dW, whose order is that of (3) but for the slice, which is that of every product of bf16 matrices, 4096 rows.
//    dh is rounded once, at the end.
//    A slice is a pass over dW, and a chunk is at least a slice. With 1024 rows dW of (50257,768) would be read and
//    written 32 times for 32,768 tokens, 9.9 GB; with 4096 rows it is 8 times, 2.5 GB, and a product of four times the
//    depth fills and drains its pipeline a quarter as often. At V 151,936 and C 2048 the passes over slices of 1024
//    would take an H100 as long as the arithmetic at its peak. The price is memory:
//    4096 rows of 50,304 floats and as many bf16 are 824 + 412 MB, where 1024 took 309 MB. In fp32, which is computed
//    for its bits and on CPUs, a slice stays matmul's.
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
#include "kernels/matmul.h"
#include "kernels/linear_cross_entropy.cuh"

namespace gated {

// Rows of one chain of dW: a slice is one product.
constexpr size_t weight_gradient_slice(Storage storage) {
  return storage == Storage::bf16 ? matmul_bf16_slice : matmul_slice;
}

// ---- reference
//
// log_sum_exp and dlogit are the formulas of (1), one line each in linear_cross_entropy.cuh. A target of ignored_target
// (-1) has loss 0 and gradient 0. Any other outside the vocabulary is not `known`, and log_sum_exp makes it NaN.

template <class T>
void cross_entropy_ref(T* losses, T* logits, const int* targets, T dloss, bool gradient, size_t rows, size_t V) {
  for (size_t row = 0; row < rows; row++) {
    T* l = logits + row * V;
    const int target = targets[row];
    if (target == ignored_target) {
      losses[row] = T(0);
      for (size_t v = 0; gradient && v < V; v++) l[v] = T(0);
      continue;
    }
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

// ---- kernel: a block of 128 threads takes one row after another
//
// A row is too long for one warp: 50,257 logits are 200 kB. So the 128 chains of the row order belong to 128 threads,
// chain j to thread j. Maximum, sum and gradient each go through the whole row.
//
// So that memory is read once, the block copies the row to shared memory first. 227 KiB hold 57,984 logits on an H100,
// 163 KiB hold 41,600 on an A100. A longer row is not `kept`: it stays where it is, and is read three times.
//
// Only one long row fits a multiprocessor, and the memory bus would idle while the block computes. So a thread fetches
// early: once it has read four logits for the last time, it starts a copy (cp.async) of the next row's four into their
// place. The copy lands during the gradient.
//
//     thread 0      | next row | next row |  on the way | gradient -> | this row | this row |
//                     v = 0      512         1024         1536          2048       2560
//
// For maximum and gradient, where no order matters, a thread takes quads (kernels/activation.cu): in a step
// the block covers 512 logits. These are the quads that it fetches, so it waits for nobody else's before the maximum.
// For the sum, thread j takes the elements j, j + 128, j + 256, ...: neighbouring threads still read neighbouring
// floats.
//
// The chains meet as the row order combines them: lane l of 32 needs chains 4l to 4l+3, which four threads hold. They
// go through shared memory, and each of the four warps then combines all 128 for itself, so that every thread has the
// result and nothing needs to be sent back.

// Every thread brings the value of its chain and gets the four of its lane.
__device__ inline Quad exchange_chains(float* shared, float chain) {
  __syncthreads();  // everybody has read what the last exchange left, and, for the caller, the row
  shared[threadIdx.x] = chain;
  __syncthreads();  // all 128 are there
  return load_quad<true>(shared, 4 * (threadIdx.x % 32), row_chains);
}

template <class S>
__global__ void __launch_bounds__(row_chains)
    cross_entropy_kernel(float* losses, S* dlogits, const float* logits, const int* targets, float dloss, size_t rows,
                         size_t V, bool kept) {
  STATIC_SHARED(float, chains, [row_chains]);
  DYNAMIC_SHARED(float, kept_row);
  const size_t first = 4 * threadIdx.x, step = 4 * row_chains, ld = padded_vocab(V);
  AsyncCopies copies;
  const auto fetch = [&](size_t row, size_t v) {
    if (kept && row < rows) copies.copy16(kept_row + v, logits + row * ld + v, v + 4 <= V ? 16 : unsigned(V - v) * 4);
  };
  for (size_t v = first; v < V; v += step) fetch(blockIdx.x, v);

  for (size_t row = blockIdx.x; row < rows; row += gridDim.x) {
    copies.commit();
    copies.template wait<0>();
    const float* l = kept ? kept_row : logits + row * ld;
    const int target = targets[row];
    const bool counted = target != ignored_target;  // the same for the whole block, which meets at barriers
    float lse = 0.0f;
    if (counted) {
      float max = -INFINITY;
      for (size_t v = first; v < V; v += step) {
        const Quad q = load_quad_inside(l, v, V, true);
        for (int k = 0; k < 4; k++)
          if (v + k < V) max = max_of(q.v[k], max);
      }
      const Quad maxima = exchange_chains(chains, max);  // its barriers: all have waited for what they fetched
      max = warp_max(max_of(max_of(maxima.v[0], maxima.v[1]), max_of(maxima.v[2], maxima.v[3])));

      const bool known = target_is_known(target, V);
      const float at_target = l[known ? target : 0];
      float sum = 0.0f;
      for (size_t v = threadIdx.x; v < V; v += row_chains) sum += exact_exp(l[v] - max);
      const Quad sums = exchange_chains(chains, sum);
      sum = warp_chains_sum(sums.v);
      lse = log_sum_exp(max, sum, known);
      if (threadIdx.x == 0) losses[row] = lse - at_target;
    } else if (threadIdx.x == 0) {
      losses[row] = 0.0f;
    }

    // The gradients may go over the logits, and the next row over this one. No thread reads another's quads any more:
    // the barriers of the second exchange came after the last such read. (In a row that is not counted no thread reads
    // any.) Its own quad a thread has read when it asks for the next row's: a copy writes after it was asked for, never
    // before, and the asm keeps its place behind the read.
    for (size_t v = first; v < V; v += step) {
      if (dlogits) {
        Quad d = {};
        if (counted) {
          d = load_quad_inside(l, v, V, true);
          for (int k = 0; k < 4; k++) d.v[k] = dlogit(d.v[k], lse, v + k == size_t(target) ? 1.0f : 0.0f, dloss);
        }
        store_quad_inside(dlogits + row * ld, v, V, d, true);
      }
      fetch(row + gridDim.x, v);
    }
  }
}

// ---- launchers

void cross_entropy(float* losses, Reals dlogits, const float* logits, const int* targets, float dloss, size_t rows,
                   size_t V, Context& ctx) {
  with_storage(dlogits, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu) return cross_entropy_cpu(losses, dlogits.as<S>(), logits, targets, dloss, rows, V);
    const size_t row_bytes = padded_vocab(V) * sizeof(float), chains_bytes = row_chains * sizeof(float);
    const bool kept = row_bytes + chains_bytes <= shared_limit();
    const size_t shared_bytes = kept ? row_bytes : 0;
    const size_t at_once = blocks_at_once(cross_entropy_kernel<S>, row_chains, shared_bytes);
    launch(cross_entropy_kernel<S>, grid_of(std::min(rows, at_once)), row_chains, shared_bytes, ctx, losses,
           dlogits.as<S>(), logits, targets, dloss, rows, V, kept);
  });
}

size_t linear_cross_entropy_chunk_rows(size_t N, size_t V, Storage storage) {
  constexpr size_t floats = size_t{16} << 20;
  const size_t slice = weight_gradient_slice(storage), slices = floats / (V * slice);
  return std::min(std::max<size_t>(slices, 1) * slice, N);
}

size_t linear_cross_entropy_scratch(size_t N, size_t C, size_t V, size_t chunk_rows, Storage storage, Device device) {
  const auto of_product = [&](size_t M, size_t N, size_t K, Layout layout, Accumulate accumulate) {
    return matmul_stored_scratch(M, N, K, layout, accumulate, storage, device);
  };
  size_t most = 0;
  for (size_t rows : {std::min(chunk_rows, N), chunk_rows ? N % chunk_rows : 0}) {  // of every chunk, and of the last
    most = std::max(most, of_product(rows, V, C, Layout::nt, Accumulate::no));
    most = std::max(most, of_product(rows, C, V, Layout::nn, Accumulate::no));
    const size_t slice = std::min(rows, weight_gradient_slice(storage));
    most = std::max(most, of_product(V, C, slice, Layout::tn, Accumulate::yes));
  }
  return most;
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
