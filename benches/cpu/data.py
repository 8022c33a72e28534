"""Vocabulary training and `albert data build` against Hugging Face tokenizers, interleaved, on the same text.

    python -m pip install -r benches/cpu/requirements.txt
    python benches/cpu/data.py --albert target/release/albert --corpus corpus.txt --threads 2

Nothing here is needed to build or test the project. The text: one sentence per line, blank lines between documents.

    train   ours: the command `tokenizer train`, from the start of its process to the file it writes
            theirs: UnigramTrainer, the same size, longest piece and cleaning; `train` on the file alone
    build   ours: the command `data build`: reads and checks the text, tells copies of documents, encodes, splits, writes
            shards and their hashes
            theirs: `encode_batch_fast` of the same lines, held in memory before, under the vocabulary that we trained;
            nothing is kept or written

Both sides must find the same number of tokens. Starting Python, importing and loading count for nobody but us. Every
turn takes seconds, so none is thrown away to warm up.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import turns  # noqa: E402

SPECIAL = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
# Texts per call of theirs: enough for all threads, few enough for memory.
CALL = 10_000


class Command:
    """Contender in a new process per round."""

    def __init__(self, name, command, threads, result=None):
        self.name, self.command, self.threads, self.result = name, command, threads, result

    def wait_until_ready(self):
        pass

    def end(self):
        pass

    def turn(self):
        environment = {**os.environ, "ALBERT_THREADS": str(self.threads)}
        start = time.perf_counter()
        with open(os.devnull, "w") as null:
            actions = [(os.POSIX_SPAWN_DUP2, null.fileno(), 2)]
            process = os.posix_spawn(self.command[0], self.command, environment, file_actions=actions)
            _, status, used = os.wait4(process, 0)
        seconds = time.perf_counter() - start
        if status != 0:
            sys.exit(f"{' '.join(self.command)}: exited with code {os.waitstatus_to_exitcode(status)}")
        return {
            "seconds": seconds,
            "processor_seconds": (used.ru_utime + used.ru_stime) / self.threads,
            "peak_rss_bytes": 1024 * used.ru_maxrss,
            "result": self.result() if self.result else None,
        }


def worker(arguments):
    from tokenizers import Tokenizer, models, trainers

    task, file, corpus, size, threads = arguments
    ours = Tokenizer.from_file(file)
    if task == "train":

        def call():
            tokenizer = Tokenizer(models.Unigram())
            tokenizer.normalizer, tokenizer.pre_tokenizer = ours.normalizer, ours.pre_tokenizer
            trainer = trainers.UnigramTrainer(
                vocab_size=int(size), special_tokens=SPECIAL, unk_token="<unk>", max_piece_length=16, show_progress=False
            )
            tokenizer.train([corpus], trainer)

    else:
        with open(corpus, encoding="utf-8") as text:
            lines = [line for line in text.read().split("\n") if line]

        def call():
            parts = (lines[at : at + CALL] for at in range(0, len(lines), CALL))
            encoded = (ours.encode_batch_fast(part, add_special_tokens=False) for part in parts)
            return sum(len(encoding.ids) for part in encoded for encoding in part)

    turns.forget_peak()
    turns.serve(lambda: turns.once(call, int(threads)))


def tokens_of(folder):
    with open(os.path.join(folder, "dataset.json")) as file:
        index = json.load(file)
    return index["train"]["tokens"] + index["held_out"]["tokens"]


def contenders(options, task, folder):
    """Ours and theirs."""
    file, shards = os.path.join(folder, "tokenizer.json"), os.path.join(folder, "shards")
    size = str(options.vocab_size)
    train = [options.albert, "tokenizer", "train", options.corpus, "--vocab-size", size, "--output", file]
    if task == "train":
        ours = Command("albert tokenizer train", train, options.threads)
    else:
        command = [options.albert, "data", "build", options.corpus, "--tokenizer", file, "--output", shards]
        ours = Command("albert data build", command, options.threads, lambda: tokens_of(shards))
    if not os.path.exists(file):
        # They clean and encode with this file of ours.
        subprocess.run(train, check=True, capture_output=True)
    theirs = [sys.executable, __file__, "--worker", task, file, options.corpus, size, str(options.threads)]
    threads = {"RAYON_NUM_THREADS": str(options.threads), "TOKENIZERS_PARALLELISM": "true"}
    return ours, turns.Process(f"tokenizers: {'train' if task == 'train' else 'encode_batch_fast'}", theirs, threads)


def table(title, names, results, megabytes):
    print(f"\n{title}: {len(results[0])} rounds, {megabytes:.1f} MB")
    print("| who | s | MB/s | CPU s, all threads | time over ours | CPU time | peak RSS MiB |")
    print("|---|---|---|---|---|---|---|")
    rows = []
    for name, result in zip(names, results):
        median = lambda key: statistics.median(took[key] for took in result)
        wall, processor = turns.compare(results[0], result)
        rss, used = max(took["peak_rss_bytes"] for took in result), median("used")
        print(
            f"| {name} | {median('seconds'):.2f} | {megabytes / median('seconds'):.1f} | {used:.2f} | {wall:.2f} "
            f"| {processor:.2f} | {rss / 2**20:.0f} |"
        )
        rows.append({"who": name, "seconds": median("seconds"), "ratio": wall, "processor_ratio": processor})
    sys.stdout.flush()
    return rows


def main():
    if sys.argv[1:2] == ["--worker"]:
        return worker(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--albert", default="target/release/albert", help="the program")
    parser.add_argument("--corpus", required=True, help="text file, one sentence per line")
    parser.add_argument("--tasks", nargs="+", choices=["train", "build"], default=["train", "build"])
    parser.add_argument("--vocab-size", type=int, default=30_000)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="also write all results to this file")
    options = parser.parse_args()
    megabytes, everything = os.path.getsize(options.corpus) / 1e6, []
    with tempfile.TemporaryDirectory() as folder:
        for task in options.tasks:
            pair = contenders(options, task, folder)
            pair[1].wait_until_ready()
            results = [[], []]
            for number in range(options.rounds):
                for contender, result in zip(pair, results):
                    took = contender.turn()
                    took["used"] = took["processor_seconds"] * options.threads
                    result.append(took)
                print(f"{task} {number}: {[round(r[-1]['used'], 2) for r in results]}", file=sys.stderr, flush=True)
                if len({result[-1]["result"] for result in results}) != 1:
                    sys.exit(f"token counts differ: {[result[-1]['result'] for result in results]}")
            for contender in pair:
                contender.end()
            names = [contender.name for contender in pair]
            rows = table(f"{task}, {options.threads} thread(s)", names, results, megabytes)
            everything.append({"task": task, "table": rows, "rounds": dict(zip(names, results))})
    if options.json:
        with open(options.json, "w") as file:
            json.dump(everything, file, indent=1)


if __name__ == "__main__":
    main()
