// glu: values, the reference against finite differences, the kernels against the reference.
#include "kernels/glu.h"

#include <algorithm>

#include "tests/harness.h"

using namespace gated;

namespace {

const Activation acts[] = {Activation::silu, Activation::sigmoid, Activation::gelu_tanh, Activation::gelu_erf};

}  // namespace

TEST_CASE("glu: the activation acts on g, not on u") {
  Context cpu(Device::cpu);
  const std::vector<float> g = {1.0f, -1.0f, 100.0f}, u = {3.0f, 10.0f, -2.0f};
  const std::vector<float> expected[] = {{2.1931758f, -2.6894142f, -200.0f},
                                         {2.1931758f, 2.6894142f, -2.0f},
                                         {2.5235760f, -1.5880801f, -200.0f},
                                         {2.5240342f, -1.5865525f, -200.0f}};
  std::vector<float> y(3);
  for (int i = 0; i < 4; i++) {
    INFO(name_of(acts[i]));
    glu_forward(y.data(), g.data(), u.data(), 3, acts[i], cpu);
    REQUIRE(relative_error(expected[i], y) < 1e-7);
  }
}

TEST_CASE("glu: gradients against finite differences", "[gradcheck]") {
  const size_t n = 37;
  const auto g = random_values<double>(n, 1, 4.0), u = random_values<double>(n, 2), dy = random_values<double>(n, 3);
  for (Activation act : acts) {
    INFO(name_of(act));
    std::vector<double> y(n), dg(n), du(n);
    glu_backward_ref(dg.data(), du.data(), dy.data(), g.data(), u.data(), n, act);
    auto loss = [&](const std::vector<double>& g, const std::vector<double>& u) {
      glu_forward_ref(y.data(), g.data(), u.data(), n, act);
      return dot(y, dy);
    };
    check_gradient(
        "g", [&](auto& v) { return loss(v, u); }, g, dg);
    check_gradient(
        "u", [&](auto& v) { return loss(g, v); }, u, du);
  }
}

// In bf16 the inputs are rounded, the reference computes in float, and what it computes is rounded once.
template <class S>
static void require_glu_bits(Activation act, size_t n) {
  INFO(name_of(act) << ", n " << n << ", " << name_of(storage_of<S>));
  auto g = stored<S>(random_values<float>(n, 1, 20.0f));
  const auto u = stored<S>(random_values<float>(n, 2)), dy = stored<S>(random_values<float>(n, 3));
  const float extremes[] = {100.0f, -100.0f, 0.0f, -0.0f, 1e-40f};
  for (size_t i = 0; i < 5 && 7 * i < n; i++) g[7 * i] = S(extremes[i]);

  std::vector<float> y(n, NAN), dg(n, NAN), du(n, NAN);
  glu_forward_ref(y.data(), g.data(), u.data(), n, act);
  glu_backward_ref(dg.data(), du.data(), dy.data(), g.data(), u.data(), n, act);
  for (auto* v : {&y, &dg, &du}) *v = stored<S>(*v);

  on_every_device([&](Context& ctx) {
    GuardedOf<S> gy(ctx, n), gdg(ctx, n), gdu(ctx, n);
    GuardedOf<S> y_over_g(ctx, g), y_over_u(ctx, u), dg_over_g(ctx, g), du_over_u(ctx, u);
    GuardedOf<S> gg(ctx, g), gu(ctx, u), gdy(ctx, dy);
    glu_forward(gy, gg, gu, n, act, ctx);
    glu_forward(y_over_g, y_over_g, gu, n, act, ctx);
    glu_forward(y_over_u, gg, y_over_u, n, act, ctx);
    glu_backward(gdg, gdu, gdy, gg, gu, n, act, ctx);
    glu_backward(dg_over_g, du_over_u, gdy, dg_over_g, du_over_u, n, act, ctx);
    REQUIRE_BITWISE(y, gy.download());
    REQUIRE_BITWISE(y, y_over_g.download());
    REQUIRE_BITWISE(y, y_over_u.download());
    REQUIRE_BITWISE(dg, gdg.download());
    REQUIRE_BITWISE(du, gdu.download());
    REQUIRE_BITWISE(dg, dg_over_g.download());
    REQUIRE_BITWISE(du, du_over_u.download());
    REQUIRE(ctx.most_scratch_used() == 0);
  });
}

TEST_CASE("glu: what the program runs equals the reference bit for bit", "[bitwise]") {
  for (Activation act : acts) {
    for (size_t n : {0, 1, 3, 37, 1024, 1028, 2055}) require_glu_bits<float>(act, n);
    for (size_t n : {3, 1028}) require_glu_bits<bf16>(act, n);
  }
}

TEST_CASE("swiglu_clamped: values, and what the bounds hold back") {
  // Pairs (g, u): inside, at the bounds, beyond them.
  const std::vector<double> g = {1, -2, 7, 7.5, 1, 1, 1, 1, -100}, u = {0.5, 3, 0, 0, 7, -7, 8, -9, 2};
  const double one = 1 / (1 + std::exp(-1.702)), seven = 7 / (1 + std::exp(-7 * 1.702));
  const std::vector<double> expected = {
      1.5 * one, 4 * -2 / (1 + std::exp(2 * 1.702)), seven, seven, 8 * one, -6 * one, 8 * one,
      -6 * one,  3 * -100 / (1 + std::exp(170.2))};
  std::vector<double> y(9), dg(9), du(9), dy(9, 1.0);
  swiglu_clamped_forward_ref(y.data(), g.data(), u.data(), 9);
  REQUIRE(relative_error(expected, y) < 1e-14);
  swiglu_clamped_backward_ref(dg.data(), du.data(), dy.data(), g.data(), u.data(), 9);
  for (size_t i = 0; i < 9; i++) {
    INFO(i);
    REQUIRE((dg[i] == 0) == (g[i] > 7));  // at the bound the gradient passes
    REQUIRE((du[i] == 0) == (u[i] > 7 || u[i] < -7));
  }
}

