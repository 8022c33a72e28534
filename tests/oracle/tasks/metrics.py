"""Predictions, random and adversarial, with what other implementations make of them.

    metrics.py OUT.json [--sets N] [--seed S]

SQuAD: the normalization, scores and thresholds of transformers.data.metrics.squad_metrics, which carries the official
evaluation of SQuAD 2.0; the mean of SQuAD 1.1 is written here from its definition. Classes: scikit-learn. Correlations:
SciPy, and beside it the value to 80 digits, rounded once. Entities: seqeval.
"""

import argparse
import decimal
import json
import random
import sys
import types
import unicodedata
import warnings

import numpy as np
import scipy.stats
import seqeval.metrics
import sklearn.metrics
from transformers.data.metrics import squad_metrics as squad

warnings.simplefilter("ignore")

WORDS = """the a an The AN THE cat Cat cats theatre theCat U.S. u.s.a. 1,000 1000 $5 5 café cafe\u0301 ΟΔΟΣ οδος İstanbul
straße STRASSE “quote” — – - _ _a a_ the_ a\u0301 n\u0303 ½ ½a 五the the五 ⅷ Ⓐ Ⓐan ٣a ²the ʹa 𝔞n 😀a a😀 x. ?! ... n't it's
a-the the-a a.n. ﬁ ǅ Σ ΑΣ ΑΣ. ΑΣΑ ª º ᵃ ᾳ ᾼ हिन्दी \u0903an an\u0903 กำ 。 、the　the \u200bthe the\u200d \u00ada 𐐀 Å Ω""".split(" ")
WORDS = [word for words in WORDS for word in words.split("\n") if word]
SPACES = [" "] * 12 + ["  ", "\t", "\n", "\u00a0", "\u3000", "\u2009", "\u2028", "\x1c", "\x1f", "\x85", "\u200b", "", "_", "-"]


def assigned(rng):
    """A character that Unicode 14 has, surrogates and private use excepted."""
    while True:
        top = rng.choice([0x80, 0x250, 0x600, 0x1000, 0x3000, 0x10000, 0x1FBFF])
        c = chr(rng.randrange(top))
        if unicodedata.category(c) not in ("Cn", "Cs", "Co"):
            return c


def text(rng):
    kind = rng.random()
    if kind < 0.06:
        return ""
    if kind < 0.12:
        return rng.choice(["the", "a", " ", "The the", "...", "an-", "\t", "'a'"])
    if kind < 0.30:
        return "".join(rng.choice([assigned(rng), rng.choice(WORDS), rng.choice(SPACES)]) for _ in range(rng.randrange(1, 9)))
    return "".join(rng.choice(WORDS) + rng.choice(SPACES) for _ in range(rng.randrange(1, 6)))


def changed(rng, gold):
    """An answer near to another."""
    words = gold.split(" ")
    for _ in range(rng.randrange(0, 3)):
        at = rng.randrange(len(words))
        words[at : at + rng.randrange(2)] = rng.choice([[], [rng.choice(WORDS)], [words[at], words[at]], [words[at].upper()], ["the", words[at]]])
        words = words or [""]
    return rng.choice([" ", "  ", " the "]).join(words)


def squad_set(rng, version):
    questions = []
    mode = rng.choice(["mixed", "mixed", "mixed", "empty", "constant", "right"])
    constant = text(rng)
    for _ in range(rng.randrange(1, 9)):
        count = 0 if version == 2 and rng.random() < 0.35 else rng.choice([1, 1, 2, 3])
        answers = [text(rng) for _ in range(count)]
        if mode == "empty":
            prediction = ""
        elif mode == "constant":
            prediction = constant
        elif mode == "right":
            prediction = answers[-1] if answers else ""
        else:
            prediction = changed(rng, rng.choice(answers)) if answers and rng.random() < 0.6 else text(rng)
        questions.append([answers, prediction])
    if version == 1:
        if rng.random() < 0.2:
            questions[rng.randrange(len(questions))][1] = None
        return {"kind": "squad1", "questions": questions, "expected": squad1(questions)}
    scores, threshold = None, 1.0
    if rng.random() < 0.8:
        spread = rng.choice(["ties", "normal", "equal", "probability"])
        draw = {
            "ties": lambda: float(rng.randrange(-2, 3)),
            "normal": lambda: rng.gauss(0, 5),
            "equal": lambda: 0.25,
            "probability": lambda: rng.random(),
        }[spread]
        scores = [draw() * rng.choice([1.0, -1.0]) for _ in questions]
        threshold = rng.choice([1.0, 0.0, rng.gauss(0, 2), scores[0]])
        # Missing predictions have no score either.
        if rng.random() < 0.15:
            at = rng.randrange(len(questions))
            questions[at][1] = None
            scores[at] = None
    found = {"kind": "squad2", "questions": questions, "threshold": threshold, "expected": squad2(questions, scores, threshold)}
    if scores is not None:
        # The order of the file of scores decides between equal ones.
        order = list(range(len(scores)))
        rng.shuffle(order)
        found["expected"] = squad2(questions, scores, threshold, order)
        found["scores"] = [[at, scores[at]] for at in order if scores[at] is not None]
    return found


