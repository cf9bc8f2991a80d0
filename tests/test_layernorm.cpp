// layernorm: the references against finite differences and their definition, the CPU's code and the kernels against the
// references.
#include "kernels/layernorm.h"

#include "tests/harness.h"

using namespace gated;

namespace {

const std::vector<Join>& joins() {
  static const std::vector<Join> all = {{}, {0.7f, 1.4f, {0.3f, 11, read_by_all(12)}}};
  return all;
}

}  // namespace

TEST_CASE("layernorm: plain, by hand") {
  // x - mean = (0.875, -2.125, 1.875, -0.625), the squares have the mean 2.296875, and its root is 1.515544.
  const std::vector<float> x = {2, -1, 3, 0.5f}, w(4, 1.0f), b(4, 0.0f);
  const float expected[] = {0.577350f, -1.402137f, 1.237180f, -0.412393f};
  std::vector<float> y(4), mean(1), r(1);
  layernorm_forward_ref(y.data(), mean.data(), r.data(), x.data(), w.data(), b.data(), 1, 4, 0.0f);
  REQUIRE(mean[0] == 1.125f);
  REQUIRE(1 / (r[0] * r[0]) == Approx(2.296875));
  for (int c = 0; c < 4; c++) REQUIRE(y[c] == Approx(expected[c]).epsilon(1e-5));
}

TEST_CASE("layernorm: gradients against finite differences", "[gradcheck]") {
  const size_t N = 3, C = 13;
  const auto x = random_values<double>(N * C, 1), w = random_values<double>(C, 3), b = random_values<double>(C, 6),
             dy = random_values<double>(N * C, 4);
  std::vector<double> y(N * C), mean(N), r(N), dx(N * C), dw(C, 0.0), db(C, 0.0);
  auto loss = [&](const std::vector<double>& x, const std::vector<double>& w, const std::vector<double>& b) {
    layernorm_forward_ref(y.data(), mean.data(), r.data(), x.data(), w.data(), b.data(), N, C, 1e-5);
    return dot(y, dy);
  };
  loss(x, w, b);
  layernorm_backward_ref(dx.data(), dw.data(), db.data(), dy.data(), x.data(), w.data(), mean.data(), r.data(), N, C);
  check_gradient(
      "x", [&](auto& v) { return loss(v, w, b); }, x, dx);
  check_gradient(
      "w", [&](auto& v) { return loss(x, v, b); }, w, dw);
  check_gradient(
      "b", [&](auto& v) { return loss(x, w, v); }, b, db);
}

TEST_CASE("layernorm: gradients after a branch against finite differences", "[gradcheck]") {
  const size_t N = 3, C = 13;
  const auto x = random_values<double>(N * C, 1), branch = random_values<double>(N * C, 2),
             b = random_values<double>(C, 6);
  const auto w = random_values<double>(C, 3), dy = random_values<double>(N * C, 4),
             dres = random_values<double>(N * C, 5);
  for (const Join& join : joins()) {
    INFO("plain " << join.plain());
    std::vector<double> y(N * C), mean(N), r(N), sum(N * C);
    auto loss = [&](const std::vector<double>& x, const std::vector<double>& branch, const std::vector<double>& w,
                    const std::vector<double>& b) {
      layernorm_general_forward_ref<double>({y.data(), mean.data(), r.data(), sum.data()},
                                            {x.data(), branch.data(), join}, w.data(), b.data(), N, C, 1e-5);
      return dot(y, dy) + dot(sum, dres);
    };
    loss(x, branch, w, b);
    std::vector<double> dx(N * C), dbranch(N * C), dw(C, 0.0), db(C, 0.0);
    layernorm_general_backward_ref<double>({dx.data(), dbranch.data(), dw.data(), db.data()}, dy.data(),
                                           {sum.data(), dres.data(), branch.data(), join}, w.data(), mean.data(),
                                           r.data(), N, C);
    check_gradient(
        "x", [&](auto& v) { return loss(v, branch, w, b); }, x, dx);
    check_gradient(
        "branch", [&](auto& v) { return loss(x, v, w, b); }, branch, dbranch);
    check_gradient(
        "w", [&](auto& v) { return loss(x, branch, v, b); }, w, dw);
    check_gradient(
        "b", [&](auto& v) { return loss(x, branch, w, v); }, b, db);
  }
}

