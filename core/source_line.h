// source_line: which line of the source an address of the program comes from, for reports of the emulator.
#pragma once
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "core/check.h"

namespace gated {

// A file by its path in the folder that the program runs in, wherever it was compiled: what stands in front of a path
// that is there is taken away. Others stay as they are.
inline std::string path_here(const std::string& line) {
  const std::string file = line.substr(0, line.find(':'));
  for (size_t slash = file.find('/'); slash != file.npos; slash = file.find('/', slash + 1))
    if (access(file.c_str() + slash + 1, R_OK) == 0) return line.substr(slash + 1);
  return line;
}

// "kernels/f.cuh:12", and after it, where that was inlined, the line that it was inlined into, and so on. By addr2line;
// without it, the address in the program or the shared library.
inline std::vector<std::string> source_lines(const void* address) {
  Dl_info info;
  char program[4096] = {}, text[4096];
  if (!dladdr(address, &info) || readlink("/proc/self/exe", program, sizeof program - 1) < 0) return {"?"};
  const bool in_library = strstr(info.dli_fname, ".so");
  const size_t offset = static_cast<const char*>(address) - static_cast<const char*>(info.dli_fbase);
  std::vector<std::string> lines;
  if (FILE* p =
          popen(format("addr2line -i -e '%s' 0x%zx 2>/dev/null", in_library ? info.dli_fname : program, offset).c_str(),
                "r")) {
    while (fgets(text, sizeof text, p)) {
      text[strcspn(text, " \n")] = 0;
      if (text[0] && text[0] != '?') lines.push_back(path_here(text));
    }
    pclose(p);
  }
  if (lines.empty()) lines.push_back(format("address 0x%zx", offset));
  return lines;
}

}  // namespace gated
