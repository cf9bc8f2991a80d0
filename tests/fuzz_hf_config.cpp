// fuzz_hf_config: any bytes given as a config.json or as an index of safetensors files: they are refused with a
// gated::Error of one line, or a configuration becomes flags that the table of flags takes or refuses in the same way,
// and what is written of them reads back as the same flags. make fuzz READER=hf_config
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "training/flags/flags.h"
#include "training/models/hf_config.h"
#include "training/models/hf_weights.h"
#include "dataloader/strict_json.h"
#include "tests/fuzz.h"

using namespace gated;

namespace {

void check_config(const std::string& text) {
  Config config;
  std::vector<std::string> flags;
  try {
    flags = read_hf_config("fuzz", parse_strict_json("fuzz", "", text, 16)).flags;
    config = config_of_words(flags);
    check_model_flags(config.model);
    const nlohmann::json written = write_hf_config(config).json;
    const Config back = config_of_words(read_hf_config("again", nlohmann::json::parse(written.dump())).flags);
    demand(back.model.hidden == config.model.hidden && back.model.attention.H == config.model.attention.H);
  } catch (const Error& e) {
    demand_plain(e);
  }
}

void check_index(const std::string& text) {
  static const std::string path = "/tmp/fuzz_hf_index." + std::to_string(getpid());
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
  try {
    for (const auto& [file, tensors] : read_hf_index(path))
      demand(file.find('/') == std::string::npos && !tensors.empty());
  } catch (const Error& e) {
    demand_plain(e);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  check_config(input);
  check_index(input);
  return 0;
}
