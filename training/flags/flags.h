// flags: the one table of flags. It drives parsing, --help, the run header, what a checkpoint remembers and
// docs/flags.md: a flag exists once, in training/flags/flags.cpp. What contradicts what:
// training/flags/check_flags.cpp.
// tests/test_flags.cpp
#pragma once
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "training/flags/config.h"

namespace gated {

// One flag, as text: how to read it, how to print it, what it allows.
struct Flag {
  struct Choice {
    std::string value, file, meaning;
  };
  enum class Kind { shortcut, norm, attention, block, experts, size, data, training, arithmetic, run, file, inference };

  std::string name, help;
  Kind kind;
  std::string allowed;          // ">= 1", "0 to 1", "rmsnorm | gated"
  std::vector<Choice> choices;  // of a flag with named values, each with the file that implements it
  bool is_switch;               // on | off, and on when named without a value
  bool refuses_empty;           // on a command line; unset a text is empty all the same
  std::function<void(const std::string&)> set;
  std::function<std::string()> get;

  // Two runs can only have the same bits when these agree.
  bool shapes_the_result() const { return kind >= Kind::norm && kind <= Kind::arithmetic; }
  bool shapes_the_model() const { return kind >= Kind::norm && kind <= Kind::size; }
};

// The heading of a section of the table.
const char* name_of(Flag::Kind kind);

// The table. Flags write into `config`, which must outlive it.
std::vector<Flag> list_flags(Config& config);

// What these words of a command line say, --name=value each, of flags that are in the table.
Config config_of_words(const std::vector<std::string>& words);

// The flags that differ from their defaults, as they would be typed, but for shortcuts and --resume.
std::string changed_flags_text(Config& config);

// Refuses flags that contradict each other, with a reason; `given` are those that the user named. Fills in what follows
// from them.
void check_flags(Config& config, const std::set<std::string>& given);
// The part of it that concerns the model.
void check_model_flags(const ModelConfig& model);
// The flags that say nothing where the others are as they are.
std::set<std::string> flags_without_effect(const Config& config);
// Of the model's flags, those that say how it starts and is trained: a trained model is the same whatever they are.
bool is_of_training(const std::string& flag);
// The part of it that is known when the devices have been asked. `no_gpu` says why no GPU can run the kernels; it is
// empty where one can.
void check_device_flags(const Config& config, const std::string& no_gpu);

}  // namespace gated
