// dispatch: the sort against another, its counts, the rows of tokens and the sums of their gradients.
#include "kernels/dispatch.h"

#include <numeric>

#include "tests/dispatch_cases.h"

using namespace gated;
using Ints = std::vector<int>;

TEST_CASE("dispatch: the sort is stable, whatever the sizes", "[bitwise]") {
  // Around the tiles of 1024 slots, 32 lanes, 32 tiles of a warp, and powers of two of experts.
  const DispatchShape sizes[] = {{0, 3, 2},     {1, 1, 1},      {63, 8, 2},     {200, 200, 8}, {1023, 3, 1},
                                 {512, 128, 2}, {1025, 1, 1},   {33, 33, 31},   {341, 64, 6},  {683, 65, 3},
                                 {3000, 31, 1}, {16900, 32, 2}, {90, 1100, 12}, {5, 7, 7},     {256, 128, 8}};
  for (const DispatchShape& s : sizes) {
    std::vector<Ints> choices = {random_experts(s, s.N, false), random_experts(s, s.N + 1, true)};
    for (size_t all : {size_t{0}, s.E / 2, s.E - 1})
      if (s.k == 1) choices.push_back(Ints(s.N, int(all)));  // one expert gets every slot
    for (const Ints& expert : choices) {
      INFO("N " << s.N << " E " << s.E << " k " << s.k << ", choice " << &expert - choices.data());
      Ints slots(s.M()), row_start(s.E + 1, 0), row_of_slot(s.M());
      std::iota(slots.begin(), slots.end(), 0);
      std::stable_sort(slots.begin(), slots.end(), [&](int a, int b) { return expert[a] < expert[b]; });
      for (size_t row = 0; row < s.M(); row++) row_of_slot[slots[row]] = int(row);
      for (int e : expert)
        for (size_t above = e + 1; above <= s.E; above++) row_start[above]++;

      on_every_device([&](Context& ctx) {
        const DeviceSlots sorted(s, expert, ctx);
        REQUIRE(sorted.row_start() == row_start);
        REQUIRE(sorted.row_of_slot() == row_of_slot);
        if (ctx.device != Device::cpu) REQUIRE(ctx.most_scratch_used() == dispatch_sort_scratch(s));
      });
    }
  }
}

TEST_CASE("dispatch: counts are written for the first batch of a step and added for the others", "[bitwise]") {
  const DispatchShape s = {300, 270, 2};
  const SortedSlots one(s, random_experts(s, 1, false)), other(s, random_experts(s, 2, true));
  std::vector<size_t> first(s.E), both(s.E);
  for (size_t e = 0; e < s.E; e++) {
    first[e] = one.row_start[e + 1] - one.row_start[e];
    both[e] = first[e] + other.row_start[e + 1] - other.row_start[e];
  }
  REQUIRE(std::count(both.begin(), both.end(), 0u) > 0);
  on_every_device([&](Context& ctx) {
    const Buffer<int> starts(ctx.device, one.row_start), more(ctx.device, other.row_start);
    const Buffer<size_t> counts(ctx.device, std::vector<size_t>(s.E, 99));
    const auto downloaded = [&] {
      ctx.synchronize();
      return counts.download();
    };
    dispatch_count(counts.data(), starts.data(), true, s.E, ctx);
    REQUIRE(downloaded() == first);
    dispatch_count(counts.data(), more.data(), false, s.E, ctx);
    REQUIRE(downloaded() == both);
  });
}

TEST_CASE("dispatch: gradients against finite differences", "[gradcheck]") {
  const DispatchShape s = {7, 5, 3};
  const size_t C = 4;
  SortedSlots sorted(s, random_experts(s, 1, true));
  auto x = random_values<double>(s.N * C, 1);
  const auto drows = random_values<double>(s.M() * C, 2);
  std::vector<double> rows(s.M() * C), dx(s.N * C);
  dispatch_gather_backward_ref(dx.data(), Accumulate::no, drows.data(), sorted.lists(), s, C);
  const auto loss = [&] { return dispatch_gather_ref(rows.data(), x.data(), sorted.lists(), s, C), dot(rows, drows); };
  check_gradients(loss, {{"x", x, dx}});
}

