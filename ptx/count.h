// count: what a launch does to memory and to the pipes, counted where its threads run.
//
// PTX_COUNT=FILE: no launch runs whole. Of each one that differs from those before in more than its addresses, six
// blocks (of clusters: six of these) run, the first, the last, and four that lie evenly between; FILE says what those
// four did, summed (all, where there are no more than six). Device memory is then zeros that take no place, copies of
// more than 256 MiB and all memsets are left out, and the device has 132 multiprocessors: a step of a model of any size
// can be counted on a laptop, and computes nothing. (AdamW's list of blocks, which says what each of them moves, is
// less for up to 16 billion parameters.) PTX_COUNT_BLOCKS=0: no block runs; FILE then has the launches alone.
//
// Accesses are counted by warps, as the hardware makes them (CUDA C++ Best Practices Guide, "Coalesced Access to Global
// Memory" and "Shared Memory and Memory Banks"): the lanes that come to a line for the n-th time make one access.
//   sectors     pieces of 32 bytes of global memory that the lanes write, or that no thread of the block has read
//               before: what has been read is in L1
//   wavefronts  turns that the access takes: of shared memory's 32 banks, each of which has one word of 4 bytes a
//               turn; 8 bytes a lane go by half warps, 16 by quarters, and a word is fetched once for all lanes. Of
//               global memory one for each line of 128 bytes
// scripts/gpu_model.py reads the file. tests/test_ptx_count.cpp
#pragma once
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ptx/machine.h"
#include "ptx/thread.h"

namespace ptx {

class Counter {
 public:
  // Is there such a file to be written?
  static bool wanted();
  // Which blocks, or clusters, of this launch to run, in this order; none where it is as one before.
  std::vector<uint64_t> blocks_of(const Kernel&, Extent grid, Extent block, unsigned cluster, size_t dynamic,
                                  const void* parameters);
  // What such a kernel writes decides how much others do: it runs whole each time, after its blocks were counted. Of
  // experts, who has which tokens; as all numbers are 0, the same ones have all.
  static bool decides_work(const Kernel& kernel);
  void begin_block(uint64_t block, uint32_t threads);
  void access(const Thread&, Space, uint64_t address, unsigned bytes, bool write, unsigned line);
  // A copy of a box, and the lines that it reads: they come past L1, each time.
  void copied(unsigned line, const gated::TmaMatrix&, int32_t x, int32_t y);
  // An instruction that a warp of a block executes once, or a basic block that its first lane begins.
  void warp_op(unsigned line, uint32_t warp);
  void end_block();
  void write() const;

  // How many pieces of `of` bytes the accesses touch.
  static uint64_t pieces(const std::vector<uint64_t>& addresses, unsigned bytes, unsigned of);
  static uint64_t wavefronts(const std::vector<uint64_t>& addresses, unsigned bytes);

 private:
  struct Line {
    uint64_t executions = 0, bytes = 0, sectors = 0, wavefronts = 0;
    // Of the addresses, in all blocks that ran; of what warps do, the first one of a block that did, and one more than
    // the last.
    uint64_t first = ~uint64_t{0}, last = 0;
    bool write = false;
  };
  using Lines = std::map<std::pair<unsigned, Space>, Line>;
  struct Launch {
    std::string kernel, file;
    uint64_t call;  // a number for all that makes it this launch
    Extent grid, block;
    uint64_t all;  // blocks, or clusters
    size_t dynamic, fixed;
    uint64_t times = 0, sampled = 0;
    Lines lines;
  };
  struct Group {  // lanes of a warp that are at a line for the same time
    std::vector<uint64_t> addresses;
    unsigned bytes = 0, rank = 0;
    bool write = false;
  };
  void finish(unsigned line, Space space, const Group& group);

  std::vector<Launch> launches_;
  std::map<std::string, size_t> known_;
  Launch* launch_ = nullptr;
  bool in_sum_ = false;
  uint32_t threads_ = 0;
  Lines lines_of_block_;
  // By line, memory, warp and lane: how often it was there. By line, memory, warp and that number: who is there.
  std::unordered_map<uint64_t, uint32_t> visits_;
  std::unordered_map<uint64_t, Group> groups_;
  std::unordered_set<uint64_t> read_[most_cluster];  // sectors, by this block, or by those of a cluster
};

}  // namespace ptx
