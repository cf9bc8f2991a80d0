// The program's name: which version, of which commit, made by which compiler.
#pragma once
#include <string>

namespace gated {

// A line each: the version, the commit ("unknown" where it was not built in a repository), the compiler.
std::string version_text();

}  // namespace gated
