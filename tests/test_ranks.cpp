// ranks: mpirun -n R ./train gives what ./train gives, to the last bit, in weights, checkpoints, log and what it
// prints; what may not run is refused in a line; a rank that dies ends the others, and its run goes on elsewhere.
// Runs the program that stands in the current folder (make builds it first), under OpenMPI's mpirun.
#include <omp.h>

#include <nlohmann/json.hpp>

#include "tests/compare.h"
#include "tests/script.h"
#include "tests/shard.h"
#include "tests/small_ranks.h"
#include "training/optimizer.cuh"

using namespace gated;
using Floats = std::vector<float>;

namespace {

const std::string size =
    "--data=bigram-backcopy --steps=6 --layers=2 --hidden=32 --heads=2 --kv-heads=1 --head-dim=16 --context=32 "
    "--batch=2 --sample-tokens=0 --val-batches=3 --threads=1 ";

// In a container, as root, on few cores.
std::string launch(size_t ranks, const std::string& program = "{repo}/train") {
  return "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_vader_single_copy_mechanism=none "
         "timeout 120 mpirun --oversubscribe -n " +
         std::to_string(ranks) + " " + program + " ";
}
// Two ranks, each with flags of its own.
std::string launch_both(const std::string& one, const std::string& other) {
  return launch(1) + one + " : -n 1 {repo}/train " + other;
}

// Of the weights in which a run ends.
std::string trained(const Folder& f, const std::string& command) {
  return fingerprint_of(ended(f.run(command)));
}

// What a run says that ends in one error.
std::string failed(const Folder& f, const std::string& command) {
  const Said said = f.run(command);
  INFO(said.text);
  REQUIRE(said.exit_code != 0);
  REQUIRE(count(said.text, "error: ") == 1);
  return said.text;
}

// Sends a signal to rank 1 of the run in this folder.
std::string to_rank_1(const std::string& signal) {
  return "kill -" + signal +
         " $(pgrep -f \"^[^ ]*/train .*--out=run\" | while read p; do "
         "[ \"$(readlink /proc/$p/cwd)\" = \"$(pwd)\" ] && grep -zq OMPI_COMM_WORLD_RANK=1 /proc/$p/environ && "
         "echo $p; done); ";
}

// What of the lines of log.jsonl may not differ.
std::string log_of(const Folder& f, const std::string& folder) {
  const std::string log = f.read(folder + "/log.jsonl");
  const std::string steps = log.substr(log.find('\n') + 1);  // the first is the run's: its command, its --out
  return replaced(steps, ",\"(seconds|\\w*_by_rank)\":(\\[[^\\]]*\\]|[^,}\n]*)", "");
}

bool has_ranks() {
  const Folder f;
  return answers("mpirun --version") && !contains(f.run(launch(2) + "--describe").text, "has no MPI");
}
#define NEEDS_RANKS                                                                             \
  if (!has_ranks()) {                                                                           \
    WARN("no mpirun here, or ./train was built without MPI: runs on ranks were not looked at"); \
    return;                                                                                     \
  }

}  // namespace

TEST_CASE("ranks: shares are whole, in order, and differ by one at most", "[ranks]") {
  for (size_t n : {0, 1, 2, 5, 8, 1000})
    for (size_t count : {1, 2, 3, 7, 64}) {
      size_t next = 0;
      for (size_t i = 0; i < count; i++) {
        const Span share = share_of(n, i, count);
        REQUIRE(share.begin == next);
        REQUIRE(share.size() >= n / count);
        REQUIRE(share.size() <= n / count + 1);
        next = share.end;
      }
      REQUIRE(next == n);
    }
}

