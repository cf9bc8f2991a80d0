#!/usr/bin/env python3
"""Trains a grid of flags, each point with several seeds, and sets the losses side by side: one table, one page.

usage: make && scripts/sweep.py FOLDER --grid="CHOICE | CHOICE ..." [--grid=...] [--seeds=3] [-- FLAGS of all runs]
       scripts/sweep.py sweeps/gates --grid="--attn=full | --attn=g1 | --attn=g1 --norm=gated" \\
           --grid="--lr=1e-3 | --lr=3e-3" -- --data=input.txt --steps=600

A choice is some flags, or none. Every choice of one --grid meets every choice of the others. As many runs go on at once
as there are GPUs, or else cores (one thread each). The same command goes on where it was stopped: a run that is
finished is not run again, and one that was stopped is taken up at its newest checkpoint. In FOLDER: table.md and
table.json, report.html of the first seed's runs, and runs/, where each run has its --out. The papers' tables
(scripts/tables.py) run by the same engine.
"""
import concurrent.futures
import hashlib
import itertools
import json
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field

from common import ROOT, TRAIN, cores, parser_of, read, refuse, require_train, write_whole
from paired import half_width
from plots import read_log

DIVERGED = "training has diverged"  # what ./train says then
SEEDS = (1337, 1, 2, 3, 4, 5, 6, 7)

# ---- runs

@dataclass(frozen=True)
class Text:
    data: str  # of --data: a path, or self
    about: tuple = ()  # bytes and sha256 of a file

    def key(self):
        return self.about[1] if self.about else self.data


def read_text(path):
    if path == "self":
        return Text(path)
    if not os.path.isfile(path):
        refuse(f"--text={path}: no such file")
    with open(path, "rb") as file:
        content = file.read()
    return Text(os.path.abspath(path), (len(content), hashlib.sha256(content).hexdigest()))


# Where a run goes: flags of ./train, and what its environment has beside ours.
ONE_CORE = (("--device=cpu", "--threads=1"), {})


