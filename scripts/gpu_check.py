#!/usr/bin/env python3
"""Everything that only a GPU can show, in one command: `make gpu-check` builds what this runs. Its stages in order:

  bitwise      every case that runs kernels, bit for bit against its reference or the CPU; in this stage as in those of
               compute-sanitizer, first the tensor cores' instruction against the CPU's model of it, then what is made
               of it
  few          bitwise once more, as if there were four multiprocessors (GATED_MULTIPROCESSORS): blocks that take
               piece after piece then take several, as they do in large shapes. So in the stages of compute-sanitizer
  cublas       cuBLASLt's products, which are held to a bound
  fingerprint  whole runs: the weights' fingerprint on the GPU must be the CPU's, and README's where that names the run.
               In bf16 by the arithmetic of this GPU
  program      the program beside the CPU: what it prints, its checkpoints, logs, evaluations and continuations; and
               what it refuses (gpu_program.py)
  memcheck, synccheck
               compute-sanitizer over the cases of bitwise; for memcheck arrays have no guard behind them
               (GATED_GUARD=off). Where compute-sanitizer is missing or cannot attach to a small test, its stages are
               `not run`
  bench        the benchmark, a check for each of its parts; nothing runs beside it
  pytorch      where python3 has PyTorch that sees the GPU: a step, products and attention beside it, added to the
               benchmark
  racecheck, initcheck
               compute-sanitizer's slower tools; for initcheck fresh memory is left as it is (GATED_FILL=off)

RESULT.json is written anew after every check: what came of it, and what a check printed first and last that failed.
The next run goes on behind the last: with the checks that have not been run on this build and GPU, or, where all have,
with those that failed.

`make rehearsal` runs bitwise, fingerprint and program without a GPU: over programs in which nvcc's PTX runs on a CPU
(ptx/machine.h). The device of such a result is "PTX on a CPU". (The benchmark measures a device: it is not rehearsed.)
It has stages of its own:

  launched     every kernel of the operations was launched by a test of bitwise
  races        threads and blocks from the last to the first, and accesses that no barrier orders are faults
  drawn        threads and blocks in an order that is drawn
  consumer     a GPU whose blocks have 99 KiB of shared memory, and the tensor cores of Ampere
               (these three are bitwise once more)

usage: [STAGES='bitwise memcheck'] [BENCH='gpt2-124m bf16'] [MINUTES=9] [CHECK_SECONDS=200] [JOBS=8]
       scripts/gpu_check.py RESULT.json BENCH TEST... [--cublas TEST...]
       scripts/gpu_check.py --rehearsal RESULT.json TRAIN TEST...
       [CUDA_FLAGS=--graph] scripts/gpu_check.py --fingerprint TRAIN FLAG...
       scripts/gpu_check.py --golden TRAIN STEPS
       scripts/gpu_check.py --launched FOLDER
       [...] scripts/gpu_check.py --wishes
  --cublas       those of the tests that have cases of cuBLASLt
  --fingerprint  one run on both devices. CUDA_FLAGS are for the GPU alone
  --golden       so many steps of README's four runs with fewer tokens, on both devices
  --launched     the kernels that no test of this folder's TEST.launched has launched, where there are some
  --wishes       only looks at the variables in brackets, but for BENCH, before a build that takes minutes
  STAGES         these alone, in this order
  BENCH          these parts of the benchmark alone, in this order
  MINUTES        all ends by then: a check that is broken off is left to the next run, and keeps the rows that it
                 measured. Counted from BEGAN, in seconds since 1970, where make says when it began to build
  CHECK_SECONDS  a check that takes longer has failed
  JOBS           so many checks side by side; without it, one for two cores
Exits with 0 when all checks have passed, 1 when one failed or cannot be run here, 2 when some are left.
"""
import concurrent.futures
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import NamedTuple

import gpu_program
from common import ROOT, cuda_tool, read, write_whole

