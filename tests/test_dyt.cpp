// dyt: the references against finite differences, the CPU's code and the kernels against the references, both ends of
// tanh.
#include "kernels/dyt.h"

#include "tests/harness.h"

using namespace gated;

namespace {

const std::vector<Join>& joins() {
  static const std::vector<Join> all = {{}, {0.7f, 1.4f, {0.3f, 11, read_by_all(12)}}};
  return all;
}

}  // namespace

TEST_CASE("dyt: gradients against finite differences", "[gradcheck]") {
  const size_t N = 3, C = 13;
  const std::vector<double> alpha = {0.8};
  const auto x = random_values<double>(N * C, 1), w = random_values<double>(C, 3), b = random_values<double>(C, 6),
             dy = random_values<double>(N * C, 4);
  std::vector<double> y(N * C), dx(N * C), dalpha(1, 0.0), dw(C, 0.0), db(C, 0.0);
  auto loss = [&](const std::vector<double>& x, const std::vector<double>& alpha, const std::vector<double>& w,
                  const std::vector<double>& b) {
    dyt_forward_ref(y.data(), x.data(), alpha.data(), w.data(), b.data(), N, C);
    return dot(y, dy);
  };
  dyt_backward_ref(dx.data(), dalpha.data(), dw.data(), db.data(), dy.data(), x.data(), alpha.data(), w.data(), N, C);
  check_gradient(
      "x", [&](auto& v) { return loss(v, alpha, w, b); }, x, dx);
  check_gradient(
      "alpha", [&](auto& v) { return loss(x, v, w, b); }, alpha, dalpha);
  check_gradient(
      "w", [&](auto& v) { return loss(x, alpha, v, b); }, w, dw);
  check_gradient(
      "b", [&](auto& v) { return loss(x, alpha, w, v); }, b, db);
}

TEST_CASE("dyt: gradients after a branch against finite differences", "[gradcheck]") {
  const size_t N = 3, C = 13;
  const std::vector<double> alpha = {0.8};
  const auto x = random_values<double>(N * C, 1), branch = random_values<double>(N * C, 2),
             b = random_values<double>(C, 6);
  const auto w = random_values<double>(C, 3), dy = random_values<double>(N * C, 4),
             dres = random_values<double>(N * C, 5);
  for (const Join& join : joins()) {
    INFO("plain " << join.plain());
    std::vector<double> y(N * C), sum(N * C);
    auto loss = [&](const std::vector<double>& x, const std::vector<double>& branch, const std::vector<double>& alpha,
                    const std::vector<double>& w, const std::vector<double>& b) {
      dyt_general_forward_ref<double>({y.data(), sum.data()}, {x.data(), branch.data(), join}, alpha.data(), w.data(),
                                      b.data(), N, C);
      return dot(y, dy) + dot(sum, dres);
    };
    loss(x, branch, alpha, w, b);
    std::vector<double> dx(N * C), dbranch(N * C), dalpha(1, 0.0), dw(C, 0.0), db(C, 0.0);
    dyt_general_backward_ref<double>({dx.data(), dbranch.data(), dalpha.data(), dw.data(), db.data()}, dy.data(),
                                     {sum.data(), dres.data(), branch.data(), join}, alpha.data(), w.data(), N, C);
    check_gradient(
        "x", [&](auto& v) { return loss(v, branch, alpha, w, b); }, x, dx);
    check_gradient(
        "branch", [&](auto& v) { return loss(x, v, alpha, w, b); }, branch, dbranch);
    check_gradient(
        "alpha", [&](auto& v) { return loss(x, branch, v, w, b); }, alpha, dalpha);
    check_gradient(
        "w", [&](auto& v) { return loss(x, branch, alpha, v, b); }, w, dw);
    check_gradient(
        "b", [&](auto& v) { return loss(x, branch, alpha, w, v); }, b, db);
  }
}

