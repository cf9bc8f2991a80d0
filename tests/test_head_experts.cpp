// head_experts: the reference against finite differences and by hand, which experts are chosen, the kernels against the
// reference.
#include "kernels/head_experts.h"

#include "tests/harness.h"

using namespace gated;

namespace {

// Which experts of one head are chosen, by logits: "+" or "-" each.
std::string chosen(const std::vector<float>& z, size_t k) {
  std::vector<float> s(z.size()), x(z.size(), 1.0f), y(1);
  head_experts_forward_ref(y.data(), s.data(), x.data(), z.data(), {1, 1, 1, z.size(), k});
  std::string text;
  for (float score : s) text += score == -1.0f ? "-" : "+";
  return text;
}

}  // namespace

TEST_CASE("head_experts: gradients against finite differences", "[gradcheck]") {
  for (auto [E, k] : {std::pair<size_t, size_t>{1, 1}, {4, 2}, {3, 3}, {5, 1}}) {
    INFO(k << " of " << E << " experts");
    const size_t N = 3, H = 2, D = 5;
    const HeadExpertsShape shape = {N, H, D, E, k};
    auto x = random_values<double>(N * H * E * D, 1), z = random_values<double>(N * H * E, 2, 0.1);
    const auto dy = random_values<double>(N * H * D, 3);
    // Logits of a head lie at least 0.2 apart, so that a step of the differences does not change the choice.
    for (size_t i = 0; i < z.size(); i++) z[i] += 0.4 * double((i * 2 + i / E) % 5) - 0.8;
    std::vector<double> y(dy.size()), s(z.size()), dx(x.size(), NAN), dz(z.size(), NAN);
    const auto loss = [&] {
      head_experts_forward_ref(y.data(), s.data(), x.data(), z.data(), shape);
      return dot(y, dy);
    };
    loss();
    head_experts_backward_ref(dx.data(), dz.data(), dy.data(), x.data(), s.data(), shape);
    for (size_t e = 0; e < s.size(); e++) REQUIRE((s[e] == -1) == (dz[e] == 0));
    check_gradients(loss, {{"x", x, dx}, {"z", z, dz}});
  }
}

TEST_CASE("head_experts: the k largest scores, of two equal ones the lower expert", "[head_experts]") {
  REQUIRE(chosen({0.1f, 0.4f, -0.2f, 0.3f}, 1) == "-+--");
  REQUIRE(chosen({0.1f, 0.4f, -0.2f, 0.3f}, 2) == "-+-+");
  REQUIRE(chosen({0.1f, 0.4f, -0.2f, 0.3f}, 3) == "++-+");
  REQUIRE(chosen({0.1f, 0.4f, -0.2f, 0.3f}, 4) == "++++");
  REQUIRE(chosen({0.5f, 0.5f, 0.5f}, 2) == "++-");
  REQUIRE(chosen({0.0f, -0.0f}, 1) == "+-");
  REQUIRE(chosen({0.2f, 0.5f, 0.5f, 0.5f}, 2) == "-++-");
  REQUIRE(chosen({50.0f, 60.0f}, 1) == "+-");      // both scores are 1
  REQUIRE(chosen({-200.0f, -300.0f}, 1) == "+-");  // and both 0, which is a score
  REQUIRE(chosen({1.0f, NAN, 2.0f}, 1) == "-++");
}

TEST_CASE("head_experts: the weighted sum in ascending order, and weights that are not normalised", "[bitwise]") {
  const size_t D = 3, E = 4;
  const auto x = random_values<float>(E * D, 1), dy = random_values<float>(D, 2);
  const std::vector<float> z = {-3.0f, 0.5f, 2.0f, 1.0f};
  std::vector<float> y(D, NAN), s(E, NAN), dx(E * D, NAN), dz(E, NAN);
  head_experts_forward_ref(y.data(), s.data(), x.data(), z.data(), {1, 1, D, E, 3});
  head_experts_backward_ref(dx.data(), dz.data(), dy.data(), x.data(), s.data(), {1, 1, D, E, 3});
  const float s1 = exact_sigmoid(0.5f), s2 = exact_sigmoid(2.0f), s3 = exact_sigmoid(1.0f);
  REQUIRE_BITWISE((std::vector<float>{-1.0f, s1, s2, s3}), s);
  for (size_t d = 0; d < D; d++) {
    REQUIRE(y[d] == fused(x[3 * D + d], s3, fused(x[2 * D + d], s2, x[D + d] * s1)));
    REQUIRE(dx[d] == 0);
    REQUIRE(dx[D + d] == dy[d] * s1);
  }
  REQUIRE(dz[0] == 0);
}

