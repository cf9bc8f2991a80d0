#include "training/models/hf_model.h"

#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>

#include "core/bf16.cuh"
#include "dataloader/quote.h"
#include "layers/model.h"
#include "training/checkpoint/checkpoint.h"
#include "training/text/find_tokenizer.h"
#include "training/flags/flags.h"
#include "training/models/hf_config.h"
#include "training/models/hf_weights.h"
#include "training/process/interrupt.h"

namespace gated {

namespace fs = std::filesystem;

namespace {

constexpr const char* modeling_file = "modeling_gated.py";
constexpr const char* exported[] = {"config.json", "model.safetensors", "tokenizer.json", modeling_file};

// Its text.
constexpr const char* modeling_code =
#include <build/host/modeling_gated.inc>  // written by the Makefile
    ;

constexpr size_t config_depth = 16, longest_config = size_t{1} << 24;  // bytes

std::map<std::string, const Parameter*> by_name(const std::vector<Parameter>& list) {
  std::map<std::string, const Parameter*> found;
  for (const Parameter& p : list) found[p.name] = &p;
  return found;
}

// ---- from a folder

// Layers that predict the token after the next one, which transformers leaves out too.
bool is_of_further_tokens(HfArchitecture architecture, const std::string& name) {
  return architecture == HfArchitecture::qwen3_next && name.starts_with("mtp.");
}

// What a folder may hold beside the model: buffers of old versions, and these layers.
bool is_no_parameter(HfArchitecture architecture, const std::string& name) {
  if (name.ends_with(".rotary_emb.inv_freq")) return true;
  if (architecture == HfArchitecture::gpt2) return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
  return is_of_further_tokens(architecture, name);
}

class HfSource final : public ModelSource {
 public:
  // The configuration at `path`; weights of the folder where there is one.
  HfSource(const std::string& path, const std::string& folder)
      : path_(path), model_(read_hf_config(path, read_json_file(path, config_depth, longest_config))) {
    if (!folder.empty()) path_ = folder, weights_.emplace(folder);
  }

  const std::string& path() const override { return path_; }
  const std::vector<std::string>& flags() const override { return model_.flags; }
  size_t context() const override { return config_of_words(model_.flags).model.context; }
  bool has_weights() const override { return weights_.has_value(); }
  bool gives_first_positions() const override { return true; }

 protected:
  void check(const ModelConfig& config, const std::vector<Parameter>&) const override {
    require(has_weights(), "--from=%s: it holds no weights: name the folder that it stands in", path_.c_str());
    // A model of many more tensors than are stored need not be listed to its end to find one that is not there.
    const std::vector<std::string> stored = weights_->names();
    const std::vector<HfTensor> tensors = hf_tensors(model_.architecture, config, stored.size() + 1);
    std::set<std::string> wanted;
    for (const HfTensor& t : tensors) wanted.insert(check(t));
    for (const std::string& name : stored)
      require(wanted.contains(name) || is_no_parameter(model_.architecture, name) ||
                  (config.tied && name == "lm_head.weight"),
              "%s: tensor %s is none of this model: it has %zu others", weights_->file_of(name).c_str(),
              quote(name).c_str(), tensors.size());
    if (config.tied && weights_->has("lm_head.weight")) check_head(tensors);
  }
  void copy(const ModelConfig& config, const std::vector<Parameter>& list, float* flat) const override {
    const std::vector<HfTensor> tensors = hf_tensors(model_.architecture, config);
    const auto ours = by_name(list);
    std::vector<float> values;
    for (const HfTensor& t : tensors) {
      const std::string name = stored_name(t.name);
      values.resize(count(weights_->entry(name).shape));
      weights_->read(name, values.data());
      for (const Piece& piece : t.pieces) take_piece(piece, flat + ours.at(piece.parameter)->offset, values.data());
    }
  }
  std::string left_out() const override {
    const std::vector<std::string> stored = weights_->names();
    const auto n = std::count_if(stored.begin(), stored.end(), [&](const std::string& name) {
      return is_of_further_tokens(model_.architecture, name);
    });
    return n == 0 ? "" : format("its %zu tensors mtp.* are left out: they predict the token after the next", size_t(n));
  }

