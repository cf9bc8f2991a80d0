// from_matrix: every architecture that --from reads, under every flag that changes a model, alone and in pairs: the
// model is loaded, every number of the files in one place of it, or it is refused with the name of the flag; and so are
// runs of ./train.
#include <optional>

#include "core/philox.cuh"
#include "layers/model.h"
#include "tests/hf_folder.h"
#include "tests/refusal.h"
#include "tests/save_checkpoint.h"
#include "tests/small_models.h"
#include "training/flags/command_line.h"
#include "training/models/hf_tensors.h"
#include "training/flags/model_source.h"

using namespace gated;

namespace {

// Numbers are around those of the small models.
std::vector<FlagChoices> changes() {
  const FlagValues numbers = flag_values(
      "--norm-eps=1e-4 --norm-rank=3 --norm-gate-scale=2 --dyt-alpha=0.3 --attention-every=2 --head-experts=0|2 "
      "--head-experts-per-token=2 --window=0|3 --full-every=2 --score-dim=0|9 --rope-theta=77 --rope-fraction=0.5 "
      "--rope-scaling=none|linear,2|yarn,4,40 --window-rope-theta=100 --embedding-factor=1|2 --clip-residual=9 "
      "--clip-output=9 --dropout=0.1 --experts=0|2|5 --experts-per-token=1 --expert-hidden=7|9 --dense-layers=0|1 "
      "--shared-experts=0|1|2 --balance-loss=0.1 --z-loss=0.1 --init-std=0.1 --layers=1|2|3|4 --hidden=16|20|24 "
      "--heads=2|4|8 --kv-heads=1|2|4 --head-dim=4|5|6|12 --linear-key-heads=1|3|6 --linear-value-heads=2|4|18 "
      "--linear-key-dim=4|10 --linear-value-dim=1|6 --conv-width=2|4 --ffn-hidden=12|24|48 --context=7|11 "
      "--vocab=36|40");
  const std::vector<FlagChoices> all = flags_of_the_model(numbers);
  for (const FlagChoices& f : all) {
    INFO(f.flag);
    REQUIRE((f.values.size() > 1 || numbers.count(f.flag)));
  }
  return all;
}

// A model to be read: a folder of transformers, or a run. Every number in it is another.
class Numbered {
 public:
  const std::string name;

  Numbered(const json& fixture, const Folder& f) : name(fixture.at("name")) {
    const auto values = [&](const auto&, size_t n, const auto&) { return numbered(n); };
    write_folder(f, "model", fixture.at("config"), tensors_of(fixture, values));
    open(f / "model");
  }
  // A run of a small model with these flags.
  Numbered(const Folder& f, const std::string& flags) : name("./train " + flags) {
    Config c;
    c.model = small_model(flags);
    const Model model(c.model);
    const std::vector<float> values = numbered(model.weights.total());
    std::vector<TensorView> tensors;
    const float* next = values.data();
    for (const Parameter& p : model.weights.list()) {
      tensors.push_back({p.name, p.shape, next});
      next += p.size;
    }
    std::map<std::string, std::string> metadata;
    for (const auto& [flag, value] : flags_of(c)) metadata["flag" + flag] = value;
    save_checkpoint(f / "run.safetensors", tensors, metadata);
    open(f / "run.safetensors");
  }

  struct Seen {
    std::string refusal, fault;  // "" where there is none
  };
  // What comes of a line of flags beside --from.
  Seen seen(const std::string& line) {
    std::vector<float> flat;
    std::optional<Model> model;
    const std::string refused = refusal([&] {
      const Config c = config_with(line);
      model.emplace(c.model);
      flat.assign(model->weights.flat_size(), untouched);
      c.source->read(c.model, model->weights.list(), flat.data());
    });
    if (!refused.empty()) return {refused, fault_of(refused, line)};
    const std::string fault = fault_of(flat, model->weights.list(), line.empty());
    return {"", fault.empty() ? unsaid(line) : fault};
  }

 private:
  static constexpr float untouched = -1;

  std::vector<float> numbered(size_t n) {
    std::vector<float> x(n);
    for (float& value : x) value = float(++numbers_);
    return x;
  }
  void open(const std::string& path) {
    source_ = open_model_source(path);
    REQUIRE(seen("").fault == "");
  }
  static std::map<std::string, std::string> flags_of(Config& c) {
    std::map<std::string, std::string> values;
    for (const Flag& f : list_flags(c))
      if (f.shapes_the_model()) values[f.name] = f.get();
    return values;
  }
  // What a model that is loaded has to say of the flags that changed it. One whose tensors would be of other shapes, or
  // of other rows, is none that can be loaded.
  std::string unsaid(const std::string& line) const {
    Config own = config_of_words(source_->flags()), changed = config_with(line);
    const std::string notes = source_->notes(changed.model);
    const std::map<std::string, std::string> before = flags_of(own);
    for (const Flag& f : list_flags(changed)) {
      const std::string value = f.get();
      if (!f.shapes_the_model() || f.name == "--context" || is_of_training(f.name)) continue;
      if (value == before.at(f.name)) continue;
      if (f.kind == Flag::Kind::size || f.name == "--attn" || f.name.ends_with("experts"))
        return f.name + "=" + value + " is loaded";
      if (notes.find(" " + f.name + "=" + value) == notes.npos) return f.name + "=" + value + " is not said";
    }
    return "";
  }

