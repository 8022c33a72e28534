"""Makes two tasks about pairs from the text inside the program, each with a known answer, and measures
bags of words on them.

    python benches/tasks/pairs.py --out runs/pairs

Needs only Python. The same seed gives the same bytes. Documents are split, so that no sentence is in two sets.

    follows/train.tsv, dev.tsv, test.tsv    do these two sentences stand one after the other? yes: they do; no: the second
                                            stands elsewhere in the same document, at least ten sentences away
    shared/train.tsv, ..                    how much do they share? 5 |A and B| / |A or B| of their sets of words, where B is
                                            A with some of its words replaced by words of the same length from elsewhere

The bag of words is what each side says, words as features of their own (hashed), by logistic or linear regression; for
`follows` also the number of shared words.
"""

import argparse
import math
import os
import random
import re
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
TEXT = os.path.join(HERE, "..", "..", "cli", "data", "public_domain.txt")
BUCKETS = 1 << 15


def documents(path):
    """Lists of sentences of 5 to 40 words."""
    with open(path, encoding="utf-8") as file:
        blocks = file.read().split("\n\n")
    sentences = lambda block: [line for line in block.split("\n") if line.strip() and "\t" not in line]
    return [found for found in map(sentences, blocks) if len(found) >= 30]


def words(text):
    return re.findall(r"[a-z']+", text.lower())


def fits(sentence):
    return 5 <= len(sentence.split()) <= 40


def follows(draw, sentences, count):
    """(first, second, label) pairs of one document."""
    rows = []
    for at in draw.sample(range(len(sentences) - 1), min(count, len(sentences) - 1)):
        far = [i for i in range(len(sentences)) if abs(i - at - 1) >= 10]
        second = at + 1 if len(rows) % 2 == 0 else draw.choice(far)
        if fits(sentences[at]) and fits(sentences[second]):
            rows.append((sentences[at], sentences[second], "yes" if second == at + 1 else "no"))
    return rows


def shared(draw, sentences, by_length):
    """(first, second, score) of every second sentence of a document."""
    rows = []
    for sentence in sentences[::2]:
        if not fits(sentence):
            continue
        part, other = draw.random(), []
        for word in sentence.split():
            same = by_length.get(len(word), [word])
            other.append(draw.choice(same) if draw.random() < part else word)
        second = " ".join(other)
        a, b = set(words(sentence)), set(words(second))
        rows.append((sentence, second, f"{5 * len(a & b) / max(1, len(a | b)):.3f}"))
    return rows


def split_of(number):
    return {3: "dev", 7: "test"}.get(number % 10, "train")


def make(text, seed):
    """task -> split -> rows"""
    tasks = {task: {"train": [], "dev": [], "test": []} for task in ("follows", "shared")}
    found = documents(text)
    by_length = {}
    for sentences in found:
        for word in " ".join(sentences).split():
            by_length.setdefault(len(word), []).append(word)
    for number, sentences in enumerate(found):
        draw = random.Random(f"{seed} {number}")
        tasks["follows"][split_of(number)] += follows(draw, sentences, len(sentences))
        tasks["shared"][split_of(number)] += shared(draw, sentences, by_length)
    for splits in tasks.values():
        for split, rows in splits.items():
            random.Random(f"{seed} {split}").shuffle(rows)
            del rows[{"train": 8000, "dev": 1000, "test": 1000}[split] :]
    return tasks


def write(folder, tasks):
    for task, splits in tasks.items():
        os.makedirs(os.path.join(folder, task), exist_ok=True)
        for split, rows in splits.items():
            with open(os.path.join(folder, task, f"{split}.tsv"), "w", encoding="utf-8") as file:
                file.write("text\ttext_b\tlabel\n")
                file.writelines("\t".join(row) + "\n" for row in rows)


# ---- bags of words ------------------------------------------------------------------------------------------------------

def features(row, count_shared):
    """Hashed words of each side, and a bucket for the number of shared ones."""
    first, second = words(row[0]), words(row[1])
    found = {zlib.crc32(f"a {word}".encode()) % BUCKETS for word in first}
    found |= {zlib.crc32(f"b {word}".encode()) % BUCKETS for word in second}
    if count_shared:
        found.add(BUCKETS + min(9, len(set(first) & set(second))))
    return sorted(found)


def regress(rows, targets, logistic, count_shared, epochs=12, rate=0.05):
    """Fits a function from a row to a score by Adagrad in a fixed order."""
    weights, squares, bias = [0.0] * (BUCKETS + 10), [1e-6] * (BUCKETS + 10), 0.0
    inputs = [features(row, count_shared) for row in rows]
    score = lambda found: bias + sum(weights[i] for i in found)
    order = list(range(len(rows)))
    for epoch in range(epochs):
        random.Random(epoch).shuffle(order)
        for at in order:
            z = score(inputs[at])
            gradient = (1 / (1 + math.exp(-max(-30, min(30, z)))) if logistic else z) - targets[at]
            bias -= 0.1 * rate * gradient
            for i in inputs[at]:
                g = gradient + 1e-4 * weights[i]
                squares[i] += g * g
                weights[i] -= rate * g / math.sqrt(squares[i])
    return lambda row: score(features(row, count_shared))


def pearson(x, y):
    mx, my = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mx) * (b - my) for a, b in zip(x, y))
    return covariance / math.sqrt(sum((a - mx) ** 2 for a in x) * sum((b - my) ** 2 for b in y))


def baselines(tasks):
    train, test = tasks["follows"]["train"], tasks["follows"]["test"]
    is_yes = lambda rows: [float(row[2] == "yes") for row in rows]
    most = max(sum(is_yes(test)), len(test) - sum(is_yes(test))) / len(test)
    score = regress(train, is_yes(train), True, True)
    right = sum((score(row) > 0) == (row[2] == "yes") for row in test) / len(test)
    print(f"follows: bag of words {100 * right:.1f} % accuracy (the more frequent answer {100 * most:.1f} %)")
    train, test = tasks["shared"]["train"], tasks["shared"]["test"]
    score = regress(train, [float(row[2]) for row in train], False, False)
    print(f"shared: bag of words Pearson {pearson([score(row) for row in test], [float(row[2]) for row in test]):.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="output folder of both tasks")
    parser.add_argument("--text", default=TEXT, help="one sentence per line, blank lines between documents")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    tasks = make(options.text, options.seed)
    write(options.out, tasks)
    for task, splits in tasks.items():
        print(f"{task}: {', '.join(f'{len(rows)} in {split}' for split, rows in splits.items())}")
    baselines(tasks)


if __name__ == "__main__":
    main()
