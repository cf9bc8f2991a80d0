// See stream.h. The rules are those of the CUDA C++ Programming Guide ("Streams", "CUDA Graphs: Creating a Graph Using
// Stream Capture") and of the Runtime API's reference ("Stream synchronization behavior", and the page of each
// function).
#include "ptx/stream.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

namespace ptx {
namespace {

// A piece of work, and the numbers of those that must be done before it.
struct Pending {
  Work work;
  std::vector<uint64_t> after;
  bool blocking;  // given to a stream that the null stream waits for
  cudaStream_t stream;
  bool started = false;  // others may go on with it; or it does nothing, and stands behind such work in its stream
};

struct Stream {
  bool blocking = true;
  uint64_t last = 0;
  uint64_t capture = 0;        // 0 where there is none
  std::vector<size_t> tail{};  // in a capture: what the next piece stands behind
};

// While a stream captures, pieces of work become nodes. They stand in the order of their calls, so that each is behind
// those that it depends on.
struct Capture {
  struct Node {
    Work work;
    std::vector<size_t> after;
  };
  cudaStream_t origin;
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  bool valid = true;
  std::vector<Node> nodes;
};

struct Event {
  uint64_t after = 0;    // the piece of work that it was recorded behind
  uint64_t capture = 0;  // or the capture in which it was recorded, and the nodes
  std::vector<size_t> tail;
  bool asked = false;  // whether it was done
  bool timed = false;
  std::shared_ptr<const double> seconds{};  // where a timed one is reached: when; 0 before
};

using Graph = std::shared_ptr<const std::vector<Work>>;
struct GraphExec {
  Graph graph;
  uint64_t last = 0;
};

// Handles are numbers that look like pointers. None is given out twice, so that one that is gone is known to be gone.
uint64_t handles_given = 0;
template <class Handle, class T>
class Handles {
 public:
  Handle add(T t) {
    const auto handle = reinterpret_cast<Handle>(++handles_given << 8);
    all_.emplace(handle, std::move(t));
    return handle;
  }
  T* find(Handle handle) {
    const auto found = all_.find(handle);
    return found == all_.end() ? nullptr : &found->second;
  }
  void remove(Handle handle) { all_.erase(handle); }
  auto begin() { return all_.begin(); }
  auto end() { return all_.end(); }

