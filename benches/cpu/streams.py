"""Lines a second of `albert embed -` and `albert classify -` beside sentence-transformers and transformers' pipeline.

    python -m pip install -r benches/cpu/requirements.txt sentence-transformers
    python benches/cpu/streams.py --model MINILM --lines texts.txt [--classifier RUN] [--threads 2] [--batch 1 64]

All models are loaded once; the same lines go through in the same order, in turns of the contenders. With a batch of 1 a line is sent
when the answer to the one before has arrived, as a script does that asks; with a larger one all lines are there. Prints medians of
the rounds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time


class Ours:
    """A process that answers lines."""

    def __init__(self, albert, command, model, threads, batch):
        arguments = [albert, command, "--model", model, "--threads", str(threads), "--batch", str(batch), "--quiet"]
        self.process = subprocess.Popen(
            [*arguments, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.batch = batch

    def run(self, lines):
        source, answers = self.process.stdin, self.process.stdout
        if self.batch == 1:
            for line in lines:
                source.write(line + "\n")
                source.flush()
                answers.readline()
            return

        def send():
            source.write("".join(line + "\n" for line in lines))
            source.flush()

        sender = threading.Thread(target=send)
        sender.start()
        for _ in lines:
            answers.readline()
        sender.join()


class SentenceTransformers:
    def __init__(self, model, batch):
        from sentence_transformers import SentenceTransformer

        self.model, self.batch = SentenceTransformer(model, device="cpu"), batch

    def run(self, lines):
        if self.batch == 1:
            for line in lines:
                json.dumps(self.model.encode(line, show_progress_bar=False).tolist())
        else:
            for vector in self.model.encode(lines, batch_size=self.batch, show_progress_bar=False):
                json.dumps(vector.tolist())


class Pipeline:
    def __init__(self, model, batch):
        import transformers

        self.pipeline, self.batch = transformers.pipeline("text-classification", model=model, device="cpu"), batch

    def run(self, lines):
        if self.batch == 1:
            for line in lines:
                self.pipeline(line)
        else:
            list(self.pipeline(lines, batch_size=self.batch))


def measure(contenders, lines, rounds):
    """Median lines a second of each, in turns, after a round that is not counted."""
    took = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, contender in contenders.items():
            start = time.perf_counter()
            contender.run(lines)
            if number > 0:
                took[name].append(time.perf_counter() - start)
    return {name: len(lines) / statistics.median(times) for name, times in took.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--albert", default="target/release/albert")
    parser.add_argument("--model", required=True, help="folder of sentence-transformers")
    parser.add_argument("--classifier", help="fine-tuned model folder")
    parser.add_argument("--lines", required=True, help="file of texts, one per line")
    parser.add_argument("--count", type=int, default=640)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    import torch

    torch.set_num_threads(options.threads)
    with open(options.lines) as file:
        lines = [line.strip() for line in file if len(line.strip()) > 20][: options.count]
    print(f"{len(lines)} lines, {options.threads} threads, {options.rounds} rounds")
    print("| command | batch | ours, lines/s | theirs, lines/s | ours over theirs |\n|---|---|---|---|---|")
    for command, model, theirs in [("embed", options.model, SentenceTransformers), ("classify", options.classifier, Pipeline)]:
        if not model:
            continue
        for batch in options.batch:
            contenders = {
                "ours": Ours(options.albert, command, model, options.threads, batch),
                "theirs": theirs(model, batch),
            }
            speed = measure(contenders, lines, options.rounds)
            contenders["ours"].process.stdin.close()
            ratio = speed["ours"] / speed["theirs"]
            print(f"| {command} | {batch} | {speed['ours']:.0f} | {speed['theirs']:.0f} | {ratio:.2f} |")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
