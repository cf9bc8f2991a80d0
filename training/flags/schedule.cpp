#include "training/flags/schedule.h"

#include "core/host_math.h"

namespace gated {

float Schedule::at(size_t step) const {
  if (step <= warmup) return float(double(peak) * double(step) / double(warmup));
  const double pi = 3.14159265358979323846;
  const double progress = double(step - warmup) / double(steps - warmup);
  return float(final + (double(peak) - final) * 0.5 * (1.0 + host_cos(pi * progress)));
}

}  // namespace gated