 private:
  std::map<Handle, T> all_;
};

struct State {
  std::mutex lock;
  cudaError_t fault = cudaSuccess;
  bool complained = false;
  uint64_t pieces = 0, captures_begun = 0;
  std::map<uint64_t, Pending> pending;
  std::set<uint64_t> to_start;  // of those
  Stream null;
  Handles<cudaStream_t, Stream> streams;
  Handles<cudaEvent_t, Event> events;
  Handles<cudaGraph_t, Graph> graphs;
  Handles<cudaGraphExec_t, GraphExec> execs;
  std::map<uint64_t, Capture> captures;
};
thread_local cudaError_t last_error = cudaSuccess;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void say(const char* format, va_list arguments) {
  fprintf(stderr, "ptx: ");
  vfprintf(stderr, format, arguments);
  fprintf(stderr, "\n");
}

// The last of what is done when the program ends.
void end(int status, void* of) {
  State& s = *static_cast<State*>(of);
  for (const auto& [number, capture] : s.captures)
    complain("the program ends, but nobody ended the capture of stream %p", static_cast<void*>(capture.origin));
  // (whoever ends in an error, his own or the device's, has not waited for all)
  for (const auto& [number, piece] : s.pending)
    if (status == 0 && s.fault == cudaSuccess && piece.work.run)
      complain("the program ends, but nobody waited for %s", piece.work.what.c_str());
  fflush(nullptr);
  if (s.complained && status == 0) _exit(1);
}

// It is never destroyed: the destructors of a program's own statics may call.
State& state() {
  static State* const s = [] {
    auto* const fresh = new State;
    on_exit(end, fresh);
    return fresh;
  }();
  return *s;
}

// ---- captures

void invalidate(uint64_t capture) {
  if (const auto found = state().captures.find(capture); found != state().captures.end()) found->second.valid = false;
}

// The capture of that number, which can still take something down.
Capture& valid_capture(uint64_t number) {
  Capture& capture = state().captures.at(number);
  if (!capture.valid)
    refuse(cudaErrorStreamCaptureInvalidated,
           "the capture of stream %p has ended in an error: cudaStreamEndCapture comes next",
           static_cast<void*>(capture.origin));
  return capture;
}

// ---- streams

Stream& stream_of(cudaStream_t handle) {
  if (!handle || handle == cudaStreamLegacy) return state().null;
  if (Stream* const found = state().streams.find(handle)) return *found;
  refuse(cudaErrorInvalidResourceHandle, "there is no stream %p: it was destroyed, or never made",
         static_cast<void*>(handle));
}

// The stream of that handle, for something that is put into it or waits for it. The null stream and the blocking
// streams wait for each other, so the null stream has no place beside a blocking stream's capture.
Stream& stream_in_use(cudaStream_t handle) {
  Stream& stream = stream_of(handle);
  bool captured = false;
  if (&stream == &state().null)
    for (auto& [other, of] : state().streams)
      if (of.blocking && of.capture) {
        invalidate(of.capture);
        captured = true;
      }
  if (captured)
    refuse(cudaErrorStreamCaptureImplicit, "the null stream is used while a stream that it waits for is captured");
  return stream;
}

Event& event_of(cudaEvent_t handle) {
  if (Event* const found = state().events.find(handle)) return *found;
  refuse(cudaErrorInvalidResourceHandle, "there is no event %p: it was destroyed, or never made",
         static_cast<void*>(handle));
}

// ---- work

// Starts what stands behind nothing any more, or only behind what has started in its stream, which ends by itself.
// Where there is nothing to do, it is done.
void start_what_can() {
  State& s = state();
  for (auto next = s.to_start.begin(); next != s.to_start.end();) {
    const uint64_t number = *next++;
    Pending& piece = s.pending.at(number);
    bool behind = false, behind_others = false;
    for (const uint64_t a : piece.after)
      if (const auto found = s.pending.find(a); found != s.pending.end()) {
        behind = true;
        behind_others |= !found->second.started || found->second.stream != piece.stream;
      }
    if (behind_others) continue;
    piece.started = true;
    if (behind && !piece.work.run) continue;
    s.to_start.erase(number);
    if (piece.work.run)
      piece.work.start();
    else
      s.pending.erase(number);
  }
}

void run_now(const std::set<uint64_t>& pieces) {
  State& s = state();
  for (const uint64_t number : pieces) {
    const auto found = s.pending.find(number);
    if (found == s.pending.end()) continue;
    if (const auto& run = found->second.work.run) run();
    s.pending.erase(found);
    start_what_can();
  }
}

// All that stands behind nothing that others have a part in.
std::set<uint64_t> without_others() {
  std::set<uint64_t> free, bound;
  for (const auto& [number, piece] : state().pending) {
    const auto is_bound = [&bound](uint64_t a) { return bound.count(a) > 0; };
    const bool is = piece.work.start || std::any_of(piece.after.begin(), piece.after.end(), is_bound);
    (is ? bound : free).insert(number);
  }
  return free;
}

// Does a piece of work, and before it those that it stands behind, and no others. But what others have a part in is
// done when nothing else is left: so whoever does not wait for it comes too early.
void finish(uint64_t piece) {
  State& s = state();
  std::set<uint64_t> needed;
  std::vector<uint64_t> looked_at{piece};
  while (!looked_at.empty()) {
    const auto found = s.pending.find(looked_at.back());
    looked_at.pop_back();
    if (found == s.pending.end() || !needed.insert(found->first).second) continue;
    looked_at.insert(looked_at.end(), found->second.after.begin(), found->second.after.end());
  }
  // A piece has a greater number than all that it stands behind.
  const auto has_others = [&s](uint64_t number) { return bool(s.pending.at(number).work.start); };
  try {
    if (std::any_of(needed.begin(), needed.end(), has_others)) run_now(without_others());
    run_now(needed);
  } catch (const Refusal& refusal) {
    s.fault = refusal.code;
    throw;
  }
}

}  // namespace

void refuse(cudaError_t code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  say(format, arguments);
  va_end(arguments);
  throw Refusal{code};
}

void complain(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  say(format, arguments);
  va_end(arguments);
  state().complained = true;
}

cudaError_t call(const std::function<void()>& body) {
  const std::lock_guard hold(state().lock);
  try {
    if (state().fault != cudaSuccess) throw Refusal{state().fault};
    body();
    return cudaSuccess;
  } catch (const Refusal& refusal) {
    return last_error = refusal.code;
  } catch (const std::bad_alloc&) {
    return last_error = cudaErrorMemoryAllocation;
  }
}

uint64_t submit(cudaStream_t handle, Work work, std::initializer_list<uint64_t> also) {
  State& s = state();
  Stream& stream = stream_in_use(handle);
  if (stream.capture) {
    std::vector<Capture::Node>& nodes = valid_capture(stream.capture).nodes;
    nodes.push_back({std::move(work), std::move(stream.tail)});
    stream.tail = {nodes.size() - 1};
    return 0;
  }
  Pending piece{std::move(work), also, stream.blocking, handle};
  piece.after.push_back(stream.last);
  // The null stream waits for all blocking streams, and each of them for it.
  if (&stream == &s.null) {
    for (const auto& [number, other] : s.pending)
      if (other.blocking && number > stream.last) piece.after.push_back(number);
  } else if (stream.blocking) {
    piece.after.push_back(s.null.last);
  }
  const bool starts = piece.work.start || !piece.work.run;
  s.pending.emplace(++s.pieces, std::move(piece));
  stream.last = s.pieces;
  if (starts) {
    s.to_start.insert(s.pieces);
    start_what_can();
  }
  return s.pieces;
}

// cudaThreadExchangeStreamCaptureMode says whom which mode forbids what it calls potentially unsafe.
void not_while_capturing(const char* call) {
  bool forbidden = false;
  for (auto& [number, capture] : state().captures) {
    if (capture.mode == cudaStreamCaptureModeRelaxed) continue;
    if (capture.mode == cudaStreamCaptureModeThreadLocal && capture.thread != std::this_thread::get_id()) continue;
    capture.valid = false;
    forbidden = true;
  }
  if (forbidden) refuse(cudaErrorStreamCaptureUnsupported, "%s is called while a stream is captured", call);
}

void wait_for(const char* call, uint64_t piece) {
  not_while_capturing(call);
  finish(piece);
}

void wait_for_all(const char* call) {
  not_while_capturing(call);
  while (!state().pending.empty()) finish(state().pending.begin()->first);
}

bool is_captured(cudaStream_t stream) {
  return stream_of(stream).capture != 0;
}

std::string work_on_pinned(const void* begin, size_t bytes) {
  const auto first = uintptr_t(begin);
  for (const auto& [number, piece] : state().pending)
    for (const Range& range : piece.work.pinned)
      if (uintptr_t(range.begin) < first + bytes && first < uintptr_t(range.begin) + range.bytes)
        return piece.work.what;
  return "";
}

}  // namespace ptx

