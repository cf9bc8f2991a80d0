// check: one way to refuse bad input. The message names the thing, what was found, what was expected.
#pragma once
#include <cstdarg>
#include <cstdio>
#include <stdexcept>
#include <string>

namespace gated {

// What every refusal throws; main() prints it on one line and exits with 1.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[gnu::format(printf, 1, 2)]] inline std::string format(const char* fmt, ...) {
  va_list args, again;
  va_start(args, fmt);
  va_copy(again, args);
  std::string text(vsnprintf(nullptr, 0, fmt, args), '\0');
  vsnprintf(text.data(), text.size() + 1, fmt, again);
  va_end(args);
  va_end(again);
  return text;
}

template <class... A>
[[noreturn]] void fail(const char* fmt, A... args) {
  throw Error(format(fmt, args...));
}

// require(ok, "matmul: K is %zu, expected a multiple of 4", K)
template <class... A>
void require(bool ok, const char* fmt, A... args) {
  if (!ok) fail(fmt, args...);
}

// f(), of what a flag names: a refusal begins with the flag. "--data=a.txt: cannot open: ..."
template <class F>
auto as_flag_names(const char* flag, const std::string& value, F f) {
  try {
    return f();
  } catch (const Error& e) {
    const std::string said = e.what(), named = value + ": ";
    if (said.starts_with("--")) throw;
    fail("%s=%s: %s", flag, value.c_str(), said.c_str() + (said.starts_with(named) ? named.size() : 0));
  }
}

}  // namespace gated
