// graph: what is recorded and repeated is what is launched anew each time, to the bit: single operations, and whole
// runs of every kind of layer, with all that may come between two steps. And what cannot be recorded is refused.
#include "core/graph.cuh"

#include "core/philox.cuh"
#include "kernels/bf16/matmul_bf16.h"
#include "kernels/mean.h"
#include "kernels/bf16/round.h"
#include "tests/harness.h"
#include "tests/refusal.h"
#include "tests/script.h"
#include "tests/small_runs.h"
#include "training/inspect/inspection.h"
#include "training/inspect/measures.h"

using namespace gated;

namespace {

// y = the last row of x twice, mean = the mean of y, with scratch memory in use: memset, copies and kernels.
struct Work {
  static constexpr size_t C = 300, N = 2 * C;
  Buffer<float> x, y, mean;
  Buffer<bf16> rounded;
  size_t calls = 0;
  explicit Work(Context& ctx)
      : x(ctx.device, random_values<float>(N, 9)),
        y(ctx.device, N),
        mean(ctx.device, std::vector<float>{0}),
        rounded(ctx.device, N) {}

  void launch(Context& ctx) {
    calls++;
    set_zero(y.data(), N, ctx);
    copy_rows(y.data(), C, x.data() + C, 0, 2, C, ctx);
    gated::mean(mean.data(), y.data(), N, ctx);
    round_to_bf16(rounded.data(), x.data(), N, ctx);
  }
  // What it leaves, of x filled with numbers from `seed`.
  std::vector<float> result(uint64_t seed, Context& ctx, const std::function<void()>& run) {
    ctx.upload(x.data(), random_values<float>(N, seed).data(), N);
    run();
    ctx.synchronize();
    std::vector<float> left = y.download();
    left.push_back(mean.download()[0]);
    for (const bf16 v : rounded.download()) left.push_back(float(v));
    return left;
  }
};

struct Recording {
  Context ctx{kernel_device};
  LaunchGraph graph{ctx};
  Recording() { ctx.use_graphs(); }
};

}  // namespace

TEST_CASE_METHOD(Recording, "graph: launches are repeated without their host code, on what is then in memory",
                 "[graph][bitwise]") {
  Context plain(kernel_device);
  Work direct(plain), work(ctx);
  LaunchGraph never(plain);
  for (uint64_t seed = 1; seed <= 5; seed++) {
    const std::vector<float> expected = direct.result(seed, plain, [&] { never.run([&] { direct.launch(plain); }); });
    REQUIRE_BITWISE(expected, work.result(seed, ctx, [&] { graph.run([&] { work.launch(ctx); }); }));
  }
  REQUIRE(direct.calls == 5);
  REQUIRE(work.calls == 2);  // one that runs, and one that is recorded
}

TEST_CASE_METHOD(Recording, "graph: nothing runs while it is recorded, and an argument stays what it was then",
                 "[graph][bitwise]") {
  const Buffer<float> x(ctx.device, std::vector<float>(4, 1.0f));
  for (const auto& [n, zeros] : {std::pair(1, 1), {3, 3}, {4, 3}}) {
    Buffer<float>::copy_to_device(ctx.device, x.data(), std::vector<float>(4, 1.0f).data(), 4);
    graph.run([&, n = n] { set_zero(x.data(), size_t(n), ctx); });
    ctx.synchronize();
    REQUIRE(std::ranges::count(x.download(), 0.0f) == zeros);
  }
}

TEST_CASE_METHOD(Recording,
                 "graph: what the host does between launches is done in its place, whenever they are repeated",
                 "[graph][bitwise]") {
  const Buffer<float> x(ctx.device, std::vector<float>{0}), y(ctx.device, std::vector<float>{0, 0});
  std::vector<float> seen;
  const auto look = [&] {
    ctx.synchronize();
    seen.push_back(y.download()[0]);
    const float next = seen.back() + 1;
    ctx.upload(x.data(), &next, 1);
  };
  size_t launched = 0;
  for (int run = 0; run < 5; run++) {
    graph.run([&] {
      launched++;
      copy_rows(y.data(), 1, x.data(), 1, 1, 1, ctx);
      ctx.between_launches(look);
      ctx.between_launches(look);  // with no launch before it
      copy_rows(y.data() + 1, 1, x.data(), 1, 1, 1, ctx);
      ctx.between_launches([&] { seen.push_back(-1); });  // and with none behind it
    });
    ctx.synchronize();
    REQUIRE(seen == std::vector<float>{float(run), float(run), -1});
    REQUIRE(y.download() == std::vector<float>{float(run), float(run + 1)});
    seen.clear();
  }
  REQUIRE(launched == 2);
}

