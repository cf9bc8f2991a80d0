// wgmma: how a tensor core of compute capability 9.0 finds its operands in shared memory.
//   (PTX ISA 9.0, 9.7.15.5: wgmma.mma_async, matrix descriptors and layouts; CUTLASS, mma_traits_sm90_gmma.hpp, the
//   canonical layouts of B128)
//
// What it computes is mma's step (core/mma.h, Hopper: 16 products, F = 25; so too MMA-Sim's class WGMMA, which was
// compared with GPUs), for 64 rows of A and up to 256 columns of B. Neither passes through registers: an instruction is
// told by a descriptor of 64 bits where an operand lies.
//
//   bits  0-13  its first byte's address, / 16      16-29  the leading offset, / 16      32-45  the stride, / 16
//        49-51  0: the pattern of the swizzle begins on a boundary of 1024 bytes         62-63  1: swizzle of 128 bytes
//
// An operand is lines of 128 bytes, 64 bf16, in groups of eight lines: 1024 bytes. What runs along a line is k, or, in
// a matrix that is transposed on the way in, the rows of A (the columns of B):
//
//   along a line     a line is     the next line is    eight lines on: `stride`    past the line's end: `leading`
//   k                a row         the next row        row + 8                     (not used: 16 k lie inside a line)
//   rows             a k           the next k          k + 8                       row + 64
//
// Eight rows at one k lie 128 bytes apart: in the same banks. So the eight chunks of 16 bytes of a line are exchanged,
// each line otherwise: chunk c of line l stands at c xor l % 8. As l % 8 are bits 7 to 9 of the address, the hardware
// needs no more than the address: bits 4 to 6 are xor'ed with bits 7 to 9.
//
//   line   place  0  1  2  3  4  5  6  7          the first chunks of eight lines, 0 1 2 ... 7 down the left side of a
//      0          0  1  2  3  4  5  6  7          plain tile, stand in eight different columns: in all 32 banks
//      1          1  0  3  2  5  4  7  6
//      2          2  3  0  1  6  7  4  5          16 k further along a line are 2 chunks: a descriptor with 32 bytes
//     ...                                         more is right, since the xor is of the whole address
//      7          7  6  5  4  3  2  1  0
//
// tests/test_wgmma.cpp
#pragma once
#include "core/mma.h"

namespace gated {

constexpr int wgmma_rows = 64, wgmma_threads = 128, wgmma_line = 64;  // a line's bf16
constexpr uint32_t wgmma_line_bytes = 128, wgmma_group_bytes = 1024;

// Offsets in bytes.
constexpr uint64_t wgmma_descriptor(uint32_t address, uint32_t leading, uint32_t stride) {
  return (address >> 4 & 0x3fff) | uint64_t(leading >> 4 & 0x3fff) << 16 | uint64_t(stride >> 4 & 0x3fff) << 32 |
         uint64_t{1} << 62;
}

// The operand that begins so many bytes further on, a multiple of 16. Shared memory is smaller than the field, so
// nothing is carried out of it: the other half of the descriptor stays, which the compiler cannot know.
constexpr uint64_t wgmma_further(uint64_t descriptor, uint32_t bytes) {
  return (descriptor & ~uint64_t{0xffffffff}) | (uint32_t(descriptor) + (bytes >> 4));
}

constexpr uint32_t wgmma_swizzled(uint32_t address) {
  return address ^ (address >> 7 & 7) << 4;
}

// What this project does not use of descriptors is refused, in words; null where nothing is wrong.
constexpr const char* wgmma_refuses(uint64_t descriptor) {
  if (descriptor >> 62 != 1) return "a wgmma descriptor whose bits 62-63 do not say a swizzle of 128 bytes";
  if (descriptor & ~wgmma_descriptor(~0u, ~0u, ~0u)) return "a wgmma descriptor with a base offset or unused bits";
  return nullptr;
}

// The address of 16 bytes of an operand: of this row at k and the seven after it, or, where rows run along the lines,
// of this k at `row` and the seven after it.
constexpr uint32_t wgmma_chunk(uint64_t descriptor, bool rows_along_lines, uint32_t row, uint32_t k) {
  const uint32_t start = uint32_t(descriptor & 0x3fff) << 4, leading = uint32_t(descriptor >> 16 & 0x3fff) << 4,
                 stride = uint32_t(descriptor >> 32 & 0x3fff) << 4;
  const uint32_t line = rows_along_lines ? k : row, along = rows_along_lines ? row : k;
  return wgmma_swizzled(start + line / 8 * stride + line % 8 * wgmma_line_bytes + along / wgmma_line * leading +
                        along % wgmma_line * uint32_t(sizeof(bf16)));
}

// Rows first .. first + rows - 1 of an operand (columns of B) into `to` (rows,16). at(address): the 16 bytes there.
template <class At>
inline void wgmma_load(bf16 (*to)[mma_depth], uint64_t descriptor, bool rows_along_lines, uint32_t first, uint32_t rows,
                       At at) {
  for (uint32_t line = 0; line < (rows_along_lines ? mma_depth : rows); line++)
    for (uint32_t along = 0; along < (rows_along_lines ? rows : mma_depth); along += 8) {
      const uint32_t row = rows_along_lines ? along : line, k = rows_along_lines ? line : along;
      const bf16* const chunk = at(wgmma_chunk(descriptor, rows_along_lines, first + row, k));
      for (uint32_t i = 0; i < 8; i++) (rows_along_lines ? to[row + i][k] : to[row][k + i]) = chunk[i];
    }
}

}  // namespace gated