// In bf16 the reference is given what is stored: its inputs, and the sum that it normalises.
template <class S>
static void require_plain_bits(size_t N, size_t C) {
  INFO("N " << N << " C " << C << ", " << name_of(storage_of<S>));
  const float eps = 1e-5f;
  const auto x = stored<S>(random_values<float>(N * C, 1, 3.0f)), dy = stored<S>(random_values<float>(N * C, 4));
  const auto w = random_values<float>(C, 3), b = random_values<float>(C, 6);
  const auto dw0 = random_values<float>(C, 7), db0 = random_values<float>(C, 8);
  std::vector<float> y(N * C, NAN), mean(N, NAN), r(N, NAN), dx(N * C, NAN), dw = dw0, db = db0;
  layernorm_forward_ref(y.data(), mean.data(), r.data(), x.data(), w.data(), b.data(), N, C, eps);
  layernorm_backward_ref(dx.data(), dw.data(), db.data(), dy.data(), x.data(), w.data(), mean.data(), r.data(), N, C);
  y = stored<S>(y), dx = stored<S>(dx);
  on_every_device([&](Context& ctx) {
    GuardedOf<S> gy(ctx, N * C), gdx(ctx, N * C), gx(ctx, x), gdy(ctx, dy);
    Guarded gmean(ctx, N), gr(ctx, N), gdw(ctx, dw0), gdb(ctx, db0), gw(ctx, w), gb(ctx, b);
    layernorm_forward({gy, gmean, gr}, {gx}, gw, gb, N, C, eps, ctx);
    layernorm_backward({.dx = gdx, .dw = gdw, .db = gdb}, gdy, {gx}, gw, gmean, gr, N, C, ctx);
    REQUIRE_BITWISE(y, gy.download());
    REQUIRE_BITWISE(mean, gmean.download());
    REQUIRE_BITWISE(r, gr.download());
    REQUIRE_BITWISE(dx, gdx.download());
    REQUIRE_BITWISE(dw, gdw.download());
    REQUIRE_BITWISE(db, gdb.download());
    Guarded gdw_in_place(ctx, dw0), gdb_in_place(ctx, db0);
    layernorm_backward({.dx = gdy, .dw = gdw_in_place, .db = gdb_in_place}, gdy, {gx}, gw, gmean, gr, N, C, ctx);
    REQUIRE_BITWISE(dx, gdy.download());
    REQUIRE_BITWISE(dw, gdw_in_place.download());
    REQUIRE_BITWISE(db, gdb_in_place.download());
    if (ctx.device == kernel_device) REQUIRE(ctx.most_scratch_used() == layernorm_backward_scratch(N, C));
  });
}

TEST_CASE("layernorm: CPU and kernels equal the plain reference bit for bit", "[bitwise]") {
  const struct { size_t N, C; } sizes[] = {{63, 200}, {5, 1}, {9, 131}, {300, 64}, {1, 1030}};
  for (auto [N, C] : sizes) require_plain_bits<float>(N, C);
  require_plain_bits<bf16>(9, 131);
  require_plain_bits<bf16>(130, 200);
}

