// cli: ./train as a user meets it: what it prints, what it refuses, and what survives a kill.
// Runs the program that stands in the current folder (make builds it first).
#include <fcntl.h>
#include <linux/capability.h>
#include <omp.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/script.h"
#include "tests/shard.h"
#include "training/checkpoint/checkpoint.h"
#include "training/process/interrupt.h"

using namespace gated;

namespace {

struct Outcome {
  int exit_code;  // 128 + n where signal n ended it
  std::string out, err;
};
using Prepare = std::function<void()>;

void sleep_milliseconds(int n) {
  std::this_thread::sleep_for(std::chrono::milliseconds(n));
}

// Does it become true within a minute?
bool in_time(const std::function<bool()>& ready) {
  for (int i = 0; i < 60000 && !ready(); i++) sleep_milliseconds(1);
  return ready();
}

// In a child: becomes ./train with these flags, which a space parts.
[[noreturn]] void become_train(const std::string& flags) {
  std::vector<std::string> words = words_of("./train " + flags);
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  _exit(127);
}

pid_t start(const Folder& folder, const std::string& flags, const Prepare& prepare = {}) {
  const pid_t child = fork();
  if (child != 0) return child;
  signal(SIGINT, SIG_DFL);  // where these tests run in the background, a shell has it ignored
  freopen((folder / "stdout").c_str(), "w", stdout);
  freopen((folder / "stderr").c_str(), "w", stderr);
  if (prepare) prepare();
  become_train(flags);
}

int exit_code_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

Outcome finish(const Folder& folder, pid_t child) {
  const int code = exit_code_of(child);
  return {code, contents(folder / "stdout"), contents(folder / "stderr")};
}

Outcome train(const Folder& folder, const std::string& flags, const Prepare& prepare = {}) {
  return finish(folder, start(folder, flags, prepare));
}

Outcome ended(Outcome o, int exit_code = 0) {
  INFO(o.out << o.err);
  REQUIRE(o.exit_code == exit_code);
  return o;
}

// What it prints where it ends well.
std::string trained(const Folder& folder, const std::string& flags) {
  return ended(train(folder, flags)).out;
}

std::string fingerprint_of(const Outcome& o) {
  const std::string label = "fingerprint of the weights: ";
  const size_t at = o.out.find(label);
  return at == std::string::npos ? "none: " + o.err : o.out.substr(at + label.size(), 16);
}

// Waits until the file holds the text. False where it did not within a minute, or the child ended.
bool waited_for(pid_t child, const std::string& file, const std::string& text) {
  in_time([&] {
    siginfo_t end = {};
    return contains(contents(file), text) || waitid(P_PID, id_t(child), &end, WEXITED | WNOHANG | WNOWAIT) != 0 ||
           end.si_pid == child;
  });
  return contains(contents(file), text);
}

// A run of a second or two.
std::string small(const std::string& more = "") {
  return small_run_flags +
         "--data=bigram-backcopy --context=32 --steps=12 --warmup=3 --val-batches=2 --sample-tokens=20 " + more;
}

// Refused: exit 1, nothing but one line "error: ..." on stderr, which names what is wrong.
void require_refused(const Outcome& o, const std::string& named) {
  require_refused_at_once({o.exit_code, o.err}, named);
}

Prepare limited(int resource, rlim_t now, rlim_t most) {
  return [=] {
    const rlimit limit = {now, most};
    setrlimit(resource, &limit);
  };
}

// A log as older programs wrote it.
std::string without_runs(const std::string& log) {
  std::string kept;
  for (const std::string& line : lines_of(log))
    if (!contains(line, "\"run\":")) kept += line + "\n";
  return kept;
}

size_t files_in(const fs::path& folder) {
  return size_t(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

}  // namespace

TEST_CASE("cli: a run prints a header, a line a step, a validation, a sample and a fingerprint", "[cli]") {
  const Folder f;
  const Outcome o = ended(train(f, small()));
  REQUIRE(says(o.out, {"flags ", "device     cpu", "data ", "model ", "step  1/12  loss ", "step 12/12  loss ", "tok/s",
                       "% peak", "validation loss ", "sample ", "fingerprint of the weights: "}));
  REQUIRE(o.err.empty());
  REQUIRE(!contains(o.out, "\033"));  // no terminal listens
  REQUIRE(fingerprint_of(train(f, small())) == fingerprint_of(o));
  REQUIRE(fingerprint_of(train(f, small("--seed=2"))) != fingerprint_of(o));
}

// Copies of weights at the start, for the fingerprint or for a checkpoint would show: they are a tenth of the first
// model. Of the second, what threads keep to pack wide matrices is a twentieth.
// Of the third, old workspaces that stay beside new ones would be a thirtieth.
TEST_CASE("cli: the memory that it announces is the memory that it takes, within 2 %", "[cli]") {
  for (const char* model :
       {"--layers=8 --hidden=512 --heads=8 --ffn-hidden=2048 --batch=2 --norm=gated --attn=g1",
        "--layers=1 --hidden=1024 --ffn-hidden=3072 --batch=16", "--layers=1 --hidden=768 --ffn-hidden=6144 --batch=16",
        "--layers=1 --hidden=768 --ffn-hidden=6144 --batch=16 --precision=bf16 --steps=1"}) {  // a step takes seconds
    const Folder f;
    const pid_t child = start(f,
                              "--device=cpu --threads=2 --context=64 --steps=2 --warmup=1 --val-batches=1 "
                              "--sample-tokens=0 --out=" +
                                  f / "out" + " " + model);
    int status = 0;
    rusage usage;
    REQUIRE(wait4(child, &status, 0, &usage) == child);
    REQUIRE(status == 0);
    const std::string out = contents(f / "stdout");
    const size_t at = out.find(" MiB");
    REQUIRE(at != std::string::npos);
    const double announced = std::stod(out.substr(out.find_last_of(' ', at - 1)));
    const double peak = double(usage.ru_maxrss) / 1024;
    INFO(model << ": announced " << announced << " MiB, at the peak " << peak);
    REQUIRE(std::abs(peak / announced - 1) < 0.02);
  }
}

TEST_CASE("cli: cpu and emulated end in the same weights; so do one thread and two", "[cli]") {
  const Folder f;
  const auto with = [&](const std::string& more) {
    return fingerprint_of(train(f, small("--norm=gated --attn=g1 --gate=headwise --steps=3 --warmup=1 "
                                         "--sample-tokens=0 --val-batches=1 " +
                                         more)));
  };
  const std::string cpu = with("");
  REQUIRE(cpu.size() == 16);
  for (const char* other : {"--device=emulated", "--threads=1", "--threads=2"}) REQUIRE(with(other) == cpu);
}

TEST_CASE("cli: bf16 and the tensor core that it names arrive in training and in a run's samples", "[cli]") {
  const Folder f;
  const auto with = [&](const char* flags) {
    return fingerprint_of(train(f, small(std::string("--sample-tokens=0 ") + flags)));
  };
  const std::string fp32 = with(""), hopper = with("--precision=bf16"), ampere = with("--precision=bf16 --mma=ampere");
  REQUIRE(std::set<std::string>{fp32, hopper, ampere, "none"}.size() == 4);
  REQUIRE(with("--precision=bf16 --mma=hopper") == hopper);

  // Two halves of a run, each in its own precision.
  const std::string out = "--out=" + (f / "run");
  trained(f, small(out + " --save-every=6"));
  fs::remove(f / "run/step_00000012.safetensors");
  require_refused(train(f, small(out + " --resume --precision=bf16")), "add --change-precision");
  const Outcome both = ended(train(f, small(out + " --resume --precision=bf16 --change-precision")));
  REQUIRE(contains(both.out, "resume: step 6"));
  REQUIRE(std::set<std::string>{fp32, hopper, fingerprint_of(both), "none"}.size() == 4);

  // Generated again, the sample after the last step is the same.
  const std::string sample = between(both.out.substr(both.out.find("\nsample ")), "):\n");
  REQUIRE(train(f, "--generate " + out + " --device=cpu --precision=bf16 --tokens=19 --prompt-tokens=" +
                       sample.substr(0, sample.find(' ')))
              .out == sample + "\n");
}

TEST_CASE("cli: more threads than cores are warned about, and change no bit", "[cli]") {
  const Folder f;
  const int cores = omp_get_num_procs();
  const Outcome as_many = train(f, small(format("--threads=%d", cores)));
  REQUIRE(as_many.err.empty());
  const Outcome more = ended(train(f, small(format("--threads=%d", cores + 1))));
  REQUIRE(contains(more.err, format("warning: --threads=%d is more than the %d core", cores + 1, cores)));
  REQUIRE(count(more.err, "\n") == 1);
  REQUIRE(fingerprint_of(more) == fingerprint_of(as_many));
}

TEST_CASE("cli: a sample follows temperature, top-k and seed", "[cli]") {
  const Folder f;
  const auto sample = [&](const std::string& flags) {
    const std::string out = trained(f, small(flags + " --sample-tokens=60"));
    return between(out.substr(out.find("sample (")), "):\n", "fingerprint");
  };
  const std::string likeliest = sample("--temperature=0"), warm = sample("--temperature=1");
  REQUIRE(likeliest != warm);
  REQUIRE(sample("--temperature=1 --top-k=1") == likeliest);  // from the likeliest alone
  REQUIRE(sample("--temperature=1") == warm);
}

TEST_CASE("cli: --describe, --preset, --params and --match-params choose and explain a model", "[cli]") {
  const Folder f;
  const std::string gpt2 = trained(f, "--preset=gpt2-124m --describe");
  REQUIRE(says(gpt2, {"124,439,808", "model.layers.11.mlp.down_proj.bias", "model.embed_positions.weight",
                      "FLOPs a token", "optimizer", "activations"}));
  REQUIRE(!contains(gpt2, "step "));
  REQUIRE(says(train(f, "--attn=g1 --norm=gated --match-params=--attn=full --describe").out,
               {"--ffn-hidden=", "than the"}));
  REQUIRE(contains(train(f, small("--describe")).out,
                   "model.embed_tokens.weight                                  [64,32]"));  // the data's vocabulary
  for (const auto& [flags, named] :
       {std::pair("--params=100 --describe", "100 parameters"),
        {"--params=900000 --ffn-hidden=100", "--ffn-hidden"},
        {"--match-params=--no-such-flag --describe", "--no-such-flag"},
        {"--data=bigram-backcopy --hidden=100000 --ffn-hidden=300000 --layers=100", "out of memory"},
        {"--preset=gpt5", "--preset=gpt5"}})
    require_refused(train(f, flags), named);
}

TEST_CASE("cli: help and the flag map", "[cli]") {
  const Folder f;
  REQUIRE(says(trained(f, "--help"), {"--norm", "--attn", "--data", "--resume", "--device", "gated", "g1"}));
  trained(f, "--flag-map");
}

TEST_CASE("cli: --version names the version, the commit and the compiler", "[cli]") {
  const Folder f;
  const std::string said = trained(f, "--version");
  const Said repository = f.run("cd {repo} && { git rev-parse --short=12 HEAD 2>/dev/null || echo unknown; }");
  const Said version = f.run("sed -n 's/^VERSION := //p' {repo}/Makefile");
  REQUIRE(said.starts_with("gated.cu " + version.text + "commit   " + repository.text + "compiler "));
  REQUIRE(contains(said, "++ "));
}

TEST_CASE("cli: the log says how experts were routed, each figure under its name", "[cli]") {
  const Folder f;
  // One expert gets everything: the balance loss is 1, the entropy 0. The z-loss is another number.
  trained(f, small("--experts=1 --experts-per-token=1 --dense-layers=1 --layers=2 --out=" + (f / "run")));
  size_t steps = 0;
  for (const std::string& line : lines_of(f.read("run/log.jsonl"))) {
    if (!contains(line, "\"gradient_norm\":")) continue;
    steps++;
    REQUIRE(says(line, {"\"balance_loss\":1.0,\"z_loss\":0.",
                        "\"busiest_expert\":1.0,\"routing_entropy\":0.0,\"idle_experts\":0"}));
  }
  REQUIRE(steps == 12);
}

TEST_CASE("cli: the log begins with what ran, and a run that is resumed says so", "[cli]") {
  const Folder f;
  const auto records = [&](const std::string& name) {
    std::vector<nlohmann::json> found;
    for (const std::string& line : lines_of(f.read(name + "/log.jsonl")))
      if (contains(line, "\"run\":")) found.push_back(nlohmann::json::parse(line));
    return found;
  };
  const auto run = [&](const std::string& name, const std::string& more) {
    trained(f, small("--norm=gated --resume " + more + " --out=" + (f / name)));
    return records(name);
  };
  const auto first = run("a", "--steps=8 --save-every=4"), again = run("b", "--steps=8 --save-every=4");
  REQUIRE((first.size() == 1 && f.read("a/log.jsonl").starts_with("{\"step\":0,\"run\":{")));
  const nlohmann::json& it = first[0]["run"];
  REQUIRE((it["flags"]["--norm"] == "gated" && it["flags"]["--hidden"] == "32" && it["flags"]["--lr"] == "0.003"));
  REQUIRE(it["flags"]["--warmup"] == "3");
  REQUIRE((it["command"][0] == "--device=cpu" && it["command"].back() == "--out=" + (f / "a")));
  REQUIRE((it["device"] == "cpu" && it["threads"] == omp_get_max_threads()));
  const std::string version = trained(f, "--version");
  for (const char* key : {"version", "commit", "compiler"}) REQUIRE(contains(version, it[key].get<std::string>()));
  REQUIRE(f.run("cat /proc/cpuinfo").text.find(it["cpu"].get<std::string>()) != std::string::npos);
  const Checkpoint saved(f / "a/step_00000008.safetensors");
  for (const char* key : {"data", "hash--data", "hash--val-data"}) REQUIRE(it[key] == saved.state(key));
  // Two runs differ where they are not the same.
  nlohmann::json here = it, there = again[0]["run"];
  for (nlohmann::json* one : {&here, &there}) {
    (*one)["flags"].erase("--out");
    one->at("command").erase(one->at("command").size() - 1);
  }
  REQUIRE(here == there);

  // Each record stands before the steps that its run computed; one whose steps are all gone goes with them.
  for (int times = 0; times < 2; times++) {
    fs::remove(f / "a/step_00000008.safetensors");
    const auto both = run("a", "--steps=8 --save-every=100");
    REQUIRE((both.size() == 2 && both[1]["step"] == 4 && both[1]["run"]["flags"]["--save-every"] == "100"));
  }
  const std::string log = f.read("a/log.jsonl");
  REQUIRE(log.find("{\"step\":4,\"run\"") > log.find("{\"step\":4,\"loss\""));
  REQUIRE(log.find("{\"step\":4,\"run\"") < log.find("{\"step\":5,\"loss\""));
  // The log of an older program has none.
  f.write("a/log.jsonl", without_runs(log));
  fs::remove(f / "a/step_00000008.safetensors");
  REQUIRE(run("a", "--steps=8").size() == 1);
  REQUIRE(count(f.read("a/log.jsonl"), "\"loss\"") == 8);
}

TEST_CASE("cli: killed at any instant and resumed, a run ends as if it had not been", "[cli]") {
  const std::string flags = GENERATE(
      "--steps=40 --layers=1", "--mixer=gated-delta --steps=24 --layers=1", "--mixer=hybrid --steps=24 --layers=2",
      "--experts=4 --expert-hidden=24 --dense-layers=1 --shared-experts=1 --steps=24 --layers=2");
  INFO(flags);
  const Folder f;
  const auto into = [&](const char* folder) {
    return small("--save-every=3 --keep=2 --micro-batches=2 --resume --context=64 --hidden=64 " + flags +
                 " --out=" + f / folder);
  };
  const std::string run = into("run"), expected = fingerprint_of(train(f, into("whole")));
  REQUIRE(expected.size() == 16);

  // Killed again and again, each time a little later, until one attempt gets to the end.
  int kills = 0;
  Outcome last;
  for (int milliseconds = 30;; milliseconds += 11) {
    const pid_t child = start(f, run);
    for (int waited = 0; waited < milliseconds; waited++) sleep_milliseconds(1);
    kill(child, SIGKILL);
    last = finish(f, child);
    if (last.exit_code == 0) break;
    ended(last, 128 + SIGKILL);
    REQUIRE(++kills < 200);
  }
  INFO(kills << " kills");
  REQUIRE(kills > 3);
  REQUIRE(fingerprint_of(last) == expected);
  // The log is the uninterrupted run's, but for the seconds, and for who computed which steps; what the kills left
  // behind is gone.
  const auto log_of = [&](const std::string& folder) {
    return replaced(without_runs(f.read(folder + "/log.jsonl")), ",\"seconds\":[^,}\n]*", "");
  };
  REQUIRE(log_of("run") == log_of("whole"));
  REQUIRE(f.read("run/measures.safetensors") == f.read("whole/measures.safetensors"));
  REQUIRE(!contains(f.run("ls run").text, "tmp"));
  REQUIRE(files_in(f / "run") == 5);  // two checkpoints, the best, the log, the arrays
  REQUIRE(f.read("run/best.safetensors") == f.read("whole/best.safetensors"));
  // One too many is there where a run was killed between saving and deleting.
  f.write("run/step_00000001.safetensors", "old");
  REQUIRE(fingerprint_of(train(f, run)) == expected);
  REQUIRE(!contains(f.run("ls run").text, "tmp"));
  REQUIRE(files_in(f / "run") == 5);
}

namespace {

// What a terminal shows that breaks long lines into rows and, when its width changes, breaks them anew, as most do. Its
// lines are kept whole; the cursor is a place in the last one.
class Terminal {
 public:
  std::vector<std::string> lines{""};
  size_t width;
  explicit Terminal(size_t width) : width(width) {}
  void write(const std::string& bytes) {
    for (size_t i = 0; i < bytes.size(); i++) {
      std::string& line = lines.back();
      if (bytes[i] == '\n') {
        lines.push_back("");
        at_ = 0;
      } else if (bytes[i] == '\r') {
        at_ -= at_ == line.size() && at_ > 0 && at_ % width == 0 ? width : at_ % width;  // to the row's first column
      } else if (bytes.compare(i, 3, "\033[J") == 0 || bytes.compare(i, 3, "\033[K") == 0) {
        const size_t row_end = (at_ / width + 1) * width;
        if (bytes[i + 2] == 'J' || row_end >= line.size())
          line.resize(at_);
        else
          line.replace(at_, row_end - at_, row_end - at_, ' ');
        i += 2;
      } else {
        line.resize(std::max(line.size(), at_ + 1));
        line[at_++] = bytes[i];
      }
    }
  }

 private:
  size_t at_ = 0;
};

}  // namespace

TEST_CASE("cli: on a terminal all lines and the bar fit its width, and making it narrower leaves no copy of the bar",
          "[cli]") {
  winsize size = {40, 120, 0, 0};
  int terminal = 0;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  if (child == 0) become_train(small("--steps=60 --data=self --batch=64 --sample-tokens=0"));
  Terminal screen(120);
  std::string all;
  const auto read_some = [&](int wait_milliseconds) {
    pollfd ready = {terminal, POLLIN, 0};
    char bytes[4096];
    const ssize_t n = poll(&ready, 1, wait_milliseconds) > 0 ? read(terminal, bytes, sizeof bytes) : 0;
    if (n > 0) all.append(bytes, size_t(n)), screen.write({bytes, size_t(n)});
    return n > 0;
  };
  size_t narrowed = 0, steps = 0;
  for (const size_t columns : {60, 40}) {
    // The window is made narrower while the bar stands there: the run is held until that is done. A terminal passes on
    // what was written a little later, and a step is long beside the moment in which its line is fitted and written.
    for (const size_t until = all.size() + 1000; all.size() < until || !all.ends_with(" left\r");) {
      kill(child, SIGCONT);
      REQUIRE(read_some(60000));
      kill(child, SIGSTOP);
      int status = 0;
      REQUIRE(waitpid(child, &status, WUNTRACED) == child);
      REQUIRE(WIFSTOPPED(status));
      while (read_some(50)) continue;
    }
    size = {40, static_cast<unsigned short>(columns), 0, 0};
    ioctl(terminal, TIOCSWINSZ, &size);
    INFO(screen.lines.back());
    REQUIRE(screen.lines.back().starts_with("[#"));
    REQUIRE(screen.lines.back().size() > columns);  // it now takes two rows
    screen.width = columns;
    narrowed = screen.lines.size();
    kill(child, SIGCONT);
  }
  while (read_some(60000)) continue;
  REQUIRE(exit_code_of(child) == 0);
  close(terminal);
  for (size_t i = 0; i < screen.lines.size(); i++) {
    INFO(screen.lines[i]);
    REQUIRE(!contains(screen.lines[i], "[#"));
    const bool is_step = contains(screen.lines[i], "  norm ") || contains(screen.lines[i], "  loss ");
    if (is_step && i >= narrowed) REQUIRE(screen.lines[i].size() <= 40);
    steps += is_step;
  }
  REQUIRE(steps >= 60);
}

TEST_CASE("cli: Ctrl-C and SIGTERM end the step, save, and say how to go on", "[cli]") {
  const Folder f;
  const std::string whole = fingerprint_of(train(f, small("--steps=200")));
  for (int number : {SIGINT, SIGTERM, SIGHUP}) {
    const std::string out = f / format("run%d", number);
    const std::string words = small("--steps=200 --resume --save-every=1000 --out=" + out);
    const pid_t child = start(f, words);
    CHECK(waited_for(child, out + "/log.jsonl", "\"step\":3,"));
    // GNU timeout sends one signal twice, to a program and to its group.
    for (int i = 0; i < 2; i++) kill(child, number), sleep_milliseconds(2);
    const Outcome interrupted = ended(finish(f, child), 128 + number);
    REQUIRE(says(interrupted.out, {"interrupted after step ", "--resume goes on bit for bit"}));
    REQUIRE(!contains(interrupted.out, "\n200 steps in "));  // as many as ran
    const Outcome rest = train(f, words);
    REQUIRE(contains(rest.out, "resume: step "));
    REQUIRE(fingerprint_of(rest) == whole);
  }
  fs::remove(f / "stdout");  // of the run before
  const pid_t child = start(f, small("--steps=100000"));
  CHECK(waited_for(child, f / "stdout", "step "));
  kill(child, SIGINT);
  REQUIRE(contains(ended(finish(f, child), 128 + SIGINT).out, "nothing is saved; with --out=FOLDER --resume"));
}

TEST_CASE("cli: lines are printed every --log-every steps, and the log has all of them", "[cli]") {
  const Folder f;
  const std::string flags = small("--log-every=5 --resume --out=" + (f / "run"));
  const auto printed = [&](const std::string& more) {
    std::string steps;
    for (const std::string& line : lines_of(trained(f, flags + more)))
      if (contains(line, "  loss ")) steps += between(line, "step ", "/") + " ";
    return steps;
  };
  REQUIRE(printed(" --schedule=wsd") == " 1  5 10 12 ");
  REQUIRE(count(f.read("run/log.jsonl"), "\"loss\"") == 12);
  REQUIRE(printed(" --schedule=wsd --steps=22") == "11 15 20 22 ");  // from step 10 on
}

TEST_CASE("cli: a run saves as its time goes by, where --save-every says so", "[cli]") {
  const Folder f;
  const std::string flags = small("--steps=100000 --val-every=0 --keep=0 --out=" + (f / "run"));
  const pid_t child = start(f, flags + " --save-every=1s");
  CHECK(in_time([&] { return list_checkpoints(f / "run").size() == 2; }));
  kill(child, SIGKILL);
  ended(finish(f, child), 128 + SIGKILL);
  double seconds = 0;
  const size_t last = list_checkpoints(f / "run").begin()->first;
  for (const std::string& line : lines_of(f.read("run/log.jsonl"))) {
    const auto entry = nlohmann::json::parse(line, nullptr, false);
    if (entry.is_object() && entry.contains("seconds") && entry["step"] <= last) seconds += double(entry["seconds"]);
  }
  REQUIRE(seconds > 1.5);
  for (const char* every : {"0", "0s", "1.5h", "m", "30d"})
    require_refused(train(f, small("--out=" + (f / "other") + " --save-every=") + every), "--save-every=");
}

TEST_CASE("cli: the checkpoint of the lowest validation loss stays beside the newest", "[cli]") {
  const Folder f;
  const std::string out = "--out=" + (f / "run") + " ", best = f / "run/best.safetensors";
  // A rate that ruins what was learned: the loss falls at first.
  const std::string flags =
      small("--steps=40 --warmup=40 --lr=3 --min-lr=3 --clip=1e6 --val-every=2 --save-every=10 --keep=1 ");
  const std::string said = trained(f, flags + out);
  std::map<double, size_t> steps;
  for (const std::string& line : lines_of(f.read("run/log.jsonl")))
    if (const auto entry = nlohmann::json::parse(line); entry.contains("validation_loss")) {
      steps.emplace(double(entry["validation_loss"]), size_t(entry["step"]));
    }
  const auto [lowest, step] = *steps.begin();
  REQUIRE((step > 2 && step < 40));
  REQUIRE(Checkpoint(best).step() == step);
  REQUIRE(contains(said, format("lowest validation loss %.4f, of step %zu: %s\n", lowest, step, best.c_str())));
  REQUIRE(files_in(f / "run") == 4);
  REQUIRE(contains(trained(f, small("--evaluate --val-batches=2 --context=32 --batch=4 --from=" + best)),
                   format("validation loss %.4f", lowest)));
  // A run that goes on goes on from the newest, and knows what the best was.
  const std::string bytes = f.read("run/best.safetensors");
  REQUIRE(contains(trained(f, flags + out + "--resume"), "resume: step 40"));
  const std::string halves = "--out=" + (f / "halves") + " ";
  const pid_t child = start(f, flags + halves);
  CHECK(waited_for(child, f / "halves/log.jsonl", format("\"step\":%zu,\"loss\"", step + 2)));
  kill(child, SIGTERM);
  finish(f, child);
  trained(f, flags + halves + "--resume");
  REQUIRE(f.read("halves/best.safetensors") == bytes);
  // One killed between a save and the naming of the best has both when it goes on.
  fs::remove(f / "halves/best.safetensors");
  fs::copy_file(best, f / ("halves/" + checkpoint_name(step)));
  for (int i = 0; i < 2; i++) trained(f, flags + halves + "--resume");
  REQUIRE(f.read("halves/best.safetensors") == bytes);
  REQUIRE(files_in(f / "halves") == 4);
}

TEST_CASE("cli: SIGUSR1 saves, and the run goes on", "[cli]") {
  const Folder f;
  const std::string whole = fingerprint_of(train(f, small("--steps=200")));
  const std::string words = small("--steps=200 --resume --save-every=1000 --val-every=0 --out=" + (f / "run"));
  const pid_t child = start(f, words);
  CHECK(waited_for(child, f / "run/log.jsonl", "\"step\":3,"));
  kill(child, SIGUSR1);
  CHECK(waited_for(child, f / "stdout", "saved, as SIGUSR1 asks"));
  kill(child, SIGKILL);
  finish(f, child);
  const auto saved = list_checkpoints(f / "run");
  REQUIRE((saved.size() == 1 && saved.begin()->first >= 3 && saved.begin()->first < 200));
  const Outcome rest = train(f, words);
  REQUIRE(contains(rest.out, format("resume: step %zu of", saved.begin()->first)));
  REQUIRE(fingerprint_of(rest) == whole);

  const auto told = [&](const Prepare& prepare) {
    fs::remove(f / "stdout");
    const pid_t run = start(f, small("--steps=200"), prepare);
    CHECK(waited_for(run, f / "stdout", "step   3"));
    kill(run, SIGUSR1);
    const Outcome o = ended(finish(f, run));
    REQUIRE(fingerprint_of(o) == whole);
    return o.err;
  };
  REQUIRE(told({}) == "warning: SIGUSR1 asks for a checkpoint, and nothing is saved without --out=FOLDER\n");
  REQUIRE(told([] { signal(SIGUSR1, SIG_IGN); }).empty());
}

// What SLURM sends: SIGUSR1 to the script before the limit of its time, and the same script again when it is queued
// again.
TEST_CASE("cli: the job script for SLURM goes on in the next job where the last one had to end", "[cli]") {
  const Folder f;
  f.program("srun", "exec \"$@\"");
  f.program("scontrol", "echo \"$@\" >>" + (f / "asked"));
  const auto job = [&](const std::string& flags) {
    const pid_t child = fork();
    if (child != 0) return child;
    freopen((f / "stdout").c_str(), "a", stdout);
    freopen((f / "stderr").c_str(), "a", stderr);
    setenv("PATH", (f.path.string() + ":" + getenv("PATH")).c_str(), 1);
    setenv("SLURM_JOB_ID", "17", 1);
    std::vector<std::string> words = words_of("bash scripts/slurm.sh " + flags);
    std::vector<char*> argv;
    for (std::string& w : words) argv.push_back(w.data());
    argv.push_back(nullptr);
    execvp("bash", argv.data());
    _exit(127);
  };
  const std::string flags = small("--steps=200 --save-every=1000 --val-every=0 --out=" + (f / "run"));
  const std::string whole = fingerprint_of(train(f, small("--steps=200")));
  for (const char* until : {"\"step\":3,", "\"step\":30,"}) {
    const pid_t child = job(flags);
    CHECK(waited_for(child, f / "run/log.jsonl", until));
    kill(child, SIGUSR1);
    ended(finish(f, child));
  }
  REQUIRE(f.read("asked") == "requeue 17\nrequeue 17\n");
  const Outcome last = ended(finish(f, job(flags)));
  REQUIRE(count(last.out, "resume: step ") == 2);
  REQUIRE(fingerprint_of(last) == whole);
  // One that fails is not queued again.
  REQUIRE(contains(ended(finish(f, job(flags + " --seed=2")), 1).err, "was made with --seed=1337"));
  REQUIRE(count(f.read("asked"), "\n") == 2);
}

TEST_CASE("cli: a second signal ends the program at once, unless it comes right behind the first", "[cli]") {
  for (const int ignored : {0, SIGHUP}) {
    const pid_t child = fork();
    if (child == 0) {
      for (const int number : {SIGINT, SIGTERM, SIGHUP}) signal(number, number == ignored ? SIG_IGN : SIG_DFL);
      {
        const CatchInterrupts catching;
        raise(SIGHUP);
        if (interrupted() != (ignored ? 0 : SIGHUP)) _exit(1);
        raise(SIGTERM);
        raise(SIGTERM);
        if (interrupted() != (ignored ? SIGTERM : SIGHUP)) _exit(2);
        sleep_milliseconds(1010);
        if (ignored) raise(SIGHUP);
        if (!ignored) raise(SIGINT), _exit(3);
      }
      raise(SIGTERM);
      _exit(4);
    }
    REQUIRE(exit_code_of(child) == 128 + (ignored ? SIGTERM : SIGINT));
  }
  // Right after the steps too.
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGTERM, SIG_DFL);  // Not Catch2's own
    {
      const CatchInterrupts catching;
      raise(SIGTERM);
    }
    raise(SIGTERM);
    _exit(interrupted() == SIGTERM ? 0 : 1);
  }
  REQUIRE(exit_code_of(child) == 0);
}

