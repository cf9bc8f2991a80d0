// recall: the language is as it is described, a probe holds its statement once and where it should, and the table of
// retrieval counts what an oracle, a guesser and a model answer.
#include "dataloader/recall.h"

#include <map>
#include <set>

#include "tests/catch.h"
#include "tests/tokens.h"
#include "training/inspect/retrieval.h"

using namespace gated;

namespace {

constexpr int32_t asks = Recall::values, states = Recall::values + Recall::keys,
                  fillers = states + Recall::keys * Recall::values;

bool is_question(int32_t token) {
  return token >= asks && token < states;
}
bool is_statement(int32_t token) {
  return token >= states && token < fillers;
}
int32_t key_of(int32_t token) {
  return is_question(token) ? token - asks : (token - states) / int32_t(Recall::values);
}
int32_t stated_value(int32_t token) {
  return (token - states) % int32_t(Recall::values);
}

// Reads the sequence: what does its last statement of the key that is asked for say?
int32_t oracle(const std::vector<int32_t>& tokens) {
  for (size_t t = tokens.size(); t-- > 0;)
    if (is_statement(tokens[t]) && key_of(tokens[t]) == key_of(tokens.back())) return stated_value(tokens[t]);
  return -1;
}

}  // namespace

TEST_CASE("recall: after a question stands what every statement of its key says", "[recall]") {
  const Recall task(5, 0);
  const size_t T = 600, n = 40;
  std::map<std::string, size_t> kinds;
  std::set<std::map<int32_t, int32_t>> languages;
  size_t choices = 0;
  std::vector<size_t> asked(Recall::keys), said(Recall::values), filled(task.vocab());
  for (size_t i = 0; i < n; i++) {
    const std::vector<int32_t> tokens = sequence_of(task, i, T);
    REQUIRE(tokens[0] == task.bos());
    std::map<int32_t, int32_t> value;
    for (size_t t = 1; t <= T; t++) {
      INFO("sequence " << i << ", token " << t);
      const int32_t token = tokens[t];
      REQUIRE((token >= 0 && token < task.bos()));
      const bool answers = is_question(tokens[t - 1]);
      REQUIRE((token < asks) == answers);
      if (answers) {
        REQUIRE(value.insert({key_of(tokens[t - 1]), token}).first->second == token);
        said[size_t(token)]++;
        continue;
      }
      choices++;
      if (is_statement(token))
        REQUIRE(value.insert({key_of(token), stated_value(token)}).first->second == stated_value(token));
      if (is_question(token)) asked[size_t(key_of(token))]++;
      if (token >= fillers) filled[size_t(token)]++;
      kinds[is_question(token) ? "question" : is_statement(token) ? "statement" : "filler"]++;
    }
    REQUIRE(value.size() == Recall::keys);
    languages.insert(value);
  }
  REQUIRE(languages.size() == n);  // 8^8 there are
  // Shares within five standard deviations.
  auto near = [&](double count, double of, double p) {
    return std::fabs(count - p * of) < 5 * std::sqrt(of * p * (1 - p));
  };
  REQUIRE(near(double(kinds["question"]), double(choices), 0.5));
  REQUIRE(near(double(kinds["statement"]), double(choices), 0.125));
  for (const size_t count : asked) REQUIRE(near(double(count), double(kinds["question"]), 1.0 / Recall::keys));
  for (size_t v = 0; v < Recall::values; v++) REQUIRE(said[v] > 0);
  for (int32_t f = fillers; f < task.bos(); f++)
    REQUIRE(near(double(filled[size_t(f)]), double(kinds["filler"]), 1.0 / double(task.bos() - fillers)));
}

