#!/usr/bin/env python3
"""Turns texts into shards of tokens, which ./train --data reads; can make a vocabulary of its own from them first.

usage: scripts/tokenize.py TEXT... --tokenizer=FOLDER|FILE --out=FOLDER   with the tokenizer.json of a model
       scripts/tokenize.py TEXT... --train=SIZE --out=FOLDER       with a byte-level BPE of SIZE tokens, made here
       scripts/tokenize.py --choices=FILE.json --tokenizer=... --out=FILE.bin   for ./train --evaluate --choices

A TEXT is a file, or a folder of files, and each file is a document; of a .jsonl file each line's "text" is one. An
end-of-text token, where the tokenizer has one, stands before every document, as in the shards of llm.c. FOLDER gets
train_000000.bin and so on, val_000000.bin with the last --val-fraction of the texts, and the tokenizer.json.

FILE.json is a list of {"context": TEXT, "endings": [TEXT, ...], "label": NUMBER}, or one of them a line, as HellaSwag's
(whose "ctx" is the context). A space stands between a context and an ending.

Needs the tokenizers library: python3 -m pip install tokenizers
"""
import sys

if __name__ == "tokenize":
    # Python has a module of this name too, and whoever imports it from this folder means that one.
    import importlib.util
    import sysconfig

    standard = importlib.util.spec_from_file_location(__name__, sysconfig.get_path("stdlib") + "/tokenize.py")
    sys.modules[__name__] = importlib.util.module_from_spec(standard)
    standard.loader.exec_module(sys.modules[__name__])

import argparse
import array
import codecs
import glob
import json
import os
import re
import shutil
import stat
import time

# Of a document, so much is encoded at once; and so many pieces side by side, on all cores.
PIECE, PIECES = 1 << 18, 16
END_OF_TEXT = ["<|endoftext|>", "<|end_of_text|>", "<eos>", "</s>"]


def unfinished(path):
    """The name that a file has until it is whole."""
    return f"{path}.tmp.{os.getpid()}"


def fail(message):
    sys.exit("error: " + " ".join(str(message).split()))


# ---- texts


def files_under(top):
    """As files_under of dataloader/files.h: all regular files, by path in byte order, without names that begin with a
    dot."""

    def stop(error):
        fail(f"{error.filename}: cannot be walked: {error.strerror}")

    files = []
    for folder, folders, names in os.walk(top, onerror=stop):
        folders[:] = [f for f in folders if not f.startswith(".")]
        files += [os.path.join(folder, name) for name in names if not name.startswith(".")]
    return sorted(filter(os.path.isfile, files), key=os.fsencode)


def files_of(texts):
    """The files that TEXT... names."""
    files = []
    for text in texts:
        if os.path.exists(text) and not (os.path.isdir(text) or os.path.isfile(text)):
            fail(f"{text}: not a regular file")  # a pipe cannot be read twice, and says no size
        files += files_under(text) if os.path.isdir(text) else [text]
    if not files:
        fail(f"{', '.join(texts)}: no file there")
    return files


def size_of(file):
    """Of a file that can be read; a pipe says none."""
    status = os.stat(file)
    if not stat.S_ISREG(status.st_mode):
        fail(f"{file}: not a regular file")
    return status.st_size


def is_text(value):
    """A string of whole characters: JSON has names for the halves of one too."""
    return isinstance(value, str) and not re.search("[\ud800-\udfff]", value)


def last_cut(block):
    """Where a block of text can be cut: the last place between a letter and a space or a mark of the end; 0 where there
    is none.

    No pattern that splits texts into words has a piece that reaches across such a place.
    """
    for at in range(len(block) - 1, 0, -1):
        if block[at] in " \t\n\r.,。，、" and block[at - 1].isalpha():
            return at
    return 0