using namespace ptx;

// ---- errors

cudaError_t cudaGetLastError() {
  const std::lock_guard hold(state().lock);
  return state().fault != cudaSuccess ? state().fault : std::exchange(last_error, cudaSuccess);
}

// ---- streams

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return call([&] {
    if (!stream || (flags != cudaStreamDefault && flags != cudaStreamNonBlocking))
      refuse(cudaErrorInvalidValue, "cudaStreamCreateWithFlags: flags %u, expected 0 or 1, and a place for the stream",
             flags);
    *stream = state().streams.add({flags == cudaStreamDefault});
  });
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

// What stands in the stream is done all the same, when something waits for it.
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return call([&] {
    Stream& stream = stream_of(handle);
    if (&stream == &state().null) refuse(cudaErrorInvalidResourceHandle, "cudaStreamDestroy: the null stream stays");
    if (stream.capture) {
      invalidate(stream.capture);
      complain("cudaStreamDestroy: stream %p is being captured", static_cast<void*>(handle));
      throw Refusal{cudaErrorStreamCaptureUnsupported};
    }
    state().streams.remove(handle);
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return call([&] {
    Stream& stream = stream_in_use(handle);
    if (stream.capture) {
      invalidate(stream.capture);
      refuse(cudaErrorStreamCaptureUnsupported, "cudaStreamSynchronize: stream %p is being captured",
             static_cast<void*>(handle));
    }
    const bool all_blocking = &stream == &state().null;
    wait_for("cudaStreamSynchronize", all_blocking ? submit(handle, {"a wait", {}, {}}) : stream.last);
  });
}

// A wait for the device is forbidden beside any capture, in every mode.
cudaError_t cudaDeviceSynchronize() {
  return call([] {
    for (auto& [number, capture] : state().captures) capture.valid = false;
    if (!state().captures.empty())
      refuse(cudaErrorStreamCaptureUnsupported, "cudaDeviceSynchronize is called while a stream is captured");
    wait_for_all("cudaDeviceSynchronize");
  });
}

// ---- events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return call([&] {
    if (!event || flags & ~unsigned(cudaEventBlockingSync | cudaEventDisableTiming))
      refuse(cudaErrorInvalidValue,
             "cudaEventCreateWithFlags: flags %u, expected some of 1 and 2, and a place for the event", flags);
    Event fresh;
    fresh.timed = !(flags & cudaEventDisableTiming);
    *event = state().events.add(std::move(fresh));
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call([&] {
    event_of(event);
    state().events.remove(event);
  });
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t to) {
  return call([&] {
    Event& event = event_of(handle);
    const Stream& stream = stream_in_use(to);
    if (stream.capture) {
      valid_capture(stream.capture);
      event = {0, stream.capture, stream.tail, false, event.timed};
    } else if (!event.timed) {
      event = {submit(to, {"an event", {}, {}}), 0, {}};
    } else {
      const auto seconds = std::make_shared<double>(0);
      event = {submit(to, {"an event", [seconds] { *seconds = now(); }, {}}), 0, {}, false, true, seconds};
    }
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return call([&] {
    const Event& event = event_of(handle);
    if (event.capture) {
      invalidate(event.capture);
      refuse(cudaErrorCapturedEvent, "cudaEventSynchronize: event %p was recorded in a capture",
             static_cast<void*>(handle));
    }
    wait_for("cudaEventSynchronize", event.after);
  });
}

// By the host's clock, as it came to them.
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  return call([&] {
    for (const cudaEvent_t handle : {from, to})
      if (const Event& event = event_of(handle); !milliseconds || !event.timed || !event.seconds)
        refuse(cudaErrorInvalidResourceHandle, "cudaEventElapsedTime: event %p %s", static_cast<void*>(handle),
               event.timed ? "was recorded in no stream, or in a capture" : "was made without timing");
    const double begin = *event_of(from).seconds, end = *event_of(to).seconds;
    if (begin == 0 || end == 0) throw Refusal{cudaErrorNotReady};
    *milliseconds = float((end - begin) * 1e3);
  });
}

// Who asks for the first time is told that it is not done yet, as by a device that takes its time. Then it is.
cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return call([&] {
    Event& event = event_of(handle);
    if (event.capture) {
      invalidate(event.capture);
      refuse(cudaErrorCapturedEvent, "cudaEventQuery: event %p was recorded in a capture", static_cast<void*>(handle));
    }
    if (state().pending.count(event.after) && !std::exchange(event.asked, true)) throw Refusal{cudaErrorNotReady};
    wait_for("cudaEventQuery", event.after);
  });
}

