"""The tables of the papers, whose rows stand in paper_tables.json: each as flags of ./train, beside the paper's
figures. scripts/tables.py runs them. What is compared with what, and what the paper predicts of it, stands there before
a run: rows name the row that they are measured against (`to`), tables further pairs (`controls`).

A small model shows different things on different data. So a row is trained twice, and each column says which run it is
of:
  text   the loss: a text, byte by byte
  sinks  attention to the first token, activations, scores: the synthetic task of arXiv 2410.13835, without QK-norm, on
         which plain attention grows a sink and large activations within a minute
  long   what a model finds again in a long context: --data=recall, trained twice, as P1 trained its table 5: in a short
         context, then, from those weights, in a longer one with a larger base of RoPE. --evaluate stretches that by
         YaRN
"""
import json
import math
import os
import re
import statistics
from dataclasses import dataclass, field, replace

from common import ROOT, read

PAPERS = ("P1: [Gated Attention for Large Language Models](https://arxiv.org/abs/2505.06708). "
          "P2: [A Unified View of Attention and Residual Sinks](https://arxiv.org/abs/2601.22966). "
          "P3: a study of outlier dimensions in GPT-2, with LayerNorm and DyT; we know no address of it.")


@dataclass
class Column:
    heading: str
    run: str  # "text", "sinks" or "long"
    value: object  # of the last measured entry of a run's log
    compare: str  # with the row that a row is measured against: "difference", "ratio", or None
    digits: int = 3
    evaluate: str = ""  # flags of --evaluate; what it prints joins the entry under these flags


@dataclass
class Row:
    number: str
    name: str
    flags: str
    # column -> figure; None: the paper's run diverged; "lower", "higher": no figure is given
    paper: dict = field(default_factory=dict)
    to: str = None  # the row that this one is measured against
    lr: float = 1  # of the table's learning rate, as in the paper; a pair in the file: the one over the other
    at_loss_of: str = None  # read where the loss first comes down to what that row's is at its end; else at the end


# The papers' runs, for --scale=paper, by the presets of their models. P1's mixture of experts: 400B tokens, 1024
# sequences of 4096 a step, 1000 steps of warm-up, a cosine to 3e-5. P2: 120B tokens. P3: steps and batch. What a paper
# does not say is as in P1.
P1_RUN = "--steps=95367 --batch=1 --micro-batches=1024 --warmup=1000 --min-lr=3e-5"
P2_RUN = "--steps=28610 --batch=1 --micro-batches=1024 --warmup=1000 --min-lr=3e-5"
PAPER_RUNS = {"p1-15a2b": P1_RUN, "p1-1.7b-28l": P1_RUN, "p2-2b": P2_RUN, "p2-24b-a3b": P2_RUN,
              "gpt2-124m": "--steps=50000 --batch=4 --warmup=1000 --min-lr=3e-5"}


@dataclass
class Table:
    title: str
    source: str
    preset: str  # of the paper's model
    lr: float  # the paper's learning rate
    columns: dict
    rows: list
    base: str = "{dense}"  # flags of all rows: dense models, all of one size
    controls: list = field(default_factory=list)  # pairs of rows, compared beside those that rows name themselves
    ranks: str = ""  # the column by which the paper orders its rows
    match: str = ""  # at the paper's scale rows have as many parameters as with these flags changed: see --match-params
    notes: str = ""


def mean(values):
    return sum(v for v in values if v is not None) / sum(v is not None for v in values)


def found(times, yarn):
    """A column: right answers in % at so many times the context of the second training."""
    flags = "--probe=retrieval --context={long context} --batch=1 --val-batches=4" + (" --yarn=4" if yarn else "")

    def mean_over_depths(m):
        lines = m[flags].split("retrieval  ")[1].splitlines()[2:]
        return float(lines[times.bit_length() - 1].split()[-1])
    return Column(f"found at {times}x{', YaRN 4' if yarn else ''}", "long", mean_over_depths, "difference", 1, flags)


def lost(quantized):
    """A column: what rounding adds to the validation loss."""
    flags = quantized + " --val-batches={evaluated batches}"

    def difference(m):
        full, rounded = map(float, re.findall(r"validation loss ([0-9.]+)", m[flags]))
        return rounded - full
    return Column(f"lost with {quantized}", "text", difference, "difference", 4, flags)


def at_layer(measure, share, heading, digits):
    """A column of a measure by layer: at that share of the depth."""
    def value(m):
        layers = m.get(measure)
        return layers and layers[round(share * (len(layers) - 1))]
    return Column(heading, "sinks", value, None, digits)


