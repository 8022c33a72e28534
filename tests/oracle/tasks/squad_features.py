"""Windows of SQuAD, transcribed apart from the Rust code, over contexts made from real text.

    squad_features.py MODEL TEXT OUT.jsonl [--contexts N] [--seed S] [--lcs]

Section by section what the released `squad_utils.py` does, but for its alignment: pieces carry the characters that the
normalizer made them from. With `--lcs`, the alignment by common subsequences is run as well, and the contexts in which it
gives another answer span or other texts of pieces are listed, as

    mismatch   it would leave the example out
    inexact    some character has no partner in it (one that is not a single character once it is normalized)
    space      all have, but the answer begins or ends with a space, which there is part of the next word's piece
    exact      all have, and it differs all the same
"""

import argparse
import json
import random
import unicodedata

import sentencepiece

MARK = "\u2581"
CLS, SEP = "[CLS]", "[SEP]"
# White space, and what the normalizer of SentencePiece makes a space of.
BLANK = " \t\n\r\u00a0\u2003\u3000\u200b\u200c\u200e\u200f\ufeff\ufffd"


def preprocess(text, remove_space=True):
    text = " ".join(text.split()) if remove_space else text
    return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c)).lower()


def preprocess_with_source(text):
    """The same, with the character of `text` that each character comes from."""
    out, source = [], []
    for at, c in enumerate(text):
        if not c.split():
            if out and out[-1] != " ":
                out.append(" ")
                source.append(at)
            continue
        for part in unicodedata.normalize("NFKD", c):
            if not unicodedata.combining(part):
                # NFKD of a character may be spaces, which were not there to be collapsed.
                out.append(part)
                source.append(at)
    if out and out[-1] == " " and not text[source[-1]].split():
        out.pop(), source.pop()
    lower = "".join(out).lower()
    assert lower == preprocess(text) and len(lower) == len(source), text
    return lower, source


def encode(model, text):
    """Pieces, ids and the characters of `text` that each covers, `None` for a lone mark; the digit-comma rule as meant."""
    clean, source = preprocess_with_source(text)
    pieces = []
    for found in model.encode(clean, out_type="immutable_proto").pieces:
        begin, end = found.begin, found.end
        while begin < end and clean[begin] in BLANK:
            begin += 1
        while begin < end and clean[end - 1] in BLANK:
            end -= 1
        piece = found.piece
        if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
            parts = model.encode(piece[:-1].replace(MARK, ""), out_type=str)
            if piece[0] != MARK and parts[0][0] == MARK:
                parts = parts[1:] if parts[0] == MARK else [parts[0][1:], *parts[1:]]
            for part in [*parts, ","]:
                length = len(part.replace(MARK, ""))
                pieces.append((part, model.piece_to_id(part), (begin, begin + length)))
                begin += length
            assert begin == end, (piece, parts)
        else:
            pieces.append((piece, found.id, (begin, end)))
    spans = [(source[begin], source[end - 1] + 1) if begin < end else None for _, _, (begin, end) in pieces]
    return [piece for piece, _, _ in pieces], [at for _, at, _ in pieces], spans


def gold_span(spans, start, end):
    """The first piece of the first covered character of the answer, and the last of the last."""
    covering = lambda c: [at for at, span in enumerate(spans) if span and span[0] <= c < span[1]]
    first = next((found[0] for c in range(start, end) if (found := covering(c))), None)
    last = next((found[-1] for c in range(end - 1, start - 1, -1) if (found := covering(c))), None)
    return None if first is None else (first, last)


def windows(count, question, settings):
    room = settings["max_length"] - question - 3
    found, start = [], 0
    while start < count:
        length = min(room, count - start)
        found.append((start, length))
        if start + length == count:
            break
        start += min(length, settings["stride"])
    return found


def owner(spans, position):
    best, at = None, None
    for index, (start, length) in enumerate(spans):
        end = start + length - 1
        if start <= position <= end:
            score = min(position - start, end - position) + 0.01 * length
            if best is None or score > best:
                best, at = score, index
    return at


def feature(model, asked, ids, span, gold):
    """One window: ids, segments, mask of places where no answer may be, start, end."""
    start, length = span
    tokens, segments, hidden = [model.piece_to_id(CLS)], [0], [0]
    for piece in asked:
        tokens.append(piece), segments.append(0), hidden.append(1)
    tokens.append(model.piece_to_id(SEP)), segments.append(0), hidden.append(1)
    for piece in ids[start : start + length]:
        tokens.append(piece), segments.append(1), hidden.append(0)
    tokens.append(model.piece_to_id(SEP)), segments.append(1), hidden.append(1)
    if gold is None or gold[0] < start or gold[1] > start + length - 1:
        return tokens, segments, hidden, 0, 0, True
    offset = len(asked) + 2
    return tokens, segments, hidden, gold[0] - start + offset, gold[1] - start + offset, False


