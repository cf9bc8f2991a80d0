// round: whole arrays are rounded as one number is (tests/test_number_formats.cpp).
#include "kernels/bf16/round.h"

#include "tests/harness.h"

using namespace gated;

TEST_CASE("round: every element is rounded to nearest even, and nothing after the last", "[bitwise]") {
  for (size_t n : {0, 1, 3, 4, 37, 1024, 1026, 4133}) {
    INFO("n " << n);
    auto values = random_values<float>(n, 1, 20.0f);
    const float extremes[] = {1 + 0x1p-8f, 1 + 0x3p-8f, -0.0f,
                              0x1p-140f,   3.4e38f,     -INFINITY};  // ties; beyond the largest
    for (size_t i = 0; i < 6 && 3 * i < n; i++) values[3 * i] = extremes[i];
    Trial t;
    const auto out = t.expect<bf16>(values);
    const auto in = t.in(values);
    t.on_every_device([&](Context& ctx) { round_to_bf16(out, in, n, ctx); });
  }
}
