// rmsnorm: the reference against finite differences, the kernels against the reference, and what the weights
// can do.
#include "kernels/rmsnorm.cuh"

#include "tests/harness.h"

using namespace gated;

namespace {

const Join joins[] = {{}, {0.7f, 1.4f, {0.3f, 11, 12}}};

}  // namespace

TEST_CASE("rmsnorm: gradients against finite differences", "[gradcheck]") {
  const size_t N = 3, C = 13;
  const double eps = 1e-6;
  const auto x = random_values<double>(N * C, 1), branch = random_values<double>(N * C, 2),
             pre = random_values<double>(C, 6);
  const auto w = random_values<double>(C, 3), dy = random_values<double>(N * C, 4),
             dres = random_values<double>(N * C, 5);

  for (const Join& join : joins) {
    for (bool with_pre : {false, true}) {
      for (double offset : {0.0, 1.0}) {
        INFO("plain " << join.plain() << " pre " << with_pre << " offset " << offset);
        // loss = <y, dy> + <sum, dresidual>: the residual stream goes on past the norm.
        std::vector<double> y(N * C), r(N), sum(N * C);
        auto loss = [&](const std::vector<double>& x, const std::vector<double>& branch, const std::vector<double>& pre,
                        const std::vector<double>& w) {
          rmsnorm_forward_ref<double>(y.data(), r.data(), {x.data(), branch.data(), sum.data(), join},
                                      with_pre ? pre.data() : nullptr, w.data(), offset, N, C, eps);
          return dot(y, dy) + dot(sum, dres);
        };
        loss(x, branch, pre, w);
        std::vector<double> dx(N * C), dbranch(N * C), dw(C, 0.0), dpre(C, 0.0), mean(N);
        rmsnorm_backward_ref<double>({dx.data(), dbranch.data(), dres.data(), sum.data(), branch.data(), join},
                                     dw.data(), dpre.data(), mean.data(), dy.data(), with_pre ? pre.data() : nullptr,
                                     w.data(), offset, r.data(), N, C);
        check_gradient(
            "x", [&](auto& v) { return loss(v, branch, pre, w); }, x, dx);
        check_gradient(
            "branch", [&](auto& v) { return loss(x, v, pre, w); }, branch, dbranch);
        check_gradient(
            "w", [&](auto& v) { return loss(x, branch, pre, v); }, w, dw);
        check_gradient(
            "pre", [&](auto& v) { return loss(x, branch, v, w); }, pre, dpre);  // without pre both are 0
      }
    }
  }
}

TEST_CASE("rmsnorm: kernels equal the reference bit for bit", "[bitwise]") {
  const float eps = 1e-6f, nan = NAN;
  const struct { size_t N, C; } sizes[] = {{63, 200}, {5, 1}, {9, 131}, {300, 64}, {1, 1030}};
  for (auto [N, C] : sizes) {
    const auto x = random_values<float>(N * C, 1, 3.0f), branch = random_values<float>(N * C, 2);
    const auto w = random_values<float>(C, 3), dy = random_values<float>(N * C, 4),
               dres = random_values<float>(N * C, 5);
    const auto dw0 = random_values<float>(C, 6), dpre0 = random_values<float>(C, 7), pre = random_values<float>(C, 8);
    const struct {
      bool branch, pre;
      float offset;
      Join join;
    } cases[] = {{false, false, 0, {}},
                 {true, false, 0, {}},
                 {true, false, 1, joins[1]},
                 {false, true, 1, {}},
                 {true, true, 0, joins[1]}};
    for (const auto& test : cases) {
      INFO("N " << N << " C " << C << " branch " << test.branch << " pre " << test.pre << " offset " << test.offset);
      std::vector<float> y(N * C, nan), r(N, nan), sum(N * C, nan), dx(N * C, nan), dbranch(N * C, nan), dw = dw0;
      std::vector<float> dpre = dpre0, mean(N, nan);
      const float* p = test.pre ? pre.data() : nullptr;
      ResidualForward in = {x.data()};
      ResidualBackward out = {dx.data(), nullptr, nullptr, x.data()};
      if (test.branch) in = {x.data(), branch.data(), sum.data(), test.join};
      if (test.branch) out = {dx.data(), dbranch.data(), dres.data(), sum.data(), branch.data(), test.join};
      rmsnorm_forward_ref<float>(y.data(), r.data(), in, p, w.data(), test.offset, N, C, eps);
      rmsnorm_backward_ref<float>(out, dw.data(), dpre.data(), mean.data(), dy.data(), p, w.data(), test.offset,
                                  r.data(), N, C);
      if (!test.pre) {  // in place, and without scratch
        std::vector<float> in_place = dy, dw1 = dw0;
        out.dx = in_place.data();
        rmsnorm_backward_ref<float>(out, dw1.data(), nullptr, nullptr, in_place.data(), nullptr, w.data(), test.offset,
                                    r.data(), N, C);
        REQUIRE_BITWISE(dx, in_place);
        REQUIRE_BITWISE(dw, dw1);
      }
      on_every_device([&](Context& ctx) {
        Guarded gy(ctx, N * C), gr(ctx, N), gsum(ctx, N * C), gdx(ctx, N * C), gdw(ctx, dw0);
        Guarded gx(ctx, x), gb(ctx, branch), gw(ctx, w), gdy(ctx, dy), gdres(ctx, dres);
        Guarded gpre(ctx, pre), gdpre(ctx, dpre0), gmean(ctx, N), gdbranch(ctx, N * C);
        const float* gp = test.pre ? +gpre : nullptr;
        ResidualForward gin = {gx};
        ResidualBackward gout = {gdx, nullptr, nullptr, gx};
        if (test.branch) gin = {gx, gb, gsum, test.join};
        if (test.branch) gout = {gdx, gdbranch, gdres, gsum, gb, test.join};
        rmsnorm_forward(gy, gr, gin, gp, gw, test.offset, N, C, eps, ctx);
        rmsnorm_backward(gout, gdw, gdpre, gmean, gdy, gp, gw, test.offset, gr, N, C, ctx);
        REQUIRE_BITWISE(y, gy.download());
        REQUIRE_BITWISE(r, gr.download());
        if (test.branch) REQUIRE_BITWISE(sum, gsum.download());
        REQUIRE_BITWISE(dx, gdx.download());
        if (test.branch) REQUIRE_BITWISE(dbranch, gdbranch.download());
        REQUIRE_BITWISE(dw, gdw.download());
        REQUIRE_BITWISE(dpre, gdpre.download());
        if (test.pre) return;
        gout.dx = gdy;
        rmsnorm_backward(gout, gdw, nullptr, nullptr, gdy, nullptr, gw, test.offset, gr, N, C, ctx);
        REQUIRE_BITWISE(dx, gdy.download());
      });
    }
  }
}

