// model_source: a model that is there already, which --from names: its flags, and its weights.
//
//   --from=FOLDER             a run of ./train: its newest checkpoint
//   --from=FILE.safetensors   one checkpoint of a run
//   --from=FOLDER             config.json and safetensors of Hugging Face's transformers (training/models/hf_model.h)
//   --from=config.json        the first of these alone, for --describe
//
// Its flags stand where those of --preset do: flags that are typed beside it change them. What changes the model has to
// leave it one that the weights are: every stored tensor is used once, every element of every parameter is written
// once, and sizes and the place of a gate are what they were. A run that starts from it starts at step 1, with new
// moments of AdamW. tests/test_from.cpp, tests/test_from_matrix.cpp
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "layers/model_config.h"

namespace gated {

class ModelSource {
 public:
  virtual ~ModelSource() = default;

  // The file that the weights lie in, or the folder.
  virtual const std::string& path() const = 0;
  // What it is made of, as words of a command line.
  virtual const std::vector<std::string>& flags() const = 0;
  // Tokens of a sequence that it was trained with.
  virtual size_t context() const = 0;
  virtual bool has_weights() const { return true; }
  // May a model have fewer learned positions than it? Then it has the first of them.
  virtual bool gives_first_positions() const { return false; }
  // Refuses a model that the weights are not, naming the flags that changed it: before there is memory for it. Says
  // notes() on stderr.
  void require_fit(const ModelConfig& config) const;
  // Lines that say which flags make another function of the same weights, and what is left out.
  std::string notes(const ModelConfig& config) const;
  // Writes the parameters of a model, which is `config` and fits, at their offsets in `flat`.
  void read(const ModelConfig& config, const std::vector<Parameter>& list, float* flat) const;

 protected:
  // Refuses weights that are not those of the model, naming a tensor.
  virtual void check(const ModelConfig& config, const std::vector<Parameter>& list) const = 0;
  // Writes them. Refuses a number that is none.
  virtual void copy(const ModelConfig& config, const std::vector<Parameter>& list, float* flat) const = 0;
  // What of it no model here has, in words; "" where that is nothing.
  virtual std::string left_out() const { return ""; }

 private:
  void check_all(const ModelConfig& config) const;
  void refuse_others(const ModelConfig& config) const;
  std::string changed_flags(const ModelConfig& config) const;
  bool fits(const ModelConfig& config) const;
};

// A model that is not trained but looked at, or that generates, has to know the context of its training: sigmoid scores
// and YaRN are made of it. The one at `path` was trained with sequences of `context` tokens. Refuses positions that
// were not learned; and fewer than were, unless the first of them are there to be had.
void set_trained_context(ModelConfig& model, size_t context, const std::string& path, bool gives_first_positions);

// Opens what --from names and checks what can be checked without the weights' shapes. Refuses what is no model.
std::shared_ptr<const ModelSource> open_model_source(const std::string& path);

}  // namespace gated
