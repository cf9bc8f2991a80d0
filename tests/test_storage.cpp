// storage: pointers that know how their numbers are stored.
#include "core/storage.h"

#include "tests/catch.h"

using namespace gated;

TEST_CASE("storage: a pointer knows its type, and gives no other", "[storage]") {
  float floats[4] = {};
  bf16 halves[4] = {};
  const Reals wide = floats, narrow = halves;
  REQUIRE(wide.storage() == Storage::fp32);
  REQUIRE(narrow.storage() == Storage::bf16);
  REQUIRE((wide + 3).as<float>() == floats + 3);
  REQUIRE((narrow + 3).as<bf16>() == halves + 3);
  REQUIRE_THROWS_WITH(narrow.as<float>(), "an array of bf16, expected one of fp32");
  REQUIRE_THROWS_WITH(wide.as<bf16>(), "an array of fp32, expected one of bf16");

  const ConstReals read = narrow;
  REQUIRE(read == ConstReals(halves));
  REQUIRE(read != ConstReals(halves + 1));
  REQUIRE(read.as<bf16>() == halves);
}

TEST_CASE("storage: null is null of every type, and stays so", "[storage]") {
  const Reals none = nullptr, later(nullptr, Storage::bf16);
  REQUIRE(!none);
  REQUIRE(none.as<bf16>() == nullptr);
  REQUIRE(!(later + 5));
  REQUIRE(later.as<float>() == nullptr);
  REQUIRE(later.storage() == Storage::bf16);
}

TEST_CASE("storage: with_storage calls with the stored type", "[storage]") {
  bf16 halves[1] = {};
  float floats[1] = {};
  for (const Reals& array : {Reals(halves), Reals(floats)}) {
    size_t bytes = 0;
    with_storage(array, [&](auto stored) { bytes = sizeof stored; });
    REQUIRE(bytes == bytes_of(array.storage()));
  }
}
