// exercises: what `make try` says of answers, right and wrong (tests/exercises/answers.txt); and the way of a student,
// from `make exercise` to the last bit, with g++ alone.
#include <sstream>

#include "tests/pages.h"
#include "tests/script.h"

using namespace gated;

namespace {

struct KnownAnswer {
  std::string exercise, answer, change, said;
};

std::vector<KnownAnswer> known_answers() {
  std::vector<KnownAnswer> all;
  std::istringstream file(contents("tests/exercises/answers.txt"));
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    KnownAnswer& answer = all.emplace_back();
    std::istringstream(line) >> answer.exercise >> answer.answer;
    std::getline(file, answer.change);
    std::getline(file, answer.said);
  }
  return all;
}

// "a ... b": does the text hold a, and behind it b?
void require_in_order(const std::string& text, const std::string& words) {
  size_t at = 0;
  for (size_t from = words.find_first_not_of(' '), to; from != std::string::npos;
       from = to == words.npos ? to : to + 5) {
    to = words.find(" ... ", from);
    const std::string part = words.substr(from, to - from);
    INFO("expected: " << part);
    at = text.find(part, at);
    REQUIRE(at != std::string::npos);
    at += part.size();
  }
}

// By number and name, in their order.
std::map<std::string, std::string> exercises() {
  std::map<std::string, std::string> all;
  for (const auto& file : fs::directory_iterator("tests/exercises"))
    if (file.path().extension() == ".cu") all[file.path().stem().string().substr(3)] = file.path().generic_string();
  return all;
}

}  // namespace

TEST_CASE("exercises: of every answer is said what is right and what is wrong with it", "[exercises]") {
  const Folder f;
  std::map<std::string, std::set<std::string>> kinds;
  for (const KnownAnswer& known : known_answers()) {
    const Said said = f.run("cd {repo} && {build}/exercises/answers " + known.exercise + " " + known.answer);
    INFO(known.exercise << " " << known.answer << ":\n" << said.text);
    require_in_order(said.text, known.said);
    const bool right =
        said.text.starts_with("equal to the bit") || said.text.starts_with("right, but in another order");
    REQUIRE(said.exit_code == (right ? 0 : 1));
    REQUIRE((right || said.text.starts_with("wrong: ")));
    if (known.answer == "solution") REQUIRE(said.text.starts_with("equal to the bit"));
    kinds[known.exercise].insert(known.answer);
  }
  for (const auto& [name, file] : exercises()) {
    INFO(name);
    REQUIRE(kinds[name].count("solution") == 1);
    REQUIRE(kinds[name].size() >= 6);
  }
}

TEST_CASE("exercises: the project's kernels are right in the same eyes, and ask memory for what is told of them",
          "[exercises]") {
  const Folder f;
  if (f.run("test -e {build}/exercises/project").exit_code != 0) {
    WARN("the bytes of the project's kernels were not counted (make test-all, or make build/exercises/project)");
    return;
  }
  std::istringstream told(contents("tests/exercises/project_bytes.txt"));
  size_t exercises = 0;
  for (std::string name, bytes, file; told >> name >> bytes >> file; exercises++) {
    const std::string said = f.done("cd {repo} && {build}/exercises/project " + name + " solution");
    INFO(name << ":\n" << said);
    REQUIRE(said.starts_with("equal to the bit\n"));
    REQUIRE(contains(said, "ask memory for " + bytes + ", "));
    REQUIRE(fs::exists(file));
  }
  REQUIRE(exercises == 12);
}

TEST_CASE("exercises: each has hints in three steps, usual mistakes, a solution of at most 40 lines, and a chapter",
          "[exercises]") {
  const Folder f;
  const std::string book = contents("docs/book.md");
  for (const auto& [name, file] : exercises()) {
    INFO(name);
    const std::string text = contents(file);
    require_in_order(text,
                     "// Exercise  ... // hint 1: ... // hint 2: ... // hint 3: ... // A wrong answer usually ... ");
    const std::string solution = f.run("cd {repo} && scripts/exercise.sh solution " + name).text;
    REQUIRE(count(solution, "\n") <= 41);
    REQUIRE(count(solution, "\n") >= 2);
    // What is taken holds no call of the project's operations, which a student's program does not link.
    const std::string taken = f.run("cd {repo} && scripts/exercise.sh gap " + name).text;
    REQUIRE(contains(taken, "// yours\n"));
    for (const char* rest : {"PROJECT", "ctx", "<<<", ">>>"}) REQUIRE(!contains(taken, rest));
    REQUIRE(contains(book, "[" + name + "](../" + file + ")"));
  }
}

TEST_CASE("exercises: a student takes one, tries it, is told, and has it right to the bit", "[exercises]") {
  const Folder f;
  f.done(
      "cp -rp {repo}/Makefile {repo}/train_gpt.cu {repo}/core {repo}/kernels {repo}/scripts . && mkdir tests && "
      "cp -rp {repo}/tests/exercises {repo}/tests/numbers.h tests");
  const std::string make = "env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make NVCC= ";
  REQUIRE(says(f.done(make + "exercise"), {"> activation", "next: make exercise OP=activation"}));
  REQUIRE(contains(ended(f.run(make + "exercise OP=nothing"), 2).text, "expected one of: activation "));
  for (const char* way : {"", " WATCH=1"})
    REQUIRE(contains(ended(f.run(make + "try OP=activation" + way), 2).text, "make exercise OP=activation begins it"));
  REQUIRE(contains(f.done(make + "exercise OP=activation"), "make try OP=activation"));
  const std::string begun = f.read("exercises/activation.cu");
  REQUIRE(!contains(begun, "dx[i] = dy[i] * silu_slope(x[i]);\n  // "));
  REQUIRE(contains(begun, "void activation_backward_ref("));
  REQUIRE(contains(f.done(make + "exercise"), "next: make try OP=activation"));

  REQUIRE(contains(ended(f.run(make + "try OP=activation"), 2).text, "row 0, column 0 is nan"));
  const std::string solution = f.done(make + "solution OP=activation");
  const size_t gap = begun.find("  // yours");
  REQUIRE(gap != std::string::npos);
  f.write("exercises/activation.cu", begun.substr(0, gap) + solution + begun.substr(gap));
  REQUIRE(f.done(make + "try OP=activation").starts_with("equal to the bit\n"));
  REQUIRE(says(f.done(make + "exercise"), {"  activation", "equal to the bit"}));
  // Of entr, which need not be here, a stand-in says what it is asked to do.
  f.program("bin/entr", "cat; echo entr \"$*\"");
  REQUIRE(says(f.done("PATH='" + (f / "bin") + "':$PATH; " + make + "try OP=activation WATCH=1"),
               {"exercises/activation.cu\n", "entr -c -s make --no-print-directory try OP=activation WATCH="}));
  // What is written is not written over.
  REQUIRE(contains(ended(f.run(make + "exercise OP=activation"), 2).text, "stays as it is"));
  REQUIRE(contains(f.read("exercises/activation.cu"), "silu_slope(x[i]);"));
}
