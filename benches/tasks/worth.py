"""Measures what pre-training is worth on a classification task: one model from its weights and from random ones.

    python benches/tasks/worth.py --albert target/release/albert --model runs/own --data runs/reviews --out runs/worth

Needs Python alone. --data holds train.tsv, dev.tsv and test.tsv with columns text and label (benches/tasks/reviews.py makes
such). Both starts get the same search over learning rates, numbers of epochs and dropout, judged by accuracy on dev; then five
seeds each with what was chosen, measured on test by the model that was best on dev. Prints

    the search                      accuracy on dev of every rate, number of epochs and dropout
    the curves                      mean accuracy on dev over the seeds, by steps
    medians on test, and the mean difference with its 95 % interval: examples drawn with replacement 10,000 times, the
    same for both (each example counts the share of seeds that had it right)

and writes them to --out as worth.json. A run that was finished in --out is not repeated, one that was broken off begins again;
another model, data or setting needs another --out. It ends with code 1 where the difference is less than --points.
"""

import argparse
import concurrent.futures
import csv
import itertools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys

STARTS = {"pre-trained": [], "random": ["--from-scratch"]}


def call(options, command):
    threads = {"ALBERT_THREADS": str(max(1, os.cpu_count() // options.jobs))} if options.jobs > 1 else {}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **threads})
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr[-1000:]}")


def tune(options, start, rate, epochs, dropout, seed):
    """Folder of a run, which runs unless it exists."""
    folder = os.path.join(options.out, start, f"{rate:g}-{epochs}-{dropout:g}-{seed}")
    if not os.path.exists(os.path.join(folder, "summary.json")):
        shutil.rmtree(folder, ignore_errors=True)
        command = [options.albert, "finetune", "classify", "--model", options.model, *STARTS[start], "--data", options.data]
        command += ["--output", folder, "--epochs", str(epochs)]
        settings = {
            "seed": seed, "optimizer.learning_rate": rate, "dropout.encoder": dropout,
            "text.max_sequence_length": options.longest,
            "evaluation.interval": options.interval, "batch.examples_per_step": 32,
        }
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        call(options, command)
    return folder


def on_dev(folder):
    """Accuracy and negative loss on dev: of equal accuracies the lower loss wins, as in `albert finetune`."""
    with open(os.path.join(folder, "summary.json")) as file:
        best = json.load(file)["best"]
    return best["figures"]["accuracy"], -best["loss"]


def curve(folder):
    """(step, accuracy on dev) of each evaluation."""
    with open(os.path.join(folder, "metrics.jsonl")) as file:
        records = [json.loads(line) for line in file]
    return [(r["step"], r["measured"]["figures"]["accuracy"]) for r in records if r["kind"] == "evaluation"]


def right(options, folder):
    """For each test example, 1 if the prediction is right, else 0."""
    out = os.path.join(folder, "test.jsonl")
    test = os.path.join(options.data, "test.tsv")
    call(options, [options.albert, "predict", "--model", folder, "--input", test, "--output", out])
    with open(test, encoding="utf-8", newline="") as file:
        truth = [row["label"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    with open(out, encoding="utf-8") as file:
        said = [json.loads(line)["label"] for line in file]
    if len(truth) != len(said):
        sys.exit(f"{out}: {len(said)} predictions for {len(truth)} examples; remove the folder")
    return [int(a == b) for a, b in zip(truth, said)]


def interval(differences, draws=10_000):
    """The middle 95 % of the means of examples drawn with replacement."""
    chance = random.Random(1)
    count = len(differences)
    means = sorted(sum(chance.choices(differences, k=count)) / count for _ in range(draws))
    return means[draws * 25 // 1000], means[draws * 975 // 1000 - 1]


def described(rate, epochs, dropout):
    return f"rate {rate:g}, {epochs} epochs, dropout {dropout:g}"


def search(options, pool):
    """Accuracy and negative loss on dev of every (rate, epochs, dropout), for each start."""
    tried = list(itertools.product(options.rates, options.epochs, options.dropouts))
    runs = {start: [pool.submit(tune, options, start, *which, 0) for which in tried] for start in STARTS}
    found = {start: {} for start in STARTS}
    for start in STARTS:
        for which, run in zip(tried, runs[start]):
            found[start][which] = on_dev(run.result())
            print(f"{start}: {described(*which)}: dev {100 * found[start][which][0]:.2f} %", flush=True)
    return found


def measure(options, pool, searched):
    """Runs the best setting of each start; returns which test examples each seed predicts correctly."""
    best = {start: max(tried, key=tried.get) for start, tried in searched.items()}
    seeds = range(1, options.seeds + 1)
    runs = {start: [pool.submit(tune, options, start, *best[start], seed) for seed in seeds] for start in STARTS}
    found, rights = {}, {}
    for start, which in best.items():
        folders = [run.result() for run in runs[start]]
        rights[start] = [right(options, folder) for folder in folders]
        accuracies = [100 * statistics.mean(run) for run in rights[start]]
        curves = [curve(folder) for folder in folders]
        mean_curve = [(points[0][0], 100 * statistics.mean(value for _, value in points)) for points in zip(*curves)]
        print(f"{start}: {described(*which)}: test " + " ".join(f"{a:.2f}" for a in accuracies)
              + f" %, median {statistics.median(accuracies):.2f}")
        print("  on dev: " + "  ".join(f"{step}: {value:.1f}" for step, value in mean_curve), flush=True)
        found[start] = {**dict(zip(("rate", "epochs", "dropout"), which)), "test": accuracies, "curve": mean_curve,
                        "search": [[*key, 100 * value[0]] for key, value in searched[start].items()]}
    return found, rights


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--albert", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-4, 3e-4, 1e-3])
    parser.add_argument("--epochs", type=int, nargs="+", default=[2, 5])
    parser.add_argument("--dropouts", type=float, nargs="+", default=[0.0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--longest", type=int, default=64, help="maximum pieces per text")
    parser.add_argument("--interval", type=int, default=54, help="steps between measurements on dev")
    parser.add_argument("--points", type=float, default=3.0, help="minimum difference")
    parser.add_argument("--jobs", type=int, default=1, help="concurrent runs, which share the cores")
    options = parser.parse_args()
    pool = concurrent.futures.ThreadPoolExecutor(options.jobs)
    try:
        found, rights = measure(options, pool, search(options, pool))
    finally:
        pool.shutdown(cancel_futures=True)
    shares = {start: [statistics.mean(seeds) for seeds in zip(*runs)] for start, runs in rights.items()}
    differences = [a - b for a, b in zip(shares["pre-trained"], shares["random"])]
    mean = 100 * statistics.mean(differences)
    low, high = (100 * bound for bound in interval(differences))
    found["difference"] = {"mean": mean, "low": low, "high": high}
    print(f"pre-trained over random on test: {mean:.2f} points, 95 % interval {low:.2f} to {high:.2f}")
    with open(os.path.join(options.out, "worth.json"), "w") as file:
        json.dump(found, file, indent=1)
    sys.exit(0 if mean >= options.points else 1)


if __name__ == "__main__":
    main()