template <class S>
static void require_general_bits(size_t N, size_t C) {
  const float eps = 1e-5f, nan = NAN;
  const auto x = stored<S>(random_values<float>(N * C, 1, 3.0f)), branch = stored<S>(random_values<float>(N * C, 2));
  const auto dy = stored<S>(random_values<float>(N * C, 4)), dres = stored<S>(random_values<float>(N * C, 5));
  const auto w = random_values<float>(C, 3), b = random_values<float>(C, 6);
  const auto dw0 = random_values<float>(C, 7), db0 = random_values<float>(C, 8);
  const struct {
    bool dresidual;
    Join join;
  } cases[] = {{true, {}}, {false, joins()[1]}, {true, joins()[1]}};
  for (const auto& test : cases) {
    INFO("N " << N << " C " << C << " dresidual " << test.dresidual << " plain " << test.join.plain() << ", "
              << name_of(storage_of<S>));
    std::vector<float> y(N * C, nan), mean(N, nan), r(N, nan), sum(N * C, nan), dx(N * C, nan), dbranch(N * C, nan);
    std::vector<float> dw = dw0, db = db0;
    residual_join_forward_ref<float>(sum.data(), {x.data(), branch.data(), test.join}, N, C);
    sum = stored<S>(sum);
    layernorm_general_forward_ref<float>({y.data(), mean.data(), r.data()}, {sum.data()}, w.data(), b.data(), N, C,
                                         eps);
    const float* dresidual = test.dresidual ? dres.data() : nullptr;
    ResidualBackwardInOf<float> in = {sum.data(), dresidual, branch.data(), test.join};
    in.join.clip_sum = S(test.join.clip_sum);
    layernorm_general_backward_ref<float>({dx.data(), dbranch.data(), dw.data(), db.data()}, dy.data(), in, w.data(),
                                          mean.data(), r.data(), N, C);
    y = stored<S>(y), dx = stored<S>(dx), dbranch = stored<S>(dbranch);
    on_every_device([&](Context& ctx) {
      GuardedOf<S> gy(ctx, N * C), gsum(ctx, N * C), gdx(ctx, N * C), gdbranch(ctx, N * C);
      GuardedOf<S> gx(ctx, x), gbranch(ctx, branch), gdy(ctx, dy), gdres(ctx, dres);
      Guarded gmean(ctx, N), gr(ctx, N), gw(ctx, w), gb(ctx, b), gdw(ctx, dw0), gdb(ctx, db0);
      LayernormGradients gradients = {gdx, gdbranch, gdw, gdb};
      const ResidualBackwardIn back = {gsum, test.dresidual ? +gdres : nullptr, gbranch, test.join};
      layernorm_forward({gy, gmean, gr, gsum}, {gx, gbranch, test.join}, gw, gb, N, C, eps, ctx);
      layernorm_backward(gradients, gdy, back, gw, gmean, gr, N, C, ctx);
      REQUIRE_BITWISE(y, gy.download());
      REQUIRE_BITWISE(mean, gmean.download());
      REQUIRE_BITWISE(r, gr.download());
      REQUIRE_BITWISE(sum, gsum.download());
      REQUIRE_BITWISE(dx, gdx.download());
      REQUIRE_BITWISE(dbranch, gdbranch.download());
      REQUIRE_BITWISE(dw, gdw.download());
      REQUIRE_BITWISE(db, gdb.download());
      GuardedOf<S>& over = test.dresidual ? gdres : gdy;  // in place
      gradients.dx = over;
      layernorm_backward(gradients, gdy, back, gw, gmean, gr, N, C, ctx);
      REQUIRE_BITWISE(dx, over.download());
    });
  }
}

TEST_CASE("layernorm: CPU and kernels equal the general reference bit for bit", "[bitwise]") {
  const struct { size_t N, C; } sizes[] = {{63, 200}, {5, 1}, {9, 131}, {1, 1030}};
  for (auto [N, C] : sizes) require_general_bits<float>(N, C);
  require_general_bits<bf16>(9, 131);
  require_general_bits<bf16>(5, 1032);
}

TEST_CASE("layernorm: a row has mean 0 and variance 1, wherever it was") {
  // Powers of two scale it exactly; a shift of 1000 costs x bits (2^-14 of them are left), but no
  // cancellation more.
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
  double sum = 0, squares = 0;
  for (float v : y) sum += v, squares += double(v) * v;
  REQUIRE(std::fabs(sum / double(C)) < 1e-6);
  REQUIRE(std::fabs(squares / double(C) - 1) < 1e-6);
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
