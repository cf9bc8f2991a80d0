// device: where an operation runs, and the memory it works on.
//
//   cpu       an operation's own loops, in kernels/cpu/: OpenMP over independent outputs, the references' bits
//   emulated  the kernels, compiled by g++ over core/simt.h: one fiber per CUDA thread
//   cuda      the kernels, compiled by nvcc
//
// g++ and nvcc compile the same files; a program may hold both builds (nvcc's namespace is renamed by the
// Makefile, so the linker keeps them apart). In one build, kernels run on exactly one device: kernel_device.
// tests/test_device.cpp
#pragma once
#ifdef __CUDACC__
#include <cuda_runtime.h>
#else
#include "core/simt.h"
#endif
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/shared_memory.h"

namespace gated {

enum class Device { cpu, emulated, cuda };

inline const char* name_of(Device d) {
  return d == Device::cpu ? "cpu" : d == Device::emulated ? "emulated" : "cuda";
}

constexpr size_t ceil_div(size_t n, size_t d) {
  return (n + d - 1) / d;
}
constexpr size_t round_up(size_t n, size_t unit) {
  return ceil_div(n, unit) * unit;
}

#ifdef __CUDACC__
constexpr Device kernel_device = Device::cuda;
#define CUDA_CHECK(call)                                                                                      \
  do {                                                                                                        \
    cudaError_t e_ = (call);                                                                                  \
    if (e_ != cudaSuccess) ::gated::fail("%s:%d: %s: %s", __FILE__, __LINE__, #call, cudaGetErrorString(e_)); \
  } while (0)
// Ten times the compute capability of this GPU: 80 for 8.0. 0 where none answers.
inline int compute_capability() {
  int id, major, minor;
  if (cudaGetDevice(&id) == cudaSuccess &&
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, id) == cudaSuccess &&
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, id) == cudaSuccess)
    return 10 * major + minor;
  cudaGetLastError();
  return 0;
}
// Shared memory: one spelling on both sides (the emulator's stands in simt.h).
#define STATIC_SHARED(T, name, extents) __shared__ __align__(16) T name extents
#define DYNAMIC_SHARED(T, name)                                        \
  extern __shared__ __align__(128) unsigned char dynamic_shared_raw[]; \
  T* const name = reinterpret_cast<T*>(dynamic_shared_raw)
#else
constexpr Device kernel_device = Device::emulated;
#endif

// A reference is a template that stands in its operation's .cu file. This line after it makes it callable, in float and
// in double, from files that see its declaration alone.
#define IN_FLOAT_AND_DOUBLE(f) [[gnu::used]] static const auto f##_instances = std::pair(&f<float>, &f<double>)

// ---- memory

// The bytes of those lines of a file of Linux that have these names ("MemAvailable: 123 kB"), summed; 0 of one that is
// not there.
inline size_t proc_bytes(const char* file, std::initializer_list<std::string_view> names) {
  FILE* f = fopen(file, "r");
  if (!f) return 0;
  char line[128], name[64];
  size_t sum = 0, kib;
  while (fgets(line, sizeof line, f))
    if (sscanf(line, "%63[^:]: %zu kB", name, &kib) == 2 && std::count(names.begin(), names.end(), name) > 0)
      sum += kib;
  fclose(f);
  return sum << 10;
}

// Bytes the machine can still give; 0 when it does not say.
inline size_t host_memory_available() {
  return proc_bytes("/proc/meminfo", {"MemAvailable"});
}

// Bytes of it that this process holds, with all of its code: how much of that is read ahead of its first use differs
// between machines.
inline size_t host_memory_held() {
  return proc_bytes("/proc/self/status", {"RssAnon", "VmExe", "VmLib"});
}

// Whose memory that is, for processes that may share it: this host's or, of a GPU, that GPU's, wherever it is.
inline std::string memory_name([[maybe_unused]] Device device) {
#ifdef __CUDACC__
  if (device == Device::cuda) {
    int id = 0;
    cudaDeviceProp properties;
    CUDA_CHECK(cudaGetDevice(&id));
    CUDA_CHECK(cudaGetDeviceProperties(&properties, id));
    return std::string(properties.uuid.bytes, sizeof properties.uuid.bytes);
  }
#endif
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  return host;
}

// Refuses what the device cannot give, where it says how much it can.
inline void require_memory(Device device, double bytes) {
  double available = double(host_memory_available());
#ifdef __CUDACC__
  if (device == Device::cuda) {
    size_t free_bytes = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
    available = double(free_bytes);
  }
#endif
  require(available == 0 || bytes <= available,
          "out of memory: %.0f MiB needed on %s, %.0f MiB free; use a smaller batch, context or model",
          bytes / 1048576.0, name_of(device), available / 1048576.0);
}

// How often memory was allocated: a training step must leave it as it is.
inline std::atomic<size_t> allocations = 0;
// How often memory of a device with kernels was given back: an address that was good before may be another's by now.
inline std::atomic<size_t> given_back = 0;

// While launches are recorded (core/graph.cuh) nothing runs: what copies at once, waits, or gives memory has no place
// there.
inline bool recording_launches = false;
inline void require_not_recording(Device device, const char* what) {
  require(device == Device::cpu || !recording_launches,
          "graph: %s while launches are recorded: a record holds launches, set_zero and copy_rows alone", what);
}

