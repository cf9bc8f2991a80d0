#!/usr/bin/env python3
"""Makes tests/fixtures/*.json: results of PyTorch and transformers, which tests/test_fixtures.cpp compares with.

usage: pip install torch transformers && scripts/make_fixtures.py [FOLDER]     CPU only, no download, seconds

models.json  loss, logits after each sequence's last token, and the gradient of every parameter of tiny models,
             one for each line of flags in tests/small_models.h (without its dropout, whose random bits are this
             project's own) and in `libraries` below. What transformers has, it computes, and the results must
             agree with `model` below to twelve digits; `model`, PyTorch formulas that the same flags choose
             from, computes the other lines.
ops.json     outputs and gradients of single operations.

All in float64. Weights and inputs are not stored: both sides make them from a name by `values`, exact in float32.

Gradients are autograd's. One of more than 64 entries is stored as its 2-norm and its dot products with three
vectors that both sides make, whose entries have random signs and sizes between 1/2 and 1: one wrong entry changes
every product by at least half its error, and errors that cancel in one product do not cancel in the next. For
Qwen3, GPT-2 and gpt-oss with one expert every entry is stored. Where there are experts, "loss" is without the losses of their
routers, as ./train prints it, and the gradients are of the sum.
"""
import json
import math
import os
import re
import sys
from unittest import mock

import torch
import torch.nn.functional as F
import transformers
from transformers import modeling_rope_utils
from transformers.models.qwen3_moe import modeling_qwen3_moe
from transformers.models.qwen3_next import modeling_qwen3_next
from transformers.models.switch_transformers import modeling_switch_transformers

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WORD = 2**64 - 1


# ---- numbers that both sides make

def values(name, *shape):
    """Multiples of 2^-22 in [-1, 1): random_values of tests/harness.h, seeded by FNV-1a of the name."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 & WORD
    s = (seed * 0x9E3779B97F4A7C15 + 0x1234567) & WORD
    numbers = []
    for _ in range(math.prod(shape)):
        s ^= s << 13 & WORD
        s ^= s >> 7
        s ^= s << 17 & WORD
        numbers.append(((s >> 41) - 2**22) / 2**22)
    return torch.tensor(numbers).reshape(shape)


def tokens(name, n, vocab):
    return ((values(name, n) + 1) / 2 * vocab).floor().long()


class Weights(dict):
    """A model's parameters by name, made when first asked for: around 1 where they scale, around 0 elsewhere."""

    def __init__(self, zero_centred):
        self.scaling = ("pre_weight", "alpha", "embed_scale", "linear_attn.norm.weight") + (() if zero_centred else ("norm.weight",))

    def __call__(self, name, *shape):
        if name not in self:
            self[name] = (name.endswith(self.scaling) + values(name, *shape) / 4).requires_grad_()
        return self[name]


# ---- formulas

ACTIVATIONS = {
    "identity": lambda z: z,
    "sigmoid": torch.sigmoid,
    "ns-sigmoid": lambda z: 0.5 + 0.5 * torch.sigmoid(z),
    "silu": F.silu,
    "tanh": torch.tanh,
    "gelu-tanh": lambda z: F.gelu(z, approximate="tanh"),
    "gelu-erf": F.gelu,
    "relu2": lambda z: F.relu(z) ** 2,
}


def attention(q, k, v, window=0, score_bias=None, sink=None, kv_bias=None, score_dim=0):
    """q (B,T,H,D), k and v (B,T,KVH,D) to o (B,T,H,D) and logsumexp (B,H,T). score_bias: sigmoid, not softmax. Scores are
    divided by the root of D, or of score_dim."""
    B, T, H, D = q.shape
    k, v = (x.repeat_interleave(H // x.shape[2], dim=2) for x in (k, v))
    root = math.sqrt(score_dim or D)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / root
    back = torch.arange(T)[:, None] - torch.arange(T)
    hidden = (back < 0) | (back >= (window or T))
    if score_bias is not None:
        p = torch.sigmoid(scores + score_bias).masked_fill(hidden, 0)
        return torch.einsum("bhij,bjhd->bihd", p, v), None
    scores = scores.masked_fill(hidden, -math.inf)
    if sink is not None:
        scores = torch.cat((scores, sink[:, None, None].expand(B, H, T, 1)), dim=-1)
    if kv_bias is not None:
        extra = torch.einsum("bihd,hd->bhi", q, kv_bias[0]) / root
        scores = torch.cat((scores, extra[..., None]), dim=-1)
    p = scores.softmax(-1)
    o = torch.einsum("bhij,bjhd->bihd", p[..., :T], v)
    if kv_bias is not None:
        o = o + torch.einsum("bhi,hd->bihd", p[..., T], kv_bias[1])
    return o, scores.logsumexp(-1)


def polynorm(x, w, b, eps=1e-6):
    def norm(v):
        return v * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps)
    return w[0] * norm(x**3) + w[1] * norm(x**2) + w[2] * norm(x) + b


def scaled_frequencies(frequencies, theta, scaling):
    """Those of --rope-scaling, and the factor of cos and sin."""
    kind, *numbers = scaling.split(",")
    if kind == "none":
        return frequencies, 1.0
    s, L, slow, fast = [float(n) for n in numbers] + [0, 1, 4 if kind == "llama3" else 32][len(numbers) - 1:]
    if kind == "linear":
        return frequencies / s, 1.0
    if kind == "llama3":
        keep = ((L * frequencies / (2 * math.pi) - slow) / (fast - slow)).clamp(0, 1)
        return keep * frequencies + (1 - keep) * frequencies / s, 1.0
    half = len(frequencies)
    low, high = (half * math.log(L / (2 * math.pi * n), theta) for n in (fast, slow))
    if kind == "yarn":
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * half - 1)
    ramp = ((torch.arange(half) - low) / (max(high, low + 0.001) - low)).clamp(0, 1)
    return frequencies * (1 - ramp) + frequencies / s * ramp, 0.1 * math.log(s) + 1


