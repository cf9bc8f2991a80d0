#!/usr/bin/env python3
"""Makes tests/fixtures/*.json: results of PyTorch and transformers, which tests/test_fixtures.cpp compares with.

usage: pip install torch transformers && scripts/make_fixtures.py [FOLDER]     CPU only, no download, seconds

models.json  loss, logits after each sequence's last token, and the gradient of every parameter of tiny models,
             one for each line of flags in tests/fixtures/small_models.txt (without its dropout, whose bits are this
             project's own) and in `libraries` below. What transformers has, it computes, and the results must
             agree with training/models/modeling_gated.py to twelve digits, which computes the other lines: it is
             what --export writes beside a model that transformers has not. "formulas" is FNV-1a of that file: a test
             says when it has changed since. (Other models of transformers: scripts/make_models.py.)
ops.json     outputs and gradients of single operations.

All in float64. Weights and inputs are not stored: both sides make them from a name by `values`, exact in float32.

Gradients are autograd's. One of more than 64 entries is stored as its 2-norm and its dot products with three
vectors that both sides make, whose entries have random signs and sizes between 1/2 and 1: one wrong entry changes
every product by at least half its error, and errors that cancel in one product do not cancel in the next. For
Qwen3 and GPT-2 every entry is stored. Where there are experts, "loss" is without the losses of their routers, as
./train prints it, and the gradients are of the sum.
"""
import contextlib
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

from common import ROOT, read, write_fixture

sys.path.insert(0, os.path.join(ROOT, "training/models"))
import modeling_gated
from modeling_gated import (ACTIVATIONS, attention, attention_scores, gated_delta_rule, head_experts, polynorm, rope,
                            rotations, swiglu_clamped)

WORD = 2**64 - 1
VERSIONS = {"torch": torch.__version__.partition("+")[0], "transformers": transformers.__version__}
torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)


# ---- numbers that both sides make

def fnv1a(text):
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = (h ^ byte) * 0x100000001B3 & WORD
    return h


def values(name, *shape):
    """Multiples of 2^-22 in [-1, 1): random_values of tests/harness.h, seeded by FNV-1a of the name."""
    s = (fnv1a(name) * 0x9E3779B97F4A7C15 + 0x1234567) & WORD
    numbers = []
    for _ in range(math.prod(shape)):
        s ^= s << 13 & WORD
        s ^= s >> 7
        s ^= s << 17 & WORD
        numbers.append(((s >> 41) - 2**22) / 2**22)
    return torch.tensor(numbers).reshape(shape)


def tokens(name, n, vocab):
    return ((values(name, n) + 1) / 2 * vocab).floor().long()


def batch(B, T, vocab):
    """Tokens and targets (B,T)."""
    return (tokens(name, B * T, vocab).reshape(B, T) for name in ("ids", "targets"))


def weights_of(m, zero_centred):
    """The parameters of a model by name: around 1 where they scale, around 0 elsewhere."""
    scaling = ("pre_weight", "alpha", "embed_scale",
               "linear_attn.norm.weight") + (() if zero_centred else ("norm.weight",))
    return {name: (name.endswith(scaling) + values(name, *p.shape) / 4).requires_grad_()
            for name, p in m.named_parameters()}


# ---- the model of a line of flags

def typed(value):
    """As ./train --export writes the value of a flag."""
    if value in ("on", "off"):
        return value == "on"
    try:
        return json.loads(value)
    except ValueError:
        return value


def said(line):
    """The flags of a line, and their values."""
    words = (word.removeprefix("--").partition("=") for word in line.split())
    return {name: typed(value or "on") for name, _, value in words}


DEFAULTS = said(
    "--norm=rmsnorm --norm-placement=pre --norm-weight=plain --norm-eps=0 --norm-rank=16 --norm-gate=elementwise "
    "--norm-gate-act=sigmoid --norm-gate-scale=1 --attn=full --gate=elementwise --gate-op=mul --gate-act=sigmoid "
    "--head-experts=0 --head-experts-per-token=1 --head-experts-of=v --attn-score=softmax --attn-sink=none "
    "--sdpa-out=plain --window=0 --window-layers=all --full-every=6 --score-dim=0 --rope-scaling=none "
    "--window-rope-theta=0 --embedding-factor=1 --qk-norm=on --attn-bias=none --position=rope --rope-theta=10000 "
    "--rope-fraction=1 --ffn=swiglu --gelu=tanh --ffn-bias=off --tied=on --embedding-scale=off --residual=on "
    "--clip-residual=0 --clip-output=0 --mixer=attention --attention-every=4 --linear-key-heads=2 "
    "--linear-value-heads=4 --linear-key-dim=32 --linear-value-dim=32 --conv-width=4 --delta=recurrent --experts=0 "
    "--experts-per-token=2 --dense-layers=0 --shared-experts=0 --shared-expert-gate=on --router-renormalise=on "
    "--router-bias=off --balance-loss=0.001 --balance-over=global --z-loss=0.001")