TEST_CASE("cli: outside of the steps a signal ends the program at once", "[cli]") {
  const Folder f;
  const auto ended_by = [&](const std::string& flags, const char* file, const char* text) {
    fs::remove(f / file);
    const pid_t child = start(f, flags);
    CHECK(waited_for(child, f / file, text));
    sleep_milliseconds(50);
    kill(child, SIGINT);
    siginfo_t end = {};
    if (!in_time([&] { return waitid(P_PID, id_t(child), &end, WEXITED | WNOHANG | WNOWAIT) != 0 || end.si_pid; }))
      kill(child, SIGKILL);
    return exit_code_of(child) - 128;
  };
  const std::string out = "--out=" + (f / "run");
  REQUIRE(ended_by(small(out + " --sample-tokens=100000000"), "stdout", " steps in ") == SIGINT);
  REQUIRE(fs::exists(f / "run/step_00000012.safetensors"));
  f.write("warning", "");
  REQUIRE(ended_by(small(out + " --evaluate --val-batches=100000000"), "warning", "") == SIGINT);
}

TEST_CASE("cli: --evaluate shows what the run showed of its last step, and writes its arrays alone", "[cli]") {
  const Folder f;
  const std::string out = " --out=" + (f / "run"), flags = "--attn=g1 --norm=gated" + out;
  require_refused(train(f, small("--evaluate" + out)), "holds no checkpoint");
  REQUIRE(!fs::exists(f / "run"));
  const std::string run = trained(f, small(flags));
  const std::string arrays = "run/measures.safetensors", log = f.read("run/log.jsonl"), of_run = f.read(arrays);
  REQUIRE(contains(of_run, "gated.cu measures 1"));
  f.write(arrays, "something older");
  const std::string seen = trained(f, small("--evaluate " + flags));
  const size_t begin = run.find("validation loss "), end = run.find("\n\n12 steps in");
  REQUIRE((begin != std::string::npos && end != std::string::npos));
  REQUIRE(says(seen, {run.substr(begin, end - begin), "step_00000012.safetensors", "\nloss       after token 0: "}));
  REQUIRE(!contains(seen, "steps in"));
  REQUIRE(f.read("run/log.jsonl") == log);
  REQUIRE(f.read(arrays) == of_run);
  REQUIRE(files_in(f / "run") == 4);
  const std::string emulated = small("--evaluate --device=emulated " + flags);
  fs::remove(f / arrays);
  trained(f, emulated);
  REQUIRE(f.read(arrays) == of_run);
  fs::remove(f / arrays);
  fs::create_directory(f / arrays);
  require_refused(train(f, emulated), "measures.safetensors: exists and is not a regular file");
  fs::remove(f / arrays);

  const auto quantized = [&](const std::string& more) {
    const std::string all = trained(f, small(flags + " --evaluate --quantize=" + more));
    REQUIRE(all.starts_with(seen));  // what full precision shows stays
    return all.substr(seen.size());
  };
  const std::string fp8 = quantized("fp8-w8a8"), nvfp4 = quantized("nvfp4-w4a4");
  REQUIRE(fits(fp8, "quantized  validation loss \\d\\.\\d{4}, [+-]0\\.\\d{4}\n"));
  REQUIRE(nvfp4 != fp8);
  REQUIRE(quantized("nvfp4-w4a4 --smoothquant=0.5") != nvfp4);
  REQUIRE(quantized("nvfp4-w4a4 --device=emulated") == nvfp4);
  REQUIRE(files_in(f / "run") == 4);

  const std::string own =
      trained(f, "--evaluate --val-batches=2 --device=cpu" + out);  // its flags are those of the run
  REQUIRE(own == seen.substr(0, own.size()));
  require_refused(train(f, small("--evaluate --norm=rmsnorm --hidden=16" + out)),
                  "was made with --norm=gated --hidden=32, this run has --norm=rmsnorm --hidden=16");
  require_refused(train(f, small("--evaluate --val-fraction=0 " + flags)), "--val-fraction");
}