def rotations(T, R, theta, scaling="none"):
    """e^(i t theta^(-2k/R)), (T, R/2), scaled"""
    frequencies, factor = scaled_frequencies(theta ** (-torch.arange(0, R, 2).double() / R), theta, scaling)
    angles = torch.outer(torch.arange(T).double(), frequencies)
    return torch.polar(torch.full_like(angles, factor), angles)


def rope(x, turns):
    """The two halves of the first elements of a head are the parts of complex numbers; x (B,T,H,D)."""
    half = turns.shape[1]
    z = torch.complex(x[..., :half], x[..., half:2 * half]) * turns[:, None, :]
    return torch.cat((z.real, z.imag, x[..., 2 * half:]), dim=-1)


def linear(weights, name, x, out, bias=False):
    w = weights(f"{name}.weight", out, x.shape[-1])
    return F.linear(x, w, weights(f"{name}.bias", out) if bias else None)


# ---- the model of a line of flags

DEFAULTS = {
    "norm": "rmsnorm", "norm-placement": "pre", "norm-weight": "plain", "norm-rank": "16",
    "norm-gate": "elementwise", "norm-gate-act": "sigmoid", "norm-gate-scale": "1",
    "attn": "full", "gate": "elementwise", "gate-op": "mul", "gate-act": "sigmoid",
    "head-experts": "0", "head-experts-per-token": "1", "head-experts-of": "v", "attn-score": "softmax", "attn-sink": "none", "sdpa-out": "plain", "window": "0",
    "window-layers": "all", "full-every": "6", "score-dim": "0", "rope-scaling": "none", "window-rope-theta": "0",
    "embedding-factor": "1", "qk-norm": "on", "attn-bias": "none", "position": "rope", "rope-theta": "10000",
    "rope-fraction": "1", "ffn": "swiglu", "gelu": "tanh", "ffn-bias": "off", "tied": "on",
    "embedding-scale": "off", "residual": "on", "clip-residual": "0", "clip-output": "0",
    "mixer": "attention", "linear-key-heads": "2", "linear-value-heads": "4", "linear-key-dim": "32",
    "linear-value-dim": "32", "conv-width": "4", "delta": "recurrent",
    "experts": "0", "experts-per-token": "2", "dense-layers": "0", "shared-experts": "0", "shared-expert-gate": "on",
    "router-renormalise": "on", "router-bias": "off", "balance-loss": "1e-3", "balance-over": "global", "z-loss": "1e-3",
}
INITIAL = {"init", "norm-gate-init", "dyt-alpha"}  # where weights start: not here
SIZES = {"vocab", "context", "layers", "hidden", "heads", "kv-heads", "head-dim", "ffn-hidden", "expert-hidden"}


class Flags:
    """Every flag of a line, or its default. One that nothing here computes is refused."""

    def __init__(self, line):
        self.flags = dict(DEFAULTS)
        for word in line.split():
            name, _, value = word.removeprefix("--").partition("=")
            self.flags[name] = value or "on"
        unknown = set(self.flags) - set(DEFAULTS) - INITIAL - SIZES
        assert not unknown, f"{line}: nothing here computes {unknown}"

    def __getitem__(self, name):
        return self.flags[name]

    def number(self, name):
        return int(self.flags[name])

    def attends(self, layer):
        """Is a layer softmax attention?"""
        every = min(4, self.number("layers"))
        return self["mixer"] == "attention" or self["mixer"] == "hybrid" and (layer + 1) % every == 0

    def window(self, layer):
        """Of a layer, all of which attend."""
        sees_all = {"all": False, "even": layer % 2 == 1, "not-nth": (layer + 1) % self.number("full-every") == 0}
        return 0 if sees_all[self["window-layers"]] else self.number("window")

    def mixes_experts(self, layer):
        return self.number("experts") > 0 and layer >= self.number("dense-layers")


def rms_norm(f, x, w):
    return F.rms_norm(x, x.shape[-1:], w + 1 if f["norm-weight"] == "zero-centred" else w, eps=1e-6)


def norm(f, weights, name, x):
    kind, C = f["norm"], x.shape[-1]
    if kind == "none":
        return x
    weight = weights(f"{name}.weight", C)
    if kind == "layernorm":
        return F.layer_norm(x, (C,), weight, weights(f"{name}.bias", C), eps=1e-5)
    if kind in ("dyt", "gated-dyt"):
        y = weight * torch.tanh(weights(f"{name}.alpha", 1) * x) + weights(f"{name}.bias", C)
    elif kind == "preaffine":
        y = rms_norm(f, weights(f"{name}.pre_weight", C) * x, weight)
    else:
        y = rms_norm(f, x, weight)
    if not kind.startswith("gated"):
        return y
    low = F.silu(linear(weights, f"{name}.gate_down", y, f.number("norm-rank")))
    z = linear(weights, f"{name}.gate_up", low, C if f["norm-gate"] == "elementwise" else 1)
    return float(f["norm-gate-scale"]) * ACTIVATIONS[f["norm-gate-act"]](z) * y


def gate(f, weights, name, position, value, x):
    """value (B,T,heads,D), met by its score where `position` is the gate's"""
    if f["attn"] != position:
        return value
    heads, D = value.shape[2:]
    if f["gate"] == "static":
        z = weights(f"{name}.gate.theta", heads, D)
    elif f["gate"] == "headwise":
        z = linear(weights, f"{name}.g_proj", x, heads).unsqueeze(-1)
    else:
        z = linear(weights, f"{name}.g_proj", x, heads * D).unflatten(-1, (heads, D))
    score = ACTIVATIONS[f["gate-act"]](z)
    if f["gate"] == "shared":
        score = score.mean(2, keepdim=True)
    return value + score if f["gate-op"] == "add" else value * score