// An event of a capture brings the stream into the capture. Another event has no place in one.
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t of, unsigned flags) {
  return call([&] {
    Stream& stream = stream_in_use(handle);
    const Event& event = event_of(of);
    if (flags) refuse(cudaErrorInvalidValue, "cudaStreamWaitEvent: flags %u, expected 0", flags);
    if (!event.capture) {
      if (!stream.capture) {
        submit(handle, {"a wait for an event", {}, {}}, {event.after});
      } else if (event.after) {
        invalidate(stream.capture);
        refuse(cudaErrorStreamCaptureIsolation,
               "cudaStreamWaitEvent: stream %p is being captured, event %p is of no capture",
               static_cast<void*>(handle), static_cast<void*>(of));
      }
      return;
    }
    if (!state().captures.count(event.capture))
      refuse(cudaErrorCapturedEvent, "cudaStreamWaitEvent: event %p is of a capture that has ended",
             static_cast<void*>(of));
    valid_capture(event.capture);
    if (&stream == &state().null) {
      invalidate(event.capture);
      refuse(cudaErrorStreamCaptureImplicit, "cudaStreamWaitEvent: the null stream cannot be captured");
    }
    if (stream.capture && stream.capture != event.capture) {
      invalidate(stream.capture);
      invalidate(event.capture);
      refuse(cudaErrorStreamCaptureMerge, "cudaStreamWaitEvent: stream %p and event %p are of two captures",
             static_cast<void*>(handle), static_cast<void*>(of));
    }
    stream.capture = event.capture;
    stream.tail.insert(stream.tail.end(), event.tail.begin(), event.tail.end());
  });
}

