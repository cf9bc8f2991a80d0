// cublas_lt: what the project calls of cuBLASLt. It describes products and asks for an algorithm, and there is none:
// that is a documented answer, which lets the code around a product run. What a call may not be given is refused.
// (cuBLAS itself is called by tests/bench.cpp alone, which measures a device and is not rehearsed.)
#include <cublasLt.h>

#include <cstdint>
#include <cstdio>
#include <set>

namespace {

// What was made and lives, by its handle: a number that looks like a pointer and is given out once.
struct Made {
  template <class Handle>
  cublasStatus_t make(Handle* handle) {
    static uintptr_t given = 0;
    if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
    *handle = reinterpret_cast<Handle>(++given << 8);
    live.insert(*handle);
    return CUBLAS_STATUS_SUCCESS;
  }
  cublasStatus_t destroy(const void* handle) { return live.erase(handle) ? CUBLAS_STATUS_SUCCESS : missing; }
  cublasStatus_t find(const void* handle) const { return live.count(handle) ? CUBLAS_STATUS_SUCCESS : missing; }
  const cublasStatus_t missing;
  std::set<const void*> live{};
};
Made handles{CUBLAS_STATUS_NOT_INITIALIZED}, products{CUBLAS_STATUS_INVALID_VALUE},
    matrices{CUBLAS_STATUS_INVALID_VALUE}, preferences{CUBLAS_STATUS_INVALID_VALUE};

size_t size_of(cublasLtMatmulDescAttributes_t what) {
  switch (what) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
    case CUBLASLT_MATMUL_DESC_TRANSB:
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return 4;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return 8;
    default: return 0;
  }
}

size_t size_of(cublasLtMatmulPreferenceAttributes_t what) {
  switch (what) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return 8;
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return 4;
    default: return 0;
  }
}

// An attribute of a live description has the size that cublasLt.h gives it. One that is not known here is named.
template <class Attribute>
cublasStatus_t set(const Made& all, const char* call, const void* description, Attribute what, const void* value,
                   size_t bytes) {
  if (all.find(description) != CUBLAS_STATUS_SUCCESS || !value) return CUBLAS_STATUS_INVALID_VALUE;
  const size_t expected = size_of(what);
  if (expected == 0) {
    fprintf(stderr, "ptx: %s: attribute %d is not known here\n", call, int(what));
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return bytes == expected ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

}  // namespace

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "the library was not initialized";
    case CUBLAS_STATUS_INVALID_VALUE: return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "the requested functionality is not supported";
    default: return "unrecognized status";
  }
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return handles.make(handle);
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return handles.destroy(handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t, cudaDataType_t) {
  return products.make(product);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  return products.destroy(product);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t what,
                                              const void* value, size_t bytes) {
  return set(products, "cublasLtMatmulDescSetAttribute", product, what, value, bytes);
}

// A column of the matrix is `ld` long, which is no less than its rows.
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* matrix, cudaDataType, uint64_t rows, uint64_t columns,
                                          int64_t ld) {
  if (rows == 0 || columns == 0 || ld < 0 || uint64_t(ld) < rows) return CUBLAS_STATUS_INVALID_VALUE;
  return matrices.make(matrix);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t matrix) {
  return matrices.destroy(matrix);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return preferences.make(preference);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return preferences.destroy(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t what, const void* value,
                                                    size_t bytes) {
  return set(preferences, "cublasLtMatmulPreferenceSetAttribute", preference, what, value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t A, cublasLtMatrixLayout_t B,
                                              cublasLtMatrixLayout_t C, cublasLtMatrixLayout_t D,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t* results, int* found) {
  if (const cublasStatus_t answer = handles.find(handle)) return answer;
  for (const void* matrix : {A, B, C, D})
    if (const cublasStatus_t answer = matrices.find(matrix)) return answer;
  if (const cublasStatus_t answer = products.find(product)) return answer;
  if (const cublasStatus_t answer = preferences.find(preference)) return answer;
  if (most < 1 || !results || !found) return CUBLAS_STATUS_INVALID_VALUE;
  *found = 0;
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void*, cublasLtMatrixLayout_t,
                              const void*, cublasLtMatrixLayout_t, const void*, const void*, cublasLtMatrixLayout_t,
                              void*, cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t) {
  return CUBLAS_STATUS_NOT_SUPPORTED;
}
