// activations: what the last forward of a layer or a model left behind, where a test can read it.
#pragma once
#include <string>
#include <vector>

#include "layers/model.h"

namespace gated {

// Gives the tensors of a list places in memory of the test's own, and remembers them by name. A model's tensors of one
// name are those of its layers, in their order.
class Activations {
 public:
  Activations(const TensorList& list, Context& ctx, Storage storage = Storage::fp32)
      : ctx_(ctx), memory_(ctx.device, bytes_of(list, storage)) {
    char* next = memory_.data();
    list(TensorVisitor(
        [&](const TensorVisitor::Tensor& tensor, const std::function<void(void*)>& place) {
          place(next);
          places_.push_back({tensor.name, next, tensor.bytes});
          next += (tensor.bytes + 127) / 128 * 128;
        },
        storage));
  }
  Activations(Model& model, Context& ctx)
      : Activations([&](const TensorVisitor& visit) { model.activations(visit); }, ctx, model.config.storage) {}

  template <class T>
  std::vector<std::vector<T>> get(const std::string& name) const {
    ctx_.synchronize();
    std::vector<std::vector<T>> layers;
    for (const Place& place : places_) {
      if (place.name != name) continue;
      layers.emplace_back(place.bytes / sizeof(T));
      Buffer<T>::copy_to_host(ctx_.device, layers.back().data(), reinterpret_cast<const T*>(place.memory),
                              layers.back().size());
    }
    return layers;
  }

 private:
  struct Place {
    std::string name;
    const char* memory;
    size_t bytes;
  };
  Context& ctx_;
  Buffer<char> memory_;
  std::vector<Place> places_;
};

}  // namespace gated
