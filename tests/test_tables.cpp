// tables: scripts/tables.py runs the papers' rows and compares. Figures are held to runs of ./train by hand,
// comparisons to sums done by hand. Needs python3; without one it warns.
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/script.h"

using namespace gated;
using Json = nlohmann::json;

// A case of a script of Python that asserts what it expects of another one.
#define PYTHON_CASE(name, looks_at, lines) \
  TEST_CASE(name, "[tables]") {            \
    WITH_PYTHON(f, looks_at);              \
    f.python(lines);                       \
  }

// What a table's JSON holds.
static Json table_of(const Folder& f, const std::string& name) {
  return Json::parse(f.read("results/" + name + ".seconds.json"));
}

TEST_CASE("tables: every row builds a model, and dense rows are of one size", "[tables]") {
  WITH_PYTHON(f, "scripts/tables.py");
  for (auto [scale, size] : {std::pair{"minutes", 200'000.0}, {"hours", 800'000.0}}) {
    std::string said = f.done(format("{repo}/scripts/tables.py p1-2 p2-1 stability --describe --scale=%s", scale));
    std::erase(said, ',');
    const std::vector<std::string> rows = lines_of(said);
    for (const std::string& row : rows) {
      INFO(row);
      REQUIRE(std::fabs(std::stod(row) / size - 1) < 0.01);
    }
    REQUIRE(rows.size() == 11 + 2 * 23 + 6 * 6);
  }
  const std::string gpu = f.done("{repo}/scripts/tables.py p1-1 p1-4 p2-1 --describe --scale=gpu");  // the main rows
  REQUIRE(count(gpu, "parameters") == 5 + 4 + 2 * 4);
  REQUIRE(count(gpu, "   123,9") + count(gpu, "   124,0") == 17);
  const std::string experts = f.done("{repo}/scripts/tables.py p1-1 p1-3 p1-4 p1-6 --describe");
  REQUIRE(count(experts, "parameters") == 15 + 5 + 7 + 6);
}

TEST_CASE("tables: the paper's scale prints the paper's models", "[tables]") {
  WITH_PYTHON(f, "scripts/tables.py");
  const std::string said = f.done("{repo}/scripts/tables.py p1-1 p1-2 p1-5 p2-1 p2-2 --scale=paper");
  REQUIRE(says(said,
               {"p1-1 row 4: ./train --preset=p1-15a2b --steps=95367 --batch=1 --micro-batches=1024 --warmup=1000 "
                "--min-lr=3e-5 --experts=132 --lr=0.002 ",
                "p1-2 row 48L 2x G1: ./train --preset=p1-1.7b-48l --steps=95367 --batch=1 --micro-batches=1024 "
                "--warmup=1000 --min-lr=3e-5 --attn=g1 --lr=0.008 --match-params=--attn=full ",
                " --attn=g1 --lr=0.004 --context=32768 --rope-theta=1e6 --data=LONG.bin --from=SHORT --out=FOLDER\n",
                "--out=FOLDER --evaluate --yarn=4 --context=131072\n", " --norm=dyt --embedding-scale=on --lr=0.0005 ",
                "--attn=g1 --norm=gated --lr=0.0043 --data=FILE.bin --out=FOLDER --evaluate --quantize=nvfp4-w4a4 "
                "--smoothquant=0.5 --val-batches=64\n"}));
  f.done("{repo}/train --describe " + between(said, "p2-1 row 20: ./train ", " --data="));
}

