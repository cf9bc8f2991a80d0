// nccl: bytes between GPUs' memory by NCCL (its User Guide: "Point-to-point communication", "Fault tolerance", "Group
// calls"). Messages that begin together are a group, in a stream of their own:
//
//   the stream that computes   | kernels | ready            | more kernels | waits for done | kernels that read
//   this stream                          | waits for ready  | group        | done
//
// No call of NCCL waits for other ranks without a look at the communicator (ncclConfig_t::blocking = 0), and none that
// waits for a group. Where a rank is lost the communicator is aborted, which ends what waits on the GPU too.
// Without WITH_NCCL nothing of NCCL is here.
#include "training/ranks/transport.h"

#ifdef WITH_NCCL
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <sched.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <stdexcept>
#include <string>
#endif

namespace ranks {

#ifdef WITH_NCCL

const bool has_nccl = true;

namespace {

void check_cuda(const char* call, cudaError_t answer) {
  if (answer != cudaSuccess) throw std::runtime_error(std::string("NCCL: ") + call + ": " + cudaGetErrorString(answer));
}

class Nccl final : public GpuTransport {
 public:
  explicit Nccl(Transport& ranks) {
    const size_t free = free_bytes();
    ncclUniqueId id = {};
    std::vector<Message> out, in;
    if (ranks.rank() > 0) {
      in.push_back({0, &id, sizeof id});
    } else {
      settle("ncclGetUniqueId", ncclGetUniqueId(&id));
      for (size_t rank = 1; rank < ranks.count(); rank++) out.push_back({rank, &id, sizeof id});
    }
    ranks.begin(out, in)->finish();
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    settle("ncclCommInitRankConfig",
           ncclCommInitRankConfig(&communicator_, int(ranks.count()), id, int(ranks.rank()), &config));
    check_cuda("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    check_cuda("cudaEventCreateWithFlags", cudaEventCreateWithFlags(&ready_, cudaEventDisableTiming));
    bytes = free - std::min(free, free_bytes());
  }
  // A run that has failed does not wait for others.
  ~Nccl() override {
    if (communicator_ && std::uncaught_exceptions() == 0) {
      ncclResult_t state = ncclCommFinalize(communicator_);
      while (state == ncclInProgress) ncclCommGetAsyncError(communicator_, &state);
      ncclCommDestroy(communicator_);
    } else if (communicator_) {
      ncclCommAbort(communicator_);
    }
    for (const std::deque<Wait>* all : {&waits_, &over_})
      for (const Wait& w : *all) cudaEventDestroy(w.begin), cudaEventDestroy(w.end);
    cudaEventDestroy(ready_);
    cudaStreamDestroy(stream_);
  }

  std::unique_ptr<Request> begin(const std::vector<Message>& out, const std::vector<Message>& in,
                                 void* stream) override {
    const auto computes = static_cast<cudaStream_t>(stream);
    check_cuda("cudaEventRecord", cudaEventRecord(ready_, computes));
    check_cuda("cudaStreamWaitEvent", cudaStreamWaitEvent(stream_, ready_, 0));
    require("ncclGroupStart", ncclGroupStart());
    for (const Message& m : out)
      if (m.bytes) require("ncclSend", ncclSend(m.at, m.bytes, ncclUint8, int(m.rank), communicator_, stream_));
    for (const Message& m : in)
      if (m.bytes) require("ncclRecv", ncclRecv(m.at, m.bytes, ncclUint8, int(m.rank), communicator_, stream_));
    settle("ncclGroupEnd", ncclGroupEnd());
    return std::make_unique<Group>(*this, computes);
  }

  void check() override {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t answer = ncclCommGetAsyncError(communicator_, &state);
    require("a message that is on its way", answer == ncclSuccess ? state : answer);
  }

  double waited() override {
    for (; !waits_.empty(); waits_.pop_front()) {
      float milliseconds = 0;
      const cudaError_t answer = cudaEventElapsedTime(&milliseconds, waits_.front().begin, waits_.front().end);
      if (answer == cudaErrorNotReady) return cudaGetLastError(), waited_;
      check_cuda("cudaEventElapsedTime", answer);
      waited_ += milliseconds * 1e-3;
      over_.push_back(waits_.front());
    }
    return waited_;
  }

 private:
  // Events in the stream that computes, on both sides of its wait for a group.
  struct Wait {
    cudaEvent_t begin, end;
  };

  class Group final : public Request {
   public:
    Group(Nccl& nccl, cudaStream_t computes) : nccl_(nccl), computes_(computes) {
      check_cuda("cudaEventCreateWithFlags", cudaEventCreateWithFlags(&done_, cudaEventDisableTiming));
      check_cuda("cudaEventRecord", cudaEventRecord(done_, nccl.stream_));
    }
    ~Group() override { cudaEventDestroy(done_); }
    bool is_done() override {
      const cudaError_t answer = cudaEventQuery(done_);
      if (answer != cudaErrorNotReady) return check_cuda("cudaEventQuery", answer), true;
      cudaGetLastError();
      nccl_.check();
      return false;
    }
    bool is_done_for_gpu() override {
      const Wait wait = nccl_.next_wait();
      check_cuda("cudaEventRecord", cudaEventRecord(wait.begin, computes_));
      check_cuda("cudaStreamWaitEvent", cudaStreamWaitEvent(computes_, done_, 0));
      check_cuda("cudaEventRecord", cudaEventRecord(wait.end, computes_));
      return true;
    }
    void finish() override {
      while (!is_done()) sched_yield();
    }

   private:
    Nccl& nccl_;
    const cudaStream_t computes_;
    cudaEvent_t done_ = nullptr;
  };

  static size_t free_bytes() {
    size_t free = 0, total = 0;
    check_cuda("cudaMemGetInfo", cudaMemGetInfo(&free, &total));
    return free;
  }
  // Of events that were used before, where there are some.
  Wait next_wait() {
    if (over_.empty()) {
      Wait& made = over_.emplace_back();
      for (cudaEvent_t* event : {&made.begin, &made.end})
        check_cuda("cudaEventCreateWithFlags", cudaEventCreateWithFlags(event, cudaEventDefault));
    }
    waits_.push_back(over_.front());
    over_.pop_front();
    return waits_.back();
  }
  // Until the communicator has done what the call asked for.
  void settle(const char* call, ncclResult_t answer) {
    for (; answer == ncclInProgress; sched_yield())
      require("ncclCommGetAsyncError", ncclCommGetAsyncError(communicator_, &answer));
    require(call, answer);
  }
  void require(const std::string& what, ncclResult_t result) {
    if (result == ncclSuccess || result == ncclInProgress) return;
    std::string why = ncclGetErrorString(result);
    if (const char* last = ncclGetLastError(communicator_); last && *last) why += std::string(" (") + last + ")";
    if (communicator_) ncclCommAbort(communicator_);
    communicator_ = nullptr;
    throw std::runtime_error("NCCL: " + what + ": " + why +
                             (result == ncclRemoteError
                                  ? ": a rank is lost; --resume goes on from the last checkpoint, on as many ranks as "
                                    "there are"
                                  : ": NCCL_DEBUG=WARN says more, and --transport=mpi goes without NCCL"));
  }

  ncclComm_t communicator_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t ready_ = nullptr;
  std::deque<Wait> waits_, over_;
  double waited_ = 0;  // seconds in those that are over
};

}  // namespace

std::unique_ptr<GpuTransport> start_nccl(Transport& ranks) {
  return std::make_unique<Nccl>(ranks);
}

#else

const bool has_nccl = false;

std::unique_ptr<GpuTransport> start_nccl(Transport&) {
  return nullptr;
}

#endif

}  // namespace ranks
