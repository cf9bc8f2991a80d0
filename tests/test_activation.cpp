// activation: values, slopes against finite differences, the kernels against the reference.
#include "kernels/activation.cuh"

#include "tests/harness.h"

using namespace gated;

namespace {

using Every = ActivationSet<Identity, Sigmoid, NsSigmoid, Silu, Tanh, GeluTanh, GeluErf, Relu2>;

template <class... Act, class F>
void for_each_of(ActivationSet<Act...>, F f) {
  (f(Act{}), ...);
}

}  // namespace

TEST_CASE("activation: known values and limits") {
  REQUIRE(Sigmoid::value(1.0) == Approx(0.73105857863000488).epsilon(1e-15));
  REQUIRE(NsSigmoid::value(1.0) == Approx(0.86552928931500244).epsilon(1e-15));
  REQUIRE(Silu::value(-2.0) == Approx(-0.23840584404423517).epsilon(1e-15));
  REQUIRE(Tanh::value(1.0) == Approx(0.76159415595576489).epsilon(1e-15));
  REQUIRE(GeluTanh::value(1.0) == Approx(0.84119199060827674).epsilon(1e-15));
  REQUIRE(GeluErf::value(1.0) == Approx(0.84134474606854293).epsilon(1e-15));
  REQUIRE(Relu2::value(3.0f) == 9.0f);
  REQUIRE(Relu2::value(-3.0f) == 0.0f);
  REQUIRE(Identity::value(-3.0f) == -3.0f);
  REQUIRE(Sigmoid::slope(0.0f) == 0.25f);
  REQUIRE(NsSigmoid::value(0.0f) == 0.75f);
  REQUIRE(NsSigmoid::value(-200.0f) == 0.5f);
  REQUIRE(Silu::slope(0.0) == 0.5);
  REQUIRE(Silu::value(1.0f) == Approx(0.7310586f).epsilon(1e-6));
  REQUIRE((Silu::value(-0.0f) == 0.0f && std::signbit(Silu::value(-0.0f))));
}

// Far from 0 these are x on one side and 0 on the other.
TEST_CASE("activation: silu and gelu, far out") {
  for_each_of(ActivationSet<Silu, GeluTanh, GeluErf>{}, [](auto act) {
    INFO(name_of(act.kind));
    REQUIRE(act.value(0.0f) == 0.0f);
    REQUIRE(act.slope(0.0f) == 0.5f);
    REQUIRE(act.value(100.0f) == 100.0f);
    REQUIRE(act.slope(100.0f) == 1.0f);
    REQUIRE(std::fabs(act.value(-100.0f)) < 1e-40f);
    REQUIRE(std::fabs(act.slope(-100.0f)) < 1e-40f);
    REQUIRE(act.value(1e18f) == 1e18f);
    REQUIRE(act.slope(1e18f) == 1.0f);
    REQUIRE(act.value(-1e18f) == 0.0f);
    REQUIRE(act.slope(-1e18f) == 0.0f);
  });
}

TEST_CASE("activation: float agrees with double, the two gelus with each other, NaN stays") {
  for_each_of(Every{}, [](auto act) {
    INFO(name_of(act.kind));
    double worst = 0, worst_slope = 0;
    for (float x = -12.0f; x <= 12.0f; x += 1.0f / 64) {
      worst = std::max(worst, std::fabs(act.value(x) - act.value(double(x))) / (1 + std::fabs(x)));
      worst_slope = std::max(worst_slope, std::fabs(act.slope(x) - act.slope(double(x))) / (1 + std::fabs(x)));
    }
    REQUIRE(worst <= 1e-6);
    REQUIRE(worst_slope <= 1e-6);
    REQUIRE(std::isnan(act.value(NAN)));
  });
  for (double x = -6; x <= 6; x += 0.125) REQUIRE(std::fabs(GeluTanh::value(x) - GeluErf::value(x)) < 5e-4);
}

