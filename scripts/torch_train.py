#!/usr/bin/env python3
"""GPT-2 124M and the default model of ./train in PyTorch: the peer of scripts/compare_torch.py.

usage: pip install torch && scripts/torch_train.py gpt2-124m|tiny --batch=B --context=T --steps=N [--device=cpu|cuda]
           [--precision=fp32|bf16] [--compile]

bf16 is autocast: weights, moments and gradients of weights stay fp32, as in ./train. Without --compile PyTorch is
eager.

The step is that of ./train: forward with the mean loss, backward, gradients clipped to norm 1, AdamW with decay on
matrices and embeddings. It is written as a user of PyTorch would for speed: scaled_dot_product_attention, one product
for q, k and v, one for gate and up, fused AdamW. Tokens are random. Prints the parameters and a line a step.
"""
import time

import torch
import torch.nn.functional as F
from torch import nn

from common import parser_of, refuse


class RotaryAttention(nn.Module):
    """Grouped queries, RMSNorm of every query and key head, RoPE."""

    def __init__(self, channels, heads, kv_heads, context):
        super().__init__()
        self.heads, self.kv_heads, self.dim = heads, kv_heads, channels // heads
        self.qkv = nn.Linear(channels, (heads + 2 * kv_heads) * self.dim, bias=False)
        self.out = nn.Linear(channels, channels, bias=False)
        self.q_norm, self.k_norm = (nn.RMSNorm(self.dim, eps=1e-6) for _ in range(2))
        angles = torch.outer(torch.arange(context), 10000.0 ** (-torch.arange(0, self.dim, 2) / self.dim)).repeat(1, 2)
        self.register_buffer("cos", angles.cos()[:, None])
        self.register_buffer("sin", angles.sin()[:, None])

    def rotate(self, x):
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat((-second, first), -1) * self.sin

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, -1, self.dim).split((self.heads, self.kv_heads, self.kv_heads), 2)
        q, k = self.rotate(self.q_norm(q)), self.rotate(self.k_norm(k))
        o = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True,
                                           enable_gqa=True)
        return self.out(o.transpose(1, 2).reshape(B, T, C))


class SwiGLU(nn.Module):
    def __init__(self, channels, hidden):
        super().__init__()
        self.gate_up = nn.Linear(channels, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, channels, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class PlainAttention(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, norm, attention, ffn):
        super().__init__()
        self.norm1, self.attention, self.norm2, self.ffn = norm(), attention, norm(), ffn

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.ffn(self.norm2(x))


class Model(nn.Module):
    """Embedding, positions where the model learns them, blocks, a norm, and the embedding once more as the output
    matrix."""

    def __init__(self, vocabulary, channels, context, learned_positions, norm, blocks):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, channels)
        self.positions = nn.Parameter(torch.zeros(context, channels)) if learned_positions else None
        self.blocks, self.norm = nn.Sequential(*blocks), norm()
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, inputs, targets):
        x = self.tokens(inputs)
        if self.positions is not None:
            x = x + self.positions
        logits = F.linear(self.norm(self.blocks(x)), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def gpt2_124m(context):
    def norm():
        return nn.LayerNorm(768)

    def ffn():
        return nn.Sequential(nn.Linear(768, 3072), nn.GELU(approximate="tanh"), nn.Linear(3072, 768))

    return Model(50257, 768, context, True, norm, [Block(norm, PlainAttention(768, 12), ffn()) for _ in range(12)])


def tiny(context):
    def norm():
        return nn.RMSNorm(128, eps=1e-6)

    return Model(256, 128, context, False, norm,
                 [Block(norm, RotaryAttention(128, 4, 2, context), SwiGLU(128, 384)) for _ in range(4)])


def main():
    parser = parser_of(__doc__)
    parser.add_argument("model", choices=("gpt2-124m", "tiny"))
    for name in ("--batch", "--context", "--steps"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        refuse(f"--device=cuda: PyTorch {torch.__version__} sees no GPU")

    torch.manual_seed(0)
    model = {"gpt2-124m": gpt2_124m, "tiny": tiny}[options.model](options.context).to(options.device)
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0}],
                                  lr=1e-3, betas=(0.9, 0.95), fused=True)
    tokens = torch.randint(model.tokens.num_embeddings, (options.batch, options.context + 1), device=options.device)
    loss_of = torch.compile(model) if options.compile else model
    for step in range(1, options.steps + 1):
        start = time.perf_counter()
        with torch.autocast(options.device, torch.bfloat16, enabled=options.precision == "bf16"):
            loss = loss_of(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss, norm = loss.item(), norm.item()
        print(f"step {step} loss {loss:.4f} norm {norm:.3f} {1e3 * (time.perf_counter() - start):.3f} ms", flush=True)


main()
