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

#include <cstdint>
#include <functional>
#include <regex>
#include <set>
#include <thread>

#include "tests/compare.h"
#include "tests/contents.h"
#include "tests/script.h"
#include "training/checkpoint/checkpoint.h"
#include "training/process/interrupt.h"

using namespace gated;

namespace {

struct Outcome {
  int exit_code;  // 128 + n where signal n ended it
  std::string out, err;
};

pid_t start(const Folder& folder, std::vector<std::string> words, const std::function<void()>& prepare = {}) {
  words.insert(words.begin(), "./train");
  const pid_t child = fork();
  if (child != 0) return child;
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  signal(SIGINT, SIG_DFL);  // where these tests run in the background, a shell has it ignored
  freopen((folder / "stdout").c_str(), "w", stdout);
  freopen((folder / "stderr").c_str(), "w", stderr);
  if (prepare) prepare();
  execv(argv[0], argv.data());
  _exit(127);
}

Outcome finish(const Folder& folder, pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return {code, contents(folder / "stdout"), contents(folder / "stderr")};
}

Outcome train(const Folder& folder, std::vector<std::string> words, const std::function<void()>& prepare = {}) {
  return finish(folder, start(folder, std::move(words), prepare));
}

std::string fingerprint_of(const Outcome& o) {
  const std::string label = "fingerprint of the weights: ";
  const size_t at = o.out.find(label);
  return at == std::string::npos ? "none: " + o.err : o.out.substr(at + label.size(), 16);
}

// Waits until the file holds the text. False where it did not within a minute, or the child ended.
bool waited_for(pid_t child, const std::string& file, const std::string& text) {
  for (int milliseconds = 0; milliseconds < 60000; milliseconds++) {
    if (contains(contents(file), text)) return true;
    siginfo_t ended = {};
    if (waitid(P_PID, id_t(child), &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == child) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return contains(contents(file), text);
}

// A run of a second or two.
std::vector<std::string> small(std::vector<std::string> more = {}) {
  std::vector<std::string> words = {
      "--device=cpu",    "--data=bigram-backcopy", "--layers=1",   "--hidden=32", "--heads=2",  "--kv-heads=1",
      "--head-dim=16",   "--ffn-hidden=48",        "--context=32", "--batch=4",   "--steps=12", "--warmup=3",
      "--val-batches=2", "--sample-tokens=20"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Refused: exit 1, nothing but one line "error: ..." on stderr, which names what is wrong.
void require_refused(const Outcome& o, const std::string& named) {
  INFO(o.err);
  REQUIRE(o.exit_code == 1);
  REQUIRE(o.err.rfind("error: ", 0) == 0);
  REQUIRE(std::count(o.err.begin(), o.err.end(), '\n') == 1);
  REQUIRE(contains(o.err, named));
}

}  // namespace

TEST_CASE("cli: a run prints a header, a line a step, a validation, a sample and a fingerprint", "[cli]") {
  const Folder f;
  const Outcome o = train(f, small());
  INFO(o.out << o.err);
  REQUIRE(o.exit_code == 0);
  for (const char* part : {"flags ", "device     cpu", "data ", "model ", "step  1/12  loss ", "step 12/12  loss ",
                           "tok/s", "% peak", "validation loss ", "sample ", "fingerprint of the weights: "})
    REQUIRE(contains(o.out, part));
  REQUIRE(o.err.empty());
  REQUIRE(!contains(o.out, "\033"));  // no terminal listens
  REQUIRE(fingerprint_of(train(f, small())) == fingerprint_of(o));
  REQUIRE(fingerprint_of(train(f, small({"--seed=2"}))) != fingerprint_of(o));
}

// Copies of weights at the start, for the fingerprint or for a checkpoint would show: they are a tenth of the first model. Of the
// second, what threads keep to pack wide matrices is a twentieth.
// Of the third, old workspaces that stay beside new ones would be a thirtieth.
TEST_CASE("cli: the memory that it announces is the memory that it takes, within 2 %", "[cli]") {
  const std::vector<std::string> models[] = {
      {"--layers=8", "--hidden=512", "--heads=8", "--ffn-hidden=2048", "--batch=2", "--norm=gated", "--attn=g1"},
      {"--layers=1", "--hidden=1024", "--ffn-hidden=3072", "--batch=16"},
      {"--layers=1", "--hidden=768", "--ffn-hidden=6144", "--batch=16"},
      {"--layers=1", "--hidden=768", "--ffn-hidden=6144", "--batch=16", "--precision=bf16"}};
  for (std::vector<std::string> words : models) {
    const Folder f;
    for (const char* word : {"--device=cpu", "--threads=2", "--context=64", "--steps=2", "--warmup=1",
                             "--val-batches=1", "--sample-tokens=0"})
      words.push_back(word);
    words.push_back("--out=" + (f / "out"));
    const pid_t child = start(f, words);
    int status = 0;
    rusage usage;
    REQUIRE(wait4(child, &status, 0, &usage) == child);
    REQUIRE(status == 0);
    const std::string out = contents(f / "stdout");
    const size_t at = out.find(" MiB");
    REQUIRE(at != std::string::npos);
    const double announced = std::stod(out.substr(out.find_last_of(' ', at - 1)));
    const double peak = double(usage.ru_maxrss) / 1024;
    INFO(words[1] << ": announced " << announced << " MiB, at the peak " << peak);
    REQUIRE(std::abs(peak / announced - 1) < 0.02);
  }
}

TEST_CASE("cli: cpu and emulated end in the same weights; so do one thread and two", "[cli]") {
  const Folder f;
  const std::vector<std::string> variant = {"--norm=gated", "--attn=g1",         "--gate=headwise", "--steps=3",
                                            "--warmup=1",   "--sample-tokens=0", "--val-batches=1"};
  const std::string cpu = fingerprint_of(train(f, small(variant)));
  REQUIRE(cpu.size() == 16);
  auto with = [&](const char* word) {
    std::vector<std::string> words = small(variant);
    words.push_back(word);
    if (contains(word, "--device")) words.erase(words.begin());
    return fingerprint_of(train(f, words));
  };
  REQUIRE(with("--device=emulated") == cpu);
  REQUIRE(with("--threads=1") == cpu);
  REQUIRE(with("--threads=2") == cpu);
}

TEST_CASE("cli: bf16 and the tensor core that it names arrive in training and in a run's samples", "[cli]") {
  const Folder f;
  const auto trained = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> words = {"--sample-tokens=0"};
    words.insert(words.end(), flags.begin(), flags.end());
    return fingerprint_of(train(f, small(words)));
  };
  const std::string fp32 = trained({}), hopper = trained({"--precision=bf16"}),
                    ampere = trained({"--precision=bf16", "--mma=ampere"});
  REQUIRE(std::set<std::string>{fp32, hopper, ampere, "none"}.size() == 4);
  REQUIRE(trained({"--precision=bf16", "--mma=hopper"}) == hopper);

  // Two halves of a run, each in its own precision.
  const std::string out = "--out=" + (f / "run");
  REQUIRE(train(f, small({out, "--save-every=6"})).exit_code == 0);
  fs::remove(f / "run/step_00000012.safetensors");
  require_refused(train(f, small({out, "--resume", "--precision=bf16"})), "add --change-precision");
  const Outcome both = train(f, small({out, "--resume", "--precision=bf16", "--change-precision"}));
  INFO(both.out << both.err);
  REQUIRE(both.exit_code == 0);
  REQUIRE(contains(both.out, "resume: step 6"));
  REQUIRE(std::set<std::string>{fp32, hopper, fingerprint_of(both), "none"}.size() == 4);

  // Generated again, the sample after the last step is the same.
  const size_t begin = both.out.find("):\n", both.out.find("\nsample ")) + 3;
  const std::string sample = both.out.substr(begin, both.out.find('\n', begin) + 1 - begin);
  const Outcome again = train(f, {"--generate", out, "--device=cpu", "--precision=bf16", "--tokens=19",
                                  "--prompt-tokens=" + sample.substr(0, sample.find(' '))});
  INFO(again.err);
  REQUIRE(again.out == sample);
}

TEST_CASE("cli: more threads than cores are warned about, and change no bit", "[cli]") {
  const Folder f;
  const int cores = omp_get_num_procs();
  const Outcome as_many = train(f, small({"--threads=" + std::to_string(cores)}));
  REQUIRE(as_many.err.empty());
  const Outcome more = train(f, small({"--threads=" + std::to_string(cores + 1)}));
  INFO(more.err);
  REQUIRE(more.exit_code == 0);
  REQUIRE(contains(more.err, format("warning: --threads=%d is more than the %d core", cores + 1, cores)));
  REQUIRE(std::count(more.err.begin(), more.err.end(), '\n') == 1);
  REQUIRE(fingerprint_of(more) == fingerprint_of(as_many));
}

TEST_CASE("cli: a sample follows temperature, top-k and seed", "[cli]") {
  const Folder f;
  auto sample = [&](std::vector<std::string> words) {
    words.push_back("--sample-tokens=60");
    const Outcome o = train(f, small(words));
    REQUIRE(o.exit_code == 0);
    const size_t begin = o.out.find("):\n", o.out.find("sample (")), end = o.out.find("fingerprint");
    REQUIRE((begin != std::string::npos && end != std::string::npos));
    return o.out.substr(begin, end - begin);
  };
  const std::string likeliest = sample({"--temperature=0"}), warm = sample({"--temperature=1"});
  REQUIRE(likeliest != warm);
  REQUIRE(sample({"--temperature=1", "--top-k=1"}) == likeliest);  // from the likeliest alone
  REQUIRE(sample({"--temperature=1"}) == warm);
}

TEST_CASE("cli: --describe, --preset, --params and --match-params choose and explain a model", "[cli]") {
  const Folder f;
  const Outcome gpt2 = train(f, {"--preset=gpt2-124m", "--describe"});
  REQUIRE(gpt2.exit_code == 0);
  for (const char* part : {"124,439,808", "model.layers.11.mlp.down_proj.bias", "model.embed_positions.weight",
                           "FLOPs a token", "optimizer", "activations"})
    REQUIRE(contains(gpt2.out, part));
  REQUIRE(!contains(gpt2.out, "step "));
  const Outcome matched = train(f, {"--attn=g1", "--norm=gated", "--match-params=--attn=full", "--describe"});
  REQUIRE(contains(matched.out, "--ffn-hidden="));
  REQUIRE(contains(matched.out, "than the"));
  const Outcome small_described = train(f, small({"--describe"}));
  REQUIRE(contains(small_described.out,
                   "model.embed_tokens.weight                                  [64,32]"));  // the data's vocabulary
  require_refused(train(f, {"--params=100", "--describe"}), "100 parameters");
  require_refused(train(f, {"--params=900000", "--ffn-hidden=100"}), "--ffn-hidden");
  require_refused(train(f, {"--match-params=--no-such-flag", "--describe"}), "--no-such-flag");
  require_refused(train(f, {"--data=bigram-backcopy", "--hidden=100000", "--ffn-hidden=300000", "--layers=100"}),
                  "out of memory");
  require_refused(train(f, {"--preset=gpt5"}), "--preset=gpt5");
}

TEST_CASE("cli: help and the flag map", "[cli]") {
  const Folder f;
  const Outcome help = train(f, {"--help"});
  REQUIRE(help.exit_code == 0);
  for (const char* part : {"--norm", "--attn", "--data", "--resume", "--device", "gated", "g1"})
    REQUIRE(contains(help.out, part));
  REQUIRE(train(f, {"--flag-map"}).exit_code == 0);
}

TEST_CASE("cli: --version names the version, the commit and the compiler", "[cli]") {
  const Folder f;
  const Outcome said = train(f, {"--version"});
  INFO(said.out);
  REQUIRE(said.exit_code == 0);
  const Said repository = f.run("cd {repo} && { git rev-parse --short=12 HEAD 2>/dev/null || echo unknown; }");
  const Said version = f.run("sed -n 's/^VERSION := //p' {repo}/Makefile");
  REQUIRE(said.out.starts_with("gated.cu " + version.text + "commit   " + repository.text + "compiler "));
  REQUIRE(said.out.find("++ ") != std::string::npos);
}

TEST_CASE("cli: the log says how experts were routed, each figure under its name", "[cli]") {
  const Folder f;
  // One expert gets everything: the balance loss is 1, the entropy 0. The z-loss is another number.
  const Outcome o = train(
      f, small({"--experts=1", "--experts-per-token=1", "--dense-layers=1", "--layers=2", "--out=" + (f / "run")}));
  INFO(o.err);
  REQUIRE(o.exit_code == 0);
  std::ifstream log(f / "run/log.jsonl");
  size_t steps = 0;
  for (std::string line; std::getline(log, line);) {
    if (!contains(line, "\"gradient_norm\":")) continue;
    INFO(line);
    steps++;
    REQUIRE(contains(line, "\"balance_loss\":1.0,\"z_loss\":0."));
    REQUIRE(contains(line, "\"busiest_expert\":1.0,\"routing_entropy\":0.0,\"idle_experts\":0"));
  }
  REQUIRE(steps == 12);
}

TEST_CASE("cli: killed at any instant and resumed, a run ends as if it had not been", "[cli]") {
  using Flags = std::vector<std::string>;
  const Flags flags = GENERATE(
      Flags{"--steps=40", "--layers=1"}, Flags{"--mixer=gated-delta", "--steps=24", "--layers=1"},
      Flags{"--mixer=hybrid", "--steps=24", "--layers=2"},
      Flags{"--experts=4", "--expert-hidden=24", "--dense-layers=1", "--shared-experts=1", "--steps=24", "--layers=2"});
  INFO(flags[0]);
  const Folder f;
  auto into = [&](const char* folder) {
    Flags all = {"--save-every=3", "--keep=2",     "--micro-batches=2", "--out=" + (f / folder),
                 "--resume",       "--context=64", "--hidden=64"};
    all.insert(all.end(), flags.begin(), flags.end());
    return small(all);
  };
  const std::vector<std::string> run = into("run");
  const std::string expected = fingerprint_of(train(f, into("whole")));
  REQUIRE(expected.size() == 16);

  // Killed again and again, each time a little later, until one attempt gets to the end.
  int kills = 0;
  Outcome last;
  for (int milliseconds = 30;; milliseconds += 11) {
    const pid_t child = start(f, run);
    for (int waited = 0; waited < milliseconds; waited++) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    kill(child, SIGKILL);
    last = finish(f, child);
    if (last.exit_code == 0) break;
    INFO(last.err);
    REQUIRE(last.exit_code == 128 + SIGKILL);
    REQUIRE(++kills < 200);
  }
  INFO(kills << " kills");
  REQUIRE(kills > 3);
  REQUIRE(fingerprint_of(last) == expected);
  // The log is the uninterrupted run's, but for the seconds; what the kills left behind is gone.
  const std::regex seconds(",\"seconds\":[^,}]*");
  auto log_of = [&](const char* folder) {
    std::ifstream log(f / (std::string(folder) + "/log.jsonl"));
    std::string text;
    for (std::string line; std::getline(log, line);) text += std::regex_replace(line, seconds, "") + "\n";
    return text;
  };
  REQUIRE(log_of("run") == log_of("whole"));
  REQUIRE(contents(f.path / "run/measures.safetensors") == contents(f.path / "whole/measures.safetensors"));
  const auto files = [&] {
    size_t files = 0;
    for (const auto& entry : fs::directory_iterator(f / "run")) {
      INFO(entry.path());
      REQUIRE(!contains(entry.path().filename().string(), "tmp"));
      files++;
    }
    return files;
  };
  REQUIRE(files() == 4);  // two checkpoints, the log, the arrays
  // One too many is there where a run was killed between saving and deleting.
  std::ofstream(f / "run/step_00000001.safetensors") << "old";
  REQUIRE(fingerprint_of(train(f, run)) == expected);
  REQUIRE(files() == 4);
}

namespace {

// What a terminal shows that breaks long lines into rows and, when its width changes, breaks them anew, as most do. Its lines
// are kept whole; the cursor is a place in the last one.
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
  if (child == 0) {
    std::vector<std::string> words = small({"--steps=60", "--data=self", "--batch=64", "--sample-tokens=0"});
    words.insert(words.begin(), "./train");
    std::vector<char*> argv;
    for (std::string& w : words) argv.push_back(w.data());
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
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
  int status = 0;
  waitpid(child, &status, 0);
  close(terminal);
  REQUIRE(WEXITSTATUS(status) == 0);
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
  Folder folder;
  const std::string whole = fingerprint_of(train(folder, small({"--steps=200"})));
  for (int signal_number : {SIGINT, SIGTERM, SIGHUP}) {
    const std::string out = folder / ("run" + std::to_string(signal_number));
    const auto words = small({"--steps=200", "--out=" + out, "--resume", "--save-every=1000"});
    const pid_t child = start(folder, words);
    CHECK(waited_for(child, out + "/log.jsonl", "\"step\":3,"));
    // GNU timeout sends one signal twice, to a program and to its group.
    for (int i = 0; i < 2; i++) kill(child, signal_number), std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const Outcome interrupted = finish(folder, child);
    INFO(interrupted.out << interrupted.err);
    REQUIRE(interrupted.exit_code == 128 + signal_number);
    REQUIRE(contains(interrupted.out, "interrupted after step "));
    REQUIRE(contains(interrupted.out, "--resume goes on bit for bit"));
    REQUIRE(!contains(interrupted.out, "\n200 steps in "));  // as many as ran
    const Outcome rest = train(folder, words);
    REQUIRE(contains(rest.out, "resume: step "));
    REQUIRE(fingerprint_of(rest) == whole);
  }
  fs::remove(folder / "stdout");  // of the run before
  const pid_t child = start(folder, small({"--steps=100000"}));
  CHECK(waited_for(child, folder / "stdout", "step "));
  kill(child, SIGINT);
  const Outcome unsaved = finish(folder, child);
  REQUIRE(unsaved.exit_code == 128 + SIGINT);
  REQUIRE(contains(unsaved.out, "nothing is saved; with --out=FOLDER --resume"));
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
        std::this_thread::sleep_for(std::chrono::milliseconds(1010));
        if (ignored) raise(SIGHUP);
        if (!ignored) raise(SIGINT), _exit(3);
      }
      raise(SIGTERM);
      _exit(4);
    }
    int status = 0;
    waitpid(child, &status, 0);
    REQUIRE(WIFSIGNALED(status));
    REQUIRE(WTERMSIG(status) == (ignored ? SIGTERM : SIGINT));
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
  int status = 0;
  waitpid(child, &status, 0);
  REQUIRE((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

TEST_CASE("cli: outside of the steps a signal ends the program at once", "[cli]") {
  const Folder f;
  const auto ended_by = [&](const std::vector<std::string>& words, const char* file, const char* text) {
    fs::remove(f / file);
    const pid_t child = start(f, words);
    CHECK(waited_for(child, f / file, text));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    kill(child, SIGINT);
    int status = 0;
    for (int i = 0; i < 1000 && waitpid(child, &status, WNOHANG) == 0; i++) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (i == 999) kill(child, SIGKILL), waitpid(child, &status, 0);
    }
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  };
  const std::string out = "--out=" + (f / "run");
  REQUIRE(ended_by(small({out, "--sample-tokens=100000000"}), "stdout", " steps in ") == SIGINT);
  REQUIRE(fs::exists(f / "run/step_00000012.safetensors"));
  f.write("warning", "");
  REQUIRE(ended_by(small({out, "--evaluate", "--val-batches=100000000"}), "warning", "") == SIGINT);
}

TEST_CASE("cli: --evaluate shows what the run showed of its last step, and writes its arrays alone", "[cli]") {
  const Folder f;
  const std::string out = "--out=" + (f / "run");
  require_refused(train(f, small({out, "--evaluate"})), "holds no checkpoint");
  REQUIRE(!fs::exists(f.path / "run"));
  const Outcome run = train(f, small({out, "--attn=g1", "--norm=gated"}));
  REQUIRE(run.exit_code == 0);
  const fs::path arrays = f.path / "run/measures.safetensors";
  const std::string log = contents(f.path / "run/log.jsonl"), of_run = contents(arrays);
  REQUIRE(contains(of_run, "gated.cu measures 1"));
  std::ofstream(arrays) << "something older";
  const Outcome o = train(f, small({out, "--attn=g1", "--norm=gated", "--evaluate"}));
  INFO(run.out << o.out << o.err);
  REQUIRE(o.exit_code == 0);
  const size_t begin = run.out.find("validation loss "), end = run.out.find("\n\n12 steps in");
  REQUIRE((begin != std::string::npos && end != std::string::npos));
  REQUIRE(contains(o.out, run.out.substr(begin, end - begin)));
  REQUIRE(contains(o.out, "step_00000012.safetensors"));
  REQUIRE(!contains(o.out, "steps in"));
  REQUIRE(contents(f.path / "run/log.jsonl") == log);
  REQUIRE(contains(o.out, "\nloss       after token 0: "));
  REQUIRE(contents(arrays) == of_run);
  REQUIRE(std::distance(fs::directory_iterator(f.path / "run"), fs::directory_iterator()) == 3);
  const auto emulated = small({out, "--attn=g1", "--norm=gated", "--evaluate", "--device=emulated"});
  fs::remove(arrays);
  REQUIRE(train(f, emulated).exit_code == 0);
  REQUIRE(contents(arrays) == of_run);
  fs::remove(arrays);
  fs::create_directory(arrays);
  require_refused(train(f, emulated), "measures.safetensors: exists and is not a regular file");
  fs::remove(arrays);

  const auto quantized = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> words = {out, "--attn=g1", "--norm=gated", "--evaluate"};
    words.insert(words.end(), flags.begin(), flags.end());
    const Outcome q = train(f, small(words));
    INFO(q.out << q.err);
    REQUIRE(q.exit_code == 0);
    REQUIRE(q.out.substr(0, o.out.size()) == o.out);  // what full precision shows stays
    return q.out.substr(o.out.size());
  };
  const std::string fp8 = quantized({"--quantize=fp8-w8a8"}), nvfp4 = quantized({"--quantize=nvfp4-w4a4"});
  REQUIRE(std::regex_match(fp8, std::regex("quantized  validation loss \\d\\.\\d{4}, [+-]0\\.\\d{4}\n")));
  REQUIRE(nvfp4 != fp8);
  REQUIRE(quantized({"--quantize=nvfp4-w4a4", "--smoothquant=0.5"}) != nvfp4);
  REQUIRE(quantized({"--quantize=nvfp4-w4a4", "--device=emulated"}) == nvfp4);
  REQUIRE(std::distance(fs::directory_iterator(f.path / "run"), fs::directory_iterator()) == 3);

  const Outcome own =
      train(f, {out, "--evaluate", "--val-batches=2", "--device=cpu"});  // its flags are those of the run
  REQUIRE((own.exit_code == 0 && own.out == o.out.substr(0, own.out.size())));
  require_refused(train(f, small({out, "--evaluate", "--norm=rmsnorm", "--hidden=16"})),
                  "was made with --norm=gated --hidden=32, this run has --norm=rmsnorm --hidden=16");
  require_refused(train(f, small({out, "--evaluate", "--attn=g1", "--norm=gated", "--val-fraction=0"})),
                  "--val-fraction");
}

TEST_CASE(
    "cli: measures in the log name each layer's gradient, and the step of the first outlier, which a resumed run knows",
    "[cli]") {
  const Folder f;
  const auto run = [&](const char* more) {
    return train(f, small({"--out=" + (f / "run"), "--measure-every=4", "--save-every=6", "--layers=2", more}));
  };
  REQUIRE(run("--save-every=6").exit_code == 0);
  const std::regex norms("\"gradient_norm_by_layer\":\\[[0-9.e-]+,[0-9.e-]+\\]");
  const auto entries = [&](const std::regex& key) {
    const std::string log = contents(f.path / "run/log.jsonl");
    return std::distance(std::sregex_iterator(log.begin(), log.end(), key), std::sregex_iterator());
  };
  REQUIRE(entries(norms) == 3);
  REQUIRE(entries(std::regex("\"first_outlier_step\":null")) == 3);
  fs::remove(f / "run/step_00000012.safetensors");
  std::ofstream(f / "run/log.jsonl", std::ios::app) << "{\"step\":5,\"first_outlier_step\":5}\n";
  REQUIRE(run("--resume").exit_code == 0);
  REQUIRE(entries(std::regex("\"first_outlier_step\":null")) == 1);  // of step 4
  REQUIRE(entries(std::regex("\"first_outlier_step\":5,")) == 2);    // of steps 8 and 12
}

TEST_CASE("cli: a run is evaluated in sequences longer than its own, as YaRN reads them too", "[cli]") {
  const Folder f;
  const std::string out = "--out=" + (f / "run");
  REQUIRE(train(f, small({out})).exit_code == 0);
  auto evaluate = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), {out, "--evaluate"});
    const Outcome o = train(f, small(flags));
    INFO(o.err);
    REQUIRE(o.exit_code == 0);
    return o.out.substr(o.out.find("validation loss "), o.out.find("\n\n") - o.out.find("validation loss "));
  };
  const std::string own = evaluate({});
  REQUIRE(!contains(own, "trained"));
  const fs::path arrays = f.path / "run/measures.safetensors";
  const std::string of_run = contents(arrays);
  REQUIRE(evaluate({"--steps=99", "--lr=0.5", "--micro-batches=3"}) == own);  // what training alone needs
  REQUIRE(contents(arrays) == of_run);                                        // the flags in it are the run's
  const std::string longer = evaluate({"--context=96", "--batch=2"});
  REQUIRE(contains(longer, " in sequences of 96 tokens; trained with 32"));
  const std::string stretched = evaluate({"--context=96", "--batch=2", "--yarn=3"});
  REQUIRE(contains(stretched, " in sequences of 96 tokens; trained with 32, YaRN 3"));
  REQUIRE(stretched.substr(0, 22) != longer.substr(0, 22));  // another loss
  REQUIRE(contents(arrays) == of_run);
  REQUIRE(contains(contents(f.path / "run/measures.96.safetensors"), "\"context\":\"96\""));
  REQUIRE(!contains(contents(f.path / "run/measures.96.safetensors"), "\"yarn\""));
  REQUIRE(contains(contents(f.path / "run/measures.96.yarn3.safetensors"), "\"yarn\":\"3\""));
  require_refused(train(f, small({out, "--evaluate", "--context=96", "--hidden=16"})), "--hidden=32");
  require_refused(train(f, small({out, "--resume", "--context=96"})), "--context=32");

