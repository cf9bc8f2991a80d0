// to_tensorboard: scripts/to_tensorboard.py. What it says to TensorBoard's writer is held by a stand-in for it; where
// the package is installed, the event files are read back.
#include "tests/catch.h"
#include "tests/script.h"

using namespace gated;

namespace {

const std::string run_log =
    R"({"step":0,"bigram_entropy":2.5}
{"step":1,"loss":5.5,"gradient_norm":null,"seconds":2}
{"step":2,"loss":5.25,"gradient_norm":1.5,"seconds":3}
{"step":2,"validation_loss":5.125,"gate_score_mean_by_layer":[0.5,null,0.25],"first_outlier_step":null,"at":{"layer":1}}
{"step":3,"lo)";

const std::string convert = "PYTHONDONTWRITEBYTECODE=1 python3 {repo}/scripts/to_tensorboard.py ";

}  // namespace

TEST_CASE("to_tensorboard: every number of a log is a scalar at its step and time", "[scripts]") {
  WITH_PYTHON(f, "scripts/to_tensorboard.py");
  f.write("runs/one/log.jsonl", run_log);
  f.write("modules/tensorboard/__init__.py", "");
  f.write("modules/tensorboard/summary.py", R"py(
class Writer:
    def __init__(self, folder):
        print("folder", folder)
    def add_scalar(self, tag, number, step, wall_time):
        print(tag, number, step, int(wall_time))
    def close(self):
        print("closed")
)py");
  f.run("touch -d @1000 runs/one/log.jsonl");
  REQUIRE(
      f.done("PYTHONPATH=modules " + convert + "runs/one --out=board") ==
      "folder board/one\n"
      "bigram_entropy 2.5 0 995\n"
      "loss 5.5 1 997\nseconds 2 1 997\n"
      "loss 5.25 2 1000\ngradient_norm 1.5 2 1000\nseconds 3 2 1000\n"
      "validation_loss 5.125 2 1000\ngate_score_mean_by_layer/0 0.5 2 1000\ngate_score_mean_by_layer/2 0.25 2 1000\n"
      "closed\nwrote board/one: 9 numbers\n");
  f.write("other/one/log.jsonl", run_log);
  require_refused_at_once(f.run("PYTHONPATH=modules " + convert + "runs/one other/one"), "one: two runs of this name");
  require_refused_at_once(f.run("PYTHONPATH=modules " + convert + "runs/two"), "runs/two: no such folder");
  f.write("modules/tensorboard/summary.py", "raise ImportError('none here')\n");
  require_refused_at_once(f.run("PYTHONPATH=modules " + convert + "runs/one"), "python3 -m pip install tensorboard");
}

TEST_CASE("to_tensorboard: the event files hold what the log does, once", "[scripts]") {
  NEEDS("python3 -c 'import tensorboard.summary'", "tensorboard", "what its writer writes");
  const Folder f;
  f.write("runs/one/log.jsonl", run_log);
  for (int again = 0; again < 2; again++) REQUIRE(f.done(convert + "runs/one") == "wrote tensorboard/one: 9 numbers\n");
  const std::string read = f.python(R"py(
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray
events = EventAccumulator("tensorboard/one")
events.Reload()
for tag in sorted(events.Tags()["tensors"]):
    print(tag, [(e.step, make_ndarray(e.tensor_proto).item()) for e in events.Tensors(tag)])
)py");
  REQUIRE(read ==
          "bigram_entropy [(0, 2.5)]\ngate_score_mean_by_layer/0 [(2, 0.5)]\ngate_score_mean_by_layer/2 [(2, 0.25)]\n"
          "gradient_norm [(2, 1.5)]\nloss [(1, 5.5), (2, 5.25)]\nseconds [(1, 2.0), (2, 3.0)]\n"
          "validation_loss [(2, 5.125)]\n");
}