 private:
  // GPT-2 was first published without the name of the model's body in front.
  std::string stored_name(const std::string& name) const {
    const std::string body = "transformer.";
    const bool short_one = name.starts_with(body) && !weights_->has(name) && weights_->has(name.substr(body.size()));
    return short_one ? name.substr(body.size()) : name;
  }
  // With a --context that is smaller than what was learned, positions are the first of those that are there.
  static bool holds(const TensorEntry& entry, const HfTensor& t) {
    const bool positions = t.pieces[0].parameter == "model.embed_positions.weight";
    if (!positions || entry.shape.size() != 2 || entry.shape[0] <= t.shape[0]) return entry.shape == t.shape;
    return entry.shape[1] == t.shape[1];
  }
  // Refuses a tensor that is not there in that shape, before any is read. Returns its name in the files.
  std::string check(const HfTensor& t) const {
    const std::string name = stored_name(t.name);
    require(weights_->has(name) || !weights_->has(name + "_blocks"),
            "%s: tensor %s is MXFP4, numbers of 4 bits: expected F32, BF16 or F16: expand it with transformers first",
            weights_->path().c_str(), quote(name).c_str());
    const TensorEntry& entry = weights_->entry(name);
    require(holds(entry, t), "%s: tensor %s is %s %s, expected the shape %s", weights_->file_of(name).c_str(),
            quote(name).c_str(), entry.dtype.c_str(), shape_text(entry.shape).c_str(), shape_text(t.shape).c_str());
    require(entry.dtype == "F32" || entry.dtype == "BF16" || entry.dtype == "F16",
            "%s: tensor %s is %s, expected F32, BF16 or F16", weights_->file_of(name).c_str(), quote(name).c_str(),
            entry.dtype.c_str());
    return name;
  }
  // A tied model may be stored with its output matrix all the same. It has to be the embedding.
  void check_head(const std::vector<HfTensor>& tensors) const {
    const std::string name = "lm_head.weight";
    const HfTensor& embedding = *std::find_if(tensors.begin(), tensors.end(), [](const HfTensor& t) {
      return t.pieces[0].parameter == "model.embed_tokens.weight";
    });
    bool same = weights_->entry(name).shape == embedding.shape;
    if (same) {
      std::vector<float> values(count(embedding.shape)), head(values.size());
      weights_->read(stored_name(embedding.name), values.data());
      weights_->read(name, head.data());
      same = values == head;
    }
    require(same, "%s: tensor \"%s\" is not the embedding, though the model is tied", weights_->file_of(name).c_str(),
            name.c_str());
  }

  std::string path_;
  HfModel model_;
  std::optional<HfWeights> weights_;
};

}  // namespace

std::shared_ptr<const ModelSource> open_hf_folder(const std::string& folder) {
  return std::make_shared<HfSource>(folder + "/config.json", folder);
}

std::shared_ptr<const ModelSource> open_hf_config(const std::string& path) {
  return std::make_shared<HfSource>(path, "");
}

// ---- into a folder

namespace {

// A folder that takes its name when all is in it. Until then it has an unfinished one, and goes with the object. An
// empty folder that has the name already is taken for it: what cannot be renamed, as a mount point, shows before the
// work.
class NewFolder {
 public:
  explicit NewFolder(const std::string& name) : name_(name), path_(name) {
    while (path_.size() > 1 && path_.ends_with('/')) path_.pop_back();
    const fs::path last = fs::path(path_).filename(), parent = fs::path(path_).parent_path();
    require(!last.empty() && last != "." && last != "..",
            "--export=%s: expected the name of a folder that is not there yet, or of an empty one", name.c_str());
    std::error_code error;
    const fs::file_status status = fs::symlink_status(path_, error);
    require(!fs::is_symlink(status), "--export=%s: is a symbolic link: name the folder that it stands for",
            name.c_str());
    error.clear();  // (it says that nothing is there)
    taken_ = fs::exists(status);
    require(!taken_ || (fs::is_directory(status) && fs::is_empty(path_, error)),
            "--export=%s: exists and holds something%s: name a folder that is not there yet", name.c_str(),
            error ? (" (" + error.message() + ")").c_str() : "");
    if (!parent.empty()) fs::create_directories(parent, error);
    if (!error) remove_leftovers(parent.empty() ? "." : parent.native(), last.native());
    unfinished_ = unfinished_name(path_);
    if (!error && taken_) fs::rename(path_, unfinished_, error);
    if (!error && !taken_ && !fs::create_directory(unfinished_, error) && !error)
      error = std::make_error_code(std::errc::file_exists);
    require(!error, "--export=%s: cannot %s the folder: %s", name.c_str(), taken_ ? "rename" : "create",
            error.message().c_str());
    held_.emplace(unfinished_, O_RDONLY | O_DIRECTORY);
    ::flock(held_->descriptor(), LOCK_EX | LOCK_NB);  // says that its writer lives, as AtomicFile's does
  }
  NewFolder(const NewFolder&) = delete;
  ~NewFolder() {
    std::error_code error, ignored;
    if (finished_) return;
    for (fs::directory_iterator at(unfinished_, error), end; !error && at != end; at.increment(error))
      fs::remove_all(at->path(), ignored);
    error.clear();
    if (taken_) fs::rename(unfinished_, path_, error);
    if (!taken_ || error) fs::remove(unfinished_, ignored);
  }
  std::string operator/(const char* name) const { return unfinished_ + "/" + name; }
  void finish() {
    std::error_code error;
    fs::rename(unfinished_, path_, error);
    require(!error, "--export=%s: cannot rename the finished folder to it: %s", name_.c_str(), error.message().c_str());
    finished_ = true;
  }

