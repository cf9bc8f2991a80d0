// cli: ./train as a user meets it: what it prints, what it refuses, and what survives a kill.
// Runs the program that stands in the current folder (make builds it first).
#include <omp.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <functional>
#include <thread>

#include "tests/child.h"
#include "tests/fixtures.h"
#include "tests/script.h"
#include "tests/shard.h"
#include "training/checkpoint/checkpoint.h"
#include "training/process/interrupt.h"

using namespace gated;

namespace {

void sleep_milliseconds(int n) {
  std::this_thread::sleep_for(std::chrono::milliseconds(n));
}

// Does it become true within a minute?
bool in_time(const std::function<bool()>& ready) {
  for (int i = 0; i < 60000 && !ready(); i++) sleep_milliseconds(1);
  return ready();
}

// In a child: becomes a shell that says this, and the program that it ends in.
[[noreturn]] void become(const std::string& line) {
  execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
  _exit(127);
}

int exit_code_of_child(pid_t child, rusage* usage = nullptr) {
  int status = 0;
  wait4(child, &status, 0, usage);
  return exit_code_of(status);
}

// Has it ended? (Its exit code is still to be fetched.)
bool has_ended(pid_t child) {
  siginfo_t end = {};
  return waitid(P_PID, id_t(child), &end, WEXITED | WNOHANG | WNOWAIT) != 0 || end.si_pid == child;
}

// A run of a second or two.
std::string small(const std::string& more = "") {
  return small_run_flags +
         "--data=bigram-backcopy --context=32 --steps=12 --warmup=3 --val-batches=2 --sample-tokens=20 " + more;
}
// Where it is its end that counts, not how far it learns.
std::string tiny(const std::string& more = "") {
  return small("--steps=2 --warmup=1 --sample-tokens=0 --val-batches=1 " + more);
}

// ./train in a folder of its own.
struct Cli : Folder {
  Cli() { fs::create_symlink(fs::current_path() / "train", path / "train"); }

  // `how` is what a shell says in front of the flags.
  pid_t start(const std::string& flags, const std::string& how = "exec ./train") const {
    const pid_t child = fork();
    if (child != 0) return child;
    for (int number : {SIGINT, SIGHUP}) signal(number, SIG_DFL);  // a shell in the background, or nohup, ignores them
    become("cd " + path.string() + " && exec >stdout 2>stderr && " + how + " " + flags);
  }
  Said finish(pid_t child) const { return {exit_code_of_child(child), read("stdout"), read("stderr")}; }
  Said train(const std::string& flags, const std::string& how = "exec ./train") const {
    return finish(start(flags, how));
  }
  // What it prints where it ends well.
  std::string trained(const std::string& flags) const { return ended(train(flags)).text; }
  std::string fingerprint(const std::string& flags) const { return fingerprint_of(train(flags)); }

  // What a shell says in front of ./train, for which this function takes the place of the system's.
  std::string with_function(const std::string& in_c) const {
    write("function.c", in_c);
    done("cc -shared -fPIC -o function.so function.c");
    return "LD_PRELOAD=./function.so ";
  }

  // Refused: exit 1, nothing but one line "error: ..." on stderr, which names what is wrong.
  Said refused(const std::string& flags, const std::string& named, const std::string& how = "exec ./train") const {
    INFO(flags);
    const Said o = train(flags, how);
    require_refused_at_once({o.exit_code, o.err}, named);
    return o;
  }

  // Waits until the file holds the text. False where it did not within a minute, or the child ended.
  bool waited_for(pid_t child, const std::string& file, const std::string& text) const {
    in_time([&] { return contains(read(file), text) || has_ended(child); });
    return contains(read(file), text);
  }
  // A run is sent a signal when a file holds this text,
  void tell(int number, pid_t child, const std::string& file, const std::string& text) const {
    CHECK(waited_for(child, file, text));
    kill(child, number);
  }
  // and ends by it.
  Said ended_by(int number, pid_t child, const std::string& file, const std::string& text) const {
    tell(number, child, file, text);
    return ended(finish(child), 128 + number);
  }

  bool holds(const std::string& name) const { return fs::exists(path / name); }
  size_t files_in(const std::string& folder) const {
    return size_t(std::distance(fs::directory_iterator(path / folder), fs::directory_iterator()));
  }
  // The entries of a log that have this key.
  std::vector<nlohmann::json> logged(const std::string& folder, const std::string& key) const {
    std::vector<nlohmann::json> found;
    for (const std::string& line : lines_of(read(folder + "/log.jsonl")))
      if (const auto entry = nlohmann::json::parse(line, nullptr, false); entry.is_object() && entry.contains(key))
        found.push_back(entry);
    return found;
  }
};

// A log as older programs wrote it.
std::string without_runs(const std::string& log) {
  return replaced(log, R"(\{"step":\d+,"run":[^\n]*\n)", "");
}

// A run that is long enough to be caught on its way, and how it ends where nothing comes between.
const char* const long_run = "--steps=200 --resume --save-every=1000 --val-every=0 --out=run ";
const std::string& end_of_long_run() {
  static const std::string end = Cli().fingerprint(small("--steps=200"));
  return end;
}
void require_resumed(const Said& long_run, const std::string& from = "") {
  REQUIRE(contains(long_run.text, "resume: step " + from));
  REQUIRE(fingerprint_of(long_run) == end_of_long_run());
}

}  // namespace

// Copies of weights at the start, for the fingerprint or for a checkpoint would show: they are a tenth of the first
// model. Of the second, what threads keep to pack wide matrices is a twentieth.
// Of the third, old workspaces that stay beside new ones would be a thirtieth.
TEST_CASE("cli: the memory that it announces is the memory that it takes, within 2 %", "[cli]") {
  for (const std::string model :
       {"--layers=4 --hidden=512 --heads=8 --ffn-hidden=2048 --batch=2 --norm=gated --attn=g1",
        "--layers=1 --hidden=1024 --ffn-hidden=3072 --batch=16", "--layers=1 --hidden=768 --ffn-hidden=6144 --batch=16",
        "--layers=1 --hidden=768 --ffn-hidden=3072 --batch=16 --precision=bf16 --steps=1"}) {  // a step takes seconds
    const Cli f;
    const pid_t child = f.start(
        "--device=cpu --threads=2 --context=64 --steps=2 --warmup=1 --val-batches=1 --sample-tokens=0 --out=out " +
        model);
    rusage usage;
    REQUIRE(exit_code_of_child(child, &usage) == 0);
    const double announced = std::stod(matches(f.read("stdout"), "(\\d+)\\s+MiB").at(0)[1]);
    const double peak = double(usage.ru_maxrss) / 1024;
    INFO(model << ": announced " << announced << " MiB, at the peak " << peak);
    REQUIRE(std::abs(peak / announced - 1) < 0.02);
  }
}