INITIAL = {"init", "norm-gate-init", "dyt-alpha"}  # where weights start: not here
SIZES = {"vocab", "context", "layers", "hidden", "heads", "kv-heads", "head-dim", "ffn-hidden", "expert-hidden"}


def flags_of(line):
    """Every flag of a line, or its default. One that nothing here computes is refused."""
    flags = DEFAULTS | said(line)
    unknown = set(flags) - set(DEFAULTS) - INITIAL - SIZES
    assert not unknown, f"{line}: nothing here computes {unknown}"
    flags["attention-every"] = min(flags["attention-every"], flags["layers"])
    return flags


def model_of(f):
    return modeling_gated.GatedForCausalLM(modeling_gated.GatedConfig(f))


def logits_of(m, weights, ids, routers):
    """Logits (B,T,V). Those of every router (B*T,E) join `routers`."""
    for module in m.modules():
        if isinstance(module, modeling_gated.Mixture):
            module.gate.register_forward_hook(lambda module, inputs, logits: routers.append(logits))
    return torch.func.functional_call(m, weights, (ids,)).logits


def router_losses(f, routers):
    """The sum over the layers of the balance loss and the z-loss, with their factors, of one micro-batch."""
    E, k, total = f["experts"], f["experts-per-token"], 0.0
    for logits in routers:
        p = logits.softmax(-1)
        largest = p.topk(min(k + 1, E), dim=-1)
        if k < E:  # float32 must choose alike
            assert (largest.values[:, k - 1] - largest.values[:, k]).min() > 1e-4, "a token's choice is nearly a tie"
        slots = torch.bincount(largest.indices[:, :k].flatten(), minlength=E)
        balance = E * (slots / slots.sum() * p.mean(0)).sum()
        total = total + f["balance-loss"] * balance + f["z-loss"] * logits.logsumexp(-1).square().mean()
    return total


# ---- the same by transformers: a line of flags, what it is called there, and its parameters from ours

def sizes(f, **more):
    rope = {"rope_type": "default", "rope_theta": f["rope-theta"]}
    return dict(vocab_size=f["vocab"], hidden_size=f["hidden"],
                intermediate_size=f["ffn-hidden"], num_hidden_layers=f["layers"],
                num_attention_heads=f["heads"], num_key_value_heads=f["kv-heads"],
                head_dim=f["head-dim"], max_position_embeddings=f["context"], rope_parameters=rope,
                rms_norm_eps=1e-6, pad_token_id=None, tie_word_embeddings=f["tied"],
                attn_implementation="eager") | more


def qwen3(f):
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes(f))), dict


def experts_of(f, **more):
    return dict(num_experts=f["experts"], num_experts_per_tok=f["experts-per-token"],
                moe_intermediate_size=f["expert-hidden"], norm_topk_prob=f["router-renormalise"],
                mlp_only_layers=list(range(f["dense-layers"])), experts_implementation="eager") | more


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


def side_by_side(heads, matrices):
    """The rows of all matrices of head 0, then those of head 1, and so on."""
    return torch.cat([m.unflatten(0, (heads, -1)) for m in matrices], dim=1).flatten(0, 1)