  const std::string learned = "--out=" + (f / "learned");
  REQUIRE(train(f, small({learned, "--position=learned"})).exit_code == 0);
  require_refused(train(f, small({learned, "--position=learned", "--evaluate", "--context=96"})),
                  "learned 32 positions and knows no others: take --context=32");
}

TEST_CASE("cli: --probe=retrieval asks a run, alike on cpu and emulated, and needs the language that it learned",
          "[cli]") {
  const Folder f;
  const std::vector<std::string> run = {"--data=recall", "--context=8", "--out=" + (f / "run")};
  auto more = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), run.begin(), run.end());
    return small(flags);
  };
  REQUIRE(train(f, more({})).exit_code == 0);
  auto table = [&](const std::string& device, const std::string& context) {
    const Outcome o = train(f, more({"--evaluate", "--probe=retrieval", context, device, "--yarn=2"}));
    INFO(o.err);
    REQUIRE(o.exit_code == 0);
    return o.out.substr(o.out.find("retrieval  "));
  };
  const std::string on_cpu = table("--device=cpu", "--context=12");
  REQUIRE(std::count(on_cpu.begin(), on_cpu.end(), '\n') == 4);  // two lines of heading, 8 and 12 tokens
  REQUIRE(contains(on_cpu, "\n                8 "));
  REQUIRE(contains(on_cpu, "\n               12 "));
  REQUIRE(on_cpu == table("--device=emulated", "--context=12"));
  require_refused(train(f, more({"--evaluate", "--probe=retrieval", "--context=2"})), "--context=2");
  require_refused(train(f, more({"--evaluate", "--probe=retrieval", "--data=bigram-backcopy"})), "--data=recall");
}

