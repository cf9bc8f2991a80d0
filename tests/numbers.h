// numbers: what tests and exercises make and measure numbers with: random ones, how far two arrays are apart, and
// finite differences. tests/test_compare.cpp
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace gated {

// n values in [-scale, scale), the same for a seed on every machine. Exact in float and in double.
template <class T>
std::vector<T> random_values(size_t n, uint64_t seed, T scale = T(1)) {
  std::vector<T> v(n);
  uint64_t s = seed * 0x9E3779B97F4A7C15ull + 0x1234567;
  for (T& x : v) {
    s ^= s << 13, s ^= s >> 7, s ^= s << 17;
    x = T((int64_t(s >> 41) - (1 << 22))) / T(1 << 22) * scale;
  }
  return v;
}

// Largest |got - expected| over the largest |expected|: infinity where either is NaN or the sizes differ.
template <class T>
double relative_error(const std::vector<T>& expected, const std::vector<T>& got) {
  if (expected.size() != got.size()) return INFINITY;
  double worst = 0, scale = 0;
  for (size_t i = 0; i < got.size(); i++) {
    const double d = std::fabs(double(got[i]) - double(expected[i]));
    if (std::isnan(d)) return INFINITY;
    if (d > worst) worst = d;
    if (std::fabs(double(expected[i])) > scale) scale = std::fabs(double(expected[i]));
  }
  return worst == 0 ? 0 : worst / scale;
}

// How far `gradient` is from the central differences of `loss` at x, over the largest entry.
// Fourth order: error ~ h^4 f^(5)/30 + rounding/h.
inline double gradient_error(const std::function<double(const std::vector<double>&)>& loss,
                             const std::vector<double>& x, const std::vector<double>& gradient) {
  const double h = 1e-3;
  std::vector<double> numeric(x.size()), at = x;
  for (size_t i = 0; i < x.size(); i++) {
    auto f = [&](double step) {
      at[i] = x[i] + step;
      return loss(at);
    };
    numeric[i] = (8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h);
    at[i] = x[i];
  }
  return relative_error(numeric, gradient);
}

}  // namespace gated