SCRIPT = sys.argv[0]
HERE = os.path.dirname(SCRIPT)
SANITIZERS = ["memcheck", "synccheck", "racecheck", "initcheck"]
STAGES = ["bitwise", "few", "cublas", "fingerprint", "program", *SANITIZERS[:2], "bench", "pytorch", *SANITIZERS[2:]]
FEW = {"GATED_MULTIPROCESSORS": "4"}
# Those of a rehearsal: bitwise three times more, where kernels can be told how to run.
AGAIN = {"races": {"PTX_RACES": "1", "PTX_ORDER": "reverse"}, "drawn": {"PTX_ORDER": "7"},
         "consumer": {"PTX_GPU": "86"}}
REHEARSED = ["bitwise", "launched", *AGAIN, "fingerprint", "program"]
PTX_ON_A_CPU = "PTX on a CPU"
# README's run, and what makes the others of it.
GOLDEN = "--data=bigram-backcopy --steps=20 --lr=3e-3 --warmup=20 --norm=gated --attn=g1 --sample-tokens=0"
OTHER_GOLDEN = {"a hybrid": " --mixer=hybrid", "experts": " --experts=8 --shared-experts=1",
                "a run in bf16": " --precision=bf16"}
BESIDE_PYTORCH = " beside PyTorch"
BY_SOMEBODY = [code for s in (signal.SIGINT, signal.SIGTERM) for code in (-s, 128 + s)]  # Ctrl-C, a machine that stops
PASSED = re.compile(r"^All tests passed|^test cases: (\d+) \| \1 passed$", re.MULTILINE)  # what Catch2 says


def refuse(message):
    sys.exit(f"gpu-check: {message}")


def variable(name, default):
    return os.environ.get(name) or default


def number(name, default, least):
    text = variable(name, default)
    if not re.fullmatch(r"\d+", text) or int(text) < least:
        refuse(f"{name}={text}: expected a number from {least}")
    return int(text)


def said(*command):
    """What a command prints, and how it ends."""
    try:
        answer = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True, errors="replace")
    except OSError as error:
        return str(error), 1
    return answer.stdout.strip(), answer.returncode


def at_most(seconds):
    return ["timeout", "-k", "10", f"{seconds + 0.1:.1f}"]  # (not less, when it is rounded: and 0 would be no limit)


# ---- one run on both devices

def first_difference(logs):
    """Of two log.jsonl: the first step in which they differ, and in what."""
    for lines in zip(*logs):
        cpu, cuda = map(json.loads, lines)
        for key in ("loss", "gradient_norm", "validation_loss"):
            if cpu.get(key) != cuda.get(key):
                return f"first in step {cpu['step']}: {key} {cpu.get(key)!r} on the cpu, {cuda.get(key)!r} on cuda"
    return "in no loss and no gradient norm"


def readmes_fingerprint(flags):
    """README's fingerprint of the weights after that run, whatever the order of its flags; None where it names none."""
    page = read(os.path.join(ROOT, "README.md"))
    section = page.partition("## Check that your machine is exact")[2].partition("\n## ")[0]
    runs = re.findall(r"^\./train (.+)$", section, re.MULTILINE)
    fingerprints = re.findall(r"^fingerprint of the weights: (\w+)$", section, re.MULTILINE)  # in the same order
    wanted = set(flags) - {"--mma=hopper"}  # the default
    return next((fingerprint for run, fingerprint in zip(runs, fingerprints) if set(run.split()) == wanted), None)


