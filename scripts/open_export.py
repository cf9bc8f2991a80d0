#!/usr/bin/env python3
"""Opens folders that ./train --export wrote with transformers, and prints the logits after the last of some tokens.

usage: scripts/open_export.py TOKENS FOLDER...     pip install torch transformers; TOKENS are ids with commas between them

A line of JSON for each folder: {"model": the class that opened it, "logits": [...]}, in float32. tests/test_hf_model.cpp
compares them with this project's.
"""
import json
import sys

import torch
import transformers


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    ids = torch.tensor([[int(t) for t in sys.argv[1].split(",")]])
    for folder in sys.argv[2:]:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager", experts_implementation="eager", dtype=torch.float32,
            output_loading_info=True)
        left = {kind: sorted(names) for kind, names in info.items() if names}
        if left:
            sys.exit(f"error: {folder}: transformers opens it, but not as it is: {left}")
        with torch.no_grad():
            logits = model.eval()(ids, use_cache=False).logits[0, -1]
        print(json.dumps({"model": type(model).__name__, "logits": logits.tolist()}))


main()
