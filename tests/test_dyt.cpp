// dyt: the references against finite differences, the CPU's code and the kernels against the references.
#include "kernels/dyt.h"

#include "tests/norm_cases.h"

using namespace gated;

// (The general reference calls the plain one.)
TEST_CASE("dyt: gradients against finite differences", "[gradcheck]") {
  for (const Join& join : norm_joins()) {
    INFO("plain " << join.plain());
    NormGradients g;
    const size_t N = g.N, C = g.C;
    auto w = random_values<double>(C, 3), b = random_values<double>(C, 6);
    std::vector<double> alpha = {0.8}, dalpha(1, 0.0), dw(C, 0.0), db(C, 0.0);
    const auto loss = [&] {
      dyt_general_forward_ref<double>({g.y.data(), g.sum.data()}, g.in(join), alpha.data(), w.data(), b.data(), N, C);
      return g.loss();
    };
    loss();
    dyt_general_backward_ref<double>({g.dx.data(), g.dbranch.data(), dalpha.data(), dw.data(), db.data()}, g.dy.data(),
                                     g.back(join), alpha.data(), w.data(), N, C);
    check_gradients(loss, {{"x", g.x, g.dx}, {"branch", g.branch, g.dbranch}});
    check_gradients(loss, {{"alpha", alpha, dalpha}, {"w", w, dw}, {"b", b, db}});
  }
}

template <class S>
static void require_bits(size_t N, size_t C, const NormCase& c) {
  INFO("N " << N << " C " << C << " branch " << c.branch << " dresidual " << c.dresidual << " plain " << c.join.plain()
            << ", " << name_of(storage_of<S>));
  NormTrial<S> t(c, N, C);
  const auto alpha = t.in({0.7f}), w = t.random(C, 3), b = t.random(C, 6);
  const auto dalpha = t.sum({-0.3f}), dw = t.sum(C, 7), db = t.sum(C, 8);
  const auto da_in_place = t.again(dalpha), dw_in_place = t.again(dw), db_in_place = t.again(db);
  const auto in_place = t.over(c.dresidual ? t.dres : t.dy, t.dx);
  dyt_general_forward_ref<float>({t.y.ref}, {t.normed().ref}, alpha.ref, w.ref, b.ref, N, C);
  dyt_general_backward_ref<float>({t.dx.ref, t.dbranch.ref, dalpha.ref, dw.ref, db.ref}, t.dy.ref, t.back_ref(),
                                  alpha.ref, w.ref, N, C);
  t.on_every_device([&](Context& ctx) {
    const Guarded sums(ctx, N);
    ResidualBackwardIn back = t.back(ctx);
    dyt_forward({t.y, t.joined}, t.joins(ctx), alpha, w, b, N, C, ctx);
    dyt_backward({t.dx, t.dbranch, dalpha, dw, db, sums}, t.dy, back, alpha, w, N, C, ctx);
    if (c.dresidual) back.dresidual = in_place;
    dyt_backward({in_place, t.dbranch, da_in_place, dw_in_place, db_in_place, sums}, c.dresidual ? t.dy : in_place,
                 back, alpha, w, N, C, ctx);
    if (ctx.device == kernel_device) REQUIRE(ctx.most_scratch_used() == dyt_backward_scratch(N, C));
  });
}

TEST_CASE("dyt: CPU and kernels equal the references bit for bit", "[bitwise]") {
  for_norm_cases([](auto stored, size_t N, size_t C, const NormCase& c) { require_bits<decltype(stored)>(N, C, c); });
}