TEST_CASE("rmsnorm: PreAffine with pre = 1 is RMSNorm, to the bit") {
  const size_t N = 9, C = 131;
  Context cpu(Device::cpu);
  auto x = random_values<float>(N * C, 1, 3.0f), w = random_values<float>(C, 2);
  const auto dy = random_values<float>(N * C, 3), dres = random_values<float>(N * C, 4);
  const std::vector<float> ones(C, 1.0f);
  x[0] = -0.0f, w[1] = -0.0f;
  auto run = [&](const float* pre) {
    std::vector<float> y(N * C), r(N), dx(N * C), dw(C, 0.25f), dpre(C, 0.0f), mean(N), all;
    rmsnorm_forward(y.data(), r.data(), {x.data()}, pre, w.data(), 0.0f, N, C, 1e-6f, cpu);
    rmsnorm_backward({dx.data(), nullptr, dres.data(), x.data()}, dw.data(), dpre.data(), mean.data(), dy.data(), pre,
                     w.data(), 0.0f, r.data(), N, C, cpu);
    for (const auto& v : {y, r, dx, dw}) all.insert(all.end(), v.begin(), v.end());
    return all;
  };
  REQUIRE_BITWISE(run(nullptr), run(ones.data()));
}

TEST_CASE("rmsnorm: without an offset a weight keeps its bits") {
  for (float w : {-0.0f, 0.0f, 0x1p-149f, -1.5f, 3e38f}) {
    REQUIRE(float_bits(rmsnorm_weight(w, 0.0f)) == float_bits(w));
    REQUIRE(float_bits(rmsnorm_weight(w, -0.0f)) == float_bits(w));
    REQUIRE(float_bits(rmsnorm_weight(w, 1.0f)) == float_bits(1.0f + w));
  }
}

TEST_CASE("rmsnorm: a row cannot be longer than its weights and its outlier allow (arXiv 2601.22966, A.1)") {
  // y = lambda*h/rms(h), |lambda_d| <= e*max|lambda|, s = |h_d|/|h|: what is left beside d has the share
  // 1-s^2 of |h|^2, so rms(y)^2 = sum of (lambda_i h_i/|h|)^2 <= max|lambda|^2 ((1-s^2) + e^2 s^2), with
  // equality where every other |lambda_i| is the maximum. Slack: each side takes at most three sums of C
  // positive terms, each at most C roundings of 2^-53 off, and a few operations.
  const size_t C = 200, d = 77;
  const double slack = 4 * C * 0x1p-53;
  for (uint64_t seed = 1; seed <= 100; seed++) {
    auto h = random_values<double>(C, seed), lambda = random_values<double>(C, seed + 1000, 2.0);
    h[d] = random_values<double>(1, seed + 2000, 60.0)[0];
    const double e = std::fabs(random_values<double>(1, seed + 3000)[0]);
    const bool tight = seed % 2;
    double largest = 0, others = 0;
    for (size_t c = 0; c < C; c++) {
      if (tight) lambda[c] = lambda[c] < 0 ? -1.25 : 1.25;
      if (c == d) continue;
      largest = std::max(largest, std::fabs(lambda[c]));
      others += h[c] * h[c];
    }
    lambda[d] = (tight ? 1.0 : 0.5) * e * largest;
    std::vector<double> y(C), r(1);
    rmsnorm_forward_ref<double>(y.data(), r.data(), {h.data()}, nullptr, lambda.data(), 0.0, 1, C, 0.0);
    const double rms = std::sqrt(dot(y, y) / double(C)), all = others + h[d] * h[d];
    const double bound = largest * std::sqrt(others / all + e * e * (h[d] * h[d] / all));
    REQUIRE(rms <= bound * (1 + slack));
    if (tight) REQUIRE(rms >= bound * (1 - slack));
  }
}

TEST_CASE("rmsnorm: what it refuses") {
  Context cpu(Device::cpu);
  float a[4] = {}, b[4] = {}, c[4] = {};
  REQUIRE_THROWS_WITH(rmsnorm_forward(a, b, {c}, nullptr, c, 0, 1, 0, 1e-6f, cpu),
                      "rmsnorm_forward: rows have no columns");
  const char* message = "rmsnorm_backward: pre needs dpre, mean and a dx that is not dy";
  REQUIRE_THROWS_WITH(rmsnorm_backward({a, nullptr, nullptr, c}, b, b, b, a, c, c, 0, b, 1, 4, cpu), message);
  REQUIRE_THROWS_WITH(rmsnorm_backward({a, nullptr, nullptr, c}, b, b, nullptr, c, c, c, 0, b, 1, 4, cpu), message);
}
