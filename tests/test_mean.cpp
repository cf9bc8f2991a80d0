// mean: against a literal evaluation of its order, what the program runs against the reference.
#include "kernels/mean.h"

#include "core/sums.h"
#include "tests/harness.h"

using namespace gated;

TEST_CASE("mean: its order and its kernels, bit for bit", "[bitwise]") {
  // The last has more than 128 chunks, so that chunk sums share chains.
  for (size_t n : {1, 3, 128, 129, 1030, 16383, 16384, 16385, 16388, 50001, 16384 * 130 + 5}) {
    INFO("n " << n);
    const auto x = uneven_values(n);
    RowSum<float> sums;
    for (size_t begin = 0; begin < n; begin += 16384) {
      RowSum<float> chunk;
      for (size_t i = begin; i < std::min<size_t>(n, begin + 16384); i++) chunk.add(x[i]);
      sums.add(chunk.total());
    }
    const std::vector<float> expected = {sums.total() / float(n)};
    Trial t;
    const auto gx = t.in(x), out = t.out(1);
    mean_ref(out.ref, gx.ref, n);
    REQUIRE_BITWISE(expected, out.values());
    t.on_every_device([&](Context& ctx) {
      mean(out, gx, n, ctx);
      if (ctx.device != Device::cpu) REQUIRE(ctx.most_scratch_used() == mean_scratch(n));
    });
    double sum = 0;
    for (float v : x) sum += v;
    REQUIRE(expected[0] == Approx(sum / double(n)).epsilon(1e-6));
  }
}

TEST_CASE("mean: one element that is not finite shows", "[bitwise]") {
  const auto finite = random_values<float>(20000, 1);
  for (float bad : {float(NAN), float(INFINITY)}) {
    auto values = finite;
    values[17001] = bad;
    Trial t(Nan::expected);
    const auto x = t.in(values), out = t.expect({bad});
    t.on_every_device([&](Context& ctx) { mean(out, x, values.size(), ctx); });
  }
}

TEST_CASE("mean: over nothing is refused") {
  Context cpu(Device::cpu);
  float x = 1;
  REQUIRE_THROWS_AS(mean(&x, &x, 0, cpu), Error);
}
