// rope: its tables, the reference against finite differences, the CPU's code and the kernels against the reference.
// (The rotation itself: tests/test_fixtures.cpp.)
#include "kernels/rope.h"

#include "tests/harness.h"

using namespace gated;

TEST_CASE("rope: tables hold cos and sin of t * theta^(-2i/D)") {
  const size_t rows = 5000, D = 8;
  const double theta = 1e4;
  const RopeTables tables = make_rope_tables(rows, D, theta, Device::cpu);
  REQUIRE((tables.rows == rows && tables.half == D / 2));
  double worst = 0;
  for (size_t t = 0; t < rows; t++)
    for (size_t i = 0; i < D / 2; i++) {
      const double angle = double(t) * std::pow(theta, -2.0 * double(i) / double(D));
      worst = std::max(worst, std::fabs(double(tables.cos.data()[t * D / 2 + i]) - std::cos(angle)));
      worst = std::max(worst, std::fabs(double(tables.sin.data()[t * D / 2 + i]) - std::sin(angle)));
    }
  REQUIRE(worst < 0x1p-25 + 1e-11);  // half an ulp of a float just below 1, and the error of an angle of 5000
}

TEST_CASE("rope: YaRN at a scale of 1 is plain RoPE, and a short training stretches all points but the first") {
  REQUIRE(rope_frequencies(12, 1e4, yarn(1, 5)) == rope_frequencies(12, 1e4));
  REQUIRE(yarn(1, 5).factor() == 1);
  const std::vector<double> plain = rope_frequencies(12, 1e4), stretched = rope_frequencies(12, 1e4, yarn(8, 3));
  for (size_t i = 0; i < 6; i++) REQUIRE(stretched[i] == Approx(i ? plain[i] / 8 : plain[i]).epsilon(1e-14));
}

TEST_CASE("rope: linear scaling slows every point, that of Llama 3 those that go round less than 4 times") {
  const double theta = 5e5, scale = 8;
  const size_t R = 128, L = 8192;
  const std::vector<double> plain = rope_frequencies(R, theta);
  const RopeScaling linear = {RopeScaling::Kind::linear, scale}, llama3 = {RopeScaling::Kind::llama3, scale, L, 1, 4};
  const std::vector<double> slow = rope_frequencies(R, theta, linear), blended = rope_frequencies(R, theta, llama3);
  REQUIRE((linear.factor() == 1 && llama3.factor() == 1));
  size_t kept = 0, slowed = 0;
  for (size_t i = 0; i < R / 2; i++) {
    REQUIRE(slow[i] == plain[i] / scale);
    const double length = 2 * 3.14159265358979323846 / plain[i];  // tokens of one turn
    if (length < double(L) / 4) {
      REQUIRE(blended[i] == plain[i]);
      kept++;
    } else if (length > double(L)) {
      REQUIRE(blended[i] == Approx(plain[i] / scale).epsilon(1e-14));
      slowed++;
    } else {
      const double smooth = (double(L) / length - 1) / 3;
      REQUIRE(blended[i] == Approx((1 - smooth) * plain[i] / scale + smooth * plain[i]).epsilon(1e-14));
    }
  }
  REQUIRE((kept > 20 && slowed > 20 && kept + slowed < R / 2));
}

TEST_CASE("rope: gradients against finite differences", "[gradcheck]") {
  const size_t B = 2, T = 3, H = 2, D = 6, n = B * T * H * D;
  for (size_t R : {D, D - 2}) {
    const RopeTables tables = make_rope_tables(T, R, 50.0, Device::cpu);
    const std::vector<float> cos_f = tables.cos.download(), sin_f = tables.sin.download();
    const std::vector<double> cos(cos_f.begin(), cos_f.end()), sin(sin_f.begin(), sin_f.end());
    auto x = random_values<double>(n, 1);
    const auto dy = random_values<double>(n, 2);
    std::vector<double> y(n), dx(n);
    rope_backward_ref(dx.data(), dy.data(), cos.data(), sin.data(), B, T, H, D, R);
    const auto loss = [&] {
      return rope_forward_ref(y.data(), x.data(), cos.data(), sin.data(), B, T, H, D, R), dot(y, dy);
    };
    check_gradients(loss, {{"x", x, dx}});
  }
}

namespace {

struct Sizes {
  size_t B, T, H, D, R, first_position;
};

}  // namespace

