// residual: where a branch joins the residual stream. What it computes, and how: kernels/residual.cu
#pragma once
#include "core/context.cuh"
#include "core/math.cuh"
#include "core/storage.h"

namespace gated {

// Each element of a branch is dropped with probability p before the branch joins.
struct Dropout {
  float p = 0;  // 0: off, and nothing below is read
  uint64_t seed = 0;
  // The Philox stream that is drawn from: a stream_of(Purpose::dropout, …), another in every forward. It lies on the
  // device, so that a launch which is repeated (core/graph.cuh) draws anew.
  const uint64_t* stream = nullptr;
};

// How a branch joins. By default it is added, and that is all.
struct Join {
  float clip_branch = INFINITY, clip_sum = INFINITY;
  Dropout dropout;

  // Nothing between the branch and the sum: it has the gradient of the sum.
  bool plain() const { return clip_branch == INFINITY && clip_sum == INFINITY && dropout.p == 0; }
};

// What a norm normalises: x, or the sum of x and a branch. Without a branch `join` does not count.
// PointerTo<T> points to an activation, float or bf16; with T = void it knows which, and as<S>() names it
// (core/storage.h).
template <class T>
struct ResidualInOf {
  // (N,C); null where there is a branch: it takes the place of x, and the sum is the branch alone
  PointerTo<const T> x;
  PointerTo<const T> branch = nullptr;  // (N,C)
  Join join = {};

  template <class S>
  ResidualInOf<S> as() const {
    return {x.template as<S>(), branch.template as<S>(), join};
  }
};
using ResidualIn = ResidualInOf<void>;

// What the backward of a norm reads beside dy. Every array is (N,C).
template <class T>
struct ResidualBackwardInOf {
  PointerTo<const T> x;  // what was normalised: the sum, where there was a branch
  // The gradient from what else read x; null: nothing did, as where a branch takes its place.
  PointerTo<const T> dresidual = nullptr;
  PointerTo<const T> branch = nullptr;  // as in the forward, and so is join
  Join join = {};

  // The bound of the sum is rounded with the sum: what was cut must be found to lie on it.
  template <class S>
  ResidualBackwardInOf<S> as() const {
    ResidualBackwardInOf<S> in = {x.template as<S>(), dresidual.template as<S>(), branch.template as<S>(), join};
    in.join.clip_sum = S(join.clip_sum);
    return in;
  }
};
using ResidualBackwardIn = ResidualBackwardInOf<void>;

// sum (N,C) is written: the join of in.x and in.branch, which is there.
void residual_forward(Reals sum, const ResidualIn& in, size_t N, size_t C, Context& ctx);

// dx and dbranch (N,C) are written: the gradients of x and of branch, where the sum has the gradient in.dresidual + dy.
// Where the branch took the place of x, x has no gradient: dx is then the gradient of the sum before its clip, from
// which dbranch is made.
// dy or in.dresidual may be null, but not both. dx may be the same array as dy or in.dresidual. dbranch null: the join
// was plain, and dx is both gradients; or there was no branch.
// in.x is read where the sum was clipped, in.branch where the branch was; elsewhere in.x may be null.
void residual_backward(Reals dx, Reals dbranch, ConstReals dy, const ResidualBackwardIn& in, size_t N, size_t C,
                       Context& ctx);

// ---- references

template <class T>
void residual_forward_ref(T* sum, const T* x, const T* branch, size_t N, size_t C);
template <class T>
void residual_backward_ref(T* dx, T* dbranch, const T* dsum, size_t N, size_t C);

// The general join. residual_join_backward_ref takes dy and in.dresidual as residual_backward does.
template <class T>
void residual_join_forward_ref(T* sum, const ResidualInOf<T>& in, size_t N, size_t C);
template <class T>
void residual_join_backward_ref(T* dx, T* dbranch, const T* dy, const ResidualBackwardInOf<T>& in, size_t N, size_t C);

// ---- the CPU's twin: kernels/cpu/residual_cpu.cpp

template <class S>
void residual_forward_cpu(S* sum, const ResidualInOf<S>& in, size_t N, size_t C);
template <class S>
void residual_backward_cpu(S* dx, S* dbranch, const S* dy, const ResidualBackwardInOf<S>& in, size_t N, size_t C);

}  // namespace gated
