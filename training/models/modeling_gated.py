"""A model that ./train made, for Hugging Face's transformers, in plain PyTorch.

`./train --from=RUN --export=FOLDER` writes this file beside config.json and model.safetensors where no architecture of
transformers is that model. Then

    model = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)

opens it: forward with `labels` gives the loss, generate() and Trainer work. It is written to be read, in the words of
the flags of ./train, which config.json holds. It leaves out speed (generate() reads the whole text again for every
token, the delta rule goes token by token, experts take turns) and what belongs to training (dropout, the losses of
routers). A batch may be padded on the right, not on the left. Shapes are those of B sequences, T tokens,
C = hidden, H query heads, KVH key/value heads, D = head-dim, E experts.
"""
import functools
import math

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput


class GatedConfig(PretrainedConfig):
    """The flags of a model, all of them; and what transformers itself asks a configuration for."""

    model_type = "gated"

    def __init__(self, flags=None, **more):
        self.flags = f = flags or {}
        more |= {"vocab_size": f.get("vocab"), "max_position_embeddings": f.get("context"),
                 "hidden_size": f.get("hidden"), "num_hidden_layers": f.get("layers"),
                 "num_attention_heads": f.get("heads")}
        # A tied model uses one matrix twice here: nothing is left to tie.
        super().__init__(**more | {"tie_word_embeddings": False, "use_cache": False})


def attends(f, layer):
    """Is a layer softmax attention? In a hybrid the last of every few is."""
    return f["mixer"] == "attention" or f["mixer"] == "hybrid" and (layer + 1) % f["attention-every"] == 0


def window_of(f, layer):
    """Tokens that a query of a layer with attention sees, itself included; 0: all before it."""
    place = layer // f["attention-every"] if f["mixer"] == "hybrid" else layer
    sees_all = {"all": False, "even": place % 2 == 1, "not-nth": (place + 1) % f["full-every"] == 0}
    return 0 if sees_all[f["window-layers"]] else f["window"]


def parameter(*shape, start=None):  # normal numbers
    return nn.Parameter(torch.randn(shape) * 0.02 if start is None else torch.full(shape, float(start)))


def linear(inputs, outputs, bias=False):
    return nn.Linear(inputs, outputs, bias=bias)


ACTIVATIONS = {
    "identity": lambda z: z, "sigmoid": torch.sigmoid, "ns-sigmoid": lambda z: 0.5 + 0.5 * torch.sigmoid(z),
    "silu": F.silu, "tanh": torch.tanh, "gelu-tanh": lambda z: F.gelu(z, approximate="tanh"), "gelu-erf": F.gelu,
    "relu2": lambda z: F.relu(z) ** 2,
}