def spikes(m, window=25, above=0.3):
    """How many steps stand so many nats above the median of the losses before them."""
    losses = m["losses"]
    return sum(loss > statistics.median(losses[step - window:step]) + above
               for step, loss in enumerate(losses) if step >= window)


def furthest(m):
    # (null: every token of that state has a massive activation, and those are left out)
    return max((sizes[0] / median for sizes, median in zip(m["outlier_sizes_by_state"], m["median_by_state"])
                if median is not None), default=None)


def highest(m):
    """The largest activation that was measured on the way, and at which share of the steps."""
    peak, step = max((entry["largest_activation"], entry["step"]) for entry in m["measured"])
    return peak, step / m["step"]


COLUMNS = {
    "loss": Column("validation loss", "text", lambda m: m["validation_loss"], "difference"),
    "peak": Column("largest abs(h)", "sinks", lambda m: m["largest_activation"], "ratio", 0),
    "first": Column("attention to the first token", "sinks", lambda m: m["first_token_attention"], "ratio"),
    "m_act": Column("mean over layers of the largest abs(h)", "sinks",
                    lambda m: mean(m["largest_activation_by_state"][1:]), "ratio", 0),
    "score": Column("mean gate score", "sinks", lambda m: m.get("gate_score_mean"), None),
    # Of no unit of the stream: as they are when all of it grows.
    "excess": Column("first-token attention above an even spread", "sinks",
                     lambda m: m["first_token_attention"] - m["first_token_attention_even"], "difference"),
    "head": Column("largest head's first-token attention", "sinks", lambda m: m["first_token_attention_largest"],
                   "ratio"),
    "relative": Column("peak / median abs(h)", "sinks", lambda m: m["peak_over_median"], "ratio", 1),
    "relative last": Column("peak / median dimension, last state", "sinks",
                            lambda m: m["largest_activation_by_state"][-1] / m["median_by_state"][-1], "ratio", 1),
    "top": Column("top dimension / median one", "sinks", lambda m: m["top_dimension_over_median"], "ratio", 1),
    "of tokens": Column("tokens whose largest it is", "sinks", lambda m: m["top_dimension_of_tokens"], "difference", 2),
    "of states": Column("states whose largest it is", "sinks", lambda m: m["top_dimension_of_states"], "difference", 2),
    "weight": Column("norms' weight there / mean weight", "sinks", lambda m: mean(m["norm_weight_at_top_by_layer"]),
                     "ratio", 2),
    "before": Column("mean abs(output of attention)", "sinks", lambda m: m["attention_output_mean"], "ratio"),
    "after": Column("behind G1", "sinks", lambda m: m.get("attention_output_gated_mean"), None),
    "small": Column("share below 0.01", "sinks", lambda m: m["attention_output_below_0.01"], None),
    "small after": Column("behind G1", "sinks", lambda m: m.get("attention_output_gated_below_0.01"), None),
    "highest": Column("largest abs(h) of all training", "sinks", lambda m: highest(m)[0], "ratio", 0),
    "highest at": Column("at this share of the steps", "sinks", lambda m: highest(m)[1], None, 2),
    "kept": Column("share left at the end", "sinks", lambda m: m["largest_activation"] / highest(m)[0], None, 2),
    "spikes": Column("steps 0.3 above the median of 25 before", "text", spikes, "difference", 1),
    "outlier": Column("largest dimension over the median one", "text", furthest, "ratio", 1),
    "fp8": lost("--quantize=fp8-w8a8"), "w4a4": lost("--quantize=nvfp4-w4a4"),
    "smooth": lost("--quantize=nvfp4-w4a4 --smoothquant=0.5"),
} | {f"{'yarn' if yarn else 'plain'}{times}": found(times, yarn) for yarn in (False, True) for times in (1, 2, 4)}
for depth, share in (("first", 0), ("middle", 0.5), ("last", 1)):
    COLUMNS |= {f"score {depth}": at_layer("gate_score_mean_by_layer", share, f"mean score, {depth} layer", 3),
                f"peak {depth}": at_layer("largest_activation_by_state", share, f"largest abs(h), {depth} state", 0),
                f"first {depth}": at_layer("first_token_attention_by_layer", share, f"first token, {depth} layer", 3)}


