// hf_folder: folders of transformers, as tests write them.
#pragma once
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "layers/parameters.h"
#include "tests/fixtures.h"
#include "tests/script.h"
#include "training/checkpoint/safetensors.h"

namespace gated {

struct Tensor {
  std::string dtype;
  std::vector<size_t> shape;
  std::string bytes;
  bool operator==(const Tensor&) const = default;
};
using TensorMap = std::map<std::string, Tensor>;

// A safetensors file of any dtypes.
inline std::string safetensors_of(const TensorMap& tensors) {
  std::vector<TensorForm> forms;
  std::string data;
  for (const auto& [name, t] : tensors) {
    forms.push_back({name, t.dtype, t.shape});
    data += t.bytes;
  }
  return safetensors_header("test", forms, {{"format", "pt"}}) + data;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

inline std::vector<float> floats_in(const Tensor& t) {
  std::vector<float> values(t.bytes.size() / sizeof(float));
  std::memcpy(values.data(), t.bytes.data(), t.bytes.size());
  return values;
}

// The models of tests/fixtures/hf_models.json.
inline const json& hf_models() {
  static const json fixtures = read_fixtures("hf_models.json");
  return fixtures.at("models");
}
inline const json& hf_model(const std::string& name) {
  for (const json& m : hf_models())
    if (m.at("name") == name) return m;
  fail("no fixture %s", name.c_str());
}

// The tensors of one of them: values(name, how many, what it says of this one).
template <class Values>
TensorMap tensors_of(const json& model, Values values) {
  TensorMap tensors;
  for (const auto& [name, t] : model.at("tensors").items()) {
    const Shape shape = t.at("shape");
    tensors[name] = {"F32", shape, bytes_of(values(name, count(shape), t))};
  }
  return tensors;
}

inline void write_folder(const Folder& f, const std::string& folder, const json& config, const TensorMap& tensors) {
  f.write(folder + "/config.json", config.dump(1));
  f.write(folder + "/model.safetensors", safetensors_of(tensors));
}

inline TensorMap tensors_in(const std::string& path) {
  const SafetensorsFile file(path);
  TensorMap tensors;
  for (const auto& [name, t] : file.header().tensors) {
    std::string bytes(t.end - t.begin, '\0');
    file.read(t, 0, bytes.data(), bytes.size());
    tensors[name] = {t.dtype, t.shape, bytes};
  }
  return tensors;
}

// A python that has transformers, or nothing, which is said. TRANSFORMERS_PYTHON names another.
inline std::string transformers_python() {
  const char* const named = std::getenv("TRANSFORMERS_PYTHON");
  const std::string python = named ? named : "python3";
  if (answers(python + " -c 'import torch, transformers'")) return python;
  WARN(python << " has no transformers: nothing is opened (TRANSFORMERS_PYTHON names another python)");
  return "";
}

}  // namespace gated
