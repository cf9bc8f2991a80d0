"""Which figures a report has, what a run must have for each, and how it is drawn. Their order, their titles and what
there is to see in them: captions.json."""
import json
import os
from typing import Callable, NamedTuple

from common import read
from reporting import figures as f


class Part(NamedTuple):
    """What is drawn in one axes, and whether a run has it. With a scale, which is made of all runs, a run has axes of
    its own; without one all runs are lines in the same. Height is over the width; bar says what colours mean."""
    suits: Callable
    draw: Callable
    scale: Callable = None
    height: float = 1.0
    bar: str = ""


class Figure(NamedTuple):
    """Lines of all runs; or a column for each run, of parts that stand one below the other."""
    name: str
    title: str
    caption: str
    parts: list

    @property
    def is_lines(self):
        return self.parts[0].scale is None


class Section(NamedTuple):
    title: str
    figures: list


def logged(*keys):
    return lambda run: all(key in run.logged for key in keys)


def array(*keys):
    return lambda run: all(key in run.arrays for key in keys)


def with_others(run):
    """Whether there are tokens after the first."""
    return "value_norm" in run.arrays and run.arrays["value_norm"].shape[1] > 1


def over_training(key, y, **how):
    return Part(logged(key), f.over_training(key, y, **how))


def mean_of_heads(key):
    return Part(array(key), f.by_layer("attention_layers", lambda run: run.arrays[key].mean(axis=1), "attention, %",
                                       in_percent="y"))


def histogram(key):
    return Part(array(key), f.draw_histogram(key), f.highest(key, 1.05), 0.6)


def weights(key, bar):
    return Part(array(key), f.draw_weights(key), f.weight_scale(key), 0.75, bar)


# Of one part, or of several below each other.
PARTS = {
    "loss": Part(logged("loss"), f.draw_loss),
    "peak": over_training("largest_activation", "largest |h|", by_factors="y"),
    "relative-peak": over_training("peak_over_median", "largest over median |h|", by_factors="y"),
    "first-token": over_training("first_token_attention", "attention, %", in_percent="y"),
    "outliers": Part(logged("outlier_sizes_by_state", "median_by_state"), f.draw_outliers_over_training),
    "gradient": over_training("gradient_norm", "norm", by_factors="y"),
    "sinks": [Part(array("attention_map"), f.draw_attention_map, f.attention_scale, bar="attention"),
              Part(array("activation_by_token", "activation_mean"), f.draw_stream, f.stream_scale, bar="|h|")],
    "peak-by-layer": Part(logged("largest_activation_by_state"),
                          f.by_state("largest_activation_by_state", "largest |h|")),
    "first-token-by-layer": mean_of_heads("first_token_attention"),
    "sink-by-layer": mean_of_heads("sink_attention"),
    "value-by-layer": Part(with_others, f.by_layer("attention_layers", f.first_value, "|v| over that of others")),
    "heads": Part(array("first_token_attention"), f.draw_heads, f.heads_scale, height=0.55),
    "gate-scores": histogram("gate_histogram"),
    "norm-gate-scores": histogram("norm_gate_histogram"),
    "mean-score": Part(array("gate_mean"), f.by_layer("gates", lambda run: run.arrays["gate_mean"], "mean score")),
    "output": Part(array("attention_output_mean"), f.draw_output),
    "sparsity": Part(array("attention_output_below"), f.draw_below),
    "norm-weights": weights("norm_weight", "λ"),
    "pre-weights": weights("pre_weight", "λ₁"),
    "top-dimensions": Part(logged("outliers_by_state", "outlier_sizes_by_state", "median_by_state"),
                           f.draw_outliers, f.outliers_scale, 0.75),
    "final-output": Part(array("final_output"), f.draw_final, f.highest("final_output", 1.15), 0.5),
    "final-output-over-training": Part(logged("final_output_by_dimension"), f.draw_final_over_training,
                                       f.final_over_training_scale, 0.75, "|output|"),
    "sharpness": [Part(logged("sharpness_3." + part), f.draw_sharpness(part, name), f.sharpness_scale, 0.45)
                  for part, name in (("attention_norm", "attn norm"), ("attention", "attention"),
                                     ("ffn_norm", "FFN norm"), ("ffn", "FFN"))],
    "gradient-by-layer": Part(logged("gradient_norm_by_layer"), f.draw_gradient_by_layer),
    "loss-by-position": Part(array("loss_by_position"), f.draw_loss_by_position),
}


def figure_of(name, title, caption):
    parts = PARTS[name]
    return Figure(name, title, caption, parts if isinstance(parts, list) else [parts])


SECTIONS = [Section(section["title"], [figure_of(**said) for said in section["figures"]])
            for section in json.loads(read(os.path.join(os.path.dirname(__file__), "captions.json")))]
