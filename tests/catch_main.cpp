// What every test binary links, compiled once: main() (Catch2 v3 brings its own), regular expressions.
#if !__has_include(<catch2/catch_all.hpp>)
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
#endif

#include <regex>

#include "tests/contents.h"

namespace regular {

// Each is compiled once.
static const std::regex& compiled(const std::string& expression) {
  static std::map<std::string, std::regex> all;
  const auto found = all.find(expression);
  return found != all.end() ? found->second : all.emplace(expression, std::regex(expression)).first->second;
}

std::vector<std::vector<std::string>> matches(const std::string& text, const std::string& expression) {
  std::vector<std::vector<std::string>> all;
  for (std::sregex_iterator at(text.begin(), text.end(), compiled(expression)), end; at != end; ++at)
    all.emplace_back(at->begin(), at->end());
  return all;
}

bool fits(const std::string& text, const std::string& expression) {
  return std::regex_match(text, compiled(expression));
}

std::string replaced(const std::string& text, const std::string& expression, const std::string& by) {
  return std::regex_replace(text, compiled(expression), by);
}

}  // namespace regular
