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

// Random tokens of a vocabulary.
inline std::vector<int> some_ids(size_t n, size_t vocab, uint64_t seed) {
  std::vector<int> ids;
  for (double x : random_values<double>(n, seed)) ids.push_back(int((x + 1) / 2 * double(vocab)));
  return ids;
}

// Chunks of 16384 with unlike sums, so that the order of adding those shows.
inline std::vector<float> uneven_values(size_t n) {
  auto x = random_values<float>(n, n, 2.0f);
  for (size_t i = 0; i < n; i++) x[i] = (x[i] + 2.0f) * (1.0f + 1.7f * float(i / 16384 % 7));
  return x;
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

// The 2-norm of got - expected, over that of expected.
template <class T, class U>
double norm_error(const std::vector<T>& expected, const std::vector<U>& got) {
  double apart = 0, length = 0;
  for (size_t i = 0; i < expected.size(); i++) {
    apart += std::pow(double(got[i]) - double(expected[i]), 2);
    length += std::pow(double(expected[i]), 2);
  }
  return std::sqrt(apart / length);
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