def compare_fingerprints(train, flags):
    fingerprints, logs = {}, []
    if named := readmes_fingerprint(flags):
        fingerprints["README"] = named
    with tempfile.TemporaryDirectory(prefix="gpu_check_") as folder:
        for device, own in ("cpu", []), ("cuda", variable("CUDA_FLAGS", "").split()):
            out = os.path.join(folder, device)
            text = subprocess.run([train, f"--device={device}", f"--out={out}"] + flags + own, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, text=True).stdout
            found = re.search("^fingerprint of the weights: (.+)$", text, re.MULTILINE)
            fingerprints[device] = found[1] if found else None
            if os.path.exists(log := os.path.join(out, "log.jsonl")):
                logs.append(read(log).splitlines())
    print(", ".join(f"{device} {fingerprint}" for device, fingerprint in fingerprints.items()))
    equal = len(set(fingerprints.values())) == 1 and None not in fingerprints.values()
    if not equal and len(logs) == 2:
        print("they differ " + first_difference(logs))
    return 0 if equal else 1


# ---- the checks

class Check(NamedTuple):
    stage: str
    name: str
    command: list
    environment: dict = {}


def base(path):
    return os.path.basename(path)


def tensor_cores_first(tests):
    instructions = "test_mma", "test_wgmma"
    return sorted(tests, key=lambda test: 0 if base(test) in instructions else 1 if test.endswith("_bf16") else 2)


def fingerprint_checks(train, mma, rehearsed):
    golden = GOLDEN
    # A few steps of little: in bf16, where the CPU takes its time. In a rehearsal README's runs alone go all the way.
    small = ("--data=bigram-backcopy --steps=6 --lr=3e-3 --warmup=6 --batch=4 --norm=gated --attn=g1 --val-batches=1 "
             "--sample-tokens=0")
    bf16 = f" --precision=bf16 --mma={mma}"
    graph, few = {"CUDA_FLAGS": "--graph"}, {} if rehearsed else FEW
    other = small if rehearsed else golden
    for what, flags, environment in [
            ("a run", golden, {}),
            ("a hybrid", golden + OTHER_GOLDEN["a hybrid"], {}),
            ("experts", golden + OTHER_GOLDEN["experts"], {}),
            ("a run as CUDA graphs", other + " --dropout=0.1 --micro-batches=2", graph),
            ("a run in bf16 as CUDA graphs", other + bf16 + " --ffn=gelu --ffn-bias=on", graph | few),
            (f"a run in bf16 as {mma}", golden + bf16, {}),
            ("a hybrid with experts", other + " --mixer=hybrid --experts=8", {}),
            ("a run with recomputing and dropout", other + " --recompute=full --dropout=0.1", {}),
            ("linear attention", other.replace(" --attn=g1", "") + " --mixer=gated-delta", {}),
            ("a hybrid with experts in bf16", small + bf16 + " --mixer=hybrid --experts=8 --shared-experts=1", few),
            ("a run in bf16 with recomputing and dropout", small + bf16 + " --recompute=full --dropout=0.1", {}),
            ("heads of 128 in bf16", small + bf16 + " --layers=2 --head-dim=128", few),
            ("heads of 256 in bf16", small + bf16 + " --layers=2 --heads=2 --kv-heads=1 --head-dim=256 "
             "--window=48", {})]:
        yield Check("fingerprint", f"fingerprint of {what}, cpu and cuda",
                    [SCRIPT, "--fingerprint", train] + flags.split(), environment)


# Kernels that no test launches on an H100's shared memory: one chunk at a time is for blocks of 99 KiB, which the stage
# consumer plays; no_work is only asked about.
NOT_LAUNCHED = re.compile(r"gated_delta_bf16_dstate_kernelILi(64|128)ELi1E|no_work_kernel")


def launched_by_tests(folder):
    """Names the kernels of the operations that no test of a rehearsal has launched."""
    def first_words(path):
        return {line.split()[0] for line in read(path).splitlines()}
    left = {name for name in first_words(os.path.join(folder, "kernels/kernels.index"))
            if not NOT_LAUNCHED.search(name)}
    for name in os.listdir(folder):
        if name.endswith(".launched"):
            left -= first_words(os.path.join(folder, name))
    names = subprocess.run(["c++filt"], input="\n".join(sorted(left)), capture_output=True, text=True).stdout
    print(f"no test launches\n{names}" if left else "every kernel was launched")
    return 1 if left else 0


