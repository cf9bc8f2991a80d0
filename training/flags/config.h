// config: what a run can be told. The flags that set it: training/flags/flags.cpp.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dataloader/loader.h"
#include "core/mma.h"
#include "kernels/adamw.h"
#include "kernels/quantize.h"
#include "layers/model_config.h"
#include "training/flags/schedule.h"

namespace gated {

class ModelSource;  // training/flags/model_source.h

enum class DeviceChoice { automatic, cpu, cuda, emulated };
// What moves bytes between ranks; automatic: NCCL where every rank has a GPU of its own and this build has NCCL.
enum class TransportChoice { automatic, mpi, nccl };
enum class Probe { none, retrieval };
enum class ExportAs { automatic, architecture, code };

// So many steps, or so many seconds; the other is 0.
struct Interval {
  size_t steps, seconds;
};

// The largest divisor of the micro-batches of a step that is at most 8.
inline size_t usual_slices(size_t micro_batches) {
  size_t slices = 8;
  while (micro_batches % slices) slices--;
  return slices;
}

struct Config {
  std::string preset = "tiny";
  std::string from;                           // a model that is there already: its flags and weights
  std::shared_ptr<const ModelSource> source;  // that model, once the command line is read; null without --from
  std::string gpu_left_out;  // where make could have built a half for GPUs and did not: the command that adds it
  size_t params = 0;         // FFN width so that the model has about as many parameters; 0: --ffn-hidden
  std::string match_params;  // or as many as the model of these flags
  bool describe = false;
  std::vector<std::string> typed;                      // the words of the command line
  std::map<std::string, std::string> program_version;  // training/process/version.h

  ModelConfig model;
  size_t vocab = 0;  // 0: the data's
  DataOptions data;
  uint64_t seed = 1337;

  size_t steps = 600, batch = 16, micro_batches = 1;
  size_t slices = 0;  // 0: usual_slices(micro_batches), which is never named otherwise
  size_t slice_count() const { return slices ? slices : usual_slices(micro_batches); }
  Schedule schedule;
  AdamWHyperparameters adamw = {0.0f, 0.9f, 0.95f, 1e-8f, 0.1f};  // the rate comes from the schedule
  float clip = 1.0f;

  size_t log_every = 1, val_every = 100, val_batches = 10, measure_every = 0, check_ranks_every = 0;
  size_t sample_tokens = 300, top_k = 0;
  double temperature = 0.8, top_p = 1;
  bool generate = false;
  std::string prompt, prompt_ids;
  size_t tokens = 0, samples = 1;
  std::string tokenizer;  // a tokenizer.json, or a folder that has one
  std::string out;
  Interval save_every = {100, 0};
  size_t keep = 2;
  bool resume = false, change_precision = false, evaluate = false;
  std::string export_folder;  // where the model goes as a folder of transformers; empty: nowhere
  bool export_bf16 = false;
  ExportAs export_as = ExportAs::automatic;
  std::optional<QuantizedFormat> quantize;  // of a second look at the model, after --evaluate
  double smoothquant = 0;                   // 0: none
  Probe probe = Probe::none;
  std::string choices;  // a file of questions with endings

  MmaArithmetic mma = MmaArithmetic::hopper;
  bool cublas = false, tf32 = false;  // products of matrices by cuBLASLt, in TF32

  DeviceChoice device = DeviceChoice::automatic;
  bool graph = false;
  size_t threads = 0;
  TransportChoice transport = TransportChoice::automatic;
  size_t ranks = 1;  // of --describe
};

}  // namespace gated
