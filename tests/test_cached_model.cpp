// cached_model: sequences that grow token by token, with a cache, have the logits of a forward over all of their
// tokens, bit for bit: every small model, cut after a first, an odd and many tokens, one sequence and several, windows
// that slide, and chunks of the gated delta rule.
#include "layers/model.h"

#include "tests/harness.h"
#include "tests/refusal.h"
#include "tests/small_models.h"

using namespace gated;

namespace {

// Tokens [begin, end) of every sequence.
std::vector<int> cut(const std::vector<int>& ids, size_t B, size_t begin, size_t end) {
  const size_t T = ids.size() / B;
  std::vector<int> part;
  for (size_t b = 0; b < B; b++)
    for (size_t t = begin; t < end; t++) part.push_back(ids[b * T + t]);
  return part;
}

void begin(Model& model) {
  model.weights.initialise(model.config.init, model.config.layers, 3);
  leave_symmetry(model);
  model.weights_changed();
}

// Sequences, and the logits (B,V) of a forward over all of their tokens up to each.
struct Sequences {
  size_t B, T;
  std::vector<int> ids;
  std::vector<std::vector<float>> logits;  // after 1, 2, ... T tokens; those below `first` are left out

  Sequences(const ModelConfig& config, size_t B, size_t T, size_t first = 1)
      : B(B), T(T), ids(some_ids(B * T, config.vocab, 5)) {
    Context ctx(Device::cpu);
    Model model(config, 1, T, 1, ctx);
    begin(model);
    logits.resize(T);
    for (size_t n = first; n <= T; n++)
      for (size_t b = 0; b < B; b++) {
        const auto begin = ids.begin() + ptrdiff_t(b * T);
        const std::vector<float> row = model.next_token_logits({begin, begin + ptrdiff_t(n)});
        logits[n - 1].insert(logits[n - 1].end(), row.begin(), row.end());
      }
  }
};

// The model reads `first` tokens, and then token by token until there are `end`.
void require_same_logits(Model& model, const Sequences& s, size_t first, size_t end) {
  INFO(first << " tokens at once");
  REQUIRE_BITWISE(s.logits[first - 1], model.read(cut(s.ids, s.B, 0, first)));
  for (size_t t = first; t < end; t++) {
    INFO("token " << t);
    REQUIRE_BITWISE(s.logits[t], model.read(cut(s.ids, s.B, t, t + 1)));
  }
  REQUIRE(model.tokens_read() == end);
}

// The same with a model of its own.
void require_same_logits(const ModelConfig& config, const Sequences& s, size_t first, size_t end, Context& ctx) {
  INFO("B " << s.B << ", " << name_of(ctx.device));
  Model model(config, Generation{s.B, first, end}, ctx);
  begin(model);
  require_same_logits(model, s, first, end);
}

}  // namespace

TEST_CASE("cached_model: with a cache every model has the logits of its whole forward, bit for bit",
          "[cached_model][bitwise]") {
  Context cpu(Device::cpu), kernels(kernel_device);
  for (const std::string& line : small_models()) {
    INFO(line);
    const ModelConfig config = small_model(line);
    const Sequences three(config, 3, 9), one(config, 1, 9);
    require_same_logits(config, three, 1, 9, cpu);
    require_same_logits(config, one, 5, 9, cpu);
    require_same_logits(config, three, 4, 5, kernels);
  }
}

TEST_CASE("cached_model: chunks of the gated delta rule are cut anywhere", "[cached_model][bitwise]") {
  Context cpu(Device::cpu), kernels(kernel_device);
  const ModelConfig config = small_model(
      "--mixer=hybrid --attention-every=2 --linear-key-dim=6 --linear-value-dim=5 --delta=chunk --context=140");
  const Sequences s(config, 2, 140);
  for (const size_t first : {1, 63, 64, 65, 100, 128}) require_same_logits(config, s, first, 140, cpu);
  require_same_logits(config, s, 63, 65, kernels);
}

TEST_CASE("cached_model: so has one of bf16, read in front of the edge of a tile or chunk, on it and after it",
          "[cached_model][bitwise]") {
  Context cpu(Device::cpu), kernels(kernel_device);
  const std::vector<std::string> lines = fixture_lines("bf16_models.txt", {""});
  for (const size_t i : {0, 1, 6, 10, 12, 13}) {
    INFO(lines[i]);
    const ModelConfig config = small_model("--precision=bf16 --head-dim=16 --context=70 " + lines[i]);
    const bool linear = i == 12;
    const Sequences s(config, 1, 70, linear ? 1 : 60);
    for (const size_t first : linear ? std::vector<size_t>{1, 60, 64, 66} : std::vector<size_t>{60})
      require_same_logits(config, s, first, 70, cpu);
    require_same_logits(config, s, 60, 70, kernels);
  }
}

