// readme: the pages are true to the files. What README.md and docs/ quote stands in the file that they name; their
// links, anchors, file names and commands are there; README is short and its map whole; the glossary's lines are those
// of the source; the figures of docs/claims.md are those of results/; and a script writes the tables of
// docs/performance.md. (The flags in their commands and tables, and docs/flags.md: tests/test_flags.cpp. The
// fingerprints: tests/test_golden.cpp.)
#include <cctype>
#include <cstdlib>

#include "tests/pages.h"
#include "tests/script.h"

using namespace gated;

namespace {

// The anchors that GitHub gives a page's headings: small letters, no punctuation, - for a space. A heading that stands
// there for the second time gets -1.
std::set<std::string> anchors(const std::string& page) {
  std::set<std::string> all;
  for (const auto& heading : matches("\n" + prose(page), "\n#+ ([^\n]*)")) {
    std::string anchor = replaced(replaced(heading[1], "(?![-_])[[:punct:]]", ""), " ", "-");
    std::ranges::transform(anchor, anchor.begin(), [](unsigned char c) { return std::tolower(c); });
    std::string unique = anchor;
    for (int n = 1; !all.insert(unique).second; n++) unique = anchor + "-" + std::to_string(n);
  }
  return all;
}

// What the walks of docs/adding.md would make.
const std::set<std::string> made_by_a_walk = {"kernels/muon.cu",
                                              "kernels/muon.h",
                                              "tests/test_muon.cpp",
                                              "kernels/bf16/matmul_fp8.cu",
                                              "kernels/cpu/matmul_fp8_cpu.cpp",
                                              "tests/test_matmul_fp8.cpp"};

}  // namespace

TEST_CASE("readme: what a page quotes from a file stands in that file", "[readme]") {
  size_t quotes = 0;
  for (const std::string& page : pages())
    for (const auto& found : matches(contents(page), "<!-- from (.*) -->\n*```cpp\n([^]*?)```\n")) {
      quotes++;
      INFO(page << ", " << found[0]);
      REQUIRE(found[2].size() > 40);
      REQUIRE(contains(contents(found[1]), found[2]));
    }
  REQUIRE(quotes >= 3);
}

TEST_CASE("readme: every link of a page leads to a file, and to a heading where it names one", "[readme]") {
  size_t files = 0, headings = 0;
  for (const std::string& page : pages())
    for (const auto& link : matches(prose(page), "(\\]\\(|src=\")(?!http)([^)\"#]*)#?([^)\"]*)")) {
      INFO(page << " links to " << link[2] << "#" << link[3]);
      const fs::path path =
          link[2].empty() ? fs::path(page) : (fs::path(page).parent_path() / link[2]).lexically_normal();
      REQUIRE(fs::exists(path));
      files++;
      if (link[3].empty()) continue;
      REQUIRE(anchors(path).count(link[3]) == 1);
      headings++;
    }
  REQUIRE(files > 300);
  REQUIRE(headings > 10);
}

TEST_CASE("readme: every file that a page names is there", "[readme]") {
  const std::string folders = "(core|kernels|layers|training|dataloader|tests|scripts|ptx|docs|results)";
  size_t names = 0;
  for (const std::string& page : pages())
    for (const auto& name : matches(prose(page), "`(" + folders + "/[a-z0-9_/.-]+)`")) {
      names++;
      INFO(page << " names " << name[1]);
      REQUIRE(fs::exists(name[1]) != (made_by_a_walk.count(name[1]) == 1));
    }
  REQUIRE(names > 30);
}

TEST_CASE("readme: every script and every target of make that a page asks for is there", "[readme]") {
  const std::string makefile = "\n" + contents("Makefile");
  size_t scripts = 0, targets = 0;
  const auto look = [&](const std::string& page, const std::string& line) {
    INFO(page << ": " << line);
    for (const auto& script : matches(line, "(^|[ ;`])(scripts/[a-z_]+\\.(sh|py))")) {
      scripts++;
      REQUIRE(fs::exists(script[2]));
    }
    for (const auto& make : matches(line, "(^|[;&`] *|PATH )make( [^`#;&>]*)?")) {
      for (const std::string& word : words_of(make[2])) {
        if (contains(word, "=") || word.starts_with("-")) break;  // a variable: what follows may be its value
        INFO(word);
        const auto test = matches(word, "^build/[a-z0-9]+/(test_[a-z0-9_]+|bench|check_a_kernel)$");
        if (!test.empty())
          REQUIRE((fs::exists("tests/" + test[0][1] + ".cpp") || fs::exists("docs/" + test[0][1] + ".cpp")));
        else
          REQUIRE(contains(makefile, "\n" + word + ":"));
        targets++;
      }
    }
  };
  for (const std::string& page : pages()) {
    for (const std::string& line : shell_lines(page)) look(page, line);
    for (const auto& span : matches(prose(page), "(`[^`]+)`"))
      if (!contains(span[1], "\n")) look(page, span[1]);
  }
  REQUIRE(scripts > 30);
  REQUIRE(targets > 15);
}

