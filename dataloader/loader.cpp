#include "dataloader/loader.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "dataloader/bigram_backcopy.h"
#include "dataloader/files.h"
#include "dataloader/recall.h"
#include "dataloader/shards.h"
#include "dataloader/shuffle.h"
#include "dataloader/text.h"

namespace gated {

static constexpr std::string_view backcopy = "bigram-backcopy";

static bool is_backcopy(const std::string& spec) {
  return spec == backcopy || spec.starts_with("bigram-backcopy:");
}

bool is_synthetic(const std::string& spec) {
  return is_backcopy(spec) || spec == "recall";
}

static std::shared_ptr<const TokenStream> open_backcopy(const std::string& spec, const DataOptions& options,
                                                        uint64_t split) {
  if (spec.size() > backcopy.size()) {
    const TextCorpus text({spec.substr(backcopy.size() + 1)}, 0);
    return std::make_shared<BigramBackcopy>(text_bigrams(text.bytes()), options.seed, split, options.vocab);
  }
  const size_t vocab = options.vocab ? options.vocab : 64;
  require(vocab >= 8 && vocab <= 4096, "--vocab=%zu: bigram-backcopy takes 8 to 4096", vocab);
  return std::make_shared<BigramBackcopy>(random_bigrams(vocab - 1, options.seed), options.seed, split);
}

static std::shared_ptr<const Corpus> open_corpus(const std::string& spec, const DataOptions& options) {
  if (spec == "self")
    return std::make_shared<TextCorpus>(source_files(options.root.empty() ? source_root() : options.root),
                                        options.vocab);
  const std::vector<std::string> paths = named_paths(spec);
  const auto is_shard = [](const std::string& path) { return path.ends_with(".bin"); };
  const size_t shards = size_t(std::count_if(paths.begin(), paths.end(), is_shard));
  require(shards == 0 || shards == paths.size(),
          "data \"%s\": %zu token shards (.bin) among %zu paths: give shards or texts, not both", spec.c_str(), shards,
          paths.size());
  if (shards > 0) return std::make_shared<ShardCorpus>(paths, options.vocab);
  return std::make_shared<TextCorpus>(paths, options.vocab);
}

Data open_data(const DataOptions& options) {
  const auto open = [&](const std::string& spec, uint64_t split) {
    const char* flag = split && !options.val_data.empty() ? "--val-data" : "--data";
    return as_flag_names(flag, spec, [&]() -> std::shared_ptr<const TokenStream> {
      if (is_backcopy(spec)) return open_backcopy(spec, options, split);
      if (spec == "recall")
        return std::make_shared<Recall>(options.seed, split, options.vocab ? options.vocab : Recall::default_vocab);
      return open_corpus(spec, options);
    });
  };
  const double fraction = options.val_fraction;
  require(fraction >= 0 && fraction < 1, "--val-fraction=%g: expected 0 to below 1", fraction);
  if (options.val_data.empty() && fraction == 0) return {open(options.data, 0), nullptr};
  if (!options.val_data.empty() || is_synthetic(options.data)) {
    const std::string& val_data = options.val_data.empty() ? options.data : options.val_data;
    const Data data = {open(options.data, 0), open(val_data, 1)};
    require(data.train->vocab() == data.val->vocab(),
            "--val-data=%s: vocabulary %zu, but --data=%s has %zu: choose sources of one kind", val_data.c_str(),
            data.val->vocab(), options.data.c_str(), data.train->vocab());
    return data;
  }
  const std::shared_ptr<const Corpus> corpus =
      as_flag_names("--data", options.data, [&] { return open_corpus(options.data, options); });
  const size_t val = size_t(double(corpus->size()) * fraction), train = corpus->size() - val;
  return {std::make_shared<CorpusSlice>(corpus, 0, train), std::make_shared<CorpusSlice>(corpus, train, val)};
}

TokenLoader::TokenLoader(Data data, Shape shape, uint64_t seed) : data_(std::move(data)), shape_(shape), seed_(seed) {
  const auto [B, T, M] = shape_;
  require(B > 0 && T > 0 && M > 0,
          "loader: %zu sequences of %zu tokens, %zu micro-batches: expected at least 1 each", B, T, M);
  sequences_ = data_.train->sequences(T);
  require(sequences_ > 0, "training data: --context=%zu needs sequences of %zu tokens, and there is none in %s", T,
          T + 1, data_.train->description().c_str());
  if (!data_.val) return;
  validation_batches_ = data_.val->sequences(T) / B;
  require(validation_batches_ > 0,
          "validation data: %zu sequences of %zu tokens in %s, expected %zu or more: give more data, or a smaller "
          "--batch (now %zu) or --context (now %zu)",
          data_.val->sequences(T), T + 1, data_.val->description().c_str(), B, B, T);
}

void TokenLoader::training_batch(size_t step, size_t micro_batch, int32_t* inputs, int32_t* targets) const {
  const auto [B, T, M] = shape_;
  require(micro_batch < M, "loader: micro-batch %zu of %zu", micro_batch, M);
  const size_t first = (step * M + micro_batch) * B;
  for (size_t b = 0; b < B; ++b) {
    const size_t g = first + b, n = sequences_;
    row(*data_.train, shuffled(g % n, n, seed_, g / n), inputs + b * T, targets + b * T);
  }
}

void TokenLoader::validation_batch(size_t batch, int32_t* inputs, int32_t* targets) const {
  const auto [B, T, M] = shape_;
  require(batch < validation_batches_, "loader: validation batch %zu of %zu", batch, validation_batches_);
  for (size_t b = 0; b < B; ++b) row(*data_.val, batch * B + b, inputs + b * T, targets + b * T);
}

// T+1 tokens, of which the inputs are all but the last and the targets all but the first
void TokenLoader::row(const TokenStream& stream, size_t sequence, int32_t* inputs, int32_t* targets) const {
  const size_t T = shape_.T;
  std::vector<int32_t> tokens(T + 1);
  try {
    stream.sequence(sequence, T, tokens.data());
  } catch (const Error& e) {
    throw UnreadableData(e.what());
  }
  std::copy(tokens.begin(), tokens.end() - 1, inputs);
  std::copy(tokens.begin() + 1, tokens.end(), targets);
}

}  // namespace gated
