// adamw: against the paper's formulas in double, the kernel against the reference, clipping, and a norm that
// is not finite.
#include "kernels/adamw.cuh"

#include "tests/harness.h"

using namespace gated;

namespace {

const AdamWHyperparameters usual = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f};

struct State {
  std::vector<float> w, m, v;
};

// A step on the CPU; norm is a pointer as in adamw_update.
void update(State& s, const std::vector<float>& g, const float* norm, float clip, const AdamW& a) {
  Context cpu(Device::cpu);
  adamw_update(s.w.data(), s.m.data(), s.v.data(), g.data(), norm, clip, g.size(), a, cpu);
}

void require_equal(const State& expected, const State& got) {
  REQUIRE_BITWISE(expected.w, got.w);
  REQUIRE_BITWISE(expected.m, got.m);
  REQUIRE_BITWISE(expected.v, got.v);
}

State start(size_t n) {
  State s{random_values<float>(n, 1), random_values<float>(n, 2, 0.1f), random_values<float>(n, 3, 0.01f)};
  for (float& v : s.v) v = std::fabs(v);
  return s;
}

}  // namespace

TEST_CASE("adamw: ten steps of the paper's algorithm in double") {
  const size_t n = 37;
  State s{random_values<float>(n, 1), std::vector<float>(n, 0.0f), std::vector<float>(n, 0.0f)};
  std::vector<double> w(s.w.begin(), s.w.end()), m(n, 0.0), v(n, 0.0);
  const double lr = usual.learning_rate, b1 = usual.beta1, b2 = usual.beta2, eps = usual.epsilon;
  for (int t = 1; t <= 10; t++) {
    const auto g = random_values<float>(n, 100 + t, 0.5f);
    update(s, g, nullptr, 1.0f, adamw_at_step(usual, t));
    for (size_t i = 0; i < n; i++) {
      m[i] = b1 * m[i] + (1 - b1) * g[i];
      v[i] = b2 * v[i] + (1 - b2) * g[i] * g[i];
      const double mhat = m[i] / (1 - std::pow(b1, t)), vhat = v[i] / (1 - std::pow(b2, t));
      w[i] = w[i] - lr * usual.weight_decay * w[i] - lr * mhat / (std::sqrt(vhat) + eps);
    }
  }
  auto in_double = [](const std::vector<float>& x) { return std::vector<double>(x.begin(), x.end()); };
  REQUIRE(relative_error(m, in_double(s.m)) < 1e-6);
  REQUIRE(relative_error(v, in_double(s.v)) < 1e-6);
  REQUIRE(relative_error(w, in_double(s.w)) < 1e-6);
}

TEST_CASE("adamw: under a constant gradient every step is the learning rate") {
  // Corrected, the moments of a constant gradient are the gradient and its square at every step.
  AdamWHyperparameters h = usual;
  h.weight_decay = 0;
  State s{{0.0f, 0.0f}, {0.0f, 0.0f}, {0.0f, 0.0f}};
  for (int t = 1; t <= 300; t++) {
    update(s, {0.25f, -3.0f}, nullptr, 1.0f, adamw_at_step(h, t));
    REQUIRE(s.w[0] == Approx(-1e-3 * t).epsilon(1e-5));
    REQUIRE(s.w[1] == Approx(1e-3 * t).epsilon(1e-5));
  }
}

TEST_CASE("adamw: weight decay is decoupled from the gradient") {
  State s{{2.0f}, {0.0f}, {0.0f}};
  update(s, {0.0f}, nullptr, 1.0f, adamw_at_step(usual, 1));
  REQUIRE(s.w[0] == Approx(2.0 * (1 - 1e-3 * 0.1)).epsilon(1e-7));
  REQUIRE(s.m[0] == 0.0f);
  REQUIRE(s.v[0] == 0.0f);
}

TEST_CASE("adamw: kernel equals the reference bit for bit", "[bitwise]") {
  for (size_t n : {0, 1, 2, 3, 4, 5, 63, 1023, 1024, 1028, 4099}) {
    INFO("n " << n);
    const auto g = random_values<float>(n, 4, 0.5f);
    for (float norm : {0.5f, 3.0f})  // below and above the clip of 1
      for (bool with_norm : {false, true}) {
        const AdamW a = adamw_at_step(usual, 7);
        State expected = start(n);
        adamw_update_ref(expected.w.data(), expected.m.data(), expected.v.data(), g.data(), with_norm ? &norm : nullptr,
                         1.0f, n, a);
        on_every_device([&](Context& ctx) {
          const State s = start(n);
          Guarded w(ctx, s.w), m(ctx, s.m), v(ctx, s.v), gg(ctx, g), gnorm(ctx, std::vector<float>{norm});
          adamw_update(w, m, v, gg, with_norm ? +gnorm : nullptr, 1.0f, n, a, ctx);
          require_equal(expected, {w.download(), m.download(), v.download()});
        });
      }
  }
}

