// glu: the reference against finite differences, the kernels against the reference.
#include "kernels/glu.h"

#include <algorithm>

#include "tests/harness.h"

using namespace gated;

namespace {

const Activation acts[] = {Activation::silu, Activation::sigmoid, Activation::gelu_tanh, Activation::gelu_erf};

// A GLU of an activation, or the clamped one.
struct Glu {
  std::optional<Activation> act;
  const char* name() const { return act ? name_of(*act) : "clamped"; }
  template <class T>
  void forward_ref(T* y, const T* g, const T* u, size_t n) const {
    act ? glu_forward_ref(y, g, u, n, *act) : swiglu_clamped_forward_ref(y, g, u, n);
  }
  template <class T>
  void backward_ref(T* dg, T* du, const T* dy, const T* g, const T* u, size_t n) const {
    act ? glu_backward_ref(dg, du, dy, g, u, n, *act) : swiglu_clamped_backward_ref(dg, du, dy, g, u, n);
  }
  void forward(Reals y, ConstReals g, ConstReals u, size_t n, Context& ctx) const {
    act ? glu_forward(y, g, u, n, *act, ctx) : swiglu_clamped_forward(y, g, u, n, ctx);
  }
  void backward(Reals dg, Reals du, ConstReals dy, ConstReals g, ConstReals u, size_t n, Context& ctx) const {
    act ? glu_backward(dg, du, dy, g, u, n, *act, ctx) : swiglu_clamped_backward(dg, du, dy, g, u, n, ctx);
  }
};
const Glu glus[] = {{acts[0]}, {acts[1]}, {acts[2]}, {acts[3]}, {}};

}  // namespace

TEST_CASE("glu: gradients against finite differences", "[gradcheck]") {
  for (const Glu& glu : glus) {
    INFO(glu.name());
    const size_t n = 61;
    const double range = glu.act ? 4 : 9;
    auto g = random_values<double>(n, 1, range), u = random_values<double>(n, 2, range);
    for (auto* v : {&g, &u})  // no input lies within a step of a bound of the clamped one
      for (double& x : *v)
        if (std::fabs(std::fabs(x) - 7) < 0.01) x += 0.02;
    const auto dy = random_values<double>(n, 3);
    std::vector<double> y(n), dg(n), du(n);
    glu.backward_ref(dg.data(), du.data(), dy.data(), g.data(), u.data(), n);
    const auto loss = [&] { return glu.forward_ref(y.data(), g.data(), u.data(), n), dot(y, dy); };
    check_gradients(loss, {{"g", g, dg}, {"u", u, du}});
    if (glu.act) continue;
    REQUIRE(std::count(dg.begin(), dg.end(), 0.0) > 3);
    REQUIRE(std::count(du.begin(), du.end(), 0.0) > 3);
  }
}

// In bf16 the inputs are rounded, the reference computes in float, and what it computes is rounded once.
template <class S>
static void require_glu_bits(const Glu& glu, size_t n) {
  INFO(glu.name() << ", n " << n << ", " << name_of(storage_of<S>));
  auto g0 = random_values<float>(n, 1, 20.0f), u0 = random_values<float>(n, 2, glu.act ? 1.0f : 20.0f);
  const float extremes[] = {100.0f, -100.0f, 0.0f, -0.0f, 7.0f, -7.0f, 1e-40f};
  for (size_t i = 0; i < 7 && 7 * i < n; i++) g0[7 * i] = extremes[i];
  for (size_t i = 0; i < 7 && 5 * i < n && !glu.act; i++) u0[5 * i] = extremes[i];
  Trial t;
  const auto g = t.in<S>(g0), u = t.in<S>(u0), dy = t.random<S>(n, 3);
  const auto y = t.out<S>(n), y_over_g = t.over(g, y), y_over_u = t.over(u, y);
  const auto dg = t.out<S>(n), du = t.out<S>(n), dg_over_g = t.over(g, dg), du_over_u = t.over(u, du),
             dg_beside = t.again(dg), du_over_dy = t.over(dy, du);
  glu.forward_ref(y.ref, g.ref, u.ref, n);
  glu.backward_ref(dg.ref, du.ref, dy.ref, g.ref, u.ref, n);
  t.on_every_device([&](Context& ctx) {
    glu.forward(y, g, u, n, ctx);
    glu.forward(y_over_g, y_over_g, u, n, ctx);
    glu.forward(y_over_u, g, y_over_u, n, ctx);
    glu.backward(dg, du, dy, g, u, n, ctx);
    glu.backward(dg_over_g, du_over_u, dy, dg_over_g, du_over_u, n, ctx);
    glu.backward(dg_beside, du_over_dy, du_over_dy, g, u, n, ctx);
    REQUIRE(ctx.most_scratch_used() == 0);
  });
}

TEST_CASE("glu: what the program runs equals the reference bit for bit", "[bitwise]") {
  for (const Glu& glu : glus) {
    for (size_t n : {0, 1, 3, 37, 1024, 1028, 2055}) require_glu_bits<float>(glu, n);
    for (size_t n : {3, 1028}) require_glu_bits<bf16>(glu, n);
  }
}

TEST_CASE("swiglu_clamped: at a bound the gradient passes, beyond it does not") {
  const std::vector<double> g = {1, 7, 7.5, 1, 1, 1, 1, -100}, u = {0.5, 0, 0, 7, -7, 8, -9, 2}, dy(8, 1.0);
  std::vector<double> dg(8), du(8);
  swiglu_clamped_backward_ref(dg.data(), du.data(), dy.data(), g.data(), u.data(), 8);
  for (size_t i = 0; i < 8; i++) {
    INFO(i);
    REQUIRE((dg[i] == 0) == (g[i] > 7));
    REQUIRE((du[i] == 0) == (u[i] > 7 || u[i] < -7));
  }
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
