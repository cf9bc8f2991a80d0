// terminal: text that fits a width. (What a terminal shows of a run, also when it is made narrower:
// tests/test_cli.cpp.)
#include "tests/contents.h"
#include "training/flags/command_line.h"
#include "training/process/terminal.h"

using namespace gated;

TEST_CASE("terminal: text is wrapped between words, below its first line's indent", "[terminal]") {
  REQUIRE(wrapped("name  ", "one two three four", 6, 80) == "name  one two three four\n");
  REQUIRE(wrapped("name  ", "one two three four five", 6, 26) == "name  one two three four\n      five\n");
  REQUIRE(wrapped("name  ", "one two three", 6, 14) == "name  one two\nthree\n");  // less than 20 columns would be left
  REQUIRE(wrapped("", "unbreakableword and", 0, 5) == "unbreakableword\nand\n");
}

TEST_CASE("terminal: a line gives way from its right end: shorter forms, then fewer columns", "[terminal]") {
  const std::vector<Column> columns = {
      {"step 1"}, {"loss 2.5"}, {"norm 1.23", "norm 1"}, {"50.5% of peak", "50% peak", "50%"}};
  REQUIRE(fitted(columns, 80) == "step 1  loss 2.5  norm 1.23  50.5% of peak");
  REQUIRE(fitted(columns, 42) == fitted(columns, 80));
  REQUIRE(fitted(columns, 41) == "step 1  loss 2.5  norm 1.23  50% peak");
  REQUIRE(fitted(columns, 36) == "step 1  loss 2.5  norm 1  50% peak");
  REQUIRE(fitted(columns, 33) == "step 1  loss 2.5  norm 1  50%");
  REQUIRE(fitted(columns, 28) == "step 1  loss 2.5  norm 1");
  REQUIRE(fitted(columns, 20) == "step 1  loss 2.5");
  REQUIRE(fitted(columns, 1) == "step 1  loss 2.5");
}

TEST_CASE("terminal: --help fits 80 columns and 60, and says the same in both", "[terminal]") {
  for (const char* topic : {"", "all", "norm"}) {
    for (size_t width : {60, 80, 200})
      for (const std::string& line : lines_of(help_text(width, topic))) {
        INFO(line);
        REQUIRE(line.size() <= width);
      }
    REQUIRE(words_of(help_text(60, topic)) == words_of(help_text(200, topic)));
  }
}

TEST_CASE("terminal: in --help what a name means stands in a column, and a name that reaches it in a line of its own",
          "[terminal]") {
  size_t alone = 0;
  for (const std::string& line : lines_of(help_text(80, "all"))) {
    INFO(line);
    const size_t begin = line.find_first_not_of(' '), column = begin == 2 ? 29 : 21;
    if (!(begin == 2 && line.starts_with("  --")) && begin != 8) continue;
    const bool named_alone = line.find(' ', begin) == line.npos;
    if (!named_alone) REQUIRE((line[column - 1] == ' ' && line[column] != ' '));
    alone += named_alone;
  }
  REQUIRE(alone > 0);
}