template <class S>
static void require_head_experts_bits(const HeadExpertsShape& shape) {
  const auto [N, H, D, E, k] = shape;
  INFO("N " << N << " H " << H << " D " << D << ", " << k << " of " << E << " experts, " << name_of(storage_of<S>));
  auto x0 = random_values<float>(N * H * E * D, 1, 3.0f), z0 = random_values<float>(N * H * E, 2, 20.0f);
  const float extremes[] = {100.0f, -110.0f, 0.0f, -0.0f, 50.0f, 60.0f};  // and with them equal scores
  for (size_t i = 0; i < 6 && i < z0.size(); i++) z0[i] = extremes[i];
  for (size_t i = 0; i < 6 && 3 * i < x0.size(); i++) x0[3 * i] = extremes[i];
  Trial t;
  const auto x = t.in<S>(x0), dy = t.random<S>(N * H * D, 3), y = t.out<S>(N * H * D), dx = t.out<S>(x0.size()),
             dz = t.out<S>(z0.size()), y_again = t.again(y), dx_again = t.again(dx), dz_again = t.again(dz);
  const auto z = t.in(z0), s = t.out(z0.size()), s_over_z = t.over(z, s);
  Array<float> dz_over_z;
  if constexpr (std::is_same_v<S, float>) dz_over_z = t.over(z, dz);
  head_experts_forward_ref(y.ref, s.ref, x.ref, z.ref, shape);
  head_experts_backward_ref(dx.ref, dz.ref, dy.ref, x.ref, s.ref, shape);
  t.on_every_device([&](Context& ctx) {
    head_experts_forward(y, s, x, z, shape, ctx);
    head_experts_backward(dx, dz, dy, x, s, shape, ctx);
    head_experts_forward(y_again, s_over_z, x, s_over_z, shape, ctx);
    head_experts_backward(dx_again, dz_again, dy, x, s_over_z, shape, ctx);
    if constexpr (std::is_same_v<S, float>) {
      head_experts_forward(y_again, dz_over_z, x, dz_over_z, shape, ctx);
      head_experts_backward(dx_again, dz_over_z, dy, x, dz_over_z, shape, ctx);
    }
    REQUIRE(ctx.most_scratch_used() == 0);
  });
}

TEST_CASE("head_experts: what the program runs equals the reference bit for bit", "[bitwise]") {
  const HeadExpertsShape shapes[] = {{7, 2, 6, 3, 2},  {1, 1, 1, 1, 1},   {0, 2, 8, 4, 2},     {33, 3, 32, 8, 8},
                                     {9, 1, 13, 5, 1}, {4, 2, 131, 4, 3}, {3, 2, 260, 32, 31}, {5, 4, 64, 17, 4}};
  for (const HeadExpertsShape& shape : shapes) {
    require_head_experts_bits<float>(shape);
    require_head_experts_bits<bf16>(shape);
  }
}

TEST_CASE("head_experts: what was not chosen is not looked at, and a NaN shows", "[bitwise]") {
  const HeadExpertsShape shape = {1, 1, 8, 3, 1};
  std::vector<float> values(24, NAN), expected(8);
  for (size_t d = 0; d < 8; d++) values[8 + d] = float(d), expected[d] = float(d) * exact_sigmoid(1.0f);
  Trial t(Nan::expected);
  const auto x = t.in(values), z = t.in({0.0f, 1.0f, -1.0f}), with_nan = t.in({0.0f, 1.0f, NAN}),
             y = t.expect(expected), y_with_nan = t.expect(std::vector<float>(8, NAN));
  t.on_every_device([&](Context& ctx) {
    const Guarded s(ctx, 3);
    head_experts_forward(y, s, x, z, shape, ctx);
    head_experts_forward(y_with_nan, s, x, with_nan, shape, ctx);
  });
}

TEST_CASE("head_experts: what is refused") {
  Context cpu(Device::cpu);
  auto forward = [&](size_t E, size_t k) {
    head_experts_forward(nullptr, nullptr, nullptr, nullptr, {0, 1, 4, E, k}, cpu);
  };
  REQUIRE_THROWS_WITH(forward(0, 1), "head_experts_forward: 0 experts of a head, expected 1 to 32");
  REQUIRE_THROWS_WITH(forward(33, 1), "head_experts_forward: 33 experts of a head, expected 1 to 32");
  REQUIRE_THROWS_WITH(forward(4, 0), "head_experts_forward: a token takes 0 experts, expected 1 to the 4 of a head");
  REQUIRE_THROWS_WITH(forward(4, 5), "head_experts_forward: a token takes 5 experts, expected 1 to the 4 of a head");
  REQUIRE_THROWS_AS(head_experts_backward(nullptr, nullptr, nullptr, nullptr, nullptr, {0, 1, 4, 4, 5}, cpu), Error);
}