 private:
  // Deletes what exports of the same name have left that were killed: folders of files of ours alone, which no process
  // holds.
  static void remove_leftovers(const std::string& folder, const std::string& name) {
    std::error_code error;
    const auto is_ours = [](const fs::path& file) {
      const std::string name = file.filename().native(), target = finished_name(name).value_or(name);
      std::error_code ignored;
      return fs::symlink_status(file, ignored).type() == fs::file_type::regular &&
             std::find(std::begin(exported), std::end(exported), target) != std::end(exported);
    };
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
      const fs::path path = at->path();
      if (finished_name(path.filename().native()) != name) continue;
      const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
      if (descriptor < 0) continue;
      const std::vector<std::string> files = folder_names(path);
      const bool ours =
          std::all_of(files.begin(), files.end(), [&](const std::string& f) { return is_ours(path / f); });
      std::error_code ignored;
      if (ours && ::flock(descriptor, LOCK_EX | LOCK_NB) == 0) fs::remove_all(path, ignored);
      ::close(descriptor);
    }
  }

  std::string name_, path_, unfinished_;
  bool taken_ = false, finished_ = false;
  std::optional<File> held_;
};

}  // namespace

std::string export_hf_folder(const std::string& folder, const Config& config, const std::function<void(float*)>& read,
                             bool rounded_to_bf16, const std::optional<std::string>& tokenizer) {
  HfConfig written = write_hf_config(config);
  const std::vector<HfTensor> tensors = hf_tensors(written.architecture, config.model);
  const CatchInterrupts catching;  // so that an export that is ended leaves no unfinished folder
  NewFolder out(folder);
  const Model model(config.model);
  std::vector<float> flat(model.weights.flat_size());
  read(flat.data());

  std::vector<TensorForm> forms;
  for (const HfTensor& t : tensors) forms.push_back({t.name, rounded_to_bf16 ? "BF16" : "F32", t.shape});
  const std::string path = out / "model.safetensors", header = safetensors_header(path, forms, {{"format", "pt"}});
  AtomicFile file(path);
  file.write(header.data(), header.size());
  const auto ours = by_name(model.weights.list());
  std::vector<float> values;
  std::vector<uint16_t> rounded(rounded_to_bf16 ? size_t{1} << 19 : 0);  // 1 MiB at a time
  for (const HfTensor& t : tensors) {
    if (interrupted()) throw Interrupted(format("--export=%s: interrupted: nothing is written", folder.c_str()));
    values.resize(count(t.shape));
    for (const Piece& piece : t.pieces)
      give_piece(piece, flat.data() + ours.at(piece.parameter)->offset, values.data());
    if (!rounded_to_bf16) file.write(values.data(), values.size() * sizeof values[0]);
    for (size_t done = 0; rounded_to_bf16 && done < values.size(); done += rounded.size()) {
      const size_t n = std::min(rounded.size(), values.size() - done);
      for (size_t i = 0; i < n; i++) {
        rounded[i] = bf16(values[done + i]).bits;
        require((rounded[i] & 0x7f80) != 0x7f80,
                "--export-dtype=bf16: element %zu of %s is %g, which rounds to infinity: take --export-dtype=fp32",
                done + i, t.name.c_str(), double(values[done + i]));
      }
      file.write(rounded.data(), n * sizeof rounded[0]);
    }
  }
  file.commit();
  written.json["torch_dtype"] = rounded_to_bf16 ? "bfloat16" : "float32";
  if (written.architecture == HfArchitecture::code) write_text(out / modeling_file, modeling_code);
  if (tokenizer) write_text(out / "tokenizer.json", *tokenizer);
  write_text(out / "config.json", written.json.dump(2) + "\n");
  out.finish();
  return written.note;
}

void export_model(const Config& config) {
  const std::optional<std::string> tokenizer = kept_tokenizer(config);
  config.source->require_fit(config.model);
  const Model model(config.model);
  const std::string note = export_hf_folder(
      config.export_folder, config, [&](float* flat) { config.source->read(config.model, model.weights.list(), flat); },
      config.export_bf16, tokenizer);
  printf("wrote %s: config.json, and %zu parameters in %s in model.safetensors\n", config.export_folder.c_str(),
         model.weights.total(), config.export_bf16 ? "BF16" : "F32");
  if (!note.empty()) printf("note: %s\n", note.c_str());
}

}  // namespace gated
