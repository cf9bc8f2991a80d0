#include "training/process/version.h"

#include "core/check.h"

// make gives these to this file of the half that g++ compiles, and to no other: a commit compiles nothing else again.
#ifndef GATED_VERSION
#define GATED_VERSION "unknown"
#define GATED_COMMIT "unknown"
#endif

namespace gated {

std::string version_text() {
#ifdef __clang__
  const char* const compiler = "clang++ " __clang_version__;
#else
  const char* const compiler = "g++ " __VERSION__;
#endif
  return format("gated.cu %s\ncommit   %s\ncompiler %s\n", GATED_VERSION, GATED_COMMIT, compiler);
}

}  // namespace gated
