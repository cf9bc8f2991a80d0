// decay: the references against finite differences, the CPU's code and the kernels against the references.
#include "kernels/decay.h"

#include <algorithm>

#include "tests/harness.h"

using namespace gated;

TEST_CASE("decay: by hand") {
  const std::vector<double> a = {0.5}, b = {0}, A_log = {std::log(3.0)}, dt_bias = {-0.5};
  std::vector<double> g(1), beta(1);
  decay_forward_ref(g.data(), beta.data(), a.data(), b.data(), A_log.data(), dt_bias.data(), {1, 1});
  REQUIRE(g[0] == Approx(-3 * std::log(2.0)));
  REQUIRE(beta[0] == Approx(0.5));
}

TEST_CASE("decay: gradients against finite differences", "[gradcheck]") {
  const DecayShape s{5, 3};
  const size_t n = s.N * s.H;
  const auto a = random_values<double>(n, 1, 3), b = random_values<double>(n, 2, 3),
             A_log = random_values<double>(s.H, 3), dt_bias = random_values<double>(s.H, 4),
             dg = random_values<double>(n, 5), dbeta = random_values<double>(n, 6);
  std::vector<double> g(n), beta(n), da(n), db(n), dA_log(s.H, 0.0), ddt_bias(s.H, 0.0);
  const auto loss = [&](auto& a, auto& b, auto& A_log, auto& dt_bias) {
    decay_forward_ref(g.data(), beta.data(), a.data(), b.data(), A_log.data(), dt_bias.data(), s);
    return dot(g, dg) + dot(beta, dbeta);
  };
  decay_backward_ref(da.data(), db.data(), dA_log.data(), ddt_bias.data(), dg.data(), dbeta.data(), a.data(), b.data(),
                     A_log.data(), dt_bias.data(), s);
  check_gradient(
      "a", [&](auto& x) { return loss(x, b, A_log, dt_bias); }, a, da);
  check_gradient(
      "b", [&](auto& x) { return loss(a, x, A_log, dt_bias); }, b, db);
  check_gradient(
      "A_log", [&](auto& x) { return loss(a, b, x, dt_bias); }, A_log, dA_log);
  check_gradient(
      "dt_bias", [&](auto& x) { return loss(a, b, A_log, x); }, dt_bias, ddt_bias);
}

// In bf16 the reference is given what is stored.
template <class S>
static void require_bits() {
  INFO(name_of(storage_of<S>));
  const struct { size_t N, H, stride, at; } sizes[] = {{63, 4, 0, 0}, {1, 1, 0, 0}, {300, 33, 0, 0}, {130, 6, 15, 2}};
  for (auto [N, H, stride, at] : sizes) {
    INFO("N " << N << " H " << H << " stride " << stride);
    const DecayShape s{N, H, stride};
    const size_t n = N * H, step = stride ? stride : H;
    // a and b of wider rows: what lies between is NaN in inputs, and 7 in outputs.
    const auto spread = [&, N = N, H = H, at = at](const std::vector<float>& x, float between) {
      std::vector<float> wide(N * step + at, between);
      for (size_t i = 0; i < N; i++) std::copy_n(&x[i * H], H, &wide[i * step + at]);
      return wide;
    };
    const auto a = stored<S>(random_values<float>(n, 1, 20.0f)), b = stored<S>(random_values<float>(n, 2, 20.0f)),
               A_log = random_values<float>(H, 3, 3.0f), dt_bias = random_values<float>(H, 4),
               dg = random_values<float>(n, 5), dbeta = random_values<float>(n, 6),
               dA_log0 = random_values<float>(H, 7), ddt_bias0 = random_values<float>(H, 8);
    std::vector<float> g(n, NAN), beta(n, NAN), da(n, NAN), db(n, NAN), dA_log = dA_log0, ddt_bias = ddt_bias0;
    decay_forward_ref(g.data(), beta.data(), a.data(), b.data(), A_log.data(), dt_bias.data(), {N, H});
    decay_backward_ref(da.data(), db.data(), dA_log.data(), ddt_bias.data(), dg.data(), dbeta.data(), a.data(),
                       b.data(), A_log.data(), dt_bias.data(), {N, H});
    da = stored<S>(da), db = stored<S>(db);
    on_every_device([&, H = H, at = at](Context& ctx) {
      GuardedOf<S> ga(ctx, spread(a, NAN)), gb(ctx, spread(b, NAN));
      Guarded gA(ctx, A_log), gdt(ctx, dt_bias), gdg(ctx, dg), gdbeta(ctx, dbeta), gg(ctx, n), gbeta(ctx, n);
      decay_forward(gg, gbeta, ga + at, gb + at, gA, gdt, s, ctx);
      REQUIRE_BITWISE(g, gg.download());
      REQUIRE_BITWISE(beta, gbeta.download());
      GuardedOf<S> gda(ctx, spread(a, 7)), gdb(ctx, spread(b, 7));
      Guarded gdA(ctx, dA_log0), gddt(ctx, ddt_bias0);
      decay_backward({gda + at, gdb + at, gdA, gddt}, gdg, gdbeta, ga + at, gb + at, gA, gdt, s, ctx);
      REQUIRE_BITWISE(spread(da, 7), gda.download());
      REQUIRE_BITWISE(spread(db, 7), gdb.download());
      REQUIRE_BITWISE(dA_log, gdA.download());
      REQUIRE_BITWISE(ddt_bias, gddt.download());
      if (ctx.device == kernel_device) REQUIRE(ctx.most_scratch_used() == decay_backward_scratch(s));
      GuardedOf<S> in_a(ctx, spread(a, 7)), in_b(ctx, spread(b, 7));  // in place
      decay_backward({in_a + at, in_b + at, gdA, gddt}, gdg, gdbeta, in_a + at, in_b + at, gA, gdt, s, ctx);
      REQUIRE_BITWISE(spread(da, 7), in_a.download());
      REQUIRE_BITWISE(spread(db, 7), in_b.download());
    });
  }
}

TEST_CASE("decay: CPU and kernels equal the reference bit for bit", "[bitwise]") {
  require_bits<float>();
  require_bits<bf16>();
}

TEST_CASE("decay: what it refuses") {
  Context cpu(Device::cpu);
  float x[4] = {}, y[4] = {};
  REQUIRE_THROWS_WITH(decay_forward(y, y, x, x, x, x, {1, 4, 3}, cpu),
                      "decay_forward: the stride is 3, expected 0 or at least the 4 heads");
}
