// grouped_matmul: rows in groups, each group multiplied with a matrix of its own: the experts of a mixture of experts.
// What it computes, and how: kernels/grouped_matmul.cu
#pragma once
#include "core/storage.h"
#include "kernels/matmul.h"

namespace gated {

// M rows in all, sorted by expert. row_start (E+1), on the device, says where each expert's begin: expert e has rows
// row_start[e] to row_start[e+1]-1, and may have none. row_start[0] is 0, and row_start[E] is M.
struct GroupedShape {
  size_t M, E, N, K;
};

// Layout::nt   C (M,N): row r of expert e = A (M,K) row r * B_e^T (+ bias_e)     B (E,N,K), bias (E,N) or null
// Layout::nn   C (M,N): row r of expert e = A (M,K) row r * B_e (+ bias_e)       B (E,K,N)
// written, or added to C; a bias goes with a C that is written. For each expert the bits of matmul() on its rows alone.
// C overlaps nothing else. On a GPU the kernels here compute it whatever ctx.matmul_engine() is.
void grouped_matmul(float* C, const float* A, const float* B, const int* row_start, const GroupedShape& s,
                    Layout layout, Accumulate accumulate, Context& ctx, const float* bias = nullptr);
// The gradient of the experts' matrices: C_e (N,K) += A_e^T B_e, the sum over the rows of expert e. A (M,N), B (M,K),
// C (E,N,K). For each expert the bits of matmul() in Layout::tn on its rows alone; one without rows keeps its C.
void grouped_matmul_tn(float* C, const float* A, const float* B, const int* row_start, const GroupedShape& s,
                       Context& ctx);
// The gradient of their biases: db_e (N) += column sum over the rows of expert e of dy (M,N). db (E,N). For each expert
// the bits of bias_backward() on its rows alone.
void grouped_bias_backward(float* db, ConstReals dy, const int* row_start, size_t M, size_t E, size_t N, Context& ctx);

// Bytes of scratch that these take on a GPU and on the emulator, however the rows lie.
size_t grouped_matmul_scratch(const GroupedShape& s, Accumulate accumulate);
size_t grouped_matmul_tn_scratch(const GroupedShape& s);
size_t grouped_bias_backward_scratch(size_t M, size_t E, size_t N);

// f(expert, its first row, its rows) for each that has any; row_start on the host.
template <class F>
void for_every_expert(const int* row_start, size_t E, F f) {
  for (size_t e = 0; e < E; e++) {
    const size_t row = size_t(row_start[e]), rows = size_t(row_start[e + 1]) - row;
    if (rows > 0) f(e, row, rows);
  }
}

// Refuses, in the name of an operation, what row numbers cannot hold, and on a CPU, where the host can look, a
// row_start that is none.
void require_groups(const char* name, size_t M, size_t E, const int* row_start, Context& ctx);

// ---- how they are cut up on a GPU, for tests; every choice gives the same bits

Tile grouped_matmul_tile(const GroupedShape& s);
Tile grouped_matmul_tn_tile(const GroupedShape& s);
void grouped_matmul_by_tile(float* C, const float* A, const float* B, const int* row_start, const GroupedShape& s,
                            Layout layout, Accumulate accumulate, Tile tile, Context& ctx, const float* bias = nullptr);
void grouped_matmul_tn_by_tile(float* C, const float* A, const float* B, const int* row_start, const GroupedShape& s,
                               Tile tile, Context& ctx);

// ---- on the CPU: kernels/cpu/grouped_matmul_cpu.cpp

void grouped_matmul_cpu(float* C, const float* A, const float* B, const int* row_start, const GroupedShape& s,
                        Layout layout, Accumulate accumulate, const float* bias = nullptr);
void grouped_matmul_tn_cpu(float* C, const float* A, const float* B, const int* row_start, const GroupedShape& s);
template <class S>
void grouped_bias_backward_cpu(float* db, const S* dy, const int* row_start, size_t M, size_t E, size_t N);
// Bytes that a thread takes and keeps for them, however the rows lie: as matmul_cpu_workspace().
size_t grouped_matmul_cpu_workspace(const GroupedShape& s, Accumulate accumulate);
size_t grouped_matmul_tn_cpu_workspace(const GroupedShape& s);

// ---- reference

template <class T>
void grouped_matmul_ref(T* C, const T* A, const T* B, const int* row_start, const GroupedShape& s, Layout layout,
                        Accumulate accumulate, const T* bias = nullptr);
template <class T>
void grouped_matmul_tn_ref(T* C, const T* A, const T* B, const int* row_start, const GroupedShape& s);
template <class T>
void grouped_bias_backward_ref(T* db, const T* dy, const int* row_start, size_t E, size_t N);

}  // namespace gated
