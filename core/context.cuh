// context: what a run carries from operation to operation: its device and CUDA stream, scratch memory, and the copies
// between host and device. Launches: core/launch.cuh
//
// A stream runs in order. So an operation may use scratch memory until it returns, and the next operation may have the
// same memory; and a copy to the device is done before any kernel that is launched after it begins.
// A training step allocates nothing on a device: scratch and the pinned memory of uploads are reserved before the first
// one. (On a CPU sums over columns, and a few operations more, take memory from the heap.) It waits for the device only
// where it reads a Readback.
// tests/test_device.cpp
#pragma once
#ifdef __CUDACC__
#include <nvtx3/nvToolsExt.h>
#endif
#include <algorithm>
#include <functional>
#include <optional>
#include <type_traits>
#include <vector>

#include "core/cublas.cuh"
#include "core/device.cuh"
#include "core/mma.h"
#include "core/record.h"

namespace gated {

// Who computes matrix products: kernels/matmul.cu, or on a GPU also cuBLASLt.
enum class MatmulEngine { exact, cublas };

// What the tensor cores of this build's GPU compute. Empty: there are none for bf16, or there is no GPU.
inline std::optional<MmaArithmetic> gpu_mma() {
#ifdef __CUDACC__
  const int major = compute_capability() / 10;
  if (major >= 9) return MmaArithmetic::hopper;
  if (major == 8) return MmaArithmetic::ampere;
#endif
  return {};
}
// What products of bf16 are where nobody has chosen: on a GPU those of its own tensor cores.
inline MmaArithmetic usual_mma() {
  return gpu_mma().value_or(MmaArithmetic::hopper);
}

class Context {
 public:
  const Device device;
  cudaStream_t stream = nullptr;
  // What the tensor cores compute that products of bf16 matrices are to equal.
  MmaArithmetic mma_arithmetic = usual_mma();

  explicit Context(Device d) : device(d) {
    require(d == Device::cpu || d == kernel_device, "this build runs kernels on %s, not on %s", name_of(kernel_device),
            name_of(d));
#ifdef __CUDACC__
    if (d == Device::cuda) CUDA_CHECK(cudaStreamCreate(&stream));
#endif
  }
  Context(const Context&) = delete;
  ~Context() {
#ifdef __CUDACC__
    if (stream) cudaStreamSynchronize(stream);  // copies of staging memory may be under way
    for (Staging& s : staging_) {
      if (s.memory) cudaFreeHost(s.memory);
      if (s.copied) cudaEventDestroy(s.copied);
    }
    if (reached_) cudaEventDestroy(reached_);
    if (stream) cudaStreamDestroy(stream);
#endif
  }

  // From here on products of bf16 matrices are those of such tensor cores. A GPU has its own, and refuses others.
  void use_mma(MmaArithmetic arithmetic) {
#ifdef __CUDACC__
    if (device == Device::cuda && gpu_mma() != arithmetic)
      fail("this GPU has compute capability %d.%d: %s%s", compute_capability() / 10, compute_capability() % 10,
           gpu_mma() ? "its tensor cores compute as " : "it has no tensor cores for bf16",
           gpu_mma() ? name_of(*gpu_mma()) : "");
#endif
    mma_arithmetic = arithmetic;
  }

  // From here on cuBLASLt computes matrix products: the same from run to run, but not the CPU's bits.
  void use_cublas(bool tf32) {
    require(device == Device::cuda, "cuBLAS computes on a GPU only, and this run is on %s", name_of(device));
    cublas_.emplace(tf32);
  }
  MatmulEngine matmul_engine() const {
    return cublas_ ? MatmulEngine::cublas : MatmulEngine::exact;
  }
  Cublas& cublas() {
    return *cublas_;
  }
  // Does the engine round factors to TF32?
  bool tf32() const {
    return cublas_ && cublas_->tf32;
  }
  // Bytes that the engine holds on the device.
  size_t matmul_engine_bytes() const {
    return cublas_ ? cublas_workspace_bytes : 0;
  }

  // From here on a LaunchGraph records what it is given, and repeats that.
  void use_graphs() {
    require(device != Device::cpu, "graph: on %s nothing is launched, so there is nothing to record", name_of(device));
    graphs_ = true;
  }
  bool uses_graphs() const {
    return graphs_;
  }
  // What is launched from here on differs from what was launched before, as with other sizes: graphs are recorded anew.
  void outdate_graphs() {
    graphs_outdated_++;
  }
  // Another number than before: what was recorded before holds no more.
  size_t graph_version() const {
    return graphs_outdated_ + given_back;
  }