TEST_CASE(
    "cli: measures in the log name each layer's gradient, and the step of the first outlier, which a resumed run knows",
    "[cli]") {
  const Folder f;
  const auto run = [&](const std::string& more) {
    trained(f, small("--measure-every=4 --save-every=6 --keep=0 --layers=2 " + more + " --out=" + (f / "run")));
  };
  const auto entries = [&](const char* key) { return matches(f.read("run/log.jsonl"), key).size(); };
  run("");
  REQUIRE(entries("\"gradient_norm_by_layer\":\\[[0-9.e-]+,[0-9.e-]+\\]") == 3);
  REQUIRE(entries("\"first_outlier_step\":null") == 3);
  for (const size_t step : {8, 12}) fs::remove(f / ("run/" + checkpoint_name(step)));
  std::ofstream(f / "run/log.jsonl", std::ios::app) << "{\"step\":5,\"first_outlier_step\":5}\n";
  run("--resume");
  REQUIRE(entries("\"first_outlier_step\":null") == 1);  // of step 4
  REQUIRE(entries("\"first_outlier_step\":5,") == 2);    // of steps 8 and 12
}

TEST_CASE("cli: a run is evaluated in sequences longer than its own, as YaRN reads them too", "[cli]") {
  const Folder f;
  const std::string out = "--out=" + (f / "run");
  trained(f, small(out));
  const auto evaluate = [&](const std::string& flags) {
    return between(trained(f, small(flags + " --evaluate " + out)), "validation loss ", "\n\n");
  };
  const std::string own = evaluate("");
  REQUIRE(!contains(own, "trained"));
  const std::string arrays = "run/measures.safetensors", of_run = f.read(arrays);
  REQUIRE(evaluate("--steps=99 --lr=0.5 --micro-batches=3") == own);  // what training alone needs
  REQUIRE(f.read(arrays) == of_run);                                  // the flags in it are the run's
  const std::string longer = evaluate("--context=96 --batch=2");
  REQUIRE(contains(longer, " in sequences of 96 tokens; trained with 32"));
  const std::string stretched = evaluate("--context=96 --batch=2 --yarn=3");
  REQUIRE(contains(stretched, " in sequences of 96 tokens; trained with 32, YaRN 3"));
  REQUIRE(stretched.substr(0, 6) != longer.substr(0, 6));  // another loss
  REQUIRE(f.read(arrays) == of_run);
  REQUIRE(contains(f.read("run/measures.96.safetensors"), "\"context\":\"96\""));
  REQUIRE(!contains(f.read("run/measures.96.safetensors"), "\"yarn\""));
  REQUIRE(contains(f.read("run/measures.96.yarn3.safetensors"), "\"yarn\":\"3\""));
  require_refused(train(f, small(out + " --evaluate --context=96 --hidden=16")), "--hidden=32");
  require_refused(train(f, small(out + " --resume --context=96")), "--context=32");

  const std::string learned = "--position=learned --out=" + (f / "learned");
  trained(f, small(learned));
  require_refused(train(f, small(learned + " --evaluate --context=96")),
                  "learned 32 positions and knows no others: take --context=32");
}

