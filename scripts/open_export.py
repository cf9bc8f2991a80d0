#!/usr/bin/env python3
"""Opens folders that ./train --export wrote with transformers, and says what it computes of some tokens.

usage: scripts/open_export.py [--train] TOKENS FOLDER...     (pip install torch transformers)

TOKENS are ids with commas between them.

A line of JSON for each folder: {"model": the class that opened it, "logits": [...] after the last token}, in float32.
With --train {"model", "loss": of every next token, "tokens": the first three and what generate() takes for the next, as
many as were predicted}, and FOLDER/gradients.safetensors. tests/test_hf_model.cpp and tests/test_hf_code.cpp compare
these with this project's.
"""
import json
import os

import torch
import transformers
from safetensors.torch import save_file

from common import parser_of, refuse


parser = parser_of(__doc__)
parser.add_argument("--train", action="store_true", help="loss, gradients and greedy tokens, instead of logits")
parser.add_argument("tokens", metavar="TOKENS")
parser.add_argument("folders", metavar="FOLDER", nargs="+")
options = parser.parse_args()
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
ids = torch.tensor([[int(t) for t in options.tokens.split(",")]])
for folder in options.folders:
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, trust_remote_code=True, output_loading_info=True,
        **{} if options.train else {"attn_implementation": "eager", "experts_implementation": "eager"})
    left = {kind: sorted(names) for kind, names in info.items() if names}
    if left:
        refuse(f"{folder}: transformers opens it, but not as it is: {left}")
    said = {"model": type(model).__name__}
    if options.train:
        loss = model.eval()(ids, labels=ids).loss
        loss.backward()
        save_file({n: p.grad for n, p in model.named_parameters()}, os.path.join(folder, "gradients.safetensors"))
        grown = model.generate(ids[:, :3], max_new_tokens=ids.shape[1] - 4, do_sample=False)
        said |= {"loss": loss.item(), "tokens": grown[0].tolist()}
    else:
        with torch.no_grad():
            said["logits"] = model.eval()(ids, use_cache=False).logits[0, -1].tolist()
    print(json.dumps(said))
