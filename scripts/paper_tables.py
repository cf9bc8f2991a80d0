"""The tables of the papers: every row as flags of ./train, beside the paper's figures. scripts/tables.py runs them.
What is compared with what, and what the paper predicts of it, stands here before a run: rows name the row that they are
measured against (`to`), tables further pairs (`controls`).

A small model shows different things on different data. So a row is trained twice, and each column says which run it is
of:
  text   the loss: a text, byte by byte
  sinks  attention to the first token, activations, scores: the synthetic task of arXiv 2410.13835, without QK-norm, on
         which plain attention grows a sink and large activations within a minute
  long   what a model finds again in a long context: --data=recall, trained twice, as P1 trained its table 5: in a short
         context, then, from those weights, in a longer one with a larger base of RoPE. --evaluate stretches that by
         YaRN
"""
import math
import re
import statistics
from dataclasses import dataclass, field, replace


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
    lr: float = 1  # of the table's learning rate, as in the paper
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


LOSS = Column("validation loss", "text", lambda m: m["validation_loss"], "difference")
PEAK = Column("largest abs(h)", "sinks", lambda m: m["largest_activation"], "ratio", 0)
FIRST = Column("attention to the first token", "sinks", lambda m: m["first_token_attention"], "ratio")
M_ACT = Column("mean over layers of the largest abs(h)", "sinks",
               lambda m: mean(m["largest_activation_by_state"][1:]), "ratio", 0)
SCORE = Column("mean gate score", "sinks", lambda m: m.get("gate_score_mean"), None)
# Of no unit of the stream: as they are when all of it grows.
EXCESS = Column("first-token attention above an even spread", "sinks",
                lambda m: m["first_token_attention"] - m["first_token_attention_even"], "difference")
HEAD = Column("largest head's first-token attention", "sinks", lambda m: m["first_token_attention_largest"], "ratio")
RELATIVE_PEAK = Column("peak / median abs(h)", "sinks", lambda m: m["peak_over_median"], "ratio", 1)
TOP = Column("top dimension / median one", "sinks", lambda m: m["top_dimension_over_median"], "ratio", 1)
TOP_TOKENS = Column("tokens whose largest it is", "sinks", lambda m: m["top_dimension_of_tokens"], "difference", 2)
TOP_STATES = Column("states whose largest it is", "sinks", lambda m: m["top_dimension_of_states"], "difference", 2)
TOP_WEIGHT = Column("norms' weight there / mean weight", "sinks", lambda m: mean(m["norm_weight_at_top_by_layer"]),
                    "ratio", 2)


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


def found(times, yarn):
    """A column: right answers in % at so many times the context of the second training."""
    flags = "--probe=retrieval --context={long context} --batch=1 --val-batches=4" + (" --yarn=4" if yarn else "")

    def mean_over_depths(m):
        lines = m[flags].split("retrieval  ")[1].splitlines()[2:]
        return float(lines[times.bit_length() - 1].split()[-1])
    return Column(f"found at {times}x{', YaRN 4' if yarn else ''}", "long", mean_over_depths, "difference", 1, flags)


def perplexities(*figures):
    """The papers give perplexities where we give the loss: ln of them."""
    return [{"loss": math.log(f) if f else None} for f in figures]


def rows_of(figures, *rows):
    """A row is (number, name, flags, reference, learning rate); `figures` has what the paper says of each."""
    return [Row(number, name, flags, paper, *rest)
            for (number, name, flags, *rest), paper in zip(rows, figures, strict=True)]