TEST_CASE_METHOD(Recording, "graph: memory that was given back, or launches that differ, make it begin anew",
                 "[graph][bitwise]") {
  Work work(ctx);
  const auto calls_of_runs = [&](size_t n) {
    const size_t before = work.calls;
    for (size_t i = 0; i < n; i++) graph.run([&] { work.launch(ctx); });
    return work.calls - before;
  };
  REQUIRE(calls_of_runs(4) == 2);
  { const Buffer<float> gone(ctx.device, 1); }
  REQUIRE(calls_of_runs(4) == 2);
  ctx.outdate_graphs();
  REQUIRE(calls_of_runs(1) == 1);
  ctx.outdate_graphs();  // before it was recorded
  REQUIRE(calls_of_runs(3) == 2);
  { const Buffer<float> of_the_cpu(Device::cpu, 1); }
  REQUIRE(calls_of_runs(2) == 0);
}

TEST_CASE_METHOD(Recording, "graph: what cannot be recorded is refused by its name, and what can is recorded after it",
                 "[graph][bitwise]") {
  Work work(ctx);
  Readback<float> sent(1, ctx);
  sent.start(work.mean.data());
  const float one = 1;
  std::optional<Buffer<float>> freed(std::in_place, ctx.device, 1);
  const auto nothing = [] {};
  const std::vector<std::pair<std::function<void()>, const char*>> cases = {
      {[&] { ctx.upload(work.mean.data(), &one, 1); }, "something is uploaded"},
      {[&] { ctx.synchronize(); }, "the host waits for the device"},
      {[&] { sent.start(work.mean.data()); }, "something is read back"},
      {[&] { sent.wait(); }, "the host waits for the device"},
      {[&] { work.mean.upload({1.0f}); }, "memory is copied from the host"},
      {[&] { work.mean.download(); }, "memory is copied to the host"},
      {[&] { const Buffer<float> fresh(ctx.device, 1); }, "memory is allocated"},
      {[&] { ctx.scratch(ctx.scratch_bytes() + 1); }, "scratch memory grows"},
      {[&] { graph.run(nothing); }, "a graph runs"},
      {[&] { freed.reset(); }, "memory is given back"}};
  for (const auto& [action, message] : cases) {
    INFO(message);
    LaunchGraph refusing(ctx);
    refusing.run([&] { work.launch(ctx); });
    work.launch(ctx);
    for (int attempts = contains(message, "given back") ? 1 : 2; attempts > 0; attempts--) {
      INFO(attempts);
      const std::string said = refusal([&, &action = action] {
        refusing.run([&] {
          work.launch(ctx);
          action();
        });
      });
      REQUIRE(said == std::string("graph: ") + message +
                          " while launches are recorded: a record holds launches, set_zero and copy_rows alone");
    }
    // What was recorded before the refusal is forgotten.
    const std::vector<float> expected = work.result(7, ctx, [&] { work.launch(ctx); });
    for (int run = 0; run < 3; run++)
      REQUIRE_BITWISE(expected, work.result(7, ctx, [&] { refusing.run([&] { work.launch(ctx); }); }));
    action();
  }
  Context cpu(Device::cpu);
  REQUIRE(refusal([&] { cpu.use_graphs(); }) == "graph: on cpu nothing is launched, so there is nothing to record");
}

TEST_CASE("graph: a record computes as the tensor cores that it was made for", "[graph][bitwise]") {
  constexpr size_t M = 16, N = 16, K = 256;
  Context hopper(kernel_device), ampere(kernel_device);
  if (kernel_device == Device::emulated) ampere.use_mma(MmaArithmetic::ampere);
  const Buffer<bf16> A(kernel_device, rounded(random_values<float>(M * K, 3)));
  const Buffer<float> C(kernel_device, M * N);
  const auto multiply = [&](Context& ctx) {
    matmul_bf16(C.data(), A.data(), A.data(), M, N, K, Layout::nt, Accumulate::no, ctx);
  };
  const auto product = [&](Context& ctx, const std::function<void()>& run) {
    run();
    ctx.synchronize();
    return C.download();
  };
  const std::vector<float> expected = product(ampere, [&] { multiply(ampere); });
  ampere.use_graphs();
  LaunchGraph graph(ampere);
  for (int round = 0; round < 4; round++) {
    const std::vector<float> other = product(hopper, [&] { multiply(hopper); });
    REQUIRE((other == expected) == (kernel_device == Device::cuda));
    REQUIRE_BITWISE(expected, product(ampere, [&] { graph.run([&] { multiply(ampere); }); }));
  }
}

// ---- steps of training

