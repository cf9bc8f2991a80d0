// launch: the one spelling of a kernel's launch, and what a launch may be: its shared memory and its grid.
// tests/test_device.cpp
#pragma once
#ifdef __CUDACC__
#include <cxxabi.h>
#endif
#include <string>
#include <tuple>

#include "core/context.cuh"

namespace gated {

#ifdef __CUDACC__
// What the current GPU says of itself.
inline size_t gpu_attribute(cudaDeviceAttr attribute) {
  int device, value;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, device));
  return size_t(value);
}
#endif

// Bytes of shared memory that a block may have on this build's kernel device.
inline size_t shared_limit() {
#ifdef __CUDACC__
  return gpu_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
#else
  return simt::config.shared_limit;
#endif
}

#ifdef __CUDACC__
// A kernel's name for a message, from CUDA 12.3 on.
inline std::string kernel_name([[maybe_unused]] const void* kernel) {
  std::string name = "a kernel";
#if CUDART_VERSION >= 12030
  const char* mangled = nullptr;
  if (cudaFuncGetName(&mangled, kernel) != cudaSuccess) {
    cudaGetLastError();
    return name;
  }
  char* const plain = abi::__cxa_demangle(mangled, nullptr, nullptr, nullptr);
  name = plain ? plain : mangled;
  free(plain);
#endif
  return name;
}
// Refuses what a call for a launch has answered, by the kernel's name. (The next launch must not find it again.)
inline void launch_check(cudaError_t answer, const void* kernel, dim3 grid, dim3 block, size_t shared_bytes) {
  if (answer == cudaSuccess) return;
  cudaGetLastError();
  fail("launch of %s, grid %u x %u x %u, %u threads a block, %zu bytes of dynamic shared memory: %s",
       kernel_name(kernel).c_str(), grid.x, grid.y, grid.z, block.x * block.y * block.z, shared_bytes,
       cudaGetErrorString(answer));
}

// Lets a kernel have so much dynamic shared memory.
template <class Check>
void allow_shared(const void* kernel, size_t shared_bytes, Check check) {
  if (shared_bytes == 0) return;
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, kernel));
  if (shared_must_be_asked_for(attributes.sharedSizeBytes, shared_bytes, shared_limit()))
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared_bytes)));
}
#endif

// launch() in clusters of so many blocks, neighbours in x, of which grid.x is a multiple: they run at once, and reach
// each other's shared memory (core/tma.cuh).
template <class... P, class... A>
void launch_clusters(void (*kernel)(P...), dim3 grid, dim3 block, unsigned cluster, size_t shared_bytes, Context& ctx,
                     A... args) {
  require(ctx.device == kernel_device, "launch: a kernel was sent to %s", name_of(ctx.device));
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
#ifdef __CUDACC__
  const auto* const address = reinterpret_cast<const void*>(kernel);
  const auto check = [&](cudaError_t answer) { launch_check(answer, address, grid, block, shared_bytes); };
  allow_shared(address, shared_bytes, check);
  if (cluster == 1) {
    kernel<<<grid, block, shared_bytes, ctx.stream>>>(static_cast<P>(args)...);
    return check(cudaGetLastError());
  }
  cudaLaunchAttribute in_clusters = {};
  in_clusters.id = cudaLaunchAttributeClusterDimension;
  in_clusters.val.clusterDim = {cluster, 1, 1};
  cudaLaunchConfig_t config = {grid, block, shared_bytes, ctx.stream, &in_clusters, 1};
  check(cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...));
#else
  const std::tuple<P...> given(static_cast<P>(args)...);
  ctx.enqueue([=] {
    std::apply([&](const P&... p) { simt::launch_clusters(kernel, grid, block, cluster, shared_bytes, p...); }, given);
  });
#endif
}

// kernel<<<grid, block, shared_bytes, stream>>>(args...), checked, on whichever device this build's kernels run. An
// empty grid is an operation over no elements: nothing to do.
template <class... P, class... A>
void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, Context& ctx, A... args) {
  launch_clusters(kernel, grid, block, 1, shared_bytes, ctx, args...);
}

// How many this build's kernel device has. Each runs blocks of its own. GATED_MULTIPROCESSORS=4 says of a GPU that it
// has no more: blocks that do one piece of work after another then have several in small tests, too.
inline size_t multiprocessors() {
#ifdef __CUDACC__
  const char* const at_most = getenv("GATED_MULTIPROCESSORS");
  const size_t all = gpu_attribute(cudaDevAttrMultiProcessorCount);
  return at_most ? std::min(all, std::max<size_t>(1, strtoul(at_most, nullptr, 10))) : all;
#else
  return simt::multiprocessors;
#endif
}

// How many blocks of such a launch the device runs at once, for a kernel whose blocks do one piece of work after
// another.
template <class... P>
size_t blocks_at_once([[maybe_unused]] void (*kernel)(P...), [[maybe_unused]] unsigned threads,
                      [[maybe_unused]] size_t shared_bytes) {
#ifdef __CUDACC__
  const auto* const address = reinterpret_cast<const void*>(kernel);
  const auto check = [&](cudaError_t answer) { launch_check(answer, address, {}, threads, shared_bytes); };
  allow_shared(address, shared_bytes, check);
  int blocks;  // on one multiprocessor
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, int(threads), shared_bytes));
  require(blocks > 0, "launch: no block of %u threads with %zu bytes of dynamic shared memory fits this GPU", threads,
          shared_bytes);
  return multiprocessors() * size_t(blocks);
#else
  return multiprocessors();
#endif
}

// A one-dimensional grid of blocks, refused where it would not fit CUDA's 2^31 - 1.
inline dim3 grid_of(size_t blocks) {
  require(blocks <= 0x7fffffff, "launch: %zu blocks are more than a grid holds (2147483647)", blocks);
  return dim3(unsigned(blocks));
}

// Tiles of T tokens as the second side of a grid, which holds 65,535.
inline unsigned grid_tiles(const char* operation, size_t T, size_t tile) {
  constexpr size_t most = 65535;
  require(ceil_div(T, tile) <= most, "%s: T %zu, expected at most %zu: a grid holds %zu tiles of %zu tokens", operation,
          T, most * tile, most, tile);
  return unsigned(ceil_div(T, tile));
}

}  // namespace gated