def p1_1():
    figures = perplexities(6.026, 5.979, 5.953, 5.964, 5.761, 5.820, 6.016, 5.981, 6.017, 5.792, 5.808, 5.801, 5.867,
                           5.821, 5.822)
    rows = rows_of(
        figures,
        ("1", "baseline", ""),
        ("2", "twice the key/value heads", "{twice the kv heads}", "1"),
        ("3", "half more query heads", "{half more heads}", "1"),
        ("4", "more experts", "{more experts}", "1"),
        ("5", "G1 elementwise", "--attn=g1", "1"),
        ("6", "G2 elementwise", "--attn=g2", "1"),
        ("7", "G3 elementwise", "--attn=g3", "1"),
        ("8", "G4 elementwise", "--attn=g4", "1"),
        ("9", "G5", "--attn=g5", "1"),
        ("10", "G1 headwise", "--attn=g1 --gate=headwise", "1"),
        ("11", "G2 headwise", "--attn=g2 --gate=headwise", "1"),
        ("12", "G1 shared by heads", "--attn=g1 --gate=shared", "1"),
        ("13", "G2 shared by heads", "--attn=g2 --gate=shared", "1"),
        ("14", "G1 additive", "--attn=g1 --gate-op=add --gate-act=silu", "1"),
        ("15", "G1 with SiLU", "--attn=g1 --gate-act=silu", "1"))
    return Table("Where a gate stands and what it is", "P1 table 1", "p1-15a2b", 2e-3, {"loss": LOSS}, rows,
                 base="{experts}", ranks="loss",
                 controls=[("5", "3"), ("5", "4"), ("5", "9"), ("5", "12"), ("5", "14"), ("5", "15")],
                 notes="The paper's rows have the parameters that the change adds, and so have ours: row 3 has as many "
                 "as row 5.")


def p1_2():
    figures = perplexities(7.499, 7.404, 7.421, 7.288, 7.370, 9.195, 7.407, 7.325)
    deep = "{deeper} "
    rows = rows_of(
        figures,
        ("28L", "baseline", ""),
        ("28L G1", "G1", "--attn=g1", "28L"),
        ("48L", "deeper", deep),
        ("48L G1", "deeper, G1", deep + "--attn=g1", "48L"),
        ("48L headwise", "deeper, G1 headwise", deep + "--attn=g1 --gate=headwise", "48L"),
        ("48L 2x", "deeper, twice the learning rate", deep, None, 2),
        ("48L 2x sandwich", "the same with sandwich norms", deep + "--norm-placement=sandwich", "48L 2x", 2),
        ("48L 2x G1", "the same with G1", deep + "--attn=g1", "48L 2x", 2))
    rows += [Row("48L 4x", "deeper, four times the learning rate", deep, lr=4),
             Row("48L 4x sandwich", "the same with sandwich norms", deep + "--norm-placement=sandwich", {}, "48L 4x",
                 4),
             Row("48L 4x G1", "the same with G1", deep + "--attn=g1", {}, "48L 4x", 4)]
    return Table("Dense models, deeper and with higher learning rates", "P1 table 2", "p1-1.7b-28l", 4e-3,
                 {"loss": LOSS}, rows, match="--attn=full",
                 notes="The last two rows of the paper, 1T tokens at twice the rate, are left out: a small model has "
                 "no run that is so much longer than its others. The rows at four times the rate are ours: at twice "
                 "the rate a small model still trains well.")


def p1_3():
    figures = perplexities(6.026, 5.761, 5.847, 5.975, 5.882)
    rows = rows_of(
        figures,
        ("1", "baseline", ""),
        ("5", "G1 elementwise", "--attn=g1", "1"),
        ("norm", "a norm of each head's output", "--sdpa-out=groupnorm", "1"),
        ("SiLU", "SiLU of the output", "--sdpa-out=silu", "1"),
        ("identity", "G1 additive, without an activation", "--attn=g1 --gate-op=add --gate-act=identity", "1"))
    return Table("What else makes the output of attention non-linear", "P1 table 3", "p1-15a2b", 2e-3, {"loss": LOSS},
                 rows, base="{experts}")


def p1_4():
    figures = [{"m_act": 1053, "first": 0.467}] + [
        {"score": score, "m_act": act, "first": first} for score, act, first in
        [(0.116, 94, 0.048), (0.172, 98, 0.073), (0.271, 286, 0.301), (0.221, 125, 0.297), (0.335, 471, 0.364),
         (0.653, 892, 0.451)]]
    rows = rows_of(
        figures,
        ("1", "baseline", ""),
        ("2", "G1 elementwise", "--attn=g1", "1"),
        ("3", "G1 headwise", "--attn=g1 --gate=headwise", "1"),
        ("4", "G1 shared by heads", "--attn=g1 --gate=shared", "1"),
        ("5", "G2 elementwise", "--attn=g2", "1"),
        ("6", "G1 without the input", "--attn=g1 --gate=static", "1"),
        ("7", "G1, scores of 0.5 and more", "--attn=g1 --gate-act=ns-sigmoid", "1"))
    return Table("Scores, massive activations and attention sinks", "P1 table 4", "p1-15a2b", 2e-3,
                 {"score": SCORE, "m_act": M_ACT, "first": FIRST}, rows, base="{experts}",
                 notes="Not shown: what a gate costs of a step, which the paper gives as less than 2 %: p2-4 has it.")


