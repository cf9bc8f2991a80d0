#!/usr/bin/env python3
"""Writes what runs have logged as TensorBoard's event files: losses, rates, norms and measures by step.

usage: pip install tensorboard && scripts/to_tensorboard.py FOLDER... [--out=tensorboard]
       tensorboard --logdir=tensorboard
Each FOLDER was a run's --out.

Every number of log.jsonl becomes a scalar of its name, and every number of a list that has one for each layer a scalar
NAME/LAYER. Called again, it writes all of a run anew. A step stands at the time at which it ended, counted back from
the last change of the log.
"""
import glob
import os

from common import ended, library, parser_of, refuse
from plots import is_finite, read_log, writable


def scalars(entry):
    """Names and numbers. (JSON has null for a number that is not finite: TensorBoard draws nothing there.)"""
    for key, value in entry.items():
        if key.endswith("_by_layer") and isinstance(value, list):
            yield from ((f"{key}/{layer}", number) for layer, number in enumerate(value) if is_finite(number))
        elif key != "step" and is_finite(value):
            yield key, value


def main():
    parser = parser_of(__doc__)
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="what --out named")
    parser.add_argument("-o", "--out", default="tensorboard", metavar="FOLDER",
                        help="where a folder for each run goes [tensorboard]")
    args = parser.parse_args()
    names = [os.path.basename(os.path.normpath(folder)) for folder in args.folders]
    for name in names:
        if names.count(name) > 1:
            refuse(f"{writable(name)}: two runs of this name would be one in {args.out}: write them apart with --out")
    summary = library("tensorboard.summary", "python3 -m pip install tensorboard")
    for folder, name in zip(args.folders, names):
        entries = read_log(folder)
        end = os.path.getmtime(os.path.join(folder, "log.jsonl"))
        left = sum(entry["seconds"] for entry in entries if is_finite(entry.get("seconds")))
        target, written = os.path.join(args.out, name), 0
        for old in glob.glob(os.path.join(glob.escape(target), "events.out.tfevents.*")):
            os.remove(old)
        writer = summary.Writer(target)
        for entry in entries:
            left -= entry["seconds"] if is_finite(entry.get("seconds")) else 0
            for tag, number in scalars(entry):
                writer.add_scalar(tag, number, int(entry["step"]), wall_time=end - left)
                written += 1
        writer.close()
        print(f"wrote {writable(target)}: {written} numbers")


ended(main)