TEST_CASE("adamw: clipping multiplies the gradient by clip/norm", "[bitwise]") {
  const size_t n = 29;
  const AdamW a = adamw_at_step(usual, 3);
  const auto g = random_values<float>(n, 4, 0.5f);
  auto after = [&](const std::vector<float>& g, const float* norm, float clip) {
    State s = start(n);
    update(s, g, norm, clip, a);
    return s;
  };
  const State plain = after(g, nullptr, 1.0f);
  const float below = 0.999f, at = 1.0f, above = 3.0f;
  require_equal(plain, after(g, &below, 1.0f));
  require_equal(plain, after(g, &at, 1.0f));
  require_equal(plain, after(g, &above, INFINITY));
  auto scaled = g;
  for (float& v : scaled) v = v * (1.0f / 3.0f);
  require_equal(after(scaled, nullptr, 1.0f), after(g, &above, 1.0f));
  REQUIRE(bitwise_difference(plain.w, after(g, &above, 1.0f).w) != "");
}

TEST_CASE("adamw: a norm that is not finite changes nothing", "[bitwise]") {
  const AdamW a = adamw_at_step(usual, 3);
  for (size_t n : {5, 1024})
    for (float norm : {float(NAN), float(INFINITY)})
      for (float clip : {1.0f, float(INFINITY)}) {
        const State before = start(n);
        auto g = random_values<float>(n, 4);
        g[n / 2] = norm;
        State s = before;
        update(s, g, &norm, clip, a);
        require_equal(before, s);
        on_every_device([&](Context& ctx) {
          Guarded w(ctx, before.w), m(ctx, before.m), v(ctx, before.v), gg(ctx, g),
              gnorm(ctx, std::vector<float>{norm});
          adamw_update(w, m, v, gg, gnorm, clip, n, a, ctx);
          require_equal(before, {w.download(), m.download(), v.download()});
        });
      }
  // The largest norm that is finite still updates.
  const float largest = FLT_MAX;
  State s = start(5);
  update(s, random_values<float>(5, 4), &largest, 1.0f, a);
  REQUIRE(bitwise_difference(start(5).m, s.m) != "");
}

TEST_CASE("adamw: the corrections of a step") {
  for (size_t t : {1, 2, 3, 10, 1000, 100000}) {
    const AdamW a = adamw_at_step(usual, t);
    REQUIRE(a.correction1 == Approx(1 / (1 - std::pow(double(0.9f), double(t)))).epsilon(1e-6));
    REQUIRE(a.correction2 == Approx(1 / std::sqrt(1 - std::pow(double(0.95f), double(t)))).epsilon(1e-6));
  }
  REQUIRE(power(3.0, 5) == 243.0);
  REQUIRE(power(0.5, 0) == 1.0);
  REQUIRE(power(0.0, 3) == 0.0);
}

TEST_CASE("adamw: what is refused") {
  auto with = [](auto change) {
    AdamWHyperparameters h = usual;
    change(h);
    return h;
  };
  REQUIRE_THROWS_AS(adamw_at_step(usual, 0), Error);
  REQUIRE_THROWS_AS(adamw_at_step(with([](auto& h) { h.beta1 = 1.0f; }), 1), Error);
  REQUIRE_THROWS_AS(adamw_at_step(with([](auto& h) { h.beta2 = -0.1f; }), 1), Error);
  REQUIRE_THROWS_AS(adamw_at_step(with([](auto& h) { h.beta2 = NAN; }), 1), Error);
  REQUIRE_THROWS_AS(adamw_at_step(with([](auto& h) { h.epsilon = 0.0f; }), 1), Error);
  State s = start(1);
  const float norm = 1.0f;
  REQUIRE_THROWS_AS(update(s, {1.0f}, &norm, 0.0f, adamw_at_step(usual, 1)), Error);
}
