#!/usr/bin/env python3
"""Makes tests/fixtures/hf_models.json: tiny models of transformers, which tests/test_hf_model.cpp reads as folders.

usage: pip install torch transformers && scripts/make_models.py [FOLDER]     CPU only, no download, seconds

Of every architecture that --from reads: the config.json that transformers writes, the name and shape of each tensor as
save_pretrained stores it, and what the model computes in float64 with weights that both sides make from these names:
the loss, the logits after each sequence's last token, and the gradient of every stored tensor. Gradients are stored as
scripts/make_fixtures.py stores them, which also says how the weights are made.

The gates of arXiv 2505.06708 in the layout that its authors released are no model of transformers: their tensors are
taken apart here, and training/models/modeling_gated.py computes the rest.
"""
import json
import os
import tempfile

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file

from common import write_fixture
from make_fixtures import VERSIONS, batch, dump, flags_of, in_float64, logits_of, model_of, stored, values

B, T = 2, 11

LLAMA = dict(vocab_size=37, hidden_size=20, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=6, max_position_embeddings=T, pad_token_id=None, bos_token_id=None,
             eos_token_id=None)
EXPERTS = dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=7)


def default_rope(theta, **more):  # or another, with its keys
    return {"rope_type": "default", "rope_theta": theta} | more


# name: the configuration
MODELS = {
    "llama": transformers.LlamaConfig(**LLAMA, tie_word_embeddings=False, rms_norm_eps=1e-5,
                                      rope_parameters=default_rope(500000.0)),
    "llama with biases": transformers.LlamaConfig(**LLAMA, tie_word_embeddings=True, attention_bias=True,
                                                  mlp_bias=True),
    "qwen2": transformers.Qwen2Config(**{k: v for k, v in LLAMA.items() if k != "head_dim"} | {"hidden_size": 24},
                                      tie_word_embeddings=True, rope_parameters=default_rope(1e6)),
    "qwen3": transformers.Qwen3Config(**LLAMA, tie_word_embeddings=True, rope_parameters=default_rope(1e6)),
    "qwen3_moe": transformers.Qwen3MoeConfig(**LLAMA, **EXPERTS, tie_word_embeddings=False, norm_topk_prob=True,
                                             mlp_only_layers=[0], rope_parameters=default_rope(1e6)),
    "qwen3_next": transformers.Qwen3NextConfig(
        **LLAMA | {"num_hidden_layers": 4}, **EXPERTS, shared_expert_intermediate_size=14, tie_word_embeddings=False,
        norm_topk_prob=True, linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=5,
        linear_value_head_dim=3, linear_conv_kernel_dim=3, layer_types=["linear_attention"] * 3 + ["full_attention"],
        rope_parameters=default_rope(1e7, partial_rotary_factor=0.7)),
    "llama with its scaling": transformers.LlamaConfig(
        **LLAMA, tie_word_embeddings=True, rope_parameters=default_rope(
            20.0, rope_type="llama3", factor=8.0, original_max_position_embeddings=9, low_freq_factor=1.0,
            high_freq_factor=4.0)),
    "qwen2 with YaRN": transformers.Qwen2Config(
        **{k: v for k, v in LLAMA.items() if k != "head_dim"} | {"hidden_size": 24}, tie_word_embeddings=False,
        rope_parameters=default_rope(100.0, rope_type="yarn", factor=4.0, original_max_position_embeddings=64)),
    "gpt_oss": transformers.GptOssConfig(
        **LLAMA | {"intermediate_size": 7}, num_local_experts=5, num_experts_per_tok=2, sliding_window=4,
        tie_word_embeddings=False, rope_parameters=default_rope(150000.0)),
    "gpt_oss with YaRN": transformers.GptOssConfig(
        **LLAMA | {"intermediate_size": 7}, num_local_experts=5, num_experts_per_tok=2, sliding_window=4,
        tie_word_embeddings=False, rope_parameters=default_rope(
            150.0, rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
            original_max_position_embeddings=99)),
    "gemma3": transformers.Gemma3TextConfig(
        **LLAMA | {"num_hidden_layers": 7}, sliding_window=4, query_pre_attn_scalar=6, rope_parameters={
            "full_attention": default_rope(1e6), "sliding_attention": default_rope(10000.0)}),
    "gemma3 with a scale of its scores": transformers.Gemma3TextConfig(
        **LLAMA | {"num_hidden_layers": 3}, sliding_window=4, query_pre_attn_scalar=9, layer_types=[
            "sliding_attention", "sliding_attention", "full_attention"], rope_parameters={
            "full_attention": default_rope(1e6, rope_type="linear", factor=8.0),
            "sliding_attention": default_rope(100.0)}),
    "gpt2": transformers.GPT2Config(vocab_size=37, n_positions=T, n_embd=20, n_layer=2, n_head=4, n_inner=24,
                                    resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=None, eos_token_id=None),
}


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
        with open(os.path.join(folder, "config.json")) as text:
            written = json.load(text)
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