  // Where there is no stream: work that is done at once, or, while the emulator's launches are recorded, joins the
  // record.
  template <class Work>
  void enqueue(const Work& work) {
    static_assert(std::is_trivially_copy_constructible_v<Work> && std::is_trivially_destructible_v<Work>);
    // (A kernel's call is long, and this stands behind each: one copy of it is enough.)
    const auto call = [](const void* given) __attribute__((noinline)) {
      (*static_cast<const Work*>(given))();
    };
    if (record_)
      record_->add(call, &work, sizeof work);
    else
      call(&work);
  }
  void record_to(Record* record) {
    record_ = record;
  }
  // What the host does between launches: at once, or, while they are recorded, whenever the record has come there.
  void between_launches(const std::function<void()>& call) {
    if (break_record_)
      break_record_(call);
    else
      call();
  }
  void break_record(std::function<void(const std::function<void()>&)> how) {
    break_record_ = std::move(how);
  }

  // Memory for `bytes` of scratch, and no more from here on: a plan that was too small is an error, not an allocation.
  void reserve_scratch(size_t bytes) {
    synchronize();
    scratch_ = Buffer<unsigned char>(device, bytes);
    planned_ = true;
  }
  // n elements that an operation may use until it returns. Nothing is in them.
  template <class T = float>
  T* scratch(size_t n) {
    const size_t bytes = n * sizeof(T);
    most_scratch_ = bytes > most_scratch_ ? bytes : most_scratch_;
    if (bytes > scratch_.size()) {
      require(!planned_, "scratch: %zu bytes are wanted, but %zu were planned for the run: this is a bug", bytes,
              scratch_.size());
      require_not_recording(device, "scratch memory grows");
      synchronize();
      scratch_ = Buffer<unsigned char>(device, bytes);
    } else if (device == Device::emulated && bytes) {
      // All bits 1 is a NaN: a kernel that reads scratch before it writes it shows in the result.
      enqueue([to = scratch_.data(), bytes] { memset(to, 0xFF, bytes); });
    }
    return reinterpret_cast<T*>(scratch_.data());
  }
  size_t scratch_bytes() const {
    return scratch_.size();
  }
  size_t most_scratch_used() const {
    return most_scratch_;
  }

  // Pinned memory for uploads of up to `bytes` each.
  void reserve_staging([[maybe_unused]] size_t bytes) {
#ifdef __CUDACC__
    synchronize();
    if (device == Device::cuda)
      for (Staging& s : staging_) grow(s, bytes);
#endif
  }
  // Copies n elements to the device, after what was launched before. `from` may be overwritten when this returns.
  // On a GPU the copy goes through pinned memory and does not wait, unless the last few copies are still under way.
  template <class T>
  void upload(T* to, const T* from, size_t n) {
    const size_t bytes = n * sizeof(T);
    if (bytes == 0) return;
    require_not_recording(device, "something is uploaded");
#ifdef __CUDACC__
    if (device == Device::cuda) {
      Staging& s = staging_[next_staging_++ % (sizeof staging_ / sizeof *staging_)];
      if (s.memory) wait_for(s.copied);
      grow(s, bytes);
      memcpy(s.memory, from, bytes);
      CUDA_CHECK(cudaMemcpyAsync(to, s.memory, bytes, cudaMemcpyHostToDevice, stream));
      CUDA_CHECK(cudaEventRecord(s.copied, stream));
      return;
    }
#endif
    memcpy(to, from, bytes);
  }

  // Until everything that was launched is done.
  void synchronize() {
    require_not_recording(device, "the host waits for the device");
#ifdef __CUDACC__
    if (!stream) return;
    if (!while_waiting) {
      CUDA_CHECK(cudaStreamSynchronize(stream));
      return;
    }
    if (!reached_) CUDA_CHECK(cudaEventCreateWithFlags(&reached_, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventRecord(reached_, stream));
    wait_for(reached_);
#endif
  }
  // Where the device may wait for what never comes: called again and again while the host waits for it. It may throw.
  std::function<void()> while_waiting;
#ifdef __CUDACC__
  void wait_for(cudaEvent_t event) {
    cudaError_t waiting_for_device;
    while ((waiting_for_device = while_waiting ? cudaEventQuery(event) : cudaEventSynchronize(event)) ==
           cudaErrorNotReady) {
      cudaGetLastError();
      while_waiting();
    }
    CUDA_CHECK(waiting_for_device);
  }
#endif

 private:
  std::optional<Cublas> cublas_;  // where cuBLAS is used
  bool graphs_ = false;
  size_t graphs_outdated_ = 0;
  Record* record_ = nullptr;
  std::function<void(const std::function<void()>&)> break_record_;
  Buffer<unsigned char> scratch_;
  size_t most_scratch_ = 0;
  bool planned_ = false;
#ifdef __CUDACC__
  struct Staging {
    void* memory = nullptr;
    size_t bytes = 0;
    cudaEvent_t copied = nullptr;
  };
  static void grow(Staging& s, size_t bytes) {
    if (bytes <= s.bytes) return;
    if (s.memory) CUDA_CHECK(cudaFreeHost(std::exchange(s.memory, nullptr)));
    s.bytes = 0;  // (where there is no memory for more)
    if (!s.copied) CUDA_CHECK(cudaEventCreateWithFlags(&s.copied, cudaEventDisableTiming));
    CUDA_CHECK(cudaMallocHost(&s.memory, bytes));
    s.bytes = bytes;
  }
  Staging staging_[8];
  size_t next_staging_ = 0;
  cudaEvent_t reached_ = nullptr;
#endif
};

// A few values on their way from the device to the host, while the host goes on.
template <class T>
class Readback {
 public:
  Readback(size_t n, Context& ctx) : ctx_(ctx), n_(n) {
    if (n == 0) return;
#ifdef __CUDACC__
    if (ctx.device == Device::cuda) {
      CUDA_CHECK(cudaMallocHost(&pinned_, n * sizeof(T)));
      CUDA_CHECK(cudaEventCreateWithFlags(&arrived_, cudaEventDisableTiming));
      return;
    }
#endif
    host_.resize(n);
  }
  Readback(const Readback&) = delete;
  ~Readback() {
#ifdef __CUDACC__
    if (arrived_) {
      cudaEventSynchronize(arrived_);  // they may still be on their way
      cudaEventDestroy(arrived_);
    }
    if (pinned_) cudaFreeHost(pinned_);
#endif
  }