namespace {

// Was the last step repeated? Then the host does not know what the model left.
bool was_repeated(Model& model) {
  struct Nothing : Inspector {
  } nothing;
  return refusal([&] { model.inspect(nothing); }) == "model: an inspection without a forward";
}

// Eight steps, and between them all that a run may do: a validation, one that is measured, logits of another length,
// generation with a cache, a checkpoint that is written and one that is gone back to. What each of them says, to the
// bit.
std::vector<float> eventful_run(Config config, bool graphs, size_t& steps_repeated) {
  const Folder folder;
  config.out = folder.path;
  Context ctx(kernel_device);
  if (graphs) ctx.use_graphs();
  Run run(config, ctx);
  Trainer& t = run.trainer;
  std::vector<float> said;
  const auto steps = [&](size_t n) {
    for (size_t i = 0; i < n; i++) {
      const std::vector<float> trace = run.steps(1);
      said.insert(said.end(), trace.begin(), trace.end());
      steps_repeated += was_repeated(t.model);
    }
  };
  const auto validation = [&] { said.push_back(float(t.validate(2))); };
  steps(3);
  validation();
  for (const float logit : t.model.next_token_logits({1, 2, 3})) said.push_back(logit);
  steps(1);
  t.save({});
  t.model.begin_sequences(1, config.model.context);
  for (const float logit : t.model.read({1, 2, 3})) said.push_back(logit);
  for (const float logit : t.model.read({4})) said.push_back(logit);
  steps(1);
  t.load(find_latest(config.out).value());
  Meter meter(ctx.device);
  said.push_back(float(t.validate(1, {&meter})));
  for (const float norm : t.gradient_norm_by_layer()) said.push_back(norm);
  for (const char c : measures_entry(1, meter.result())) said.push_back(c);
  Buffer<float>(ctx.device, 1);  // memory that is given back
  steps(3);
  for (const Buffer<float>* state :
       {&t.model.weights.values, &t.optimizer.states[0].values, &t.optimizer.states[1].values})
    for (const float v : state->download()) said.push_back(v);
  return said;
}

}  // namespace

TEST_CASE("graph: steps that are repeated are those that are launched, whatever comes between", "[graph][bitwise]") {
  for (const std::string& run : fixture_lines("graph_models.txt")) {
    INFO(run);
    Config config = small_run(small_model("--context=6 " + run.substr(1)), 9, size_t(run[0] - '0'));
    config.slices = 1;  // so that the launches of two micro-batches differ
    size_t direct = 0, repeated = 0;
    const std::vector<float> expected = eventful_run(config, false, direct);
    REQUIRE_BITWISE(expected, eventful_run(config, true, repeated));
    REQUIRE(direct == 0);
    REQUIRE(repeated == 4);  // of eight: it begins twice, and the second step of each beginning is recorded
  }
}

TEST_CASE_METHOD(Recording,
                 "graph: a repeated step allocates nothing, and the norms of a layer's gradients cost no record",
                 "[graph][bitwise]") {
  Run run(small_run(small_model("--dropout=0.1"), 6, 3), ctx);
  run.steps(2);
  REQUIRE(run.trainer.gradient_norm_by_layer().size() == 2);
  const size_t before = allocations, gone = given_back;
  run.steps(3);
  REQUIRE(was_repeated(run.trainer.model));
  REQUIRE(allocations == before);
  REQUIRE(given_back == gone);
}

TEST_CASE("graph: steps whose products are cuBLASLt's are repeated", "[cublas]") {
  if (kernel_device != Device::cuda || !kernels_can_run()) return;
  Config config = small_run(small_model("--precision=bf16 --head-dim=16 --ffn=gelu --ffn-bias=on"), 6, 2);
  std::vector<float> traces[2];
  for (int graphs = 0; graphs < 2; graphs++) {
    Context ctx(kernel_device);
    ctx.use_cublas(false);
    if (graphs) ctx.use_graphs();
    traces[graphs] = Run(config, ctx).steps(5);
  }
  REQUIRE_BITWISE(traces[0], traces[1]);
}

TEST_CASE_METHOD(Recording, "graph: with batches of another size, or with dropout, it begins anew",
                 "[graph][bitwise]") {
  const ModelConfig config = small_model("--dropout=0.3");
  Context plain(kernel_device);
  Model direct(config, 2, 9, 3, plain), model(config, 2, 9, 3, ctx);
  Buffer<float> loss(ctx.device, 1);
  size_t calls = 0;
  const std::tuple<size_t, size_t, bool> batches[] = {{2, 9, true},  {2, 9, true},  {2, 9, true},  {1, 9, true},
                                                      {1, 9, true},  {1, 5, true},  {1, 5, true},  {1, 5, true},
                                                      {1, 5, false}, {1, 5, false}, {1, 5, false}, {2, 9, true}};
  uint64_t draw = 0;
  for (const auto& [B, T, drops] : batches) {
    INFO(draw << ": " << B << " x " << T << ", drops " << drops);
    std::vector<int> ids;
    for (size_t i = 0; i < B * T; i++) ids.push_back(int(random_below(1, draw, i, config.vocab)));
    const auto draws = drops ? std::optional(draw) : std::nullopt;
    const auto upload = [&, B = B, T = T](Model& m) { m.upload({ids, ids, B, T}, draws); };
    const auto launch = [&](Model& m, Context& c) {
      set_zero(m.weights.grads.data(), m.weights.flat_size(), c);
      m.forward();
      m.backward({}, loss.data());
    };
    upload(direct);
    launch(direct, plain);
    plain.synchronize();
    const float expected = loss.download()[0];
    upload(model);
    graph.run([&] {
      calls++;
      launch(model, ctx);
    });
    ctx.synchronize();
    REQUIRE(expected == loss.download()[0]);
    REQUIRE_BITWISE(direct.weights.grads.download(), model.weights.grads.download());
    draw++;
  }
  REQUIRE(calls == 9);  // two of each kind, one of the last
}
