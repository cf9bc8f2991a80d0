// schedule: linear warm-up, then a cosine from the peak to the final learning rate.
//   step s of S (from 1), warm-up W:   s <= W:  peak * s / W
//                                      else:    final + (peak - final) * (1 + cos(pi (s - W) / (S - W))) / 2
// In double with the project's own cosine, so that every machine has the same rate to the last bit.
// Where --warmup is not given, W is the default below, but at most half of S. README.md has what it was chosen on.
// --lr --min-lr --warmup | tests/test_flags.cpp
#pragma once
#include <cstddef>

namespace gated {

struct Schedule {
  float peak = 3e-3f, final = 3e-4f;
  size_t warmup = 200, steps = 600;

  float at(size_t step) const;
};

}  // namespace gated