def p1_4_one():
    """Table 4 where nothing hides a sink: one layer, one head."""
    whole = p1_4()
    rows = [row for row in whole.rows if row.number != "4"]
    return Table("Scores, activations and the sink of one layer with one head", "P1 table 4", whole.preset, whole.lr,
                 {"score": SCORE, "first": FIRST, "excess": EXCESS, "m_act": M_ACT, "relative": RELATIVE_PEAK,
                  "top": TOP},
                 rows, base="--layers=1 --heads=1 --kv-heads=1 --head-dim=64",
                 notes="With one head a gate that heads share is the elementwise one, so row 4 is left out.")


def p1_figures():
    """Figures 4 to 7 as figures. The models are those of table 4, whose runs are not made again."""
    whole = p1_4()
    rows = [replace(row, paper={}) for row in whole.rows if row.number in "12457"]
    rows[0].paper = {"before": 0.71}
    rows[1].paper = {"after": 0.05}
    columns = {
        "before": Column("mean abs(output of attention)", "sinks", lambda m: m["attention_output_mean"], "ratio"),
        "after": Column("behind G1", "sinks", lambda m: m.get("attention_output_gated_mean"), None),
        "small": Column("share below 0.01", "sinks", lambda m: m["attention_output_below_0.01"], None),
        "small after": Column("behind G1", "sinks", lambda m: m.get("attention_output_gated_below_0.01"), None)}
    for depth, share in (("first", 0), ("middle", 0.5), ("last", 1)):
        columns |= {
            f"score {depth}": at_layer("gate_score_mean_by_layer", share, f"mean score, {depth} layer", 3),
            f"peak {depth}": at_layer("largest_activation_by_state", share, f"largest abs(h), {depth} state", 0),
            f"first {depth}": at_layer("first_token_attention_by_layer", share, f"first token, {depth} layer", 3)}
    return Table("Outputs, scores, activations and sinks by layer", "P1 figures 4 to 7", whole.preset, whole.lr,
                 columns, rows, base=whole.base,
                 notes="P1 shows pictures. It gives 0.71 and 0.05 for the output in front of its gate and behind it. "
                 "Its figure 5 also has the output times the mean score, which is not measured here.")


def p1_spikes():
    deep = "{deeper} "
    fewer = {"spikes": "lower"}
    rows = [Row("48L 4x", "deeper, four times the learning rate", deep, lr=4),
            Row("clip 300", "branches clipped to 300", deep + "--clip-output=300", {}, "48L 4x", 4),
            Row("clip 100", "branches clipped to 100", deep + "--clip-output=100", {}, "48L 4x", 4),
            Row("48L 4x sandwich", "sandwich norms", deep + "--norm-placement=sandwich", {}, "48L 4x", 4),
            Row("48L 4x G1", "G1", deep + "--attn=g1", fewer, "48L 4x", 4)]
    return Table("Spikes of the loss at a high learning rate", "P1 figure 1 and A.5", "p1-1.7b-28l", 4e-3,
                 {"loss": LOSS, "spikes": Column("steps 0.3 above the median of 25 before", "text", spikes,
                                                 "difference", 1)},
                 rows, match="--attn=full",
                 notes="P1's picture shows spikes of the baseline and none with G1; that is the prediction. Its runs "
                 "with clipped branches (A.5) have no figure to compare with.")