TEST_CASE("cli: --probe=retrieval asks a run, alike on cpu and emulated, and needs the language that it learned",
          "[cli]") {
  const Folder f;
  const std::string run = small("--data=recall --context=8 --out=" + (f / "run") + " ");
  trained(f, run);
  const std::string probe = run + "--evaluate --probe=retrieval ";
  const auto table = [&](const std::string& device) {
    return between(trained(f, probe + "--context=12 --yarn=2 " + device) + "|", "retrieval  ", "|");
  };
  const std::string on_cpu = table("--device=cpu");
  REQUIRE(count(on_cpu, "\n") == 4);  // two lines of heading, 8 and 12 tokens
  REQUIRE(says(on_cpu, {"\n                8 ", "\n               12 "}));
  REQUIRE(on_cpu == table("--device=emulated"));
  require_refused(train(f, probe + "--context=2"), "--context=2");
  require_refused(train(f, probe + "--data=bigram-backcopy"), "--data=recall");
}

TEST_CASE("cli: a run whose validation is no number has diverged", "[cli]") {
  const Folder f;
  const Outcome o = train(f,
                          "--data=bigram-backcopy --steps=1 --lr=1000 --min-lr=1000 --warmup=0 --norm=none --ffn=relu2 "
                          "--layers=8 --qk-norm=off --device=cpu --val-batches=1 --out=" +
                              (f / "run"));
  require_refused(o, "step 1: the validation loss is");
  REQUIRE(contains(o.err, "lower --lr; the checkpoint of step 1 is saved"));
  // Where its loss is none the refusal says which rate was still good.
  const Outcome rate = train(f, small("--steps=100 --warmup=100 --lr=1e3 --min-lr=0 --clip=1e30"));
  require_refused(rate, "training has diverged; the loss was lowest, ");
  REQUIRE(matches(rate.err, ", [0-9.]+, in step \\d+ at a rate of [0-9.e+]+: lower --lr \\(now 1000").size() == 1);
  // Of the steps that were printed.
  std::string lowest, step;
  for (const auto& line : matches(rate.out, "step +(\\d+)/100  loss ([0-9.]+) "))
    if (lowest.empty() || std::stod(line[2]) < std::stod(lowest)) lowest = line[2], step = line[1];
  REQUIRE(contains(rate.err, "was lowest, " + lowest + ", in step " + step + " at a rate of "));
}

