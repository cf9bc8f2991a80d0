#!/usr/bin/env python3
"""Plants faults of one line each in a copy of this tree, and counts how many the tests see.

usage: scripts/plant_faults.py [--jobs=2] [--only=3,17-20] [--tests=test_model,test_step] [--check] [--folder=DIR]

The table of all is plant_faults.txt. The copy holds them all and is built once. The environment variable PLANTED_FAULT
chooses the one that acts, and the release tests that link layers, training, dataloader or the program, and those of
operations that hold faults, run until the first of them fails. A fault that no test sees has survived.
Kernels have planted faults of their own (tests/planted_bugs.cuh). Here are the faults that every device would share.
A fault that no run of the program can show has no place in the table.

--check   only plants them in the text of the sources
--only    these faults alone
--tests   these tests alone
--folder  where the copy goes (default: a temporary folder, removed at the end)
"""
import collections
import concurrent.futures
import filecmp
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from common import ROOT, chosen, end_of, planting, read

HEADER = """#pragma once
#include <cstdlib>
inline bool planted(int fault) {
  static const int chosen = getenv("PLANTED_FAULT") ? atoi(getenv("PLANTED_FAULT")) : 0;
  return chosen == fault;
}
"""

Fault = collections.namedtuple("Fault", "number kind file begin end old new")


def find_faults():
    """Every fault of plant_faults.txt with its place. Ends the program where one is not found exactly once."""
    faults, kind, file, wrong = [], None, None, []
    for line in read(__file__[:-len("py")] + "txt").splitlines():
        if line.startswith("["):
            kind = line.strip("[]")
        elif line.startswith("  "):
            parts = re.fullmatch(r"(.*)«(.*) => (.*)»(.*)", line[2:].replace("¶", "\n"), re.S)
            before, old, new, after = parts.groups()
            text, whole = read(os.path.join(ROOT, file)), before + old + after
            at = text.find(whole)
            number = len(faults) + 1
            if at < 0 or text.find(whole, at + 1) >= 0:
                state = "there twice" if at >= 0 else "gone"
                wrong.append(f"{file}: fault {number}: its line is {state}: {line.strip()}")
            begin = at + len(before)
            faults.append(Fault(number, kind, file, begin, begin + len(old), old, new))
        elif line and not line.startswith("#"):
            file = line
    if wrong:
        sys.exit("\n".join(wrong) + "\nThe source has changed: bring the table up to date.")
    return faults


def planted_text(file, faults):
    """The text of a file with all its faults in it, asleep."""
    text = read(os.path.join(ROOT, file))
    places = collections.defaultdict(list)
    for f in faults:
        places[f.begin, f.end].append(f)
    last = len(text)
    for (begin, end), here in sorted(places.items(), reverse=True):
        if end > last:  # a fault inside the text of another: that one has to hold it, too
            sys.exit(f"{file}: faults {[f.number for f in here]} overlap with the one after them")
        last = begin
        old = here[0].old
        for f in here:
            if f.old.endswith(";"):
                old = f"{{ if (planted({f.number})) {{ {f.new} }} else {{ {old} }} }}"
            else:
                old = f"(planted({f.number}) ? {f.new} : {old})"
        text = text[:begin] + old + text[end:]
    return '#include "planted.h"\n' + text


def copy_with_faults(folder, faults):
    planted_files = {f.file for f in faults}
    built = os.path.exists(os.path.join(folder, "build"))
    texts = {file: planted_text(file, [f for f in faults if f.file == file]) for file in planted_files}

    def unwanted(path, names):
        if os.path.relpath(path, ROOT) == "build":
            return {"asan", "race", "avx2", "plain", "debug", "cuda", "fuzz"}
        return {".git", "build", "train"} if built else {".git"}

    def copy(source, target):
        if os.path.relpath(source, ROOT) in planted_files or not os.path.isfile(source):
            return
        if not os.path.exists(target):
            shutil.copy2(source, target)  # with its time, so that what was built from it is not built anew
        elif not filecmp.cmp(source, target, shallow=False):
            shutil.copyfile(source, target)
    shutil.copytree(ROOT, folder, ignore=unwanted, copy_function=copy, ignore_dangling_symlinks=True,
                    dirs_exist_ok=True)
    for file, text in {**texts, "planted.h": HEADER}.items():
        path = os.path.join(folder, file)
        if not os.path.exists(path) or read(path) != text:
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)