namespace {

// Parameters of so many elements: an embedding, layers of one or two parameters each, and what stands behind them.
struct Sizes {
  size_t embedding;
  std::vector<std::vector<size_t>> layers;
  std::vector<size_t> last;
};

struct SomeWeights {
  SomeWeights(const Sizes& sizes, Storage storage, Masters masters = Masters::whole) {
    const auto add = [&](const std::string& name, size_t n) { named.push_back({name, n}); };
    add("model.embed_tokens.weight", sizes.embedding);
    for (size_t i = 0; i < sizes.layers.size(); i++)
      for (size_t k = 0; k < sizes.layers[i].size(); k++)
        add(format("model.layers.%zu.%zu.weight", i, k), sizes.layers[i][k]);
    for (const size_t n : sizes.last) add(format("last.%zu", n), n);
    weights.resize(named.size());
    const Parameters::List list = [this](const ParameterVisitor& visit) {
      for (size_t i = 0; i < named.size(); i++)
        visit(weights[i], named[i].first, {named[i].second}, Init::normal(), i % 2 ? Decay::no : Decay::yes,
              i % 3 ? Use::linear : Use::scale);
    };
    parameters.emplace(list);
    parameters->allocate(list, Device::cpu, storage, true, masters);
    parameters->initialise({}, 1, 7);
    Context ctx(Device::cpu);
    parameters->whole_changed(ctx);
  }
  std::vector<std::pair<std::string, size_t>> named;
  std::vector<Weight> weights;
  std::optional<Parameters> parameters;
};

// Of a slice of a step the gradient of element i: of many sizes, so that every order of a sum shows.
float gradient_of(size_t step, size_t slice, size_t i) {
  uint32_t h = uint32_t(i + 7919 * slice + 104729 * step) * 2654435761u;
  h = (h ^ h >> 15) * 2246822519u;
  return float(int(h >> 16) - 32768) / float(1 << (10 + h % 20));
}

// What an optimizer makes of the gradients of two steps, as ranks call it: in the backward and the forward, too.
struct Outcome {
  std::vector<Floats> weights;  // after each step
  std::vector<float> norms;
  Floats copies, states;
  double early = 0;
};
Outcome optimized(const Sizes& sizes, Storage storage, size_t slices, const Ranks& ranks, const Outcome* expected) {
  omp_set_num_threads(1);
  SomeWeights some(sizes, storage, Optimizer::masters(storage, ranks.count()));
  Parameters& w = *some.parameters;
  Context ctx(Device::cpu);
  Optimizer optimizer(w, slices, ctx, ranks);
  Outcome got;
  const std::vector<size_t> begins = w.layer_begins();
  std::vector<size_t> ends = {w.flat_size()};  // of what a backward is done with, one after the other
  ends.insert(ends.end(), begins.rbegin(), begins.rend());
  for (size_t step = 0; step < 2; step++) {
    for (size_t slice = ranks.rank(); slice < slices; slice += ranks.count()) {
      optimizer.begin_slice();
      std::fill_n(w.grads.data(), w.flat_size(), NAN);  // where a backward has not been yet
      for (size_t k = 0; k < ends.size(); k++) {
        const size_t from = k + 1 < ends.size() ? ends[k + 1] : 0;
        std::fill(w.grads.data() + from, w.grads.data() + ends[k], 0.0f);
        for (const Parameter& p : w.list())
          for (size_t i = std::max(from, p.offset); i < std::min(ends[k], p.offset + p.size); i++)
            w.grads.data()[i] = gradient_of(step, slice, i);
        if (!ranks.alone()) optimizer.gradients_ready(slice, from);
      }
      optimizer.end_slice(slice);
    }
    optimizer.set_step({0, 0.9f, 0.95f, 1e-8f, 0.25f}, 0.01f, step + 1, 1.0f);
    optimizer.update();
    for (size_t k = ends.size(); k-- > 0;) {
      optimizer.await_weights(ends[k]);
      for (const Parameter& p : w.list()) {
        const Weight& read = some.weights[size_t(&p - w.list().data())];
        for (size_t i = 0; expected && i < p.size && p.offset + i < ends[k]; i++) {
          const float value = expected->weights[step][p.offset + i];
          require((!read.value || read.value[i] == value) && (!read.copy || read.copy[i].bits == bf16(value).bits),
                  "step %zu: %s differs when it is read", step, p.name.c_str());
        }
      }
    }
    got.norms.push_back(*optimizer.norm());
    for (size_t i = 0; i + 1 < begins.size(); i++)
      got.norms.push_back(optimizer.norm_of(begins[i], begins[i + 1] - begins[i]));
    got.early = optimizer.early_share();
    got.weights.push_back(optimizer.whole_weights().download());
  }
  for (size_t i = 0; i < w.copies.size(); i++) got.copies.push_back(float(w.copies.data()[i]));
  for (size_t i = 0; i < 2; i++)
    for (const Parameter& p : w.list()) {
      Floats state(p.size);
      optimizer.gather_state(state.data(), i, p);
      if (ranks.leads()) got.states.insert(got.states.end(), state.begin(), state.end());
    }
  return got;
}

constexpr size_t chunk = buffer_chunk;
const Sizes shapes[] = {
    {5, {{3}, {40, 1}}, {}},                                              // less than a chunk
    {chunk + 1, {{chunk - 32, 33}, {7}, {2 * chunk, chunk}, {65}}, {9}},  // layers meet in chunks, one has none
    {3 * chunk, {{chunk}, {2 * chunk}}, {5 * chunk + 3}},                 // they do not
    {9 * chunk + 11, {{70 * chunk, 5}, {3}}, {3, 36 * chunk}},            // several buckets of a layer
};

}  // namespace

