// fixture_lines: lists of flags that tests go through, a line each.
#pragma once
#include <fstream>
#include <string>
#include <vector>

#include "core/check.h"

namespace gated {

// `lines`, and those of a file of tests/fixtures that are neither empty nor comments.
inline std::vector<std::string> fixture_lines(const std::string& file, std::vector<std::string> lines = {}) {
  std::ifstream in("tests/fixtures/" + file);
  require(in.good(), "tests/fixtures/%s cannot be read: run tests from the repository's root", file.c_str());
  for (std::string line; std::getline(in, line);)
    if (!line.empty() && line[0] != '#') lines.push_back(line);
  return lines;
}

}  // namespace gated