def attention_scores(q, k, window=0, sink=None, kv_bias=None, score_dim=0):
    """q (B,T,H,D), k (B,T,KVH,D) to scores (B,H,T,T), -inf where a query does not see a key; with a sink, or the key of
    kv_bias, one column more. Divided by the root of D, or of score_dim."""
    T, H, D = q.shape[1:]
    root = math.sqrt(score_dim or D)
    scores = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(H // k.shape[2], dim=2)) / root
    place = torch.arange(T, device=q.device)
    back = place[:, None] - place
    scores = scores.masked_fill((back < 0) | (back >= (window or T)), -math.inf)
    if sink is not None:
        scores = torch.cat((scores, sink[:, None, None].expand(len(q), H, T, 1)), dim=-1)
    if kv_bias is not None:
        scores = torch.cat((scores, torch.einsum("bihd,hd->bhi", q, kv_bias[0])[..., None] / root), dim=-1)
    return scores


def attention(q, k, v, score_bias=None, kv_bias=None, **how):
    """To the weighted values (B,T,H,D). score_bias: weights are sigmoids, not a softmax."""
    T, H = q.shape[1:3]
    scores = attention_scores(q, k, kv_bias=kv_bias, **how)
    p = scores.softmax(-1) if score_bias is None else torch.sigmoid(scores + score_bias)
    o = torch.einsum("bhij,bjhd->bihd", p[..., :T], v.repeat_interleave(H // v.shape[2], dim=2))
    return o if kv_bias is None else o + torch.einsum("bhi,hd->bihd", p[..., T], kv_bias[1])


def scaled_frequencies(frequencies, theta, scaling):
    """Those of --rope-scaling=KIND,S,L,SLOW,FAST, and the factor of cos and sin."""
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
    low, high = (low, high) if kind == "yarn-unrounded" else (math.floor(low), math.ceil(high))
    low, high = max(low, 0), min(high, 2 * half - 1)
    ramp = ((torch.arange(half) - low) / (max(high, low + 0.001) - low)).clamp(0, 1)
    return frequencies * (1 - ramp) + frequencies / s * ramp, 0.1 * math.log(s) + 1


def rotations(T, R, theta, scaling="none"):
    """cos and sin (T, R/2) of the angles t theta^(-2k/R), scaled."""
    frequencies, factor = scaled_frequencies(theta ** (-torch.arange(0, R, 2).double() / R), theta, scaling)
    angles = torch.outer(torch.arange(T).double(), frequencies)
    return factor * angles.cos(), factor * angles.sin()


def rope(x, turns):
    """The two halves of the first elements of a head are the coordinates of points, which turn; x (B,T,heads,D)."""
    cos, sin = (t[:, None].to(x) for t in turns)
    a, b, rest = x.split((cos.shape[-1], cos.shape[-1], x.shape[-1] - 2 * cos.shape[-1]), dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos, rest), dim=-1)


def gated_delta_rule(q, k, v, g, beta, state):
    """q, k (B,T,H,Dk), v (B,T,H,Dv), g, beta (B,T,H) to (B,T,H,Dv), and state (B,H,Dk,Dv) to the last one: token by
    token it fades, forgets what it says of this key and learns v instead."""
    o = []
    for t in range(q.shape[1]):
        state = state * g[:, t, :, None, None].exp()
        u = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], u)
        o.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(o, dim=1), state


def head_experts(made, logits, k):
    """made (...,E,D), logits (...,E) to (...,D): the k experts of the largest scores, weighted by them (SwitchHead)."""
    scores, chosen = torch.sigmoid(logits).topk(k, dim=-1)
    return (scores[..., None] * made.take_along_dim(chosen[..., None], dim=-2)).sum(-2)


def polynorm(x, w, b):
    x1, x2, x3 = (v * torch.rsqrt(v.square().mean(-1, keepdim=True) + 1e-6) for v in (x, x**2, x**3))
    return w[0] * x3 + w[1] * x2 + w[2] * x1 + b


def swiglu_clamped(g, u):
    g, u = g.clamp(max=7), u.clamp(-7, 7)
    return (u + 1) * g * torch.sigmoid(1.702 * g)


def clip(x, bound):
    return x.clamp(-bound, bound) if bound else x


class Norm(nn.Module):
    """Zero-centred weights of RMSNorm are 1 + w. GatedNorm multiplies a norm's y by act(W_up silu(W_down y))."""

    def __init__(self, f, size, kind="rmsnorm"):
        super().__init__()
        self.f, self.base, self.gated = f, {"gated": "rmsnorm"}.get(kind, kind.removeprefix("gated-")), "gated" in kind
        self.offset = int(f["norm-weight"] == "zero-centred" and self.base in ("rmsnorm", "preaffine"))
        self.weight = parameter(size, start=1 - self.offset) if kind != "none" else None
        if self.base in ("layernorm", "dyt"):
            self.bias = parameter(size, start=0)
        if self.base == "dyt":
            self.alpha = parameter(1, start=0.5)
        if self.base == "preaffine":
            self.pre_weight = parameter(size, start=1)
        if self.gated:
            self.gate_down = linear(size, f["norm-rank"])
            self.gate_up = linear(f["norm-rank"], size if f["norm-gate"] == "elementwise" else 1)

    def forward(self, y):
        f = self.f
        if self.base == "layernorm":
            y = F.layer_norm(y, y.shape[-1:], self.weight, self.bias, f["norm-eps"] or 1e-5)
        elif self.base == "dyt":
            y = self.weight * torch.tanh(self.alpha * y) + self.bias
        elif self.base != "none":
            y = self.pre_weight * y if self.base == "preaffine" else y
            y = F.rms_norm(y, y.shape[-1:], self.weight + self.offset, f["norm-eps"] or 1e-6)
        if self.gated:
            z = self.gate_up(F.silu(self.gate_down(y)))
            y = f["norm-gate-scale"] * ACTIVATIONS[f["norm-gate-act"]](z) * y
        return y


