#include "training/text/generate.h"

#include <omp.h>

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "core/clock.h"
#include "dataloader/files.h"
#include "dataloader/loader.h"
#include "dataloader/text.h"
#include "dataloader/utf8.h"
#include "training/text/find_tokenizer.h"
#include "training/process/interrupt.h"
#include "training/flags/model_source.h"

namespace gated {

// ---- the loop

bool grows_forever(const ModelConfig& c) {
  const size_t window = c.attention.window;
  const bool windows = window > 0 && window <= c.context && c.window_layers == WindowLayers::all;
  return c.position != Position::learned && (windows || !c.has_attention());
}

void continue_sequences(std::vector<std::vector<int>>& sequences, size_t count, Model& model, const Sampler& sampler,
                        const std::function<bool()>& each) {
  const ModelConfig& c = model.config;
  const size_t B = sequences.size(), total = sequences[0].size() + count;
  const size_t room = grows_forever(c) ? total : std::min(total, c.context);
  const auto newest = [&](size_t n) {
    std::vector<int> ids;
    for (const std::vector<int>& s : sequences) ids.insert(ids.end(), s.end() - ptrdiff_t(n), s.end());
    return ids;
  };
  for (size_t i = 0; i < count; i++) {
    const size_t length = sequences[0].size();
    std::vector<float> logits;
    if (i > 0 && model.tokens_read() < room) {
      logits = model.read(newest(1));
    } else {
      model.begin_sequences(B, room);
      logits = model.read(newest(std::min(length, room)));
    }
    for (size_t b = 0; b < B; b++) {
      const auto row = logits.begin() + ptrdiff_t(b * c.vocab);
      sequences[b].push_back(sampler.draw({row, row + ptrdiff_t(c.vocab)}, length, b));
    }
    if (!each()) return;
  }
}

// ---- text and tokens

bool reads_bytes(const Config& c) {
  return c.model.vocab == 256 && !is_synthetic(c.data.data) && !c.data.data.ends_with(".bin");
}

static std::vector<int> tokens_of(const std::string& text, const Tokenizer& tokenizer, size_t vocab) {
  std::vector<int32_t> tokens;
  try {
    tokens = tokenizer.encode_prompt(text);
  } catch (const Error& e) {
    fail("--prompt: %s", e.what());
  }
  for (const int32_t token : tokens)
    require(size_t(token) < vocab, "--prompt: its token %d is none of the model, which has %zu", token, vocab);
  return tokens;
}

std::vector<int> prompt_tokens(const Config& c, const Tokenizer* tokenizer) {
  std::vector<int> tokens;
  if (!c.prompt.empty() && tokenizer) {
    tokens = tokens_of(c.prompt, *tokenizer, c.model.vocab);
  } else if (!c.prompt.empty()) {
    require(reads_bytes(c),
            "--prompt: the model reads tokens of a vocabulary of %zu, not bytes: name its tokenizer, --tokenizer=FILE, "
            "or give their numbers, --prompt-tokens=IDS",
            c.model.vocab);
    for (const unsigned char byte : c.prompt) tokens.push_back(byte);
  }
  const std::vector<std::string> ids = c.prompt_ids.empty() ? std::vector<std::string>{} : between_commas(c.prompt_ids);
  for (const std::string& word : ids) {
    size_t id = 0;
    const auto read = std::from_chars(word.data(), word.data() + word.size(), id);
    require(read.ec == std::errc{} && read.ptr == word.data() + word.size() && id < c.model.vocab,
            "--prompt-tokens: token %zu is \"%.20s\", expected a number from 0 to %zu", tokens.size(), word.c_str(),
            c.model.vocab - 1);
    tokens.push_back(int(id));
  }
  require(!tokens.empty(),
          "--generate: the prompt is empty: give --prompt=TEXT or --prompt-tokens=IDS, at least one token");
  return tokens;
}

void TokenPrinter::add(int token) {
  if (tokenizer_)
    open_ += tokenizer_->decode_one(token, first_);
  else if (bytes_ && token >= 0 && token < 256)
    open_ += char(token);
  else
    open_ += format(bytes_ ? "<%d>" : first_ ? "%d" : " %d", token);
  first_ = false;
  print_open(false);
}

// What is whole; with `all` also the beginning of a character whose end has not come.
void TokenPrinter::print_open(bool all) {
  size_t whole = 0;
  while (whole < open_.size()) {
    const Utf8Character c = utf8_front(std::string_view(open_).substr(whole));
    if (c.cut && !all) break;
    whole += std::max<size_t>(c.length, 1);
  }
  if (whole == 0) return;
  print_(printable(open_.substr(0, whole)));
  open_.erase(0, whole);
}

std::string text_of(const std::vector<int>& tokens, bool bytes, const Tokenizer* tokenizer) {
  std::string text;
  TokenPrinter printer(
      bytes, [&](const std::string& piece) { text += piece; }, tokenizer);
  for (const int token : tokens) printer.add(token);
  printer.end();
  return text;
}

// ---- --generate

// How many tokens to write. Refused before the first of them where the context has no room.
static size_t tokens_to_write(const Config& c, size_t prompt) {
  constexpr size_t unasked = 100;
  const size_t context = c.model.context;
  if (grows_forever(c.model)) return c.tokens ? c.tokens : unasked;
  if (prompt < context && c.tokens <= context - prompt)
    return c.tokens ? c.tokens : std::min(unasked, context - prompt);
  const char* const remedy = c.model.position == Position::learned ? "" : "; a larger --context may be asked for";
  require(prompt < context, "--context=%zu: the prompt has %zu tokens already: shorten it%s", context, prompt, remedy);
  fail("--tokens=%zu after a prompt of %zu: the model has a context of %zu, so at most --tokens=%zu%s", c.tokens,
       prompt, context, context - prompt, remedy);
}

int generate(Config& c, Context& ctx) {
  set_trained_context(c.model, c.source->context(), c.source->path(), c.source->gives_first_positions());
  c.source->require_fit(c.model);
  const std::optional<Tokenizer> found = find_tokenizer(c);
  const Tokenizer* tokenizer = found ? &*found : nullptr;
  const std::vector<int> prompt = prompt_tokens(c, tokenizer);
  const size_t tokens = tokens_to_write(c, prompt.size());

  const Generation shape = {c.samples, prompt.size(), prompt.size() + tokens};
  const size_t bytes = Model(c.model).generation_bytes(shape);
  try {
    require_memory(ctx.device, double(bytes));
  } catch (const Error& e) {
    fail("%s, or fewer --samples (now %zu) or --tokens (now %zu)", e.what(), c.samples, tokens);
  }
  Model model(c.model, shape, ctx);
  fill_from_host(model.weights.values, [&](float* host) { c.source->read(c.model, model.weights.list(), host); });
  model.weights_changed();
  fprintf(stderr, "%s: %zu parameters, %.0f MiB (weights, cache, activations), %s%s\n", c.source->path().c_str(),
          model.weights.total(), double(bytes) / 1048576, name_of(ctx.device),
          ctx.device == Device::cpu ? format(", %d threads", omp_get_max_threads()).c_str() : "");

  // One sample is printed as it comes, several one below the other when all are there.
  const bool text = reads_bytes(c);
  TokenPrinter printer(
      text, [](const std::string& piece) { fputs(piece.c_str(), stdout); }, tokenizer);
  std::vector<std::vector<int>> samples(c.samples, prompt);
  const bool streams = samples.size() == 1;
  for (size_t i = 0; streams && i < prompt.size(); i++) printer.add(prompt[i]);
  fflush(stdout);

  double begin = seconds_now(), seconds = 0;
  size_t written = 0;
  const Sampler sampler = {c.temperature, c.top_k, c.seed, c.top_p};
  std::optional<CatchInterrupts> catching(std::in_place);
  continue_sequences(samples, tokens, model, sampler, [&] {
    if (++written == 1) begin = seconds_now();  // the prompt is read
    seconds = seconds_now() - begin;
    if (streams) printer.add(samples[0].back());
    fflush(stdout);
    return !interrupted();
  });
  catching.reset();
  if (streams) {
    printer.end();
    printf("\n");
  }
  for (size_t b = 0; !streams && b < samples.size(); b++)
    printf("%ssample %zu\n%s\n", b ? "\n" : "", b + 1, text_of(samples[b], text, tokenizer).c_str());
  fflush(stdout);
  if (written > 1) fprintf(stderr, "%.1f tokens/s\n", double((written - 1) * samples.size()) / seconds);
  if (written == tokens) return 0;
  fprintf(stderr, "interrupted after token %zu of %zu\n", written, tokens);
  return 128 + interrupted();
}

}  // namespace gated