def head_experts(made, logits, k):
    """made (...,E,D), logits (...,E) to (...,D): the k experts of the largest scores, weighted by them (SwitchHead)"""
    scores, chosen = torch.sigmoid(logits).topk(k, dim=-1)
    return (scores[..., None] * made.take_along_dim(chosen[..., None], dim=-2)).sum(-2)


def head_projection(f, weights, name, what, x, bias):
    """Keys or values (B,T,KVH,D) of x, by one matrix a head or by experts."""
    KVH, E, D = f.number("kv-heads"), f.number("head-experts"), f.number("head-dim")
    if E == 0 or what not in f["head-experts-of"]:
        return linear(weights, f"{name}.{what}_proj", x, KVH * D, bias).unflatten(-1, (KVH, D))
    made = linear(weights, f"{name}.{what}_proj", x, KVH * E * D, bias).unflatten(-1, (KVH, E, D))
    logits = linear(weights, f"{name}.{what}_select", x, KVH * E).unflatten(-1, (KVH, E))
    return head_experts(made, logits, f.number("head-experts-per-token"))


def attention_layer(f, weights, layer, x):
    name = f"model.layers.{layer}.self_attn"
    H, D = f.number("heads"), f.number("head-dim")
    bias = f["attn-bias"] != "none"
    q = linear(weights, f"{name}.q_proj", x, H * D, bias).unflatten(-1, (H, D))
    k, v = (head_projection(f, weights, name, what, x, bias) for what in "kv")
    q, k, v = (gate(f, weights, name, at, y, x) for at, y in (("g4", q), ("g3", k), ("g2", v)))
    if f["qk-norm"] == "on":
        q = rms_norm(f, q, weights(f"{name}.q_norm.weight", D))
        k = rms_norm(f, k, weights(f"{name}.k_norm.weight", D))
    window = f.window(layer)
    if f["position"] == "rope":
        R = 2 * int(float(f["rope-fraction"]) * D / 2)
        own = float(f["window-rope-theta"]) if window else 0
        turns = rotations(x.shape[1], R, own) if own else rotations(x.shape[1], R, float(f["rope-theta"]), f["rope-scaling"])
        q, k = rope(q, turns), rope(k, turns)
    more = {"score_dim": f.number("score-dim")}
    if f["attn-score"] == "sigmoid":
        more["score_bias"] = -math.log(f.number("context"))
    if f["attn-sink"] == "learned":
        more["sink"] = weights(f"{name}.sinks", H)
    if f["attn-sink"] == "kv-bias":
        more["kv_bias"] = weights(f"{name}.kv_bias.key", H, D), weights(f"{name}.kv_bias.value", H, D)
    o, _ = attention(q, k, v, window, **more)
    if f["sdpa-out"] == "groupnorm":
        o = rms_norm(f, o, weights(f"{name}.out_norm.weight", D))
    if f["sdpa-out"] == "silu":
        o = F.silu(o)
    o = gate(f, weights, name, "g1", o, x).flatten(2)
    y = linear(weights, f"{name}.o_proj", o, x.shape[-1], f["attn-bias"] == "all")
    return gate(f, weights, name, "g5", y.unsqueeze(2), x).squeeze(2)


def gated_delta_rule(q, k, v, g, beta, state):
    """q, k (B,T,H,Dk), v (B,T,H,Dv), g, beta (B,T,H) to (B,T,H,Dv), and state (B,H,Dk,Dv) to the last one: token by token."""
    o = []
    for t in range(q.shape[1]):
        state = state * g[:, t, :, None, None].exp()
        u = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], u)
        o.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(o, dim=1), state


