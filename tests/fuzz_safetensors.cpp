// fuzz_safetensors: any bytes at all given to the safetensors reader: they are refused with a one-line
// gated::Error, or the tensors tile the data and what the writer makes of them reads back the same. The
// sanitizers watch every access.
// make fuzz READER=safetensors
#include <cstring>

#include "tests/fuzz.h"
#include "training/checkpoint/safetensors.h"

using namespace gated;

namespace {

SafetensorsHeader parse(const std::string& bytes) {
  return parse_safetensors("fuzz", bytes.size(), [&](void* dst, size_t n, size_t offset) {
    demand(offset <= bytes.size() && n <= bytes.size() - offset);
    std::memcpy(dst, bytes.data() + offset, n);
  });
}

void check(const std::string& bytes) {
  SafetensorsHeader header;
  try {
    header = parse(bytes);
  } catch (const Error& e) {
    demand(std::string_view(e.what()).starts_with("fuzz: "));
    return demand_plain(e, 999);
  }
  size_t sum = 0;
  for (const auto& [name, t] : header.tensors) {
    demand(t.begin <= t.end && t.end <= bytes.size() - header.data_start);
    demand(tensor_bytes(t.shape, dtype_size(t.dtype)) == t.end - t.begin);
    sum += t.end - t.begin;
  }
  demand(sum == bytes.size() - header.data_start);

  // Through the writer, which lays tensors out in the order of its list, here that of the names.
  std::vector<TensorForm> forms;
  for (const auto& [name, t] : header.tensors) forms.push_back({name, t.dtype, t.shape});
  std::string written = safetensors_header("fuzz", forms, header.metadata);
  demand(written.size() % 64 == 0);
  written.append(sum, '\0');
  const SafetensorsHeader again = parse(written);
  demand(again.metadata == header.metadata && again.tensors.size() == forms.size());
  for (const TensorForm& f : forms)
    demand(again.tensors.at(f.name).shape == f.shape && again.tensors.at(f.name).dtype == f.dtype);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  check(input);
  // Again with the input as the header: the length in front is right and the first byte says how much data
  // follows, so that mutations reach the JSON and not only the length.
  if (size == 0) return 0;
  const uint64_t length = size - 1;
  check(std::string(reinterpret_cast<const char*>(&length), sizeof length) + input.substr(1) +
        std::string(data[0], '\0'));
  return 0;
}
