#include "training/describe.h"

#include <map>
#include <set>

#include "layers/model.h"
#include "training/flags/flags.h"
#include "training/memory.h"
#include "training/optimizer.cuh"
#include "training/flags/model_source.h"
#include "training/checkpoint/safetensors.h"
#include "training/process/terminal.h"

namespace gated {

std::string with_commas(size_t n) {
  std::string text = std::to_string(n);
  for (size_t i = text.size(); i > 3; i -= 3) text.insert(i - 3, 1, ',');
  return text;
}

// The part of the model that a parameter belongs to: of "model.layers.3.mlp.up_proj.weight" it is "mlp".
static std::string part_of(const std::string& name) {
  const size_t layers = name.find(".layers.");
  if (layers == std::string::npos) return name.substr(0, name.find('.', name.find('.') + 1));
  const size_t begin = name.find('.', layers + 8) + 1;
  return name.substr(begin, name.find('.', begin) - begin);
}

static double mib(size_t bytes) {
  return double(bytes) / 1048576.0;
}

std::string source_text(Config& config, size_t width) {
  return wrapped("from       ", config.source->path(), 11, width) +
         wrapped("flags      ", changed_flags_text(config), 11, width) + "\n";
}

// What a rank sends in a step; it gets as much. Of the gradient of a slice all but its own part, each round; of the
// weights its own part, to every other. A rank can compute meanwhile, but for what a backward ends with and a forward
// begins with.
static std::string travels(const Config& config, const Model& model) {
  const size_t R = config.ranks, rounds = config.slice_count() / R;
  const Partition partition(model.weights, R);
  size_t hidden = 0, messages = 0;
  for (size_t i = 0; i < partition.buckets(); i++) {
    if (partition.bucket(i).begin >= model.weights.layer_begins()[0]) hidden += partition.bucket(i).size();
    for (size_t other = 0; other + 1 < R; other++)  // of the last rank, which owns most
      messages += rounds * (partition.part(i, other).size() > 0) + (partition.part(i, R - 1).size() > 0);
  }
  const double whole = double(model.weights.flat_size()) * sizeof(float);
  const Storage storage = config.model.storage;
  const double read = double(model.weights.bytes_of_values(storage, Optimizer::masters(storage, R)));
  const auto line = [](const char* what, double bytes) { return format("  %-58s %31.1f\n", what, bytes / 1048576.0); };
  return format("sent by a rank, MiB a step, of %zu ranks\n", R) +
         line(format("gradients, %zu round%s, to their owners", rounds, rounds == 1 ? "" : "s").c_str(),
              double(rounds) * whole * double(R - 1) / double(R)) +
         line("weights, from their owner, to the others", read * double(R - 1) / double(R)) +
         format("  %-58s %31s\n",
                format("messages, of at most %.0f KiB", double(partition.most_part()) * sizeof(float) / 1024).c_str(),
                with_commas(messages).c_str()) +
         format("  %-58s %30.1f%%\n", "of both, behind compute: all but the embedding",
                100 * double(hidden) / double(model.weights.flat_size()));
}

std::string describe(const Config& config) {
  Model model(config.model);
  const size_t B = config.batch, T = config.model.context, N = B * T;
  model.plan(B, T);
  std::string text = "parameters\n";
  std::map<std::string, size_t> parts;
  for (const Parameter& p : model.weights.list()) {
    text += format("  %-58s %-16s %14s  %s\n", p.name.c_str(), shape_text(p.shape).c_str(), with_commas(p.size).c_str(),
                   p.decay == Decay::yes ? "decays" : "");
    parts[part_of(p.name)] += p.size;
  }
  text += "\nparameters by part\n";
  for (const auto& [part, n] : parts) text += format("  %-58s %31s\n", part.c_str(), with_commas(n).c_str());
  const size_t total = model.weights.total();
  text += format("  %-58s %31s\n", "total", with_commas(total).c_str());
  if (config.model.has_experts())
    text += format("  %-58s %31s\n", "active: of an expert the share of the tokens that it gets",
                   with_commas(model.weights.active()).c_str());

  // A hybrid has two kinds of blocks, and so has a model whose first layers have no experts.
  const ModelConfig& m = config.model;
  const size_t first_attention = m.mixer == MixerKind::hybrid ? m.attention_every - 1 : 0;
  const size_t first_experts = m.has_experts() ? m.dense_layers : 0;
  for (const size_t layer : std::set<size_t>{0, first_attention, first_experts}) {
    text += format(
        "\ndata in %s, for %zu sequences of %zu tokens (%zu tokens); what is cheap --recompute=light does not keep\n",
        layer == 0                 ? "the first block"
        : layer == first_attention ? "the first block with attention"
                                   : "the first block with experts",
        B, T, N);
    model.block_activations(layer, TensorVisitor(
                                       [&](const TensorVisitor::Tensor& t, const auto&) {
                                         text += format("  %-58s %s%s\n", t.name.c_str(), shape_text(t.shape).c_str(),
                                                        t.lifetime == Lifetime::cheap ? "  cheap" : "");
                                       },
                                       m.storage));
  }

  // (auto is the CPU here: the scratch of kernels is asked for with --device=cuda)
  const bool kernels = config.device == DeviceChoice::cuda || config.device == DeviceChoice::emulated;
  const Device device = kernels ? kernel_device : Device::cpu;
  const TrainingMemory memory = training_memory(config.model, B, T, config.slice_count(), device, config.ranks);
  text += format(
      "\nFLOPs a token, training          %.4g (6 x %s weights of matrix products, and what mixes tokens; not what is "
      "computed again)\n",
      model.flops_per_token(T), with_commas(size_t(model.weights.product_flops() / 6)).c_str());
  const char* heading = config.ranks > 1 ? "memory of a\nrank, MiB     " : "memory, MiB   ";
  for (auto [name, bytes] : {std::pair{"weights", memory.weights},
                             {"gradients", memory.gradients},
                             {"optimizer", memory.optimizer},
                             {"activations", memory.activations},
                             {"their gradients", memory.between},
                             {"scratch", memory.scratch},
                             {"tables", memory.tables},
                             {"total", memory.total()}}) {
    text += format("%s%-18s %12.1f\n", heading, name, mib(bytes));
    heading = "              ";
  }
  text += "activations, MiB, with --recompute";
  for (auto [name, recompute] :
       {std::pair{"none", Recompute::none}, {"light", Recompute::light}, {"full", Recompute::full}}) {
    ModelConfig other = m;
    other.recompute = recompute;
    const size_t bytes = training_memory(other, B, T, config.slice_count(), device, config.ranks).activations;
    text += format("%s %s %.1f", recompute == Recompute::none ? "" : ",", name, mib(bytes));
  }
  text += "\n";
  if (config.ranks > 1) text += travels(config, model);
  return text;
}

}  // namespace gated
