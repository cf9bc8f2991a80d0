// quantize: x -> x^, the nearest number that a product in 8 or 4 bits can hold
//   Hardware multiplies small integers of a few bits and applies scales. Here every number is rounded to what those
//   bits and scales stand for and written as a float ("fake quantization"); the exact product of kernels/matmul.cu then
//   has the error of the format and no other.
//     E4M3   sign, 4 bits of exponent, 3 of mantissa: multiples of 2^-9 up to 2^-6, then 8 numbers to a power of two,
//            to 448
//     E2M1   sign, 2 bits of exponent, 1 of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4, 6
//   Both round to the nearest, ties to the even one, and stop at their largest number.
//
//   --quantize=fp8-w8a8     s = amax/448, x^ = E4M3(x/s)*s
//                           weights: amax over blocks of 128 rows x 128 columns; activations: over each row, a token
//   --quantize=nvfp4-w4a4   S = 448*6/amax, s = E4M3(amax_b*S/6), x^ = E2M1(x*S/s)*s/S
//                           amax_b over blocks of 16 along a row, which are what a product sums over; amax over a
//                           weight's whole matrix, or over each row of activations
//   amax is the largest |x|. Blocks at the edge are smaller. S maps the largest number to 448*6, so that the largest
//   block has the largest s; s maps the largest of a block to 6.              (NVFP4: arXiv 2509.25149)
// at the ends: a block of zeros stays zero, and so does one whose s rounds to 0, which is so small beside amax that
//   nothing of it is left. S stops at the largest float, for amax below 1e-35, and of an amax below 1e-41 nothing is
//   left. amax passes a NaN over, and the NaN stays where it is. An infinity has no scale: it makes NaN of all numbers
//   that share one with it.
// order: a maximum has none; everything else is one operation after the other, as written, each rounded
// backward: none; this is for evaluation
// shapes: x, y (N,C); w, y (matrices,rows,columns) f32 | y is written and may be the input
// twins: kernels/cpu/quantize_cpu.cpp
// --quantize | tests/test_quantize.cpp
#include "kernels/quantize.cuh"

#include "core/launch_shape.cuh"
#include "core/reduce.cuh"

