#include "training/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/bf16.cuh"
#include "dataloader/quote.h"
#include "training/checkpoint/number_formats.h"
#include "dataloader/strict_json.h"

namespace gated {

static_assert(std::endian::native == std::endian::little, "safetensors is little endian, read without swapping");

static constexpr const char* metadata_key = "__metadata__";  // so no tensor can have this name

// ---- what a file holds

size_t dtype_size(std::string_view dtype) {
  static constexpr std::pair<std::string_view, size_t> known[] = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U16", 2}, {"I16", 2}, {"F16", 2},
      {"BF16", 2}, {"U32", 4}, {"I32", 4}, {"F32", 4},     {"U64", 8},     {"I64", 8}, {"F64", 8}};
  for (const auto& [name, bytes] : known)
    if (name == dtype) return bytes;
  return 0;
}

std::optional<size_t> tensor_bytes(const std::vector<size_t>& shape, size_t element) {
  size_t bytes = element;
  for (size_t dim : shape)
    if (__builtin_mul_overflow(bytes, dim, &bytes)) return std::nullopt;
  return bytes;
}

std::string shape_text(const std::vector<size_t>& shape) {
  return clipped(nlohmann::json(shape).dump());
}

// ---- reading the header

namespace {

// [a, b, ...] of whole numbers that fit size_t; a negative, a fraction or an exponent is none.
std::optional<std::vector<size_t>> json_sizes(const nlohmann::json& value) {
  const auto whole = [](const nlohmann::json& item) { return item.is_number_unsigned(); };
  if (!value.is_array() || !std::all_of(value.begin(), value.end(), whole)) return std::nullopt;
  return value.get<std::vector<size_t>>();
}

TensorEntry parse_tensor_entry(const std::string& where, const nlohmann::json& value, size_t data_size) {
  const char* at = where.c_str();
  require(value.is_object() && value.size() == 3 && value.contains("dtype") && value.contains("shape") &&
              value.contains("data_offsets"),
          "%s: expected an object of dtype, shape and data_offsets, nothing else", at);
  require(value["dtype"].is_string(), "%s: dtype is not a string", at);
  const auto dtype = value["dtype"].get<std::string>();
  const size_t element = dtype_size(dtype);
  require(element > 0, "%s: dtype %s is not known, expected F32, BF16, F64, I32, I64, U8 or the like", at,
          quote(dtype).c_str());
  const auto shape = json_sizes(value["shape"]);
  require(shape.has_value(), "%s: shape is not a list of whole numbers", at);
  const auto bytes = tensor_bytes(*shape, element);
  require(bytes.has_value(), "%s: shape describes more bytes than 64 bits can count", at);
  const auto offsets = json_sizes(value["data_offsets"]);
  require(offsets && offsets->size() == 2, "%s: data_offsets is not a pair of whole numbers", at);
  const size_t begin = (*offsets)[0], end = (*offsets)[1];
  require(begin <= end && end <= data_size,
          "%s: data_offsets are [%zu,%zu], expected a range inside the %zu data bytes", at, begin, end, data_size);
  require(end - begin == *bytes, "%s: data_offsets span %zu bytes, expected %zu for dtype %s and that shape", at,
          end - begin, *bytes, dtype.c_str());
  return {dtype, *shape, begin, end};
}

}  // namespace