TEST_CASE("cli: a run whose validation is no number has diverged", "[cli]") {
  const Folder f;
  const Outcome o = train(
      f, {"--data=bigram-backcopy", "--steps=1", "--lr=1000", "--min-lr=1000", "--warmup=0", "--norm=none",
          "--ffn=relu2", "--layers=8", "--qk-norm=off", "--device=cpu", "--val-batches=1", "--out=" + (f / "run")});
  require_refused(o, "step 1: the validation loss is");
  REQUIRE(contains(o.err, "lower --lr; the checkpoint of step 1 is saved"));
}

TEST_CASE("cli: a run with a decay of its own can be made longer, one with a cosine is told why not", "[cli]") {
  const Folder f;
  const auto run = [&](const char* name, const char* steps, const std::vector<std::string>& flags) {
    std::vector<std::string> words = {"--out=" + (f / name), steps, "--schedule=wsd", "--decay=4", "--keep=1"};
    words.insert(words.end(), flags.begin(), flags.end());
    const Outcome o = train(f, small(words));
    INFO(o.out << o.err);
    REQUIRE(o.exit_code == 0);
    return o;
  };
  const auto is_there = [&](const char* step) { return fs::exists(f.path / "a" / step); };
  run("a", "--steps=12", {"--save-every=5"});
  REQUIRE((is_there("step_00000008.safetensors") && is_there("step_00000012.safetensors")));  // 8: before the decay
  f.run("mv a/log.jsonl kept; ln -s ../kept a/log.jsonl");
  const Outcome longer = run("a", "--steps=20", {"--resume", "--save-every=7"});
  REQUIRE((fs::is_symlink(f.path / "a/log.jsonl") && contains(contents(f / "kept"), "{\"step\":20,\"loss\"")));
  REQUIRE(contains(longer.out, "resume: step 8 of"));
  REQUIRE(fingerprint_of(longer) == fingerprint_of(run("b", "--steps=20", {})));
  REQUIRE((is_there("step_00000016.safetensors") && !is_there("step_00000008.safetensors")));

  const std::string cosine = "--out=" + (f / "cosine");
  REQUIRE(train(f, small({cosine})).exit_code == 0);
  require_refused(train(f, small({cosine, "--resume", "--steps=20"})), "--schedule=wsd can be made longer");
  require_refused(train(f, small({"--out=" + (f / "a"), "--schedule=wsd", "--resume", "--steps=30", "--lr=0.001"})),
                  "keep the rates of the steps that are done");
}

