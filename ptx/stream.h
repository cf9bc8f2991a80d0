// stream: the order in which work that was given to the device is done, and the faults of those who give it.
//
//   a stream    is a queue. What is put into it runs late: when the host waits for it, and then no more of it than the
//               wait needs. So whoever reads a result too early reads what was there before, and whoever uses staging
//               memory again too early sends the wrong numbers. On a GPU both go well most of the time
//   a capture   takes the work of its streams down instead: a graph, whose launch is one piece of work
//   a fault     of a piece of work ends all work. Every call from there on answers with it, as CUDA's do
//
// One lock is held through every call: threads may call, one after another.
// tests/test_ptx_runtime.cpp
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

namespace ptx {

// ---- what calls answer

struct Refusal {
  cudaError_t code;
};
// Ends a call with an error, after a line on stderr that says why.
[[noreturn, gnu::format(printf, 2, 3)]] void refuse(cudaError_t code, const char* format, ...);
// A fault that the program may not hear of, as an answer in a destructor: after this line on stderr it cannot end with
// 0.
[[gnu::format(printf, 1, 2)]] void complain(const char* format, ...);

// A call of CUDA's: cudaSuccess, or what body() refuses with, which cudaGetLastError() tells too.
cudaError_t call(const std::function<void()>& body);

// ---- work

struct Range {
  const void* begin;
  size_t bytes;
};
struct Work {
  std::string what;           // for messages
  std::function<void()> run;  // throws a Refusal where it ends in a fault
  std::vector<Range> pinned;  // what it reads and writes of the host's pinned memory
  // Of work in which other processes have a part: is called as soon as nothing is left that it stands behind but such
  // work in its stream.
  std::function<void()> start = nullptr;
};

// Puts work into a stream, behind what stands there and behind the pieces `also`. Its number, which grows from piece to
// piece; 0 where it was taken down by a capture.
uint64_t submit(cudaStream_t stream, Work work, std::initializer_list<uint64_t> also = {});
// Until that piece is done, and all that it stands behind. Refused while this thread captures.
void wait_for(const char* call, uint64_t piece);
// Until everything is done that any stream was given.
void wait_for_all(const char* call);
// Does a capture take down what this stream is given? Refused where there is no such stream.
bool is_captured(cudaStream_t stream);
// What may not be called while this thread captures, because a graph could not repeat it.
void not_while_capturing(const char* call);
// What piece of work that is not done yet uses pinned memory there; empty where there is none.
std::string work_on_pinned(const void* begin, size_t bytes);

}  // namespace ptx
