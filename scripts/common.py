"""What many scripts share: where ./train is, how a script ends that cannot go on, the file that `make bench` writes,
and what those need that plant faults."""
import argparse
import importlib
import json
import os
import re
import signal
import stat
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TRAIN = os.path.join(ROOT, "train")


DEBIANS = "/usr/bin/python3"  # the python that scripts/setup.sh installs libraries for


def refuse(message):
    sys.exit("error: " + message)


def cores():
    """How many cores this process may use; on macOS, where none can be kept from it, all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def cuda_tool(name):
    """Where a program of CUDA is; "" where there is none."""
    find = os.path.join(ROOT, "scripts/find_cuda.sh")
    return subprocess.run([find, name], stdout=subprocess.PIPE, text=True).stdout.strip()


def library(name, installs):
    """A library, from this python or else from Debian's, which then runs the script from its start. installs: the
    command that does."""
    try:
        return importlib.import_module(name)
    except ImportError:
        has_it = [DEBIANS, "-c", f"import {name}"]
        if sys.executable != DEBIANS and os.path.exists(DEBIANS):
            if subprocess.run(has_it, stderr=subprocess.DEVNULL).returncode == 0:
                os.execv(DEBIANS, [DEBIANS, *sys.argv])
        refuse(f"{sys.executable} has no {name}: run {installs}, or use a python that has it")


def ended(main):
    """main(), with what it prints on its way: an output that is full is said, one that nobody reads any more ends
    quietly."""
    try:
        try:
            main()
        finally:  # --help ends the program
            sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            refuse(f"{error.filename or 'standard output'}: {error.strerror}")


def open_regular(path, mode="r", **how):
    """A file, to be read. A pipe in its place might never get a writer."""
    file = open(path, mode, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK), **how)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        refuse(f"{path}: not a regular file")
    return file


def parser_of(doc):
    """An argument parser whose --help is the script's own text."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write_whole(path, text):
    """The whole text, or what was there before."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".new", path)


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
    write_whole(name, json.dumps(bench, indent=1) + "\n")


def write_fixture(name, text):
    """A file of tests/fixtures, or of the folder that the command line names instead."""
    path = os.path.join(sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "tests/fixtures"), name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text + "\n")
    print(f"wrote {path}, {os.path.getsize(path)} bytes")


def planting(doc):
    """Options of a script that plants faults."""
    parser = parser_of(doc)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="")
    parser.add_argument("--check", action="store_true")
    return parser


def chosen(faults, text):
    """Those with these numbers, of faults that know theirs: "3,17-20"; all of them for no text."""
    if not text:
        return faults
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        refuse(f"--only={text}: expected numbers of faults, as 3,17-20")
    ranges = [part.partition("-") for part in text.split(",")]
    found = [f for f in faults if any(int(first) <= f.number <= int(last or first) for first, _, last in ranges)]
    if not found:
        refuse(f"--only={text}: no fault has such a number, expected 1 to {len(faults)}")
    return found


def end_of(command, folder, environment, log, limit):
    """None where the command ends well within so many seconds, else how it ended. What it says goes into the log."""
    with open(log, "wb") as file:
        # In a session of its own, so that what it starts can be ended with it.
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=file,
                                   start_new_session=True)
        try:
            code = process.wait(limit)
            return None if code == 0 else f"exit {code}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"no end within {limit:.0f} s"