def p1_5():
    figures = [{"yarn1": 37.94, "yarn2": 37.51, "yarn4": 31.65}, {"yarn1": 72.88, "yarn2": 66.60, "yarn4": 58.82}]
    columns = {f"{'yarn' if yarn else 'plain'}{times}": found(times, yarn)
               for yarn in (False, True) for times in (1, 2, 4)}
    first = Column("attention to the first token", "long", FIRST.value, "ratio")
    rows = rows_of(figures, ("1", "baseline", ""), ("2", "G1", "--attn=g1", "1"))
    return Table("What is found again in a context longer than those of training", "P1 table 5", "p1-1.7b-28l", 4e-3,
                 columns | {"first": first}, rows,
                 notes="Ours: % of the questions of --probe=retrieval answered right, mean over five depths, at 1, 2 "
                 "and 4 times the longer context of training. The paper's: RULER at 32k, 64k and 128k, trained with "
                 "32k, with YaRN. By chance ours would be 12.5. The paper's figures at 4k, 8k and 16k, inside the "
                 "trained context, have no counterpart: all is found there, or nothing.")


def p1_6():
    figures = perplexities(6.026, 5.847, 5.935, 5.820, 5.870, 5.808)
    rows = rows_of(
        figures,
        ("1", "baseline", ""),
        ("2", "k and v: 8 matrices, all taken", "--head-experts=8 --head-experts-per-token=8 --head-experts-of=kv",
         "1"),
        ("3", "k and v: 4, all taken", "--head-experts=4 --head-experts-per-token=4 --head-experts-of=kv", "1"),
        ("4", "v: 4, all taken", "--head-experts=4 --head-experts-per-token=4", "1"),
        ("5", "v: 8, 2 taken", "--head-experts=8 --head-experts-per-token=2", "1"),
        ("6", "v: 1, its score kept", "--head-experts=1", "1"))
    return Table("Matrices of heads mixed by a token's scores (SwitchHead)", "P1 table 6", "p1-15a2b", 2e-3,
                 {"loss": LOSS}, rows, base="{experts}")


def p2_1():
    dyt, clip = "--norm=dyt --embedding-scale=on", "--clip-residual="
    linear, hybrid = "--mixer=gated-delta {linear}", "--mixer=hybrid {linear}"
    g1, pre, gn, glu = "--attn=g1", "--norm=preaffine", "--norm=gated", "--ffn=glu"
    figures = [{"loss": loss, "peak": peak} for peak, loss in
               [(6000, 1.964), (2800, 1.957), (510, 1.933), (1800, 1.926), (1100, 1.921), (None, None), (73, 2.216),
                (32, 2.041), (53, 1.969), (None, None), (None, None), (1000, 1.970), (10, 1.960), (1000, 1.958),
                (1300, 1.975), (800, 1.955), (150, 1.952), (280, 1.948), (640, 1.954), (430, 1.951), (110, 1.929),
                (780, 1.918)]]
    rows = rows_of(
        figures,
        ("1", "attention", ""),
        ("2", "G1", g1, "1"),
        ("3", "linear attention", linear),
        ("4", "hybrid 3:1", hybrid, "3"),
        ("5", "hybrid, G1", f"{hybrid} {g1}", "4"),
        ("6", "DyT", dyt, "1", 1 / 4.3),
        ("7", "DyT, half that rate", dyt, "1", 0.5 / 4.3),
        ("8", "DyT, G1", f"{dyt} {g1}", "2", 2 / 4.3),
        ("9", "gated DyT, G1", f"--norm=gated-dyt --embedding-scale=on {g1}", "20", 2 / 4.3),
        ("10", "stream clipped to 10", clip + "10", "1"),
        ("11", "stream clipped to 100", clip + "100", "1"),
        ("12", "stream clipped to 1000", clip + "1000", "1"),
        ("13", "G1, clipped to 10", f"{g1} {clip}10", "2"),
        ("14", "G1, clipped to 1000", f"{g1} {clip}1000", "2"),
        ("15", "GLU", glu, "1"),
        ("16", "G1, GLU", f"{g1} {glu}", "2"),
        ("17", "G1, PreAffine, GLU", f"{g1} {pre} {glu}", "19"),
        ("18", "G1, GatedNorm, GLU", f"{g1} {gn} {glu}", "20"),
        ("19", "G1, PreAffine", f"{g1} {pre}", "2"),
        ("20", "G1, GatedNorm", f"{g1} {gn}", "2"),
        ("21", "linear attention, GatedNorm", f"{linear} {gn}", "3"),
        ("22", "hybrid, G1, GatedNorm", f"{hybrid} {g1} {gn}", "5"))
    rows.append(Row("20 open", "G1, GatedNorm whose gates start at 1",
                    f"{g1} {gn} --norm-gate-init=zero --norm-gate-scale=2", {}, "2"))
    return Table("Attention sinks, residual sinks and what removes them", "P2 table 1", "p2-2b", 4.3e-3,
                 {"loss": LOSS, "peak": PEAK, "relative": RELATIVE_PEAK, "top": TOP, "weight": TOP_WEIGHT}, rows,
                 match="--mixer=attention --attn=full --norm=rmsnorm --ffn=swiglu",
                 notes="The bounds of rows 10 to 14 are the paper's; where activations are smaller than in the paper, "
                 "the large bounds clip seldom or never. Of row 7 the paper gives a gap of +0.259 to row 1; its own "
                 "losses differ by 0.252 there, and by 0.259 from row 2. Rows 6 and 7 differ in their learning rate, "
                 "in the paper's ratio to the others. Row 20 open is ours: it begins as G1 does, where the gates of "
                 "row 20 begin near one half. The paper's smallest weights of norms (lambda) and of PreAffine are no "
                 "column: `./train` prints those furthest from 1 at every run's end.")