def gpus():
    """The numbers of this machine's GPUs."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    except OSError:
        return []
    return re.findall(r"^GPU (\d+):", listed, re.MULTILINE)


def places(jobs, gpus=()):
    """So many places side by side; of 0 jobs one a GPU, or one a core."""
    if gpus:
        return [(("--device=cuda",), {"CUDA_VISIBLE_DEVICES": gpus[i % len(gpus)]}) for i in range(jobs or len(gpus))]
    return [ONE_CORE] * (jobs or cores())


def train_program(*flags, place=ONE_CORE, cwd=ROOT, may_fail=""):
    """./train with these flags, which has to end well, or with an error that says `may_fail`."""
    where, more = place
    done = subprocess.run([TRAIN, *flags, *where], capture_output=True, text=True, cwd=cwd, env=os.environ | more)
    if done.returncode != 0 and not (may_fail and may_fail in done.stderr):
        refuse(f"./train {shlex.join(flags)}: exit code {done.returncode}: {done.stderr.strip() or done.stdout[-500:]}")
    return done


@dataclass(frozen=True)
class Run:
    flags: tuple
    seed: int
    text: Text  # what --data is where the flags name none
    name: str = field(default="", compare=False)  # what progress calls it
    after: "Run" = None  # the run whose weights this one starts from
    label: str = field(default="", compare=False)  # what the name of its folder begins with
    cwd: str = field(default=ROOT, compare=False)

    def line(self):
        return " ".join(shlex.quote(flag) for flag in self.flags)

    def folder(self, runs):
        start = (os.path.basename(self.after.folder(runs)),) if self.after else ()
        name = "\n".join(self.flags + (self.text.key(), str(self.seed)) + start)
        return os.path.join(runs, (self.label and self.label + ".") + hashlib.sha256(name.encode()).hexdigest()[:16])

    def program(self, *more, **how):
        data = [] if any(f.startswith("--data=") for f in self.flags) else [f"--data={self.text.data}"]
        return train_program(*self.flags, *data, f"--seed={self.seed}", *more, cwd=self.cwd, **how)


def load(path):
    """What store() wrote there; nothing where it has not."""
    if os.path.exists(path):
        return json.loads(read(path))


def store(path, value, indent=None):
    write_whole(path, json.dumps(value, indent=indent) + "\n")


def train(run, runs, place=ONE_CORE):
    """What came of a run: the last entries of its log, "measured", those on the way there, the losses of its steps, and
    its fingerprint; or that it diverged. Kept in result.json."""
    folder = run.folder(runs)
    path = os.path.join(folder, "result.json")
    if result := load(path):
        return result
    start = []
    if run.after:
        if train(run.after, runs, place).get("diverged"):
            return {"diverged": True}
        start = [f"--from={run.after.folder(runs)}"]
    os.makedirs(folder, exist_ok=True)
    done = run.program("--sample-tokens=0", "--keep=1", f"--out={folder}", "--resume", *start, place=place,
                       may_fail=DIVERGED)
    if DIVERGED in done.stderr:
        result = {"diverged": True}
    else:
        measured = {}  # step -> what was found there
        log = read_log(folder)
        for entry in log:
            if not {"validation_loss", "measured_tokens", "bigram_entropy"}.isdisjoint(entry):
                measured[entry["step"]] = measured.get(entry["step"], {}) | entry
        result = {}
        for entry in measured.values():
            result |= entry
        result["measured"] = list(measured.values())
        result["losses"] = [entry["loss"] for entry in log if "loss" in entry]
        result["fingerprint"] = done.stdout.rsplit("fingerprint of the weights: ", 1)[1].split()[0]
    store(path, result)
    return result


def evaluate(run, flags, runs):
    """What --evaluate prints of a finished run. Kept beside its result."""
    folder = run.folder(runs)
    path = os.path.join(folder, "evaluated.json")
    printed = load(path) or {}
    if flags not in printed:
        printed[flags] = train_program(f"--from={folder}", "--evaluate", *shlex.split(flags)).stdout
        store(path, printed)
    return printed[flags]


def train_all(wanted, runs, places):
    """The results of all runs, of which each place has one at a time. A line for each that ends."""
    results, begun = {}, time.monotonic()
    wanted = list(dict.fromkeys(wanted))
    here = [run for run in wanted if os.path.exists(os.path.join(run.folder(runs), "result.json"))]
    if here:
        print(f"{len(here)} of {len(wanted)} runs are there already", flush=True)
    free = queue.SimpleQueue()
    for place in places:
        free.put(place)

    def train_somewhere(run):
        place = free.get()
        try:
            return train(run, runs, place)
        finally:
            free.put(place)
    with concurrent.futures.ThreadPoolExecutor(len(places)) as pool:
        pending = {pool.submit(train_somewhere, run): run for run in wanted}
        try:
            for future in concurrent.futures.as_completed(pending):
                run = pending[future]
                results[run] = future.result()
                if run in here:
                    continue
                new, all_new = len([r for r in results if r not in here]), len(wanted) - len(here)
                left = (time.monotonic() - begun) / new * (all_new - new)
                loss = results[run].get("validation_loss")
                print(f"{new}/{all_new}  {'diverged   ' if loss is None else f'loss {loss:.4f}'}  "
                      f"{int(left) // 60}:{int(left) % 60:02} left  {run.name}, seed {run.seed}", flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return results


# ---- how results are told

def last_of_each(flags):
    """Flags later in the line override earlier ones."""
    return list({flag.split("=")[0]: flag for flag in flags}.values())


def middle_and_spread(values):
    """Mean and half the range."""
    return sum(values) / len(values), (max(values) - min(values)) / 2


def markdown(heading, rows):
    def line(cells):
        return f"| {' | '.join(cells)} |"
    return [line(heading), "|" + "---|" * len(heading), *map(line, rows)]


def write_page(path, title, command, lines):
    write_whole(path, "\n".join([f"# {title}", "", f"`{command}`", "", *lines]) + "\n")


def means(values, digits, missing=("diverges", "diverge")):
    """Mean ± half the range of what the seeds came to, where None is a run that diverged, or what `missing` says."""
    trained = [v for v in values if v is not None]
    if not trained:
        return missing[0]
    middle, spread = middle_and_spread(trained)
    return (f"{middle:.{digits}f}" + (f" ± {spread:.{digits}f}" if len(trained) > 1 else "") +
            (f" ({len(values) - len(trained)} of {len(values)} {missing[1]})" if len(trained) < len(values) else ""))


# ---- a grid

OURS = ("--seed", "--out", "--resume", "--device", "--threads")  # what a sweep says itself


def words_of(line):
    try:
        words = shlex.split(line)
    except ValueError as error:
        refuse(f"{line}: {error}: expected flags of ./train, with quotes as in a shell")
    for word in words:
        if not word.startswith("--"):
            refuse(f"{word}: expected flags of ./train, --name=value")
        if word.split("=")[0] in OURS:
            refuse(f"{word}: the sweep gives each run its own; leave it out")
    return words


def grid_of(axes, common, seeds, cwd):
    """name of a point -> its runs. The text is opened here, so that another text is another run."""
    words = last_of_each(words_of(shlex.join(common)))
    data = next((word.partition("=")[2] for word in words if word.startswith("--data=")), "self")
    text = Text(data)
    if os.path.isfile(os.path.join(cwd, data)):
        text = read_text(os.path.join(cwd, data))
        words = [word for word in words if not word.startswith("--data=")]
    points = {}
    for choices in itertools.product(*([choice.strip() for choice in axis.split("|")] for axis in axes)):
        name = " ".join(choice for choice in choices if choice) or "as it is"
        if name in points:
            refuse(f"--grid: {name} stands there twice")
        flags = tuple(last_of_each(words + words_of(" ".join(choices))))
        label = re.sub(r"[^A-Za-z0-9.=+-]+", "_", name.replace("--", ""))[:80]
        points[name] = [Run(flags, seed, text, name, label=f"{label}.{seed}", cwd=cwd) for seed in seeds]
    return points


def table_of_points(points, results):
    """The lines of the table, and what its JSON holds. A gap is to the first point, between runs of one seed."""
    losses = {name: [results[run].get("validation_loss") for run in runs] for name, runs in points.items()}
    first = next(iter(points))
    best = min(((sum(of_point) / len(of_point), name) for name, of_point in losses.items() if None not in of_point),
               default=(0, ""))[1]
    shown, kept = [], []
    for name, of_point in losses.items():
        pairs = [a - b for a, b in zip(of_point, losses[first]) if None not in (a, b)]
        told = "" if name == first or not pairs else f"{sum(pairs) / len(pairs):+.4f}"
        if told and len(pairs) > 1:
            told += f" ± {half_width(pairs):.4f}"
        shown.append([f"`{name}`" + (" (lowest)" if name == best else ""), means(of_point, 4), told])
        kept.append({"point": name, "losses": of_point, "flags": points[name][0].line(),
                     "fingerprints": {run.seed: results[run].get("fingerprint", "diverged") for run in points[name]}})
    seeds = len(next(iter(points.values())))
    legend = (f"{seeds} seeds: means ± half the range; a gap is the mean difference from the first point between runs "
              "of one seed, with its 95 % t-interval. Of many gaps some leave out 0 by chance.")
    said = legend if seeds > 1 else "One seed, so nothing is said of a spread."
    return markdown(["", "validation loss", "gap"], shown) + ["", said], kept


def write_report(path, runs, folder):
    """The report of runs that have left a log, where matplotlib is."""
    folders = [run.folder(folder) for run in runs if os.path.exists(os.path.join(run.folder(folder), "log.jsonl"))]
    done = subprocess.run([sys.executable, os.path.join(ROOT, "scripts/report.py"), *folders, f"--out={path}"],
                          capture_output=True, text=True)
    print(done.stdout.strip() if done.returncode == 0 else f"no page: {done.stderr.strip()}")


def options_of(parser, words=None):
    """The options of a command that trains runs, checked."""
    parser.add_argument("--seeds", type=int, default=3, help="runs of each point [3]")
    parser.add_argument("--jobs", type=int, default=0,
                        help="runs side by side [one a core; of a sweep one a GPU, where there are]")
    options = parser.parse_args(words)
    if not 1 <= options.seeds <= len(SEEDS) or options.jobs < 0:
        refuse(f"--seeds={options.seeds} --jobs={options.jobs}: expected 1 to {len(SEEDS)} seeds, at least 1 job")
    return options


def main():
    parser = parser_of(__doc__)
    parser.usage = "sweep.py FOLDER --grid=CHOICES [...] [-- FLAGS of all runs]"
    parser.add_argument("folder", metavar="FOLDER", help="where all goes")
    parser.add_argument("--grid", action="append", required=True, metavar="CHOICES",
                        help="flags that take turns, with | between them")
    parser.add_argument("--cpu", action="store_true", help="leave GPUs alone")
    words = sys.argv[1:]
    behind = words.index("--") if "--" in words else len(words)
    options, common = options_of(parser, words[:behind]), words[behind + 1:]
    for name, values in (("FOLDER", [options.folder]), ("--grid", options.grid)):
        if "" in values:
            refuse(f"{name}: it is empty, expected {'where all goes' if name == 'FOLDER' else 'flags that take turns'}")
    require_train()
    points = grid_of(options.grid, common, SEEDS[:options.seeds], os.getcwd())
    folder = os.path.abspath(options.folder)
    kept_runs = os.path.join(folder, "runs")
    wanted = [run for same_seed in zip(*points.values()) for run in same_seed]
    results = train_all(wanted, kept_runs, places(options.jobs, [] if options.cpu else gpus()))
    lines, kept = table_of_points(points, results)
    command = shlex.join(["scripts/sweep.py", *sys.argv[1:]])
    store(os.path.join(folder, "table.json"), {"command": command, "points": kept})
    write_page(os.path.join(folder, "table.md"), options.folder, command, lines)
    print("\n" + "\n".join(lines) + f"\n\nwrote {os.path.join(options.folder, 'table.md')}")
    write_report(os.path.join(folder, "report.html"), [runs[0] for runs in points.values()], kept_runs)


def ended_by_hand(main):
    """main(), which the same command takes up again."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `... | head` ends with head
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("interrupted: the same command goes on")
    except OSError as error:
        refuse(f"{error.filename}: {error.strerror}")


if __name__ == "__main__":
    ended_by_hand(main)
