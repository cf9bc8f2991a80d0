"""The page of a report: one HTML file that holds its style, its table and its figures."""
import html
import itertools
import re

from reporting.catalogue import SECTIONS, Lines
from reporting.drawing import draw_bar, draw_lines, draw_part, has_any, suited, svg
from reporting.figures import key_html
from reporting.table import flags_html, flags_of, table

CSS = """
:root{color-scheme:light}*{box-sizing:border-box}
body{margin:0;background:#fff;color:#1f2328;font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","Liberation Sans",Arial,sans-serif}
main,header{max-width:1400px;margin:auto;padding:0 24px}header{padding-top:32px}
h1{font-size:28px;line-height:1.2;margin:0 0 4px}h2{font-size:21px;margin:44px 0 4px;padding-top:20px;border-top:1px solid #d1d9e0}
h3{font-size:16px;margin:22px 0 2px}p{margin:0 0 12px;max-width:96ch;color:#59636e;font-size:14px}a{color:#0969da;text-decoration:none}
code{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace;color:#59636e;overflow-wrap:anywhere}code span{white-space:nowrap}
.legend{position:sticky;top:0;z-index:1;background:#fffffff2;border-bottom:1px solid #d1d9e0;margin-top:16px}
.legend div{max-width:1400px;margin:auto;padding:8px 24px;display:flex;flex-wrap:wrap;gap:2px 18px;font-size:14px}
.key{display:inline-block;width:22px;height:0;border-top:3px solid;vertical-align:middle;margin-right:7px}
.key.d1{border-top-style:dashed}.key.d2{border-top-style:dotted}
.table{overflow-x:auto;margin-top:20px}table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}
th,td{padding:7px 12px;text-align:right;border-bottom:1px solid #eaeef2;vertical-align:top}
thead th{font-weight:500;color:#59636e;font-size:12.5px;line-height:1.3;vertical-align:bottom;min-width:84px}
tr>:first-child{text-align:left;padding-left:0;min-width:150px;max-width:280px;position:sticky;left:0;background:#fff}
tbody th{font-weight:600;white-space:nowrap}tbody th code{display:block;white-space:normal;font-weight:400}td small{display:block;white-space:pre;color:#59636e;font-size:11.5px}
.lines{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,380px),1fr));gap:4px 36px}
.columns{display:grid;grid-template-columns:repeat(var(--columns),minmax(0,330px));gap:10px 20px}
.lines figure{display:flex;flex-direction:column}.lines svg{margin-top:auto}figure{margin:0}.columns figure{max-width:340px}figcaption{font-size:13.5px;font-weight:600;margin:4px 0 2px}
svg{display:block;width:100%;height:auto;font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","Liberation Sans",Arial,sans-serif}
.bars{display:flex;flex-wrap:wrap;gap:0 28px}.bars svg{width:260px}
@media(max-width:1100px){.columns{grid-template-columns:repeat(auto-fill,minmax(205px,1fr))}}
@media(max-width:600px){main,header,.legend div{padding-left:14px;padding-right:14px}.columns{grid-template-columns:1fr 1fr;gap:8px}.columns figure{max-width:none}.legend div{font-size:12px;gap:0 12px}h1{font-size:23px}}
"""


def linked(text):
    return re.sub(r"\b\d{4}\.\d{5}\b", r'<a href="https://arxiv.org/abs/\g<0>">\g<0></a>', html.escape(text))


def element(figure, alt):
    """A figure inside the page, in the page's own typeface."""
    return svg(figure).replace("<svg ", f'<svg role="img" aria-label="{html.escape(alt)}" ', 1)


def lines_html(lines, runs):
    names = ", ".join(run.name for run, _ in suited(lines, runs))
    return (f"<figure><h3>{html.escape(lines.title)}</h3><p>{linked(lines.caption)}</p>"
            f"{element(draw_lines(lines, runs), lines.title + ': ' + names)}</figure>")


def columns_html(columns, runs):
    parts = [(part, suited(part, runs)) for part in columns.parts]
    drawn = {run: [] for run in runs}
    bars = ""
    for part, those in parts:
        if not those:
            continue
        scale = part.scale([run for run, _ in those])
        for run, line in those:
            figure = draw_part(part, run, line, scale)
            drawn[run].append(element(figure, f"{columns.title}: {run.name}"))
        if part.bar:
            bars += f"<div><code>{part.bar}</code>{element(draw_bar(figure), 'what the colours mean: ' + part.bar)}</div>"
    figures = "".join(f"<figure><figcaption>{key_html(place)}{html.escape(run.name)}</figcaption>{''.join(drawn[run])}</figure>"
                      for place, run in enumerate(runs) if drawn[run])
    shown = sum(map(bool, drawn.values()))
    in_a_row = max(4, -(-shown // -(-shown // 6)))  # at most six, and in rows of nearly one length
    bars = bars and f'<div class="bars">{bars}</div>'
    return (f"<h3>{html.escape(columns.title)}</h3><p>{linked(columns.caption)}</p>"
            f'<div class="columns" style="--columns:{in_a_row}">{figures}</div>{bars}')


def section_html(section, runs):
    """Figures of lines that follow each other stand in one grid."""
    blocks = []
    shown = [figure for figure in section.figures if has_any(figure, runs)]
    for is_lines, group in itertools.groupby(shown, lambda figure: isinstance(figure, Lines)):
        if is_lines:
            blocks.append('<div class="lines">' + "".join(lines_html(figure, runs) for figure in group) + "</div>")
        else:
            blocks += [columns_html(figure, runs) for figure in group]
    return f"<section><h2>{html.escape(section.title)}</h2>{''.join(blocks)}</section>" if shown else ""


def introduction(runs):
    """What the runs have in common."""
    common, _ = flags_of(runs)
    flags = f" with {flags_html(common)}" if common else ""
    return (f"<p>Runs of gated.cu{flags}. Layers, heads, tokens and dimensions count from 0. h is the residual stream, o what attention "
            "puts out, λ the weight of a norm. What each measure is: docs/inspect.md, “What a run shows of its model”.</p>")


def page(runs):
    sections = "".join(section_html(section, runs) for section in SECTIONS)
    legend = "".join(f"<span>{key_html(place)}{html.escape(run.name)}</span>" for place, run in enumerate(runs))
    title = "1 run" if len(runs) == 1 else f"{len(runs)} runs side by side"
    return ('<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width,initial-scale=1">'
            f"<title>gated.cu: {title}</title><style>{CSS}</style></head><body>"
            f"<header><h1>{title}</h1>{introduction(runs)}{table(runs)}</header>"
            f'<nav class="legend" aria-label="runs"><div>{legend}</div></nav><main>{sections}</main></body></html>\n')


