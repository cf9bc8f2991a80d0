// clock: time that passes.
#pragma once
#include <chrono>

namespace gated {

// Seconds on a clock that only goes forward.
inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace gated
