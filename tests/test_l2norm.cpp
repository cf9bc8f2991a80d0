// l2norm: the references against finite differences, the CPU's code and the kernels against the references.
#include "kernels/l2norm.h"

#include "tests/harness.h"

using namespace gated;

TEST_CASE("l2norm: gradients against finite differences", "[gradcheck]") {
  for (float m : {1.0f, 13.0f}) {
    const L2normShape s{.N = 2, .H = 3, .D = 13, .m = m, .eps = 0.5f};
    auto x = random_values<double>(s.N * s.H * s.D, 1);
    const auto dy = random_values<double>(x.size(), 2);
    std::vector<double> y(x.size()), r(s.N * s.H), dx(x.size());
    const auto loss = [&] { return l2norm_forward_ref(y.data(), r.data(), x.data(), s), dot(y, dy); };
    loss();
    l2norm_backward_ref(dx.data(), dy.data(), y.data(), r.data(), s);
    check_gradients(loss, {{"x", x, dx}});
  }
}

// In bf16 the reference is given what is stored: its inputs, and in the backward y. On a device rows may begin at `at`
// in wider ones, which the reference has packed.
template <class S>
static void require_bits(const L2normShape& s, size_t at = 0) {
  INFO("N " << s.N << " H " << s.H << " D " << s.D << " strides " << s.x_stride << " " << s.y_stride << " at " << at
            << ", " << name_of(storage_of<S>));
  const size_t n = s.N * s.H * s.D;
  const bool packed = !s.x_stride && !s.y_stride;
  Trial t;
  const auto x = t.random<S>(n, 1, 3.0f), dy = t.random<S>(n, 2), y = t.out<S>(n), dx = t.out<S>(n);
  const auto y_over_x = packed ? t.over(x, y) : Array<S>(), dx_over_dy = packed ? t.over(dy, dx) : Array<S>();
  const auto r = t.out(s.N * s.H);
  const L2normShape of_ref{.N = s.N, .H = s.H, .D = s.D, .m = s.m, .eps = s.eps};
  l2norm_forward_ref(y.ref, r.ref, x.ref, of_ref);
  y.store();
  l2norm_backward_ref(dx.ref, dy.ref, y.ref, r.ref, of_ref);
  widen<S>({x, dx}, s.N, s.x_stride, at);
  widen<S>({y, dy}, s.N, s.y_stride, at);
  t.on_every_device([&](Context& ctx) {
    l2norm_forward(y, r, x, s, ctx);
    l2norm_backward(dx, dy, y, r, s, ctx);
    if (!packed) return;
    l2norm_forward(y_over_x, r, y_over_x, s, ctx);
    l2norm_backward(dx_over_dy, dx_over_dy, y, r, s, ctx);
  });
}

TEST_CASE("l2norm: CPU and kernels equal the reference bit for bit", "[bitwise]") {
  for (const L2normShape& s : {L2normShape{.N = 21, .H = 3, .D = 128},
                               {.N = 5, .H = 2, .D = 24, .m = 24},
                               {.N = 3, .H = 2, .D = 33, .m = 33},
                               {.N = 9, .H = 1, .D = 1},
                               {.N = 4, .H = 2, .D = 200}})
    require_bits<float>(s);
  require_bits<bf16>({.N = 5, .H = 2, .D = 24, .m = 24});
  require_bits<bf16>({.N = 3, .H = 2, .D = 33, .m = 33});
}

TEST_CASE("l2norm: heads inside wider rows give the bits of packed ones, and nothing between them is touched",
          "[bitwise]") {
  const struct { size_t D, x_stride, y_stride, at; } cases[] = {{8, 24, 20, 4}, {8, 21, 18, 1}, {5, 10, 16, 0}};
  for (auto [D, x_stride, y_stride, at] : cases) {
    const L2normShape s{.N = 7, .H = 2, .D = D, .x_stride = x_stride, .y_stride = y_stride};
    require_bits<float>(s, at);
    require_bits<bf16>(s, at);
  }
}

TEST_CASE("l2norm: what it refuses") {
  Context cpu(Device::cpu);
  float a[16] = {}, b[16] = {};
  REQUIRE_THROWS_WITH(l2norm_forward(a, b, a, {.N = 1, .H = 0, .D = 4}, cpu), "l2norm_forward: tokens have no heads");
  REQUIRE_THROWS_WITH(l2norm_forward(a, b, a, {.N = 1, .H = 1, .D = 0}, cpu), "l2norm_forward: heads have no elements");
  REQUIRE_THROWS_WITH(l2norm_forward(a, b, b, {.N = 1, .H = 2, .D = 4, .x_stride = 7}, cpu),
                      "l2norm_forward: strides are 7 and 0, expected 0 or at least the 8 elements of a token");
  REQUIRE_THROWS_WITH(l2norm_backward(a, a, b, b, {.N = 1, .H = 1, .D = 4, .x_stride = 8}, cpu),
                      "l2norm_backward: in place, but strides are 8 and 0");
}
