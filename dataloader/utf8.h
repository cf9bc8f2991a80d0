// utf8: characters in bytes (RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF)
// tests/test_tokenizer.cpp
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace gated {

struct Utf8Character {
  size_t length = 0;  // bytes; 0 where none stands at the front
  uint32_t code = 0;
  bool cut = false;  // none, but what is there may be the beginning of one
};

inline Utf8Character utf8_front(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  if (bytes.empty()) return {};
  if (byte(0) < 0x80) return {1, byte(0)};
  if (byte(0) < 0xc2 || byte(0) > 0xf4) return {};
  const size_t length = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  uint32_t code = byte(0) & (0x7fu >> length);
  for (size_t i = 1; i < length; i++) {
    if (i == bytes.size()) return {0, 0, true};
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3f);
    // The second byte tells whether there is such a character.
    const uint32_t first = code << 6 * (length - 1 - i), last = first | ((1u << 6 * (length - 1 - i)) - 1);
    constexpr uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    if (last < smallest[length] || first > 0x10ffff || (first >= 0xd800 && last < 0xe000)) return {};
  }
  return {length, code};
}

inline std::string utf8_of(uint32_t code) {
  if (code < 0x80) return {char(code)};
  if (code < 0x800) return {char(0xc0 | code >> 6), char(0x80 | (code & 0x3f))};
  if (code < 0x10000) return {char(0xe0 | code >> 12), char(0x80 | (code >> 6 & 0x3f)), char(0x80 | (code & 0x3f))};
  return {char(0xf0 | code >> 18), char(0x80 | (code >> 12 & 0x3f)), char(0x80 | (code >> 6 & 0x3f)),
          char(0x80 | (code & 0x3f))};
}

}  // namespace gated
