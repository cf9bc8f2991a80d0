// matmul_cublas: the products of kernels/matmul.cu and kernels/bf16/matmul_bf16.cu by cuBLASLt, in fp32, TF32 or bf16
//
// Faster, and not exact: NVIDIA's kernels add in an order that they do not state, so a result is held to a bound and
// not to the CPU's bits. TF32 rounds the operands to 10 bits after the binary point before it multiplies. Products of
// bf16 are added in fp32; a C in bf16 is rounded once, at the end.
//
// The same result from run to run, because nothing is left to chance:
//   - the library's heuristic chooses an algorithm for a shape (types, sizes, leading dimensions, alignments, epilogue)
//     once, and the choice is kept. It depends on the shape, the GPU and the library's version, not on a measurement
//   - sums that are split along k are added in a fixed order: in the workspace, by a step of their own (reduction
//     scheme "compute type"). The schemes that add in C as blocks finish are not allowed
//   - one stream and one workspace, which is allocated when the context is told to use cuBLAS
//
// cuBLAS is column-major: what is a row-major (M,N) matrix here is a column-major (N,M) one there, the transpose. So
// instead of C = op(A) op(B) it computes C^T = op(B)^T op(A)^T from the same memory: B comes first, and M and N change
// places. Seen column-major, B of nt is (K,N) and has to be transposed, B of nn and tn is (N,K) and does not; A of nt
// and nn is (K,M) and does not, A of tn is (M,K) and has to be.
// A C that is accumulated to is beta = 1. What else a product makes is the epilogue's:
//   bias   one value for each row of C^T. It has the type of C there: beside a C in bf16 it is rounded to bf16 first,
//          in scratch
//   gelu   the result proper; C, which a backward wants, is the auxiliary output beside it. Its leading dimension must
//          be a multiple of 8
//   sums   over k of A: the gradient of a bias, beside that of its weight matrix (tn, where A is dy)
// --matmul=cublas, --tf32 | tests/test_matmul.cpp, tests/test_matmul_bf16.cpp (on a GPU)
#include <algorithm>
#include <optional>

#include "kernels/bf16/matmul_bf16.h"
#include "kernels/bf16/round.h"

namespace gated {
#ifdef __CUDACC__

// A descriptor of cuBLASLt that ends with its scope.
struct CublasDescription {
  explicit CublasDescription(bool tf32) {
    CUBLAS_CHECK(cublasLtMatmulDescCreate(&of, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
  }
  CublasDescription(const CublasDescription&) = delete;
  ~CublasDescription() { cublasLtMatmulDescDestroy(of); }
  template <class T>
  void set(cublasLtMatmulDescAttributes_t what, T value) {
    CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(of, what, &value, sizeof value));
  }
  cublasLtMatmulDesc_t of = nullptr;
};

struct CublasMatrix {
  CublasMatrix(Storage storage, size_t rows, size_t columns, size_t ld) {
    const cudaDataType type = storage == Storage::bf16 ? CUDA_R_16BF : CUDA_R_32F;
    CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&of, type, rows, columns, int64_t(ld)));
  }
  CublasMatrix(const CublasMatrix&) = delete;
  ~CublasMatrix() { cublasLtMatrixLayoutDestroy(of); }
  cublasLtMatrixLayout_t of = nullptr;
};

struct CublasPreference {
  CublasPreference() { CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&of)); }
  CublasPreference(const CublasPreference&) = delete;
  ~CublasPreference() { cublasLtMatmulPreferenceDestroy(of); }
  template <class T>
  void set(cublasLtMatmulPreferenceAttributes_t what, T value) {
    CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(of, what, &value, sizeof value));
  }
  cublasLtMatmulPreference_t of = nullptr;
};

// The largest power of two up to 256 that an address is a multiple of.
static size_t cublas_alignment(const void* p) {
  size_t bytes = 256;
  while (reinterpret_cast<uintptr_t>(p) % bytes != 0) bytes /= 2;
  return bytes;
}

// `bias` as the epilogue wants it beside a C of type Out.
template <class Out>
static const void* cublas_bias(const float* bias, size_t N, Context& ctx) {
  if (!bias || storage_of<Out> == Storage::fp32) return bias;
  bf16* const rounded = ctx.scratch<bf16>(N);
  round_to_bf16(rounded, bias, N, ctx);
  return rounded;
}