def p2_figures():
    """Figures 1, 2 and 7 as figures, of the models that the paper draws and of plain attention."""
    rows = [Row("1", "attention", "", {"peak": 6000}),
            Row("sink", "learned sink", "--attn-sink=learned",
                {"first": "lower", "excess": "lower", "head": "lower", "relative": "lower"}, "1"),
            Row("2", "G1", "--attn=g1",
                {"peak": 2800, "first": "lower", "excess": "lower", "head": "lower", "relative": "lower"}, "1"),
            Row("19", "G1, PreAffine", "--attn=g1 --norm=preaffine",
                {"peak": 640, "relative": "lower", "top": "lower"}, "2"),
            Row("20", "G1, GatedNorm", "--attn=g1 --norm=gated",
                {"peak": 430, "relative": "lower", "top": "lower", "weight": "higher"}, "2")]
    columns = {"peak": PEAK, "relative": RELATIVE_PEAK, "top": TOP, "of tokens": TOP_TOKENS, "of states": TOP_STATES,
               "weight": TOP_WEIGHT, "first": FIRST, "excess": EXCESS, "head": HEAD}
    return Table("Sinks of attention and of the stream, in figures of no unit", "P2 figures 1, 2 and 7", "p2-2b",
                 4.3e-3, columns, rows, match="--attn=full --norm=rmsnorm",
                 notes="P2 shows pictures: their direction is the prediction. Its smallest weight of a norm is 0.004 "
                 "without a gated norm and 0.73 with one. PreAffine's weight is that behind its norm.")


def p2_2():
    def lost(quantized):
        flags = quantized + " --val-batches={evaluated batches}"

        def difference(m):
            full, rounded = map(float, re.findall(r"validation loss ([0-9.]+)", m[flags]))
            return rounded - full
        return Column(f"lost with {quantized}", "text", difference, "difference", 4, flags)

    def points(full, w4a4, smooth):
        return {"w4a4": full - w4a4, "smooth": full - smooth}

    rows = [Row("plain", "attention", ""),
            Row("LayerNorm", "LayerNorm", "--norm=layernorm", {}, "plain"),
            Row("PreAffine", "PreAffine", "--norm=preaffine", {}, "plain"),
            Row("GatedNorm", "GatedNorm", "--norm=gated", {}, "plain"),
            Row("DyT", "DyT", "--norm=dyt --embedding-scale=on", {}, "plain", 1 / 4.3),
            Row("gated DyT", "gated DyT", "--norm=gated-dyt --embedding-scale=on", {}, "plain", 1 / 4.3),
            *[Row(f"G{i}", f"G{i}", f"--attn=g{i}", {}, "plain") for i in range(2, 6)],
            Row("GA", "G1", "--attn=g1", points(52.71, 50.89, 51.23), "plain"),
            Row("GA PreAffine", "G1, PreAffine", "--attn=g1 --norm=preaffine", points(52.99, 49.84, 50.23), "GA"),
            Row("GA GatedNorm", "G1, GatedNorm", "--attn=g1 --norm=gated", points(54.79, 53.43, 53.56), "GA")]
    return Table("What weights and activations of 8 and of 4 bits cost", "P2 table 2", "p2-24b-a3b", 4.3e-3,
                 {"loss": LOSS, "fp8": lost("--quantize=fp8-w8a8"), "w4a4": lost("--quantize=nvfp4-w4a4"),
                  "smooth": lost("--quantize=nvfp4-w4a4 --smoothquant=0.5")},
                 rows, base="{experts}",
                 notes="Ours are nats of validation loss, the paper's are points lost in the mean of its benchmarks "
                 "(24B-A3B; in bf16 those are 52.71, 52.99 and 54.79): of their gaps the signs compare, the sizes do "
                 "not. Its model is a hybrid, ours has softmax attention in every layer. Not shown: its 7B-A2B, for "
                 "which it gives bf16 alone. DyT has its own learning rate, as in P2 table 1.")


