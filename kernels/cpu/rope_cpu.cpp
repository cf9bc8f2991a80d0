// rope_cpu: the rotation of kernels/rope.cu on all cores of a CPU.
//
// Threads take tokens, and the loop over a head's points runs in vector registers: x and y may be the same array, which
// keeps a compiler from seeing that by itself. Elements do not meet, so the bits are those of the references. One loop
// serves both directions: backward is the rotation by the opposite angle, and -(x * -s) is x * s.
// tests/test_rope.cpp
#include "core/math.cuh"
#include "kernels/rope.h"

namespace gated {

template <bool inverse, class S>
static void rope_tokens(S* y, const S* x, const float* cos, const float* sin, size_t B, size_t T, size_t H, size_t D,
                        size_t R) {
  const size_t half = R / 2;
#pragma omp parallel for if (worth_waking(B * T * H * D))
  for (size_t token = 0; token < B * T; token++) {
    const float *c = cos + token % T * half, *s = sin + token % T * half;
    for (size_t head = token * H; head < (token + 1) * H; head++) {
      const S* xh = x + head * D;
      S* yh = y + head * D;
#pragma omp simd
      for (size_t i = 0; i < half; i++) {
        const float x1 = xh[i], x2 = xh[half + i], turn = inverse ? -s[i] : s[i];
        store(yh[i], fused(x1, c[i], -(x2 * turn)));
        store(yh[half + i], fused(x2, c[i], x1 * turn));
      }
      if (y != x)
        for (size_t d = R; d < D; d++) yh[d] = xh[d];
    }
  }
}

template <class S>
void rope_forward_cpu(S* y, const S* x, const float* cos, const float* sin, size_t B, size_t T, size_t H, size_t D,
                      size_t R) {
  rope_tokens<false>(y, x, cos, sin, B, T, H, D, R);
}
IN_FLOAT_AND_BF16(rope_forward_cpu);

template <class S>
void rope_backward_cpu(S* dx, const S* dy, const float* cos, const float* sin, size_t B, size_t T, size_t H, size_t D,
                       size_t R) {
  rope_tokens<true>(dx, dy, cos, sin, B, T, H, D, R);
}
IN_FLOAT_AND_BF16(rope_backward_cpu);

}  // namespace gated
