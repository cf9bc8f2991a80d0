// layernorm: the references against finite differences and their definition, the CPU's code and the kernels against the
// references.
#include "kernels/layernorm.h"

#include "tests/norm_cases.h"

using namespace gated;

// (The general reference calls the plain one.)
TEST_CASE("layernorm: gradients against finite differences", "[gradcheck]") {
  for (const Join& join : norm_joins()) {
    INFO("plain " << join.plain());
    NormGradients g;
    const size_t N = g.N, C = g.C;
    auto w = random_values<double>(C, 3), b = random_values<double>(C, 6);
    std::vector<double> mean(N), r(N), dw(C, 0.0), db(C, 0.0);
    const auto loss = [&] {
      layernorm_general_forward_ref<double>({g.y.data(), mean.data(), r.data(), g.sum.data()}, g.in(join), w.data(),
                                            b.data(), N, C, 1e-5);
      return g.loss();
    };
    loss();
    layernorm_general_backward_ref<double>({g.dx.data(), g.dbranch.data(), dw.data(), db.data()}, g.dy.data(),
                                           g.back(join), w.data(), mean.data(), r.data(), N, C);
    check_gradients(loss, {{"x", g.x, g.dx}, {"branch", g.branch, g.dbranch}, {"w", w, dw}, {"b", b, db}});
  }
}

template <class S>
static void require_bits(size_t N, size_t C, const NormCase& c) {
  INFO("N " << N << " C " << C << " branch " << c.branch << " dresidual " << c.dresidual << " plain " << c.join.plain()
            << ", " << name_of(storage_of<S>));
  const float eps = 1e-5f;
  NormTrial<S> t(c, N, C);
  const auto w = t.random(C, 3), b = t.random(C, 6), mean = t.out(N), r = t.out(N), dw = t.sum(C, 7), db = t.sum(C, 8),
             dw_in_place = t.again(dw), db_in_place = t.again(db);
  const auto in_place = t.over(c.dresidual ? t.dres : t.dy, t.dx);
  layernorm_general_forward_ref<float>({t.y.ref, mean.ref, r.ref}, {t.normed().ref}, w.ref, b.ref, N, C, eps);
  layernorm_general_backward_ref<float>({t.dx.ref, t.dbranch.ref, dw.ref, db.ref}, t.dy.ref, t.back_ref(), w.ref,
                                        mean.ref, r.ref, N, C);
  t.on_every_device([&](Context& ctx) {
    ResidualBackwardIn back = t.back(ctx);
    layernorm_forward({t.y, mean, r, t.joined}, t.joins(ctx), w, b, N, C, eps, ctx);
    layernorm_backward({t.dx, t.dbranch, dw, db}, t.dy, back, w, mean, r, N, C, ctx);
    if (c.dresidual) back.dresidual = in_place;
    layernorm_backward({in_place, t.dbranch, dw_in_place, db_in_place}, c.dresidual ? t.dy : in_place, back, w, mean, r,
                       N, C, ctx);
    if (ctx.device == kernel_device) REQUIRE(ctx.most_scratch_used() == layernorm_backward_scratch(N, C));
  });
}

TEST_CASE("layernorm: CPU and kernels equal the references bit for bit", "[bitwise]") {
  for_norm_cases([](auto stored, size_t N, size_t C, const NormCase& c) { require_bits<decltype(stored)>(N, C, c); });
}

TEST_CASE("layernorm: a row is normalised alike, wherever it was") {
  // Powers of two scale it exactly; a shift of 1000 costs x bits (2^-14 of them are left), but no cancellation more.
  const size_t C = 200;
  Context cpu(Device::cpu);
  const auto x = random_values<float>(C, 1);
  const std::vector<float> w(C, 1.0f), b(C, 0.0f);
  auto norm = [&](float scale, float shift) {
    std::vector<float> at = x, y(C), mean(1), r(1);
    for (float& v : at) v = v * scale + shift;
    layernorm_forward({y.data(), mean.data(), r.data()}, {at.data()}, w.data(), b.data(), 1, C, 0.0f, cpu);
    return y;
  };
  const auto y = norm(1, 0);
  REQUIRE_BITWISE(y, norm(0x1p20f, 0));
  REQUIRE(relative_error(y, norm(1, 1000)) < 2e-4);
}

TEST_CASE("layernorm: a constant row gives the bias, and its gradient is finite") {
  const size_t C = 131;
  Context cpu(Device::cpu);
  const std::vector<float> x(C, 3.0f), w = random_values<float>(C, 1), b = random_values<float>(C, 2);
  const auto dy = random_values<float>(C, 3);
  std::vector<float> y(C), mean(1), r(1), dx(C), dw(C), db(C);
  layernorm_forward({y.data(), mean.data(), r.data()}, {x.data()}, w.data(), b.data(), 1, C, 1e-5f, cpu);
  REQUIRE_BITWISE(b, y);
  layernorm_backward({.dx = dx.data(), .dw = dw.data(), .db = db.data()}, dy.data(), {x.data()}, w.data(), mean.data(),
                     r.data(), 1, C, cpu);
  for (float v : dx) REQUIRE(std::isfinite(v));
}