TEST_CASE("cached_model: new sequences see nothing of those before", "[cached_model]") {
  Context ctx(Device::cpu);
  for (const char* line : {"--window=3", "--mixer=gated-delta", "--mixer=gated-delta --delta=chunk"}) {
    INFO(line);
    const ModelConfig config = small_model(line);
    const Sequences two(config, 2, 9), one(config, 1, 7);
    Model model(config, Generation{2, 4, 9}, ctx);
    begin(model);
    require_same_logits(model, two, 4, 9);
    model.begin_sequences(1, 7);
    require_same_logits(model, one, 2, 7);
    model.begin_sequences(2, 9);
    require_same_logits(model, two, 1, 9);
  }
}

TEST_CASE("cached_model: after the context, windows and states go on", "[cached_model][bitwise]") {
  Context cpu(Device::cpu), kernels(kernel_device);
  for (const char* line : {"--window=3", "--window=3 --attn-score=sigmoid --position=none",
                           "--mixer=gated-delta --linear-key-dim=6 --linear-value-dim=5",
                           "--mixer=hybrid --attention-every=2 --window=4 --linear-key-dim=6 --linear-value-dim=5"}) {
    INFO(line);
    ModelConfig config = small_model(line);
    config.context = 5;
    ModelConfig longer = config;
    longer.context = 14;
    longer.trained_context = config.context;  // of which sigmoid's bias is made
    const Sequences sequences(longer, 2, 14, 4);
    for (Context* ctx : {&cpu, &kernels}) require_same_logits(config, sequences, 4, 14, *ctx);
  }
}

TEST_CASE("cached_model: a model in training generates in its own memory", "[cached_model]") {
  Context ctx(Device::cpu);
  for (const char* line : {"", "--mixer=hybrid --attention-every=2 --delta=chunk", "--hidden=1 --vocab=2 --kv-heads=4",
                           "--precision=bf16 --head-dim=16"}) {
    INFO(line);
    const ModelConfig config = small_model(line);
    const Sequences sequences(config, 1, 9, 4);
    Model model(config, 4, 9, 1, ctx);
    begin(model);
    const auto before = model.weights.values.download();
    model.begin_sequences(1, 9);
    require_same_logits(model, sequences, 4, 9);
    REQUIRE_BITWISE(before, model.weights.values.download());
  }
}

TEST_CASE("cached_model: a model in training has room for the logits of all its sequences", "[cached_model]") {
  ModelConfig config;
  config.vocab = 20000;  // of whose logits a chunk holds 1024 rows
  Model model(config);
  model.plan(1100, 1);
  size_t rows = 0;
  const auto find = [&](const TensorVisitor::Tensor& t, const auto&) {
    if (t.name == "logits of a chunk") rows = t.shape[0];
  };
  model.activations(TensorVisitor(find, Storage::fp32));
  REQUIRE(rows == 1100);
}

TEST_CASE("cached_model: what a model has no room for is refused", "[cached_model]") {
  Context ctx(Device::cpu);
  const ModelConfig config = small_model("--position=learned");
  Model model(config, Generation{2, 3, 6}, ctx);
  begin(model);
  const auto unread = [&](const std::vector<int>& ids) { return refusal([&] { model.read(ids); }); };
  REQUIRE(contains(unread({1, 2, 3}), "3 tokens for 2 sequences"));
  REQUIRE(contains(unread({}), "0 tokens"));
  REQUIRE(contains(unread(std::vector<int>(8, 1)), "read 4 tokens"));
  REQUIRE(contains(unread({1, 37}), "expected 0 to 36"));
  REQUIRE(unread({1, 2}) == "");
  REQUIRE(contains(unread({1, 2, 3, 4}), "2 tokens at once after 1"));
  for (int t = 1; t < 6; t++) REQUIRE(unread({1, 2}) == "");
  REQUIRE(contains(unread({1, 2}), "after 6, expected 6 in all"));
  REQUIRE_THROWS_AS(model.begin_sequences(1, 10), Error);  // 9 positions were learned
  REQUIRE_THROWS_AS(model.begin_sequences(0, 1), Error);
}

TEST_CASE("cached_model: the memory announced is what is allocated", "[cached_model]") {
  Context ctx(Device::cpu);
  for (const std::string& line : small_models()) {
    INFO(line);
    const ModelConfig config = small_model(line);
    const Generation g = {2, 5, 9};
    const Model model(config, g, ctx);
    const size_t angles = config.rope_tables() * g.tokens * config.rope_dims();
    const size_t tables = g.B * g.prompt * sizeof(int) + angles * sizeof(float);
    const size_t weights = model.weights.values.size() * sizeof(float);
    REQUIRE(model.weights.grads.size() == 0);
    REQUIRE(Model(config).generation_bytes(g) == model.allocated_bytes() + weights + tables);
  }
}
