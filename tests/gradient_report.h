// gradient_report: what `make gradcheck` prints: one line a gradient of a test case, with the largest relative error
// that was found over all the inputs it was checked on.
#pragma once
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"

namespace gated {

class GradientReport {
 public:
  void add(const std::string& test, const std::string& gradient, double error) {
    for (Line& l : lines_)
      if (l.test == test && l.gradient == gradient) {
        l.times++;
        l.largest = std::max(l.largest, error);
        return;
      }
    lines_.push_back({test, gradient, error, 1});
  }
  std::string text(double bound) const {
    std::string text, test;
    for (const Line& l : lines_) {
      if (l.test != test) text += l.test + "\n";
      test = l.test;
      text += format("  %-24s largest relative error %.1e, bound %.0e, on %zu input%s%s\n", l.gradient.c_str(),
                     l.largest, bound, l.times, l.times == 1 ? "" : "s", l.largest <= bound ? "" : ": WRONG");
    }
    return text;
  }

 private:
  struct Line {
    std::string test, gradient;
    double largest;
    size_t times;
  };
  std::vector<Line> lines_;
};

}  // namespace gated