TEST_CASE("cli: a run with a decay of its own can be made longer, one with a cosine is told why not", "[cli]") {
  const Folder f;
  const std::string a = " --out=" + (f / "a"), b = " --out=" + (f / "b"), wsd = "--schedule=wsd --decay=4 --keep=1 ";
  const auto is_there = [&](const char* step) { return fs::exists(f.path / "a" / step); };
  trained(f, small(wsd + "--steps=12 --save-every=5" + a));
  REQUIRE((is_there("step_00000008.safetensors") && is_there("step_00000012.safetensors")));  // 8: before the decay
  f.run("mv a/log.jsonl kept; ln -s ../kept a/log.jsonl");
  const Outcome longer = ended(train(f, small(wsd + "--steps=20 --resume --save-every=7" + a)));
  REQUIRE((fs::is_symlink(f.path / "a/log.jsonl") && contains(f.read("kept"), "{\"step\":20,\"loss\"")));
  REQUIRE(contains(longer.out, "resume: step 8 of"));
  REQUIRE(fingerprint_of(longer) == fingerprint_of(train(f, small(wsd + "--steps=20" + b))));
  REQUIRE((is_there("step_00000016.safetensors") && !is_there("step_00000008.safetensors")));

  // A checkpoint from its warm-up has the same rates, and is no place to go back to for all that.
  const std::string cosine = "--keep=0 --save-every=2 --out=" + (f / "cosine");
  trained(f, small(cosine));
  require_refused(train(f, small("--resume --steps=20 " + cosine)), "--schedule=wsd can be made longer");
  require_refused(train(f, small(wsd + "--resume --out=" + (f / "cosine"))), "was made with --schedule=cosine");
  require_refused(train(f, small("--schedule=wsd --resume --steps=30 --lr=0.001" + a)),
                  "keep the rates of the steps that are done");
}

