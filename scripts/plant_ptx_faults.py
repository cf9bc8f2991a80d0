#!/usr/bin/env python3
"""Plants faults in what nvcc has made, one at a time, and counts how many the rehearsal's tests see.

usage: scripts/plant_ptx_faults.py [--jobs=2] [--only=3,17-20] [--check] [--tree=DIR]     (after make rehearsal)

A fault is one change of one instruction of one kernel's PTX. That kernel alone is translated and compiled anew, and
one test runs with it, in the class [bitwise]. The test has to pass without the fault. A fault that it does not see has
lived. Other faults are planted in the stand-in for the GPU (ptx/): the tests hold it to what a GPU does. The table of
all is plant_ptx_faults.txt.
A race is seen where the test runs with PTX_RACES=1: on a CPU one order of threads may give the right bits.

--check   only finds every fault's place; without make rehearsal, of those in the stand-in alone
--only    these faults alone
--tree    the checkout whose rehearsal is used (default: this one)
"""
import collections
import concurrent.futures
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from common import ROOT, chosen, end_of, ended, planting, read, refuse, write_whole

Fault = collections.namedtuple("Fault", "number change file old new test nth environment kernel")


def find_faults():
    """Every fault of the table beside this file, where its form is described."""
    faults, heading = [], None
    for line in read(__file__[:-len("py")] + "txt").splitlines():
        if line.startswith("["):
            heading = re.fullmatch(r"\[(.*?)(?: (ptx/\S+))? «(.*) => (.*)»\]", line).groups()
        elif not line.startswith("#"):
            test, nth, environment, kernel = line.split(maxsplit=3)
            environment = dict(part.split("=") for part in environment.split(",") if part != "-")
            faults.append(Fault(len(faults) + 1, *heading, test, int(nth), environment, kernel))
    return faults


class Kernels:
    """The PTX of all kernels, from files in a row: each by its plain name, and what stands before a file's first."""

    def __init__(self, ptx):
        self.outside, self.texts = {}, {}
        for file in re.split(r"^\.version", ptx, flags=re.MULTILINE):
            outside = "\n".join(re.findall(r"^\s*\.file\s.*|^\.(?:extern )?\.?shared .*", file, re.MULTILINE)) + "\n"
            entry = r"^\.(?:visible |weak )?\.?entry\s+([\w$]+)\(.*?^\}\n"
            for found in re.finditer(entry, file, re.MULTILINE | re.DOTALL):
                self.outside[found[1]], self.texts[found[1]] = outside, found[0]
        mangled = "\n".join(self.texts)
        plain = subprocess.run(["c++filt"], input=mangled, capture_output=True, text=True, check=True).stdout
        plain = re.sub(r"gated_nvcc::|\(anonymous namespace\)::|^void ", "", plain, flags=re.MULTILINE)
        self.names = dict(zip(plain.splitlines(), self.texts))

    def find(self, pattern):
        """The first kernel with such a name: its plain name and its text."""
        for plain, mangled in self.names.items():
            if re.search(pattern, plain):
                return plain, self.texts[mangled]
        raise LookupError(f"no kernel is called {pattern}")


def changed(fault, text, where):
    """The text with the fault, the line that it changes and that line as it is now."""
    places = list(re.finditer(re.escape(fault.old) if fault.file else fault.old, text))
    if len(places) < fault.nth:
        raise LookupError(f"{where} holds {fault.old} {len(places)} times, expected {fault.nth} at least")
    place = places[fault.nth - 1]
    new = fault.new if fault.file else place.expand(fault.new)
    begin, end = text.rfind("\n", 0, place.start()) + 1, text.find("\n", place.end())
    after = text[begin:place.start()] + new + text[place.end():end]
    return text[:place.start()] + new + text[place.end():], f"{shown(text[begin:end])} => {shown(after) or 'nothing'}"


def shown(text):
    return " ".join(text.split())