def linear_layer(f, weights, layer, x):
    name = f"model.layers.{layer}.linear_attn"
    Hk, Hv, Dk, Dv, W = (f.number(n) for n in ("linear-key-heads", "linear-value-heads", "linear-key-dim",
                                               "linear-value-dim", "conv-width"))
    sizes = (Hk * Dk, Hk * Dk, Hv * Dv)
    qkv = linear(weights, f"{name}.in_proj_qkv", x, sum(sizes))
    z = linear(weights, f"{name}.in_proj_z", x, Hv * Dv).unflatten(-1, (Hv, Dv))
    b, a = linear(weights, f"{name}.in_proj_ba", x, 2 * Hv).chunk(2, dim=-1)
    taps = weights(f"{name}.conv1d.weight", sum(sizes), W)
    qkv = F.silu(F.conv1d(F.pad(qkv.mT, (W - 1, 0)), taps[:, None], groups=sum(sizes)).mT)
    q, k, v = (part.unflatten(-1, (-1, D)) for part, D in zip(qkv.split(sizes, dim=-1), (Dk, Dk, Dv)))
    q, k = (y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6) for y in (q, k))
    q, k = (y.repeat_interleave(Hv // Hk, dim=2) for y in (q / math.sqrt(Dk), k))
    g = -weights(f"{name}.A_log", Hv).exp() * F.softplus(a + weights(f"{name}.dt_bias", Hv))
    o, _ = gated_delta_rule(q, k, v, g, torch.sigmoid(b), torch.zeros(len(x), Hv, Dk, Dv))
    o = F.rms_norm(o, (Dv,), weights(f"{name}.norm.weight", Dv), eps=1e-6) * F.silu(z)
    return linear(weights, f"{name}.out_proj", o.flatten(2), x.shape[-1])


def feed_forward(f, project, poly, x, hidden):
    """project(name, x, out): a linear layer; poly(): the weights of PolyNorm"""
    a = project("up_proj", x, hidden)
    gelu = ACTIVATIONS[f"gelu-{f['gelu']}"]
    gates = {"swiglu": F.silu, "glu": torch.sigmoid, "geglu": gelu}
    if f["ffn"] in gates:
        a = gates[f["ffn"]](project("gate_proj", x, hidden)) * a
    elif f["ffn"] == "swiglu-clamped":
        a = swiglu_clamped(project("gate_proj", x, hidden), a)
    elif f["ffn"] == "polynorm":
        a = polynorm(a, *poly())
    else:
        a = {"gelu": gelu, "relu2": ACTIVATIONS["relu2"]}[f["ffn"]](a)
    return project("down_proj", a, x.shape[-1])


def dense_ffn(f, weights, name, x, hidden):
    def project(part, x, out):
        return linear(weights, f"{name}.{part}", x, out, f["ffn-bias"] == "on")
    return feed_forward(f, project, lambda: (weights(f"{name}.poly.weight", 3), weights(f"{name}.poly.bias", 1)), x, hidden)


def expert_ffn(f, weights, name, e, x):
    """Expert e; its matrices lie in tensors with those of the others, and PolyNorm's weights are theirs together."""
    E = f.number("experts")

    def project(part, x, out):
        bias = weights(f"{name}.{part}.bias", E, out)[e] if f["ffn-bias"] == "on" else None
        return F.linear(x, weights(f"{name}.{part}.weight", E, out, x.shape[-1])[e], bias)

    def poly():
        return weights(f"{name}.poly.weight", 3), weights(f"{name}.poly.bias", 1)
    return feed_forward(f, project, poly, x, f.number("expert-hidden"))


def mixture(f, weights, name, x, routers):
    """Every expert computes all tokens here; a token takes what its own say. Its logits (N,E) join `routers`."""
    E = f.number("experts")
    logits = linear(weights, f"{name}.gate", x, E, f["router-bias"] == "on")
    routers.append(logits.flatten(0, -2))
    weight, chosen = logits.softmax(-1).topk(f.number("experts-per-token"), dim=-1)
    if f["router-renormalise"] == "on":
        weight = weight / weight.sum(-1, keepdim=True)
    said = torch.stack([expert_ffn(f, weights, f"{name}.experts", e, x) for e in range(E)], dim=-2)
    y = (weight[..., None] * said.take_along_dim(chosen[..., None], dim=-2)).sum(-2)
    if f.number("shared-experts"):
        shared = dense_ffn(f, weights, f"{name}.shared_expert", x, f.number("shared-experts") * f.number("expert-hidden"))
        if f["shared-expert-gate"] == "on":
            shared = torch.sigmoid(linear(weights, f"{name}.shared_expert_gate", x, 1)) * shared
        y = y + shared
    return y


def router_losses(f, routers):
    """The sum over the layers of the balance loss and the z-loss, with their factors, of one micro-batch."""
    E, k, total = f.number("experts"), f.number("experts-per-token"), 0.0
    for logits in routers:
        p = logits.softmax(-1)
        largest = p.topk(min(k + 1, E), dim=-1)
        if k < E:  # float32 must choose alike
            assert (largest.values[:, k - 1] - largest.values[:, k]).min() > 1e-4, "a token's choice is nearly a tie"
        slots = torch.bincount(largest.indices[:, :k].flatten(), minlength=E)
        balance = E * (slots / slots.sum() * p.mean(0)).sum()
        total = total + float(f["balance-loss"]) * balance + float(f["z-loss"]) * logits.logsumexp(-1).square().mean()
    return total


def swiglu_clamped(g, u):
    g, u = g.clamp(max=7), u.clamp(-7, 7)
    return (u + 1) * g * torch.sigmoid(1.702 * g)


def clip(x, bound):
    return x.clamp(-float(bound), float(bound)) if float(bound) else x


def model(f, weights, ids, routers):
    """Logits (B,T,V). Those of every router join `routers`."""
    V, C, placement = f.number("vocab"), f.number("hidden"), f["norm-placement"]
    embedding = weights("model.embed_tokens.weight", V, C)
    h = embedding[ids]
    h = h * float(f["embedding-factor"])
    if f["embedding-scale"] == "on":
        h = weights("model.embed_scale", 1) * h
    if f["position"] == "learned":
        h = h + weights("model.embed_positions.weight", f.number("context"), C)[:ids.shape[1]]

    def join(h, branch):
        branch = clip(branch, f["clip-output"])
        return clip(h + branch if f["residual"] == "on" else branch, f["clip-residual"])

    def ffn_layer(f, weights, layer, x):
        name = f"model.layers.{layer}.mlp"
        if f.mixes_experts(layer):
            return mixture(f, weights, name, x, routers)
        return dense_ffn(f, weights, name, x, f.number("ffn-hidden"))
    for layer in range(f.number("layers")):
        name = f"model.layers.{layer}"
        mixer, its_name = (attention_layer, "self_attn") if f.attends(layer) else (linear_layer, "linear_attn")
        for branch, before, behind in ((mixer, "input_layernorm", f"{its_name}_out_layernorm"),
                                       (ffn_layer, "post_attention_layernorm", "mlp_out_layernorm")):
            if placement == "post":
                h = norm(f, weights, f"{name}.{before}", join(h, branch(f, weights, layer, h)))
                continue
            y = branch(f, weights, layer, norm(f, weights, f"{name}.{before}", h))
            if placement == "sandwich":
                y = norm(f, weights, f"{name}.{behind}", y)
            h = join(h, y)
    if placement != "post":
        h = norm(f, weights, "model.norm", h)
    return F.linear(h, embedding if f["tied"] == "on" else weights("lm_head.weight", V, C))


# ---- the same by transformers: a line of flags, what it is called there, and its parameters from ours

def sizes(f, **more):
    rope = {"rope_type": "default", "rope_theta": float(f["rope-theta"])}
    return dict(vocab_size=f.number("vocab"), hidden_size=f.number("hidden"),
                intermediate_size=f.number("ffn-hidden"), num_hidden_layers=f.number("layers"),
                num_attention_heads=f.number("heads"), num_key_value_heads=f.number("kv-heads"),
                head_dim=f.number("head-dim"), max_position_embeddings=f.number("context"), rope_parameters=rope,
                rms_norm_eps=1e-6, pad_token_id=None, tie_word_embeddings=f["tied"] == "on",
                attn_implementation="eager") | more


def same_names(w):
    return w


def qwen3(f):
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes(f))), same_names


