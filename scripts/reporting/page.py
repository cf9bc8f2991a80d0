"""The page of a report: one HTML file that holds its style, its table and its figures."""
import html
import itertools
import json
import re

from reporting.catalogue import SECTIONS, Lines
from reporting.drawing import draw_bar, draw_lines, draw_part, has_any, suited, svg
from plots import COLOURS, DARK_COLOURS, PAGE, colours_css
from reporting.figures import key_html
from reporting.table import flags_html, flags_of, table

CSS = """
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--text);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","Liberation Sans",Arial,sans-serif}
main,header{max-width:1400px;margin:auto;padding:0 24px}header{padding-top:32px}
h1{font-size:28px;line-height:1.2;margin:0 0 4px}h2{font-size:21px;margin:44px 0 4px;padding-top:20px;border-top:1px solid var(--axis)}
h3{font-size:16px;margin:22px 0 2px}p{margin:0 0 12px;max-width:96ch;color:var(--muted);font-size:14px}a{color:var(--link);text-decoration:none}
code{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace;color:var(--muted);overflow-wrap:anywhere}code span{display:inline-block;max-width:100%}
.legend{position:sticky;top:0;z-index:1;background:var(--ground);border-bottom:1px solid var(--axis);margin-top:16px}
.legend div{max-width:1400px;margin:auto;padding:8px 24px;display:flex;flex-wrap:wrap;gap:2px 18px;font-size:14px}.legend span{min-width:0;overflow-wrap:anywhere}
.key{display:inline-block;width:22px;height:0;border-top:3px solid;vertical-align:middle;margin-right:7px}
.key.d1{border-top-style:dashed}.key.d2{border-top-style:dotted}
.table{overflow-x:auto;margin-top:20px}table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}
th,td{padding:7px 12px;text-align:right;border-bottom:1px solid var(--grid);vertical-align:top}
thead th{font-weight:500;color:var(--muted);font-size:12.5px;line-height:1.3;vertical-align:bottom;min-width:84px}
tr>:first-child{text-align:left;padding-left:0;min-width:150px;max-width:280px;position:sticky;left:0;background:var(--ground)}
tbody th{font-weight:600;overflow-wrap:anywhere}tbody th code{display:block;font-weight:400}td small{display:block;white-space:pre;color:var(--muted);font-size:11.5px}
.lines{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,380px),1fr));gap:4px 36px}
.columns{display:grid;grid-template-columns:repeat(var(--columns),minmax(0,330px));gap:10px 20px;align-items:end}
.lines figure{display:flex;flex-direction:column}.lines svg{margin-top:auto}figure{margin:0}.columns figure{max-width:340px}figcaption{font-size:13.5px;font-weight:600;margin:4px 0 2px;overflow-wrap:anywhere}
svg{display:block;width:100%;height:auto;font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","Liberation Sans",Arial,sans-serif}
.bars{display:flex;flex-wrap:wrap;gap:0 28px}.bars svg{width:260px}
@media(max-width:1100px){.columns{grid-template-columns:repeat(auto-fill,minmax(205px,1fr))}}
@media(max-width:600px){main,header,.legend div{padding-left:14px;padding-right:14px}.columns{grid-template-columns:1fr 1fr;gap:8px}.columns figure{max-width:none}.legend div{font-size:12px;gap:0 12px}h1{font-size:23px}tr>:first-child{min-width:110px;max-width:150px}}
.tip{position:fixed;z-index:2;display:none;pointer-events:none;max-width:60vw;padding:3px 8px;border-radius:5px;background:var(--text);color:var(--ground);font-size:12.5px;overflow-wrap:anywhere}
@page{size:A4 landscape;margin:12mm}
@media print{body{font-size:11pt}main,header{max-width:none;padding:0}.legend{position:static}.legend div{padding:6px 0}
.table{overflow:visible}table{font-size:7.5pt}th,td{padding:3px 4px}thead th{font-size:7pt;min-width:0}td small{font-size:6pt;white-space:normal}tr>:first-child{position:static;min-width:0}
h2,h3,h3+p,figcaption{break-after:avoid}figure,tr,.block{break-inside:avoid}.lines{grid-template-columns:repeat(3,1fr)}.columns{grid-template-columns:repeat(min(var(--columns),4),minmax(0,1fr))}}
"""

# What a colour of the figures is called in the page.
PALETTE = PAGE | {f"run-{i}": pair for i, pair in enumerate(zip(COLOURS, DARK_COLOURS))}

# Names the point of a line that is next to the pointer: its run and, from where it stands in the axes, its numbers.
SCRIPT = """
(() => {
const tip = document.body.appendChild(document.createElement("div"));
tip.className = "tip";
const names = [...document.querySelectorAll(".legend div > span")].map(s => s.textContent);
const shown = (axis, value, digits) =>
  Number((axis.percent ? 100 * value : value).toPrecision(digits)) + (axis.percent ? " %" : "");
for (const svg of document.querySelectorAll("svg[data-axes]")) {
  const {box, x, y} = JSON.parse(svg.dataset.axes);
  const at = (axis, share) => axis.log ? axis.from * (axis.to / axis.from) ** share : axis.from + share * (axis.to - axis.from);
  let points;
  const find = () => [...svg.querySelectorAll("g[data-run] > path")].flatMap(path =>
    [...path.getAttribute("d").matchAll(/[ML] (\\S+) (\\S+)/g)].map(m => [+m[1], +m[2], path.parentNode.dataset.run]));
  svg.addEventListener("pointermove", event => {
    points ??= find();
    const place = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / place.width;
    const px = (event.clientX - place.left) * scale, py = (event.clientY - place.top) * scale;
    const far = p => Math.hypot(p[0] - px, p[1] - py);
    const point = points.reduce((best, p) => best && far(best) <= far(p) ? best : p, null);
    if (!point || far(point) > 25) return tip.style.display = "none";
    const at_x = at(x, (point[0] - box[0]) / (box[2] - box[0])), at_y = at(y, (point[1] - box[1]) / (box[3] - box[1]));
    tip.textContent = `${names[point[2]]}: ${x.name} ${shown(x, at_x, 6)}, ${shown(y, at_y, 4)}`;
    tip.style.display = "block";
    const left = Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 4);
    tip.style.left = left + "px";
    tip.style.top = event.clientY + 14 + "px";
  });
  svg.addEventListener("pointerleave", () => tip.style.display = "none");
}
})();
"""


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
    return (f'<div class="block"><h3>{html.escape(columns.title)}</h3><p>{linked(columns.caption)}</p>'
            f'<div class="columns" style="--columns:{in_a_row}">{figures}</div>{bars}</div>')


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
            f"<title>gated.cu: {title}</title><style>{colours_css(PALETTE)}{CSS}</style></head><body>"
            f"<header><h1>{title}</h1>{introduction(runs)}{table(runs)}</header>"
            f'<nav class="legend" aria-label="runs"><div>{legend}</div></nav><main>{sections}</main><script>{SCRIPT}</script></body></html>\n')


