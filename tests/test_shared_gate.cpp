// shared_gate: the reference against finite differences, the kernels against the reference.
#include "kernels/shared_gate.h"

#include "tests/gate_ops.h"
#include "tests/harness.h"

using namespace gated;

TEST_CASE("shared_gate: gradients against finite differences", "[gradcheck]") {
  const size_t N = 2, H = 3, D = 5, n = N * H * D;
  auto x = random_values<double>(n, 1), z = random_values<double>(n, 2, 4.0);
  const auto dy = random_values<double>(n, 3);
  std::vector<double> y(n), dx(n), dz(n);
  for (const GateOp& op : gate_ops) {
    INFO(describe(op));
    shared_gate_backward_ref(dx.data(), dz.data(), dy.data(), x.data(), z.data(), N, H, D, op);
    const auto loss = [&] { return shared_gate_forward_ref(y.data(), x.data(), z.data(), N, H, D, op), dot(y, dy); };
    check_gradients(loss, {{"x", x, dx}, {"z", z, dz}});
  }
}

TEST_CASE("shared_gate: the average of the scores, in the order stated", "[bitwise]") {
  const size_t N = 3, H = 7, D = 9;
  const auto x = random_values<float>(N * H * D, 1), z = random_values<float>(N * H * D, 2, 4.0f);
  std::vector<float> y(N * H * D), expected(N * H * D);
  shared_gate_forward_ref(y.data(), x.data(), z.data(), N, H, D, GateOp{});
  for (size_t n = 0; n < N; n++)
    for (size_t d = 0; d < D; d++) {
      float s = 0;
      for (size_t h = 0; h < H; h++) s = s + exact_sigmoid(z[(n * H + h) * D + d]);
      for (size_t h = 0; h < H; h++) expected[(n * H + h) * D + d] = x[(n * H + h) * D + d] * (s / 7.0f);
    }
  REQUIRE_BITWISE(expected, y);
}

template <class S>
static void require_shared_gate_bits(size_t N, size_t H, size_t D, const GateOp& op) {
  INFO("N " << N << " H " << H << " D " << D << " " << describe(op) << ", " << name_of(storage_of<S>));
  const size_t n = N * H * D;
  Trial t;
  const auto x = t.in<S>(with_extremes(random_values<float>(n, 1, 3.0f), 3)),
             z = t.in<S>(with_extremes(random_values<float>(n, 2, 20.0f), 3)), dy = t.random<S>(n, 3);
  const auto y = t.out<S>(n), dx = t.out<S>(n), dz = t.out<S>(n);
  const auto y_over_x = t.over(x, y), dx_over_dy = t.over(dy, dx), dz_over_z = t.over(z, dz);
  shared_gate_forward_ref(y.ref, x.ref, z.ref, N, H, D, op);
  shared_gate_backward_ref(dx.ref, dz.ref, dy.ref, x.ref, z.ref, N, H, D, op);
  t.on_every_device([&](Context& ctx) {
    shared_gate_forward(y, x, z, N, H, D, op, ctx);
    shared_gate_backward(dx, dz, dy, x, z, N, H, D, op, ctx);
    shared_gate_forward(y_over_x, y_over_x, z, N, H, D, op, ctx);
    shared_gate_backward(dx_over_dy, dz_over_z, dx_over_dy, x, dz_over_z, N, H, D, op, ctx);
  });
}

TEST_CASE("shared_gate: what the program runs equals the reference bit for bit", "[bitwise]") {
  const std::array<size_t, 3> sizes[] = {{13, 3, 20}, {5, 1, 1}, {7, 4, 13}, {0, 2, 8}, {3, 2, 1030}, {33, 8, 64}},
                              of_bf16[] = {{13, 3, 20}, {7, 4, 13}};
  for (const GateOp& op : gate_ops) {
    for (auto [N, H, D] : sizes) require_shared_gate_bits<float>(N, H, D, op);
    for (auto [N, H, D] : of_bf16) require_shared_gate_bits<bf16>(N, H, D, op);
  }
}

TEST_CASE("shared_gate: what is refused") {
  Context cpu(Device::cpu);
  REQUIRE_THROWS_AS(shared_gate_forward(nullptr, nullptr, nullptr, 2, 0, 4, {}, cpu), Error);
  REQUIRE_THROWS_AS(shared_gate_backward(nullptr, nullptr, nullptr, nullptr, nullptr, 2, 0, 4, {}, cpu), Error);
  REQUIRE_THROWS_WITH(shared_gate_forward(nullptr, nullptr, nullptr, 0, 1, 1, {Activation::gelu_erf}, cpu),
                      "shared_gate_forward: act is gelu_erf, expected one of: sigmoid tanh silu ns-sigmoid identity");
}