def p3_5():
    def furthest(m):
        # (null: every token of that state has a massive activation, and those are left out)
        return max((sizes[0] / median for sizes, median in zip(m["outlier_sizes_by_state"], m["median_by_state"])
                    if median is not None), default=None)

    often, dyt = "--measure-every={measured every} --val-batches=16 ", "--norm=dyt --embedding-scale=on"
    rows = [Row("LayerNorm", "LayerNorm", often + "--norm=layernorm"),
            Row("LayerNorm early", "LayerNorm, where its loss is DyT's", often + "--norm=layernorm", at_loss_of="DyT"),
            Row("DyT", "DyT", often + dyt, {"outlier": "lower"}, "LayerNorm early", 1 / 4.3),
            Row("GatedNorm early", "GatedNorm, where its loss is DyT's", often + "--norm=gated", {}, "LayerNorm early",
                at_loss_of="DyT"),
            Row("GatedNorm", "GatedNorm", often + "--norm=gated", {}, "LayerNorm")]
    return Table("Outlier dimensions with LayerNorm and without", "P3 figure 5", "gpt2-124m", 6e-4,
                 {"loss": LOSS,
                  "outlier": Column("largest dimension over the median one", "text", furthest, "ratio", 1)},
                 rows, base="{dense} {gpt2}",
                 notes="A GPT-2: LayerNorm, learned positions, GELU, biases, and a learned key and value that keep "
                 "massive activations away. Mean abs(h) of a dimension, over that of the median one; the state where "
                 "that is most. The paper compares at equal training loss, and DyT learns less here: so LayerNorm is "
                 "read where its validation loss first comes down to DyT's last. DyT has its own learning rate, as in "
                 "P2 table 1.")


def bf16():
    rows = [Row("fp32", "attention, fp32", ""),
            Row("bf16", "attention, bf16", "--precision=bf16", {}, "fp32"),
            Row("gated fp32", "G1, GatedNorm, fp32", "--attn=g1 --norm=gated"),
            Row("gated bf16", "G1, GatedNorm, bf16", "--attn=g1 --norm=gated --precision=bf16", {}, "gated fp32")]
    return Table("What bf16 costs", "the models of P2", "p2-2b", 4.3e-3, {"loss": LOSS, "peak": PEAK}, rows,
                 notes="The paper trains in bf16 alone: there is no figure of its own to compare with.")


TABLES = {"p1-1": p1_1(), "p1-2": p1_2(), "p1-3": p1_3(), "p1-4": p1_4(), "p1-4-one": p1_4_one(),
          "p1-5": p1_5(), "p1-6": p1_6(), "p1-figures": p1_figures(), "p1-spikes": p1_spikes(), "p2-1": p2_1(),
          "p2-figures": p2_figures(), "p2-2": p2_2(), "p3-5": p3_5(), "bf16": bf16()}


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
    also: str = ""  # flags of every run, which override all others


GPT2 = "--ffn=gelu --ffn-bias=on --attn-bias=all --position=learned --qk-norm=off --attn-sink=kv-bias"
SMALL = {"gpt2": GPT2 + " --kv-heads=4", "dense": "--params=200K",
         "experts": "--experts=8 --expert-hidden=64", "more experts": "--experts=9", "deeper": "--layers=7",
         "twice the kv heads": "--kv-heads=4", "half more heads": "--heads=6",
         "linear": "--linear-key-heads=2 --linear-value-heads=4 --linear-key-dim=16 --linear-value-dim=16",
         "evaluated batches": 64, "measured every": 25}
