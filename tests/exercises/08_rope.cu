// Exercise 8, rope: queries and keys are turned, each pair of elements by an angle of its own.
//
// Elements i and i + R/2 of a head are a point, and at position t it turns by the angle a of (t, i), whose cosine and
// sine stand in tables (T, R/2):
//     y1 = x1 cos a - x2 sin a          exactly fused(x1, cos, -(x2 * sin))
//     y2 = x2 cos a + x1 sin a          exactly fused(x2, cos, x1 * sin)
// R is D or less. The other elements of a head, from R on, are copied.
// The chapter: kernels/rope.cu. The launch: a block of 32 threads for each head of each token; block b is head b % H of
// token b / H, and token n of the batch stands at position n % T.
//
// hint 1: A thread that takes a pair needs x1 and x2 before it writes either.
//
// hint 2: The tables know positions, not tokens of the batch: their row is token % T, of R/2 numbers.
//
// hint 3: for i = threadIdx.x, i < R/2, in steps of 32: both lines above; then for d = R + threadIdx.x, d < D: copy.
//
// A wrong answer usually pairs 2i with 2i+1, forgets the elements from R on, or lets the second sequence go on at T.
#include "tests/exercises/try.h"

using namespace gated;

// ---- reference
// <<< from kernels/rope.cu: rope_forward_ref

// ---- yours: y (B,T,H,D) is written; x (B,T,H,D), cos, sin (T,R/2)

__global__ void rope_kernel(float* y, const float* x, const float* cos, const float* sin, size_t T, size_t H, size_t D,
                            size_t R) {
  // <<< solution
  const size_t token = blockIdx.x / H, half = R / 2;
  const float *c = cos + token % T * half, *s = sin + token % T * half, *x_h = x + blockIdx.x * D;
  float* y_h = y + blockIdx.x * D;
  for (size_t i = threadIdx.x; i < half; i += blockDim.x) {
    const float x1 = x_h[i], x2 = x_h[half + i];
    y_h[i] = fused(x1, c[i], -(x2 * s[i]));
    y_h[half + i] = fused(x2, c[i], x1 * s[i]);
  }
  for (size_t d = R + threadIdx.x; d < D; d += blockDim.x) y_h[d] = x_h[d];
  // >>>
}

// ---- how it is judged

void exercise(Try& t) {
  t.cases({"B", "T", "H", "D", "R"}, {{1, 3, 1, 8, 8}, {2, 3, 2, 12, 8}, {2, 5, 3, 128, 96}},
          [&](size_t B, size_t T, size_t H, size_t D, size_t R) {
            Tried &y = t.out("y", B * T * H, D), &x = t.in("x", B * T * H, D);
            std::vector<float> cosines(T * R / 2), sines(T * R / 2);
            for (size_t i = 0; i < T * R / 2; i++) {
              const double angle = double(i / (R / 2)) / double(1 + i % (R / 2));
              cosines[i] = float(std::cos(angle)), sines[i] = float(std::sin(angle));
            }
            Tried &cos = t.in("cos", T, R / 2, cosines), &sin = t.in("sin", T, R / 2, sines);
            t.reference([&](auto real) { rope_forward_ref(y(real), x(real), cos(real), sin(real), B, T, H, D, R); });
            t.judge([&] { t.launch(rope_kernel, B * T * H, 32, 0, y, x, cos, sin, T, H, D, R); });
            PROJECT(t, const RopeTables tables = {{ctx.device, cosines}, {ctx.device, sines}, T, R / 2};
                    t.also(tables.cos.data(), T * R / 2 * 4); t.also(tables.sin.data(), T * R / 2 * 4);
                    rope_forward(y.floats(), x.floats(), tables, 0, B, T, H, D, ctx));
          });
}
