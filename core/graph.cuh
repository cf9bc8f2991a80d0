// graph: launches that are recorded once, and from then on repeated without the host code that made them.
//
//   LaunchGraph graph(ctx);
//   graph.run([&] { ...launches... });   // again and again
//
// Kernels of a small model may end sooner than the host launches the next one. A CUDA graph is many kernels in one
// launch.
//
//   first run    does the launches. They have first-time work that no record can hold: kernels are loaded, cuBLASLt
//                chooses its algorithms, scratch memory grows
//   second run   records them: nothing runs meanwhile. Then it repeats the record
//   later runs   repeat the record. The function is not called
//
// A record holds kernels with their grids and arguments, cuBLASLt's among them, set_zero and copy_rows. So what changes
// from run to run must lie in device memory, always at the same address, and is uploaded before the run. An argument
// stays what it was in the second run.
// What a record cannot hold is refused: an upload, something read back, a wait for the device, an allocation, memory
// that is given back.
//
// Once a graph has run, whatever memory of the device is given back, and ctx.outdate_graphs(), make the next run a
// first one.
//
// On a GPU a record is a CUDA graph, which a stream captures. On the emulator it is a list of functions with the same
// rules: so a test without a GPU sees whether they are kept. Without ctx.use_graphs(), as on the CPU, every run is a
// first one.
// --graph | tests/test_graph.cpp
#pragma once
#include <optional>

#include "core/context.cuh"

namespace gated {

class LaunchGraph {
 public:
  explicit LaunchGraph(Context& ctx) : ctx_(ctx) {}
  LaunchGraph(const LaunchGraph&) = delete;
  ~LaunchGraph() { forget(); }

  // launches(): host code that launches the same work in every run, and nothing else.
  template <class Launches>
  void run(const Launches& launches) {
    require_not_recording(ctx_.device, "a graph runs");
    if (!ctx_.uses_graphs()) return launches();
    if (version_ != ctx_.graph_version()) {
      forget();
      launches();
      version_ = ctx_.graph_version();
      return;
    }
    if (!recorded_) record(launches);
    repeat();
  }

 private:
  // While it lives, nothing runs.
  struct Recording {
    Recording() { recording_launches = true; }
    ~Recording() { recording_launches = false; }
  };
  template <class Launches>
  void launch_recording(const Launches& launches) {
    const Recording recording;
    const size_t before = given_back;
    launches();
    // It is a destructor that gives memory back, and that cannot refuse: so the record is refused.
    if (given_back != before) require_not_recording(ctx_.device, "memory is given back");
  }

#ifdef __CUDACC__
  template <class Launches>
  void record(const Launches& launches) {
    cudaGraph_t graph = nullptr;
    CUDA_CHECK(cudaStreamBeginCapture(ctx_.stream, cudaStreamCaptureModeThreadLocal));
    try {
      launch_recording(launches);
    } catch (...) {
      cudaStreamEndCapture(ctx_.stream, &graph);
      if (graph) cudaGraphDestroy(graph);
      cudaGetLastError();
      throw;
    }
    CUDA_CHECK(cudaStreamEndCapture(ctx_.stream, &graph));
    const cudaError_t made = cudaGraphInstantiate(&record_, graph, 0);
    cudaGraphDestroy(graph);
    CUDA_CHECK(made);
    recorded_ = true;
  }
  void repeat() {
    CUDA_CHECK(cudaGraphLaunch(record_, ctx_.stream));
  }
  void forget() {
    if (record_) {
      cudaStreamSynchronize(ctx_.stream);  // it may still run
      cudaGraphExecDestroy(record_);
    }
    record_ = nullptr;
    recorded_ = false;
  }
  cudaGraphExec_t record_ = nullptr;
#else
  template <class Launches>
  void record(const Launches& launches) {
    struct Into {
      Context& ctx;
      Into(Context& c, Record& record) : ctx(c) { ctx.record_to(&record); }
      ~Into() { ctx.record_to(nullptr); }
    };
    record_.clear();
    const Into into(ctx_, record_);
    launch_recording(launches);
    recorded_ = true;
  }
  void repeat() {
    record_.repeat();
  }
  void forget() {
    record_.clear();
    recorded_ = false;
  }
  Record record_;
#endif

  Context& ctx_;
  std::optional<size_t> version_;  // of the context, when the launches ran last
  bool recorded_ = false;
};

}  // namespace gated
