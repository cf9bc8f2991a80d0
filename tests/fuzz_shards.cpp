// fuzz_shards: any bytes at all given to the shard parser: they are refused with gated::Error, or every token
// the header announces can be read, and no byte outside the file is touched (the sanitizers watch).
// make fuzz READER=shards
#include <cstring>
#include <vector>

#include "dataloader/shards.h"
#include "dataloader/text.h"
#include "tests/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
  using namespace gated;
  try {
    const auto read = [&](void* dst, size_t n, size_t offset) {
      demand(offset <= size && n <= size - offset);
      std::memcpy(dst, data + offset, n);
    };
    const Shard shard(size, read, "fuzz");
    const size_t vocab = shard.vocab();
    demand(shard.size() > 0 && 1024 + shard.token_bytes() * shard.size() == size);
    std::vector<int32_t> tokens(shard.size());
    shard.copy(0, tokens.size(), vocab, tokens.data());
    for (const int32_t token : tokens) demand(token >= 0 && size_t(token) < vocab);
    shard.copy(shard.size() / 2, shard.size() - shard.size() / 2 + 1, vocab, tokens.data());
    demand(false);  // one past the end must have been refused
  } catch (const Error&) {
  }
  // The same bytes as a sample: what is printed of them is printable.
  for (const char c : printable({reinterpret_cast<const char*>(data), size}))
    demand(static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t');
  return 0;
}
