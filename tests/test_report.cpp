// report: what scripts/report.py shows of runs, and what it refuses. The runs are made here: a log, and arrays of
// chosen numbers. Needs a python3 with matplotlib; without one it warns.
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/script.h"
#include "training/checkpoint/safetensors.h"

using namespace gated;

namespace {

using Json = nlohmann::ordered_json;

// An array of measures.safetensors; value() gives its elements in order.
struct Array {
  std::vector<size_t> shape;
  std::function<float(size_t)> value;
};

// A run of two layers with two heads, and all that a page can show of it.
struct Run {
  size_t steps = 40, measured_steps = 1;
  std::vector<std::string> flags = {"--steps=40"};
  std::map<std::string, Array> arrays;
  std::map<std::string, std::string> metadata;
  Json measured;

  // Of P positions and C dimensions.
  explicit Run(size_t P = 16, size_t C = 8) {
    const Json fixture = Json::parse(contents("tests/fixtures/report_run.json"));
    fixture["metadata"].get_to(metadata);
    measured = fixture["measured"];
    const auto smooth = [](size_t i) { return 1.0f + 0.5f * float(i * 7919 % 101) / 101; };
    for (size_t c = 0; c < C; c++) measured["final_output_by_dimension"][c] = c == 5 ? 9 : 1;
    arrays = {{"loss_by_position", {{P}, smooth}},
              {"attention_map", {{2, P, P}, [](size_t) { return 0.0625f; }}},
              {"first_token_attention", {{2, 2}, [](size_t i) { return 0.11f * float(i + 1); }}},
              {"value_norm", {{2, P}, smooth}},
              {"activation_by_token", {{3, P, C}, smooth}},
              {"activation_mean", {{3, C}, smooth}},
              {"attention_output_mean", {{2, 2}, [](size_t i) { return i % 2 ? NAN : 0.5f; }}},
              {"attention_output_below", {{2, 3, 3}, [](size_t i) { return i / 3 % 3 ? NAN : 0.1f * float(i % 3); }}},
              {"norm_weight", {{3, C}, smooth}},
              {"final_output", {{C}, [](size_t i) { return i == 5 ? 9.0f : 1.0f; }}}};
  }
  // What the log of another kind of run has too.
  void measure(const std::string& kind) {
    measured.update(Json::parse(contents("tests/fixtures/report_run.json"))[kind]);
  }
  void gate() {
    flags.push_back("--attn=g1");
    metadata["gates"] = "[0,1]";
    measure("gated");
    arrays["gate_histogram"] = {{2, 50}, [](size_t) { return 0.02f; }};
    arrays["gate_mean"] = {{2}, [](size_t) { return 0.125f; }};
    arrays["attention_output_mean"].value = [](size_t) { return 0.5f; };
    arrays["attention_output_below"].value = [](size_t) { return 0.5f; };
  }

  std::string log() const {
    std::string text;
    for (size_t step = 1; step <= steps; step++)
      text += format(R"({"step":%zu,"loss":%g,"gradient_norm":1.5})", step, 2 + 1.0 / double(step)) + "\n";
    text += format(R"({"step":%zu,"validation_loss":2.03125})", steps) + "\n";
    Json entry = measured;
    for (size_t i = 1; i <= measured_steps; i++) {
      entry["step"] = steps * i / measured_steps;
      text += entry.dump() + "\n";
    }
    return text;
  }
  std::string measures() const {
    std::map<std::string, std::string> about = metadata;
    about["flags"] = Json(flags).dump();
    std::vector<TensorForm> forms;
    std::string data;
    for (const auto& [name, array] : arrays) {
      forms.push_back({name, "F32", array.shape});
      for (size_t i = 0; i < *tensor_bytes(array.shape, 1); i++) {
        const float x = array.value(i);
        data.append(reinterpret_cast<const char*>(&x), sizeof x);
      }
    }
    return safetensors_header("measures", forms, about) + data;
  }
};

struct Runs : Folder {
  std::string add(const std::string& name, const Run& run) const {
    write(name + "/log.jsonl", run.log());
    write(name + "/measures.safetensors", run.measures());
    return " " + (path / name).string();
  }
  Said run_report(const std::string& arguments) const {
    return run("{repo}/scripts/report.py --out=page.html " + arguments);
  }
  // The page of these runs.
  std::string report(const std::string& arguments) const {
    REQUIRE(ended(run_report(arguments)).text.starts_with("wrote page.html\n"));
    return read("page.html");
  }
  // Refused in one line that says this, and what was there stays.
  void refused(const std::string& arguments, const std::string& said) const {
    write("page.html", "an older page");
    require_refused_at_once(run_report(arguments), said);
    REQUIRE(read("page.html") == "an older page");
  }
};

// (The scripts take the first of these that has matplotlib.)
#define REPORTS(f)                                                                               \
  NEEDS("python3 -c 'import matplotlib' 2>/dev/null || /usr/bin/python3 -c 'import matplotlib'", \
        "python3 with matplotlib (scripts/setup.sh --plots)", "scripts/report.py");              \
  const Runs f

}  // namespace