def qwen3_next(f):
    """Its q_proj has the rows of our q_proj and g_proj, head by head in turns; its linear layers have the rows of q, k,
    v and z, and those of b and a, key head by key head."""
    kinds = ["full_attention" if modeling_gated.attends(f, i) else "linear_attention" for i in range(f["layers"])]
    experts = experts_of(f, shared_expert_intermediate_size=f["shared-experts"] * f["expert-hidden"])
    config = sizes(f, **experts, layer_types=kinds, linear_conv_kernel_dim=f["conv-width"],
                   linear_key_head_dim=f["linear-key-dim"], linear_num_key_heads=f["linear-key-heads"],
                   linear_value_head_dim=f["linear-value-dim"],
                   linear_num_value_heads=f["linear-value-heads"])
    heads = f["linear-key-heads"]
    keys = heads * f["linear-key-dim"]
    config["rope_parameters"]["partial_rotary_factor"] = f["rope-fraction"]

    def parameters(w):
        named = gate_beside_up({n: p for n, p in w.items() if "g_proj" not in n})
        for n in list(named):
            if "q_proj" in n:
                both = w[n], w[n.replace("q_proj", "g_proj")]
                named[n] = side_by_side(f["heads"], both)
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


def gemma3(f):
    config = sizes(f, query_pre_attn_scalar=f["head-dim"], sliding_window=f["window"],
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
    return dict(vocab_size=f["vocab"], n_positions=f["context"], n_embd=f["hidden"],
                n_layer=f["layers"], n_head=f["heads"], resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
                bos_token_id=None, eos_token_id=None, attn_implementation="eager")


def gpt2(f):
    m = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_inner=f["ffn-hidden"], **gpt_sizes(f)))
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
    "--attn=g1 --norm-weight=zero-centred --rope-fraction=0.7 --tied=off": qwen3_next,
    "--mixer=hybrid --linear-key-dim=5 --linear-value-dim=7 --attn=g1 --norm-weight=zero-centred --rope-fraction=0.7 "
    "--tied=off": qwen3_next,
    "--mixer=gated-delta --linear-key-dim=5 --linear-value-dim=7 --conv-width=3 --norm-weight=zero-centred "
    "--tied=off": qwen3_next,
    "--experts=5 --experts-per-token=3 --router-renormalise=off --dense-layers=1 --balance-loss=0.4": qwen3_moe,
    "--mixer=hybrid --linear-key-dim=5 --linear-value-dim=7 --attn=g1 --norm-weight=zero-centred --rope-fraction=0.7 "
    "--tied=off --experts=6 --experts-per-token=3 --shared-experts=2 --balance-loss=0.4 --z-loss=0.2": qwen3_next,
    "--norm-placement=sandwich --norm-weight=zero-centred --ffn=geglu --embedding-scale=on --window=4 "
    "--window-layers=even": gemma3,
    GPT + "--init=depth-scaled --kv-heads=4 --head-dim=5": gpt2,
    GPT + "--norm-placement=post --kv-heads=4 --head-dim=5 --ffn-hidden=80": gpt,
}
WHOLE = {"--tied=off", *(line for line, make in libraries.items() if make == gpt2)}


def loss_and_gradients(logits, targets, weights, of_routers):
    """The loss without the routers' own, and the gradients of their sum."""
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    gradients = torch.autograd.grad(loss + of_routers, list(weights.values()))
    return {"loss": loss.detach(), "logits": logits[:, -1].detach()} | dict(zip(weights, gradients))


def published_router_losses(f, routers):
    """As router_losses, by transformers, where the shares of the slots are of the tokens: they add up to k."""
    k, total = f["experts-per-token"], 0.0
    for logits in routers:
        balance = modeling_qwen3_moe.load_balancing_loss_func((logits,), f["experts"], k) / k
        z = modeling_switch_transformers.router_z_loss_func(logits[None])
        total = total + f["balance-loss"] * balance + f["z-loss"] * z
    return total


@contextlib.contextmanager
def in_float64():
    """What transformers does in float32 whatever the weights are (norms, softmax, RoPE tables): in float64 too."""
    with mock.patch.multiple(torch, float=torch.float64, float32=torch.float64), \
            mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
        yield


def by_library(make, f, ids, targets, weights):
    with in_float64():
        m, parameters = make(f)
        routers = []
        for module in m.modules():
            if f["experts"] and module.__class__.__name__.endswith("TopKRouter"):
                module.register_forward_hook(lambda module, inputs, outputs: routers.append(outputs[0]))
        named = parameters(weights)
        logits = torch.func.functional_call(m.double().eval(), named, (ids,), {"use_cache": False}).logits
        of_routers = published_router_losses(f, routers)
    assert len(routers) == (f["layers"] - f["dense-layers"] if f["experts"] else 0)
    ours, theirs = set(named), {n for n, _ in m.named_parameters()} | {n for n in named if "embed_scale" in n}
    if f["tied"]:
        theirs.discard("lm_head.weight")
    assert ours == theirs, f"{m.__class__.__name__}: parameters {ours ^ theirs}"
    return loss_and_gradients(logits, targets, weights, of_routers)


