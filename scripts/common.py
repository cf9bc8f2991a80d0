"""What many scripts share: where ./train is, how a script ends that cannot go on, and the file that `make bench` writes."""
import json
import os
import stat
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TRAIN = os.path.join(ROOT, "train")


def refuse(message):
    sys.exit("error: " + message)


def open_regular(path, mode="r", **how):
    """A file, to be read. A pipe in its place might never get a writer."""
    file = open(path, mode, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK), **how)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        refuse(f"{path}: not a regular file")
    return file


def require_train():
    if not os.access(TRAIN, os.X_OK):
        refuse(f"{TRAIN}: not found: run make first")


def read_bench(name):
    """What a benchmark has left: an object with "rows", each of which has an "op"."""
    try:
        with open_regular(name) as file:
            bench = json.load(file)
        if not all(isinstance(row["op"], str) for row in bench["rows"]):
            raise ValueError("a row without a name")
        return bench
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        refuse(f"{name}: {error}: expected what make bench has written")


def write_bench(name, bench):
    with open(name + ".new", "w") as file:
        json.dump(bench, file, indent=1)
        file.write("\n")
    os.replace(name + ".new", name)
