// fuzz_tokenizer: any bytes at all given as a tokenizer.json: they are refused with a gated::Error of one printable
// line, or any text is encoded with ids of its vocabulary, which are decoded again, or is refused so too. The
// sanitizers watch. make fuzz READER=tokenizer
#include "dataloader/tokenizer.h"
#include "tests/fuzz.h"

using namespace gated;

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
  // What stands after a NUL byte is the text.
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\0');
  const std::string_view file = input.substr(0, end),
                         text = end == input.npos ? "A text, it's 12 bytes é\n\n" : input.substr(end + 1);
  try {
    const Tokenizer tokenizer(file, "fuzz");
    try {
      for (const int32_t id : tokenizer.encode(text)) {
        demand(id >= 0 && size_t(id) < tokenizer.vocab());
        demand(!tokenizer.decode_one(id, true).empty() || tokenizer.decode_one(id, false) == " ");
      }
    } catch (const Error& e) {
      demand_plain(e, 999);
    }
  } catch (const Error& e) {
    demand_plain(e, 999);
    demand(std::string_view(e.what()).starts_with("fuzz: "));
  }
  return 0;
}
