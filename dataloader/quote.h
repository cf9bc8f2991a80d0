// quote: text of a foreign file, as a message shows it. It may be long, hold line breaks or not be UTF-8.
#pragma once
#include <string>

namespace gated {

// The front of a text, with dots after it where there is more.
std::string clipped(const std::string& text, size_t longest = 120);

// In quotation marks, clipped, in ASCII, with escapes for what is not printable.
std::string quote(const std::string& text);

}  // namespace gated