TEST_CASE("ranks: those that share a memory know how many they are", "[ranks]") {
  const std::vector<std::string> names = {"a GPU", "b", "a GPU", "", "a GPU"};
  std::vector<size_t> shared(names.size());
  REQUIRE(on_ranks(names.size(), [&](const Ranks& r) { shared[r.rank()] = r.on_this_memory(names[r.rank()]); }) ==
          std::vector<std::string>(names.size()));
  REQUIRE(shared == std::vector<size_t>{3, 1, 3, 1, 3});
  REQUIRE(Ranks().on_this_memory(memory_name(Device::cpu)) == 1);
}

TEST_CASE("ranks: chunks are dealt out, each to one rank, and layers begin no earlier than their buckets", "[ranks]") {
  for (const Sizes& sizes : shapes)
    for (size_t R : {1, 2, 3, 8, 300}) {
      const SomeWeights some(sizes, Storage::fp32);
      const Parameters& w = *some.parameters;
      const Partition partition(w, R);
      size_t next = 0, most = 0, part = 0;
      for (size_t i = 0; i < partition.buckets(); i++) {
        REQUIRE(partition.bucket(i).begin == next);
        REQUIRE(partition.bucket(i).size() > 0);
        for (size_t rank = 0; rank < R; rank++) {
          REQUIRE(partition.part(i, rank).begin == next);
          REQUIRE(next % chunk == 0);
          next = partition.part(i, rank).end;
          part = std::max(part, partition.part(i, rank).size());
        }
        REQUIRE(partition.bucket(i).end == next);
        for (const size_t begin : w.layer_begins())  // no bucket is of two layers, but for a chunk
          if (R > 1) REQUIRE((begin <= partition.bucket(i).begin || begin + chunk > next));
      }
      REQUIRE(next == w.flat_size());
      for (size_t rank = 0; rank < R; rank++) most = std::max(most, partition.owned(rank));
      REQUIRE(partition.most_owned() == most);
      REQUIRE(partition.most_part() == part);
      if (R == 1) REQUIRE((part == w.flat_size() && partition.buckets() == 1));
    }
}

TEST_CASE("ranks: what they own and send between layers has the bits of one rank", "[ranks]") {
  for (const Sizes& sizes : shapes)
    for (const auto& [R, slices] : std::vector<std::pair<size_t, size_t>>{{2, 2}, {3, 6}, {5, 20}, {8, 8}}) {
      if (R > 3 && sizes.embedding > 9 * chunk) continue;  // (it takes seconds)
      const Storage storage = R == 3 ? Storage::bf16 : Storage::fp32;
      INFO(R << " ranks, " << slices << " slices, " << sizes.embedding);
      const Outcome one = optimized(sizes, storage, slices, {}, nullptr);
      std::vector<Outcome> got(R);
      const std::vector<std::string> trouble = on_ranks(
          R, [&, slices = slices](const Ranks& r) { got[r.rank()] = optimized(sizes, storage, slices, r, &one); });
      for (size_t rank = 0; rank < R; rank++) {
        INFO("rank " << rank);
        REQUIRE(trouble[rank] == "");
        for (size_t step = 0; step < 2; step++) REQUIRE_BITWISE(one.weights[step], got[rank].weights[step]);
        REQUIRE_BITWISE(one.norms, got[rank].norms);
        REQUIRE_BITWISE(one.copies, got[rank].copies);
        REQUIRE(got[rank].early >= 0);
        REQUIRE(got[rank].early <= 1);
        if (sizes.embedding == 5) REQUIRE(got[rank].early == 0);  // all is one bucket
      }
      REQUIRE_BITWISE(one.states, got[0].states);
    }
}

