// wide_rows: rows inside wider ones, as those of q, k and v are where one array holds all three.
#pragma once
#include <cmath>
#include <vector>

#include "core/check.h"

namespace gated {

// What a test puts between the rows: NaN where they are read, where it would show in what is computed from it, and 7
// where they are written, which gather_rows() looks for.
constexpr float between_inputs = NAN, between_outputs = 7;

// `rows` rows `stride` elements apart, each with a row of x from its element `at` on.
inline std::vector<float> spread_rows(const std::vector<float>& x, size_t rows, size_t stride, size_t at,
                                      float between) {
  const size_t width = x.size() / rows;
  std::vector<float> wide(rows * stride, between);
  for (size_t i = 0; i < x.size(); i++) wide[i / width * stride + at + i % width] = x[i];
  return wide;
}

// The way back. Refuses where something was written between the rows.
inline std::vector<float> gather_rows(const std::vector<float>& wide, size_t rows, size_t width, size_t at) {
  const size_t stride = wide.size() / rows;
  std::vector<float> x;
  for (size_t i = 0; i < wide.size(); i++) {
    const bool between = i % stride < at || i % stride >= at + width;
    if (!between) x.push_back(wide[i]);
    if (between && wide[i] != between_outputs) fail("element %zu of a row of %zu was written", i % stride, stride);
  }
  return x;
}

}  // namespace gated
