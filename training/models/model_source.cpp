#include "training/flags/model_source.h"

#include <cstdio>
#include <filesystem>
#include <set>

#include "dataloader/quote.h"
#include "layers/model.h"
#include "training/checkpoint/checkpoint.h"
#include "training/flags/flags.h"
#include "training/models/hf_model.h"
#include "training/flags/run_metadata.h"

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

 protected:
  void check(const ModelConfig&, const std::vector<Parameter>& list) const override {
    std::set<std::string> wanted;
    for (const Parameter& p : list) {
      checkpoint_.entry(p.name, p.shape);
      wanted.insert(p.name);
    }
    for (const auto& [name, entry] : checkpoint_.tensors())
      require(wanted.contains(name) || name.starts_with("optimizer."), "%s: tensor %s is none of this model",
              path().c_str(), quote(name).c_str());
  }
  void copy(const ModelConfig&, const std::vector<Parameter>& list, float* flat) const override {
    for (const Parameter& p : list) checkpoint_.read_numbers(p.name, p.shape, flat + p.offset);
  }

 private:
  Checkpoint checkpoint_;
  std::vector<std::string> flags_;
};

// ---- a model that the weights are

// A flag in which two differ: its place in the table, and its value in each.
struct Difference {
  size_t row;
  bool is_size;
  std::string name, now, then;
};

std::vector<Difference> differences(const ModelConfig& model, Config then) {
  Config now;
  now.model = model;
  now.vocab = model.vocab;
  const std::vector<Flag> here = list_flags(now), there = list_flags(then);
  std::vector<Difference> all;
  for (size_t i = 0; i < here.size(); i++)
    if ((here[i].shapes_the_model() || here[i].name == "--vocab") && here[i].get() != there[i].get())
      all.push_back({i, here[i].kind == Flag::Kind::size, here[i].name, here[i].get(), there[i].get()});
  return all;
}

}  // namespace

void ModelSource::require_fit(const ModelConfig& config) const {
  refuse_others(config);
  fputs(notes(config).c_str(), stderr);
}

std::string ModelSource::notes(const ModelConfig& config) const {
  std::string now, then;
  for (const Difference& d : differences(config, config_of_words(flags()))) {
    if (d.name == "--context" || is_of_training(d.name)) continue;
    now += " " + d.name + "=" + d.now;
    then += " " + d.name + "=" + d.then;
  }
  std::string lines;
  if (!now.empty()) lines += "note:" + now + ", where " + path() + " has" + then + "\n";
  if (const std::string left = left_out(); !left.empty()) lines += "note: " + path() + ": " + left + "\n";
  return lines;
}

void ModelSource::check_all(const ModelConfig& config) const {
  check(config, Model(config).weights.list());
  // A tensor may have the shape that is asked for and hold something else: rows of other heads, scores of another
  // place.
  for (const Difference& d : differences(config, config_of_words(flags())))
    require((!d.is_size || d.name == "--context") && d.name != "--attn", "%s: was trained with %s=%s", path().c_str(),
            d.name.c_str(), d.then.c_str());
}

void ModelSource::refuse_others(const ModelConfig& config) const {
  try {
    check_all(config);
  } catch (const Error& e) {
    const std::string changed = changed_flags(config);
    require(changed.empty(), "--from=%s: with %s it is another model than its weights are: %s; leave %s out",
            path().c_str(), changed.c_str(), e.what(), changed.c_str());
    throw;
  }
}

void ModelSource::read(const ModelConfig& config, const std::vector<Parameter>& list, float* flat) const {
  refuse_others(config);
  copy(config, list, flat);
}

// Of the flags in which `config` differs from the source those that no model of its weights has; where none is such by
// itself, all of them. None where the weights are no model of the source's own flags either: no flag is to blame.
std::string ModelSource::changed_flags(const ModelConfig& config) const {
  const Config then = config_of_words(flags());
  if (!fits(then.model)) return "";
  std::string all, guilty;
  for (const Difference& d : differences(config, then)) {
    Config alone = then;
    try {
      list_flags(alone)[d.row].set(d.now);
    } catch (const Error&) {
      continue;  // it follows from another flag, as --attention-every=1 from --layers=1: nobody can have typed it
    }
    alone.model.vocab = alone.vocab;
    const std::string word = d.name + "=" + d.now;
    all += (all.empty() ? "" : ", ") + word;
    if (!fits(alone.model)) guilty += (guilty.empty() ? "" : ", ") + word;
  }
  return guilty.empty() ? all : guilty;
}

bool ModelSource::fits(const ModelConfig& config) const {
  try {
    check_all(config);
  } catch (const Error&) {
    return false;
  }
  return true;
}

void set_trained_context(ModelConfig& m, size_t context, const std::string& path, bool gives_first_positions) {
  m.trained_context = context;
  require(m.position != Position::learned || m.context == context || (gives_first_positions && m.context < context),
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
          "transformers%s",
          path.c_str(), hint_at_best(path).c_str());
  return std::make_shared<RunSource>(std::move(*newest));
}

}  // namespace gated