// Two ranks that look in after every layer until all is there that is ready: the embedding alone comes too late.
TEST_CASE("ranks: what comes before the backward ends is all but the embedding", "[ranks]") {
  for (const Sizes& sizes : shapes) {
    const SomeWeights some(sizes, Storage::fp32);
    const Parameters& w = *some.parameters;
    std::vector<size_t> from = w.layer_begins();
    from.insert(from.begin(), 0);
    Hub hub(2);
    ThreadTransport transports[] = {{hub, 0, 1}, {hub, 1, 1}};
    Context ctx(Device::cpu);
    Exchange exchanges[] = {{w, &transports[0], ctx}, {w, &transports[1], ctx}};
    const Floats grads(w.flat_size());
    const auto fold = [](size_t, const float*) {};
    for (size_t k = from.size(); k-- > 0;)
      for (size_t i = 0; i < 40; i++) exchanges[i % 2].send_gradients(grads.data(), from[k], fold);
    for (size_t rank : {0, 1}) {
      Exchange& exchange = exchanges[rank];
      exchange.finish_gradients(grads.data(), fold);
      size_t early = 0;
      for (size_t i = 0; i < exchange.partition.buckets(); i++)
        if (exchange.partition.bucket(i).begin >= w.layer_begins()[0]) early += exchange.partition.part(i, rank).size();
      const size_t owned = exchange.partition.owned(rank);
      REQUIRE(exchange.early_share() == (owned ? double(early) / double(owned) : 0));
    }
  }
}

TEST_CASE("ranks: a forward asks for weights before it reads them, a backward names gradients that are final",
          "[ranks]") {
  omp_set_num_threads(1);
  std::vector<std::string> lines = small_models();
  lines.insert(lines.end(), {"--precision=bf16 --head-dim=16 --tied=off --position=learned", "--recompute=full",
                             "--recompute=light --tied=off --norm-placement=post", "--layers=1 --embedding-scale=on"});
  for (const std::string& flags : lines) {
    INFO(flags);
    Context ctx(Device::cpu);
    Model model(small_model(flags), 1, 9, 12, ctx);
    Parameters& w = model.weights;
    const std::vector<int> ids = {1, 5, 36, 5, 0, 12, 7, 8, 30}, targets = {5, 36, 5, 0, 12, 7, 8, 30, 2};
    model.upload({ids, targets, 1, 9}, 3);
    const Buffer<float> loss(Device::cpu, 1);
    const auto run = [&] {
      w.grads.upload(Floats(w.flat_size()));
      model.forward();
      model.backward({}, loss.data());
    };
    run();
    const Floats values = w.values.download(), grads = w.grads.download(), expected = loss.download();
    const std::vector<bf16> copies = w.copies.download();

    w.values.upload(Floats(values.size(), NAN));
    w.copies.upload(std::vector<bf16>(copies.size(), bf16(NAN)));
    size_t there = 0, from = w.flat_size();
    model.before_weights = [&](size_t end) {
      std::copy(values.begin() + long(there), values.begin() + long(end), w.values.data() + there);
      if (copies.size()) std::copy(copies.begin() + long(there), copies.begin() + long(end), w.copies.data() + there);
      there = end;
    };
    model.after_gradients = [&](const MicroBatch&, size_t next) {
      REQUIRE(next <= from);
      from = next;
      REQUIRE_BITWISE(Floats(grads.begin() + long(from), grads.end()),
                      Floats(w.grads.data() + from, w.grads.data() + grads.size()));
    };
    run();
    REQUIRE(from == 0);
    REQUIRE_BITWISE(expected, loss.download());
  }
}

// (Nothing is where a master would be: who reads one falls over it.)
TEST_CASE("ranks: a model of bf16 computes the same without its fp32 masters, and takes its weights up", "[ranks]") {
  for (const Device device : {Device::cpu, Device::emulated})
    for (const std::string& line : fixture_lines("bf16_models.txt", {"", "--norm=gated --tied=off"})) {
      INFO(name_of(device) << " " << line);
      Context ctx(device);
      const ModelConfig config = small_model("--precision=bf16 --head-dim=16 " + line);
      Model one(config, 2, config.context, 3, ctx), other(config, 2, config.context, 3, ctx, Masters::shared);
      const Floats start = one.weights.values.download();
      REQUIRE(other.weights.values.size() < start.size());
      REQUIRE_BITWISE(start, other.weights.whole().download());
      for (const float added : {0.0f, 0.25f}) {
        Floats moved = start;
        for (const Parameter& p : one.weights.list())
          for (size_t i = 0; i < p.size; i++) moved[p.offset + i] += added;
        for (Model* m : {&one, &other}) {
          m->weights.whole().upload(moved);
          m->weights_changed();
        }
        REQUIRE(forward_backward(one, RandomBatch(config), ctx) == forward_backward(other, RandomBatch(config), ctx));
        REQUIRE_BITWISE(one.weights.grads.download(), other.weights.grads.download());
      }
    }
}

// (tests/test_matrix.cpp has the pairs of flags in fp32.)
TEST_CASE("ranks: every model of bf16 trains, says and saves the same on 2 and 3 of them", "[ranks]") {
  const Folder f;
  for (const std::string& line : fixture_lines("bf16_models.txt", {"", "--norm=gated --tied=off"})) {
    INFO(line);
    Config config = small_run(small_model("--precision=bf16 --head-dim=16 --hidden=96 " + line), 2, 6);
    require_same_on_ranks(config, line.size() % 2 ? 2 : 3, f.path);
  }
}