class Checks:
    """What there is to check, on a GPU of this compute capability."""

    def __init__(self, train, bench, tests, of_cublas, logs, capability, sanitizer):
        self.train, self.bench, self.logs, self.sanitizer = train, bench, logs, sanitizer
        self.tests, self.of_cublas = tensor_cores_first(tests), of_cublas
        self.mma = "ampere" if capability.startswith("8.") else "hopper"

    def rows(self, part=None):
        """Where the benchmark's rows of a part lie, or all that are there."""
        return os.path.join(self.logs, f"bench.{part}.json" if part else "bench.json")

    def of(self, stage):
        if stage in ("bitwise", "few", "cublas", *AGAIN, *SANITIZERS):
            tests, cases = (self.of_cublas, "[cublas]") if stage == "cublas" else (self.tests, "[bitwise]")
            before = self.sanitized(stage) if stage in SANITIZERS else []
            own = AGAIN | {stage: FEW for stage in ("few", "synccheck", "racecheck")} | {
                "memcheck": FEW | {"GATED_GUARD": "off"}, "initcheck": FEW | {"GATED_FILL": "off"}}

            def environment(test):
                says_launched = stage == "bitwise" and not self.bench
                return {"PTX_LAUNCHED": test + ".launched"} if says_launched else own.get(stage, {})
            return [Check(stage, f"{stage} {base(test)}", [*before, test, cases], environment(test)) for test in tests]
        if stage == "launched":
            return [Check(stage, "launched every kernel", [SCRIPT, "--launched", os.path.dirname(self.tests[0])])]
        if stage == "program":
            # (refusals that need an environment are of the stand-in)
            refusals = [name for name, (own, *_) in gpu_program.REFUSALS.items() if not (own and self.bench)]
            return [Check(stage, f"{stage} {case}", [os.path.join(HERE, "gpu_program.py"), self.train, case, self.mma])
                    for case in [*gpu_program.CASES, *refusals]]
        if stage == "fingerprint":
            return list(fingerprint_checks(self.train, self.mma, not self.bench))
        if stage == "bench":
            parts, code = said(self.bench, "--parts")
            if code != 0 or not parts:
                refuse(f"{self.bench} --parts: {parts or 'says nothing'}")
            wanted = variable("BENCH", parts).split()
            for part in wanted:
                if part not in parts.split():
                    refuse(f"BENCH: the benchmark has no part '{part}'; expected some of: {parts}")
            return [Check(stage, f"{stage} {part}", [self.bench, self.rows(part), part]) for part in wanted]
        assert stage == "pytorch"
        if said("python3", "-c", "import torch, sys; sys.exit(not torch.cuda.is_available())")[1] != 0:
            return []
        peers = {"a step": ["compare_torch.py", "--device=cuda", "--rounds=1", f"--rows={self.rows()}"],
                 "products and attention": ["torch_kernels.py", self.rows()]}
        return [Check(stage, what + BESIDE_PYTORCH, [os.path.join(HERE, script), *arguments])
                for what, (script, *arguments) in peers.items()]

    def sanitized(self, tool):
        # (tests ask for errors of CUDA's calls on purpose; the program checks every call itself)
        of_tool = ["--report-api-errors", "no"] if tool == "memcheck" else []
        return [self.sanitizer, "--tool", tool, "--error-exitcode", "1", "--show-backtrace", "device",
                "--print-limit", "10", *of_tool]

    def why_no_sanitizer(self, seconds):
        """None where compute-sanitizer can run the smallest test, or finds faults there: it attaches."""
        if not self.sanitizer:
            return (f"no compute-sanitizer in CUDA_HOME ({variable('CUDA_HOME', 'not set')}), on the path or in "
                    "/usr/local/cuda*")
        test = next((test for test in self.tests if base(test) == "test_round"), self.tests[0])
        text, code = said(*at_most(seconds), *self.sanitized("memcheck"), test, "[bitwise]")
        if code == 0 or re.search("ERROR SUMMARY: [1-9]", text):
            return None
        lines = [line for line in text.splitlines() if line.strip("= ")]
        return f"compute-sanitizer cannot run {base(test)}: {lines[-1] if lines else 'it says nothing'}"