TEST_CASE("tables: figures are those of the runs, and what is finished is not run again", "[tables]") {
  WITH_PYTHON(f, "scripts/tables.py");
  const std::string table = "{repo}/scripts/tables.py p1-4 --scale=seconds --seeds=2 --runs=runs --results=results";
  const std::string said = f.done(table);
  const Json first = table_of(f, "p1-4");
  REQUIRE(first["rows"].size() == 7);

  // The row's flags, run by hand.
  const Json& row = first["rows"][1];
  REQUIRE(row["name"] == "G1 elementwise");
  const std::string flags = row["runs"]["sinks"]["flags"];
  size_t i = 0;
  for (const char* seed : {"1337", "1"}) {
    const Said run =
        f.run(format("{repo}/train %s --seed=%s --out=by_hand_%s --sample-tokens=0", flags.c_str(), seed, seed));
    INFO(run.text);
    REQUIRE(contains(run.text, row["runs"]["sinks"]["fingerprints"][seed].get<std::string>()));
    Json measured;
    for (const std::string& line : lines_of(f.read(format("by_hand_%s/log.jsonl", seed))))
      if (contains(line, "measured_tokens")) measured = Json::parse(line);
    REQUIRE(row["first"]["values"][i] == measured["first_token_attention"]);
    REQUIRE(row["score"]["values"][i] == measured["gate_score_mean"]);
    const std::vector<double> largest = measured["largest_activation_by_state"];
    double sum = 0;
    for (size_t state = 1; state < largest.size(); state++) sum += largest[state];
    REQUIRE(row["m_act"]["values"][i].get<double>() == sum / double(largest.size() - 1));
    i++;
  }
  const std::vector<double> before = first["rows"][0]["first"]["values"], behind = row["first"]["values"];
  const double gap = (std::log(behind[0]) - std::log(before[0]) + std::log(behind[1]) - std::log(before[1])) / 2;
  REQUIRE(std::fabs(double(row["first"]["gap"]) - gap) < 1e-12);
  REQUIRE(std::fabs(double(row["first"]["paper_gap"]) - std::log(0.048 / 0.467)) < 1e-12);

  REQUIRE(contains(f.run(table).text, "14 of 14 runs are there already"));
  f.run("rm $(ls -d runs/seconds/*/result.json | head -1)");  // as if it had been stopped before the end
  REQUIRE(contains(f.run(table).text, "13 of 14 runs are there already"));
  REQUIRE(table_of(f, "p1-4") == first);
  f.run("sed -i 's/\"fingerprint\": \"/&kept-/' runs/seconds/*/result.json");
  f.run(table);
  REQUIRE(count(f.read("results/p1-4.seconds.json"), "kept-") == 14);
}

TEST_CASE("tables: every row of the tables that train alone runs", "[tables]") {
  WITH_PYTHON(f, "scripts/tables.py");
  f.done(
      "{repo}/scripts/tables.py p1-1 p1-2 p1-3 p1-6 p2-1 bf16 stability --scale=seconds --seeds=1 "
      "--text={repo}/README.md --runs=runs --results=results");
  const std::string page = f.read("results/README.md");
  for (const auto& [table, rows] :
       {std::pair("p1-1", 15), {"p1-2", 11}, {"p1-3", 5}, {"p1-6", 6}, {"p2-1", 23}, {"bf16", 4}}) {
    INFO(table);
    const Json kept = table_of(f, table)["rows"];
    REQUIRE(kept.size() == size_t(rows));
    for (const Json& row : kept)
      for (const char* column : {"loss", "peak"})
        if (row.contains(column)) REQUIRE(row[column]["values"][0].is_number());
    REQUIRE(contains(page, format("](%s.seconds.md) | seconds | 1 | ", table)));
  }
  const Json stability = table_of(f, "stability");
  for (const Json& variant : stability["variants"]) REQUIRE(variant["losses"].size() == 6);
}

