#!/usr/bin/env python3
"""Trains the rows of the papers' tables at a small scale, and sets them beside the papers' figures.

usage: make && scripts/tables.py p1-4 p2-1 --scale=minutes --seeds=3   writes results/p1-4.minutes.md and .json, ...,
                                                                       README.md
       scripts/tables.py p1-1 p2-1 --scale=gpu --text=FILE             the main rows at GPT-2's size, a run a GPU
       scripts/tables.py p2-1 --scale=paper                            prints the commands for the paper's models

Each row is a line of flags (scripts/paper_tables.json), run for several seeds, one process a core, by the engine of
scripts/sweep.py. A run that is finished is not run again, and one that was stopped goes on: the same command
takes up what is there. Runs are kept under build/tables.
"""
import concurrent.futures
import dataclasses
import math
import os
import re
import shlex
import statistics
import tempfile
import textwrap

from common import ROOT, cores, parser_of, refuse, require_train, write_whole
from paired import FEWEST, half_width, rank_agreement, verdicts
from paper_tables import PAPER_RUNS, PAPERS, SCALES, TABLES, Stability, Times
from plots import read_log
from sweep import (SEEDS, Run, ended_by_hand, evaluate, gpus, last_of_each, load, markdown, means, options_of, places,
                   read_text, store, train_all, train_program, write_page)

NAMES = (*TABLES, "p2-4", "stability")


# ---- the figures of a table

def flags_of(row_flags, lr_factor, scale, kind):
    """A run's flags as a tuple. Its learning rate stands among them."""
    lr, line = scale.kinds[kind]
    lr *= lr_factor
    words = " ".join([scale.model, line, row_flags]).format_map(scale.words)
    flags = shlex.split(words) + [f"--lr={lr:.6g}", f"--min-lr={lr / 10:.6g}"]
    if kind == "sinks":
        flags.append("--data=bigram-backcopy")
    flags = last_of_each(flags + shlex.split(scale.also))
    if "--mixer=gated-delta" in flags:  # has no queries and keys to norm
        flags = [flag for flag in flags if not flag.startswith("--qk-norm=")]
    return tuple(flags)


def signed(change, column):
    return f"{math.exp(change):.3g}x" if column.compare == "ratio" else f"{change:+.{column.digits}f}"


def untrained(results):
    """Whether runs ended no better than a table of pairs of bytes: their losses are above the entropy of a byte given
    the one before it."""
    losses = [(r["validation_loss"], r["bigram_entropy"]) for r in results
              if "bigram_entropy" in r and not r.get("diverged")]
    return bool(losses) and sum(loss - entropy for loss, entropy in losses) > 0


def entropy_of(results, runs):
    """The entropy of a byte given the one before it, of the text that these runs read; None where no log has it."""
    return next((results[run]["bigram_entropy"] for run in runs if "bigram_entropy" in results[run]), None)


def read_at(result, loss):
    """A run's measures where its loss first is no more than `loss`."""
    reached = (m for m in result["measured"] if m.get("validation_loss", math.inf) <= loss and "measured_tokens" in m)
    return next(reached, {"diverged": True})


def row_of(table, number):
    return next(row for row in table.rows if row.number == number)


def compared(table, column, row, to, values, untrained_rows):
    """A row beside another in a column: what is kept, and (differences, the paper's effect) where there is a sign to be
    said."""
    c, ours = table.columns[column], values[row.number]
    change = (lambda a, b: math.log(a / b)) if c.compare == "ratio" else (lambda a, b: a - b)
    differ = [change(a, b) for a, b in zip(ours, values[to]) if a is not None and b is not None]
    paper, beside = row.paper.get(column), row_of(table, to).paper.get(column)
    kept, effect = {}, None
    if differ:
        kept["gap"] = statistics.fmean(differ)
    if len(differ) > 1:
        kept["interval"] = half_width(differ)
    if isinstance(paper, str):
        effect = -math.inf if paper == "lower" else math.inf
    elif paper is not None and beside is not None:
        effect = kept["paper_gap"] = change(paper, beside)
    elif paper is None and column in row.paper:
        trains = None not in ours and row.number not in untrained_rows
        kept["sign"] = ("too few seeds" if len(ours) < FEWEST else
                        "differs: it trains" if trains else "agrees: diverges too")
    if effect is None or not differ:
        return kept, None
    if {row.number, to} & set(untrained_rows):
        return kept | {"sign": "untrained"}, None
    return kept, (differ, effect)


