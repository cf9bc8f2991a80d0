#include "training/flags/schedule.h"

#include <algorithm>

#include "core/host_math.h"

namespace gated {

float Schedule::at(size_t step) const {
  if (step <= warmup) return float(double(peak) * double(step) / double(warmup));
  if (kind == ScheduleKind::wsd) {
    if (step <= stable_until()) return peak;
    return float(peak + (double(final) - peak) * double(step - stable_until()) / double(decay_steps()));
  }
  const double pi = 3.14159265358979323846;
  const double progress = double(step - warmup) / double(steps - warmup);
  return float(final + (double(peak) - final) * 0.5 * (1.0 + host_cos(pi * progress)));
}

float rate_of_trained(size_t hidden) {
  return std::min(3e-4f, 0.04f / float(hidden));
}

size_t Schedule::decay_steps() const {
  return decay ? decay : std::min(std::max<size_t>(1, steps / 5), steps - warmup);
}

size_t steps_in_common(const Schedule& a, const Schedule& b, size_t most) {
  size_t step = 0;
  while (step < std::min({a.steps, b.steps, most}) && a.at(step + 1) == b.at(step + 1)) step++;
  return step;
}

}  // namespace gated