TEST_CASE("cli: a checkpoint of another run, a corrupt one, a truncated one", "[cli]") {
  const Folder f;
  const std::string resume = small("--resume --out=" + (f / "run") + " ");
  trained(f, resume + "--save-every=6");
  for (const auto& [flags, named] :
       {std::pair("--norm=gated", "--norm=rmsnorm"),
        {"--seed=9", "--seed"},
        {"--mixer=gated-delta", "--mixer=attention, this run has --mixer=gated-delta"},
        {"--mixer=hybrid", "--mixer=attention --attention-every=4, this run has --mixer=hybrid"}})
    require_refused(train(f, resume + flags), named);

  const std::string newest = "run/step_00000012.safetensors", older = "run/step_00000006.safetensors";
  REQUIRE((fs::exists(f / newest) && fs::exists(f / older)));
  std::string bytes = f.read(newest);
  bytes[bytes.size() - 5] ^= 4;
  f.write(newest, bytes);
  const Outcome fallback = ended(train(f, resume));  // the one before it serves
  REQUIRE(contains(fallback.err, "checksum"));
  REQUIRE(contains(fallback.out, "resume: step 6"));

  fs::resize_file(f / newest, 100);
  f.write(older, "not a checkpoint");
  REQUIRE(contains(ended(train(f, resume), 1).err, "error: "));
}

TEST_CASE("cli: --resume asks what the data is, not where it lies", "[cli]") {
  const Folder f;
  const auto text = [&](const std::string& name, char changed) {
    std::string bytes;
    for (int i = 0; i < 1000; i++) bytes += "the same sentence again, ";
    bytes[100] = changed;
    f.write(name, bytes);
    return f / name;
  };
  const std::string first = text("first.txt", 'x'), copy = text("elsewhere/copy.txt", 'x'),
                    other = text("other.txt", 'y');
  const auto run = [&](const std::string& data, const std::string& more = "") {
    return train(f, small("--resume --data=" + data + " --out=" + (f / "run") + " " + more));
  };
  ended(run(first));
  REQUIRE(contains(ended(run(copy)).out, "resume: step 12"));
  require_refused(run(other), "was made with other data than --data=" + other + " holds");
  require_refused(run(first, "--val-fraction=0.2"), "was made with other data");
  ended(run(first, "--val-data=" + first), 1);

  // Validation data of its own has a hash of its own.
  const auto validated = [&](const std::string& val) {
    return run(first, "--out=" + (f / "own") + " --val-data=" + val);
  };
  ended(validated(first));
  ended(validated(copy));
  require_refused(validated(other), "was made with other data than --val-data=");
}

TEST_CASE("cli: a full disk loses no checkpoint", "[cli]") {
  const Folder f;
  const auto run = [&](const std::string& keep) {
    return small("--steps=9 --save-every=3 --resume --keep=" + keep + " --out=" + (f / "run"));
  };
  trained(f, run("0"));
  const std::string third = "run/step_00000003.safetensors", measures = "run/measures.safetensors";
  const std::string before = f.read(third), arrays = f.read(measures);
  REQUIRE(!before.empty());
  REQUIRE(arrays.size() > 4096);
  // A limit on file size stands in for a disk that fills up while a file is written.
  const auto limit = [] {
    limited(RLIMIT_FSIZE, 4096, 4096)();
    signal(SIGXFSZ, SIG_IGN);
  };
  fs::remove(f / "run/step_00000009.safetensors");
  require_refused(train(f, run("0"), limit), "step_00000009");
  fs::remove(f / "run/step_00000006.safetensors");
  require_refused(train(f, run("1"), limit), "step_00000006");
  REQUIRE(f.read(third) == before);
  REQUIRE(f.read(measures) == arrays);
  // Nor do arrays that cannot be written.
  fs::remove(f / measures);
  fs::create_directory(f / measures);
  require_refused(train(f, run("0")),
                  "measures.safetensors: exists and is not a regular file: cannot replace it; the "
                  "checkpoint of step 9 is saved: --evaluate looks at it again");
  REQUIRE(fs::exists(f / "run/step_00000009.safetensors"));
  fs::remove(f / measures);
  trained(f, small("--evaluate --out=" + (f / "run")));
  REQUIRE(f.read(measures) == arrays);
  // Nor does a new run in the folder of another.
  require_refused(train(f, small("--steps=9 --seed=3 --out=" + (f / "run"))), "--resume");
  REQUIRE(f.read(third) == before);
}