def relative_error(expected, got):
    scale = expected.abs().max().item()
    return (got - expected).abs().max().item() / (scale if scale > 1e-12 else 1)


def stored(name, x):
    """All entries of few; of many the 2-norm and three products."""
    x = x.double().flatten()
    if x.numel() <= 64:
        return x
    directions = [values(f"direction {i} of {name}", x.numel()) for i in range(3)]
    return torch.stack([x.norm()] + [x @ ((d + torch.where(d < 0, -1, 1)) / 2) for d in directions])


def model_fixture(line, base):
    f, routers = flags_of(f"{base} {line}"), []
    m = model_of(f)
    weights = weights_of(m, f["norm-weight"] == "zero-centred")
    ids, targets = batch(2, f["context"], f["vocab"])
    logits = logits_of(m, weights, ids, routers)
    results, source = loss_and_gradients(logits, targets, weights, router_losses(f, routers)), "formulas"
    if line in libraries:
        formulas, make = results, libraries[line]
        results, source = by_library(make, f, ids, targets, weights), f"transformers, {make.__name__}"
        worst = max((relative_error(formulas[n], results[n]), n) for n in results)
        print(f"{source}: differs from the formulas by {worst[0]:.1e} ({worst[1]})")
        assert worst[0] < 1e-12
    whole = results if line in WHOLE else ("logits",)
    kept = {name: x.flatten() if name in whole else stored(name, x) for name, x in results.items()}
    shapes = sorted(f"{name}[{','.join(str(n) for n in p.shape)}]\n" for name, p in weights.items())
    return {"flags": line, "source": source, "parameters": f"{fnv1a(''.join(shapes)):016x}", "results": kept}


def small_models():
    """The sizes that stand in tests/small_models.h, and all lines of tests/fixtures/small_models.txt."""
    sizes = re.findall(r'"(--[^"]*=\d[^"]*)"', read(os.path.join(ROOT, "tests/small_models.h")))
    lines = read(os.path.join(ROOT, "tests/fixtures/small_models.txt")).splitlines()
    return " ".join(sizes), ["", *(line for line in lines if line and line[0] != "#")]


# ---- single operations