TEST_CASE_METHOD(Cli, "cli: bf16 and the tensor core that it names arrive in training and in samples", "[cli]") {
  const auto with = [&](const std::string& flags) { return fingerprint(small("--sample-tokens=0 " + flags)); };
  const std::string fp32 = with(""), hopper = with("--precision=bf16"), ampere = with("--precision=bf16 --mma=ampere");
  REQUIRE(std::set<std::string>{fp32, hopper, ampere, "none"}.size() == 4);
  REQUIRE(with("--precision=bf16 --mma=hopper") == hopper);

  // Two halves of a run, each in its own precision.
  trained(small("--out=run --save-every=6"));
  fs::remove(path / "run/step_00000012.safetensors");
  const Said both = ended(train(small("--out=run --resume --precision=bf16 --change-precision")));
  REQUIRE(contains(both.text, "resume: step 6"));
  REQUIRE(std::set<std::string>{fp32, hopper, fingerprint_of(both), "none"}.size() == 4);

  // Generated again, the sample after the last step is the same.
  const std::string sample = between(both.text.substr(both.text.find("\nsample ")), "):\n");
  REQUIRE(trained("--generate --out=run --device=cpu --precision=bf16 --tokens=19 --prompt-tokens=" +
                  sample.substr(0, sample.find(' '))) == sample + "\n");
}

TEST_CASE_METHOD(Cli, "cli: more threads than cores are warned about, and change no bit, nor does one", "[cli]") {
  const int cores = omp_get_num_procs();
  const Said as_many = train(tiny(format("--threads=%d", cores)));
  REQUIRE(as_many.err.empty());
  REQUIRE(!contains(as_many.text, "\033"));  // no terminal listens
  const Said more = ended(train(tiny(format("--threads=%d", cores + 1))));
  REQUIRE(contains(more.err, format("warning: --threads=%d is more than the %d core", cores + 1, cores)));
  REQUIRE(count(more.err, "\n") == 1);
  for (const std::string& one : {fingerprint_of(more), fingerprint(tiny("--threads=1"))})
    REQUIRE(one == fingerprint_of(as_many));
}

TEST_CASE_METHOD(Cli,
                 "cli: help, the flag map, a width that is chosen, a version that names the commit and the compiler",
                 "[cli]") {
  REQUIRE(says(trained("--attn=g1 --norm=gated --match-params=--attn=full --describe"), {"--ffn-hidden=", "than the"}));
  REQUIRE(says(trained("--help"), {"--norm", "--attn", "--data", "--resume", "--device", "gated", "g1"}));
  trained("--flag-map");
  const std::string said = trained("--version");
  const Said repository = run("cd {repo} && { git rev-parse --short=12 HEAD 2>/dev/null || echo unknown; }");
  const Said version = run("sed -n 's/^VERSION := //p' {repo}/Makefile");
  REQUIRE(said.starts_with("gated.cu " + version.text + "commit   " + repository.text + "compiler "));
  REQUIRE(contains(said, "++ "));
}

TEST_CASE_METHOD(Cli, "cli: the log says how experts were routed, each figure under its name", "[cli]") {
  // One expert gets everything: the balance loss is 1, the entropy 0. The z-loss is another number.
  trained(small("--experts=1 --experts-per-token=1 --dense-layers=1 --layers=2 --out=run"));
  const auto steps = logged("run", "gradient_norm");
  REQUIRE(steps.size() == 12);
  for (const nlohmann::json& step : steps)
    REQUIRE(says(step.dump(), {"\"balance_loss\":1.0,", "\"z_loss\":0.", "\"busiest_expert\":1.0,",
                               "\"routing_entropy\":0.0,", "\"idle_experts\":0,"}));
}

TEST_CASE_METHOD(Cli, "cli: the log begins with what ran, and a run that is resumed says so", "[cli]") {
  const auto run = [](const Cli& in, const std::string& more) {
    in.trained(small("--norm=gated --resume " + more + " --out=a"));
    return in.logged("a", "run");
  };
  const auto first = run(*this, "--steps=8 --save-every=4");
  REQUIRE((first.size() == 1 && read("a/log.jsonl").starts_with("{\"step\":0,\"run\":{")));
  const nlohmann::json& it = first[0]["run"];
  REQUIRE((it["flags"]["--norm"] == "gated" && it["flags"]["--hidden"] == "32" && it["flags"]["--lr"] == "0.003"));
  REQUIRE(it["flags"]["--warmup"] == "3");
  REQUIRE((it["command"][0] == "--device=cpu" && it["command"].back() == "--out=a"));
  REQUIRE((it["device"] == "cpu" && it["threads"] == omp_get_max_threads()));
  const std::string version = trained("--version");
  for (const char* key : {"version", "commit", "compiler"}) REQUIRE(contains(version, it[key].get<std::string>()));
  REQUIRE(contains(contents("/proc/cpuinfo"), it["cpu"].get<std::string>()));
  const Checkpoint saved(path / "a/step_00000008.safetensors");
  for (const char* key : {"data", "hash--data", "hash--val-data"}) REQUIRE(it[key] == saved.metadata().at(key));
  // The same run in another folder says the same.
  REQUIRE(run(Cli(), "--steps=8 --save-every=4") == first);

  // Each record stands before the steps that its run computed; one whose steps are all gone goes with them.
  for (int times = 0; times < 2; times++) {
    fs::remove(path / "a/step_00000008.safetensors");
    const auto both = run(*this, "--steps=8 --save-every=100");
    REQUIRE((both.size() == 2 && both[1]["step"] == 4 && both[1]["run"]["flags"]["--save-every"] == "100"));
  }
  const std::string log = read("a/log.jsonl");
  REQUIRE(log.find("{\"step\":4,\"run\"") > log.find("{\"step\":4,\"loss\""));
  REQUIRE(log.find("{\"step\":4,\"run\"") < log.find("{\"step\":5,\"loss\""));
  // The log of an older program has none.
  write("a/log.jsonl", without_runs(log));
  fs::remove(path / "a/step_00000008.safetensors");
  REQUIRE(run(*this, "--steps=8").size() == 1);
  REQUIRE(logged("a", "loss").size() == 8);
}

