"""What the comparisons with other programs share: programs that print a time a step, run in turns, and one table.

Other load on a machine only ever adds time, and it comes and goes: so the programs run in turns, several rounds, the
first step of each run is left out, and a program's figure is its fastest step. The median stands beside it.
"""
import os
import re
import statistics
import subprocess
import sys

from common import TRAIN, cores, parser_of, refuse, require_train

# How the idle threads of the other side may wait; its better figure counts.
WAITING = {"default waiting": {}, "short spinning": {"GOMP_SPINCOUNT": "20000", "KMP_BLOCKTIME": "1"}}


class Program:
    """A command line, and the milliseconds of each step seen so far."""

    def __init__(self, name, command, environment, pattern, milliseconds=lambda ms: ms):
        self.name, self.command, self.environment = name, command, environment
        self.pattern, self.milliseconds = re.compile(pattern), milliseconds
        self.steps, self.output = [], ""

    def run(self, folder, count):
        """Runs until `count` steps were printed; keeps all but the first, and returns those."""
        # Through a terminal of its own, so that every step's line comes when it is printed.
        here, terminal = os.openpty()
        child = subprocess.Popen(self.command, cwd=folder, env=self.environment, stdin=subprocess.DEVNULL,
                                 stdout=terminal, stderr=terminal)
        os.close(terminal)
        self.output, steps = "", []
        try:
            with open(here, errors="replace") as lines:
                for line in lines:
                    self.output += line
                    found = self.pattern.search(line)
                    if found:
                        steps.append(self.milliseconds(float(found[1])))
                    if len(steps) == count:
                        break
        except OSError:  # how Linux ends a terminal whose program has left
            pass
        finally:
            child.kill()
            child.wait()
        if len(steps) < count:
            refuse(f"{self.name}: {len(steps)} of {count} steps, then exit code {child.returncode}: "
                   f"{' '.join(self.command)}\n{self.output[-1000:]}")
        self.steps += steps[1:]
        return steps[1:]

    def printed(self, pattern):
        """What the last run printed where `pattern` has its group."""
        found = re.search(pattern, self.output)
        return found[1] if found else refuse(f"{self.name} did not print /{pattern}/:\n{self.output[-1000:]}")


def parser_with(doc, rounds, python=""):
    """The options of all comparisons; --python where the other side needs these libraries."""
    parser = parser_of(doc)
    if python:
        parser.add_argument("--python", default=sys.executable, help=f"a Python that has {python} [this one]")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"how often each program runs [{rounds}]")
    parser.add_argument("--threads", type=int, default=cores(), help="OpenMP threads [one a core]")
    return parser


def options_of(parser, **least):
    """The options of the command line, none of these numbers below its least."""
    options, least = parser.parse_args(), {"rounds": 1, "threads": 1} | least
    for name, number in least.items():
        if getattr(options, name) < number:
            refuse(f"--{name}={getattr(options, name)}: expected at least {number}")
    return options


def environment(threads):
    """Both sides start from one environment; ./train chooses how idle threads wait where nothing is set."""
    base = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")}
    return base | {"OMP_NUM_THREADS": str(threads)}


def our_program(flags, tokens, threads, device="cpu", variant=""):
    """./train with `flags`, whose step holds `tokens` tokens."""
    require_train()
    command = [TRAIN] + flags + ["--warmup=0", "--sample-tokens=0", f"--device={device}", f"--threads={threads}"]
    print("gated.cu  " + " ".join(["./train"] + command[1:]))
    return Program(f"gated.cu {variant}".strip(), command, environment(threads), r"step +\d+/\d+ .* (\d+) tok/s",
                   lambda rate: 1e3 * tokens / rate)


def in_turns(programs, folder, rounds, steps):
    if os.getloadavg()[0] > 0.5:
        print(f"note: other programs run here (load {os.getloadavg()[0]:.1f}): times will wander, medians most")
    for turn in range(rounds):
        for program in programs:
            times = program.run(folder, steps)
            print(f"round {turn + 1}/{rounds}  {program.name:32} fastest step {min(times):8.1f} ms", flush=True)


def table(programs, tokens, count=1):
    """Prints a row for each program, ours first, `count` of them, and how the best of ours compares with the best
    other."""
    ours, others = programs[:count], programs[count:]
    print(f"{'program':32} {'fastest ms':>11} {'median ms':>11} {'tokens/s':>10}")
    for program in programs:
        best = min(program.steps)
        print(f"{program.name:32} {best:11.1f} {statistics.median(program.steps):11.1f} {1e3 * tokens / best:10.1f}")
    fastest, median = (min(of(p.steps) for p in others) / min(of(p.steps) for p in ours)
                       for of in (min, statistics.median))
    print(f"gated.cu's speed over the other's: {fastest:.2f}x (fastest steps), {median:.2f}x (medians)")
    return fastest, median
