"""The page of a report: one HTML file that holds its style, its table and its figures."""
import html
import itertools
import json
import os
import re

from common import read
from reporting.catalogue import SECTIONS
from reporting.drawing import draw_bar, draw_lines, draw_part, has_any, suited, svg
from plots import COLOURS, DARK_COLOURS, PAGE, colours_css
from reporting.figures import key_html
from reporting.table import flags_html, flags_of, table

# What a colour of the figures is called in the page.
PALETTE = PAGE | {f"run-{i}": pair for i, pair in enumerate(zip(COLOURS, DARK_COLOURS))}


def linked(text):
    return re.sub(r"\b\d{4}\.\d{5}\b", r'<a href="https://arxiv.org/abs/\g<0>">\g<0></a>', html.escape(text))


def element(figure, alt):
    """A figure inside the page, in the page's own typeface and colours."""
    text = svg(figure, in_page=True)
    for name, (colour, _) in PALETTE.items():
        text = re.sub(f"(fill|stroke): {colour}\\b", rf"\1: var(--{name})", text, flags=re.I)
    about = f' data-axes="{html.escape(json.dumps(axes_of(figure)))}"' if "data-run=" in text else ""
    return text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(alt)}"{about} ', 1)


def axes_of(figure):
    """Where the axes of a figure that has been drawn stand in its SVG, and from which number to which they go."""
    (axes,), (width, height) = figure.axes, figure.get_size_inches() * 72
    place = axes.get_position()
    box = (place.x0 * width, (1 - place.y0) * height, place.x1 * width, (1 - place.y1) * height)

    def numbers(axis):
        low, high = axis.get_view_interval()
        return {"name": axis.get_label_text(), "from": float(low), "to": float(high), "log": axis.get_scale() == "log",
                "percent": hasattr(axis, "in_percent")}
    return {"box": [round(float(x), 3) for x in box], "x": numbers(axes.xaxis), "y": numbers(axes.yaxis)}


def lines_html(lines, runs):
    those = suited(lines.parts[0], runs)
    names = ", ".join(run.name for run, _ in those)
    return (f"<figure><h3>{html.escape(lines.title)}</h3><p>{linked(lines.caption)}</p>"
            f"{element(draw_lines(lines.parts[0], those), lines.title + ': ' + names)}</figure>")


def columns_html(columns, runs):
    drawn = {run: [] for run in runs}
    bars = ""
    for part in columns.parts:
        those = suited(part, runs)
        if not those:
            continue
        scale = part.scale([run for run, _ in those])
        for run, line in those:
            figure = draw_part(part, run, line, scale)
            drawn[run].append(element(figure, f"{columns.title}: {run.name}"))
        if part.bar:
            bars += (f"<div><code>{part.bar}</code>"
                     f"{element(draw_bar(figure), 'what the colours mean: ' + part.bar)}</div>")
    figures = "".join(f"<figure><figcaption>{key_html(place)}{html.escape(run.name)}</figcaption>"
                      f"{''.join(drawn[run])}</figure>"
                      for place, run in enumerate(runs) if drawn[run])
    shown = sum(map(bool, drawn.values()))
    in_a_row = max(4, -(-shown // -(-shown // 6)))  # at most six, and in rows of nearly one length
    bars = bars and f'<div class="bars">{bars}</div>'
    return (f'<div class="block"><h3>{html.escape(columns.title)}</h3><p>{linked(columns.caption)}</p>'
            f'<div class="columns" style="--columns:{in_a_row}">{figures}</div>{bars}</div>')


def section_html(section, runs):
    """Figures of lines that follow each other stand in one grid."""
    blocks = []
    shown = [figure for figure in section.figures if has_any(figure, runs)]
    for is_lines, group in itertools.groupby(shown, lambda figure: figure.is_lines):
        if is_lines:
            blocks.append('<div class="lines">' + "".join(lines_html(figure, runs) for figure in group) + "</div>")
        else:
            blocks += [columns_html(figure, runs) for figure in group]
    return f"<section><h2>{html.escape(section.title)}</h2>{''.join(blocks)}</section>" if shown else ""


def introduction(runs):
    """What the runs have in common."""
    common, _ = flags_of(runs)
    flags = f" with {flags_html(common)}" if common else ""
    return (f"<p>Runs of gated.cu{flags}. Layers, heads, tokens and dimensions count from 0. h is the residual "
            "stream, o what attention puts out, λ the weight of a norm. What each measure is: docs/inspect.md, “What a "
            "run shows of its model”.</p>")


def page(runs):
    sections = "".join(section_html(section, runs) for section in SECTIONS)
    legend = "".join(f"<span>{key_html(place)}{html.escape(run.name)}</span>" for place, run in enumerate(runs))
    style, script = (read(os.path.join(os.path.dirname(__file__), name)) for name in ("page.css", "page.js"))
    title = "1 run" if len(runs) == 1 else f"{len(runs)} runs side by side"
    return ('<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width,initial-scale=1">'
            f"<title>gated.cu: {title}</title><style>{colours_css(PALETTE)}\n{style}</style></head><body>"
            f"<header><h1>{title}</h1>{introduction(runs)}{table(runs)}</header>"
            f'<nav class="legend" aria-label="runs"><div>{legend}</div></nav>'
            f"<main>{sections}</main><script>\n{script}</script></body></html>\n")