// Fresh memory is filled with NaN on every device, so that reading what nobody wrote shows. GATED_FILL=off leaves it as
// it is, for tools that watch for such reads themselves: compute-sanitizer's initcheck, valgrind.
inline const bool fill_fresh_memory = [] {
  const char* fill = getenv("GATED_FILL");
  return !fill || strcmp(fill, "off");
}();

inline void* device_allocate(Device device, size_t bytes) {
  if (bytes == 0) return nullptr;
  require_not_recording(device, "memory is allocated");
  allocations++;
  void* p = nullptr;
  const double mib = bytes / 1048576.0;
  if (device == Device::cuda) {
#ifdef __CUDACC__
    const cudaError_t allocation_on_gpu = cudaMalloc(&p, bytes);
    if (allocation_on_gpu == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      size_t free_bytes = 0, total = 0;
      cudaMemGetInfo(&free_bytes, &total);
      fail("out of memory: %.0f MiB asked for on the GPU, %.0f MiB free; use a smaller batch, context or model", mib,
           free_bytes / 1048576.0);
    }
    CUDA_CHECK(allocation_on_gpu);
    if (fill_fresh_memory) CUDA_CHECK(cudaMemset(p, 0xFF, bytes));
#else
    fail("this build has no CUDA: it was made without nvcc");
#endif
    return p;
  }
  // Linux promises memory it does not have; asking first turns a killed process into a message.
  constexpr size_t worth_asking = size_t{64} << 20;
  const size_t available = bytes < worth_asking ? 0 : host_memory_available();
  if ((available && bytes > available) || posix_memalign(&p, 128, bytes))
    fail("out of memory: %.0f MiB asked for, %.0f MiB free; use a smaller batch, context or model", mib,
         host_memory_available() / 1048576.0);
  if (fill_fresh_memory) memset(p, 0xFF, bytes);
  return p;
}

inline void device_free(Device device, void* p) {
  given_back += p && device != Device::cpu;
#ifdef __CUDACC__
  if (device == Device::cuda) {
    cudaFree(p);
    return;
  }
#endif
  free(p);
}

// Owns n elements on one device.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device device, size_t n) : device_(device), size_(n) {
    require(n <= SIZE_MAX / sizeof(T), "out of memory: %zu elements of %zu bytes overflow", n, sizeof(T));
    data_ = static_cast<T*>(device_allocate(device, n * sizeof(T)));
  }
  Buffer(Device device, const std::vector<T>& values) : Buffer(device, values.size()) { upload(values); }
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer() { device_free(device_, data_); }

  T* data() const { return data_; }
  size_t size() const { return size_; }
  Device device() const { return device_; }
  void upload(const std::vector<T>& values) {
    require(values.size() == size_, "upload: %zu elements into a buffer of %zu", values.size(), size_);
    copy_to_device(device_, data_, values.data(), values.size());
  }
  std::vector<T> download() const {
    std::vector<T> values(size_);
    copy_to_host(device_, values.data(), data_, size_);
    return values;
  }

  // Blocking copies of n elements between host memory and `device`.
  static void copy_to_device(Device device, T* dst, const T* src, size_t n) {
    require_not_recording(device, "memory is copied from the host");
    if (n == 0) return;
#ifdef __CUDACC__
    if (device == Device::cuda) {
      CUDA_CHECK(cudaMemcpy(dst, src, n * sizeof(T), cudaMemcpyHostToDevice));
      return;
    }
#endif
    memcpy(dst, src, n * sizeof(T));
  }
  static void copy_to_host(Device device, T* dst, const T* src, size_t n) {
    require_not_recording(device, "memory is copied to the host");
    if (n == 0) return;
#ifdef __CUDACC__
    if (device == Device::cuda) {
      CUDA_CHECK(cudaMemcpy(dst, src, n * sizeof(T), cudaMemcpyDeviceToHost));
      return;
    }
#endif
    memcpy(dst, src, n * sizeof(T));
  }

 private:
  void swap(Buffer& other) {
    std::swap(device_, other.device_);
    std::swap(size_, other.size_);
    std::swap(data_, other.data_);
  }
  Device device_ = Device::cpu;
  size_t size_ = 0;
  T* data_ = nullptr;
};

// What a buffer holds, for the host to read: the buffer itself where the host can, or a copy of it.
template <class T>
class HostView {
 public:
  explicit HostView(const Buffer<T>& buffer)
      : copy_(buffer.device() == Device::cuda ? buffer.download() : std::vector<T>()),
        data_(buffer.device() == Device::cuda ? copy_.data() : buffer.data()) {}
  HostView(const HostView&) = delete;
  const T* data() const { return data_; }

 private:
  const std::vector<T> copy_;
  const T* const data_;
};

// The way back: fill(T* memory) writes the buffer, in place or by way of host memory. What it leaves out is 0.
template <class T, class Fill>
void fill_from_host(Buffer<T>& to, Fill fill) {
  std::vector<T> host(to.device() == Device::cuda ? to.size() : 0);
  if (host.empty())
    for (size_t i = 0; i < to.size(); i++) to.data()[i] = T(0);
  fill(host.empty() ? to.data() : host.data());
  if (!host.empty()) to.upload(host);
}

// edit(T* memory) changes n elements on a device, in place or by way of host memory.
template <class T, class Edit>
void edit_on_host(Device device, T* p, size_t n, Edit edit) {
  std::vector<T> host(n);
  Buffer<T>::copy_to_host(device, host.data(), p, n);
  edit(host.data());
  Buffer<T>::copy_to_device(device, p, host.data(), n);
}

}  // namespace gated