def squad1(questions):
    exact = f1 = 0.0
    for answers, prediction in questions:
        if prediction is None:
            continue
        exact += max(squad.normalize_answer(answer) == squad.normalize_answer(prediction) for answer in answers)
        f1 += max(words_f1(answer, prediction) for answer in answers)
    return [100.0 * exact / len(questions), 100.0 * f1 / len(questions)]


def words_f1(answer, prediction):
    """As in 2.0, but nothing shared is 0 even between answers without words."""
    if not squad.get_tokens(answer) or not squad.get_tokens(prediction):
        return 0
    return squad.compute_f1(answer, prediction)


def squad2(questions, scores, threshold, order=None):
    examples = [types.SimpleNamespace(qas_id=i, answers=[{"text": a} for a in answers]) for i, (answers, _) in enumerate(questions)]
    missing = [i for i, (_, prediction) in enumerate(questions) if prediction is None]
    predictions = {i: prediction for i, (_, prediction) in enumerate(questions)}
    # A missing prediction counts 0, whatever is right.
    exact, f1 = squad.get_raw_scores(examples, {i: "" if p is None else p for i, p in predictions.items()})
    for at in missing:
        exact[at] = f1[at] = 0
    has_answer = {example.qas_id: bool(example.answers) for example in examples}
    null = dict.fromkeys(predictions, 0.0) if scores is None else {at: scores[at] for at in order or range(len(scores))}

    def judged(of):
        rest = {at: score for at, score in of.items() if at not in missing}
        rest = squad.apply_no_ans_threshold(rest, null, has_answer, threshold)
        return {at: rest.get(at, 0) for at in of}

    judged_exact, judged_f1 = judged(exact), judged(f1)
    found = squad.make_eval_dict(judged_exact, judged_f1)
    for prefix, wanted in (("HasAns", True), ("NoAns", False)):
        ids = [at for at, has in has_answer.items() if has == wanted]
        if ids:
            squad.merge_eval(found, squad.make_eval_dict(judged_exact, judged_f1, qid_list=ids), prefix)
    if scores is not None:
        null = {at: score for at, score in null.items() if score is not None}
        squad.find_all_best_thresh(found, predictions, exact, f1, null, has_answer)
    return found


