// quantize: numbers as a product in 8 or 4 bits sees them. What it computes, and how: kernels/quantize.cu
#pragma once
#include "core/context.cuh"

namespace gated {

enum class QuantizedFormat { fp8, nvfp4 };

// A weight of linear layers: `matrices` of rows x columns, where a product sums over the columns.
struct QuantizedWeight {
  size_t matrices, rows, columns;
};

// y (N,C) is written: the activations x, every row rounded by itself. y may be x.
void quantize_rows(float* y, const float* x, size_t N, size_t C, QuantizedFormat format, Context& ctx);

// y (matrices,rows,columns) is written: the weights w, every matrix rounded by itself. y may be w.
// scratch: quantize_weight_scratch() bytes. It is the caller's, because weights are rounded once, outside any plan.
void quantize_weight(float* y, const float* w, float* scratch, const QuantizedWeight& shape, QuantizedFormat format,
                     Context& ctx);
size_t quantize_weight_scratch(const QuantizedWeight& shape);

// The nearest number of the format.
template <class T>
T e4m3_ref(T x);
template <class T>
T e2m1_ref(T x);
template <class T>
void quantize_rows_ref(T* y, const T* x, size_t N, size_t C, QuantizedFormat format);
template <class T>
void quantize_weight_ref(T* y, const T* w, const QuantizedWeight& shape, QuantizedFormat format);

// Their twins for the CPU: kernels/cpu/quantize_cpu.cpp
void quantize_rows_cpu(float* y, const float* x, size_t N, size_t C, QuantizedFormat format);
void quantize_weight_cpu(float* y, const float* w, const QuantizedWeight& shape, QuantizedFormat format);

}  // namespace gated
