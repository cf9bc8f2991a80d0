#!/usr/bin/env python3
"""Draws the loss curves of runs: train and validation, what bigrams alone can reach, and the gradient norm below.

usage: scripts/plot_log.py FOLDER... [-o losses.png]     each FOLDER was a run's --out (it holds log.jsonl)
"""
import math
import os

from common import ended, parser_of, refuse
from plots import drawn, find_matplotlib, is_finite, is_number, look, read_log, writable


def series(folder, entries, key):
    """The steps at which the log has a number of this name, and the numbers. (JSON has null for one that is not
    finite.)"""
    found = [(entry["step"], entry[key]) for entry in entries if key in entry]
    for step, value in found:
        if value is not None and not is_number(value):
            refuse(f"{os.path.join(folder, 'log.jsonl')}: {key} of step {step} is no number")
    return [step for step, _ in found], [math.nan if value is None else value for _, value in found]


def main():
    parser = parser_of(__doc__)
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="what --out named")
    parser.add_argument("-o", "--output", default="losses.png")
    args = parser.parse_args()
    keys = ("loss", "gradient_norm", "validation_loss", "bigram_entropy")
    runs = []
    for folder in args.folders:
        entries = read_log(folder)
        name = drawn(writable(os.path.basename(os.path.normpath(folder))))
        runs.append((name, {key: series(folder, entries, key) for key in keys}))
    find_matplotlib().use("Agg")
    from matplotlib import pyplot

    figure, (losses, norms) = pyplot.subplots(2, 1, figsize=(8, 7), sharex=True, gridspec_kw={"height_ratios": (3, 1)})
    baselines = []
    for place, (name, run) in enumerate(runs):
        line = look(place)
        baselines += filter(is_finite, run["bigram_entropy"][1])
        losses.plot(*run["loss"], alpha=0.4, lw=1, **line, label=f"{name}, train")
        if run["validation_loss"][0]:
            losses.plot(*run["validation_loss"], marker="o", ms=3, **line, label=f"{name}, validation")
        norms.semilogy(*run["gradient_norm"], lw=1, **line)
    for entropy in sorted(set(baselines)):
        losses.axhline(entropy, ls="--", lw=1, color="gray", label=f"bigrams, {entropy:.4f}")
    losses.set_ylabel("cross-entropy (nats)")
    losses.legend()
    norms.set_ylabel("gradient norm")
    norms.set_xlabel("step")
    for axis in (losses, norms):
        axis.grid(alpha=0.3)
    figure.tight_layout()
    try:
        figure.savefig(args.output, dpi=120)
    except (OSError, ValueError) as error:  # ValueError: a kind of file that matplotlib has not
        refuse(f"{args.output}: cannot write: {error}")
    print(f"wrote {writable(args.output)}")


ended(main)
