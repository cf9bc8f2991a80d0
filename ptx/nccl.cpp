// nccl: what the project calls of NCCL, between processes that MPI has started. A group of sends and receives is a
// piece of work in its stream (ptx/stream.h):
//
//   starts   as soon as nothing is left that it stands behind but groups before it, and then takes what it sends, and
//            fills with NaN what it receives into. What writes there from then on until the group is done is a fault,
//            and what reads there reads NaN: so it does not wait for the group, or the group does not wait for it
//   is done  when each other rank's group of the same number has started, and sends to this one what it receives, and
//            receives what it sends, in the same order and sizes. Another order or size is a fault, and a group that
//            does not come within a minute
//
// A communicator is used as one that does not block: whoever has not asked it until it is done may not go on.
// PTX_NCCL_LOST=n: from its group n on other ranks are lost.
// The rules are those of NCCL's User Guide. Without WITH_NCCL nothing is here.
#ifdef WITH_NCCL
#define OMPI_SKIP_MPICXX
#define MPICH_SKIP_MPICXX
#include <mpi.h>
#include <nccl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ptx/machine.h"
#include "ptx/stream.h"

using namespace ptx;

// What has left a group that is done. Another rank takes it when that comes to its own group.
struct Going {
  std::vector<std::vector<char>> bytes;
  std::vector<MPI_Request> requests;
};

struct ncclComm {
  MPI_Comm mpi = MPI_COMM_NULL;
  int rank = 0, ranks = 0;
  cudaStream_t stream = nullptr;  // of its groups
  uint64_t groups = 0, last = 0;  // how many, and the piece of work of the last one
  int unsettled = 0;              // answers of ncclInProgress that it still gives
  std::list<Going> going{};
  bool aborted = false;
};

namespace {

struct Operation {
  bool sends;
  int peer;
  void* at;
  size_t bytes;
};

uint64_t lost_from() {
  const char* const asked = getenv("PTX_NCCL_LOST");
  return asked ? strtoull(asked, nullptr, 10) : UINT64_MAX;
}

char* follow(const Operation& o) {
  if (void* const place = storage(o.at, o.bytes)) return static_cast<char*>(place);
  refuse(cudaErrorIllegalAddress, "%s of %zu bytes at %p: %s", o.sends ? "ncclSend" : "ncclRecv", o.bytes, o.at,
         explain(o.at, o.bytes).c_str());
}

// A group of one rank. To each other one goes a message: how many sends to it and their sizes, how many receives from
// it and theirs, then what is sent.
class Group {
 public:
  Group(ncclComm& c, std::vector<Operation> operations)
      : c_(c), number_(c.groups), operations_(std::move(operations)), sent_(size_t(c.ranks)) {}

  void start() {
    if (c_.aborted) return;
    for (const Operation& o : operations_) {
      char* const at = follow(o);
      if (!o.sends) memset(at, 0xFF, o.bytes);
    }
    for (int peer = 0; peer < c_.ranks; peer++) {
      if (peer == c_.rank) continue;
      std::vector<char>& message = sent_[size_t(peer)];
      for (const bool sends : {true, false}) append(message, sizes(peer, sends));
      for (const Operation& o : operations_)
        if (o.sends && o.peer == peer) message.insert(message.end(), follow(o), follow(o) + o.bytes);
      MPI_Isend(message.data(), int(message.size()), MPI_BYTE, peer, 0, c_.mpi, &requests_.emplace_back());
    }
  }

  void finish() {
    if (c_.aborted) return;
    if (number_ >= lost_from()) refuse(cudaErrorUnknown, "group %zu waits for ranks that are lost", size_t(number_));
    for (int peer = 0; peer < c_.ranks; peer++)
      if (peer != c_.rank) take(peer);
    c_.going.push_back({std::move(sent_), std::move(requests_)});
    c_.going.remove_if([](Going& g) {
      int gone = 0;
      MPI_Testall(int(g.requests.size()), g.requests.data(), &gone, MPI_STATUSES_IGNORE);
      return gone;
    });
  }

