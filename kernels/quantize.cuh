// quantize: the formulas of kernels/quantize.cu as its kernels and the CPU's code use them.
#pragma once
#include "core/math.cuh"
#include "kernels/quantize.h"

namespace gated {

constexpr float e4m3_largest = 448, e2m1_largest = 6;
constexpr size_t fp8_side = 128, nvfp4_block = 16;

// The nearest number with `mantissa` bits after the point, in steps of 2^(lowest - mantissa) below 2^lowest; |x| above
// `largest` gives that. With 2^e <= |x| the numbers near x are steps of 2^(e - mantissa) apart. 2^(e - mantissa + 23)
// is a float whose neighbours are as far apart: added to |x| it rounds |x| to such a step, ties to even, and is then
// subtracted without a rounding. A NaN passes through both comparisons and both sums.
template <int mantissa, int lowest>
HD float nearest_of_format(float x, float largest) {
  constexpr float smallest_normal = 1.0f / float(1 << -lowest);
  const float magnitude = fabsf(x);
  const float held = magnitude > largest ? largest : magnitude;
  const float normal = held < smallest_normal ? smallest_normal : held;
  const float shift = bits_float((float_bits(normal) & 0x7f800000u) + (uint32_t(23 - mantissa) << 23));
  return copysignf((held + shift) - shift, x);
}
HD float e4m3(float x) {
  return nearest_of_format<3, -6>(x, e4m3_largest);
}
HD float e2m1(float x) {
  return nearest_of_format<1, 0>(x, e2m1_largest);
}

// x under the scale of its FP8 block. Where the scale is 0, so is every x that is a number.
HD float fp8_scale(float amax) {
  return amax / e4m3_largest;
}
HD float fp8_value(float x, float scale) {
  const float q = scale > 0.0f ? e4m3(x / scale) : x * 0.0f;
  return q * scale;
}

// x under the two scales of NVFP4: S, which the blocks of a tensor share, and s of its block.
HD float nvfp4_shared_scale(float amax) {
  const float S = e4m3_largest * e2m1_largest / amax;
  return S > FLT_MAX ? FLT_MAX : S;
}
HD float nvfp4_block_scale(float amax, float S) {
  return e4m3(amax * S / e2m1_largest);
}
HD float nvfp4_value(float x, float S, float s) {
  const float q = s > 0.0f ? e2m1(x * S / s) : x * 0.0f;
  return q * s / S;
}

}  // namespace gated
