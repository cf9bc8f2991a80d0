// child: what a process of its own ends with.
#pragma once
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "tests/catch.h"

namespace gated {

// Its exit code, or minus the signal that ended it; what it said on stderr.
struct Child {
  int status;
  std::string said;
};
inline Child in_child(const std::function<void()>& body) {
  FILE* const said = tmpfile();
  REQUIRE(said);
  fflush(nullptr);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    dup2(fileno(said), STDERR_FILENO);
    body();
    exit(0);
  }
  int status;
  REQUIRE(waitpid(child, &status, 0) == child);
  std::string text(size_t(lseek(fileno(said), 0, SEEK_END)), '\0');
  REQUIRE(pread(fileno(said), text.data(), text.size(), 0) == ssize_t(text.size()));
  fclose(said);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), text};
}

}  // namespace gated
