// rmsnorm: the references against finite differences, the CPU's code and the kernels against the references.
#include "kernels/rmsnorm.h"

#include "core/sums.h"
#include "kernels/rmsnorm.cuh"
#include "tests/norm_cases.h"

using namespace gated;

// (The general reference calls the plain one.)
TEST_CASE("rmsnorm: gradients against finite differences", "[gradcheck]") {
  for (const Join& join : norm_joins())
    for (bool with_pre : {false, true})
      for (double offset : {0.0, 1.0}) {
        INFO("plain " << join.plain() << " pre " << with_pre << " offset " << offset);
        NormGradients g;
        const size_t N = g.N, C = g.C;
        auto w = random_values<double>(C, 3), pre = random_values<double>(C, 6);
        std::vector<double> r(N), dw(C, 0.0), dpre(C, 0.0);
        const RmsnormWeightsOf<double> weights = {w.data(), with_pre ? pre.data() : nullptr, offset};
        const auto loss = [&] {
          rmsnorm_general_forward_ref<double>({g.y.data(), r.data(), g.sum.data()}, g.in(join), weights, N, C, 1e-6);
          return g.loss();
        };
        loss();
        rmsnorm_general_backward_ref<double>({g.dx.data(), g.dbranch.data(), dw.data(), dpre.data()}, g.dy.data(),
                                             g.back(join), weights, r.data(), N, C);
        check_gradients(loss, {{"x", g.x, g.dx},
                               {"branch", g.branch, g.dbranch},
                               {"w", w, dw},
                               {"pre", pre, dpre}});  // without pre both are 0
      }
}

// |N(x)|_rms <= |w|_max sqrt((1 - s^2) + (e s)^2), where dimension d has the share s = |x_d| / |x| of a state and
// |w_d| <= e |w|_max (arXiv 2601.22966, A.1). So a dimension that stands out makes the others small, unless its weight
// lets it through. It is an equation where all other weights are as large.
TEST_CASE("rmsnorm: the bound on the output of a state in which one dimension stands out") {
  const size_t C = 64, top = 5;
  for (double size : {0.5, 10.0, 1000.0})
    for (double passed : {0.0, 0.004, 1.0})
      for (bool others_equal : {false, true}) {
        INFO("size " << size << ", weight " << passed << ", others " << others_equal);
        auto x = random_values<double>(C, 1), w = random_values<double>(C, 2);
        std::vector<double> y(C), r(1);
        x[top] = size;
        for (double& v : w)
          if (others_equal) v = std::copysign(1.0, v);
        w[0] = 1, w[top] = passed;
        rmsnorm_forward_ref(y.data(), r.data(), x.data(), w.data(), 1, C, 0.0);
        const double share = size / std::sqrt(dot(x, x)), got = std::sqrt(dot(y, y) / double(C));
        const double bound = std::sqrt(1 - share * share + passed * share * passed * share);
        REQUIRE(got <= bound * (1 + 1e-12));
        if (others_equal) REQUIRE(std::fabs(got - bound) <= 1e-12);
      }
}

// In bf16 the reference is given what is stored: its inputs, and the sum that it normalises.
template <class S>
static void require_bits(size_t N, size_t C, const NormCase& c, bool with_pre, float offset) {
  INFO("N " << N << " C " << C << " branch " << c.branch << " pre " << with_pre << " offset " << offset << ", "
            << name_of(storage_of<S>));
  const float eps = 1e-6f;
  NormTrial<S> t(c, N, C);
  const auto w = t.random(C, 3), r = t.out(N), dw = t.sum(C, 6), pre = with_pre ? t.random(C, 8) : Array<float>();
  const auto dpre = t.sum(C, 7);
  rmsnorm_general_forward_ref<float>({t.y.ref, r.ref}, {t.normed().ref}, {w.ref, pre.ref, offset}, N, C, eps);
  rmsnorm_general_backward_ref<float>({t.dx.ref, t.dbranch.ref, dw.ref, dpre.ref}, t.dy.ref, t.back_ref(),
                                      {w.ref, pre.ref, offset}, r.ref, N, C);
  // dx over dresidual, and, without scratch, over dy.
  const auto over_dres = c.dresidual ? t.over(t.dres, t.dx) : Array<S>(),
             over_dy = with_pre ? over_dres : t.over(t.dy, t.dx);
  const auto dw2 = c.dresidual ? t.again(dw) : dw, dpre2 = c.dresidual ? t.again(dpre) : dpre,
             dw3 = with_pre ? dw : t.again(dw);
  t.on_every_device([&](Context& ctx) {
    const Guarded mean(ctx, N);
    const RmsnormWeights weights = {w, pre, offset};
    ResidualBackwardIn back = t.back(ctx);
    if (c.branch || c.dresidual || with_pre || offset != 0) {
      rmsnorm_forward({t.y, r, t.joined}, t.joins(ctx), weights, N, C, eps, ctx);
      rmsnorm_backward({t.dx, t.dbranch, dw, dpre, mean}, t.dy, back, weights, r, N, C, ctx);
    } else {
      rmsnorm_forward(t.y, r, t.x, w, N, C, eps, ctx);
      rmsnorm_backward(t.dx, dw, t.dy, t.x, w, r, N, C, ctx);
    }
    if (ctx.device == kernel_device) REQUIRE(ctx.most_scratch_used() == rmsnorm_backward_scratch(N, C, with_pre));
    if (!with_pre) rmsnorm_backward({over_dy, t.dbranch, dw3}, over_dy, back, weights, r, N, C, ctx);
    back.dresidual = over_dres;
    if (c.dresidual) rmsnorm_backward({over_dres, t.dbranch, dw2, dpre2, mean}, t.dy, back, weights, r, N, C, ctx);
  });
}