TEST_CASE("activation: slopes against finite differences", "[gradcheck]") {
  const size_t n = 41;
  const auto x = random_values<double>(n, 1, 4.0), dy = random_values<double>(n, 2);
  for_each_of(Every{}, [&](auto act) {
    using Act = decltype(act);
    std::vector<double> y(n), dx(n);
    activation_backward_ref<Act>(dx.data(), dy.data(), x.data(), n);
    auto loss = [&](const std::vector<double>& x) {
      activation_forward_ref<Act>(y.data(), x.data(), n);
      return dot(y, dy);
    };
    check_gradient(name_of(Act::kind), loss, x, dx);
  });
}

TEST_CASE("activation: kernels equal the reference bit for bit", "[bitwise]") {
  Context cpu(Device::cpu);
  for (Activation act : {Activation::silu, Activation::gelu_tanh, Activation::gelu_erf, Activation::relu2})
    for (size_t n : {1, 3, 4, 1024, 1026, 4133}) {
      INFO(name_of(act) << ", n " << n);
      auto x = random_values<float>(n, 1, 20.0f);
      const auto dy = random_values<float>(n, 2);
      const float extremes[] = {100.0f, -100.0f, 0.0f, -0.0f, 1e18f, -1e18f, 1e-40f};
      for (size_t i = 0; i < 7 && 5 * i < n; i++) x[5 * i] = extremes[i];
      std::vector<float> y(n, NAN), dx(n, NAN);
      activation_forward(y.data(), x.data(), n, act, cpu);
      activation_backward(dx.data(), dy.data(), x.data(), n, act, cpu);

      std::vector<float> y_over_x = x, dx_over_dy = dy, dx_over_x = x;
      activation_forward(y_over_x.data(), y_over_x.data(), n, act, cpu);
      activation_backward(dx_over_dy.data(), dx_over_dy.data(), x.data(), n, act, cpu);
      activation_backward(dx_over_x.data(), dy.data(), dx_over_x.data(), n, act, cpu);
      REQUIRE_BITWISE(y, y_over_x);
      REQUIRE_BITWISE(dx, dx_over_dy);
      REQUIRE_BITWISE(dx, dx_over_x);

      // Numbers behind the inputs: a kernel that ran on past n would not leave a NaN behind its output.
      auto x_and_more = x, dy_and_more = dy;
      x_and_more.resize(n + 3, 1.0f), dy_and_more.resize(n + 3, 1.0f);
      on_every_device([&](Context& ctx) {
        Guarded gy(ctx, n), gdx(ctx, n), gx(ctx, x_and_more), gdy(ctx, dy_and_more);
        activation_forward(gy, gx, n, act, ctx);
        activation_backward(gdx, gdy, gx, n, act, ctx);
        REQUIRE_BITWISE(y, gy.download());
        REQUIRE_BITWISE(dx, gdx.download());

        Guarded y_over_x(ctx, x), dx_over_dy(ctx, dy), dx_over_x(ctx, x);
        activation_forward(y_over_x, y_over_x, n, act, ctx);
        activation_backward(dx_over_dy, dx_over_dy, gx, n, act, ctx);
        activation_backward(dx_over_x, gdy, dx_over_x, n, act, ctx);
        REQUIRE_BITWISE(y, y_over_x.download());
        REQUIRE_BITWISE(dx, dx_over_dy.download());
        REQUIRE_BITWISE(dx, dx_over_x.download());
      });
    }
}

TEST_CASE("activation: one that only gates take is refused, and which are not is said") {
  Context cpu(Device::cpu);
  const char* expected = "activation_forward: act is ns_sigmoid, expected one of: silu gelu_tanh gelu_erf relu2";
  REQUIRE_THROWS_WITH(activation_forward(nullptr, nullptr, 0, Activation::ns_sigmoid, cpu), expected);
  REQUIRE_THROWS_AS(activation_backward(nullptr, nullptr, nullptr, 0, Activation::tanh, cpu), Error);
}
