// tma: what the tensor memory accelerator of compute capability 9.0 copies, and what a barrier in shared memory counts.
// The emulator (core/tma.cuh, core/simt.cpp) and the machine that runs PTX (ptx/machine.cpp) both do what stands here.
//
// A tensor map says what a matrix is and what a box of it: which lines, how far apart, how many of them a copy brings.
// A copy then needs no more than a place, the element and the line at which the box begins. The hardware computes the
// addresses, takes 0 for what lies outside the matrix, and writes the box line after line, 128 bytes each, their chunks
// of 16 bytes exchanged as wgmma wants it (core/wgmma.h):
//
//        the matrix, lines of `length` elements                  shared memory
//
//        +-----------------------------+                         line   chunks
//        |        (x,y)                |                            0   0 1 2 3 4 5 6 7
//        |          +---------+        |                            1   1 0 3 2 5 4 7 6
//        |          |   box   |        |      ---- copy ---->       2   2 3 0 1 6 7 4 5
//        +----------|.........|--------+                          ...
//                   |   0 0   |                                   the box's last lines are 0
//                   +---------+
//   (PTX ISA 9.0, 5.5: tensors, their boxes, swizzling modes; CUDA driver API, cuTensorMapEncodeTiled)
//
// A barrier (mbarrier) counts arrivals and bytes. A phase of it ends when all arrivals that it was made for have come,
// and all bytes that they announced; then the next one begins, by itself. Whoever waits names the parity of the phase
// that it waits for, 0 for the first, 1 for the second, 0 for the third: it passes if that phase is over.
//
//      arrivals awaited    2      1      1      0 -> 2                 of 2
//      bytes awaited       0     +512   -256   -256 = 0                those of copies, which come late
//      phase               0 .................. 0 -> 1
//
//   (9.7.13.15: mbarrier)
// tests/test_tma.cpp, tests/test_ptx_tma.cpp
#pragma once
#include "core/wgmma.h"

namespace gated {

constexpr uint32_t tma_most_lines = 256, tma_chunk = 8;  // of a box; bf16 in 16 bytes
constexpr size_t tma_most_coordinate = size_t{1} << 30;  // an int, and a box may end past it

// A matrix of bf16, as copies see it: where it begins, the elements of a line, lines, bytes from one to the next. A box
// is 64 elements wide. (No padding: who compares launches compares bytes.)
struct TmaMatrix {
  uint64_t address, length, lines, pitch, box_lines;
};

constexpr uint32_t tma_box_bytes(uint64_t box_lines) {
  return uint32_t(box_lines) * wgmma_line_bytes;
}

// What cuTensorMapEncodeTiled refuses, in words; null where nothing is wrong.
constexpr const char* tma_refuses(const TmaMatrix& m) {
  constexpr uint64_t most = uint64_t{1} << 32;
  if (m.address % 16) return "a tensor map of a matrix that does not begin on a boundary of 16 bytes";
  if (m.length < 1 || m.lines < 1 || m.length > most || m.lines > most) return "a tensor map of no lines, or too many";
  if (m.pitch % 16 || m.pitch >= uint64_t{1} << 40)
    return "a tensor map whose lines are not a multiple of 16 bytes apart";
  if (m.pitch < m.length * sizeof(bf16)) return "a tensor map whose lines overlap";
  if (m.box_lines < 1 || m.box_lines > tma_most_lines) return "a tensor map with a box of no lines, or more than 256";
  return nullptr;
}

// put(its place, from the first of the box's bytes on, address of the source, how many elements come from there) for
// each chunk; the others of its eight are 0. A box begins on a boundary of 1024 bytes, so a place is swizzled as the
// address is.
template <class Put>
constexpr void tma_copy_box(const TmaMatrix& m, int32_t x, int32_t y, Put put) {
  for (uint32_t l = 0; l < m.box_lines; l++)
    for (uint32_t c = 0; c < wgmma_line; c += tma_chunk) {
      const int64_t element = int64_t{x} + c, line = int64_t{y} + l, left = int64_t(m.length) - element;
      const bool inside = line >= 0 && line < int64_t(m.lines) && element >= 0 && left > 0;
      put(wgmma_swizzled(l * wgmma_line_bytes + c * uint32_t(sizeof(bf16))),
          m.address + uint64_t(line) * m.pitch + uint64_t(element) * sizeof(bf16),
          uint32_t(!inside            ? 0
                   : left < tma_chunk ? left
                                      : tma_chunk));
    }
}

class MbarrierCount {
 public:
  // Each of these: what is wrong, in words, or null.
  constexpr const char* init(uint32_t arrivals) {
    if (arrivals < 1 || arrivals > most) return "a barrier for no arrivals, or for more than 2^20 - 1";
    *this = {};
    arrivals_ = awaited_ = arrivals;
    return nullptr;
  }
  constexpr const char* arrive(uint32_t announced_bytes) {
    if (awaited_ == 0) return "an arrival at a barrier of which all have come in this phase";
    if (announced_bytes > most - bytes_) return "arrivals that announce more than 2^20 - 1 bytes";
    awaited_--, bytes_ += announced_bytes;
    end_phase();
    return nullptr;
  }
  constexpr const char* land(uint32_t bytes) {
    if (bytes > bytes_) return "copies bring more bytes to a barrier than were announced there";
    bytes_ -= bytes;
    end_phase();
    return nullptr;
  }
  // Is nothing missing but bytes?
  constexpr bool awaits_bytes_alone() const { return awaited_ == 0; }
  constexpr bool is_over(uint32_t parity) const { return phase_ % 2 != parity; }
  constexpr uint32_t phase() const { return phase_; }

 private:
  static constexpr uint32_t most = (1 << 20) - 1;
  constexpr void end_phase() {
    if (awaited_ > 0 || bytes_ > 0) return;
    awaited_ = arrivals_;
    phase_++;
  }
  uint32_t arrivals_ = 0, awaited_ = 0, bytes_ = 0, phase_ = 0;
};

}  // namespace gated