TEST_CASE("cli: before the first step a run says what its checkpoints take, and whether it is free", "[cli]") {
  const Folder f;
  const std::string out = "--out=" + (f / "run");
  const std::string said = trained(f, small("--norm=gated --schedule=wsd --save-every=5 " + out));
  std::string bytes = between(said, "checkpoints of ", " bytes, 5 at once at most: ");
  std::erase(bytes, ',');
  REQUIRE(fs::file_size(f / "run/step_00000012.safetensors") == std::stoull(bytes));
  REQUIRE(!contains(trained(f, small("")), "checkpoints of "));

  const pid_t child = start(f, small("--keep=0 --save-every=1 --steps=100000000000 --out=" + (f / "all")));
  CHECK(waited_for(child, f / "stdout", "step            1/"));
  kill(child, SIGTERM);
  const Outcome all = ended(finish(f, child), 128 + SIGTERM);
  REQUIRE(all.err.starts_with("warning: --out=" + (f / "all") + ": its checkpoints will take "));
  REQUIRE(contains(all.out, "100000000000 at once"));

  const std::string mounted = "mkdir -p disk && mount -t tmpfs -o size=";
  NEEDS("unshare -rm true", "unshare -rm", "a disk that is full before the run")
  const std::string run = " none disk && cd {repo} && exec ./train " + small("--out=" + (f / "disk"));
  require_refused_at_once(f.run("unshare -rm sh -c '" + mounted + "64k" + run + "' 2>&1 >/dev/null"),
                          "--out=" + (f / "disk") + ": a checkpoint takes ");
  REQUIRE(ended(f.run("unshare -rm sh -c '" + mounted + "8m" + run + "' 2>&1 >/dev/null")).text.empty());
}

TEST_CASE("cli: two runs do not share a folder", "[cli]") {
  const Folder f;
  Folder g = f;
  fs::create_directory(g.path /= "second");
  const std::string run = small("--resume --out=" + (f / "run") + " ");
  const pid_t first = start(f, run + "--steps=100000");
  CHECK(waited_for(first, f / "run/log.jsonl", "\"step\":3,"));
  const Outcome second = train(g, run);
  CHECK(waited_for(first, f / "run/log.jsonl", "\"step\":50,"));
  kill(first, SIGTERM);
  ended(finish(f, first), 128 + SIGTERM);
  require_refused(second, "--out=" + (f / "run") + ": another run that has not ended writes there");
  REQUIRE(contains(f.read("run/log.jsonl"), "{\"step\":1,"));
}

TEST_CASE("cli: a log that cannot be written stops nothing, and loses no line where the disk has room again", "[cli]") {
  const Folder f;
  const std::string log = f / "run/log.jsonl";
  const std::string run = small("--steps=100000 --save-every=3 --resume --out=" + (f / "run"));
  const pid_t first = start(f, run);
  CHECK(waited_for(first, log, "\"step\":9,"));  // that of step 6 is saved
  kill(first, SIGINT);
  ended(finish(f, first), 128 + SIGINT);
  // Lines that a resumed run keeps make the log larger than a checkpoint. A limit on file size then stops the log
  // alone, in the middle of a line.
  std::ofstream lines(log, std::ios::app);
  for (int i = 0; i < 30000; i++) lines << "{\"step\":1,\"validation_loss\":1.0}\n";
  lines.close();
  const rlim_t size = fs::file_size(log) + 200;
  for (const auto& entry : fs::directory_iterator(f / "run"))
    if (entry.path().extension() == ".safetensors") REQUIRE(size > entry.file_size());
  const pid_t child = start(f, run, limited(RLIMIT_FSIZE, size, RLIM_INFINITY));
  CHECK(waited_for(child, f / "stderr", "warning: "));
  REQUIRE(fs::file_size(log) == size);
  const rlimit none = {RLIM_INFINITY, RLIM_INFINITY};
  REQUIRE(prlimit(child, RLIMIT_FSIZE, &none, nullptr) == 0);
  in_time([&] { return fs::file_size(log) != size; });
  kill(child, SIGTERM);
  REQUIRE(
      contains(ended(finish(f, child), 128 + SIGTERM).err, "run/log.jsonl: cannot write: File too large: its last "));
  size_t steps = 0;
  for (const std::string& line : lines_of(contents(log)))
    if (contains(line, "\"gradient_norm\"")) REQUIRE(contains(line, format("{\"step\":%zu,", ++steps)));
  REQUIRE(fs::exists(f / ("run/" + checkpoint_name(steps))));
}

// ---- outputs that fail, and data that goes away

TEST_CASE("cli: what cannot be printed is no success, and loses no checkpoint", "[cli]") {
  const Folder f;
  const std::string out = "--out=" + (f / "run"), from = "--from=" + (f / "run");
  const std::string generate = "--generate " + out + " --device=cpu --prompt-tokens=1 --tokens=5";
  const std::string refusal =
      "error: standard output: not all of it could be written: make room there, or send it elsewhere\n";
  const Prepare full = [] { freopen("/dev/full", "w", stdout); }, closed = [] { close(STDOUT_FILENO); };
  REQUIRE(ended(train(f, small(out), full), 1).err == refusal);
  for (const std::string& flags :
       {std::string("--help"), std::string("--flag-map"), std::string("--describe"), from + " --describe",
        from + " --export=" + (f / "exported"), generate, generate + " --samples=2", small(out + " --evaluate")})
    for (const Prepare& prepare : {full, closed}) {
      INFO(flags);
      fs::remove_all(f / "exported");
      REQUIRE(ended(train(f, flags, prepare), 1).err.ends_with(refusal));
    }
  // Nor does a file that is opened take the place of an output that is closed.
  const std::string deaf = small("--out=" + (f / "deaf"));
  ended(train(f, deaf, [] { close(STDOUT_FILENO), close(STDERR_FILENO); }), 1);
  for (const char* name : {"deaf/log.jsonl", "deaf/step_00000012.safetensors", "deaf/measures.safetensors"})
    REQUIRE(!contains(f.read(name), "fingerprint of the weights"));
  trained(f, deaf + " --resume");
}

TEST_CASE("cli: a run whose output nobody reads any more saves, and ends as by SIGPIPE", "[cli]") {
  const Folder f;
  const std::string run = small("--steps=200 --save-every=1000 --resume --out=" + (f / "run"));
  const std::string whole = fingerprint_of(train(f, small("--steps=200")));
  const auto ended_early = [&](const std::string& flags) {
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    const pid_t child = start(f, flags, [&] {
      signal(SIGPIPE, SIG_DFL);
      dup2(ends[1], STDOUT_FILENO);
    });
    close(ends[1]);
    std::string text;
    for (char byte; !contains(text, "step   3/") && !contains(text, "--norm") && read(ends[0], &byte, 1) == 1;)
      text += byte;
    close(ends[0]);
    return finish(f, child);
  };
  REQUIRE(contains(ended(ended_early(run), 128 + SIGPIPE).err, "interrupted after step "));
  REQUIRE(!list_checkpoints(f / "run").empty());
  const Outcome rest = train(f, run);
  REQUIRE(contains(rest.out, "resume: step "));
  REQUIRE(fingerprint_of(rest) == whole);
  REQUIRE(ended_early("--help").err == "");  // there is nothing to save here
}

