// number_formats: BF16 and F16 to fp32, and back to BF16.
#include "training/checkpoint/number_formats.h"

#include <cmath>
#include <vector>

#include "core/bf16.cuh"
#include "tests/catch.h"

using namespace gated;

TEST_CASE("number formats: every BF16 widens to the number that it is, and rounds back to itself", "[formats]") {
  for (uint32_t bits = 0; bits <= 0xffff; bits++) {
    const float x = float(bf16::from_bits(uint16_t(bits)));
    const int exponent = int(bits >> 7 & 255), fraction = int(bits & 127);
    const double sign = bits >> 15 ? -1 : 1;
    if (exponent == 255 && fraction) {
      REQUIRE(std::isnan(x));
      REQUIRE(std::isnan(float(bf16(x))));
      continue;
    }
    if (exponent == 255)
      REQUIRE((std::isinf(x) && std::signbit(x) == (sign < 0)));
    else
      REQUIRE(double(x) == sign * std::ldexp(exponent ? 128 + fraction : fraction, (exponent ? exponent : 1) - 134));
    REQUIRE(bf16(x).bits == bits);
  }
}

TEST_CASE("number formats: every F16 widens to the number that it is", "[formats]") {
  for (uint32_t bits = 0; bits <= 0xffff; bits++) {
    const float x = widen_f16(uint16_t(bits));
    const int exponent = int(bits >> 10 & 31), fraction = int(bits & 1023);
    const double sign = bits >> 15 ? -1 : 1;
    if (exponent == 31 && fraction)
      REQUIRE(std::isnan(x));
    else if (exponent == 31)
      REQUIRE((std::isinf(x) && std::signbit(x) == (sign < 0)));
    else
      REQUIRE(double(x) == sign * std::ldexp(exponent ? 1024 + fraction : fraction, (exponent ? exponent : 1) - 25));
    REQUIRE(std::signbit(x) == (sign < 0));
  }
}

TEST_CASE("number formats: fp32 rounds to the nearest BF16, a tie to the even one", "[formats]") {
  for (uint32_t high = 0; high < 0x7f80; high++) {  // all finite ones, and the next
    const float below = float(bf16::from_bits(uint16_t(high)));
    for (const uint32_t low : {0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float x = std::bit_cast<float>(high << 16 | low);
      const uint16_t rounded = bf16(x).bits;
      const bool up = low > 0x8000 || (low == 0x8000 && high % 2 == 1);
      REQUIRE(rounded == high + up);
      REQUIRE(bf16(-x).bits == (0x8000 | rounded));
      REQUIRE(below <= x);
    }
  }
  REQUIRE(std::isinf(float(bf16(3.4e38f))));
  REQUIRE(std::isnan(float(bf16(std::bit_cast<float>(0x7f800001u)))));  // its upper half alone is infinite
  REQUIRE(std::isnan(float(bf16(std::bit_cast<float>(0xffffffffu)))));
}