def experts_of(f, **more):
    return dict(num_experts=f.number("experts"), num_experts_per_tok=f.number("experts-per-token"),
                moe_intermediate_size=f.number("expert-hidden"), norm_topk_prob=f["router-renormalise"] == "on",
                mlp_only_layers=list(range(f.number("dense-layers"))), experts_implementation="eager") | more


def gate_beside_up(w):
    """The rows of an expert's gate, then those of its up, in one matrix."""
    named = dict(w)
    for n in w:
        if "experts.gate_proj" in n:
            up = n.replace("gate_proj", "up_proj")
            named[n.replace("gate_proj.weight", "gate_up_proj")] = torch.cat((named.pop(n), named.pop(up)), dim=1)
        if "experts.down_proj" in n:
            named[n.removesuffix(".weight")] = named.pop(n)
    return named


def qwen3_moe(f):
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**sizes(f, **experts_of(f)))), gate_beside_up


def qwen2(f):
    config = sizes(f)
    assert config.pop("head_dim") * config["num_attention_heads"] == config["hidden_size"]
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**config)), same_names


def side_by_side(heads, matrices):
    """The rows of all matrices of head 0, then those of head 1, and so on."""
    return torch.cat([m.unflatten(0, (heads, -1)) for m in matrices], dim=1).flatten(0, 1)


def qwen3_next(f):
    """Its q_proj has the rows of our q_proj and g_proj, head by head in turns; its linear layers have the rows of q, k, v
    and z, and those of b and a, key head by key head."""
    kinds = ["full_attention" if f.attends(i) else "linear_attention" for i in range(f.number("layers"))]
    experts = experts_of(f, shared_expert_intermediate_size=f.number("shared-experts") * f.number("expert-hidden"))
    config = sizes(f, **experts, layer_types=kinds, linear_conv_kernel_dim=f.number("conv-width"),
                   linear_key_head_dim=f.number("linear-key-dim"), linear_num_key_heads=f.number("linear-key-heads"),
                   linear_value_head_dim=f.number("linear-value-dim"),
                   linear_num_value_heads=f.number("linear-value-heads"))
    heads = f.number("linear-key-heads")
    keys = heads * f.number("linear-key-dim")
    config["rope_parameters"]["partial_rotary_factor"] = float(f["rope-fraction"])

    def parameters(w):
        named = gate_beside_up({n: p for n, p in w.items() if "g_proj" not in n})
        for n in list(named):
            if "q_proj" in n:
                both = w[n], w[n.replace("q_proj", "g_proj")]
                named[n] = side_by_side(f.number("heads"), both)
            if "in_proj_qkv" in n:
                z = n.replace("in_proj_qkv", "in_proj_z")
                named[n.replace("qkv", "qkvz")] = side_by_side(heads, (
                    named[n][:keys], named[n][keys:2 * keys], named.pop(n)[2 * keys:], named.pop(z)))
            if "in_proj_ba" in n:
                named[n] = side_by_side(heads, named[n].chunk(2))
            if "conv1d" in n:
                named[n] = named[n][:, None]
        return named
    return transformers.Qwen3NextForCausalLM(transformers.Qwen3NextConfig(**config)), parameters


def gpt_oss(f):
    """With plain RoPE. The matrices of its experts are [in, out]; the columns of gate and up stand in turns. A dense FFN is one
    expert, which every token takes whole."""
    E, k = (f.number("experts"), f.number("experts-per-token")) if f.number("experts") else (1, 1)
    config = sizes(f, sliding_window=f.number("window"), num_local_experts=E, num_experts_per_tok=k,
                   experts_implementation="eager")
    config["intermediate_size"] = f.number("expert-hidden" if f.number("experts") else "ffn-hidden")
    m = transformers.GptOssForCausalLM(transformers.GptOssConfig(**config))

    def parameters(w):
        named = {n: p for n, p in w.items() if ".mlp." not in n}
        for layer in range(f.number("layers")):
            at = f"model.layers.{layer}.mlp."
            ours = f"{at}experts." if f.number("experts") else at
            for kind, theirs in (("weight", ""), ("bias", "_bias")):
                gate, up, down = (w[f"{ours}{x}_proj.{kind}"] for x in ("gate", "up", "down"))
                if not f.number("experts"):
                    gate, up, down = gate[None], up[None], down[None]
                if kind == "weight":
                    gate, up, down = gate.mT, up.mT, down.mT
                named[f"{at}experts.gate_up_proj{theirs}"] = torch.stack((gate, up), dim=-1).flatten(-2)
                named[f"{at}experts.down_proj{theirs}"] = down
                shape = (1, f.number("hidden")) if kind == "weight" else (1,)
                named[f"{at}router.{kind}"] = w.get(f"{at}gate.{kind}", torch.zeros(shape))
        return named
    return m, parameters


def gemma3(f):
    config = sizes(f, query_pre_attn_scalar=f.number("head-dim"), sliding_window=f.number("window"),
                   layer_types=["sliding_attention", "full_attention"])
    config["rope_parameters"] = {kind: config["rope_parameters"] for kind in config["layer_types"]}
    renamed = {"self_attn_out_layernorm": "post_attention_layernorm",
               "post_attention_layernorm": "pre_feedforward_layernorm",
               "mlp_out_layernorm": "post_feedforward_layernorm", "embed_scale": "embed_tokens.embed_scale"}

    def parameters(w):
        return {".".join(renamed.get(part, part) for part in n.split(".")): p for n, p in w.items()}
    return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**config)), parameters


