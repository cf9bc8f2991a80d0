// script: runs what stands in scripts/ as a user would, in a folder of its own, and keeps what was said.
#pragma once
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "core/check.h"
#include "tests/contents.h"

namespace gated {

namespace fs = std::filesystem;

struct Said {
  int exit_code;  // 128 + n where signal n ended it
  std::string text;
  std::string err = "";  // what was said on stderr, where that is not in the text
};

inline int exit_code_of(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// What was said, of what ended so.
inline Said ended(Said said, int exit_code = 0) {
  INFO(said.text << said.err);
  REQUIRE(said.exit_code == exit_code);
  return said;
}

// A folder of its own for each test case, in which commands run; {repo} in a command is this repository, and {build}
// the folder of the build that this test is of.
struct Folder {
  static inline int made = 0;
  fs::path path = fs::temp_directory_path() / format("scripts.%d.%d", getpid(), made++);
  Folder() {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~Folder() { fs::remove_all(path); }
  std::string operator/(const std::string& name) const { return (path / name).string(); }

  // The path of what is written.
  std::string write(const std::string& name, const std::string& text) const {
    fs::create_directories((path / name).parent_path());
    std::ofstream(path / name, std::ios::binary) << text;
    return *this / name;
  }
  void program(const std::string& name, const std::string& lines) const {
    write(name, "#!/bin/sh\n" + lines + "\n");
    fs::permissions(path / name, fs::perms::owner_all);
  }
  std::set<std::string> names() const {
    std::set<std::string> all;
    for (const auto& entry : fs::directory_iterator(path)) all.insert(entry.path().filename().string());
    return all;
  }
  std::string read(const std::string& name) const { return contents(path / name); }
  Said run(std::string command) const {
    command = replaced(command, "\\{repo\\}", fs::current_path());
    command = replaced(command, "\\{build\\}", fs::read_symlink("/proc/self/exe").parent_path().parent_path());
    FILE* p = popen(format("cd '%s' && { %s; } 2>&1", path.c_str(), command.c_str()).c_str(), "r");
    Said said;
    for (int c; (c = fgetc(p)) != EOF;) said.text += char(c);
    said.exit_code = exit_code_of(pclose(p));
    return said;
  }
  // What a command says that ends well.
  std::string done(const std::string& command) const { return ended(run(command)).text; }
  // The same of a script of Python, which may import what stands in scripts/.
  std::string python(const std::string& lines) const {
    write("check.py", lines);
    return done("PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={repo}/scripts python3 check.py");
  }
};

// Of the weights, as ./train says it last.
inline std::string fingerprint_of(const Said& said) {
  const auto found = matches(said.text, "fingerprint of the weights: ([0-9a-f]{16})");
  return found.empty() ? "none: " + said.text + said.err : found[0][1];
}

inline bool answers(const std::string& command) {
  return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

// Leaves a test case whose tool is not there.
#define NEEDS(command, tool, looks_at)                        \
  if (!answers(command)) {                                    \
    WARN("no " tool " here: " looks_at " was not looked at"); \
    return;                                                   \
  }

// A folder in which a script of Python runs.
#define WITH_PYTHON(f, looks_at)                  \
  NEEDS("python3 --version", "python3", looks_at) \
  const Folder f

// The model of tests that run the program: a run of a second or two.
const std::string small_run_flags =
    "--device=cpu --layers=1 --hidden=32 --heads=2 --kv-heads=1 --head-dim=16 --ffn-hidden=48 --batch=4 ";

// The last line that is said is "error: ...", and names the thing.
inline void require_refused(const Said& said, const std::string& named) {
  INFO(said.text);
  const size_t error = said.text.find("error: ");
  REQUIRE(said.exit_code == 1);
  REQUIRE(error != std::string::npos);
  REQUIRE(contains(said.text.substr(error), named));
  REQUIRE(count(said.text.substr(error), "\n") == 1);
}
// Nothing else is said.
inline void require_refused_at_once(const Said& said, const std::string& named) {
  require_refused(said, named);
  REQUIRE(said.text.starts_with("error: "));
}

}  // namespace gated
