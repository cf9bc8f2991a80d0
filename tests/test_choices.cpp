// choices: what a file of questions holds and which files are refused; the losses of endings beside sums of log-softmax
// in double, on the CPU and on kernels; and which ending is chosen. The program and scripts/tokenize.py, as a user runs
// them.
#include <cmath>

#include "core/philox.cuh"
#include "dataloader/tokenizer.h"
#include "tests/fixtures.h"
#include "tests/refusal.h"
#include "tests/script.h"
#include "tests/small_models.h"
#include "training/inspect/choose.h"

using namespace gated;

namespace {

std::string bytes_of(const std::vector<uint32_t>& numbers, size_t width) {
  std::string s;
  for (const uint32_t n : numbers) s.append(reinterpret_cast<const char*>(&n), width);
  return s;
}

// A file of these questions, as llm.c lays it out.
std::vector<uint32_t> numbers_of(const std::vector<ChoiceQuestion>& questions, size_t width) {
  std::vector<uint32_t> all;
  for (size_t q = 0; q < questions.size(); q++) {
    std::vector<uint32_t> one = {width == 2 ? 65535 : ~0u, 0, uint32_t(q), uint32_t(questions[q].right),
                                 uint32_t(questions[q].endings.size())};
    const auto add = [&](const std::vector<int32_t>& tokens) {
      one.push_back(uint32_t(tokens.size()));
      one.insert(one.end(), tokens.begin(), tokens.end());
    };
    add(questions[q].context);
    for (const auto& ending : questions[q].endings) add(ending);
    one[1] = uint32_t(one.size() * width);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

std::string file_of(const std::vector<uint32_t>& numbers, uint32_t count, size_t width = 2, uint32_t magic = 20240522) {
  std::string s = bytes_of({magic, width == 2 ? 1u : 2u, count, 0}, 4);
  s.resize(1024);
  return s + bytes_of(numbers, width);
}

std::vector<ChoiceQuestion> parse(const std::string& bytes, size_t vocab = 50257) {
  return parse_choices({reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()}, vocab, "x.bin");
}

const std::vector<ChoiceQuestion> two = {{{5, 6, 7}, {{1}, {2, 3}, {4, 50256, 0}}, 1}, {{9}, {{8, 8}, {7}}, 0}};

// Questions about a vocabulary, drawn evenly.
std::vector<ChoiceQuestion> random_questions(size_t count, size_t vocab, size_t longest_context) {
  uint64_t index = 0;
  const auto draw = [&](size_t n) { return size_t(random_below(3, stream_of(Purpose::sample, 0), index++, n)); };
  const auto tokens = [&](size_t n) {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < n; i++) ids.push_back(int32_t(draw(vocab)));
    return ids;
  };
  std::vector<ChoiceQuestion> questions;
  for (size_t q = 0; q < count; q++) {
    ChoiceQuestion question = {tokens(1 + draw(longest_context)), {}, 0};
    for (size_t e = 2 + draw(3); e > 0; e--) question.endings.push_back(tokens(1 + draw(3)));
    question.right = draw(question.endings.size());
    questions.push_back(question);
  }
  return questions;
}

}  // namespace

TEST_CASE("choices: questions come through, of 16 and of 32 bits", "[choices]") {
  for (const size_t width : {2, 4}) {
    const std::vector<uint32_t> numbers = numbers_of(two, width);
    REQUIRE(numbers_of(parse(file_of(numbers, 2, width)), width) == numbers);
  }
  const std::vector<ChoiceQuestion> wide = {{{70000}, {{1}, {151935}}, 1}};
  REQUIRE(parse(file_of(numbers_of(wide, 4), 1, 4), 151936)[0].endings == wide[0].endings);
}

TEST_CASE("choices: a file that is damaged is refused by question and number", "[choices]") {
  const std::vector<uint32_t> good = numbers_of(two, 2);
  const auto refused = [&](const std::string& bytes, const std::string& why) {
    const std::string said = refusal([&] { parse(bytes); });
    REQUIRE(one_line(said, {why}));
    REQUIRE(said.starts_with("x.bin: "));
  };
  const auto changed = [&](size_t at, uint32_t to) {
    std::vector<uint32_t> bad = good;
    bad.at(at) = to;
    return file_of(bad, 2);
  };
  const std::string whole = file_of(good, 2);
  refused("", "0 bytes, expected a header of 1024");
  refused(whole.substr(0, 1023), "1023 bytes");
  refused(file_of(good, 2, 2, 20240520), "magic number 20240520, expected 20240522");
  refused(file_of(good, 0), "announces 0 questions");
  refused(file_of(good, 1u << 31), "announces -2147483648 questions");
  refused(file_of(good, 1), "bytes after the 1 questions");
  refused(file_of(good, 3), "question 2 ends inside its head");
  for (size_t n = 1; n <= 2 * good.size(); n++) refused(whole.substr(0, whole.size() - n), "truncated");
  refused(whole + "x", "bytes after the 2 questions");
  for (const auto& [at, to, why] : {std::tuple(0, 1, ": the number in front is 1, expected 65535"),
                                    {1, 2, ": its length in bytes is 2, expected"},
                                    {2, 1, ": its number is 1, expected 0"},
                                    {3, 3, ": ending 3 is the right one, but there are 3"},
                                    {4, 1, " has 1 endings, expected two or more"},
                                    {5, 0, " has an empty context"},
                                    {9, 0, " has an empty ending"},
                                    {6, 50257, " has the token 50257, but the model has 50257 tokens"}})
    refused(changed(size_t(at), uint32_t(to)), std::string("question 0") + why);
  std::string version = whole;
  version[4] = 3;
  refused(version, "version 3, expected 1 (16-bit tokens) or 2 (32-bit tokens)");
}

TEST_CASE("choices: an ending's loss is the sum of its tokens' -log softmax, whatever stands beside it",
          "[choices][bitwise]") {
  for (const char* flags :
       {"", "--norm=gated --norm-rank=3 --attn=g1", "--norm=layernorm --position=learned --ffn=gelu --qk-norm=off",
        "--mixer=hybrid --attention-every=2 --linear-key-dim=5 --linear-value-dim=7", "--experts=4 --window=3"}) {
    INFO(flags);
    const ModelConfig config = small_model(flags);
    const std::vector<ChoiceQuestion> questions = random_questions(7, config.vocab, 11);
    std::vector<std::vector<double>> first;
    on_both_devices([&](Context& ctx) {
      for (const size_t B : {5, 1}) {
        Model model(config, B, config.context, 11, ctx);
        const EndingLosses losses = ending_losses(questions, model, B, config.context, ctx.device);
        if (first.empty()) first = losses.sums;
        REQUIRE(losses.sums == first);  // every bit
        REQUIRE(losses.shortened > 0);
      }
    });
    // The logits after each token of context and ending, one after another.
    Context ctx(Device::cpu);
    Model model(config, 1, config.context, 11, ctx);
    for (size_t q = 0; q < questions.size(); q++)
      for (size_t e = 0; e < questions[q].endings.size(); e++) {
        const std::vector<int32_t>& ending = questions[q].endings[e];
        std::vector<int> seen(questions[q].context.begin(), questions[q].context.end());
        const size_t kept = std::min(seen.size(), config.context + 1 - ending.size());
        seen.erase(seen.begin(), seen.end() - std::ptrdiff_t(kept));
        double sum = 0;
        for (const int32_t token : ending) {
          const std::vector<float> logits = model.next_token_logits(seen);
          double total = 0;
          for (const float logit : logits) total += std::exp(double(logit));
          sum += std::log(total) - double(logits[size_t(token)]);
          seen.push_back(token);
        }
        INFO("question " << q << ", ending " << e);
        REQUIRE(std::fabs(sum - first[q][e]) < 1e-5 * sum);
      }
  }
}

TEST_CASE("choices: the smallest mean and the smallest sum are chosen, and the right ones counted", "[choices]") {
  // The means of the first are 3, 2, 2.5: the second; its sum is the largest. Of equal ones the first is taken.
  const std::vector<ChoiceQuestion> questions = {
      {{1}, {{1}, {1, 2}, {3, 4}}, 1}, {{1}, {{1}, {1}}, 0}, {{1}, {{1}, {2}}, 1}};
  const Choices c = choose(questions, {{{3, 4, 5}, {2, 2}, {1, 1}}, 0});
  REQUIRE((c.questions == 3 && c.right_by_mean == 2 && c.right_by_sum == 1));
  REQUIRE(c.chance == (1 / 3.0 + 0.5 + 0.5) / 3);
  REQUIRE(choices_text(c) ==
          "choices    66.67 % of 3 questions right by the mean loss of an ending's tokens,\n"
          "           33.33 % by their sum; by chance 44.4 %\n");
  REQUIRE(contains(choices_text(choose(questions, {{{3, 4, 5}, {2, 2}, {1, 1}}, 4})), "context of 4 endings lost"));

  Context ctx(Device::cpu);
  Model model(small_model(), 1, 9, 1, ctx);
  const std::vector<ChoiceQuestion> long_ending = {{{1}, {{1}, std::vector<int32_t>(10, 1)}, 0}};
  REQUIRE_THROWS_WITH(ending_losses(long_ending, model, 1, 9, Device::cpu),
                      "--choices: question 0 has an ending of 10 tokens, but --context=9");
}

TEST_CASE_METHOD(Folder, "choices: --choices asks a run, and what it cannot ask is said in a line", "[choices]") {
  const std::string train = "{repo}/train " + small_run_flags + "--data=bigram-backcopy --context=16 --val-batches=2 ";
  done(train + "--steps=3 --warmup=1 --sample-tokens=0 --out=run");
  const std::vector<ChoiceQuestion> questions = random_questions(40, 64, 20);
  write("q.bin", file_of(numbers_of(questions, 2), 40));
  const std::string evaluate = train + "--evaluate --out=run --choices=";
  const auto choices_said = [&](const std::string& command) { return between(done(command), "\nchoices    ", "%\n"); };
  const std::string said = choices_said(evaluate + "q.bin");
  REQUIRE(contains(said, "of 40 questions right"));
  REQUIRE(choices_said(evaluate + "q.bin --batch=3 --device=emulated") == said);
  REQUIRE(choices_said("{repo}/train --evaluate --from=run --val-batches=1 --choices=q.bin") == said);
  REQUIRE(count(done(evaluate + "q.bin --quantize=nvfp4-w4a4"), "\nchoices    ") == 2);

  require_refused(run(evaluate + "absent.bin"), "absent.bin: cannot open: No such file");
  write("high.bin", file_of(numbers_of({{{1}, {{2}, {64}}, 0}}, 2), 1));
  require_refused(run(evaluate + "high.bin"), "high.bin: question 0 has the token 64, but the model has 64");
  require_refused(run(train + "--choices=q.bin"), "--choices needs --evaluate");
}

// (What it refuses: tests/test_tokenize_script.cpp.)
TEST_CASE_METHOD(Folder, "choices: scripts/tokenize.py writes the questions of a file", "[choices]") {
  NEEDS("python3 -c 'import tokenizers'", "python3 with tokenizers (python3 -m pip install tokenizers)",
        "scripts/tokenize.py")
  const auto fixtures = read_fixtures("tokenizers.json");
  write("q.json", R"([{"context": "The model reads", "endings": ["the text.", "Größe", "it"], "label": 1},
                        {"context": "a", "endings": ["b c", "d"], "label": "0"}])");
  write("q.jsonl", R"({"ind": 4, "ctx": "The model reads", "endings": ["the text.", "Größe", "it"], "label": 1}

{"ctx": "a", "endings": ["b c", "d"], "label": 0}
)");
  for (const char* kind : {"gpt2", "llama3", "gemma"}) {
    write("tokenizer.json", fixtures[kind]["tokenizer"].dump());
    const Tokenizer t = read_tokenizer(path.string());
    for (const char* from : {"q.json", "q.jsonl"}) {
      fs::remove(path / "q.bin");
      REQUIRE(done(format("{repo}/scripts/tokenize.py --choices=%s --tokenizer=. --out=q.bin", from)) ==
              "2 questions, 16 bits a token\n");
      const std::vector<ChoiceQuestion> q = parse(read("q.bin"), t.vocab());
      REQUIRE(q.size() == 2);
      REQUIRE((q[0].right == 1 && q[1].right == 0));
      REQUIRE(q[0].context == t.encode_prompt("The model reads"));
      REQUIRE((q[0].endings.size() == 3 && q[1].endings.size() == 2));
      REQUIRE(t.decode(q[0].endings[1]) == " Größe");
      REQUIRE(q[1].endings[0] == t.encode(" b c"));
    }
  }
}
