// rmsnorm: the references against finite differences, the CPU's code and the kernels against the references, and what
// the weights can do.
#include "kernels/rmsnorm.h"

#include "core/reduce.cuh"
#include "kernels/rmsnorm.cuh"
#include "tests/harness.h"

using namespace gated;

namespace {

const std::vector<Join>& joins() {
  static const std::vector<Join> all = {{}, {0.7f, 1.4f, {0.3f, 11, read_by_all(12)}}};
  return all;
}

}  // namespace

TEST_CASE("rmsnorm: plain, by hand") {
  // mean(x^2) = (1 + 49 + 25 + 25)/4 = 25: every number is divided by 5.
  const std::vector<double> x = {1, -7, 5, 5}, w = {1, 2, 0.5, -1}, dy = {1, 0, 0, 0};
  std::vector<double> y(4), r(1), dx(4), dw(4, 10.0);
  rmsnorm_forward_ref(y.data(), r.data(), x.data(), w.data(), 1, 4, 0.0);
  REQUIRE(r[0] == Approx(0.2));
  const double expected[] = {0.2, -2.8, 0.5, -1};
  for (int c = 0; c < 4; c++) REQUIRE(y[c] == Approx(expected[c]));
  // g = (1, 0, 0, 0), mean(g*xh) = 0.05: dx = 0.2*(g - 0.05*xh).
  rmsnorm_backward_ref(dx.data(), dw.data(), dy.data(), x.data(), w.data(), r.data(), 1, 4);
  const double expected_dx[] = {0.198, 0.014, -0.01, -0.01}, expected_dw[] = {10.2, 10, 10, 10};
  for (int c = 0; c < 4; c++) REQUIRE(dx[c] == Approx(expected_dx[c]));
  for (int c = 0; c < 4; c++) REQUIRE(dw[c] == Approx(expected_dw[c]));
}

TEST_CASE("rmsnorm: gradients against finite differences", "[gradcheck]") {
  const size_t N = 3, C = 13;
  const auto x = random_values<double>(N * C, 1), w = random_values<double>(C, 3), dy = random_values<double>(N * C, 4);
  std::vector<double> y(N * C), r(N), dx(N * C), dw(C, 0.0);
  auto loss = [&](const std::vector<double>& x, const std::vector<double>& w) {
    rmsnorm_forward_ref(y.data(), r.data(), x.data(), w.data(), N, C, 1e-6);
    return dot(y, dy);
  };
  loss(x, w);
  rmsnorm_backward_ref(dx.data(), dw.data(), dy.data(), x.data(), w.data(), r.data(), N, C);
  check_gradient(
      "x", [&](auto& v) { return loss(v, w); }, x, dx);
  check_gradient(
      "w", [&](auto& v) { return loss(x, v); }, w, dw);
}