def conv1d_names(w, embeddings):
    """GPT's and GPT-2's parameters: matrices are [in, out], those of q, k and v side by side."""
    named = {embeddings[n]: p for n, p in w.items() if n in embeddings}
    for n, p in w.items():
        layer, _, part = n.removeprefix("model.layers.").partition(".")
        at = f"transformer.h.{layer}."
        module, kind = part.rsplit(".", 1) if part else ("", "")
        theirs = {"input_layernorm": "ln_1", "post_attention_layernorm": "ln_2",
                  "self_attn.o_proj": "attn.c_proj", "mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj"}
        if module in theirs:
            named[f"{at}{theirs[module]}.{kind}"] = p.T if p.dim() == 2 else p
        if module == "self_attn.q_proj":
            joined = torch.cat([w[n.replace("q_proj", f"{x}_proj")] for x in "qkv"])
            named[f"{at}attn.c_attn.{kind}"] = joined.T if joined.dim() == 2 else joined
    return named


def gpt_sizes(f):
    return dict(vocab_size=f.number("vocab"), n_positions=f.number("context"), n_embd=f.number("hidden"),
                n_layer=f.number("layers"), n_head=f.number("heads"), resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
                bos_token_id=None, eos_token_id=None, attn_implementation="eager")


def gpt2(f):
    m = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_inner=f.number("ffn-hidden"), **gpt_sizes(f)))
    names = {"model.embed_tokens.weight": "transformer.wte.weight",
             "model.embed_positions.weight": "transformer.wpe.weight",
             "model.norm.weight": "transformer.ln_f.weight", "model.norm.bias": "transformer.ln_f.bias"}
    return m, lambda w: conv1d_names(w, names)


def gpt(f):
    """GPT of 2018: norms after the branches. Its FFN is four times as wide as the stream."""
    m = transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(afn="gelu", **gpt_sizes(f)))
    names = {"model.embed_tokens.weight": "transformer.tokens_embed.weight",
             "model.embed_positions.weight": "transformer.positions_embed.weight"}
    return m, lambda w: conv1d_names(w, names)


GPT = "--norm=layernorm --position=learned --ffn=gelu --ffn-bias=on --attn-bias=all --qk-norm=off "
libraries = {
    "": qwen3,
    "--tied=off": qwen3,
    "--attn-bias=qkv --qk-norm=off --heads=2 --kv-heads=1 --head-dim=10": qwen2,
    "--attn=g1 --norm-weight=zero-centred --rope-fraction=0.7 --tied=off": qwen3_next,
    "--mixer=hybrid --linear-key-dim=5 --linear-value-dim=7 --attn=g1 --norm-weight=zero-centred --rope-fraction=0.7 "
    "--tied=off": qwen3_next,
    "--mixer=gated-delta --linear-key-dim=5 --linear-value-dim=7 --conv-width=3 --norm-weight=zero-centred "
    "--tied=off": qwen3_next,
    "--attn-sink=learned --window=3 --window-layers=even --attn-bias=all --qk-norm=off --ffn=swiglu-clamped --ffn-bias=on "
    "--tied=off": gpt_oss,
    "--attn-sink=learned --window=3 --window-layers=even --attn-bias=all --qk-norm=off --ffn=swiglu-clamped --ffn-bias=on "
    "--tied=off --experts=4 --router-bias --balance-loss=0.3 --z-loss=0.1": gpt_oss,
    "--experts=6 --balance-loss=0.4 --z-loss=0.2 --tied=off": qwen3_moe,
    "--experts=5 --experts-per-token=3 --router-renormalise=off --dense-layers=1 --balance-loss=0.4": qwen3_moe,
    "--mixer=hybrid --linear-key-dim=5 --linear-value-dim=7 --attn=g1 --norm-weight=zero-centred --rope-fraction=0.7 "
    "--tied=off --experts=6 --experts-per-token=3 --shared-experts=2 --balance-loss=0.4 --z-loss=0.2": qwen3_next,
    "--norm-placement=sandwich --norm-weight=zero-centred --ffn=geglu --embedding-scale=on --window=4 "
    "--window-layers=even": gemma3,
    GPT + "--init=depth-scaled --kv-heads=4 --head-dim=5": gpt2,
    GPT + "--norm-placement=post --kv-heads=4 --head-dim=5 --ffn-hidden=80": gpt,
}
WHOLE = {"--tied=off", *(line for line, make in libraries.items()
                         if make in (gpt_oss, gpt2) and "--experts" not in line)}


def loss_and_gradients(logits, targets, weights, of_routers):
    """The loss without the routers' own, and the gradients of their sum."""
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    gradients = torch.autograd.grad(loss + of_routers, list(weights.values()))
    return {"loss": loss.detach(), "logits": logits[:, -1].detach()} | dict(zip(weights, gradients))


def published_router_losses(f, routers):
    """As router_losses, by transformers, where the shares of the slots are of the tokens: they add up to k."""
    k, total = f.number("experts-per-token"), 0.0
    for logits in routers:
        balance = modeling_qwen3_moe.load_balancing_loss_func((logits,), f.number("experts"), k) / k
        z = modeling_switch_transformers.router_z_loss_func(logits[None])
        total = total + float(f["balance-loss"]) * balance + float(f["z-loss"]) * z
    return total


def by_library(make, f, ids, targets, weights):
    # What transformers does in float32 whatever the weights are (norms, softmax, RoPE tables): here float64 too.
    with mock.patch.multiple(torch, float=torch.float64, float32=torch.float64), \
            mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
        m, parameters = make(f)
        routers = []
        for module in m.modules():
            if f.number("experts") and module.__class__.__name__.endswith("TopKRouter"):
                module.register_forward_hook(lambda module, inputs, outputs: routers.append(outputs[0]))
        named = parameters(weights)
        logits = torch.func.functional_call(m.double().eval(), named, (ids,), {"use_cache": False}).logits
        of_routers = published_router_losses(f, routers)
    assert len(routers) == sum(f.mixes_experts(layer) for layer in range(f.number("layers")))
    ours, theirs = set(named), {n for n, _ in m.named_parameters()} | {n for n in named if "embed_scale" in n}
    if f["tied"] == "on":
        theirs.discard("lm_head.weight")
    assert ours == theirs, f"{m.__class__.__name__}: parameters {ours ^ theirs}"
    return loss_and_gradients(logits, targets, weights, of_routers)


