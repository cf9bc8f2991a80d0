#include "training/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <sstream>

#include "training/presets.h"

namespace gated {

std::string flag_map_markdown() {
  Config defaults;
  std::string text;
  Flag::Kind kind = Flag::Kind::run;
  bool first = true;
  for (const Flag& f : list_flags(defaults)) {
    if (first || f.kind != kind)
      text += format("%s**%s**\n\n| flag | default | allowed | meaning |\n|---|---|---|---|\n", first ? "" : "\n",
                     name_of(f.kind));
    first = false, kind = f.kind;
    auto cell = [](const std::string& text) {  // a bar inside a table's cell is escaped
      std::string escaped;
      for (char c : text) (c == '|' ? escaped += '\\' : escaped) += c;
      return escaped;
    };
    std::string allowed = cell(f.allowed);
    if (!f.choices.empty()) {
      allowed.clear();
      for (size_t i = 0; i < f.choices.size();
           i++) {  // a file that serves several values in a row is named behind the last
        const auto& c = f.choices[i];
        allowed += format("%s`%s`", i ? ", " : "", c.value.c_str());
        if (i + 1 == f.choices.size() || f.choices[i + 1].file != c.file)
          allowed += format(" [%s](%s)", c.file.c_str(), c.file.c_str());
      }
    }
    const std::string value = f.get().empty() ? "" : format("`%s`", f.get().c_str());
    text += format("| `%s` | %s | %s | %s |\n", f.name.c_str(), value.c_str(), allowed.c_str(), cell(f.help).c_str());
  }
  return text;
}

std::string help_text() {
  Config defaults;
  std::string text =
      "gated.cu: train a GPT whose every kernel equals a CPU reference bit for bit.\n\n"
      "  ./train                                        a byte-level model on this repository's own source\n"
      "  ./train --norm=gated --attn=g1                 with GatedNorm and gated attention\n"
      "  ./train --preset=gpt2-124m --describe          what GPT-2 is made of, without training it\n"
      "  ./train --data=input.txt --steps=2000          on a text of yours\n"
      "  ./train --out=run1 --resume                    with checkpoints, continuing where the last run stopped\n";
  Flag::Kind kind = Flag::Kind::run;
  bool first = true;
  for (const Flag& f : list_flags(defaults)) {
    if (first || f.kind != kind) text += format("\n%s\n", name_of(f.kind));
    first = false, kind = f.kind;
    const std::string left = f.name + (f.is_switch ? "" : "=" + (f.get().empty() ? f.allowed : f.get()));
    text += format("  %-26s %s", left.c_str(), f.help.c_str());
    if (f.choices.empty() && !f.is_switch && !f.get().empty()) text += format(" [%s]", f.allowed.c_str());
    text += "\n";
    for (const auto& c : f.choices) text += format("  %26s   %-12s %s\n", "", c.value.c_str(), c.meaning.c_str());
  }
  return text +
         "\nOther\n  --help                     this text\n  --flag-map                 the README's table of flags\n";
}

// Sets one flag from a word as it stands on a command line: --name=value, or --name of a switch.
static void apply_word(const std::vector<Flag>& flags, const std::string& word, const std::string& from) {
  const size_t equals = word.find('=');
  const std::string name = word.substr(0, equals);
  const auto flag = std::find_if(flags.begin(), flags.end(), [&](const Flag& f) { return f.name == name; });
  require(flag != flags.end(), "%s: there is no flag %s", from.c_str(), name.c_str());
  require(flag->shapes_the_model() || name == "--vocab", "%s: %s is no flag of the model", from.c_str(), name.c_str());
  require(flag->is_switch || equals != std::string::npos, "%s: %s needs a value: %s=...", from.c_str(), name.c_str(),
          name.c_str());
  flag->set(equals == std::string::npos ? "" : word.substr(equals + 1));
}

// Sets the flags of a preset; the user's come after it.
static void apply_preset(const std::vector<Flag>& flags, const std::string& name) {
  for (const Preset& p : presets())
    if (p.name == name)
      for (const std::string& word : p.flags) apply_word(flags, word, "--preset=" + name);
}

ModelConfig with_flags(Config config, const std::string& line) {
  const std::vector<Flag> flags = list_flags(config);
  std::istringstream words(line);
  for (std::string word; words >> word;) apply_word(flags, word, "--match-params=" + line);
  validate(config.model);
  return config.model;
}

bool parse_command_line(Config& config, int argc, char** argv) {
  CLI::App app;
  app.set_help_flag();
  bool help = false, map = false;
  app.add_flag("--help,-h", help);
  app.add_flag("--flag-map", map);
  const std::vector<Flag> flags = list_flags(config);
  std::vector<std::string> values(flags.size());
  std::vector<CLI::Option*> options;
  for (size_t i = 0; i < flags.size(); i++)
    options.push_back(flags[i].is_switch ? app.add_flag(flags[i].name, values[i])->take_last()
                                         : app.add_option(flags[i].name, values[i])->take_last());
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    std::string message = e.what();
    std::replace(message.begin(), message.end(), '\n', ' ');
    fail("%s (./train --help lists the flags)", message.c_str());
  }
  if (help || map) {
    fputs((help ? help_text() : flag_map_markdown()).c_str(), stdout);
    return false;
  }
  std::set<std::string> given;
  for (size_t i = 0; i < flags.size(); i++)
    if (options[i]->count()) given.insert(flags[i].name);
  for (const bool preset : {true, false})
    for (size_t i = 0; i < flags.size(); i++) {
      if (!given.count(flags[i].name) || (flags[i].name == "--preset") != preset) continue;
      flags[i].set(values[i]);
      if (preset) apply_preset(flags, config.preset);
    }
  check_flags(config, given);
  return true;
}

Config config_of_flags(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> words = {"train"};
  for (std::string word; in >> word;) words.push_back(word);
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  Config config;
  require(parse_command_line(config, int(argv.size()), argv.data()), "%s: expected flags of a model", line.c_str());
  return config;
}

ModelConfig model_of_flags(const std::string& line) {
  return config_of_flags(line).model;
}

}  // namespace gated
