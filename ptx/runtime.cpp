// runtime: CUDA's runtime as the host sees it: the device, its memory, pinned memory, copies, and launches. nvcc's own
// objects are linked with this and with ptx/stream.cpp in the place of cudart.
//
// The rules are those of CUDA's Runtime API reference, the page of each function, of "API synchronization behavior"
// there, and of the tables of compute capabilities in the CUDA C++ Programming Guide. What a GPU's driver lets pass,
// but no page allows, is refused. A function that is not here does not link.
// tests/test_ptx_runtime.cpp
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <vector>

#include "ptx/count.h"
#include "ptx/machine.h"
#include "ptx/stream.h"

using namespace ptx;

namespace {

// ---- the device

struct Gpu {
  int capability;
  size_t shared_per_block, shared_per_multiprocessor;  // the former where a kernel has opted in
  int threads_per_multiprocessor, blocks_per_multiprocessor;
};
constexpr Gpu gpus[] = {{80, 163 << 10, 164 << 10, 2048, 32},
                        {86, 99 << 10, 100 << 10, 1536, 16},
                        {89, 99 << 10, 100 << 10, 1536, 24},
                        {90, 227 << 10, 228 << 10, 2048, 32}};
constexpr size_t shared_without_opt_in = 48 << 10;
constexpr size_t shared_of_the_system = 1 << 10;          // that each block takes beside its own
const int multiprocessors = Counter::wanted() ? 132 : 4;  // few, so that small launches fill the device; an H100's
constexpr size_t counted_copy = 256 << 20;                // what is copied where nothing but counts is wanted
constexpr int most_threads = 1024;
constexpr int most_block[] = {1024, 1024, 64}, most_grid[] = {0x7fffffff, 65535, 65535};
constexpr size_t most_in_cluster = 4096;  // threads: what each knows of each other is kept
constexpr int most_pitch = 0x7fffffff;

const Gpu& gpu() {
  for (const Gpu& g : gpus)
    if (g.capability == compute_capability()) return g;
  refuse(cudaErrorNotSupported, "compute capability %d, expected 80, 86, 89 or 90", compute_capability());
}

int attribute(cudaDeviceAttr what) {
  switch (what) {
    case cudaDevAttrComputeCapabilityMajor: return gpu().capability / 10;
    case cudaDevAttrComputeCapabilityMinor: return gpu().capability % 10;
    case cudaDevAttrMultiProcessorCount: return multiprocessors;
    case cudaDevAttrWarpSize: return 32;
    case cudaDevAttrMaxSharedMemoryPerBlock: return shared_without_opt_in;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return int(gpu().shared_per_block);
    default: refuse(cudaErrorInvalidValue, "cudaDeviceGetAttribute: attribute %d is not known here", int(what));
  }
}

// PTX_DEVICES=2: so many are shown, all alike. This process has the one that it set.
int devices() {
  const char* const asked = getenv("PTX_DEVICES");
  return asked ? atoi(asked) : 1;
}
int own_device = 0;

void require_device(const char* call, int device, const void* place) {
  if (device < 0 || device >= devices())
    refuse(cudaErrorInvalidDevice, "%s: device %d, expected 0 to %d", call, device, devices() - 1);
  if (!place) refuse(cudaErrorInvalidValue, "%s: there is no place for the answer", call);
}

// ---- pinned memory

struct Pinned {
  size_t bytes;
  bool live = true;
};
// What was given back stays here, and its addresses are given out no more: the host that follows one ends.
// Constructors and destructors of the program's statics call too, so neither table of this file is ever destroyed.
std::map<uintptr_t, Pinned>& pinned() {
  static auto* const all = new std::map<uintptr_t, Pinned>;
  return *all;
}

size_t whole_pages(size_t bytes) {
  const auto page = size_t(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

void* allocate_pinned(const char* call, size_t bytes) {
  const size_t of_machine = size_t(sysconf(_SC_PHYS_PAGES)) * size_t(sysconf(_SC_PAGESIZE));
  void* const p = bytes > of_machine
                      ? MAP_FAILED
                      : mmap(nullptr, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) refuse(cudaErrorMemoryAllocation, "%s: %zu bytes are not to be had", call, bytes);
  if (!Counter::wanted()) memset(p, 0xFF, bytes);  // a NaN in every format
  pinned()[uintptr_t(p)] = {bytes};
  return p;
}

enum class Place { device, pinned, pageable };

const char* name_of(Place place) {
  return place == Place::device ? "device memory" : place == Place::pinned ? "pinned memory" : "the host's memory";
}

// Where the n bytes at p lie. Refused unless they lie inside one live allocation there.
Place place_of(const char* call, const void* p, size_t n) {
  if (!p) refuse(cudaErrorInvalidValue, "%s: %zu bytes at address 0", call, n);
  if (is_device_address(p)) {
    if (!storage(p, n)) refuse(cudaErrorInvalidValue, "%s: %s", call, explain(p, n).c_str());
    return Place::device;
  }
  const auto first = uintptr_t(p);
  auto next = pinned().lower_bound(first + n);
  if (next == pinned().begin()) return Place::pageable;
  const auto& [begin, memory] = *--next;
  if (first >= begin + memory.bytes) return Place::pageable;
  if (!memory.live || first < begin || n > begin + memory.bytes - first)
    refuse(cudaErrorInvalidValue, "%s: %zu bytes at %p, of pinned memory that %s: %zu bytes at %p", call, n, p,
           memory.live ? "holds not all of them" : "was given back", memory.bytes, reinterpret_cast<void*>(begin));
  return Place::pinned;
}

// Where the n bytes at p are to be read and written, when their turn has come.
char* follow(const std::string& what, const void* p, size_t n, Place place) {
  if (place == Place::pageable) return static_cast<char*>(const_cast<void*>(p));
  try {
    place_of(what.c_str(), p, n);
  } catch (const Refusal&) {
    throw Refusal{cudaErrorIllegalAddress};  // it was given back after the call
  }
  return static_cast<char*>(place == Place::device ? storage(p, n) : const_cast<void*>(p));
}

// ---- copies

struct Rows {
  const void* at;
  size_t pitch;
};

// The bytes from the first of the first row to the last of the last.
size_t span(const char* call, Rows rows, size_t width, size_t height) {
  size_t bytes;
  if (__builtin_mul_overflow(height - 1, rows.pitch, &bytes) || __builtin_add_overflow(bytes, width, &bytes))
    refuse(cudaErrorInvalidValue, "%s: %zu rows of %zu bytes, %zu apart, are more than memory holds", call, height,
           width, rows.pitch);
  return bytes;
}

// "API synchronization behavior" says who waits for what:
//   from pageable memory   it is read during the call, behind a wait for the stream in a blocking call; what
//                          follows is late
//   to pageable memory     it is there when the call returns, as is what goes from host to host
//   pinned memory          is read and written late. A blocking call waits for that. What is to be written is NaN until
//                          then, unless work that stands before it uses it
//   inside the device      is late, in a blocking call too
// A capture waits for nothing, and reads pageable memory as pinned memory: at each launch.
void copy(const char* call, Rows to, Rows from, size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream,
          bool blocking) {
  const bool captured = is_captured(stream);
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault)
    refuse(cudaErrorInvalidMemcpyDirection, "%s: direction %d, expected 0 to 4", call, int(kind));
  if (width == 0 || height == 0) return;
  const size_t to_bytes = span(call, to, width, height), from_bytes = span(call, from, width, height);
  const Place target = place_of(call, to.at, to_bytes), source = place_of(call, from.at, from_bytes);
  const bool to_device = target == Place::device, from_device = source == Place::device;
  const bool said_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool said_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (kind != cudaMemcpyDefault && (to_device != said_to || from_device != said_from))
    refuse(cudaErrorInvalidValue, "%s: from %s (%p) to %s (%p), expected from %s to %s", call, name_of(source), from.at,
           name_of(target), to.at, said_from ? "device memory" : "the host", said_to ? "device memory" : "the host");
  const auto to_first = uintptr_t(to.at), from_first = uintptr_t(from.at);
  if (height == 1 && to_first < from_first + width && from_first < to_first + width)
    refuse(cudaErrorInvalidValue, "%s: the %zu bytes at %p and those at %p overlap", call, width, from.at, to.at);

  const std::string what = std::string(call) + " of " + std::to_string(width * height) + " bytes from " +
                           name_of(source) + " to " + name_of(target);
  std::shared_ptr<char[]> staged;
  if (source == Place::pageable && to_device && !captured) {
    if (blocking) wait_for(call, submit(stream, {"a wait of " + what, {}, {}}));
    staged.reset(new char[width * height]);
    for (size_t row = 0; row < height; row++)
      memcpy(&staged[row * width], static_cast<const char*>(from.at) + row * from.pitch, width);
    from.pitch = width;
  }
  Work work{what,
            [=] {
              if (Counter::wanted() && to_device && width * height > counted_copy) return;
              char* const writes = follow(what, to.at, to_bytes, target);
              const char* const reads = staged ? staged.get() : follow(what, from.at, from_bytes, source);
              for (size_t row = 0; row < height; row++)
                memcpy(writes + row * to.pitch, reads + row * from.pitch, width);
            },
            {}};
  if (target == Place::pinned) work.pinned.push_back({to.at, to_bytes});
  if (source == Place::pinned) work.pinned.push_back({from.at, from_bytes});
  const bool host_waits = (to_device || from_device)
                              ? (blocking && !(to_device && from_device) && !staged) || target == Place::pageable
                              : true;
  if (target == Place::pinned && !host_waits && !captured && work_on_pinned(to.at, to_bytes).empty())
    for (size_t row = 0; row < height; row++)
      memset(static_cast<char*>(const_cast<void*>(to.at)) + row * to.pitch, 0xFF, width);
  const uint64_t piece = submit(stream, std::move(work));
  if (host_waits && !captured) wait_for(call, piece);
}

void set(const char* call, void* to, int value, size_t bytes, cudaStream_t stream) {
  is_captured(stream);
  if (bytes == 0) return;
  if (place_of(call, to, bytes) != Place::device)
    refuse(cudaErrorInvalidValue, "%s: %p is the host's memory, expected device memory", call, to);
  const std::string what = std::string(call) + " of " + std::to_string(bytes) + " bytes";
  if (Counter::wanted()) return;  // all memory is 0
  submit(stream, {what, [=] { memset(follow(what, to, bytes, Place::device), value, bytes); }, {}});
}

// ---- kernels

struct Function {
  std::string name;
  const Kernel* kernel = nullptr;  // once it was asked for
  long most_dynamic = -1;          // bytes of shared memory, where the program has said so
};
// By the address of the function that launches it, which is its cudaKernel_t too.
std::map<const void*, Function>& functions() {
  static auto* const all = new std::map<const void*, Function>;
  return *all;
}

Function& function_of(const char* call, const void* address) {
  const auto found = functions().find(address);
  if (found == functions().end()) refuse(cudaErrorInvalidDeviceFunction, "%s: %p is no kernel", call, address);
  Function& f = found->second;
  try {
    if (!f.kernel) f.kernel = &find_kernel(f.name);
  } catch (const std::runtime_error& e) {
    refuse(cudaErrorInvalidPtx, "%s: %s", call, e.what());
  }
  return f;
}

// Bytes of dynamic shared memory that a launch may ask for.
size_t most_dynamic(const Function& f) {
  return f.most_dynamic >= 0 ? size_t(f.most_dynamic) : shared_without_opt_in - f.kernel->static_shared;
}

void launch(const Function& f, dim3 grid, dim3 block, unsigned cluster, void** arguments, size_t dynamic,
            cudaStream_t stream) {
  const Kernel& kernel = *f.kernel;
  const char* const name = kernel.name.c_str();
  const unsigned grids[] = {grid.x, grid.y, grid.z}, blocks[] = {block.x, block.y, block.z};
  for (int i = 0; i < 3; i++) {
    if (grids[i] == 0 || grids[i] > unsigned(most_grid[i]))
      refuse(cudaErrorInvalidConfiguration, "launch of %s: %u blocks in %c, expected 1 to %d", name, grids[i], "xyz"[i],
             most_grid[i]);
    if (blocks[i] == 0 || blocks[i] > unsigned(most_block[i]))
      refuse(cudaErrorInvalidConfiguration, "launch of %s: %u threads in %c, expected 1 to %d", name, blocks[i],
             "xyz"[i], most_block[i]);
  }
  const size_t threads = size_t(block.x) * block.y * block.z;
  if (threads > most_threads)
    refuse(cudaErrorInvalidConfiguration, "launch of %s: %zu threads a block, expected at most %d", name, threads,
           most_threads);
  if (threads > kernel.most_threads)
    refuse(cudaErrorLaunchOutOfResources,
           "launch of %s: %zu threads a block, expected at most the %u of its __launch_bounds__", name, threads,
           kernel.most_threads);
  if (dynamic > most_dynamic(f))
    refuse(cudaErrorInvalidValue,
           "launch of %s: %zu bytes of dynamic shared memory beside %zu of static, expected at most %zu: %s", name,
           dynamic, kernel.static_shared, most_dynamic(f),
           f.most_dynamic >= 0 ? "so many were asked for" : "cudaFuncSetAttribute has not asked for more");
  if (cluster > 1 && compute_capability() < 90)
    refuse(cudaErrorNotSupported, "launch of %s: clusters are for compute capability 9.0", name);
  if (cluster < 1 || cluster > most_cluster || grid.x % cluster)
    refuse(cudaErrorInvalidClusterSize, "launch of %s: clusters of %u blocks of %u in x, expected 1 to %d, and no rest",
           name, cluster, grid.x, most_cluster);
  if (cluster > 1 && (threads % 32 || cluster * threads > most_in_cluster))
    refuse(cudaErrorNotSupported,
           "launch of %s: clusters of %u blocks of %zu threads: whole warps are known here, and %zu", name, cluster,
           threads, most_in_cluster);
  std::vector<char> parameters(kernel.parameter_bytes);
  for (size_t i = 0; i < kernel.parameters.size(); i++)
    memcpy(&parameters[kernel.parameters[i].offset], arguments[i], kernel.parameters[i].bytes);
  const auto run_it = [&kernel, grid, block, cluster, dynamic, parameters] {
    switch (run(kernel, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, cluster, dynamic, parameters.data())) {
      case Fault::none: return;
      case Fault::illegal_address: throw Refusal{cudaErrorIllegalAddress};
      case Fault::misaligned_address: throw Refusal{cudaErrorMisalignedAddress};
      case Fault::launch_failure: throw Refusal{cudaErrorLaunchFailure};
    }
  };
  submit(stream, {"a launch of " + kernel.name, run_it, {}});
}

// How many blocks are at work at once on a multiprocessor, by their threads and shared memory. What registers leave of
// that is ptxas' to say.
int blocks_at_once(const Function& f, int threads, size_t dynamic) {
  if (threads <= 0) refuse(cudaErrorInvalidValue, "occupancy of %s: %d threads a block", f.name.c_str(), threads);
  if (unsigned(threads) > f.kernel->most_threads || dynamic > most_dynamic(f)) return 0;
  const size_t warps = size_t(gpu().threads_per_multiprocessor / 32) / ((size_t(threads) + 31) / 32);
  const size_t shared =
      (f.kernel->static_shared + dynamic + shared_of_the_system + 127) / 128 * 128;  // the hardware's unit
  return int(std::min({warps, size_t(gpu().blocks_per_multiprocessor), gpu().shared_per_multiprocessor / shared}));
}

}  // namespace

// ---- errors: the names and words are CUDA's

static const struct {
  cudaError_t code;
  const char *name, *words;
} errors[] = {
#define ERROR(name, words) \
  { name, #name, words }
    ERROR(cudaSuccess, "no error"),
    ERROR(cudaErrorInvalidValue, "invalid argument"),
    ERROR(cudaErrorMemoryAllocation, "out of memory"),
    ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    ERROR(cudaErrorInvalidPitchValue, "invalid pitch argument"),
    ERROR(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    ERROR(cudaErrorMissingConfiguration, "__global__ function call is not configured"),
    ERROR(cudaErrorInvalidDeviceFunction, "invalid device function"),
    ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    ERROR(cudaErrorInvalidPtx, "a PTX JIT compilation failed"),
    ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    ERROR(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    ERROR(cudaErrorNotReady, "device not ready"),
    ERROR(cudaErrorUnknown, "unknown error"),
    ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    ERROR(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    ERROR(cudaErrorInvalidClusterSize, "cluster misconfiguration"),
    ERROR(cudaErrorMisalignedAddress, "misaligned address"),
    ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    ERROR(cudaErrorNotSupported, "operation not supported"),
    ERROR(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    ERROR(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"),
    ERROR(cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences"),
    ERROR(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"),
    ERROR(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    ERROR(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream"),
    ERROR(cudaErrorStreamCaptureImplicit,
          "operation would make the legacy stream depend on a capturing blocking stream"),
    ERROR(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream"),
    ERROR(cudaErrorStreamCaptureWrongThread,
          "attempt to terminate a thread-local capture sequence from another thread"),
#undef ERROR
};

const char* cudaGetErrorName(cudaError_t code) {
  for (const auto& error : errors)
    if (error.code == code) return error.name;
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t code) {
  for (const auto& error : errors)
    if (error.code == code) return error.words;
  return "unrecognized error code";
}

// ---- the device

cudaError_t cudaGetDeviceCount(int* count) {
  return call([&] {
    require_device("cudaGetDeviceCount", 0, count);
    *count = devices();
  });
}

cudaError_t cudaSetDevice(int device) {
  return call([&] {
    require_device("cudaSetDevice", device, &own_device);
    own_device = device;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return call([&] {
    require_device("cudaGetDevice", 0, device);
    *device = own_device;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr what, int device) {
  return call([&] {
    require_device("cudaDeviceGetAttribute", device, value);
    *value = attribute(what);
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return call([&] {
    require_device("cudaGetDeviceProperties", device, properties);
    *properties = {};
    strcpy(properties->name, "PTX on a CPU");
    properties->uuid.bytes[0] = char(device + 1);
    properties->totalGlobalMem = memory_use().total;
    properties->major = attribute(cudaDevAttrComputeCapabilityMajor);
    properties->minor = attribute(cudaDevAttrComputeCapabilityMinor);
    properties->multiProcessorCount = multiprocessors;
    properties->warpSize = attribute(cudaDevAttrWarpSize);
    properties->memPitch = most_pitch;
    properties->maxThreadsPerBlock = most_threads;
    memcpy(properties->maxThreadsDim, most_block, sizeof most_block);
    memcpy(properties->maxGridSize, most_grid, sizeof most_grid);
    properties->maxThreadsPerMultiProcessor = gpu().threads_per_multiprocessor;
    properties->maxBlocksPerMultiProcessor = gpu().blocks_per_multiprocessor;
    properties->sharedMemPerBlock = shared_without_opt_in;
    properties->sharedMemPerBlockOptin = gpu().shared_per_block;
    properties->sharedMemPerMultiprocessor = gpu().shared_per_multiprocessor;
    properties->reservedSharedMemPerBlock = shared_of_the_system;
    properties->unifiedAddressing = 1;
  });
}

// ---- memory

cudaError_t cudaMalloc(void** p, size_t bytes) {
  return call([&] {
    not_while_capturing("cudaMalloc");
    require_device("cudaMalloc", 0, p);
    *p = bytes ? allocate(bytes) : nullptr;
    if (bytes && !*p) throw Refusal{cudaErrorMemoryAllocation};
  });
}

// All work is done first. CUDA's reference says that it may be so, and programs rely on it.
cudaError_t cudaFree(void* p) {
  return call([&] {
    if (!p) return;
    wait_for_all("cudaFree");
    if (!release(p))
      refuse(cudaErrorInvalidValue, "cudaFree: %p begins no live allocation: %s", p, explain(p, 1).c_str());
  });
}

cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned flags) {
  return call([&] {
    not_while_capturing("cudaHostAlloc");
    require_device("cudaHostAlloc", 0, p);
    if (flags & ~unsigned(cudaHostAllocPortable | cudaHostAllocWriteCombined))
      refuse(cudaErrorInvalidValue, "cudaHostAlloc: flags %u, expected some of 1 (portable) and 4 (write-combined)",
             flags);
    *p = bytes ? allocate_pinned("cudaHostAlloc", bytes) : nullptr;
  });
}

cudaError_t cudaMallocHost(void** p, size_t bytes) {
  return cudaHostAlloc(p, bytes, cudaHostAllocDefault);
}

// CUDA's reference promises no wait here. So a copy that is under way is a fault of the program.
cudaError_t cudaFreeHost(void* p) {
  return call([&] {
    if (!p) return;
    not_while_capturing("cudaFreeHost");
    const auto found = pinned().find(uintptr_t(p));
    if (found == pinned().end() || !found->second.live)
      refuse(cudaErrorInvalidValue, "cudaFreeHost: %p %s", p,
             found == pinned().end() ? "does not begin pinned memory" : "was given back before");
    const size_t bytes = found->second.bytes;
    if (const std::string user = work_on_pinned(p, bytes); !user.empty()) {
      complain("cudaFreeHost: the %zu bytes at %p are still used by %s: wait for it first", bytes, p, user.c_str());
      throw Refusal{cudaErrorInvalidValue};
    }
    found->second.live = false;
    madvise(p, whole_pages(bytes), MADV_DONTNEED);
    mprotect(p, whole_pages(bytes), PROT_NONE);
  });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return call([&] {
    require_device("cudaMemGetInfo", 0, free);
    require_device("cudaMemGetInfo", 0, total);
    const MemoryUse use = memory_use();
    *free = use.free;
    *total = use.total;
  });
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return call([&] { copy("cudaMemcpy", {to, bytes}, {from, bytes}, bytes, 1, kind, nullptr, true); });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return call([&] { copy("cudaMemcpyAsync", {to, bytes}, {from, bytes}, bytes, 1, kind, stream, false); });
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  return call([&] {
    for (const size_t pitch : {to_pitch, from_pitch})
      if (width && height && (pitch < width || pitch > size_t(most_pitch)))
        refuse(cudaErrorInvalidPitchValue,
               "cudaMemcpy2DAsync: a pitch of %zu bytes, expected %zu (a row's width) to %d", pitch, width, most_pitch);
    copy("cudaMemcpy2DAsync", {to, to_pitch}, {from, from_pitch}, width, height, kind, stream, false);
  });
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return call([&] { set("cudaMemset", to, value, bytes, nullptr); });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return call([&] { set("cudaMemsetAsync", to, value, bytes, stream); });
}

// ---- kernels

cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments, size_t dynamic,
                             cudaStream_t stream) {
  return call([&] { launch(function_of("cudaLaunchKernel", kernel), grid, block, 1, arguments, dynamic, stream); });
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments) {
  return call([&] {
    unsigned cluster = 1;
    for (unsigned i = 0; i < config->numAttrs; i++) {
      const cudaLaunchAttribute& a = config->attrs[i];
      if (a.id != cudaLaunchAttributeClusterDimension || a.val.clusterDim.y != 1 || a.val.clusterDim.z != 1)
        refuse(cudaErrorNotSupported, "cudaLaunchKernelExC: attribute %d; clusters along x alone are known here", a.id);
      cluster = a.val.clusterDim.x;
    }
    launch(function_of("cudaLaunchKernelExC", kernel), config->gridDim, config->blockDim, cluster, arguments,
           config->dynamicSmemBytes, config->stream);
  });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  return call([&] {
    require_device("cudaFuncGetAttributes", 0, attributes);
    const Function& f = function_of("cudaFuncGetAttributes", kernel);
    *attributes = {};
    attributes->sharedSizeBytes = f.kernel->static_shared;
    attributes->localSizeBytes = f.kernel->local_bytes;
    attributes->maxThreadsPerBlock = int(f.kernel->most_threads);
    attributes->ptxVersion = attributes->binaryVersion = compute_capability();
    attributes->maxDynamicSharedSizeBytes = int(most_dynamic(f));
    attributes->preferredShmemCarveout = -1;
  });
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute what, int value) {
  return call([&] {
    Function& f = function_of("cudaFuncSetAttribute", kernel);
    if (what != cudaFuncAttributeMaxDynamicSharedMemorySize)
      refuse(cudaErrorInvalidValue, "cudaFuncSetAttribute: attribute %d is not known here", int(what));
    if (value < 0 || size_t(value) + f.kernel->static_shared > gpu().shared_per_block)
      refuse(cudaErrorInvalidValue,
             "%s: %d bytes of dynamic shared memory beside %zu of static, expected at most %zu in all", f.name.c_str(),
             value, f.kernel->static_shared, gpu().shared_per_block);
    f.most_dynamic = value;
  });
}

cudaError_t cudaFuncGetName(const char** name, const void* kernel) {
  return call([&] {
    require_device("cudaFuncGetName", 0, name);
    *name = function_of("cudaFuncGetName", kernel).name.c_str();
  });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* kernel, int threads,
                                                                   size_t dynamic, unsigned flags) {
  return call([&] {
    require_device("cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", 0, blocks);
    if (flags & ~unsigned(cudaOccupancyDisableCachingOverride))
      refuse(cudaErrorInvalidValue, "occupancy: flags %u", flags);
    *blocks = blocks_at_once(function_of("occupancy", kernel), threads, dynamic);
  });
}

// ---- the driver, of which one function is asked for by name

// (CUDA driver API: cuTensorMapEncodeTiled. What this machine's copies do not know is refused too.)
static CUresult encode_tensor_map(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                  const cuuint64_t* extents, const cuuint64_t* strides, const cuuint32_t* box,
                                  const cuuint32_t* every, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                  CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  const auto refused = [](const char* why) {
    complain("cuTensorMapEncodeTiled: %s", why);
    return CUDA_ERROR_INVALID_VALUE;
  };
  if (uintptr_t(map) % alignof(CUtensorMap)) return refused("the map is not on its type's boundary");
  if (compute_capability() < 90) return refused("it is for compute capability 9.0");
  if (type != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 || rank != 2 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
      swizzle != CU_TENSOR_MAP_SWIZZLE_128B || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE || every[0] != 1 ||
      every[1] != 1 || box[0] != uint32_t(gated::wgmma_line))
    return refused("expected two dimensions of bf16, boxes 64 elements wide, swizzled in 128 bytes, 0 outside");
  const gated::TmaMatrix matrix = {uintptr_t(address), extents[0], extents[1], strides[0], box[1]};
  if (const char* const wrong = gated::tma_refuses(matrix)) return refused(wrong);
  if (!is_device_address(address)) return refused("the matrix is not in device memory");
  write_tensor_map(map, matrix);
  return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version,
                                             unsigned long long flags, cudaDriverEntryPointQueryResult* answer) {
  return call([&] {
    require_device("cudaGetDriverEntryPointByVersion", 0, function);
    require_device("cudaGetDriverEntryPointByVersion", 0, answer);
    if (flags != cudaEnableDefault)
      refuse(cudaErrorInvalidValue, "cudaGetDriverEntryPointByVersion: flags %llu", flags);
    const bool is_known = !strcmp(name, "cuTensorMapEncodeTiled");
    *answer = !is_known         ? cudaDriverEntryPointSymbolNotFound
              : version < 12000 ? cudaDriverEntryPointVersionNotSufficent
                                : cudaDriverEntryPointSuccess;
    *function = *answer == cudaDriverEntryPointSuccess ? reinterpret_cast<void*>(encode_tensor_map) : nullptr;
  });
}

cudaError_t cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* answer) {
  return cudaGetDriverEntryPointByVersion(name, function, CUDART_VERSION, flags, answer);
}

// ---- what nvcc's host code calls: crt/host_runtime.h and crt/device_functions.h declare it

// <<<grid, block, dynamic, stream>>>, from where it is written to the function that makes the launch of it.
struct Configuration {
  dim3 grid, block;
  size_t dynamic;
  cudaStream_t stream;
};
static thread_local std::vector<Configuration> configurations;

extern "C" {

// Its answer is the handle of a module. All kernels are found by their names, so nobody asks whose they are.
void** __cudaRegisterFatBinary(void*) {
  static void* module = nullptr;
  return &module;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}

void __cudaRegisterFunction(void**, const char* host_function, char*, const char* name, int, uint3*, uint3*, dim3*,
                            dim3*, int*) {
  functions()[host_function] = {name};
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t dynamic, CUstream_st* stream) {
  configurations.push_back({grid, block, dynamic, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* dynamic, void* stream) {
  if (configurations.empty()) return cudaErrorMissingConfiguration;
  const Configuration& top = configurations.back();
  *grid = top.grid;
  *block = top.block;
  *dynamic = top.dynamic;
  *static_cast<cudaStream_t*>(stream) = top.stream;
  configurations.pop_back();
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host_function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(host_function));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t dynamic,
                               cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, dynamic, stream);
}

}  // extern "C"