// ---- captures and graphs

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return call([&] {
    State& s = state();
    Stream& stream = stream_of(handle);
    if (&stream == &s.null)
      refuse(cudaErrorStreamCaptureUnsupported, "cudaStreamBeginCapture: the null stream cannot be captured");
    if (stream.capture)
      refuse(cudaErrorIllegalState, "cudaStreamBeginCapture: stream %p is being captured", static_cast<void*>(handle));
    stream.capture = ++s.captures_begun;
    s.captures[stream.capture] = {handle, mode, std::this_thread::get_id(), true, {}};
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  return call([&] {
    State& s = state();
    if (!graph) refuse(cudaErrorInvalidValue, "cudaStreamEndCapture: there is no place for the graph");
    *graph = nullptr;
    const Stream& stream = stream_of(handle);
    const uint64_t number = stream.capture;
    if (!number)
      refuse(cudaErrorIllegalState, "cudaStreamEndCapture: stream %p is not being captured",
             static_cast<void*>(handle));
    if (s.captures.at(number).origin != handle) {
      invalidate(number);
      refuse(cudaErrorStreamCaptureUnmatched, "cudaStreamEndCapture: the capture of stream %p began in stream %p",
             static_cast<void*>(handle), static_cast<void*>(s.captures.at(number).origin));
    }
    if (s.captures.at(number).mode != cudaStreamCaptureModeRelaxed &&
        s.captures.at(number).thread != std::this_thread::get_id())
      refuse(cudaErrorStreamCaptureWrongThread, "cudaStreamEndCapture: another thread began the capture of stream %p",
             static_cast<void*>(handle));
    Capture capture = std::move(s.captures.at(number));
    s.captures.erase(number);
    // All nodes are to lie before where the origin stands now.
    std::vector<bool> joined(capture.nodes.size());
    for (const size_t node : stream.tail) joined[node] = true;
    for (size_t i = joined.size(); i-- > 0;)
      for (const size_t before : capture.nodes[i].after) joined[before] = joined[before] || joined[i];
    for (auto& [other, of] : s.streams)
      if (of.capture == number) {
        of.capture = 0;
        of.tail.clear();
      }
    if (!capture.valid)
      refuse(cudaErrorStreamCaptureInvalidated,
             "cudaStreamEndCapture: the capture of stream %p ended in an error before", static_cast<void*>(handle));
    if (const auto loose = std::find(joined.begin(), joined.end(), false); loose != joined.end())
      refuse(cudaErrorStreamCaptureUnjoined,
             "cudaStreamEndCapture: stream %p does not wait for what another one was given: %s",
             static_cast<void*>(handle), capture.nodes[size_t(loose - joined.begin())].work.what.c_str());
    std::vector<Work> nodes;
    for (Capture::Node& node : capture.nodes) nodes.push_back(std::move(node.work));
    *graph = s.graphs.add(std::make_shared<const std::vector<Work>>(std::move(nodes)));
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return call([&] {
    if (!state().graphs.find(graph))
      refuse(cudaErrorInvalidValue, "cudaGraphDestroy: there is no graph %p", static_cast<void*>(graph));
    state().graphs.remove(graph);
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  return call([&] {
    const Graph* const found = state().graphs.find(graph);
    if (!exec || !found || flags)
      refuse(cudaErrorInvalidValue,
             "cudaGraphInstantiate: graph %p, flags %llu, expected a graph that lives and flags 0",
             static_cast<void*>(graph), flags);
    *exec = state().execs.add({*found});
  });
}

// A launch stands behind those of the same graph, in whichever stream.
cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream) {
  return call([&] {
    GraphExec* const exec = state().execs.find(handle);
    if (!exec)
      refuse(cudaErrorInvalidValue, "cudaGraphLaunch: there is no executable graph %p", static_cast<void*>(handle));
    Work work{"a graph",
              [graph = exec->graph] {
                for (const Work& node : *graph) node.run();
              },
              {}};
    for (const Work& node : *exec->graph) work.pinned.insert(work.pinned.end(), node.pinned.begin(), node.pinned.end());
    if (const uint64_t piece = submit(stream, std::move(work), {exec->last})) exec->last = piece;
  });
}

// CUDA's reference does not say that a graph may be destroyed while it runs.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle) {
  return call([&] {
    const GraphExec* const exec = state().execs.find(handle);
    if (!exec)
      refuse(cudaErrorInvalidValue, "cudaGraphExecDestroy: there is no executable graph %p",
             static_cast<void*>(handle));
    if (state().pending.count(exec->last)) {
      complain("cudaGraphExecDestroy: executable graph %p is destroyed while it runs", static_cast<void*>(handle));
      throw Refusal{cudaErrorInvalidValue};
    }
    state().execs.remove(handle);
  });
}