def judged(table, values, untrained_rows=()):
    """Every comparison that a table names, judged together: the cells by (row, column), and those of its controls, in
    order."""
    cells = {(row.number, column): {"values": values[column][row.number], "paper": row.paper.get(column)}
             for row in table.rows for column in values}
    controls = [{"row": a, "against": b, "column": column} for a, b in table.controls for column in values]
    asked = [(cells[row.number, column], column, row, row.to) for row in table.rows for column in values
             if row.to and table.columns[column].compare]
    asked += [(kept, kept["column"], row_of(table, kept["row"]), kept["against"]) for kept in controls]
    pending = []
    for kept, column, row, to in asked:
        more, pairs = compared(table, column, row, to, values[column], untrained_rows)
        kept |= more
        if pairs:
            pending.append((kept, pairs))
    for (kept, _), (sign, p) in zip(pending, verdicts([pairs for _, pairs in pending])):
        kept |= {"sign": sign} | ({} if p is None else {"p": p})
    return cells, controls


def gap_text(cell, column):
    if "gap" not in cell:
        return ""
    gap, width = cell["gap"], cell.get("interval")
    if column.compare == "ratio":
        return signed(gap, column) + (f" ({math.exp(gap - width):.2g} to {math.exp(gap + width):.2g})"
                                      if width is not None and width < 50 else "")
    return signed(gap, column) + (f" ± {width:.{column.digits}f}" if width is not None else "")


def lines_of(table, contents):
    """The page of what a table's JSON holds."""
    rows, columns = contents["rows"], {name: c for name, c in table.columns.items() if name in contents["rows"][0]}
    untrained_rows = contents.get("untrained", [])
    parts = {name: ["ours"] + ["gap"] * bool(c.compare) +
                   (["paper"] + ["paper gap", "sign"] * bool(c.compare)) * any(name in row.paper for row in table.rows)
             for name, c in columns.items()}
    heading = ["row", "", "against"]
    for name, c in columns.items():
        heading += [{"ours": c.heading, "paper gap": "paper's gap", "sign": "the sign"}.get(part, part)
                    for part in parts[name]]
    shown = []
    for kept in rows:
        row = row_of(table, kept["row"])
        line = [row.number, row.name, row.to or ""]
        for name, c in columns.items():
            cell, paper = kept[name], row.paper.get(name)
            trained = any(v is not None for v in cell["values"])
            missing = [("not reached", "do not reach it")] * bool(row.at_loss_of)
            text = {"ours": means(cell["values"], c.digits, *missing)
                    if trained or c.run == "text" or paper is not None else "",
                    "gap": gap_text(cell, c),
                    "paper": "diverges" if paper is None and name in row.paper else "" if paper is None
                             else paper if isinstance(paper, str) else f"{paper:.{c.digits}f}",
                    "paper gap": signed(cell["paper_gap"], c) if "paper_gap" in cell else "",
                    "sign": cell.get("sign", "")}
            if row.number in untrained_rows and name == "loss" and trained:
                text["ours"] += " (untrained)"
            line += [text[part] for part in parts[name]]
        shown.append(line)
    lines = markdown(heading, shown)
    if controls := contents.get("controls"):
        lines += ["", *markdown(["beside each other", "", "gap", "paper's gap", "the sign"], [
            [f"{c['row']} and {c['against']}", f"{row_of(table, c['row']).name} and {row_of(table, c['against']).name}",
             gap_text(c, columns[c["column"]]), signed(c["paper_gap"], columns[c["column"]]), c.get("sign", "")]
            for c in controls])]
    counts = [f"{n} {told}" for told, n in signs_of(contents).items() if n]
    legend = ["Signs: " + ", ".join(counts) + "."] if counts else []  # a table may have no figures of a paper's
    if rank := contents.get("ranking"):
        legend += [f"Order of the rows beside the paper's: Kendall's tau {rank['tau']:+.2f}, p {rank['p']:.2g} "
                   "(shuffled rows that agree as well)."]
    seeds = max(len(row[name]["values"]) for row in rows for name in columns)
    legend += [f"{seeds} seeds: means ± half the range. A gap is the mean difference (x: ratio) between runs of one "
               f"seed, with its 95 % t-interval. A sign, which takes {FEWEST} seeds, is one at 5 % for the whole table "
               "by Holm's correction ([how](../docs/claims.md#how-a-sign-is-said))."
               if seeds > 1 else
               "One seed: a gap is the difference (x: ratio) between two runs, and nothing is said of its sign."]
    if untrained_rows:
        legend += [f"Untrained: the validation loss is above {contents['bigram_entropy']:.3f}, what a table of pairs "
                   "of bytes reaches."]
    return lines + ["", " ".join(legend)] + (["", table.notes] if table.notes else [])


