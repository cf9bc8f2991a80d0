// command_line: the flag table (training/flags/flags.h) on a command line, as help, and as docs/flags.md.
// tests/test_flags.cpp
#pragma once
#include "training/flags/flags.h"

namespace gated {

// docs/flags.md: every flag, its default, what it allows, and the file behind each named value.
std::string flag_map_markdown();

// --help, in lines of at most `width`: the flags that one starts with; of a topic, every flag that has the word in its
// name or in its section's, grouped as the table is. "all" is every flag. Refuses a word that none has.
std::string help_text(size_t width, const std::string& topic = "");

// Fills config; false when the command line asked for help only. Refuses what the table does not allow.
bool parse_command_line(Config& config, int argc, char** argv);

// What a line of flags asks for, as a user would type it after ./train.
Config config_of_flags(const std::string& line);
ModelConfig model_of_flags(const std::string& line);

// The model of `config` with the flags of a line changed, as --match-params names it.
ModelConfig with_flags(Config config, const std::string& line);

}  // namespace gated
