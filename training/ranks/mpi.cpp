// mpi: ranks by MPI (MPI-3.1, mpi-forum.org). One thread makes every call. A message has at most 1 GiB, for a count is
// an int. Without WITH_MPI nothing of MPI is here, and several ranks are refused.
#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "training/ranks/transport.h"

#ifdef WITH_MPI
#define OMPI_SKIP_MPICXX
#define MPICH_SKIP_MPICXX
#include <mpi.h>
#endif

namespace ranks {

// How many ranks the launcher says there are: OpenMPI's, those of PMI (MPICH, Intel MPI), SLURM's srun.
static long announced() {
  long most = 1;
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
    if (const char* text = getenv(name)) most = std::max(most, strtol(text, nullptr, 10));
  return most;
}

#ifdef WITH_MPI

namespace {

// (A test makes it small.)
#ifndef MOST_BYTES
#define MOST_BYTES 1 << 30
#endif
constexpr size_t most_bytes = MOST_BYTES;

class Requests final : public Request {
 public:
  MPI_Request* add() { return &requests_.emplace_back(); }
  bool is_done() override {
    int done = 0;
    MPI_Testall(int(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE);
    return done;
  }
  void finish() override { MPI_Waitall(int(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE); }

 private:
  std::vector<MPI_Request> requests_;
};

class Mpi final : public Transport {
 public:
  Mpi() {
    MPI_Init(nullptr, nullptr);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &count_);
    MPI_Comm host;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_size(host, &on_this_host_);
    MPI_Comm_rank(host, &place_on_host_);
    MPI_Comm_free(&host);
  }

  size_t rank() const override { return size_t(rank_); }
  size_t count() const override { return size_t(count_); }
  size_t on_this_host() const override { return size_t(on_this_host_); }
  size_t place_on_host() const override { return size_t(place_on_host_); }

  std::unique_ptr<Request> begin(const std::vector<Message>& out, const std::vector<Message>& in) override {
    auto request = std::make_unique<Requests>();
    for (const Message& m : in)
      in_pieces(m, [&](char* at, int bytes) {
        MPI_Irecv(at, bytes, MPI_BYTE, int(m.rank), 0, MPI_COMM_WORLD, request->add());
      });
    for (const Message& m : out)
      in_pieces(m, [&](char* at, int bytes) {
        MPI_Isend(at, bytes, MPI_BYTE, int(m.rank), 0, MPI_COMM_WORLD, request->add());
      });
    return request;
  }

  [[noreturn]] void abort(int code) override {
    MPI_Abort(MPI_COMM_WORLD, code);
    std::abort();
  }

 private:
  // Messages between two ranks arrive in the order in which they were sent.
  template <class F>
  static void in_pieces(const Message& message, F f) {
    for (size_t begin = 0; begin < message.bytes; begin += most_bytes)
      f(static_cast<char*>(message.at) + begin, int(std::min(most_bytes, message.bytes - begin)));
  }

  int rank_ = 0, count_ = 1, on_this_host_ = 1, place_on_host_ = 0;
};

}  // namespace

Transport* start() {
  if (announced() == 1) return nullptr;
  static Mpi mpi;
  if (mpi.count() == 1)
    throw std::runtime_error(
        "the launcher has started " + std::to_string(announced()) +
        " ranks, and MPI sees one: take the mpirun of the MPI that this program was built with, or srun --mpi=pmix");
  return &mpi;
}

void finish() {
  int started = 0;
  MPI_Initialized(&started);
  if (started) MPI_Finalize();
}

#else

Transport* start() {
  if (announced() == 1) return nullptr;
  throw std::runtime_error(
      std::to_string(announced()) +
      " ranks were started, and this build has no MPI: scripts/setup.sh --ranks installs it, then make; or start one");
}

void finish() {}

#endif

}  // namespace ranks
