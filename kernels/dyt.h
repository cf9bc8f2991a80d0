// dyt: DyT, and DyT after a residual branch. What it computes, and how: kernels/dyt.cu
#pragma once
#include "kernels/residual.h"

namespace gated {

// y and, where there is a branch, sum are written.
template <class T>
struct DytOutputsOf {
  PointerTo<T> y;              // (N,C)
  PointerTo<T> sum = nullptr;  // (N,C)

  template <class S>
  DytOutputsOf<S> as() const {
    return {y.template as<S>(), sum.template as<S>()};
  }
};
using DytOutputs = DytOutputsOf<void>;

// dx and, where it is not null, dbranch are written (kernels/residual.h); dalpha, dw and db are accumulated.
template <class T>
struct DytGradientsOf {
  PointerTo<T> dx;                 // (N,C); may be dresidual or dy
  PointerTo<T> dbranch = nullptr;  // (N,C)
  Wide<T>* dalpha;                 // (1)
  Wide<T>* dw;                     // (C)
  Wide<T>* db;                     // (C)
  Wide<T>* row_sums = nullptr;     // (N): scratch

  template <class S>
  DytGradientsOf<S> as() const {
    return {dx.template as<S>(), dbranch.template as<S>(), dalpha, dw, db, row_sums};
  }
};
using DytGradients = DytGradientsOf<void>;

// y = w*tanh(alpha*x) + b, x = in.x or its join with a branch; alpha (1); w, b (C).
void dyt_forward(const DytOutputs& out, const ResidualIn& in, const float* alpha, const float* w, const float* b,
                 size_t N, size_t C, Context& ctx);
void dyt_backward(const DytGradients& out, ConstReals dy, const ResidualBackwardIn& in, const float* alpha,
                  const float* w, size_t N, size_t C, Context& ctx);
// Bytes of scratch that a backward takes beside row_sums.
size_t dyt_backward_scratch(size_t N, size_t C);

// ---- references: plain, and with a branch (out.row_sums is not used)

template <class T>
void dyt_forward_ref(T* y, const T* x, const T* alpha, const T* w, const T* b, size_t N, size_t C);
template <class T>
void dyt_backward_ref(T* dx, T* dalpha, T* dw, T* db, const T* dy, const T* x, const T* alpha, const T* w, size_t N,
                      size_t C);
template <class T>
void dyt_general_forward_ref(const DytOutputsOf<T>& out, const ResidualInOf<T>& in, const T* alpha, const T* w,
                             const T* b, size_t N, size_t C);
template <class T>
void dyt_general_backward_ref(const DytGradientsOf<T>& out, const T* dy, const ResidualBackwardInOf<T>& in,
                              const T* alpha, const T* w, size_t N, size_t C);

// ---- the CPU's twin: kernels/cpu/dyt_cpu.cpp

template <class S>
void dyt_forward_cpu(const DytOutputsOf<S>& out, const ResidualInOf<S>& in, const float* alpha, const float* w,
                     const float* b, size_t N, size_t C);
// dx, dbranch and row_sums, and dw and db are accumulated, in one pass; dx may be dy. False, and nothing is done, where
// a thread has too few rows for it.
template <class S>
bool dyt_backward_slices_cpu(const DytGradientsOf<S>& out, const S* dy, const ResidualBackwardInOf<S>& in,
                             const float* alpha, const float* w, size_t N, size_t C);
// dx, dbranch and row_sums.
template <class S>
void dyt_backward_rows_cpu(const DytGradientsOf<S>& out, const S* dy, const ResidualBackwardInOf<S>& in,
                           const float* alpha, const float* w, size_t N, size_t C);

}  // namespace gated
