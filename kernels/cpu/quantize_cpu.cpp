// quantize on CPU cores: the references of kernels/quantize.cu with rows and blocks shared out among threads, and the
// formulas of kernels/quantize.cuh in vectors.
// tests/test_quantize.cpp
#include <algorithm>
#include <vector>

#include "kernels/quantize.cuh"

namespace gated {

namespace {

// As integers the bits of |x| are in the order of the numbers, and their maximum may be found in any order, in vectors.
// NaNs are above infinity.
float amax_cpu(const float* x, size_t n) {
  uint32_t most = 0;
  for (size_t i = 0; i < n; i++) {
    const uint32_t bits = float_bits(fabsf(x[i]));
    most = std::max(most, bits > 0x7f800000u ? 0u : bits);
  }
  return bits_float(most);
}

void fp8_row_cpu(float* y, const float* x, size_t n, float scale) {
#pragma omp simd
  for (size_t i = 0; i < n; i++) y[i] = fp8_value(x[i], scale);
}

void nvfp4_row_cpu(float* y, const float* x, size_t columns, float amax) {
  const float S = nvfp4_shared_scale(amax);
  for (size_t first = 0; first < columns; first += nvfp4_block) {
    const size_t n = std::min(nvfp4_block, columns - first);
    const float s = nvfp4_block_scale(amax_cpu(x + first, n), S);
#pragma omp simd
    for (size_t i = 0; i < n; i++) y[first + i] = nvfp4_value(x[first + i], S, s);
  }
}

}  // namespace

void quantize_rows_cpu(float* y, const float* x, size_t N, size_t C, QuantizedFormat format) {
#pragma omp parallel for
  for (size_t n = 0; n < N; n++) {
    const float amax = amax_cpu(x + n * C, C);
    if (format == QuantizedFormat::fp8)
      fp8_row_cpu(y + n * C, x + n * C, C, fp8_scale(amax));
    else
      nvfp4_row_cpu(y + n * C, x + n * C, C, amax);
  }
}

void quantize_weight_cpu(float* y, const float* w, const QuantizedWeight& shape, QuantizedFormat format) {
  const size_t matrices = shape.matrices, rows = shape.rows, columns = shape.columns;
  if (format == QuantizedFormat::fp8) {
    const size_t across = ceil_div(columns, fp8_side), down = ceil_div(rows, fp8_side);
#pragma omp parallel for
    for (size_t block = 0; block < matrices * across * down; block++) {
      const size_t matrix = block / (across * down), first = block / across % down * fp8_side;
      const size_t c = block % across * fp8_side, n = std::min(fp8_side, columns - c);
      const size_t begin = matrix * rows + first, end = matrix * rows + std::min(first + fp8_side, rows);
      float amax = 0;
      for (size_t r = begin; r < end; r++) amax = std::max(amax, amax_cpu(w + r * columns + c, n));
      for (size_t r = begin; r < end; r++) fp8_row_cpu(y + r * columns + c, w + r * columns + c, n, fp8_scale(amax));
    }
    return;
  }
  std::vector<float> amax(matrices);
#pragma omp parallel for
  for (size_t m = 0; m < matrices; m++) amax[m] = amax_cpu(w + m * rows * columns, rows * columns);
#pragma omp parallel for
  for (size_t r = 0; r < matrices * rows; r++) nvfp4_row_cpu(y + r * columns, w + r * columns, columns, amax[r / rows]);
}

}  // namespace gated
