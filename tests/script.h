// script: runs what stands in scripts/ as a user would, in a folder of its own, and keeps what was said.
#pragma once
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/check.h"
#include "tests/catch.h"
#include "tests/contents.h"

namespace gated {

namespace fs = std::filesystem;

struct Said {
  int exit_code;
  std::string text;
};

// A folder of its own for each test case, in which commands run; {repo} in a command is this repository.
struct Folder {
  fs::path path = fs::temp_directory_path() / ("scripts." + std::to_string(getpid()));
  Folder() {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~Folder() { fs::remove_all(path); }
  std::string operator/(const std::string& name) const { return (path / name).string(); }

  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((path / name).parent_path());
    std::ofstream(path / name, std::ios::binary) << text;
  }
  void program(const std::string& name, const std::string& lines) const {
    write(name, "#!/bin/sh\n" + lines + "\n");
    fs::permissions(path / name, fs::perms::owner_all);
  }
  std::string read(const std::string& name) const { return contents(path / name); }
  Said run(std::string command) const {
    for (size_t at; (at = command.find("{repo}")) != std::string::npos;)
      command.replace(at, 6, fs::current_path().string());
    FILE* p = popen(format("cd '%s' && { %s; } 2>&1", path.c_str(), command.c_str()).c_str(), "r");
    Said said;
    for (int c; (c = fgetc(p)) != EOF;) said.text += char(c);
    said.exit_code = WEXITSTATUS(pclose(p));
    return said;
  }
};

inline bool answers(const std::string& command) {
  return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) n++;
  return n;
}

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