TEST_CASE("report: the page shows what the runs hold, and nothing of what none of them does", "[report]") {
  REPORTS(f);
  Run plain, gated;
  gated.gate();
  const std::string runs = f.add("plain", plain) + f.add("gated", gated), page = f.report(runs);
  // The table, and numbers and dimensions that stand in the figures.
  CHECK(says(page, {"2 runs side by side", "--steps=40", "<code><span>--attn=g1</span></code>", ">37.5%<",
                    "head 0 of layer 1:\n50.0%<", ">712.5<", "without token 0:\n33.25<", ">4,321<",
                    ">2<small>7, 2</small>", ">0.125<small>below 0.1:\n68.8%<", ">71.9%<small>below 0.001:\n21.9%<",
                    "dimension 6\nfinal norm<", ">2.0312<", ">Largest activation by layer</h3>",
                    ">Scores of the attention gate</h3>", ">33</text>", ">44</text>", ">5</text>", ">7</text>"}));
  for (const char* absent : {"λ₁", "norms’ gates", "learned sink", "first step with an outlier", "mean decay", "β",
                             "|S|", "expert", "NaN", "nan"})
    CHECK(!contains(page, absent));
  REQUIRE(count(page, "aria-label=\"Scores of the attention gate: gated\"") == 1);
  REQUIRE(count(page, "aria-label=\"Scores of the attention gate: plain\"") == 0);
  REQUIRE(count(page, "<svg ") == count(page, "role=\"img\""));
  // Nothing is loaded from elsewhere.
  for (const char* outside : {"<script ", "<link", "<img", "src=", "@import", "url(http"})
    CHECK(!contains(page, outside));
  REQUIRE(count(page, "<script>") == 1);

  // The same again, byte for byte.
  REQUIRE(f.report(runs) == page);

  // A line says its numbers to the pointer, and every colour of a line has one for dark pages.
  const std::string numbers = f.python(R"py(
import html, json, re
page = open("page.html").read()
pictures = page[page.index("<main>"):page.index("<script>")]
for colour in ("0072b2", "d55e00", "59636e", "1f2328", "b1bac4", "eaeef2", "fefefe"):
    assert not re.search(f"#{colour}", pictures, re.I), colour
names = set(re.findall(r"var\(--([a-z0-9-]+)\)", page)) - {"columns"}
light, dark = (dict(re.findall(r"--([a-z0-9-]+):(#[0-9a-fA-F]+)", part)) for part in page.split("@media screen", 1)[0:2])
assert names <= set(light) and set(light) == set(dark), (names, light)
assert "color-scheme:dark" in page and "@media print" in page
log = [json.loads(line) for line in open("gated/log.jsonl")]
expected = {e["step"]: e["validation_loss"] for e in log if "validation_loss" in e}
figure = re.search(r'<svg role="img" aria-label="Loss: [^>]*data-axes="([^"]*)".*?</svg>', page, re.S)
axes = json.loads(html.unescape(figure[1]))
assert (axes["x"]["name"], axes["y"]["percent"], axes["y"]["log"]) == ("step", False, False), axes
x0, y0, x1, y1 = axes["box"]
found = {}
for path in re.findall(r'<g data-run="1">\s*<path d="([^"]*)"', figure[0]):
    for x, y in re.findall(r"[ML] (\S+) (\S+)", path):
        share = (float(x) - x0) / (x1 - x0), (float(y) - y0) / (y1 - y0)
        step, loss = (axes[k]["from"] + s * (axes[k]["to"] - axes[k]["from"]) for k, s in zip("xy", share))
        found.setdefault(round(step), []).append(loss)
assert expected
for step, loss in expected.items():
    assert any(abs(seen - loss) < 1e-3 * loss for seen in found[step]), (step, loss, found[step])
print(len(expected), "numbers")
)py");
  REQUIRE(contains(numbers, " numbers"));
}