TEST_CASE("tables: what 4 bits cost, outlier dimensions, a model at another one's loss, and steps timed in turns",
          "[tables]") {
  WITH_PYTHON(f, "scripts/tables.py");
  f.done(
      "{repo}/scripts/tables.py p2-2 p2-4 p3-5 --scale=seconds --seeds=1 --text={repo}/README.md --runs=runs "
      "--results=results");
  const Json row = table_of(f, "p2-2")["rows"][1];
  const std::string flags =
      row["runs"]["text"]["flags"].get<std::string>() + " --data={repo}/README.md --seed=1337 --out=by_hand";
  f.run("{repo}/train --sample-tokens=0 " + flags);
  const std::string printed =
      f.run("{repo}/train --sample-tokens=0 --evaluate --quantize=nvfp4-w4a4 " + flags + " --val-batches=1").text;
  const auto losses = matches(printed, "validation loss ([0-9.]+)");  // in full precision, then quantized
  REQUIRE(losses.size() == 2);
  REQUIRE(double(row["w4a4"]["values"][0]) == std::stod(losses[1][1]) - std::stod(losses[0][1]));

  const Json outliers = table_of(f, "p3-5")["rows"];
  REQUIRE(double(outliers[0]["outlier"]["values"][0]) > 1);
  REQUIRE(outliers[2]["outlier"]["paper"] == "lower");
  const double dyt = outliers[2]["loss"]["values"][0], early = outliers[1]["loss"]["values"][0];
  REQUIRE(early <= dyt);
  REQUIRE(early > double(outliers[0]["loss"]["values"][0]));
  REQUIRE(outliers[1]["runs"]["text"] == outliers[0]["runs"]["text"]);

  const Json times = table_of(f, "p2-4")["rows"];
  REQUIRE(times.size() == 2);
  const double more = 100 * (double(times[0]["seconds"][0]) / double(times[0]["plain_seconds"][0]) - 1);
  REQUIRE(std::fabs(double(times[0]["more_percent"][0]) - more) < 1e-9);
}

TEST_CASE("tables: a long context is trained from the weights of a short one, and stretched", "[tables]") {
  WITH_PYTHON(f, "scripts/tables.py");
  f.done("{repo}/scripts/tables.py p1-5 --scale=seconds --seeds=1 --runs=runs --results=results");
  const Json row = table_of(f, "p1-5")["rows"][1];
  const Json& runs = row["runs"]["long"];
  f.run("{repo}/train --seed=1337 --sample-tokens=0 --out=short " + runs["before"].get<std::string>());
  const Said second =
      f.run("{repo}/train --seed=1337 --sample-tokens=0 --out=long --from=short " + runs["flags"].get<std::string>());
  INFO(second.text);
  REQUIRE(contains(second.text, runs["fingerprints"]["1337"].get<std::string>()));
  const auto asked = matches(
      f.done("{repo}/train --evaluate --from=long --probe=retrieval --yarn=4 --context=64 --batch=1 --val-batches=4"),
      "\n +(?:16|32|64) .* ([0-9.]+)(?=\n)");
  REQUIRE(asked.size() == 3);
  size_t i = 0;
  for (const char* column : {"yarn1", "yarn2", "yarn4"})
    REQUIRE(double(row[column]["values"][0]) == std::stod(asked[i++][1]));
}

