"""Cleaned text as Python has it: Unicode normalization and `str.lower`, the final sigma above all.

    lower.py FILE      writes tests/golden/tokenizer/lower.json (Python 3.11: Unicode 14)

`blocks` are checksums over every assigned character in four contexts beside a sigma, 256 characters each; `rows` are random
words. Both with accents dropped (NFKD) and with accents kept (NFKC).
"""

import json
import random
import sys
import unicodedata

SPACES = "\u200b\u200c\u200e\u200f\u2581\ufeff\ufffd"
CONTROLS = [*range(0, 9), *range(0x0E, 0x1C), 0x7F, 0x8F, 0x9F]
TABLE = {ord(c): " " for c in SPACES} | {c: None for c in CONTROLS}
# Later versions of Unicode changed these: U+0295 has no case any more (nor has U+02E4, which NFKD makes of it), and
# U+1171E became a mark without width.
CHANGED = "\u0295\u02e4\U0001171e"
CONTEXTS = ["A{}Σ", "AΣ{}A", "{}Σ", "Σ{}"]


def clean(text, strip):
    """Google's preprocess_text (or NFKC in place of dropping accents), then the spaces and controls of nmt_nfkc."""
    text = unicodedata.normalize("NFKD" if strip else "NFKC", " ".join(text.split()))
    if strip:
        text = "".join(c for c in text if not unicodedata.combining(c))
    return " ".join(text.lower().translate(TABLE).split())


def fnv(text, state):
    for byte in text.encode():
        state = ((state ^ byte) * 0x01000193) & 0xFFFFFFFF
    return state


def blocks():
    sums = []
    for start in range(0, 0x110000, 256):
        block = [c for c in map(chr, range(start, start + 256)) if unicodedata.category(c) not in ("Cn", "Cs", "Co") and c not in CHANGED]
        if not block:
            continue
        bits = sum(1 << (ord(c) - start) for c in block)
        state = 0x811C9DC5
        for c in block:
            for context in CONTEXTS:
                for strip in (True, False):
                    state = fnv(clean(context.format(c), strip) + "\n", state)
        sums.append([start >> 8, "" if len(block) == 256 else f"{bits:x}", f"{state:08x}"])
    return sums


def rows():
    random.seed(22)
    letters = "aAbZσΣςΑαÉéßİıǅﬁſΩΆ"
    between = "'.:·’^`´¨­\u0301\u0345\u200b\u200d\ufeff\u0001\u007f\u2581 -_1Ⅷʰ\u00a0\u3000\u1c7d𝚺Ϲ"
    out = []
    for _ in range(500):
        text = "".join(random.choice(random.choice([letters, "ΣΣ", between])) for _ in range(random.randint(1, 12)))
        out.append([text, clean(text, True), clean(text, False)])
    return out


if __name__ == "__main__":
    golden = {"unicode": unicodedata.unidata_version, "blocks": blocks(), "rows": rows()}
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write('{"unicode": "%s",\n"blocks": [\n' % golden["unicode"])
        file.write(",\n".join(json.dumps(block, separators=(",", ":")) for block in golden["blocks"]))
        file.write('\n],\n"rows": [\n')
        file.write(",\n".join(json.dumps(row, separators=(",", ":")) for row in golden["rows"]))
        file.write("\n]}\n")
