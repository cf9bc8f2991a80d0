// gate: the reference against finite differences, the kernels against the reference, both forms and every activation.
// (Against PyTorch, and one score for many elements: tests/test_fixtures.cpp.)
#include "kernels/gate.h"

#include "tests/gate_ops.h"
#include "tests/harness.h"

using namespace gated;

TEST_CASE("gate: gradients against finite differences", "[gradcheck]") {
  const size_t N = 3, C = 12, n = N * C;
  for (const GateOp& op : gate_ops)
    for (size_t group : {1, 4, 6, 12}) {
      INFO(describe(op) << ", group " << group);
      auto x = random_values<double>(n, 1), z = random_values<double>(n / group, 2, 4.0);
      const auto dy = random_values<double>(n, 3);
      std::vector<double> y(n), dx(n), dz(z.size());
      gate_backward_ref(dx.data(), dz.data(), dy.data(), x.data(), z.data(), N, C, group, op);
      const auto loss = [&] { return gate_forward_ref(y.data(), x.data(), z.data(), N, C, group, op), dot(y, dy); };
      check_gradients(loss, {{"x", x, dx}, {"z", z, dz}});
    }
}

template <class S>
static void require_gate_bits(size_t N, size_t C, size_t group, const GateOp& op) {
  INFO("N " << N << " C " << C << " group " << group << " " << describe(op) << ", " << name_of(storage_of<S>));
  const size_t n = N * C, scores = n / group;
  Trial t;
  const auto x = t.in<S>(with_extremes(random_values<float>(n, 1, 3.0f), 3)),
             z = t.in<S>(with_extremes(random_values<float>(scores, 2, 20.0f), 1)), dy = t.random<S>(n, 3);
  const auto y = t.out<S>(n), dx = t.out<S>(n), dz = t.out<S>(scores);
  const auto y_over_x = t.over(x, y), dx_over_dy = t.over(dy, dx), dz_over_z = t.over(z, dz);
  gate_forward_ref(y.ref, x.ref, z.ref, N, C, group, op);
  gate_backward_ref(dx.ref, dz.ref, dy.ref, x.ref, z.ref, N, C, group, op);
  t.on_every_device([&](Context& ctx) {
    gate_forward(y, x, z, N, C, group, op, ctx);
    gate_backward(dx, dz, dy, x, z, N, C, group, op, ctx);
    gate_forward(y_over_x, y_over_x, z, N, C, group, op, ctx);
    gate_backward(dx_over_dy, dz_over_z, dx_over_dy, x, dz_over_z, N, C, group, op, ctx);
  });
}

TEST_CASE("gate: what the program runs equals the reference bit for bit", "[bitwise]") {
  const std::array<size_t, 3> sizes[] = {{63, 200, 1},  {5, 1, 1},      {7, 131, 1},   {0, 8, 1},     {9, 24, 8},
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
