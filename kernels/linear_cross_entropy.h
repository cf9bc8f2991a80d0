// linear_cross_entropy: the output matmul and the cross-entropy over it, without the (N,V) logits in memory. What it
// computes, and how: kernels/linear_cross_entropy.cu
#pragma once
#include "core/context.cuh"
#include "core/storage.h"
#include "kernels/matmul.h"

namespace gated {

// Numbers from row to row of logits, and of their gradients, in memory. With whole cache lines every row begins on a
// 16-byte boundary, whatever V is (GPT-2's is 50257). What lies past the V logits of a row is neither read nor written.
constexpr size_t padded_vocab(size_t V) {
  return round_up(V, 128);
}

// Rows of a chunk: as many whole slices of dW's sum (1024 rows, with bf16 4096) as fit 64 MiB of logits, at least one,
// or all N when they are fewer. With bf16 and 50,257 logits that is 1.24 GB, of logits and of their gradients.
size_t linear_cross_entropy_chunk_rows(size_t N, size_t V, Storage storage);

// losses (N) of h W^T, with dh (N,C) written and dweight (V,C) accumulated; either of them may be null.
//   logits       room for (min(chunk_rows,N), padded_vocab(V)), overwritten
//   dlogits      the same in bf16, where h is bf16 and a gradient is asked for; null where h is floats, whose dlogits
//                take the place of the logits
//   h (N,C), weight (V,C), targets (N); one outside [0,V) gives a NaN loss and NaN gradients
//   weight_copy  weight, rounded, where h is bf16, which is multiplied with bf16; else null
//   dloss        the gradient of every row's loss: 1/N for their mean
// chunk_rows: how many rows go through at a time, a multiple of a slice or at least N. It does not change a bit.
void linear_cross_entropy(float* losses, Reals dh, float* dweight, float* logits, bf16* dlogits, ConstReals h,
                          const float* weight, const bf16* weight_copy, const int* targets, float dloss, size_t N,
                          size_t C, size_t V, size_t chunk_rows, Context& ctx);
// The losses alone, by the same arithmetic.
void linear_cross_entropy_losses(float* losses, float* logits, ConstReals h, const float* weight,
                                 const bf16* weight_copy, const int* targets, size_t N, size_t C, size_t V,
                                 size_t chunk_rows, Context& ctx);
// Bytes of scratch that suffice on a device for N rows, or fewer, of an h that is stored so; and what a thread of a CPU
// takes and keeps, as matmul_cpu_workspace(), for one of floats.
size_t linear_cross_entropy_scratch(size_t N, size_t C, size_t V, size_t chunk_rows, Storage storage, Device device);
size_t linear_cross_entropy_cpu_workspace(size_t N, size_t C, size_t V, size_t chunk_rows);

// The cross-entropy of rows whose logits are there. dlogits are written, or null, or the logits themselves; both are
// (rows, padded_vocab(V)).
void cross_entropy(float* losses, Reals dlogits, const float* logits, const int* targets, float dloss, size_t rows,
                   size_t V, Context& ctx);
template <class S>
void cross_entropy_cpu(float* losses, S* dlogits, const float* logits, const int* targets, float dloss, size_t rows,
                       size_t V);

// The references keep all logits, in rows without padding: (rows,V) and (N,V). With `gradient`, dlogits are written
// over them.
template <class T>
void cross_entropy_ref(T* losses, T* logits, const int* targets, T dloss, bool gradient, size_t rows, size_t V);
template <class T>
void linear_cross_entropy_ref(T* losses, T* dh, T* dweight, T* logits, const T* h, const T* weight, const int* targets,
                              T dloss, size_t N, size_t C, size_t V);

}  // namespace gated
