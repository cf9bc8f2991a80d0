// ptx_kernels: kernels that a test writes in PTX, translated by ptx/translate.py and run by ptx/machine.cpp. Needs no
// nvcc.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "ptx/machine.h"
#include "tests/environment.h"
#include "tests/script.h"

namespace ptx_test {

using gated::contains, gated::Environment, gated::Folder, gated::says;
using Word = uint64_t;

// ---- kernels: their PTX is gathered before the first of them runs, and translated at once

inline const std::string head = R"(.version 9.0
.target sm_90
.address_size 64
.file 1 "/home/x/./here/kernels.cu"

)";
inline std::string& source() {
  static std::string text = head;
  return text;
}

template <class T>
std::string words(const T& x) {
  return (std::ostringstream() << x).str();
}
// The text, each # of it in turn replaced by one of these.
template <class... T>
std::string with(std::string text, const T&... by) {
  size_t at = 0;
  for (const std::string& word : {words(by)...}) {
    at = text.find('#', at);
    text.replace(at, 1, word);
    at += word.size();
  }
  return text;
}
// line(first), line(first + step) and so on, up to line(end).
template <class Line>
std::string each(unsigned first, unsigned end, unsigned step, Line line) {
  std::string text;
  for (; first < end; first += step) text += line(first);
  return text;
}
inline std::string replaced(std::string text, const std::string& what, const std::string& by) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size())
    text.replace(at, what.size(), by);
  return text;
}

// Registers of every type are there. Lines stand as nvcc sets them: what is inside of a kernel behind a tab.
inline std::string entry_text(const std::string& name, const std::string& parameters, const std::string& body,
                              const std::string& directives = "") {
  std::string registers;
  for (const char* all : {".pred %p<200>", ".b16 %rs<200>", ".b32 %r<900>", ".b64 %rd<900>", ".f32 %f<900>"})
    registers += with(".reg #;\n", all);
  return ".visible .entry " + name + "(\n" + parameters + "\n)\n" + directives + "{\n\t" +
         replaced(registers + body, "\n", "\n\t") + "ret;\n\n}\n\n";
}
inline void entry(const std::string& name, const std::string& parameters, const std::string& body) {
  source() += entry_text(name, parameters, body);
}
inline const std::string two_pointers = "\t.param .u64 in,\n\t.param .u64 out";
inline const std::string begin =
    R"(ld.param.u64 %rd1, [in];
ld.param.u64 %rd2, [out];
cvta.to.global.u64 %rd1, %rd1;
cvta.to.global.u64 %rd2, %rd2;
mov.u32 %r1, %tid.x;
mov.u32 %r2, %ctaid.x;
mov.u32 %r3, %ntid.x;
mad.lo.s32 %r4, %r2, %r3, %r1;
)";

struct Translated : Folder {
  Translated() {
    write("kernels.ptx", source());
    done("{repo}/ptx/translate.py . kernels.ptx");
    setenv("PTX_KERNELS", path.c_str(), 1);
  }
};
inline const ptx::Kernel& kernel(const std::string& name) {
  static const Translated folder;
  return ptx::find_kernel(name);
}

// Memory of the device that the test may read and write.
template <class T>
struct Device {
  size_t n;
  void* p;
  explicit Device(size_t n) : n(n), p(ptx::allocate(n * sizeof(T))) { REQUIRE(p); }
  explicit Device(const std::vector<T>& from) : Device(from.size()) { std::copy(from.begin(), from.end(), host()); }
  Device(const Device&) = delete;
  ~Device() { ptx::release(p); }
  T* host() const { return static_cast<T*>(ptx::storage(p, n * sizeof(T))); }
  T& operator[](size_t i) const { return host()[i]; }
  Word address() const { return reinterpret_cast<Word>(p); }
};

// How a launch ends, and what it says on stderr.
struct Ended {
  ptx::Fault fault;
  std::string text;
};
inline Ended run(const std::string& name, ptx::Extent grid, ptx::Extent block, const void* parameters,
                 size_t shared = 0, unsigned cluster = 1) {
  const ptx::Kernel& k = kernel(name);
  char* text;
  size_t length;
  FILE* const usual = std::exchange(stderr, open_memstream(&text, &length));
  const ptx::Fault fault = ptx::run(k, grid, block, cluster, shared, parameters);
  fclose(std::exchange(stderr, usual));
  const Ended ended = {fault, {text, length}};
  free(text);
  return ended;
}
inline void require_run(const std::string& name, ptx::Extent grid, ptx::Extent block, const void* parameters) {
  const Ended ended = run(name, grid, block, parameters);
  INFO(name << ": " << ended.text);
  REQUIRE(ended.fault == ptx::Fault::none);
}
// Of two pointers.
template <class In, class Out>
void require_run(const std::string& name, ptx::Extent grid, ptx::Extent block, const Device<In>& in,
                 const Device<Out>& out) {
  const void* const parameters[] = {in.p, out.p};
  require_run(name, grid, block, parameters);
}

}  // namespace ptx_test
