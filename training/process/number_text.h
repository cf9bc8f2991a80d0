// number_text: the shortest text that reads back as the same number: what a flag is printed as.
#pragma once
#include <charconv>
#include <string>

namespace gated {

template <class T>
std::string number_text(T value) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return std::string(text, end);
}

}  // namespace gated
