// contents: what a file holds, and what a text says.
#pragma once
#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/catch.h"

// Regular expressions, in catch_main.cpp, as <regex> takes three seconds to compile. (Not in gated: nvcc's files, which
// link them too, call that otherwise.)
namespace regular {

// What an expression finds in a text: each match, its groups behind it.
std::vector<std::vector<std::string>> matches(const std::string& text, const std::string& expression);
// Is the whole text of this form?
bool fits(const std::string& text, const std::string& expression);
std::string replaced(const std::string& text, const std::string& expression, const std::string& by);

}  // namespace regular

namespace gated {

using regular::fits, regular::matches, regular::replaced;

// Its bytes; none where it cannot be read.
inline std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Are all the parts there? Says which is not.
inline bool says(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    if (!contains(text, part)) {
      UNSCOPED_INFO("expected: " << part << "\nfound: " << text);
      return false;
    }
  return true;
}

// A refusal: one line that names all of it.
inline bool one_line(const std::string& text, const std::vector<std::string>& parts) {
  return says(text, parts) && says(contains(text, "\n") ? "several lines" : "one line", {"one line"});
}

inline size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) n++;
  return n;
}

// The text behind `begin`, up to `end`. A test ends where they are not there.
inline std::string between(const std::string& text, const std::string& begin, const std::string& end = "\n") {
  INFO(text);
  const size_t at = text.find(begin), from = at + begin.size(), to = text.find(end, from);
  REQUIRE((at != std::string::npos && to != std::string::npos));
  return text.substr(from, to - from);
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

inline std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

// "one | two words | three" without the bars.
inline std::vector<std::string> pieces(const std::string& text, const std::string& bar = " | ") {
  std::vector<std::string> all;
  for (size_t at = 0, end = 0; end != std::string::npos; at = end + bar.size()) {
    end = text.find(bar, at);
    all.push_back(text.substr(at, end - at));
  }
  return all;
}

// "--a=1|2 --b=3" as a table of the values of each flag.
using FlagValues = std::map<std::string, std::vector<std::string>>;
inline FlagValues flag_values(const std::string& line) {
  FlagValues all;
  for (const std::string& word : words_of(line))
    all[word.substr(0, word.find('='))] = pieces(word.substr(word.find('=') + 1), "|");
  return all;
}

}  // namespace gated