def runs(bits):
    """Lengths of runs, the first of zeros."""
    found, value = [0], 0
    for bit in bits:
        if bit != value:
            found.append(0)
            value = bit
        found[-1] += 1
    return found


def common_subsequence(context, text, cache):
    """Characters of `context` against those of the joined pieces, in a band around the diagonal; `None` on a mismatch."""
    n, m = len(context), len(text)
    clean = [cache.setdefault(c, preprocess(c, remove_space=False)) for c in context]
    band = abs(n - m) + 5
    for _ in range(2):
        length, step = {}, {}
        for i in range(n):
            for j in range(max(0, i - band), min(m, i + band)):
                best, how = 0, None
                if i > 0:
                    best, how = length.get((i - 1, j), 0), "up"
                if j > 0 and length.get((i, j - 1), 0) > best:
                    best, how = length[i, j - 1], "left"
                before = length.get((i - 1, j - 1), 0)
                if clean[i] == text[j] and before + 1 > best:
                    best, how = before + 1, "both"
                length[i, j] = best
                if how:
                    step[i, j] = how
        if length.get((n - 1, m - 1), 0) > 0.8 * n:
            break
        band *= 2
    to_text, to_context = [None] * n, [None] * m
    i, j = n - 1, m - 1
    while i >= 0 and j >= 0 and (i, j) in step:
        how = step[i, j]
        if how == "both":
            to_text[i], to_context[j] = j, i
            i, j = i - 1, j - 1
        elif how == "left":
            j -= 1
        else:
            i -= 1
    if length.get((n - 1, m - 1), 0) < 0.8 * n:
        return None
    return to_text, to_context


def filled(index, at, size, is_start):
    """A hole takes what is nearest on the inner side."""
    if index[at] is not None:
        return index[at]
    rear = next((k for k in range(at, len(index)) if index[k] is not None), None)
    front = next((k for k in range(at, -1, -1) if index[k] is not None), None)
    if front is None:
        if index[rear] >= 1:
            return 0 if is_start else index[rear] - 1
        return index[rear]
    if rear is None:
        if size is not None and index[front] < size - 1:
            return index[front] + 1 if is_start else size - 1
        return index[front]
    if index[rear] > index[front] + 1:
        return index[front] + 1 if is_start else index[rear] - 1
    return index[rear] if is_start else index[front]


def by_subsequence(context, pieces, start, end, cache):
    """(answer span, texts of pieces, whether all characters have partners), or `None` on a mismatch."""
    text = "".join(pieces).replace(MARK, " ")
    of_char = [at for at, piece in enumerate(pieces) for _ in piece]
    aligned = common_subsequence(context, text, cache)
    if aligned is None:
        return None
    to_text, to_context = aligned
    texts, begin = [], 0
    for piece in pieces:
        first = filled(to_context, begin, len(context), True)
        last = filled(to_context, begin + len(piece) - 1, len(context), False)
        texts.append(context[first : last + 1].strip())
        begin += len(piece)
    span = (of_char[filled(to_text, start, None, True)], of_char[filled(to_text, end - 1, None, False)])
    exact = all(j is not None for i, j in enumerate(to_text) if context[i].split())
    return span, texts, exact


ODD = ["\u00a0", "\u2003", "  ", " \t ", "\n", "\u3000", " \u200b"]
STRANGE = ["é", "ﬁn", "½", "Ångström", "İ", "“quoted”", '"quoted"', "``so''", "日本", "😀", "1,234,", "2010,", "x1,", "한글", "²", "naïve", "ΑΣ", "№ 5", "…", "€7", "e\u0301"]


def context_of(rng, lines):
    at = rng.randrange(len(lines) - 30)
    text = " ".join(lines[at : at + rng.choice([1, 2, 4, 8, 16])])[: rng.choice([300, 700, 1500])]
    words = text.split(" ")
    kind = rng.random()
    if kind < 0.6:
        for _ in range(rng.randrange(1, 9)):
            words.insert(rng.randrange(len(words) + 1), rng.choice(STRANGE))
    text = ""
    for word in words:
        text += (rng.choice(ODD) if kind < 0.3 and rng.random() < 0.05 else " ") + word
    if kind < 0.2:
        text = "".join({"e": "é", "a": "a\u0308"}.get(c, c) if rng.random() < 0.03 else c for c in text)
    return text if kind < 0.1 else text.strip(BLANK)