class Rehearsal:
    """What make rehearsal has left in a tree, and its tests with and without faults."""

    def __init__(self, tree):
        self.tree = tree
        self.folder = os.path.join(tree, "build/rehearsal")
        ptx = [read(unit) for unit in sorted(glob.glob(os.path.join(self.folder, "units/*.ptx")))]
        self.kernels = Kernels("".join(ptx)) if ptx else None
        self.seconds = {}
        self.lock = threading.Lock()

    def place(self, fault):
        """The kernel's name and PTX, the text of the stand-in's file, one of them with the fault, and the change."""
        name, ptx = self.kernels.find(fault.kernel) if self.kernels and fault.kernel != "-" else ("", "")
        if not fault.file:
            ptx, change = changed(fault, ptx, name)
            return name, ptx, "", change
        text, change = changed(fault, read(os.path.join(self.tree, fault.file)), fault.file)
        return name, ptx, text, change

    def plant(self, fault, folder):
        """Leaves kernels in the folder, and a program where its stand-in is linked anew.

        Returns the kernel, the change and the program."""
        kernels, program = os.path.join(folder, "kernels"), os.path.join(self.folder, fault.test)
        name, ptx, text, change = self.place(fault)
        os.makedirs(kernels)
        if fault.file:
            shutil.copytree(os.path.join(self.tree, "ptx"), os.path.join(folder, "ptx"))
            write_whole(os.path.join(folder, fault.file), text)
        for file in os.listdir(os.path.join(self.folder, "kernels")):
            os.symlink(os.path.join(self.folder, "kernels", file), os.path.join(kernels, file))
        if ptx:
            write_whole(os.path.join(folder, "faulty.ptx"), self.kernels.outside[self.kernels.names[name]] + ptx)
            translator = os.path.join(folder if fault.file else self.tree, "ptx/translate.py")
            subprocess.run([sys.executable, translator, kernels, os.path.join(folder, "faulty.ptx")], check=True)
            mine, index = read(os.path.join(kernels, "faulty.index")), os.path.join(kernels, "kernels.index")
            unchanged = [line for line in read(index).splitlines() if line.split()[0] != mine.split()[0]]
            write_whole(index, mine + "\n".join(unchanged) + "\n")
        else:
            program = self.link(fault, folder)
        return name, change, program

    def link(self, fault, folder):
        """The test with one object of the stand-in compiled anew, by the commands that make would run."""
        target, part = f"build/rehearsal/{fault.test}", fault.file[:-len(".cpp")]
        made = ["make", "-n", "-W", fault.file, target]
        made = subprocess.run(made, cwd=self.tree, capture_output=True, text=True, check=True)
        for output in (f"build/{part}.o", target):
            [command] = [line for line in made.stdout.splitlines() if f"-o {output} " in line]
            for old, new in ((f" {fault.file}", f" {folder}/{fault.file}"),
                             (f" build/{part}.o", f" {folder}/{part}.o"),
                             (f"-o {target}", f"-o {folder}/{fault.test}")):
                command = command.replace(old, new)
            subprocess.run(command, shell=True, cwd=self.tree, check=True)
        return os.path.join(folder, fault.test)

    def run(self, test, environment, limit, program, kernels, log):
        ours = {"OMP_NUM_THREADS": "1", "GATED_NEEDS_GPU": "1", "GATED_GUARD": "off", "PTX_KERNELS": kernels}
        environment = os.environ | ours | environment
        return end_of([program, "[bitwise]", "--abort"], self.tree, environment, log, limit)

    def measure(self, fault, folder):
        """How long the fault's test takes without it."""
        key = fault.test, str(fault.environment)
        with self.lock:
            if key not in self.seconds:
                begin, log = time.monotonic(), os.path.join(folder, "without.log")
                failure = self.run(fault.test, fault.environment, 600, os.path.join(self.folder, fault.test),
                                   os.path.join(self.folder, "kernels"), log)
                if failure:
                    sys.exit(f"{key} fails without a fault ({failure}):\n{read(log)[-3000:]}")
                self.seconds[key] = time.monotonic() - begin
            return self.seconds[key]

    def find(self, fault, folder):
        """The kernel, the change, and how the test has seen it; None where it has not."""
        folder = os.path.join(folder, str(fault.number))
        try:
            name, change, program = self.plant(fault, folder)
        except LookupError as error:
            return fault.kernel, f"is not planted: {error}", None
        limit, log = 60 + 10 * self.measure(fault, folder), os.path.join(folder, "log")
        failure = self.run(fault.test, fault.environment, limit, program, os.path.join(folder, "kernels"), log)
        return name, change, failure and how_seen(failure, read(log))


def how_seen(failure, log):
    if named := re.search(r"^ptx: (?:launch of \w+: |.*\n  at .*\n  )?(.*)", log, re.MULTILINE):
        return "a race" if named[1].startswith("a race") else f"by name: {named[1]}"[:110]
    if thrown := re.search(r"unexpected exception with messages?:\n(?:.*\n)*?  (launch.*(?:\n  .*)*)", log):
        return f"refused: {shown(thrown[1])[:100]}"
    if "FAILED:" in log:
        return "wrong bits"
    return failure


def check(rehearsal, faults):
    """Says where each fault has its place."""
    if not rehearsal.kernels:
        faults = [fault for fault in faults if fault.file]
    without = 0
    for fault in faults:
        try:
            place = rehearsal.place(fault)[3]
        except LookupError as error:
            place, without = f"NO PLACE: {error}", without + 1
        print(f"{fault.number:3}  {fault.test}, {fault.change}: {place}")
    print(f"{len(faults) - without} of {len(faults)} faults have their place")
    sys.exit(1 if without else 0)


def main():
    options = planting(__doc__)
    options.add_argument("--tree", default=ROOT)
    options = options.parse_args()
    rehearsal, wanted = Rehearsal(options.tree), chosen(find_faults(), options.only)
    if options.check:
        check(rehearsal, wanted)
    if not os.path.isdir(os.path.join(rehearsal.folder, "kernels")):
        refuse(f"{rehearsal.folder}: holds no kernels to plant faults in: run make rehearsal first, which needs nvcc")
    folder = tempfile.mkdtemp(prefix="planted.")
    lived = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for fault, (name, change, seen) in zip(wanted, pool.map(lambda f: rehearsal.find(f, folder), wanted)):
            lived += seen is None
            print(f"{fault.number:3}  {seen or 'LIVED'}", f"{fault.test}, {fault.change}, {name}", change,
                  sep="\n     ", flush=True)
    shutil.rmtree(folder)
    print(f"{len(wanted) - lived} seen, {lived} lived")
    sys.exit(1 if lived else 0)


ended(main)