class Texts:
    """The documents of files, in pieces; and where training data ends and validation data begins."""

    def __init__(self, files, val_fraction, can_cut):
        self.files, self.can_cut = files, can_cut
        self.total = sum(size_of(file) for file in files)
        self.border = self.total - int(self.total * val_fraction)
        self.read = 0  # bytes

    def pieces(self):
        """(text, whether a document begins with it, whether it is validation data)"""
        self.read = 0
        for file in self.files:
            try:
                with open(file, "rb") as opened:
                    if file.endswith(".jsonl"):
                        yield from self.lines(opened, file)
                    else:
                        yield from self.document(opened, file)
            except OSError as error:
                fail(f"{file}: {error.strerror}")

    def lines(self, opened, file):
        for number, line in enumerate(opened, 1):
            if not line.strip():
                continue
            try:
                text = json.loads(line)["text"]
                if not is_text(text):
                    raise TypeError
            except (ValueError, KeyError, TypeError, RecursionError):
                fail(f"{file}: line {number} is no JSON object with a string \"text\"")
            yield text, True, self.read >= self.border
            self.read += len(line)

    def document(self, opened, file):
        begins, held, decoder, first = True, "", codecs.getincrementaldecoder("utf-8")(), self.read
        while True:
            # Up to the border first, so that what is cut there is cut as near to it as may be.
            before = self.border - first - opened.tell()
            wanted = max(PIECE, len(held))  # where no cut is found, twice as much
            if 0 < before <= wanted:
                wanted = before
            block = opened.read(wanted)
            ended = len(block) < wanted
            if b"\0" in block:
                fail(f"{file}: has a NUL byte: not text")
            try:
                held += decoder.decode(block, ended)
            except UnicodeDecodeError as error:
                fail(f"{file}: byte {opened.tell() - len(error.object) + error.start} is not UTF-8: iconv -c -f UTF-8 "
                     f"-t UTF-8 {file} >NEW leaves such bytes out")
            cut = len(held) if ended else last_cut(held) if self.can_cut else 0
            if cut > 0:
                yield held[:cut], begins, self.read >= self.border
                begins = False
                self.read += len(held[:cut].encode())
                held = held[cut:]
                if wanted == before and not ended:
                    self.border = self.read
            if ended:
                return


# ---- tokenizers


def find_tokenizers():
    try:
        import tokenizers
    except ImportError:
        fail("needs the tokenizers library: python3 -m pip install tokenizers")
    return tokenizers


def read_tokenizer(path):
    file = os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path
    size_of(file)
    try:
        with open(file, "rb") as opened:
            return find_tokenizers().Tokenizer.from_buffer(opened.read())
    except Exception as error:  # the library knows no narrower one
        fail(f"{file}: not a tokenizer.json that the tokenizers library reads: {error}")


def byte_level_bpe(texts, size):
    """A tokenizer as GPT-2's: its words, its 256 bytes, and merges of what stands together most often in `texts`."""
    tokenizers = find_tokenizers()
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=END_OF_TEXT[:1], show_progress=sys.stderr.isatty(),
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator((text for text, _, val in texts.pieces() if not val), trainer)
    return tokenizer


def cuts_change_nothing(tokenizer):
    """A tokenizer that puts a space before every text, say, must be given documents whole."""

    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False).ids

    return all(encode(a + b) == encode(a) + encode(b)
               for a, b in [("x", "\ny"), ("the end", "\n\n the  \n"), ("é", " 1"), ("a", ".\n")])


# ---- shards


class Shards:
    """Shards of one split, as dataloader/shards.h says: written under another name until they are whole."""

    def __init__(self, folder, split, vocab, tokens_in_one):
        self.folder, self.split, self.vocab, self.tokens_in_one = folder, split, vocab, tokens_in_one
        self.wide = vocab > 1 << 16
        self.file, self.count, self.total, self.paths = None, 0, 0, []

    def add(self, ids):
        tokens = array.array("I" if self.wide else "H", ids)
        while tokens:
            if self.file is None:
                self.paths.append(os.path.join(self.folder, f"{self.split}_{len(self.paths):06d}.bin"))
                self.file = open(unfinished(self.paths[-1]), "xb")
                self.file.write(bytes(1024))
            some = tokens[: self.tokens_in_one - self.count]
            tokens = tokens[len(some) :]
            self.file.write(some.tobytes())
            self.count += len(some)
            self.total += len(some)
            if self.count == self.tokens_in_one:
                self.close()

    def close(self):
        if self.file is None:
            return
        magic, version = (20240801, 7) if self.wide else (20240520, 1)
        self.file.seek(0)
        array.array("I", [magic, version, self.count, self.vocab]).tofile(self.file)
        self.file.close()
        os.replace(unfinished(self.paths[-1]), self.paths[-1])
        self.file, self.count = None, 0

    def remove(self):
        for path in self.paths:
            for name in (path, unfinished(path)):
                if os.path.lexists(name):
                    os.remove(name)


