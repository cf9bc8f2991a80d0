#include "training/inspect/retrieval.h"

#include <algorithm>

namespace gated {

Retrieval retrieval(const Recall& task, size_t trained, size_t longest, const Answer& answer) {
  Retrieval r = {1 / double(Recall::values), {}};
  for (size_t length = std::min(std::max(trained, Recall::shortest_probe), longest);;
       length = std::min(2 * length, longest)) {
    Retrieval::Row row = {length, {}};
    for (const double depth : Retrieval::depths) {
      size_t correct = 0;
      for (size_t n = 0; n < Retrieval::probes; n++) {
        const Recall::Probe probe = task.probe(n, length, depth);
        correct += answer(probe.tokens) == probe.answer;
      }
      row.correct.push_back(double(correct) / double(Retrieval::probes));
    }
    r.rows.push_back(row);
    if (length == longest) return r;
  }
}

std::string retrieval_text(const Retrieval& r) {
  std::string text = format(
      "retrieval  %% of %zu answers right, by tokens and depth of the statement; by chance %.1f\n           tokens",
      Retrieval::probes, 100 * r.chance);
  for (const double depth : Retrieval::depths) text += format("%6.0f %%", 100 * depth);
  text += "    mean\n";
  for (const Retrieval::Row& row : r.rows) {
    text += format("           %6zu", row.length);
    double sum = 0;
    for (const double share : row.correct) {
      text += format("%8.0f", 100 * share);
      sum += share;
    }
    text += format("%8.1f\n", 100 * sum / double(row.correct.size()));
  }
  return text;
}

}  // namespace gated