 private:
  std::vector<uint64_t> sizes(int peer, bool sends) const {
    std::vector<uint64_t> all;
    for (const Operation& o : operations_)
      if (o.peer == peer && o.sends == sends) all.push_back(o.bytes);
    return all;
  }
  static void append(std::vector<char>& to, std::vector<uint64_t> numbers) {
    numbers.insert(numbers.begin(), numbers.size());
    const auto* const first = reinterpret_cast<const char*>(numbers.data());
    to.insert(to.end(), first, first + numbers.size() * sizeof(uint64_t));
  }
  static std::vector<uint64_t> next_numbers(const char*& from) {
    uint64_t n;
    memcpy(&n, from, sizeof n);
    std::vector<uint64_t> numbers(n);
    memcpy(numbers.data(), from + sizeof n, n * sizeof n);
    from += (n + 1) * sizeof n;
    return numbers;
  }

  std::vector<char> message_of(int peer) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    int there = 0, bytes = 0;
    MPI_Message message;
    MPI_Status status;
    while (MPI_Improbe(peer, 0, c_.mpi, &there, &message, &status), !there) {
      if (std::chrono::steady_clock::now() > end)
        refuse(cudaErrorUnknown, "group %zu of rank %d waits in vain for that of rank %d", size_t(number_), c_.rank,
               peer);
      sched_yield();
    }
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    std::vector<char> got(size_t(bytes), 0);
    MPI_Mrecv(got.data(), bytes, MPI_BYTE, &message, MPI_STATUS_IGNORE);
    return got;
  }

  void require_equal(int from, int to, const std::vector<uint64_t>& sent, const std::vector<uint64_t>& received) const {
    for (size_t i = 0; i < std::max(sent.size(), received.size()); i++) {
      const uint64_t is = i < sent.size() ? sent[i] : 0, expected = i < received.size() ? received[i] : 0;
      if (is != expected)
        refuse(cudaErrorUnknown, "group %zu: message %zu from rank %d to rank %d has %zu bytes, expected %zu there",
               size_t(number_), i, from, to, size_t(is), size_t(expected));
    }
  }

  void take(int peer) {
    const std::vector<char> message = message_of(peer);
    const char* from = message.data();
    const std::vector<uint64_t> to_me = next_numbers(from), from_me = next_numbers(from);
    require_equal(peer, c_.rank, to_me, sizes(peer, false));
    require_equal(c_.rank, peer, sizes(peer, true), from_me);
    const std::vector<char>& sent = sent_[size_t(peer)];
    size_t bytes = 0;
    for (const uint64_t b : from_me) bytes += b;
    const char* went = sent.data() + sent.size() - bytes;
    for (const Operation& o : operations_) {
      if (o.peer != peer) continue;
      char* const at = follow(o);
      if (o.sends ? memcmp(at, went, o.bytes) != 0 : std::any_of(at, at + o.bytes, [](char b) { return b != '\xFF'; }))
        refuse(cudaErrorUnknown, "group %zu: the %zu bytes at %p that %s rank %d are written to before it is done",
               size_t(number_), o.bytes, o.at, o.sends ? "go to" : "come from", peer);
      if (o.sends) {
        went += o.bytes;
      } else {
        memcpy(at, from, o.bytes);
        from += o.bytes;
      }
    }
  }

  ncclComm& c_;
  const uint64_t number_;
  const std::vector<Operation> operations_;
  std::vector<std::vector<char>> sent_;
  std::vector<MPI_Request> requests_;
};

// ---- calls

int depth = 0;  // of groups
ncclComm* of_group = nullptr;
cudaStream_t stream_of_group = nullptr;
std::vector<Operation> in_group;
std::string last_error;

ncclResult_t refused(const std::string& why) {
  last_error = why;
  complain("%s", why.c_str());
  return ncclInvalidUsage;
}

ncclResult_t add(const char* call, bool sends, const void* at, size_t count, ncclDataType_t type, int peer,
                 ncclComm_t c, cudaStream_t stream) {
  if (!c || c->aborted) return refused(std::string(call) + ": there is no communicator");
  if (depth == 0) return refused(std::string(call) + " outside of a group is not known here");
  if (c->unsettled) return refused(std::string(call) + ": the communicator has not done yet what it was asked for");
  if (type != ncclUint8) return refused(std::string(call) + ": of this type is not known here");
  if (peer < 0 || peer >= c->ranks || peer == c->rank)
    return refused(std::string(call) + ": to or from itself, or nobody");
  if ((of_group && of_group != c) || (!in_group.empty() && stream_of_group != stream))
    return refused(std::string(call) + ": of a second communicator or stream in a group is not known here");
  of_group = c;
  stream_of_group = stream;
  in_group.push_back({sends, peer, const_cast<void*>(at), count});
  return ncclSuccess;
}

}  // namespace

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "unhandled cuda error";
  }
}

