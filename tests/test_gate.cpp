// gate: the reference against finite differences, the kernels against the reference, one score for many
// elements, both forms and every activation.
#include "kernels/gate.h"

#include "tests/gate_ops.h"
#include "tests/harness.h"

using namespace gated;

namespace {

// The references, over whole vectors.
template <class T>
void forward(std::vector<T>& y, const std::vector<T>& x, const std::vector<T>& z, size_t N, size_t C, size_t group,
             const GateOp& op) {
  gate_forward_ref(y.data(), x.data(), z.data(), N, C, group, op);
}

template <class T>
void backward(std::vector<T>& dx, std::vector<T>& dz, const std::vector<T>& dy, const std::vector<T>& x,
              const std::vector<T>& z, size_t N, size_t C, size_t group, const GateOp& op) {
  gate_backward_ref(dx.data(), dz.data(), dy.data(), x.data(), z.data(), N, C, group, op);
}

}  // namespace

TEST_CASE("gate: gradients against finite differences", "[gradcheck]") {
  const size_t N = 3, C = 12;
  for (const GateOp& op : gate_ops)
    for (size_t group : {1, 4, 6, 12}) {
      INFO(describe(op) << ", group " << group);
      const auto x = random_values<double>(N * C, 1), z = random_values<double>(N * C / group, 2, 4.0);
      const auto dy = random_values<double>(N * C, 3);
      std::vector<double> y(N * C), dx(N * C), dz(z.size());
      backward(dx, dz, dy, x, z, N, C, group, op);
      auto loss = [&](const std::vector<double>& x, const std::vector<double>& z) {
        forward(y, x, z, N, C, group, op);
        return dot(y, dy);
      };
      check_gradient(
          "x", [&](auto& v) { return loss(v, z); }, x, dx);
      check_gradient(
          "z", [&](auto& v) { return loss(x, v); }, z, dz);
    }
}

TEST_CASE("gate: a score for a head is that score for each of its elements", "[bitwise]") {
  const size_t N = 5, C = 24, group = 8;
  const auto x = random_values<float>(N * C, 1), z = random_values<float>(N * C / group, 2, 4.0f);
  std::vector<float> repeated(N * C), headwise(N * C), elementwise(N * C);
  for (size_t i = 0; i < N * C; i++) repeated[i] = z[i / group];
  for (const GateOp& op : gate_ops) {
    INFO(describe(op));
    forward(headwise, x, z, N, C, group, op);
    forward(elementwise, x, repeated, N, C, 1, op);
    REQUIRE_BITWISE(elementwise, headwise);
  }
}

TEST_CASE("gate: what the forms make of a logit", "[bitwise]") {
  const size_t N = 3, C = 10;
  const auto x = random_values<float>(N * C, 1), z = random_values<float>(N * C, 2, 4.0f);
  const std::vector<float> zero(N * C, 0.0f);
  std::vector<float> y(N * C), expected(N * C);
  auto require = [&](const GateOp& op, const std::vector<float>& z, auto value) {
    INFO(describe(op));
    for (size_t i = 0; i < N * C; i++) expected[i] = value(x[i], z[i]);
    forward(y, x, z, N, C, 1, op);
    REQUIRE_BITWISE(expected, y);
  };
  require({}, z, [](float x, float z) { return x * exact_sigmoid(z); });
  require({}, zero, [](float x, float) { return x / 2; });
  require({.scale = 2}, zero, [](float x, float) { return x; });
  require({.act = Activation::ns_sigmoid}, zero, [](float x, float) { return x * 0.75f; });
  require({.act = Activation::silu}, zero, [](float x, float) { return x * 0.0f; });
  require({.act = Activation::silu, .additive = true}, zero, [](float x, float) { return x; });
  require({.act = Activation::identity, .additive = true}, z, [](float x, float z) { return x + z; });
  require({.act = Activation::tanh, .additive = true, .scale = 3}, z,
          [](float x, float z) { return x + 3 * exact_tanh(z); });
}

