// sums: the plain statement of the orders that core/reduce.cuh describes, for the references of the operations.
// tests/test_reduce.cpp
#pragma once
#include <cstddef>
#include <vector>

#include "core/device.cuh"
#include "core/math.cuh"

namespace gated {

constexpr size_t row_chains = 128;
constexpr size_t column_slice = 128;
constexpr size_t buffer_chunk = 16384;
constexpr size_t buffer_chunks(size_t n) {
  return ceil_div(n, buffer_chunk);
}

// chain[row_chains] -> their sum. (Inline always: of one function in several objects the linker takes any, and some are
// compiled without optimisation.)
template <class T>
[[gnu::always_inline]] inline T row_chains_total(const T* chain) {
  T lane[32];
  for (int l = 0; l < 32; l++) lane[l] = (chain[4 * l] + chain[4 * l + 1]) + (chain[4 * l + 2] + chain[4 * l + 3]);
  for (int apart = 16; apart > 0; apart /= 2)
    for (int l = 0; l < apart; l++) lane[l] = lane[l] + lane[l + apart];
  return lane[0];
}

// What eight chains give together: neighbours first.
template <class T>
HD T sum_of_eight(const T (&c)[8]) {
  return ((c[0] + c[1]) + (c[2] + c[3])) + ((c[4] + c[5]) + (c[6] + c[7]));
}

// Adds the elements of a row, in ascending order of their index, into 128 chains.
//   RowSum<float> sum;
//   for (size_t i = 0; i < n; i++) sum.fma(a[i], b[i]);
//   const float dot = sum.total();
template <class T>
class RowSum {
 public:
  void add(T v) {
    chain_[i_] = chain_[i_] + v;
    i_ = (i_ + 1) % row_chains;
  }
  void fma(T a, T b) {
    chain_[i_] = fused(a, b, chain_[i_]);
    i_ = (i_ + 1) % row_chains;
  }
  T total() const { return row_chains_total(chain_); }

 private:
  T chain_[row_chains] = {};
  size_t i_ = 0;
};

// Adds the elements of one column, in ascending order of their row, in slices of 128.
template <class T>
class ColumnSum {
 public:
  void add(T v) {
    slice_ = slice_ + v;
    next_row();
  }
  void fma(T a, T b) {
    slice_ = fused(a, b, slice_);
    next_row();
  }
  T total() const {
    std::vector<T> level = slices_;
    if (rows_ % column_slice != 0) level.push_back(slice_);
    if (level.empty()) return T(-0.0);  // no rows add nothing: v + -0 is v for every v, v + 0 not for -0
    if (level.size() == 1) return level[0];
    ColumnSum above;
    for (T v : level) above.add(v);
    return above.total();
  }

 private:
  void next_row() {
    if (++rows_ % column_slice != 0) return;
    slices_.push_back(slice_);
    slice_ = T(0);
  }
  std::vector<T> slices_;  // of the slices that are full
  T slice_ = 0;
  size_t rows_ = 0;
};

// Adds the elements of a buffer, in ascending order of their index, in chunks of 16384.
template <class T>
class BufferSum {
 public:
  void add(T v) {
    chunk_.add(v);
    next();
  }
  void fma(T a, T b) {
    chunk_.fma(a, b);
    next();
  }
  T total() const {
    RowSum<T> chunks = chunks_;
    if (n_ % buffer_chunk != 0) chunks.add(chunk_.total());
    return chunks.total();
  }

 private:
  void next() {
    if (++n_ % buffer_chunk != 0) return;
    chunks_.add(chunk_.total());
    chunk_ = RowSum<T>();
  }
  RowSum<T> chunk_, chunks_;  // of the elements since the last full chunk; of the chunks that are full
  size_t n_ = 0;
};

}  // namespace gated
