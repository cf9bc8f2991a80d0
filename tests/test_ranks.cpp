// ranks: mpirun -n R ./train gives what ./train gives, to the last bit, in weights, checkpoints, log and what it prints;
// what may not run is refused in a line; a rank that dies ends the others, and its run goes on elsewhere.
// Runs the program that stands in the current folder (make builds it first), under OpenMPI's mpirun.
#include <chrono>
#include <nlohmann/json.hpp>

#include "tests/script.h"
#include "training/ranks/ranks.h"

using namespace gated;

namespace {

const std::string size =
    "--data=bigram-backcopy --steps=6 --layers=2 --hidden=32 --heads=2 --kv-heads=1 --head-dim=16 --context=32 "
    "--batch=2 --sample-tokens=0 --val-batches=3 --threads=1 ";

// In a container, as root, on few cores.
std::string launch(const std::string& ranks) {
  return "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_vader_single_copy_mechanism=none "
         "timeout 120 mpirun --oversubscribe -n " +
         ranks + " {repo}/train ";
}
std::string launch(size_t ranks) { return launch(std::to_string(ranks)); }

std::string fingerprint_in(const std::string& said) {
  const auto found = matches(said, "fingerprint of the weights: ([0-9a-f]{16})");
  return found.empty() ? said : found[0][1];
}

// What of the lines of log.jsonl may not differ.
std::string log_of(const Folder& f, const std::string& folder) {
  const std::string log = f.read(folder + "/log.jsonl");
  const std::string steps = log.substr(log.find('\n') + 1);  // the first is the run's: its command, its --out
  return replaced(steps, ",\"(seconds|\\w*_seconds_by_rank)\":(\\[[^\\]]*\\]|[^,}\n]*)", "");
}

bool has_ranks() {
  const Folder f;
  return answers("mpirun --version") && !contains(f.run(launch(2) + "--describe").text, "has no MPI");
}
#define NEEDS_RANKS                                                                          \
  if (!has_ranks()) {                                                                        \
    WARN("no mpirun here, or ./train was built without MPI: runs on ranks were not looked at"); \
    return;                                                                                  \
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

TEST_CASE("ranks: a build without MPI is alone, and refuses to be one of several", "[ranks]") {
  NEEDS("g++ --version", "g++", "a build without MPI");
  const Folder f;
  f.write("main.cpp", R"(
#include <cstdio>
#include <exception>
#include "training/ranks/transport.h"
int main() try {
  puts(ranks::start() ? "one of several" : "alone");
  ranks::finish();
} catch (const std::exception& e) {
  puts(e.what());
})");
  f.done("g++ -std=c++20 -I{repo} -o main main.cpp {repo}/training/ranks/mpi.cpp");
  REQUIRE(f.done("env -i ./main") == "alone\n");
  REQUIRE(f.done("env -i OMPI_COMM_WORLD_SIZE=1 ./main") == "alone\n");
  for (const char* launched : {"OMPI_COMM_WORLD_SIZE=2", "PMI_SIZE=2", "SLURM_STEP_NUM_TASKS=2"})
    REQUIRE(f.done(format("env -i %s ./main", launched)) ==
            "2 ranks were started, and this build has no MPI: scripts/setup.sh --ranks installs it, then make; or "
            "start one\n");
}

TEST_CASE("ranks: the weights of one rank, on 2, 3, 4 and 5", "[ranks]") {
  NEEDS_RANKS;
  const Folder f;
  for (const auto& [flags, counts] : std::vector<std::pair<std::string, std::vector<size_t>>>{
           {"--micro-batches=8 --norm=gated --attn=g1 --clip=0.3", {2, 4}},
           {"--micro-batches=6 --slices=3 --vocab=2000 --tied=off", {3}},  // several chunks for an owner
           {"--micro-batches=4 --precision=bf16", {2}},
           {"--micro-batches=2 --mixer=hybrid --dropout=0.1 --recompute=full", {2}},
           {"--micro-batches=8 --slices=4 --experts=4 --expert-hidden=24 --balance-loss=0.1", {4}},
           {"--micro-batches=20 --slices=20 --batch=1", {4, 5}},  // three groups; a round of ranks goes across them
           {"--micro-batches=2 --device=emulated --steps=2 --context=8", {2}}}) {
    INFO(flags);
    const std::string one = fingerprint_in(f.done("{repo}/train " + size + flags));
    REQUIRE(one.size() == 16);
    for (size_t R : counts) {
      INFO(R << " ranks");
      REQUIRE(fingerprint_in(f.done(launch(R) + size + flags)) == one);
    }
  }
}

TEST_CASE("ranks: checkpoints, log and evaluation are those of one rank, and a run goes on on any number", "[ranks]") {
  NEEDS_RANKS;
  const Folder f;
  const std::string run = size + "--steps=8 --save-every=2 --keep=0 --val-every=4 --measure-every=6 --micro-batches=4 "
                                 "--experts=3 --expert-hidden=24 ";
  const std::string whole = fingerprint_in(f.done("{repo}/train " + run + "--out=one"));
  REQUIRE(fingerprint_in(f.done(launch(2) + run + "--out=two")) == whole);
  for (const char* name : {"step_00000002.safetensors", "step_00000008.safetensors", "best.safetensors",
                           "measures.safetensors"}) {
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
    for (size_t step = left + 1; step <= 8; step++)
      fs::remove(f / format("two/step_%08zu.safetensors", step));
    const std::string said = f.done((ranks == 1 ? "{repo}/train " : launch(ranks)) + run + "--out=two --resume");
    REQUIRE(contains(said, format("resume: step %zu of", left)));
    REQUIRE(fingerprint_in(said) == whole);
    REQUIRE(f.read("one/step_00000008.safetensors") == f.read("two/step_00000008.safetensors"));
  }
  REQUIRE(contains(f.run(launch(2) + run + "--out=two").text, "holds a run's checkpoints already"));
  REQUIRE(contains(f.run(launch(2) + "--generate --from=two").text, "--generate on 2 ranks"));
  REQUIRE(contains(f.run(launch(2) + run + "--slices=2 --out=two --resume").text, "--slices=0, this run has"));
}

TEST_CASE("ranks: the log says which one is slow, and an emulated one has the bits of the CPU", "[ranks]") {
  NEEDS_RANKS;
  const Folder f;
  const std::string run = size + "--steps=2 --layers=1 --context=8 --micro-batches=2 --out=";
  const std::string whole = fingerprint_in(f.done("{repo}/train " + run + "one --device=cpu"));
  REQUIRE(!contains(f.read("one/log.jsonl"), "_by_rank"));
  const std::string said = f.done(launch("1") + run + "two --device=cpu : -n 1 {repo}/train " + run +
                                  "two --device=emulated");
  REQUIRE(fingerprint_in(said) == whole);
  std::istringstream log(f.read("two/log.jsonl"));
  double compute[2] = {}, exchange[2] = {}, seconds = 0;
  for (std::string line; std::getline(log, line);) {
    const auto entry = nlohmann::json::parse(line);
    if (!entry.contains("loss")) continue;
    REQUIRE(entry["compute_seconds_by_rank"].size() == 2);
    REQUIRE(entry["exchange_seconds_by_rank"].size() == 2);
    for (size_t i : {0, 1}) compute[i] += double(entry["compute_seconds_by_rank"][i]);
    for (size_t i : {0, 1}) exchange[i] += double(entry["exchange_seconds_by_rank"][i]);
    seconds += double(entry["seconds"]);
  }
  REQUIRE(compute[0] > 0);
  REQUIRE(exchange[1] > 0);
  REQUIRE(compute[1] > compute[0]);  // (a hundred times)
  REQUIRE(exchange[0] > exchange[1]);
  REQUIRE(compute[0] + exchange[0] <= seconds);
}

TEST_CASE("ranks: what cannot run is refused in a line", "[ranks]") {
  NEEDS_RANKS;
  const Folder f;
  const auto refused = [&](const std::string& ranks_and_flags, const std::string& named) {
    const Said said = f.run(ranks_and_flags);
    INFO(said.text);
    REQUIRE(said.exit_code != 0);
    REQUIRE(count(said.text, "error: ") == 1);
    REQUIRE(contains(said.text, named));
  };
  refused(launch(4) + size + "--micro-batches=2", "--batch=1 --micro-batches=4 makes the same tokens a step");
  refused(launch(3) + size + "--micro-batches=4", "4 slices of a step");
  refused(launch(2) + size + "--bogus=1", "--bogus");
  refused(launch("1") + size + "--micro-batches=4 : -n 1 {repo}/train " + size + "--micro-batches=4 --lr=1e-3",
          "rank 1 has --lr=0.001, rank 0 has --lr=0.003");
  f.write("a.txt", std::string(4000, 'a') + std::string(4000, 'b'));
  f.write("b.txt", std::string(4000, 'a') + std::string(4000, 'c'));
  refused(launch("1") + size + "--data=a.txt --micro-batches=2 : -n 1 {repo}/train " + size +
              "--data=b.txt --micro-batches=2",
          "rank 1 has ");
  refused(launch(2) + size + "--micro-batches=2 --out=/proc/none", "cannot create the checkpoint folder");
}

TEST_CASE("ranks: one that is killed ends all in seconds, and the run goes on from its checkpoint", "[ranks]") {
  NEEDS_RANKS;
  const Folder f;
  const std::string run = size + "--steps=400 --micro-batches=2 --save-every=5 --val-every=0 --out=run --resume ";
  const std::string whole = fingerprint_in(f.done("{repo}/train " + run + "--out=whole"));
  // The one with the higher process id of those that hold this folder's --out.
  const std::string killing =
      "(while [ ! -e run/step_00000010.safetensors ]; do sleep 0.02; done; date +%s >killed; "
      "kill -9 $(pgrep -f \"^[^ ]*/train .*--out=run\" | while read p; do "
      "[ \"$(readlink /proc/$p/cwd)\" = \"$(pwd)\" ] && grep -zq OMPI_COMM_WORLD_RANK=1 /proc/$p/environ && echo $p; "
      "done)) & ";
  const Said said = f.run(killing + launch(2) + run + "; code=$?; date +%s >ended; exit $code");
  INFO(said.text);
  REQUIRE(said.exit_code != 0);
  REQUIRE(contains(said.text, "rank 1"));
  REQUIRE(std::stol(f.read("ended")) - std::stol(f.read("killed")) <= 10);
  REQUIRE(fingerprint_in(f.done("{repo}/train " + run)) == whole);
}

TEST_CASE("ranks: SIGUSR1 of one rank saves, SIGTERM of one stops all behind a checkpoint", "[ranks]") {
  NEEDS_RANKS;
  const Folder f;
  const std::string run = size + "--steps=4000 --micro-batches=2 --save-every=1h --val-every=0 --out=run --resume ";
  const auto to_rank = [](const char* rank, const char* signal) {
    return format("kill -%s $(pgrep -f \"^[^ ]*/train .*--out=run\" | while read p; do "
                  "[ \"$(readlink /proc/$p/cwd)\" = \"$(pwd)\" ] && grep -zq OMPI_COMM_WORLD_RANK=%s "
                  "/proc/$p/environ && echo $p; done); ", signal, rank);
  };
  const std::string signals = "(while [ ! -s run/log.jsonl ]; do sleep 0.02; done; sleep 1; " + to_rank("1", "USR1") +
                              "while [ ! -e run/step_* ]; do sleep 0.02; done; " + to_rank("1", "TERM") + ") & ";
  const Said said = f.run(signals + launch(2) + run);
  INFO(said.text);
  REQUIRE(said.exit_code != 0);
  REQUIRE(contains(said.text, "saved, as SIGUSR1 asks"));
  REQUIRE(contains(said.text, "interrupted after step"));
}