def relative_error(expected, got):
    scale = expected.abs().max().item()
    return (got - expected).abs().max().item() / (scale if scale > 1e-12 else 1)


def model_fixture(line, base):
    f, B = Flags(f"{base} {line}"), 2
    weights = Weights(f["norm-weight"] == "zero-centred")
    T, V = f.number("context"), f.number("vocab")
    ids, targets = (tokens(name, B * T, V).reshape(B, T) for name in ("ids", "targets"))
    routers = []
    logits = model(f, weights, ids, routers)
    results, source = loss_and_gradients(logits, targets, weights, router_losses(f, routers)), "formulas"
    if line in libraries:
        formulas, make = results, libraries[line]
        results, source = by_library(make, f, ids, targets, weights), f"transformers, {make.__name__}"
        worst = max((relative_error(formulas[n], results[n]), n) for n in results)
        print(f"{source}: differs from the formulas by {worst[0]:.1e} ({worst[1]})")
        assert worst[0] < 1e-12
    stored = {}
    for name, x in results.items():
        x = x.flatten()
        if x.numel() > 64 and name != "logits" and line not in WHOLE:
            directions = [values(f"direction {i} of {name}", x.numel()) for i in range(3)]
            x = torch.stack([x.norm()] + [x @ ((d + torch.where(d < 0, -1, 1)) / 2) for d in directions])
        stored[name] = x
    return {"flags": line, "source": source, "results": stored}


def small_models():
    """The base line and all lines of tests/small_models.h; neighbouring string literals are one."""
    with open(os.path.join(ROOT, "tests/small_models.h")) as file:
        text = re.sub(r"//.*", "", file.read())
    literal = r'"(?:[^"\\]|\\.)*"'
    lines = ["".join(part[1:-1] for part in re.findall(literal, run)) for run in
             re.findall(rf"{literal}(?:\s*{literal})*", re.sub(r"#include.*", "", text))]
    base = next(i for i, line in enumerate(lines) if line.startswith("--vocab="))
    sizes = (line for line in lines[:base + 1] if re.search(r"=\d", line))  # the widths stand in front
    return " ".join(sizes), lines[base + 1:]


# ---- single operations

class Operation:
    """Cases of one operation. Inputs are named in full: C++ makes the same."""

    def __init__(self, name):
        self.name, self.stored = name, {}

    def __call__(self, name, *shape, scale=1):
        return (scale * values(f"{self.name} {name}", *shape)).requires_grad_()

    def add(self, case, y, **inputs):
        """y, and the gradients of <y, dy>"""
        self.store(case, y=y)
        dy = values(f"{self.name} dy", *y.shape)
        gradients = torch.autograd.grad((y * dy).sum(), list(inputs.values()))
        self.store(case, **{f"d{name}": g for name, g in zip(inputs, gradients)})

    def store(self, case, **results):
        for name, x in results.items():
            self.stored[f"{case}: {name}" if case else name] = x.detach().flatten()


