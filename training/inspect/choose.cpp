#include "training/inspect/choose.h"

#include <algorithm>

#include "training/inspect/inspection.h"

namespace gated {

namespace {

// A context and one ending, as a row of a batch.
struct EndingRow {
  size_t question, ending;
  std::vector<int> tokens;
  size_t first;  // position whose loss is that of the ending's first token
};

class LossReader final : public Inspector {
 public:
  explicit LossReader(Device device) : device_(device) {}
  bool looks_into_blocks() const override { return false; }
  void losses(const LossView& view) override {
    const OnHost losses(device_, view.losses, view.B * view.T);
    all.assign(losses.begin(), losses.end());
  }
  std::vector<float> all;

 private:
  Device device_;
};

// The losses of up to B rows, which are padded to the longest: what stands after a token changes nothing before it.
void add_losses(const std::vector<EndingRow>& rows, Model& model, Device device, EndingLosses& losses) {
  size_t T = 0;
  for (const EndingRow& row : rows) T = std::max(T, row.tokens.size() - 1);
  std::vector<int> ids(rows.size() * T), targets(ids.size());
  for (size_t b = 0; b < rows.size(); b++) {
    const std::vector<int>& tokens = rows[b].tokens;
    std::copy(tokens.begin(), tokens.end() - 1, ids.begin() + std::ptrdiff_t(b * T));
    std::copy(tokens.begin() + 1, tokens.end(), targets.begin() + std::ptrdiff_t(b * T));
  }
  model.loss({ids, targets, rows.size(), T});
  LossReader reader(device);
  model.inspect(reader);
  for (size_t b = 0; b < rows.size(); b++)
    for (size_t t = rows[b].first; t + 1 < rows[b].tokens.size(); t++)
      losses.sums[rows[b].question][rows[b].ending] += double(reader.all[b * T + t]);
}

size_t smallest(const std::vector<double>& values) {
  return size_t(std::min_element(values.begin(), values.end()) - values.begin());
}

}  // namespace

EndingLosses ending_losses(const std::vector<ChoiceQuestion>& questions, Model& model, size_t B, size_t T,
                           Device device) {
  EndingLosses losses;
  std::vector<EndingRow> rows;
  for (size_t q = 0; q < questions.size(); q++) {
    losses.sums.emplace_back(questions[q].endings.size());
    for (size_t e = 0; e < questions[q].endings.size(); e++) {
      const std::vector<int32_t>&context = questions[q].context, &ending = questions[q].endings[e];
      require(ending.size() <= T, "--choices: question %zu has an ending of %zu tokens, but --context=%zu", q,
              ending.size(), T);
      const size_t seen = std::min(context.size(), T + 1 - ending.size());
      if (seen < context.size()) losses.shortened++;
      EndingRow row = {q, e, {context.end() - std::ptrdiff_t(seen), context.end()}, seen - 1};
      row.tokens.insert(row.tokens.end(), ending.begin(), ending.end());
      rows.push_back(std::move(row));
      if (rows.size() < B) continue;
      add_losses(rows, model, device, losses);
      rows.clear();
    }
  }
  if (!rows.empty()) add_losses(rows, model, device, losses);
  return losses;
}

Choices choose(const std::vector<ChoiceQuestion>& questions, const EndingLosses& losses) {
  Choices c = {questions.size(), 0, 0, losses.shortened, 0};
  for (size_t q = 0; q < questions.size(); q++) {
    const std::vector<double>& sums = losses.sums[q];
    std::vector<double> means;
    for (size_t e = 0; e < sums.size(); e++) means.push_back(sums[e] / double(questions[q].endings[e].size()));
    c.right_by_mean += smallest(means) == questions[q].right;
    c.right_by_sum += smallest(sums) == questions[q].right;
    c.chance += 1 / double(sums.size());
  }
  c.chance /= double(questions.size());
  return c;
}

std::string choices_text(const Choices& c) {
  const auto share = [&](size_t right) { return 100 * double(right) / double(c.questions); };
  std::string text = format(
      "choices    %.2f %% of %zu questions right by the mean loss of an ending's tokens,\n           %.2f %% by their "
      "sum; by chance %.1f %%\n",
      share(c.right_by_mean), c.questions, share(c.right_by_sum), 100 * c.chance);
  if (c.shortened > 0)
    text += format("           (the context of %zu endings lost its front: with them it is longer than --context)\n",
                   c.shortened);
  return text;
}

}  // namespace gated