  // As the command line makes it of --from and of these flags.
  Config config_with(const std::string& line) const {
    std::vector<std::string> words = source_->flags();
    std::set<std::string> given = {"--from"};
    for (const std::string& word : words_of(line)) {
      words.push_back(word);
      given.insert(word.substr(0, word.find('=')));
    }
    Config c = config_of_words(words);
    c.source = source_;
    check_flags(c, given);
    return c;
  }
  static std::string fault_of(const std::string& refused, const std::string& line) {
    if (refused.find('\n') != std::string::npos) return "several lines";
    for (const std::string& word : words_of(line))
      if (refused.find(word.substr(0, word.find('='))) != std::string::npos) return "";
    return "names no flag";
  }
  // Every number is in one place, and where the model has the same parameter without flags, in the same.
  std::string fault_of(std::vector<float>& flat, const std::vector<Parameter>& list, bool without_flags) {
    std::vector<float> all;
    for (const Parameter& p : list) {
      const auto begin = flat.begin() + ptrdiff_t(p.offset), end = begin + ptrdiff_t(p.size);
      const std::vector<float> here(begin, end);
      std::fill(begin, end, untouched);
      all.insert(all.end(), here.begin(), here.end());
      if (without_flags) own_[p.name] = {p.shape, here};
      const auto own = own_.find(p.name);
      if (own == own_.end()) continue;
      const auto& [shape, numbers] = own->second;
      const bool fewer = p.name == "model.embed_positions.weight" && here.size() < numbers.size();  // --context
      if (fewer) all.insert(all.end(), numbers.begin() + ptrdiff_t(here.size()), numbers.end());
      if ((fewer || shape == p.shape) && !std::equal(here.begin(), here.end(), numbers.begin()))
        return p.name + " has other numbers than without flags";
    }
    std::sort(all.begin(), all.end());
    if (all.size() != numbers_) return format("%zu of %zu numbers are read", all.size(), numbers_);
    for (size_t i = 0; i < all.size(); i++)
      if (all[i] != float(i + 1)) return format("number %zu is not in one place", i + 1);
    if (std::count(flat.begin(), flat.end(), untouched) != ptrdiff_t(flat.size())) return "written beside parameters";
    return "";
  }

  std::shared_ptr<const ModelSource> source_;
  size_t numbers_ = 0;
  std::map<std::string, std::pair<Shape, std::vector<float>>> own_;  // parameters without flags
};

}  // namespace

// Of all that are read: the models of transformers, but those that differ from another in positions alone, and runs.
TEST_CASE_METHOD(Folder,
                 "from_matrix: a flag changes a model that is read to one that its weights are, or is refused by name",
                 "[from]") {
  const std::vector<FlagChoices> all = changes();
  size_t loaded = 0, refused = 0;
  const auto look_at = [&](Numbered model) {
    const auto take = [&](const std::string& line) {
      const Numbered::Seen seen = model.seen(line);
      (seen.refusal.empty() ? loaded : refused)++;
      if (seen.fault.empty()) return;
      INFO(seen.refusal);
      FAIL_CHECK(model.name << " " << line << ": " << seen.fault);
    };
    for (const FlagChoices& change : all)
      for (const std::string& value : change.values) take(change.flag + "=" + value);
    size_t draws = 0;
    const auto any = [&](const auto& list) {
      return list[size_t(uniform_double(1, 2, draws++) * double(list.size()))];
    };
    for (int pair = 0; pair < 60; pair++) {
      const FlagChoices a = any(all), b = any(all);
      if (a.flag != b.flag) take(a.flag + "=" + any(a.values) + " " + b.flag + "=" + any(b.values));
    }
  };
  std::set<std::string> tensors;
  for (const json& fixture : hf_models())
    if (tensors.insert(fixture.at("tensors").dump()).second) look_at(Numbered(fixture, *this));
  for (const char* flags :
       {"", "--attn=g1 --qk-norm=off", "--attn=g2 --gate=headwise --norm=gated --norm-rank=3 --qk-norm=off",
        "--attn=g1 --gate=shared --attn-bias=qkv --attn-sink=kv-bias", "--mixer=hybrid --attention-every=2 --experts=5",
        "--head-experts=4 --head-experts-of=kv --qk-norm=off"})
    look_at(Numbered(*this, flags));
  REQUIRE(loaded > 500);
  REQUIRE(refused > 500);
}

