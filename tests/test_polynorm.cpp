// polynorm: the reference against finite differences, what the program runs against the reference.
#include "kernels/polynorm.h"

#include "tests/harness.h"

using namespace gated;

TEST_CASE("polynorm: gradients against finite differences", "[gradcheck]") {
  const size_t N = 3, C = 13;
  for (double eps : {1e-6, 0.1}) {
    auto x = random_values<double>(N * C, 1, 2.0), w = random_values<double>(3, 2), b = random_values<double>(1, 3);
    const auto dy = random_values<double>(N * C, 4);
    std::vector<double> y(N * C), r(N * 3), dx(N * C), dw(3, 0.0), db(1, 0.0);
    const auto loss = [&] {
      polynorm_forward_ref(y.data(), r.data(), x.data(), w.data(), b.data(), N, C, eps);
      return dot(y, dy);
    };
    loss();
    polynorm_backward_ref(dx.data(), dw.data(), db.data(), dy.data(), x.data(), w.data(), r.data(), N, C);
    check_gradients(loss, {{"x", x, dx}, {"w", w, dw}, {"b", b, db}});
  }
}

template <class S>
static void require_polynorm_bits(size_t N, size_t C) {
  INFO("N " << N << " C " << C << ", " << name_of(storage_of<S>));
  const float eps = 1e-6f;
  auto values = random_values<float>(N * C, 1, 3.0f);
  for (size_t c = 0; c < C && N > 1; c++) values[c] = 0.0f;  // a row of zeros
  Trial t;
  const auto x = t.in<S>(values), dy = t.random<S>(N * C, 4), y = t.out<S>(N * C), dx = t.out<S>(N * C),
             y_over_x = t.over(x, y), dx_over_dy = t.over(dy, dx), dx_over_x = t.over(x, dx);
  const auto w = t.random(3, 2), b = t.random(1, 3), r = t.out(N * 3), dw = t.sum(3, 5), db = t.sum(1, 6),
             dw_again = t.again(dw), db_again = t.again(db), dw_third = t.again(dw), db_third = t.again(db);
  polynorm_forward_ref(y.ref, r.ref, x.ref, w.ref, b.ref, N, C, eps);
  polynorm_backward_ref(dx.ref, dw.ref, db.ref, dy.ref, x.ref, w.ref, r.ref, N, C);
  t.on_every_device([&](Context& ctx) {
    const Guarded sums(ctx, N * 4);
    polynorm_forward(y, r, x, w, b, N, C, eps, ctx);
    polynorm_backward(dx, dw, db, sums, dy, x, w, r, N, C, ctx);
    if (ctx.device != Device::cpu) REQUIRE(ctx.most_scratch_used() == polynorm_backward_scratch(N));
    polynorm_forward(y_over_x, r, y_over_x, w, b, N, C, eps, ctx);
    polynorm_backward(dx_over_dy, dw_again, db_again, sums, dx_over_dy, x, w, r, N, C, ctx);
    polynorm_backward(dx_over_x, dw_third, db_third, sums, dy, dx_over_x, w, r, N, C, ctx);
    sums.download();  // in its bounds
  });
}

TEST_CASE("polynorm: what the program runs equals the reference bit for bit", "[bitwise]") {
  const std::array<size_t, 2> sizes[] = {{63, 200}, {5, 1}, {9, 131}, {300, 64}, {1, 1030}, {0, 8}},
                              of_bf16[] = {{9, 131}, {5, 200}};
  for (auto [N, C] : sizes) require_polynorm_bits<float>(N, C);
  for (auto [N, C] : of_bf16) require_polynorm_bits<bf16>(N, C);
}

TEST_CASE("polynorm: rows without columns are refused") {
  Context cpu(Device::cpu);
  REQUIRE_THROWS_AS(polynorm_forward(nullptr, nullptr, nullptr, nullptr, nullptr, 1, 0, 1e-6f, cpu), Error);
  REQUIRE_THROWS_AS(
      polynorm_backward(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, 1, 0, cpu), Error);
}
