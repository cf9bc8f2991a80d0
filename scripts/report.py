#!/usr/bin/env python3
"""Writes one HTML page that compares runs: their losses, attention, activations, gates and norms, as in the papers'
figures.

usage: scripts/report.py FOLDER... [--out=report.html] [--pictures=FOLDER]     each FOLDER was a run's --out

A run that ended, or ./train --evaluate --out=FOLDER, has left measures.safetensors there; without that file the page
shows what the log alone says. The page needs nothing beside itself.
"""
import os

from common import ended, parser_of, refuse
from plots import find_matplotlib, writable


def write(path, text):
    """The whole text, or what was there before. Where a link leads is written, and what is no file, as /dev/stdout, is
    written to."""
    how = {"encoding": "utf-8", "errors": "backslashreplace"}
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "w", **how) as file:
                file.write(text)
            return
        target = os.path.realpath(path)
        unfinished = f"{target}.tmp.{os.getpid()}"
        with open(unfinished, "x", **how) as file:
            try:
                file.write(text)
                file.close()
                os.replace(unfinished, target)
            except BaseException:
                os.remove(unfinished)
                raise
    except OSError as error:
        refuse(f"{path}: cannot write: {error.strerror}")


def make_folder(path):
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        refuse(f"{path}: cannot be made a folder: {error.strerror}")


def main():
    parser = parser_of(__doc__)
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="what --out named")
    parser.add_argument("-o", "--out", default="report.html", metavar="FILE", help="the page [report.html]")
    parser.add_argument("--pictures", metavar="FOLDER", help="where each figure goes as an SVG file too")
    args = parser.parse_args()
    matplotlib = find_matplotlib()
    from reporting.runs import read_runs

    runs = read_runs(args.folders)
    import numpy
    from reporting import drawing, figures, page

    # A value that is not finite ends a line: of its logarithm nothing need be said.
    with numpy.errstate(all="ignore"), matplotlib.rc_context(figures.STYLE):
        write(args.out, page.page(runs))
        print(f"wrote {writable(args.out)}")
        if args.pictures:
            make_folder(args.pictures)
            pictures = drawing.pictures(runs)
            for name, picture in pictures.items():
                write(os.path.join(args.pictures, name + ".svg"), picture)
            print(f"wrote {len(pictures)} pictures into {writable(args.pictures)}")


if __name__ == "__main__":
    ended(main)
