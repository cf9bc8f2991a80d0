#!/usr/bin/env python3
"""Makes tests/fixtures/hf_models.json: tiny models of transformers, which tests/test_hf_model.cpp reads as folders.

usage: pip install torch transformers && scripts/make_models.py [FOLDER]     CPU only, no download, seconds

Of every architecture that --from reads: its config.json, from the file; the name and shape of each tensor as
save_pretrained stores it; and what the model computes in float64 with weights that both sides make from these names:
the loss, the logits after each sequence's last token, and the gradient of every stored tensor. Gradients are stored as
scripts/make_fixtures.py stores them, which also says how the weights are made.

The gates of arXiv 2505.06708 in the layout that its authors released are no model of transformers: their tensors are
taken apart here, and training/models/modeling_gated.py computes the rest.
A model that is added to the file as {"name": ..., "config": ...} gets the rest here.
"""
import json
import os
import tempfile

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file

from common import ROOT, read, write_fixture
from make_fixtures import VERSIONS, batch, dump, flags_of, in_float64, logits_of, model_of, stored, values

B, T = 2, 11


def around(name, shape, zero_centred):
    """What a tensor's values lie around: 1 where it scales."""
    if name.endswith("linear_attn.norm.weight"):
        return 1
    return int(len(shape) == 1 and name.endswith(("norm.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight"))
               and not zero_centred)


def weights(shapes, zero_centred):
    return {n: around(n, shape, zero_centred) + values(n, *shape) / 4 for n, shape in shapes.items()}


def results(logits, targets, gradients):
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return {"loss": loss.detach().reshape(1), "logits": logits[:, -1].detach().flatten(),
            "gradients": {n: stored(n, g) for n, g in gradients(loss).items()}}


def fixture(name, config, shapes, zero_centred, results):
    tensors = {n: {"shape": list(s), "around": around(n, s, zero_centred)} for n, s in shapes.items()}
    return {"name": name, "config": config, "tensors": tensors, "results": results}


def by_transformers(name, config):
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "model.safetensors")

        def on_disk(m):
            m.save_pretrained(folder)
            return load_file(file)
        # Saved once for its names and shapes; with the values that belong to them it is opened again.
        shapes = {n: tuple(x.shape) for n, x in on_disk(transformers.AutoModelForCausalLM.from_config(config)).items()}
        zero_centred = config.model_type in ("qwen3_next", "gemma3_text")
        save_file({n: x.float().contiguous() for n, x in weights(shapes, zero_centred).items()}, file, {"format": "pt"})
        written = json.loads(read(os.path.join(folder, "config.json")))
        m = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32,
                                                              experts_implementation="eager").double().eval()
        with in_float64():
            # Buffers that were made in float32 are made again.
            for module in m.modules():
                if "RotaryEmbedding" in module.__class__.__name__:
                    module.__init__(m.config)
            ids, targets = batch(B, T, written["vocab_size"])
            logits = m(ids, use_cache=False).logits

        def gradients(loss):
            loss.backward()
            for p in m.parameters():
                p.data = p.grad
            return on_disk(m)
        return fixture(name, written, shapes, zero_centred, results(logits, targets, gradients))


# ---- the released layout of gates

def released_gates(name, config, tensors):
    kind = "headwise" if config["headwise_attn_output_gate"] else "elementwise"
    H, K, D, C, F, vocab, layers = (config[key] for key in (
        "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size", "intermediate_size", "vocab_size",
        "num_hidden_layers"))
    scores = H // K if kind == "headwise" else H // K * D
    shapes = {n: tuple(t["shape"]) for n, t in tensors.items()}
    theirs = {n: x.double().requires_grad_() for n, x in weights(shapes, False).items()}
    ours = dict(theirs)
    for n in shapes:
        if "q_proj" in n:  # of each key/value head first its queries, then their scores
            queries, gates = theirs[n].unflatten(0, (K, -1)).split([H // K * D, scores], dim=1)
            ours[n], ours[n.replace("q_proj", "g_proj")] = queries.flatten(0, 1), gates.flatten(0, 1)

    ids, targets = batch(B, T, vocab)
    f = flags_of(f"--vocab={vocab} --context={T} --layers={layers} --hidden={C} --heads={H} --kv-heads={K} "
                 f"--head-dim={D} --ffn-hidden={F} --attn=g1 --gate={kind}")
    logits = logits_of(model_of(f), ours, ids, [])
    of_ours = results(logits, targets, lambda loss: dict(zip(theirs, torch.autograd.grad(loss, list(theirs.values())))))
    return fixture(name, config, shapes, False, of_ours)


transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
models = [released_gates(m["name"], m["config"], m["tensors"]) if "headwise_attn_output_gate" in m["config"] else
          by_transformers(m["name"], transformers.AutoConfig.for_model(**m["config"]))
          for m in json.loads(read(os.path.join(ROOT, "tests/fixtures/hf_models.json")))["models"]]
write_fixture("hf_models.json", dump(VERSIONS | {"models": models}, 9))
