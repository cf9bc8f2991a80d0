// safetensors: named tensors in one file
//   (Hugging Face, github.com/huggingface/safetensors, README section "Format")
//
//   [8 bytes: N, little endian] [N bytes: JSON header, padded with spaces] [data]
//   header = {"__metadata__": {string: string},
//             name: {"dtype": "F32", "shape": [2,3], "data_offsets": [0,24]}, ...}
//
// Offsets count from the first byte of the data. The tensors tile the data: no hole, no overlap, nothing
// after the last one. A header read from disk is hostile until checked: every number in it is compared with
// the file's size before it is used, so that no file, however damaged, leads to a read out of bounds or a
// huge allocation.
//
// shapes: row-major, the last dimension is contiguous; [] is a scalar, any 0 makes the tensor empty
//
// tests/test_checkpoint.cpp | tests/fuzz_safetensors.cpp
#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "dataloader/files.h"

namespace gated {

// ---- what a file holds

struct TensorEntry {
  std::string dtype;
  std::vector<size_t> shape;
  size_t begin, end;  // bytes, counted from the start of the data
  bool operator==(const TensorEntry&) const = default;
};

// Maps, so that tensors are visited in ascending name order wherever their bytes lie.
struct SafetensorsHeader {
  std::map<std::string, TensorEntry> tensors;
  std::map<std::string, std::string> metadata;
  size_t data_start = 0;  // 8 + N
  bool operator==(const SafetensorsHeader&) const = default;
};

inline constexpr size_t max_safetensors_header = 100'000'000;  // bytes; the limit of the reference implementation

// Bytes of one element, 0 for a dtype this reader does not know.
size_t dtype_size(std::string_view dtype);

// Bytes of a tensor, or nothing when the product leaves size_t.
std::optional<size_t> tensor_bytes(const std::vector<size_t>& shape, size_t element);

// As a message shows it.
std::string shape_text(const std::vector<size_t>& shape);

// ---- reading the header

// The header of a file of `file_size` bytes, which `read` gets. A file on disk, a buffer of a test and the fuzzer's
// input take this same path.
SafetensorsHeader parse_safetensors(const std::string& file, size_t file_size, const ReadBytes& read);

// ---- a file on disk

// A bad sector or a file cut short under us is an Error, from which a run can fall back to an older checkpoint.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const SafetensorsHeader& header() const { return header_; }

  // n bytes of the tensor, from its byte `offset` on.
  void read(const TensorEntry& tensor, size_t offset, void* dst, size_t n) const {
    file_.read(dst, n, header_.data_start + tensor.begin + offset);
  }
  // Of a tensor of F32, BF16 or F16 n elements from `begin` on, or up to its end, in fp32, exactly, by way of a small
  // buffer. Refuses other dtypes, a NaN and an infinity; `name` is what a refusal calls it.
  void read_floats(const std::string& name, const TensorEntry& tensor, float* dst, size_t begin = 0,
                   size_t n = SIZE_MAX) const;

 private:
  File file_;
  SafetensorsHeader header_;
};

// ---- writing the header

// A tensor in memory, on the host.
struct TensorView {
  std::string name;
  std::vector<size_t> shape;
  const float* data;
  size_t bytes() const;
};

// What a header says of a tensor, wherever its values are.
struct TensorForm {
  std::string name, dtype;
  std::vector<size_t> shape;
};

// The first data_start bytes of a file that holds the tensors one after another, in the order of the list.
// The padding puts the data on a multiple of 64 bytes, a cache line, for readers that do map the file.
std::string safetensors_header(const std::string& file, const std::vector<TensorForm>& tensors,
                               const std::map<std::string, std::string>& metadata);

}  // namespace gated
