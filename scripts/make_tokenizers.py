#!/usr/bin/env python3
"""Makes tests/fixtures/tokenizers.json: small tokenizers of the known kinds, and what the tokenizers library makes of
texts.

Each is trained here on a few sentences of this script and has the normaliser, the patterns, the template and the
decoder of its kind: GPT-2, Llama 3, Qwen, gpt-oss, Gemma 3, Llama 2.
usage: scripts/make_tokenizers.py [FOLDER]     (needs: pip install tokenizers)
"""
import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from common import write_fixture

SIZE = 360
LINES = [
    "The model reads the text, and then it writes more of the same text.",
    "It's what we'd said: they've got 1234567 tokens, haven't they? I'M SURE they'll see.",
    "for (size_t i = 0; i < n; i++) {\n    total += values[i];  // the sum\n}\n\n\n",
    "Größe und Straße: äöü. L'été à Zürich, où ça? Ça va, naïve façade.",
    "Привет, мир! Это текст.  你好,世界。今天天气很好。 नमस्ते दुनिया",
    "the then them there these  the   the    the\t\tthe\r\n\r\nthe",
]
TEXTS = LINES + [
    "", " ", "  ", "\n", "a", " a", "a ", "  a  b   c    ", "\n\n\na\n b \n", "\t\n \t",
    "don't DON'T can't we'Re I'd they'LL 's 'S it'ſ",
    "0 12 123 1234 12345678 3.14159 1,000,000 ½ ² ٣٤٥ ⅷ", "!?... --- ***(#)*** //comment\n/* x */",
    "price:$5 €20 £3 50% a_b c-d e@f.g",
    "🌱🌳 family: 👨‍👩‍👧‍👦 flag 🇩🇪 👍🏽", "cafe\u0301 café e\u0323\u0301 한국어 \u1112\u1161\u11ab ﬁ Å Å",
    "a\u00a0b\u2003c\u3000d\u0085e\u180ef\u200bg",
    "日本語のテキスト、漢字とかな。", "مرحبا بالعالم", "ǅ ǅabc ʰabc ªº", "zero\0byte and \x01\x7f controls",
    "end of text: <|endoftext|>, and <s> </s> <bos>more<eos>",
    "<|endoftext|>", "a<|endoftext|>b <|endoftext|> c", "<|endoftext", "<|begin_of_text|>x<|end_of_text|>",
    "▁▁a▁b <0x41> <unk>", "x" * 40, "the" * 30, " " * 17 + "x",
]

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
GPT_OSS = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
])


def byte_level(pattern=None, normalizer=None, specials=("<|endoftext|>",), **model):
    t = Tokenizer(models.BPE(**model))
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                               whole]) if pattern else whole
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(vocab_size=SIZE, special_tokens=list(specials), show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    t.train_from_iterator(LINES, trainer)
    return t


def sentence_piece(normalizer, decoder, pre_tokenizer=None, specials=("<unk>", "<s>", "</s>")):
    """With byte fallback: its tokens <0xNN> stand before those of training."""
    t = Tokenizer(models.BPE())
    t.normalizer = normalizer
    if pre_tokenizer:
        t.pre_tokenizer = pre_tokenizer
    bytes_ = [f"<0x{b:02X}>" for b in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=len(bytes_) + SIZE - 200, special_tokens=list(specials) + bytes_,
                                  show_progress=False,
                                  limit_alphabet=60, max_token_length=8)
    t.train_from_iterator([line + "\n" for line in LINES], trainer)
    whole = json.loads(t.to_str())
    whole["model"] |= {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
    whole["added_tokens"] = [a for a in whole["added_tokens"] if a["content"] not in bytes_]
    t = Tokenizer.from_str(json.dumps(whole))
    t.decoder = decoder
    return t


def llama3():
    t = byte_level(LLAMA3, specials=("<|begin_of_text|>", "<|end_of_text|>"), ignore_merges=True)
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)]),
    ])
    return t


def gemma():
    space = pre_tokenizers.Split(" ", "merged_with_previous")
    t = sentence_piece(normalizers.Replace(" ", "▁"),
                       decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
                       space, ("<pad>", "<eos>", "<bos>", "<unk>"))
    t.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    t.add_tokens([AddedToken("▁▁", normalized=False), AddedToken("\n\n", normalized=False),
                  AddedToken("picture <0>", normalized=True)])
    return t


def llama2():
    t = sentence_piece(normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
                       decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                          decoders.Strip(" ", 1, 0)]))
    t.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    return t


def qwen():
    t = byte_level(QWEN, normalizers.NFC())
    t.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return t


def main():
    kinds = {"gpt2": byte_level(), "llama3": llama3(), "qwen": qwen(),
             "gpt-oss": byte_level(GPT_OSS, ignore_merges=True),
             "gemma": gemma(), "llama2": llama2()}
    fixtures = {}
    for name, t in kinds.items():
        cases = []
        for text in TEXTS + ["<think>so</think>", "a picture <0> b", "\n\n\n▁▁▁"]:
            ids = t.encode(text, add_special_tokens=False).ids
            cases.append({"text": text, "ids": ids, "whole": t.encode(text).ids,
                          "decoded": t.decode(ids, skip_special_tokens=False)})
        fixtures[name] = {"tokenizer": json.loads(t.to_str()), "cases": cases}
    write_fixture("tokenizers.json", json.dumps(fixtures, separators=(",", ":")))


if __name__ == "__main__":
    main()