SMALL_MODEL = "--hidden=64 --layers=4 --heads=4 --kv-heads=2 --head-dim=16 --context=64"

LONG = {"before long": (3e-3, "--data=recall --layers=2 --steps=1500"),
        "long": (1e-3, "--data=recall --layers=2 --context={longer} --rope-theta=100000 --steps=500 --warmup=100")}

# How they were chosen, before any table was run. `minutes`, by runs of plain attention, G1, GatedNorm, both, and G1
# with PreAffine alone: of the learning rates 3e-3 and 1e-2 and of 2 to 4 layers the ones with which plain attention
# grows a sink within 1000 steps. `hours` has twice the width, half the learning rate, and as many steps as a few hours
# of two cores allow for all tables. It was not searched for sinks: of three seeds of plain attention one grows a sink
# there.
SCALES = {
    # Shows that every row runs. What the figures say is nothing.
    "seconds": Scale(
        SMALL_MODEL + " --batch=2",
        {"text": (1e-2, "--steps=3 --val-batches=1"), "sinks": (1e-2, "--steps=3 --val-batches=1 --qk-norm=off"),
         "before long": (1e-2, "--data=recall --context=8 --steps=3 --val-batches=1"),
         "long": (1e-2, "--data=recall --context={longer} --rope-theta=100000 --steps=3 --val-batches=1")},
        SMALL | {"longer": 16, "long context": 64, "evaluated batches": 1, "measured every": 1}),
    # A run takes about ten seconds of a core.
    "minutes": Scale(
        SMALL_MODEL + " --batch=16",
        {"text": (1e-2, "--steps=800 --val-batches=64"), "sinks": (1e-2, "--steps=800 --qk-norm=off")} | LONG,
        SMALL | {"longer": 128, "long context": 512}),
    # A run takes one to three minutes of a core.
    "hours": Scale(
        "--hidden=128 --layers=4 --heads=4 --kv-heads=2 --head-dim=32 --context=128 --batch=8",
        {"text": (5e-3, "--steps=1500 --val-batches=64"), "sinks": (5e-3, "--steps=2500 --qk-norm=off")} | LONG,
        {"gpt2": GPT2 + " --kv-heads=4", "dense": "--params=800K",
         "experts": "--experts=8 --expert-hidden=128", "more experts": "--experts=9", "deeper": "--layers=7",
         "twice the kv heads": "--kv-heads=4", "half more heads": "--heads=6", "linear": "", "longer": 256,
         "long context": 1024, "evaluated batches": 64, "measured every": 50}),
    # GPT-2's size, dense, two to three minutes of an H200 a run if a step reaches a fifth of its peak. No GPU has run
    # it yet.
    "gpu": Scale(
        "--hidden=768 --layers=12 --heads=12 --kv-heads=4 --head-dim=64 --context=1024 --batch=32 --precision=bf16 "
        "--warmup=200",
        {"text": (6e-4, "--steps=1200 --val-batches=16"),
         "sinks": (6e-4, "--steps=1200 --val-batches=16 --qk-norm=off")},
        {"dense": "--params=124M", "experts": "--params=124M", "half more heads": "--heads=18 --kv-heads=6",
         "linear": ""},
        {"p1-1": ("1", "3", "5", "9", "15"), "p1-4": ("1", "2", "5", "7"), "p2-1": ("1", "2", "19", "20")}),
    # What the papers ran, for a cluster: commands alone.
    "paper": Scale(
        "",
        {"before long": (None, "--context=4096 --rope-theta=10000"),
         "long": (None, "--context=32768 --rope-theta=1e6")},
        {"gpt2": "--attn-sink=kv-bias", "dense": "", "experts": "", "more experts": "--experts=132",
         "deeper": "--preset=p1-1.7b-48l", "twice the kv heads": "--kv-heads=8", "half more heads": "--heads=48",
         "linear": "--linear-key-heads=8 --linear-value-heads=16 --linear-key-dim=128 --linear-value-dim=128",
         "long context": 131072, "measured every": 500, "evaluated batches": 64}),
}
