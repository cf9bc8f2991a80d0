// harness: what the test of an operation needs: inputs, the same call on two devices, finite differences.
//
// Ring 1: check_gradients(), the reference in double against central differences.
// Ring 2: a Trial on_every_device(), what the program runs against the reference, bit for bit: the CPU's code, and the
//         kernels in several thread orders.
#pragma once
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/context.cuh"
#include "core/shared_memory.h"
#include "core/storage.h"
#include "tests/compare.h"
#include "tests/gradient_report.h"
#include "tests/numbers.h"
#include "tests/wide_rows.h"

#ifdef __CUDACC__
namespace simt {
constexpr bool under_asan = false, under_race_shadow = false;
}
struct SharedLimit {  // a GPU's is its own
  explicit SharedLimit(size_t) {}
};
#else
#include "tests/simt_config.h"
#endif

namespace gated {

// Is there something to run kernels on? A build by nvcc on a machine without a GPU has nothing, which GATED_NEEDS_GPU=1
// makes a failure: on a GPU that does not answer, no test may pass on the CPU alone.
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

// The number at `number` in the memory of this device, where it stays until the program ends: a stream of dropout.
inline const uint64_t* on_device([[maybe_unused]] const Context& ctx, const uint64_t* number) {
#ifdef __CUDACC__
  if (ctx.device == Device::cuda && number) {
    static auto& numbers = *new std::map<uint64_t, Buffer<uint64_t>>;
    const auto [at, is_new] = numbers.try_emplace(*number, ctx.device, 1);
    if (is_new) at->second.upload({*number});
    return at->second.data();
  }
#endif
  return number;
}

// How many threads the CPU's code has, until this ends.
struct Threads {
  const int before = omp_get_max_threads();
  explicit Threads(int n) { omp_set_num_threads(n); }
  ~Threads() { omp_set_num_threads(before); }
};

// Runs test(ctx) on the CPU with one and with two threads, and on this build's kernel device: on the emulator once in
// each thread order, on a GPU once.
template <class Test>
void on_every_device(Test test) {
  if (!simt::under_race_shadow) {  // which watches the threads of kernels, not those of the CPU
    for (int threads : {1, 2}) {
      INFO("cpu, " << threads << " threads");
      const Threads of_the_cpu(threads);
      Context ctx(Device::cpu);
      test(ctx);
    }
  }
#ifndef __CUDACC__
  const KeepsSimtConfig restore;
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

inline void require_same(const std::vector<std::vector<float>>& expected, const std::vector<std::vector<float>>& got) {
  for (size_t i = 0; i < expected.size(); i++) {
    INFO("array " << i);
    REQUIRE_BITWISE(expected[i], got[i]);
  }
}

// Runs test(ctx) once on the CPU and once on this build's kernel device.
template <class Test>
void on_both_devices(Test test) {
  for (Device device : {Device::cpu, kernel_device}) {
    if (device == Device::cuda && !kernels_can_run()) continue;
    INFO(gated::name_of(device));
    Context ctx(device);
    test(ctx);
  }
}

// Runs what may need `more` shared memory for a block than a consumer's GPU has. False where it does: that GPU has to
// say so.
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

// Tokens t to t + n - 1 of all B sequences of T: those that come at one time, as a step of generation has them.
template <class S>
std::vector<S> tokens_of(const std::vector<S>& x, size_t B, size_t T, size_t t, size_t n) {
  const size_t width = x.size() / B / T;
  std::vector<S> rows;
  for (size_t b = 0; b < B; b++) {
    const auto from = x.begin() + ptrdiff_t((b * T + t) * width);
    rows.insert(rows.end(), from, from + ptrdiff_t(n * width));
  }
  return rows;
}

// What numbers are once they are stored; the same in bf16, and the way back.
template <class S>
std::vector<float> stored(std::vector<float> values) {
  for (float& x : values) x = S(x);
  return values;
}
inline std::vector<bf16> rounded(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}
inline std::vector<float> widened(const std::vector<bf16>& values) {
  return {values.begin(), values.end()};
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

// What a Trial keeps of an array: what a device's memory begins with, what the reference works on, what must be there
// in the end, and how it lies on a device.
struct TrialArray {
  std::vector<float> start, values;
  const std::vector<float>* expected = &start;
  bool filled = true;
  size_t rows = 0, stride = 0, at = 0;  // inside rows that are wider, if any
  int line = 0;
  virtual ~TrialArray() = default;
  virtual void begin(Context&) = 0;
  virtual std::vector<float> end() = 0;
  virtual std::string difference(Nan) = 0;
  bool input() const { return expected == &start; }
  std::vector<float> wide(const std::vector<float>& x) const {
    return rows ? spread_rows(x, rows, stride, at, input() ? between_inputs : between_outputs) : x;
  }
};
template <class S>
struct TrialArrayOf : TrialArray {
  std::optional<GuardedOf<S>> memory;
  void begin(Context& ctx) override {
    filled || rows ? memory.emplace(ctx, wide(start)) : memory.emplace(ctx, start.size());
  }
  std::vector<float> end() override {
    const std::vector<float> all = memory->download();
    return rows ? gather_rows(all, rows, start.size() / rows, at) : all;
  }
  std::string difference(Nan nan) override {
    return bitwise_difference(wide(stored<S>(*expected)), memory->download(), input() ? Nan::expected : nan);
  }
};

// An array of a Trial. As a pointer it is one to the memory of the device that runs now; the reference has the floats
// at `ref`. Both are null where no trial has made the array.
template <class S>
struct Array {
  float* ref = nullptr;
  TrialArrayOf<S>* kept = nullptr;
  std::vector<float>& values() const { return kept->values; }
  // Rounds what the reference has written to what is stored.
  void store() const {
    for (float& x : kept->values) x = S(x);
  }
  // On a device its rows lie `stride` elements apart, from element `at` on. The reference has them packed.
  void widen(size_t rows, size_t stride, size_t at) const {
    if (kept) kept->rows = rows, kept->stride = stride, kept->at = at;
  }
  operator S*() const {
    if (kept) return *kept->memory + kept->at;
    return nullptr;
  }
  operator Reals() const { return operator S*(); }
  operator ConstReals() const { return operator S*(); }
};

template <class S>
void widen(const std::vector<Array<S>>& arrays, size_t rows, size_t stride, size_t at) {
  for (const Array<S>& array : arrays)
    if (stride) array.widen(rows, stride, at);
}

// An operation beside its reference, over arrays that are declared once for both:
//
//   Trial t;
//   const auto x = t.random<S>(n, 1), y = t.out<S>(n), y_over_x = t.over(x, y);
//   silu_ref(y.ref, x.ref, n);
//   t.on_every_device([&](Context& ctx) {
//     silu(y, x, n, ctx);
//     silu(y_over_x, y_over_x, n, ctx);
//   });
//
// After each run every output must have the reference's bits, rounded where it is stored as bf16, and every input its
// own.
class Trial {
 public:
  explicit Trial(Nan nan = Nan::refused) : nan_(nan) {}

  // An input: these values, as S stores them; n random ones.
  template <class S = float>
  Array<S> in(const std::vector<float>& values, int line = __builtin_LINE()) {
    auto array = std::make_unique<TrialArrayOf<S>>();
    array->start = array->values = stored<S>(values);
    array->line = line;
    const Array<S> result = {array->values.data(), array.get()};
    arrays_.push_back(std::move(array));
    return result;
  }
  template <class S = float>
  Array<S> random(size_t n, uint64_t seed, float scale = 1, int line = __builtin_LINE()) {
    return in<S>(random_values<float>(n, seed, scale), line);
  }
  // An output: n values that the reference writes; these values.
  template <class S = float>
  Array<S> out(size_t n, int line = __builtin_LINE()) {
    return expect<S>(std::vector<float>(n, NAN), line);
  }
  template <class S = float>
  Array<S> expect(const std::vector<float>& values, int line = __builtin_LINE()) {
    const Array<S> array = sum<S>(values, line);
    array.kept->filled = false;
    return array;
  }
  // An output that is added to: these values; n random ones; these, which become those.
  template <class S = float>
  Array<S> sum(const std::vector<float>& start, int line = __builtin_LINE()) {
    const Array<S> array = in<S>(start, line);
    array.kept->expected = &array.kept->values;
    return array;
  }
  template <class S = float>
  Array<S> sum(size_t n, uint64_t seed, int line = __builtin_LINE()) {
    return sum<S>(random_values<float>(n, seed), line);
  }
  template <class S = float>
  Array<S> sum(const std::vector<float>& start, const std::vector<float>& result, int line = __builtin_LINE()) {
    const Array<S> array = sum<S>(start, line);
    std::copy(result.begin(), result.end(), array.ref);
    return array;
  }
  // An output in the place of an input, or of a sum: it begins as that did and ends as `result`.
  template <class S>
  Array<S> over(const Array<S>& place, const Array<S>& result, int line = __builtin_LINE()) {
    const Array<S> array = in<S>(place.kept->start, line);
    array.kept->expected = &result.kept->values;
    return array;
  }
  // Another output, which begins and ends as `result` does.
  template <class S>
  Array<S> again(const Array<S>& result, int line = __builtin_LINE()) {
    const Array<S> array = over(result, result, line);
    array.kept->filled = result.kept->filled;
    return array;
  }

  // Takes for the reference what run() writes, which is given these pointers in memory of the CPU.
  template <class Run>
  void reference(Run run) {
    Context cpu(Device::cpu);
    for (auto& array : arrays_) array->begin(cpu);
    run();
    for (auto& array : arrays_)
      if (!array->input()) std::ranges::copy(array->end(), array->values.begin());
  }
  // Runs run(ctx) and says of every array what differs, "" where nothing does.
  template <class Run>
  std::vector<std::string> differences(Context& ctx, Run run) {
    for (auto& array : arrays_) array->begin(ctx);
    run(ctx);
    std::vector<std::string> all;
    for (auto& array : arrays_) {
      const std::string said = array->difference(nan_);
      const char* const what = array->input() ? "input" : "output";
      all.push_back(said.empty() ? "" : format("%s declared in line %d: %s", what, array->line, said.c_str()));
    }
    return all;
  }
  template <class Run>
  void on(Context& ctx, Run run) {
    for (const std::string& difference : differences(ctx, run)) REQUIRE(difference == "");
  }
  template <class Run>
  void on_every_device(Run run) {
    gated::on_every_device([&](Context& ctx) { on(ctx, run); });
  }
  // Of products of bf16 matrices: on those whose tensor cores are such.
  template <class Run>
  void on_every_device(MmaArithmetic arithmetic, Run run) {
    gated::on_every_device([&](Context& ctx) {
      if (multiplies_as(ctx, arithmetic)) on(ctx, run);
    });
  }
  template <class Run>
  void on_both_devices(Run run) {
    gated::on_both_devices([&](Context& ctx) { on(ctx, run); });
  }

 private:
  std::vector<std::unique_ptr<TrialArray>> arrays_;
  Nan nan_;
};

// The gradients of loss(), which reads the parameters where they stand. `make gradcheck` sets GRADCHECK: what was found
// is then printed when the program ends.
struct GradientOf {
  const char* what;
  std::vector<double>& parameter;
  const std::vector<double>& gradient;
};
inline void check_gradients(const std::function<double()>& loss, const std::vector<GradientOf>& gradients) {
  constexpr double bound = 1e-7;
  static struct Printed : GradientReport {
    ~Printed() {
      if (getenv("GRADCHECK")) fputs(text(bound).c_str(), stdout);
    }
  } report;
  for (const auto& [what, parameter, gradient] : gradients) {
    std::vector<double>& place = parameter;
    const std::vector<double> usual = place;
    const auto loss_at = [&](const std::vector<double>& at) { return place = at, loss(); };
    const double error = gradient_error(loss_at, usual, gradient);
    place = usual;
    report.add(Catch::getResultCapture().getCurrentTestName(), what, error);
    INFO("gradient of " << what);
    REQUIRE(error <= bound);
  }
}

// sum_i a_i b_i: turns an output into a scalar loss with known gradient `b`.
inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double s = 0;
  for (size_t i = 0; i < a.size(); i++) s += a[i] * b[i];
  return s;
}

}  // namespace gated
