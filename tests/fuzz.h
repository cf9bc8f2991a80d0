// fuzz: what fuzzers of readers demand.
#pragma once
#include <cstdlib>
#include <string_view>

#include "core/check.h"

namespace gated {

inline void demand(bool ok) {
  if (!ok) std::abort();
}

// A refusal is one line that can be printed.
inline void demand_plain(const Error& e, size_t longest = SIZE_MAX) {
  const std::string_view message = e.what();
  demand(message.size() <= longest);
  for (const char c : message) demand(c >= 0x20 && c < 0x7f);
}

}  // namespace gated
