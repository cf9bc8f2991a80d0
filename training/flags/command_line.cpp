#include "training/flags/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "training/checkpoint/checkpoint.h"
#include "training/flags/model_source.h"
#include "training/flags/presets.h"
#include "training/flags/run_metadata.h"
#include "training/flags/suggestion.h"
#include "training/process/terminal.h"
#include "training/process/version.h"

namespace gated {

// Those that --help shows where it is asked about nothing.
static const std::set<std::string> first_flags = {"--preset", "--from",      "--describe", "--norm",   "--attn",
                                                  "--mixer",  "--ffn",       "--experts",  "--layers", "--hidden",
                                                  "--data",   "--out",       "--context",  "--batch",  "--steps",
                                                  "--lr",     "--precision", "--device",   "--resume", "--generate"};

// A section of the table: its heading, and its flags in their order.
struct Section {
  const char* heading;
  std::vector<Flag> flags;
};

static std::vector<Section> sections(Config& config) {
  std::vector<Section> all;
  for (const Flag& f : list_flags(config)) {
    if (all.empty() || all.back().flags.back().kind != f.kind) all.push_back({name_of(f.kind), {}});
    all.back().flags.push_back(f);
  }
  return all;
}

// A bar inside a table's cell is escaped.
static std::string cell(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

// The named values of a flag. A file that serves several of them in a row is named after the last.
static std::string linked(const std::vector<Flag::Choice>& choices) {
  std::string text;
  for (size_t i = 0; i < choices.size(); i++) {
    const std::string &value = choices[i].value, &file = choices[i].file;
    text += format("%s`%s`", i ? ", " : "", value.c_str());
    if (i + 1 == choices.size() || choices[i + 1].file != file)
      text += format(" [%s](../%s)", file.c_str(), file.c_str());
  }
  return text;
}

std::string flag_map_markdown() {
  Config defaults;
  std::string text =
      "# Flags\n\nWritten by `./train --flag-map > docs/flags.md`, and a test holds the two together. `./train --help` "
      "is the short\nlist, `./train --help=norm` says what one flag does.\n";
  for (const Section& section : sections(defaults)) {
    text += format("\n## %s\n\n", section.heading);
    text += "| flag | default | allowed | meaning |\n|---|---|---|---|\n";
    for (const Flag& f : section.flags) {
      const std::string value = f.get().empty() ? "" : format("`%s`", f.get().c_str());
      const std::string allowed = f.choices.empty() ? cell(f.allowed) : linked(f.choices);
      text += format("| `%s` | %s | %s | %s |\n", f.name.c_str(), value.c_str(), allowed.c_str(), cell(f.help).c_str());
    }
  }
  return text;
}

// A name and, from a column on, its meaning. A name that reaches the column has a line of its own.
static std::string help_row(const std::string& name, size_t column, const std::string& meaning, size_t width) {
  const bool fits = name.size() < column;
  const std::string margin(fits ? column - name.size() : column, ' ');
  return fits ? wrapped(name + margin, meaning, column, width) : name + "\n" + wrapped(margin, meaning, column, width);
}

// A flag, what it allows, and with `values` a line for each of its named values.
static std::string help_of_flag(const Flag& f, bool values, size_t width) {
  constexpr size_t name_column = 29, choice_column = 21;
  values &= !f.choices.empty() && !f.is_switch;
  const std::string value = f.get().empty() ? "" : "=" + f.get();
  const std::string allowed = values ? "" : format(" [%s]", f.allowed.c_str());
  std::string text = help_row("  " + f.name + value, name_column, f.help + allowed, width);
  for (size_t i = 0; values && i < f.choices.size(); i++)
    text += help_row("        " + f.choices[i].value, choice_column, f.choices[i].meaning, width);
  return text;
}

// What --help is asked about: the section of a flag, or the flag. "norm" is a part of Norms and of --qk-norm.
static bool is_about(const Flag& f, const std::string& topic) {
  std::string heading = name_of(f.kind);
  for (char& c : heading) c = char(tolower(c));
  return topic == "all" || heading.find(topic) != std::string::npos || f.name.find(topic) != std::string::npos;
}

std::string help_text(size_t width, const std::string& topic) {
  Config defaults;
  std::string text;
  if (topic.empty()) {
    text = wrapped("", "gated.cu: train a GPT whose every kernel equals a CPU reference bit for bit.", 0, width) + "\n";
    for (const auto& [line, meaning] : std::vector<std::pair<const char*, const char*>>{
             {"./train", "a byte-level model on this repository's own source"},
             {"./train --norm=gated --attn=g1", "with GatedNorm and gated attention"},
             {"./train --preset=gpt2-124m --describe", "what GPT-2 is made of, without training it"},
             {"./train --data=input.txt --steps=2000", "on a text of yours"},
             {"./train --out=run1 --resume", "with checkpoints; goes on where the last run stopped"}})
      text += wrapped(format("  %-39s", line), meaning, 41, width);
    text += "\nThe flags that one starts with\n";
    for (const Flag& f : list_flags(defaults))
      if (first_flags.contains(f.name)) text += help_of_flag(f, false, width);
  }
  for (const Section& section : sections(defaults)) {
    std::string rows;
    for (const Flag& f : section.flags)
      if (!topic.empty() && is_about(f, topic)) rows += help_of_flag(f, true, width);
    if (!rows.empty()) text += format("%s%s\n", text.empty() ? "" : "\n", section.heading) + rows;
  }
  require(!text.empty(), "--help=%s: no flag and no section has that in its name: --help=all lists them",
          topic.c_str());
  text += "\n" + wrapped("",
                         "Each flag stands with its default, where it has one; after it, in brackets, what it allows. "
                         "--resume is short for --resume=on, and so with every flag that allows on | off. A whole "
                         "number may be written 600, 1e6, 5K, 1.5M or 2B.",
                         0, width);
  text += "\nMore\n";
  for (const auto& [line, meaning] : std::vector<std::pair<const char*, const char*>>{
           {"--help", "the flags that one starts with"},
           {"--help=norm", "those of norms, or of any word in a flag's name or in a section's"},
           {"--help=all", "every flag"},
           {"--flag-map", "every flag as Markdown: docs/flags.md"},
           {"--version", "the version, its commit and the compiler"}})
    text += help_row(format("  %s", line), 29, meaning, width);
  return text;
}

// ": did you mean --norm?"
static std::string suggested_flag(const std::vector<Flag>& flags, const std::string& name) {
  std::vector<std::string> names;
  for (const Flag& f : flags) names.push_back(f.name);
  return suggestion(name, names);
}

// Sets one flag from a word as it stands on a command line: --name=value, or --name for --name=on. It is one of the
// model's, unless `any` is allowed that shapes the result.
static void apply_word(const std::vector<Flag>& flags, const std::string& word, const std::string& from,
                       bool any = false) {
  const size_t equals = word.find('=');
  const std::string name = word.substr(0, equals);
  const auto flag = std::find_if(flags.begin(), flags.end(), [&](const Flag& f) { return f.name == name; });
  require(flag != flags.end(), "%s: there is no flag %s%s", from.c_str(), name.c_str(),
          suggested_flag(flags, name).c_str());
  require((any && flag->shapes_the_result()) || flag->shapes_the_model() || name == "--vocab",
          "%s: %s is no flag of the model", from.c_str(), name.c_str());
  require(flag->is_switch || equals != std::string::npos, "%s: %s needs a value: %s=...", from.c_str(), name.c_str(),
          name.c_str());
  flag->set(equals == std::string::npos ? "on" : word.substr(equals + 1));
}

// Sets the flags of a preset; the user's come after it.
static void apply_preset(const std::vector<Flag>& flags, const std::string& name) {
  for (const Preset& p : presets())
    if (p.name == name)
      for (const std::string& word : p.flags) apply_word(flags, word, "--preset=" + name);
}

// Opens the model at `path` and sets its flags; the user's come after them.
static void apply_source(const std::vector<Flag>& flags, Config& config, const std::string& path) {
  if (path.empty()) return;
  config.source = open_model_source(path);
  for (const std::string& word : config.source->flags()) apply_word(flags, word, "--from=" + config.from, true);
}

// Sets the flags of the run in a folder, as the newest header says them that can be read: whoever opens a checkpoint
// whole checks the rest.
static void apply_run(const std::vector<Flag>& flags, const std::string& folder) {
  for (const auto& [step, path] : list_checkpoints(folder)) {
    RunMetadata metadata;
    try {
      metadata = SafetensorsFile(path).header().metadata;
    } catch (const Error&) {
      continue;
    }
    for (const std::string& word : flags_of_run(path, metadata)) apply_word(flags, word, "--out=" + folder, true);
    return;
  }
}

ModelConfig with_flags(Config config, const std::string& line) {
  const std::vector<Flag> flags = list_flags(config);
  std::istringstream words(line);
  for (std::string word; words >> word;) apply_word(flags, word, "--match-params=" + line);
  check_model_flags(config.model);
  return config.model;
}

// The words of the command line, of which those that CLI11 would misread are made plain: it takes the next word,
// whatever it is, for the value of "--name=" and of "--name".
static std::vector<std::string> plain_words(const std::vector<Flag>& flags, int argc, char** argv) {
  std::vector<std::string> words;
  for (int i = 1; i < argc; i++) {
    const std::string word = argv[i], name = word.substr(0, word.find('='));
    const auto flag = std::find_if(flags.begin(), flags.end(), [&](const Flag& f) { return f.name == name; });
    if (flag == flags.end() || word.size() > name.size() + 1) {
      words.push_back(word);
    } else if (word.ends_with('=')) {
      if (flag->is_switch) flag->set("");  // refuses it
      words.insert(words.end(), {name, ""});
    } else if (flag->is_switch) {
      words.push_back(name);
    } else {
      require(i + 1 < argc, "%s needs a value: %s=...", name.c_str(), name.c_str());
      require(strncmp(argv[i + 1], "--", 2) != 0, "%s needs a value, found %s: write %s=%s if that is the value",
              name.c_str(), argv[i + 1], name.c_str(), argv[i + 1]);
      words.insert(words.end(), {name, argv[++i]});
    }
  }
  return words;
}

bool parse_command_line(Config& config, int argc, char** argv) {
  config.typed.assign(argv + 1, argv + argc);
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();  // and refuse them below, with the name that was meant
  bool map = false, version = false;
  std::string topic;
  CLI::Option* help = app.add_flag("--help{start},-h{start}", topic);
  app.add_flag("--flag-map", map);
  app.add_flag("--version", version);
  const std::vector<Flag> flags = list_flags(config);
  std::vector<std::string> values(flags.size()), words = plain_words(flags, argc, argv);
  std::set<std::string> named;
  for (const std::string& word : words) named.insert(word.substr(0, word.find('=')));
  for (size_t i = 0; i < flags.size(); i++) {
    const std::string& name = flags[i].name;
    if (!named.contains(name)) continue;  // CLI11 compares each option with all others: milliseconds for all flags
    (flags[i].is_switch ? app.add_flag(name + "{on}", values[i])  // {on}: without a value
                        : app.add_option(name, values[i]))
        ->take_last();
  }
  std::reverse(words.begin(), words.end());  // as CLI11 wants them
  try {
    app.parse(words);
  } catch (const CLI::ParseError& e) {
    std::string message = e.what();
    std::replace(message.begin(), message.end(), '\n', ' ');
    fail("%s (./train --help lists the flags)", message.c_str());
  }
  if (!app.remaining().empty()) {
    const std::string word = app.remaining()[0], name = word.substr(0, word.find('='));
    require(!word.empty(), "\"\": an empty word stands among the flags: expected --name=value; leave it out");
    require(name.starts_with("-"), "%s: expected a flag, --name=value (./train --help lists them)", word.c_str());
    fail("there is no flag %s%s (./train --help lists them)", name.c_str(), suggested_flag(flags, name).c_str());
  }
  if (help->count() || map || version) {
    const std::string help_wanted = help->count() ? help_text(terminal_width(), topic == "start" ? "" : topic) : "";
    fputs((help->count() ? help_wanted : map ? flag_map_markdown() : version_text()).c_str(), stdout);
    return false;
  }
  std::set<std::string> given;
  for (size_t i = 0; i < flags.size(); i++)
    if (named.contains(flags[i].name)) {
      given.insert(flags[i].name);
      require(!values[i].empty() || !flags[i].refuses_empty, "%s=: it is empty, expected %s", flags[i].name.c_str(),
              flags[i].allowed.c_str());
    }
  // The model of --generate is that of --from, or the newest checkpoint of --out.
  const auto value_of = [&](const char* name) -> std::string& {
    const auto at = std::find_if(flags.begin(), flags.end(), [&](const Flag& f) { return f.name == name; });
    return values[size_t(at - flags.begin())];
  };
  const auto is_on = [&](const char* name) { return given.contains(name) && value_of(name) != "off"; };
  if (is_on("--generate") && given.contains("--out")) {
    require(!given.contains("--from"), "--generate with --from and --out: both name a model that writes: give one");
    const std::string& out = value_of("--out");
    std::error_code error;
    const std::filesystem::file_status there = std::filesystem::status(out, error);
    require(!error || there.type() == std::filesystem::file_type::not_found, "--generate: --out=%s: cannot read: %s",
            out.c_str(), error.message().c_str());
    require(
        out.empty() || std::filesystem::exists(there),
        "--generate: --out=%s: there is no such file or folder: name the --out of a run that has saved a checkpoint",
        out.c_str());
    require(!std::filesystem::is_directory(there) || !list_checkpoints(out).empty() || is_there(out + "/config.json"),
            "--generate: --out=%s holds no checkpoint: name the --out of a run that has saved one%s", out.c_str(),
            hint_at_best(out).c_str());
    value_of("--from") = out;
    given.insert("--from");
  }
  // A run that is resumed reads nothing from its source, which may be gone: its own checkpoints know the flags.
  std::string source = value_of("--from");
  std::error_code error;
  if (is_on("--resume") && given.contains("--out") && !std::filesystem::exists(source, error) &&
      !list_checkpoints(value_of("--out")).empty())
    source = value_of("--out");
  require(!given.contains("--preset") || !given.contains("--from"),
          "--preset and --from both choose a model: give one of them");
  // What is evaluated is the run as it was trained, where nothing else is said.
  if (is_on("--evaluate") && given.contains("--out") && !given.contains("--from")) apply_run(flags, value_of("--out"));
  // The table begins with --preset and --from: the flags behind them change what they set.
  for (size_t i = 0; i < flags.size(); i++) {
    const std::string& name = flags[i].name;
    if (!given.contains(name)) continue;
    flags[i].set(values[i]);
    if (name == "--preset") apply_preset(flags, config.preset);
    if (name == "--from") apply_source(flags, config, source);
    // Other data is not validated on what the source was.
    const bool other_data = given.contains("--data") && value_of("--data") != config.data.data;
    if (name == "--from" && (other_data || given.contains("--val-fraction"))) config.data.val_data = "";
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