TEST_CASE("ranks: a bit that differs on one is seen before the weights move, and the rank is named", "[ranks]") {
  for (const char* flags : {"--precision=fp32", "--precision=bf16 --head-dim=16 --hidden=32"})
    for (const bool copy : {false, true})
      for (const size_t R : {2, 3, 4})
        for (const size_t wrong : {R - 1, R}) {  // or none
          Config config = small_run(small_model(flags), 4, 12);
          config.slices = 12, config.check_ranks_every = 2;
          if (copy && config.model.storage == Storage::fp32) continue;
          INFO(flags << " " << copy << " " << R << " " << wrong);
          const std::vector<std::string> trouble = on_ranks(R, [&](const Ranks& r) {
            Context ctx(Device::cpu);
            Run run(config, ctx, r);
            run.steps(3);
            run.trainer.optimizer.await_weights();
            Parameters& w = run.trainer.model.weights;
            if (r.rank() == wrong && copy)
              w.copies.data()[7].bits ^= 1;
            else if (r.rank() == wrong)
              w.values.data()[w.masters() == Masters::whole ? w.list().back().offset : 3] *= 1.0000001f;
            training_step(run.trainer);
          });
          for (const std::string& said : trouble)
            REQUIRE((wrong == R ? said.empty()
                                : said.starts_with(format("step 4: rank %zu has other weights than rank 0: ", R - 1))));
        }
}

TEST_CASE("ranks: a build without MPI is alone, and refuses to be one of several", "[ranks]") {
  NEEDS("g++ --version", "g++", "a build without MPI");
  const Folder f;
  f.write("main.cpp", R"(
#include <cstdio>
#include <exception>
#include "training/ranks/transport.h"
int main() try {
  puts(ranks::start() ? "one of several" : ranks::has_nccl ? "NCCL" : "alone");
  ranks::finish();
} catch (const std::exception& e) {
  puts(e.what());
})");
  f.done("g++ -std=c++20 -I{repo} -o main main.cpp {repo}/training/ranks/mpi.cpp {repo}/training/ranks/nccl.cpp");
  REQUIRE(f.done("env -i ./main") == "alone\n");
  REQUIRE(f.done("env -i OMPI_COMM_WORLD_SIZE=1 ./main") == "alone\n");
  for (const char* launched : {"OMPI_COMM_WORLD_SIZE=2", "PMI_SIZE=2", "SLURM_STEP_NUM_TASKS=2"})
    REQUIRE(f.done(format("env -i %s ./main", launched)) ==
            "2 ranks were started, and this build has no MPI: scripts/setup.sh --ranks installs it, then make; or "
            "start one\n");
}

TEST_CASE("ranks: messages arrive whole, in pieces and in the order in which they begin", "[ranks][mpirun]") {
  NEEDS_RANKS;
  const Folder f;
  f.write("main.cpp", R"(
#include <cstdio>
#include <vector>
#include "training/ranks/transport.h"
// What request k takes from rank a to rank b: 0 to 39 bytes.
static std::vector<char> sent(size_t a, size_t b, size_t k) {
  std::vector<char> bytes((17 * a + 5 * b + 11 * k) % 40);
  for (size_t i = 0; i < bytes.size(); i++) bytes[i] = char(64 * k + 16 * a + 4 * b + i);
  return bytes;
}
int main() {
  ranks::Transport& t = *ranks::start();
  const size_t R = t.count(), me = t.rank(), K = 7;
  std::vector<std::vector<char>> memory;
  memory.reserve(2 * K * R);
  std::vector<std::unique_ptr<ranks::Request>> requests;
  for (size_t k = 0; k < K; k++) {
    std::vector<ranks::Message> out, in;
    for (size_t i = 0; i < R; i++) {
      memory.push_back(sent(me, i, k));
      if (i != me) out.push_back({i, memory.back().data(), memory.back().size()});
      memory.push_back(std::vector<char>(sent(i, me, k).size()));
      if (i != me) in.push_back({i, memory.back().data(), memory.back().size()});
    }
    requests.push_back(t.begin(out, in));
  }
  for (size_t k = K; k-- > 0;) {
    if (k % 2) requests[k]->finish();
    while (!requests[k]->is_done()) {}
    for (size_t i = 0; i < R; i++)
      if (i != me && memory[2 * (k * R + i) + 1] != sent(i, me, k)) return printf("%zu to %zu, %zu\n", i, me, k), 1;
  }
  if (me == 0) puts("all of them");
  ranks::finish();
})");
  f.done(
      "g++ -std=c++20 -DWITH_MPI -DMOST_BYTES=7 -I{repo} $(mpicc --showme:compile) -o main main.cpp "
      "{repo}/training/ranks/mpi.cpp $(mpicc --showme:link)");
  REQUIRE(f.done(launch(3, "./main")) == "all of them\n");
}

