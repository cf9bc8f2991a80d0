// embedding: every token becomes a row of a table. What it computes, and how: kernels/embedding.cu
#pragma once
#include <vector>

#include "core/context.cuh"
#include "core/storage.h"

namespace gated {

// What a model may do to a row that it looked up. All pointers are to device memory.
struct EmbeddingExtras {
  const float* scale = nullptr;      // one float: the row is multiplied by it,
  ConstReals positions = nullptr;    // (T,C): and then row n % T of this table is added to token n
  size_t T = 1;                      // tokens of a sequence
};

// h (N,C) is written: h[n] = weight[ids[n]], weight (V,C), ids (N). An id outside [0,V) makes its h a row of NaN.
// weight and positions are stored as h is.
void embedding_forward(Reals h, const int* ids, ConstReals weight, const EmbeddingExtras& extras, size_t N, size_t C,
                       size_t V, Context& ctx);

// The backward adds up the rows of so many tokens of one id at a time: a part of the result. kernels/embedding.cu
constexpr size_t embedding_piece = 1024;

// The tokens of a batch in groups of one id, of at most embedding_piece tokens: what the backward reads instead of ids.
class TokenGroups {
 public:
  TokenGroups() = default;
  // Memory, here and on the device, for batches of at most N tokens with ids below V.
  TokenGroups(size_t N, size_t V, Context& ctx);
  // Bytes of it on the device.
  static size_t bytes(size_t N, size_t V);

  // Groups a batch; ids (N) is in host memory. It allocates nothing and does not wait for the device: the lists go up
  // after what was launched before, so the last batch's backward still reads its own. Refuses an id outside [0,V).
  void build(const int* ids, size_t N, Context& ctx);

  // The groups that a batch of this size can have at most. How many there are only the device is told.
  size_t most_groups() const { return most_groups(tokens_, V_); }
  size_t tokens() const { return tokens_; }  // of that batch

  // On the device, each at one address for the life of this object: count (1) is the number of groups, id (count) whose
  // they are, start (count+1), token (N). Group g holds the tokens token[start[g]] to token[start[g+1] - 1]. The ids
  // ascend, and so do the tokens of an id. One with more than embedding_piece tokens has several groups, of which all
  // but the last are full.
  const int* count() const { return device_.data(); }
  const int* id() const { return count() + 1; }
  const int* start() const { return id() + capacity_; }
  const int* token() const { return start() + capacity_ + 1; }

 private:
  static size_t most_groups(size_t N, size_t V) { return N < V + N / embedding_piece ? N : V + N / embedding_piece; }
  size_t V_ = 0, most_tokens_ = 0, tokens_ = 0;
  size_t capacity_ = 0;             // groups that the largest batch can have
  std::vector<int> place_, lists_;  // of every id, for counting; the lists as the device has them
  Buffer<int> device_;
};

// dweight (V,C) += the sum of dh (N,C) over the tokens of every id, times *scale if there is one. groups: built from
// the ids of dh's tokens. scale may be null.
void embedding_backward(float* dweight, ConstReals dh, const TokenGroups& groups, const float* scale, size_t C,
                        Context& ctx);

// Bytes of scratch that it takes, of N tokens.
size_t embedding_backward_scratch(size_t N, size_t C);

// dpositions (T,C) += the sum of dh (B,T,C) over the sequences.
void embedding_positions_backward(float* dpositions, ConstReals dh, size_t B, size_t T, size_t C, Context& ctx);
// Bytes of scratch that it takes.
size_t embedding_positions_backward_scratch(size_t B, size_t T, size_t C);

// *dscale += the sum over n of the dot product dh[n].weight[ids[n]]. row_sums (N) is written: those products. weight is
// stored as dh is.
void embedding_scale_backward(float* dscale, float* row_sums, ConstReals dh, const int* ids, ConstReals weight,
                              size_t N, size_t C, size_t V, Context& ctx);
size_t embedding_scale_backward_scratch(size_t N);

// The forward with extras is the plain one, then scale, then positions.
template <class Real>
void embedding_forward_ref(Real* h, const int* ids, const Real* weight, size_t N, size_t C, size_t V);
template <class Real>
void embedding_scale_forward_ref(Real* h, const Real* scale, size_t N, size_t C);
template <class Real>
void embedding_positions_forward_ref(Real* h, const Real* positions, size_t N, size_t T, size_t C);
// The backward of the table, without and with a scale.
template <class Real>
void embedding_backward_ref(Real* dweight, const Real* dh, const int* ids, size_t N, size_t C, size_t V);
template <class Real>
void embedding_scaled_backward_ref(Real* dweight, const Real* dh, const int* ids, const Real* scale, size_t N, size_t C,
                                   size_t V);
template <class Real>
void embedding_positions_backward_ref(Real* dpositions, const Real* dh, size_t B, size_t T, size_t C);
template <class Real>
void embedding_scale_backward_ref(Real* dscale, const Real* dh, const int* ids, const Real* weight, size_t N, size_t C,
                                  size_t V);

// Twins for training on the CPU: kernels/cpu/embedding_cpu.cpp
template <class S>
void embedding_forward_cpu(S* h, const int* ids, const S* weight, const EmbeddingExtras& extras, size_t N, size_t C,
                           size_t V);
template <class S>
void embedding_backward_cpu(float* dweight, const S* dh, const TokenGroups& groups, const float* scale, size_t C);
template <class S>
void embedding_row_sums_cpu(float* row_sums, const S* dh, const int* ids, const S* weight, size_t N, size_t C,
                            size_t V);

}  // namespace gated
