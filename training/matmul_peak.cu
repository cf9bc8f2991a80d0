#include "training/matmul_peak.h"

#include <algorithm>

#include "core/clock.h"
#include "core/launch.cuh"
#include "core/philox.cuh"
#include "kernels/matmul.h"
#include "kernels/bf16/matmul_bf16.h"
#include "kernels/bf16/round.h"

namespace gated {

// By one engine: our kernels, or on a GPU cuBLASLt.
static double best_rate(Storage storage, MatmulEngine engine, const Context& run) {
  Context ctx(run.device);  // with scratch of its own: the run's is planned for the run
  ctx.mma_arithmetic = run.mma_arithmetic;
  if (engine == MatmulEngine::cublas) ctx.use_cublas(run.tf32());
  // Large enough to fill a GPU, as far as it is one of many multiprocessors.
  const size_t n = ctx.device == Device::cuda ? std::min<size_t>(4096, 256 * multiprocessors()) : 768;
  // Random numbers: a GPU that multiplies zeros draws less power and clocks higher than it will in training.
  std::vector<float> random(n * n);
#pragma omp parallel for
  for (size_t i = 0; i < random.size(); i++) random[i] = uniform_float(1, stream_of(Purpose::synthetic, 0), i) - 0.5f;
  const Buffer<float> a(ctx.device, random), b(ctx.device, random), c(ctx.device, n * n);
  const bool narrow = storage == Storage::bf16;
  const Buffer<bf16> a16(ctx.device, narrow ? n * n : 0), b16(ctx.device, a16.size());
  round_to_bf16(a16.data(), a.data(), a16.size(), ctx);
  round_to_bf16(b16.data(), b.data(), b16.size(), ctx);
  double best = 0;
  const double begin = seconds_now();
  // At most 20 products, and 0.2 s; fewer where five in a row were no faster than the best by half a percent.
  for (int i = 0, slow = 0; i < 3 || (i < 20 && slow < 5 && seconds_now() - begin < 0.2); i++) {
    ctx.synchronize();
    const double start = seconds_now();
    if (narrow)
      matmul_bf16(c.data(), a16.data(), b16.data(), n, n, n, Layout::nt, Accumulate::no, ctx);
    else
      matmul(c.data(), a.data(), b.data(), n, n, n, Layout::nt, Accumulate::no, ctx);
    ctx.synchronize();
    const double rate = 2.0 * double(n) * double(n) * double(n) / (seconds_now() - start);
    slow = rate > 1.005 * best ? 0 : slow + 1;
    best = std::max(best, rate);
  }
  return best;
}

double measured_matmul_peak(Storage storage, Context& ctx) {
  if (ctx.device == Device::emulated) return 0;
  const double ours = best_rate(storage, MatmulEngine::exact, ctx);
  if (ctx.device != Device::cuda) return ours;
  try {
    return std::max(ours, best_rate(storage, MatmulEngine::cublas, ctx));
  } catch (const Error&) {  // a library that cannot be used is no reason to refuse a run that does not use it
    return ours;
  }
}

}  // namespace gated
