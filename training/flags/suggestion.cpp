#include "training/flags/suggestion.h"

#include <algorithm>

namespace gated {

// What it is here, and what hands that know other trainers type for it.
static const std::pair<const char*, std::vector<std::string>> names_elsewhere[] = {
    {"--lr", {"--learning-rate"}},
    {"--batch", {"--batch-size"}},
    {"--steps", {"--epochs", "--num-epochs", "--num-train-epochs", "--max-steps", "--max-iters", "--iterations"}},
    {"--warmup", {"--warmup-steps", "--warmup-iters"}},
    {"--context", {"--block-size", "--seq-len", "--sequence-length"}},
    {"--layers", {"--n-layer", "--num-layers"}},
    {"--heads", {"--n-head", "--num-heads"}},
    {"--hidden", {"--n-embd", "--d-model", "--hidden-size"}},
    {"--clip", {"--grad-clip", "--max-grad-norm"}},
    {"--micro-batches", {"--gradient-accumulation-steps", "--grad-accum"}},
    {"--precision", {"--dtype"}},
    {"--out", {"--out-dir", "--output-dir"}},
    {"--save-every", {"--save-steps"}},
    {"--val-every", {"--eval-interval", "--eval-steps"}},
    {"--from", {"--init-from", "--checkpoint"}},
    {"--vocab", {"--vocab-size"}},
    {"--tokens", {"--max-new-tokens"}},
    {"--samples", {"--num-samples"}},
    {"--data", {"--dataset"}},
    // values
    {"cuda", {"gpu"}},
    {"bf16", {"bfloat16"}},
    {"fp32", {"float32", "float"}}};

// What it takes to make b of a, no letter touched twice: 2 to put one in, to take one out or to change one, 1 to swap
// one with its neighbour (Damerau 1964, with weights: fingers swap more often than they miss).
static size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); i++) d[i][0] = 2 * i;
  for (size_t j = 0; j <= b.size(); j++) d[0][j] = 2 * j;
  for (size_t i = 1; i <= a.size(); i++)
    for (size_t j = 1; j <= b.size(); j++) {
      const size_t changed = a[i - 1] == b[j - 1] ? 0 : 2;
      d[i][j] = std::min({d[i - 1][j] + 2, d[i][j - 1] + 2, d[i - 1][j - 1] + changed});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

std::string suggestion(std::string typed, const std::vector<std::string>& names) {
  std::replace(typed.begin(), typed.end(), '_', '-');
  std::string meant;
  for (const auto& [here, elsewhere] : names_elsewhere)
    if (std::find(elsewhere.begin(), elsewhere.end(), typed) != elsewhere.end()) meant = here;
  if (std::find(names.begin(), names.end(), meant) == names.end()) {
    meant.clear();
    // (the dashes are no part of what was meant)
    size_t least = std::min<size_t>(8, typed.size() - std::min(typed.find_first_not_of('-'), typed.size()));
    for (const std::string& name : names) {
      const size_t distance = edit_distance(typed, name);
      if (distance >= least) continue;
      least = distance;
      meant = name;
    }
  }
  return meant.empty() ? "" : ": did you mean " + meant + "?";
}

}  // namespace gated
