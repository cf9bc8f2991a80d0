// fuzz_flags: any words on the command line are either taken or refused with a gated::Error of one line.
// make fuzz READER=flags
#include <sstream>

#include "training/flags/command_line.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  // The input's lines are the command line's words. Help is left out: it prints.
  std::istringstream text(std::string(reinterpret_cast<const char*>(bytes), size));
  std::vector<std::string> words;
  for (std::string word; std::getline(text, word);)
    if (!word.starts_with("-h") && !word.starts_with("--help") && !word.starts_with("--flag-map") &&
        !word.starts_with("--version"))
      words.push_back(word);
  std::vector<char*> argv = {const_cast<char*>("train")};
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  gated::Config config;
  try {
    gated::parse_command_line(config, int(argv.size()) - 1, argv.data());
  } catch (const gated::Error& e) {
    if (std::string(e.what()).find('\n') != std::string::npos) __builtin_trap();
  }
  return 0;
}