template <class S>
static void require_dispatch_bits(const DispatchShape& s, size_t C) {
  INFO("N " << s.N << " E " << s.E << " k " << s.k << " C " << C << ", " << name_of(storage_of<S>));
  const Ints expert = random_experts(s, 3, true);
  SortedSlots sorted(s, expert);
  auto x0 = random_values<float>(s.N * C, 1), drows0 = random_values<float>(s.M() * C, 2);
  for (size_t i = 0; i < drows0.size(); i += 3) drows0[i] = x0[i % x0.size()] = -0.0f;
  Trial t;
  const auto x = t.in<S>(x0), drows = t.in<S>(drows0), rows = t.out<S>(s.M() * C), written = t.out<S>(s.N * C),
             added = t.sum<S>(s.N * C, 4);
  dispatch_gather_ref(rows.ref, x.ref, sorted.lists(), s, C);
  dispatch_gather_backward_ref(written.ref, Accumulate::no, drows.ref, sorted.lists(), s, C);
  dispatch_gather_backward_ref(added.ref, Accumulate::yes, drows.ref, sorted.lists(), s, C);
  t.on_every_device([&](Context& ctx) {
    const DeviceSlots on_device(s, expert, ctx);
    dispatch_gather(rows, x, on_device.lists(), s, C, ctx);
    dispatch_gather_backward(written, Accumulate::no, drows, on_device.lists(), s, C, ctx);
    dispatch_gather_backward(added, Accumulate::yes, drows, on_device.lists(), s, C, ctx);
  });
}

TEST_CASE("dispatch: what the program runs equals the reference bit for bit", "[bitwise]") {
  for_dispatch_cases(
      [](auto stored, const DispatchShape& s, size_t C) { require_dispatch_bits<decltype(stored)>(s, C); });
}

TEST_CASE("dispatch: a token's gradient goes along its slots, from the first, and then to dx", "[bitwise]") {
  // 2^24 + 1 is 2^24 in float: in slot order 2, against it 3, straight into a dx of 1 it would be 4.
  const DispatchShape s = {2, 3, 3};
  const Ints expert = {2, 0, 1, 0, 1, 2};  // rows of token 0 in slot order: 4, 0, 2
  std::vector<float> values(6, -0.0f);
  values[4] = 1.0f, values[0] = 0x1p24f, values[2] = 2.0f - 0x1p24f;
  Trial t;
  const auto drows = t.in(values), dx = t.expect({2.0f, -0.0f}), more = t.sum({1.0f, -0.0f}, {3.0f, -0.0f});
  t.on_every_device([&](Context& ctx) {
    const DeviceSlots sorted(s, expert, ctx);
    REQUIRE(sorted.row_of_slot() == Ints{4, 0, 2, 1, 3, 5});
    dispatch_gather_backward(dx, Accumulate::no, drows, sorted.lists(), s, 1, ctx);
    dispatch_gather_backward(more, Accumulate::yes, drows, sorted.lists(), s, 1, ctx);
  });
}

TEST_CASE("dispatch: shapes that do not fit are refused") {
  Context cpu(Device::cpu);
  const auto sort = [&](const DispatchShape& s) { dispatch_sort({}, nullptr, s, cpu); };
  REQUIRE_THROWS_WITH(sort({1, 1000000, 1}), "dispatch_sort: 1000000 experts, expected 1 to 12288");
  REQUIRE_THROWS_WITH(sort({1, 0, 0}), "dispatch_sort: 0 experts, expected 1 to 12288");
  REQUIRE_THROWS_WITH(sort({1, 4, 5}), "dispatch_sort: 5 experts of a token, expected 1 to 4, the number of experts");
  REQUIRE_THROWS_WITH(sort({1, 4, 0}), "dispatch_sort: 0 experts of a token, expected 1 to 4, the number of experts");
  REQUIRE_THROWS_WITH(sort({size_t{1} << 30, 8, 2}),
                      "dispatch_sort: 1073741824 tokens with 2 experts each, expected at most 2147483647 rows");
  REQUIRE_THROWS_WITH(dispatch_gather(nullptr, nullptr, {}, {1, 1, 2}, 1, cpu),
                      Catch::Matchers::StartsWith("dispatch_gather: 2 experts of a token"));
  REQUIRE_THROWS_WITH(dispatch_gather_backward(nullptr, Accumulate::no, nullptr, {}, {1, 1, 2}, 1, cpu),
                      Catch::Matchers::StartsWith("dispatch_gather_backward: 2 experts of a token"));
  REQUIRE_NOTHROW(require_dispatch("", {0x7fffffff / 8, 12288, 8}));
}
