// hf_model: a folder of transformers as the start of a run (--from), and a model as such a folder (--export). The
// configuration: training/models/hf_config.h. Which element of which tensor is whose: training/models/hf_tensors.h.
// tests/test_hf_model.cpp
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "training/flags/config.h"
#include "training/flags/model_source.h"

namespace gated {

// The model of a folder. A tensor is read when its parameters are wanted: beside the model, one tensor is in memory.
std::shared_ptr<const ModelSource> open_hf_folder(const std::string& folder);

// What a config.json alone says: a model without weights, which can be described.
std::shared_ptr<const ModelSource> open_hf_config(const std::string& path);

// Writes the model of `config`, whose weights read(flat) puts at their offsets once there is a place for them, into a
// folder that is not there yet, or empty: config.json, model.safetensors, in fp32 or rounded to BF16, the text of a
// tokenizer.json, and the model's code where transformers has none (training/models/modeling_gated.py). What cannot be
// written leaves nothing behind. Returns what the user has to know, or nothing.
std::string export_hf_folder(const std::string& folder, const Config& config, const std::function<void(float*)>& read,
                             bool rounded_to_bf16, const std::optional<std::string>& tokenizer = {});

// --export: the model of --from, and a line of what was written.
void export_model(const Config& config);

}  // namespace gated
