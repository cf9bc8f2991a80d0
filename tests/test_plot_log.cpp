// plot_log: what scripts/plot_log.py draws of a log, and what it refuses. A matplotlib that only writes down its calls
// stands in for the real one. Needs python3; without one it warns.
#include "tests/script.h"

using namespace gated;

namespace {

Said plot(const Folder& folder, const std::string& arguments) {
  return folder.run("PYTHONPATH=modules {repo}/scripts/plot_log.py " + arguments);
}

const char* const recorder = R"(
import sys
from unittest.mock import MagicMock
def savefig(name, dpi):
    print(*pyplot.mock_calls, sep="\n")
    if name.endswith(".letter"): raise ValueError("Format 'letter' is not supported")
pyplot = sys.modules[__name__] = MagicMock()
pyplot.subplots.return_value = pyplot.figure, (pyplot.losses, pyplot.norms)
pyplot.figure.savefig.side_effect = savefig
)";

}  // namespace

TEST_CASE("plot_log: train, validation and bigrams are drawn and named; what is no log is refused in a line",
          "[plots]") {
  WITH_PYTHON(f, "scripts/plot_log.py");
  f.write("modules/matplotlib/__init__.py", "def use(backend): pass\n");
  f.write("modules/matplotlib/pyplot.py", recorder);
  const std::string step = R"({"step":1,"loss":5.5,"gradient_norm":1.5,"learning_rate":0.1,"seconds":0.1})"
                           "\n";
  f.write("one/log.jsonl", R"({"step":0,"bigram_entropy":2.5})"
                           "\n" +
                               step +
                               R"({"step":1,"validation_loss":5.25})"
                               "\n");
  f.write("two/log.jsonl", step + step + R"({"step":3,"lo)");  // still being written, and without validation

  const Said drawn = ended(plot(f, (f / "one") + " " + (f / "two") + " -o " + (f / "x.png")));
  REQUIRE(says(
      drawn.text,
      {"losses.plot([1], [5.5], alpha=0.4, lw=1, color='#0072B2', linestyle='-', label='one, train')",
       "losses.plot([1], [5.25]", "label='one, validation'",
       "losses.plot([1, 1], [5.5, 5.5], alpha=0.4, lw=1, color='#D55E00'", "label='two, train'", "losses.axhline(2.5",
       "label='bigrams, 2.5000'", "losses.legend", "norms.semilogy([1], [1.5]", "figure.savefig("}));
  REQUIRE(!contains(drawn.text, "two, validation"));
  // What matplotlib would take for a formula, for a line without a name, and what it could not write.
  f.write("$x$/log.jsonl", step);
  f.write("_x/log.jsonl", step);
  f.write("caf\xe9/log.jsonl", step);
  REQUIRE(says(ended(plot(f, "'$x$' _x 'caf\xe9' -o 'caf\xe9.png'")).text,
               {R"('\\$x\\$, train')", "label=' _x, train'", R"('caf\\xe9, train')", "wrote caf\\xe9.png\n"}));

  fs::create_directory(f / "empty");
  require_refused_at_once(plot(f, f / "missing"), "missing: no such folder");
  require_refused_at_once(plot(f, f / "empty"), "empty: holds no log.jsonl");
  require_refused(plot(f, f / "one" + " -o a.letter"), "a.letter: cannot write: Format 'letter' is not supported");

  // What no run writes; and null, as JSON says what is not finite.
  const auto plotted = [&](const std::string& log) {
    f.write("other/log.jsonl", log);
    return plot(f, f / "other");
  };
  const auto log = [&](const std::string& line) { return plotted(line + "\n" + step); };
  require_refused_at_once(plotted("{\"step\":0,\"bigram_entropy\":2.5}\n"), "log.jsonl: holds no step yet");
  for (const std::string& line : {std::string("not JSON"), "{\"step\":1,\"loss\":" + std::string(100000, '[')})
    require_refused_at_once(log(line), "other/log.jsonl: line 1 is no JSON");
  const std::vector<std::string> values = {"[1]", "{}", "\"\\ud800\"", "true", "-1e308", std::string(400, '9')};
  for (const char* key : {"loss", "gradient_norm", "validation_loss", "bigram_entropy"})
    for (const std::string& value : values)
      require_refused_at_once(log("{\"step\":7,\"" + std::string(key) + "\":" + value + "}"),
                              "other/log.jsonl: " + std::string(key) + " of step 7 is no number");
  for (const char* line : {"{\"loss\":1}", "{\"step\":\"x\",\"loss\":1}", "{\"step\":null}", "{\"step\":[]}"})
    require_refused_at_once(log(line), "other/log.jsonl: an entry has no step: was it written by ./train?");
  const Said unfinite =
      ended(log(R"({"step":1,"loss":null,"gradient_norm":null,"bigram_entropy":null,"\ud800":"\ud800"})"));
  REQUIRE(contains(unfinite.text, "plot([1, 1], [nan, 5.5]"));
  f.run("mkdir pipe; mkfifo pipe/log.jsonl");
  require_refused_at_once(f.run("PYTHONPATH=modules timeout 60 {repo}/scripts/plot_log.py pipe"),
                          "pipe/log.jsonl: not a regular file");

  // A python without matplotlib: the script goes on with Debian's where that has it, and else says what to do.
  f.write("modules/matplotlib/__init__.py", "raise ImportError\n");
  require_refused_at_once(plot(f, f / "one"), "has no matplotlib: run scripts/setup.sh --plots");
}
