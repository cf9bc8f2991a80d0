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
// stays what it was in the second run. What the host does between launches (ctx.between_launches) is not done in the
// second run, but in its place whenever the record is repeated: a record is pieces, and these calls between them.
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
  // While it lives, nothing runs: launches go into pieces, and between two of them stands a call of the host.
  struct Recording {
    explicit Recording(LaunchGraph& graph) : ctx(graph.ctx_) {
      recording_launches = true;
      ctx.break_record([&graph](const std::function<void()>& call) {
        graph.end_piece();
        graph.calls_.push_back(call);
        graph.begin_piece();
      });
    }
    ~Recording() {
      recording_launches = false;
      ctx.break_record(nullptr);
    }
    Context& ctx;
  };
  template <class Launches>
  void record(const Launches& launches) {
    forget();
    const Recording recording(*this);
    const size_t before = given_back;
    begin_piece();
    try {
      launches();
      // It is a destructor that gives memory back, and that cannot refuse: so the record is refused.
      if (given_back != before) require_not_recording(ctx_.device, "memory is given back");
      end_piece();
    } catch (...) {
      abandon_piece();
      throw;
    }
    recorded_ = true;
  }
  void repeat() {
    for (size_t i = 0; i < pieces_.size(); i++) {
      repeat(pieces_[i]);
      if (i < calls_.size()) calls_[i]();
    }
  }

#ifdef __CUDACC__
  using Piece = cudaGraphExec_t;
  void begin_piece() {
    CUDA_CHECK(cudaStreamBeginCapture(ctx_.stream, cudaStreamCaptureModeThreadLocal));
  }
  void abandon_piece() {
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(ctx_.stream, &graph);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
  }
  void end_piece() {
    cudaGraph_t graph = nullptr;
    CUDA_CHECK(cudaStreamEndCapture(ctx_.stream, &graph));
    Piece piece = nullptr;
    const cudaError_t made = cudaGraphInstantiate(&piece, graph, 0);
    cudaGraphDestroy(graph);
    CUDA_CHECK(made);
    pieces_.push_back(piece);
  }
  void repeat(Piece piece) {
    CUDA_CHECK(cudaGraphLaunch(piece, ctx_.stream));
  }
#else
  using Piece = Record;
  void begin_piece() {
    ctx_.record_to(&pieces_.emplace_back());
  }
  void abandon_piece() {
    ctx_.record_to(nullptr);
  }
  void end_piece() {
    ctx_.record_to(nullptr);
  }
  void repeat(const Piece& piece) {
    piece.repeat();
  }
#endif
  void forget() {
#ifdef __CUDACC__
    if (!pieces_.empty()) cudaStreamSynchronize(ctx_.stream);  // they may still run
    for (const Piece piece : pieces_) cudaGraphExecDestroy(piece);
#endif
    pieces_.clear();
    calls_.clear();
    recorded_ = false;
  }

  std::vector<Piece> pieces_;
  std::vector<std::function<void()>> calls_;  // behind each piece but the last
  Context& ctx_;
  std::optional<size_t> version_;  // of the context, when the launches ran last
  bool recorded_ = false;
};

}  // namespace gated
