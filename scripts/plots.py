"""What the scripts that draw runs share: the log of a run, the colours of runs and of pages, and where matplotlib
comes from."""
import json
import logging
import math
import os

from common import library, open_regular, refuse

# Of runs: Okabe and Ito's without yellow; and the same where the page is dark.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#333333")
DARK_COLOURS = ("#3D9BDC", "#F0824A", "#1FC495", "#E39CC4", "#8CCBF2", "#F2B84B", "#D0D0D0")
DASHES = ("-", "--", ":")
# Of a page, where it is light and where it is dark.
PAGE = {"text": ("#1f2328", "#e6edf3"), "muted": ("#59636e", "#9aa5b1"), "axis": ("#b1bac4", "#4a5460"),
        "grid": ("#eaeef2", "#262c34"), "ground": ("#fefefe", "#0f141a"), "link": ("#0969da", "#6cb2ff")}

LARGEST = 1e100  # of a number: no float32 that a run measures is as large, and no sum of such numbers overflows


def is_number(value):
    """Whether JSON's value is a number that a run can have. (An integer of JSON may have so many digits that no float
    holds it.)"""
    return type(value) in (int, float) and not LARGEST < abs(value) < math.inf


def is_finite(value):
    return is_number(value) and math.isfinite(value)


def read_log(folder):
    """The entries of a run, each of which has a step. The last line may be half written: the run may still be going
    on."""
    path = os.path.join(folder, "log.jsonl")
    if not os.path.isdir(folder):
        refuse(f"{folder}: no such folder: name what --out named")
    if not os.path.exists(path):
        refuse(f"{folder}: holds no log.jsonl: name what --out named")
    try:
        with open_regular(path, encoding="utf-8") as log:
            lines = log.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        refuse(f"{path}: cannot be read as text: {error}")
    entries = []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            if number < len(lines):
                refuse(f"{path}: line {number} is no JSON: was the file changed? Delete that line")
            continue
        if not isinstance(entry, dict):
            refuse(f"{path}: line {number} is no JSON object, which every line of a run's log is: name what "
                   "--out named")
        if not is_finite(entry.get("step")):
            refuse(f"{path}: an entry has no step: was it written by ./train?")
        entries.append(entry)
    if not any("loss" in e for e in entries):
        refuse(f"{path}: holds no step yet")
    return entries


def writable(name):
    """A file's name need not be UTF-8: what is not stands as \\xNN, as in Python."""
    return os.fsencode(name).decode(errors="backslashreplace")


def drawn(name):
    """A name as matplotlib takes it: between two $ it would read a formula, and a legend leaves out what begins with
    _."""
    return (" " if name.startswith("_") else "") + name.replace("$", r"\$")


def look(index):
    """The line of a run, by its place on the command line."""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index // len(COLOURS) % len(DASHES)]}


def colours_css(colours):
    """Each colour as a variable of its name. A page on paper is light."""
    light, dark = ("".join(f"--{name}:{pair[i]};" for name, pair in colours.items()) for i in (0, 1))
    return (f":root{{color-scheme:light;{light}}}"
            f"@media screen and (prefers-color-scheme:dark){{:root{{color-scheme:dark;{dark}}}}}")


def find_matplotlib():
    """matplotlib, and numpy with it, from this python or else from Debian's, which then runs the script from its
    start."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # of a user without a home it says where it keeps its fonts
    return library("matplotlib", "scripts/setup.sh --plots")