template <class S>
static void require_gate_bits(size_t N, size_t C, size_t group, const GateOp& op) {
  INFO("N " << N << " C " << C << " group " << group << " " << describe(op) << ", " << name_of(storage_of<S>));
  const size_t scores = N * C / group;
  auto x = stored<S>(random_values<float>(N * C, 1, 3.0f)), z = stored<S>(random_values<float>(scores, 2, 20.0f));
  const auto dy = stored<S>(random_values<float>(N * C, 3));
  const float extremes[] = {100.0f, -100.0f, 0.0f, -0.0f};
  for (size_t i = 0; i < 4 && i < scores; i++) z[i] = extremes[i];
  for (size_t i = 0; i < 4 && 3 * i < N * C; i++) x[3 * i] = extremes[i];

  std::vector<float> y(N * C, NAN), dx(N * C, NAN), dz(scores, NAN);
  forward(y, x, z, N, C, group, op);
  backward(dx, dz, dy, x, z, N, C, group, op);
  for (auto* v : {&y, &dx, &dz}) *v = stored<S>(*v);

  on_every_device([&](Context& ctx) {
    GuardedOf<S> gy(ctx, N * C), gdx(ctx, N * C), gdz(ctx, scores);
    GuardedOf<S> gx(ctx, x), gz(ctx, z), gdy(ctx, dy);
    gate_forward(gy, gx, gz, N, C, group, op, ctx);
    gate_backward(gdx, gdz, gdy, gx, gz, N, C, group, op, ctx);
    REQUIRE_BITWISE(y, gy.download());
    REQUIRE_BITWISE(dx, gdx.download());
    REQUIRE_BITWISE(dz, gdz.download());

    GuardedOf<S> y_over_x(ctx, x), dx_over_dy(ctx, dy), dz_over_z(ctx, z);
    gate_forward(y_over_x, y_over_x, gz, N, C, group, op, ctx);
    gate_backward(dx_over_dy, dz_over_z, dx_over_dy, gx, dz_over_z, N, C, group, op, ctx);
    REQUIRE_BITWISE(y, y_over_x.download());
    REQUIRE_BITWISE(dx, dx_over_dy.download());
    REQUIRE_BITWISE(dz, dz_over_z.download());
  });
}

TEST_CASE("gate: what the program runs equals the reference bit for bit", "[bitwise]") {
  const struct {
    size_t N, C, group;
  } sizes[] = {{63, 200, 1},  {5, 1, 1},      {7, 131, 1},   {0, 8, 1},     {9, 24, 8},
               {100, 39, 13}, {17, 256, 128}, {11, 192, 64}, {4, 262, 131}, {3, 1030, 1030}},
    of_bf16[] = {{7, 131, 1}, {9, 24, 8}, {4, 262, 131}};
  for (const GateOp& op : gate_ops) {
    for (auto [N, C, group] : sizes)
      if (&op == gate_ops || N * C <= 2000) require_gate_bits<float>(N, C, group, op);
    for (auto [N, C, group] : of_bf16) require_gate_bits<bf16>(N, C, group, op);
  }
}

TEST_CASE("gate: what is refused") {
  Context cpu(Device::cpu);
  REQUIRE_THROWS_WITH(gate_forward(nullptr, nullptr, nullptr, 2, 12, 5, {}, cpu),
                      "gate_forward: group is 5, expected a divisor of the 12 columns");
  REQUIRE_THROWS_WITH(gate_backward(nullptr, nullptr, nullptr, nullptr, nullptr, 2, 12, 0, {}, cpu),
                      "gate_backward: group is 0, expected a divisor of the 12 columns");
  REQUIRE_THROWS_WITH(gate_forward(nullptr, nullptr, nullptr, 0, 1, 1, {Activation::relu2}, cpu),
                      "gate_forward: act is relu2, expected one of: sigmoid tanh silu ns-sigmoid identity");
}
