// CUDA's runtime as the host sees it, over a machine that this file plays: what runs when, what is refused and how,
// captures, and what a program that breaks a rule ends with. (It is linked without ptx/machine.cpp.)
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <stdexcept>
#include <thread>
#include <vector>

#include "ptx/machine.h"
#include "tests/child.h"
#include "tests/contents.h"

using gated::says;

extern "C" {
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*);
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, cudaStream_t);
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*);
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*);
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t);
}

// ---- the machine

namespace {

constexpr size_t device_bytes = size_t{1} << 30;
char* const addresses = static_cast<char*>(mmap(nullptr, device_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
size_t given = 0;
std::map<const char*, std::vector<char>> allocations;
int capability = 90;
unsigned last_cluster = 0;  // blocks of each in the last launch
ptx::Fault next_fault = ptx::Fault::none;
int launches = 0;

// Each is add(int* at, int value): *at += value. One is registered, but there is no PTX of it.
char add_stub, static_stub, bounded_stub, unknown_stub, unregistered_stub;
const std::map<std::string, ptx::Kernel> kernels = [] {
  std::map<std::string, ptx::Kernel> all;
  const struct {
    const char &stub, *name;
    size_t static_shared;
    unsigned most_threads;
  } registered[] = {{add_stub, "add", 0, 1024},
                    {static_stub, "static", 8 << 10, 1024},
                    {bounded_stub, "bounded", 0, 128},
                    {unknown_stub, "unknown", 0, 0}};
  for (const auto& [stub, name, static_shared, most_threads] : registered) {
    __cudaRegisterFunction(nullptr, &stub, nullptr, name, -1, nullptr, nullptr, nullptr, nullptr, nullptr);
    if (most_threads) all[name] = {name, {{0, 8}, {8, 4}}, {}, 16, static_shared, 24, most_threads, nullptr, ""};
  }
  return all;
}();

}  // namespace

namespace ptx {

void* allocate(size_t bytes) {
  if (bytes > device_bytes - given) return nullptr;
  char* const p = addresses + given;
  given += (bytes + 511) / 256 * 256;
  allocations[p].assign(bytes, char(0xFF));
  return p;
}
bool release(void* p) {
  return allocations.erase(static_cast<char*>(p));
}
MemoryUse memory_use() {
  return {device_bytes - given, device_bytes};
}
bool is_device_address(const void* p) {
  return p >= addresses && p < addresses + device_bytes;
}
void* storage(const void* p, size_t n) {
  const auto* const at = static_cast<const char*>(p);
  for (auto& [begin, memory] : allocations)
    if (at >= begin && at + n <= begin + memory.size()) return memory.data() + (at - begin);
  return nullptr;
}
std::string explain(const void*, size_t) {
  return "not inside a live allocation";
}
const Kernel& find_kernel(const std::string& name) {
  const auto found = kernels.find(name);
  if (found == kernels.end()) throw std::runtime_error("no PTX of kernel " + name);
  return found->second;
}
Fault run(const Kernel&, Extent, Extent, unsigned cluster, size_t, const void* parameters) {
  launches++;
  last_cluster = cluster;
  int *at, value;
  memcpy(&at, parameters, 8);
  memcpy(&value, static_cast<const char*>(parameters) + 8, 4);
  *static_cast<int*>(storage(at, 4)) += value;
  return std::exchange(next_fault, Fault::none);
}
int compute_capability() {
  return capability;
}

}  // namespace ptx

// ---- helpers

namespace {

// Each of these calls goes well; each is refused with this error, which stays the last one.
struct Answer {
  cudaError_t said, last;
  Answer(cudaError_t said) : said(said), last(cudaGetLastError()) {}
};
#define OK(...) \
  for (const cudaError_t said : {__VA_ARGS__}) REQUIRE(cudaGetErrorName(said) == std::string("cudaSuccess"))
#define REFUSED(error, ...)                                                     \
  for (const auto& [said, last] : std::initializer_list<Answer>{__VA_ARGS__}) { \
    REQUIRE(cudaGetErrorName(said) == std::string(#error));                     \
    REQUIRE(cudaGetErrorName(last) == std::string(#error));                     \
  }

// What is made at first and given back at last.
template <class T, cudaError_t (*end)(T)>
struct Owned {
  T at;
  ~Owned() { end(at); }
  operator T() const { return at; }
};
struct Device : Owned<void*, cudaFree> {
  explicit Device(size_t n = 1) { OK(cudaMalloc(&at, n * sizeof(int))); }
  operator int*() const { return static_cast<int*>(at); }
  // What is there now, which no host could see.
  int peek(size_t i = 0) const { return static_cast<int*>(ptx::storage(at, 4 * (i + 1)))[i]; }
};
struct Pinned : Owned<void*, cudaFreeHost> {
  explicit Pinned(size_t n = 1) { OK(cudaMallocHost(&at, n * sizeof(int))); }
  operator int*() const { return static_cast<int*>(at); }
};
struct Stream : Owned<cudaStream_t, cudaStreamDestroy> {
  explicit Stream(unsigned flags = cudaStreamDefault) { OK(cudaStreamCreateWithFlags(&at, flags)); }
  ~Stream() { cudaStreamSynchronize(at); }
};
struct Event : Owned<cudaEvent_t, cudaEventDestroy> {
  explicit Event(unsigned flags = cudaEventDisableTiming) { OK(cudaEventCreateWithFlags(&at, flags)); }
};
using Ints = std::vector<int>;
int look(const Device& x) {
  return x.peek();
}
int look(int x) {
  return x;
}
template <class... T>
Ints seen(const T&... all) {
  return {look(all)...};
}

cudaError_t add(int* at, int value, cudaStream_t stream, const void* kernel = &add_stub, dim3 grid = 1, dim3 block = 1,
                size_t dynamic = 0) {
  void* arguments[] = {&at, &value};
  return cudaLaunchKernel(kernel, grid, block, arguments, dynamic, stream);
}
cudaError_t set(int* at, int byte, cudaStream_t stream) {
  return cudaMemsetAsync(at, byte, 4, stream);
}
constexpr int twos = 0x02020202, ones = 0x01010101, fresh = -1;

cudaError_t begin(cudaStream_t stream, cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
  return cudaStreamBeginCapture(stream, mode);
}

// What most tests work on.
struct Things {
  const Stream stream, other;
  const Device x{6}, y{4};
  const Pinned pinned{6};
  int pageable = 0;
};

// A program that does this ends with this status, or by this signal, and says this on stderr. A check of its own that
// fails ends it with 99; HERE is one that each of these calls answers so.
#define CHECK_HERE(condition) \
  if (!(condition)) fprintf(stderr, "line %d: %s\n", __LINE__, #condition), _exit(99)
#define HERE(code, ...) \
  for (const auto said : {__VA_ARGS__}) CHECK_HERE(said == code)
std::string ends(int status, const std::string& text, const std::function<void()>& body) {
  const gated::Child ended = gated::in_child([&] {
    signal(SIGSEGV, SIG_DFL);  // (in the place of Catch's)
    body();
  });
  INFO(ended.said);
  REQUIRE(ended.status == status);
  REQUIRE(says(ended.said, {text}));
  return ended.said;
}
// What body() gives a stream, ready to be launched.
struct Graph {
  cudaGraph_t at;
  cudaGraphExec_t exec;
  Graph(cudaStream_t stream, const std::function<void()>& body) {
    OK(begin(stream));
    body();
    OK(cudaStreamEndCapture(stream, &at), cudaGraphInstantiate(&exec, at, 0));
  }
};

}  // namespace

// ---- what runs when

TEST_CASE_METHOD(Things, "ptx: a copy from pinned memory reads it late, one from other memory at once", "[ptx]") {
  *pinned = 1;
  pageable = 5;
  OK(cudaMemcpyAsync(x, pinned, 4, cudaMemcpyHostToDevice, stream),
     cudaMemcpyAsync(y, &pageable, 4, cudaMemcpyHostToDevice, stream));
  REQUIRE(seen(x, y) == Ints{fresh, fresh});
  *pinned = 2;
  pageable = 6;
  OK(cudaStreamSynchronize(stream));
  REQUIRE(seen(x, y) == Ints{2, 5});
}

TEST_CASE_METHOD(Things, "ptx: a copy to pinned memory arrives late, one to other memory at once", "[ptx]") {
  OK(set(x, 1, stream), set(y, 2, other), cudaMemcpyAsync(pinned, x, 4, cudaMemcpyDeviceToHost, stream));
  REQUIRE(*pinned == fresh);
  OK(cudaMemcpyAsync(&pageable, x, 4, cudaMemcpyDeviceToHost, stream));
  REQUIRE(seen(*pinned, pageable, y) == Ints{ones, ones, fresh});
  OK(cudaMemcpyAsync(pinned, &pageable, 4, cudaMemcpyHostToHost, other));  // within the host: at once
  REQUIRE(y.peek() == twos);
}

TEST_CASE_METHOD(Things, "ptx: pinned memory that a copy will write is NaN until then", "[ptx]") {
  OK(cudaMemsetAsync(x, 1, 16, stream));
  std::fill_n(&pinned[0], 4, 5);
  OK(cudaMemcpy2DAsync(pinned, 8, x, 8, 4, 2, cudaMemcpyDeviceToHost, stream));
  REQUIRE(Ints(&pinned[0], &pinned[4]) == Ints{fresh, 5, fresh, 5});
  OK(cudaStreamSynchronize(stream));
  REQUIRE(Ints(&pinned[0], &pinned[4]) == Ints{ones, 5, ones, 5});
  // A copy that stands before it still reads what is there.
  *pinned = 7;
  OK(cudaMemcpyAsync(x, pinned, 4, cudaMemcpyHostToDevice, stream),
     cudaMemcpyAsync(pinned, x + 1, 4, cudaMemcpyDeviceToHost, stream), cudaStreamSynchronize(stream));
  REQUIRE(seen(x, *pinned) == Ints{7, ones});
}

TEST_CASE_METHOD(Things, "ptx: who waits gets what the wait needs, in the order of the stream, and no more", "[ptx]") {
  const Event event;
  OK(cudaEventSynchronize(event));  // never recorded: nothing to wait for
  OK(set(x, 1, stream), add(x, 5, stream), cudaEventRecord(event, stream), add(x, 7, stream), set(y, 2, other),
     cudaEventSynchronize(event));
  REQUIRE(seen(x, y) == Ints{ones + 5, fresh});
  OK(cudaStreamSynchronize(stream));
  REQUIRE(seen(x, y) == Ints{ones + 12, fresh});
  OK(cudaDeviceSynchronize());
  REQUIRE(y.peek() == twos);
  // An event brings one stream behind another.
  OK(set(x, 1, stream), cudaEventRecord(event, stream), cudaStreamWaitEvent(other, event, 0),
     cudaMemcpyAsync(y, x, 4, cudaMemcpyDeviceToDevice, other), cudaStreamSynchronize(other));
  REQUIRE(y.peek() == ones);
}

TEST_CASE_METHOD(Things, "ptx: events that are timed say when they were reached, and nothing before", "[ptx]") {
  const Event untimed, from(cudaEventDefault), to(cudaEventDefault);
  float ms = -1;
  OK(cudaEventRecord(untimed, stream), cudaEventRecord(from, stream));
  REFUSED(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, from, to),  // one was never recorded
          cudaEventElapsedTime(&ms, untimed, from));
  OK(set(x, 1, stream), cudaEventRecord(to, stream));
  REQUIRE(cudaEventElapsedTime(&ms, from, to) == cudaErrorNotReady);
  OK(cudaEventSynchronize(from));
  REQUIRE(cudaEventElapsedTime(&ms, from, to) == cudaErrorNotReady);
  REQUIRE(cudaGetLastError() == cudaErrorNotReady);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  OK(cudaEventSynchronize(to), cudaEventElapsedTime(&ms, from, to));
  REQUIRE(ms >= 20);
  OK(cudaEventElapsedTime(&ms, to, from));
  REQUIRE(ms <= -20);
}

TEST_CASE_METHOD(Things, "ptx: the null stream and blocking streams wait for each other, others for none", "[ptx]") {
  const Stream apart(cudaStreamNonBlocking);
  const Device z;
  OK(set(x, 1, stream), set(z, 1, apart), set(y, 1, nullptr), cudaStreamSynchronize(nullptr));
  REQUIRE(seen(x, y, z) == Ints{ones, ones, fresh});
  OK(set(x, 2, nullptr), set(z, 2, apart), cudaStreamSynchronize(apart));
  REQUIRE(seen(z, x) == Ints{twos, ones});
  OK(set(y, 2, stream), cudaStreamSynchronize(stream));
  REQUIRE(x.peek() == twos);
  // A wait for the null stream is one for all blocking streams, one that is gone among them.
  cudaStream_t gone;
  OK(cudaStreamCreate(&gone), set(x, 1, gone), cudaStreamDestroy(gone), cudaStreamSynchronize(cudaStreamLegacy));
  REQUIRE(x.peek() == ones);
}

TEST_CASE_METHOD(Things, "ptx: blocking copies wait for what CUDA says, and no more", "[ptx]") {
  pageable = 3;
  OK(set(y, 1, stream), cudaMemcpy(x, &pageable, 4, cudaMemcpyHostToDevice));
  REQUIRE(seen(y, x) == Ints{ones, fresh});  // behind a wait for the stream; the host's memory has been read, no more
  pageable = 4;
  OK(cudaMemcpy(&pageable, x, 4, cudaMemcpyDefault));
  REQUIRE(pageable == 3);
  *pinned = 9;
  OK(cudaMemcpy(x, pinned, 4, cudaMemcpyHostToDevice));
  REQUIRE(x.peek() == 9);
  OK(cudaMemcpy(y, x, 4, cudaMemcpyDeviceToDevice), cudaMemset(x, 2, 4));
  REQUIRE(seen(y, x) == Ints{ones, 9});
  OK(cudaMemcpy(pinned, y, 4, cudaMemcpyDeviceToHost));
  REQUIRE(seen(*pinned, x) == Ints{9, twos});  // the memset stood before that
}

TEST_CASE_METHOD(Things, "ptx: memory is given back when all work is done", "[ptx]") {
  void* gone;
  OK(cudaMalloc(&gone, 4), cudaMemsetAsync(gone, 1, 4, stream), set(x, 1, stream), cudaFree(gone));
  REQUIRE(x.peek() == ones);
  OK(cudaFree(nullptr));
  REFUSED(cudaErrorInvalidValue, cudaFree(gone), cudaFree(x + 1), cudaMemset(gone, 0, 4));
  REFUSED(cudaErrorMemoryAllocation, cudaMalloc(&gone, device_bytes + 1));
  size_t free_bytes, total;
  OK(cudaMemGetInfo(&free_bytes, &total));
  REQUIRE(free_bytes < total);
  REQUIRE(total == device_bytes);
}

// ---- copies

TEST_CASE_METHOD(Things, "ptx: a copy is refused unless each end lies inside one live allocation of its kind",
                 "[ptx]") {
  int* gone;
  OK(cudaMallocHost(reinterpret_cast<void**>(&gone), 8), cudaFreeHost(gone));
  int host[2] = {};
  const struct {
    void* to;
    const void* from;
    size_t bytes;
    cudaMemcpyKind kind;
  } refused[] = {{x, host, 8, cudaMemcpyDeviceToHost},       {x, host, 8, cudaMemcpyDeviceToDevice},
                 {x, y, 8, cudaMemcpyHostToDevice},          {x, y, 8, cudaMemcpyDeviceToHost},
                 {host, y, 8, cudaMemcpyDeviceToDevice},     {host, x, 8, cudaMemcpyHostToDevice},
                 {host, pinned, 8, cudaMemcpyDeviceToHost},  {x, y, 8, cudaMemcpyHostToHost},
                 {x + 4, host, 9, cudaMemcpyHostToDevice},   {x + 5, y, 8, cudaMemcpyDeviceToDevice},
                 {host, y + 3, 8, cudaMemcpyDefault},        {x, nullptr, 8, cudaMemcpyHostToDevice},
                 {nullptr, x, 8, cudaMemcpyDeviceToHost},    {x, pinned + 5, 8, cudaMemcpyHostToDevice},
                 {pinned - 1, x, 8, cudaMemcpyDeviceToHost}, {x, gone, 4, cudaMemcpyHostToDevice},
                 {x, x, 4, cudaMemcpyDeviceToDevice},        {x + 5, x, 5, cudaMemcpyDefault}};
  for (const auto& c : refused) {
    INFO("case " << &c - refused);
    REFUSED(cudaErrorInvalidValue, cudaMemcpyAsync(c.to, c.from, c.bytes, c.kind, stream),
            cudaMemcpy(c.to, c.from, c.bytes, c.kind));
  }
  REFUSED(cudaErrorInvalidMemcpyDirection, cudaMemcpy(x, host, 4, cudaMemcpyKind(5)));
  REFUSED(cudaErrorInvalidValue, cudaMemsetAsync(x + 4, 0, 9, stream), cudaMemset(pinned, 0, 4));
  OK(cudaMemcpy(nullptr, nullptr, 0, cudaMemcpyHostToDevice), cudaMemsetAsync(nullptr, 0, 0, stream),
     cudaMemcpyAsync(x + 1, x, 4, cudaMemcpyDeviceToDevice, stream));
}

TEST_CASE_METHOD(Things, "ptx: rows are copied, and pitches held to their bounds", "[ptx]") {
  for (int i = 0; i < 6; i++) pinned[i] = i;
  OK(cudaMemcpy(x, pinned, 24, cudaMemcpyHostToDevice),
     cudaMemcpy2DAsync(y, 8, x + 1, 12, 8, 2, cudaMemcpyDeviceToDevice, stream));
  int host[4] = {}, rows[4] = {};
  OK(cudaMemcpy(host, y, 16, cudaMemcpyDeviceToHost));
  REQUIRE(Ints(host, host + 4) == Ints{1, 2, 4, 5});
  OK(cudaMemcpy2DAsync(y, 4, host, 8, 4, 2, cudaMemcpyHostToDevice, stream),  // staged row by row
     cudaMemcpy2DAsync(rows, 8, y, 4, 4, 2, cudaMemcpyDeviceToHost, stream));
  REQUIRE(Ints(rows, rows + 4) == Ints{1, 0, 4, 0});
  const auto rows_of = [&](size_t to_pitch, size_t from_pitch, size_t width, size_t height) {
    return cudaMemcpy2DAsync(y, to_pitch, x, from_pitch, width, height, cudaMemcpyDeviceToDevice, stream);
  };
  REFUSED(cudaErrorInvalidPitchValue, rows_of(8, 0, 8, 2), rows_of(7, 8, 8, 2), rows_of(8, 7, 8, 1),
          rows_of(size_t{1} << 31, 8, 8, 1), rows_of(8, size_t{1} << 31, 8, 1));
  OK(rows_of(0x7fffffff, 0x7fffffff, 8, 1), rows_of(0, 0, 0, 2), rows_of(0, 0, 8, 0), rows_of(8, 8, 8, 0));
  // The target ends before that, twice; of memory there is not so much.
  REFUSED(cudaErrorInvalidValue, rows_of(8, 12, 8, 3), rows_of(12, 12, 8, 2), rows_of(8, 8, 8, SIZE_MAX));
}

// ---- pinned memory

TEST_CASE("ptx: pinned memory is NaN at first, and gone for good at last", "[ptx]") {
  float* p;
  OK(cudaMallocHost(reinterpret_cast<void**>(&p), 8));
  REQUIRE((std::isnan(p[0]) && std::isnan(p[1])));
  REFUSED(cudaErrorInvalidValue, cudaFreeHost(p + 1));
  OK(cudaFreeHost(nullptr), cudaFreeHost(p));
  REFUSED(cudaErrorInvalidValue, cudaFreeHost(p));
  for (int i = 0; i < 10; i++) {
    void* next;
    OK(cudaHostAlloc(&next, 8, cudaHostAllocPortable));
    REQUIRE(next != p);
    OK(cudaFreeHost(next));
  }
  ends(-SIGSEGV, "", [&] { *p = 1; });
  void* q;
  REFUSED(cudaErrorMemoryAllocation, cudaMallocHost(&q, size_t{1} << 60));
  REFUSED(cudaErrorInvalidValue, cudaHostAlloc(&q, 8, cudaHostAllocMapped),
          cudaMallocHost(static_cast<void**>(nullptr), 8));
}

TEST_CASE_METHOD(Things, "ptx: pinned memory may go while a copy uses other", "[ptx]") {
  int* places[3];
  for (int*& p : places) OK(cudaMallocHost(reinterpret_cast<void**>(&p), 4));
  std::sort(places, places + 3);
  OK(cudaMemcpyAsync(x, places[1], 4, cudaMemcpyHostToDevice, stream), cudaFreeHost(places[0]), cudaFreeHost(places[2]),
     cudaStreamSynchronize(stream), cudaFreeHost(places[1]));
}

TEST_CASE_METHOD(Things,
                 "ptx: pinned memory that a copy is still to use is not given back, and the program does not end well",
                 "[ptx]") {
  for (const bool to_device : {true, false})
    ends(1,
         std::string("cudaMemcpyAsync of 4 bytes from ") +
             (to_device ? "pinned memory to device" : "device memory to pinned") + " memory",
         [&] {
           if (to_device)
             cudaMemcpyAsync(x, pinned + 2, 4, cudaMemcpyHostToDevice, stream);
           else
             cudaMemcpyAsync(pinned + 2, x, 4, cudaMemcpyDeviceToHost, stream);
           HERE(cudaErrorInvalidValue, cudaFreeHost(pinned));
           HERE(cudaSuccess, cudaStreamSynchronize(stream));
           CHECK_HERE(pinned[2] == fresh);  // it is still there
           HERE(cudaSuccess, cudaFreeHost(pinned));
         });
}

// ---- launches

TEST_CASE_METHOD(Things, "ptx: a launch is held to the device's limits", "[ptx]") {
  const auto launch = [&](dim3 grid, dim3 block) { return add(x, 0, stream, &add_stub, grid, block); };
  for (const dim3 grid : {dim3(0), dim3(1, 0), dim3(1, 1, 0), dim3(0x80000000u), dim3(1, 65536), dim3(1, 1, 65536)})
    REFUSED(cudaErrorInvalidConfiguration, launch(grid, 1));
  for (const dim3 block :
       {dim3(0), dim3(1, 0), dim3(1, 1, 0), dim3(1025), dim3(1, 1025), dim3(1, 1, 65), dim3(32, 33), dim3(16, 16, 5)})
    REFUSED(cudaErrorInvalidConfiguration, launch(1, block));
  for (const dim3 grid : {dim3(0x7fffffff), dim3(1, 65535), dim3(1, 1, 65535)}) OK(launch(grid, 1));
  for (const dim3 block : {dim3(1024), dim3(1, 1024), dim3(16, 1, 64), dim3(32, 32)}) OK(launch(1, block));
  OK(add(x, 0, stream, &bounded_stub, 1, 128));
  REFUSED(cudaErrorLaunchOutOfResources, add(x, 0, stream, &bounded_stub, 1, 129));
  REFUSED(cudaErrorInvalidDeviceFunction, add(x, 0, stream, &unregistered_stub));
  REFUSED(cudaErrorInvalidPtx, add(x, 0, stream, &unknown_stub));
  OK(cudaGetLastError());  // none of them stays
  OK(cudaStreamSynchronize(stream));
}

TEST_CASE_METHOD(Things, "ptx: clusters are held to the device's limits", "[ptx]") {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  const auto launch = [&](dim3 cluster, dim3 grid, unsigned block = 64) {
    int *at = x, value = 0;
    void* arguments[] = {&at, &value};
    attribute.val.clusterDim = {cluster.x, cluster.y, cluster.z};
    const cudaLaunchConfig_t config = {grid, block, 0, stream, &attribute, 1};
    return cudaLaunchKernelExC(&config, &add_stub, arguments);
  };
  OK(launch(1, 3), launch(8, 16), launch(2, dim3(4, 3, 2)), launch(2, 4, 1024), cudaStreamSynchronize(stream));
  REQUIRE(last_cluster == 2);
  REFUSED(cudaErrorInvalidClusterSize, launch(0, 2), launch(2, 3), launch(16, 16), launch(2, dim3(1, 2)));
  REFUSED(cudaErrorNotSupported, launch(dim3(1, 2), 2), launch(dim3(1, 1, 2), 2), launch(2, 2, 33), launch(8, 8, 1024));
  capability = 89;
  REFUSED(cudaErrorNotSupported, launch(2, 2));
  OK(launch(1, 2));
  capability = 90;
  attribute.id = cudaLaunchAttributePriority;
  REFUSED(cudaErrorNotSupported, launch(1, 2));
}

TEST_CASE_METHOD(Things, "ptx: shared memory is asked for from 48 KiB on, and ends where the GPU's does", "[ptx]") {
  const auto launch = [&](const char& stub, size_t dynamic) { return add(x, 0, stream, &stub, 1, 1, dynamic); };
  const auto ask = [](const char& stub, size_t dynamic) {
    return cudaFuncSetAttribute(&stub, cudaFuncAttributeMaxDynamicSharedMemorySize, int(dynamic));
  };
  const size_t fixed = 8 << 10;
  OK(launch(static_stub, (48 << 10) - fixed));
  REFUSED(cudaErrorInvalidValue, launch(static_stub, (48 << 10) - fixed + 1));
  for (const auto& [gpu, limit] : {std::pair(80, 163 << 10), {86, 99 << 10}, {89, 99 << 10}, {90, 227 << 10}}) {
    INFO(gpu);
    capability = gpu;
    int value;
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    REQUIRE(value == limit);
    const size_t most = size_t(limit) - fixed;
    REFUSED(cudaErrorInvalidValue, ask(static_stub, most + 1));
    OK(ask(static_stub, most), launch(static_stub, most));
    REFUSED(cudaErrorInvalidValue, launch(static_stub, most + 1));
    OK(ask(add_stub, size_t(limit)), launch(add_stub, size_t(limit)));
  }
  OK(ask(static_stub, 100));  // less than without a word
  OK(launch(static_stub, 100));
  REFUSED(cudaErrorInvalidValue, launch(static_stub, 101), ask(static_stub, size_t(-1)),
          cudaFuncSetAttribute(&add_stub, cudaFuncAttributeMax, 1));
  OK(cudaStreamSynchronize(stream));
}

TEST_CASE("ptx: a kernel's attributes, its name, and how many of its blocks run at once", "[ptx]") {
  cudaFuncAttributes attributes;
  OK(cudaFuncGetAttributes(&attributes, &bounded_stub));
  REQUIRE(seen(attributes.maxThreadsPerBlock, attributes.maxDynamicSharedSizeBytes) == Ints{128, 48 << 10});
  OK(cudaFuncGetAttributes(&attributes, &add_stub));
  REQUIRE(attributes.localSizeBytes == 24);
  OK(cudaFuncGetAttributes(&attributes, &static_stub));
  REQUIRE(attributes.sharedSizeBytes == 8 << 10);
  REFUSED(cudaErrorInvalidDeviceFunction, cudaFuncGetAttributes(&attributes, &unregistered_stub));
  const char* name;
  OK(cudaFuncGetName(&name, &bounded_stub));
  REQUIRE(name == std::string("bounded"));
  OK(cudaFuncSetAttribute(&add_stub, cudaFuncAttributeMaxDynamicSharedMemorySize, 99 << 10));
  int blocks;
  const auto occupancy = [&](int threads, size_t dynamic) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, &add_stub, threads, dynamic,
                                                                  cudaOccupancyDefault);
  };
  const struct {
    int gpu, threads, kib, expected;
  } cases[] = {{80, 1024, 0, 2}, {90, 33, 0, 32},  {86, 1024, 0, 1}, {86, 512, 0, 3}, {86, 32, 0, 16}, {89, 32, 0, 24},
               {80, 64, 0, 32},  {80, 65, 0, 21},  {90, 256, 0, 8},  {86, 32, 48, 2}, {80, 32, 40, 4}, {90, 32, 99, 2},
               {86, 32, 99, 1},  {90, 1025, 0, 0}, {90, 32, 100, 0}, {90, 32, 56, 4}};
  for (const auto& c : cases) {
    INFO(c.gpu << ", " << c.threads << " threads, " << c.kib << " KiB");
    capability = c.gpu;
    OK(occupancy(c.threads, size_t(c.kib) << 10));
    REQUIRE(blocks == c.expected);
  }
  OK(occupancy(32, (56 << 10) + 1));
  REQUIRE(blocks == 3);
  REFUSED(cudaErrorInvalidValue, occupancy(0, 0));
}

TEST_CASE_METHOD(Things, "ptx: nvcc's host code launches, and arguments are what they were at the call", "[ptx]") {
  OK(set(x, 1, stream));
  cudaKernel_t kernel;
  OK(__cudaGetKernel(&kernel, &add_stub));
  REQUIRE(__cudaPushCallConfiguration(dim3(1, 2, 3), dim3(4, 5, 6), 7, stream) == 0);
  dim3 grid, block;
  size_t dynamic;
  cudaStream_t popped;
  OK(__cudaPopCallConfiguration(&grid, &block, &dynamic, &popped));
  REQUIRE(seen(int(grid.z), int(block.x), int(dynamic), popped == stream.at) == Ints{3, 4, 7, true});
  REQUIRE(__cudaPopCallConfiguration(&grid, &block, &dynamic, &popped) == cudaErrorMissingConfiguration);
  int value = 3;
  int* at = x;
  void* arguments[] = {&at, &value};
  OK(__cudaLaunchKernel(kernel, grid, block, arguments, dynamic, popped));
  at = nullptr;
  value = 4;
  const int before = launches;
  OK(cudaStreamSynchronize(stream));
  REQUIRE(seen(launches, x) == Ints{before + 1, ones + 3});
}

// ---- errors

TEST_CASE("ptx: the last error is told once", "[ptx]") {
  REQUIRE(cudaMalloc(nullptr, 4) == cudaErrorInvalidValue);
  const Device x;  // what goes well leaves it
  REQUIRE(cudaGetLastError() == cudaErrorInvalidValue);
  REQUIRE(cudaGetLastError() == cudaSuccess);
  REQUIRE(cudaGetErrorString(cudaErrorInvalidPitchValue) == std::string("invalid pitch argument"));
  REQUIRE(cudaGetErrorName(cudaError_t(12345)) == std::string("unrecognized error code"));
}

TEST_CASE_METHOD(Things, "ptx: a fault is told by the call that waits for it, and by every call from there on",
                 "[ptx]") {
  for (const auto& [fault, code] : {std::pair(ptx::Fault::illegal_address, cudaErrorIllegalAddress),
                                    {ptx::Fault::misaligned_address, cudaErrorMisalignedAddress},
                                    {ptx::Fault::launch_failure, cudaErrorLaunchFailure}})
    ends(0, "", [&, fault = fault, code = code] {
      Event event;
      next_fault = fault;
      int host;
      size_t bytes;
      void* p;
      cudaStream_t made;
      HERE(cudaSuccess, add(x, 1, stream), cudaGetLastError(), set(y, 1, stream), cudaEventRecord(event, stream));
      HERE(code, cudaEventSynchronize(event), cudaGetLastError(), cudaGetLastError(), cudaStreamSynchronize(stream),
           cudaDeviceSynchronize(), add(x, 1, stream), set(x, 1, stream),
           cudaMemcpy(&host, x, 4, cudaMemcpyDeviceToHost), cudaMalloc(&p, 4), cudaFree(x), cudaFreeHost(pinned),
           cudaMemGetInfo(&bytes, &bytes), cudaStreamCreate(&made));
      CHECK_HERE(y.peek() == fresh);  // nothing runs any more
    });
}

TEST_CASE_METHOD(Things, "ptx: what is gone, or was never made, is refused", "[ptx]") {
  cudaStream_t gone;
  cudaEvent_t event;
  const Event live;
  OK(cudaStreamCreate(&gone), cudaStreamDestroy(gone), cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
     cudaEventDestroy(event));
  REQUIRE(Stream() != gone);
  int host = 0;
  REFUSED(cudaErrorInvalidResourceHandle, add(x, 1, gone), set(x, 1, gone),
          cudaMemcpyAsync(x, &host, 4, cudaMemcpyHostToDevice, gone),
          cudaMemcpyAsync(x, &host, 0, cudaMemcpyHostToDevice, gone), cudaStreamSynchronize(gone),
          cudaStreamDestroy(gone), cudaStreamDestroy(nullptr), add(x, 1, cudaStreamPerThread), begin(gone),
          cudaEventRecord(live, gone), cudaEventRecord(event, other), cudaEventSynchronize(event),
          cudaEventDestroy(event), cudaStreamWaitEvent(other, event, 0),
          cudaEventDestroy(reinterpret_cast<cudaEvent_t>(other.at)));
  cudaGraphExec_t exec;
  REFUSED(cudaErrorInvalidValue, cudaGraphInstantiate(&exec, reinterpret_cast<cudaGraph_t>(other.at), 0),
          cudaGraphDestroy(nullptr), cudaGraphLaunch(nullptr, other), cudaGraphExecDestroy(nullptr));
  // An event may go before it is reached.
  OK(set(x, 1, other), cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaEventRecord(event, other),
     cudaEventDestroy(event), cudaStreamSynchronize(other));
  REQUIRE(x.peek() == ones);
}

// ---- captures

TEST_CASE_METHOD(Things, "ptx: what a capture takes down runs at each launch, with the arguments of then", "[ptx]") {
  pageable = 10;
  int arrived = 0;
  OK(set(x, 1, stream));  // what stands before a capture is no part of it
  int value = 5;
  const Graph copies(stream, [&] {
    OK(cudaMemcpyAsync(x, &pageable, 4, cudaMemcpyHostToDevice, stream), add(x, value, stream),
       cudaMemcpyAsync(y, x, 4, cudaMemcpyDeviceToDevice, stream),
       cudaMemcpy2DAsync(pinned, 4, y, 4, 4, 1, cudaMemcpyDeviceToHost, stream),
       cudaMemcpyAsync(&arrived, y, 4, cudaMemcpyDeviceToHost, stream));
    value = 6;
  });
  OK(cudaStreamSynchronize(stream));
  REQUIRE(seen(x, y) == Ints{ones, fresh});
  OK(cudaGraphDestroy(copies.at));
  REFUSED(cudaErrorInvalidValue, cudaGraphDestroy(copies.at));
  for (int round = 1; round <= 2; round++) {
    OK(cudaGraphLaunch(copies.exec, stream));
    pageable = 10 * round;  // it is read when the copy runs
    REQUIRE(*pinned != 10 * round + 5);
    OK(cudaStreamSynchronize(stream));
    REQUIRE(seen(*pinned, arrived) == Ints(2, 10 * round + 5));
  }
  // A launch stands behind the one before it, in another stream too.
  const Graph adds(other, [&] { OK(add(x, 1, other)); });
  OK(cudaGraphLaunch(adds.exec, stream), cudaGraphLaunch(adds.exec, other), cudaStreamSynchronize(other));
  REQUIRE(x.peek() == 27);
  // A graph inside a graph.
  const Graph twice(stream, [&] {
    OK(cudaGraphLaunch(adds.exec, stream), cudaGraphLaunch(adds.exec, stream), cudaGraphDestroy(adds.at));
  });
  OK(cudaGraphExecDestroy(copies.exec), cudaGraphExecDestroy(adds.exec), cudaGraphLaunch(twice.exec, stream),
     cudaStreamSynchronize(stream));
  REQUIRE(x.peek() == 29);
  OK(cudaGraphExecDestroy(twice.exec));
  REFUSED(cudaErrorInvalidValue, cudaGraphLaunch(twice.exec, stream));
  OK(cudaGraphDestroy(twice.at));
  cudaGraphExec_t exec;
  REFUSED(cudaErrorInvalidValue, cudaGraphInstantiate(&exec, twice.at, 0));
}

TEST_CASE_METHOD(Things, "ptx: what a capture forbids is refused, and ends the capture", "[ptx]") {
  const Stream apart(cudaStreamNonBlocking);
  const Event recorded, captured, fresh_event;
  OK(cudaEventRecord(recorded, other), cudaStreamSynchronize(other));
  int host = 0;
  void* p = nullptr;
  void *device_memory, *pinned_memory;
  OK(cudaMalloc(&device_memory, 4), cudaMallocHost(&pinned_memory, 4));
  using Actions = std::vector<std::function<cudaError_t()>>;
  // Waits that a relaxed capture allows, and those that it does not.
  const Actions waits = {[&] { return cudaMallocHost(&p, 4); }, [&] { return cudaStreamSynchronize(other); },
                         [&] { return cudaEventSynchronize(recorded); }};
  const Actions own_waits = {[&] { return cudaStreamSynchronize(stream); }, [&] { return cudaDeviceSynchronize(); }};
  const std::pair<cudaError_t, Actions> forbidden[] = {
      {cudaErrorStreamCaptureUnsupported, waits},
      {cudaErrorStreamCaptureUnsupported, own_waits},
      {cudaErrorStreamCaptureUnsupported,
       {[&] { return cudaMalloc(&p, 4); }, [&] { return cudaFree(device_memory); },
        [&] { return cudaHostAlloc(&p, 4, 0); }, [&] { return cudaFreeHost(pinned_memory); },
        [&] { return cudaMemcpyAsync(&host, x, 4, cudaMemcpyDeviceToHost, other); }}},  // pageable
      {cudaErrorCapturedEvent, {[&] { return cudaEventSynchronize(captured); }}},
      {cudaErrorStreamCaptureIsolation, {[&] { return cudaStreamWaitEvent(stream, recorded, 0); }}},
      {cudaErrorStreamCaptureImplicit,
       {[&] { return cudaMemcpy(&host, x, 4, cudaMemcpyDeviceToHost); },
        [&] { return cudaMemcpy(x, &host, 4, cudaMemcpyHostToDevice); }, [&] { return cudaMemset(x, 0, 4); },
        [&] { return add(x, 0, nullptr); }, [&] { return cudaEventRecord(fresh_event, nullptr); },
        [&] { return cudaStreamSynchronize(nullptr); }}}};
  cudaGraph_t graph;
  for (const auto& [code, actions] : forbidden)
    for (const auto& action : actions) {
      INFO(cudaGetErrorName(code) << ", action " << &action - actions.data());
      OK(begin(stream), add(x, 1, stream), cudaEventRecord(captured, stream));
      const cudaError_t answer = action();
      REQUIRE(cudaGetErrorName(answer) == std::string(cudaGetErrorName(code)));
      REFUSED(cudaErrorStreamCaptureInvalidated, add(x, 1, stream));
      graph = reinterpret_cast<cudaGraph_t>(&host);
      REFUSED(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));
      REQUIRE(graph == nullptr);
      OK(add(x, 1, stream), cudaStreamSynchronize(stream));  // the stream is as before
    }
  OK(cudaFree(device_memory), cudaFreeHost(pinned_memory));
  // What is not forbidden: asking, and streams that do not wait for this one.
  const Actions allowed = {
      [&] { return add(x, 1, other); },
      [&] { return cudaEventRecord(fresh_event, apart); },
      [&] { return cudaStreamWaitEvent(apart, fresh_event, 0); },
      [&] { return cudaFuncSetAttribute(&add_stub, cudaFuncAttributeMaxDynamicSharedMemorySize, 1); },
      [&] { return cudaGetDevice(&host); },
      [&] { return cudaMemcpyAsync(nullptr, nullptr, 0, cudaMemcpyHostToDevice, stream); }};
  OK(begin(stream));
  for (const auto& action : allowed) OK(action());
  // A stream that does not wait for the null stream lets it work. The host still may not wait.
  OK(cudaStreamEndCapture(stream, &graph), cudaGraphDestroy(graph), begin(apart), set(x, 1, nullptr),
     cudaStreamEndCapture(apart, &graph), cudaGraphDestroy(graph));
  // Relaxed: the host may wait, but not for the stream itself, nor for the device.
  for (const Actions& actions : {waits, own_waits})
    for (const auto& action : actions) {
      const bool fine = actions.size() == waits.size();
      OK(begin(stream, cudaStreamCaptureModeRelaxed));
      REQUIRE((action() == cudaSuccess) == fine);
      REQUIRE((cudaStreamEndCapture(stream, &graph) == cudaSuccess) == fine);
    }
  cudaGetLastError();
  // Another thread is forbidden to wait by the global mode alone.
  for (const auto mode : {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeGlobal}) {
    OK(begin(stream, mode));
    cudaError_t answer, ended;
    std::thread([&] {
      answer = cudaStreamSynchronize(other);
      ended = cudaStreamEndCapture(stream, &graph);
    }).join();
    REQUIRE((answer == cudaSuccess) == (mode == cudaStreamCaptureModeThreadLocal));
    REQUIRE(ended == cudaErrorStreamCaptureWrongThread);
    cudaStreamEndCapture(stream, &graph);
  }
  cudaGetLastError();
}

TEST_CASE_METHOD(Things, "ptx: other streams join a capture by its events, and must be back at its end", "[ptx]") {
  const Stream side;
  const Event fork, join;
  cudaGraph_t graph;
  const auto fork_side = [&] {
    OK(set(x, 1, stream), cudaEventRecord(fork, stream), cudaStreamWaitEvent(side, fork, 0),
       cudaMemcpyAsync(y, x, 4, cudaMemcpyDeviceToDevice, side));
  };
  const auto capture = [&](const std::function<void()>& body) {
    OK(begin(stream));
    fork_side();
    body();
    return cudaStreamEndCapture(stream, &graph);
  };
  const auto back = [&] { OK(cudaEventRecord(join, side), cudaStreamWaitEvent(stream, join, 0)); };
  const Graph both(stream, [&] {
    fork_side();
    OK(add(x, 1, stream));
    back();
  });
  REQUIRE(y.peek() == fresh);
  OK(set(x, 2, side));  // a stream of its own again
  OK(cudaStreamSynchronize(side));
  REQUIRE(x.peek() == twos);
  OK(cudaGraphLaunch(both.exec, stream), cudaStreamSynchronize(stream));
  REQUIRE(seen(y, x) == Ints{ones, ones + 1});
  OK(cudaGraphExecDestroy(both.exec));

  REFUSED(cudaErrorStreamCaptureUnjoined, capture([] {}));
  REQUIRE(graph == nullptr);
  REFUSED(cudaErrorStreamCaptureUnjoined, capture([&] {
            back();
            OK(add(y, 1, side));  // after it came back
          }));
  REFUSED(cudaErrorStreamCaptureInvalidated, capture([&] {
            back();
            REFUSED(cudaErrorStreamCaptureUnmatched, cudaStreamEndCapture(side, &graph));
          }));
  REFUSED(cudaErrorStreamCaptureInvalidated, capture([&] {
            back();
            REFUSED(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(side));
          }));
  REFUSED(cudaErrorStreamCaptureInvalidated, capture([&] {
            back();
            OK(begin(other));
            REFUSED(cudaErrorStreamCaptureMerge, cudaStreamWaitEvent(other, join, 0));
            REFUSED(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(other, &graph));
          }));
  // The null stream cannot join; and an event of a capture is none outside of it.
  const Stream apart(cudaStreamNonBlocking);
  OK(begin(apart), cudaEventRecord(fork, apart));
  REFUSED(cudaErrorStreamCaptureImplicit, cudaStreamWaitEvent(nullptr, fork, 0));
  REFUSED(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(apart, &graph));
  REFUSED(cudaErrorCapturedEvent, cudaStreamWaitEvent(stream, fork, 0), cudaEventSynchronize(fork));
  OK(cudaEventRecord(fork, stream), cudaEventSynchronize(fork));

  REFUSED(cudaErrorStreamCaptureUnsupported, begin(nullptr));
  REFUSED(cudaErrorIllegalState, cudaStreamEndCapture(stream, &graph));
  OK(begin(stream));
  REFUSED(cudaErrorIllegalState, begin(stream));
  OK(cudaStreamWaitEvent(stream, Event(), 0));  // never recorded: nothing from outside
  OK(cudaStreamEndCapture(stream, &graph), cudaGraphDestroy(graph));
}

TEST_CASE_METHOD(Things, "ptx: a program that leaves a capture open, or destroys what is at work, does not end well",
                 "[ptx]") {
  ends(1, "nobody ended the capture of stream", [&] { begin(stream); });
  ends(3, "nobody ended", [&] {
    begin(stream);
    exit(3);  // what it ends with already is left alone
  });
  ends(1, "cudaStreamDestroy: stream", [&] {
    cudaGraph_t graph;
    begin(stream);
    HERE(cudaErrorStreamCaptureUnsupported, cudaStreamDestroy(stream));
    HERE(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));
  });
  ends(1, "is destroyed while it runs", [&] {
    const Graph adds(stream, [&] { add(x, 1, stream); });
    cudaGraphLaunch(adds.exec, stream);
    HERE(cudaSuccess, cudaGraphDestroy(adds.at));
    HERE(cudaErrorInvalidValue, cudaGraphExecDestroy(adds.exec));
    HERE(cudaSuccess, cudaStreamSynchronize(stream));
  });
  ends(1, "the program ends, but nobody waited for cudaMemsetAsync of 4 bytes", [&] { set(x, 1, stream); });
  ends(0, "of pinned memory that was given back", [&] {
    const Graph copies(stream, [&] { cudaMemcpyAsync(x, pinned, 4, cudaMemcpyHostToDevice, stream); });
    HERE(cudaSuccess, cudaFreeHost(pinned), cudaGraphLaunch(copies.exec, stream));
    HERE(cudaErrorIllegalAddress, cudaStreamSynchronize(stream));
  });
}

// ---- the device, and cuBLASLt

TEST_CASE("ptx: the device says what it is", "[ptx]") {
  cudaDeviceProp properties;
  int number;
  const auto attribute = [&](cudaDeviceAttr which) {
    OK(cudaDeviceGetAttribute(&number, which, 0));
    return number;
  };
  for (const int gpu : {80, 86, 89, 90}) {
    capability = gpu;
    OK(cudaGetDeviceProperties(&properties, 0));
    REQUIRE(properties.name == std::string("PTX on a CPU"));
    REQUIRE(10 * properties.major + properties.minor == gpu);
    REQUIRE(attribute(cudaDevAttrComputeCapabilityMajor) == gpu / 10);
    REQUIRE(attribute(cudaDevAttrMaxSharedMemoryPerBlock) == 48 << 10);
    REQUIRE(attribute(cudaDevAttrMultiProcessorCount) == 4);
  }
  int devices;
  OK(cudaGetDeviceCount(&devices), cudaGetDevice(&number));
  REQUIRE(seen(devices, number) == Ints{1, 0});
  REFUSED(cudaErrorInvalidDevice, cudaGetDeviceProperties(&properties, 1), cudaSetDevice(1),
          cudaDeviceGetAttribute(&number, cudaDevAttrWarpSize, 1));
  setenv("PTX_DEVICES", "2", 1);
  OK(cudaGetDeviceCount(&devices), cudaSetDevice(1), cudaGetDevice(&number), cudaGetDeviceProperties(&properties, 1));
  REQUIRE(seen(devices, number) == Ints{2, 1});
  REFUSED(cudaErrorInvalidDevice, cudaSetDevice(2), cudaSetDevice(-1));
  OK(cudaSetDevice(0));
  unsetenv("PTX_DEVICES");
  REFUSED(cudaErrorInvalidValue, cudaDeviceGetAttribute(&number, cudaDevAttrMax, 0));
}

TEST_CASE("ptx: cuBLASLt has no algorithm", "[ptx]") {
  const auto all = [](cublasStatus_t status, std::initializer_list<cublasStatus_t> answers) {
    for (const cublasStatus_t answer : answers) REQUIRE(answer == status);
  };
  cublasLtHandle_t handle;
  cublasLtMatmulDesc_t product;
  cublasLtMatrixLayout_t matrix, bad;
  cublasLtMatmulPreference_t preference;
  const uint64_t wide = 0;
  const auto attribute = [&](size_t bytes) {
    return cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &wide, bytes);
  };
  const auto preferred = [&](cublasLtMatmulPreferenceAttributes_t which, size_t bytes) {
    return cublasLtMatmulPreferenceSetAttribute(preference, which, &wide, bytes);
  };
  all(CUBLAS_STATUS_SUCCESS,
      {cublasLtCreate(&handle), cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
       cublasLtMatrixLayoutCreate(&matrix, CUDA_R_32F, 4, 5, 4), cublasLtMatmulPreferenceCreate(&preference),
       attribute(4), preferred(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 8)});
  all(CUBLAS_STATUS_INVALID_VALUE, {cublasLtMatrixLayoutCreate(&bad, CUDA_R_32F, 4, 5, 3), attribute(8)});
  const std::string said =
      ends(0, "", [&] { HERE(CUBLAS_STATUS_NOT_SUPPORTED, preferred(CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT, 4)); });
  REQUIRE(said == "ptx: cublasLtMatmulPreferenceSetAttribute: attribute " +
                      std::to_string(CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT) + " is not known here\n");
  cublasLtMatmulHeuristicResult_t best;
  int found = 7;
  const auto ask = [&] {
    return cublasLtMatmulAlgoGetHeuristic(handle, product, matrix, matrix, matrix, matrix, preference, 1, &best,
                                          &found);
  };
  REQUIRE(ask() == CUBLAS_STATUS_NOT_SUPPORTED);
  REQUIRE(found == 0);
  REQUIRE(cublasLtMatmulPreferenceDestroy(preference) == CUBLAS_STATUS_SUCCESS);
  all(CUBLAS_STATUS_INVALID_VALUE, {cublasLtMatmulPreferenceDestroy(preference), ask()});
  all(CUBLAS_STATUS_SUCCESS,
      {cublasLtMatrixLayoutDestroy(matrix), cublasLtMatmulDescDestroy(product), cublasLtDestroy(handle)});
  REQUIRE(ask() == CUBLAS_STATUS_NOT_INITIALIZED);
  REQUIRE(cublasLtGetStatusString(CUBLAS_STATUS_NOT_SUPPORTED) ==
          std::string("the requested functionality is not supported"));
}
