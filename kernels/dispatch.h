// dispatch: the tokens of a batch, sorted by expert. What it computes, and how: kernels/dispatch.cu
#pragma once
#include "core/context.cuh"
#include "core/storage.h"
#include "kernels/matmul.h"

namespace gated {

constexpr size_t dispatch_experts_most = 12288;  // as many counters as 48 KiB of shared memory hold

// N tokens, E experts, k experts of a token. Slot n*k + j is the j-th choice of token n. There are at most 2^31 - 1
// slots and dispatch_experts_most experts.
struct DispatchShape {
  size_t N, E, k;
  size_t M() const { return N * k; }  // slots, and as many rows
};

// The slots sorted by expert, and among those of one expert in ascending order, are the rows. All of it is on the
// device.
struct Dispatch {
  int* row_start;    // (E+1)  expert e owns the rows row_start[e] to row_start[e+1] - 1
  int* row_of_slot;  // (M)
};

// d is written. expert (N,k): the expert of every slot, each in [0,E).
void dispatch_sort(const Dispatch& d, const int* expert, const DispatchShape& s, Context& ctx);
// Bytes of scratch that it takes.
size_t dispatch_sort_scratch(const DispatchShape& s);

// counts (E): how many rows every expert has. Written where `first`, else added to what stands there: the counts of a
// slice of a step are those of its batches together.
void dispatch_count(size_t* counts, const int* row_start, bool first, size_t E, Context& ctx);

// rows (M,C) is written: row r = x (N,C) of its token.
void dispatch_gather(Reals rows, ConstReals x, const Dispatch& d, const DispatchShape& s, size_t C, Context& ctx);
// dx (N,C) of a token = (or +=) the sum of its k rows of drows (M,C), in slot order.
void dispatch_gather_backward(Reals dx, Accumulate accumulate, ConstReals drows, const Dispatch& d,
                              const DispatchShape& s, size_t C, Context& ctx);

// Refuses a shape that the numbers of rows and slots cannot hold.
void require_dispatch(const char* operation, const DispatchShape& s);

void dispatch_sort_ref(const Dispatch& d, const int* expert, const DispatchShape& s);
void dispatch_count_ref(size_t* counts, const int* row_start, bool first, size_t E);
template <class T>
void dispatch_gather_ref(T* rows, const T* x, const Dispatch& d, const DispatchShape& s, size_t C);
template <class T>
void dispatch_gather_backward_ref(T* dx, Accumulate accumulate, const T* drows, const Dispatch& d,
                                  const DispatchShape& s, size_t C);

// Twins for training on the CPU: kernels/cpu/dispatch_cpu.cpp
template <class S>
void dispatch_gather_cpu(S* rows, const S* x, const Dispatch& d, const DispatchShape& s, size_t C);
template <class S>
void dispatch_gather_backward_cpu(S* dx, Accumulate accumulate, const S* drows, const Dispatch& d,
                                  const DispatchShape& s, size_t C);

}  // namespace gated
