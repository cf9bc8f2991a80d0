// schedule: the learning rate of every step: a linear warm-up to the peak, then one of two ways down to the final rate.
//   step s of S (from 1), warm-up W, decay D:     s <= W:  peak * s / W;      else
//     cosine   final + (peak - final) * (1 + cos(pi (s-W) / (S-W))) / 2    (Loshchilov & Hutter 2017, arXiv 1608.03983)
//     wsd      peak while s <= S - D; then peak + (final - peak) * (s - (S - D)) / D       warm-up, stable, decay
//                                                                                   (Hu et al. 2024, arXiv 2404.06395)
// A cosine depends on S at every step. With wsd S says only where the decay begins: a run can be made longer from
// there. In double with the project's own cosine, so that every machine has the same rate to the last bit.
// Where --warmup is not given, W is the default below, but at most half of S (docs/train.md has what it was chosen on);
// D is a fifth of S.
// --schedule --lr --min-lr --warmup --decay | tests/test_flags.cpp, tests/test_cli.cpp
#pragma once
#include <cstddef>

namespace gated {

enum class ScheduleKind { cosine, wsd };

struct Schedule {
  float peak = 3e-3f, final = 3e-4f;
  size_t warmup = 200, steps = 600;
  ScheduleKind kind = ScheduleKind::cosine;
  size_t decay = 0;  // of wsd, at most steps - warmup; 0: a fifth of steps

  float at(size_t step) const;
  // The last step before the decay of wsd; 0 for the cosine.
  size_t stable_until() const { return kind == ScheduleKind::wsd ? steps - decay_steps() : 0; }
  size_t decay_steps() const;
};

// The peak for a model that has learned already, where nobody names one: at 3e-3, with which one begins, it would
// forget. Small models take 3e-4, wide ones less: 5.2e-5 at 768, 1e-5 at 4096. docs/train.md has what it was chosen on.
float rate_of_trained(size_t hidden);

// How many steps, from the first on, have the same rate in both. No more than `most` are looked at.
size_t steps_in_common(const Schedule& a, const Schedule& b, size_t most);

}  // namespace gated
