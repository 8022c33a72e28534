"""Vocabulary training and `albert data build` against Hugging Face tokenizers and SentencePiece, interleaved, on the same text.

    python -m pip install -r benches/cpu/requirements.txt
    python benches/cpu/data.py --albert target/release/albert --corpus corpus.txt --threads 2

Nothing here is needed to build or test the project. The text: one sentence per line, blank lines between documents.

    train   ours: the command `tokenizer train`, from the start of its process to the file it writes
            tokenizers: UnigramTrainer, the same size, longest piece and cleaning; `train` on the file alone
            SentencePiece: the same size, longest piece, coverage and symbols; its own cleaning `nmt_nfkc_cf`, which keeps accents
    build   ours: the command `data build`: reads and checks the text, tells copies of documents, encodes, splits, writes
            shards and their hashes
            theirs: `encode_batch_fast`, and SentencePiece's `encode`, of the same lines, which are in memory before, with the
            vocabulary that we trained; nothing is kept or written. SentencePiece gets text that is cleaned already

All must find the same number of tokens. Starting Python, importing and loading are timed for ours only. Every turn takes
seconds, so there is no warm-up.
"""

import argparse
import io
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


def lines_of(corpus):
    """Lines of the text, in calls' worth."""
    with open(corpus, encoding="utf-8") as text:
        lines = [line for line in text.read().split("\n") if line]
    return [lines[at : at + CALL] for at in range(0, len(lines), CALL)]


def tokenizers_call(task, file, corpus, size):
    from tokenizers import Tokenizer, models, trainers

    ours = Tokenizer.from_file(file)
    if task == "build":
        parts = lines_of(corpus)
        encode = lambda part: ours.encode_batch_fast(part, add_special_tokens=False)
        return lambda: sum(len(encoding.ids) for part in parts for encoding in encode(part))

    def call():
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer, tokenizer.pre_tokenizer = ours.normalizer, ours.pre_tokenizer
        trainer = trainers.UnigramTrainer(
            vocab_size=size, special_tokens=SPECIAL, unk_token="<unk>", max_piece_length=16, show_progress=False
        )
        tokenizer.train([corpus], trainer)

    return call


def sentencepiece_call(task, file, corpus, size, threads):
    import sentencepiece

    if task == "build":
        from tokenizers import Tokenizer

        # Code of ALBERT lowercases and strips accents before it calls SentencePiece.
        clean = Tokenizer.from_file(file).normalizer.normalize_str
        parts = [[clean(line) for line in part] for part in lines_of(corpus)]
        processor = sentencepiece.SentencePieceProcessor(model_file=file.replace(".json", ".model"))
        return lambda: sum(len(ids) for part in parts for ids in processor.encode(part, num_threads=threads))
    settings = {"model_type": "unigram", "character_coverage": 0.99995, "normalization_rule_name": "nmt_nfkc_cf"}
    symbols = ["[CLS]", "[SEP]", "[MASK]", "(", ")", '"', "-", ".", "–", "£", "€"]
    more = {"user_defined_symbols": symbols, "max_sentencepiece_length": 16, "minloglevel": 2}

    def call():
        sentencepiece.SentencePieceTrainer.train(
            input=corpus, model_writer=io.BytesIO(), vocab_size=size, num_threads=threads, **settings, **more
        )

    return call


def worker(library, task, file, corpus, size, threads):
    if library == "tokenizers":
        call = tokenizers_call(task, file, corpus, size)
    else:
        call = sentencepiece_call(task, file, corpus, size, threads)
    turns.forget_peak()
    turns.serve(lambda: turns.once(call, threads))


def tokens_of(folder):
    with open(os.path.join(folder, "dataset.json")) as file:
        index = json.load(file)
    return index["train"]["tokens"] + index["held_out"]["tokens"]


def contenders(options, task, folder):
    """Ours, then theirs."""
    file, shards = os.path.join(folder, "tokenizer.json"), os.path.join(folder, "shards")
    size = str(options.vocab_size)
    train = [options.albert, "tokenizer", "train", options.corpus, "--vocab-size", size, "--output", file]
    if task == "train":
        ours = Command("albert tokenizer train", train, options.threads)
    else:
        command = [options.albert, "data", "build", options.corpus, "--tokenizer", file, "--output", shards]
        ours = Command("albert data build", command, options.threads, lambda: tokens_of(shards))
    if not os.path.exists(file):
        # Peers clean and encode with this file of ours, SentencePiece with its conversion.
        convert = [options.albert, "tokenizer", "convert", "--tokenizer", file, "--output", file.replace(".json", ".model")]
        for command in (train, convert):
            subprocess.run(command, check=True, capture_output=True)
    threads, theirs = {"RAYON_NUM_THREADS": str(options.threads), "TOKENIZERS_PARALLELISM": "true"}, []
    for library in ("tokenizers", "sentencepiece"):
        work = json.dumps([library, task, file, options.corpus, options.vocab_size, options.threads])
        theirs.append(turns.Process(f"{library}: {task}", [sys.executable, __file__, "--worker", work], threads))
    return [ours, *theirs]


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
        return worker(*json.loads(sys.argv[2]))
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
            sides = contenders(options, task, folder)
            for contender in sides:
                contender.wait_until_ready()
            results = [[] for _ in sides]
            for number in range(options.rounds):
                for contender, result in zip(sides, results):
                    took = contender.turn()
                    took["used"] = took["processor_seconds"] * options.threads
                    result.append(took)
                print(f"{task} {number}: {[round(r[-1]['used'], 2) for r in results]}", file=sys.stderr, flush=True)
                if len({result[-1]["result"] for result in results}) != 1:
                    sys.exit(f"token counts differ: {[result[-1]['result'] for result in results]}")
            for contender in sides:
                contender.end()
            names = [contender.name for contender in sides]
            rows = table(f"{task}, {options.threads} thread(s)", names, results, megabytes)
            everything.append({"task": task, "table": rows, "rounds": dict(zip(names, results))})
    if options.json:
        with open(options.json, "w") as file:
            json.dump(everything, file, indent=1)


if __name__ == "__main__":
    main()
