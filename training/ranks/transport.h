// transport: how ranks, the processes of one run, reach each other. It moves bytes and computes nothing.
//
// MPI (training/ranks/mpi.cpp) starts them and moves what is in the hosts' memory, in a build that found it; else a run
// is alone. NCCL (training/ranks/nccl.cpp) moves what is in the memory of GPUs, where each rank has one. Both halves of
// a program share these classes, so their namespace is not the project's, which the half of nvcc renames.
// docs/ranks.md | tests/test_ranks.cpp
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

namespace ranks {

// Bytes that go to another rank, or come from it.
struct Message {
  size_t rank;
  void* at;
  size_t bytes;
};

// Messages that are on their way.
class Request {
 public:
  virtual ~Request() = default;
  // All of them have gone and come. Without a call now and then nothing need move, of any request.
  virtual bool is_done() = 0;
  // The same; or else what the GPU is given from now on waits for that, where it can in the host's place.
  virtual bool is_done_for_gpu() { return is_done(); }
  virtual void finish() = 0;  // the host waits for that
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual size_t rank() const = 0;
  virtual size_t count() const = 0;
  virtual size_t on_this_host() const = 0;   // how many of them
  virtual size_t place_on_host() const = 0;  // which of these this one is
  // Until the request is done nobody writes what goes out, nor reads or writes what comes in. Two ranks begin the
  // messages from one to the other in the same order, with the same sizes; one of 0 bytes is none.
  // In host memory.
  virtual std::unique_ptr<Request> begin(const std::vector<Message>& out, const std::vector<Message>& in) = 0;
  double seconds = 0;  // in all these calls so far, the waiting for other ranks included; Ranks counts them
  // The end of this process in a run that has failed, and of the other ranks with it.
  [[noreturn]] virtual void abort(int code) = 0;
};

// The same between GPUs' memory: behind what `stream`, a cudaStream_t, was given so far.
class GpuTransport {
 public:
  virtual ~GpuTransport() = default;
  virtual std::unique_ptr<Request> begin(const std::vector<Message>& out, const std::vector<Message>& in,
                                         void* stream) = 0;
  // Throws where a rank is lost. Whoever waits for the GPU asks again and again.
  virtual void check() = 0;
  // Seconds that GPUs have stood still so far for is_done_for_gpu, in the waits that are over.
  virtual double waited() = 0;
  // What it took of its GPU when it started; a first message between two ranks may take more.
  size_t bytes = 0;
};

// The ranks that mpirun or srun has started, or null for a run that is alone. Called once, before anything is read or
// written. Throws where there are several and this build has no MPI.
Transport* start();
// Leaves them. Every rank calls it at the end of a run that went well.
void finish();

// NCCL between the GPUs that these ranks have taken: a call of all of them. has_nccl: whether this build can.
extern const bool has_nccl;
std::unique_ptr<GpuTransport> start_nccl(Transport& ranks);

}  // namespace ranks