def write_shards(texts, tokenizer, end_of_text, shards):
    """shards: of training, of validation. One pass over the texts."""
    begun = time.monotonic()
    encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)  # without places in the text

    def write(pieces):
        encoded = encode([text for text, _, _ in pieces], add_special_tokens=False)
        for (_, begins, val), e in zip(pieces, encoded):
            shards[val].add(([end_of_text] if begins and end_of_text is not None else []) + e.ids)
        if sys.stderr.isatty():
            done, seconds = min(texts.read, texts.total) / 1e6, time.monotonic() - begun
            tokens = sum(s.total for s in shards) / 1e6
            print(f"\r{done:.1f} of {texts.total / 1e6:.1f} MB, {done / seconds:.1f} MB/s, {tokens:.1f}M tokens ",
                  end="", file=sys.stderr)

    pieces, characters = [], 0
    for piece in texts.pieces():
        pieces.append(piece)
        characters += len(piece[0])
        if characters >= PIECES * PIECE:
            write(pieces)
            pieces, characters = [], 0
    write(pieces)
    for s in shards:
        s.close()
    if sys.stderr.isatty():
        print(file=sys.stderr)


# ---- questions with endings


def read_questions(file):
    """(context, endings, label) of each"""
    size_of(file)
    try:
        with open(file, encoding="utf-8") as opened:
            text = opened.read()
        questions = (json.loads(text) if text.lstrip().startswith("[") else
                     [json.loads(line) for line in text.splitlines() if line.strip()])
    except (OSError, ValueError, RecursionError) as error:
        fail(f"{file}: {error}: expected a list of questions in JSON, or one of them a line")
    read = []
    for number, question in enumerate(questions):
        try:
            context = question["ctx"] if "ctx" in question else question["context"]
            endings, label = question["endings"], int(question["label"])
            if not (is_text(context) and isinstance(endings, list) and len(endings) >= 2 and all(map(is_text, endings))
                    and 0 <= label < len(endings)):
                raise ValueError
        except (KeyError, TypeError, ValueError, OverflowError):
            fail(f"{file}: question {number} has no context, two endings or more and the label of one of them")
        read.append((context, endings, label))
    if not read:
        fail(f"{file}: holds no question")
    return read


def encode_question(tokenizer, context, endings):
    """The ids of the context, with what the tokenizer puts before a text, and of each ending."""
    plain = tokenizer.encode(context, add_special_tokens=False).ids
    with_template = tokenizer.encode(context).ids
    at = next((i for i in range(len(with_template)) if plain and with_template[i : i + len(plain)] == plain), 0)
    before = with_template[:at]
    of_endings = []
    for ending in endings:
        whole = tokenizer.encode(context + " " + ending, add_special_tokens=False).ids
        apart = tokenizer.encode(" " + ending, add_special_tokens=False).ids
        of_endings.append(whole[len(plain) :] if whole[: len(plain)] == plain else apart)
    return before + plain, of_endings


def write_choices(file, out, tokenizer):
    """As dataloader/choices.h says."""
    examples = [(*encode_question(tokenizer, context, endings), label)
                for context, endings, label in read_questions(file)]
    for number, (context, endings, _) in enumerate(examples):
        if not (context and all(endings)):
            fail(f"{file}: question {number} has a context or an ending without a token")
    numbers = [5 + 1 + len(context) + sum(1 + len(e) for e in endings) for context, endings, _ in examples]
    ids = (i for context, endings, _ in examples for part in [context, *endings] for i in part)
    wide = max(ids) >= 65535 or max(numbers) * 2 > 65535 or len(examples) > 65535
    stream = array.array("I" if wide else "H")
    width, version = stream.itemsize, 2 if wide else 1
    for number, (context, endings, label) in enumerate(examples):
        stream.extend([(1 << 8 * width) - 1, numbers[number] * width, number, label, len(endings)])
        for part in [context, *endings]:
            stream.extend([len(part), *part])
    header = array.array("I", [20240522, version, len(examples), max(numbers) * width] + [0] * 252)
    try:
        with open(unfinished(out), "xb") as opened:
            opened.write(header.tobytes() + stream.tobytes())
        os.replace(unfinished(out), out)
    except OSError as error:
        if os.path.lexists(unfinished(out)):
            os.remove(unfinished(out))
        fail(f"{out}: cannot write: {error.strerror}")
    print(f"{len(examples)} questions, {8 * width} bits a token")


# ----


