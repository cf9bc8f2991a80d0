#!/usr/bin/env python3
"""Draws scripts/architecture.svg, the picture at the head of the README: the model, a block, attention and gates.

usage: scripts/draw_architecture.py            writes the picture
       scripts/draw_architecture.py --check    fails where the committed picture is not what this script draws
"""
import os
import re
import sys

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "architecture.svg")
WIDTH, HEIGHT = 800, 818

# What a kind of box looks like: (fill, border, text) in light mode, then in dark mode.
KINDS = {
    "norm": (("#d3f3dc", "#1a7f37", "#0b5323"), ("#12361f", "#3fb950", "#aff5b4")),
    "headnorm": (("#ffffff", "#1a7f37", "#0b5323"), ("#0d1117", "#3fb950", "#aff5b4")),
    "gate": (("#ffe3a3", "#b07800", "#5c3d00"), ("#4a3300", "#e3a92f", "#ffd98a")),
    "sink": (("#ecdcff", "#8250df", "#512a97"), ("#2e1c50", "#a371f7", "#d8b9ff")),
    "matrix": (("#dcecff", "#0969da", "#0a3f80"), ("#0f2d50", "#4493f8", "#a5d0ff")),
    "other": (("#ffffff", "#818b98", "#1f2328"), ("#0d1117", "#7d8590", "#e6edf3")),
    "panel": (("#f6f8fa", "#d1d9e0", "#1f2328"), ("#161b22", "#3d444d", "#e6edf3")),
}


def css():
    def rules(mode):
        page, text, line, muted, zoom = (("#ffffff", "#1f2328", "#59636e", "#4a535d", "#d1d9e0"),
                                         ("#0d1117", "#e6edf3", "#9198a1", "#b1bac4", "#3d444d"))[mode]
        lines = [f".page{{fill:{page}}}", f"text{{fill:{text}}}", f".muted{{fill:{muted}}}", f".tip{{fill:{line}}}",
                 f".line{{stroke:{line}}}", f".zoom{{fill:{zoom}}}", f".plus{{fill:{page};stroke:{line}}}"]
        for name, look in KINDS.items():
            fill, border, ink = look[mode]
            lines += [f".{name}{{fill:{fill};stroke:{border}}}", f".{name}-text{{fill:{ink}}}"]
        return "".join(lines)
    return ("text{font:14px -apple-system,'Segoe UI',Helvetica,Arial,'DejaVu Sans',sans-serif;text-anchor:middle}"
            ".title{font-weight:600;font-size:16px}.strong{font-weight:600}.left{text-anchor:start}"
            ".small{font-size:13px}.line{fill:none;stroke-width:1.6}.plus{stroke-width:1.6}.zoom{opacity:.45}"
            ".box{stroke-width:1.6}.optional{stroke-dasharray:5 3}" + rules(0) +
            "@media(prefers-color-scheme:dark){" + rules(1) + "}")


