// compare: the one comparer of results. Bitwise means bitwise: +0 is not -0, and every NaN counts as one NaN.
// A NaN nobody asked for fails even when both sides have it: outputs start as NaN, so it means "never written".
// Itself tested in tests/test_compare.cpp.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "core/check.h"
#include "tests/catch.h"
#include "tests/numbers.h"

namespace gated {

enum class Nan { refused, expected };

// "" when got equals expected bit for bit, else what differs first and how many do.
template <class T>
std::string bitwise_difference(const std::vector<T>& expected, const std::vector<T>& got, Nan nan = Nan::refused) {
  if (expected.size() != got.size()) return format("%zu elements, expected %zu", got.size(), expected.size());
  size_t wrong = 0, first = 0;
  bool first_is_nan = false;
  for (size_t i = 0; i < got.size(); i++) {
    bool equal = memcmp(&expected[i], &got[i], sizeof(T)) == 0, poison = false;
    if constexpr (std::is_floating_point_v<T>) {
      const bool e = std::isnan(expected[i]), g = std::isnan(got[i]);
      poison = nan == Nan::refused && (e || g);
      equal = (equal || (e && g)) && !poison;
    }
    if (!equal && wrong++ == 0) first = i, first_is_nan = poison;
  }
  if (wrong == 0) return "";
  return format("%zu of %zu elements differ; the first at %zu: %.9g, expected %.9g%s", wrong, got.size(), first,
                double(got[first]), double(expected[first]), first_is_nan ? " (a NaN: never written?)" : "");
}

#define REQUIRE_BITWISE(expected, got)                         \
  do {                                                         \
    INFO(#got " against " #expected);                          \
    REQUIRE(::gated::bitwise_difference(expected, got) == ""); \
  } while (0)

}  // namespace gated
