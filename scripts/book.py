#!/usr/bin/env python3
"""Writes the book: pages made of the sources and of docs/, chapter by chapter as docs/book.md lists them.

usage: scripts/book.py FOLDER [NAME.ptx...]     (make book)

The prose of the comments stands beside the code that it speaks of (typeset.py). From the PTX, which nvcc makes, a
chapter shows the inner loop of a kernel beside the lines of its source, and what ptxas makes of that, where nvdisasm is
there (ptx/show.py). A page is written with what it needs and names files of this folder alone.
tests/test_book.cpp
"""
import html
import math
import os
import re
import shutil
import struct
import subprocess
import sys

from common import ROOT, cuda_tool, library, parser_of, read_bench, refuse
from plots import PAGE, colours_css

markdown = library("markdown", "scripts/setup.sh --book")
pygments = library("pygments", "scripts/setup.sh --book")
from pygments.formatters import HtmlFormatter  # noqa: E402
from pygments.lexers import get_lexer_for_filename  # noqa: E402

sys.path.insert(0, os.path.join(ROOT, "ptx"))
import show  # noqa: E402
from typeset import set_comment  # noqa: E402

LIST = "docs/book.md"
BENCH = "results/bench_cpu.json"
TITLE = "gated.cu: the book"


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


# ---- the chapters, as docs/book.md lists them

LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")


def slug(heading):
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def path_of(page, target):
    """The path of a page's link, from the root of the project."""
    return os.path.normpath(os.path.join(os.path.dirname(page), target))


class Chapter:
    """A section of docs/book.md: its prose, and what stands in its list under each label."""

    def __init__(self, text):
        self.title, rest = text.split("\n", 1)
        self.prose, *items = re.split(r"^- ", rest, flags=re.MULTILINE)
        said = dict(re.split(r":\s+", " ".join(item.split()), maxsplit=1) for item in items)
        links = {label: [(name, path_of(LIST, to)) for name, to in LINK.findall(text)] for label, text in said.items()}
        labels = ("read", "beside", "test", "exercise")
        self.read, self.beside, self.tests, self.exercises = (
            [path for _, path in links.get(label, [])] for label in labels)
        self.pictures = links.get("picture", [])
        self.shown = said.get("shown")
        self.measured = re.findall(r"`([^`]+)`", said.get("measured", ""))
        self.kernels = re.findall(r"`([^`]+)`", said.get("kernel", ""))
        self.file = slug(self.title) + ".html"


def chapters():
    """What stands before the first chapter, the chapters, and the text of the last section, which is none."""
    before, *sections = re.split(r"^## ", read(LIST), flags=re.MULTILINE)
    return before, [Chapter(text) for text in sections[:-1]], sections[-1]


# ---- a source: its comments at the left, its code at the right

FITS = 72  # columns of a formula beside code


def linked(path, said, link):
    to = link(path)
    return f'<a href="{to}">{said}</a>' if to else said


def highlighted(code, lexer, link):
    text = pygments.highlight(code, lexer, HtmlFormatter(nowrap=True)).rstrip("\n")
    return re.sub(r"&quot;([\w/]+\.\w+)&quot;", lambda found: linked(found[1], found[0], link), text)


