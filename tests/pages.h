// pages: the Markdown pages of the project, and what stands in them.
#pragma once
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/contents.h"

namespace gated {

// README.md and every page of docs/ and results/, by path.
inline std::vector<std::string> pages() {
  std::vector<std::string> all = {"README.md"};
  for (const char* folder : {"docs", "results"})
    for (const auto& file : std::filesystem::directory_iterator(folder))
      if (file.path().extension() == ".md") all.push_back(file.path().generic_string());
  std::sort(all.begin(), all.end());
  return all;
}

// A page in turns: its text, what stands between ``` and ```, its text, and so on.
inline std::vector<std::string> text_and_code(const std::string& page) {
  return pieces("\n" + contents(page), "\n```");
}

// The lines of a page that stand between ```sh and ```.
inline std::vector<std::string> shell_lines(const std::string& page) {
  const std::vector<std::string> parts = text_and_code(page);
  std::string shell;
  for (size_t i = 1; i < parts.size(); i += 2)
    if (parts[i].starts_with("sh\n")) shell += parts[i].substr(3) + "\n";
  return lines_of(shell);
}

// A page without what stands between ``` and ```.
inline std::string prose(const std::string& page) {
  const std::vector<std::string> parts = text_and_code(page);
  std::string kept;
  for (size_t i = 0; i < parts.size(); i += 2) kept += parts[i] + "\n";
  return kept;
}

}  // namespace gated
