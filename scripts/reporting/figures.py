"""How the figures of a report are drawn: what stands in one axes. Which there are: catalogue.py."""
import numpy
from matplotlib import cm, colormaps, colors
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from plots import COLOURS, DASHES, PAGE, look

# What a page that is dark draws in other colours has these, and nothing else does (page.py).
MUTED, TEXT, AXIS, GRID, GROUND = (PAGE[name][0] for name in ("muted", "text", "axis", "grid", "ground"))
HEAT = colormaps["magma_r"].resampled(64)  # with more colours the pictures take more bytes, and look the same
MAP_SIDE = 128  # tokens and dimensions of a heat map: more would be lost in a column of the page

STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "gated.cu", "font.family": "sans-serif", "font.size": 7,
    "axes.labelpad": 2.5, "xtick.major.size": 2.5, "ytick.major.size": 2.5, "xtick.major.pad": 2.5,
    "ytick.major.pad": 2.5,
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": AXIS, "axes.linewidth": 0.7,
    "axes.labelcolor": MUTED, "axes.axisbelow": True, "axes.grid": True, "grid.color": GRID, "grid.linewidth": 0.7,
    "xtick.color": AXIS, "ytick.color": AXIS, "xtick.labelcolor": MUTED, "ytick.labelcolor": MUTED,
    "xtick.major.width": 0.7, "ytick.major.width": 0.7, "xtick.minor.size": 0, "ytick.minor.size": 0,
    "lines.linewidth": 1.3, "lines.markersize": 3.2, "lines.solid_capstyle": "round", "text.color": TEXT,
    "figure.facecolor": "none", "axes.facecolor": "none", "legend.frameon": False,
}


def look_of(index):
    """The line of a run, which knows in the page whose it is."""
    return look(index) | {"gid": f"run {index}"}


def key_html(index):
    """The same line in front of the run's name."""
    line = look(index)
    return (f'<span class="key d{DASHES.index(line["linestyle"])}" '
            f'style="border-color:var(--run-{COLOURS.index(line["color"])})"></span>')


# ---- axes