namespace gated {

// ---- reference

// With 2^e <= |x| < 2^(e+1) the numbers near x are 2^(e-mantissa) apart; below 2^lowest as far as just above it.
template <class T>
T nearest_ref(T x, int mantissa, int lowest, T largest) {
  if (std::isnan(x)) return x;
  const T magnitude = std::min(std::abs(x), largest);
  int exponent;  // of a number in [1/2,1)
  std::frexp(magnitude, &exponent);
  const T step = std::ldexp(T(1), std::max(exponent - 1, lowest) - mantissa);
  return std::copysign(std::nearbyint(magnitude / step) * step, x);
}

template <class T>
T e4m3_ref(T x) {
  return nearest_ref(x, 3, -6, T(448));
}
IN_FLOAT_AND_DOUBLE(e4m3_ref);

template <class T>
T e2m1_ref(T x) {
  return nearest_ref(x, 1, 0, T(6));
}
IN_FLOAT_AND_DOUBLE(e2m1_ref);

// Of a part of a matrix whose rows are `stride` apart.
template <class T>
T amax_ref(const T* x, size_t rows, size_t columns, size_t stride) {
  T amax = 0;
  for (size_t r = 0; r < rows; r++)
    for (size_t c = 0; c < columns; c++) amax = max_of(std::abs(x[r * stride + c]), amax);
  return amax;
}

template <class T>
void fp8_block_ref(T* y, const T* x, size_t rows, size_t columns, size_t stride) {
  const T scale = amax_ref(x, rows, columns, stride) / T(448);
  for (size_t r = 0; r < rows; r++)
    for (size_t c = 0; c < columns; c++) {
      const size_t i = r * stride + c;
      y[i] = (scale > 0 ? e4m3_ref(x[i] / scale) : x[i] * 0) * scale;
    }
}

template <class T>
void nvfp4_row_ref(T* y, const T* x, size_t columns, T amax) {
  const T S = std::min(T(448 * 6) / amax, T(FLT_MAX));
  for (size_t first = 0; first < columns; first += 16) {
    const size_t end = std::min(first + 16, columns);
    const T s = e4m3_ref(amax_ref(x + first, 1, end - first, columns) * S / 6);
    for (size_t c = first; c < end; c++) y[c] = (s > 0 ? e2m1_ref(x[c] * S / s) : x[c] * 0) * s / S;
  }
}

template <class T>
void quantize_rows_ref(T* y, const T* x, size_t N, size_t C, QuantizedFormat format) {
  for (size_t n = 0; n < N; n++) {
    if (format == QuantizedFormat::fp8)
      fp8_block_ref(y + n * C, x + n * C, 1, C, C);
    else
      nvfp4_row_ref(y + n * C, x + n * C, C, amax_ref(x + n * C, 1, C, C));
  }
}
IN_FLOAT_AND_DOUBLE(quantize_rows_ref);

template <class T>
void quantize_weight_ref(T* y, const T* w, const QuantizedWeight& shape, QuantizedFormat format) {
  const auto [matrices, rows, columns] = shape;
  for (size_t m = 0; m < matrices; m++, y += rows * columns, w += rows * columns) {
    if (format == QuantizedFormat::fp8) {
      for (size_t r = 0; r < rows; r += 128)
        for (size_t c = 0; c < columns; c += 128)
          fp8_block_ref(y + r * columns + c, w + r * columns + c, std::min<size_t>(128, rows - r),
                        std::min<size_t>(128, columns - c), columns);
    } else {
      const T amax = amax_ref(w, rows, columns, columns);
      for (size_t r = 0; r < rows; r++) nvfp4_row_ref(y + r * columns, w + r * columns, columns, amax);
    }
  }
}
IN_FLOAT_AND_DOUBLE(quantize_weight_ref);

// ---- kernels
//
// Activations: a warp owns a row, as in kernels/rmsnorm.cu. It reads the row once for amax, and again, out of a cache,
// to round it. A block of NVFP4 is 16 elements: the quads of four neighbouring lanes.
//
//   lane       0    1    2    3    4    5    6    7    8 ...
//   elements  0-3  4-7  ..       15   16 ..        31
//             |---- block 0 ----|----- block 1 -----|
//
// Two exchanges between lanes, 1 and 2 apart, give all four the largest of their block.
//
// Weights: an FP8 block of 128 x 128 is a block of threads, in which a warp owns every eighth row and a lane one quad
// of it. For NVFP4 a first kernel writes the amax of every row, the same kernel those of every matrix, as if these were
// rows, and the kernel for activations does the rest.
// A lane writes what it alone has read: y may be the input.

__device__ inline float quad_amax(const Quad& q) {
  float amax = 0.0f;
  for (int k = 0; k < 4; k++) amax = max_of(fabsf(q.v[k]), amax);
  return amax;
}

// Of a row, in every lane of the warp that owns it.
__device__ inline float row_amax(const float* x, size_t columns) {
  float amax = 0.0f;
  for (size_t i = 4 * (threadIdx.x % 32); i < columns; i += row_chains)
    amax = max_of(quad_amax(load_quad(x, i, columns)), amax);
  return warp_max(amax);
}

__global__ void __launch_bounds__(rows_block)
    row_amax_kernel(float* amax, const float* x, size_t rows, size_t columns) {
  const size_t row = warp_row();
  if (row >= rows) return;
  const float largest = row_amax(x + row * columns, columns);
  if (threadIdx.x % 32 == 0) amax[row] = largest;
}

__global__ void __launch_bounds__(rows_block)
    quantize_fp8_rows_kernel(float* y, const float* x, size_t rows, size_t columns) {
  const size_t row = warp_row();
  if (row >= rows) return;
  x += row * columns;
  y += row * columns;
  const float scale = fp8_scale(row_amax(x, columns));
  for (size_t i = 4 * (threadIdx.x % 32); i < columns; i += row_chains) {
    Quad q = load_quad(x, i, columns);
    for (int k = 0; k < 4; k++) q.v[k] = fp8_value(q.v[k], scale);
    store_quad(y, i, columns, q);
  }
}

__global__ void __launch_bounds__(rows_block)
    quantize_fp8_blocks_kernel(float* y, const float* w, size_t rows, size_t columns) {
  STATIC_SHARED(float, warp_amax, [warps_per_block]);
  const size_t across = ceil_div(columns, fp8_side), down = ceil_div(rows, fp8_side);
  const size_t block = blockIdx.x % (across * down), matrix = blockIdx.x / (across * down) * rows * columns;
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const size_t c = block % across * fp8_side + 4 * lane, first = block / across * fp8_side;
  const size_t end = c >= columns ? first : first + fp8_side < rows ? first + fp8_side : rows;
  w += matrix;
  y += matrix;
  float amax = 0.0f;
  for (size_t r = first + warp; r < end; r += warps_per_block)
    amax = max_of(quad_amax(load_quad(w + r * columns, c, columns)), amax);
  amax = warp_max(amax);
  if (lane == 0) warp_amax[warp] = amax;
  __syncthreads();  // warp_amax is whole
  for (unsigned k = 0; k < warps_per_block; k++) amax = max_of(warp_amax[k], amax);
  const float scale = fp8_scale(amax);
  for (size_t r = first + warp; r < end; r += warps_per_block) {
    Quad q = load_quad(w + r * columns, c, columns);
    for (int k = 0; k < 4; k++) q.v[k] = fp8_value(q.v[k], scale);
    store_quad(y + r * columns, c, columns, q);
  }
}

// amax: that of every `sharing` rows; null where each row has its own, which the warp then finds itself.
__global__ void __launch_bounds__(rows_block)
    quantize_nvfp4_kernel(float* y, const float* x, const float* amax, size_t sharing, size_t rows, size_t columns) {
  const size_t row = warp_row();
  if (row >= rows) return;
  x += row * columns;
  y += row * columns;
  const float S = nvfp4_shared_scale(amax ? amax[row / sharing] : row_amax(x, columns));
  for (size_t first = 0; first < columns; first += row_chains) {
    const size_t i = first + 4 * (threadIdx.x % 32);
    Quad q = {};  // a lane past the end takes part in the exchanges
    if (i < columns) q = load_quad(x, i, columns);
    float largest = quad_amax(q);
    for (int apart = 1; apart <= 2; apart *= 2) largest = max_of(__shfl_xor_sync(0xffffffffu, largest, apart), largest);
    const float s = nvfp4_block_scale(largest, S);
    for (int k = 0; k < 4; k++) q.v[k] = nvfp4_value(q.v[k], S, s);
    if (i < columns) store_quad(y, i, columns, q);
  }
}

// ---- launchers

void quantize_rows(float* y, const float* x, size_t N, size_t C, QuantizedFormat format, Context& ctx) {
  if (ctx.device == Device::cpu) return quantize_rows_cpu(y, x, N, C, format);
  if (format == QuantizedFormat::fp8)
    launch(quantize_fp8_rows_kernel, rows_grid(N), rows_block, 0, ctx, y, x, N, C);
  else
    launch(quantize_nvfp4_kernel, rows_grid(N), rows_block, 0, ctx, y, x, nullptr, size_t{1}, N, C);
}

void quantize_weight(float* y, const float* w, float* scratch, const QuantizedWeight& shape, QuantizedFormat format,
                     Context& ctx) {
  if (ctx.device == Device::cpu) return quantize_weight_cpu(y, w, shape, format);
  const auto [matrices, rows, columns] = shape;
  const size_t all_rows = matrices * rows;
  if (format == QuantizedFormat::fp8) {
    const size_t blocks = matrices * ceil_div(rows, fp8_side) * ceil_div(columns, fp8_side);
    launch(quantize_fp8_blocks_kernel, grid_of(blocks), rows_block, 0, ctx, y, w, rows, columns);
    return;
  }
  float *row_amax = scratch, *matrix_amax = scratch + all_rows;
  launch(row_amax_kernel, rows_grid(all_rows), rows_block, 0, ctx, row_amax, w, all_rows, columns);
  launch(row_amax_kernel, rows_grid(matrices), rows_block, 0, ctx, matrix_amax, row_amax, matrices, rows);
  launch(quantize_nvfp4_kernel, rows_grid(all_rows), rows_block, 0, ctx, y, w, matrix_amax, rows, all_rows, columns);
}

size_t quantize_weight_scratch(const QuantizedWeight& shape) {
  return shape.matrices * (shape.rows + 1) * sizeof(float);
}

}  // namespace gated