PYTHON_CASE("tables: gaps, their intervals over seeds, and signs", "scripts/tables.py", R"py(
import math
from paper_tables import Column, Row, Table
from tables import gap_text, judged, lines_of, read_at, signs_of, untrained

rows = [Row("1", "plain", "", {"loss": 2.0, "peak": 100}), Row("2", "better", "", {"loss": 1.9, "peak": 50}, "1"),
        Row("3", "diverges there", "", {"loss": None, "peak": 50}, "1")]
columns = {"loss": Column("", "text", None, "difference"), "peak": Column("", "sinks", None, "ratio", 0)}
table = Table("", "", "", 0, columns, rows, controls=[("3", "2")])
base = [3.0, 3.2, 3.1, 3.3, 3.4]

def loss(two, three=base, one=base, untrained_rows=()):
    cells, controls = judged(table, {"loss": {"1": one, "2": two, "3": three}}, untrained_rows)
    return cells["2", "loss"], cells["3", "loss"], controls[0]

# Differences of -0.1, -0.2, -0.1, -0.1, -0.2: mean -0.14, s 0.05477, 2.7764 s / sqrt(5) = 0.0680; t = -5.715, p = 0.0046.
two = loss([2.9, 3.0, 3.0, 3.2, 3.2])[0]
assert abs(two["gap"] + 0.14) < 1e-12 and abs(two["interval"] - 0.0680) < 5e-5 and abs(two["paper_gap"] + 0.1) < 1e-12, two
assert abs(two["p"] - 0.0046) < 5e-5 and two["sign"] == "agrees", two
assert gap_text(two, columns["loss"]) == "-0.140 ± 0.068", two
assert loss([3.1, 3.4, 3.2, 3.4, 3.6])[0]["sign"] == "differs"
assert loss([3.01, 3.19, 3.11, 3.29, 3.4])[0]["sign"] == "absent"  # 0 ± 0.01, and the paper's -0.1 lies outside
assert loss([2.8, 3.5, 3.0, 3.4, 3.4])[0]["sign"].startswith("not resolved: ")
assert loss([2.9, 3.0, 3.0, 3.2], one=base[:4])[0]["sign"] == "too few seeds"
one_seed = loss([2.9], [3.0], [3.0])[0]
assert one_seed["sign"] == "too few seeds" and "interval" not in one_seed, one_seed
assert loss(base)[0]["sign"] == "no change"

# Holm: of two comparisons the smaller p counts twice.
table.columns = columns
cells, _ = judged(table, {"loss": {"1": base, "2": [2.9, 3.0, 3.0, 3.2, 3.2], "3": base},
                          "peak": {"1": [200, 400, 300, 200, 400], "2": [20, 40, 30, 40, 40], "3": [200, 400, 300, 200, 410]}})
assert abs(cells["2", "loss"]["p"] - 2 * 0.0046) < 1e-4, cells["2", "loss"]
kept = cells["2", "peak"]
assert abs(kept["gap"] - (4 * math.log(0.1) + math.log(0.2)) / 5) < 1e-12 and kept["sign"] == "agrees", kept
assert gap_text(kept, columns["peak"]) == "0.115x (0.078 to 0.17)", gap_text(kept, columns["peak"])
assert cells["3", "peak"]["sign"] == "absent", cells["3", "peak"]

assert loss(base, [None] * 5)[1]["sign"] == "agrees: diverges too" and "gap" not in loss(base, [None] * 5)[1]
assert loss(base, [None, 3.1, 3, 3, 3])[1]["sign"] == "agrees: diverges too"
assert loss(base)[1]["sign"] == "differs: it trains"
assert loss([3.0], [3.1], [3.0])[1]["sign"] == "too few seeds"
assert loss(base)[2] == {"row": "3", "against": "2", "column": "loss", "gap": 0, "interval": 0, "sign": "differs: it trains"}

# What learned too little to compare has no sign, and where the paper's run diverges it agrees.
two, three, _ = loss([4.0] * 5, [4.0] * 5, untrained_rows=["2", "3"])
assert two["sign"] == "untrained" and three["sign"] == "agrees: diverges too", (two, three)
assert loss(base, untrained_rows=["1"])[0]["sign"] == "untrained"
assert untrained([{"validation_loss": 2.4, "bigram_entropy": 2.3}, {"validation_loss": 2.25, "bigram_entropy": 2.3}])
assert not untrained([{"validation_loss": 2.34, "bigram_entropy": 2.3}, {"validation_loss": 2.25, "bigram_entropy": 2.3}])
assert not untrained([{"validation_loss": 9.0}, {"diverged": True}])

# A row that is read where its loss comes down to that of another row's end: there its measures are taken.
measured = [{"step": 1, "validation_loss": 3.0, "measured_tokens": 1, "peak": 5}, {"step": 2, "validation_loss": 1.9},
            {"step": 3, "validation_loss": 2.0, "measured_tokens": 1, "peak": 7}, {"step": 4, "validation_loss": 1.5, "measured_tokens": 1, "peak": 9}]
assert read_at({"measured": measured}, 2.0)["peak"] == 7
assert read_at({"measured": measured}, 1.0) == {"diverged": True}
)py")

