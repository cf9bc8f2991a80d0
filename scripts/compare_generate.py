#!/usr/bin/env python3
"""Lets transformers and ./train generate with the same GPT-2 124M on this CPU, and prints the tokens/s of both.

usage: pip install torch transformers && make && scripts/compare_generate.py     (--python names a Python that has both)

The model is GPT2LMHeadModel with random weights, as transformers saves it; ./train reads that folder (--from). Both
sides: fp32, greedy, a cache, the same prompt and threads; the clock starts at the first new token, so that the prompt
is left out. transformers runs with two ways for idle threads to wait; its better figure counts. The programs run in
turns, and each keeps its fastest run (scripts/side_by_side.py says why). Needs 2 GiB of memory and of /tmp.
"""
import os
import re
import tempfile

from common import TRAIN, refuse, require_train
from side_by_side import WAITING, environment, options_of, output_of, parser_with

# What the other Python runs: saves the model, or generates with it.
SAVE = """
import sys, torch, transformers
torch.manual_seed(0)
model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
# So that the likeliest token is not a matter of rounding.
for p in model.parameters(): p.data *= 1 if p.dim() < 2 else 3
model.save_pretrained(sys.argv[1])
"""
GENERATE = """
import sys, time, torch, transformers
folder, (tokens, threads) = sys.argv[1], map(int, sys.argv[2:4])
prompt = [int(i) for i in sys.argv[4].split(",")]
torch.set_num_threads(threads)
model = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32).eval()
times = []
class Clock(transformers.LogitsProcessor):
    def __call__(self, ids, scores):
        times.append(time.perf_counter())
        return scores
with torch.inference_mode():
    ids = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                         do_sample=False, min_new_tokens=tokens, max_new_tokens=tokens, use_cache=True,
                         pad_token_id=50256, eos_token_id=None,
                         logits_processor=transformers.LogitsProcessorList([Clock()]))
print("ids", *ids[0].tolist())
print(f"{(len(times) - 1) / (times[-1] - times[0]):.2f} tokens/s, transformers {transformers.__version__}, "
      f"torch {torch.__version__}")
"""


def main():
    parser = parser_with(__doc__, 3, "torch and transformers")
    parser.add_argument("--tokens", type=int, default=60, help="tokens to generate [60]")
    parser.add_argument("--prompts", type=int, nargs="*", default=[64, 960], metavar="T",
                        help="lengths of prompts [64 960]")
    options = options_of(parser, tokens=2)
    if not all(0 < T <= 1024 - options.tokens for T in options.prompts):
        refuse(f"--prompts: expected 1 to {1024 - options.tokens} tokens, so that {options.tokens} more are at most "
               "1024")
    require_train()

    rows = []
    with tempfile.TemporaryDirectory(prefix="compare_generate_") as folder:
        output_of([options.python, "-c", SAVE, folder])
        for T in options.prompts:
            prompt = ",".join(str(i * 7919 % 50257) for i in range(T))
            programs = {"gated.cu": ([TRAIN, "--generate", f"--from={folder}", f"--prompt-tokens={prompt}",
                                      "--temperature=0", f"--tokens={options.tokens}", "--device=cpu",
                                      f"--threads={options.threads}"], {})}
            for waiting, variables in WAITING.items():
                programs[f"transformers, {waiting}"] = ([options.python, "-c", GENERATE, folder, str(options.tokens),
                                                         str(options.threads), prompt], variables)
            rates, ids = {name: [] for name in programs}, {}
            for turn in range(options.rounds):
                for name, (command, variables) in programs.items():
                    text = output_of(command, environment(options.threads) | variables)
                    rates[name].append(float(re.search(r"([\d.]+) tokens/s", text)[1]))
                    ids[name] = [int(i) for i in re.search(r"^(?:ids )?((?:\d+ )+\d+)$", text, re.M)[1].split()]
                    versions = re.search(r"transformers \S+ torch \S+", text)
                    print(f"prompt {T}, round {turn + 1}/{options.rounds}  {name:32} {rates[name][-1]:8.1f} tokens/s",
                          flush=True)
            ours, *others = rates
            theirs = max(max(rates[name]) for name in others)
            same = next((i for i, (a, b) in enumerate(zip(ids[ours], ids[others[0]])) if a != b), len(ids[ours])) - T
            rows.append((T, max(rates[ours]), theirs, same))
    print("\n| prompt | gated.cu tokens/s | transformers tokens/s | ratio | the same tokens |\n|---|---|---|---|---|")
    for T, ours, theirs, same in rows:
        print(f"| {T} | {ours:.1f} | {theirs:.1f} | {ours / theirs:.2f}x | {same} of {options.tokens} |")
    print(f"{versions[0]}, {options.threads} threads, {options.rounds} rounds, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
