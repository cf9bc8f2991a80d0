// pattern: where a regular expression matches a text, by PCRE2 with Unicode properties
// Patterns of tokenizers were written for Oniguruma. Both read alike what these patterns use; two things differ.
// PCRE2's \s takes U+180E, which is no white space since Unicode 6.3: here it does not match. And each knows the
// letters of its Unicode version (PCRE2 10.42: 14.0).
// tests/test_tokenizer.cpp
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace gated {

class Pattern {
 public:
  // Refuses, beginning with `where`, what is no regular expression.
  Pattern(const std::string& regex, std::string where);
  // That text itself.
  static Pattern literal(const std::string& text, const std::string& where);

  // Calls `part(begin, end, matches)` for every match in a UTF-8 text and for what stands between two of them, in
  // order. Refuses a text on which the search takes more than ten million steps.
  void split(std::string_view text, const std::function<void(size_t, size_t, bool)>& part) const;

 private:
  struct Compiled;
  Pattern(const std::string& regex, uint32_t options, std::string where);
  std::shared_ptr<const Compiled> compiled_;
  std::string where_;
};

}  // namespace gated
