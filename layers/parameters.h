// parameters: how a layer says which tensors it needs, and the memory that they get.
//
// A layer lists its tensors in functions, each of which calls visit once for every tensor:
//   parameters(visit)          visit(weight, name, shape, init, decay, use)    weights with gradients
//   activations(visit, size)   visit(pointer, name, shape)                     written by forward, read by backward
//                              (a fourth argument says how long they live, where that is another time)
//   temporaries(visit, size)   visit(pointer, name, shape)                     live inside one layer's backward
//   cache(visit, size)         visit(pointer, name, shape)                     kept of sequences that grow
// `size` is a number of tokens, or for a mixer, whose tokens stand in sequences, a BatchShape. Besides, scratch(plan,
// size) says what the layer's operations need while they run, and readers(visit) names the matrices that its input is
// multiplied by (layers/mixer.h).
// Allocation, initialisation, the optimizer, checkpoints, FLOPs and the fingerprint all walk these lists: there is no
// second list that could drift from the first. The type of a pointer says how its elements are stored; of Reals the
// visitor says it. Memory is counted in bytes. tests/test_model.cpp
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "core/context.cuh"
#include "core/storage.h"

namespace gated {

class RowQuantizer;  // layers/quantizer.h

// A parameter as its layer sees it, on the device: the values, fp32 masters, their gradient, and in a model that stores
// bf16 a rounded copy of the values, for products. Of a model without masters `value` is null where the copy is read.
struct Weight {
  float* value = nullptr;
  float* grad = nullptr;
  bf16* copy = nullptr;
  // As activations are stored.
  ConstReals stored() const { return copy ? ConstReals(copy) : ConstReals(value); }
  RowQuantizer* quantizer = nullptr;  // in a quantized evaluation: what the other factor of its product goes through
};

// How a parameter starts.
struct Init {
  enum class Kind { constant, normal, written, log_of_uniform, time_step };
  Kind kind;
  double value = 0;  // the constant

  static constexpr Init constant(double value) { return {Kind::constant, value}; }
  // N(0, std): InitRule says the standard deviation, which may differ for what is written to the residual stream.
  static constexpr Init normal() { return {Kind::normal}; }
  static constexpr Init written() { return {Kind::written}; }
  // How the decay of a state starts (Mamba-2, arXiv 2405.21060; Qwen3-Next): the logarithm of a uniform number of
  // [0.01, 16), and the number whose softplus is uniform in its logarithm on [0.001, 0.1).
  static constexpr Init log_of_uniform() { return {Kind::log_of_uniform}; }
  static constexpr Init time_step() { return {Kind::time_step}; }
};

// The standard deviation of what starts as N(0, std).
struct InitRule {
  enum class Kind {
    plain,         // std (0.02 in Qwen3)
    depth_scaled,  // std, and std / sqrt(2 layers) for what is written to the stream: two writes a layer (GPT-2)
    fan_in         // 1 / sqrt(inputs) for a matrix (LeCun 1998), so that x W^T is as large as x at every width
  };
  Kind kind = Kind::plain;
  double std = 0.02;
};

enum class Decay { no, yes };

// What a parameter does, which decides its FLOPs: a factor of a matrix product costs 2 for every element and token in
// the forward and 4 in the backward. A table that is looked up and a scale or shift of elements cost next to nothing.
// linear is the product of a layer's bulk, which a quantized evaluation rounds (layers/quantizer.h); product is any
// other, fp32_product one that is computed in fp32 in a model of bf16, too.
enum class Use { linear, product, fp32_product, lookup, scale };

inline bool is_product(Use use) {
  return use == Use::linear || use == Use::product || use == Use::fp32_product;
}
// In a model of bf16: or is it the rounded copy?
inline bool is_read_in_fp32(Use use) {
  return use == Use::fp32_product || use == Use::scale;
}

using Shape = std::vector<size_t>;

// Elements of a shape; refuses a product that overflows.
size_t count(const Shape& shape);

// Sum of sizes, refused where it overflows.
size_t add_sizes(size_t a, size_t b);

// A parameter as the program sees it: what the visitor said, and where it lies in the flat buffers.
struct Parameter {
  std::string name;
  Shape shape;
  Init init;
  Decay decay;
  Use use;
  double share;   // of all tokens that meet it: 1, or for an expert its share of the tokens
  size_t offset;  // in elements
  size_t size;
  size_t fp32_offset = 0;  // among those that are read in fp32
};

// What a layer's parameters() calls.
class ParameterVisitor {
 public:
  using Function = std::function<void(Weight&, const Parameter&)>;  // offset is not known yet
  explicit ParameterVisitor(Function f, std::string prefix = "", double share = 1)
      : f_(std::move(f)), prefix_(std::move(prefix)), share_(share) {}

