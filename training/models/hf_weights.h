// hf_weights: the tensors of a folder as transformers writes it: model.safetensors, or several files and an index of
// them, model.safetensors.index.json = {"weight_map": {tensor: file, ...}}. tests/test_hf_model.cpp
#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "training/checkpoint/safetensors.h"

namespace gated {

// The object in a JSON file of at most `most` bytes. depth: levels of brackets allowed.
nlohmann::json read_json_file(const std::string& path, size_t depth, size_t most);

// Which files an index names, and which tensors in each. Refuses a file that does not lie in the folder of the index.
std::map<std::string, std::vector<std::string>> read_hf_index(const std::string& path);

class HfWeights {
 public:
  // Reads the headers. Refuses a tensor that is in two files, and one that is in the index and not in its file, or the
  // other way round.
  explicit HfWeights(const std::string& folder);

  const std::string& path() const { return folder_; }
  bool has(const std::string& name) const { return places_.contains(name); }
  std::vector<std::string> names() const;
  // The file that a tensor is in, and what the file says of it. Refuses a name that is in none.
  const std::string& file_of(const std::string& name) const { return file(name).path(); }
  const TensorEntry& entry(const std::string& name) const { return file(name).header().tensors.at(name); }
  // All of it in fp32.
  void read(const std::string& name, float* dst) const { file(name).read_floats(name, entry(name), dst); }

 private:
  const SafetensorsFile& file(const std::string& name) const;
  void add(const std::string& path);

  std::string folder_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, size_t> places_;  // of a tensor, among the files
};

}  // namespace gated