// In bf16 the reference is given what is stored: its inputs, and the sum that goes through tanh.
template <class S>
static void require_plain_bits(size_t N, size_t C) {
  INFO("N " << N << " C " << C << ", " << name_of(storage_of<S>));
  const auto x = stored<S>(random_values<float>(N * C, 1, 3.0f)), dy = stored<S>(random_values<float>(N * C, 4));
  const auto w = random_values<float>(C, 3), b = random_values<float>(C, 6);
  const auto dw0 = random_values<float>(C, 7), db0 = random_values<float>(C, 8);
  const std::vector<float> alpha = {0.7f}, dalpha0 = {-0.3f};
  std::vector<float> y(N * C, NAN), dx(N * C, NAN), dalpha = dalpha0, dw = dw0, db = db0;
  dyt_forward_ref(y.data(), x.data(), alpha.data(), w.data(), b.data(), N, C);
  dyt_backward_ref(dx.data(), dalpha.data(), dw.data(), db.data(), dy.data(), x.data(), alpha.data(), w.data(), N, C);
  y = stored<S>(y), dx = stored<S>(dx);
  on_every_device([&](Context& ctx) {
    GuardedOf<S> gy(ctx, N * C), gdx(ctx, N * C), gx(ctx, x), gdy(ctx, dy);
    Guarded gda(ctx, dalpha0), gdw(ctx, dw0), gdb(ctx, db0), sums(ctx, N), ga(ctx, alpha), gw(ctx, w), gb(ctx, b);
    dyt_forward({gy}, {gx}, ga, gw, gb, N, C, ctx);
    dyt_backward({gdx, nullptr, gda, gdw, gdb, sums}, gdy, {gx}, ga, gw, N, C, ctx);
    REQUIRE_BITWISE(y, gy.download());
    REQUIRE_BITWISE(dx, gdx.download());
    REQUIRE_BITWISE(dalpha, gda.download());
    REQUIRE_BITWISE(dw, gdw.download());
    REQUIRE_BITWISE(db, gdb.download());
    Guarded gdw_in_place(ctx, dw0), gdb_in_place(ctx, db0);
    dyt_backward({gdy, nullptr, gda, gdw_in_place, gdb_in_place, sums}, gdy, {gx}, ga, gw, N, C, ctx);
    REQUIRE_BITWISE(dx, gdy.download());
    REQUIRE_BITWISE(dw, gdw_in_place.download());
    REQUIRE_BITWISE(db, gdb_in_place.download());
    if (ctx.device == kernel_device) REQUIRE(ctx.most_scratch_used() == dyt_backward_scratch(N, C));
  });
}

TEST_CASE("dyt: CPU and kernels equal the plain reference bit for bit", "[bitwise]") {
  const struct { size_t N, C; } sizes[] = {{63, 200}, {5, 1}, {9, 131}, {300, 64}, {1, 1030}};
  for (auto [N, C] : sizes) require_plain_bits<float>(N, C);
  require_plain_bits<bf16>(9, 131);
  require_plain_bits<bf16>(130, 200);
}

