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
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  fflush(nullptr);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    body();
    exit(0);
  }
  close(ends[1]);
  Child ended{};
  char some[4096];
  for (ssize_t n; (n = read(ends[0], some, sizeof some)) > 0;) ended.said.append(some, size_t(n));
  close(ends[0]);
  int status;
  REQUIRE(waitpid(child, &status, 0) == child);
  ended.status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return ended;
}

}  // namespace gated
