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

// The lines of a page that stand between ```sh and ```.
inline std::vector<std::string> shell_lines(const std::string& page) {
  std::vector<std::string> lines;
  bool shell = false;
  for (const std::string& line : lines_of(contents(page))) {
    if (line.starts_with("```"))
      shell = line == "```sh";
    else if (shell)
      lines.push_back(line);
  }
  return lines;
}

// A page without what stands between ``` and ```.
inline std::string prose(const std::string& page) {
  std::string kept;
  bool code = false;
  for (const std::string& line : lines_of(contents(page))) {
    if (line.starts_with("```"))
      code = !code;
    else if (!code)
      kept += line + "\n";
  }
  return kept;
}

// What stands between `open` and `close` from `at` on, and moves `at` after it; "" where there is none.
inline std::string next_between(const std::string& text, const std::string& open, const std::string& close,
                                size_t& at) {
  const size_t begin = text.find(open, at);
  const size_t end = begin == std::string::npos ? begin : text.find(close, begin + open.size());
  if (end == std::string::npos) return "";
  at = end + close.size();
  return text.substr(begin + open.size(), end - begin - open.size());
}

}  // namespace gated
