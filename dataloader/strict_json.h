// strict_json: JSON from a file that nobody vouches for: what nlohmann-json would pass over in silence is refused too.
//
// A key written twice, of which parsers keep one; nesting deeper than the file's kind has; a NUL byte, after which
// nothing would be looked at. Every refusal is one line that begins with the file. tests/test_checkpoint.cpp,
// tests/test_tokenizer.cpp
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace gated {

// The object that `text` is. what: "header", or "" for a file that is JSON as a whole. depth: levels of brackets
// allowed.
nlohmann::json parse_strict_json(const std::string& file, const char* what, const std::string& text, size_t depth);

}  // namespace gated
