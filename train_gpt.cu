// train_gpt: the program. Reads top-down: flags -> data -> model -> loop -> sample and fingerprint.
//
// Compiled by g++ for the CPU and the emulator, and, where nvcc is found, once more by nvcc for the GPU. main()
// stands in the g++ half; --device decides which half runs.
#include <omp.h>
#include <signal.h>

#include <cstdio>

#include "training/command_line.h"
#include "training/describe.h"
#include "training/match_params.h"
#include "training/progress.h"
#include "training/sampler.h"
#include "training/threads.h"
#include "training/trainer.cuh"

namespace gated {

// What a checkpoint remembers of the run beside its tensors: every flag that shapes the result, and the data.
std::map<std::string, std::string> run_metadata(Config& config, const Data& data) {
  std::map<std::string, std::string> metadata;
  for (const Flag& f : list_flags(config))
    if (f.shapes_the_result()) metadata["flag" + f.name] = f.get();
  metadata["data"] = data.train->description();
  return metadata;
}

// Takes up the newest checkpoint of --out. Every flag that shapes the result must be as it was, and the data as large: its
// bytes are not compared.
void resume(Trainer& trainer, const std::map<std::string, std::string>& now, const Data& data,
            const std::string& folder) {
  std::optional<Checkpoint> checkpoint = find_latest(folder);
  if (!checkpoint) {
    printf("resume: %s holds no checkpoint yet: starting at step 1\n", folder.c_str());
    return;
  }
  Config defaults;  // a flag that is younger than the checkpoint was at its default
  const auto before = run_metadata(defaults, data);
  for (const auto& [key, value] : now) {
    const std::string then = checkpoint->state_or(key, before.at(key));
    const std::string what = key.starts_with("flag") ? key.substr(4) : key;
    require(then == value, "%s: was made with %s=%s, this run has %s: resume with the same, or start in a new --out",
            checkpoint->path().c_str(), what.c_str(), then.c_str(), value.c_str());
  }
  trainer.load(*checkpoint);
  printf("resume: step %zu of %s\n", trainer.steps_done(), checkpoint->path().c_str());
}

void print_sample(Trainer& trainer, const Config& config, const Data& data) {
  if (config.sample_tokens == 0) return;
  const Sampler sampler = {config.temperature, config.top_k, config.seed};
  // The prompt: one token, the first of the validation data.
  std::vector<int> tokens(2);
  (data.val ? data.val : data.train)->sequence(0, 1, tokens.data());
  tokens.pop_back();
  while (tokens.size() < config.sample_tokens) {
    const size_t seen = std::min(tokens.size(), config.model.context);
    const std::vector<float> logits =
        trainer.model.next_token_logits({tokens.end() - std::ptrdiff_t(seen), tokens.end()});
    tokens.push_back(sampler.draw(logits, tokens.size()));
  }
  printf("\nsample (temperature %g, seed %llu):\n%s\n", config.temperature, (unsigned long long)config.seed,
         decode(tokens, data.train->is_text()).c_str());
}

// --params and --match-params: the FFN's width from the number of parameters.
void choose_ffn_width(Config& config) {
  const size_t wanted =
      config.match_params.empty() ? config.params : total_parameters(with_flags(config, config.match_params));
  if (wanted == 0) return;
  const MatchedWidth m = match_ffn_width(config.model, wanted);
  config.model.ffn.F = m.ffn_hidden;
  printf("parameters --ffn-hidden=%zu gives %zu, %zu %s than the %zu asked for\n", m.ffn_hidden, m.total,
         m.total > wanted ? m.total - wanted : wanted - m.total, m.total > wanted ? "more" : "fewer", wanted);
}

// The whole run on one device.
void train(Config& config, Device device) {
  if (config.threads) omp_set_num_threads(int(config.threads));
  Context ctx(device);

  const Data data = open_data(config.data);
  config.model.vocab = data.train->vocab();
  choose_ffn_width(config);
  const TokenLoader loader(data, {config.batch, config.model.context, config.micro_batches}, config.seed);

  if (!config.out.empty()) prepare_checkpoint_folder(config.out);
  Trainer trainer(config, loader, ctx);
  const auto metadata = run_metadata(config, data);
  require(config.out.empty() || config.resume || !find_latest(config.out),
          "--out=%s: holds a run's checkpoints already: add --resume to go on with it, or name another folder",
          config.out.c_str());
  if (config.resume) resume(trainer, metadata, data, config.out);

  Progress progress(config, data, trainer, ctx);
  progress.header();
  auto validate = [&] {
    if (data.val) progress.validation(trainer.steps_done(), trainer.validate(config.val_batches));
  };
  while (trainer.steps_done() < config.steps) {
    const StepResult result = trainer.step();
    const size_t step = trainer.steps_done();
    progress.step(step, result);
    const bool last = step == config.steps;
    if (last || (config.val_every && step % config.val_every == 0)) validate();
    if (!config.out.empty() && (last || step % config.save_every == 0)) {
      progress.flush();
      trainer.save(metadata);
      progress.saved();
    }
  }
  progress.finish();
  print_sample(trainer, config, data);
  printf("fingerprint of the weights: %s\n", trainer.fingerprint().c_str());
}

}  // namespace gated

// ---- which half runs

#ifdef __CUDACC__

bool cuda_answers() {
  int devices = 0;
  const bool found = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
  cudaGetLastError();
  return found;
}
// The nvcc half reads the same command line again: its Config is a type of its own.
void train_on_cuda(int argc, char** argv) {
  gated::Config config;
  gated::parse_command_line(config, argc, argv);
  gated::train(config, gated::Device::cuda);
}

#else

#ifdef WITH_CUDA
bool cuda_answers();
void train_on_cuda(int argc, char** argv);
#else
static bool cuda_answers() {
  return false;
}
static void train_on_cuda(int, char**) {
  gated::fail("--device=cuda: this build has no CUDA: install nvcc, then make");
}
#endif

int main(int argc, char** argv) try {
  using gated::DeviceChoice;
  gated::limit_spinning(argv);
  signal(SIGXFSZ, SIG_IGN);  // a file-size limit is a write that fails with a message, not a death
  gated::Config config;
  if (!gated::parse_command_line(config, argc, argv)) return 0;
  if (config.describe) {
    config.model.vocab = gated::open_data(config.data).train->vocab();
    gated::choose_ffn_width(config);
    fputs(gated::describe(config).c_str(), stdout);
    return 0;
  }
  const bool gpu = cuda_answers();
  gated::require(
      gpu || config.device != DeviceChoice::cuda,
      "--device=cuda: no GPU answers here: use --device=cpu, or --device=emulated to run the kernels without one");
  if (config.device == DeviceChoice::cuda || (config.device == DeviceChoice::automatic && gpu)) {
    train_on_cuda(argc, argv);
  } else {
    gated::train(config, config.device == DeviceChoice::emulated ? gated::Device::emulated : gated::Device::cpu);
  }
  return 0;
} catch (const std::bad_alloc&) {
  fprintf(stderr, "error: out of memory: use a smaller --batch, --context or model\n");
  return 1;
} catch (const std::exception& e) {
  fprintf(stderr, "error: %s\n", e.what());
  return 1;
}

#endif
