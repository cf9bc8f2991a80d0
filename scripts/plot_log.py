#!/usr/bin/env python3
"""Draws the loss curves of runs: train and validation, what bigrams alone can reach, and the gradient norm below.

usage: scripts/plot_log.py FOLDER... [-o losses.png]     each FOLDER was a run's --out (it holds log.jsonl)
"""
import argparse
import os

from common import refuse
from plots import drawn, find_matplotlib, read_log, writable


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="what --out named")
    parser.add_argument("-o", "--output", default="losses.png")
    args = parser.parse_args()
    runs = [(drawn(writable(os.path.basename(os.path.normpath(folder)))), read_log(folder)) for folder in args.folders]
    find_matplotlib().use("Agg")
    from matplotlib import pyplot

    figure, (losses, norms) = pyplot.subplots(2, 1, figsize=(8, 7), sharex=True, gridspec_kw={"height_ratios": (3, 1)})
    baselines = []
    for name, entries in runs:
        steps = [e for e in entries if "loss" in e]
        checks = [e for e in entries if "validation_loss" in e]
        baselines += [e["bigram_entropy"] for e in entries if "bigram_entropy" in e]
        at = [e["step"] for e in steps]
        (line,) = losses.plot(at, [e["loss"] for e in steps], alpha=0.4, lw=1, label=f"{name}, train")
        if checks:
            losses.plot([e["step"] for e in checks], [e["validation_loss"] for e in checks], "o-", ms=3,
                        color=line.get_color(), label=f"{name}, validation")
        norms.semilogy(at, [e["gradient_norm"] for e in steps], lw=1, color=line.get_color())
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


main()
