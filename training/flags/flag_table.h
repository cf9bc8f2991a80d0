// flag_table: builds the rows of the flag table, one method for each type of value. Included by
// training/flags/flags.cpp alone.
#pragma once
#include <charconv>
#include <cmath>

#include "training/flags/flags.h"
#include "training/flags/suggestion.h"
#include "training/process/number_text.h"

namespace gated {

// What a number may be, and how help says it. A low bound that is itself refused is written "> 0".
template <class T>
struct Bounds {
  T low, high;
  std::string text;
};
template <class T>
Bounds<T> between(T low, T high) {
  return {low, high, number_text(low) + " to " + number_text(high)};
}
// There is a highest value here too, far above any use, so that sizes multiplied do not overflow.
inline Bounds<size_t> at_least(size_t low) {
  return {low, size_t{1} << 40, ">= " + number_text(low)};
}
inline Bounds<float> at_least_zero() {
  return {0.0f, 1e30f, ">= 0"};
}
template <class T>
Bounds<T> above_zero(T high) {
  return {T(1) / high, high, "> 0"};
}

enum class Read { number, nothing, too_much };  // what came of a text

// The number that `text` is, as a whole. Whole numbers may also be written 1e6, 5K, 1.5M, 2B.
template <class T>
Read read_number(const std::string& text, T& value) {
  const char *begin = text.data(), *end = begin + text.size();
  const auto plain = std::from_chars(begin, end, value);
  const bool is_plain = plain.ec == std::errc{} && plain.ptr == end;
  if constexpr (std::is_integral_v<T>) {
    if (is_plain) return Read::number;
    std::string scientific = text;
    const size_t unit = text.empty() ? text.npos : std::string("KMB").find(text.back());
    if (unit != text.npos) scientific.replace(text.size() - 1, 1, "e" + std::to_string(3 * (unit + 1)));
    double real = 0;
    begin = scientific.data(), end = begin + scientific.size();
    const auto read = std::from_chars(begin, end, real);
    if (read.ec != std::errc{} || read.ptr != end || !(real >= 0)) return Read::nothing;
    if (real >= 0x1p53) return Read::too_much;
    value = T(real);
    return real == double(value) ? Read::number : Read::nothing;
  }
  return is_plain && std::isfinite(value) ? Read::number : Read::nothing;  // (not nan, not inf)
}

// The number that a part of a flag's text is, or all of it.
template <class T>
T parse_number(const std::string& flag, const std::string& text, const std::string& part, const Bounds<T>& bounds) {
  const std::string named = flag + "=" + text + (part == text ? "" : format(": its part \"%s\"", part.c_str()));
  T value{};
  const Read read = read_number(part, value);
  require(read != Read::too_much && (read != Read::number || value <= bounds.high), "%s: expected at most %s",
          named.c_str(), number_text(bounds.high).c_str());
  require(read == Read::number && value >= bounds.low, "%s: expected a %snumber %s%s", named.c_str(),
          std::is_integral_v<T> ? "whole " : "", bounds.text[0] == '>' ? "" : "from ", bounds.text.c_str());
  return value;
}

class FlagTable {
 public:
  std::vector<Flag> rows;

  // The section of the rows that follow.
  void begin(Flag::Kind kind) { kind_ = kind; }

  template <class T>
  void number(const char* name, T& field, const Bounds<T>& bounds, const char* help) {
    Flag& f = add(name, help, bounds.text);
    f.set = [&field, name, bounds](const std::string& s) { field = parse_number(name, s, s, bounds); };
    f.get = [&field] { return number_text(field); };
  }
  // A[,B]: two numbers, of which the second is the first where it is left out.
  template <class T>
  void one_or_two(const char* name, T& first, T& second, const Bounds<T>& bounds, const char* help) {
    Flag& f = add(name, help, "A or A,B; each " + bounds.text);
    f.set = [&first, &second, name, bounds](const std::string& s) {
      const size_t comma = s.find(',');
      first = parse_number(name, s, s.substr(0, comma), bounds);
      second = comma == s.npos ? first : parse_number(name, s, s.substr(comma + 1), bounds);
    };
    f.get = [&first, &second] { return number_text(first) + (first == second ? "" : "," + number_text(second)); };
  }
  // A value of several parts: read(text) refuses what it does not allow.
  void parts(const char* name, const char* allowed, const char* help, std::function<void(const std::string&)> read,
             std::function<std::string()> print) {
    Flag& f = add(name, help, allowed);
    f.set = std::move(read);
    f.get = std::move(print);
  }
  void text(const char* name, std::string& field, const char* allowed, const char* help) {
    text_or_nothing(name, field, allowed, help);
    rows.back().refuses_empty = true;
  }
  // Its help says what an empty one means.
  void text_or_nothing(const char* name, std::string& field, const char* allowed, const char* help) {
    Flag& f = add(name, help, allowed);
    f.set = [&field](const std::string& s) { field = s; };
    f.get = [&field] { return field; };
  }

  // A value with a name, the file that implements it, and what it means.
  template <class T>
  struct Choice {
    const char* text;
    T value;
    const char *file, *meaning;
  };
  template <class T>
  void choice(const char* name, T& field, std::vector<Choice<T>> choices, const char* help) {
    std::string allowed;
    for (const auto& c : choices) allowed += (allowed.empty() ? "" : " | ") + std::string(c.text);
    Flag& f = add(name, help, allowed);
    for (const auto& c : choices) f.choices.push_back({c.text, c.file, c.meaning});
    f.set = [&field, choices, allowed, name](const std::string& s) {
      for (const auto& c : choices)
        if (s == c.text) {
          field = c.value;
          return;
        }
      std::vector<std::string> values;
      for (const auto& c : choices) values.push_back(c.text);
      fail("%s=%s: expected %s%s", name, s.c_str(), allowed.c_str(), suggestion(s, values).c_str());
    };
    f.get = [&field, choices] {
      for (const auto& c : choices)
        if (c.value == field) return std::string(c.text);
      return std::string("?");
    };
  }
  // on or off; on when named without a value. `file` implements it.
  void on_off(const char* name, bool& field, const char* file, const char* help) {
    choice<bool>(name, field, {{"on", true, file, ""}, {"off", false, file, ""}}, help);
    rows.back().is_switch = true;
  }

 private:
  Flag& add(const char* name, const char* help, std::string allowed) {
    rows.push_back({name, help, kind_, std::move(allowed), {}, false, false, {}, {}});
    return rows.back();
  }
  Flag::Kind kind_ = Flag::Kind::shortcut;
};

}  // namespace gated