TEST_CASE("cli: a checkpoint of another run, a corrupt one, a truncated one", "[cli]") {
  const Folder f;
  const std::string out = "--out=" + (f / "run");
  REQUIRE(train(f, small({out, "--save-every=6"})).exit_code == 0);
  require_refused(train(f, small({out, "--resume", "--norm=gated"})), "--norm=rmsnorm");
  require_refused(train(f, small({out, "--resume", "--seed=9"})), "--seed");
  require_refused(train(f, small({out, "--resume", "--mixer=gated-delta"})),
                  "--mixer=attention, this run has --mixer=gated-delta");
  require_refused(train(f, small({out, "--resume", "--mixer=hybrid"})),
                  "--mixer=attention --attention-every=4, this run has --mixer=hybrid");

  const fs::path newest = f.path / "run/step_00000012.safetensors", older = f.path / "run/step_00000006.safetensors";
  REQUIRE(fs::exists(newest));
  REQUIRE(fs::exists(older));
  std::string bytes = contents(newest);
  bytes[bytes.size() - 5] ^= 4;
  std::ofstream(newest, std::ios::binary) << bytes;
  const Outcome fallback = train(f, small({out, "--resume"}));  // the one before it serves
  REQUIRE(fallback.exit_code == 0);
  REQUIRE(contains(fallback.err, "checksum"));
  REQUIRE(contains(fallback.out, "resume: step 6"));

  fs::resize_file(newest, 100);
  std::ofstream(older) << "not a checkpoint";
  const Outcome lost = train(f, small({out, "--resume"}));
  REQUIRE(lost.exit_code == 1);
  REQUIRE(contains(lost.err, "error: "));
}

