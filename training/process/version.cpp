#include "training/process/version.h"

#include <fstream>

#include "core/check.h"

// make gives these to this file of the half that g++ compiles, and to no other: a commit compiles nothing else again.
#ifndef GATED_VERSION
#define GATED_VERSION "unknown"
#define GATED_COMMIT "unknown"
#endif

namespace gated {

std::map<std::string, std::string> program_version() {
#ifdef __clang__
  const char* const compiler = "clang++ " __clang_version__;
#else
  const char* const compiler = "g++ " __VERSION__;
#endif
  return {{"version", GATED_VERSION}, {"commit", GATED_COMMIT}, {"compiler", compiler}};
}

std::string version_text() {
  const auto v = program_version();
  return format("gated.cu %s\ncommit   %s\ncompiler %s\n", v.at("version").c_str(), v.at("commit").c_str(),
                v.at("compiler").c_str());
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(line.find(": ") + 2);
  return "unknown";
}

}  // namespace gated
