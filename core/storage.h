// storage: how the numbers of an activation lie in memory, as floats or as bf16 (core/bf16.cuh), and pointers that know
// which.
//
// An operation computes in float whatever the storage is. With bf16 it widens what it reads, which is exact, and rounds
// what it writes once, to nearest even. Its kernels and the CPU's loops are templates on the stored type S; the
// function that a layer calls takes pointers that know their type, and picks the kernel:
//
//   void glu_forward(Reals y, ConstReals g, ConstReals u, ...) {
//     with_storage(y, [&](auto stored) {
//       using S = decltype(stored);
//       launch(glu_forward_kernel<S>, ..., y.as<S>(), g.as<S>(), u.as<S>(), ...);
//     });
//   }
//
// So a layer is written once, for both. tests/test_storage.cpp
#pragma once
#include <cstddef>
#include <type_traits>
#include <utility>

#include "core/bf16.cuh"
#include "core/check.h"

namespace gated {

enum class Storage { fp32, bf16 };

inline const char* name_of(Storage storage) {
  return storage == Storage::bf16 ? "bf16" : "fp32";
}
inline size_t bytes_of(Storage storage) {
  return storage == Storage::bf16 ? sizeof(bf16) : sizeof(float);
}
template <class S>
constexpr Storage storage_of = std::is_same_v<S, bf16> ? Storage::bf16 : Storage::fp32;

// A pointer to floats or to bf16. Void is void or const void.
template <class Void>
class RealsOf {
  template <class S>
  using Pointer = std::conditional_t<std::is_const_v<Void>, const S*, S*>;

 public:
  RealsOf(std::nullptr_t = nullptr) {}
  RealsOf(Pointer<float> at) : at_(at) {}
  RealsOf(Pointer<bf16> at) : at_(at), storage_(Storage::bf16) {}
  // What may be written may be read.
  template <class Written>
  requires(std::is_const_v<Void> && !std::is_const_v<Written>) RealsOf(RealsOf<Written> place)
      : at_(place.at()), storage_(place.storage()) {}
  RealsOf(Void* at, Storage storage) : at_(at), storage_(storage) {}

  Void* at() const { return at_; }
  Storage storage() const { return storage_; }
  explicit operator bool() const { return at_; }

  // The pointer, of which the type is known: float or bf16. Null is null in both.
  template <class S>
  Pointer<S> as() const {
    require(!at_ || storage_ == storage_of<S>, "an array of %s, expected one of %s", name_of(storage_),
            name_of(storage_of<S>));
    return static_cast<Pointer<S>>(at_);
  }
  // `n` elements further; null stays null.
  RealsOf operator+(size_t n) const {
    using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
    return at_ ? RealsOf(static_cast<Byte*>(at_) + n * bytes_of(storage_), storage_) : *this;
  }
  friend bool operator==(const RealsOf& a, const RealsOf& b) { return a.at_ == b.at_; }

 private:
  Void* at_ = nullptr;
  Storage storage_ = Storage::fp32;
};
using Reals = RealsOf<void>;
using ConstReals = RealsOf<const void>;

// For structs of arguments, which a layer fills with pointers that know their type (T = void), and a kernel or a
// reference takes with the type known (T = float, bf16, double). Their member as<S>() makes the second of the first:
//
//   template <class T>
//   struct RmsnormOutputsOf {
//     PointerTo<T> y;
//     Wide<T>* r;
//     template <class S>
//     RmsnormOutputsOf<S> as() const { return {y.template as<S>(), r}; }
//   };
//   using RmsnormOutputs = RmsnormOutputsOf<void>;
template <class T>
using PointerTo = std::conditional_t<std::is_void_v<T>, RealsOf<T>, T*>;
// What parameters, their gradients and statistics are beside activations of T: never rounded.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

// f(a value of the stored type).
template <class F>
void with_storage(ConstReals of, F f) {
  if (of.storage() == Storage::bf16)
    f(bf16());
  else
    f(float());
}

// place = S(x), for loops of the CPU. (Under "omp simd" the temporary of the assignment, an object of a class, keeps
// g++ from vectorising. In a function it does not.)
template <class S>
inline void store(S& place, float x) {
  place = S(x);
}

// A CPU's twin is a template that stands in a .cpp file. This line after it makes it callable from files that see its
// declaration alone.
#define IN_FLOAT_AND_BF16(f) [[gnu::used]] static const auto f##_stored = std::pair(&f<float>, &f<bf16>)

}  // namespace gated
