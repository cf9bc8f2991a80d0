// maybe: a part of a layer that a model may lack. One that is not there hands through what it gets: so a layer's
// forward and backward read as its formula, whatever a model has of it.
#pragma once
#include <optional>

#include "core/storage.h"

namespace gated {

template <class Part>
struct Maybe : std::optional<Part> {
  template <class... Arguments>
  explicit Maybe(bool there, Arguments&&... arguments) {
    if (there) this->emplace(std::forward<Arguments>(arguments)...);
  }

  // What the part makes of x, or x; and of the gradient d.
  template <class... More>
  ConstReals forward(ConstReals x, More&&... more) {
    return *this ? (*this)->forward(x, more...) : x;
  }
  template <class... More>
  ConstReals backward(ConstReals d, More&&... more) {
    return *this ? (*this)->backward(d, more...) : d;
  }
  // The same of a part that is told where to write.
  template <class... More>
  ConstReals forward_to(Reals y, ConstReals x, More&&... more) {
    return *this ? (*this)->forward(y, x, more...) : x;
  }
  template <class... More>
  ConstReals backward_to(Reals dx, ConstReals dy, More&&... more) {
    return *this ? (*this)->backward(dx, dy, more...) : dy;
  }
};

// f of every part that is there, one after the other.
template <class F, class... Parts>
void each_of(F f, Parts&... parts) {
  const auto call = [&](auto& part) {
    if (part) f(*part);
  };
  (call(parts), ...);
}

}  // namespace gated