TEST_CASE("swiglu_clamped: gradients against finite differences", "[gradcheck]") {
  // No input lies within a step of a bound.
  const size_t n = 61;
  auto g = random_values<double>(n, 1, 9.0), u = random_values<double>(n, 2, 9.0);
  for (auto* v : {&g, &u})
    for (double& x : *v)
      if (std::fabs(std::fabs(x) - 7) < 0.01) x += 0.02;
  const auto dy = random_values<double>(n, 3);
  std::vector<double> y(n), dg(n), du(n);
  swiglu_clamped_backward_ref(dg.data(), du.data(), dy.data(), g.data(), u.data(), n);
  auto loss = [&](const std::vector<double>& g, const std::vector<double>& u) {
    swiglu_clamped_forward_ref(y.data(), g.data(), u.data(), n);
    return dot(y, dy);
  };
  check_gradient(
      "g", [&](auto& v) { return loss(v, u); }, g, dg);
  check_gradient(
      "u", [&](auto& v) { return loss(g, v); }, u, du);
  REQUIRE(std::count(dg.begin(), dg.end(), 0.0) > 3);
  REQUIRE(std::count(du.begin(), du.end(), 0.0) > 3);
}

template <class S>
static void require_clamped_bits(size_t n) {
  INFO("n " << n << ", " << name_of(storage_of<S>));
  auto g = stored<S>(random_values<float>(n, 1, 20.0f)), u = stored<S>(random_values<float>(n, 2, 20.0f));
  const auto dy = stored<S>(random_values<float>(n, 3));
  const float extremes[] = {100.0f, -100.0f, 0.0f, -0.0f, 7.0f, -7.0f, 1e-40f};
  for (size_t i = 0; i < 7 && 7 * i < n; i++) g[7 * i] = S(extremes[i]);
  for (size_t i = 0; i < 7 && 5 * i < n; i++) u[5 * i] = S(extremes[i]);
  std::vector<float> y(n, NAN), dg(n, NAN), du(n, NAN);
  swiglu_clamped_forward_ref(y.data(), g.data(), u.data(), n);
  swiglu_clamped_backward_ref(dg.data(), du.data(), dy.data(), g.data(), u.data(), n);
  for (auto* v : {&y, &dg, &du}) *v = stored<S>(*v);
  on_every_device([&](Context& ctx) {
    GuardedOf<S> gy(ctx, n), gdg(ctx, n), gdu(ctx, n), gg(ctx, g), gu(ctx, u), gdy(ctx, dy);
    GuardedOf<S> y_over_g(ctx, g), y_over_u(ctx, u), dg_over_g(ctx, g), du_over_u(ctx, u);
    swiglu_clamped_forward(gy, gg, gu, n, ctx);
    swiglu_clamped_forward(y_over_g, y_over_g, gu, n, ctx);
    swiglu_clamped_forward(y_over_u, gg, y_over_u, n, ctx);
    swiglu_clamped_backward(gdg, gdu, gdy, gg, gu, n, ctx);
    swiglu_clamped_backward(dg_over_g, du_over_u, gdy, dg_over_g, du_over_u, n, ctx);
    REQUIRE_BITWISE(y, gy.download());
    REQUIRE_BITWISE(y, y_over_g.download());
    REQUIRE_BITWISE(y, y_over_u.download());
    REQUIRE_BITWISE(dg, gdg.download());
    REQUIRE_BITWISE(du, gdu.download());
    REQUIRE_BITWISE(dg, dg_over_g.download());
    REQUIRE_BITWISE(du, du_over_u.download());
  });
}

TEST_CASE("swiglu_clamped: what the program runs equals the reference bit for bit", "[bitwise]") {
  for (size_t n : {0, 1, 3, 37, 1024, 1028, 2055}) require_clamped_bits<float>(n);
  for (size_t n : {3, 1028}) require_clamped_bits<bf16>(n);
}

TEST_CASE("swiglu_clamped: a NaN goes through the bounds", "[bitwise]") {
  on_every_device([&](Context& ctx) {
    Guarded g(ctx, {NAN, 1.0f}), u(ctx, {1.0f, NAN}), y(ctx, 2);
    swiglu_clamped_forward(y, g, u, 2, ctx);
    for (float v : y.download()) REQUIRE(std::isnan(v));
  });
}

TEST_CASE("glu: an activation that is not a GLU's is refused") {
  Context cpu(Device::cpu);
  REQUIRE_THROWS_WITH(glu_forward(nullptr, nullptr, nullptr, 0, Activation::relu2, cpu),
                      "glu_forward: act is relu2, expected one of: sigmoid silu gelu_tanh gelu_erf");
  REQUIRE_THROWS_AS(glu_backward(nullptr, nullptr, nullptr, nullptr, nullptr, 0, Activation::tanh, cpu), Error);
}
