// sweep: scripts/sweep.py trains a grid of flags. Figures are held to runs of ./train by hand. Needs python3; without
// one it warns.
#include <nlohmann/json.hpp>

#include "tests/catch.h"
#include "tests/script.h"

using namespace gated;
using Json = nlohmann::json;

namespace {

const std::string tiny =
    "--data=text.txt --steps=4 --layers=1 --hidden=16 --heads=2 --kv-heads=1 --head-dim=8 --ffn-hidden=24 --context=16 "
    "--batch=2 --warmup=1 --val-batches=1";

std::string sweep(const std::string& rest, const std::string& flags = tiny) {
  return "PYTHONDONTWRITEBYTECODE=1 python3 {repo}/scripts/sweep.py " + rest + " -- " + flags;
}

std::string some_text(size_t step) {
  std::string text;
  for (size_t i = 0; i < 4000; i++) text += "abcdefgh "[i * step % 1009 % 9];
  return text;
}

}  // namespace

TEST_CASE("sweep: every point of the grid is trained with every seed, once", "[scripts]") {
  WITH_PYTHON(f, "scripts/sweep.py");
  f.write("text.txt", some_text(7));
  const std::string grid =
      sweep("all --cpu --seeds=2 --grid='--attn=full | --attn=g1 --norm=gated' --grid=' | --ffn=glu'");
  const std::string first = f.done(grid);
  REQUIRE(contains(first, "8/8  loss "));
  if (!contains(first, "no page: ")) REQUIRE(contains(f.read("all/report.html"), "4 runs side by side"));
  const Json kept = Json::parse(f.read("all/table.json"))["points"];
  REQUIRE(kept.size() == 4);
  REQUIRE(kept[0]["point"] == "--attn=full");
  REQUIRE(kept[3]["point"] == "--attn=g1 --norm=gated --ffn=glu");
  for (const auto& [seed, place] : {std::pair{"1337", 0}, {"1", 1}}) {
    REQUIRE(contains(f.done("{repo}/train --device=cpu --threads=1 --sample-tokens=0 --attn=g1 --norm=gated "
                            "--ffn=glu " +
                            tiny + " --seed=" + seed + " --out=by_hand_" + seed),
                     kept[3]["fingerprints"][seed].get<std::string>()));
    const std::string log = f.read(std::string("by_hand_") + seed + "/log.jsonl"), key = "\"validation_loss\":";
    REQUIRE(std::stod(log.substr(log.rfind(key) + key.size())) == kept[3]["losses"][place].get<double>());
  }
  const std::vector<double> last = kept[3]["losses"], base = kept[0]["losses"];
  const double gap = (last[0] - base[0] + last[1] - base[1]) / 2;
  REQUIRE(contains(f.read("all/table.md"), format("| %+.4f ± ", gap)));

  // What is there is not trained again, what had no end is, and another text is another run. (matplotlib is not there.)
  f.write("none/matplotlib/__init__.py", "raise ImportError");
  f.run("rm all/runs/attn=full.1.*/result.json");
  REQUIRE(says(f.done("PYTHONPATH=none " + grid), {"7 of 8 runs are there already", "no page: "}));
  REQUIRE(Json::parse(f.read("all/table.json"))["points"] == kept);
  f.write("text.txt", some_text(11));
  REQUIRE(!contains(f.done("PYTHONPATH=none " + grid), "there already"));
  REQUIRE(Json::parse(f.read("all/table.json"))["points"] != kept);
}

TEST_CASE("sweep: a place has one run at a time, and a GPU is a place", "[scripts]") {
  WITH_PYTHON(f, "scripts/sweep.py");
  f.program("bin/nvidia-smi", "echo 'GPU 0: NVIDIA H100 (UUID: GPU-1)'; echo 'GPU 3: NVIDIA H100 (UUID: GPU-2)'");
  REQUIRE(f.python(R"py(
import os, threading, time
import sweep
assert sweep.gpus() == [] or os.path.exists("/dev/nvidiactl")
os.environ["PATH"] = os.path.abspath("bin") + ":" + os.environ["PATH"]
assert sweep.gpus() == ["0", "3"]
assert sweep.places(0) == [sweep.ONE_CORE] * len(os.sched_getaffinity(0))
two = sweep.places(0, sweep.gpus())
assert two == [(("--device=cuda",), {"CUDA_VISIBLE_DEVICES": n}) for n in ("0", "3")], two
assert [more["CUDA_VISIBLE_DEVICES"] for _, more in sweep.places(3, ["0", "3"])] == ["0", "3", "0"]
busy, used, lock = set(), set(), threading.Lock()
def train(run, runs, place):
    name = place[1]["CUDA_VISIBLE_DEVICES"]
    with lock:
        assert name not in busy
        busy.add(name)
        used.add(name)
    time.sleep(0.02)
    with lock:
        busy.remove(name)
    return {"validation_loss": 1.0}
sweep.train = train
runs = [sweep.Run((), seed, sweep.Text("self")) for seed in range(8)]
results = sweep.train_all(runs, "nowhere", two)
print(sorted(used), len(results))
)py")
              .ends_with("['0', '3'] 8\n"));
}

TEST_CASE("sweep: what cannot be a grid is refused in a line", "[scripts]") {
  WITH_PYTHON(f, "scripts/sweep.py");
  f.write("text.txt", some_text(7));
  const auto refused = [&](const std::string& rest, const std::string& flags, const std::string& why) {
    require_refused(f.run(sweep("all --cpu --seeds=1 " + rest, flags)), why);
    REQUIRE(!fs::exists(f.path / "all/table.json"));
  };
  refused("--grid='--attn=full | --attn=full'", tiny, "--attn=full stands there twice");
  refused("--grid='--attn=full | g1'", tiny, "g1: expected flags of ./train");
  refused("--grid='--seed=1 | --seed=2'", tiny, "--seed=1: the sweep gives each run its own");
  refused("--grid='--attn=full'", tiny + " --out=x", "--out=x: the sweep gives each run its own");
  refused("--grid='--attn=full' --seeds=9", tiny, "--seeds=9 --jobs=0: expected 1 to 8 seeds");
  refused("--grid='--attn=full | --attn=g9'", tiny, "--attn=g9");
  refused("--grid=", tiny, "--grid: it is empty");
  refused("--grid='--attn=\"full'", tiny, "--attn=\"full: No closing quotation");
  require_refused_at_once(f.run(sweep("'' --cpu --grid=--attn=full")), "FOLDER: it is empty, expected where all goes");
  require_refused_at_once(f.run(sweep("text.txt --cpu --grid=--attn=full")), "text.txt/runs: Not a directory");
}