def label(axes, x, y, by_factors="", in_percent="", whole=""):
    """The names of both axes; and which of them ("x" or "y") is scaled by factors, in per cent or in whole numbers."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if by_factors:
        scale_by_factors(axes, by_factors)
    if in_percent:
        axis = getattr(axes, f"{in_percent}axis")
        axis.in_percent = True
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))
    if whole:
        getattr(axes, f"{whole}axis").set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))


def show_plain(axis):
    """Numbers as they are, without powers of ten."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def name_some(axis, names, most):
    """Of what stands in a row from 0 on."""
    shown = range(0, len(names), -(-len(names) // most))
    axis.set_ticks(shown, [names[i] for i in shown])


def highest(key, times=1.0):
    """(runs) -> their largest value in an array, times so much: where an axis ends."""
    return lambda runs: times * max(1e-3, *(run.arrays[key].max() for run in runs))


def scale_by_factors(axes, axis="y", base=10):
    if not any((numpy.asarray(getattr(line, f"get_{axis}data")()) > 0).any() for line in axes.lines):
        return
    getattr(axes, f"set_{axis}scale")("log", base=base)
    ticks = getattr(axes, f"{axis}axis")
    low, high = sorted(ticks.get_view_interval())
    if base == 10 and low > 0 and high / low < 1000:  # few powers of ten, or none, lie within
        ticks.set_major_locator(MaxNLocator(5) if high / low < 10
                                else LogLocator(subs=(1, 2, 5) if high / low < 100 else (1, 3)))
    show_plain(ticks)


def thinned(x, y, most=250):
    """At most so many points: each the mean of as many neighbours as the others, but for the last."""
    starts = numpy.arange(0, len(x), -(-len(x) // most))
    return tuple(group_means(values, starts) for values in (x, y))


def group_means(values, starts):
    return (numpy.add.reduceat(values, starts).T / numpy.diff(numpy.append(starts, len(values)))).T


# ---- lines: (axes, [(run, its look)])

def draw_loss(axes, runs):
    lowest, highest = [], []
    for run, line in runs:
        steps, losses = thinned(*run.series("loss"))
        axes.plot(steps, losses, **line | {"linewidth": 0.8}, alpha=0.5)
        if "validation_loss" in run.logged:
            axes.plot(*run.series("validation_loss"), **line, marker="o")
        finite = losses[numpy.isfinite(losses)]
        if len(finite):
            lowest.append(finite.min())
            highest.append(numpy.quantile(finite, 0.9))
    for entropy in {float(run.last("bigram_entropy")) for run, _ in runs if "bigram_entropy" in run.logged}:
        axes.axhline(entropy, color=MUTED, linewidth=0.8, linestyle=(0, (2, 2)))
    if lowest:  # the fall of the first steps would press the rest into a line
        low, high = min(lowest), max(highest)
        least = 1e-3 * max(1, abs(low))
        axes.set_ylim(low - 0.1 * (high - low) - least, low + 1.6 * (high - low) + least)
    label(axes, "step", "loss, nats a token")


def over_training(key, y, **how):
    def draw(axes, runs):
        for run, line in runs:
            plot_over_steps(axes, *thinned(*run.series(key)), line)
        label(axes, "step", y, **how)
    return draw


def plot_over_steps(axes, steps, values, line):
    axes.plot(steps, values, **line, marker="o" if len(steps) <= 40 else None)


def draw_outliers_over_training(axes, runs):
    for run, line in runs:
        steps, sizes = run.series("outlier_sizes_by_state")
        # (NaN: every token of a state has a massive activation, and those are left out)
        ratios = sizes[:, :, 0] / run.series("median_by_state")[1]
        plot_over_steps(axes, steps, numpy.fmax.reduce(ratios, axis=1), line)
    axes.axhline(10, color=MUTED, linewidth=0.8, linestyle=(0, (2, 2)))
    label(axes, "step", "largest dimension / median", by_factors="y")


STATES = "blocks passed (0: embedding)"


def by_state(key, y):
    def draw(axes, runs):
        for run, line in runs:
            axes.plot(run.series(key)[1][-1], **line, marker="o")
        label(axes, STATES, y, by_factors="y", whole="x")
    return draw


def by_layer(layers, values, y, **how):
    """layers: the key of the layers' numbers in a run's metadata; values: (run) -> one for each of them."""
    def draw(axes, runs):
        for run, line in runs:
            axes.plot(run.metadata[layers], values(run), **line, marker="o")
        axes.set_ylim(0, 1.08 * max(1e-3, *(values(run).max() for run, _ in runs), 0))
        label(axes, "layer", y, whole="x", **how)
    return draw


def first_value(run):
    lengths = run.arrays["value_norm"]
    return lengths[:, 0] / numpy.maximum(lengths[:, 1:].mean(axis=1), 1e-30)


def draw_output(axes, runs):
    for run, line in runs:
        before, behind = run.arrays["attention_output_mean"].T
        layers = run.metadata["attention_layers"]
        axes.plot(layers, before, **line, marker="o")
        axes.plot(layers, behind, **line, marker="o", markerfacecolor=GROUND, alpha=0.8)
    label(axes, "layer", "mean |o|", by_factors="y", whole="x")


def draw_below(axes, runs):
    for run, line in runs:
        before, behind, scaled = run.arrays["attention_output_below"].mean(axis=0)
        axes.plot(run.metadata["thresholds"], before, **line | {"linewidth": 0.8}, alpha=0.6)
        axes.plot(run.metadata["thresholds"], behind, **line, marker="o")
        axes.plot(run.metadata["thresholds"], scaled, **line | {"linestyle": (0, (1, 1.5))})
    label(axes, "threshold", "share of |o| below, %", by_factors="x", in_percent="y")


def draw_gradient_by_layer(axes, runs):
    for run, line in runs:
        norms = run.series("gradient_norm_by_layer")[1]
        axes.plot(norms[0], **line | {"linewidth": 0.8}, alpha=0.5)
        axes.plot(norms[-1], **line, marker="o")
    label(axes, "layer", "norm of its gradient", by_factors="y", whole="x")


def draw_loss_by_position(axes, runs):
    for run, line in runs:
        losses = run.arrays["loss_by_position"]
        starts = [0]
        while starts[-1] + max(1, starts[-1] // 5) < len(losses):  # groups that grow: a single late position is noise
            starts.append(starts[-1] + max(1, starts[-1] // 5))
        axes.plot(numpy.array(starts) + 1, group_means(losses, starts), **line)
    scale_by_factors(axes, "x", base=2)
    label(axes, "tokens seen", "loss, nats")


# ---- heat maps: (axes, run, its look, the scale that all runs share)

def heat(axes, values, cmap, norm):
    axes.imshow(values, cmap=cmap, norm=norm, aspect="auto", interpolation="none")
    axes.spines[:].set_visible(True)  # on a dark page the largest values are as dark as what stands around them
    axes.grid(False)


def mean_map(run):
    return run.arrays["attention_map"].mean(axis=0)[:MAP_SIDE, :MAP_SIDE]


def attention_scale(runs):
    """To the largest of the last three quarters of the queries, but for one in a thousand."""
    largest = max(numpy.quantile(m[len(m) // 4:], 0.999) for m in map(mean_map, runs))
    return colors.PowerNorm(0.5, 0, max(largest, 1e-3))


def draw_attention_map(axes, run, line, scale):
    values = mean_map(run)
    heat(axes, numpy.where(numpy.tri(len(values)) > 0, values, numpy.nan), HEAT, scale)
    label(axes, "key token", "query token")


def stream(run):
    """Mean |h| over the states by token, the dimensions with the largest H_avg first: its mean over all tokens and
    states."""
    values = run.arrays["activation_by_token"].mean(axis=0)
    order = numpy.argsort(-run.arrays["activation_mean"].mean(axis=0), kind="stable")
    return values[:MAP_SIDE, order[:MAP_SIDE]]


def stream_scale(runs):
    values = [stream(run) for run in runs]
    low = max(min(numpy.quantile(v, 0.02) for v in values), 1e-6)
    return colors.LogNorm(low, max(2 * low, *(v.max() for v in values)))


def draw_stream(axes, run, line, scale):
    heat(axes, numpy.maximum(stream(run), scale.vmin), HEAT, scale)
    label(axes, "dimension, largest mean first", "token")


def heads_scale(runs):
    return colors.Normalize(0, highest("first_token_attention")(runs))


def draw_heads(axes, run, line, scale):
    values = run.arrays["first_token_attention"]
    heat(axes, values, HEAT, scale)
    name_some(axes.yaxis, run.metadata["attention_layers"], 8)
    if len(values) <= 6 and values.size <= 48:
        for (layer, head), value in numpy.ndenumerate(values):
            axes.text(head, layer, f"{100 * value:.0f}", ha="center", va="center", fontsize=6,
                      color="white" if scale(value) > 0.5 else "black")
    label(axes, "head", "layer", whole="x")


def weight_scale(key):
    """As far below 1 as above."""
    def scale(runs):
        sizes = numpy.concatenate([numpy.abs(run.arrays[key]).ravel() for run in runs])
        furthest = numpy.quantile(numpy.abs(numpy.log(numpy.maximum(sizes, 1e-3))), 0.9995)
        return colors.LogNorm(numpy.exp(-max(furthest, 0.2)), numpy.exp(max(furthest, 0.2)))
    return scale


def draw_weights(key):
    def draw(axes, run, line, scale):
        heat(axes, numpy.clip(numpy.abs(run.arrays[key]), scale.vmin, scale.vmax), "PuOr_r", scale)
        names = [n.removeprefix("layers.").replace("_norm", "").replace(".attention", " attn").replace(".", " ")
                 for n in run.metadata["norms"]]
        name_some(axes.yaxis, names, 14)
        label(axes, "dimension", "", whole="x")
    return draw


# ---- curves of one run: likewise

def draw_histogram(key):
    def draw(axes, run, line, scale):
        shares = run.arrays[key]
        edges = numpy.linspace(*(run.metadata["gate_range"] or (0, 1)), shares.shape[1] + 1)
        axes.stairs(shares.mean(axis=0), edges, fill=True, color=line["color"], alpha=0.35)
        for share in shares:
            axes.stairs(share, edges, color=line["color"], linewidth=0.5, alpha=0.7)
        axes.set_ylim(0, scale)
        axes.set_xlim(edges[0], edges[-1])
        label(axes, "score", "share of scores, %", in_percent="y")
    return draw


def name(axes, text, point, above):
    axes.annotate(text, point, (0, above), textcoords="offset points", ha="center", fontsize=6)


def outliers_scale(runs):
    sizes = numpy.concatenate([last_outliers(run)[1].ravel() for run in runs])
    medians = numpy.concatenate([last_outliers(run)[2] for run in runs])
    low, high = max(1e-6, numpy.fmin.reduce(medians)), max(1e-5, numpy.fmax.reduce(sizes))
    return 0.7 * low, 1.8 * high  # (of a run that diverged all may be NaN, which is not the larger of two)


def last_outliers(run):
    return [run.series(key)[1][-1] for key in ("outliers_by_state", "outlier_sizes_by_state", "median_by_state")]


def draw_outliers(axes, run, line, scale):
    dimensions, sizes, medians = last_outliers(run)
    states = numpy.arange(len(medians))
    axes.plot(states, medians, color=MUTED, linewidth=1, linestyle="--")
    for rank in range(sizes.shape[1]):
        axes.plot(states, sizes[:, rank], color=line["color"], marker="o", alpha=1 - 0.25 * rank, linewidth=1)
    if len(states) <= 9:
        for state in states:
            name(axes, f"{dimensions[state, 0]:.0f}", (state, sizes[state, 0]), 4)
    axes.set_yscale("log")
    axes.set_ylim(*scale)
    show_plain(axes.yaxis)
    label(axes, STATES, "mean |h|", whole="x")


def draw_final(axes, run, line, scale):
    sizes = run.arrays["final_output"]
    axes.vlines(numpy.arange(len(sizes)), 0, sizes, color=line["color"], linewidth=max(0.3, min(1.2, 160 / len(sizes))))
    for dimension in numpy.argsort(-sizes, kind="stable")[:3]:
        name(axes, str(dimension), (dimension, sizes[dimension]), 1)
    axes.set_ylim(0, scale)
    label(axes, "dimension", "mean |output|")


def final_over_training(run):
    """The steps of the columns, the first dimension of each row, and what stands there. Where there are more than fit,
    a column is the mean of neighbouring steps, and a row the largest of neighbouring dimensions: an outlier stays what
    it is."""
    steps, sizes = thinned(*run.series("final_output_by_dimension"), MAP_SIDE)
    first = numpy.arange(0, sizes.shape[1], -(-sizes.shape[1] // MAP_SIDE))
    return steps, first, numpy.maximum.reduceat(sizes, first, axis=1).T


def final_over_training_scale(runs):
    values = [final_over_training(run)[2] for run in runs]
    finite = [v[numpy.isfinite(v)] for v in values if numpy.isfinite(v).any()]
    low = max(1e-6, min((numpy.quantile(v, 0.02) for v in finite), default=0))
    return colors.LogNorm(low, max([2 * low, *(v.max() for v in finite)]))


def draw_final_over_training(axes, run, line, scale):
    steps, first, values = final_over_training(run)
    heat(axes, numpy.maximum(values, scale.vmin), HEAT, scale)
    for axis, numbers in ((axes.xaxis, steps), (axes.yaxis, first)):
        name_some(axis, [f"{number:.0f}" for number in numbers], 4)
    label(axes, "step", "dimension")


def sharpness_scale(runs):
    return 1.05 * max(1e-3, *(numpy.nanmax(run.series(f"sharpness_3.{part}")[1]) for run in runs
                              for part in ("attention", "ffn", "attention_norm", "ffn_norm")
                              if f"sharpness_3.{part}" in run.logged))


def draw_sharpness(part, name):
    def draw(axes, run, line, scale):
        steps, values = run.series(f"sharpness_3.{part}")
        for layer, curve in enumerate(values.T):
            axes.plot(steps, curve, color=cm.viridis(0.9 * layer / max(values.shape[1] - 1, 1)), linewidth=1)
        axes.set_ylim(0, scale)
        label(axes, "step", name)
    return draw
