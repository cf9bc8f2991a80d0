// retrieval: does a model find in a sequence what it is asked for, by the length of the sequence and by where it
// stands? The probes are those of dataloader/recall.h.
// tests/test_recall.cpp
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "dataloader/recall.h"

namespace gated {

struct Retrieval {
  static constexpr size_t probes = 100;  // at each length and depth
  static constexpr double depths[] = {0, 0.25, 0.5, 0.75, 1};

  double chance;
  struct Row {
    size_t length;
    std::vector<double> correct;  // share of the probes at each depth
  };
  std::vector<Row> rows;
};

// Which token comes next?
using Answer = std::function<int32_t(const std::vector<int32_t>&)>;

// Lengths: `trained`, twice that and so on, up to `longest`.
Retrieval retrieval(const Recall& task, size_t trained, size_t longest, const Answer& answer);

std::string retrieval_text(const Retrieval& r);

}  // namespace gated