template <class S>
static void require_general_bits(size_t N, size_t C) {
  const float nan = NAN;
  const auto x = stored<S>(random_values<float>(N * C, 1, 3.0f)), branch = stored<S>(random_values<float>(N * C, 2));
  const auto dy = stored<S>(random_values<float>(N * C, 4)), dres = stored<S>(random_values<float>(N * C, 5));
  const auto w = random_values<float>(C, 3), b = random_values<float>(C, 6);
  const auto dw0 = random_values<float>(C, 7), db0 = random_values<float>(C, 8);
  const std::vector<float> alpha = {0.7f}, dalpha0 = {-0.3f};
  const struct {
    bool dresidual;
    Join join;
  } cases[] = {{true, {}}, {false, joins()[1]}, {true, joins()[1]}};
  for (const auto& test : cases) {
    INFO("N " << N << " C " << C << " dresidual " << test.dresidual << " plain " << test.join.plain() << ", "
              << name_of(storage_of<S>));
    std::vector<float> y(N * C, nan), sum(N * C, nan), dx(N * C, nan), dbranch(N * C, nan);
    std::vector<float> dalpha = dalpha0, dw = dw0, db = db0;
    residual_join_forward_ref<float>(sum.data(), {x.data(), branch.data(), test.join}, N, C);
    sum = stored<S>(sum);
    dyt_general_forward_ref<float>({y.data()}, {sum.data()}, alpha.data(), w.data(), b.data(), N, C);
    const float* dresidual = test.dresidual ? dres.data() : nullptr;
    ResidualBackwardInOf<float> in = {sum.data(), dresidual, branch.data(), test.join};
    in.join.clip_sum = S(test.join.clip_sum);
    dyt_general_backward_ref<float>({dx.data(), dbranch.data(), dalpha.data(), dw.data(), db.data()}, dy.data(), in,
                                    alpha.data(), w.data(), N, C);
    y = stored<S>(y), dx = stored<S>(dx), dbranch = stored<S>(dbranch);
    on_every_device([&](Context& ctx) {
      GuardedOf<S> gy(ctx, N * C), gsum(ctx, N * C), gdx(ctx, N * C), gdbranch(ctx, N * C);
      GuardedOf<S> gx(ctx, x), gbranch(ctx, branch), gdy(ctx, dy), gdres(ctx, dres);
      Guarded gw(ctx, w), gb(ctx, b), ga(ctx, alpha), gda(ctx, dalpha0), gdw(ctx, dw0), gdb(ctx, db0), sums(ctx, N);
      DytGradients gradients = {gdx, gdbranch, gda, gdw, gdb, sums};
      const ResidualBackwardIn back = {gsum, test.dresidual ? +gdres : nullptr, gbranch, test.join};
      dyt_forward({gy, gsum}, {gx, gbranch, test.join}, ga, gw, gb, N, C, ctx);
      dyt_backward(gradients, gdy, back, ga, gw, N, C, ctx);
      REQUIRE_BITWISE(y, gy.download());
      REQUIRE_BITWISE(sum, gsum.download());
      REQUIRE_BITWISE(dx, gdx.download());
      REQUIRE_BITWISE(dbranch, gdbranch.download());
      REQUIRE_BITWISE(dalpha, gda.download());
      REQUIRE_BITWISE(dw, gdw.download());
      REQUIRE_BITWISE(db, gdb.download());
      GuardedOf<S>& over = test.dresidual ? gdres : gdy;  // in place
      gradients.dx = over;
      dyt_backward(gradients, gdy, back, ga, gw, N, C, ctx);
      REQUIRE_BITWISE(dx, over.download());
    });
  }
}

TEST_CASE("dyt: CPU and kernels equal the general reference bit for bit", "[bitwise]") {
  const struct { size_t N, C; } sizes[] = {{63, 200}, {5, 1}, {9, 131}, {1, 1030}};
  for (auto [N, C] : sizes) require_general_bits<float>(N, C);
  require_general_bits<bf16>(9, 131);
  require_general_bits<bf16>(5, 1032);
}

TEST_CASE("dyt: where tanh is its argument y is w*(alpha*x) + b exactly, where it is flat +-w + b") {
  const size_t C = 200;
  Context cpu(Device::cpu);
  const auto x = random_values<float>(C, 1), w = random_values<float>(C, 2), b = random_values<float>(C, 3);
  std::vector<float> y(C), linear(C), flat(C);
  const float small = 1e-4f, large = 1e9f;  // (1e-4)^3/3 is below half an ulp of 1e-4
  for (size_t c = 0; c < C; c++)
    linear[c] = std::fma(w[c], small * x[c], b[c]), flat[c] = x[c] < 0 ? b[c] - w[c] : b[c] + w[c];
  dyt_forward({y.data()}, {x.data()}, &small, w.data(), b.data(), 1, C, cpu);
  REQUIRE_BITWISE(linear, y);
  dyt_forward({y.data()}, {x.data()}, &large, w.data(), b.data(), 1, C, cpu);
  REQUIRE_BITWISE(flat, y);

  // The gradient is linear there, and none in the flat part.
  const auto dy = random_values<float>(C, 4);
  std::vector<float> dx(C), dalpha(1), dw(C), db(C), sums(1), expected(C);
  dyt_backward({dx.data(), nullptr, dalpha.data(), dw.data(), db.data(), sums.data()}, dy.data(), {x.data()}, &small,
               w.data(), 1, C, cpu);
  for (size_t c = 0; c < C; c++) expected[c] = small * (dy[c] * w[c]);
  REQUIRE_BITWISE(expected, dx);
  dyt_backward({dx.data(), nullptr, dalpha.data(), dw.data(), db.data(), sums.data()}, dy.data(), {x.data()}, &large,
               w.data(), 1, C, cpu);
  for (float v : dx) REQUIRE(v == 0);
  REQUIRE(sums[0] == 0);
}