TEST_CASE_METHOD(Folder,
                 "from_matrix: flags that leave the size of every tensor, and not what its numbers are, are named",
                 "[from]") {
  // A model, or the flags of a run; flags beside it; and which of them are named, where it is not all.
  for (const auto& [name, flags, named] : std::vector<std::array<std::string, 3>>{
           {"gpt2", "--window=3 --kv-heads=2 --clip-output=3", "--kv-heads=2"},
           {"qwen3_moe", "--ffn-bias=on --rope-theta=5", "--ffn-bias=on"},
           // As many numbers in every tensor, in another order; neither flag is to blame by itself where both are
           // needed for that.
           {"qwen3_next", "--linear-key-heads=1 --linear-key-dim=10"},
           {"released gates, elementwise", "--kv-heads=1 --head-dim=6", "--kv-heads=1"},
           {"gpt2", "--heads=2 --kv-heads=2 --head-dim=10"},
           {"--qk-norm=off", "--heads=2 --kv-heads=1 --head-dim=12"},
           {"--attn=g1", "--attn=g4 --ffn=glu", "--attn=g4"},
           {"--head-experts=4 --head-experts-of=kv", "--head-experts=2 --kv-heads=4"},
           {"--mixer=gated-delta --linear-key-heads=2 --linear-key-dim=4",
            "--linear-key-heads=1 --linear-key-dim=8"}}) {
    Numbered model = name.starts_with("--") ? Numbered(*this, name) : Numbered(hf_model(name), *this);
    const Numbered::Seen seen = model.seen(flags);
    INFO(name << " " << flags << ": " << seen.refusal);
    REQUIRE(contains(seen.refusal, "with " + (named.empty() ? replaced(flags, " ", ", ") : named) +
                                       " it is another model than its weights are: "));
  }
}

TEST_CASE("from_matrix: of more tensors than are stored no more are listed than show it", "[from]") {
  ModelConfig model =
      model_of_flags("--experts=4096 --layers=1000 --hidden=1 --expert-hidden=1 --heads=1 --kv-heads=1");
  REQUIRE(hf_tensors(HfArchitecture::qwen3_moe, model, 24).size() <= 24);
  // And where the tensors are as many they are all there.
  model = model_of_flags("--experts=4 --layers=2");
  const size_t n = hf_tensors(HfArchitecture::qwen3_moe, model).size();
  REQUIRE(hf_tensors(HfArchitecture::qwen3_moe, model, n + 1).size() == n);
}

TEST_CASE("from_matrix: a model that an architecture has no form for is refused when its tensors are listed",
          "[from]") {
  const std::string flags = "--experts=3 --qk-norm=off --attn-bias=all --ffn-bias=on --router-bias=on --ffn=";
  REQUIRE(!hf_tensors(HfArchitecture::gpt_oss, model_of_flags(flags + "swiglu-clamped")).empty());
  CHECK_REFUSED(hf_tensors(HfArchitecture::gpt_oss, model_of_flags(flags + "relu2")), "experts.gate_up_proj",
                "not each of them is one of the model's");
}

TEST_CASE("from_matrix: tensors that leave an element out, or have one twice, are found", "[from]") {
  const ModelConfig model = model_of_flags("--experts=3 --layers=2 --qk-norm=off --hidden=12 --attn-bias=all");
  const Model whole(model);
  const std::vector<HfTensor> right = hf_tensors(HfArchitecture::gpt_oss, model);
  const auto with = [&](const std::function<void(std::vector<HfTensor>&)>& change) {
    std::vector<HfTensor> changed = right;
    change(changed);
    return refusal([&] { check_tiling(changed, whole.weights.list()); });
  };
  REQUIRE(with([](auto&) {}) == "");
  // In the tensor of all experts' gates and ups, whose columns stand in turns.
  const auto found = std::ranges::find(right, "model.layers.1.mlp.experts.gate_up_proj", &HfTensor::name);
  const size_t at = size_t(found - right.begin());
  for (size_t axis = 0; axis < 3; axis++) {
    REQUIRE(contains(with([&](auto& t) { t[at].pieces[1].axes[axis].count--; }), right[at].name));
    REQUIRE(contains(with([&](auto& t) { t[at].pieces[1].axes[axis].theirs++; }), right[at].name));
    REQUIRE(contains(with([&](auto& t) { t[at].pieces[1].axes[axis].ours++; }), "up_proj.weight"));
  }
  REQUIRE(contains(with([&](auto& t) { t[at].pieces[1].theirs = 0; }), right[at].name));
  REQUIRE(contains(with([&](auto& t) { t[at].pieces[1].theirs = 2; }), right[at].name));
  REQUIRE(contains(with([&](auto& t) { t[at].pieces[1].ours = 1; }), "up_proj.weight"));
  REQUIRE(contains(with([&](auto& t) { t[at].pieces[1].parameter = t[at].pieces[0].parameter; }), "gate_proj.weight"));
  REQUIRE(contains(with([&](auto& t) { t[at].pieces.pop_back(); }), right[at].name));
  REQUIRE(contains(with([&](auto& t) { t[at].pieces.push_back(t[at].pieces[0]); }), right[at].name));
  REQUIRE(contains(with([&](auto& t) { t[at].shape[2]++; }), right[at].name));
  REQUIRE(contains(with([&](auto& t) { t.erase(t.begin() + ptrdiff_t(at)); }), "gate_proj.weight"));
  REQUIRE(contains(with([&](auto& t) { t.push_back({"x", {1}, {{"x", 0, 0, {}}}}); }), "parameters"));
}
