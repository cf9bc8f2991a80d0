#!/usr/bin/env python3
"""Draws scripts/architecture.svg, the picture at the head of the README: the model, a block, attention, a gate, GatedNorm.

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
            ".title{font-weight:600;font-size:16px}.strong{font-weight:600}.left{text-anchor:start}.small{font-size:13px}"
            ".line{fill:none;stroke-width:1.6}.plus{stroke-width:1.6}.zoom{opacity:.45}.box{stroke-width:1.6}"
            ".optional{stroke-dasharray:5 3}" + rules(0) + "@media(prefers-color-scheme:dark){" + rules(1) + "}")


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
        self.add(f'<text x="{x}" y="{y}" xml:space="preserve"' + (f' class="{classes}"' if classes else "") + f">{spans}</text>")

    def box(self, kind, x, y, width, lines, height=30, optional=False, radius=6):
        """A box with its centre at (x,y) and one line of text or two."""
        dashed = " optional" if optional else ""
        self.add(f'<rect class="box {kind}{dashed}" x="{x - width / 2:g}" y="{y - height / 2:g}" width="{width}" '
                 f'height="{height}" rx="{radius}"/>')
        lines = [lines] if isinstance(lines, str) else lines
        for i, line in enumerate(lines):
            style = f"{kind}-text" + (" strong" if i == 0 and (kind == "gate" or len(lines) > 1) else " small" if i else "")
            if line:
                self.text(x, f"{y + 5 + (i - (len(lines) - 1) / 2) * 18:g}", line, style)

    def gate(self, x, y, name):
        self.box("gate", x, y, 54, name, 28, optional=True, radius=14)

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

    def circle(self, x, y, sign):
        """The sum or the product of two arrays, element by element."""
        self.add(f'<circle class="plus" cx="{x}" cy="{y}" r="9"/>')
        if sign == "+":
            self.line((x - 5, y), (x + 5, y))
            self.line((x, y - 5), (x, y + 5))
        else:
            self.add(f'<circle class="tip" cx="{x}" cy="{y}" r="2.6"/>')

    def panel(self, x, y, width, height, title):
        self.add(f'<rect class="box panel" x="{x}" y="{y}" width="{width}" height="{height}" rx="10"/>')
        self.text(f"{x + width / 2:g}", y + 26, title, "title")

    def wide_panel(self, x, y, width, height, title, formula_at, formula):
        self.add(f'<rect class="box panel" x="{x}" y="{y}" width="{width}" height="{height}" rx="10"/>')
        self.text(x + 16, y + 27, title, "title left")
        self.text(x + formula_at, y + 27, formula, "left")

    def zoom(self, x, top, bottom, to_x, to_top, to_bottom):
        self.add(f'<path class="zoom" d="M{x} {top}L{to_x} {to_top}V{to_bottom}L{x} {bottom}Z"/>')


def model(d):
    d.panel(10, 12, 148, 560, "model")
    x = 84
    d.text(x, 70, "tokens (B,T)")
    d.arrow((x, 77), (x, 95))
    d.box("matrix", x, 110, 124, "embedding")
    d.arrow((x, 125), (x, 153))
    d.box("other", x, 175, 124, "block 1", 44)
    d.arrow((x, 197), (x, 215))
    d.box("other", x, 237, 124, "block 2", 44)
    d.line((x, 259), (x, 269))
    for y in (277, 285, 293):
        d.add(f'<circle class="tip" cx="{x}" cy="{y}" r="1.8"/>')
    d.arrow((x, 300), (x, 313))
    d.box("other", x, 335, 124, "block L", 44)
    d.arrow((x, 357), (x, 385))
    d.box("norm", x, 400, 124, "final norm")
    d.arrow((x, 415), (x, 438))
    d.box("matrix", x, 453, 124, "output W_lm")
    d.arrow((x, 468), (x, 491))
    d.box("other", x, 506, 124, "cross-entropy")
    d.arrow((x, 521), (x, 541))
    d.text(x, 557, "loss")


def block(d):
    d.zoom(146, 153, 197, 178, 12, 572)
    d.panel(178, 12, 254, 560, "block")
    stream, x, width = 206, 330, 180
    d.text(stream, 58, "h", "strong")
    d.text(stream + 14, 58, "residual stream (B,T,C)", "small muted left")
    for top, norm, mixer, detail in ((82, "input norm", "attention", "the token mixer"),
                                     (320, "post-attention norm", "FFN", "the channel mixer")):
        d.arrow((stream, top), (x, top), (x, top + 17))
        d.box("norm", x, top + 32, width, norm)
        d.arrow((x, top + 47), (x, top + 62))
        d.box("other", x, top + 85, width, [mixer, detail], 46)
        d.arrow((x, top + 108), (x, top + 123))
        d.box("norm", x, top + 138, width, "sandwich norm", optional=True)
        d.arrow((x, top + 153), (x, top + 175), (stream + 9, top + 175))
    for start, plus in ((64, 257), (266, 495)):
        d.arrow((stream, start), (stream, plus - 9))
        d.circle(stream, plus, "+")
        d.text(stream + 18, plus + 22, "clips and dropout, if any", "small muted left")
    d.arrow((stream, 504), (stream, 541))
    d.text(stream, 557, "h", "strong")
    d.text(stream + 14, 557, "to the next block", "small muted left")


def attention(d):
    d.zoom(420, 144, 190, 452, 12, 572)
    d.panel(452, 12, 338, 560, "attention")
    q, k, v, middle, width = 508, 592, 676, 592, 74
    d.text(middle, 58, "x", "strong")
    d.text(middle + 14, 58, "from the input norm", "small muted left")
    d.line((middle, 64), (middle, 76))
    for at, name, gate in ((q, "q", "G4"), (k, "k", "G3"), (v, "v", "G2")):
        d.arrow((middle, 76), (at, 76), (at, 93))
        d.box("matrix", at, 108, width, f"W_{name}")
        d.arrow((at, 123), (at, 137))
        d.gate(at, 151, gate)
        if name == "v":
            d.arrow((at, 165), (at, 279))
        else:
            d.arrow((at, 165), (at, 179))
            d.box("headnorm", at, 194, width, "QK-norm")
            d.arrow((at, 209), (at, 223))
            d.box("other", at, 238, width, "RoPE")
            d.arrow((at, 253), (at, 279))
    for at, name in ((q, "q"), (k, "k"), (v, "v")):
        d.text(at + 12, 270, name, "small muted")
    d.box("other", middle, 304, 242, ["SDPA", "softmax(q k^T / √D) v, causal"], 50)
    d.box("sink", 756, 304, 48, "sink", 28, optional=True, radius=14)
    d.arrow((732, 304), (713, 304))
    d.arrow((middle, 329), (middle, 346))
    d.box("headnorm", middle, 361, 150, "GroupNorm", optional=True)
    d.arrow((middle, 376), (middle, 393))
    d.gate(middle, 407, "G1")
    d.arrow((middle, 421), (middle, 438))
    d.box("matrix", middle, 453, width, "W_o")
    d.arrow((middle, 468), (middle, 489))
    d.gate(middle, 503, "G5")
    d.arrow((middle, 517), (middle, 541))
    d.text(middle, 557, "y", "strong")
    d.text(middle + 14, 557, "to the residual stream", "small muted left")


def gate(d):
    left, top, meet = 10, 584, 352
    a, x = top + 60, top + 104
    d.wide_panel(left, top, 385, 136, "a gate", 92, "y = a ⊙ σ(x W_g^T)")
    d.text(left + 24, a + 5, "a", "strong")
    d.text(left + 38, a + 5, "what is gated", "small muted left")
    d.arrow((left + 136, a), (meet - 9, a))
    d.circle(meet, a, "*")
    d.arrow((meet + 9, a), (meet + 25, a))
    d.text(meet + 33, a + 5, "y", "strong")
    d.text(left + 24, x + 5, "x", "strong")
    d.text(left + 38, x + 5, "what attention reads", "small muted left")
    d.arrow((left + 182, x), (left + 200, x))
    d.box("matrix", left + 226, x, 52, "W_g")
    d.arrow((left + 252, x), (left + 272, x))
    d.box("gate", left + 296, x, 48, "σ")
    d.arrow((left + 320, x), (meet, x), (meet, a + 9))


def gated_norm(d):
    left, top = 405, 584
    n, low, split, meet = top + 60, top + 104, left + 160, left + 340
    d.wide_panel(left, top, 385, 136, "GatedNorm", 132, "y = n ⊙ σ(W_up SiLU(W_down n))")
    d.text(left + 18, n + 5, "h", "strong")
    d.arrow((left + 28, n), (left + 46, n))
    d.box("norm", left + 93, n, 94, "RMSNorm")
    d.arrow((left + 140, n), (meet - 9, n))
    d.text(split, n - 7, "n", "small muted")
    d.circle(meet, n, "*")
    d.arrow((meet + 9, n), (meet + 25, n))
    d.text(meet + 33, n + 5, "y", "strong")
    d.arrow((split, n), (split, n + 22), (left + 18, n + 22), (left + 18, low), (left + 34, low))
    d.box("matrix", left + 68, low, 68, "W_down")
    d.arrow((left + 102, low), (left + 120, low))
    d.box("other", left + 147, low, 54, "SiLU")
    d.arrow((left + 174, low), (left + 192, low))
    d.box("matrix", left + 219, low, 54, "W_up")
    d.arrow((left + 246, low), (left + 264, low))
    d.box("gate", left + 288, low, 48, "σ")
    d.arrow((left + 312, low), (meet, low), (meet, n + 9))


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
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">',
        "<title>A model of gated.cu, one of its blocks, and the attention of a block</title>",
        f"<style>{css()}</style>",
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="12"/>',
        *parts,
        "</svg>"]) + "\n"


def main():
    if sys.argv[1:] == ["--check"]:
        with open(PATH, encoding="utf-8") as file:
            if file.read() != svg():
                sys.exit("scripts/architecture.svg is not what scripts/draw_architecture.py draws: run it and commit the picture")
    elif len(sys.argv) == 1:
        with open(PATH, "w", encoding="utf-8", newline="\n") as file:
            file.write(svg())
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