# ---- what came of them

class Results:
    """Outcomes by the checks' names, and the benchmark's rows. The file is written anew after every change."""

    def __init__(self, file_name, head):
        self.file_name, self.head, self.checks, self.bench = file_name, head, {}, None
        self.lock = threading.Lock()
        try:
            before = json.loads(read(file_name))
            if before["build"] == head["build"]:
                checks, bench = {check["check"]: check for check in before["checks"]}, before["bench"]
                if not all(isinstance(check["outcome"], str) for check in checks.values()):
                    raise ValueError("an outcome that is no text")
                if bench is not None and not all(row["op"] for row in bench["rows"]):
                    raise ValueError("a row without a name")
                self.checks, self.bench = checks, bench
            else:
                print(f"gpu-check: {file_name} is of another build or GPU: all checks begin anew")
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError) as error:
            print(f"gpu-check: {file_name} is not what gpu-check has written ({error!r}): all checks begin anew")
        except OSError as error:
            refuse(f"{file_name}: {error.strerror}")
        self.write()

    def write(self):
        checks = ",\n".join("    " + json.dumps(check) for check in self.checks.values())
        try:
            write_whole(self.file_name, json.dumps(self.head, indent=2)[:-2] + f',\n  "checks": [\n{checks}\n  ],\n'
                        f'  "bench": {json.dumps(self.bench, indent=1)}\n}}\n')
        except OSError as error:
            refuse(f"{self.file_name}: {error.strerror}")

    def record(self, name, command, outcome, seconds, printed=""):
        self.checks.pop(name, None)  # the last is what came last
        self.checks[name] = {"check": name, "command": command, "outcome": outcome, "seconds": seconds}
        if printed:
            self.checks[name]["printed"] = printed
        self.write()

    def outcome(self, name):
        return self.checks.get(name, {}).get("outcome", "")

    def left(self, wanted):
        not_run = self.named("not run")
        return [check for check in wanted if check.name not in self.checks and check.stage not in not_run]

    def named(self, outcome):
        return [name for name, check in self.checks.items() if check["outcome"].startswith(outcome)]

    # A benchmark's rows have names; those of a part that is measured anew take the place of the old ones.
    def add_rows(self, part):
        fresh = {row["op"] for row in part["rows"]}
        kept = [row for row in (self.bench or part)["rows"] if row["op"] not in fresh]
        self.bench = part | {"rows": kept + part["rows"]}


def read_json(name):
    try:
        return json.loads(read(name))
    except (OSError, ValueError):
        return None


