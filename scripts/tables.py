#!/usr/bin/env python3
"""Trains the rows of the papers' tables at a small scale, and sets them beside the papers' figures.

usage: make && scripts/tables.py p1-4 p2-1 --scale=minutes --seeds=3      writes results/p1-4.minutes.md and .json, ...
       scripts/tables.py p2-1 --scale=paper                               prints the commands for the paper's models

Each row is a line of flags (scripts/paper_tables.py), run for several seeds, one process a core. A run that is finished is
not run again, and one that was stopped goes on: the same command takes up what is there. Runs are kept under build/tables.
"""
import argparse
import concurrent.futures
import hashlib
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field

from common import ROOT, TRAIN, refuse, require_train
from paper_tables import ELSEWHERE, SCALES, TABLES, Stability
from plots import read_log

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


def train_program(*flags):
    return subprocess.run([TRAIN, *flags, "--device=cpu", "--threads=1"], capture_output=True, text=True, cwd=ROOT)


@dataclass(frozen=True)
class Run:
    flags: tuple
    seed: int
    text: Text  # what --data is where the flags name none
    name: str = field(default="", compare=False)  # what progress calls it
    after: "Run" = None  # the run whose weights this one starts from

    def line(self):
        return " ".join(shlex.quote(flag) for flag in self.flags)

    def folder(self, runs):
        start = (os.path.basename(self.after.folder(runs)),) if self.after else ()
        name = "\n".join(self.flags + (self.text.key(), str(self.seed)) + start)
        return os.path.join(runs, hashlib.sha256(name.encode()).hexdigest()[:16])

    def program(self, *more):
        data = [] if any(f.startswith("--data=") for f in self.flags) else [f"--data={self.text.data}"]
        return train_program(*self.flags, *data, f"--seed={self.seed}", *more)


def load(path):
    """What store() wrote there; nothing where it has not."""
    if os.path.exists(path):
        with open(path) as file:
            return json.load(file)


def store(path, value):
    with open(path + ".new", "w") as file:
        json.dump(value, file)
    os.replace(path + ".new", path)


def train(run, runs):
    """What came of a run: the last entries of its log and its fingerprint; or that it diverged. Kept in result.json."""
    folder = run.folder(runs)
    path = os.path.join(folder, "result.json")
    if result := load(path):
        return result
    start = []
    if run.after:
        if train(run.after, runs).get("diverged"):
            return {"diverged": True}
        start = [f"--from={run.after.folder(runs)}"]
    os.makedirs(folder, exist_ok=True)
    done = run.program("--sample-tokens=0", "--keep=1", f"--out={folder}", "--resume", *start)
    if "training has diverged" in done.stderr:
        result = {"diverged": True}
    elif done.returncode != 0:
        refuse(f"./train {run.line()}: exit code {done.returncode}: {done.stderr.strip() or done.stdout[-500:]}")
    else:
        result = {}
        for entry in read_log(folder):
            if "validation_loss" in entry or "measured_tokens" in entry:
                result |= entry
        result["fingerprint"] = done.stdout.rsplit("fingerprint of the weights: ", 1)[1].split()[0]
    store(path, result)
    return result


def evaluate(run, flags, runs):
    """What --evaluate prints of a finished run. Kept beside its result."""
    folder = run.folder(runs)
    path = os.path.join(folder, "evaluated.json")
    printed = load(path) or {}
    if flags not in printed:
        done = train_program(f"--from={folder}", "--evaluate", *shlex.split(flags))
        if done.returncode != 0:
            refuse(f"./train {run.line()} --evaluate {flags}: exit code {done.returncode}: {done.stderr.strip()}")
        printed[flags] = done.stdout
        store(path, printed)
    return printed[flags]