TEST_CASE("report: a long name does not make the page wider than a telephone", "[report]") {
  NEEDS("chromium --version", "chromium", "the width of a page");
  REPORTS(f);
  Run run;
  run.gate();
  f.report(f.add("plain", run) + f.add(std::string(150, 'x'), run));
  // (a window of its own is never so narrow)
  f.write("frame.py", R"py(
import html
page = html.escape(open("page.html").read())
open("frame.html", "w").write(f"""<!DOCTYPE html><iframe id="f" width="390" height="800" srcdoc="{page}"></iframe>
<script>f.onload = () => document.title = "wide: " + f.contentDocument.documentElement.scrollWidth</script>""")
)py");
  const std::string dom = f.done(
      "python3 frame.py && timeout 100 chromium --headless --no-sandbox --disable-gpu "
      "--virtual-time-budget=5000 --dump-dom frame.html 2>/dev/null");
  REQUIRE(std::stoi(between(dom, "<title>wide: ", "<")) <= 390);
}

TEST_CASE("report: the table has a column for every measure that one of the runs has", "[report]") {
  REPORTS(f);
  Run plain, other;
  plain.arrays.erase("activation_mean");
  other.measure("other");
  const std::string page = f.report(f.add("plain", plain) + f.add("other", other)),
                    table = between(page, "<table>", "</table>"), rows = table.substr(table.find("<tbody>"));
  CHECK(says(table, {">first step with an outlier dimension<", ">1,400<", ">0.250<small>below 0.1:\n37.5%<", ">0.969<",
                     ">0.438<", ">3.125<", ">28.1%<small>entropy 1.03 nats\nidle 2<"}));
  REQUIRE(count(rows, "<td>") == 2 * (count(table, "scope=\"col\"") - 1));
  REQUIRE(count(rows, "<td>–</td>") == 6);  // all of the first run
  // Dimensions stand in the order of their mean over all tokens and states, or are not drawn.
  REQUIRE(count(page, "one glance: other\"") == 2);
  REQUIRE(count(page, "one glance: plain\"") == 1);
}

