#include "training/matmul_peak.h"

#include <algorithm>
#include <chrono>

#include "kernels/matmul.h"

namespace gated {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double measured_matmul_peak(Context& ctx) {
  if (ctx.device == Device::emulated) return 0;
  const size_t n = ctx.device == Device::cuda ? 4096 : 768;
  Buffer<float> a(ctx.device, n * n), b(ctx.device, n * n), c(ctx.device, n * n);
  set_zero(a.data(), n * n, ctx);
  set_zero(b.data(), n * n, ctx);
  double best = 0;
  const double begin = seconds_now();
  for (int i = 0; i < 3 || (i < 20 && seconds_now() - begin < 0.2); i++) {
    ctx.synchronize();
    const double start = seconds_now();
    matmul(c.data(), a.data(), b.data(), n, n, n, Layout::nt, Accumulate::no, ctx);
    ctx.synchronize();
    best = std::max(best, 2.0 * double(n) * double(n) * double(n) / (seconds_now() - start));
  }
  return best;
}

}  // namespace gated
