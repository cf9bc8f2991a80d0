// flags: the one table of flags. It drives parsing, --help, the run header, what a checkpoint remembers and the README's
// flag map: a flag exists once, in training/flags.cpp. tests/test_flags.cpp
#pragma once
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "training/config.h"

namespace gated {

// One flag, as text: how to read it, how to print it, what it allows.
struct Flag {
  struct Choice {
    std::string value, file, meaning;
  };
  enum class Kind { shortcut, norm, attention, block, size, data, training, run };

  std::string name, help;
  Kind kind;
  std::string allowed;          // "64", "1 to 1000", "rmsnorm | gated"
  std::vector<Choice> choices;  // of a flag with named values, each with the file that implements it
  bool is_switch = false;       // on when named without a value
  std::function<void(const std::string&)> set;
  std::function<std::string()> get;

  // Two runs can only have the same bits when these agree.
  bool shapes_the_result() const { return kind != Kind::run && kind != Kind::shortcut; }
  bool shapes_the_model() const { return kind >= Kind::norm && kind <= Kind::size; }
};

const char* name_of(Flag::Kind kind);

// The table. Flags write into `config`, which must outlive it.
std::vector<Flag> list_flags(Config& config);

// Pairs of flags that contradict each other, `given` being those the user named. Refuses with a reason.
void check_flags(Config& config, const std::set<std::string>& given);

}  // namespace gated
