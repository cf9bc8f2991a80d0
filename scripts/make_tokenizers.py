#!/usr/bin/env python3
"""Makes the answers of tests/fixtures/tokenizers.json anew: what the tokenizers library makes of its texts.

The file holds small tokenizers of six kinds, trained once on a few sentences, with the normaliser, the patterns, the
template and the decoder of GPT-2, Llama 3, Qwen, gpt-oss, Gemma 3 and Llama 2; and texts. A text or a kind that is
added there as {"text": ...} or {"tokenizer": ..., "cases": [...]} gets its answers here.
usage: scripts/make_tokenizers.py [FOLDER]     (needs: pip install tokenizers)
"""
import json
import os

from tokenizers import Tokenizer

from common import ROOT, read, write_fixture


def answers(t, text):
    ids = t.encode(text, add_special_tokens=False).ids
    return {"text": text, "ids": ids, "whole": t.encode(text).ids, "decoded": t.decode(ids, skip_special_tokens=False)}


kinds = json.loads(read(os.path.join(ROOT, "tests/fixtures/tokenizers.json")))
for kind in kinds.values():
    t = Tokenizer.from_str(json.dumps(kind["tokenizer"]))
    kind["cases"] = [answers(t, case["text"]) for case in kind["cases"]]
write_fixture("tokenizers.json", json.dumps(kinds, separators=(",", ":")))