SIGNS = {"agrees": "agreeing", "differs": "not agreeing", "absent": "absent at the paper's size",
         "not resolved": "not resolved", "too few seeds": "with too few seeds", "no change": "no change",
         "untrained": "where a run learned too little"}


def signs_of(contents):
    """How many signs of each kind a table has, of what its JSON keeps."""
    cells = [cell for row in contents.get("rows", []) for cell in row.values()
             if isinstance(cell, dict)] + contents.get("controls", [])
    signs = [cell["sign"].split(":")[0] for cell in cells if cell.get("sign")]
    return {told: signs.count(sign) for sign, told in SIGNS.items()}


def run_of(table, row, kind, scale, seed, text):
    after = run_of(table, row, "before long", scale, seed, text) if kind == "long" else None
    return Run(flags_of(f"{table.base} {row.flags}", row.lr, scale, kind), seed, text,
               f"{table.source} row {row.number}: {row.name}, {kind}", after)


def table_at(name, scale):
    """A table, of those rows that the scale runs, at the scale's rates."""
    table = TABLES[name]
    numbers = scale.rows.get(name, [row.number for row in table.rows])
    rates = scale.rates.get(name, {})
    rows = [dataclasses.replace(row, lr=rates.get(row.number, row.lr)) for row in table.rows if row.number in numbers]
    return dataclasses.replace(table, rows=rows,
                               controls=[pair for pair in table.controls if set(pair) <= set(numbers)])


def runs_of(table, scale, seeds, text):
    """(row's number, kind) -> the runs of all seeds."""
    return {(row.number, kind): [run_of(table, row, kind, scale, seed, text) for seed in seeds]
            for row in table.rows for kind in sorted({c.run for c in table.columns.values()})}


def table_of_rows(table, scale, seeds, text, results):
    """What a table's JSON holds."""
    runs = runs_of(table, scale, seeds, text)
    ends = {key: [results[run] for run in of_row] for key, of_row in runs.items()}
    read = ends | {(row.number, kind): [r if r.get("diverged") else read_at(r, other.get("validation_loss", -math.inf))
                                        for r, other in zip(ends[row.number, kind], ends[row.at_loss_of, kind])]
                   for row in table.rows if row.at_loss_of for kind in {c.run for c in table.columns.values()}}
    values = {column: {row.number: [None if r.get("diverged") else c.value(r) for r in read[row.number, c.run]]
                       for row in table.rows}
              for column, c in table.columns.items()}
    losses_of = {row.number: ends.get((row.number, "text"), []) for row in table.rows if not row.at_loss_of}
    untrained_rows = [number for number, of_row in losses_of.items() if untrained(of_row)]
    cells, controls = judged(table, values, untrained_rows)
    kept = []
    for row in table.rows:
        entry = {"row": row.number, "name": row.name, "against": row.to, "runs": {}}
        for column, c in table.columns.items():
            entry[column] = cells[row.number, column]
            mine = runs[row.number, c.run]
            before = {"before": mine[0].after.line()} if mine[0].after else {}
            entry["runs"][c.run] = before | {
                "flags": mine[0].line(),
                "fingerprints": {run.seed: results[run].get("fingerprint", "diverged") for run in mine}}
            at = [results[run].get("largest_activation_at") for run in mine]
            if c.run == "sinks" and any(at):
                entry["runs"][c.run]["largest_activation_at"] = at
        kept.append(entry)
    entropy = entropy_of(results, [run for (_, kind), of_row in runs.items() if kind == "text" for run in of_row])
    return ({"rows": kept} | ({"controls": controls} if controls else {}) | ranking_of(table, values) |
            ({"untrained": untrained_rows, "bigram_entropy": entropy} if untrained_rows else {}))


