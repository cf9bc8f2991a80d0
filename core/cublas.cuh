// cublas: what cuBLASLt needs between calls: its handle, a workspace, and the algorithm that was chosen for each shape.
// A Context that was told use_cublas() holds one. kernels/bf16/matmul_cublas.cu
#pragma once
#include "core/device.cuh"
#ifdef __CUDACC__
#include <cublasLt.h>

#include <array>
#include <map>
#include <optional>
#endif

namespace gated {

// What an algorithm may use, allocated once: the size that NVIDIA recommends for Hopper.
constexpr size_t cublas_workspace_bytes = size_t{32} << 20;

#ifdef __CUDACC__
#define CUBLAS_CHECK(call)                                                                    \
  do {                                                                                        \
    cublasStatus_t e_ = (call);                                                               \
    if (e_ != CUBLAS_STATUS_SUCCESS)                                                          \
      ::gated::fail("%s:%d: %s: %s", __FILE__, __LINE__, #call, cublasLtGetStatusString(e_)); \
  } while (0)

struct Cublas {
  explicit Cublas(bool tf32) : tf32(tf32), workspace(Device::cuda, cublas_workspace_bytes) {
    CUBLAS_CHECK(cublasLtCreate(&handle));
  }
  Cublas(const Cublas&) = delete;
  ~Cublas() { cublasLtDestroy(handle); }

  using Shape = std::array<size_t, 16>;  // everything that a choice depends on
  static constexpr size_t epilogue_of_shape = 7;
  const bool tf32;
  cublasLtHandle_t handle = nullptr;
  Buffer<unsigned char> workspace;
  std::map<Shape, std::optional<cublasLtMatmulAlgo_t>> algorithms;  // nothing where the library has none
};
#else
struct Cublas {  // never made: there is no GPU in this build
  explicit Cublas(bool tf32) : tf32(tf32) {}
  const bool tf32;
};
#endif

}  // namespace gated