def choose_end_of_text(tokenizer, name):
    """The id of the token before every document; None where there is none."""
    if name is not None:
        if not is_text(name) or tokenizer.token_to_id(name) is None:
            fail(f"--end-of-text={name}: the tokenizer has no such token")
        return tokenizer.token_to_id(name)
    return next((i for i in map(tokenizer.token_to_id, END_OF_TEXT) if i is not None), None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="a file, or a folder of files")
    parser.add_argument("--choices", metavar="FILE.json", help="instead of texts: questions with endings")
    parser.add_argument("--out", required=True, metavar="FOLDER",
                        help="where the shards and the tokenizer go; or the questions")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--tokenizer", metavar="FOLDER|FILE", help="a tokenizer.json, or a folder that has one")
    which.add_argument("--train", type=int, metavar="SIZE", help="make a byte-level BPE of SIZE tokens from the texts")
    parser.add_argument("--end-of-text", metavar="TOKEN",
                        help="what stands before every document; empty: nothing [the tokenizer's]")
    parser.add_argument("--val-fraction", type=float, default=0.1, metavar="X",
                        help="share of the texts, at their end, for validation [0.1]")
    parser.add_argument("--shard-tokens", type=int, default=100_000_000, metavar="N",
                        help="tokens in a shard [100000000]")
    args = parser.parse_args()
    for name, value in [("TEXT", text) for text in args.texts] + [
            ("--out", args.out), ("--tokenizer", args.tokenizer), ("--choices", args.choices)]:
        if value == "":
            fail(f"{name}: it is empty, expected the name of a file or folder")
    if args.texts and args.choices:
        fail(f"{args.texts[0]} and --choices={args.choices} were both given: it makes tokens of texts or of questions")
    if not args.texts and not args.choices:
        fail("there is nothing to read: expected TEXT..., a file or a folder of files, or --choices=FILE.json")
    if args.choices:
        if args.tokenizer is None:
            fail("--choices needs --tokenizer=FOLDER|FILE: that of the model that is to choose")
        if os.path.lexists(args.out):
            fail(f"{args.out}: is there already: name another file")
        return write_choices(args.choices, args.out, read_tokenizer(args.tokenizer))
    if not 0 <= args.val_fraction < 1:
        fail(f"--val-fraction={args.val_fraction:g}: expected 0 to below 1")
    if not 1 <= args.shard_tokens < 1 << 31:
        fail(f"--shard-tokens={args.shard_tokens}: expected 1 to 2147483647")
    if args.train is not None and not 257 <= args.train <= 1 << 24:
        fail(f"--train={args.train}: expected 257 (256 bytes and the end of text) to {1 << 24}")
    there = glob.glob(os.path.join(glob.escape(args.out), "*.bin"))
    if args.train is not None:
        there += glob.glob(os.path.join(glob.escape(args.out), "tokenizer.json"))
    if there:
        fail(f"{args.out}: holds {os.path.basename(min(there))} already: name another folder")

    files = files_of(args.texts)
    made = not os.path.isdir(args.out)
    try:  # before hours go into --train
        os.makedirs(args.out, exist_ok=True)
    except OSError as error:
        fail(f"{args.out}: cannot write: {error.strerror}")
    try:
        tokenize_texts(args, files)
    except BaseException:
        if made and not glob.glob(os.path.join(glob.escape(args.out), "*.bin")):  # (not where only the words failed)
            shutil.rmtree(args.out)
        raise


def tokenize_texts(args, files):
    if args.train is None:
        tokenizer = read_tokenizer(args.tokenizer)
    else:
        tokenizer = byte_level_bpe(Texts(files, args.val_fraction, True), args.train)
    ids = tokenizer.get_vocab(with_added_tokens=True).values()
    vocab = max(ids, default=-1) + 1
    if vocab == 0:
        fail(f"{args.tokenizer}: the tokenizer has no token")
    end_of_text = None if args.end_of_text == "" else choose_end_of_text(tokenizer, args.end_of_text)
    tokenizer.encode_special_tokens = True  # a text that speaks of <|endoftext|> does not end there
    texts = Texts(files, args.val_fraction, cuts_change_nothing(tokenizer))
    shards = [Shards(args.out, split, vocab, args.shard_tokens) for split in ("train", "val")]
    try:
        write_shards(texts, tokenizer, end_of_text, shards)
        if shards[0].total == 0:
            fail(f"{', '.join(args.texts)}: no text to train on: {texts.total} bytes, of which --val-fraction="
                 f"{args.val_fraction:g} goes to validation")
        if not os.path.exists(os.path.join(args.out, "tokenizer.json")):
            with open(os.path.join(args.out, "tokenizer.json"), "w", encoding="utf-8") as opened:
                opened.write(tokenizer.to_str(pretty=True))
    except BaseException as error:
        for s in shards:
            s.remove()
        if isinstance(error, OSError):
            fail(f"{args.out}: cannot write: {error.strerror}")
        if isinstance(error, KeyboardInterrupt):
            fail("interrupted: nothing was written")
        raise
    print(f"vocabulary {vocab}, {32 if shards[0].wide else 16} bits a token; {texts.total} bytes of {len(files)} files")
    for s in shards:
        print(f"{s.split + ':':6} {s.total} tokens in {len(s.paths)} shards")


if __name__ == "__main__":
    from common import ended

    ended(main)