// Perplexities, scores and losses as they stand in print.
PYTHON_CASE("tables: the papers' figures stand beside the flags that they are of", "scripts/tables.py", R"py(
import json, math
from common import ROOT
from paper_tables import TABLES

rows = {name: {row.number: row for row in table.rows} for name, table in TABLES.items()}
# Rows' numbers, their flags, and what the paper prints of them.
figures = json.load(open(f"{ROOT}/tests/fixtures/paper_figures.json"))
for name, table in zip(("p1-1", "p1-4", "p2-1"), figures.values()):
    assert all(rows[name][number].flags == flags for number, flags, *_ in table), name
for number, _, perplexity in figures["perplexity"]:
    loss = rows["p1-1"][number].paper["loss"]
    assert abs(math.exp(loss) - perplexity) < 1e-9, (number, math.exp(loss))
for number, _, *printed in figures["score, m_act, first"]:
    paper = rows["p1-4"][number].paper
    assert [paper.get(key) for key in ("score", "m_act", "first")] == printed, (number, paper)
# And the gap to another row, which the paper prints too (but for row 7, where 0.259 is not the difference of its losses).
for number, _, peak, loss, gap, to in figures["peak, loss, gap, to"]:
    row = rows["p2-1"][number]
    assert (row.paper["peak"], row.paper["loss"], row.to) == (peak, loss, to), (number, row)
    assert gap is None or abs(loss - rows["p2-1"][to].paper["loss"] - gap) < 1e-9, (number, loss)
)py")

PYTHON_CASE("tables: DyT has its own start and rates at the scale of minutes, and the paper's elsewhere",
            "scripts/tables.py", R"py(
from paper_tables import SCALES
from sweep import Text
from tables import row_of, run_of, table_at

def end_of(name, number, scale):
    table = table_at(name, SCALES[scale])
    line = run_of(table, row_of(table, number), "text", SCALES[scale], 1, Text("self")).line()
    return line[line.index("--norm="):]
ours, paper = "--norm=dyt --embedding-factor=50 --dyt-alpha=1", "--norm=dyt --embedding-scale=on"
assert end_of("p2-1", "6", "minutes") == f"{ours} --lr=0.04 --min-lr=0.004"
assert end_of("p2-1", "7", "minutes") == f"{ours} --lr=0.02 --min-lr=0.002"
assert end_of("p3-5", "DyT", "minutes") == "--norm=dyt --init=fan-in --init-std=0.3 --dyt-alpha=1 --lr=0.01 --min-lr=0.001"
assert end_of("p2-1", "7", "hours") == f"{paper} --lr=0.000581395 --min-lr=5.81395e-05"
assert end_of("p2-1", "20", "minutes") == "--norm=gated --lr=0.01 --min-lr=0.001"
)py")