TEST_CASE("cli: --resume asks what the data is, not where it lies", "[cli]") {
  const Folder f;
  auto text = [&](const std::string& name, char changed) {
    std::string bytes;
    for (int i = 0; i < 1000; i++) bytes += "the same sentence again, ";
    bytes[100] = changed;
    std::ofstream(f / name) << bytes;
    return f / name;
  };
  const std::string out = "--out=" + (f / "run"), first = text("first.txt", 'x');
  auto run = [&](const std::string& data, std::vector<std::string> more = {}) {
    std::vector<std::string> words = small({out, "--resume", "--data=" + data});
    words.insert(words.end(), more.begin(), more.end());
    return train(f, words);
  };
  REQUIRE(run(first).exit_code == 0);
  fs::create_directory(f / "elsewhere");
  const Outcome copy = run(text("elsewhere/copy.txt", 'x'));
  REQUIRE(copy.exit_code == 0);
  REQUIRE(contains(copy.out, "resume: step 12"));
  require_refused(run(text("other.txt", 'y')), "was made with other data than --data=" + (f / "other.txt") + " holds");
  require_refused(run(first, {"--val-fraction=0.2"}), "was made with other data");
  REQUIRE(run(first, {"--val-data=" + first}).exit_code == 1);

  // Validation data of its own has a hash of its own.
  const std::string own = "--out=" + (f / "own");
  auto validated = [&](const std::string& val) { return run(first, {own, "--val-data=" + val}); };
  REQUIRE(validated(first).exit_code == 0);
  REQUIRE(validated(f / "elsewhere/copy.txt").exit_code == 0);
  require_refused(validated(f / "other.txt"), "was made with other data than --val-data=");
}

