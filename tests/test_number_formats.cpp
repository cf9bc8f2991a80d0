// number_formats: BF16 and F16 to fp32, and back to BF16.
#include "training/checkpoint/number_formats.h"

#include <cmath>
#include <vector>

#include "core/bf16.cuh"
#include "tests/catch.h"

using namespace gated;

// Every number of 16 bits, so many of them its mantissa, is widened to the number that it is.
template <class Widen>
static void check_widened(int mantissa, Widen widen) {
  const int last = (1 << (15 - mantissa)) - 1, one = 1 << mantissa, bias = last / 2 + mantissa;
  for (int bits = 0; bits <= 0xffff; bits++) {
    const float x = widen(uint16_t(bits));
    const int exponent = bits >> mantissa & last, fraction = bits & (one - 1);
    const double sign = bits >> 15 ? -1 : 1;
    if (exponent == last)
      REQUIRE((fraction ? std::isnan(x) : std::isinf(x)));
    else
      REQUIRE(double(x) == sign * std::ldexp(exponent ? one + fraction : fraction, (exponent ? exponent : 1) - bias));
    REQUIRE(std::signbit(x) == (sign < 0));
  }
}

TEST_CASE("number formats: every BF16 and every F16 widens to the number that it is", "[formats]") {
  check_widened(7, [](uint16_t bits) { return float(bf16::from_bits(bits)); });
  check_widened(10, widen_f16);
}

TEST_CASE("number formats: fp32 rounds to the nearest BF16, a tie to the even one, a BF16 to itself", "[formats]") {
  for (uint32_t high = 0; high < 0x7f80; high++) {  // all finite ones, and the next
    const float below = float(bf16::from_bits(uint16_t(high)));
    for (const uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float x = std::bit_cast<float>(high << 16 | low);
      const uint16_t rounded = bf16(x).bits;
      const bool up = low > 0x8000 || (low == 0x8000 && high % 2 == 1);
      REQUIRE(rounded == high + up);
      REQUIRE(bf16(-x).bits == (0x8000 | rounded));
      REQUIRE(below <= x);
    }
  }
  REQUIRE(std::isinf(float(bf16(3.4e38f))));
  REQUIRE((bf16(INFINITY).bits == 0x7f80 && bf16(-INFINITY).bits == 0xff80));
  REQUIRE(std::isnan(float(bf16(std::bit_cast<float>(0x7f800001u)))));  // its upper half alone is infinite
  REQUIRE(std::isnan(float(bf16(std::bit_cast<float>(0xffffffffu)))));
}