PYTHON_CASE("tables: the highest rate that trains, outlier dimensions where a state has none, spikes",
            "scripts/tables.py", R"py(
from paper_tables import SCALES, Stability, TABLES, at_layer, spikes
from sweep import Text
from tables import stability_runs, table_of_stability

scale, text, seeds = SCALES["minutes"], Text("self"), (1, 2)
lr = scale.kinds["text"][0]
# Of each variant the losses of both seeds, by learning rate; None: that run diverges.
losses = [(2.5, 2.5)] * 6
planted = {"plain": [(None, None)] * 6, "G1": [(2.5, 2.7), (2.4, 2.6), (2.55, 2.65), (2.53, 2.55), (2.5, None), (None, None)]}
results = {}
for (name, factor), runs in stability_runs(scale, seeds, text).items():
    for run, loss in zip(runs, planted.get(name, losses)[Stability.variants[name][1].index(factor)]):
        results[run] = {"diverged": True} if loss is None else {"validation_loss": loss, "bigram_entropy": 2.25}
lines, kept = table_of_stability(scale, seeds, text, results)
rows = {line.split(" | ")[0].removeprefix("| "): line for line in lines if line.startswith("| ")}
variants = {row["variant"]: row for row in kept["variants"]}
assert rows["plain"] == "| plain |" + "  |" * 4 + " diverges |" * 6 + " none | none |", rows
assert rows["G1"].endswith(f" | 2.600 ± 0.050 | 2.540 ± 0.010 | diverges | diverges | {4 * lr:.3g} | {4 * lr:.3g} |"), rows
assert rows["GatedNorm"].endswith(f" | 2.500 ± 0.000 | ≥ {16 * lr:.3g} | ≥ {16 * lr:.3g} |"), rows
assert rows["DyT"].endswith(f" | 2.500 ± 0.000 |{'  |' * 4} ≥ {lr:.3g} | ≥ {lr:.3g} |"), rows
assert variants["plain"]["highest"] == {0.05: None, 0.1: None}, variants["plain"]
assert variants["G1"]["highest"] == {0.05: 4 * lr, 0.1: 4 * lr}, variants["G1"]
assert variants["G1"]["highest_by_seed"] == {0.05: [lr, 4 * lr], 0.1: [8 * lr, 4 * lr]}, variants["G1"]
assert lines[-1].endswith("A table of pairs of bytes reaches 2.250."), lines[-1]

# As a log has them: the dimensions of one state are not known, as all its tokens have massive activations.
value = TABLES["p3-5"].columns["outlier"].value
assert value({"outlier_sizes_by_state": [[3, 2], [None, None], [8, 1]], "median_by_state": [1, None, 2]}) == 4
assert value({"outlier_sizes_by_state": [[None, None]], "median_by_state": [None]}) is None

# A spike stands 0.3 above the median of the 25 losses in front of it, which it does not move.
assert spikes({"losses": [9.0] * 5 + [2.0] * 20 + [2.31] + [2.29] * 5 + [3.0]}) == 2
assert spikes({"losses": [2.0] * 24 + [9.0]}) == 0
# The peak of four measurements stands at the second, after half of the steps.
peaks = {"measured": [{"step": 10 * n, "largest_activation": peak} for n, peak in ((1, 3), (2, 8), (3, 5), (4, 6))]}
columns = TABLES["p2-training"].columns
assert [columns[c].value(peaks | peaks["measured"][-1]) for c in ("highest", "highest at", "kept")] == [8, 0.5, 0.75]
layers = {"gate_score_mean_by_layer": [0.1, 0.2, 0.3, 0.4]}
assert [at_layer("gate_score_mean_by_layer", share, "", 3).value(layers) for share in (0, 1)] == [0.1, 0.4]
assert at_layer("gate_score_mean_by_layer", 0, "", 3).value({}) is None
)py")

TEST_CASE("tables: the page of all tables counts the signs that each one has", "[tables]") {
  WITH_PYTHON(f, "scripts/tables.py");
  const char* const write_index = "import tables; tables.write_index('kept')";
  f.run("mkdir kept && cp {repo}/results/*.json kept");
  f.python(write_index);
  REQUIRE(f.read("kept/README.md") == contents("results/README.md"));

  f.run("rm kept/*.json");
  f.write("kept/p1-3.hours.json",
          R"({"title": "T", "command": "scripts/tables.py p1-3 --scale=hours --seeds=5", "rows": [
    {"row": "1", "runs": {}, "loss": {"values": [1], "paper": 2, "sign": "agrees"}, "peak": {"values": [1]}},
    {"row": "2", "runs": {}, "loss": {"values": [1], "paper": 2, "sign": "differs: it trains"}, "peak": {"values": [1]}},
    {"row": "3", "runs": {}, "loss": {"values": [1], "sign": "not resolved: 9 seeds"}, "peak": {"sign": "no change"}}],
    "controls": [{"row": "3", "against": "2", "sign": "differs"}]})");
  f.write("kept/stability.minutes.json", R"({"title": "S", "command": "scripts/tables.py stability --seeds=3"})");
  f.python(write_index);
  const std::string page = f.read("kept/README.md");
  REQUIRE(says(page, {"\n| [T](p1-3.hours.md) | hours | 5 | 1 | 2 | 0 | 1 | 0 | 1 | 0 |\n",
                      "\n| [S](stability.minutes.md) | minutes | 3 |  |  |  |  |  |  |  |\n"}));
}