def released_gates(kind):
    line = (f"--vocab=37 --context={T} --layers=2 --hidden=20 --heads=4 --kv-heads=2 --head-dim=6 --ffn-hidden=24 "
            "--attn=g1")
    f = flags_of(line + (" --gate=headwise" if kind == "headwise" else ""))
    H, K, D, C = 4, 2, 6, 20
    scores = H // K if kind == "headwise" else H // K * D
    config = dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3", vocab_size=37, hidden_size=C,
                  intermediate_size=24, num_hidden_layers=2, num_attention_heads=H, num_key_value_heads=K, head_dim=D,
                  hidden_act="silu", max_position_embeddings=T, rms_norm_eps=1e-6, rope_theta=10000.0,
                  rope_scaling=None, tie_word_embeddings=True, attention_bias=False, qkv_bias=False, use_qk_norm=True,
                  use_sliding_window=False, elementwise_attn_output_gate=kind == "elementwise",
                  headwise_attn_output_gate=kind == "headwise")
    shapes = {"model.embed_tokens.weight": (37, C), "model.norm.weight": (C,)}
    for layer in range(2):
        at = f"model.layers.{layer}."
        shapes |= {at + n: s for n, s in {
            "input_layernorm.weight": (C,), "post_attention_layernorm.weight": (C,),
            "self_attn.k_proj.weight": (K * D, C),
            "self_attn.q_proj.weight": (H * D + K * scores, C), "self_attn.v_proj.weight": (K * D, C),
            "self_attn.o_proj.weight": (C, H * D), "self_attn.q_norm.weight": (D,), "self_attn.k_norm.weight": (D,),
            "mlp.gate_proj.weight": (24, C), "mlp.up_proj.weight": (24, C), "mlp.down_proj.weight": (C, 24)}.items()}
    theirs = {n: x.double().requires_grad_() for n, x in weights(shapes, False).items()}
    ours = dict(theirs)
    for n in shapes:
        if "q_proj" in n:  # of each key/value head first its queries, then their scores
            queries, gates = theirs[n].unflatten(0, (K, -1)).split([H // K * D, scores], dim=1)
            ours[n], ours[n.replace("q_proj", "g_proj")] = queries.flatten(0, 1), gates.flatten(0, 1)

    ids, targets = batch(B, T, 37)
    logits = logits_of(model_of(f), ours, ids, [])
    of_ours = results(logits, targets, lambda loss: dict(zip(theirs, torch.autograd.grad(loss, list(theirs.values())))))
    return fixture(f"released gates, {kind}", config, shapes, False, of_ours)


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    models = [by_transformers(name, config) for name, config in MODELS.items()]
    models += [released_gates(kind) for kind in ("elementwise", "headwise")]
    write_fixture("hf_models.json", dump(VERSIONS | {"models": models}, 9))


main()
