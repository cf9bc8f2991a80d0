#!/usr/bin/env python3
"""Makes tests/fixtures/bf16.json: how far transformers' models and PyTorch's attention in bfloat16 are from the truth;
tests compare.

usage: pip install torch transformers && scripts/make_bf16_fixture.py [FOLDER]     CPU only, no download, seconds

Of each line of flags the model of transformers computes logits and gradients twice: in float64 and in bfloat16, with
the same parameters (the second rounds them first). Stored are the relative errors of the second, as 2-norms: of the
logits after each sequence's last token, and of all gradients together. Weights and tokens are those of
scripts/make_fixtures.py. Of attention they are the errors of its output and its gradients, all from numbers that are
bfloat16's in both.
"""
import json

import torch
import torch.nn.functional as F

import make_fixtures as fixtures
from common import write_fixture

BASE = "--vocab=96 --context=64 --layers=2 --hidden=64 --heads=4 --kv-heads=2 --head-dim=16 --ffn-hidden=160"
LINES = {
    "": fixtures.qwen3,
    "--attn=g1 --norm-weight=zero-centred --rope-fraction=0.5 --tied=off": fixtures.qwen3_next,
    "--norm-placement=sandwich --norm-weight=zero-centred --ffn=geglu --embedding-scale=on --window=20 "
    "--window-layers=even": fixtures.gemma3,
    fixtures.GPT + "--init=depth-scaled --kv-heads=4": fixtures.gpt2,
}
BATCH = 2


def results(make, f, weights, ids, targets, dtype):
    m, parameters = make(f)
    weights = {name: w.detach().to(dtype).requires_grad_() for name, w in weights.items()}
    logits = torch.func.functional_call(m.to(dtype).eval(), parameters(weights), (ids,), {"use_cache": False}).logits
    loss = F.cross_entropy(logits.double().flatten(0, 1), targets.flatten())
    gradients = torch.autograd.grad(loss, list(weights.values()))
    return logits[:, -1].detach().double(), torch.cat([g.flatten().double() for g in gradients])


def error(truth, got):
    return ((got - truth).norm() / truth.norm()).item()


def fixture(line, make):
    # (transformers asks for the width of experts that are not there).
    f = fixtures.flags_of(f"{BASE} --expert-hidden=1 {line}")
    ids, targets = fixtures.batch(BATCH, f["context"], f["vocab"])
    weights = fixtures.weights_of(fixtures.model_of(f), f["norm-weight"] == "zero-centred")
    truth = results(make, f, weights, ids, targets, torch.float64)
    torch.set_default_dtype(torch.float32)
    rounded = results(make, f, weights, ids, targets, torch.bfloat16)
    torch.set_default_dtype(torch.float64)
    logits, gradient = (error(*pair) for pair in zip(truth, rounded))
    print(f"{make.__name__:12} logits {logits:.2e}  gradient {gradient:.2e}  {line}")
    return {"flags": f"{BASE} {line}", "source": f"transformers, {make.__name__}", "logits": logits,
            "gradient": gradient}


def attention(T=130, heads=2, kv_heads=1, D=32):
    names = {"q": heads, "k": kv_heads, "v": kv_heads, "dout": heads}
    inputs = {name: fixtures.values(f"attention_bf16 {name}", T, h, D).bfloat16() for name, h in names.items()}

    def results(dtype):
        q, k, v, dout = (x.to(dtype).transpose(0, 1)[None] for x in inputs.values())
        leaves = [x.requires_grad_() for x in (q * 2, k * 2, v)]
        o = F.scaled_dot_product_attention(*leaves, is_causal=True, enable_gqa=True)
        return [x.double() for x in (o, *torch.autograd.grad(o, leaves, dout))]

    errors = [error(*pair) for pair in zip(results(torch.float64), results(torch.bfloat16))]
    found = dict(zip(("o", "dq", "dk", "dv"), errors))
    print("attention   ", "  ".join(f"{name} {e:.2e}" for name, e in found.items()))
    return {"T": T, "heads": heads, "kv_heads": kv_heads, "D": D} | found


content = {"batch": BATCH, "models": [fixture(*line) for line in LINES.items()], "attention": attention()}
write_fixture("bf16.json", json.dumps(fixtures.VERSIONS | content, indent=1))