class Attention(nn.Module):
    def __init__(self, f, layer):
        super().__init__()
        self.f, self.window, bias = f, window_of(f, layer), f["attn-bias"] != "none"
        C, H, KVH, D, E = (f[n] for n in ("hidden", "heads", "kv-heads", "head-dim", "head-experts"))
        self.q_proj, self.o_proj = linear(C, H * D, bias), linear(H * D, C, f["attn-bias"] == "all")
        self.q_norm, self.k_norm = (Norm(f, D) if f["qk-norm"] else nn.Identity() for _ in "qk")
        for what in "kv":
            experts = E if what in f["head-experts-of"] else 0
            setattr(self, f"{what}_proj", linear(C, KVH * (experts or 1) * D, bias))
            setattr(self, f"{what}_select", linear(C, KVH * experts) if experts else None)
        heads, size = {"full": (0, 0), "g1": (H, D), "g4": (H, D), "g5": (1, C)}.get(f["attn"], (KVH, D))
        if heads and f["gate"] == "static":
            self.gate = nn.ParameterDict({"theta": parameter(heads, size, start=0)})
        elif heads:
            self.g_proj = linear(C, heads if f["gate"] == "headwise" else heads * size)
        self.sinks = parameter(H, start=0) if f["attn-sink"] == "learned" else None
        if f["attn-sink"] == "kv-bias":
            self.kv_bias = nn.ParameterDict({what: parameter(H, D, start=0) for what in ("key", "value")})
        self.score_bias = -math.log(f["context"]) if f["attn-score"] == "sigmoid" else None
        self.out_norm = {"plain": nn.Identity, "silu": nn.SiLU, "groupnorm": lambda: Norm(f, D)}[f["sdpa-out"]]()
        own = self.window and f["window-rope-theta"]  # rotary angles of layers with a window, which are not scaled
        self.rotary = (own, "none") if own else (f["rope-theta"], f["rope-scaling"])

    def gated(self, position, value, x):
        """value (B,T,heads,D), met where the gate stands by the score of x: one a head, or one an element."""
        f = self.f
        if f["attn"] != position:
            return value
        z = self.gate["theta"] if f["gate"] == "static" else self.g_proj(x).unflatten(-1, (value.shape[2], -1))
        score = ACTIVATIONS[f["gate-act"]](z)
        score = score.mean(2, keepdim=True) if f["gate"] == "shared" else score
        return value + score if f["gate-op"] == "add" else value * score

    def keys_or_values(self, what, x):
        """(B,T,KVH,D): by one matrix a head, or by the experts of a head."""
        f, select = self.f, getattr(self, f"{what}_select")
        made = getattr(self, f"{what}_proj")(x).unflatten(-1, (f["kv-heads"], -1, f["head-dim"]))
        if select is None:
            return made.squeeze(-2)
        return head_experts(made, select(x).unflatten(-1, (f["kv-heads"], -1)), f["head-experts-per-token"])

    def forward(self, x):
        f = self.f
        q = self.q_proj(x).unflatten(-1, (f["heads"], -1))
        k, v = (self.keys_or_values(what, x) for what in "kv")
        q, k, v = self.gated("g4", q, x), self.gated("g3", k, x), self.gated("g2", v, x)
        q, k = self.q_norm(q), self.k_norm(k)
        if f["position"] == "rope":
            turns = rotations(x.shape[1], 2 * int(f["rope-fraction"] * f["head-dim"] / 2 + 1e-9), *self.rotary)
            q, k = rope(q, turns), rope(k, turns)
        kv_bias = [self.kv_bias[n] for n in ("key", "value")] if f["attn-sink"] == "kv-bias" else None
        o = attention(q, k, v, self.score_bias, kv_bias, window=self.window, sink=self.sinks, score_dim=f["score-dim"])
        y = self.o_proj(self.gated("g1", self.out_norm(o), x).flatten(2))
        return self.gated("g5", y.unsqueeze(2), x).squeeze(2)