TEST_CASE("cli: a shard that is cut short while a run reads it ends the run, behind a checkpoint", "[cli]") {
  const Folder f;
  const std::string shard = shard_of(std::vector<uint16_t>(400000, 7)), path = f / "x.bin";
  for (const bool validates : {false, true}) {
    f.write("x.bin", shard);
    f.write("v.bin", shard);
    const std::string folder = validates ? "validates" : "trains", out = f / folder;
    const std::string run =
        "--vocab=64 --steps=100000 --save-every=100000 --keep=1 --resume --val-every=5 --out=" + out;
    const pid_t child = start(f, small(run + " --data=" + (validates ? f / "v.bin --val-data=" + path : path)));
    CHECK(waited_for(child, out + "/log.jsonl", "\"step\":6,"));
    fs::resize_file(path, 1025);
    const Outcome o = finish(f, child);
    require_refused(o, path + ": ends at byte 1025, expected more, to byte ");
    const auto saved = list_checkpoints(out);
    REQUIRE(saved.size() == 1);
    REQUIRE(saved.begin()->first >= 6);
    REQUIRE(contains(o.err, format("; the checkpoint of step %zu is saved: ", saved.begin()->first)));
    REQUIRE(contains(f.read(folder + "/log.jsonl"), format("{\"step\":%zu,\"loss\"", saved.begin()->first)));
  }
}

TEST_CASE("cli: a stack too small for threads is made larger, or refused where it may not be", "[cli]") {
  const Folder f;
  const auto stack = [](rlim_t most) {
    return [most] {
      clearenv();  // it stands on the stack too, before a program begins
      limited(RLIMIT_STACK, 16 * 1024, most)();
    };
  };
  const std::string few = small("--steps=2 --warmup=1 --sample-tokens=0 --val-batches=1 ");
  const std::string expected = fingerprint_of(train(f, few));
  for (const char* more : {"--threads=1", "--threads=2", "--device=emulated"}) {
    INFO(more);
    REQUIRE(fingerprint_of(train(f, few + more, stack(RLIM_INFINITY))) == expected);
    require_refused(train(f, few + more, stack(16 * 1024)),
                    "the limit of the stack is below 256 KiB, and may not be raised: ulimit -s 8192");
  }
}

TEST_CASE("cli: more shards than a process may open files", "[cli]") {
  const Folder f;
  for (int i = 0; i < 100; i++) f.write(format("s%d.bin", i), shard_of(std::vector<uint16_t>(200, 7)));
  ended(train(f, small("--vocab=64 --data=" + (f / "s*.bin")), limited(RLIMIT_NOFILE, 40, 40)));
}

TEST_CASE("cli: a log or a checkpoint that cannot be read is not replaced, and a log that is no file makes nobody wait",
          "[cli]") {
  const Folder f;
  const std::string log = f / "run/log.jsonl";
  const std::string run = small("--save-every=6 --keep=1 --out=" + (f / "run") + " "), resume = run + "--resume";
  trained(f, run + "--keep=0");
  fs::remove(f / "run/step_00000012.safetensors");
  const std::string lines = contents(log);
  const auto bound_by_permissions = [] {  // root too
    for (const int capability : {CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH}) prctl(PR_CAPBSET_DROP, capability);
  };
  const std::string newest = f / "run/step_00000006.safetensors", older = f / "run/step_00000003.safetensors";
  fs::copy_file(newest, older);
  REQUIRE(chmod(log.c_str(), 0) == 0);
  require_refused(train(f, resume, bound_by_permissions), "run/log.jsonl: cannot open: Permission denied");
  REQUIRE(fs::exists(older));  // a start that is refused deletes nothing
  REQUIRE(chmod(newest.c_str(), 0) == 0);
  require_refused(train(f, resume, bound_by_permissions),
                  "step_00000006.safetensors: cannot open: Permission denied: it may be good");
  REQUIRE(chmod(newest.c_str(), 0600) == 0);
  REQUIRE(chmod(log.c_str(), 0600) == 0);
  REQUIRE(contents(log) == lines);

  const auto alarmed = [] { alarm(60); };
  fs::rename(log, f / "log");
  for (const char* command : {"mkfifo run/log.jsonl", "mkdir run/log.jsonl", "ln -s /dev/null run/log.jsonl"}) {
    f.run(std::string("rm -rf run/log.jsonl; ") + command);
    require_refused(train(f, resume, alarmed), "run/log.jsonl: not a regular file");
  }
  fs::remove(log);
  fs::create_symlink("nowhere", log);
  require_refused(train(f, resume, alarmed), "run/log.jsonl: cannot open: No such file");
  fs::rename(f / "log", log);
  trained(f, resume);
  REQUIRE(count(without_runs(contents(log)), "\n") == count(without_runs(lines), "\n"));
}

TEST_CASE("cli: an export that is interrupted leaves nothing, of one that is killed the next leaves nothing", "[cli]") {
  const Folder f;
  const std::string run = f / "run", model = f / "model", exports = "--from=" + run + " --export=" + model;
  trained(f, small("--steps=1 --warmup=1 --sample-tokens=0 --val-batches=1 --hidden=1024 --ffn-hidden=4096 --layers=6 "
                   "--out=" +
                   run));
  for (const int number : {SIGTERM, SIGINT, SIGKILL}) {
    const pid_t child = start(f, exports);
    const std::string mine = ".tmp." + std::to_string(child), unfinished = model + mine;
    in_time([&] { return fs::exists(unfinished + "/model.safetensors" + mine); });
    kill(child, number);
    const Outcome o = ended(finish(f, child), 128 + number);
    REQUIRE(!fs::exists(model));
    REQUIRE(fs::exists(unfinished) == (number == SIGKILL));
    if (number != SIGKILL) REQUIRE(o.err == "error: --export=" + model + ": interrupted: nothing is written\n");
  }
  trained(f, exports);
  REQUIRE(f.run("ls").text == "model\nrun\nstderr\nstdout\n");
}

// (Each flag that is wrong: tests/test_flags.cpp; each file: tests/test_dataloader.cpp.)
TEST_CASE("cli: bad input is one clear line and no crash", "[cli]") {
  const Folder f;
  require_refused(train(f, "--nomr=gated"), "--nomr");
  require_refused(train(f, "--device=cpu --data=" + (f / "missing.txt")), "missing.txt");
  // A name need not be UTF-8, but what a checkpoint remembers must be.
  f.write("caf\xe9.txt", std::string(20000, 'x'));
  const std::string latin = small("--data=" + (f / "caf\xe9.txt"));
  trained(f, latin);
  const Outcome unnamed = train(f, latin + " --out=" + (f / "latin"));
  require_refused(unnamed, "caf\\ufffd.txt\": is not UTF-8");
  REQUIRE(contains(unnamed.err, "error: --data=\""));
  REQUIRE(!contains(unnamed.out, "step "));

  // A shard in llm.c's format, then one in which some tokens are outside the vocabulary: every batch meets one.
  std::vector<uint16_t> tokens(4000, 7);
  const std::string on_shard = small("--vocab=100 --steps=2 --warmup=1 --data=" + (f / "x.bin"));
  f.write("x.bin", shard_of(tokens));
  trained(f, on_shard);
  for (size_t i = 2; i < tokens.size(); i += 8) tokens[i] = 100;
  f.write("x.bin", shard_of(tokens));
  require_refused(train(f, on_shard), "100");

  for (const auto& [flags, named] : {std::pair("--hidden=1000000000000", ""),
                                     {"--batch=1000000000000 --context=1000000000", ""},
                                     {"--device=cpu --hidden=1000000 --ffn-hidden=1000000", "memory"}})
    require_refused(train(f, flags), named);
  require_refused(train(f, small("--out=/proc/no/such/folder")), "--out=/proc/no/such/folder: cannot create");
  require_refused(train(f, small("--lr=1e3 --min-lr=0 --clip=1e30 --steps=40")), "diverged");
}