TEST_CASE("cli: a full disk loses no checkpoint", "[cli]") {
  const Folder f;
  const auto run = [&](const std::string& keep) {
    return small({"--out=" + (f / "run"), "--steps=9", "--save-every=3", "--keep=" + keep, "--resume"});
  };
  REQUIRE(train(f, run("0")).exit_code == 0);
  const auto content = [&](const char* name) { return contents(f.path / "run" / name); };
  const std::string before = content("step_00000003.safetensors"), arrays = content("measures.safetensors");
  REQUIRE(!before.empty());
  REQUIRE(arrays.size() > 4096);
  // A limit on file size stands in for a disk that fills up while a file is written.
  const auto limit = [] {
    const rlimit small_files = {4096, 4096};
    setrlimit(RLIMIT_FSIZE, &small_files);
    signal(SIGXFSZ, SIG_IGN);
  };
  fs::remove(f / "run/step_00000009.safetensors");
  require_refused(train(f, run("0"), limit), "step_00000009");
  fs::remove(f / "run/step_00000006.safetensors");
  require_refused(train(f, run("1"), limit), "step_00000006");
  REQUIRE(content("step_00000003.safetensors") == before);
  REQUIRE(content("measures.safetensors") == arrays);
  // Nor do arrays that cannot be written.
  const fs::path in_the_way = f.path / "run/measures.safetensors";
  fs::remove(in_the_way);
  fs::create_directory(in_the_way);
  require_refused(train(f, run("0")),
                  "measures.safetensors: exists and is not a regular file: cannot replace it; the "
                  "checkpoint of step 9 is saved: --evaluate looks at it again");
  REQUIRE(fs::exists(f / "run/step_00000009.safetensors"));
  fs::remove(in_the_way);
  REQUIRE(train(f, small({"--out=" + (f / "run"), "--evaluate"})).exit_code == 0);
  REQUIRE(content("measures.safetensors") == arrays);
  // Nor does a new run in the folder of another.
  require_refused(train(f, small({"--out=" + (f / "run"), "--steps=9", "--seed=3"})), "--resume");
  REQUIRE(content("step_00000003.safetensors") == before);
}

TEST_CASE("cli: two runs do not share a folder", "[cli]") {
  const Folder f;
  Folder g = f;
  fs::create_directory(g.path /= "second");
  const auto run = small({"--out=" + (f / "run"), "--steps=100000", "--resume"});
  const pid_t first = start(f, run);
  CHECK(waited_for(first, f / "run/log.jsonl", "\"step\":3,"));
  const Outcome second = train(g, small({"--out=" + (f / "run"), "--resume"}));
  CHECK(waited_for(first, f / "run/log.jsonl", "\"step\":50,"));
  kill(first, SIGTERM);
  REQUIRE(finish(f, first).exit_code == 128 + SIGTERM);
  require_refused(second, "--out=" + (f / "run") + ": another run that has not ended writes there");
  REQUIRE(contains(contents(f / "run/log.jsonl"), "{\"step\":1,"));
}

TEST_CASE("cli: a log that cannot be written stops nothing, and loses no line where the disk has room again", "[cli]") {
  const Folder f;
  const std::string log = f / "run/log.jsonl";
  const auto run = small({"--out=" + (f / "run"), "--steps=100000", "--save-every=3", "--resume"});
  const pid_t first = start(f, run);
  CHECK(waited_for(first, f / "run/step_00000003.safetensors", "gated.format"));
  kill(first, SIGINT);
  REQUIRE(finish(f, first).exit_code == 128 + SIGINT);
  // Lines that a resumed run keeps make the log larger than a checkpoint. A limit on file size then stops the log alone, in
  // the middle of a line.
  std::ofstream lines(log, std::ios::app);
  for (int i = 0; i < 30000; i++) lines << "{\"step\":1,\"validation_loss\":1.0}\n";
  lines.close();
  const rlim_t size = fs::file_size(log) + 200;
  for (const auto& entry : fs::directory_iterator(f / "run"))
    if (entry.path().extension() == ".safetensors") REQUIRE(size > entry.file_size());
  const pid_t child = start(f, run, [&] {
    const rlimit limit = {size, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &limit);
  });
  CHECK(waited_for(child, f / "stderr", "warning: "));
  REQUIRE(fs::file_size(log) == size);
  const rlimit none = {RLIM_INFINITY, RLIM_INFINITY};
  REQUIRE(prlimit(child, RLIMIT_FSIZE, &none, nullptr) == 0);
  for (int i = 0; i < 6000 && fs::file_size(log) == size; i++)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  kill(child, SIGTERM);
  const Outcome o = finish(f, child);
  INFO(o.out << o.err);
  REQUIRE(o.exit_code == 128 + SIGTERM);
  REQUIRE(contains(o.err, "run/log.jsonl: cannot write: File too large: its last "));
  std::ifstream written(log);
  size_t steps = 0;
  for (std::string line; std::getline(written, line);)
    if (contains(line, "\"gradient_norm\"")) REQUIRE(contains(line, format("{\"step\":%zu,", ++steps)));
  REQUIRE(fs::exists(f / checkpoint_name(steps).insert(0, "run/")));
}

// ---- outputs that fail, and data that goes away