const char* ncclGetLastError(ncclComm_t) {
  return last_error.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  snprintf(id->internal, sizeof id->internal, "%d %lld", int(getpid()),
           static_cast<long long>(std::chrono::steady_clock::now().time_since_epoch().count()));
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (!config || config->blocking != 0) return refused("ncclCommInitRankConfig: one that blocks is not known here");
  auto c = std::make_unique<ncclComm>();
  MPI_Comm_dup(MPI_COMM_WORLD, &c->mpi);
  MPI_Comm_rank(c->mpi, &c->rank);
  MPI_Comm_size(c->mpi, &c->ranks);
  if (c->rank != rank || c->ranks != ranks)
    return refused("ncclCommInitRankConfig: not the ranks that MPI has started");
  struct Member {
    ncclUniqueId id;
    char host[64];
    int device;
  } mine = {id, {}, 0};
  gethostname(mine.host, sizeof mine.host - 1);
  cudaGetDevice(&mine.device);
  std::vector<Member> all(size_t(ranks), mine);
  MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, c->mpi);
  for (int i = 0; i < ranks; i++) {
    const Member& other = all[size_t(i)];
    if (memcmp(&other.id, &id, sizeof id)) return refused("ncclCommInitRankConfig: the ranks have several unique ids");
    if (i != rank && other.device == mine.device && !strcmp(other.host, mine.host))
      return refused("Duplicate GPU detected: rank " + std::to_string(rank) + " and rank " + std::to_string(i));
  }
  c->unsettled = 2;
  *made = c.release();
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t* state) {
  if (!c || c->aborted) return ncclInvalidArgument;
  if (c->unsettled)
    *state = --c->unsettled ? ncclInProgress : ncclSuccess;
  else
    *state = c->groups > lost_from() ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  depth++;
  return ncclSuccess;
}

ncclResult_t ncclSend(const void* at, size_t count, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t stream) {
  return add("ncclSend", true, at, count, type, peer, c, stream);
}

ncclResult_t ncclRecv(void* at, size_t count, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t stream) {
  return add("ncclRecv", false, at, count, type, peer, c, stream);
}

ncclResult_t ncclGroupEnd() {
  if (depth == 0) return refused("ncclGroupEnd without ncclGroupStart");
  if (--depth || !of_group) return ncclSuccess;
  ncclComm& c = *std::exchange(of_group, nullptr);
  const auto group = std::make_shared<Group>(c, std::exchange(in_group, {}));
  c.groups++;
  const cudaError_t answer = call([&] {
    if (is_captured(stream_of_group)) refuse(cudaErrorNotSupported, "a group in a capture is not known here");
    if (c.last && c.stream != stream_of_group)
      refuse(cudaErrorNotSupported, "groups in two streams are not known here");
    c.stream = stream_of_group;
    c.last = submit(c.stream, {"a group of NCCL's", [group] { group->finish(); }, {}, [group] { group->start(); }});
  });
  c.unsettled = 2;
  return answer == cudaSuccess ? ncclInProgress : ncclUnhandledCudaError;
}

ncclResult_t ncclCommFinalize(ncclComm_t c) {
  if (!c || c->aborted) return ncclInvalidArgument;
  if (call([&] { wait_for("ncclCommFinalize", c->last); }) != cudaSuccess) return ncclUnhandledCudaError;
  for (Going& g : c->going) MPI_Waitall(int(g.requests.size()), g.requests.data(), MPI_STATUSES_IGNORE);
  c->unsettled = 2;
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t c) {
  if (!c || c->aborted) return ncclInvalidArgument;
  if (c->unsettled) return refused("ncclCommDestroy: the communicator has not done yet what it was asked for");
  MPI_Comm_free(&c->mpi);
  delete c;
  return ncclSuccess;
}

// (Its groups, which may still stand in a stream, end without having moved anything.)
ncclResult_t ncclCommAbort(ncclComm_t c) {
  if (!c || c->aborted) return ncclInvalidArgument;
  c->aborted = true;
  return ncclSuccess;
}
#endif