TEST_CASE("rmsnorm: CPU and kernels equal the reference bit for bit", "[bitwise]") {
  const Join& rough = norm_joins()[1];
  const struct {
    NormCase c;
    bool pre;
    float offset;
  } cases[] = {{{false, false}, false, 0}, {{false, false}, false, 1},    {{false, true}, false, 0},
               {{true, true}, false, 0},   {{true, false}, false, 0},     {{true, true, rough}, false, 1},
               {{false, false}, true, 1},  {{true, true, rough}, true, 0}};
  // Of the longest a CPU's thread that works alone makes dx and dw in one pass.
  const struct { size_t N, C; } sizes[] = {{63, 200}, {5, 1}, {9, 131}, {390, 64}, {1, 1030}};
  for (const auto& [c, pre, offset] : cases) {
    for (auto [N, C] : sizes) require_bits<float>(N, C, c, pre, offset);
    for (auto [N, C] : {std::pair<size_t, size_t>{9, 131}, {5, 1032}, {385, 131}})
      require_bits<bf16>(N, C, c, pre, offset);
  }
}

TEST_CASE("rmsnorm: PreAffine with pre = 1 is RMSNorm, to the bit", "[bitwise]") {
  const size_t N = 9, C = 131;
  NormTrial<float> t({false, true}, N, C);
  auto weight = random_values<float>(C, 2);
  t.x.kept->start[0] = t.x.ref[0] = weight[1] = -0.0f;
  const auto w = t.in(weight), ones = t.in(std::vector<float>(C, 1.0f)), r = t.out(N), dw = t.sum(C, 6);
  rmsnorm_forward_ref(t.y.ref, r.ref, t.x.ref, w.ref, N, C, 1e-6f);
  rmsnorm_general_backward_ref<float>({t.dx.ref, nullptr, dw.ref}, t.dy.ref, t.back_ref(), {w.ref}, r.ref, N, C);
  t.on_every_device([&](Context& ctx) {
    const Guarded dpre(ctx, std::vector<float>(C, 0.0f)), mean(ctx, N);
    rmsnorm_forward({t.y, r}, t.joins(ctx), {w, ones}, N, C, 1e-6f, ctx);
    rmsnorm_backward({t.dx, nullptr, dw, dpre, mean}, t.dy, t.back(ctx), {w, ones}, r, N, C, ctx);
  });
}

TEST_CASE("rmsnorm: without an offset a weight keeps its bits") {
  for (float w : {-0.0f, 0.0f, 0x1p-149f, -1.5f, 3e38f}) {
    REQUIRE(float_bits(rmsnorm_weight(w, 0.0f)) == float_bits(w));
    REQUIRE(float_bits(rmsnorm_weight(w, -0.0f)) == float_bits(w));
    REQUIRE(float_bits(rmsnorm_weight(w, 1.0f)) == float_bits(1.0f + w));
  }
}

TEST_CASE("rmsnorm: what it refuses") {
  Context cpu(Device::cpu);
  float a[4] = {}, b[4] = {}, c[4] = {}, d[4] = {};
  REQUIRE_THROWS_WITH(rmsnorm_forward(a, b, c, c, 1, 0, 1e-6f, cpu), "rmsnorm_forward: rows have no columns");
  REQUIRE_THROWS_WITH(rmsnorm_forward({a, b}, {a, c}, {c}, 1, 4, 1e-6f, cpu),
                      "rmsnorm_forward: a residual branch and its sum come together");
  const char* message = "rmsnorm_backward: pre needs dpre, mean, and a dx and a dbranch that are not dy";
  const RmsnormWeights weights = {.w = c, .pre = c};
  REQUIRE_THROWS_WITH(rmsnorm_backward({.dx = a, .dw = b, .dpre = b, .mean = b}, a, {.x = c}, weights, b, 1, 4, cpu),
                      message);
  REQUIRE_THROWS_WITH(rmsnorm_backward({.dx = a, .dw = b, .dpre = b}, c, {.x = c}, weights, b, 1, 4, cpu), message);
  REQUIRE_THROWS_WITH(rmsnorm_backward({.dx = a, .dw = b}, c, {.x = c}, weights, b, 1, 4, cpu), message);
  REQUIRE_THROWS_WITH(rmsnorm_backward({.dx = a, .dbranch = d, .dw = b, .dpre = b, .mean = b}, d, {.x = c, .branch = c},
                                       weights, b, 1, 4, cpu),
                      message);
}