PYTHON_CASE("tables: every page of results is what its JSON says, judged by today's rules", "scripts/tables.py", R"py(
import json, os
from common import ROOT
from paper_tables import SCALES, TABLES
from tables import judged, lines_of, ranking_of

seen = 0
for name, table in TABLES.items():
    for path in (f"{ROOT}/results/{name}.{scale}" for scale in SCALES):
        if os.path.exists(path + ".json"):
            kept = json.load(open(path + ".json"))
            assert open(path + ".md").read().split("\n", 4)[4] == "\n".join(lines_of(table, kept)) + "\n", path
            columns = [c for c in table.columns if c in kept["rows"][0]]
            values = {c: {row["row"]: row[c]["values"] for row in kept["rows"]} for c in columns}
            cells, controls = judged(table, values, kept.get("untrained", []))
            for row in kept["rows"]:
                assert all(row[c] == cells[row["row"], c] for c in columns), (path, row)
            assert kept.get("controls", []) == controls and kept.get("ranking") == ranking_of(table, values).get("ranking"), path
            seen += 1
assert seen >= 20, seen
)py")

PYTHON_CASE("tables: t, its quantiles, Holm's correction and tau are those of the books", "scripts/paired.py", R"py(
import math
from paired import half_width, holm, p_value, rank_agreement, seeds_needed, t_quantile, two_sided_p

# scipy.stats 1.10.1: 2 * t.sf(t, df), and t.ppf(1 - outside / 2, df).
for t, df, p in [(1, 1, 0.5), (2.5, 2, 0.12961172022151), (2.5, 4, 0.06676654481199), (2.5, 7, 0.04099221858575), (0.3, 10, 0.77032060756580)]:
    assert abs(two_sided_p(t, df) - p) < 1e-12, (t, df, two_sided_p(t, df))
for outside, df, t in [(0.05, 4, 2.7764451052), (0.05, 7, 2.3646242510), (0.01, 4, 4.6040948714)]:
    assert abs(t_quantile(outside, df) - t) < 1e-9, (outside, df, t_quantile(outside, df))
assert abs(half_width([1, 2, 3, 4, 5]) - 2.7764451052 * math.sqrt(2.5 / 5)) < 1e-9
assert p_value([1, 1, 1]) == 0 and p_value([0, 0]) == 1
assert [round(p, 6) for p in holm([0.01, 0.04, 0.03, 0.9])] == [0.04, 0.09, 0.09, 0.9]
tau, p = rank_agreement([1, 2, 3, 5, 4], [1, 2, 3, 4, 5])
assert tau == 0.8 and abs(p - 5 / 120) < 0.01, (tau, p)  # of 120 orders 1 agrees wholly and 4 in all pairs but one
# Differences of standard deviation 1: (2.2010 + 0.8755) / sqrt(12) = 0.888, (2.2281 + 0.8791) / sqrt(11) = 0.937
d = [-1, 0, 1]
assert (seeds_needed(d, 0.9, 1), seeds_needed(d, 0.88, 1)) == (12, 13), (seeds_needed(d, 0.9, 1), seeds_needed(d, 0.88, 1))
)py")

// Tables of 14 rows beside one baseline, in two columns, of five seeds, with an order of effects and without any.
PYTHON_CASE("tables: of whole tables without an effect few have a sign, of tables with one few say that it is absent",
            "scripts/paired.py", R"py(
import random
from paired import LEVEL, half_width, p_value, verdicts

dice, tables = random.Random(1), 600

def table(effect):
    # Comparisons, of runs whose noise has standard deviation 1, where the paper says -1.
    comparisons = []
    for _ in range(2):
        base = [dice.gauss(0, 1) for _ in range(5)]
        comparisons += [([effect + dice.gauss(0, 1) - b for b in base], -1) for _ in range(14)]
    return comparisons

def share_of(kinds, effect):
    return sum(any(said.split(":")[0] in kinds for said, _ in verdicts(table(effect))) for _ in range(tables)) / tables

signs = share_of({"agrees", "differs"}, 0)
plain = sum(any(p_value(d) <= LEVEL for d, _ in table(0)) for _ in range(tables)) / tables
absent = share_of({"absent"}, -1)
seen = sum(sum(said == "agrees" for said, _ in verdicts(table(-8))) for _ in range(50)) / (50 * 28)
# 5 % of 600 tables have a standard error of 0.9 %.
assert 0.005 < signs < 0.05 + 3 * 0.009 and 0.005 < absent < 0.05 + 3 * 0.009, (signs, absent)
assert plain > 0.5 and seen > 0.9, (plain, seen)
)py")

