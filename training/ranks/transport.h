// transport: how ranks, the processes of one run, reach each other. It moves bytes and computes nothing.
//
// MPI (training/ranks/mpi.cpp) is the one there is, in a build that found it; else a run is alone. Both halves of a
// program share this class, so its namespace is not the project's, which the half of nvcc renames.
// docs/ranks.md | tests/test_ranks.cpp
#pragma once
#include <cstddef>
#include <vector>

namespace ranks {

// Bytes in host memory.
struct Part {
  void* at = nullptr;
  size_t bytes = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual size_t rank() const = 0;
  virtual size_t count() const = 0;
  virtual size_t on_this_host() const = 0;  // how many of them
  // A call of all ranks: out[i] goes to rank i, in[i] comes from there, as many bytes as that rank sends; nothing where
  // they are 0. Returns when all of this rank's have gone and come.
  virtual void exchange(const std::vector<Part>& out, const std::vector<Part>& in) = 0;
  double seconds = 0;  // of all exchanges so far, the waiting for other ranks included; Ranks counts them
  // The end of this process in a run that has failed, and of the other ranks with it.
  [[noreturn]] virtual void abort(int code) = 0;
};

// The ranks that mpirun or srun has started, or null for a run that is alone. Called once, before anything is read or
// written. Throws where there are several and this build has no MPI.
Transport* start();
// Leaves them. Every rank calls it at the end of a run that went well.
void finish();

}  // namespace ranks