TEST_CASE("report: few points stand for many, and in the order that figures show", "[report]") {
  REPORTS(f);
  f.python(R"py(
import plots
plots.find_matplotlib()
from types import SimpleNamespace
import numpy
from reporting.figures import final_over_training, final_over_training_scale, stream, thinned
from reporting.table import small
# Dimensions by their mean over all tokens and states. Two states of two tokens; there are more, among which dimension 0 is the smallest and dimension 2 the largest.
by_token = numpy.array([[[9, 2, 1], [9, 4, 3]], [[7, 2, 1], [7, 0, 3]]])
mean = numpy.array([[1, 2, 3], [1, 3, 2.5]])
values = stream(SimpleNamespace(arrays={"activation_by_token": by_token, "activation_mean": mean}))
assert values.tolist() == [[1, 2, 8], [3, 2, 8]], values
# A point of a long curve is the mean of neighbours.
x, y = thinned([1, 2, 3, 4, 5, 6, 7], [10, 0, 20, 40, 50, 30, 7], 3)
assert list(x) == [2, 5, 7] and list(y) == [10, 40, 7], (x, y)
assert list(thinned([1, 2], [3, 4], 2)[1]) == [3, 4]
# Outputs over training are drawn in few rows and columns, and no outlier is lost.
def of(values):
    series = numpy.arange(1.0, 1 + len(values)), values
    return SimpleNamespace(series=lambda key: {"final_output_by_dimension": series}[key])
values = numpy.ones((200, 300))
values[101:, 77] = 50
steps, first, drawn = final_over_training(of(values))
assert drawn.shape == (100, 100) and list(steps[:2]) == [1.5, 3.5] and list(first[:2]) == [0, 3], drawn.shape
assert set(numpy.argwhere(drawn > 1)[:, 0]) == {25} and list(drawn[25, 49:53]) == [1, 25.5, 50, 50]
unknown = numpy.full((2, 3), numpy.nan)
scale = final_over_training_scale([of(unknown), of(numpy.concatenate([unknown, [[1, 2, 8]]]))])
assert 1 <= scale.vmin < 1.1 and scale.vmax == 8
assert final_over_training_scale([of(unknown)]).vmin > 0
# What stands below a number, of two others: nothing where the run lacks one of them.
below = small("{} of {}", ("a", "{:.0f}"), ("b", "{:.1%}"))
assert below(SimpleNamespace(last={"a": 3, "b": 0.5}.get)) == "3 of 50.0%"
assert below(SimpleNamespace(last={"a": 3}.get)) == ""
)py");
}