def op_fixtures():
    operations = []

    def operation(name):
        operations.append(Operation(name))
        return operations[-1]

    N, C = 3, 13
    op = operation("rmsnorm")
    x, pre, w = op("x", N, C), op("pre", C), op("w", C)
    for offset in (0, 1):
        op.add(f"offset {offset}", F.rms_norm(x, (C,), w + offset, 1e-6), x=x, w=w)
        op.add(f"pre, offset {offset}", F.rms_norm(pre * x, (C,), w + offset, 1e-6), x=x, w=w, pre=pre)

    op = operation("layernorm")
    x, w, b = op("x", N, C), op("w", C), op("b", C)
    op.add("", F.layer_norm(x, (C,), w, b, 1e-5), x=x, w=w, b=b)

    op = operation("dyt")
    x, alpha, w, b = op("x", N, C), op("alpha", 1), op("w", C), op("b", C)
    op.add("", torch.tanh(alpha * x) * w + b, x=x, alpha=alpha, w=w, b=b)

    op = operation("polynorm")
    x, w, b = op("x", N, C), op("w", 3), op("b", 1)
    op.add("", polynorm(x, w, b), x=x, w=w, b=b)

    op = operation("attention")
    B, T, H, KVH, D = 2, 5, 4, 2, 3
    q, k, v = op("q", B, T, H, D, scale=2), op("k", B, T, KVH, D, scale=2), op("v", B, T, KVH, D)
    sink, key, value = op("sink", H), op("key", H, D), op("value", H, D)
    qkv = {"q": q, "k": k, "v": v}
    for window in (0, 3):
        back = torch.arange(T)[:, None] - torch.arange(T)
        seen = (back >= 0) & (back < (window or T))
        by_torch = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), attn_mask=seen,
                                                  enable_gqa=True).transpose(1, 2)
        for kind, more, parameters in (("softmax", {}, {}), ("sigmoid", {"score_bias": -1.5}, {}),
                                       ("sink", {"sink": sink}, {"sink": sink}),
                                       ("kv bias", {"kv_bias": (key, value)},
                                        {"key": key, "value": value})):
            o, lse = attention(q, k, v, window, **more)
            op.add(f"{kind}, window {window}", by_torch if kind == "softmax" else o, **qkv, **parameters)
            if lse is not None:
                op.store(f"{kind}, window {window}", lse=lse)

    op = operation("gate")
    N, H, D = 2, 3, 4
    x, theta = op("x", N, H, D), op("theta", H, D, scale=4)
    z, z_head = op("z", N, H, D, scale=4), op("z", N, H, 1, scale=4)
    for sign, act, scale in (("*", "sigmoid", 1), ("*", "ns-sigmoid", 1), ("*", "silu", 2), ("*", "tanh", 1),
                             ("*", "identity", 0.75), ("+", "sigmoid", 1), ("+", "ns-sigmoid", 1),
                             ("+", "silu", 1), ("+", "tanh", 0.3), ("+", "identity", 1)):
        scale = torch.tensor(scale, dtype=torch.float32).double()  # options are floats

        def gated(score):
            return x * score if sign == "*" else x + score
        case = f"{sign} {act.replace('-', '_')}, scale {scale:g}"
        op.add(f"{case}, element", gated(scale * ACTIVATIONS[act](z)), x=x, z=z)
        op.add(f"{case}, head", gated(scale * ACTIVATIONS[act](z_head)), x=x, z=z_head)
        op.add(f"{case}, shared", gated(scale * ACTIVATIONS[act](z).mean(1, keepdim=True)), x=x, z=z)
        op.add(f"{case}, static", gated(scale * ACTIVATIONS[act](theta)), x=x, theta=theta)

    op = operation("head_experts")
    N, H, E, D = 3, 2, 5, 4
    x, z = op("x", N, H, E, D), op("z", N, H, E, scale=4)
    for k in (1, 3, 5):
        op.add(f"{k} of {E}", head_experts(x, z, k), x=x, z=z)

    n = 24
    op = operation("glu")
    g, u = op("g", n, scale=4), op("u", n)
    for act in ("sigmoid", "silu", "gelu-tanh", "gelu-erf"):
        op.add(act.replace("-", "_"), ACTIVATIONS[act](g) * u, g=g, u=u)

    op = operation("swiglu_clamped")
    g, u = op("g", n, scale=10), op("u", n, scale=10)
    op.add("", swiglu_clamped(g, u), g=g, u=u)

    op = operation("activation")
    x = op("x", n, scale=4)
    for act in ("silu", "gelu-tanh", "gelu-erf", "relu2"):
        op.add(act.replace("-", "_"), ACTIVATIONS[act](x), x=x)

    op = operation("rope")
    B, T, H, D = 2, 5, 2, 6
    x = op("x", B, T, H, D)
    for R in (6, 4):
        turns = rotations(T, R, 10000.0)
        op.store(f"{R} turn", cos=turns.real, sin=turns.imag)
        op.add(f"{R} turn", rope(x, turns), x=x)

    # transformers computes these in float32.
    op = operation("yarn")
    for theta, R, trained, scale in ((1e6, 128, 32768, 4), (1e4, 32, 128, 4), (1e4, 32, 128, 1.5), (500, 12, 64, 8)):
        config = transformers.Qwen3Config(
            head_dim=R, max_position_embeddings=int(scale * trained),
            rope_parameters={"rope_type": "yarn", "rope_theta": theta, "factor": scale,
                             "original_max_position_embeddings": trained})
        frequencies, factor = modeling_rope_utils.ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
        op.store(f"{R} turn, trained with {trained}, times {scale:g}",
                 frequencies=frequencies, factor=torch.tensor([factor]))

    op = operation("linear_cross_entropy")
    N, C, V = 6, 5, 11
    h, w = op("h", N, C, scale=2), op("w", V, C, scale=2)
    targets = tokens("linear_cross_entropy targets", N, V)
    targets[1] = -1
    losses = F.cross_entropy(h @ w.T, targets, ignore_index=-1, reduction="none")
    dh, dw = torch.autograd.grad(losses.sum() / N, (h, w))
    op.store("", losses=losses, dh=dh, dw=dw)

    # In chunks by transformers, which takes queries unscaled.
    op = operation("gated_delta")
    B, T, Hk, Hv, Dk, Dv = 1, 130, 1, 2, 5, 3
    q, k, v = op("q", B, T, Hk, Dk), op("k", B, T, Hk, Dk, scale=0.75), op("v", B, T, Hv, Dv)
    g, beta, state = op("g", B, T, Hv), op("beta", B, T, Hv), op("state", B, Hv, Dk, Dv)
    decay, strength = -g.abs(), (1 + beta) / 2
    with mock.patch.object(torch, "float32", torch.float64):
        o, end = modeling_qwen3_next.torch_chunk_gated_delta_rule(
            q * math.sqrt(Dk), k, v, decay, strength, initial_state=state, output_final_state=True)
    by_token = gated_delta_rule(*(x.repeat_interleave(Hv // Hk, dim=2) for x in (q, k)), v, decay, strength, state)
    worst = max(relative_error(*pair) for pair in zip(by_token, (o, end)))
    print(f"transformers, torch_chunk_gated_delta_rule: differs from the formulas by {worst:.1e}")
    assert worst < 1e-12
    op.store("", o=o, final=end)

    return {op.name: op.stored for op in operations}


# ---- the files: one tensor a line

def dump(x, digits, indent=""):
    if isinstance(x, torch.Tensor):
        return f"[{', '.join(f'{v:.{digits}g}' for v in x.tolist())}]"
    if isinstance(x, dict):
        entries = (f"{indent} {json.dumps(key)}: {dump(entry, digits, indent + ' ')}" for key, entry in x.items())
        return "{\n" + ",\n".join(entries) + f"\n{indent}}}"
    if isinstance(x, list):
        return "[" + ", ".join(dump(entry, digits, indent) for entry in x) + "]"
    return json.dumps(x)


def main():
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "tests/fixtures")
    base, lines = small_models()
    lines = list(dict.fromkeys([re.sub(r"--dropout=\S+ ?", "", line) for line in lines] + list(libraries)))
    versions = {"torch": torch.__version__.partition("+")[0], "transformers": transformers.__version__}
    for name, content, digits in (("models", {"models": [model_fixture(line, base) for line in lines]}, 9),
                                  ("ops", {"operations": op_fixtures()}, 13)):
        path = os.path.join(folder, f"{name}.json")
        with open(path, "w") as file:
            file.write(dump(versions | content, digits) + "\n")
        print(f"wrote {path}, {os.path.getsize(path)} bytes")


if __name__ == "__main__":
    main()