SafetensorsHeader parse_safetensors(const std::string& file, size_t file_size, const ReadBytes& read) {
  const char* at = file.c_str();
  uint64_t length = 0;
  require(file_size >= sizeof length, "%s: file has %zu bytes, expected a safetensors file: 8 bytes and a header", at,
          file_size);
  read(&length, sizeof length, size_t{0});
  const size_t rest = file_size - sizeof length;
  require(length <= max_safetensors_header, "%s: header length is %zu, expected at most %zu: not a safetensors file?",
          at, size_t{length}, max_safetensors_header);
  require(length <= rest, "%s: header length is %zu but only %zu bytes follow: the file is cut short", at,
          size_t{length}, rest);
  std::string text(length, '\0');
  if (length > 0) read(text.data(), text.size(), sizeof length);
  require(text.starts_with('{'), "%s: header does not begin with '{', expected a JSON object", at);

  SafetensorsHeader header;
  header.data_start = sizeof length + length;
  const size_t data_size = file_size - header.data_start;
  const nlohmann::json tree = parse_strict_json(file, "header", text, 3);
  for (const auto& [name, value] : tree.items()) {
    if (name == metadata_key) {
      require(value.is_object(), "%s: %s is not an object", at, metadata_key);
      for (const auto& [key, entry] : value.items()) {
        require(entry.is_string(), "%s: %s value of %s is not a string", at, metadata_key, quote(key).c_str());
        header.metadata.emplace(key, entry.get<std::string>());
      }
    } else {
      header.tensors.emplace(name, parse_tensor_entry(file + ": tensor " + quote(name), value, data_size));
    }
  }

  // The tensors tile the data: walked by offset, each begins where the one before it ended.
  std::vector<const std::pair<const std::string, TensorEntry>*> by_offset;
  for (const auto& item : header.tensors) by_offset.push_back(&item);
  std::sort(by_offset.begin(), by_offset.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  size_t covered = 0;
  for (const auto* item : by_offset) {
    require(item->second.begin == covered, "%s: tensor %s begins at data byte %zu, expected %zu: %s", at,
            quote(item->first).c_str(), item->second.begin, covered,
            item->second.begin < covered ? "tensors overlap" : "a hole between tensors");
    covered = item->second.end;
  }
  require(covered == data_size, "%s: tensors end at data byte %zu, expected %zu: bytes after the last tensor", at,
          covered, data_size);
  return header;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  header_ =
      parse_safetensors(path, file_.size(), [&](void* dst, size_t n, size_t offset) { file_.read(dst, n, offset); });
}

// Infinities and NaNs have an exponent of ones, which the sum carries into the sign. The host's files are compiled for
// gdb: there this loop would be half of the time of loading, and as vectors it is 1 to 2 % of its CPU time. (nvcc
// compiles it as vectors anyway; clang has no such attribute.)
#if !defined(__CUDACC__) && !defined(__clang__)
[[gnu::optimize("O3")]]
#ifdef __x86_64__
[[gnu::target_clones("avx2", "default")]]
#endif
#endif
static bool
all_finite(const float* x, size_t n) {
  uint32_t carried = 0;
  for (size_t i = 0; i < n; i++) {
    uint32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    carried |= (bits & 0x7f800000) + 0x00800000;
  }
  return carried >> 31 == 0;
}

void SafetensorsFile::read_floats(const std::string& name, const TensorEntry& tensor, float* dst, size_t begin,
                                  size_t n) const {
  const bool is_f32 = tensor.dtype == "F32", is_bf16 = tensor.dtype == "BF16";
  require(is_f32 || is_bf16 || tensor.dtype == "F16", "%s: tensor %s is %s, expected F32, BF16 or F16", path().c_str(),
          quote(name).c_str(), tensor.dtype.c_str());
  constexpr size_t piece = size_t{1} << 15;  // numbers that are still in a core's cache when they are looked at
  std::vector<uint16_t> halves(is_f32 ? 0 : piece);
  n = std::min(n, (tensor.end - tensor.begin) / dtype_size(tensor.dtype) - begin);
  for (size_t done = 0; done < n; done += piece) {
    const size_t here = std::min(piece, n - done);
    if (is_f32)
      read(tensor, (begin + done) * sizeof(float), dst + done, here * sizeof(float));
    else
      read(tensor, (begin + done) * sizeof(uint16_t), halves.data(), here * sizeof(uint16_t));
    for (size_t i = 0; i < here && !is_f32; i++)
      dst[done + i] = is_bf16 ? float(bf16::from_bits(halves[i])) : widen_f16(halves[i]);
    if (all_finite(dst + done, here)) continue;
    const float* const bad = std::find_if(dst + done, dst + n, [](float x) { return !std::isfinite(x); });
    fail("%s: tensor %s has %s as element %zu, expected numbers: the file is damaged, or of a run that diverged",
         path().c_str(), quote(name).c_str(), std::isnan(*bad) ? "a NaN" : "an infinity", begin + size_t(bad - dst));
  }
}

// ---- writing the header

size_t TensorView::bytes() const {
  const auto n = tensor_bytes(shape, sizeof(float));
  require(n.has_value(), "tensor %s: shape %s describes more bytes than 64 bits can count", quote(name).c_str(),
          shape_text(shape).c_str());
  return *n;
}

std::string safetensors_header(const std::string& file, const std::vector<TensorForm>& tensors,
                               const std::map<std::string, std::string>& metadata) {
  constexpr size_t alignment = 64;
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header[metadata_key] = metadata;
  size_t end = 0;
  for (const TensorForm& t : tensors) {
    const std::string name = quote(t.name);
    const size_t begin = end;
    const auto bytes = tensor_bytes(t.shape, dtype_size(t.dtype));
    require(bytes && !__builtin_add_overflow(end, *bytes, &end), "%s: tensor %s: more bytes than 64 bits can count",
            file.c_str(), name.c_str());
    const nlohmann::json entry = {{"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {begin, end}}};
    require(t.name != metadata_key && header.emplace(t.name, entry).second,
            "%s: tensor name %s is given twice or reserved, expected names that differ", file.c_str(), name.c_str());
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception&) {
    fail("%s: a tensor name or metadata is not UTF-8, expected UTF-8 for a safetensors header", file.c_str());
  }
  uint64_t length = text.size();
  length += (alignment - (sizeof length + length) % alignment) % alignment;
  require(length <= max_safetensors_header, "%s: header would have %zu bytes, expected at most %zu", file.c_str(),
          size_t{length}, max_safetensors_header);
  text.resize(length, ' ');
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

}  // namespace gated
