// fixtures: the files of tests/fixtures, and the numbers that the scripts that made them and the tests make from names.
#pragma once
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/harness.h"

namespace gated {

using nlohmann::json;
using Numbers = std::vector<double>;

inline json read_fixtures(const std::string& file) {
  std::ifstream in("tests/fixtures/" + file);
  require(in.good(), "tests/fixtures/%s cannot be read: run tests from the repository's root", file.c_str());
  return json::parse(in);
}

// Of tests/fixtures/refusals.json: words that a command is given, and what it says to them.
inline std::vector<std::pair<std::string, std::string>> refusals(const std::string& of) {
  return read_fixtures("refusals.json").at(of);
}

// ---- numbers that the script makes too

inline uint64_t fnv1a(const std::string& text) {
  uint64_t h = 0xcbf29ce484222325;
  for (unsigned char c : text) h = (h ^ c) * 0x100000001b3;
  return h;
}

template <class T>
std::vector<T> values_of(const std::string& name, size_t n, T scale = 1) {
  return random_values<T>(n, fnv1a(name), scale);
}

inline std::vector<int> tokens_of(const std::string& name, size_t n, size_t vocab) {
  return some_ids(n, vocab, fnv1a(name));
}

// x as a fixture stores it: whole, or its 2-norm and its dot products with three vectors without a small
// entry.
inline Numbers stored(const std::string& name, const Numbers& x, size_t size) {
  if (size == x.size()) return x;
  Numbers result = {std::sqrt(dot(x, x))};
  for (int i = 0; i < 3; i++) {
    Numbers direction = values_of<double>("direction " + std::to_string(i) + " of " + name, x.size());
    for (double& d : direction) d = (d + (d < 0 ? -1 : 1)) / 2;
    result.push_back(dot(x, direction));
  }
  return result;
}

}  // namespace gated