class Drawing:
    def __init__(self):
        self.parts = []

    def add(self, part):
        self.parts.append(part)

    def text(self, x, y, text, classes=""):
        """One line. W_q lowers the q and k^T lifts the T, each up to the next space, comma, bracket, _ or ^."""
        spans, height = "", 0
        for mark, piece in re.findall(r"([_^]?)([^_^ ,()]*[ ,()]*)", text):
            low, rest = re.fullmatch(r"([^ ,()]*)(.*)", piece).groups() if mark else ("", piece)
            if mark:
                at = 4 if mark == "_" else -5
                spans += f'<tspan dy="{at - height}" font-size="11">{low}</tspan>'
                height = at
            if rest:
                spans += f'<tspan dy="{-height}">{rest}</tspan>' if height else rest
                height = 0
        self.add(f'<text x="{x}" y="{y}" xml:space="preserve"' + (f' class="{classes}"' if classes else "")
                 + f">{spans}</text>")

    def box(self, kind, x, y, width, lines, height=30, optional=False, radius=6):
        """A box with its centre at (x,y) and one line of text or two."""
        dashed = " optional" if optional else ""
        self.add(f'<rect class="box {kind}{dashed}" x="{x - width / 2:g}" y="{y - height / 2:g}" width="{width}" '
                 f'height="{height}" rx="{radius}"/>')
        lines = [lines] if isinstance(lines, str) else lines
        for i, line in enumerate(lines):
            style = f"{kind}-text" + (" strong" if i == 0 and (kind == "gate" or len(lines) > 1) else " small" if i
                                      else "")
            if line:
                self.text(x, f"{y + 5 + (i - (len(lines) - 1) / 2) * 18:g}", line, style)

    def line(self, *points):
        self.add('<path class="line" d="M' + "L".join(f"{x:g} {y:g}" for x, y in points) + '"/>')

    def arrow(self, *points):
        """A line whose last piece, along an axis, ends in a tip."""
        (x0, y0), (x, y) = points[-2:]
        dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
        self.line(*points[:-1], (x - 4 * dx, y - 4 * dy))
        back = (x - 7 * dx, y - 7 * dy)
        self.add(f'<path class="tip" d="M{x:g} {y:g}L{back[0] + 4 * dy:g} {back[1] + 4 * dx:g}'
                 f'L{back[0] - 4 * dy:g} {back[1] - 4 * dx:g}Z"/>')

    def down(self, x, y, *boxes):
        """Boxes one below the other, of which each says its kind, its y and what else box() takes: an arrow leads from
        (x,y) to the first and from each to the next. Returns where the last ends."""
        for kind, at, width, lines, *more in boxes:
            half = (more[0] if more else 30) / 2
            self.arrow((x, y), (x, at - half))
            self.box(kind, x, at, width, lines, *more)
            y = at + half
        return y

    def right(self, x, y, *boxes):
        """The same from left to right."""
        for kind, at, width, lines, *more in boxes:
            self.arrow((x, y), (at - width / 2, y))
            self.box(kind, at, y, width, lines, *more)
            x = at + width / 2
        return x

    def named(self, x, y, name, about):
        self.text(x, y, name, "strong")
        self.text(x + 14, y, about, "small muted left")

    def dot(self, x, y, radius):
        self.add(f'<circle class="tip" cx="{x}" cy="{y}" r="{radius}"/>')

    def sign(self, x, y):
        self.add(f'<circle class="plus" cx="{x}" cy="{y}" r="9"/>')

    def plus(self, x, y):
        """The sum of two arrows, element by element."""
        self.sign(x, y)
        self.line((x - 5, y), (x + 5, y))
        self.line((x, y - 5), (x, y + 5))

    def product(self, x, y, meet):
        """What comes from x, times what comes from below: y."""
        self.arrow((x, y), (meet - 9, y))
        self.sign(meet, y)
        self.dot(meet, y, 2.6)
        self.arrow((meet + 9, y), (meet + 25, y))
        self.text(meet + 33, y + 5, "y", "strong")

    def panel(self, x, y, width, height, title, formula="", formula_at=0):
        """With its title in the middle, or at the left of a formula."""
        self.add(f'<rect class="box panel" x="{x}" y="{y}" width="{width}" height="{height}" rx="10"/>')
        if formula:
            self.text(x + 16, y + 27, title, "title left")
            self.text(x + formula_at, y + 27, formula, "left")
        else:
            self.text(f"{x + width / 2:g}", y + 26, title, "title")

    def zoom(self, x, top, bottom, to_x, to_top, to_bottom):
        self.add(f'<path class="zoom" d="M{x} {top}L{to_x} {to_top}V{to_bottom}L{x} {bottom}Z"/>')


def gate_at(y, name):
    return "gate", y, 54, name, 28, True, 14


def model(d):
    d.panel(10, 12, 148, 560, "model")
    x = 84
    d.text(x, 70, "tokens (B,T)")
    y = d.down(x, 77, ("matrix", 110, 124, "embedding"), ("other", 175, 124, "block 1", 44),
               ("other", 237, 124, "block 2", 44))
    d.line((x, y), (x, y + 10))
    for y in (277, 285, 293):
        d.dot(x, y, 1.8)
    y = d.down(x, 300, ("other", 335, 124, "block L", 44), ("norm", 400, 124, "final norm"),
               ("matrix", 453, 124, "output W_lm"), ("other", 506, 124, "cross-entropy"))
    d.arrow((x, y), (x, 541))
    d.text(x, 557, "loss")


def block(d):
    d.zoom(146, 153, 197, 178, 12, 572)
    d.panel(178, 12, 254, 560, "block")
    stream, x, width = 206, 330, 180
    d.named(stream, 58, "h", "residual stream (B,T,C)")
    for top, norm, mixer, detail in ((82, "input norm", "attention", "the token mixer"),
                                     (320, "post-attention norm", "FFN", "the channel mixer")):
        d.arrow((stream, top), (x, top), (x, top + 17))
        d.box("norm", x, top + 32, width, norm)
        y = d.down(x, top + 47, ("other", top + 85, width, [mixer, detail], 46),
                   ("norm", top + 138, width, "sandwich norm", 30, True))
        d.arrow((x, y), (x, top + 175), (stream + 9, top + 175))
    for start, plus in ((64, 257), (266, 495)):
        d.arrow((stream, start), (stream, plus - 9))
        d.plus(stream, plus)
        d.text(stream + 18, plus + 22, "clips and dropout, if any", "small muted left")
    d.arrow((stream, 504), (stream, 541))
    d.named(stream, 557, "h", "to the next block")