  void operator()(Weight& weight, const std::string& name, Shape shape, Init init, Decay decay, Use use) const {
    const size_t n = count(shape);
    f_(weight, {prefix_ + name, std::move(shape), init, decay, use, share_, 0, n});
  }
  // The same visitor for a part of the layer: every name stands under `prefix`.
  ParameterVisitor under(const std::string& prefix) const { return ParameterVisitor(f_, prefix_ + prefix, share_); }
  // For a part that only a share of the tokens goes through.
  ParameterVisitor for_share(double share) const { return ParameterVisitor(f_, prefix_, share_ * share); }

 private:
  Function f_;
  std::string prefix_;
  double share_;
};

// What a mixer's readers() calls: weight is a matrix (rows,C) that the mixer's input is multiplied by.
using ReaderVisitor = std::function<void(const Weight& weight, size_t rows, Use use)>;

// How long a tensor holds what is in it.
enum class Lifetime {
  pass,   // until the layer's backward of the same micro-batch
  cheap,  // the same; but the layer's recompute() can write it again from its other tensors, at little cost
  step    // over all micro-batches of a step
};

// What a layer's activations() and temporaries() call. `pointer` is where the layer keeps the tensor's address. Reals
// are stored as the visitor says; a float* or an int* is what it is.
class TensorVisitor {
 public:
  struct Tensor {
    std::string name;
    Shape shape;
    size_t bytes;
    Lifetime lifetime;
  };
  using Function = std::function<void(const Tensor&, const std::function<void(void*)>& place)>;
  TensorVisitor(Function f, Storage storage, std::string part = "")
      : f_(std::move(f)), storage_(storage), part_(std::move(part)) {}

  template <class T>
  void operator()(T*& pointer, const std::string& name, const Shape& shape, Lifetime lifetime = Lifetime::pass) const {
    f_({full(name), shape, count({count(shape), sizeof(T)}), lifetime},
       [&pointer](void* memory) { pointer = static_cast<T*>(memory); });
  }
  void operator()(Reals& place, const std::string& name, const Shape& shape, Lifetime lifetime = Lifetime::pass) const {
    f_({full(name), shape, count({count(shape), bytes_of(storage_)}), lifetime},
       [&place, storage = storage_](void* memory) { place = Reals(memory, storage); });
  }
  Storage storage() const { return storage_; }  // of Reals
  // The same visitor for a part of the layer.
  TensorVisitor of(const std::string& part) const { return TensorVisitor(f_, storage_, part); }
  // The same visitor, which takes no notice of other tensors than these.
  TensorVisitor where(std::function<bool(const Tensor&)> taken) const {
    const auto some = [f = f_, taken = std::move(taken)](const Tensor& tensor, const auto& place) {
      if (taken(tensor)) f(tensor, place);
    };
    return TensorVisitor(some, storage_, part_);
  }

 private:
  std::string full(const std::string& name) const { return part_.empty() ? name : part_ + ": " + name; }

