#include "training/model_source.h"

#include <filesystem>

#include "training/checkpoint.h"
#include "training/hf_model.h"
#include "training/run_metadata.h"

namespace gated {

namespace {

// ---- a checkpoint of ./train

class RunSource final : public ModelSource {
 public:
  explicit RunSource(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {
    require(checkpoint_.has_training_state(),
            "--from=%s: it was not written by ./train and names no flags: give the folder that holds its config.json",
            path().c_str());
    flags_ = flags_of_run(path(), checkpoint_.metadata());
    // The vocabulary of a run is often its data's. Other data must not choose another.
    const auto embedding = checkpoint_.tensors().find("model.embed_tokens.weight");
    require(embedding != checkpoint_.tensors().end() && embedding->second.shape.size() == 2,
            "--from=%s: no matrix model.embed_tokens.weight: it holds no model", path().c_str());
    flags_.push_back("--vocab=" + std::to_string(embedding->second.shape[0]));
  }

  const std::string& path() const override { return checkpoint_.path(); }
  const std::vector<std::string>& flags() const override { return flags_; }
  size_t context() const override { return trained_context(checkpoint_.metadata()); }
  void read(const ModelConfig&, const std::vector<Parameter>& list, float* flat) const override {
    for (const Parameter& p : list) checkpoint_.read(p.name, p.shape, flat + p.offset);
  }

 private:
  Checkpoint checkpoint_;
  std::vector<std::string> flags_;
};

}  // namespace

void set_trained_context(ModelConfig& m, size_t context, const std::string& path) {
  m.trained_context = context;
  require(m.position != Position::learned || m.context == context,
          "--context=%zu: %s learned %zu positions and knows no others: take --context=%zu", m.context, path.c_str(),
          context, context);
}

std::shared_ptr<const ModelSource> open_model_source(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  require(status.type() != fs::file_type::not_found, "--from=%s: there is no such file or folder", path.c_str());
  require(fs::exists(status), "--from=%s: %s", path.c_str(), error.message().c_str());
  if (!fs::is_directory(status)) {
    if (path.ends_with(".json")) return open_hf_config(path);
    return std::make_shared<RunSource>(Checkpoint(path));
  }
  if (list_checkpoints(path).empty() && is_there(path + "/config.json")) return open_hf_folder(path);
  std::optional<Checkpoint> newest = find_latest(path);
  require(newest.has_value(),
          "--from=%s: holds neither step_*.safetensors of a run of ./train nor the config.json of Hugging Face's "
          "transformers",
          path.c_str());
  return std::make_shared<RunSource>(std::move(*newest));
}

}  // namespace gated