TEST_CASE("rmsnorm: gradients of the general form against finite differences", "[gradcheck]") {
  const size_t N = 3, C = 13;
  const double eps = 1e-6;
  const auto x = random_values<double>(N * C, 1), branch = random_values<double>(N * C, 2),
             pre = random_values<double>(C, 6);
  const auto w = random_values<double>(C, 3), dy = random_values<double>(N * C, 4),
             dres = random_values<double>(N * C, 5);

  for (const Join& join : joins()) {
    for (bool with_pre : {false, true}) {
      for (double offset : {0.0, 1.0}) {
        INFO("plain " << join.plain() << " pre " << with_pre << " offset " << offset);
        // loss = <y, dy> + <sum, dresidual>: the residual stream goes on past the norm.
        std::vector<double> y(N * C), r(N), sum(N * C);
        auto weights = [&](const std::vector<double>& pre, const std::vector<double>& w) {
          return RmsnormWeightsOf<double>{w.data(), with_pre ? pre.data() : nullptr, offset};
        };
        auto loss = [&](const std::vector<double>& x, const std::vector<double>& branch, const std::vector<double>& pre,
                        const std::vector<double>& w) {
          rmsnorm_general_forward_ref<double>({y.data(), r.data(), sum.data()}, {x.data(), branch.data(), join},
                                              weights(pre, w), N, C, eps);
          return dot(y, dy) + dot(sum, dres);
        };
        loss(x, branch, pre, w);
        std::vector<double> dx(N * C), dbranch(N * C), dw(C, 0.0), dpre(C, 0.0);
        rmsnorm_general_backward_ref<double>({dx.data(), dbranch.data(), dw.data(), dpre.data()}, dy.data(),
                                             {sum.data(), dres.data(), branch.data(), join}, weights(pre, w), r.data(),
                                             N, C);
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

// In bf16 the reference is given what is stored: its inputs, and the sum that it normalises.
template <class S>
static void require_plain_bits(size_t N, size_t C) {
  INFO("N " << N << " C " << C << ", " << name_of(storage_of<S>));
  const float eps = 1e-6f;
  const auto x = stored<S>(random_values<float>(N * C, 1, 3.0f)), dy = stored<S>(random_values<float>(N * C, 4));
  const auto w = random_values<float>(C, 3), dw0 = random_values<float>(C, 6);
  std::vector<float> y(N * C, NAN), r(N, NAN), dx(N * C, NAN), dw = dw0, in_place = dy, dw_in_place = dw0;
  rmsnorm_forward_ref(y.data(), r.data(), x.data(), w.data(), N, C, eps);
  rmsnorm_backward_ref(dx.data(), dw.data(), dy.data(), x.data(), w.data(), r.data(), N, C);
  rmsnorm_backward_ref(in_place.data(), dw_in_place.data(), in_place.data(), x.data(), w.data(), r.data(), N, C);
  REQUIRE_BITWISE(dx, in_place);
  REQUIRE_BITWISE(dw, dw_in_place);
  y = stored<S>(y), dx = stored<S>(dx);
  on_every_device([&](Context& ctx) {
    GuardedOf<S> gy(ctx, N * C), gdx(ctx, N * C), gx(ctx, x), gdy(ctx, dy);
    Guarded gr(ctx, N), gdw(ctx, dw0), gw(ctx, w);
    rmsnorm_forward(gy, gr, gx, gw, N, C, eps, ctx);
    rmsnorm_backward(gdx, gdw, gdy, gx, gw, gr, N, C, ctx);
    REQUIRE_BITWISE(y, gy.download());
    REQUIRE_BITWISE(r, gr.download());
    REQUIRE_BITWISE(dx, gdx.download());
    REQUIRE_BITWISE(dw, gdw.download());
    Guarded gdw_in_place(ctx, dw0);
    rmsnorm_backward(gdy, gdw_in_place, gdy, gx, gw, gr, N, C, ctx);
    REQUIRE_BITWISE(dx, gdy.download());
    REQUIRE_BITWISE(dw, gdw_in_place.download());
    if (ctx.device == kernel_device) REQUIRE(ctx.most_scratch_used() == rmsnorm_backward_scratch(N, C));
  });
}

TEST_CASE("rmsnorm: CPU and kernels equal the plain reference bit for bit", "[bitwise]") {
  const struct { size_t N, C; } sizes[] = {{63, 200}, {5, 1}, {9, 131}, {300, 64}, {1, 1030}};
  for (auto [N, C] : sizes) require_plain_bits<float>(N, C);
  require_plain_bits<bf16>(9, 131);
  require_plain_bits<bf16>(130, 200);
}

template <class S>
static void require_general_bits(size_t N, size_t C) {
  const float eps = 1e-6f, nan = NAN;
  const auto x = stored<S>(random_values<float>(N * C, 1, 3.0f)), branch = stored<S>(random_values<float>(N * C, 2));
  const auto dy = stored<S>(random_values<float>(N * C, 4)), dres = stored<S>(random_values<float>(N * C, 5));
  const auto w = random_values<float>(C, 3), dw0 = random_values<float>(C, 6), dpre0 = random_values<float>(C, 7);
  const auto pre = random_values<float>(C, 8);
  const struct {
    bool branch, pre, dresidual;
    float offset;
    Join join;
  } cases[] = {{false, false, false, 1, {}},     {false, false, true, 0, {}},        {true, false, true, 0, {}},
               {true, false, false, 0, {}},      {true, false, true, 1, joins()[1]}, {false, true, false, 1, {}},
               {true, true, true, 0, joins()[1]}};
  for (const auto& test : cases) {
    INFO("N " << N << " C " << C << " branch " << test.branch << " pre " << test.pre << " offset " << test.offset
              << ", " << name_of(storage_of<S>));
    std::vector<float> y(N * C, nan), r(N, nan), sum(N * C, nan), dx(N * C, nan), dbranch(N * C, nan), dw = dw0;
    std::vector<float> dpre = dpre0;
    const RmsnormWeights weights = {w.data(), test.pre ? pre.data() : nullptr, test.offset};
    const float* dresidual = test.dresidual ? dres.data() : nullptr;
    // The join, and the norm of what it has stored.
    if (test.branch) residual_join_forward_ref<float>(sum.data(), {x.data(), branch.data(), test.join}, N, C);
    sum = test.branch ? stored<S>(sum) : x;
    rmsnorm_general_forward_ref<float>({y.data(), r.data()}, {sum.data()}, weights, N, C, eps);
    ResidualBackwardInOf<float> in = {sum.data(), dresidual};
    if (test.branch) in.branch = branch.data(), in.join = test.join, in.join.clip_sum = S(test.join.clip_sum);
    rmsnorm_general_backward_ref<float>({dx.data(), test.branch ? dbranch.data() : nullptr, dw.data(), dpre.data()},
                                        dy.data(), in, weights, r.data(), N, C);
    y = stored<S>(y), dx = stored<S>(dx), dbranch = stored<S>(dbranch);
    on_every_device([&](Context& ctx) {
      GuardedOf<S> gy(ctx, N * C), gsum(ctx, N * C), gdx(ctx, N * C), gdbranch(ctx, N * C);
      GuardedOf<S> gx(ctx, x), gb(ctx, branch), gdy(ctx, dy), gdres(ctx, dres);
      Guarded gr(ctx, N), gdw(ctx, dw0), gw(ctx, w), gpre(ctx, pre), gdpre(ctx, dpre0), gmean(ctx, N);
      const RmsnormWeights gweights = {gw, test.pre ? +gpre : nullptr, test.offset};
      RmsnormOutputs out = {gy, gr};
      ResidualIn in = {gx};
      RmsnormGradients gradients = {.dx = gdx, .dw = gdw, .dpre = gdpre, .mean = gmean};
      ResidualBackwardIn back = {gx};
      if (test.branch) {
        out.sum = gsum;
        in = {gx, gb, test.join};
        gradients.dbranch = gdbranch;
        back = ResidualBackwardIn{.x = gsum, .branch = gb, .join = test.join};
      }
      if (test.dresidual) back.dresidual = gdres;
      rmsnorm_forward(out, in, gweights, N, C, eps, ctx);
      rmsnorm_backward(gradients, gdy, back, gweights, gr, N, C, ctx);
      REQUIRE_BITWISE(y, gy.download());
      REQUIRE_BITWISE(r, gr.download());
      if (test.branch) REQUIRE_BITWISE(sum, gsum.download());
      REQUIRE_BITWISE(dx, gdx.download());
      if (test.branch) REQUIRE_BITWISE(dbranch, gdbranch.download());
      REQUIRE_BITWISE(dw, gdw.download());
      REQUIRE_BITWISE(dpre, gdpre.download());
      if (ctx.device == kernel_device) REQUIRE(ctx.most_scratch_used() == rmsnorm_backward_scratch(N, C, test.pre));
      if (test.dresidual) {  // dx over dresidual
        GuardedOf<S> over(ctx, dres);
        gradients.dx = over;
        back.dresidual = over;
        rmsnorm_backward(gradients, gdy, back, gweights, gr, N, C, ctx);
        REQUIRE_BITWISE(dx, over.download());
        back.dresidual = gdres;
      }
      if (test.pre) return;
      Guarded gdw_in_place(ctx, dw0);
      gradients.dx = gdy;  // over dy, and without scratch
      gradients.dw = gdw_in_place;
      gradients.dpre = gradients.mean = nullptr;
      rmsnorm_backward(gradients, gdy, back, gweights, gr, N, C, ctx);
      REQUIRE_BITWISE(dx, gdy.download());
      REQUIRE_BITWISE(dw, gdw_in_place.download());
    });
  }
}

TEST_CASE("rmsnorm: CPU and kernels equal the general reference bit for bit", "[bitwise]") {
  const struct { size_t N, C; } sizes[] = {{63, 200}, {5, 1}, {9, 131}, {300, 64}, {1, 1030}};
  for (auto [N, C] : sizes) require_general_bits<float>(N, C);
  require_general_bits<bf16>(9, 131);
  require_general_bits<bf16>(5, 1032);
}

// 1 + 2^-9 is stored as 1.
TEST_CASE("rmsnorm: in bf16 the norm is of the sum that is stored", "[bitwise]") {
  const std::vector<float> x(4, 1.0f), branch(4, 0x1p-9f);
  on_every_device([&](Context& ctx) {
    GuardedOf<bf16> gx(ctx, x), gbranch(ctx, branch), gsum(ctx, 4), gy(ctx, 4);
    Guarded gr(ctx, 1), gw(ctx, x);
    rmsnorm_forward({.y = gy, .r = gr, .sum = gsum}, {gx, gbranch}, {.w = gw}, 1, 4, 0.0f, ctx);
    REQUIRE_BITWISE(x, gsum.download());
    REQUIRE_BITWISE(std::vector<float>{1.0f}, gr.download());
  });
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
    const RmsnormWeights weights = {w.data(), pre};
    rmsnorm_forward({y.data(), r.data()}, {x.data()}, weights, N, C, 1e-6f, cpu);
    rmsnorm_backward({.dx = dx.data(), .dw = dw.data(), .dpre = dpre.data(), .mean = mean.data()}, dy.data(),
                     {x.data(), dres.data()}, weights, r.data(), N, C, cpu);
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
    rmsnorm_forward_ref(y.data(), r.data(), h.data(), lambda.data(), 1, C, 0.0);
    const double rms = std::sqrt(dot(y, y) / double(C)), all = others + h[d] * h[d];
    const double bound = largest * std::sqrt(others / all + e * e * (h[d] * h[d] / all));
    REQUIRE(rms <= bound * (1 + slack));
    if (tight) REQUIRE(rms >= bound * (1 - slack));
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