TEST_CASE_METHOD(Cli, "cli: killed at any instant and resumed, a run ends as if it had not been", "[cli]") {
  const std::string into =
      small("--save-every=3 --keep=2 --micro-batches=2 --resume --context=64 --hidden=64 --steps=40 --out=");
  const std::string resumed = into + "run", expected = fingerprint(into + "whole");
  REQUIRE(expected.size() == 16);

  // Killed again and again, each time a little later, until one attempt gets to the end.
  int kills = 0;
  Said last;
  for (int milliseconds = 30;; milliseconds += 11) {
    const pid_t child = start(resumed);
    sleep_milliseconds(milliseconds);
    kill(child, SIGKILL);
    last = finish(child);
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
    return replaced(without_runs(read(folder + "/log.jsonl")), ",\"seconds\":[^,}\n]*", "");
  };
  REQUIRE(log_of("run") == log_of("whole"));
  for (const char* file : {"/measures.safetensors", "/best.safetensors"})
    REQUIRE(read(std::string("run") + file) == read(std::string("whole") + file));
  const std::string files = run("ls run").text;
  REQUIRE((!contains(files, "tmp") && count(files, "\n") == 5));  // two checkpoints, the best, the log, the arrays
  // One too many is there where a run was killed between saving and deleting.
  write("run/step_00000001.safetensors", "old");
  REQUIRE(fingerprint(resumed) == expected);
  REQUIRE(run("ls run").text == files);
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
      } else if (bytes.compare(i, 3, "\033[J") == 0) {
        line.resize(at_);
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
  if (child == 0) become("exec ./train " + small("--steps=60 --data=self --batch=64 --sample-tokens=0"));
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
  REQUIRE(exit_code_of_child(child) == 0);
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

TEST_CASE_METHOD(Cli, "cli: Ctrl-C and SIGTERM end the step, save, and say how to go on", "[cli]") {
  for (int number : {SIGINT, SIGTERM, SIGHUP}) {
    const std::string out = format("run%d", number), words = small(long_run + ("--out=" + out));
    const pid_t child = start(words);
    tell(number, child, out + "/log.jsonl", "\"step\":3,");
    sleep_milliseconds(2);  // GNU timeout sends one signal twice, to a program and to its group
    kill(child, number);
    const Said interrupted = ended(finish(child), 128 + number);
    REQUIRE(says(interrupted.text, {"interrupted after step ", "--resume goes on bit for bit"}));
    REQUIRE(!contains(interrupted.text, "\n200 steps in "));  // as many as ran
    require_resumed(train(words));
  }
  fs::remove(path / "stdout");  // of the run before
  const Said nowhere = ended_by(SIGINT, start(small("--steps=100000")), "stdout", "step ");
  REQUIRE(contains(nowhere.text, "nothing is saved; with --out=FOLDER --resume"));
}

TEST_CASE_METHOD(Cli, "cli: lines are printed every --log-every steps, and the log has all of them", "[cli]") {
  const auto printed = [&](const std::string& more) {
    std::string steps;
    for (const std::string& line : lines_of(trained(small("--log-every=5 --resume --schedule=wsd --out=run" + more))))
      if (contains(line, "  loss ")) steps += between(line, "step ", "/") + " ";
    return steps;
  };
  REQUIRE(printed("") == " 1  5 10 12 ");
  REQUIRE(logged("run", "loss").size() == 12);
  REQUIRE(printed(" --steps=22") == "11 15 20 22 ");  // from step 10 on
}

TEST_CASE_METHOD(Cli, "cli: a run saves as its time goes by, where --save-every says so", "[cli]") {
  const pid_t child = start(small("--steps=100000 --val-every=0 --keep=0 --out=run --save-every=1s"));
  CHECK(in_time([&] { return list_checkpoints(path / "run").size() == 2; }));
  kill(child, SIGKILL);
  ended(finish(child), 128 + SIGKILL);
  double seconds = 0;
  const size_t last = list_checkpoints(path / "run").begin()->first;
  for (const auto& entry : logged("run", "seconds"))
    if (entry["step"] <= last) seconds += double(entry["seconds"]);
  REQUIRE(seconds > 1.5);
}

TEST_CASE_METHOD(Cli, "cli: the checkpoint of the lowest validation loss stays beside the newest", "[cli]") {
  // A rate that ruins what was learned: the loss falls at first.
  const std::string flags =
      small("--steps=40 --warmup=40 --lr=3 --min-lr=3 --clip=1e6 --val-every=2 --save-every=10 --keep=1 --out=");
  const std::string said = trained(flags + "run"), best = "run/best.safetensors", bytes = read(best);
  std::map<double, size_t> steps;
  for (const auto& entry : logged("run", "validation_loss"))
    steps.emplace(double(entry["validation_loss"]), size_t(entry["step"]));
  const auto [lowest, step] = *steps.begin();
  REQUIRE((step > 2 && step < 40));
  REQUIRE(Checkpoint(path / best).step() == step);
  REQUIRE(contains(said, format("lowest validation loss %.4f, of step %zu: %s\n", lowest, step, best.c_str())));
  REQUIRE(files_in("run") == 4);
  REQUIRE(contains(trained(small("--evaluate --val-batches=2 --context=32 --batch=4 --from=" + best)),
                   format("validation loss %.4f", lowest)));
  // A run that goes on goes on from the newest, and knows what the best was.
  REQUIRE(contains(trained(flags + "run --resume"), "resume: step 40"));
  ended_by(SIGTERM, start(flags + "halves"), "halves/log.jsonl", format("\"step\":%zu,\"loss\"", step + 2));
  trained(flags + "halves --resume");
  REQUIRE(read("halves/best.safetensors") == bytes);
  // One killed between a save and the naming of the best has both when it goes on.
  fs::remove(path / "halves/best.safetensors");
  fs::copy_file(path / best, path / ("halves/" + checkpoint_name(step)));
  write("halves/best.safetensors.tmp.1", "");
  for (int i = 0; i < 2; i++) trained(flags + "halves --resume");
  REQUIRE(read("halves/best.safetensors") == bytes);
  REQUIRE(files_in("halves") == 4);
}

TEST_CASE_METHOD(Cli, "cli: SIGUSR1 saves, and the run goes on", "[cli]") {
  const pid_t child = start(small(long_run));
  tell(SIGUSR1, child, "run/log.jsonl", "\"step\":3,");
  ended_by(SIGKILL, child, "stdout", "saved, as SIGUSR1 asks");
  const auto saved = list_checkpoints(path / "run");
  REQUIRE((saved.size() == 1 && saved.begin()->first >= 3 && saved.begin()->first < 200));
  require_resumed(train(small(long_run)), format("%zu of", saved.begin()->first));

  const auto told = [&](const std::string& how) {
    fs::remove(path / "stdout");
    const pid_t run = start(small("--steps=200"), how);
    tell(SIGUSR1, run, "stdout", "step   3");
    const Said o = ended(finish(run));
    REQUIRE(fingerprint_of(o) == end_of_long_run());
    return o.err;
  };
  REQUIRE(told("exec ./train") ==
          "warning: SIGUSR1 asks for a checkpoint, and nothing is saved without --out=FOLDER\n");
  REQUIRE(told("trap '' USR1; exec ./train").empty());
}

// What SLURM sends: SIGUSR1 to the script before the limit of its time, and the same script again when it is queued
// again.
TEST_CASE_METHOD(Cli, "cli: the job script for SLURM goes on in the next job where the last one had to end", "[cli]") {
  program("srun", "\"$@\" & echo $! >step; trap 'kill -9 $(cat step)' TERM; wait $(cat step)");
  program("scancel", "[ \"$*\" = '--signal=TERM 17' ] && kill -TERM $(cat step)");
  program("scontrol", "echo \"$@\" >>asked");
  const std::string script = "exec bash " + fs::current_path().string() + "/scripts/slurm.sh";
  const auto job = [&](const char* more = "") {
    return start(small(long_run) + more, "export SLURM_JOB_ID=17 PATH=$PWD:$PATH; " + script);
  };
  // (What the first job has logged says nothing of the second: that one's own output does.)
  for (const auto& [file, until] : {std::pair("run/log.jsonl", "\"step\":3,"), std::pair("stdout", "resume: step ")}) {
    const pid_t child = job();
    tell(SIGUSR1, child, file, until);
    REQUIRE(contains(ended(finish(child)).text, "resume: step ") == (file == std::string("stdout")));
  }
  REQUIRE(read("asked") == "requeue 17\nrequeue 17\n");
  require_resumed(ended(finish(job())));
  // One that fails is not queued again.
  REQUIRE(contains(ended(finish(job("--seed=2")), 1).err, "was made with --seed=1337"));
  REQUIRE(count(read("asked"), "\n") == 2);
}

TEST_CASE("cli: a second signal ends the program at once, unless it comes right behind the first", "[cli]") {
  for (const int ignored : {0, SIGHUP}) {
    const auto body = [=] {
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
    };
    REQUIRE(in_child(body).status == -(ignored ? SIGTERM : SIGINT));
  }
  // Right after the steps too.
  const auto body = [] {
    signal(SIGTERM, SIG_DFL);  // Not Catch2's own
    {
      const CatchInterrupts catching;
      raise(SIGTERM);
    }
    raise(SIGTERM);
    _exit(interrupted() == SIGTERM ? 0 : 1);
  };
  REQUIRE(in_child(body).status == 0);
}

TEST_CASE_METHOD(Cli, "cli: outside of the steps a signal ends the program at once", "[cli]") {
  const auto ends = [&](const std::string& flags, const char* file, const char* text) {
    fs::remove(path / file);
    const pid_t child = start(small(flags));
    CHECK(waited_for(child, file, text));
    sleep_milliseconds(50);
    kill(child, SIGINT);
    if (!in_time([&] { return has_ended(child); })) kill(child, SIGKILL);
    return exit_code_of_child(child) == 128 + SIGINT;
  };
  REQUIRE(ends("--out=run --sample-tokens=100000000", "stdout", " steps in "));
  REQUIRE(holds("run/step_00000012.safetensors"));
  write("warning", "");
  REQUIRE(ends("--out=run --evaluate --val-batches=100000000", "warning", ""));
}

TEST_CASE_METHOD(Cli, "cli: --evaluate shows what the run showed of its last step, and writes arrays alone", "[cli]") {
  refused(small("--evaluate --out=run"), "holds no checkpoint");
  REQUIRE(!holds("run"));
  const std::string flags = small("--attn=g1 --norm=gated --out=run "), run = trained(flags);
  const std::string arrays = "run/measures.safetensors", log = read("run/log.jsonl"), of_run = read(arrays);
  REQUIRE(contains(of_run, "gated.cu measures 1"));
  write(arrays, "something older");
  const std::string seen = trained(flags + "--evaluate");
  REQUIRE(says(seen, {"validation loss " + between(run, "validation loss ", "\n\n12 steps in"),
                      "step_00000012.safetensors", "\nloss       after token 0: "}));
  REQUIRE(seen.starts_with("data       bigram-backcopy"));
  REQUIRE(contains(replaced(seen.substr(0, seen.find("\nrun/")), "\\s+", " "), ": 2 batches of it, 256 tokens"));
  REQUIRE(!contains(seen, "steps in"));
  REQUIRE(read("run/log.jsonl") == log);
  REQUIRE(read(arrays) == of_run);
  REQUIRE(files_in("run") == 4);
  const std::string emulated = flags + "--evaluate --device=emulated";
  fs::remove(path / arrays);
  trained(emulated);
  REQUIRE(read(arrays) == of_run);
  fs::remove(path / arrays);
  fs::create_directory(path / arrays);
  refused(emulated, "measures.safetensors: exists and is not a regular file");
  fs::remove(path / arrays);

  const auto quantized = [&](const std::string& more) {
    const std::string all = trained(flags + "--evaluate --quantize=" + more);
    REQUIRE(all.starts_with(seen));  // what full precision shows stays
    return all.substr(seen.size());
  };
  const std::string fp8 = quantized("fp8-w8a8"), nvfp4 = quantized("nvfp4-w4a4");
  REQUIRE(fits(fp8, "quantized  validation loss \\d\\.\\d{4}, [+-]0\\.\\d{4}\n"));
  REQUIRE(nvfp4 != fp8);
  REQUIRE(quantized("nvfp4-w4a4 --smoothquant=0.5") != nvfp4);
  REQUIRE(quantized("nvfp4-w4a4 --device=emulated") == nvfp4);
  REQUIRE(files_in("run") == 4);

  const std::string own = trained("--evaluate --val-batches=2 --device=cpu --out=run");  // its flags are the run's
  REQUIRE(own == seen.substr(0, own.size()));
  write("run/step_00000013.safetensors", "");
  const Said older = ended(train("--evaluate --val-batches=2 --device=cpu --out=run"));
  REQUIRE((older.text == own && contains(older.err, "step_00000013.safetensors: file has 0 bytes")));
  fs::remove(path / "run/step_00000013.safetensors");
  refused(
      small("--evaluate --norm=rmsnorm --hidden=16 --out=run"),
      "was made with --norm=gated --hidden=32, and --evaluate was given --norm=rmsnorm --hidden=16: leave --norm and "
      "--hidden out: the run's own count");
  refused("--evaluate --out=run --data=recall", "name the data that the run began with, or --from=run/step_00000012.");
  refused(flags + "--evaluate --val-fraction=0", "--val-fraction");
}

TEST_CASE_METHOD(Cli, "cli: measures name the step of the first outlier, which a resumed run knows", "[cli]") {
  const auto measured = [&](const std::string& more) {
    trained(small("--measure-every=4 --save-every=6 --keep=0 --layers=2 --out=run " + more));
    std::vector<nlohmann::json> outliers;
    for (const auto& entry : logged("run", "gradient_norm_by_layer")) outliers.push_back(entry["first_outlier_step"]);
    return outliers;
  };
  REQUIRE(measured("") == std::vector<nlohmann::json>{nullptr, nullptr, nullptr});
  for (const size_t step : {8, 12}) fs::remove(path / ("run/" + checkpoint_name(step)));
  std::ofstream(path / "run/log.jsonl", std::ios::app) << "{\"step\":5,\"first_outlier_step\":5}\n";
  REQUIRE(measured("--resume") == std::vector<nlohmann::json>{nullptr, 5, 5});  // of steps 4, 8 and 12
}

TEST_CASE_METHOD(Cli, "cli: a run is evaluated in sequences longer than its own, as YaRN reads them too", "[cli]") {
  trained(small("--out=run"));
  const auto evaluate = [&](const std::string& flags) {
    return between(trained(small(flags + " --evaluate --out=run")), "validation loss ", "\n\n");
  };
  const std::string own = evaluate("");
  REQUIRE(!contains(own, "trained"));
  const std::string arrays = "run/measures.safetensors", of_run = read(arrays);
  REQUIRE(evaluate("--steps=99 --lr=0.5 --micro-batches=3") == own);  // what training alone needs
  REQUIRE(read(arrays) == of_run);                                    // the flags in it are the run's
  const std::string longer = evaluate("--context=96 --batch=2");
  REQUIRE(contains(longer, " in sequences of 96 tokens; trained with 32"));
  const std::string stretched = evaluate("--context=96 --batch=2 --yarn=3");
  REQUIRE(contains(stretched, " in sequences of 96 tokens; trained with 32, YaRN 3"));
  REQUIRE(stretched.substr(0, 6) != longer.substr(0, 6));  // another loss
  REQUIRE(read(arrays) == of_run);
  REQUIRE(contains(read("run/measures.96.safetensors"), "\"context\":\"96\""));
  REQUIRE(!contains(read("run/measures.96.safetensors"), "\"yarn\""));
  REQUIRE(contains(read("run/measures.96.yarn3.safetensors"), "\"yarn\":\"3\""));

  const std::string learned = small("--position=learned --out=learned ");
  trained(learned);
  refused(learned + "--evaluate --context=96", "learned 32 positions and knows no others: take --context=32");
}

TEST_CASE_METHOD(Cli,
                 "cli: --probe=retrieval asks a run, alike on cpu and emulated, and needs the language that it learned",
                 "[cli]") {
  const std::string run = small("--data=recall --context=8 --out=run "), probe = run + "--evaluate --probe=retrieval ";
  trained(run);
  const auto table = [&](const std::string& device) {
    return between(trained(probe + "--context=12 --yarn=2 " + device) + "|", "retrieval  ", "|");
  };
  const std::string on_cpu = table("--device=cpu");
  REQUIRE(count(on_cpu, "\n") == 4);  // two lines of heading, 8 and 12 tokens
  REQUIRE(says(on_cpu, {"\n                8 ", "\n               12 "}));
  REQUIRE(on_cpu == table("--device=emulated"));
  refused(probe + "--context=2", "--context=2");
  refused(probe + "--data=bigram-backcopy", "--data=recall");
}

TEST_CASE_METHOD(Cli, "cli: a run whose validation is no number has diverged", "[cli]") {
  const std::string flags =
      "--data=bigram-backcopy --steps=1 --lr=1000 --min-lr=1000 --warmup=0 --norm=none --ffn=relu2 --layers=8 "
      "--qk-norm=off --device=cpu --val-batches=1 --out=run";
  REQUIRE(
      contains(refused(flags, "step 1: the validation loss is").err, "lower --lr; the checkpoint of step 1 is saved"));
  // Where its loss is none the refusal says which rate was still good.
  const Said rate = refused(small("--steps=100 --warmup=100 --lr=1e3 --min-lr=0 --clip=1e30"),
                            "training has diverged; the loss was lowest, ");
  REQUIRE(matches(rate.err, ", [0-9.]+, in step \\d+ at a rate of [0-9.e+]+: lower --lr \\(now 1000").size() == 1);
  // Of the steps that were printed.
  std::string lowest, step;
  for (const auto& line : matches(rate.text, "step +(\\d+)/100  loss ([0-9.]+) "))
    if (lowest.empty() || std::stod(line[2]) < std::stod(lowest)) lowest = line[2], step = line[1];
  REQUIRE(contains(rate.err, "was lowest, " + lowest + ", in step " + step + " at a rate of "));
}

TEST_CASE_METHOD(Cli, "cli: a run whose vocabulary its data gave is not resumed with another", "[cli]") {
  write("x.bin", shard_of(std::vector<uint16_t>(4000, 7), 20240520, 1, 64));
  trained(tiny("--data=x.bin --out=run"));
  refused(
      tiny("--data=x.bin --vocab=70 --resume --out=run"),
      "is F32 [64,32], expected F32 [70,32]: give the same --vocab and other flags that the run began with, or name "
      "another --out");
}

TEST_CASE_METHOD(Cli, "cli: a run with its own decay can be made longer, one with a cosine is told why not", "[cli]") {
  const std::string wsd = small("--schedule=wsd --decay=4 --keep=1 ");
  trained(wsd + "--steps=12 --save-every=5 --out=a");
  REQUIRE((holds("a/step_00000008.safetensors") && holds("a/step_00000012.safetensors")));  // 8: before the decay
  run("mv a/log.jsonl kept; ln -s ../kept a/log.jsonl");
  const Said longer = ended(train(wsd + "--steps=20 --resume --save-every=7 --out=a"));
  REQUIRE((fs::is_symlink(path / "a/log.jsonl") && contains(read("kept"), "{\"step\":20,\"loss\"")));
  REQUIRE(contains(longer.text, "resume: step 8 of"));
  REQUIRE(fingerprint_of(longer) == fingerprint(wsd + "--steps=20 --out=b"));
  REQUIRE((holds("a/step_00000016.safetensors") && !holds("a/step_00000008.safetensors")));

  // A checkpoint from its warm-up has the same rates, and is no place to go back to for all that.
  const std::string cosine = small("--keep=0 --save-every=2 --out=cosine ");
  trained(cosine);
  refused(cosine + "--resume --steps=20", "--schedule=wsd can be made longer");
  refused(wsd + "--resume --out=cosine", "was made with --schedule=cosine");
  refused(small("--schedule=wsd --resume --steps=30 --lr=0.001 --out=a"), "keep the rates of the steps that are done");
}

TEST_CASE_METHOD(Cli, "cli: a full disk loses no checkpoint", "[cli]") {
  const std::string run = small("--steps=9 --save-every=3 --resume --out=run ");
  trained(run + "--keep=0");
  const std::string third = "run/step_00000003.safetensors", measures = "run/measures.safetensors";
  const std::string before = read(third), arrays = read(measures);
  REQUIRE(!before.empty());
  REQUIRE(arrays.size() > 4096);
  // A limit on file size stands in for a disk that fills up while a file is written.
  const char* const limit = "ulimit -f 8; trap '' XFSZ; exec ./train";
  fs::remove(path / "run/step_00000009.safetensors");
  refused(run + "--keep=0", "step_00000009", limit);
  fs::remove(path / "run/step_00000006.safetensors");
  refused(run + "--keep=1", "step_00000006", limit);
  REQUIRE(read(third) == before);
  REQUIRE(read(measures) == arrays);
  // Nor do arrays that cannot be written.
  fs::remove(path / measures);
  fs::create_directory(path / measures);
  refused(run + "--keep=0",
          "measures.safetensors: exists and is not a regular file: cannot replace it; the "
          "checkpoint of step 9 is saved: --evaluate looks at it again");
  REQUIRE(holds("run/step_00000009.safetensors"));
  fs::remove(path / measures);
  trained(small("--evaluate --out=run"));
  REQUIRE(read(measures) == arrays);
  // Nor does a new run in the folder of another.
  refused(small("--steps=9 --seed=3 --out=run"), "--resume");
  REQUIRE(read(third) == before);
}

TEST_CASE_METHOD(Cli, "cli: before step 1 a run says what its checkpoints take, and whether it is free", "[cli]") {
  const std::string said = trained(small("--norm=gated --schedule=wsd --save-every=5 --out=run"));
  std::string bytes = between(said, "checkpoints of ", " bytes, 5 at once at most: ");
  std::erase(bytes, ',');
  REQUIRE(fs::file_size(path / "run/step_00000012.safetensors") == std::stoull(bytes));
  REQUIRE(!contains(trained(small("")), "checkpoints of "));
  // When time saves one, or a validation, nobody knows: there may be as many as are kept.
  REQUIRE(contains(trained(tiny("--val-every=0 --save-every=1h --out=timed")), ", 3 at once at most: "));
  REQUIRE(contains(trained(tiny("--val-every=1 --save-every=9 --out=best")), ", 4 at once at most: "));

  const std::string endless = small("--keep=0 --save-every=1 --steps=100000000000 --resume --out=all");
  const Said all = ended_by(SIGTERM, start(endless), "stdout", "step            1/");
  REQUIRE(all.err.starts_with("warning: --out=all: its checkpoints will take "));
  REQUIRE(contains(all.text, "100000000000 at once"));
  ended_by(SIGTERM, start(endless), "stdout", "resume: step ");  // in no time, whatever is still to come

  NEEDS("unshare -rm true", "unshare -rm", "a disk that is full before the run")
  const auto on_a_disk = [&](const std::string& size) {
    return run("unshare -rm sh -c 'mkdir -p disk && mount -t tmpfs -o size=" + size + " none disk && exec ./train " +
               small("--out=disk") + "' 2>&1 >/dev/null");
  };
  require_refused_at_once(on_a_disk("64k"), "--out=disk: a checkpoint takes ");
  REQUIRE(ended(on_a_disk("8m")).text.empty());
}

TEST_CASE_METHOD(Cli, "cli: two runs do not share a folder", "[cli]") {
  const std::string flags = small("--resume --out=run "), log = "run/log.jsonl";
  const pid_t first = start(flags + "--steps=100000");
  CHECK(waited_for(first, log, "\"step\":3,"));
  const Said second = run("./train " + flags);
  ended_by(SIGTERM, first, log, "\"step\":50,");
  require_refused_at_once(second, "--out=run: another run that has not ended writes there");
  REQUIRE(contains(read(log), "{\"step\":1,"));
}

TEST_CASE_METHOD(Cli,
                 "cli: a log that cannot be written stops nothing, and loses no line where the disk has room again",
                 "[cli]") {
  const std::string log = "run/log.jsonl", run = small("--steps=100000 --save-every=3 --resume --out=run");
  ended_by(SIGINT, start(run), log, "\"step\":9,");  // that of step 6 is saved
  // Lines that a resumed run keeps make the log larger than a checkpoint. A limit on file size then stops the log
  // alone, in the middle of a line.
  std::ofstream lines(path / log, std::ios::app);
  for (int i = 0; i < 30000; i++) lines << "{\"step\":1,\"validation_loss\":1.0}\n";
  lines.close();
  const size_t blocks = fs::file_size(path / log) / 512 + 1, size = 512 * blocks;
  for (const auto& entry : fs::directory_iterator(path / "run"))
    if (entry.path().extension() == ".safetensors") REQUIRE(size > entry.file_size());
  const pid_t child = start(run, format("ulimit -Sf %zu; exec ./train", blocks));
  CHECK(waited_for(child, "stderr", "warning: "));
  REQUIRE(fs::file_size(path / log) == size);
  const rlimit none = {RLIM_INFINITY, RLIM_INFINITY};
  REQUIRE(prlimit(child, RLIMIT_FSIZE, &none, nullptr) == 0);
  in_time([&] { return fs::file_size(path / log) != size; });
  REQUIRE(contains(ended_by(SIGTERM, child, log, "").err, log + ": cannot write: File too large: its last "));
  size_t steps = 0;
  for (const auto& entry : logged("run", "gradient_norm")) REQUIRE(entry["step"] == ++steps);
  REQUIRE(holds("run/" + checkpoint_name(steps)));
  // Nor is the last line lost, where a save makes room.
  const std::string once = with_function(R"(#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
ssize_t write(int file, const void* bytes, size_t n) {
  static int failed = 0;
  return memmem(bytes, n, "top_dimension", 13) && !failed++ ? (errno = ENOSPC, -1) : syscall(SYS_write, file, bytes, n);
})");
  REQUIRE(ended(train(tiny("--out=last"), once + "./train")).err.empty());
  REQUIRE(logged("last", "top_dimension").size() == 1);
}

// ---- outputs that fail, and data that goes away

TEST_CASE_METHOD(Cli, "cli: what cannot be printed is no success, and loses no checkpoint", "[cli]") {
  const std::string generate = "--generate --out=run --device=cpu --prompt-tokens=1 --tokens=5";
  const std::string refusal =
      "error: standard output: not all of it could be written: make room there, or send it elsewhere\n";
  const std::string full = "exec ./train >/dev/full", closed = "exec ./train >&-";
  REQUIRE(ended(train(small("--out=run"), full), 1).err == refusal);
  for (const std::string& flags : std::vector<std::string>{
           "--help", "--flag-map", "--describe", "--from=run --describe", "--from=run --export=exported", generate,
           generate + " --samples=2", small("--out=run --evaluate")})
    for (const std::string& how : {full, closed}) {
      INFO(flags);
      fs::remove_all(path / "exported");
      REQUIRE(ended(train(flags, how), 1).err.ends_with(refusal));
    }
  // Nor does a file that is opened take the place of an output that is closed.
  ended(train(small("--out=deaf"), "exec ./train >&- 2>&-"), 1);
  for (const char* name : {"deaf/log.jsonl", "deaf/step_00000012.safetensors", "deaf/measures.safetensors"})
    REQUIRE(!contains(read(name), "fingerprint of the weights"));
  trained(small("--out=deaf --resume"));
}

TEST_CASE_METHOD(Cli, "cli: a run whose output nobody reads any more saves, and ends as by SIGPIPE", "[cli]") {
  const auto ended_early = [&](const std::string& flags) {
    run("{ ./train " + flags + " 2>stderr; echo $? >code; } | sed '/step   3\\/\\|--norm/q'");
    return Said{std::stoi(read("code")), "", read("stderr")};
  };
  REQUIRE(contains(ended(ended_early(small(long_run)), 128 + SIGPIPE).err, "interrupted after step "));
  REQUIRE(!list_checkpoints(path / "run").empty());
  require_resumed(train(small(long_run)));
  REQUIRE(ended_early("--help").err == "");  // there is nothing to save here
}

TEST_CASE_METHOD(Cli, "cli: a shard that is cut short while it is read ends the run, behind a checkpoint", "[cli]") {
  const std::string shard = shard_of(std::vector<uint16_t>(400000, 7));
  for (const std::string out : {"trains", "validates"}) {
    for (const char* name : {"x.bin", "v.bin"}) write(name, shard);
    const pid_t child =
        start(small("--vocab=64 --steps=100000 --save-every=100000 --keep=1 --resume --val-every=5 --out=" + out +
                    (out == "trains" ? " --data=x.bin" : " --data=v.bin --val-data=x.bin")));
    CHECK(waited_for(child, out + "/log.jsonl", "\"step\":6,"));
    fs::resize_file(path / "x.bin", 1025);
    const Said o = finish(child);
    require_refused_at_once({o.exit_code, o.err}, "x.bin: ends at byte 1025, expected more, to byte ");
    const auto saved = list_checkpoints(path / out);
    REQUIRE(saved.size() == 1);
    const size_t step = saved.begin()->first;
    REQUIRE(step >= 6);
    REQUIRE(contains(o.err, format("; the checkpoint of step %zu is saved: ", step)));
    REQUIRE(contains(read(out + "/log.jsonl"), format("{\"step\":%zu,\"loss\"", step)));
  }
}

TEST_CASE_METHOD(Cli, "cli: a stack too small for threads is made larger, or refused where it may not be", "[cli]") {
  // (What is in the environment stands on the stack too, before a program begins.)
  const std::string raised = "ulimit -Ss 128; exec env -i ./train", kept = "ulimit -s 128; exec env -i ./train";
  const std::string expected = fingerprint(tiny());
  for (const char* more : {"--threads=1", "--threads=2", "--device=emulated"}) {
    INFO(more);
    REQUIRE(fingerprint_of(train(tiny(more), raised)) == expected);
    refused(tiny(more), "the limit of the stack is below 256 KiB, and may not be raised: ulimit -s 8192", kept);
  }
}

TEST_CASE_METHOD(Cli, "cli: a rank that may not choose its cores computes on those that it has", "[cli]") {
  const std::string refuses = with_function("int sched_setaffinity(void) { return -1; }");
  ended(train(tiny(), refuses + "OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 timeout 60 ./train"));
}

TEST_CASE_METHOD(
    Cli, "cli: a log or a checkpoint that cannot be read is not replaced, and a log that is no file makes nobody wait",
    "[cli]") {
  const std::string log = path / "run/log.jsonl", flags = small("--save-every=6 --keep=1 --out=run "),
                    resume = flags + "--resume";
  trained(flags + "--keep=0");
  fs::remove(path / "run/step_00000012.safetensors");
  const std::string lines = contents(log);
  const char* const bound_by_permissions =  // root too
      "[ $(id -u) = 0 ] && set -- setpriv --bounding-set=-dac_override,-dac_read_search; exec \"$@\" ./train";
  const std::string newest = path / "run/step_00000006.safetensors", older = path / "run/step_00000003.safetensors";
  fs::copy_file(newest, older);
  REQUIRE(chmod(log.c_str(), 0) == 0);
  refused(resume, "run/log.jsonl: cannot open: Permission denied", bound_by_permissions);
  REQUIRE(fs::exists(older));  // a start that is refused deletes nothing
  REQUIRE(chmod(newest.c_str(), 0) == 0);
  refused(resume, "step_00000006.safetensors: cannot open: Permission denied: it may be good", bound_by_permissions);
  for (const std::string& path : {newest, log}) REQUIRE(chmod(path.c_str(), 0600) == 0);
  fs::create_directories(path / "shut/run");
  fs::permissions(path / "shut", fs::perms::none);
  refused("--generate --out=shut/run", "--generate: --out=shut/run: cannot read: Permission denied",
          bound_by_permissions);
  fs::permissions(path / "shut", fs::perms::owner_all);
  fs::permissions(path / "run", fs::perms::owner_write, fs::perm_options::remove);
  const Said said = refused(small("--evaluate --out=run"), "Permission denied", bound_by_permissions);
  REQUIRE_FALSE(contains(said.text, "validation loss"));  // before any work
  fs::permissions(path / "run", fs::perms::owner_all);
  REQUIRE(contents(log) == lines);

  const char* const alarmed = "exec timeout 60 ./train";
  fs::rename(log, path / "log");
  for (const char* command : {"mkfifo run/log.jsonl", "mkdir run/log.jsonl", "ln -s /dev/null run/log.jsonl"}) {
    run(std::string("rm -rf run/log.jsonl; ") + command);
    refused(resume, "run/log.jsonl: not a regular file", alarmed);
  }
  fs::remove(log);
  fs::create_symlink("nowhere", log);
  refused(resume, "run/log.jsonl: cannot open: No such file", alarmed);
  fs::rename(path / "log", log);
  trained(resume);
  REQUIRE(count(without_runs(contents(log)), "\n") == count(without_runs(lines), "\n"));
}

TEST_CASE_METHOD(Cli,
                 "cli: an export that is interrupted leaves nothing, of one that is killed the next leaves nothing",
                 "[cli]") {
  const std::string exports = "--from=run --export=model";
  trained(tiny("--steps=1 --hidden=512 --ffn-hidden=2048 --layers=6 --out=run"));
  for (const int number : {SIGTERM, SIGINT, SIGKILL}) {
    const pid_t child = start(exports);
    const std::string mine = ".tmp." + std::to_string(child), unfinished = "model" + mine;
    in_time([&] { return holds(unfinished + "/model.safetensors" + mine); });
    kill(child, number);
    const Said o = ended(finish(child), 128 + number);
    REQUIRE(!holds("model"));
    REQUIRE(holds(unfinished) == (number == SIGKILL));
    if (number != SIGKILL) REQUIRE(o.err == "error: --export=model: interrupted: nothing is written\n");
  }
  trained(exports);
  REQUIRE(names() == std::set<std::string>{"model", "run", "stderr", "stdout", "train"});
}

// (Each flag that is wrong: tests/test_flags.cpp; each file: tests/test_dataloader.cpp.)
TEST_CASE_METHOD(Cli, "cli: bad input is one clear line and no crash", "[cli]") {
  for (const auto& [flags, named] : refusals("program")) refused(flags, named);
  // A name need not be UTF-8, but what a checkpoint remembers must be.
  write("caf\xe9.txt", std::string(20000, 'x'));
  const std::string latin = tiny("--data=caf\xe9.txt ");
  trained(latin);
  const Said unnamed = refused(latin + "--out=latin", "caf\\ufffd.txt\": is not UTF-8");
  REQUIRE(contains(unnamed.err, "error: --data=\""));
  REQUIRE(!contains(unnamed.text, "step "));
}

// (Memory that may not be had ends the run behind the note, in which a model is large that trains on any machine.)
TEST_CASE_METHOD(Cli, "cli: before many weights are made a line says so", "[cli]") {
  const std::string large = tiny("--threads=1 --hidden=4096 --ffn-hidden=8192 --out=large");
  REQUIRE(train(large, "ulimit -v 1000000; exec ./train").err.starts_with("note: 0.1 billion weights are made\n"));
  REQUIRE(train(tiny()).err.empty());
}