def run_check(check, checks, results, start, may_take, until_the_end):
    """Where the run ends before the check may be called too long, or somebody ends it, the check is left."""
    log = os.path.join(checks.logs, re.sub("[ ,]", "_", check.name) + ".log")
    if os.path.exists(launched := check.environment.get("PTX_LAUNCHED", "")):
        os.remove(launched)  # to which a program adds
    if check.stage == "bench":
        rows = check.command[1]
        write_whole(rows, "null")
        for name in [name for name in results.checks if name.endswith(BESIDE_PYTORCH)]:  # their rows are made anew too
            del results.checks[name]
    elif check.stage == "pytorch":
        write_whole(checks.rows(), json.dumps(results.bench))
    limit = min(may_take, until_the_end)
    with open(log, "w") as file:
        code = subprocess.run(at_most(limit) + check.command, stdin=subprocess.DEVNULL, stdout=file,
                              stderr=subprocess.STDOUT, env=os.environ | check.environment).returncode
    with open(log, errors="replace") as file:
        text = file.read()
    stopped = code == 124 or code in (137, -9) and time.time() - start >= limit  # not by who runs out of memory
    if check.stage in SANITIZERS and "terminated before first instrumented API call" in text and PASSED.search(text):
        code = 0  # it launches nothing, which compute-sanitizer takes for a fault
    outcome = ("ok" if code == 0 else f"not run: {text.strip()}" if code == gpu_program.NOT_RUN else
               f"FAIL: longer than {may_take} s" if stopped else f"FAIL: exit {code}")
    if code == 0 and "No tests ran" in text:
        outcome = "FAIL: no case ran"
    broken_off = stopped and until_the_end < may_take or code in BY_SOMEBODY
    took = int(time.time() - start)
    with results.lock:
        printed = ""
        print(f"{'left' if broken_off else outcome.partition(':')[0]:5} {check.name:60} {took:4d} s")
        if outcome != "ok" and not broken_off:
            lines = text.splitlines()
            printed = "\n".join(lines if len(lines) <= 35 else [*lines[:20], "...", *lines[-15:]])[:4000]
            print(f"{printed}\n      {outcome}; its log: {log}")
        sys.stdout.flush()
        # (a bench that was stopped leaves what it has measured)
        if check.stage == "bench" and (part := read_json(rows)):
            results.add_rows(part)
        elif check.stage == "pytorch":
            results.bench = read_json(checks.rows()) or results.bench
        if broken_off:
            results.write()
            return
        command = [f"{name}={value}" for name, value in check.environment.items()] + check.command
        results.record(check.name, " ".join(command), outcome, took, printed)


def what_it_does(program):
    """A program's bytes without symbols and build id, in which two compilations of one source differ."""
    with tempfile.TemporaryDirectory(prefix="gpu_check_") as folder:
        bare = os.path.join(folder, "bare")
        stripped = said("strip", "-R", ".note.gnu.build-id", "-o", bare, program)[1] == 0
        try:
            with open(bare if stripped else program, "rb") as file:
                return file.read()
        except OSError as error:
            refuse(f"{program}: {error.strerror}: make gpu-build makes it")


def the_gpu():
    """What nvidia-smi says of the GPU: its name, the driver, its compute capability."""
    answer, code = said("nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader")
    if code != 0 or not answer:
        refuse(f"no GPU answers here: nvidia-smi: {answer or 'says nothing'}; the emulator's tests are in make test")
    device = answer.splitlines()[0]
    if re.search(r", [1-7]\.\d+$", device):
        refuse(f"{device}: expected compute capability 8.0 or higher, whose instructions the kernels have")
    return (device.split(", ") + ["", ""])[:3]


