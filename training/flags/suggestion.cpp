#include "training/flags/suggestion.h"

#include <algorithm>
#include <map>

namespace gated {

// What hands that know other trainers type, and what it is here.
static const std::map<std::string, const char*> names_elsewhere = {{"--learning-rate", "--lr"},
                                                                   {"--batch-size", "--batch"},
                                                                   {"--epochs", "--steps"},
                                                                   {"--num-epochs", "--steps"},
                                                                   {"--num-train-epochs", "--steps"},
                                                                   {"--max-steps", "--steps"},
                                                                   {"--max-iters", "--steps"},
                                                                   {"--iterations", "--steps"},
                                                                   {"--warmup-steps", "--warmup"},
                                                                   {"--warmup-iters", "--warmup"},
                                                                   {"--block-size", "--context"},
                                                                   {"--seq-len", "--context"},
                                                                   {"--sequence-length", "--context"},
                                                                   {"--n-layer", "--layers"},
                                                                   {"--num-layers", "--layers"},
                                                                   {"--n-head", "--heads"},
                                                                   {"--num-heads", "--heads"},
                                                                   {"--n-embd", "--hidden"},
                                                                   {"--d-model", "--hidden"},
                                                                   {"--hidden-size", "--hidden"},
                                                                   {"--grad-clip", "--clip"},
                                                                   {"--max-grad-norm", "--clip"},
                                                                   {"--gradient-accumulation-steps", "--micro-batches"},
                                                                   {"--grad-accum", "--micro-batches"},
                                                                   {"--dtype", "--precision"},
                                                                   {"--out-dir", "--out"},
                                                                   {"--output-dir", "--out"},
                                                                   {"--save-steps", "--save-every"},
                                                                   {"--eval-interval", "--val-every"},
                                                                   {"--eval-steps", "--val-every"},
                                                                   {"--init-from", "--from"},
                                                                   {"--checkpoint", "--from"},
                                                                   {"--vocab-size", "--vocab"},
                                                                   {"--max-new-tokens", "--tokens"},
                                                                   {"--num-samples", "--samples"},
                                                                   {"--dataset", "--data"},
                                                                   // values
                                                                   {"gpu", "cuda"},
                                                                   {"bfloat16", "bf16"},
                                                                   {"float32", "fp32"},
                                                                   {"float", "fp32"}};

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
  if (const auto other = names_elsewhere.find(typed); other != names_elsewhere.end()) meant = other->second;
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
