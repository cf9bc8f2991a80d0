// transport: how ranks, the processes of one run, reach each other. It moves bytes and computes nothing.
//
// MPI (training/ranks/mpi.cpp) is the one there is, in a build that found it; else a run is alone. Both halves of a
// program share this class, so its namespace is not the project's, which the half of nvcc renames.
// docs/ranks.md | tests/test_ranks.cpp
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

namespace ranks {

// Bytes in host memory that go to another rank, or come from it.
struct Message {
  size_t rank;
  void* at;
  size_t bytes;
};

// Messages that are on their way.
class Journey {
 public:
  virtual ~Journey() = default;
  // All of them have gone and come. Without a call now and then nothing need move, of any journey.
  virtual bool is_done() = 0;
  virtual void finish() = 0;  // waits for that
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual size_t rank() const = 0;
  virtual size_t count() const = 0;
  virtual size_t on_this_host() const = 0;   // how many of them
  virtual size_t place_on_host() const = 0;  // which of these this one is
  // Until the journey is done nobody writes what goes out, nor reads or writes what comes in. Two ranks begin the
  // messages from one to the other in the same order, with the same sizes; one of 0 bytes is none.
  virtual std::unique_ptr<Journey> begin(const std::vector<Message>& out, const std::vector<Message>& in) = 0;
  double seconds = 0;  // in all these calls so far, the waiting for other ranks included; Ranks counts them
  // The end of this process in a run that has failed, and of the other ranks with it.
  [[noreturn]] virtual void abort(int code) = 0;
};

// The ranks that mpirun or srun has started, or null for a run that is alone. Called once, before anything is read or
// written. Throws where there are several and this build has no MPI.
Transport* start();
// Leaves them. Every rank calls it at the end of a run that went well.
void finish();

}  // namespace ranks
