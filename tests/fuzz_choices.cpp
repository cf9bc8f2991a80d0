// fuzz_choices: any bytes at all given as questions with endings: they are refused with a gated::Error of one line, or
// make questions of known tokens that fill the file. The sanitizers watch.
// make fuzz READER=choices
#include <cstring>

#include "dataloader/choices.h"
#include "tests/fuzz.h"

using namespace gated;

static void check(std::span<const unsigned char> file) {
  constexpr int32_t vocab = 50257;
  try {
    size_t numbers = 0;
    for (const ChoiceQuestion& q : parse_choices(file, vocab, "fuzz")) {
      demand(q.endings.size() >= 2 && q.right < q.endings.size() && !q.context.empty());
      numbers += 6 + q.context.size();
      for (const int32_t id : q.context) demand(id >= 0 && id < vocab);
      for (const auto& ending : q.endings) {
        demand(!ending.empty());
        for (const int32_t id : ending) demand(id >= 0 && id < vocab);
        numbers += 1 + ending.size();
      }
    }
    demand(file.size() == 1024 + 2 * numbers || file.size() == 1024 + 4 * numbers);
  } catch (const Error& e) {
    demand(std::string_view(e.what()).starts_with("fuzz: "));
    demand(std::string_view(e.what()).find('\n') == std::string_view::npos);
  }
}

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
  check({data, size});
  // Again with the input after a header that is right: its first byte says the version and the number of questions.
  if (size == 0) return 0;
  std::vector<unsigned char> file(1024);
  const int32_t header[3] = {20240522, 1 + data[0] % 2, 1 + data[0] / 2};
  std::memcpy(file.data(), header, sizeof header);
  file.insert(file.end(), data + 1, data + size);
  check(file);
  return 0;
}
