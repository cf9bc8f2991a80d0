// decay: the references against finite differences, the CPU's code and the kernels against the references.
#include "kernels/decay.h"

#include "tests/harness.h"

using namespace gated;

TEST_CASE("decay: gradients against finite differences", "[gradcheck]") {
  const DecayShape s{5, 3};
  const size_t n = s.N * s.H;
  auto a = random_values<double>(n, 1, 3), b = random_values<double>(n, 2, 3), A_log = random_values<double>(s.H, 3),
       dt_bias = random_values<double>(s.H, 4);
  const auto dg = random_values<double>(n, 5), dbeta = random_values<double>(n, 6);
  std::vector<double> g(n), beta(n), da(n), db(n), dA_log(s.H, 0.0), ddt_bias(s.H, 0.0);
  decay_backward_ref(da.data(), db.data(), dA_log.data(), ddt_bias.data(), dg.data(), dbeta.data(), a.data(), b.data(),
                     A_log.data(), dt_bias.data(), s);
  const auto loss = [&] {
    decay_forward_ref(g.data(), beta.data(), a.data(), b.data(), A_log.data(), dt_bias.data(), s);
    return dot(g, dg) + dot(beta, dbeta);
  };
  check_gradients(loss, {{"a", a, da}, {"b", b, db}, {"A_log", A_log, dA_log}, {"dt_bias", dt_bias, ddt_bias}});
}

// In bf16 the reference is given what is stored. a and b may lie in wider rows, from element `at` on.
template <class S>
static void require_bits(const DecayShape& s, size_t at) {
  INFO("N " << s.N << " H " << s.H << " stride " << s.stride << ", " << name_of(storage_of<S>));
  const size_t n = s.N * s.H;
  Trial t;
  const auto a = t.random<S>(n, 1, 20.0f), b = t.random<S>(n, 2, 20.0f), da = t.out<S>(n), db = t.out<S>(n),
             da_over_a = t.over(a, da), db_over_b = t.over(b, db);
  const auto dg = t.random(n, 5), dbeta = t.random(n, 6), g = t.out(n), beta = t.out(n);
  const auto A_log = t.random(s.H, 3, 3.0f), dt_bias = t.random(s.H, 4), dA_log = t.sum(s.H, 7),
             ddt_bias = t.sum(s.H, 8), dA_again = t.again(dA_log), ddt_again = t.again(ddt_bias);
  decay_forward_ref(g.ref, beta.ref, a.ref, b.ref, A_log.ref, dt_bias.ref, {s.N, s.H});
  decay_backward_ref(da.ref, db.ref, dA_log.ref, ddt_bias.ref, dg.ref, dbeta.ref, a.ref, b.ref, A_log.ref, dt_bias.ref,
                     {s.N, s.H});
  widen<S>({a, b, da, db, da_over_a, db_over_b}, s.N, s.stride, at);
  t.on_every_device([&](Context& ctx) {
    decay_forward(g, beta, a, b, A_log, dt_bias, s, ctx);
    decay_backward({da, db, dA_log, ddt_bias}, dg, dbeta, a, b, A_log, dt_bias, s, ctx);
    if (ctx.device == kernel_device) REQUIRE(ctx.most_scratch_used() == decay_backward_scratch(s));
    decay_backward({da_over_a, db_over_b, dA_again, ddt_again}, dg, dbeta, da_over_a, db_over_b, A_log, dt_bias, s,
                   ctx);
  });
}

TEST_CASE("decay: CPU and kernels equal the reference bit for bit", "[bitwise]") {
  const struct { size_t N, H, stride, at; } sizes[] = {{63, 4, 0, 0}, {1, 1, 0, 0}, {300, 33, 0, 0}, {130, 6, 15, 2}};
  for (auto [N, H, stride, at] : sizes) {
    require_bits<float>({N, H, stride}, at);
    require_bits<bf16>({N, H, stride}, at);
  }
}

TEST_CASE("decay: what it refuses") {
  Context cpu(Device::cpu);
  float x[4] = {}, y[4] = {};
  REQUIRE_THROWS_WITH(decay_forward(y, y, x, x, x, x, {1, 4, 3}, cpu),
                      "decay_forward: the stride is 3, expected 0 or at least the 4 heads");
}