def source_html(path, link):
    lexer = get_lexer_for_filename("a.cu" if path.endswith(("h", "cu")) else path, stripnl=False)
    exercise = re.fullmatch(r"tests/exercises/\d\d_(\w+)\.cu", path)
    text = read(path) if not exercise else subprocess.run(  # as a student has it: what is to be written is not told
        ["scripts/exercise.sh", "gap", exercise[1]], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    if not path.endswith((".cu", ".cuh", ".h", ".cpp")):
        return f'<pre class="code">{highlighted(text, lexer, link)}</pre>'
    blocks = []  # of comment and code that follow each other
    for line in text.splitlines():
        if line.startswith("//"):
            if not blocks or blocks[-1][1]:
                blocks.append(([], []))
            blocks[-1][0].append(re.sub(r"^// ?", "", line))
        else:
            if not blocks:
                blocks.append(([], []))
            if line.strip() or blocks[-1][1]:
                blocks[-1][1].append(line)
    out = []
    for number, (comment, lines) in enumerate(blocks):
        prose, widest = set_comment(comment, link)
        code = highlighted("\n".join(lines).rstrip(), lexer, link) if lines else ""
        code = code and f'<pre class="code">{code}</pre>'
        if not number or widest > FITS or not code:
            out.append(f'<div class="wide">{prose}{code}</div>')
        else:
            out.append(f'<div class="beside"><div class="prose">{prose}</div>{code}</div>')
    return "".join(out)


def markdown_html(path, text, link):
    extensions = ["tables", "fenced_code", "codehilite", "toc"]
    how = {"toc": {"slugify": lambda value, _: slug(value)}, "codehilite": {"guess_lang": False}}
    page = markdown.markdown(text, extensions=extensions, extension_configs=how)

    def rewritten(found):
        attribute, target = found[1], html.unescape(found[2])
        if re.match(r"[a-z]+:", target) or target.startswith("#") and path != LIST:
            return found[0]
        file, _, anchor = target.partition("#")
        to = link(path_of(path, file) if file else LIST, anchor)
        return f'{attribute}="{to}"' if to else 'class="elsewhere"'

    page = re.sub(r'(href|src)="([^"]*)"', rewritten, page)
    page = re.sub(r"<code>([\w/]+\.\w+)</code>", lambda found: linked(found[1], found[0], link), page)
    return f'<div class="page">{page}</div>'


# ---- what a chapter shows beside its files

def single(x):
    """The float next to a number."""
    return struct.unpack("f", struct.pack("f", x))[0]


def bits(x):
    return struct.pack(">f", x).hex()


def added(numbers):
    total = 0.0
    for x in numbers:
        total = single(total + x)
    return total


def row_sum(numbers):
    """The order of a sum along a row: RowSum of core/sums.h."""
    chains = [added(numbers[i::128]) for i in range(128)]
    lanes = [single(single(a + b) + single(c + d)) for a, b, c, d in zip(*(chains[i::4] for i in range(4)))]
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [single(a + b) for a, b in zip(lanes[:half], lanes[half:])]
    return lanes[0]


def two_orders(_):
    """Sums of floats, in orders that differ: computed here, as a page is made."""
    big, one = 16777216.0, 1.0
    few = [("(2<sup>24</sup> + 1) + 1", single(single(big + one) + one)),
           ("2<sup>24</sup> + (1 + 1)", single(big + single(one + one)))]
    many = [single(1 / n) for n in range(1, 4097)]
    orders = [("from the first to the last", added(many)), ("from the last to the first", added(many[::-1])),
              ("as a row: 128 chains, then a tree", row_sum(many))]
    rows = [(name, f"{value:.9g}", f"<code>{bits(value)}</code>") for name, value in few + orders]
    return ("<h2>A sum in two orders</h2><p>A float has 24 bits. 2<sup>24</sup> + 1 needs 25: it lies halfway between "
            "two floats, and is rounded to the even one, 2<sup>24</sup>. So three numbers have two sums. Below them "
            "stand the sums of 4096 numbers, the floats next to 1/1, 1/2, ..., 1/4096. Each addition rounds, to the "
            "nearest float, and another order rounds other numbers.</p>"
            f"{table(rows, ('order', 'sum', 'its bits'))}<p>The exact sum of the 4096 is {math.fsum(many):.9f}. No "
            "order is right. One must be chosen, and all must keep it.</p>")


def table(rows, heads=(), kind="table"):
    """Of cells in HTML."""
    lines = [("th", heads)] * bool(heads) + [("td", row) for row in rows]
    said = "".join("<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in row) + "</tr>" for tag, row in lines)
    return f'<div class="{kind}"><table>{said}</table></div>'


SHOWN = {"a sum in two orders": two_orders}


def measured_html(names):
    """The share of what the machine can do: multiply-adds, or bytes of a copy. In two places a row has two rates."""
    bench = read_bench(os.path.join(ROOT, BENCH))
    rows = {" ".join(row["op"].split()): row for row in bench["rows"]}
    out = []
    for name in names:
        if name not in rows:
            refuse(f"{LIST}: {BENCH} has no row '{name}'")
        row = rows[name]
        if "gb_per_s" in row:
            out.append((name, f"{row['gb_per_s']:.1f} GB/s", row["share_of_copy"], "of copying"))
        for rate in ("gflops", "forward_gflops", "backward_gflops"):
            if rate in row:
                said = name if rate == "gflops" else name.replace(" ", f" {rate.split('_')[0]}, B T H KVH D = ", 1)
                out.append((said, f"{row[rate]:.1f} GFLOP/s", row[rate] / bench["fma_peak_gflops"], "of multiply-adds"))
    rows = [(html.escape(name), rate, f"{100 * share:.0f} % {of}") for name, rate, share, of in out]
    return (f'{table(rows)}<p class="small">CPU: {html.escape(bench["cpu"])}, {bench["threads"]} threads, '
            f'{bench["date"]}: {bench["fma_peak_gflops"]:.0f} GFLOP/s of fused multiply-adds, a copy of memory at '
            f'{bench["copy_gb_per_s"]:.0f} GB/s. <code>make bench</code> measures it.</p>')


MOST_LINES = 160  # of PTX, and of SASS


def loop_html(wanted, kernels, tools):
    """The inner loop of a kernel: each line of the source, what nvcc makes of it, and what ptxas makes of it."""
    found = [kernel for kernel in kernels if re.search(r"(?<!\w)" + re.escape(wanted), kernel[2])]
    if not found:
        refuse(f"{LIST}: nvcc has made no kernel whose name begins with '{wanted}'")
    text, name, in_source = found[0]
    loop = show.inner_loop(list(show.listing(text, name)))
    shown = loop[:MOST_LINES]
    rows = []  # of a place, its PTX, and at its first row its SASS
    for place, line in shown:
        if not rows or rows[-1][0] != place:
            rows.append((place, [], []))
        rows[-1][1].append(line)
    machine = list(show.machine_code(text, name, *tools)) if tools else []
    machine = show.inner_loop(machine, {place for place, _ in loop})
    for place, line in machine[:MOST_LINES]:
        if place not in (row[0] for row in rows):
            rows.append((place, [], []))
        next(row for row in rows if row[0] == place)[2].append(line)

    def pre(lines):
        return f"<pre>{html.escape(chr(10).join(line.strip() for line in lines))}</pre>"

    cells = [(f'<span class="small">{html.escape(place)}</span>{pre([place and show.source_line(place)])}', pre(ptx),
              *[pre(sass)] * bool(tools)) for place, ptx, sass in rows]
    said = [f"<code>{html.escape(in_source)}</code>."]
    for kind, whole in (("PTX", loop), ("SASS", machine)):
        if whole[MOST_LINES:]:
            said.append(f"Of the {kind} the first {MOST_LINES} of {len(whole)} lines are shown.")
    said.append("Beside the first row of a line of the source stands all the SASS of that line in the loop, which "
                "ptxas may have unrolled and reordered." if tools else
                "What ptxas makes of it is missing: no ptxas with nvdisasm was found.")
    said.append(f"The whole kernel: <code>make ptx KERNEL={kernel_of(wanted)}</code>.")
    return f"<p>{' '.join(said)}</p>{table(cells, ('source', 'PTX', 'SASS')[:3 if tools else 2], 'table loop')}"


def kernel_of(wanted):
    return wanted.split("<")[0]


# ---- the pages

class Book:
    def __init__(self, folder, ptx):
        self.folder = folder
        self.before, self.chapters, self.none = chapters()
        self.kernels = list(show.kernels_in(ptx))
        found = [cuda_tool(tool) for tool in ("ptxas", "nvdisasm")]
        self.tools = found if ptx and all(found) else None
        # Where each file is: in a chapter, or on a page of its own.
        self.pages = {path: f"{c.file}#{slug_of(path)}" for c in reversed(self.chapters) for path in c.read}
        alone = [p for chapter in self.chapters for p in chapter.beside + chapter.tests + chapter.exercises]
        alone += [path_of(LIST, to) for _, to in LINK.findall(self.before + self.none) if not to.startswith("#")]
        self.alone = [path for path in dict.fromkeys(alone) if path not in self.pages]
        self.pages |= {path: slug_of(path) + ".html" for path in self.alone}
        self.pictures = set()

    def link(self, path, anchor=""):
        """The page of a file, or None. A picture is copied into the book."""
        if path == LIST:
            return next((c.file for c in self.chapters if slug(c.title) == anchor), "index.html")
        if path.endswith((".svg", ".png")):
            self.pictures.add(path)
            return os.path.basename(path)
        to = self.pages.get(path)
        return to and (to.split("#")[0] + "#" + anchor if anchor and path.endswith(".md") else to)

    def link_from(self, path):
        """Links as a comment in that file names others: from the root, or beside itself."""
        beside = os.path.dirname(path)
        return lambda name: None if name == path else self.link(name) or self.link(os.path.join(beside, name))

    def file_html(self, path):
        if path.endswith(".md"):
            return markdown_html(path, read(path), self.link)
        return source_html(path, self.link_from(path))

    def write(self, name, title, body, chapter=None):
        at = self.chapters.index(chapter) if chapter else None
        around = [] if at is None else [(at - 1, "previous", "← {}"), (at + 1, "next", "{} →")]
        near = [(self.chapters[i], kind, shape) for i, kind, shape in around if 0 <= i < len(self.chapters)]
        steps = "".join(f'<a class="{kind}" href="{c.file}">{shape.format(html.escape(c.title))}</a>'
                        for c, kind, shape in near)
        nav = f'<nav><a href="index.html">{TITLE}</a>{steps}</nav>'
        page = ('<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
                '<meta name="viewport" content="width=device-width,initial-scale=1">'
                f'<title>{html.escape(title)}</title><link rel="stylesheet" href="book.css"></head>'
                f"<body>{nav}<main>{body}</main>{nav}</body></html>\n")
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(page)

    def links_html(self, paths):
        return ", ".join(f'<a href="{self.pages[path]}">{html.escape(path)}</a>' for path in paths)

    def chapter_html(self, chapter, number):
        facts = [("beside", self.links_html(chapter.beside)), ("test", self.links_html(chapter.tests)),
                 ("exercise", self.links_html(chapter.exercises)),
                 ("measured", chapter.measured and measured_html(chapter.measured))]
        out = [f"<h1>{number}. {html.escape(chapter.title)}</h1>", markdown_html(LIST, chapter.prose, self.link),
               "<dl>" + "".join(f"<dt>{name}</dt><dd>{said}</dd>" for name, said in facts if said) + "</dl>"]
        for caption, path in chapter.pictures:
            out.append(f'<figure><img src="{self.link(path)}" alt=""><figcaption>{html.escape(caption)}</figcaption>'
                       "</figure>")
        if chapter.shown:
            out.append(SHOWN[chapter.shown](chapter))
        for path in chapter.read:
            out.append(f'<h2 id="{slug_of(path)}">{html.escape(path)}</h2>{self.file_html(path)}')
        if chapter.kernels:
            out.append("<h2>What nvcc makes of the inner loop</h2>")
            if not self.kernels:
                out.append("<p>This is missing: nvcc was not found when the pages were made. With it "
                           f"<code>make book</code> shows the PTX of <code>{kernel_of(chapter.kernels[0])}</code> "
                           "here, line beside line.</p>")
            else:
                out += [loop_html(kernel, self.kernels, self.tools) for kernel in chapter.kernels]
        return "".join(out)

    def make(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        for number, chapter in enumerate(self.chapters, 1):
            self.write(chapter.file, chapter.title, self.chapter_html(chapter, number), chapter)
        for path in self.alone:
            self.write(self.pages[path], path, f"<h1>{html.escape(path)}</h1>{self.file_html(path)}")
        listed = "".join(f'<li><a href="{c.file}">{html.escape(c.title)}</a><br>'
                         f"{markdown_html(LIST, c.prose, self.link)}</li>" for c in self.chapters)
        heading, rest = self.before.split("\n", 1)
        body = (f"<h1>{html.escape(heading.strip('# '))}</h1>{markdown_html(LIST, rest, self.link)}"
                f'<ol class="chapters">{listed}</ol>{markdown_html(LIST, "## " + self.none, self.link)}')
        self.write("index.html", TITLE, body)
        for path in self.pictures:
            shutil.copy(os.path.join(ROOT, path), self.folder)
        with open(os.path.join(self.folder, "book.css"), "w") as file:
            light, dark = (HtmlFormatter(style=style).get_style_defs([".code", ".page pre"])
                           for style in ("default", "github-dark"))
            file.write(f"{colours_css(PAGE | {'code': ('#f6f8fa', '#161c24')})}\n{light}"
                       f"@media screen and (prefers-color-scheme: dark) {{ {dark} }}\n{read('scripts/book.css')}")
        print(f"wrote {len(self.chapters)} chapters and {len(self.alone)} files beside them: {self.folder}/index.html")


def slug_of(path):
    return path.replace("/", "_")


if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("folder", metavar="FOLDER")
    parser.add_argument("ptx", metavar="NAME.ptx", nargs="*")
    options = parser.parse_args()
    wanted, given = os.path.abspath(options.folder), [os.path.abspath(name) for name in options.ptx]
    os.chdir(ROOT)  # the places in PTX are from there
    Book(wanted, given).make()
