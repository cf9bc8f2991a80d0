// version: which program this is: its version, of which commit, made by which compiler; and on which CPU it runs.
#pragma once
#include <map>
#include <string>

namespace gated {

// "version", "commit" ("unknown" where it was not built in a repository), "compiler".
std::map<std::string, std::string> program_version();

// The same, a line each.
std::string version_text();

// As /proc/cpuinfo calls it.
std::string cpu_model();

}  // namespace gated
