"""The table of a report: a row for each run, a column for each measure that some run has."""
import html
import math

from reporting.figures import key_html


def scalar(run, key, form):
    value = run.last(key)
    if value is None:
        return None
    return "not finite" if not math.isfinite(value) else form.format(float(value))


def place(run, key):
    """Where a weight stands; a layer after all layers is that of the final norm."""
    norm = run.texts.get(key + ".norm")
    layer, dimension = (scalar(run, key + of, "{:.0f}") for of in (".layer", ".dimension"))
    if None in (norm, layer, dimension):
        return ""
    return f"dimension {dimension}\n" + ("final norm" if norm == "norm" else f"{norm.replace('_', ' ')} {layer}")


def small(pattern, *parts):
    """(run) -> the pattern with these numbers, each a key and a form; nothing where the run lacks one."""
    def shown(run):
        numbers = [scalar(run, *part) for part in parts]
        return "" if None in numbers else pattern.format(*numbers)
    return shown


def behind_first(run):
    value = scalar(run, "largest_activation_behind_first", "{:.4g}")
    same = value == scalar(run, "largest_activation", "{:.4g}")
    return "" if value is None or same else f"without token 0:\n{value}"


def sink_dimensions(run):
    found = run.last("residual_sink_dimensions")
    return None if found is None else str(found.size)


def first_dimensions(run):
    found = run.last("residual_sink_dimensions")
    return ", ".join(f"{d:.0f}" for d in found[:4]) + (", …" if len(found) > 4 else "")


def below(key, threshold):
    return small(f"below {threshold}:\n{{}}", (f"{key}_below_{threshold}", "{:.1%}"))


LARGEST_HEAD = small("head {} of layer {}:\n{}", ("first_token_attention_largest_at.head", "{:.0f}"),
                     ("first_token_attention_largest_at.layer", "{:.0f}"), ("first_token_attention_largest", "{:.1%}"))
ROUTING = small("entropy {} nats\nidle {}", ("routing_entropy", "{:.2f}"), ("idle_experts", "{:.0f}"))
NOTHING = small("")


def column(head, key, form, beneath=NOTHING):
    return head, lambda run: scalar(run, key, form), beneath


# Head, the value of a run or None, and what stands small below it.
COLUMNS = [
    ("parameters", lambda run: run.parameters and f"{run.parameters:,}", NOTHING),
    ("steps", lambda run: f"{run.steps:,.0f}", NOTHING),
    column("validation loss, nats", "validation_loss", "{:.4f}"),
    column("attention to the first token", "first_token_attention", "{:.1%}", LARGEST_HEAD),
    column("attention to the learned sink", "sink_attention", "{:.1%}"),
    column("|v| at the first token over others", "first_token_value_norm", "{:.2f}"),
    column("largest |h|", "largest_activation", "{:.4g}", behind_first),
    column("over the median", "peak_over_median", "{:.1f}"),
    column("top dimension over the median", "top_dimension_over_median", "{:.1f}"),
    column("massive activations", "massive_activations", "{:,.0f}"),
    ("residual-sink dimensions", sink_dimensions, first_dimensions),
    column("first step with an outlier dimension", "first_outlier_step", "{:,.0f}"),
    column("mean gate score", "gate_score_mean", "{:.3f}", below("gate_score", "0.1")),
    column("mean score of norms’ gates", "norm_gate_score_mean", "{:.3f}", below("norm_gate_score", "0.1")),
    column("|o| below 0.01", "attention_output_below_0.01", "{:.1%}", below("attention_output", "0.001")),
    column("|o| below 0.01, after the gate", "attention_output_gated_below_0.01", "{:.1%}",
           below("attention_output_gated", "0.001")),
    column("λ furthest from 1", "norm_weight_furthest", "{:.3f}", lambda run: place(run, "norm_weight_furthest_at")),
    column("λ₁ furthest from 1", "pre_weight_furthest", "{:.3f}", lambda run: place(run, "pre_weight_furthest_at")),
    column("mean decay of linear attention", "decay_mean", "{:.3f}"),
    column("mean β", "beta_mean", "{:.3f}"),
    column("length of a state |S|", "state_norm", "{:.3f}"),
    column("share of the busiest expert", "busiest_expert", "{:.1%}", ROUTING),
]


def flags_of(runs):
    """The flags that all runs have, and for each run the others."""
    common = [flag for flag in runs[0].flags if all(flag in run.flags for run in runs)]
    return common, [[flag for flag in run.flags if flag not in common] for run in runs]


def flags_html(flags):
    """A line breaks between flags alone."""
    return f"<code>{' '.join(f'<span>{html.escape(flag)}</span>' for flag in flags)}</code>"


def table(runs):
    columns = [(head, value, below) for head, value, below in COLUMNS if any(value(run) is not None for run in runs)]
    rows = ""
    for at, (run, flags) in enumerate(zip(runs, flags_of(runs)[1])):
        cells = ""
        for _, value, below in columns:
            shown = value(run)
            small = below(run) if shown is not None else ""
            cells += f"<td>{html.escape(shown or '–')}{small and f'<small>{html.escape(small)}</small>'}</td>"
        rows += f"<tr><th scope=\"row\">{key_html(at)}{html.escape(run.name)}{flags_html(flags)}</th>{cells}</tr>"
    heads = "".join(f'<th scope="col">{html.escape(head)}</th>' for head, _, _ in columns)
    return (f'<div class="table"><table><thead><tr><th scope="col">run</th>{heads}</tr></thead><tbody>{rows}</tbody>'
            "</table></div>")
