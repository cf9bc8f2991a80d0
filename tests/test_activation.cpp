// activation: far out, slopes against finite differences, the kernels against the reference.
#include "kernels/activation.h"

#include "tests/harness.h"

using namespace gated;

// Far from 0 these are x on one side and 0 on the other.
TEST_CASE("activation: silu and gelu, far out") {
  for (Activation act : {Activation::silu, Activation::gelu_tanh, Activation::gelu_erf}) {
    INFO(name_of(act));
    REQUIRE(activation_value(act, 0.0f) == 0.0f);
    REQUIRE(std::signbit(activation_value(act, -0.0f)));
    REQUIRE(activation_slope(act, 0.0f) == 0.5f);
    for (float x : {100.0f, 1e18f}) {
      REQUIRE((activation_value(act, x) == x && activation_slope(act, x) == 1.0f));
      REQUIRE(std::fabs(activation_value(act, -x)) < 1e-40f);
      REQUIRE(std::fabs(activation_slope(act, -x)) < 1e-40f);
    }
    REQUIRE((activation_value(act, -1e18f) == 0.0f && activation_slope(act, -1e18f) == 0.0f));
  }
}

TEST_CASE("activation: float agrees with double, the two gelus with each other, NaN stays") {
  for (const auto& [act, name, uses, meaning] : activations) {
    INFO(name_of(act));
    double worst = 0, worst_slope = 0;
    for (float x = -12.0f; x <= 12.0f; x += 1.0f / 64) {
      const double value = activation_value(act, double(x)), slope = activation_slope(act, double(x));
      worst = std::max(worst, std::fabs(activation_value(act, x) - value) / (1 + std::fabs(x)));
      worst_slope = std::max(worst_slope, std::fabs(activation_slope(act, x) - slope) / (1 + std::fabs(x)));
    }
    REQUIRE(worst <= 1e-6);
    REQUIRE(worst_slope <= 1e-6);
    REQUIRE(std::isnan(activation_value(act, float(NAN))));
  }
  for (double x = -6; x <= 6; x += 0.125) REQUIRE(std::fabs(gelu_tanh(x) - gelu_erf(x)) < 5e-4);
}

TEST_CASE("activation: slopes against finite differences", "[gradcheck]") {
  const size_t n = 41;
  auto x = random_values<double>(n, 1, 4.0);
  const auto dy = random_values<double>(n, 2);
  std::vector<double> y(n), dx(n);
  for (const auto& [act, name, uses, meaning] : activations) {
    activation_backward_ref(dx.data(), dy.data(), x.data(), n, act);
    const auto loss = [&, act = act] { return activation_forward_ref(y.data(), x.data(), n, act), dot(y, dy); };
    check_gradients(loss, {{name, x, dx}});
  }
}

template <class S>
static void require_activation_bits(Activation act, size_t n) {
  INFO(name_of(act) << ", n " << n << ", " << name_of(storage_of<S>));
  auto values = random_values<float>(n, 1, 20.0f);
  const float extremes[] = {100.0f, -100.0f, 0.0f, -0.0f, 1e18f, -1e18f, 1e-40f};
  for (size_t i = 0; i < 7 && 5 * i < n; i++) values[5 * i] = extremes[i];
  Trial t;
  const auto x = t.in<S>(values), dy = t.random<S>(n, 2), y = t.out<S>(n), dx = t.out<S>(n);
  const auto y_over_x = t.over(x, y), dx_over_dy = t.over(dy, dx), dx_over_x = t.over(x, dx);
  activation_forward_ref(y.ref, x.ref, n, act);
  activation_backward_ref(dx.ref, dy.ref, x.ref, n, act);
  t.on_every_device([&](Context& ctx) {
    activation_forward(y, x, n, act, ctx);
    activation_forward(y_over_x, y_over_x, n, act, ctx);
    activation_backward(dx, dy, x, n, act, ctx);
    activation_backward(dx_over_dy, dx_over_dy, x, n, act, ctx);
    activation_backward(dx_over_x, dy, dx_over_x, n, act, ctx);
    REQUIRE(ctx.most_scratch_used() == 0);
  });
}

TEST_CASE("activation: what the program runs equals the reference bit for bit", "[bitwise]") {
  for (Activation act : {Activation::silu, Activation::gelu_tanh, Activation::gelu_erf, Activation::relu2}) {
    for (size_t n : {0, 1, 3, 4, 37, 1024, 1026, 4133}) require_activation_bits<float>(act, n);
    for (size_t n : {3, 37, 1024}) require_activation_bits<bf16>(act, n);
  }
}

// Gates take all of them, in loops of their own: the constants must name what they say.
TEST_CASE("activation: with_known_activation hands over the one that was named") {
  for (const auto& [act, name, uses, meaning] : activations)
    with_known_activation<~0u>(act, [&, act = act](auto known) {
      constexpr Activation constant = known;
      REQUIRE(constant == act);
    });
}

TEST_CASE("activation: one that only gates take is refused, and which are not is said") {
  Context cpu(Device::cpu);
  const char* expected = "activation_forward: act is ns-sigmoid, expected one of: silu gelu_tanh gelu_erf relu2";
  REQUIRE_THROWS_WITH(activation_forward(nullptr, nullptr, 0, Activation::ns_sigmoid, cpu), expected);
  REQUIRE_THROWS_AS(activation_backward(nullptr, nullptr, nullptr, 0, Activation::tanh, cpu), Error);
}