def tests_for(faults):
    """Those of the program and of operations with faults, without test_floors, which reads sources, and nvcc's."""
    there = os.listdir(os.path.join(ROOT, "tests"))
    names = sorted(name for name in there if re.fullmatch(r"test_(?!ptx).*\.cpp", name))
    of_the_program = re.compile(r'"(layers|training|dataloader|tests/small_|\./train)')
    operations = {re.sub(r"kernels/(?:\w+/)?(\w+).*", r"test_\1.cpp", f.file) for f in faults}
    wanted = [n for n in names if n in operations or of_the_program.search(read(os.path.join(ROOT, "tests", n)))]
    return [n[:-4] for n in wanted if n != "test_floors.cpp"]


class Tests:
    """The tests in the copy, and what is known of them: how long they take, and what they have found."""

    def __init__(self, folder):
        self.folder = folder
        self.seconds = {}
        self.found = collections.Counter()
        self.lock = threading.Lock()

    def run(self, test, fault, limit):
        """None where the test passes, else how it ended."""
        environment = dict(os.environ, PLANTED_FAULT=str(fault), OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive")
        log = os.path.join(self.folder, f"{test}.{fault}.log")
        return end_of([f"build/release/{test}", "--abort"], self.folder, environment, log, limit)

    def measure(self, names):
        for test in names:
            begin = time.monotonic()
            failure = self.run(test, 0, 600)
            if failure:
                sys.exit(f"{test} fails without a fault ({failure}): see {self.folder}/{test}.0.log")
            self.seconds[test] = time.monotonic() - begin

    def find(self, fault):
        """The first test that fails with this fault; None where it lives. Tests that found its like come first."""
        order = sorted(self.seconds, key=lambda t: (-self.found[fault.kind, t] // 4, self.seconds[t]))
        for test in order:
            failure = self.run(test, fault.number, 20 + 10 * self.seconds[test])
            if failure:
                with self.lock:
                    self.found[fault.kind, test] += 1
                return f"{test}, {failure}"
        return None


def main():
    options = planting(__doc__)
    options.add_argument("--tests", default="")
    options.add_argument("--folder", default="")
    options = options.parse_args()
    faults = find_faults()
    if options.check:
        for file in {f.file for f in faults}:
            planted_text(file, [f for f in faults if f.file == file])
        print(f"{len(faults)} faults, each in its place")
        return
    folder = options.folder or tempfile.mkdtemp(prefix="planted.")
    copy_with_faults(folder, faults)
    tests = Tests(folder)
    names = options.tests.split(",") if options.tests else tests_for(faults)
    targets = ["train"] + [f"build/release/{t}" for t in names]
    subprocess.run(["make", f"-j{options.jobs}", "NVCC="] + targets, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    tests.measure(names)

    wanted = chosen(faults, options.only)
    survivors = []
    by_kind = collections.defaultdict(lambda: [0, 0])
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for fault, finder in zip(wanted, pool.map(tests.find, wanted)):
            by_kind[fault.kind][0] += finder is not None
            by_kind[fault.kind][1] += 1
            change = f"{fault.old} => {fault.new}".replace("\n", " ")
            print(f"{fault.number:4}  {finder or 'SURVIVED':40}  {fault.file}: {change}", flush=True)
            if not finder:
                survivors.append(fault)
    print()
    for kind, (found, planted) in by_kind.items():
        print(f"{found:4} of {planted:3}  {kind}")
    found = len(wanted) - len(survivors)
    print(f"{found} of {len(wanted)} planted faults were found: {100 * found / len(wanted):.1f} %")
    if not options.folder:
        shutil.rmtree(folder)
    sys.exit(1 if found < 0.95 * len(wanted) else 0)


main()