class GatedDeltaNet(nn.Module):
    """Linear attention: a short convolution, the gated delta rule, a norm with a gate (as in Qwen3-Next)."""

    def __init__(self, f, layer):
        super().__init__()
        self.dims = Hk, Hv, Dk, Dv = [f[n] for n in ("linear-key-heads", "linear-value-heads", "linear-key-dim",
                                                     "linear-value-dim")]
        self.f, C, self.sizes = f, f["hidden"], (Hk * Dk, Hk * Dk, Hv * Dv)
        self.in_proj_qkv, self.in_proj_z = linear(C, sum(self.sizes)), linear(C, Hv * Dv)
        self.in_proj_ba, self.out_proj = linear(C, 2 * Hv), linear(Hv * Dv, C)
        self.conv1d = nn.ParameterDict({"weight": parameter(sum(self.sizes), f["conv-width"])})
        self.norm = nn.ParameterDict({"weight": parameter(Dv, start=1)})
        self.A_log, self.dt_bias = parameter(Hv, start=0), parameter(Hv, start=0)

    def forward(self, x):
        Hk, Hv, Dk, Dv = self.dims
        z = self.in_proj_z(x).unflatten(-1, (Hv, Dv))
        b, a = self.in_proj_ba(x).chunk(2, dim=-1)
        qkv = F.pad(self.in_proj_qkv(x).mT, (self.f["conv-width"] - 1, 0))  # zeros before the first token
        qkv = F.silu(F.conv1d(qkv, self.conv1d["weight"][:, None], groups=sum(self.sizes)).mT)
        q, k, v = (part.unflatten(-1, (-1, D)) for part, D in zip(qkv.split(self.sizes, dim=-1), (Dk, Dk, Dv)))
        q, k = (y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6) for y in (q, k))
        q, k = (y.repeat_interleave(Hv // Hk, dim=2) for y in (q / math.sqrt(Dk), k))
        g = -self.A_log.exp() * F.softplus(a + self.dt_bias)
        o, _ = gated_delta_rule(q, k, v, g, torch.sigmoid(b), x.new_zeros(len(x), Hv, Dk, Dv))
        normed = F.rms_norm(o, (Dv,), self.norm["weight"], self.f["norm-eps"] or 1e-6)
        return self.out_proj((normed * F.silu(z)).flatten(2))


class Matrices(nn.Module):
    """The linear layers of E experts, in one tensor."""

    def __init__(self, E, inputs, outputs, bias):
        super().__init__()
        self.weight, self.bias = parameter(E, outputs, inputs), parameter(E, outputs, start=0) if bias else None

    def forward(self, x, e):
        return F.linear(x, self.weight[e], None if self.bias is None else self.bias[e])


class FeedForward(nn.Module):
    """--ffn of one width; or E of them, of which forward() is told the number of one."""

    def __init__(self, f, width, E=0):
        super().__init__()
        self.f, C = f, f["hidden"]
        matrix = functools.partial(functools.partial(Matrices, E) if E else nn.Linear, bias=f["ffn-bias"])
        self.up_proj, self.down_proj = matrix(C, width), matrix(width, C)
        if f["ffn"] not in ("gelu", "relu2", "polynorm"):
            self.gate_proj = matrix(C, width)
        if f["ffn"] == "polynorm":
            self.poly = nn.ParameterDict({"weight": parameter(3, start=1 / 3), "bias": parameter(1, start=0)})

    def forward(self, x, *e):
        kind, gelu, a = self.f["ffn"], ACTIVATIONS[f"gelu-{self.f['gelu']}"], self.up_proj(x, *e)
        if kind == "polynorm":
            a = polynorm(a, self.poly["weight"], self.poly["bias"])
        elif kind in ("gelu", "relu2"):
            a = gelu(a) if kind == "gelu" else ACTIVATIONS[kind](a)
        else:
            glu, g = {"swiglu": F.silu, "glu": torch.sigmoid, "geglu": gelu}, self.gate_proj(x, *e)
            a = swiglu_clamped(g, a) if kind == "swiglu-clamped" else glu[kind](g) * a
        return self.down_proj(a, *e)


class Mixture(nn.Module):
    """A token's experts are those of the largest router probabilities, which weigh them."""

    def __init__(self, f):
        super().__init__()
        self.f, C, width = f, f["hidden"], f["expert-hidden"]
        self.gate, self.experts = linear(C, f["experts"], f["router-bias"]), FeedForward(f, width, f["experts"])
        if f["shared-experts"]:
            self.shared_expert = FeedForward(f, int(f["shared-experts"] * width + 0.5))
            self.shared_expert_gate = linear(C, 1) if f["shared-expert-gate"] else None

    def forward(self, x):
        f, tokens = self.f, x.flatten(0, 1)
        weight, chosen = self.gate(tokens).softmax(-1).topk(f["experts-per-token"], dim=-1)
        weight = weight / weight.sum(-1, keepdim=True) if f["router-renormalise"] else weight
        y = torch.zeros_like(tokens)
        for e in range(f["experts"]):
            token, slot = (chosen == e).nonzero(as_tuple=True)
            y = y.index_add(0, token, weight[token, slot, None] * self.experts(tokens[token], e))
        if f["shared-experts"]:
            scale = torch.sigmoid(self.shared_expert_gate(tokens)) if f["shared-expert-gate"] else 1
            y = y + scale * self.shared_expert(tokens)
        return y.view_as(x)


class Block(nn.Module):
    def __init__(self, f, layer):
        super().__init__()
        self.f, self.mixer = f, "self_attn" if attends(f, layer) else "linear_attn"
        setattr(self, self.mixer, (Attention if attends(f, layer) else GatedDeltaNet)(f, layer))
        self.mlp = Mixture(f) if f["experts"] and layer >= f["dense-layers"] else FeedForward(f, f["ffn-hidden"])
        behind = [f"{branch}_out_layernorm" for branch in (self.mixer, "mlp") if f["norm-placement"] == "sandwich"]
        for name in ("input_layernorm", "post_attention_layernorm", *behind):
            setattr(self, name, Norm(f, f["hidden"], f["norm"]))

    def forward(self, h):
        """pre: h + f(N(h));  post: N(h + f(h));  sandwich: h + N(f(N(h)))"""
        placement = self.f["norm-placement"]
        for branch, norm in ((self.mixer, self.input_layernorm), ("mlp", self.post_attention_layernorm)):
            y = getattr(self, branch)(h if placement == "post" else norm(h))
            if placement == "sandwich":
                y = getattr(self, f"{branch}_out_layernorm")(y)
            y = clip(y, self.f["clip-output"])
            h = clip(h + y if self.f["residual"] else y, self.f["clip-residual"])
            h = norm(h) if placement == "post" else h
        return h


class Body(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f, C = f, f["hidden"]
        self.embed_tokens = nn.Embedding(f["vocab"], C)
        if f["embedding-scale"]:
            self.embed_scale = parameter(1, start=math.sqrt(C))
        if f["position"] == "learned":
            self.embed_positions = nn.Embedding(f["context"], C)
        self.layers = nn.ModuleList(Block(f, layer) for layer in range(f["layers"]))
        self.norm = Norm(f, C, f["norm"] if f["norm-placement"] != "post" else "none")

    def forward(self, ids):
        h = self.f["embedding-factor"] * self.embed_tokens(ids)
        if self.f["embedding-scale"]:
            h = self.embed_scale * h
        if self.f["position"] == "learned":
            h = h + self.embed_positions(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            h = layer(h)
        return self.norm(h)


class GatedForCausalLM(PreTrainedModel, GenerationMixin):
    config_class, base_model_prefix, accepts_loss_kwargs, _no_split_modules = GatedConfig, "model", False, ["Block"]

    def __init__(self, config):
        super().__init__(config)
        self.model = Body(config.flags)
        self.lm_head = None if config.flags["tied"] else linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def forward(self, input_ids, attention_mask=None, labels=None, use_cache=None, return_dict=True):
        """labels: as input_ids, the loss is that of every next token; -100 counts for nothing."""
        if attention_mask is not None and (attention_mask[:, 1:] > attention_mask[:, :-1]).any():
            raise ValueError("attention_mask: padding on the left, which this model would read; pad on the right")
        h = self.model(input_ids)
        logits = F.linear(h, self.model.embed_tokens.weight) if self.lm_head is None else self.lm_head(h)
        loss = None if labels is None else F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutput(loss=loss, logits=logits) if return_dict else (loss, logits)

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **_):
        return {"input_ids": input_ids, "attention_mask": attention_mask}
