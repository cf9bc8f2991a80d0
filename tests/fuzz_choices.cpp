// fuzz_choices: any bytes at all given as questions with endings: they are refused with a gated::Error of one line, or make
// questions of known tokens that fill the file. The sanitizers watch.
// make fuzz READER=choices
#include <cstdlib>
#include <string_view>

#include "core/check.h"
#include "dataloader/choices.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
  using namespace gated;
  constexpr int32_t vocab = 50257;
  const auto demand = [](bool ok) {
    if (!ok) std::abort();
  };
  try {
    size_t numbers = 0;
    for (const ChoiceQuestion& q : parse_choices({data, size}, vocab, "fuzz")) {
      demand(q.endings.size() >= 2 && q.right < q.endings.size() && !q.context.empty());
      numbers += 6 + q.context.size();
      for (const int32_t id : q.context) demand(id >= 0 && id < vocab);
      for (const auto& ending : q.endings) {
        demand(!ending.empty());
        for (const int32_t id : ending) demand(id >= 0 && id < vocab);
        numbers += 1 + ending.size();
      }
    }
    demand(size == 1024 + 2 * numbers || size == 1024 + 4 * numbers);
  } catch (const Error& e) {
    demand(std::string_view(e.what()).starts_with("fuzz: "));
    demand(std::string_view(e.what()).find('\n') == std::string_view::npos);
  }
  return 0;
}
