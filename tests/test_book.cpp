// book: the book holds to the code. Every file of kernels/ is in a chapter or is named as one that is not; of the pages
// that scripts/book.py writes every link leads somewhere, and the sums that they show are those of core/reduce.cuh; and
// a comment is set as it is meant. (That the links of docs/book.md lead to files: tests/test_readme.cpp.)
#include <filesystem>
#include <set>

#include "core/reduce.cuh"
#include "tests/pages.h"
#include "tests/script.h"

using namespace gated;

TEST_CASE("book: every file of kernels/ is in a chapter or in the list of those that are not", "[book]") {
  const std::string list = contents("docs/book.md");
  size_t files = 0;
  for (const auto& file : fs::recursive_directory_iterator("kernels")) {
    if (file.is_directory()) continue;
    const std::string path = file.path().generic_string();
    INFO(path);
    REQUIRE(count(list, "[" + path + "](../" + path + ")") == 1);
    files++;
  }
  REQUIRE(files > 100);
}

TEST_CASE("book: every chapter has files and a test, and those of one lecture are chapters", "[book]") {
  const std::string list = contents("docs/book.md");
  const size_t chapters = count(list, "\n## ") - 1;  // the last section is none
  REQUIRE(count(list, "\n- read: [") == chapters);
  REQUIRE(count(list, "\n- test: [tests/") == chapters);
  REQUIRE(count(between(list, "**One lecture, six chapters:**", "\n\n"), "](#") == 6);
}

namespace {

// A float as the pages show its bits.
std::string hexadecimal(float x) {
  return format("%08x", float_bits(x));
}

}  // namespace

TEST_CASE("book: every link of its pages leads somewhere, and the sums on them are those of the code", "[book]") {
  NEEDS("python3 -c 'import pygments, markdown'", "Pygments and Python-Markdown (scripts/setup.sh --book)", "the book")
  const Folder f;
  REQUIRE(contains(f.done("{repo}/scripts/book.py --help"), "usage: book.py"));
  REQUIRE(contains(f.done("{repo}/scripts/book.py book"), "chapters and "));
  REQUIRE(f.names() == std::set<std::string>{"book"});

  std::map<std::string, std::string> pages;
  for (const auto& file : fs::directory_iterator(f.path / "book"))
    pages[file.path().filename().string()] = contents(file.path());
  REQUIRE(pages.size() > 100);
  std::map<std::string, std::set<std::string>> ids;
  for (const auto& [name, text] : pages)
    for (const auto& id : matches(text, "id=\"([^\"]*)\"")) ids[name].insert(id[1]);
  size_t links = 0, anchors = 0;
  for (const auto& [name, text] : pages) {
    if (!name.ends_with(".html")) continue;
    for (const auto& link : matches(text, "(href|src)=\"([^\"]*)\"")) {
      links++;
      const std::string to = link[2];
      INFO(name << " links to " << to);
      if (to.starts_with("https://")) continue;
      const size_t hash = to.find('#');
      const std::string file = hash == 0 ? name : to.substr(0, hash);
      REQUIRE(pages.count(file) == 1);
      if (hash == std::string::npos) continue;
      REQUIRE(ids[file].count(to.substr(hash + 1)) == 1);
      anchors++;
    }
  }
  REQUIRE(links > 1000);
  REQUIRE(anchors > 300);

  // Without PTX a page says what it lacks.
  REQUIRE(contains(pages["rmsnorm.html"], "This is missing: nvcc was not found"));

  float up = 0, down = 0;
  RowSum<float> row;
  for (int n = 1; n <= 4096; n++) {
    up = up + 1.0f / float(n);
    down = down + 1.0f / float(4097 - n);
    row.add(1.0f / float(n));
  }
  REQUIRE(says(pages["exactness.html"], {hexadecimal(up), hexadecimal(down), hexadecimal(row.total())}));
  REQUIRE(up != down);
}

TEST_CASE("book: a comment's prose, formulas and drawings are set", "[book]") {
  const Folder f;
  if (!answers("python3 --version")) return;
  const auto set = [&](const std::string& comment) {
    f.write("comment", comment);
    const std::string said = f.python(
        "from typeset import set_comment\n"
        "link = {'core/a.h': 'a.html'}.get\n"
        "print(set_comment(open('comment').read().split('\\n'), link)[0], end='')\n");
    return said;
  };
  REQUIRE(set("What is told in lines of the source\nis one paragraph.\n\nThe next one.") ==
          "<p>What is told in lines of the source is one paragraph.</p><p>The next one.</p>");
  REQUIRE(set("---- reference") == "<h3>reference</h3>");
  REQUIRE(set("See core/a.h and core/b.h, `x<y`, --flag=a, some_name.") ==
          "<p>See <a href=\"a.html\">core/a.h</a> and core/b.h, <code>x&lt;y</code>, <code>--flag=a</code>, "
          "<code>some_name</code>.</p>");
  REQUIRE(set("Here s_ij is e^(a_i - 1), alpha is x^2, and the delta rule stays.") ==
          "<p>Here s<sub>ij</sub> is e<sup>a<sub>i</sub> - 1</sup>, α is x<sup>2</sup>, and the delta rule stays.</p>");
  // The columns of a formula stay where they are: an index of one letter saves 1.25 of them.
  REQUIRE(set("  y_i = a   so\n  z   = b   so") ==
          "<pre class=\"formula\">y<sub>i</sub> = a<span style=\"display:inline-block;width:4.25ch\"></span>so\n"
          "z   = b   so</pre>");
  REQUIRE(set("    +---+\n    | a |\n    |---|->\n    +---+") ==
          "<pre class=\"drawn\">┌───┐\n│ a │\n├───┼─→\n└───┘</pre>");
}

TEST_CASE("book: of a kernel's listing the inner loop is the one that multiplies most", "[book]") {
  const Folder f;
  if (!answers("python3 --version")) return;
  const std::string said = f.python(
      "import os, sys\nsys.path.insert(0, os.path.join(os.environ['PYTHONPATH'], '..', 'ptx'))\nimport show\n"
      "lines = ['    .reg .f32 %f1', 'A:', 'L_1:', 'fma.rn.f32 a;', 'bra L_1;', 'L_2:', 'fma.rn.f32 b;', "
      "'mma.sync c;', '@%p1 bra L_2;', 'bra L_3;', 'L_3:', '@%p bra A;']\n"
      "def of(*lines, **how): return [line for _, line in show.inner_loop([('f:1', None), *lines], **how)]\n"
      "print(of(*(('f:1', line) for line in lines)))\n"
      "print(of(*(('f:%d' % (n > 4), line) for n, line in enumerate(lines)), places={'f:0'}))\n"
      "print(of(('f:1', 'ret;')))\n");
  REQUIRE(said ==
          "['L_2:', 'fma.rn.f32 b;', 'mma.sync c;', '@%p1 bra L_2;']\n['L_1:', 'fma.rn.f32 a;', 'bra L_1;']\n"
          "['ret;']\n");
}
