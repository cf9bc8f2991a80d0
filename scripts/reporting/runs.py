"""A run as a report reads it: log.jsonl and, where it is there, measures.safetensors. Everything is checked when it is
read.

The arrays of measures.safetensors are described where they are written, in training/inspect/arrays.h.
"""
import glob
import json
import math
import os
import re

import numpy

from common import open_regular, refuse
from plots import is_finite, is_number, read_log, writable

# The shape of every array that a figure is made of. A letter is the same number wherever it stands: A layers with
# softmax attention, B bins, C hidden, H heads, K thresholds, S states of the residual stream, P first positions, T
# context, G gates, M gates of norms, N norms.
ARRAYS = {
    "loss_by_position": "T", "attention_map": "APP", "first_token_attention": "AH", "sink_attention": "AH",
    "value_norm": "AT", "activation_by_token": "SPC", "activation_mean": "SC", "attention_output_mean": "A2",
    "attention_output_below": "A3K", "gate_histogram": "GB", "norm_gate_histogram": "MB", "gate_mean": "G",
    "norm_weight": "NC",
    "pre_weight": "NC", "final_output": "C",
}
# These have no value after a gate where there is no gate.
MAY_HOLD_NAN = ("attention_output_mean", "attention_output_below")
# The same of the log, where nothing is a single number, L is layers, O is outliers, and * is another number every time.
LOG = dict.fromkeys((
    "loss gradient_norm validation_loss bigram_entropy first_token_attention first_token_attention_largest "
    "first_token_attention_largest_at.layer first_token_attention_largest_at.head first_token_value_norm "
    "sink_attention largest_activation peak_over_median top_dimension_over_median largest_activation_behind_first "
    "massive_activations gate_score_mean norm_gate_score_mean norm_weight_furthest norm_weight_furthest_at.layer "
    "norm_weight_furthest_at.dimension pre_weight_furthest pre_weight_furthest_at.layer "
    "pre_weight_furthest_at.dimension first_outlier_step gate_score_below_0.1 norm_gate_score_below_0.1 "
    "attention_output_below_0.01 attention_output_below_0.001 attention_output_gated_below_0.01 "
    "attention_output_gated_below_0.001 decay_mean beta_mean state_norm busiest_expert routing_entropy idle_experts"
).split(), "") | {
    "largest_activation_by_state": "S", "residual_sink_dimensions": "*", "outliers_by_state": "SO",
    "outlier_sizes_by_state": "SO", "median_by_state": "S", "gradient_norm_by_layer": "L",
    "final_output_by_dimension": "C", "sharpness_3.attention": "L", "sharpness_3.ffn": "L",
    "sharpness_3.attention_norm": "L", "sharpness_3.ffn_norm": "L",
}
MOST = 21  # runs: as many as there are colours and dashes (figures.py)


def is_layer(value):
    return type(value) is int and 0 <= value < 2**31


def is_text(value):
    return isinstance(value, str)


def is_name(value):
    return is_text(value) and re.fullmatch(r"[A-Za-z0-9_.]+", value)


# What the lists of the metadata hold.
METADATA = {"attention_layers": is_layer, "gates": is_layer, "norms": is_name, "norm_gates": is_name, "flags": is_text,
            "thresholds": is_finite, "gate_range": is_finite}


def is_range(values):
    """Of the scores of gates; none where there is no gate."""
    return not values or len(values) == 2 and values[0] < values[1]


def as_array(value):
    """Numbers of the log as an array; what JSON cannot say (NaN, infinity) stands as null in it. None for anything
    else."""
    if value is None or is_number(value):
        return numpy.array(float(value) if is_finite(value) else math.nan)
    parts = [as_array(part) for part in value] if isinstance(value, list) else [None]
    if any(part is None or part.shape != parts[0].shape for part in parts):
        return None
    return numpy.array(parts)


def flat(entry):
    """{"a": {"b": 1}} becomes {"a.b": 1}."""
    return {key if inner is None else f"{key}.{inner}": value for key, outer in entry.items()
            for inner, value in (outer.items() if isinstance(outer, dict) else [(None, outer)])}


def read_header(path):
    """The header of a safetensors file, which is held against the size of the file, and where its data begins."""
    with open_regular(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            refuse(f"{path}: cut short at {size} bytes, or no safetensors file")
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError):
            header = None
    if not isinstance(header, dict) or not isinstance(header.get("__metadata__", {}), dict):
        refuse(f"{path}: its header is no JSON object: no safetensors file")
    metadata, data = header.pop("__metadata__", {}), size - 8 - length
    for name, entry in header.items():
        try:
            shape, (begin, end) = entry["shape"], entry["data_offsets"]
            good = all(type(n) is int and n >= 0 for n in [*shape, begin, end]) and begin <= end
        except (TypeError, KeyError, ValueError):
            good = False
        if not good:
            refuse(f"{path}: the header says no shape and place of {name}: no safetensors file")
        if end > data:
            refuse(f"{path}: cut short: {name} ends at byte {end} of the data, which has {data}")
    return metadata, header, 8 + length