def attention(d):
    d.zoom(420, 144, 190, 452, 12, 572)
    d.panel(452, 12, 338, 560, "attention")
    q, k, v, middle, width = 508, 592, 676, 592, 74
    d.named(middle, 58, "x", "from the input norm")
    d.line((middle, 64), (middle, 76))
    for x, name, gate in ((q, "q", "G4"), (k, "k", "G3"), (v, "v", "G2")):
        d.arrow((middle, 76), (x, 76), (x, 93))
        d.box("matrix", x, 108, width, f"W_{name}")
        y = d.down(x, 123, gate_at(151, gate))
        if name != "v":
            y = d.down(x, y, ("headnorm", 194, width, "QK-norm"), ("other", 238, width, "RoPE"))
        d.arrow((x, y), (x, 279))
    for x, name in ((q, "q"), (k, "k"), (v, "v")):
        d.text(x + 12, 270, name, "small muted")
    d.box("other", middle, 304, 242, ["SDPA", "softmax(q k^T / √D) v, causal"], 50)
    d.box("sink", 756, 304, 48, "sink", 28, optional=True, radius=14)
    d.arrow((732, 304), (713, 304))
    y = d.down(middle, 329, ("headnorm", 361, 150, "GroupNorm", 30, True), gate_at(407, "G1"),
               ("matrix", 453, width, "W_o"), gate_at(503, "G5"))
    d.arrow((middle, y), (middle, 541))
    d.named(middle, 557, "y", "to the residual stream")


def gate(d):
    left, top, meet = 10, 584, 352
    a, x = top + 60, top + 104
    d.panel(left, top, 385, 136, "a gate", "y = a ⊙ σ(x W_g^T)", 92)
    d.named(left + 24, a + 5, "a", "what is gated")
    d.product(left + 136, a, meet)
    d.named(left + 24, x + 5, "x", "what attention reads")
    end = d.right(left + 182, x, ("matrix", left + 226, 52, "W_g"), ("gate", left + 296, 48, "σ"))
    d.arrow((end, x), (meet, x), (meet, a + 9))


def gated_norm(d):
    left, top = 405, 584
    n, low, split, meet = top + 60, top + 104, left + 160, left + 340
    d.panel(left, top, 385, 136, "GatedNorm", "y = n ⊙ σ(W_up SiLU(W_down n))", 132)
    d.text(left + 18, n + 5, "h", "strong")
    d.product(d.right(left + 28, n, ("norm", left + 93, 94, "RMSNorm")), n, meet)
    d.text(split, n - 7, "n", "small muted")
    d.arrow((split, n), (split, n + 22), (left + 18, n + 22), (left + 18, low), (left + 34, low))
    d.box("matrix", left + 68, low, 68, "W_down")
    end = d.right(left + 102, low, ("other", left + 147, 54, "SiLU"), ("matrix", left + 219, 54, "W_up"),
                  ("gate", left + 288, 48, "σ"))
    d.arrow((end, low), (meet, low), (meet, n + 9))


def legend(d):
    rows = ((742, (("norm", 10, "norm of the stream: --norm=rmsnorm, gated, layernorm, dyt, …"),
                   ("headnorm", 540, "RMSNorm of every head"))),
            (768, (("gate", 10, "gate: --attn=g1 to g5"), ("sink", 210, "learned sink: --attn-sink=learned, kv-bias"),
                   ("matrix", 540, "weights of a matrix"))),
            (794, (("dashed", 10, "absent unless a flag asks for it: --attn, --attn-sink, --sdpa-out=groupnorm, "
                                  "--norm-placement=sandwich"),)))
    for y, entries in rows:
        for kind, x, label in entries:
            d.box("other" if kind == "dashed" else kind, x + 13, y, 26, "", 18, optional=kind == "dashed", radius=5)
            d.text(x + 34, y + 5, label, "small left")


def svg():
    d = Drawing()
    for part in (model, block, attention, gate, gated_norm, legend):
        part(d)
    # Panels lie under the shades from a box to the panel that shows its inside, and these under everything else.
    parts = sorted(d.parts, key=lambda part: 0 if '"box panel"' in part else 1 if '"zoom"' in part else 2)
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img">',
        "<title>A model of gated.cu, one of its blocks, and the attention of a block</title>",
        f"<style>{css()}</style>",
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="12"/>',
        *parts,
        "</svg>"]) + "\n"


def main():
    if sys.argv[1:] == ["--check"]:
        with open(PATH, encoding="utf-8") as file:
            if file.read() != svg():
                sys.exit("scripts/architecture.svg is not what scripts/draw_architecture.py draws: "
                         "run it and commit the picture")
    elif len(sys.argv) == 1:
        with open(PATH, "w", encoding="utf-8", newline="\n") as file:
            file.write(svg())
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
