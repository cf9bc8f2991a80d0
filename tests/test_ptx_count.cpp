// What the rehearsal counts of a launch (ptx/count.h): sectors, turns, which blocks run, what the file says.
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "ptx/count.h"
#include "tests/catch.h"

using ptx::Counter;
using ptx::Extent;
using ptx::Space;

namespace {

std::vector<uint64_t> lanes(unsigned n, uint64_t step, uint64_t first = 0) {
  std::vector<uint64_t> all;
  for (unsigned i = 0; i < n; i++) all.push_back(first + i * step);
  return all;
}

}  // namespace

TEST_CASE("ptx count: sectors and lines that a warp touches", "[ptx]") {
  REQUIRE(Counter::pieces(lanes(32, 4), 4, 32) == 4);
  REQUIRE(Counter::pieces(lanes(32, 4, 16), 4, 32) == 5);  // not on a boundary
  REQUIRE(Counter::pieces(lanes(32, 16), 16, 128) == 4);   // 512 bytes
  REQUIRE(Counter::pieces(lanes(32, 128), 4, 32) == 32);   // a column
  REQUIRE(Counter::pieces(lanes(32, 0, 40), 4, 32) == 1);  // all the same
  REQUIRE(Counter::pieces(lanes(1, 0, 30), 4, 32) == 2);   // over a boundary
}

TEST_CASE("ptx count: turns of shared memory's banks", "[ptx]") {
  REQUIRE(Counter::wavefronts(lanes(32, 4), 4) == 1);
  REQUIRE(Counter::wavefronts(lanes(32, 8), 4) == 2);      // every other bank, twice
  REQUIRE(Counter::wavefronts(lanes(32, 128), 4) == 32);   // one bank
  REQUIRE(Counter::wavefronts(lanes(32, 0), 4) == 1);      // one word
  REQUIRE(Counter::wavefronts(lanes(32, 132), 4) == 1);    // rows that are one word longer
  REQUIRE(Counter::wavefronts(lanes(32, 8), 8) == 2);      // half warps
  REQUIRE(Counter::wavefronts(lanes(32, 16), 16) == 4);    // quarters
  REQUIRE(Counter::wavefronts(lanes(32, 128), 16) == 32);  // ldmatrix on rows of 128 bytes: eight lanes on four banks
  REQUIRE(Counter::wavefronts(lanes(32, 144), 16) == 4);   // and of 144
  REQUIRE(Counter::wavefronts(lanes(32, 0), 16) == 1);
}

TEST_CASE("ptx count: what decides how much others do", "[ptx]") {
  const auto decides = [](const char* name) {
    return Counter::decides_work({name, {}, {}, 0, 0, 0, 1024, nullptr, ""});
  };
  REQUIRE(decides("_Z21router_forward_kernelv"));
  REQUIRE(decides("_Z21dispatch_count_kernelv"));
  REQUIRE(!decides("_Z22dispatch_gather_kernelv"));
  REQUIRE(!decides("_Z18matmul_bf16_kernelv"));
  setenv("PTX_COUNT_BLOCKS", "0", 1);
  REQUIRE(!decides("_Z21router_forward_kernelv"));
  unsetenv("PTX_COUNT_BLOCKS");
}

TEST_CASE("ptx count: a launch's blocks, and the file", "[ptx]") {
  Counter counter;
  ptx::Kernel kernel{"k", {{0, 8}, {8, 8}}, {{0, 12}}, 16, 64, 0, 1024, nullptr, "k.cpp"};
  uint32_t padding = 0;
  const auto blocks = [&](uint64_t pointer, uint32_t n, unsigned grid, unsigned cluster = 1) {
    const struct {
      uint64_t pointer;
      uint32_t n, padding;
    } arguments = {ptx::device_begin + pointer, n, ++padding};
    return counter.blocks_of(kernel, {grid}, {64}, cluster, 256, &arguments);
  };
  REQUIRE(blocks(0, 5, 100) == std::vector<uint64_t>{12, 37, 62, 87, 0, 99});
  ptx::Thread t{};
  for (uint64_t block : {12, 37, 62, 87, 0, 99}) {
    counter.begin_block(block, 64);
    for (t.warp = 0; t.warp < 2; t.warp++) {
      for (t.lane = 0; t.lane < 32; t.lane++) {
        // twice by all lanes, the second time by four alone; the second warp finds all in the cache
        const uint64_t at = ptx::device_begin + 4096 * block + 4 * t.lane;
        counter.access(t, Space::global, at, 4, false, 7);
        if (t.lane < 4) counter.access(t, Space::global, at + 1024, 4, false, 7);
        counter.access(t, Space::shared, 8 * t.lane, 4, true, 9);
      }
      counter.warp_op(9, t.warp);
    }
    counter.end_block();
  }
  REQUIRE(blocks(4096, 5, 100).empty());  // another address
  REQUIRE(blocks(0, 6, 3) == std::vector<uint64_t>{0, 1, 2});
  REQUIRE(blocks(0, 5, 101).size() == 6);
  // Two blocks of a cluster, each of one warp here: what one has read is not in the other's cache.
  REQUIRE(blocks(0, 7, 100, 2) == std::vector<uint64_t>{6, 18, 31, 43, 0, 49});
  counter.begin_block(6, 64);
  for (t.rank = t.warp = 0; t.rank < 2; t.warp = ++t.rank)
    for (t.lane = 0; t.lane < 32; t.lane++)
      counter.access(t, Space::global, ptx::device_begin + 4 * t.lane, 4, false, 7);
  counter.end_block();

  const std::string file = "/tmp/test_ptx_count." + std::to_string(getpid());
  setenv("PTX_COUNT", file.c_str(), 1);
  counter.write();
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  const auto launch = nlohmann::json::parse(line);
  REQUIRE(launch["times"] == 2);
  REQUIRE(launch["sampled"] == 4);
  REQUIRE(launch["grid"] == nlohmann::json{100, 1, 1});
  REQUIRE(launch["dynamic"] == 256);
  REQUIRE(launch["static"] == 64);
  // of four blocks of two warps: runs, bytes, sectors, turns; then the range, of all six, or of warps
  using nlohmann::json;
  const uint64_t from = ptx::device_begin;
  REQUIRE(launch["lines"] == json{json{7, "global", 0, 16, 8 * 36 * 4, 4 * 5, 16, from, from + 99 * 4096 + 1040},
                                  json{9, "shared", 1, 8, 8 * 128, 0, 16, 0, 252},
                                  json{9, "warp", 0, 8, 0, 0, 0, 0, 2}});
  std::getline(in, line);
  REQUIRE(nlohmann::json::parse(line)["times"] == 1);
  std::getline(in, line);
  std::getline(in, line);
  const auto clusters = nlohmann::json::parse(line);
  REQUIRE(clusters["sampled"] == 8);
  REQUIRE(clusters["lines"] == json{json{7, "global", 0, 2, 2 * 128, 2 * 4, 2, from, from + 128}});
  unlink(file.c_str());
}
