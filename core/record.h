// record: work that is kept to be done again and again: functions and what they were given, in their order.
// tests/test_graph.cpp
#pragma once
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

namespace gated {

class Record {
 public:
  // call(bytes) each time, of a copy of the bytes as they are now. They may hold what a kernel may be given: no owners
  // of memory.
  void add(void (*call)(const void*), const void* from, size_t bytes) {
    steps_.push_back({call, std::make_unique<std::max_align_t[]>(bytes / sizeof(std::max_align_t) + 1)});
    memcpy(steps_.back().bytes.get(), from, bytes);
  }
  void repeat() const {
    for (const Step& step : steps_) step.call(step.bytes.get());
  }

 private:
  struct Step {
    void (*call)(const void*);
    std::unique_ptr<std::max_align_t[]> bytes;
  };
  std::vector<Step> steps_;
};

}  // namespace gated