template <class S>
static void require_rope_bits(const Sizes& sizes) {
  const auto [B, T, H, D, R, first_position] = sizes;
  INFO("B " << B << " T " << T << " H " << H << " D " << D << " R " << R << " first position " << first_position << ", "
            << name_of(storage_of<S>));
  const size_t n = B * T * H * D;
  auto values = random_values<float>(n, 1, 3.0f);
  values[0] = 100.0f, values[n - 1] = -100.0f, values[n / 2] = -0.0f, values[1] = 0.0f;
  Trial t;
  const auto x = t.in<S>(values), dy = t.random<S>(n, 2), y = t.out<S>(n), dx = t.out<S>(n), y_over_x = t.over(x, y),
             dx_over_dy = t.over(dy, dx);
  const RopeTables tables = make_rope_tables(first_position + T, R, 1e4, Device::cpu);
  const float *cos = &tables.cos.data()[first_position * (R / 2)], *sin = &tables.sin.data()[first_position * (R / 2)];
  std::vector<float> y_in_place = x.values();
  rope_forward_ref(y.ref, x.ref, cos, sin, B, T, H, D, R);
  rope_backward_ref(dx.ref, dy.ref, cos, sin, B, T, H, D, R);
  rope_forward_ref(y_in_place.data(), y_in_place.data(), cos, sin, B, T, H, D, R);
  REQUIRE_BITWISE(y.values(), y_in_place);
  t.on_every_device([&, B = B, T = T, H = H, D = D, R = R, first_position = first_position](Context& ctx) {
    const RopeTables on_device = make_rope_tables(first_position + T, R, 1e4, ctx.device);
    rope_forward(y, x, on_device, first_position, B, T, H, D, ctx);
    rope_backward(dx, dy, on_device, first_position, B, T, H, D, ctx);
    rope_forward(y_over_x, y_over_x, on_device, first_position, B, T, H, D, ctx);
    rope_backward(dx_over_dy, dx_over_dy, on_device, first_position, B, T, H, D, ctx);
  });
}

TEST_CASE("rope: what the program runs equals the reference bit for bit", "[bitwise]") {
  const std::vector<Sizes> of_both = {{2, 7, 3, 10, 10, 1}, {2, 5, 3, 64, 16, 3}, {1, 3, 5, 17, 8, 2}};
  const std::vector<Sizes> of_floats = {{2, 63, 3, 8, 8, 0},     {1, 5, 2, 2, 2, 4},     {3, 9, 5, 64, 64, 100},
                                        {1, 1, 1, 128, 128, 17}, {2, 3, 2, 200, 200, 0}, {1, 9, 2, 11, 6, 0}};
  for (const Sizes& sizes : of_both) require_rope_bits<float>(sizes), require_rope_bits<bf16>(sizes);
  for (const Sizes& sizes : of_floats) require_rope_bits<float>(sizes);
}

TEST_CASE("rope: what does not fit is refused") {
  Context cpu(Device::cpu);
  REQUIRE_THROWS_WITH(make_rope_tables(4, 7, 1e4, Device::cpu),
                      "rope: 7 elements of a head turn, expected an even number");
  REQUIRE_THROWS_WITH(make_rope_tables(4, 8, 0.5, Device::cpu), "rope: theta is 0.5, expected 1 or more");
  REQUIRE_THROWS_WITH(rope_frequencies(8, 1e4, yarn(0.5, 9)), "rope: a scale of 0.5, expected 1 or more");
  for (const auto& [theta, trained] : std::vector<std::pair<double, size_t>>{{1.0, 9}, {1e4, 0}})
    REQUIRE_THROWS_WITH(rope_frequencies(8, theta, yarn(2, trained)),
                        Catch::StartsWith(format("rope: YaRN stretches %zu tokens at a theta of %g,", trained, theta)));
  REQUIRE_THROWS_WITH(rope_frequencies(8, 1e4, {RopeScaling::Kind::llama3, 2, 9, 4, 4}),
                      "rope: points that go round 4 to 4 times in 9 tokens, expected a range");
  const RopeTables tables = make_rope_tables(4, 8, 1e4, Device::cpu);
  REQUIRE_THROWS_WITH(rope_forward(nullptr, nullptr, tables, 2, 1, 3, 1, 8, cpu),
                      "rope: positions 2 to 5, the tables end before 4; make longer ones");
  REQUIRE_THROWS_WITH(rope_backward(nullptr, nullptr, tables, 0, 1, 3, 1, 6, cpu),
                      "rope: heads have 6 elements, the tables turn 8");
}
