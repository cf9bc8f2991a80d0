// NCCL's stand-in (ptx/nccl.cpp), and over it training/ranks/nccl.cpp: what two ranks send each other arrives, and
// faults in the order of streams, in sizes and in the order of messages are seen. This program is its own two ranks,
// under OpenMPI's mpirun.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdlib>
#include <thread>

#include "tests/catch.h"
#include "tests/script.h"

using namespace gated;

namespace {

// What a rank does wrong.
const std::string fault = getenv("FAULT") ? getenv("FAULT") : "";
cudaStream_t computes = nullptr;

cudaError_t wait_event(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return fault == (stream == computes ? "no wait for done" : "no wait for ready")
             ? cudaSuccess
             : cudaStreamWaitEvent(stream, event, flags);
}
cudaError_t record(cudaEvent_t event, cudaStream_t stream) {
  return fault == (stream == computes ? "ready is not recorded" : "done is not recorded")
             ? cudaSuccess
             : cudaEventRecord(event, stream);
}
ncclResult_t receive(void* at, size_t bytes, ncclDataType_t type, int peer, ncclComm_t communicator,
                     cudaStream_t stream) {
  return ncclRecv(at, bytes - (fault == "a size"), type, peer, communicator, stream);
}
ncclResult_t ask(ncclComm_t communicator, ncclResult_t* state) {
  return fault == "not settled" ? (*state = ncclSuccess) : ncclCommGetAsyncError(communicator, state);
}

}  // namespace

#define cudaStreamWaitEvent wait_event
#define cudaEventRecord record
#define ncclRecv receive
#define ncclCommGetAsyncError ask
#include "training/ranks/nccl.cpp"
#undef cudaStreamWaitEvent
#undef cudaEventRecord

TEST_CASE("ptx nccl: a rank", "[.rank]") {
  ranks::Transport& mpi = *ranks::start();
  const size_t me = mpi.rank(), other = 1 - me;
  int devices = 0;
  REQUIRE(cudaGetDeviceCount(&devices) == cudaSuccess);
  REQUIRE(cudaSetDevice(int(me) % devices) == cudaSuccess);
  auto nccl = ranks::start_nccl(mpi);
  REQUIRE(cudaStreamCreate(&computes) == cudaSuccess);
  constexpr size_t n = 160, first = 100;
  char *out = nullptr, *in = nullptr;
  for (char** p : {&out, &in}) REQUIRE(cudaMalloc(reinterpret_cast<void**>(p), n) == cudaSuccess);
  const auto numbers = [](size_t round, size_t rank) { return std::vector<char>(n, char(16 * round + rank)); };
  for (size_t round = 0; round < 6; round++) {
    const std::vector<char> mine = numbers(round, me);
    REQUIRE(cudaMemcpyAsync(out, mine.data(), n, cudaMemcpyHostToDevice, computes) == cudaSuccess);
    std::vector<ranks::Message> going = {{other, out, first}, {other, out + first, n - first}, {other, out, 0}};
    if (fault == "swapped" && me == 1) std::swap(going[0], going[1]);
    const double waited = nccl->waited();
    if (me == 1 && round == 4) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const auto request = nccl->begin(going, {{other, in, first}, {other, in + first, n - first}}, computes);
    if (fault == "out is written to") cudaMemsetAsync(out, 1, 1, computes);
    if (fault == "in is written to") cudaMemsetAsync(in, 1, 1, computes);
    if (round % 2)
      request->finish();
    else
      REQUIRE(request->is_done_for_gpu());
    REQUIRE(cudaMemsetAsync(out, 1, n, computes) == cudaSuccess);
    std::vector<char> got(n);
    REQUIRE(cudaMemcpyAsync(got.data(), in, n, cudaMemcpyDeviceToHost, computes) == cudaSuccess);
    REQUIRE(got == numbers(round, other));
    if (round == 4) REQUIRE((nccl->waited() - waited > 0.2) == (me == 0));
  }
  REQUIRE(cudaStreamDestroy(computes) == cudaSuccess);
  nccl.reset();
  ranks::finish();
}

TEST_CASE("ptx nccl: two ranks get what is sent, and what one of them does wrong is seen", "[ptx]") {
  const Folder f;
  if (f.run("mpirun --version").exit_code != 0) {
    WARN("no mpirun here: NCCL's stand-in was not looked at");
    return;
  }
  const auto said = [&](const std::string& environment) {
    return f.run(
        "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
        "OMPI_MCA_btl_vader_single_copy_mechanism=none PTX_DEVICES=2 " +
        environment + " timeout 100 mpirun --oversubscribe -n 2 {build}/ptx/test_ptx_nccl '[.rank]'");
  };
  const Said right = said("");
  INFO(right.text);
  REQUIRE(right.exit_code == 0);
  const char* const written = "are written to before it is done";
  for (const auto& [environment, expected] : std::vector<std::pair<std::string, std::string>>{
           {"FAULT='no wait for ready'", written},
           {"FAULT='ready is not recorded'", written},
           {"FAULT='out is written to'", written},
           {"FAULT='in is written to'", written},
           {"FAULT='no wait for done'", "got == numbers(round, other)"},
           {"FAULT='done is not recorded'", "got == numbers(round, other)"},
           {"FAULT='a size'", "from rank 1 to rank 0 has 100 bytes, expected 99 there"},
           {"FAULT=swapped", "message 0 from rank 1 to rank 0 has 60 bytes, expected 100 there"},
           {"FAULT='not settled'", "has not done yet what it was asked for"},
           {"PTX_NCCL_LOST=3", "a message that is on its way: remote process exited"},
           {"PTX_DEVICES=1", "Duplicate GPU detected"}}) {
    const Said seen = said(environment);
    INFO(environment << "\n" << seen.text);
    REQUIRE(seen.exit_code != 0);
    REQUIRE(seen.exit_code != 124);
    REQUIRE(contains(seen.text, expected));
  }
}
