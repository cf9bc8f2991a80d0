// grouped_matmul_cpu: the products of kernels/grouped_matmul.cu on CPU cores, with the blocks and the packing of
// kernels/cpu/matmul_cpu.cpp. Every expert's product is computed as matmul_cpu() would, so its bits are the
// reference's.
//
// Threads share the experts, not each expert: that keeps parts large where experts are many and small. Experts differ
// in size, and one may have most of the rows, so an expert with more than its share is cut into parts of about
//   all work / (threads * 4)
// and the parts, the largest first, go to whichever thread is free: at the end no thread waits for another longer than
// a small part takes.
#include <omp.h>

#include <algorithm>

#include "core/reduce.cuh"
#include "kernels/grouped_matmul.h"
#include "kernels/cpu/matmul_cpu.h"

namespace gated {
namespace {

using tuned_matmul::Interval;
using tuned_matmul::Operand;

// The product of one expert, C (M,N) = A B, or += ; and a part of it.
struct Product {
  float* C;
  Operand A, B;
  const float* bias;
  size_t M, N, K;
};
struct Part {
  size_t product;
  Interval rows, cols;
  size_t work;
};

constexpr size_t parts_a_thread = 4;

// M, N, K: the largest that a product can have, however the rows lie, so that a later step takes no more memory.
void multiply(const std::vector<Product>& products, size_t ldc, bool accumulate, size_t M, size_t N, size_t K) {
  using namespace tuned_matmul;
  size_t all = 0, fmas = 0;
  for (const Product& p : products) all += part_work(p.M, p.N, p.K), fmas += p.M * p.N * p.K;
  // A thread is worth waking for half a million fmas.
  const size_t threads = std::min<size_t>(omp_get_max_threads(), std::max<size_t>(1, fmas >> 19));
  const size_t share = threads > 1 ? all / (threads * parts_a_thread) + 1 : SIZE_MAX;
  std::vector<Part> parts;
  for (size_t i = 0; i < products.size(); i++) {
    const Product& p = products[i];
    const Cut cut = least_work_cut(p.M, p.N, ceil_div(part_work(p.M, p.N, p.K), share));
    for (size_t m = 0; m < p.M; m += cut.rows)
      for (size_t n = 0; n < p.N; n += cut.cols) {
        const Interval rows = {m, std::min(m + cut.rows, p.M)}, cols = {n, std::min(n + cut.cols, p.N)};
        parts.push_back({i, rows, cols, part_work(rows.size(), cols.size(), p.K)});
      }
  }
  std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.work > b.work; });
#pragma omp parallel if (threads > 1)
  {
    reserve_workspace(M, N, K, accumulate);
#pragma omp for schedule(dynamic, 1)
    for (size_t i = 0; i < parts.size(); i++) {
      const Part& part = parts[i];
      const Product& p = products[part.product];
      compute_part(p.C, ldc, p.A, p.B, p.bias, part.rows, part.cols, p.K, accumulate);
    }
  }
}

}  // namespace

void grouped_matmul_cpu(float* C, const float* A, const float* B, const int* row_start, const GroupedShape& s,
                        Layout layout, Accumulate accumulate, const float* bias) {
  std::vector<Product> products;
  if (s.N == 0) return;
  for_every_expert(row_start, s.E, [&](size_t e, size_t row, size_t rows) {
    const Operand a{A + row * s.K, s.K, rows, true};
    const Operand b{B + e * s.N * s.K, layout == Layout::nt ? s.K : s.N, s.N, layout == Layout::nt};
    products.push_back({C + row * s.N, a, b, bias ? bias + e * s.N : nullptr, rows, s.N, s.K});
  });
  multiply(products, s.N, accumulate == Accumulate::yes, s.M, s.N, s.K);
}

void grouped_matmul_tn_cpu(float* C, const float* A, const float* B, const int* row_start, const GroupedShape& s) {
  std::vector<Product> products;
  if (s.N == 0 || s.K == 0) return;
  for_every_expert(row_start, s.E, [&](size_t e, size_t row, size_t rows) {
    const Operand a{A + row * s.N, s.N, s.N, false}, b{B + row * s.K, s.K, s.K, false};
    products.push_back({C + e * s.N * s.K, a, b, nullptr, s.N, s.K, rows});
  });
  multiply(products, s.K, true, s.N, s.K, s.M);
}

size_t grouped_matmul_cpu_workspace(const GroupedShape& s, Accumulate accumulate) {
  return tuned_matmul::workspace_floats(s.M, s.N, s.K, accumulate == Accumulate::yes) * sizeof(float);
}

size_t grouped_matmul_tn_cpu_workspace(const GroupedShape& s) {
  return tuned_matmul::workspace_floats(s.N, s.K, s.M, true) * sizeof(float);
}

// An expert with more than a thread's share is summed by all threads, the others by one thread each.
template <class S>
void grouped_bias_backward_cpu(float* db, const S* dy, const int* row_start, size_t M, size_t E, size_t N) {
  const size_t share = M / size_t(omp_get_max_threads());
  auto rows_of = [&](size_t e) { return size_t(row_start[e + 1]) - size_t(row_start[e]); };
  auto add = [&](size_t e) {
    column_reduce_add_cpu(db + e * N, rows_of(e), N, AddRows<S>{dy + size_t(row_start[e]) * N, N});
  };
  for (size_t e = 0; e < E; e++)
    if (rows_of(e) > share) add(e);
#pragma omp parallel for schedule(dynamic, 1)
  for (size_t e = 0; e < E; e++)
    if (rows_of(e) <= share) add(e);
}
IN_FLOAT_AND_BF16(grouped_bias_backward_cpu);

}  // namespace gated