def train_all(wanted, runs, jobs):
    """The results of all runs. A line for each that ends."""
    results, begun = {}, time.monotonic()
    wanted = list(dict.fromkeys(wanted))
    here = [run for run in wanted if os.path.exists(os.path.join(run.folder(runs), "result.json"))]
    if here:
        print(f"{len(here)} of {len(wanted)} runs are there already", flush=True)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        pending = {pool.submit(train, run, runs): run for run in wanted}
        try:
            for future in concurrent.futures.as_completed(pending):
                run = pending[future]
                results[run] = future.result()
                if run in here:
                    continue
                new, all_new = len([r for r in results if r not in here]), len(wanted) - len(here)
                left = (time.monotonic() - begun) / new * (all_new - new)
                loss = results[run].get("validation_loss")
                print(f"{new}/{all_new}  {'diverged   ' if loss is None else f'loss {loss:.4f}'}  {int(left) // 60}:{int(left) % 60:02} left"
                      f"  {run.name}, seed {run.seed}", flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return results


# ---- the figures of a table

def last_of_each(flags):
    """Flags later in the line override earlier ones."""
    return list({flag.split("=")[0]: flag for flag in flags}.values())


def flags_of(row_flags, lr_factor, scale, kind):
    """A run's flags as a tuple. Its learning rate stands among them."""
    lr, line = scale.kinds[kind]
    lr *= lr_factor
    words = " ".join([scale.model, line, row_flags]).format_map(scale.words)
    flags = shlex.split(words) + [f"--lr={lr:.6g}", f"--min-lr={lr / 10:.6g}"]
    if kind == "sinks":
        flags.append("--data=bigram-backcopy")
    flags = last_of_each(flags)
    if "--mixer=gated-delta" in flags:  # has no queries and keys to norm
        flags = [flag for flag in flags if not flag.startswith("--qk-norm=")]
    return tuple(flags)


def middle_and_spread(values):
    """Mean and half the range."""
    return sum(values) / len(values), (max(values) - min(values)) / 2


def signed(change, column):
    return f"{math.exp(change):.3g}x" if column.compare == "ratio" else f"{change:+.{column.digits}f}"


def verdict(ours, spread, paper):
    if abs(ours) <= spread:
        return "within the spread"
    return "yes" if (ours < 0) == (paper < 0) else "no"


def compare(table, column, row, values):
    """Of one row in one column: what is printed and what is kept."""
    ours, paper = values[row.number], row.paper.get(column)
    c = table.columns[column]
    number = f"{{:.{c.digits}f}}"
    cell = {"values": ours, "paper": paper}
    shown = {"ours": "", "gap": "", "paper": "diverges" if paper is None and column in row.paper else "", "paper gap": "", "sign": ""}
    trained = [v for v in ours if v is not None]
    if trained:
        middle, spread = middle_and_spread(trained)
        shown["ours"] = number.format(middle) + (f" ± {number.format(spread)}" if len(trained) > 1 else "")
        if len(trained) < len(ours):
            shown["ours"] += f" ({len(ours) - len(trained)} of {len(ours)} diverge)"
    elif c.run == "text" or paper is not None:
        shown["ours"] = "diverges"
    if paper is not None:
        shown["paper"] = paper if isinstance(paper, str) else f"{paper:.{c.digits}f}"
    if row.to is None or c.compare is None:
        return cell, shown
    ratio = c.compare == "ratio"
    change = (lambda a, b: math.log(a / b)) if ratio else (lambda a, b: a - b)
    reference = next(r for r in table.rows if r.number == row.to)
    pairs = [(a, b) for a, b in zip(ours, values[row.to]) if a is not None and b is not None]
    if pairs:
        gap, spread = middle_and_spread([change(a, b) for a, b in pairs])
        cell |= {"gap": gap, "gap_spread": spread}
        shown["gap"] = signed(gap, c) + (f" ± {number.format(spread)}" if len(pairs) > 1 and not ratio else "")
    if paper == "lower":
        shown["sign"] = verdict(gap, spread, -1) if pairs else ""
    elif paper is not None and reference.paper.get(column) is not None:
        cell["paper_gap"] = change(paper, reference.paper[column])
        shown["paper gap"] = signed(cell["paper_gap"], c)
        if pairs:
            shown["sign"] = verdict(gap, spread, cell["paper_gap"])
    elif paper is None and column in row.paper:
        shown["sign"] = "no: it trains" if len(trained) == len(ours) else "yes"
    cell["sign"] = shown["sign"]
    return cell, shown


def markdown(heading, rows):
    lines = ["| " + " | ".join(heading) + " |", "|" + "---|" * len(heading)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def run_of(table, row, kind, scale, seed, text):
    after = run_of(table, row, "before long", scale, seed, text) if kind == "long" else None
    return Run(flags_of(f"{table.base} {row.flags}", row.lr, scale, kind), seed, text,
               f"{table.source} row {row.number}: {row.name}, {kind}", after)


def runs_of(table, scale, seeds, text):
    """(row's number, kind) -> the runs of all seeds."""
    return {(row.number, kind): [run_of(table, row, kind, scale, seed, text) for seed in seeds]
            for row in table.rows for kind in sorted({c.run for c in table.columns.values()})}


def table_of_rows(table, scale, seeds, text, results):
    """The lines of a table, and what its JSON holds."""
    runs = runs_of(table, scale, seeds, text)
    values = {column: {row.number: [None if (r := results[run]).get("diverged") else c.value(r) for run in runs[row.number, c.run]]
                       for row in table.rows} for column, c in table.columns.items()}
    kept, shown, signs = [], [], []
    heading = ["row", "", "against"]
    parts = {column: ["ours"] + ["gap"] * bool(c.compare) + (["paper"] + ["paper gap", "sign"] * bool(c.compare)) * any(column in row.paper for row in table.rows)
             for column, c in table.columns.items()}
    for column, c in table.columns.items():
        heading += [{"ours": c.heading, "paper gap": "paper's gap", "sign": "sign agrees"}.get(part, part) for part in parts[column]]
    for row in table.rows:
        entry, line = {"row": row.number, "name": row.name, "against": row.to, "runs": {}}, [row.number, row.name, row.to or ""]
        for column, c in table.columns.items():
            entry[column], cell = compare(table, column, row, values[column])
            line += [cell[part] for part in parts[column]]
            signs += [cell["sign"]] if cell["sign"] else []
            mine = runs[row.number, c.run]
            before = {"before": mine[0].after.line()} if mine[0].after else {}
            entry["runs"][c.run] = before | {"flags": mine[0].line(),
                                    "fingerprints": {run.seed: results[run].get("fingerprint", "diverged") for run in mine}}
        kept.append(entry)
        shown.append(line)
    count = f"{sum(s == 'yes' for s in signs)} signs agree, {sum(s.startswith('no') for s in signs)} do not, " \
            f"{sum(s == 'within the spread' for s in signs)} gaps lie within the spread of the seeds"
    legend = f"{len(seeds)} seeds: means ± half the range. A gap is the mean difference (x: ratio) between runs of one seed; one that is no larger " \
             "than its own spread has no sign." if len(seeds) > 1 else \
             "One seed, so nothing is said of a spread. A gap is the difference (x: ratio) between two runs."
    compared = count + ". " if signs else ""  # a table may have no figures of a paper's
    return markdown(heading, shown) + ["", compared + legend], {"rows": kept, "signs": count}


def stability_runs(scale, seeds, text):
    s, lr = Stability(), scale.kinds["text"][0]
    return {(name, factor): [Run(flags_of("{dense} " + flags, factor, scale, "text"), seed, text,
                                 f"stability: {name}, lr {factor * lr:.3g}") for seed in seeds]
            for name, flags in s.variants.items() for factor in s.factors}


def table_of_stability(scale, seeds, text, results):
    s, lr, runs = Stability(), scale.kinds["text"][0], stability_runs(scale, seeds, text)
    heading, shown, kept = [""] + [f"lr {f * lr:.3g}" for f in s.factors] + ["highest that trains"], [], []
    for name in s.variants:
        losses = [[results[run].get("validation_loss", math.inf) for run in runs[name, f]] for f in s.factors]
        means = [sum(l) / len(l) for l in losses]
        trains = [f * lr for f, m in zip(s.factors, means) if m < math.inf and m <= min(means) + s.slack]
        highest = max(trains, default=None)
        shown.append([name] + [f"{m:.3f}" if m < math.inf else "diverges" for m in means] + [f"{highest:.3g}" if trains else "none"])
        kept.append({"variant": name, "highest": highest,
                     "losses": {f * lr: [l if l < math.inf else None for l in ls] for f, ls in zip(s.factors, losses)},
                     "flags": runs[name, 1][0].line()})
    return markdown(heading, shown) + ["", f"Validation loss by learning rate. A rate trains where the mean loss is within {s.slack} "
                                       "nats of the variant's best."], {"variants": kept}


def evaluate_columns(table, scale, seeds, text, results, runs):
    """What --evaluate prints for columns that ask for it joins the results of their runs."""
    of_rows = runs_of(table, scale, seeds, text)
    for column in table.columns.values():
        for row in table.rows if column.evaluate else []:
            for run in of_rows[row.number, column.run]:
                if not results[run].get("diverged"):
                    results[run][column.evaluate] = evaluate(run, column.evaluate.format_map(scale.words), runs)


# ---- the program

def describe_all(wanted, seed):
    """The size of every model. Trains nothing."""
    for run in wanted:
        if run.seed == seed:
            done = run.program("--describe")
            if done.returncode != 0:
                refuse(f"./train {run.line()}: {done.stderr.strip()}")
            size = re.search(r"^  total +([0-9,]+)$", done.stdout, re.MULTILINE)[1]
            print(f"{size:>14} parameters  {run.name}", flush=True)


def print_commands(name):
    """The paper's own scale: what a cluster would run."""
    table, scale = TABLES[name], SCALES["paper"]
    twice = any(c.run == "long" for c in table.columns.values())
    for row in table.rows:
        flags = shlex.split(" ".join([f"--preset={table.preset}", table.base, row.flags]).format_map(scale.words))
        flags = last_of_each(flags) + [f"--lr={row.lr * table.lr:.3g}"]
        if table.match and row.flags:
            flags.append(f"--match-params={table.match}")
        command = " ".join([f"{name} row {row.number}: ./train", *map(shlex.quote, flags)])
        if not twice:
            print(command, "--data=FILE.bin --out=FOLDER")
            continue
        print(command, scale.kinds["before long"][1], "--data=FILE.bin --out=SHORT")
        print(command, scale.kinds["long"][1], "--data=LONG.bin --from=SHORT --out=FOLDER")
        print(command, scale.kinds["long"][1], "--data=LONG.bin --out=FOLDER --evaluate --yarn=4 --context={long context}".format_map(scale.words))


def write(name, scale_name, title, lines, contents, options, text):
    os.makedirs(options.results, exist_ok=True)
    command = f"scripts/tables.py {name} --scale={scale_name} --seeds={options.seeds}" + (
        "" if options.text == "self" else " --text=FILE")
    with open(os.path.join(options.results, f"{name}.{scale_name}.json"), "w") as file:
        about = dict(zip(("bytes", "sha256"), text.about)) or text.data
        json.dump({"table": name, "title": title, "command": command, "text": about} | contents, file, indent=1)
        file.write("\n")
    page = os.path.join(options.results, f"{name}.{scale_name}.md")
    with open(page, "w") as file:
        file.write("\n".join([f"# {title}", "", f"`{command}`", "", *lines]) + "\n")
    print(f"\n{title}\n" + "\n".join(lines) + f"\nwritten: {page}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*TABLES, "stability"]
    parser.add_argument("tables", nargs="+", metavar="TABLE", help="of " + ", ".join(names))
    parser.add_argument("--scale", choices=SCALES, default="minutes")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each row [3]")
    parser.add_argument("--text", default="self", help="the text whose loss is compared: a file, or this repository's source [self]")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="runs side by side [one a core]")
    parser.add_argument("--runs", default=os.path.join(ROOT, "build/tables"), help="where runs are kept [build/tables]")
    parser.add_argument("--results", default=os.path.join(ROOT, "results"), help="where the tables go [results]")
    parser.add_argument("--describe", action="store_true", help="print how large each model is, and train nothing")
    options = parser.parse_args()
    for name in options.tables:
        if name in ELSEWHERE:
            refuse(f"{name} {ELSEWHERE[name]}")
        if name not in names:
            refuse(f"{name}: expected tables of {', '.join(names)}")
    if not 1 <= options.seeds <= len(SEEDS) or options.jobs < 1:
        refuse(f"--seeds={options.seeds} --jobs={options.jobs}: expected 1 to {len(SEEDS)} seeds, at least 1 job")
    if options.scale == "paper":
        for name in options.tables:
            if name == "stability":
                refuse("stability has no rows in a paper; P1 table 2 (p1-2) has the rates that the paper tried")
            print_commands(name)
        return
    require_train()
    text = read_text(options.text)
    scale, seeds = SCALES[options.scale], SEEDS[:options.seeds]
    wanted = []
    for name in options.tables:
        runs = stability_runs(scale, seeds, text) if name == "stability" else runs_of(TABLES[name], scale, seeds, text)
        wanted += [run for same_seed in zip(*runs.values()) for run in same_seed]
    if options.describe:
        describe_all(wanted, seeds[0])
        return
    kept_runs = os.path.join(os.path.abspath(options.runs), options.scale)
    results = train_all(wanted, kept_runs, options.jobs)
    for name in options.tables:
        if name != "stability":
            evaluate_columns(TABLES[name], scale, seeds, text, results, kept_runs)
    for name in options.tables:
        if name == "stability":
            lines, contents = table_of_stability(scale, seeds, text, results)
            write(name, options.scale, Stability.title, lines, contents, options, text)
        else:
            table = TABLES[name]
            lines, contents = table_of_rows(table, scale, seeds, text, results)
            lines += ["", table.notes] if table.notes else []
            write(name, options.scale, f"{table.title} ({table.source})", lines, contents, options, text)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `tables.py ... | head` ends with head; the same command goes on
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("interrupted: the same command goes on")
