// grouped_cases: rows of experts, for the tests of products whose rows are in groups.
#pragma once
#include "kernels/grouped_matmul.h"
#include "tests/harness.h"

namespace gated {

struct GroupedCase {
  std::vector<int> rows;  // of each expert
  size_t N, K;
};

struct Groups : GroupedShape {
  std::vector<int> start = {0};  // where the rows of each expert begin
  explicit Groups(const GroupedCase& c) : GroupedShape{0, c.rows.size(), c.N, c.K} {
    for (int n : c.rows) start.push_back(start.back() + n);
    M = size_t(start.back());
  }
  size_t begin(size_t e) const { return size_t(start[e]); }
  size_t rows(size_t e) const { return size_t(start[e + 1] - start[e]); }
  Buffer<int> on(Context& ctx) const { return Buffer<int>(ctx.device, start); }
};

// `value` where what belongs to an expert without rows stands.
inline std::vector<float> without_rows(const Groups& g, std::vector<float> values, float value) {
  const size_t each = values.size() / g.E;
  for (size_t e = 0; e < g.E; e++)
    if (g.rows(e) == 0) std::fill_n(values.begin() + ptrdiff_t(e * each), each, value);
  return values;
}

// test(Groups) for each.
template <class List, class Test>
void for_every_case(const List& cases, Test test) {
  for (const GroupedCase& c : cases) {
    std::string text = format("N %zu K %zu, rows", c.N, c.K);
    for (int n : c.rows) text += format(" %d", n);
    INFO(text);
    test(Groups(c));
  }
}

}  // namespace gated
