// adamw: against the paper's formulas in double, what the program runs against the reference, several tensors in one
// launch, clipping, and a norm that is not finite.
#include "kernels/adamw.h"

#include <cfloat>

#include "tests/harness.h"

using namespace gated;

namespace {

const AdamWHyperparameters usual = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f};
const float norm_of_one = 1.0f;  // is not clipped

struct State {
  std::vector<float> w, m, v;
};

// A step of the reference over one tensor.
void update(State& s, const std::vector<float>& g, float norm, const AdamWStep& step) {
  adamw_tensor_ref(s.w.data(), s.m.data(), s.v.data(), g.data(), &norm, g.size(), step);
}

void require_equal(const State& expected, const State& got) {
  require_same({expected.w, expected.m, expected.v}, {got.w, got.m, got.v});
}

State start(size_t n) {
  State s{random_values<float>(n, 1), random_values<float>(n, 2, 0.1f), random_values<float>(n, 3, 0.01f)};
  for (float& v : s.v) v = std::fabs(v);
  return s;
}

// A step of what the program runs, over flat buffers of tensors, at once, and in two parts with a copy of the weights.
void require_step(const State& before, const State& expected, const std::vector<float>& gradient, float norm_of_all,
                  const std::vector<AdamWTensor>& tensors, const AdamWStep& step) {
  // Nothing is written between tensors, and nothing at all under a norm that is not finite.
  std::vector<float> copies(before.w.size(), -1.0f);
  for (const AdamWTensor& t : tensors)
    for (size_t i = t.offset; i < t.offset + t.size && norm_of_all <= FLT_MAX; i++) copies[i] = expected.w[i];
  Trial t;
  const auto w = t.sum(before.w, expected.w), m = t.sum(before.m, expected.m), v = t.sum(before.v, expected.v),
             w2 = t.again(w), m2 = t.again(m), v2 = t.again(v), g = t.in(gradient), norm = t.in({norm_of_all});
  const auto copy = t.sum<bf16>(std::vector<float>(before.w.size(), -1.0f), copies);
  t.on_every_device([&](Context& ctx) {
    AdamWPlan plan(tensors, ctx);
    plan.set_step(step, ctx);
    const size_t blocks = plan.block_count(), half = (blocks + 1) / 2;
    adamw_update(w, m, v, nullptr, g, norm, plan, {0, blocks}, ctx);
    REQUIRE(ctx.most_scratch_used() == 0);
    adamw_update(w2, m2, v2, copy, g, norm, plan, {0, half}, ctx);
    if (half < blocks) adamw_update(w2, m2, v2, copy, g, norm, plan, {half, blocks - half}, ctx);
  });
}

// Steps by one plan, each with a norm and a clip of its own.
void require_steps(const State& expected, const std::vector<float>& gradient, const std::vector<float>& norms,
                   const std::vector<float>& clips) {
  const State before = start(gradient.size());
  Trial t;
  const auto w = t.sum(before.w, expected.w), m = t.sum(before.m, expected.m), v = t.sum(before.v, expected.v),
             g = t.in(gradient);
  t.on_every_device([&](Context& ctx) {
    const std::vector<AdamWTensor> tensors = {{0, gradient.size(), true}};
    AdamWPlan plan(tensors, ctx);
    REQUIRE(AdamWPlan::bytes(tensors) == plan.block_count() * sizeof(AdamWBlock) + sizeof(AdamWStep) + sizeof(int));
    for (size_t i = 0; i < norms.size(); i++) {
      const Guarded norm(ctx, std::vector<float>{norms[i]});
      plan.set_step(adamw_at_step(usual, i + 1, clips[i]), ctx);
      adamw_update(w, m, v, nullptr, g, norm, plan, {0, plan.block_count()}, ctx);
      ctx.synchronize();
    }
  });
}

}  // namespace

