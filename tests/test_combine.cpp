// combine: the reference against finite differences, what the program runs against the reference.
#include "kernels/combine.h"

#include "tests/dispatch_cases.h"

using namespace gated;

TEST_CASE("combine: gradients against finite differences", "[gradcheck]") {
  const DispatchShape s = {6, 5, 3};
  const size_t C = 4;
  SortedSlots sorted(s, random_experts(s, 1, true));
  auto rows = random_values<double>(s.M() * C, 1), weight = random_values<double>(s.M(), 2),
       plus = random_values<double>(s.N * C, 3);
  const auto dy = random_values<double>(s.N * C, 4);
  std::vector<double> y(s.N * C), drows(s.M() * C), dweight(s.M());
  combine_backward_ref(drows.data(), dweight.data(), dy.data(), rows.data(), weight.data(), sorted.lists(), s, C);
  const auto loss = [&] {
    combine_forward_ref(y.data(), rows.data(), weight.data(), plus.data(), sorted.lists(), s, C);
    return dot(y, dy);
  };
  check_gradients(loss, {{"rows", rows, drows}, {"weight", weight, dweight}, {"plus", plus, dy}});
}

template <class S>
static void require_combine_bits(const DispatchShape& s, size_t C) {
  INFO("N " << s.N << " E " << s.E << " k " << s.k << " C " << C << ", " << name_of(storage_of<S>));
  const std::vector<int> expert = random_experts(s, 3, true);
  SortedSlots sorted(s, expert);
  auto rows0 = random_values<float>(s.M() * C, 1), weight0 = random_values<float>(s.M(), 2),
       plus0 = random_values<float>(s.N * C, 3);
  for (size_t i = 0; i < rows0.size(); i += 7) rows0[i] = -0.0f;
  for (size_t i = 0; i < plus0.size(); i += 5) plus0[i] = 1e-40f;
  weight0[s.M() - 1] = 0.0f;
  Trial t;
  const auto rows = t.in<S>(rows0), plus = t.in<S>(plus0), dy = t.random<S>(s.N * C, 4), y = t.out<S>(s.N * C),
             with = t.out<S>(s.N * C), y_over_plus = t.over(plus, with), drows = t.out<S>(s.M() * C),
             drows_over_rows = t.over(rows, drows);
  const auto weight = t.in(weight0), dweight = t.out(s.M()), dweight_again = t.again(dweight);
  combine_forward_ref<float>(y.ref, rows.ref, weight.ref, nullptr, sorted.lists(), s, C);
  combine_forward_ref(with.ref, rows.ref, weight.ref, plus.ref, sorted.lists(), s, C);
  combine_backward_ref(drows.ref, dweight.ref, dy.ref, rows.ref, weight.ref, sorted.lists(), s, C);
  t.on_every_device([&](Context& ctx) {
    const DeviceSlots on_device(s, expert, ctx);
    const Dispatch d = on_device.lists();
    combine_forward(y, rows, weight, nullptr, d, s, C, ctx);
    combine_forward(with, rows, weight, plus, d, s, C, ctx);
    combine_forward(y_over_plus, rows, weight, y_over_plus, d, s, C, ctx);
    combine_backward(drows, dweight, dy, rows, weight, d, s, C, ctx);
    combine_backward(drows_over_rows, dweight_again, dy, drows_over_rows, weight, d, s, C, ctx);
  });
}

TEST_CASE("combine: what the program runs equals the reference bit for bit", "[bitwise]") {
  for_dispatch_cases(
      [](auto stored, const DispatchShape& s, size_t C) { require_combine_bits<decltype(stored)>(s, C); });
}

TEST_CASE("combine: the first product is rounded, the others are fused, plus comes last", "[bitwise]") {
  // Slots in order: a*a, then -1 * (a*a rounded): 0 where order and roundings are right.
  const float a = 1.0f + 0x1p-12f, square = a * a;
  const DispatchShape s = {1, 2, 2};
  const auto run = [&](const std::vector<int>& expert, const std::vector<float>& rows0,
                       const std::vector<float>& weight0, float plus0, float expected) {
    Trial t;
    const auto rows = t.in(rows0), weight = t.in(weight0), plus = t.in({plus0}), y = t.expect({expected});
    t.on_every_device(
        [&](Context& ctx) { combine_forward(y, rows, weight, plus, DeviceSlots(s, expert, ctx).lists(), s, 1, ctx); });
  };
  run({0, 1}, {a, square}, {a, -1.0f}, 0.0f, 0.0f);
  // The same terms in the other order: -square first, then a*a fused, which leaves what the square lost.
  run({1, 0}, {a, square}, {-1.0f, a}, 0.0f, std::fma(a, a, -square));
  REQUIRE(std::fma(a, a, -square) != 0.0f);
  run({0, 1}, {0x1p24f, -0x1p24f}, {1.0f, 1.0f}, 1.0f, 1.0f);  // plus first would be lost
}

TEST_CASE("combine: shapes that do not fit are refused") {
  Context cpu(Device::cpu);
  REQUIRE_THROWS_WITH(combine_forward(nullptr, nullptr, nullptr, nullptr, {}, {1, 4, 5}, 1, cpu),
                      "combine_forward: 5 experts of a token, expected 1 to 4, the number of experts");
  REQUIRE_THROWS_WITH(
      combine_backward(nullptr, nullptr, nullptr, nullptr, nullptr, {}, {size_t{1} << 30, 4, 4}, 1, cpu),
      "combine_backward: 1073741824 tokens with 4 experts each, expected at most 2147483647 rows");
}
