"""Figures of a report as SVG: each part for itself, as the page wants them, or a whole figure in a file of its own."""
import io
import re

from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from plots import drawn
from reporting.catalogue import SECTIONS
from reporting.figures import look_of

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 2.1, 0.5, 0.09, 0.06, 0.36  # inches: a part of a column, and the margins of its axes
FAMILY = "system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif"
LINES = (3.6, 2.3)  # inches: the size of a figure of lines


def svg(figure, in_page=False):
    """In a page the line of a run says whose it is."""
    with io.StringIO() as file:
        figure.savefig(file, format="svg")
        text = file.getvalue()
    text = text[text.index("<svg"):]
    # (its metadata hold the date: the same runs give the same page)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    if in_page:
        text = re.sub(r"<g id=\"run (\d+)\"", r'<g data-run="\1"', text)
    text = re.sub(r"<g id=\"[^\"]*\"", "<g", text)  # numbers of axes and ticks, which nothing refers to
    return re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", text)  # the typeface is that of what stands around it


def has_any(figure, runs):
    return any(suited(part, runs) for part in figure.parts)


def suited(part, runs):
    """Those of the runs, with their lines, that the part has something to draw of."""
    return [(run, look_of(place)) for place, run in enumerate(runs) if part.suits(run)]


def draw_lines(part, those):
    figure = Figure(figsize=LINES, layout="constrained")
    part.draw(figure.add_subplot(), those)
    return figure


def part_height(part):
    return (WIDTH - LEFT - RIGHT) * part.height + TOP + BOTTOM


def add_part(figure, part, left, bottom):
    """Axes for a part whose lower left corner stands there, in inches."""
    width, height = figure.get_size_inches()
    inner = WIDTH - LEFT - RIGHT
    return figure.add_axes([(left + LEFT) / width, (bottom + BOTTOM) / height, inner / width,
                            inner * part.height / height])


def draw_part(part, run, line, scale):
    figure = Figure(figsize=(WIDTH, part_height(part)))
    part.draw(add_part(figure, part, 0, 0), run, line, scale)
    return figure


def add_bar(axes, image):
    """What the colours of a heat map mean, which may stand in another figure."""
    bar = axes.figure.colorbar(ScalarMappable(image.norm, image.cmap), cax=axes, orientation="horizontal")
    bar.outline.set_visible(False)
    by_factors, ratio = isinstance(image.norm, LogNorm), bar.vmax / max(bar.vmin, 1e-30)
    bar.set_ticks(LogLocator(subs=(1,) if ratio > 300 else (1, 3) if ratio > 30 else (1, 2, 5)) if by_factors
                  else MaxNLocator(4))
    bar.minorticks_off()
    bar.formatter = FuncFormatter(lambda value, _: f"{value:g}")
    bar.update_ticks()


def draw_bar(of):
    figure = Figure(figsize=(WIDTH, 0.32))
    add_bar(figure.add_axes([0.05, 0.62, 0.9, 0.3]), of.axes[0].images[0])
    return figure


# ---- a whole figure

def lines_picture(lines, runs):
    those = suited(lines.parts[0], runs)
    figure = draw_lines(lines.parts[0], those)
    height = LINES[1] + 0.15 * -(-len(those) // 4) + 0.3
    figure.set_size_inches(LINES[0], height)
    figure.get_layout_engine().set(rect=(0, 1 - (LINES[1] + 0.2) / height, 1, (LINES[1] + 0.2) / height))
    figure.axes[0].set_title(lines.title, loc="left", fontweight="bold", fontsize=8)
    figure.legend([Line2D([], [], **line) for _, line in those], [drawn(run.name) for run, _ in those],
                  loc="lower left", ncols=4)
    return figure


def columns_picture(columns, runs):
    parts = [(part, dict(suited(part, runs))) for part in columns.parts if suited(part, runs)]
    those = [run for run in runs if any(run in lines for _, lines in parts)]
    bars = 0.5 if any(part.bar for part, _ in parts) else 0
    heads = 0.2
    width, height = WIDTH * len(those), heads + sum(part_height(part) for part, _ in parts) + bars
    figure = Figure(figsize=(width, height))
    for column, run in enumerate(those):
        figure.text((column * WIDTH + LEFT) / width, 1 - 0.7 * heads / height, drawn(run.name), fontweight="bold",
                    fontsize=8)
    top = height - heads
    for place, (part, lines) in enumerate(parts):
        top -= part_height(part)
        scale = part.scale(list(lines))
        for run, line in lines.items():
            axes = add_part(figure, part, those.index(run) * WIDTH, top)
            part.draw(axes, run, line, scale)
        if part.bar:
            left = LEFT + place * WIDTH
            figure.text(left / width, 0.34 / height, part.bar)
            add_bar(figure.add_axes([left / width, 0.2 / height, (WIDTH - LEFT - RIGHT) / width, 0.08 / height]),
                    axes.images[0])
    return figure


def pictures(runs):
    """Every figure of the page, on white, as the text of an SVG file by its name."""
    texts = {}
    for figure in (figure for section in SECTIONS for figure in section.figures if has_any(figure, runs)):
        picture = (lines_picture if figure.is_lines else columns_picture)(figure, runs)
        picture.set_facecolor("white")
        texts[figure.name] = svg(picture).replace("<svg ", f'<svg font-family="{FAMILY}" ', 1)
    return texts