TEST_CASE("adamw: ten steps of the paper's algorithm in double") {
  const size_t n = 37;
  State s{random_values<float>(n, 1), std::vector<float>(n, 0.0f), std::vector<float>(n, 0.0f)};
  auto in_double = [](const std::vector<float>& x) { return std::vector<double>(x.begin(), x.end()); };
  std::vector<double> w = in_double(s.w), m(n, 0.0), v(n, 0.0), w_ref = w, m_ref = m, v_ref = v;
  const double lr = usual.learning_rate, b1 = usual.beta1, b2 = usual.beta2, eps = usual.epsilon, norm = 1;
  for (int t = 1; t <= 10; t++) {
    const auto g = random_values<float>(n, 100 + t, 0.5f);
    const AdamWStep step = adamw_at_step(usual, t, INFINITY);
    update(s, g, norm_of_one, step);
    adamw_tensor_ref(w_ref.data(), m_ref.data(), v_ref.data(), in_double(g).data(), &norm, n, step);
    for (size_t i = 0; i < n; i++) {
      m[i] = b1 * m[i] + (1 - b1) * g[i];
      v[i] = b2 * v[i] + (1 - b2) * g[i] * g[i];
      const double mhat = m[i] / (1 - std::pow(b1, t)), vhat = v[i] / (1 - std::pow(b2, t));
      w[i] = w[i] - lr * usual.weight_decay * w[i] - lr * mhat / (std::sqrt(vhat) + eps);
    }
  }
  REQUIRE(relative_error(m, m_ref) < 1e-14);
  REQUIRE(relative_error(v, v_ref) < 1e-14);
  REQUIRE(relative_error(w, w_ref) < 1e-9);  // the corrections are floats
  REQUIRE(relative_error(m, in_double(s.m)) < 1e-6);
  REQUIRE(relative_error(v, in_double(s.v)) < 1e-6);
  REQUIRE(relative_error(w, in_double(s.w)) < 1e-6);
}

TEST_CASE("adamw: what the program runs equals the reference bit for bit", "[bitwise]") {
  for (size_t n : {0, 1, 2, 3, 4, 5, 63, 1023, 1024, 1028, 4099}) {
    INFO("n " << n);
    const auto g = random_values<float>(n, 4, 0.5f);
    for (float norm : {0.5f, 3.0f}) {  // below and above the clip of 1
      const AdamWStep step = adamw_at_step(usual, 7, 1.0f);
      State expected = start(n);
      update(expected, g, norm, step);
      require_step(start(n), expected, g, norm, {{0, n, true}}, step);
    }
  }
}

TEST_CASE("adamw: many tensors in one launch are the tensors one by one, and what lies between them stays",
          "[bitwise]") {
  const std::vector<AdamWTensor> tensors = {{0, 1, false},    {32, 2048, true}, {2080, 31, true},   {2112, 1025, false},
                                            {3168, 4, false}, {3200, 0, true},  {3200, 1030, true}, {4256, 700, false}};
  const size_t n = 4256 + 704;
  auto g = random_values<float>(n, 4, 0.5f);
  State before = start(n);
  before.w[33] = -0.0f;
  before.w[2113] = -0.0f;
  State expected = before;
  const AdamWStep step = adamw_at_step(usual, 7, 1.0f);
  for (const AdamWTensor& t : tensors)
    for (size_t i = t.offset; i < t.offset + t.size; i++) {
      // one element after the other, each a tensor of its own
      AdamWStep here = step;
      here.weight_decay = t.decays ? usual.weight_decay : 0.0f;
      const float norm = 3.0f;
      adamw_tensor_ref(&expected.w[i], &expected.m[i], &expected.v[i], &g[i], &norm, 1, here);
    }
  State reference = before;
  const float norm = 3.0f;
  adamw_update_ref(reference.w.data(), reference.m.data(), reference.v.data(), g.data(), &norm, tensors, step);
  require_equal(expected, reference);
  REQUIRE(expected.w[1] == before.w[1]);  // padding
  require_step(before, expected, g, norm, tensors, step);
}

TEST_CASE("adamw: one plan serves steps of different numbers", "[bitwise]") {
  const size_t n = 1500;
  const auto g = random_values<float>(n, 4, 0.5f);
  State expected = start(n);
  for (size_t t : {1, 2, 3}) update(expected, g, 2.0f, adamw_at_step(usual, t, float(t)));
  require_steps(expected, g, {2.0f, 2.0f, 2.0f}, {1.0f, 2.0f, 3.0f});
}