  // Sends for the n values at `from`, as what was launched before leaves them.
  void start(const T* from) {
    require_not_recording(ctx_.device, "something is read back");
    if (n_ == 0) return;
#ifdef __CUDACC__
    if (ctx_.device == Device::cuda) {
      CUDA_CHECK(cudaMemcpyAsync(pinned_, from, n_ * sizeof(T), cudaMemcpyDeviceToHost, ctx_.stream));
      CUDA_CHECK(cudaEventRecord(arrived_, ctx_.stream));
      return;
    }
#endif
    memcpy(host_.data(), from, n_ * sizeof(T));
  }
  // Waits until they are here.
  const T* wait() {
    require_not_recording(ctx_.device, "the host waits for the device");
#ifdef __CUDACC__
    if (ctx_.device == Device::cuda && n_ > 0) {
      ctx_.wait_for(arrived_);
      return pinned_;
    }
#endif
    return host_.data();
  }

 private:
  Context& ctx_;
  size_t n_;
  std::vector<T> host_;
#ifdef __CUDACC__
  T* pinned_ = nullptr;
  cudaEvent_t arrived_ = nullptr;
#endif
};

template <class T>
void set_zero(T* p, size_t n, Context& ctx) {
  if (n == 0) return;
#ifdef __CUDACC__
  if (ctx.device == Device::cuda) {
    CUDA_CHECK(cudaMemsetAsync(p, 0, n * sizeof(T), ctx.stream));
    return;
  }
#endif
  ctx.enqueue([=] { memset(static_cast<void*>(p), 0, n * sizeof(T)); });
}

// Is a loop of the CPU over so many numbers worth waking other threads for? A thread that sleeps takes as long to wake
// as some thousand numbers of an activation or a norm take. Of one token at a time most loops have fewer.
inline bool worth_waking(size_t numbers) {
  return numbers >= 16384;
}

// `rows` rows of n elements each, copied on the device after what was launched before. A row begins to_step or
// from_step elements after the one before it: 0 for from_step copies one row to all.
template <class T>
void copy_rows(T* to, size_t to_step, const T* from, size_t from_step, size_t rows, size_t n, Context& ctx) {
  if (rows == 0 || n == 0) return;
#ifdef __CUDACC__
  if (ctx.device == Device::cuda) {
    constexpr size_t most = 0x7fffffff;  // bytes that may lie between two rows of one call: at least those of a row
    if (std::min(to_step, from_step) >= n && std::max(to_step, from_step) * sizeof(T) <= most) {
      CUDA_CHECK(cudaMemcpy2DAsync(to, to_step * sizeof(T), from, from_step * sizeof(T), n * sizeof(T), rows,
                                   cudaMemcpyDeviceToDevice, ctx.stream));
      return;
    }
    for (size_t row = 0; row < rows; row++)
      CUDA_CHECK(cudaMemcpyAsync(to + row * to_step, from + row * from_step, n * sizeof(T), cudaMemcpyDeviceToDevice,
                                 ctx.stream));
    return;
  }
#endif
  ctx.enqueue([=] {
    for (size_t row = 0; row < rows; row++) memcpy(to + row * to_step, from + row * from_step, n * sizeof(T));
  });
}

// A named stretch of the timeline in Nsight Systems; nothing in builds without CUDA.
struct Range {
#ifdef __CUDACC__
  explicit Range(const char* name) {
    nvtxRangePushA(name);
  }
  ~Range() {
    nvtxRangePop();
  }
#else
  explicit Range(const char*) {}
#endif
  Range(const Range&) = delete;
};

}  // namespace gated