TEST_CASE("ranks: the weights of one rank, on 2, 3, 4 and 5", "[ranks][mpirun]") {
  NEEDS_RANKS;
  const Folder f;
  for (const auto& [flags, counts] : std::vector<std::pair<std::string, std::vector<size_t>>>{
           {"--micro-batches=8 --norm=gated --attn=g1 --clip=0.3", {2, 4}},
           {"--micro-batches=6 --slices=3 --vocab=2000 --tied=off", {3}},  // several chunks for an owner
           {"--micro-batches=4 --precision=bf16", {2}},
           {"--micro-batches=2 --mixer=hybrid --dropout=0.1 --recompute=full", {2}},
           {"--micro-batches=8 --slices=4 --experts=4 --expert-hidden=24 --balance-loss=0.1", {4}},
           {"--micro-batches=20 --slices=20 --batch=1", {4, 5}},  // three groups; a round of ranks goes across them
           {"--micro-batches=4 --slices=2 --device=emulated --graph --steps=4 --context=8", {2}}}) {
    INFO(flags);
    const std::string one = trained(f, "{repo}/train " + size + flags);
    REQUIRE(one.size() == 16);
    for (size_t R : counts) {
      INFO(R << " ranks");
      REQUIRE(trained(f, launch(R) + size + flags) == one);
    }
  }
}

TEST_CASE("ranks: checkpoints, log and evaluation are those of one rank, and a run goes on on any number",
          "[ranks][mpirun]") {
  NEEDS_RANKS;
  const Folder f;
  const std::string run = size +
                          "--steps=8 --save-every=2 --keep=0 --val-every=4 --measure-every=6 --micro-batches=4 "
                          "--experts=3 --expert-hidden=24 --vocab=1200 ";
  const std::string whole = trained(f, "{repo}/train " + run + "--out=one");
  REQUIRE(trained(f, launch(2) + run + "--out=two") == whole);
  for (const char* name :
       {"step_00000002.safetensors", "step_00000008.safetensors", "best.safetensors", "measures.safetensors"}) {
    INFO(name);
    REQUIRE(f.read(std::string("one/") + name) == f.read(std::string("two/") + name));
  }
  REQUIRE(log_of(f, "one") == log_of(f, "two"));
  const std::string look = run + "--evaluate --out=two";
  const auto seen = [](const std::string& said) { return said.substr(said.find("validation loss")); };
  const auto plain = [](const std::string& text) { return replaced(text, "\r", ""); };
  REQUIRE(plain(seen(f.done(launch(2) + look))) == plain(seen(f.done("{repo}/train " + look))));

  for (const auto& [left, ranks] : {std::pair<size_t, size_t>{6, 4}, {4, 1}, {2, 2}}) {
    INFO("from step " << left << " on " << ranks << " ranks");
    for (size_t step = left + 1; step <= 8; step++) fs::remove(f / format("two/step_%08zu.safetensors", step));
    const std::string said = f.done((ranks == 1 ? "{repo}/train " : launch(ranks)) + run + "--out=two --resume");
    REQUIRE(contains(said, format("resume: step %zu of", left)));
    REQUIRE(fingerprint_of({0, said}) == whole);
    REQUIRE(f.read("one/step_00000008.safetensors") == f.read("two/step_00000008.safetensors"));
  }
  // All of them know from the log which loss was the lowest: else some would save, and wait for the others.
  const std::string worse = size +
                            "--micro-batches=2 --lr=3 --min-lr=3 --clip=1e6 --steps=20 --warmup=20 --val-every=2 "
                            "--save-every=10 --keep=0 --out=worse ";
  const std::string ruined = trained(f, "{repo}/train " + worse);
  REQUIRE(Checkpoint(best_checkpoint(f / "worse")).step() < 10);
  fs::remove(f / "worse/step_00000020.safetensors");
  REQUIRE(trained(f, launch(2) + worse + "--resume") == ruined);
  const std::string narrow = size + "--micro-batches=2 --precision=bf16 --save-every=3 --keep=0 --out=bf16 ";
  const std::string last = trained(f, "{repo}/train " + narrow);
  fs::remove(f / "bf16/step_00000006.safetensors");
  REQUIRE(trained(f, launch(2) + narrow + "--resume") == last);
  REQUIRE(contains(f.run(launch(2) + run + "--out=two").text, "holds a run's checkpoints already"));
  REQUIRE(contains(f.run(launch(2) + "--generate --from=two").text, "--generate on 2 ranks"));
  REQUIRE(contains(f.run(launch(2) + run + "--slices=2 --out=two --resume").text, "--slices=0, this run has"));
}

