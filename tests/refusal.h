// refusal: what a call refuses with.
#pragma once
#include "core/check.h"
#include "tests/contents.h"

namespace gated {

// The message of the Error that call() ends in; "" where it ends well.
template <class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// The call is refused in one line that holds these parts.
#define CHECK_REFUSED(call, ...) CHECK(one_line(::gated::refusal([&] { (void)(call); }), {__VA_ARGS__}))

// What both refuse with, each under its own name: "name: what is wrong". The message of the first; "" where one of them
// ends well or they say different things.
template <class Forward, class Backward>
std::string refusal_of_both(Forward forward, Backward backward) {
  const std::string first = refusal(forward), second = first.empty() ? "" : refusal(backward);
  if (first.empty() || second.empty()) return "";
  return first.substr(first.find(':')) == second.substr(second.find(':')) ? first : "";
}

}  // namespace gated