TEST_CASE("tables: what cannot be done is one line", "[tables]") {
  WITH_PYTHON(f, "scripts/tables.py");
  for (auto [arguments, what] : {std::pair{"p3-9", "p3-9: expected tables of p1-1, "},
                                 {"p2-4 --scale=paper", "p2-4 times this machine"},
                                 {"p1-2 --scale=gpu", "--scale=gpu: expected tables of p1-1, p1-4, p2-1"},
                                 {"p1-4 --seeds=0", "--seeds=0 --jobs="},
                                 {"p1-1 --text=nothing.txt", "--text=nothing.txt: no such file"},
                                 {"stability --scale=paper", "stability has no rows in a paper"}})
    require_refused_at_once(f.run(format("{repo}/scripts/tables.py %s", arguments)), what);
}

TEST_CASE("tables: a picture draws a table's gaps, their intervals and the paper's; docs/pictures are of results/",
          "[tables]") {
  NEEDS("/usr/bin/python3 -c 'import matplotlib'", "matplotlib", "scripts/plot_tables.py");
  const Folder f;
  f.run("ln -s {repo}/results results; ln -s {repo}/docs/pictures kept");
  f.python(R"py(
import glob, json, os, re
from html import unescape
from paper_tables import TABLES
from plot_tables import gaps_of

rows = [{"row": "1", "against": None, "first": {"values": [0.2], "paper": 0.467}},
        {"row": "2", "against": "1", "first": {"gap": -1.5, "interval": 0.5, "paper": 0.048, "paper_gap": -2.27}},
        {"row": "3", "against": "1", "first": {"gap": 0.5, "paper": "lower"}},
        {"row": "4", "against": "1", "first": {"gap": 9, "paper": None}}]
controls = [{"row": "2", "against": "3", "column": "first", "gap": 0.1, "paper_gap": 0.2}]
assert gaps_of(TABLES["p1-4"], {"rows": rows, "controls": controls, "untrained": ["4"]}) == {"first": [
    ("G1 elementwise / baseline", -1.5, 0.5, -2.27), ("G1 headwise / baseline", 0.5, 0, "lower"),
    ("G1 elementwise / G1 headwise", 0.1, 0, 0.2)]}

pictures = glob.glob("kept/*.svg")
assert len(pictures) > 3
for picture in pictures:
    contents = json.load(open("results/" + os.path.basename(picture).replace(".svg", ".json")))
    drawn = re.search("<dc:description>(.*?)</dc:description>", open(picture).read(), re.S)[1]
    assert json.loads(unescape(drawn)) == json.loads(json.dumps(gaps_of(TABLES[contents["table"]], contents))), picture
)py");
  REQUIRE(f.done("{repo}/scripts/plot_tables.py results/p1-3.minutes.json") == "wrote ./p1-3.minutes.svg\n");
  REQUIRE(says(f.read("p1-3.minutes.svg"), {"SiLU of the output / baseline", "validation loss, nats"}));
  for (const auto& [name, text] : {std::pair("cut.json", "{"),
                                   {"list.json", "[]"},
                                   {"latin.json", "\xff"},
                                   {"bare.json", "{\"table\":\"p1-1\"}"},
                                   {"rows.json", "{\"table\":\"p1-1\",\"rows\":5}"}})
    f.write(name, text);
  for (const char* name : {"results/bench_cpu.json", "cut.json", "list.json", "latin.json", "bare.json", "rows.json"})
    require_refused_at_once(f.run(format("{repo}/scripts/plot_tables.py %s", name)),
                            format("%s: expected a table's JSON of results/, with \"table\" one of p1-1", name));
  require_refused_at_once(f.run("{repo}/scripts/plot_tables.py absent.json"), "absent.json: No such file");
  require_refused_at_once(f.run("{repo}/scripts/plot_tables.py results/p1-3.minutes.json --out=absent"), "absent/p1-3");
}