def fits(shape, letters, sizes):
    """Whether a shape is what its letters say, where `sizes` knows them; `sizes` learns the others."""
    known = dict(sizes)
    if len(shape) != len(letters) or any(known.setdefault(l, n) != n for l, n in zip(letters, shape) if l != "*"):
        return False
    sizes.update(known)
    return True


class Run:
    """One --out folder. `logged` holds (steps, values) by key; `arrays` and `metadata` are those of
    measures.safetensors."""

    def __init__(self, folder, name):
        self.name = name
        self.logged, self.texts, self.arrays, self.metadata = {}, {}, {}, {}
        try:
            measures = os.path.join(folder, "measures.safetensors")
            self.steps = 0
            if os.path.exists(os.path.join(folder, "log.jsonl")) or not os.path.exists(measures):
                self.read_log(folder)  # a model that was not trained here has measures alone
            if os.path.exists(measures):
                self.read_measures(measures, f": ./train --evaluate --out={folder} writes it again")
            self.parameters = parameters(folder)
        except OSError as error:
            refuse(f"{error.filename}: cannot be read: {error.strerror}")

    def read_log(self, folder):
        path, sizes, found = os.path.join(folder, "log.jsonl"), {}, {}
        for entry in read_log(folder):
            self.steps = max(self.steps, entry["step"])
            for key, value in flat(entry).items():
                if isinstance(value, str):
                    self.texts[key] = value
                if key not in LOG:
                    continue
                array = as_array(value)
                if array is None or not fits(array.shape, LOG[key], sizes):
                    refuse(f"{path}: {key} of step {entry['step']} has another form than that of ./train, or than "
                           "other steps have")
                found.setdefault(key, []).append((entry["step"], array))
        for key, values in found.items():
            values = values[-1:] if LOG[key] == "*" else values
            if any(numpy.isfinite(value).any() or value.size == 0 for _, value in values):
                self.logged[key] = numpy.array([s for s, _ in values]), numpy.array([v for _, v in values])

    def read_measures(self, path, remedy):
        metadata, header, start = read_header(path)
        if metadata.get("format") != "gated.cu measures 1":
            refuse(f"{path}: its format is {metadata.get('format')!r}, expected 'gated.cu measures 1'{remedy}")
        for key, suits in METADATA.items():
            try:
                values = json.loads(metadata.get(key, "[]"))
                good = isinstance(values, list) and all(map(suits, values))
            except (TypeError, ValueError, RecursionError):
                good = False
            if not good or key == "gate_range" and not is_range(values):
                refuse(f"{path}: its metadata {key!r} is not what ./train writes{remedy}")
            self.metadata[key] = values
        sizes = {letter: len(self.metadata[key]) for letter, key in
                 (("A", "attention_layers"), ("G", "gates"), ("N", "norms"), ("M", "norm_gates"), ("K", "thresholds"))}
        sizes |= {"2": 2, "3": 3}
        with open_regular(path, "rb") as file:
            file.seek(start)
            data = file.read()
        for name in (n for n in ARRAYS if n in header):
            shape, (begin, end) = header[name]["shape"], header[name]["data_offsets"]
            if header[name].get("dtype") != "F32" or 4 * math.prod(shape) != end - begin:
                refuse(f"{path}: {name} is not F32 of shape {shape} in {end - begin} bytes{remedy}")
            if 0 in shape:
                continue
            if not fits(shape, ARRAYS[name], sizes):
                refuse(f"{path}: {name} has shape {shape}, which contradicts other arrays or the metadata{remedy}")
            array = numpy.frombuffer(data[begin:end], "<f4").reshape(shape).astype(float)
            if not numpy.isfinite(array).all() and name not in MAY_HOLD_NAN:
                refuse(f"{path}: {name} holds values that are not finite: the run diverged; move the file away to "
                       "draw its log alone")
            self.arrays[name] = array

    @property
    def flags(self):
        return self.metadata.get("flags", [])

    def series(self, key):
        """Steps, and the values at them."""
        return self.logged[key]

    def last(self, key):
        """What the log says last; None where it says nothing."""
        return self.logged[key][1][-1] if key in self.logged else None


def parameters(folder):
    """Of the model in the newest checkpoint; None where there is none."""
    checkpoints = sorted(glob.glob(os.path.join(glob.escape(folder), "step_*.safetensors")))
    if not checkpoints:
        return None
    _, header, _ = read_header(checkpoints[-1])
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if not name.startswith("optimizer."))


def read_runs(folders):
    if len(folders) > MOST:
        refuse(f"{len(folders)} runs: at most {MOST} can be told apart: name fewer")
    names = [os.path.basename(os.path.normpath(folder)) for folder in folders]
    return [Run(folder, writable(name if names.count(name) == 1 else folder)) for folder, name in zip(folders, names)]