def ranking_of(table, values):
    """How our means order the rows of a table that ranks them, beside the paper's figures."""
    if not table.ranks:
        return {}
    rows = [row for row in table.rows
            if row.paper.get(table.ranks) is not None and None not in values[table.ranks][row.number]]
    tau, p = rank_agreement([statistics.fmean(values[table.ranks][row.number]) for row in rows],
                            [row.paper[table.ranks] for row in rows])
    return {"ranking": {"tau": tau, "p": p}}


def stability_runs(scale, seeds, text):
    lr = scale.kinds["text"][0]
    return {(name, factor): [Run(flags_of("{dense} " + flags, factor, scale, "text"), seed, text,
                                 f"stability: {name}, lr {factor * lr:.3g}") for seed in seeds]
            for name, (flags, factors) in Stability.variants.items() for factor in factors}


def highest_rate(rates, losses, slack):
    """The highest rate with a loss within `slack` of the lowest; "≥" where no higher one was tried."""
    trains = [rate for rate, loss in zip(rates, losses) if loss < math.inf and loss <= min(losses) + slack]
    if not trains:
        return None, "none"
    return max(trains), ("≥ " if max(trains) == rates[-1] else "") + f"{max(trains):.3g}"


def table_of_stability(scale, seeds, text, results):
    lr, runs = scale.kinds["text"][0], stability_runs(scale, seeds, text)
    factors = sorted({factor for _, factor in runs})
    heading = ["", *[f"lr {f * lr:.3g}" for f in factors], *[f"highest within {slack}" for slack in Stability.slacks]]
    shown, kept = [], []
    for name, (_, of_variant) in Stability.variants.items():
        rates = [f * lr for f in of_variant]
        losses = {f: [results[run].get("validation_loss", math.inf) for run in runs[name, f]] for f in of_variant}
        cells = {f: "diverges" if math.inf in l else means(l, 3) for f, l in losses.items()}
        of_rates = [sum(l) / len(l) for l in losses.values()]
        highest = {slack: highest_rate(rates, of_rates, slack) for slack in Stability.slacks}
        shown.append([name, *[cells.get(f, "") for f in factors], *[text for _, text in highest.values()]])
        kept.append({"variant": name, "highest": {slack: rate for slack, (rate, _) in highest.items()},
                     "highest_by_seed": {slack: [highest_rate(rates, of_seed, slack)[0]
                                                 for of_seed in zip(*losses.values())] for slack in Stability.slacks},
                     "losses": {f * lr: [l if l < math.inf else None for l in ls] for f, ls in losses.items()},
                     "flags": runs[name, of_variant[0]][0].line()})
    entropy = entropy_of(results, [run for of_rate in runs.values() for run in of_rate])
    return markdown(heading, shown) + [
        "", "Validation loss by learning rate" + (", means ± half the range" if len(seeds) > 1 else ", one seed") +
        ". A rate counts as one that trains where the mean loss is within so many nats of the variant's best; ≥: no "
        "higher one was tried." + (f" A table of pairs of bytes reaches {entropy:.3f}." if entropy else "")
    ], {"variants": kept}


def step_seconds(flags, steps):
    """The median time of a training step on all cores. The first, which touches all memory for the first time, does not
    count."""
    with tempfile.TemporaryDirectory() as folder:
        train_program(*shlex.split(flags), f"--steps={steps}", f"--out={folder}", place=(("--device=cpu",), {}))
        return statistics.median(entry["seconds"] for entry in read_log(folder)
                                 if entry["step"] > 1 and "seconds" in entry)


