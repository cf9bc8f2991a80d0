// sampler: draws follow the softmax, repeat with the seed, and stay inside the top k.
#include "training/text/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "core/philox.cuh"
#include "tests/compare.h"

using namespace gated;

TEST_CASE("sampler: temperature 0 takes the likeliest, of equal ones the lower id; -inf is never drawn", "[sampler]") {
  REQUIRE(Sampler{0.0, 0, 1}.draw({1.0f, 5.0f, 5.0f}, 0) == 1);
  REQUIRE(Sampler{1.0, 0, 1}.draw({-INFINITY, 0.0f}, 3) == 1);
}

TEST_CASE("sampler: a draw is the one that the softmax of the k likeliest and Philox give", "[sampler]") {
  // Few logits with ties, of which the lower id comes first; and so many that they are sorted in part.
  const struct {
    size_t vocab, factor, modulus;
    float unit;
    uint64_t draws;
  } cases[] = {{40, 11, 17, 0.2f, 300}, {3000, 1009, 3000, 1e-3f, 20}};
  for (const auto& [V, factor, modulus, unit, draws] : cases) {
    std::vector<float> logits(V);
    for (size_t i = 0; i < V; i++) logits[i] = float(i * factor % modulus) * unit;
    std::vector<int> order(V);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[size_t(a)] > logits[size_t(b)]; });
    for (uint64_t seed : {uint64_t(1), uint64_t(77), uint64_t(1) << 40})
      for (double temperature : {0.3, 1.0, 2.5})
        for (size_t k : {0, 1, 2, 7, 40, 100}) {
          const size_t kept = k == 0 || k > V ? V : k;
          double total = 0;
          for (size_t i = 0; i < kept; i++) total += std::exp(double(logits[size_t(order[i])]) / temperature);
          std::set<int> seen;
          for (uint64_t index = 0; index < draws; index++) {
            INFO("seed " << seed << ", temperature " << temperature << ", top " << k << ", index " << index);
            const double u = uniform_double(seed, uint64_t(5) << 48, index);
            double sum = 0;
            size_t at = 0;
            while (at + 1 < kept && (sum += std::exp(double(logits[size_t(order[at])]) / temperature)) <= u * total)
              at++;
            const int token = Sampler{temperature, k, seed}.draw(logits, index);
            REQUIRE(token == order[at]);
            seen.insert(token);
          }
          if (V == 40 && kept <= 7 && temperature >= 1) REQUIRE(seen.size() == kept);  // all k of them, and no other
        }
  }
}

TEST_CASE("sampler: of the likeliest those are left whose probabilities reach p", "[sampler]") {
  // 1/2, 1/4, 1/8, 1/16, 1/16 in an order of their own.
  const std::vector<double> share = {0.0625, 0.5, 0.125, 0.0625, 0.25};
  std::vector<float> logits;
  for (const double s : share) logits.push_back(float(std::log(s)));
  const auto seen = [&](double top_p, size_t top_k) {
    std::set<int> tokens;
    const Sampler s = {1.0, top_k, 3, top_p};
    for (uint64_t i = 0; i < 400; i++) tokens.insert(s.draw(logits, i));
    return tokens;
  };
  REQUIRE(seen(0, 0) == std::set{1});
  REQUIRE(seen(0.49, 0) == std::set{1});
  REQUIRE(seen(0.51, 0) == std::set{1, 4});
  REQUIRE(seen(0.76, 0) == std::set{1, 2, 4});
  REQUIRE(seen(0.9, 0) == std::set{0, 1, 2, 4});  // ties: the lower id
  REQUIRE(seen(1, 0) == std::set{0, 1, 2, 3, 4});
  REQUIRE(seen(0.9, 2) == std::set{1, 4});  // of the two likeliest, which are two thirds and one third
  REQUIRE(seen(0.6, 2) == std::set{1});

  // Within what is left frequencies are the softmax's, and a stream has draws of its own.
  const Sampler s = {1.0, 0, 11, 0.7};
  size_t ones = 0, alike = 0;
  const size_t draws = 20000;
  for (uint64_t i = 0; i < draws; i++) {
    ones += s.draw(logits, i) == 1;
    alike += s.draw(logits, i) == s.draw(logits, i, 1);
  }
  REQUIRE(std::fabs(double(ones) / double(draws) - 2.0 / 3) < 5 * std::sqrt(2.0 / 9 / double(draws)));
  REQUIRE(std::fabs(double(alike) / double(draws) - 5.0 / 9) < 5 * std::sqrt(20.0 / 81 / double(draws)));
}