class Operation:
    """Cases of one operation. Inputs are named in full: C++ makes the same."""
    all = {}

    def __init__(self, name):
        self.name = name
        self.stored = Operation.all[name] = {}

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
    N, C = 3, 13
    op = Operation("rmsnorm")
    x, pre, w = op("x", N, C), op("pre", C), op("w", C)
    for offset in (0, 1):
        op.add(f"offset {offset}", F.rms_norm(x, (C,), w + offset, 1e-6), x=x, w=w)
        op.add(f"pre, offset {offset}", F.rms_norm(pre * x, (C,), w + offset, 1e-6), x=x, w=w, pre=pre)

    op = Operation("layernorm")
    x, w, b = op("x", N, C), op("w", C), op("b", C)
    op.add("", F.layer_norm(x, (C,), w, b, 1e-5), x=x, w=w, b=b)

    op = Operation("dyt")
    x, alpha, w, b = op("x", N, C), op("alpha", 1), op("w", C), op("b", C)
    op.add("", torch.tanh(alpha * x) * w + b, x=x, alpha=alpha, w=w, b=b)

    op = Operation("polynorm")
    x, w, b = op("x", N, C), op("w", 3), op("b", 1)
    op.add("", polynorm(x, w, b), x=x, w=w, b=b)

    op = Operation("attention")
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
            o = attention(q, k, v, window=window, **more)
            op.add(f"{kind}, window {window}", by_torch if kind == "softmax" else o, **qkv, **parameters)
            if kind != "sigmoid":
                op.store(f"{kind}, window {window}", lse=attention_scores(q, k, window, **more).logsumexp(-1))

    op = Operation("gate")
    N, H, D = 2, 3, 4
    x, theta = op("x", N, H, D), op("theta", H, D, scale=4)
    z, z_head = op("z", N, H, D, scale=4), op("z", N, H, 1, scale=4)
    for sign, act, scale in (("*", "sigmoid", 1), ("*", "ns-sigmoid", 1), ("*", "silu", 2), ("*", "tanh", 1),
                             ("*", "identity", 0.75), ("+", "sigmoid", 1), ("+", "ns-sigmoid", 1),
                             ("+", "silu", 1), ("+", "tanh", 0.3), ("+", "identity", 1)):
        scale = torch.tensor(scale, dtype=torch.float32).double()  # options are floats

        def gated(score):
            return x * score if sign == "*" else x + score
        case = f"{sign} {act}, scale {scale:g}"
        op.add(f"{case}, element", gated(scale * ACTIVATIONS[act](z)), x=x, z=z)
        op.add(f"{case}, head", gated(scale * ACTIVATIONS[act](z_head)), x=x, z=z_head)
        op.add(f"{case}, shared", gated(scale * ACTIVATIONS[act](z).mean(1, keepdim=True)), x=x, z=z)
        op.add(f"{case}, static", gated(scale * ACTIVATIONS[act](theta)), x=x, theta=theta)

    op = Operation("head_experts")
    N, H, E, D = 3, 2, 5, 4
    x, z = op("x", N, H, E, D), op("z", N, H, E, scale=4)
    for k in (1, 3, 5):
        op.add(f"{k} of {E}", head_experts(x, z, k), x=x, z=z)

    n = 24
    op = Operation("glu")
    g, u = op("g", n, scale=4), op("u", n)
    for act in ("sigmoid", "silu", "gelu-tanh", "gelu-erf"):
        op.add(act.replace("-", "_"), ACTIVATIONS[act](g) * u, g=g, u=u)

    op = Operation("swiglu_clamped")
    g, u = op("g", n, scale=10), op("u", n, scale=10)
    op.add("", swiglu_clamped(g, u), g=g, u=u)

    op = Operation("activation")
    x = op("x", n, scale=4)
    for act in ("silu", "gelu-tanh", "gelu-erf", "relu2"):
        op.add(act.replace("-", "_"), ACTIVATIONS[act](x), x=x)

    op = Operation("rope")
    B, T, H, D = 2, 5, 2, 6
    x = op("x", B, T, H, D)
    for R in (6, 4):
        turns = rotations(T, R, 10000.0)
        op.store(f"{R} turn", cos=turns[0], sin=turns[1])
        op.add(f"{R} turn", rope(x, turns), x=x)

    # transformers computes these in float32.
    op = Operation("yarn")
    for theta, R, trained, scale in ((1e6, 128, 32768, 4), (1e4, 32, 128, 4), (1e4, 32, 128, 1.5), (500, 12, 64, 8)):
        config = transformers.Qwen3Config(
            head_dim=R, max_position_embeddings=int(scale * trained),
            rope_parameters={"rope_type": "yarn", "rope_theta": theta, "factor": scale,
                             "original_max_position_embeddings": trained})
        frequencies, factor = modeling_rope_utils.ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
        op.store(f"{R} turn, trained with {trained}, times {scale:g}",
                 frequencies=frequencies, factor=torch.tensor([factor]))

    op = Operation("linear_cross_entropy")
    N, C, V = 6, 5, 11
    h, w = op("h", N, C, scale=2), op("w", V, C, scale=2)
    targets = tokens("linear_cross_entropy targets", N, V)
    losses = F.cross_entropy(h @ w.T, targets, reduction="none")
    dh, dw = torch.autograd.grad(losses.sum() / N, (h, w))
    op.store("", losses=losses, dh=dh, dw=dw)

    # In chunks by transformers, which takes queries unscaled.
    op = Operation("gated_delta")
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

    return Operation.all


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
    base, lines = small_models()
    lines = list(dict.fromkeys([re.sub(r"--dropout=\S+ ?", "", line) for line in lines] + list(libraries)))
    formulas = f"{fnv1a(read(modeling_gated.__file__)):016x}"
    models = {"formulas": formulas, "models": [model_fixture(line, base) for line in lines]}
    write_fixture("models.json", dump(VERSIONS | models, 9))
    write_fixture("ops.json", dump(VERSIONS | {"operations": op_fixtures()}, 13))


if __name__ == "__main__":
    main()