def table_of_times(scale_name):
    """Times are of this machine and this hour, so nothing is kept between calls. Models take turns, so that all meet
    the same hour."""
    widths, rounds = Times.widths[scale_name], Times.rounds[scale_name]
    shown, kept = [], []
    for width in widths:
        base = f"{Times.flags} --hidden={width} --heads={width // 64} --kv-heads={max(1, width // 256)} --batch=1"
        lines = {"plain": base} | {name: f"{base} {flags}" for name, (flags, _) in Times.variants.items()}
        seconds = {name: [] for name in lines}
        for turn in range(rounds):
            for name, line in lines.items():
                seconds[name].append(step_seconds(line, Times.steps))
                print(f"width {width}, round {turn + 1}/{rounds}: {name} {1000 * seconds[name][-1]:.1f} ms a step",
                      flush=True)
        for name, (_, paper) in Times.variants.items():
            more = [100 * (gated / plain - 1) for gated, plain in zip(seconds[name], seconds["plain"])]
            middle, spread = statistics.median(more), (max(more) - min(more)) / 2
            shown.append([str(width), name, f"{1000 * statistics.median(seconds['plain']):.1f}",
                          f"{1000 * statistics.median(seconds[name]):.1f}", f"{middle:+.1f} ± {spread:.1f} %", paper])
            kept.append({"width": width, "variant": name, "flags": lines[name], "plain_seconds": seconds["plain"],
                         "seconds": seconds[name], "more_percent": more})
    heading = ["width", "", "plain, ms a step", "with it, ms a step", "more", "the paper's"]
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
               "unknown")
    return markdown(heading, shown) + [
        "", f"{cores()} cores of {cpu}, fp32, 8 layers, 256 tokens a step. {rounds} rounds, in which the models take "
        "turns: medians ± half the range. The papers' are of GPUs, in bf16."
    ], {"cpu": cpu, "cores": cores(), "rows": kept}


def evaluate_columns(table, scale, seeds, text, results, runs, jobs):
    """What --evaluate prints for columns that ask for it joins the results of their runs."""
    of_rows, asked = runs_of(table, scale, seeds, text), {}
    for column in table.columns.values():
        for row in table.rows if column.evaluate else []:
            for run in of_rows[row.number, column.run]:
                if not results[run].get("diverged"):
                    asked.setdefault(run, {})[column.evaluate] = column.evaluate.format_map(scale.words)

    def printed_of(run):
        return {column: evaluate(run, flags, runs) for column, flags in asked[run].items()}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for done, (run, printed) in enumerate(zip(asked, pool.map(printed_of, asked)), 1):
            results[run] |= printed
            print(f"{done}/{len(asked)}  evaluated: {run.name}, seed {run.seed}", flush=True)


def write_index(folder):
    """README.md of a folder of tables: what each of them came to, read from its JSON."""
    rows = []
    for name in NAMES:
        for scale in SCALES:
            path = os.path.join(folder, f"{name}.{scale}.json")
            kept = load(path)
            if not kept:
                continue
            counts = signs_of(kept).values()
            seeds = re.search(r"--seeds=(\d+)", kept["command"])
            rows.append([f"[{kept['title']}]({name}.{scale}.md)", scale, seeds[1] if seeds else "",
                         *([str(n) for n in counts] if any(counts) else [""] * len(SIGNS))])
    heading = ["table", "scale", "seeds", *SIGNS.values()]
    about = ("`scripts/tables.py` trains the rows and writes the tables and this page. The sign of a gap between two "
             "rows is said from five seeds on, corrected for the whole table. A JSON file beside each table holds "
             "every run's flags and fingerprints. [How to rerun them](../docs/tables.md), "
             "[what they say](../docs/claims.md).")
    about, papers = (textwrap.fill(text, 120, break_on_hyphens=False) for text in (about, PAPERS))
    page = ["# The papers' tables at a small scale", "", about, "", papers, "", *markdown(heading, rows)]
    write_whole(os.path.join(folder, "README.md"), "\n".join(page) + "\n")


# ---- the program

def describe_all(wanted, seed):
    """The size of every model. Trains nothing."""
    for run in wanted:
        if run.seed == seed:
            done = run.program("--describe")
            size = re.search(r"^  total +([0-9,]+)$", done.stdout, re.MULTILINE)[1]
            print(f"{size:>14} parameters  {run.name}", flush=True)


def print_commands(name):
    """The paper's own scale: what a cluster would run."""
    table, scale = TABLES[name], SCALES["paper"]
    evaluated = [c.evaluate.format_map(scale.words) for c in table.columns.values() if c.evaluate and c.run == "text"]
    twice = any(c.run == "long" for c in table.columns.values())
    for row in table.rows:
        flags = shlex.split(" ".join([f"--preset={table.preset}", PAPER_RUNS[table.preset], table.base,
                                      row.flags]).format_map(scale.words))
        flags = last_of_each(flags) + [f"--lr={row.lr * table.lr:.3g}"]
        if table.match and row.flags:
            flags.append(f"--match-params={table.match}")
        command = " ".join([f"{name} row {row.number}: ./train", *map(shlex.quote, flags)])
        if not twice:
            print(command, "--data=FILE.bin --out=FOLDER")
            for more in evaluated:
                print(command, "--data=FILE.bin --out=FOLDER --evaluate", more)
            continue
        print(command, scale.kinds["before long"][1], "--data=FILE.bin --out=SHORT")
        print(command, scale.kinds["long"][1], "--data=LONG.bin --from=SHORT --out=FOLDER")
        print(command, scale.kinds["long"][1], "--data=LONG.bin --out=FOLDER --evaluate --yarn=4 "
              "--context={long context}".format_map(scale.words))


