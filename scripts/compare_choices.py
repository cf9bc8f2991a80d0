#!/usr/bin/env python3
"""Asks a small random GPT-2 the same questions by ./train --evaluate --choices and by transformers.

usage: scripts/compare_choices.py [--questions=N] [--from=FOLDER]
FOLDER: a model of transformers with its tokenizer.json, instead of the random one. Needs torch, transformers and
tokenizers, and ./train. Ends with 1 where an answer differs.
"""
import argparse
import json
import os
import random
import re
import sys
import tempfile

from common import ROOT, TRAIN, read, refuse, require_train
from side_by_side import output_of

TOKENIZE = [sys.executable, os.path.join(ROOT, "scripts/tokenize.py")]

WORDS = "the model reads a text and writes more of it 12 345 it's they'll Größe 你好 ( ) ; . , \n".split(" ")


def random_model(folder, work):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    text = write(os.path.join(work, "text.txt"), "\n".join([" ".join(WORDS)] * 5))
    output_of([*TOKENIZE, text, "--train=300", f"--out={folder}"])
    torch.manual_seed(1)
    # Weights ten times the usual: a model that has opinions.
    vocab = len(json.loads(read(os.path.join(folder, "tokenizer.json")))["model"]["vocab"])
    config = GPT2Config(vocab_size=vocab, n_positions=64, n_embd=48, n_layer=2, n_head=3, initializer_range=0.2,
                        bos_token_id=0, eos_token_id=0)
    GPT2LMHeadModel(config).save_pretrained(folder)


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def random_questions(count):
    draw = random.Random(1)

    def text(longest):
        return " ".join(draw.choice(WORDS) for _ in range(draw.randint(1, longest)))

    return [{"context": text(12), "endings": [text(6) for _ in range(4)], "label": draw.randrange(4)}
            for _ in range(count)]


def answers_of_transformers(folder, questions):
    """How many are right by the mean loss of an ending, and by its sum."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    right = [0, 0]
    for question in questions:
        sums, lengths = [], []
        context = tokenizer.encode(question["context"]).ids
        for ending in question["endings"]:
            ids = tokenizer.encode(" " + ending, add_special_tokens=False).ids
            with torch.no_grad():
                logits = model(torch.tensor([context + ids])).logits[0, len(context) - 1 : -1]
            losses = -torch.log_softmax(logits.double(), -1)[torch.arange(len(ids)), torch.tensor(ids)]
            sums.append(losses.sum().item())
            lengths.append(len(ids))
        means = [s / n for s, n in zip(sums, lengths)]
        for i, values in enumerate((means, sums)):
            right[i] += values.index(min(values)) == question["label"]
    return [100 * r / len(questions) for r in right]


def answers_of_train(folder, questions, work):
    source = write(os.path.join(work, "questions.json"), json.dumps(questions))
    shard = os.path.join(work, "questions.bin")
    output_of([*TOKENIZE, f"--choices={source}", f"--tokenizer={folder}", f"--out={shard}"])
    said = output_of([TRAIN, "--device=cpu", "--evaluate", f"--from={folder}", f"--choices={shard}", "--val-batches=1",
                      "--batch=4"])
    found = re.search(r"choices +([\d.]+) %.*?([\d.]+) % by their", said, re.S)
    if not found:
        refuse(f"no choices in what ./train said: {said}")
    return [float(found[1]), float(found[2])]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=300, metavar="N", help="how many [300]")
    parser.add_argument("--from", dest="folder", metavar="FOLDER",
                        help="a model of transformers, instead of a random GPT-2")
    args = parser.parse_args()
    require_train()
    questions = random_questions(args.questions)
    with tempfile.TemporaryDirectory() as work:
        folder = os.path.abspath(args.folder or os.path.join(work, "model"))
        if not args.folder:
            random_model(folder, work)
        theirs, ours = answers_of_transformers(folder, questions), answers_of_train(folder, questions, work)
    print(f"{args.questions} questions, right by mean and by sum: ./train {ours[0]:.2f} % {ours[1]:.2f} %, "
          f"transformers {theirs[0]:.2f} % {theirs[1]:.2f} %")
    if any(abs(a - b) > 0.005 + 1e-9 for a, b in zip(ours, theirs)):
        refuse("the answers differ")


if __name__ == "__main__":
    main()