def figure_of(column, printed):
    """The papers give perplexities where we give the loss, ln of them."""
    return ("loss", math.log(printed)) if column == "perplexity" else (column, printed)


def row_of(number, name, flags, paper={}, to=None, lr=1, at_loss_of=None):
    lr = lr[0] / lr[1] if isinstance(lr, list) else lr
    return Row(number, name, flags, dict(figure_of(*item) for item in paper.items()), to, lr, at_loss_of)


def table_of(told, like):
    """A table as paper_tables.json tells it; what it does not say is as in another (`like`), but for some rows."""
    told = like | told
    run = told.pop("run", None)  # of all its columns
    told["columns"] = {name: replace(COLUMNS[name], run=run or COLUMNS[name].run) for name in told["columns"]}
    told["rows"] = [row_of(*row) for row in told["rows"] if row[0] not in told.get("without", ())]
    told["controls"] = [tuple(pair) for pair in told.get("controls", ())]
    told["notes"] = " ".join(told.get("notes", ()))
    return Table(**{key: value for key, value in told.items() if key not in ("like", "without")})


def all_of(file, make):
    """What a file of data tells, by name."""
    told = json.loads(read(os.path.join(ROOT, "scripts", file)))
    return {name: make(one, told.get(one.get("like"), {})) for name, one in told.items()}


TABLES = all_of("paper_tables.json", table_of)


class Stability:
    """The highest learning rate that still trains: the second claim of both papers."""
    title = "The highest learning rate that still trains"
    factors = (0.5, 1, 2, 4, 8, 16)  # of the scale's learning rate
    variants = {"plain": ("", factors), "sandwich norms": ("--norm-placement=sandwich", factors),
                "G1": ("--attn=g1", factors), "GatedNorm": ("--norm=gated", factors),
                "G1, GatedNorm": ("--attn=g1 --norm=gated", factors),
                "DyT": ("--norm=dyt --embedding-scale=on", (0.03125, 0.0625, 0.125, 0.25, 0.5, 1))}
    slacks = (0.05, 0.1)  # nats: a rate trains where the loss is within so much of the variant's best


class Times:
    """What gates cost of a step: P2 table 4, and P1's remark on G1."""
    title = "What gates cost of a training step (P2 table 4)"
    flags = "--layers=8 --head-dim=64 --context=256 --sample-tokens=0 --val-every=0"
    variants = {"GatedNorm": ("--norm=gated --norm-rank=16", "8.1 % at width 2048, 5.9 % at 4096, 3.6 % at 8192"),
                "G1": ("--attn=g1", "less than 2 % (P1, of a mixture of experts)")}
    widths = {"seconds": (64,), "minutes": (256, 512, 1024), "hours": (512, 1024, 2048)}
    rounds = {"seconds": 1, "minutes": 5, "hours": 5}
    steps = 4  # of which the first does not count


# ---- the models and runs that stand for the papers'

@dataclass
class Scale:
    """What the braces of rows stand for, and the runs: by their kind a learning rate and flags."""
    model: str
    kinds: dict
    words: dict
    rows: dict = field(default_factory=dict)  # table -> the numbers of its rows that are run; else all are
    # table -> row -> what its learning rate is of the kind's, where the start is not the paper's; else as in the paper
    rates: dict = field(default_factory=dict)
    also: str = ""  # flags of every run, which override all others


def scale_of(told, like):
    """A scale as paper_scales.json tells it; the kinds and words that it does not say are those of another (`like`)."""
    both = {part: like.get(part, {}) | told[part] for part in ("kinds", "words")}
    return Scale(told["model"], **both, rows=told.get("rows", {}), rates=told.get("rates", {}))


# seconds  Shows that every row runs. What the figures say is nothing.
# minutes  A run takes about ten seconds of a core.
# hours    One to three minutes of a core.
# gpu      GPT-2's size, dense, two to three minutes of an H200 a run if a step reaches a fifth of its peak. Nobody has
#          run it yet.
# paper    What the papers ran, for a cluster: commands alone.
#
# How they were chosen, before any table was run. `minutes`, by runs of plain attention, G1, GatedNorm, both, and G1
# with PreAffine alone: of the learning rates 3e-3 and 1e-2 and of 2 to 4 layers the ones with which plain attention
# grows a sink within 1000 steps. `hours` has twice the width, half the learning rate, and as many steps as a few hours
# of two cores allow for all tables. It was not searched for sinks: of three seeds of plain attention one grows a sink
# there.
SCALES = all_of("paper_scales.json", scale_of)
