// fuzz_shards: any bytes at all given to the shard parser: they are refused with gated::Error, or every token
// the header announces can be read, and no byte outside the file is touched (the sanitizers watch).
// make fuzz READER=shards
#include <cstdlib>
#include <cstring>
#include <vector>

#include "dataloader/shards.h"
#include "dataloader/text.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
  using namespace gated;
  try {
    const auto read = [&](void* dst, size_t n, size_t offset) {
      if (offset > size || n > size - offset) std::abort();
      std::memcpy(dst, data + offset, n);
    };
    const Shard shard(size, read, "fuzz");
    const size_t vocab = shard.vocab();
    if (shard.size() == 0 || 1024 + shard.token_bytes() * shard.size() != size) std::abort();
    std::vector<int32_t> tokens(shard.size());
    shard.copy(0, tokens.size(), vocab, tokens.data());
    for (const int32_t token : tokens)
      if (token < 0 || size_t(token) >= vocab) std::abort();
    shard.copy(shard.size() / 2, shard.size() - shard.size() / 2 + 1, vocab, tokens.data());
    std::abort();  // one past the end must have been refused
  } catch (const Error&) {
  }
  // The same bytes as a sample: what is printed of them is printable.
  for (const char c : printable({reinterpret_cast<const char*>(data), size}))
    if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') std::abort();
  return 0;
}