TEST_CASE("readme: it is short, and nothing is folded on any page", "[readme]") {
  const std::string readme = contents("README.md");
  REQUIRE(std::count(readme.begin(), readme.end(), '\n') <= 250);
  REQUIRE(contains(readme, "scripts/architecture.svg"));
  for (const std::string& page : pages()) {
    INFO(page);
    REQUIRE(!contains(contents(page), "<details"));
    if (page.starts_with("docs/")) REQUIRE(readme.find("](" + page) != std::string::npos);
  }
}

TEST_CASE("readme: its map has every room, and the reading path every file of training/ and dataloader/", "[readme]") {
  const std::string floors = between(contents("README.md"), "\n## Map", "\n## ");
  const std::string table =
      between(contents("docs/reading.md"), "\n## The files of training/ and dataloader/", "\n## ");
  for (const char* floor : {"core", "kernels", "layers", "dataloader", "training", "ptx"}) {
    INFO(floor);
    REQUIRE(contains(floors, "\n" + std::string(floor) + "/"));
    for (const auto& file : fs::recursive_directory_iterator(floor)) {
      INFO(file.path());
      if (file.is_directory()) {
        REQUIRE(contains(floors, "\n  " + file.path().filename().string() + "/ "));
      } else if (floor == std::string("training") || floor == std::string("dataloader")) {
        // as `name` or, where one file alone is meant, with its ending, in a row of its folder
        const std::string row = "\n\\| " + file.path().parent_path().generic_string() + "/ \\|[^\n]*";
        REQUIRE(matches(table, row + "`" + file.path().stem().string() + "[`.]").size() > 0);
      }
    }
  }
}

TEST_CASE("readme: the glossary quotes the line that defines a word", "[readme]") {
  size_t words = 0, definitions = 0;
  for (const std::string& line : lines_of(contents("docs/glossary.md"))) {
    INFO(line);
    words += line.starts_with("- **");
    for (const auto& definition : matches(line, "^  \\[([^\\]]+)\\]\\(\\.\\./([^)]+)\\): `(.+)`$")) {
      REQUIRE(words == ++definitions);
      REQUIRE(definition[1] == definition[2]);
      REQUIRE(contains(contents(definition[2]), definition[3]));
    }
  }
  REQUIRE(words == definitions);
  REQUIRE(words > 30);
}

// "14.3" as a table that counts in shares has it: "0.143".
static std::string as_share(const std::string& percent) {
  const size_t decimals = pieces(percent + ".", ".")[1].size();
  return format("%.*f", int(decimals + 2), std::stod(percent) / 100);
}

TEST_CASE("readme: what a claim came to is what its table in results/ says", "[readme]") {
  const std::string number = "[+-]?[0-9]+(\\.[0-9]+)?( ± [0-9]+(\\.[0-9]+)?)?";
  size_t rows = 0, numbers = 0;
  const std::string table = between(
      contents("docs/claims.md"), "\n| what the papers say | theirs | minutes | hours |\n|---|---|---|---|\n", "\n\n");
  for (const std::string& line : lines_of(replaced(table, "−", "-"))) {
    INFO(line);
    const auto named = matches(line, "results/([a-z0-9-]+)\\.(minutes|hours)\\.md");
    REQUIRE(!named.empty());
    const std::vector<std::string> cells = pieces(replaced(line, "\\\\\\|", "/"), "|");
    REQUIRE(cells.size() == 6);  // nothing, claim, theirs, minutes, hours, nothing
    for (const auto& [column, scale] : {std::pair(3, "minutes"), std::pair(4, "hours")}) {
      const std::string page = contents("results/" + named[0][1] + "." + scale + ".md");
      for (const auto& match : matches(cells[column], number)) {
        numbers++;
        const std::string found = match[0];
        std::string share;
        for (const std::string& piece : pieces(found, " ± ")) share += (share.empty() ? "" : " ± ") + as_share(piece);
        INFO(scale << ": " << found);
        REQUIRE(
            (contains(page, " " + found + " ") || contains(page, found + " %") || contains(page, " " + share + " ")));
      }
    }
    rows++;
  }
  REQUIRE(rows == 13);
  REQUIRE(numbers > 25);
}

TEST_CASE("readme: the tables of the benchmark are what the script writes", "[readme]") {
  NEEDS("python3 --version", "python3", "scripts/bench_tables.py");
  REQUIRE(std::system("python3 scripts/bench_tables.py --check") == 0);
  REQUIRE(std::system("python3 scripts/bench_tables.py --chek 2>/dev/null") != 0);  // and writes nothing
}
