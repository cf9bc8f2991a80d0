// dispatch_cases: tokens with experts, and the memory of sorted slots, for the tests of what works on them.
#pragma once
#include <algorithm>

#include "kernels/dispatch.h"
#include "tests/harness.h"

namespace gated {

// k different experts of E for every token. `skew`: the first few come far more often than the others, and some do not
// at all.
inline std::vector<int> random_experts(const DispatchShape& s, uint64_t seed, bool skew) {
  const auto draws = random_values<double>(s.M(), seed);
  std::vector<int> expert;
  for (size_t n = 0; n < s.N; n++)
    for (size_t j = 0; j < s.k; j++) {
      const double u = (draws[n * s.k + j] + 1) / 2;
      int e = int((skew ? u * u * u : u) * double(s.E));
      while (std::find(expert.begin() + n * s.k, expert.end(), e) != expert.end()) e = (e + 1) % int(s.E);
      expert.push_back(e);
    }
  return expert;
}

// The two lists in host memory, as the reference has them.
struct SortedSlots {
  std::vector<int> row_start, row_of_slot;
  SortedSlots(const DispatchShape& s, const std::vector<int>& expert) : row_start(s.E + 1, -1), row_of_slot(s.M(), -1) {
    dispatch_sort_ref(lists(), expert.data(), s);
  }
  Dispatch lists() { return {row_start.data(), row_of_slot.data()}; }
};

// The same on a device. After each list stand ints that nobody may write.
class DeviceSlots {
 public:
  DeviceSlots(const DispatchShape& s, const std::vector<int>& expert, Context& ctx)
      : ctx_(ctx), E_(s.E), M_(s.M()), expert_(ctx.device, expert), lists_(ctx.device, E_ + 1 + M_ + 2 * guard) {
    lists_.upload(std::vector<int>(lists_.size(), untouched));
    dispatch_sort(lists(), expert_.data(), s, ctx);
  }
  Dispatch lists() const {
    int* const start = lists_.data();
    return {start, start + E_ + 1 + guard};
  }
  std::vector<int> row_start() const { return list(lists().row_start, E_ + 1); }
  std::vector<int> row_of_slot() const { return list(lists().row_of_slot, M_); }

 private:
  static constexpr size_t guard = 8;
  static constexpr int untouched = -12345;
  std::vector<int> list(const int* p, size_t n) const {
    ctx_.synchronize();
    std::vector<int> all(n + guard);
    Buffer<int>::copy_to_host(ctx_.device, all.data(), p, all.size());
    for (size_t i = n; i < all.size(); i++)
      if (all[i] != untouched) fail("wrote past the end: element %zu of %zu", i, n);
    all.resize(n);
    return all;
  }
  Context& ctx_;
  const size_t E_, M_;
  Buffer<int> expert_, lists_;
};

// bits(S(), shape, C) for shapes of rows of C, in both storages.
template <class Bits>
void for_dispatch_cases(Bits bits) {
  const std::pair<DispatchShape, size_t> cases[] = {{{1, 1, 1}, 1},      {{63, 8, 2}, 200}, {{200, 200, 8}, 3},
                                                    {{30, 128, 8}, 128}, {{20, 3, 3}, 516}, {{200, 4, 1}, 131},
                                                    {{17, 9, 5}, 4}};
  for (const auto& [s, C] : cases) bits(float(), s, C), bits(bf16(), s, C);
}

}  // namespace gated