def answer_of(rng, context):
    """A span of whole words, or, one time in six, of any characters."""
    if rng.random() < 0.16:
        start = rng.randrange(len(context) - 1)
        return start, min(len(context), start + rng.randrange(1, 40))
    inside = [at for at, c in enumerate(context) if c.split() and (at == 0 or not context[at - 1].split())]
    first = rng.randrange(len(inside))
    start, last = inside[first], inside[min(len(inside) - 1, first + rng.choice([0, 0, 1, 2, 3, 8]))]
    end = next((at for at in range(last, len(context)) if not context[at].split()), len(context))
    return start, end


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model"), parser.add_argument("text"), parser.add_argument("out")
    parser.add_argument("--contexts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--lcs", action="store_true")
    given = parser.parse_args()
    model = sentencepiece.SentencePieceProcessor(model_file=given.model)
    with open(given.text, encoding="utf-8") as file:
        lines = [line.strip() for line in file if line.strip()]
    rng, cache, counts = random.Random(given.seed), {}, {"equal": 0, "inexact": 0, "mismatch": 0, "space": 0, "exact": 0}
    made = 0
    with open(given.out, "w", encoding="utf-8") as out:
        for number in range(given.contexts):
            context = context_of(rng, lines)
            question = " ".join(rng.choice(lines).split()[: rng.choice([4, 9, 20, 90])]) + "?"
            settings = rng.choice([(384, 128, 64), (512, 128, 64), (64, 16, 12), (96, 128, 20), (40, 7, 8)])
            settings = dict(zip(("max_length", "stride", "max_question"), settings))
            start, end = answer_of(rng, context)
            asked = encode(model, question)[1][: settings["max_question"]]
            pieces, ids, spans = encode(model, context)
            gold = gold_span(spans, start, end)
            found = windows(len(ids), len(asked), settings)
            byte = lambda c: len(context[:c].encode())
            features = [feature(model, asked, ids, window, gold) for window in found]
            for (begin, length), (tokens, *_) in zip(found, features):
                assert tokens[len(asked) + 2 : -1] == ids[begin : begin + length]
            made += len(features)
            one = {
                "context": context,
                "question": question,
                **settings,
                "answer": [byte(start), byte(end)],
                "asked": asked,
                "ids": ids,
                "lengths": [[byte(s[0]), byte(s[1]) - byte(s[0])] if s else None for s in spans],
                "gold": gold,
                "windows": found,
                "owners": runs_of([owner(found, at) for at in range(len(ids))]),
                "segments": [runs(segments) for _, segments, *_ in features],
                "hidden": [runs(hidden) for _, _, hidden, *_ in features],
                "spans": [[s, e, none] for *_, s, e, none in features],
            }
            out.write(json.dumps(one, ensure_ascii=False, separators=(",", ":")) + "\n")
            if given.lcs and context[start:end].split():
                counts[compare(number, context, pieces, spans, gold, start, end, cache)] += 1
    print(f"{given.contexts} contexts, {made} windows")
    if given.lcs:
        print("alignment by common subsequences:", counts)


def runs_of(values):
    """Pairs of a value and how often it comes."""
    found = []
    for value in values:
        if found and found[-1][0] == value:
            found[-1][1] += 1
        else:
            found.append([value, 1])
    return found


def compare(number, context, pieces, spans, gold, start, end, cache):
    aligned = by_subsequence(context, pieces, start, end, cache)
    if aligned is None:
        print(f"context {number}: no alignment, the example would be left out")
        return "mismatch"
    span, texts, exact = aligned
    texts = [text.strip(BLANK) for text in texts]
    ours = [context[s[0] : s[1]].strip() if s else "" for s in spans]
    differing = [(piece, theirs, text) for piece, theirs, text in zip(pieces, texts, ours) if theirs != text and text]
    if span == gold and not differing:
        return "equal"
    what = f"answer {context[start:end]!r}: pieces {span} against {gold}" if span != gold else f"{len(differing)} pieces, such as {differing[0]}"
    if not exact:
        kind = "inexact"
    elif not differing and (not context[start].split() or not context[end - 1].split()):
        # There, the space before a word is part of its piece.
        kind = "space"
    else:
        kind = "exact"
    print(f"context {number}, {kind}: {what}")
    return kind


if __name__ == "__main__":
    main()
