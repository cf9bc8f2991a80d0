// parameters: one visitor for weights, one allocator for everything a model keeps in memory.
//
// A layer lists what it needs in three functions, each calling visit once per tensor:
//   parameters(visit)         visit(weight, name, shape, init, decay)   weights with gradients
//   activations(visit, N)     visit(pointer, name, shape)               written by forward, read by backward
//   temporaries(visit, N)     visit(pointer, name, shape)               live inside one layer's backward
// Allocation, initialisation, the optimizer, checkpoints and the fingerprint all walk these lists, so that no
// second list can drift from the first.
// tests/test_model.cpp
#pragma once
#include <initializer_list>
#include <string>
#include <vector>

#include "core/context.cuh"
#include "core/philox.cuh"

namespace gated {

// A parameter as its layer sees it: the values and their gradient, on the device.
struct Weight {
  float* value = nullptr;
  float* grad = nullptr;
};

// How a parameter starts: N(0, std), 0.02 for every linear layer and embedding (Qwen3), or all at one value.
struct Init {
  bool random;
  double value;  // the standard deviation, or the constant

  static constexpr Init normal(double std = 0.02) { return {true, std}; }
  static constexpr Init constant(double value) { return {false, value}; }
};

enum class Decay { no, yes };

using Shape = std::vector<size_t>;

// Elements of a shape; refuses a product that overflows.
inline size_t count(const Shape& shape) {
  size_t n = 1;
  for (size_t d : shape) require(!__builtin_mul_overflow(n, d, &n), "a tensor's shape overflows: lower the sizes");
  return n;
}

// A parameter as the program sees it: what the visitor said, and where it lies in the flat buffers.
struct Parameter {
  std::string name;
  Shape shape;
  Init init;
  Decay decay;
  size_t offset;
  size_t size;
};

// visit, with every name under a prefix.
template <class Visit>
auto under(Visit& visit, std::string prefix) {
  return [&visit, prefix](Weight& w, const std::string& name, Shape shape, Init init, Decay decay) {
    visit(w, prefix + name, std::move(shape), init, decay);
  };
}

// Tensors begin at multiples of 32 floats (128 bytes, a GPU's memory transaction).
inline size_t padded(size_t n) {
  return ceil_div(n, 32) * 32;
}

// All weights of a model in one flat buffer, their gradients in another with the same offsets.
class Parameters {
 public:
  // Lists what layer.parameters(visit) names; memory comes with allocate().
  template <class Layer>
  explicit Parameters(Layer& layer) {
    layer.parameters([&](Weight&, const std::string& name, Shape shape, Init init, Decay decay) {
      const size_t n = count(shape);
      list_.push_back({name, std::move(shape), init, decay, size_, n});
      require(!__builtin_add_overflow(size_, padded(n), &size_), "the parameters' sizes overflow: lower them");
    });
  }

  template <class Layer>
  void allocate(Layer& layer, Device device) {
    values = Buffer<float>(device, size_);
    grads = Buffer<float>(device, size_);
    size_t i = 0;
    layer.parameters([&](Weight& weight, const std::string&, const Shape&, Init, Decay) {
      weight = {values.data() + list_[i].offset, grads.data() + list_[i].offset};
      i++;
    });
  }

  // Every value is a function of (seed, parameter name, index): a variant that adds a parameter leaves the
  // others' starting values as they were. Padding is zero, so that sums over a flat buffer may run across it.
  void initialise(uint64_t seed) {
    std::vector<float> host(size_, 0.0f);
    for (const Parameter& p : list_) {
      const uint64_t stream = stream_of(Purpose::init, hash_of(p.name));
#pragma omp parallel for
      for (size_t pair = 0; pair < ceil_div(p.size, 2); pair++) {
        const NormalPair draw = p.init.random ? normal_pair(seed, stream, pair) : NormalPair{{1, 1}};
        for (size_t k = 0; k < 2 && 2 * pair + k < p.size; k++)
          host[p.offset + 2 * pair + k] = float(p.init.value * draw.z[k]);
      }
    }
    values.upload(host);
  }

  const std::vector<Parameter>& list() const {
    return list_;
  }
  size_t flat_size() const {
    return size_;
  }
  size_t total() const {
    size_t n = 0;
    for (const Parameter& p : list_) n += p.size;
    return n;
  }

  Buffer<float> values, grads;

 private:
  // FNV-1a over the name (RFC 9923).
  static uint64_t hash_of(const std::string& name) {
    uint64_t h = 0xcbf29ce484222325;
    for (unsigned char c : name) h = (h ^ c) * 0x100000001b3;
    return h;
  }
  std::vector<Parameter> list_;
  size_t size_ = 0;
};

// The floats that the tensors visited by list(visit) need.
template <class List>
size_t tensors_size(List list) {
  size_t total = 0;
  list([&](float*&, const std::string&, const Shape& shape) {
    require(!__builtin_add_overflow(total, padded(count(shape)), &total),
            "the activations' sizes overflow: lower them");
  });
  return total;
}

// Hands those tensors their places in `memory`.
template <class List>
void place_tensors(float* memory, List list) {
  list([&](float*& pointer, const std::string&, const Shape& shape) {
    pointer = memory;
    memory += padded(count(shape));
  });
}

}  // namespace gated
