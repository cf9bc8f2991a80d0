#!/usr/bin/env python3
"""Draws what a table came to: each gap with its interval, and the paper's beside it, a picture a table.

usage: scripts/plot_tables.py results/p1-1.minutes.json ... --out=docs/pictures    writes docs/pictures/p1-1.minutes.svg

A dot is the mean difference between runs of one seed (a ratio where the column compares ratios), its line the 95 %
interval. A diamond is the paper's figure, a triangle the direction of a picture of the paper's. Left out are rows that
learned too little to compare, and columns of which the paper says nothing where it speaks of others."""
import json
import math
import os

from common import ended, parser_of, read, refuse
from paper_tables import TABLES
from plots import COLOURS, find_matplotlib

OURS, PAPER = COLOURS[:2]


def gaps_of(table, contents):
    """column -> [(what is beside what, the gap, half its interval, the paper's gap or its direction or None)]"""
    names = {row.number: row.name for row in table.rows}
    told = {name: [] for name in table.columns}
    untrained = set(contents.get("untrained", []))

    def tell(column, row, kept, paper):
        if "gap" in kept and not untrained & {row["row"], row["against"]}:
            told[column].append((f"{names[row['row']]} / {names[row['against']]}", kept["gap"],
                                 kept.get("interval", 0), kept.get("paper_gap", paper)))
    for row in contents["rows"]:
        for column in set(told) & set(row):
            paper = row[column]["paper"]
            tell(column, row, row[column], paper if isinstance(paper, str) else None)
    for pair in contents.get("controls", []):
        tell(pair["column"], pair, pair, None)
    of_paper = {column for column, gaps in told.items() if any(paper is not None for *_, paper in gaps)}
    return {column: gaps for column, gaps in told.items() if gaps and (column in of_paper or not of_paper)}


def draw(table, contents, pyplot, ticker):
    """A panel a column, at most three side by side; a line for each two rows."""
    gaps = gaps_of(table, contents)
    across = min(3, len(gaps))
    down = math.ceil(len(gaps) / across)
    tallest = max(map(len, gaps.values()))
    figure, axes = pyplot.subplots(down, across, squeeze=False, sharey=tallest == min(map(len, gaps.values())),
                                   figsize=(4 + 3 * across, down * (0.9 + 0.24 * tallest)), layout="constrained")
    for axis in axes.flat[len(gaps):]:
        axis.set_visible(False)
    for axis, (name, of_column) in zip(axes.flat, gaps.items()):
        column = table.columns[name]
        shown = math.exp if column.compare == "ratio" else float
        lines = range(len(of_column))
        axis.hlines(lines, [shown(gap - width) for _, gap, width, _ in of_column],
                    [shown(gap + width) for _, gap, width, _ in of_column], color=OURS, lw=1.5)
        axis.plot([shown(gap) for _, gap, *_ in of_column], lines, "o", color=OURS, ms=4)
        marks = [("<", 0) if paper == "lower" else (">", 0) if paper == "higher" else ("D", paper)
                 for *_, paper in of_column]
        for mark in "<>D":
            if there := [(shown(x), line) for line, (kind, x) in enumerate(marks) if kind == mark and x is not None]:
                axis.plot(*zip(*there), mark, color=PAPER, ms=4 + (mark != "D"))
        if column.compare == "ratio":
            axis.set_xscale("log")
            low, high = axis.get_xlim()
            at = (1, 3) if high > 5 * low else (1, 1.5, 2, 3, 5, 7)
            axis.xaxis.set_major_locator(ticker.LogLocator(subs=at))
            axis.xaxis.set_major_formatter(lambda x, _: f"{x:g}x")
            axis.xaxis.set_minor_locator(ticker.NullLocator())
        axis.axvline(shown(0), color="gray", lw=0.8)
        axis.set_yticks(lines, [what for what, *_ in of_column], fontsize=8)
        axis.set_ylim(len(of_column) - 0.5, -0.5)
        axis.set_title(column.heading + (", nats" if name == "loss" else ""), fontsize=9)
        axis.tick_params(axis="x", labelsize=8)
        axis.grid(axis="x", alpha=0.3)
    figure.suptitle(f"{contents['title']}\nhere (dots) and in the paper (diamonds)", fontsize=10)
    return figure


def main():
    parser = parser_of(__doc__)
    parser.add_argument("tables", nargs="+", metavar="TABLE.json")
    parser.add_argument("--out", default=".", help="the folder of the pictures [.]")
    options = parser.parse_args()
    find_matplotlib().use("svg")
    from matplotlib import pyplot, ticker
    # Letters stay letters, and the same figures make the same file.
    pyplot.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "tables", "font.sans-serif": ["DejaVu Sans"]}
    for path in options.tables:
        try:
            contents = json.loads(read(path))
            table = TABLES[contents["table"]]
            gaps = gaps_of(table, contents)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            refuse(f"{path}: expected a table's JSON of results/, with \"table\" one of {', '.join(TABLES)}")
        if not gaps:
            refuse(f"{path}: no row of it has a gap to draw")
        name = os.path.join(options.out, os.path.basename(path).removesuffix(".json") + ".svg")
        # (A test reads what is drawn there.)
        about = {"Date": None, "Description": json.dumps(gaps)}
        draw(table, contents, pyplot, ticker).savefig(name, metadata=about)
        print(f"wrote {name}")


if __name__ == "__main__":
    ended(main)