TEST_CASE("cli: what cannot be printed is no success, and loses no checkpoint", "[cli]") {
  const Folder f;
  const std::string out = "--out=" + (f / "run");
  const auto to = [](const char* path) { return [path] { freopen(path, "w", stdout); }; };
  const std::string refusal =
      "error: standard output: not all of it could be written: make room there, or send it elsewhere\n";
  const auto closed = [] { close(STDOUT_FILENO); };
  const Outcome trained = train(f, small({out}), to("/dev/full"));
  INFO(trained.err);
  REQUIRE((trained.exit_code == 1 && trained.err == refusal));
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"--help"},
           {"--flag-map"},
           {"--describe"},
           {"--from=" + (f / "run"), "--describe"},
           {"--from=" + (f / "run"), "--export=" + (f / "exported")},
           {"--generate", out, "--device=cpu", "--prompt-tokens=1", "--tokens=5"},
           {"--generate", out, "--device=cpu", "--prompt-tokens=1", "--tokens=5", "--samples=2"},
           small({out, "--evaluate"})}) {
    INFO(words[0] << " " << words.back());
    for (const auto& prepare : {std::function<void()>(to("/dev/full")), std::function<void()>(closed)}) {
      fs::remove_all(f / "exported");
      const Outcome o = train(f, words, prepare);
      INFO(o.err);
      REQUIRE(o.exit_code == 1);
      REQUIRE(o.err.ends_with(refusal));
    }
  }
  // Nor does a file that is opened take the place of an output that is closed.
  const Outcome deaf = train(f, small({"--out=" + (f / "deaf")}), [] { close(STDOUT_FILENO), close(STDERR_FILENO); });
  REQUIRE(deaf.exit_code == 1);
  for (const char* name : {"log.jsonl", "step_00000012.safetensors", "measures.safetensors"}) {
    INFO(name);
    REQUIRE(!contains(contents(f / (std::string("deaf/") + name)), "fingerprint of the weights"));
  }
  REQUIRE(train(f, small({"--out=" + (f / "deaf"), "--resume"})).exit_code == 0);
}

