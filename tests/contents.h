// contents: what a file holds.
#pragma once
#include <fstream>
#include <iterator>
#include <string>

namespace gated {

// Its bytes; none where it cannot be read.
inline std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace gated