TEST_CASE("recall: a sequence depends on seed, split and index only", "[recall]") {
  const auto expected = sequence_of(Recall(5, 0), 7, 100);
  REQUIRE(sequence_of(Recall(5, 0), 7, 100) == expected);
  const auto longer = sequence_of(Recall(5, 0), 7, 130);
  REQUIRE(std::equal(expected.begin(), expected.end(), longer.begin()));
  REQUIRE(sequence_of(Recall(5, 0), 8, 100) != expected);
  REQUIRE(sequence_of(Recall(5, 1), 7, 100) != expected);
  REQUIRE(sequence_of(Recall(6, 0), 7, 100) != expected);

  const Data data = open_data({.data = "recall", .seed = 5});
  REQUIRE(sequence_of(*data.train, 7, 100) == expected);
  REQUIRE(sequence_of(*data.val, 7, 100) == sequence_of(Recall(5, 1), 7, 100));
  REQUIRE((data.train->vocab() == 128 && data.val->sequences(100) == 1024));
  REQUIRE(open_data({.data = "recall", .vocab = 82, .seed = 5}).train->vocab() == 82);
  REQUIRE_THROWS_WITH(open_data({.data = "recall", .vocab = 81}),
                      "--vocab=81: recall needs 82 or more: values, questions, statements, a filler, BOS");
  std::set<std::string> hashes = {Recall(5, 0).content_hash(), Recall(5, 1).content_hash(), Recall(6, 0).content_hash(),
                                  Recall(5, 0, 129).content_hash()};
  REQUIRE(hashes.size() == 4);
  REQUIRE(Recall(5, 0).content_hash() == Recall(5, 0).content_hash());
}

TEST_CASE("recall: a probe states its key once, where it is told to, and ends in the question", "[recall]") {
  const Recall task(5, 0);
  for (const size_t length : {3, 4, 5, 60, 200})
    for (const double depth : {0.0, 0.3, 0.5, 1.0})
      for (size_t n = 0; n < 30; n++) {
        INFO(length << " tokens, depth " << depth << ", probe " << n);
        const Recall::Probe p = task.probe(n, length, depth);
        REQUIRE((p.tokens.size() == length && p.tokens[0] == task.bos()));
        REQUIRE(is_question(p.tokens.back()));
        const int32_t key = key_of(p.tokens.back());
        REQUIRE(p.planted == size_t(std::lround(1 + depth * double(length - 3))));
        REQUIRE(p.tokens[p.planted] == Recall::statement(size_t(key), size_t(p.answer)));
        for (size_t t = 1; t + 1 < length; t++) {
          REQUIRE((p.tokens[t] < asks) == is_question(p.tokens[t - 1]));
          if (t != p.planted && p.tokens[t] >= asks && p.tokens[t] < fillers) REQUIRE(key_of(p.tokens[t]) != key);
        }
        REQUIRE(oracle(p.tokens) == p.answer);
        REQUIRE(key_of(task.probe(n, 90, 0.1).tokens.back()) == key);
      }
  REQUIRE_THROWS_WITH(task.probe(0, 2, 0.5),
                      "recall: a probe of 2 tokens at depth 0.5, expected 3 or more and a depth of 0 to 1");
}

TEST_CASE("retrieval: an oracle is right always, a guesser by chance, a short-sighted one near the end", "[recall]") {
  const Recall task(5, 0);
  auto lengths = [](const Retrieval& r) {
    std::vector<size_t> all;
    for (const auto& row : r.rows) all.push_back(row.length);
    return all;
  };
  const Retrieval right = retrieval(task, 16, 100, oracle);
  REQUIRE(lengths(right) == std::vector<size_t>{16, 32, 64, 100});
  REQUIRE(lengths(retrieval(task, 16, 12, oracle)) == std::vector<size_t>{12});
  REQUIRE(lengths(retrieval(task, 16, 16, oracle)) == std::vector<size_t>{16});
  REQUIRE(right.chance == 0.125);
  for (const auto& row : right.rows) REQUIRE(row.correct == std::vector<double>(5, 1.0));

  // A guesser that always says the same: each probe is right with chance 1/8, and all depths have the same answers.
  for (const auto& row : retrieval(task, 16, 100, [](const std::vector<int32_t>&) { return 3; }).rows)
    for (const double share : row.correct) {
      REQUIRE(share == row.correct[0]);
      REQUIRE(std::fabs(share - 0.125) < 4 * std::sqrt(0.125 * 0.875 / Retrieval::probes));
    }

  // Sees the last 20 tokens.
  const Retrieval near = retrieval(task, 100, 100, [](const std::vector<int32_t>& tokens) {
    return oracle({tokens.end() - 20, tokens.end()});
  });
  REQUIRE(near.rows[0].correct == std::vector<double>{0, 0, 0, 0, 1});
  REQUIRE(retrieval_text(near) ==
          "retrieval  % of 100 answers right, by tokens and depth of the statement; by chance 12.5\n"
          "           tokens     0 %    25 %    50 %    75 %   100 %    mean\n"
          "              100       0       0       0       0     100    20.0\n");
}
