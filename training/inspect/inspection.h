// inspection: what the views of layers/inspect.h hold, as figures on the host. training/inspect/measures.h and
// training/inspect/arrays.h add them up. tests/test_measures.cpp, tests/test_arrays.cpp
#pragma once
#include <cmath>
#include <functional>
#include <vector>

#include "layers/inspect.h"

namespace gated {

// n elements for the host to read: a copy of what a GPU has, elsewhere the elements themselves. In bf16 a copy that is
// widened.
template <class T>
class OnHost {
 public:
  OnHost(Device device, const T* data, size_t n) : data_(data), n_(n) {
    if (device != Device::cuda) return;
    copy_.resize(n);
    Buffer<T>::copy_to_host(device, copy_.data(), data, n);
    data_ = copy_.data();
  }
  OnHost(Device device, ConstReals data, size_t n)
      : OnHost(device, data.storage() == Storage::fp32 ? data.as<float>() : nullptr,
               data.storage() == Storage::fp32 ? n : 0) {
    if (data.storage() == Storage::fp32) return;
    const OnHost<bf16> narrow(device, data.as<bf16>(), n);
    copy_.assign(narrow.begin(), narrow.end());
    data_ = copy_.data();
    n_ = n;
  }
  OnHost(const OnHost&) = delete;
  const T* data() const { return data_; }
  bool empty() const { return n_ == 0; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + n_; }
  const T& operator[](size_t i) const { return data_[i]; }

 private:
  const T* data_;
  size_t n_;
  std::vector<T> copy_;
};

inline double dot(const float* a, const float* b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; i++) sum += double(a[i]) * double(b[i]);
  return sum;
}

inline double length(const float* x, size_t n) {
  return std::sqrt(dot(x, x, n));
}

// What a query gives to a key, and to the sink: weights of a softmax, or sigmoids.
class AttentionWeights {
 public:
  AttentionWeights(const AttentionView& view, Device device);
  // j is a key that query i sees.
  double key(size_t b, size_t head, size_t i, size_t j) const;
  double sink(size_t b, size_t head, size_t i) const;  // 0 without one

  // Of all queries but the first of a sequence, added up: what they give to key 0, and to the sink. (B,H)
  struct Sums {
    std::vector<double> first, sink;
  };
  Sums to_first_and_sink() const;

 private:
  const AttentionShape s_;
  const OnHost<float> q_, k_, lse_, logit_;
  const Sink sink_;
};

// f(score) for every score that the model made: of attention's gate, and of a norm's, which has one.
void each_score(const GateView& view, Device device, const std::function<void(double)>& f);
void each_score(const NormView& view, Device device, const std::function<void(double)>& f);

}  // namespace gated