def class_set(rng):
    classes = rng.choice([2, 2, 2, 3, 3, 5, 9, 20])
    most = rng.choice([1, 3, 10, 100, 2000 // classes])
    counts = [[rng.randrange(most + 1) if rng.random() < 0.7 else 0 for _ in range(classes)] for _ in range(classes)]
    kind = rng.random()
    if kind < 0.15:  # constant predictions
        at = rng.randrange(classes)
        counts = [[count if i == at else 0 for i, count in enumerate(row)] for row in counts]
    elif kind < 0.25:  # one true class
        at = rng.randrange(classes)
        counts = [row if i == at else [0] * classes for i, row in enumerate(counts)]
    elif kind < 0.35:  # all right
        counts = [[count if i == j else 0 for j, count in enumerate(row)] for i, row in enumerate(counts)]
    elif kind < 0.42:  # all wrong
        counts = [[0 if i == j else count for j, count in enumerate(row)] for i, row in enumerate(counts)]
    if not any(map(any, counts)):
        counts[0][-1] = 1
    truth = [i for i, row in enumerate(counts) for count in row for _ in range(count)]
    guess = [j for row in counts for j, count in enumerate(row) for _ in range(count)]
    found = {
        "accuracy": float(sklearn.metrics.accuracy_score(truth, guess)),
        "macro_f1": float(sklearn.metrics.f1_score(truth, guess, average="macro", zero_division=0)),
        "matthews": float(sklearn.metrics.matthews_corrcoef(truth, guess)),
    }
    if classes == 2:
        found["f1"] = float(sklearn.metrics.f1_score(truth, guess, zero_division=0))
    matrix = sklearn.metrics.confusion_matrix(truth, guess, labels=range(classes))
    assert matrix.tolist() == counts
    return {"kind": "classes", "counts": counts, "expected": found}


def correlation_set(rng):
    n = rng.choice([2, 3, 4, 5, 8, 13, 20, 20, 33, 40])
    kind = rng.choice(["ties", "scores", "noise", "offset", "constant", "anti", "single", "tiny"])
    if kind == "ties":
        x, y = [[float(rng.randrange(4)) for _ in range(n)] for _ in "xy"]
    elif kind == "constant":
        x, y = [rng.choice([0.0, 0.1, -3.5])] * n, [round(rng.gauss(0, 1), 3) for _ in range(n)]
        if rng.random() < 0.5:
            x, y = y, x
    elif kind == "scores":
        y = [rng.randrange(0, 26) / 5 for _ in range(n)]
        x = [round(score + rng.gauss(0, 0.8), 4) for score in y]
    elif kind == "offset":
        x, y = [[1e5 + round(rng.gauss(0, 1), 4) for _ in range(n)] for _ in "xy"]
    elif kind == "anti":
        x = [round(rng.gauss(0, 1), 5) for _ in range(n)]
        y = [-2 * value for value in x]
    elif kind == "single":
        x, y = [0.0] * n, [0.0] * n
        x[rng.randrange(n)] = y[rng.randrange(n)] = 1.0
    elif kind == "tiny":
        x, y = [[rng.randrange(1, 999) * 1e-30 for _ in range(n)] for _ in "xy"]
    else:
        x, y = [[float(np.float32(rng.gauss(0, 1))) for _ in range(n)] for _ in "xy"]
    ranks = [scipy.stats.rankdata(values).tolist() for values in (x, y)]
    number = lambda value: None if value != value else float(value)
    return {
        "kind": "correlation",
        "x": x,
        "y": y,
        "pearson": [number(scipy.stats.pearsonr(x, y).statistic), exact_correlation(x, y)],
        "spearman": [number(scipy.stats.spearmanr(x, y).statistic), exact_correlation(*ranks)],
    }


def exact_correlation(x, y):
    """To 80 digits, then rounded to the nearest f64."""
    with decimal.localcontext(decimal.Context(prec=80, Emin=-9999, Emax=9999)):
        x, y = [[decimal.Decimal(value) for value in values] for values in (x, y)]
        if len(set(x)) == 1 or len(set(y)) == 1:
            return None
        mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
        xy = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y))
        xx, yy = sum((a - mean_x) ** 2 for a in x), sum((b - mean_y) ** 2 for b in y)
        return float(xy / (xx * yy).sqrt())


def entity_set(rng):
    tags = ["O"] + [f"{letter}-{kind}" for letter in rng.choice(["BI", "BI", "I", "BIES"]) for kind in rng.choice([["PER"], ["PER", "LOC"], ["a-b", "b"]])]
    sentences = []
    for _ in range(rng.randrange(1, 5)):
        truth = [rng.randrange(len(tags)) if rng.random() < 0.6 else 0 for _ in range(rng.randrange(1, 12))]
        guess = [tag if rng.random() < 0.8 else rng.randrange(len(tags)) for tag in truth]
        if rng.random() < 0.1:
            guess = [0] * len(truth)
        sentences.append([truth, guess])
    named = [[[tags[tag] for tag in sentence[side]] for sentence in sentences] for side in (0, 1)]
    of = lambda metric: float(metric(*named, zero_division=0))
    found = [of(seqeval.metrics.precision_score), of(seqeval.metrics.recall_score), of(seqeval.metrics.f1_score)]
    return {"kind": "entities", "tags": tags, "sentences": sentences, "expected": found}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--sets", type=int, default=2500)
    parser.add_argument("--seed", type=int, default=20)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    makers = [lambda r: squad_set(r, 1), lambda r: squad_set(r, 2), lambda r: squad_set(r, 2), class_set, correlation_set, entity_set]
    sets = [makers[at % len(makers)](rng) for at in range(given.sets)]
    with open(given.out, "w", encoding="utf-8") as file:
        for one in sets:
            file.write(json.dumps(one, ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n")
    off = [abs(one[kind][0] - one[kind][1]) for one in sets if one["kind"] == "correlation" for kind in ("pearson", "spearman") if one[kind][0] is not None and one[kind][1] is not None]
    print(f"{len(sets)} sets; SciPy is off the exact correlation by at most {max(off):.1e}")
    assert sys.version_info < (3, 12), "later versions of Python add floats with compensation"


if __name__ == "__main__":
    main()
