// harness: what the test of an operation needs: inputs, the same call on two devices, finite differences.
//
// Ring 1: check_gradient(), the reference in double against central differences.
// Ring 2: on_every_device(), what the program runs against the reference, bit for bit: the CPU's code, and the kernels in
//         several thread orders.
#pragma once
#include <omp.h>

#include <cmath>
#include <cstdlib>
#include <deque>
#include <functional>
#include <vector>

#include "core/context.cuh"
#include "core/shared_memory.h"
#include "core/storage.h"
#include "tests/compare.h"
#include "tests/gradient_report.h"

#ifdef __CUDACC__
namespace simt {
constexpr bool under_asan = false, under_race_shadow = false;
}
#endif

namespace gated {

// n values in [-scale, scale), the same for a seed on every machine. Exact in float and in double.
template <class T>
std::vector<T> random_values(size_t n, uint64_t seed, T scale = T(1)) {
  std::vector<T> v(n);
  uint64_t s = seed * 0x9E3779B97F4A7C15ull + 0x1234567;
  for (T& x : v) {
    s ^= s << 13, s ^= s >> 7, s ^= s << 17;
    x = T((int64_t(s >> 41) - (1 << 22))) / T(1 << 22) * scale;
  }
  return v;
}

// Is there something to run kernels on? A build by nvcc on a machine without a GPU has nothing, which GATED_NEEDS_GPU=1 makes a
// failure: on a GPU that does not answer, no test may pass on the CPU alone.
inline bool kernels_can_run() {
#ifdef __CUDACC__
  int n = 0;
  const cudaError_t answer = cudaGetDeviceCount(&n);
  if (answer == cudaSuccess && n > 0) return true;
  cudaGetLastError();
  const char* needed = getenv("GATED_NEEDS_GPU");
  require(!needed || strcmp(needed, "1"), "GATED_NEEDS_GPU=1: expected a GPU, found none: %s",
          cudaGetErrorString(answer));
  return false;
#else
  return true;
#endif
}

// A number where references, the CPU's code and the kernels of this build can all read it: a stream of dropout.
inline const uint64_t* read_by_all(uint64_t number) {
#ifdef __CUDACC__
  if (kernels_can_run()) {
    uint64_t* p;
    CUDA_CHECK(cudaMallocManaged(&p, sizeof *p));
    *p = number;
    return p;
  }
#endif
  static std::deque<uint64_t> numbers;  // whose addresses stay
  return &numbers.emplace_back(number);
}

// Runs test(ctx) on the CPU with one and with two threads, and on this build's kernel device: on the emulator once in
// each thread order, on a GPU once.
template <class Test>
void on_every_device(Test test) {
  if (!simt::under_race_shadow) {  // which watches the threads of kernels, not those of the CPU
    struct Threads {
      const int before = omp_get_max_threads();
      ~Threads() { omp_set_num_threads(before); }
    } restore_threads;
    for (int threads : {1, 2}) {
      INFO("cpu, " << threads << " threads");
      omp_set_num_threads(threads);
      Context ctx(Device::cpu);
      test(ctx);
    }
  }
#ifndef __CUDACC__
  const simt::Config before = simt::config;
  struct Restore {
    simt::Config c;
    ~Restore() { simt::config = c; }
  } restore{before};
  for (const auto& [order, seed] :
       {std::pair(simt::Order::forward, 1), {simt::Order::reverse, 1}, {simt::Order::priority, 7}}) {
    simt::config.order = order;
    simt::config.seed = seed;
    INFO("emulated, thread order " << int(order) << ", seed " << seed);
    Context ctx(Device::emulated);
    test(ctx);
  }
#else
  if (!kernels_can_run()) return;
  Context ctx(Device::cuda);
  test(ctx);
#endif
}

// Runs what may need `more` shared memory for a block than a consumer's GPU has. False where it does: that GPU has to say so.
template <class F>
bool fits(bool more, F run) {
  try {
    run();
    return true;
  } catch (const Error& e) {
    const std::string limit = std::to_string(shared_limit_consumer) + " in all: this GPU gives a block no more";
    if (!more || std::string(e.what()).find(limit) == std::string::npos) throw;
    return false;
  }
}

// Makes products of bf16 matrices those of such tensor cores. False on a GPU that has others.
inline bool multiplies_as(Context& ctx, MmaArithmetic arithmetic) {
  try {
    ctx.use_mma(arithmetic);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// What numbers are once they are stored.
template <class S>
std::vector<float> stored(std::vector<float> values) {
  for (float& x : values) x = S(x);
  return values;
}

// Device memory shaped for a test: elements past the data must keep their fill, so that a write past the end shows on
// every device. It is NaN past outputs and a large number past inputs: what is computed from one is not the other.
// Values go in and come out as floats, whatever they are stored as.
template <class S>
class GuardedOf {
 public:
  // GATED_GUARD=off: where something else watches the end and sees further, as AddressSanitizer does, reads too.
  static inline const size_t guard = simt::under_asan || getenv("GATED_GUARD") ? 0 : 32;
  static constexpr float behind_inputs = 1e30f;
  GuardedOf(Context& ctx, const std::vector<float>& values) : GuardedOf(ctx, values.size()) {
    std::vector<S> all;
    for (float x : values) all.push_back(S(x));
    all.resize(values.size() + guard, S(behind_inputs));
    buffer_.upload(all);
    input_ = true;
  }
  GuardedOf(Context& ctx, size_t n) : stream_(ctx), n_(n), buffer_(ctx.device, n + guard) {
    const std::vector<S> behind(guard, S(NAN));
    Buffer<S>::copy_to_device(ctx.device, buffer_.data() + n, behind.data(), guard);
  }
  operator S*() const { return buffer_.data(); }
  operator Reals() const { return buffer_.data(); }
  operator ConstReals() const { return buffer_.data(); }
  std::vector<float> download() const {
    stream_.synchronize();
    const std::vector<S> all = buffer_.download();
    for (size_t i = n_; i < all.size(); i++)
      if (input_ ? all[i] != S(behind_inputs) : !std::isnan(float(all[i])))
        fail("wrote past the end: element %zu of %zu", i, n_);
    return std::vector<float>(all.begin(), all.begin() + ptrdiff_t(n_));
  }

 private:
  Context& stream_;
  size_t n_;
  Buffer<S> buffer_;
  bool input_ = false;
};
using Guarded = GuardedOf<float>;

// How far `gradient` is from the central differences of `loss` at x, over the largest entry.
// Fourth order: error ~ h^4 f^(5)/30 + rounding/h.
inline double gradient_error(const std::function<double(const std::vector<double>&)>& loss,
                             const std::vector<double>& x, const std::vector<double>& gradient) {
  const double h = 1e-3;
  std::vector<double> numeric(x.size()), at = x;
  for (size_t i = 0; i < x.size(); i++) {
    auto f = [&](double step) {
      at[i] = x[i] + step;
      return loss(at);
    };
    numeric[i] = (8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h);
    at[i] = x[i];
  }
  return relative_error(numeric, gradient);
}

// `make gradcheck` sets GRADCHECK: what was found is then printed when the program ends.
inline void check_gradient(const char* what, const std::function<double(const std::vector<double>&)>& loss,
                           const std::vector<double>& x, const std::vector<double>& gradient) {
  constexpr double bound = 1e-7;
  static struct Printed : GradientReport {
    ~Printed() {
      if (getenv("GRADCHECK")) fputs(text(bound).c_str(), stdout);
    }
  } report;
  const double error = gradient_error(loss, x, gradient);
  report.add(Catch::getResultCapture().getCurrentTestName(), what, error);
  INFO("gradient of " << what);
  REQUIRE(error <= bound);
}

// sum_i a_i b_i: turns an output into a scalar loss with known gradient `b`.
inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double s = 0;
  for (size_t i = 0; i < a.size(); i++) s += a[i] * b[i];
  return s;
}

}  // namespace gated
