// readme: what README.md quotes stands in the file that it names, what it links to is there, its map is whole, and its first
// picture is drawn by scripts/draw_architecture.py. (Its flag map and the papers' rows: tests/test_flags.cpp. Its fingerprint:
// tests/test_golden.cpp.)
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <tuple>

#include "tests/catch.h"
#include "tests/contents.h"

using namespace gated;

namespace {

// What stands between `open` and `close` from `at` on, and moves `at` after it; "" where there is none.
std::string next_between(const std::string& text, const std::string& open, const std::string& close, size_t& at) {
  const size_t begin = text.find(open, at);
  if (begin == std::string::npos) return "";
  const size_t end = text.find(close, begin + open.size());
  REQUIRE(end != std::string::npos);
  at = end + close.size();
  return text.substr(begin + open.size(), end - begin - open.size());
}

}  // namespace

TEST_CASE("readme: what it quotes from a file stands in that file", "[readme]") {
  const std::string readme = contents("README.md");
  size_t quotes = 0, at = 0;
  for (std::string path; !(path = next_between(readme, "<!-- from ", " -->", at)).empty(); quotes++) {
    const std::string quote = next_between(readme, "```cpp\n", "```\n", at);
    INFO(path << "\n" << quote);
    REQUIRE(quote.size() > 40);
    REQUIRE(contents(path).find(quote) != std::string::npos);
  }
  REQUIRE(quotes > 0);
}

TEST_CASE("readme: every file that it links to is there", "[readme]") {
  std::istringstream lines(contents("README.md"));
  std::string readme;
  bool quoted = false;  // what stands between ``` is no link
  for (std::string line; std::getline(lines, line);) {
    quoted ^= line.starts_with("```");
    if (!quoted) readme += line + "\n";
  }
  for (const auto& [open, close, least] : {std::tuple("](", ")", 20), std::tuple("src=\"", "\"", 3)}) {
    int links = 0;
    size_t at = 0;
    for (std::string target; !(target = next_between(readme, open, close, at)).empty();) {
      if (target.starts_with("http") || target.starts_with("#")) continue;
      INFO(target);
      REQUIRE(std::filesystem::exists(target));
      links++;
    }
    REQUIRE(links > least);
  }
}

TEST_CASE("readme: its map names every file of training/ and dataloader/", "[readme]") {
  const std::string readme = contents("README.md");
  const size_t begin = readme.find("<summary>The files of training/ and dataloader/</summary>");
  REQUIRE(begin != std::string::npos);
  const std::string map = readme.substr(begin, readme.find("</details>", begin) - begin);
  for (const char* folder : {"training", "dataloader"})
    for (const auto& file : std::filesystem::recursive_directory_iterator(folder)) {
      if (file.is_directory()) continue;
      INFO(file.path());  // as `name` or, where one file alone is meant, with its ending
      const std::string quoted = "`" + file.path().stem().string();
      REQUIRE((map.find(quoted + "`") != std::string::npos || map.find(quoted + ".") != std::string::npos));
    }
}

TEST_CASE("readme: its picture is what the script draws", "[readme]") {
  REQUIRE(contents("README.md").find("scripts/architecture.svg") != std::string::npos);
  REQUIRE(std::filesystem::exists("scripts/architecture.svg"));
  if (std::system("python3 --version >/dev/null 2>&1") != 0) {
    WARN("no python3 here: that the picture is the script's was not looked at");
    return;
  }
  REQUIRE(std::system("python3 scripts/draw_architecture.py --check") == 0);
}
