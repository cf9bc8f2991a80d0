// l2norm: the references against finite differences, the CPU's code and the kernels against the references.
#include "kernels/l2norm.h"

#include <algorithm>

#include "tests/harness.h"

using namespace gated;

TEST_CASE("l2norm: by hand") {
  const std::vector<double> x = {3, 4};
  std::vector<double> y(2), r(1);
  l2norm_forward_ref(y.data(), r.data(), x.data(), {.N = 1, .H = 1, .D = 2, .m = 4, .eps = 0});
  REQUIRE(r[0] == Approx(0.1));
  REQUIRE(y[0] == Approx(0.3));
  REQUIRE(y[1] == Approx(0.4));
}

TEST_CASE("l2norm: gradients against finite differences", "[gradcheck]") {
  for (float m : {1.0f, 13.0f}) {
    const L2normShape s{.N = 2, .H = 3, .D = 13, .m = m, .eps = 0.5f};
    const auto x = random_values<double>(s.N * s.H * s.D, 1), dy = random_values<double>(x.size(), 2);
    std::vector<double> y(x.size()), r(s.N * s.H), dx(x.size());
    const auto loss = [&](const std::vector<double>& x) {
      l2norm_forward_ref(y.data(), r.data(), x.data(), s);
      return dot(y, dy);
    };
    loss(x);
    l2norm_backward_ref(dx.data(), dy.data(), y.data(), r.data(), s);
    check_gradient("x", loss, x, dx);
  }
}

// In bf16 the reference is given what is stored: its inputs, and in the backward y.
template <class S>
static void require_bits(const L2normShape& s) {
  INFO("N " << s.N << " H " << s.H << " D " << s.D << ", " << name_of(storage_of<S>));
  const size_t n = s.N * s.H * s.D;
  const auto x = stored<S>(random_values<float>(n, 1, 3.0f)), dy = stored<S>(random_values<float>(n, 2));
  std::vector<float> y(n, NAN), r(s.N * s.H, NAN), dx(n, NAN);
  l2norm_forward_ref(y.data(), r.data(), x.data(), s);
  y = stored<S>(y);
  l2norm_backward_ref(dx.data(), dy.data(), y.data(), r.data(), s);
  dx = stored<S>(dx);
  on_every_device([&](Context& ctx) {
    GuardedOf<S> gx(ctx, x), gdy(ctx, dy), gy(ctx, n), gdx(ctx, n);
    Guarded gr(ctx, s.N * s.H);
    l2norm_forward(gy, gr, gx, s, ctx);
    l2norm_backward(gdx, gdy, gy, gr, s, ctx);
    REQUIRE_BITWISE(y, gy.download());
    REQUIRE_BITWISE(r, gr.download());
    REQUIRE_BITWISE(dx, gdx.download());
    l2norm_forward(gx, gr, gx, s, ctx);  // in place
    l2norm_backward(gdy, gdy, gx, gr, s, ctx);
    REQUIRE_BITWISE(y, gx.download());
    REQUIRE_BITWISE(dx, gdy.download());
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

template <class S>
static void require_bits_in_wider_rows(size_t D, size_t x_stride, size_t y_stride, size_t at) {
  INFO("D " << D << " strides " << x_stride << " " << y_stride << " at " << at << ", " << name_of(storage_of<S>));
  const L2normShape packed{.N = 7, .H = 2, .D = D},
      s{.N = 7, .H = 2, .D = D, .x_stride = x_stride, .y_stride = y_stride};
  const size_t width = s.H * D;
  const auto x = stored<S>(random_values<float>(s.N * width, 1)), dy = stored<S>(random_values<float>(x.size(), 2));
  std::vector<float> y(x.size()), r(s.N * s.H), dx(x.size());
  l2norm_forward_ref(y.data(), r.data(), x.data(), packed);
  y = stored<S>(y);
  l2norm_backward_ref(dx.data(), dy.data(), y.data(), r.data(), packed);
  dx = stored<S>(dx);
  const auto spread = [&](const std::vector<float>& from, size_t stride, float between) {
    std::vector<float> wide(s.N * stride + at, between);
    for (size_t n = 0; n < s.N; n++) std::copy_n(&from[n * width], width, &wide[n * stride + at]);
    return wide;
  };
  on_every_device([&](Context& ctx) {
    GuardedOf<S> gx(ctx, spread(x, x_stride, NAN)), gdy(ctx, spread(dy, y_stride, NAN));
    GuardedOf<S> gy(ctx, std::vector<float>(s.N * y_stride + at, 7));
    GuardedOf<S> gdx(ctx, std::vector<float>(s.N * x_stride + at, 7));
    Guarded gr(ctx, s.N * s.H);
    l2norm_forward(gy + at, gr, gx + at, s, ctx);
    l2norm_backward(gdx + at, gdy + at, gy + at, gr, s, ctx);
    REQUIRE_BITWISE(r, gr.download());
    REQUIRE_BITWISE(spread(y, y_stride, 7), gy.download());
    REQUIRE_BITWISE(spread(dx, x_stride, 7), gdx.download());
  });
}

TEST_CASE("l2norm: heads inside wider rows give the bits of packed ones, and nothing between them is touched",
          "[bitwise]") {
  const struct { size_t D, x_stride, y_stride, at; } cases[] = {{8, 24, 20, 4}, {8, 21, 18, 1}, {5, 10, 16, 0}};
  for (auto [D, x_stride, y_stride, at] : cases) {
    require_bits_in_wider_rows<float>(D, x_stride, y_stride, at);
    require_bits_in_wider_rows<bf16>(D, x_stride, y_stride, at);
  }
}

TEST_CASE("l2norm: what it refuses") {
  Context cpu(Device::cpu);
  float a[16] = {}, b[16] = {};
  REQUIRE_THROWS_WITH(l2norm_forward(a, b, a, {.N = 1, .H = 1, .D = 0}, cpu), "l2norm_forward: heads have no elements");
  REQUIRE_THROWS_WITH(l2norm_forward(a, b, b, {.N = 1, .H = 2, .D = 4, .x_stride = 7}, cpu),
                      "l2norm_forward: strides are 7 and 0, expected 0 or at least the 8 elements of a token");
  REQUIRE_THROWS_WITH(l2norm_backward(a, a, b, b, {.N = 1, .H = 1, .D = 4, .x_stride = 8}, cpu),
                      "l2norm_backward: in place, but strides are 8 and 0");
}