TEST_CASE("ranks: what one is said to take before the first step is its peak", "[ranks][mpirun]") {
  NEEDS_RANKS;
  NEEDS("/usr/bin/time true", "/usr/bin/time", "what a rank takes");
  const Folder f;
  const std::string flags =
      "--layers=1 --hidden=1024 --heads=2 --ffn-hidden=8192 --context=8 --batch=1 --steps=1 --micro-batches=2 "
      "--val-batches=1 --out=run --precision=";
  for (const char* precision : {"fp32", "bf16"}) {
    f.run("rm -rf run peaks");
    const std::string said =
        f.done(launch(2, "/usr/bin/time -a -o peaks -f %M {repo}/train") + size + flags + precision);
    const double announced = std::stod(between(said, "FLOP a token, ", " MiB"));
    const auto peaks = matches(f.read("peaks"), "\\d+");
    REQUIRE(peaks.size() == 2);
    for (const auto& KiB : peaks) {
      INFO(KiB[0] << " KiB; " << said);
      REQUIRE(std::fabs(std::stod(KiB[0]) / 1024 / announced - 1) < 0.03);
    }
  }
}

// (mpirun gives the first one a terminal, whatever its own output is.)
TEST_CASE("ranks: no bar stands among their lines", "[ranks][mpirun]") {
  NEEDS_RANKS;
  const Folder f;
  const std::string said = f.done(launch(2) + size + "--micro-batches=2");
  REQUIRE(contains(said, "step 6/6  loss "));
  REQUIRE(!contains(said, "\033[J"));
}

TEST_CASE("ranks: the log says which one is slow, and an emulated one has the bits of the CPU", "[ranks][mpirun]") {
  NEEDS_RANKS;
  const Folder f;
  const std::string run = size + "--layers=1 --micro-batches=2 --out=";
  const std::string whole = trained(f, "{repo}/train " + run + "one --device=cpu");
  REQUIRE(!contains(f.read("one/log.jsonl"), "_by_rank"));
  const std::string said = f.done(launch_both(run + "two --device=cpu", run + "two --device=emulated"));
  REQUIRE(fingerprint_of({0, said}) == whole);
  REQUIRE(contains(said, "2, 2 on this host, by MPI, 1 of 2 slices each"));
  std::istringstream log(f.read("two/log.jsonl"));
  double compute[2] = {}, exchange[2] = {}, seconds = 0;
  for (std::string line; std::getline(log, line);) {
    const auto entry = nlohmann::json::parse(line);
    if (!entry.contains("loss")) continue;
    REQUIRE(entry["compute_seconds_by_rank"].size() == 2);
    REQUIRE(entry["exchange_seconds_by_rank"].size() == 2);
    REQUIRE(entry["early_share_by_rank"].size() == 2);
    for (size_t i : {0, 1}) compute[i] += double(entry["compute_seconds_by_rank"][i]);
    for (size_t i : {0, 1}) exchange[i] += double(entry["exchange_seconds_by_rank"][i]);
    seconds += double(entry["seconds"]);
  }
  REQUIRE(compute[0] > 0);
  REQUIRE(exchange[1] > 0);
  REQUIRE(compute[1] > compute[0]);  // (a hundred times, half a second: more than a busy machine keeps a rank waiting)
  REQUIRE(exchange[0] > exchange[1]);
  REQUIRE(compute[0] + exchange[0] <= seconds);
}

