// static_gate: the reference against finite differences; what the CPU and the kernels make against the reference.
#include "kernels/static_gate.h"

#include "tests/gate_ops.h"
#include "tests/harness.h"

using namespace gated;

TEST_CASE("static_gate: gradients against finite differences", "[gradcheck]") {
  const size_t N = 4, C = 7;
  auto x = random_values<double>(N * C, 1), theta = random_values<double>(C, 2, 3.0);
  const auto dy = random_values<double>(N * C, 3);
  for (const GateOp& op : gate_ops) {
    INFO(describe(op));
    std::vector<double> y(N * C), dx(N * C), dtheta(C, 0.0);
    static_gate_backward_ref(dx.data(), dtheta.data(), dy.data(), x.data(), theta.data(), N, C, op);
    const auto loss = [&] { return static_gate_forward_ref(y.data(), x.data(), theta.data(), N, C, op), dot(y, dy); };
    check_gradients(loss, {{"x", x, dx}, {"theta", theta, dtheta}});
  }
}

template <class S>
static void require_static_gate_bits(size_t N, size_t C, const GateOp& op) {
  INFO("N " << N << " C " << C << " " << describe(op) << ", " << name_of(storage_of<S>));
  Trial t;
  const auto x = t.random<S>(N * C, 1, 3.0f), dy = t.random<S>(N * C, 3), y = t.out<S>(N * C), dx = t.out<S>(N * C);
  const auto y_over_x = t.over(x, y), dx_over_dy = t.over(dy, dx);
  const auto theta = t.in(with_extremes(random_values<float>(C, 2, 20.0f), 1)), dtheta = t.sum(C, 4),
             dtheta_again = t.again(dtheta);
  static_gate_forward_ref(y.ref, x.ref, theta.ref, N, C, op);
  static_gate_backward_ref(dx.ref, dtheta.ref, dy.ref, x.ref, theta.ref, N, C, op);
  t.on_every_device([&](Context& ctx) {
    static_gate_forward(y, x, theta, N, C, op, ctx);
    static_gate_backward(dx, dtheta, dy, x, theta, N, C, op, ctx);
    if (N > 0 && ctx.device != Device::cpu) REQUIRE(ctx.most_scratch_used() == static_gate_backward_scratch(N, C));
    static_gate_forward(y_over_x, y_over_x, theta, N, C, op, ctx);
    static_gate_backward(dx_over_dy, dtheta_again, dx_over_dy, x, theta, N, C, op, ctx);
  });
}

TEST_CASE("static_gate: what the program runs equals the reference bit for bit", "[bitwise]") {
  const std::array<size_t, 2> sizes[] = {{63, 20}, {5, 1}, {9, 131}, {300, 12}, {0, 8}, {1, 1030}, {16500, 2}},
                              of_bf16[] = {{9, 131}, {300, 12}};
  for (const GateOp& op : gate_ops) {
    for (auto [N, C] : sizes)
      if (&op == gate_ops || N * C <= 4000) require_static_gate_bits<float>(N, C, op);
    for (auto [N, C] : of_bf16) require_static_gate_bits<bf16>(N, C, op);
  }
}

TEST_CASE("static_gate: an activation that gates do not take is refused") {
  Context cpu(Device::cpu);
  REQUIRE_THROWS_WITH(static_gate_forward(nullptr, nullptr, nullptr, 0, 1, {Activation::gelu_tanh}, cpu),
                      "static_gate_forward: act is gelu_tanh, expected one of: sigmoid tanh silu ns-sigmoid identity");
  REQUIRE_THROWS_AS(static_gate_backward(nullptr, nullptr, nullptr, nullptr, nullptr, 0, 1, {Activation::relu2}, cpu),
                    Error);
}
