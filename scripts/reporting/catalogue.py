"""Which figures a report has, what a run must have for each, and what there is to see in it."""
from dataclasses import dataclass, field
from typing import Callable

from reporting import figures as f


@dataclass
class Lines:
    """One axes, into which every run draws. Suits: whether a run has something to draw."""
    name: str
    title: str
    caption: str
    suits: Callable
    draw: Callable


@dataclass
class Part:
    """Axes of a single run. The scale is made of all runs. Height is over the width; bar says what colours mean."""
    suits: Callable
    draw: Callable
    scale: Callable
    height: float = 1.0
    bar: str = ""


@dataclass
class Columns:
    """A column for each run, of parts that stand one below the other."""
    name: str
    title: str
    caption: str
    parts: list


@dataclass
class Section:
    title: str
    figures: list = field(default_factory=list)


def logged(*keys):
    return lambda run: all(key in run.logged for key in keys)


def array(*keys):
    return lambda run: all(key in run.arrays for key in keys)


def with_others(run):
    """Whether there are tokens after the first."""
    return "value_norm" in run.arrays and run.arrays["value_norm"].shape[1] > 1


SECTIONS = [
    Section("Over training", [
        Lines("loss", "Loss",
              "Thin: training loss, a mean of neighbouring steps. Dots: validation loss. Dotted: what bigrams alone "
              "can reach, where a run says it. At a high learning rate the baseline of 2505.06708 spikes and the model "
              "with a gate does not (figure 1).",
              logged("loss"), f.draw_loss),
        Lines("peak", "Largest activation",
              "The largest |h| of the residual stream. In 2601.22966 it rises early, falls with the learning rate, and "
              "stays small with GatedNorm (figures 3 and 4).",
              logged("largest_activation"), f.over_training("largest_activation", "largest |h|", by_factors="y")),
        Lines("relative-peak", "Largest activation over the median",
              "The largest |h| over the median |h| of its state, in the state where that is most: it stays as it is "
              "when the whole stream grows.",
              logged("peak_over_median"),
              f.over_training("peak_over_median", "largest over median |h|", by_factors="y")),
        Lines("first-token", "Attention to the first token",
              "The mean over layers, heads and queries. Where an attention sink forms, it "
              "rises.", logged("first_token_attention"),
              f.over_training("first_token_attention", "attention, %", in_percent="y")),
        Lines("outliers", "Largest dimension",
              "The largest mean |h| of a dimension over the median of all dimensions, in the state where that is most. "
              "An outlier dimension stands above the dotted line at 10.",
              logged("outlier_sizes_by_state", "median_by_state"), f.draw_outliers_over_training),
        Lines("gradient", "Gradient norm",
              "The norm of the whole gradient before it is clipped, a mean of neighbouring steps.",
              logged("gradient_norm"), f.over_training("gradient_norm", "norm", by_factors="y")),
    ]),
    Section("Attention sinks and massive activations", [
        Columns("sinks", "Attention and residual stream at one glance",
                "Above: attention, mean over layers and heads; an attention sink is a dark first column. Below: |h|, "
                "mean over the layers, of the same tokens; a massive activation is a dark spot, a residual sink a dark "
                "column at the left. As in 2601.22966, figures 1 and 2.", [
                    Part(array("attention_map"), f.draw_attention_map, f.attention_scale, bar="attention"),
                    Part(array("activation_by_token", "activation_mean"), f.draw_stream, f.stream_scale, bar="|h|"),
                ]),
        Lines("peak-by-layer", "Largest activation by layer",
              "The largest |h| after each block. In the baseline of 2505.06708 it jumps in one layer, where an FFN "
              "writes it, and the gate G1 prevents that (figure 6).",
              logged("largest_activation_by_state"), f.by_state("largest_activation_by_state", "largest |h|")),
        Lines("first-token-by-layer", "Attention to the first token by layer",
              "The mean over heads and queries. The sinks follow the massive activation (2505.06708, figure "
              "6).", array("first_token_attention"),
              f.by_layer("attention_layers", lambda run: run.arrays["first_token_attention"].mean(axis=1),
                         "attention, %", in_percent="y")),
        Lines("sink-by-layer", "Attention to the learned sink by layer",
              "What part of the attention goes to the learned sink instead of to a token.", array("sink_attention"),
              f.by_layer("attention_layers", lambda run: run.arrays["sink_attention"].mean(axis=1), "attention, %",
                         in_percent="y")),
        Lines("value-by-layer", "Value at the first token by layer",
              "The length of v at the first token over its mean length at the others. A sink's value is small: little "
              "comes of the attention that it gets (2601.22966, table 3).",
              with_others, f.by_layer("attention_layers", f.first_value, "|v| over that of others")),
        Columns("heads", "Attention to the first token by head",
                "In per cent, the mean over queries. A few heads do most of it.", [
            Part(array("first_token_attention"), f.draw_heads, f.heads_scale, height=0.55)]),
    ]),
    Section("Gates", [
        Columns("gate-scores", "Scores of the attention gate",
                "Filled: all layers; lines: each layer. The scores of G1 crowd near 0, those of G2 less (2505.06708, "
                "figure 3).", [
                    Part(array("gate_histogram"), f.draw_histogram("gate_histogram"),
                         f.highest("gate_histogram", 1.05), 0.6)]),
        Columns("norm-gate-scores", "Scores of the gates of norms", "Filled: all norms; lines: each norm.", [
            Part(array("norm_gate_histogram"), f.draw_histogram("norm_gate_histogram"),
                 f.highest("norm_gate_histogram", 1.05), 0.6)]),
        Lines("mean-score", "Mean score by layer",
              "Of the attention gate. The smaller, the sparser what attention puts out (2505.06708, figure "
              "7).", array("gate_mean"),
              f.by_layer("gates", lambda run: run.arrays["gate_mean"], "mean score")),
        Lines("output", "Output of attention by layer",
              "Filled dots: before the gate; hollow dots: after it. In 2505.06708 the mean falls from 0.71 to 0.05 "
              "(figure 4).", array("attention_output_mean"), f.draw_output),
        Lines("sparsity", "How much of the output is near 0",
              "Thin: before the gate; dots: after it; dotted: before the gate, times the mean score. A gate that "
              "merely scaled would lie on the dotted line (2505.06708, figure 5).",
              array("attention_output_below"), f.draw_below),
    ]),
    Section("Weights of the norms", [
        Columns("norm-weights", "λ by norm and dimension",
                "White is 1. A small λ (purple) damps a residual-sink dimension; GatedNorm has no need of it "
                "(2601.22966, figure 7).", [
                    Part(array("norm_weight"), f.draw_weights("norm_weight"), f.weight_scale("norm_weight"), 0.75,
                         "λ")]),
        Columns("pre-weights", "λ₁ of PreAffine by norm and dimension",
                "The weight in front of the norm: a large one (orange) stands in for a large activation (2601.22966, "
                "figure 7).", [
                    Part(array("pre_weight"), f.draw_weights("pre_weight"), f.weight_scale("pre_weight"), 0.75, "λ₁")]),
    ]),
    Section("Outlier dimensions", [
        Columns("top-dimensions", "Largest dimensions by layer",
                "The three dimensions with the largest mean |h|, the first of them by its number, and the median "
                "dimension (dashed). Tokens with massive activations are left out. In GPT-2 outliers begin in shallow "
                "layers, grow towards the last, and are not the same dimensions throughout.", [
                    Part(logged("outliers_by_state", "outlier_sizes_by_state", "median_by_state"), f.draw_outliers,
                         f.outliers_scale, 0.75)]),
        Columns("final-output", "Output of the final norm by dimension",
                "The mean size over all tokens. In trained models a few dimensions stand out for any text; with DyT "
                "they vanish.", [
                    Part(array("final_output"), f.draw_final, f.highest("final_output", 1.15), 0.5)]),
        Columns("final-output-over-training", "Output of the final norm by dimension over training",
                "The mean size; tokens with massive activations are left out. An outlier dimension is a dark line from "
                "the step where it begins: in GPT-2 from step 3000 on (P3, the study of outlier dimensions, figure 3). "
                "In a wide model a row is the largest of neighbours.", [
                    Part(logged("final_output_by_dimension"), f.draw_final_over_training, f.final_over_training_scale,
                         0.75,
                         "|output|")]),
        Columns("sharpness", "Sharpness of each layer's outputs over training",
                "What part of the mean |output| the three largest dimensions hold, tokens with massive activations "
                "left out, from the first layer (violet) to the last (green).", [
                    Part(logged("sharpness_3." + part), f.draw_sharpness(part, name), f.sharpness_scale, 0.45)
                    for part, name in (("attention_norm", "attn norm"), ("attention", "attention"),
                                       ("ffn_norm", "FFN norm"), ("ffn", "FFN"))]),
    ]),
    Section("Depth and position", [
        Lines("gradient-by-layer", "Gradient by layer",
              "The norm of the gradient of each layer's parameters: the first measured step (thin) and the last "
              "(dots). Without residual connections it shrinks layer by layer on its way down.",
              logged("gradient_norm_by_layer"), f.draw_gradient_by_layer),
        Lines("loss-by-position", "Loss by position",
              "What the loss of the next token is after so many tokens: how much the model makes of its "
              "context.", array("loss_by_position"), f.draw_loss_by_position),
    ]),
]