TEST_CASE("ranks: what cannot run is refused in a line", "[ranks][mpirun]") {
  NEEDS_RANKS;
  const Folder f;
  const std::string four = size + "--micro-batches=4 ", two = size + "--micro-batches=2 ";
  const auto refused = [&](const std::string& ranks_and_flags, const std::string& named) {
    REQUIRE(says(failed(f, ranks_and_flags), {named}));
  };
  refused(launch(4) + two, "--batch=1 --micro-batches=4 makes the same tokens a step");
  refused(launch(3) + four, "4 slices of a step");
  refused(launch(2) + size + "--bogus=1", "--bogus");
  refused(launch_both(four, four + "--lr=1e-3"), "rank 1 has --lr=0.001, rank 0 has --lr=0.003");
  refused(launch_both(four, four + "--val-every=3"), "rank 1 has --val-every=3, rank 0 has --val-every=100");
  f.write("a.txt", std::string(4000, 'a') + std::string(4000, 'b'));
  f.write("b.txt", std::string(4000, 'a') + std::string(4000, 'c'));
  refused(launch_both(two + "--data=a.txt", two + "--data=b.txt"), "rank 1 has ");
  refused(launch(2) + two + "--out=/proc/none", "cannot create the checkpoint folder");
}

TEST_CASE("ranks: a disk that fills up, or data that goes away on one, ends all, and the last checkpoint is whole",
          "[ranks][mpirun]") {
  NEEDS_RANKS;
  const Folder f;
  const std::string run = size + "--micro-batches=2 --val-every=0 ";
  const std::string whole = trained(f, "{repo}/train " + run + "--out=whole");
  const auto ends = [&](const std::string& command, const std::string& why) {
    const std::string said = failed(f, command);
    INFO(said);
    REQUIRE(matches(said, "error: rank " + why + "[^\n]*\n").size() == 1);
  };
  for (const char* name : {"a/x.bin", "b/x.bin"}) f.write(name, shard_of(std::vector<uint16_t>(400000, 7)));
  const std::string reads =
      "{repo}/train " + run + "--data=x.bin --vocab=64 --steps=100000 --save-every=5 --out=" + f / "reads";
  ends("(while [ ! -e reads/step_00000005.safetensors ]; do sleep 0.02; done; truncate -s 1025 b/x.bin) & " +
           launch(1, "-wdir a " + reads) + ": -n 1 -wdir b " + reads,
       "1: x\\.bin: ends at byte 1025, expected more, to byte ");
  REQUIRE(find_latest(f / "reads"));

  NEEDS("unshare -rm true", "unshare -rm", "a disk that fills up");
  const size_t bytes = fs::file_size(f / "whole/step_00000006.safetensors") * 5 / 2;
  ends("unshare -rm sh -c 'mkdir full && mount -t tmpfs -o size=" + std::to_string(bytes) + " none full && " +
           launch(2) + run + "--out=full --keep=0 --save-every=1; code=$?; cp -r full run; exit $code'",
       "0: full/step_00000003\\.safetensors\\.tmp\\.\\d+: cannot write: No space left on device");
  for (const auto& entry : fs::directory_iterator(f / "run")) REQUIRE(!finished_name(entry.path().filename()));
  REQUIRE(trained(f, "{repo}/train " + run + "--out=run --resume") == whole);
}

TEST_CASE("ranks: one that is killed ends all in seconds, and the run goes on from its checkpoint", "[ranks][mpirun]") {
  NEEDS_RANKS;
  const Folder f;
  const std::string run = size + "--steps=400 --micro-batches=2 --save-every=5 --val-every=0 --out=run --resume ";
  const std::string whole = trained(f, "{repo}/train " + run + "--out=whole");
  const std::string killing = "(while [ ! -e run/step_00000010.safetensors ]; do sleep 0.02; done; date +%s >killed; " +
                              to_rank_1("9") + ") & ";
  const Said said = f.run(killing + launch(2) + run + "; code=$?; date +%s >ended; exit $code");
  INFO(said.text);
  REQUIRE(said.exit_code != 0);
  REQUIRE(contains(said.text, "rank 1"));
  REQUIRE(std::stol(f.read("ended")) - std::stol(f.read("killed")) <= 10);
  REQUIRE(trained(f, "{repo}/train " + run) == whole);
}

TEST_CASE("ranks: SIGUSR1 of one rank saves, SIGTERM of one stops all behind a checkpoint", "[ranks][mpirun]") {
  NEEDS_RANKS;
  const Folder f;
  const std::string run = size + "--steps=4000 --micro-batches=2 --save-every=1h --val-every=0 --out=run --resume ";
  const std::string signals = "(while [ ! -s run/log.jsonl ]; do sleep 0.02; done; sleep 1; " + to_rank_1("USR1") +
                              "while [ ! -e run/step_* ]; do sleep 0.02; done; " + to_rank_1("TERM") + ") & ";
  const Said said = f.run(signals + launch(2) + run);
  INFO(said.text);
  REQUIRE(said.exit_code != 0);
  REQUIRE(contains(said.text, "saved, as SIGUSR1 asks"));
  REQUIRE(contains(said.text, "interrupted after step"));
}