TEST_CASE("report: of runs that ./train wrote every figure and every column is there", "[report]") {
  REPORTS(f);
  std::string text;
  for (size_t i = 0; i < 6000; i++) text += "abcdefgh "[i * i % 1009 % 9];
  f.write("text.txt", text);
  const std::string train =
      "{repo}/train --device=cpu --threads=1 --data=text.txt --batch=2 --context=80 --hidden=16 --heads=2 --kv-heads=1 "
      "--head-dim=8 --layers=4 --steps=4 --measure-every=2 --val-batches=1 --sample-tokens=0 ";
  for (const char* flags : {"--out=all --norm=gated --norm-rank=3 --attn=g1 --attn-sink=learned --mixer=hybrid "
                            "--experts=3 --expert-hidden=24",
                            "--out=preaffine --norm=preaffine --ffn-hidden=24"})
    f.done(train + flags);
  const std::string page = f.report("all preaffine --pictures=pictures");

  // What a page can be made of, all of it written by one of the two; and what it was made of. No dimension stands out
  // in models that hardly began.
  REQUIRE(f.python(R"py(
import json, os, plots
plots.find_matplotlib()
from reporting.catalogue import SECTIONS
from reporting.runs import ARRAYS, LOG, flat, read_runs
from reporting.table import COLUMNS
names = "all", "preaffine"
runs = read_runs(names)
logged = {key for name in names for line in open(f"{name}/log.jsonl") for key in flat(json.loads(line))}
figures = [figure.name for section in SECTIONS for figure in section.figures]
print("not logged:", sorted(set(LOG) - logged))
print("no array:", sorted(set(ARRAYS) - {name for run in runs for name in run.arrays}))
print("not drawn:", [name for name in figures if not os.path.exists(f"pictures/{name}.svg")])
print("no column:", [head for head, value, _ in COLUMNS if all(value(run) is None for run in runs)])
)py") == "not logged: []\nno array: []\nnot drawn: []\nno column: ['first step with an outlier dimension']\n");
  const auto shown = [&](const std::string& title, const std::string& run) {
    return count(page, "aria-label=\"" + title + ": " + run + "\"");
  };
  for (const char* run : {"all", "preaffine"}) {
    INFO(run);
    REQUIRE(shown("Attention and residual stream at one glance", run) == 2);
    REQUIRE(shown("Output of the final norm by dimension over training", run) == 1);
    REQUIRE(shown("Sharpness of each layer&#x27;s outputs over training", run) == 4);
    REQUIRE(shown("Scores of the attention gate", run) == size_t(run == std::string("all")));
    REQUIRE(shown("λ₁ of PreAffine by norm and dimension", run) == size_t(run != std::string("all")));
  }
}

TEST_CASE("report: the gallery trains its models and draws its pages", "[report]") {
  REPORTS(f);
  f.done("cp -rp {repo}/scripts .");
  f.program("train", "exec " + fs::current_path().string() +
                         "/train \"$@\" --hidden=32 --ffn-hidden=48 --val-batches=1");  // seconds, not a minute
  // A page of seven runs takes long to draw: in its place stands that the runs are there.
  fs::rename(f / "scripts/report.py", f / "scripts/draw.py");
  f.program("scripts/report.py",
            "case ${8-} in --out=*) ls $1 $2 $3 $4 $5 $6 $7 >${8#--out=} && echo 7 runs side by side >>${8#--out=};;\n"
            "*) exec ${0%report.py}draw.py \"$@\";; esac");
  const Said said = ended(f.run("scripts/gallery.sh 'of all' 2"));
  REQUIRE(contains(said.text, "trains 18 models"));
  REQUIRE(count(said.text, "\ntrained  ") == 18);
  for (const std::string run : {"plain", "text-plain", "residual"}) {
    const std::string log = f.read("of all/" + run + "/log.jsonl");
    REQUIRE(says(log, {"\"step\":2,"}));
    REQUIRE(!contains(log, "\"step\":3,"));
  }
  for (const auto& [page, runs] : {std::pair("report", "7 runs"), {"text", "7 runs"}, {"depth", "4 runs"}})
    REQUIRE(contains(f.read(format("of all/%s.html", page)), std::string(runs) + " side by side"));
  // What README shows.
  for (const char* picture : {"sinks", "peak", "first-token"})
    REQUIRE(!f.read(format("of all/pictures/%s.svg", picture)).empty());

  // A run that cannot be is said, and ends all.
  const Said refused = f.run("scripts/gallery.sh other none");
  REQUIRE(refused.exit_code != 0);
  REQUIRE(says(refused.text, {"--steps=none"}));
  REQUIRE(!fs::exists(f.path / "other/report.html"));
}

TEST_CASE("report: a log alone is enough, also one that is still being written or has diverged", "[report]") {
  REPORTS(f);
  f.write("one/log.jsonl", Run().log() + R"({"step":41,"lo)");
  f.write("two/log.jsonl", R"({"step":1,"loss":null,"gradient_norm":0,"largest_activation":null}
{"step":1,"outliers_by_state":[[1],[2]],"outlier_sizes_by_state":[[0],[0]],"median_by_state":[0,0]}
{"step":2,"outliers_by_state":[[null],[null]],"outlier_sizes_by_state":[[null],[null]],"median_by_state":[null,null]}
{"step":2,"final_output_by_dimension":[0,0]}
{"step":3,"final_output_by_dimension":[null,null]}
)");
  REQUIRE(f.run_report("two").text == "wrote page.html\n");
  REQUIRE(f.run_report("one two").text == "wrote page.html\n");
  const std::string page = f.read("page.html");
  REQUIRE(contains(page, "Largest activation by layer"));
  REQUIRE(!contains(page, "one glance"));
}

TEST_CASE("report: eight large runs make a page of at most three megabytes", "[report]") {
  REPORTS(f);
  Run run(256, 512);
  run.steps = 3000, run.measured_steps = 100;
  run.gate();
  // What no picture file makes smaller.
  const auto noise = [](size_t i) { return float((i * 2654435761u >> 7) % 4093) / 4093; };
  for (const char* name : {"attention_map", "activation_by_token", "norm_weight"}) run.arrays[name].value = noise;
  for (size_t c = 0; c < 512; c++) run.measured["final_output_by_dimension"][c] = noise(c);
  std::string runs;
  for (int i = 0; i < 8; i++) runs += f.add(format("run-%d", i), run);
  const size_t size = f.report(runs).size();
  REQUIRE((size > 500'000 && size <= 3'000'000));
}

TEST_CASE("report: what is no run, or half of one, is refused in a line", "[report]") {
  REPORTS(f);
  const Run good;
  // Folders with a file that is bad, and what is said of each. One python reads them all: to start one takes longer
  // than to read a hundred runs.
  std::vector<std::pair<std::string, std::string>> bad;
  const auto refused = [&](const std::string& file, const std::string& bytes, const std::string& said) {
    const std::string name = format("bad%zu", bad.size());
    f.add(name, good);
    f.write(name + "/" + file, bytes);
    bad.push_back({f / name, file + ": " + said});
  };
  refused("log.jsonl", "\xff\xfe\n" + good.log(), "cannot be read as text");
  refused("log.jsonl", "[1]\n" + good.log(), "line 1 is no JSON object");
  for (const std::string& line : {std::string("not JSON"), "{\"step\":1,\"loss\":" + std::string(100000, '[')})
    refused("log.jsonl", line + "\n" + good.log(), "line 1 is no JSON");
  refused("log.jsonl", "{\"step\":0,\"bigram_entropy\":2.5}\n", "holds no step yet");
  // Of tests/fixtures/refused_runs.json the lines of a log, and the metadata of arrays.
  const Json table = Json::parse(replaced(contents("tests/fixtures/refused_runs.json"), "DIGITS",
                                          std::string(400, '9')));  // more than a float can be
  for (const Json& row : table["log"]) refused("log.jsonl", good.log() + row[0].get<std::string>() + "\n", row[1]);

  const std::string arrays = "measures.safetensors", bytes = good.measures();
  for (const size_t n : {size_t(7), size_t(100)}) refused(arrays, bytes.substr(0, n), format("cut short at %zu", n));
  refused(arrays, bytes.substr(0, bytes.size() - 1), "cut short: value_norm ends at");
  refused(arrays, std::string(64, '\x7f'), "cut short at 64 bytes, or no safetensors file");
  refused("step_00000040.safetensors", "abc", "cut short");

  const auto refused_run = [&](const std::function<void(Run&)>& spoil, const std::string& said) {
    Run run;
    spoil(run);
    refused(arrays, run.measures(), said);
  };
  for (const Json& row : table["metadata"])
    refused_run([&](Run& r) { r.gate(), r.metadata[row[0]] = row[1].get<std::string>(); }, row[2]);
  refused_run([](Run& r) { r.arrays["final_output"].shape = {9}; }, "final_output has shape [9]");
  refused_run([](Run& r) { r.arrays["value_norm"].shape = {2, 4, 4}; }, "value_norm has shape [2, 4, 4]");
  refused_run([](Run& r) { r.arrays["norm_weight"].value = [](size_t) { return NAN; }; },
              "norm_weight holds values that are not finite: the run diverged");

  Json folders;
  for (const auto& [folder, said] : bad) folders.push_back(folder);
  f.write("folders.json", folders.dump());
  const Json refusals = Json::parse(f.python(R"py(
import json, plots
plots.find_matplotlib()
from reporting.runs import read_runs
def refusal(folder):
    try:
        read_runs([folder])
    except SystemExit as refusal:
        return refusal.code
print(json.dumps([refusal(folder) or "accepted" for folder in json.load(open("folders.json"))]))
)py"));
  for (size_t i = 0; i < bad.size(); i++) {
    const std::string refusal = refusals.at(i);
    CHECK(refusal.starts_with("error: "));
    CHECK(one_line(refusal, {bad[i].second}));
  }

  // Pipes that nobody writes to.
  for (const char* file : {"log.jsonl", "measures.safetensors", "step_00000001.safetensors"}) {
    f.add("pipe", good);
    f.run(std::string("rm -f pipe/") + file + "; mkfifo pipe/" + file);
    require_refused_at_once(f.run("timeout 60 {repo}/scripts/report.py pipe"),
                            std::string("pipe/") + file + ": not a regular file");
    f.run("rm -r pipe");
  }

  // What the script makes of a refusal.
  std::string runs;
  for (int i = 0; i < 22; i++) runs += f.add("good", good);
  f.refused(runs, "22 runs: at most 21");
  f.refused("good missing", "missing: no such folder");
  f.refused(bad[5].first, bad[5].second);
  f.write("short/log.jsonl", "{\"step\":1,\"loss\":2}\n");
  REQUIRE(f.run_report("short --out=page.html/page.html").text ==
          "error: page.html/page.html: cannot write: Not a directory\n");
  f.write("modules/matplotlib/__init__.py", "raise ImportError\n");
  f.refused("good modules", "modules: holds no log.jsonl");
  require_refused_at_once(f.run("PYTHONPATH=modules {repo}/scripts/report.py good"),
                          "has no matplotlib: run scripts/setup.sh --plots");
}

TEST_CASE("report: what --out names is written to, not replaced, where it is a link or no file", "[report]") {
  WITH_PYTHON(f, "scripts/report.py");
  f.write("write.py", "import sys\nfrom report import write\nfor path in sys.argv[1:]:\n    write(path, 'a page')\n");
  const std::string environment = "export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={repo}/scripts; ",
                    write = environment + "timeout 60 python3 write.py ";
  f.run(
      "mkdir pages; echo old >pages/target.html; ln -s pages/target.html link; ln -s pages/new.html dangling; "
      "ln -s /dev/null null; mkfifo pipe");
  REQUIRE(f.done(write + "link dangling null /dev/stdout | cat") == "a page");
  for (const char* link : {"link", "dangling"}) REQUIRE(fs::is_symlink(f.path / link));
  for (const char* target : {"pages/target.html", "pages/new.html"}) REQUIRE(f.read(target) == "a page");
  REQUIRE(f.run("ls pages").text == "new.html\ntarget.html\n");
  REQUIRE(fs::is_character_file(f / "null"));
  f.done(write + "pipe & cat pipe >piped; wait");
  REQUIRE(f.read("piped") == "a page");
  // A file that has the name of what is unfinished is somebody's.
  const Said taken = f.run(environment + "echo mine >second.html.tmp.$$; exec python3 write.py second.html");
  require_refused(taken, "second.html: cannot write: File exists");
  REQUIRE(f.run("cat second.html.tmp.*").text == "mine\n");
}

TEST_CASE("report: runs whose names are formulas, or no UTF-8, and states that are all massive activations, are drawn",
          "[report]") {
  REPORTS(f);
  Run run;
  for (const char* key : {"outliers_by_state", "outlier_sizes_by_state"})
    run.measured[key][1] = {nullptr, nullptr, nullptr};
  run.measured["median_by_state"][1] = nullptr;
  std::string runs;
  for (const char* name : {"$x_1$ and $\\frac$", "_hidden", "caf\xe9"}) {
    f.add(name, run);
    std::string measures = run.measures();
    const std::string flag = "--steps=40", half_a_character = R"(--x\\ud800)";  // of JSON in JSON
    measures.replace(measures.find(flag), flag.size(), half_a_character);
    f.write(name + std::string("/measures.safetensors"), measures);
    runs += " '" + f / name + "'";
  }
  REQUIRE(count(ended(f.run_report(runs + " --pictures=pictures")).text, "\n") == 2);
  REQUIRE(contains(f.read("page.html"), R"(--x\ud800)"));
  for (const char* file : {"page.html", "pictures/peak.svg", "pictures/top-dimensions.svg"})
    CHECK(says(f.read(file), {">$x_1$ and $\\frac$<", "_hidden<", ">caf\\xe9<"}));
  REQUIRE(!fs::exists(f.path / "pictures/pre-weights.svg"));
  // The largest of the states that are known: 300 over 0.5, so the axis goes past 500.
  REQUIRE(contains(f.read("pictures/outliers.svg"), ">500<"));
}