def write(name, title, lines, contents, options, text):
    os.makedirs(options.results, exist_ok=True)
    scale_name = options.scale
    command = f"scripts/tables.py {name} --scale={scale_name}"
    if text:
        command += f" --seeds={options.seeds}" + ("" if options.text == "self" else " --text=FILE")
        command += f" --also={shlex.quote(options.also)}" if options.also else ""
    about = {"text": dict(zip(("bytes", "sha256"), text.about)) or text.data} if text else {}
    page = os.path.join(options.results, f"{name}.{scale_name}")
    store(page + ".json", {"table": name, "title": title, "command": command} | about | contents, indent=1)
    write_page(page + ".md", title, command, lines)
    print(f"\n{title}\n" + "\n".join(lines) + f"\nwritten: {page}.md\n")


def main():
    parser = parser_of(__doc__)
    parser.add_argument("tables", nargs="+", metavar="TABLE", help="of " + ", ".join(NAMES))
    parser.add_argument("--scale", choices=SCALES, default="minutes")
    parser.add_argument("--text", default="self",
                        help="the text whose loss is compared: a file, or this repository's source [self]")
    parser.add_argument("--runs", default=os.path.join(ROOT, "build/tables"), help="where runs are kept [build/tables]")
    parser.add_argument("--results", default=os.path.join(ROOT, "results"), help="where the tables go [results]")
    parser.add_argument("--also", default="", metavar="FLAGS",
                        help="flags of every run, which override the table's: for a try")
    parser.add_argument("--describe", action="store_true", help="print how large each model is, and train nothing")
    options = options_of(parser)
    for name in options.tables:
        if name not in NAMES:
            refuse(f"{name}: expected tables of {', '.join(NAMES)}")
    if options.scale == "paper":
        for name in options.tables:
            if name == "stability":
                refuse("stability has no rows in a paper; P1 table 2 (p1-2) has the rates that the paper tried")
            if name == "p2-4":
                refuse("p2-4 times this machine: run it at another scale")
            print_commands(name)
        return
    require_train()
    text = read_text(options.text)
    scale, seeds = dataclasses.replace(SCALES[options.scale], also=options.also), SEEDS[:options.seeds]
    if scale.rows and not set(options.tables) <= set(scale.rows):
        refuse(f"--scale={options.scale}: expected tables of {', '.join(scale.rows)}")
    tables = {name: table_at(name, scale) for name in options.tables if name in TABLES}
    of_runs = [name for name in options.tables if name != "p2-4"]
    wanted = []
    for name in of_runs:
        runs = stability_runs(scale, seeds, text) if name == "stability" else runs_of(tables[name], scale, seeds, text)
        wanted += [run for same_seed in zip(*runs.values()) for run in same_seed]
    if options.describe:
        describe_all(wanted, seeds[0])
        return
    kept_runs = os.path.join(os.path.abspath(options.runs), options.scale)
    side_by_side = places(options.jobs, gpus() if options.scale == "gpu" else ())
    results = train_all(wanted, kept_runs, side_by_side)
    for table in tables.values():
        evaluate_columns(table, scale, seeds, text, results, kept_runs, len(side_by_side))
    for name in options.tables:
        if name == "p2-4":
            write(name, Times.title, *table_of_times(options.scale), options, None)
        elif name == "stability":
            write(name, Stability.title, *table_of_stability(scale, seeds, text, results), options, text)
        else:
            table = tables[name]
            contents = table_of_rows(table, scale, seeds, text, results)
            write(name, f"{table.title} ({table.source})", lines_of(table, contents), contents, options, text)
    write_index(options.results)


if __name__ == "__main__":
    ended_by_hand(main)