def wishes(there):
    """What the environment asks for: stages, the end, seconds a check, checks side by side."""
    stages = variable("STAGES", " ".join(there)).split()
    for stage in stages:
        if stage not in there:
            refuse(f"no stage is called '{stage}'; expected some of: {' '.join(there)}")
    minutes, may_take = number("MINUTES", "0", 0), number("CHECK_SECONDS", "200", 1)
    jobs = number("JOBS", str((os.cpu_count() + 1) // 2), 1)
    deadline = float(variable("BEGAN", str(time.time()))) + 60 * minutes if minutes else float("inf")
    return stages, deadline, may_take, jobs


def main(result, train, bench, tests, of_cublas):
    """Without a bench it is a rehearsal."""
    stages, deadline, may_take, jobs = wishes(STAGES if bench else REHEARSED)
    gpu = the_gpu() if bench else [PTX_ON_A_CPU, "none", "{}.{}".format(*variable("PTX_GPU", "90"))]
    nvcc, sanitizer = map(cuda_tool, ("nvcc", "compute-sanitizer"))
    release = re.search(r"release ([\d.]+)", said(nvcc, "--version")[0] if nvcc else "")
    # What the checks are of: other programs or another GPU, and all begin anew.
    build = hashlib.sha256(" ".join(gpu).encode())
    for program in ([bench] if bench else []) + tests + [train]:
        build.update(what_it_does(program))
    commit, no_commit = said("git", "describe", "--always", "--dirty")
    results = Results(result, {"device": gpu[0], "driver": gpu[1], "nvcc": release[1] if release else "",
                               "commit": variable("COMMIT", "" if no_commit else commit),
                               "build": build.hexdigest()[:16], "cores": os.cpu_count(), "jobs": jobs,
                               "command": "make gpu-check" if bench else "make rehearsal"})
    logs = os.path.join(os.path.dirname(tests[0]), "gpu-check.logs")
    os.makedirs(logs, exist_ok=True)
    checks = Checks(train, bench, tests, of_cublas, logs, gpu[2], sanitizer)
    wanted = [check for stage in stages for check in checks.of(stage)]
    if results.left(wanted):
        todo = [check for check in wanted if check.name not in results.checks]
    else:
        todo = [check for check in wanted if results.outcome(check.name) != "ok"]

    # Beside each other waiting threads must not spin.
    os.environ |= {"GATED_NEEDS_GPU": "1", "OMP_WAIT_POLICY": "passive"}
    unusable, probed = None, False
    for stage in stages:
        of_stage = [check for check in todo if check.stage == stage]
        if not of_stage:
            continue
        if (now := time.time()) >= deadline:
            break
        if stage in SANITIZERS:
            if not probed:
                unusable, probed = checks.why_no_sanitizer(min(may_take, deadline - now)), True
                if unusable and time.time() >= deadline:
                    break  # it was broken off
                if unusable:
                    print(f"gpu-check: {unusable}: what is left of its stages is not run")
            if unusable:
                results.record(stage, f"{sanitizer or 'compute-sanitizer'} --tool {stage}", f"not run: {unusable}", 0)
                continue
            results.checks.pop(stage, None)

        def run_in_time(check):
            if (now := time.time()) < deadline:
                run_check(check, checks, results, now, may_take, deadline - now)
        try:
            with concurrent.futures.ThreadPoolExecutor(1 if stage in ("bench", "pytorch") else jobs) as side_by_side:
                list(side_by_side.map(run_in_time, of_stage))
        except KeyboardInterrupt:
            break

    failed, left = results.named("FAIL"), len(results.left(wanted))
    not_run = [name for name in results.named("not run") if name.split()[0] in stages]
    if failed:
        print("gpu-check: failed: " + ", ".join(failed))
    print(f"gpu-check: {len(results.named('ok'))} passed, {len(failed)} failed, {left} left"
          + (", not run: " + ", ".join(not_run) if not_run else "") + f"; results in {result}")
    if left:
        print("gpu-check: the same command goes on with what is left")
        return 2
    return 1 if failed or not_run else 0


mode, *arguments = sys.argv[1:] or [""]
if mode == "--fingerprint":
    sys.exit(compare_fingerprints(arguments[0], arguments[1:]))
if mode == "--golden":
    # (--steps, and --warmup, which may not be more)
    run = GOLDEN.replace("=20 ", f"={arguments[1]} ") + " --batch=2 --context=160 --val-batches=1"
    sys.exit(max(compare_fingerprints(arguments[0], (run + more).split()) for more in ["", *OTHER_GOLDEN.values()]))
if mode == "--launched":
    sys.exit(launched_by_tests(arguments[0]))
if mode == "--wishes":
    wishes(STAGES)
    sys.exit()
if mode == "--rehearsal":
    sys.exit(main(arguments[0], arguments[1], None, arguments[2:], []))
cublas_at = arguments.index("--cublas") if "--cublas" in arguments else len(arguments)
if cublas_at < 2:
    refuse("expected RESULT.json BENCH TEST... [--cublas TEST...]")
sys.exit(main(mode, "./train", arguments[0], arguments[1:cublas_at], arguments[cublas_at + 1:]))
