// try: what an exercise says of itself to be judged: its arrays, its reference, its launch.
//
//   void exercise(Try& t) {
//     t.cases({"n"}, {{7}, {3000}}, [&](size_t n) {
//       Tried &y = t.out("y", 1, n), &x = t.in("x", 1, n);
//       t.reference([&](auto real) { silu_ref(y(real), x(real), n); });
//       t.judge([&] { t.launch(silu_kernel, grid, block, 0, y, x, n); });
//     });
//   }
//
// The reference runs in float, for the bits, and in double, for how far a right answer in another order may be. The
// kernel runs on the emulator under the race shadow (core/race_shadow.h), in several thread orders. What is said of it
// is one of the verdicts below, the cause before what follows from it. tests/test_exercises.cpp
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/math.cuh"
#include "core/nonlinear.cuh"
#include "core/reduce.cuh"
#include "core/simt.h"
#include "tests/numbers.h"

namespace gated {

enum class Verdict { equal, rounded, wrong, unwritten, race, outside, refused };

// An array of an exercise: (rows, columns), in memory of its own with room on both sides, which nobody may touch.
// As a pointer it is one to what the kernel is given; x(real) is what the reference works on, in that type.
class Tried {
 public:
  enum class Kind { in, out, sum };
  Tried(const char* name, Kind kind, size_t rows, size_t columns, size_t bytes);
  ~Tried();
  Tried(const Tried&) = delete;

  template <class S>
  operator S*() const {
    return static_cast<S*>(memory);
  }
  float* floats() const { return *this; }
  float* operator()(float) { return in_float.data(); }
  double* operator()(double) { return in_double.data(); }
  size_t size() const { return rows * columns; }
  // What is added in an element, for how far a sum in another order may be from the double's.
  Tried& sums(size_t terms) {
    longest_sum = terms;
    return *this;
  }
  // Where a result's order is defined, in words.
  Tried& ordered_by(const char* words) {
    order = words;
    return *this;
  }

  const char* name;
  Kind kind;
  size_t rows, columns, element_bytes;
  void* memory;
  std::vector<float> in_float, start;
  std::vector<double> in_double;
  size_t longest_sum = 4;
  const char* order = "the reference";
  std::vector<char> written;  // by element
};

class Try {
 public:
  // test(sizes...) for each of these sizes, under the names that they have in what is said.
  template <size_t n, class Test>
  void cases(const char* const (&names)[n], std::initializer_list<std::array<size_t, n>> all, Test test) {
    for (const std::array<size_t, n>& sizes : all) {
      arrays.clear();
      shapes.clear();
      for (size_t i = 0; i < n; i++) shapes += (i ? ", " : "") + (names[i] + (" = " + std::to_string(sizes[i])));
      std::apply(test, sizes);
    }
  }

  // Arrays of the case: random numbers; these; what is written; what is added to, from random numbers.
  Tried& in(const char* name, size_t rows, size_t columns, float scale = 1);
  Tried& in(const char* name, size_t rows, size_t columns, const std::vector<float>& values);
  Tried& out(const char* name, size_t rows, size_t columns);
  Tried& sum(const char* name, size_t rows, size_t columns);
  // Integers or other things that the reference reads where the kernel does.
  template <class S>
  Tried& in_as(const char* name, size_t rows, size_t columns, const std::vector<S>& values) {
    Tried& array = add(name, Tried::Kind::in, rows, columns, sizeof(S));
    std::copy(values.begin(), values.end(), static_cast<S*>(array.memory));
    return array;
  }
  // Memory for what one launch leaves to the next. It is not judged.
  Tried& scratch(const char* name, size_t rows, size_t columns);

  template <class Reference>
  void reference(Reference run) {
    run(float());
    run(double());
  }
  // Holds the reference in double to finite differences: `gradient` is that of loss(x), at the values of x.
  void differences(const Tried& gradient, const Tried& x, const std::function<double(const double*)>& loss);

  template <class... P, class... A>
  void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, A&&... args) {
    simt::launch(kernel, grid, block, shared_bytes, static_cast<P>(args)...);
  }
  void judge(const std::function<void()>& launches);

  // Other memory that is counted with the arrays.
  void also(const void* memory, size_t bytes) { others.push_back({memory, bytes}); }

  // What came of it, and what is said.
  Verdict verdict = Verdict::equal;
  std::string said;
  size_t asked_bytes = 0, least_bytes = 0;  // of the last case

 private:
  Tried& add(const char* name, Tried::Kind kind, size_t rows, size_t columns, size_t bytes);
  void run_once(const std::function<void()>& launches);
  bool say(Verdict what, const std::string& words);
  std::vector<std::unique_ptr<Tried>> arrays;
  std::vector<std::pair<const void*, size_t>> others;
  std::string shapes;
  bool over = false;      // a case has shown what is wrong
  bool unsteady = false;  // thread orders have shown different bits
};

// Runs an exercise to its end, or to its first fault. Only one runs at a time. A right answer is set beside the
// project's kernel of that name in tests/exercises/project_bytes.txt.
Try tried(void (*exercise)(Try&), const std::string& name);

// PROJECT(t, call): the same by the project's operation, which is judged in the same way; ctx is its Context. Only the
// program that measures the bytes of project_bytes.txt does so: an exercise needs nothing of the project's kernels.
#ifdef WITH_PROJECT
#define PROJECT(t, ...)                                          \
  t.judge([&] {                                                  \
    Context ctx(Device::emulated);                               \
    t.also(ctx.scratch<char>(size_t{1} << 24), size_t{1} << 24); \
    __VA_ARGS__;                                                 \
  })
#else
#define PROJECT(t, ...)
#endif

}  // namespace gated