TEST_CASE("cli: a run whose output nobody reads any more saves, and ends as by SIGPIPE", "[cli]") {
  const Folder f;
  const std::vector<std::string> run = small({"--out=" + (f / "run"), "--steps=200", "--save-every=1000", "--resume"});
  const std::string whole = fingerprint_of(train(f, small({"--steps=200"})));
  const auto ended_early = [&](std::vector<std::string> words) {
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    const pid_t child = start(f, std::move(words), [&] {
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
  const Outcome o = ended_early(run);
  INFO(o.err);
  REQUIRE(o.exit_code == 128 + SIGPIPE);
  REQUIRE(contains(o.err, "interrupted after step "));
  REQUIRE(!list_checkpoints(f / "run").empty());
  const Outcome rest = train(f, run);
  REQUIRE(contains(rest.out, "resume: step "));
  REQUIRE(fingerprint_of(rest) == whole);
  // There is nothing to save here.
  const Outcome help = ended_early({"--help"});
  REQUIRE(help.err == "");
}

TEST_CASE("cli: a shard that is cut short while a run reads it ends the run, behind a checkpoint", "[cli]") {
  const Folder f;
  std::vector<int32_t> header(256);
  const std::vector<uint16_t> tokens(400000, 7);
  header[0] = 20240520, header[1] = 1, header[2] = int32_t(tokens.size());
  std::string shard(reinterpret_cast<const char*>(header.data()), 1024);
  shard.append(reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size());
  const std::string path = f / "x.bin";
  for (const char* data : {"--val-every=0", "--val-data"}) {
    f.write("x.bin", shard);
    f.write("v.bin", shard);
    const bool validates = contains(data, "val-data");
    const std::string out = f / data;
    std::vector<std::string> run =
        small({"--vocab=64", "--steps=100000", "--save-every=100000", "--out=" + out, "--resume", "--val-every=5"});
    run.push_back("--data=" + (validates ? f / "v.bin" : path));
    if (validates) run.push_back("--val-data=" + path);
    const pid_t child = start(f, run);
    CHECK(waited_for(child, out + "/log.jsonl", "\"step\":6,"));
    fs::resize_file(path, 1025);
    const Outcome o = finish(f, child);
    INFO(o.out << o.err);
    require_refused(o, path + ": ends at byte 1025, expected more, to byte ");
    const auto saved = list_checkpoints(out);
    REQUIRE(saved.size() == 1);
    REQUIRE(saved.begin()->first >= 6);
    REQUIRE(contains(o.err, format("; the checkpoint of step %zu is saved: ", saved.begin()->first)));
    REQUIRE(contains(contents(out + "/log.jsonl"), format("{\"step\":%zu,\"loss\"", saved.begin()->first)));
  }
}

TEST_CASE("cli: a stack too small for threads is made larger, or refused where it may not be", "[cli]") {
  const Folder f;
  const auto limited = [](rlim_t most) {
    return [most] {
      clearenv();  // it stands on the stack too, before a program begins
      const rlimit limit = {16 * 1024, most};
      setrlimit(RLIMIT_STACK, &limit);
    };
  };
  const std::vector<std::string> few = {"--steps=2", "--warmup=1", "--sample-tokens=0", "--val-batches=1"};
  const std::string expected = fingerprint_of(train(f, small(few)));
  for (const char* more : {"--threads=1", "--threads=2", "--device=emulated"}) {
    std::vector<std::string> words = small(few);
    words.push_back(more);
    const Outcome o = train(f, words, limited(RLIM_INFINITY));
    INFO(more << ": " << o.err);
    REQUIRE(fingerprint_of(o) == expected);
    require_refused(train(f, words, limited(16 * 1024)),
                    "the limit of the stack is below 256 KiB, and may not be raised: ulimit -s 8192");
  }
}

TEST_CASE("cli: more shards than a process may open files at first", "[cli]") {
  const Folder f;
  std::vector<int32_t> header(256);
  header[0] = 20240520, header[1] = 1, header[2] = 200;
  const std::vector<uint16_t> tokens(200, 7);
  for (int i = 0; i < 100; i++)
    f.write(format("s%d.bin", i), std::string(reinterpret_cast<const char*>(header.data()), 1024) +
                                      std::string(reinterpret_cast<const char*>(tokens.data()), 400));
  const Outcome o = train(f, small({"--data=" + (f / "s*.bin"), "--vocab=64"}), [] {
    rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 40;
    setrlimit(RLIMIT_NOFILE, &limit);
  });
  INFO(o.err);
  REQUIRE(o.exit_code == 0);
}

TEST_CASE("cli: a log or a checkpoint that cannot be read is not replaced, and a log that is no file makes nobody wait",
          "[cli]") {
  const Folder f;
  const std::string log = f / "run/log.jsonl";
  const auto run = [&](const char* more) {
    return small({"--out=" + (f / "run"), "--save-every=6", "--keep=1", more});
  };
  REQUIRE(train(f, run("--keep=0")).exit_code == 0);
  fs::remove(f / "run/step_00000012.safetensors");
  const std::string lines = contents(log);
  const auto bound_by_permissions = [] {  // root too
    for (const int capability : {CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH}) prctl(PR_CAPBSET_DROP, capability);
  };
  const std::string newest = f / "run/step_00000006.safetensors", older = f / "run/step_00000003.safetensors";
  fs::copy_file(newest, older);
  REQUIRE(chmod(log.c_str(), 0) == 0);
  require_refused(train(f, run("--resume"), bound_by_permissions), "run/log.jsonl: cannot open: Permission denied");
  REQUIRE(fs::exists(older));  // a start that is refused deletes nothing
  REQUIRE(chmod(newest.c_str(), 0) == 0);
  require_refused(train(f, run("--resume"), bound_by_permissions),
                  "step_00000006.safetensors: cannot open: Permission denied: it may be good");
  REQUIRE(chmod(newest.c_str(), 0600) == 0);
  REQUIRE(chmod(log.c_str(), 0600) == 0);
  REQUIRE(contents(log) == lines);

  const auto alarmed = [] { alarm(60); };
  fs::rename(log, f / "log");
  for (const char* command : {"mkfifo run/log.jsonl", "mkdir run/log.jsonl", "ln -s /dev/null run/log.jsonl"}) {
    f.run(std::string("rm -rf run/log.jsonl; ") + command);
    require_refused(train(f, run("--resume"), alarmed), "run/log.jsonl: not a regular file");
  }
  fs::remove(log);
  fs::create_symlink("nowhere", log);
  require_refused(train(f, run("--resume"), alarmed), "run/log.jsonl: cannot open: No such file");
  fs::rename(f / "log", log);
  REQUIRE(train(f, run("--resume")).exit_code == 0);
  const std::string resumed = contents(log);
  REQUIRE(std::count(resumed.begin(), resumed.end(), '\n') == std::count(lines.begin(), lines.end(), '\n'));
}

TEST_CASE("cli: an export that is interrupted leaves nothing, of one that is killed the next leaves nothing", "[cli]") {
  const Folder f;
  const std::string run = f / "run";
  std::vector<std::string> words =
      small({"--steps=1", "--warmup=1", "--sample-tokens=0", "--val-batches=1", "--out=" + run});
  for (const char* large : {"--hidden=1024", "--ffn-hidden=4096", "--layers=6"}) words.push_back(large);
  REQUIRE(train(f, words).exit_code == 0);
  for (const int signal_number : {SIGTERM, SIGINT, SIGKILL}) {
    const pid_t child = start(f, {"--from=" + run, "--export=" + (f / "model")});
    const std::string unfinished = f / ("model.tmp." + std::to_string(child));
    for (int i = 0; i < 60000 && !fs::exists(unfinished + "/model.safetensors.tmp." + std::to_string(child)); i++)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    kill(child, signal_number);
    const Outcome o = finish(f, child);
    INFO(o.err);
    REQUIRE(o.exit_code == 128 + signal_number);
    REQUIRE(!fs::exists(f / "model"));
    REQUIRE(fs::exists(unfinished) == (signal_number == SIGKILL));
    if (signal_number == SIGKILL) break;
    REQUIRE(o.err == "error: --export=" + (f / "model") + ": interrupted: nothing is written\n");
  }
  REQUIRE(train(f, {"--from=" + run, "--export=" + (f / "model")}).exit_code == 0);
  REQUIRE(f.run("ls").text == "model\nrun\nstderr\nstdout\n");
}

TEST_CASE("cli: bad input is one clear line and no crash", "[cli]") {
  const Folder f;
  auto data = [&](const std::string& value) {
    return train(f, {"--device=cpu", "--data=" + value, "--steps=2", "--warmup=1"});
  };
  auto file = [&](const std::string& name, const std::string& bytes) {
    std::ofstream(f / name, std::ios::binary) << bytes;
    return f / name;
  };
  require_refused(train(f, {"--nomr=gated"}), "--nomr");
  require_refused(train(f, {"--norm=batch"}), "--norm=batch");
  require_refused(train(f, {"--layers=-3"}), "--layers");
  require_refused(train(f, {"--gate=headwise"}), "--attn=g1");
  require_refused(train(f, {"--heads=6", "--kv-heads=4"}), "--kv-heads");
  require_refused(data(f / "missing.txt"), "missing.txt");
  // A name need not be UTF-8, but what a checkpoint remembers must be.
  const std::string latin = "--data=" + file("caf\xe9.txt", std::string(20000, 'x'));
  REQUIRE(train(f, small({latin})).exit_code == 0);
  const Outcome unnamed = train(f, small({latin, "--out=" + (f / "latin")}));
  require_refused(unnamed, "caf\\ufffd.txt\": is not UTF-8");
  REQUIRE(contains(unnamed.err, "error: --data=\""));
  REQUIRE(!contains(unnamed.out, "step "));
  require_refused(data(file("empty.txt", "")), "empty.txt");
  require_refused(data(file("junk.txt", std::string("\0\1\2junk", 8))), "junk.txt");
  require_refused(data(file("short.txt", "too short")), "");
  require_refused(data(file("magic.bin", std::string(4096, 'x'))), "magic.bin");
  require_refused(data(file("truncated.bin", "abc")), "truncated.bin");

  // A shard in llm.c's format, then one in which some tokens are outside the vocabulary: every batch meets one.
  std::vector<int32_t> header(256);
  header[0] = 20240520, header[1] = 1, header[2] = 4000;
  std::string shard(reinterpret_cast<char*>(header.data()), 1024);
  std::vector<uint16_t> tokens(4000, 7);
  shard.append(reinterpret_cast<char*>(tokens.data()), 8000);
  const auto on_shard = [&](const std::string& path) {
    return train(f, small({"--data=" + path, "--vocab=100", "--steps=2", "--warmup=1"}));
  };
  REQUIRE(on_shard(file("good.bin", shard)).exit_code == 0);
  for (size_t i = 2; i < tokens.size(); i += 8) tokens[i] = 100;
  shard.resize(1024);
  shard.append(reinterpret_cast<char*>(tokens.data()), 8000);
  require_refused(on_shard(file("token.bin", shard)), "100");

  require_refused(train(f, {"--hidden=1000000000000"}), "");
  require_refused(train(f, {"--batch=1000000000000", "--context=1000000000"}), "");
  require_refused(train(f, {"--device=cpu", "--hidden=1000000", "--ffn-hidden=1000000"}), "memory");
  require_refused(train(f, small({"--out=/proc/no/such/folder"})), "/proc/no");
  require_refused(train(f, small({"--lr=1e3", "--min-lr=0", "--clip=1e30", "--steps=40"})), "diverged");
}
