#include "training/models/hf_weights.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "dataloader/quote.h"
#include "dataloader/strict_json.h"

namespace gated {

static constexpr size_t longest_index = size_t{1} << 28;  // bytes; that of a million tensors is half of it

nlohmann::json read_json_file(const std::string& path, size_t depth, size_t most) {
  const File file(path, O_RDONLY | O_NONBLOCK);
  const size_t size = file.size();
  require(size <= most, "%s: has %zu bytes, expected at most %zu", path.c_str(), size, most);
  std::string text(size, '\0');
  file.read(text.data(), size, 0);
  return parse_strict_json(path, "", text, depth);
}

std::map<std::string, std::vector<std::string>> read_hf_index(const std::string& path) {
  const nlohmann::json index = read_json_file(path, 8, longest_index);
  const auto map = index.find("weight_map");
  require(map != index.end() && map->is_object() && !map->empty(),
          "%s: no \"weight_map\", expected an object of tensors and their files", path.c_str());
  std::map<std::string, std::vector<std::string>> files;
  for (const auto& [tensor, file] : map->items()) {
    require(file.is_string(), "%s: the file of tensor %s is not a string", path.c_str(), quote(tensor).c_str());
    const std::string name = file.get<std::string>();
    require(name.ends_with(".safetensors") && name.find('/') == name.npos && name.find('\0') == name.npos,
            "%s: tensor %s is said to be in %s, expected a safetensors file of the same folder", path.c_str(),
            quote(tensor).c_str(), quote(name).c_str());
    files[name].push_back(tensor);
  }
  return files;
}

HfWeights::HfWeights(const std::string& folder) : folder_(folder) {
  namespace fs = std::filesystem;
  const std::string one = folder + "/model.safetensors", index = folder + "/model.safetensors.index.json";
  if (is_there(one)) {
    add(one);
    return;
  }
  require(is_there(index), "%s: holds neither model.safetensors nor model.safetensors.index.json", folder.c_str());
  for (const auto& [name, tensors] : read_hf_index(index)) {
    add(folder + "/" + name);
    const size_t here = files_.back().header().tensors.size();
    for (const std::string& tensor : tensors)
      require(has(tensor) && &file(tensor) == &files_.back(), "%s: tensor %s is not in %s", index.c_str(),
              quote(tensor).c_str(), name.c_str());
    require(here == tensors.size(), "%s: %s holds %zu tensors, of which the index names %zu", index.c_str(),
            name.c_str(), here, tensors.size());
  }
}

void HfWeights::add(const std::string& path) {
  files_.emplace_back(path);
  for (const auto& [name, entry] : files_.back().header().tensors) {
    const auto [at, is_new] = places_.emplace(name, files_.size() - 1);
    require(is_new, "%s: tensor %s is in %s too", path.c_str(), quote(name).c_str(), files_[at->second].path().c_str());
  }
}

std::vector<std::string> HfWeights::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : places_) names.push_back(name);
  return names;
}

const SafetensorsFile& HfWeights::file(const std::string& name) const {
  const auto found = places_.find(name);
  require(found != places_.end(), "%s: no tensor %s among the %zu it holds", folder_.c_str(), quote(name).c_str(),
          places_.size());
  return files_[found->second];
}

}  // namespace gated