// The algorithm for a product as it is described, or none.
static std::optional<cublasLtMatmulAlgo_t> choose_algorithm(Cublas& cublas, const CublasDescription& product,
                                                            const CublasMatrix& first, const CublasMatrix& second,
                                                            const CublasMatrix& result, size_t align_first,
                                                            size_t align_second, size_t align_result) {
  require_not_recording(Device::cuda, "cuBLASLt chooses an algorithm");
  CublasPreference preference;
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(cublas_workspace_bytes));
  preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t(align_first));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, uint32_t(align_second));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, uint32_t(align_result));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, uint32_t(align_result));
  cublasLtMatmulHeuristicResult_t best;
  int found = 0;
  const cublasStatus_t answer = cublasLtMatmulAlgoGetHeuristic(cublas.handle, product.of, first.of, second.of,
                                                               result.of, result.of, preference.of, 1, &best, &found);
  if (answer != CUBLAS_STATUS_NOT_SUPPORTED) CUBLAS_CHECK(answer);
  if (answer != CUBLAS_STATUS_SUCCESS || found == 0 || best.state != CUBLAS_STATUS_SUCCESS) return {};
  return best.algo;
}

template <class In, class Out>
bool matmul_cublas(Matrix<Out> C, Matrix<const In> A, Matrix<const In> B, size_t M, size_t N, size_t K, Layout layout,
                   Accumulate accumulate, const CublasEpilogue& epilogue, Context& ctx) {
  Cublas& cublas = ctx.cublas();
  constexpr Storage in = storage_of<In>, out = storage_of<Out>;
  require(!epilogue.sums || (!epilogue.bias && !epilogue.gelu && layout == Layout::tn),
          "matmul: sums of columns are made in layout tn, without a bias or an activation");
  if (epilogue.gelu && C.ld % 8 != 0) return false;
  const bool turn_a = layout == Layout::tn, turn_b = layout == Layout::nt;
  const void* const bias = epilogue.sums ? epilogue.sums : cublas_bias<Out>(epilogue.bias, N, ctx);
  Out* const written = epilogue.gelu ? static_cast<Out*>(epilogue.gelu) : C.data;
  const cublasLtEpilogue_t kind = epilogue.sums   ? CUBLASLT_EPILOGUE_BGRADB  // of cuBLAS' B, which is A here
                                  : epilogue.gelu ? bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX
                                  : bias          ? CUBLASLT_EPILOGUE_BIAS
                                                  : CUBLASLT_EPILOGUE_DEFAULT;
  CublasDescription product(cublas.tf32 && in == Storage::fp32);
  product.set(CUBLASLT_MATMUL_DESC_TRANSA, turn_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  product.set(CUBLASLT_MATMUL_DESC_TRANSB, turn_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  product.set(CUBLASLT_MATMUL_DESC_EPILOGUE, kind);
  if (bias) product.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  if (epilogue.gelu) {
    product.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<void*>(C.data));
    product.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t(C.ld));
  }
  const CublasMatrix first(in, turn_b ? K : N, turn_b ? N : K, B.ld), second(in, turn_a ? M : K, turn_a ? K : M, A.ld);
  const CublasMatrix result(out, N, M, C.ld);

  const size_t align_a = cublas_alignment(A.data), align_b = cublas_alignment(B.data),
               align_c = cublas_alignment(C.data), align_written = cublas_alignment(written);
  const Cublas::Shape shape = {size_t(in),
                               size_t(out),
                               M,
                               N,
                               K,
                               size_t(layout),
                               size_t(accumulate),
                               size_t(kind),
                               bias ? cublas_alignment(bias) : 0,
                               A.ld,
                               B.ld,
                               C.ld,
                               align_a,
                               align_b,
                               align_c,
                               align_written};
  auto known = cublas.algorithms.find(shape);
  if (known == cublas.algorithms.end())
    known =
        cublas.algorithms
            .emplace(shape, choose_algorithm(cublas, product, first, second, result, align_b, align_a, align_written))
            .first;
  const std::optional<cublasLtMatmulAlgo_t>& algorithm = known->second;
  if (!algorithm && kind != CUBLASLT_EPILOGUE_DEFAULT) return false;
  require(algorithm.has_value(),
          "matmul: cuBLASLt has no algorithm for M %zu, N %zu, K %zu; the exact engine takes any", M, N, K);
  const float alpha = 1, beta = accumulate == Accumulate::yes ? 1 : 0;
  CUBLAS_CHECK(cublasLtMatmul(cublas.handle, product.of, &alpha, B.data, first.of, A.data, second.of, &beta, written,
                              result.of, written, result.of, &*algorithm, cublas.workspace.data(),
                              cublas_workspace_bytes, ctx.stream));
  return true;
}

#else
template <class In, class Out>
bool matmul_cublas(Matrix<Out>, Matrix<const In>, Matrix<const In>, size_t, size_t, size_t, Layout, Accumulate,
                   const CublasEpilogue&, Context&) {
  fail("matmul: this build has no cuBLAS: it was made without nvcc");
}
#endif

#define INSTANTIATE(In, Out)                                                                                   \
  template bool matmul_cublas(Matrix<Out>, Matrix<const In>, Matrix<const In>, size_t, size_t, size_t, Layout, \
                              Accumulate, const CublasEpilogue&, Context&)
INSTANTIATE(float, float);
INSTANTIATE(bf16, float);
INSTANTIATE(bf16, bf16);
#undef INSTANTIATE

}  // namespace gated
