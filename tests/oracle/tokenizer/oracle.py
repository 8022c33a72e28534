"""What `albert::tokenizer` claims, held against SentencePiece and Hugging Face's tokenizers. See README.md.

    oracle.py likelihood TEXT tokenizer.json      total log-likelihood, ours against SentencePiece's
    oracle.py ids        TEXT tokenizer.json IDS  our ids against those that `tokenizers` gives with the same file
"""

import collections
import json
import os
import sys
import tempfile
import time
import unicodedata

from released import SYMBOLS, TRAINING

SPACES = "\u200b\u200c\u200e\u200f\u2581\ufeff\ufffd"
CONTROLS = [*range(0, 9), *range(0x0E, 0x1C), 0x7F, 0x8F, 0x9F]
TABLE = {ord(c): " " for c in SPACES} | {c: None for c in CONTROLS}


def clean(text):
    """Google's preprocess_text, then the spaces and controls of nmt_nfkc."""
    text = unicodedata.normalize("NFKD", " ".join(text.split()))
    text = "".join(c for c in text if not unicodedata.combining(c)).lower()
    return " ".join(text.translate(TABLE).split())


def words_of(lines):
    counts = collections.Counter()
    for line in lines:
        counts.update("▁" + word for word in line.split(" ") if word)
    return counts


def log_likelihood(words, pieces):
    """Sum over words of count x score of the best segmentation; symbols count 0 in both models."""
    pieces = dict(pieces)
    pieces.update({symbol: 0.0 for symbol in SYMBOLS})
    longest = max(map(len, pieces))
    unknown = min(pieces.values()) - 10.0
    total = 0.0
    for word, count in words.items():
        best = [0.0]
        for end in range(1, len(word) + 1):
            options = [best[end - 1] + pieces.get(word[end - 1], unknown)]
            for start in range(max(0, end - longest), end - 1):
                score = pieces.get(word[start:end])
                if score is not None:
                    options.append(best[start] + score)
            best.append(max(options))
        total += count * best[-1]
    return total


def train_sentencepiece(lines, vocab_size):
    import sentencepiece

    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "text")
        with open(text, "w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)
        start = time.time()
        sentencepiece.SentencePieceTrainer.train(
            input=text,
            model_prefix=os.path.join(folder, "m"),
            vocab_size=vocab_size,
            **TRAINING,
        )
        print(f"sentencepiece trained in {time.time() - start:.1f} s")
        with open(os.path.join(folder, "m.vocab"), encoding="utf-8") as file:
            rows = [line.rstrip("\n").split("\t") for line in file]
    return [(piece, float(score)) for piece, score in rows]


def normal_pieces(rows):
    return {piece: score for piece, score in rows if score < 0.0}


def likelihood(text, tokenizer):
    with open(text, encoding="utf-8", newline="\n") as file:
        lines = [clean(line) for line in file if len(line.encode()) <= 4193]
    lines = [line for line in lines if line]
    with open(tokenizer, encoding="utf-8") as file:
        ours = json.load(file)["model"]["vocab"]
    theirs = train_sentencepiece(lines, len(ours))
    words = words_of(lines)
    a, b = log_likelihood(words, normal_pieces(ours)), log_likelihood(words, normal_pieces(theirs))
    both = set(normal_pieces(ours)) & set(normal_pieces(theirs))
    print(f"pieces {len(ours)}, in both vocabularies {len(both)}")
    print(f"log-likelihood ours {a:.0f} sentencepiece {b:.0f}: ours is {100 * (a - b) / abs(b):+.3f} %")
    return 0 if a >= b - 0.005 * abs(b) else 1


def ids(text, tokenizer, ids_file):
    import tokenizers

    theirs = tokenizers.Tokenizer.from_file(tokenizer)
    with open(text, encoding="utf-8", newline="\n") as file:
        lines = file.read().split("\n")
    with open(ids_file, encoding="utf-8") as file:
        ours = [[int(id) for id in line.split()] for line in file.read().split("\n")]
    wrong = 0
    start = time.time()
    encoded = [theirs.encode(line, add_special_tokens=False).ids for line in lines]
    print(f"tokenizers: {sum(map(len, lines)) / 1e6 / (time.time() - start):.1f} MB/s")
    for number, (line, expected) in enumerate(zip(lines, encoded), 1):
        if expected != ours[number - 1]:
            wrong += 1
            if wrong <= 5:
                print(f"line {number}: {line!r}\n  theirs {expected}\n  ours   {ours[number - 1]}")
    print(f"{wrong} of {len(lines)} lines differ")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit({"likelihood": likelihood, "ids": ids}[sys.argv[1]](*sys.argv[2:]))