TEST_CASE("adamw: clipping multiplies the gradient by clip/norm", "[bitwise]") {
  const size_t n = 29;
  const auto g = random_values<float>(n, 4, 0.5f);
  auto after = [&](const std::vector<float>& g, float norm, float clip) {
    State s = start(n);
    update(s, g, norm, adamw_at_step(usual, 3, clip));
    return s;
  };
  const State plain = after(g, 0.5f, INFINITY);
  require_equal(plain, after(g, 0.999f, 1.0f));
  require_equal(plain, after(g, 1.0f, 1.0f));
  require_equal(plain, after(g, 3.0f, INFINITY));
  auto scaled = g;
  for (float& v : scaled) v = v * (1.0f / 3.0f);
  require_equal(after(scaled, 0.5f, INFINITY), after(g, 3.0f, 1.0f));
  REQUIRE(bitwise_difference(plain.w, after(g, 3.0f, 1.0f).w) != "");
}

TEST_CASE("adamw: a norm that is not finite changes nothing", "[bitwise]") {
  for (size_t n : {5, 1024, 1500})
    for (float norm : {float(NAN), float(INFINITY)})
      for (float clip : {1.0f, float(INFINITY)}) {
        const AdamWStep step = adamw_at_step(usual, 3, clip);
        const State before = start(n);
        auto g = random_values<float>(n, 4);
        g[n / 2] = norm;
        State s = before;
        update(s, g, norm, step);
        require_equal(before, s);
        require_step(before, before, g, norm, {{0, n, true}}, step);
      }
  // The largest norm that is finite still updates.
  const auto g = random_values<float>(5, 4);
  const AdamWStep step = adamw_at_step(usual, 3, 1.0f);
  State after = start(5);
  update(after, g, FLT_MAX, step);
  REQUIRE(bitwise_difference(start(5).m, after.m) != "");
  require_step(start(5), after, g, FLT_MAX, {{0, 5, true}}, step);
}

TEST_CASE("adamw: after a norm that is not finite the weights stay, however good the next one is", "[bitwise]") {
  const size_t n = 1500;
  const auto g = random_values<float>(n, 4, 0.5f);
  for (float bad : {float(NAN), float(INFINITY)}) {
    State expected = start(n);  // of the step before
    update(expected, g, norm_of_one, adamw_at_step(usual, 1, 1.0f));
    require_steps(expected, g, {norm_of_one, bad, norm_of_one}, {1.0f, 1.0f, 1.0f});
  }
}

TEST_CASE("adamw: the corrections of a step") {
  for (size_t t : {1, 2, 3, 10, 1000, 100000}) {
    const AdamWStep a = adamw_at_step(usual, t, 1.0f);
    REQUIRE(a.correction1 == Approx(1 / (1 - std::pow(double(0.9f), double(t)))).epsilon(1e-6));
    REQUIRE(a.correction2 == Approx(1 / std::sqrt(1 - std::pow(double(0.95f), double(t)))).epsilon(1e-6));
  }
}

TEST_CASE("adamw: what is refused") {
  for (const auto& [beta1, beta2, epsilon] :
       {std::array{1.0f, 0.95f, 1e-8f}, {0.9f, -0.1f, 1e-8f}, {0.9f, NAN, 1e-8f}, {0.9f, 0.95f, 0.0f}})
    REQUIRE_THROWS_AS(adamw_at_step({1e-3f, beta1, beta2, epsilon, 0.1f}, 1, 1.0f), Error);
  REQUIRE_THROWS_AS(adamw_at_step(usual, 0, 1.0f), Error);
  for (float clip : {0.0f, float(NAN)}) REQUIRE_THROWS_AS(adamw_at_step(usual, 1, clip), Error);
  Context cpu(Device::cpu);
  REQUIRE_THROWS_AS(AdamWPlan({{0, 1, true}, {2, 1, true}}, cpu), Error);
}
