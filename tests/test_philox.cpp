// Philox: the published vectors, then what the draws built on it promise: which seed, stream and index they take,
// ranges, distributions.
#include <array>
#include <set>
#include <vector>

#include "core/philox.cuh"
#include "tests/catch.h"

using namespace gated;

namespace {

constexpr uint64_t seed = 0x0123456789abcdef, stream = stream_of(Purpose::sample, 7);

bool same(const PhiloxBlock& a, const std::array<uint32_t, 4>& b) {
  return a.word[0] == b[0] && a.word[1] == b[1] && a.word[2] == b[2] && a.word[3] == b[3];
}

}  // namespace

TEST_CASE("philox: the three known answers of Random123", "[philox]") {
  CHECK(same(philox4x32({{0, 0, 0, 0}}, 0, 0), {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  CHECK(same(philox4x32({{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u), {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  CHECK(same(philox4x32({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
             {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST_CASE("philox: seed is the key, index and stream are the counter, low words first", "[philox]") {
  // The third known answer again, through the arguments a caller uses.
  const PhiloxBlock b = random_block(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88);
  CHECK(same(b, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
  CHECK(stream_of(Purpose::dropout, 5) == 0x0002000000000005);
  CHECK(stream_of(Purpose::init, ~uint64_t(0)) == 0x0001ffffffffffff);
}

TEST_CASE("philox: four words or two double words a block, in order", "[philox]") {
  for (uint64_t i = uint64_t(1) << 60; i < (uint64_t(1) << 60) + 12; ++i) {
    const PhiloxBlock b = random_block(seed, stream, i / 4);
    CHECK(random_u32(seed, stream, i) == b.word[i % 4]);
    if (i % 2 == 0) CHECK(random_u64(seed, stream, i / 2) == (uint64_t(b.word[i % 4 + 1]) << 32 | b.word[i % 4]));
  }
}

TEST_CASE("philox: uniform values are shares of their interval, up to both ends", "[philox]") {
  CHECK((unit_float(0) == 0.0f && unit_float(0x40000000) == 0.25f && unit_float(3u << 30) == 0.75f));
  CHECK(unit_float(~0u) == 1.0f - 0x1p-24f);
  CHECK((unit_double(0) == 0.0 && unit_double(1ull << 62) == 0.25 && unit_double(3ull << 62) == 0.75));
  CHECK(unit_double(~uint64_t(0)) == 1.0 - 0x1p-53);
  CHECK(unit_double(~uint64_t(0)) + 0x1p-53 == 1.0);
  for (uint64_t i = 0; i < 100; ++i) {
    CHECK(uniform_float(seed, stream, i) == unit_float(random_u32(seed, stream, i)));
    CHECK(uniform_double(seed, stream, i) == unit_double(random_u64(seed, stream, i)));
    CHECK(positive_uniform_double(seed, stream, i) == uniform_double(seed, stream, i) + 0x1p-53);
  }
}

TEST_CASE("philox: random_below is in range and reaches every value", "[philox]") {
  for (const uint64_t n : {uint64_t(1), uint64_t(2), uint64_t(7), uint64_t(1000)}) {
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < 10 * n + 20; ++i) {
      const uint64_t x = random_below(seed, stream, i, n);
      CHECK(x < n);
      seen.insert(x);
    }
    CHECK(seen.size() > n * 99 / 100);
  }
  for (uint64_t i = 0; i < 100; ++i) CHECK(random_below(seed, stream, i, ~uint64_t(0)) < ~uint64_t(0));
}

TEST_CASE("philox: random_below has no modulo bias where bias would be largest", "[philox]") {
  // n = 3/4 of 2^64. Without the second draw, four x give three results, and the results divisible by 3 come
  // from two of the four: half of all draws instead of a third.
  constexpr uint64_t n = uint64_t(3) << 62;
  constexpr size_t draws = 30000;
  size_t residue[3] = {};
  for (size_t i = 0; i < draws; ++i) ++residue[random_below(seed, stream, i, n) % 3];
  for (const size_t count : residue) CHECK(std::abs(double(count) - draws / 3.0) < 330);  // 4 standard deviations
}

TEST_CASE("philox: a pair of normals is the polar form of a pair of uniforms", "[philox]") {
  for (uint64_t pair = 0; pair < 50; ++pair) {
    const double u = positive_uniform_double(seed, stream, 2 * pair);
    const double v = uniform_double(seed, stream, 2 * pair + 1);
    const double z0 = normal(seed, stream, 2 * pair), z1 = normal(seed, stream, 2 * pair + 1);
    CHECK(std::abs(z0 * z0 + z1 * z1 + 2 * std::log(u)) < 1e-12);
    CHECK(std::abs(z0 * std::sin(2 * M_PI * v) - z1 * std::cos(2 * M_PI * v)) < 1e-13);
    CHECK(z0 * std::cos(2 * M_PI * v) >= 0);
  }
}
