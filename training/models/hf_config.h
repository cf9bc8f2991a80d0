// hf_config: config.json of Hugging Face's transformers, and the flags that say the same.
//
// An architecture is a row of a table (training/models/hf_config.cpp): the flags that all its models have, the keys
// that are flags, and what a key must be where there is no flag for it. The same row reads a config.json and writes
// one. What a row writes is read again and compared flag by flag: so a line of flags is written only where the file
// says all of it. tests/test_hf_config.cpp
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "training/flags/config.h"
#include "training/models/hf_tensors.h"

namespace gated {

// A model as its config.json says it.
struct HfModel {
  HfArchitecture architecture;
  std::vector<std::string> flags;  // as words of a command line
};

// Refuses an architecture that is not known and what no flag says, naming the key. `file` begins every refusal.
HfModel read_hf_config(const std::string& file, const nlohmann::json& config);

struct HfConfig {
  HfArchitecture architecture;
  nlohmann::json json;
  std::string note;  // what a user of the file has to know, or empty
};

// The config.json of the model that `config` has: of the first architecture that transformers computes as the model
// does, else of the one whose code stands beside it. config.export_as may ask for one of both; where it is an
// architecture, and none has a place for some flag, that is refused by name.
HfConfig write_hf_config(const Config& config);

}  // namespace gated
