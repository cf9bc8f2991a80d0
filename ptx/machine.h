// machine: what runs translated PTX on a CPU, as the runtime (ptx/runtime.cpp) sees it: device memory, kernels,
// launches.
//
//   device memory   has addresses of its own, at which nothing lies that the host could read: it stands elsewhere, and
//                   the machine alone knows where. A host that follows such a pointer ends with a line that says so.
//                   An address is given out once, and never again: memory that was given back is gone for good.
//   kernels         are found by the names that nvcc gave them, in the folder where ptx/translate.py has put them
//   a launch        runs all blocks to their end, one after another, those of a cluster together, or ends with the
//                   first fault. A thread is a fiber, which runs until it waits for others
// tests/test_ptx.cpp
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "core/tma.h"

namespace ptx {

// ---- device memory

// Fresh memory on a boundary of 256 bytes, each byte 0xFF: a NaN in every format. nullptr where `bytes` are not to be
// had.
void* allocate(size_t bytes);
// False where p does not begin a live allocation.
bool release(void* p);
struct MemoryUse {
  size_t free, total;
};
// PTX_MEMORY=MiB; where nobody says, as much as the machine itself has left.
MemoryUse memory_use();
// Is p an address of device memory, live or not?
bool is_device_address(const void* p);
// Where the machine keeps the n bytes at p; nullptr unless all of them lie inside one live allocation.
void* storage(const void* p, size_t n);
// What is wrong with the n bytes at p, in words that name the allocation that is nearest.
std::string explain(const void* p, size_t n);

// ---- tensor maps: what the driver makes of a matrix for copies of boxes (core/tma.h), as this machine has it

constexpr size_t tensor_map_bytes = 128;
constexpr uint64_t tensor_map_begins_with = 0x70616d726f736e65;
struct TensorMap {
  uint64_t begins_with;
  gated::TmaMatrix matrix;
};
inline void write_tensor_map(void* map, const gated::TmaMatrix& matrix) {
  static_assert(sizeof(TensorMap) <= tensor_map_bytes);
  const TensorMap written = {tensor_map_begins_with, matrix};
  memset(map, 0, tensor_map_bytes);
  memcpy(map, &written, sizeof written);
}
// False where that was not written.
inline bool read_tensor_map(gated::TmaMatrix& matrix, const void* map) {
  TensorMap read;
  memcpy(&read, map, sizeof read);
  matrix = read.matrix;
  return read.begins_with == tensor_map_begins_with;
}

// ---- kernels

struct Parameter {
  size_t offset, bytes;
  bool operator==(const Parameter&) const = default;
};
struct Kernel {
  std::string name;                   // as nvcc mangled it
  std::vector<Parameter> parameters;  // their places in one block of memory
  std::vector<Parameter> loaded;      // what of that block its instructions name: all, but for a struct's padding
  size_t parameter_bytes, static_shared, local_bytes;
  unsigned most_threads;  // a block's, by __launch_bounds__; 1024 where there are none
  const struct Description* description;
  std::string file;  // its C++
};
// Compiles a kernel where that has not been done yet. Throws std::runtime_error, by name, where there is no PTX of it
// or an instruction is not known.
const Kernel& find_kernel(const std::string& mangled);

struct Extent {
  unsigned x = 1, y = 1, z = 1;
};

enum class Fault { none, illegal_address, misaligned_address, launch_failure };
// Runs a launch, its parameters laid out as kernel.parameters says, in clusters of so many blocks, neighbours in x. A
// fault is told on stderr: the kernel, the block, the thread, the line of the source, the instruction.
Fault run(const Kernel& kernel, Extent grid, Extent block, unsigned cluster, size_t dynamic_shared,
          const void* parameters);

// PTX_LAUNCHED=FILE: each kernel that runs adds its name, once a program.
//
// Which GPU is played: PTX_GPU=80, 86, 89 or 90 (ten times its compute capability; 90 where nobody says). It decides
// what shared memory a block may have and how a tensor core adds.
int compute_capability();

// In which order blocks and threads run: PTX_ORDER=forward, reverse, or a number from which an order is drawn.
// PTX_RACES=1: accesses to shared and global memory are watched. Two threads at one place, one of them writing, and no
// barrier between is a fault that names both lines; no barrier orders the blocks of a launch.

}  // namespace ptx