  Function f_;
  Storage storage_;
  std::string part_;
};

// A function that lists tensors, such as [&](const TensorVisitor& visit) { layer.activations(visit, N); }.
using TensorList = std::function<void(const TensorVisitor&)>;

// The bytes that the tensors of a list need, each beginning at a multiple of 128 (a GPU's memory transaction).
size_t bytes_of(const TensorList& list, Storage storage);

// Hands those tensors their places in `memory`.
void place_tensors(void* memory, const TensorList& list, Storage storage);

// The scratch memory that the operations of a run need: the most that one of them does, and on a CPU the most that a
// thread keeps for one of them. A layer's scratch(plan, ...) names what each of its operations needs.
class ScratchPlan {
 public:
  const Device device;
  const Storage storage;  // of activations
  ScratchPlan(Device d, Storage s) : device(d), storage(s) {}

  void need(size_t bytes) { bytes_ = bytes > bytes_ ? bytes : bytes_; }
  // What kernels need; the CPU's code does without, or takes it from the heap.
  void kernels_need(size_t bytes) {
    if (device != Device::cpu) need(bytes);
  }
  // What each thread of a CPU takes beside that, and keeps for the next operation.
  void cpu_thread_keeps(size_t bytes) {
    if (device == Device::cpu && bytes > thread_bytes_) thread_bytes_ = bytes;
  }
  size_t bytes() const { return bytes_; }
  size_t thread_bytes() const { return thread_bytes_; }

 private:
  size_t bytes_ = 0, thread_bytes_ = 0;
};

// Who has the fp32 masters of a model that stores bf16: the model, or several ranks, each a share
// (training/optimizer.cuh).
enum class Masters { whole, shared };

// All weights of a model in one flat buffer, and their gradients in another with the same offsets.
class Parameters {
 public:
  using List = std::function<void(const ParameterVisitor&)>;

  // Lists what list(visit) names. Memory comes with allocate().
  explicit Parameters(const List& list);
  // For a model that is only read, there is none for gradients: `grad` of its weights is null. Storage is that of
  // activations: for bf16 there is a rounded copy of every value, with the same offset. Where masters are shared,
  // values are those alone that are read in fp32, one parameter after the other.
  void allocate(const List& list, Device device, Storage storage, bool gradients = true,
                Masters masters = Masters::whole);
  Masters masters() const { return masters_; }
  // All values, to be written other than by the optimizer. Without masters they stand where gradients do, until the
  // next backward.
  Buffer<float>& whole() { return masters_ == Masters::whole ? values : grads; }
  // After that: makes of them the copies, and what else is read.
  void whole_changed(Context& ctx);

  // Every value is a function of (seed, parameter name, index): a variant that adds a parameter leaves the others'
  // starting values as they were. Padding between tensors is zero, so that sums over a flat buffer may run across it.
  void initialise(const InitRule& rule, size_t layers, uint64_t seed);

  const std::vector<Parameter>& list() const { return list_; }
  size_t flat_size() const { return size_; }  // elements of a flat buffer, padding included
  // Where each layer's parameters begin, which follow one another, and where those of the last one end. Before them
  // stand the embedding's, behind them what a forward reads last.
  std::vector<size_t> layer_begins() const;
  // Of the values and their copies.
  size_t bytes_of_values(Storage storage, Masters masters = Masters::whole) const {
    return (masters == Masters::whole ? size_ : fp32_size_) * sizeof(float) +
           (storage == Storage::bf16 ? size_ * sizeof(bf16) : 0);
  }
  size_t total() const;   // elements of all parameters
  size_t active() const;  // of those that a token meets

  // FLOPs of the matrix products with parameters, forward and backward, for one token.
  double product_flops() const;

  Buffer<float> values, grads;
  Buffer<bf16> copies;  // empty where activations are fp32

 private:
  std::vector<Parameter> list_;
  size_t size_ = 0, fp32_size_ = 0;  // of all, of what is read in fp32
  Masters masters_ = Masters::whole;
};

}  // namespace gated
