// router: which experts a token goes to, and with what weights. What it computes, and how: kernels/router.cu
#pragma once
#include "core/context.cuh"
#include "core/storage.h"

namespace gated {

// N tokens, E experts, k of them for every token, 1 <= k <= E. renormalise: the k weights of a token add up to 1.
struct RouterShape {
  size_t N, E, k;
  bool renormalise;
};

// All are written by the forward, and the backward reads them again.
template <class T>
struct RouterOutOf {
  T* p;         // (N,E)  softmax of the logits
  T* lse;       // (N)    log of the sum of exp
  int* expert;  // (N,k)  the k largest p, descending; of equal ones the lower expert comes first
  T* weight;    // (N,k)  their p; with renormalise divided by their sum
};
using RouterOut = RouterOutOf<float>;

// logits (N,E). A row with a NaN or +inf, or of -inf alone, has NaN for p, lse and weight, and the experts 0 to k-1: an
// expert's number is in [0,E) whatever the logits are. An expert at -inf has p = 0, as has one whose p underflows:
// among these the lower comes first.
void router_forward(const RouterOut& out, const float* logits, const RouterShape& s, Context& ctx);

// Two losses of the router itself. counts (E), on the device: how many slots went to every expert, in this batch or in
// all of the slice so far; f_e = counts_e / (their sum) is a constant to the gradient.
//   balance * E * (sum over e of f_e * mean over n of p_ne)     counts may be null where balance is 0
//   z * (mean over n of lse_n^2)
template <class T>
struct RouterLossesOf {
  T balance = 0, z = 0;
  const size_t* counts = nullptr;
};
using RouterLosses = RouterLossesOf<float>;

// dlogits (N,E) is written: through the weights, whose gradient is dweight (N,k), and from both losses. It may be bf16,
// as the product with the rows of x wants it where these are: computed in floats, and rounded once, at the end. All
// else is fp32 whatever the storage of activations: logits, p, weights and losses choose and balance, and are few.
void router_backward(Reals dlogits, const float* dweight, const RouterOut& saved, const RouterLosses& losses,
                     const RouterShape& s, Context& ctx);
// Bytes of scratch that it takes, by the storage of dlogits.
size_t router_backward_scratch(const RouterShape& s, Storage storage);

// What a batch's routing was like, in router_report_values floats on the device:
//   0  the balance loss without its factor: E * sum over e of f_e * mean over n of p_ne. 1 where all f_e are equal
//   1  the z-loss without its factor: mean over n of lse_n^2
//   2  the share f_e of the busiest expert
//   3  the entropy of the shares in nats: ln E where all are equal, 0 where one expert has everything
//   4  how many experts have a count of 0
// p and lse are of the batch, counts as above. N = 0 is refused; counts that are all 0 give NaN.
constexpr size_t router_report_values = 5;
void router_report(float* report, const float* p, const float* lse, const size_t* counts, const RouterShape& s,
                   Context& ctx);
size_t router_report_scratch(const RouterShape& s);

template <class T>
void router_forward_ref(const RouterOutOf<T>& out, const T* logits, const RouterShape& s);
template <class T>
void router_backward_ref(T* dlogits, const T* dweight, const RouterOutOf<T>& saved, const RouterLossesOf<T>& losses,
                         const RouterShape& s);
template <class T>
void router_report_ref(T* report, const T* p, const T* lse, const size_t* counts, const RouterShape& s);

// Twins for training on the CPU: kernels/cpu/router_cpu.cpp
void router_forward_cpu(const RouterOut& out, const float* logits, const RouterShape& s);
template <class S>
void router_backward_cpu(S* dlogits, const float* dweight, const RouterOut& saved, const RouterLosses& losses,
                         const RouterShape& s);
// sums (E+1) += over the tokens: of p, for every expert, and of lse^2.
void router_report_sums_cpu(float* sums, const float* p, const float* lse, const RouterShape& s);

}  // namespace gated
