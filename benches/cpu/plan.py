"""Compares what `--dry-run` predicts with what the runs take: resident set and processor time of five recipes.

    cargo build --release
    python benches/cpu/plan.py [--albert target/release/albert] [--rounds 3]

The plan and the run have the same arguments; medians of the rounds, in turns. Exit code 1 if memory differs by more than 5 % or
processor time by more than 15 %.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def finished(arguments):
    """Standard output, processor seconds and resident set in bytes of a process."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        process = subprocess.Popen([str(a) for a in arguments], stdout=out, stderr=error)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        error.seek(0)
        if process.returncode:
            sys.exit(f"{arguments}: {error.read().decode()}")
        return out.read().decode(), used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def recipes(albert, place):
    """Names and arguments of runs of 20 to 60 s, without their folder."""
    text = place / "text.txt"
    text.write_text((ROOT / "cli/data/public_domain.txt").read_text())
    for size in (2000, 8000):
        finished([albert, "tokenizer", "train", text, "--vocab-size", size, "-o", place / f"{size}.json"])
        finished([albert, "data", "build", text, "--tokenizer", place / f"{size}.json", "-o", place / f"data{size}"])
    sentences = [line for line in text.read_text().split("\n") if 30 < len(line) < 200][:2000]
    rows = "".join(f"{line}\t{'long' if len(line) > 60 else 'short'}\n" for line in sentences)
    for name, part in (("train", rows), ("dev", "".join(rows.splitlines(keepends=True)[:200]))):
        (place / f"{name}.tsv").write_text("text\tlabel\n" + part)
    inputs = lambda size: ["--data", place / f"data{size}", "--tokenizer", place / f"{size}.json"]
    tiny = ["pretrain", "tiny", *inputs(2000)]
    small = [
        "model.hidden_size=256", "model.intermediate_size=1024", "model.num_attention_heads=4", "model.num_hidden_layers=6",
        "model.embedding_size=128", "data.batch={max_tokens=2048,max_sequences=16}", "schedule.steps=100", "schedule.warmup_steps=10",
    ]
    base = ["data.batch={max_tokens=1024,max_sequences=8}", "schedule.steps=12", "schedule.warmup_steps=2"]
    finished([albert, *tiny, "-o", place / "tiny", "schedule.steps=20", "schedule.warmup_steps=2"])
    files = ["--train", place / "train.tsv", "--dev", place / "dev.tsv"]
    return {
        "tiny": [*tiny, "schedule.steps=400", "schedule.warmup_steps=40", "evaluation.interval=100"],
        "small, f32": ["pretrain", "base", *inputs(8000), *small],
        "small, bf16, checkpoints": ["pretrain", "base", *inputs(8000), *small, "compute.precision=bf16", "run.checkpoint_interval=25"],
        "base": ["pretrain", "base", *inputs(8000), *base],
        "classify": ["finetune", "classify", "--model", place / "tiny", *files, "--steps", "300"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--albert", type=pathlib.Path, default=ROOT / "target/release/albert")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="recipes whose name begins so")
    options = parser.parse_args()
    albert, far = options.albert.resolve(), 0
    print("| recipe | memory, MiB: plan | run | plan over run | processor, s: plan | run | plan over run |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        for name, arguments in recipes(albert, place).items():
            if options.only and not name.startswith(options.only):
                continue
            plans, runs = [], []
            for _ in range(options.rounds):
                out = place / "run"
                plan = json.loads(finished([albert, *arguments, "-o", out, "--dry-run", "--json"])[0])
                plans.append((plan["memory_bytes"], plan["processor_seconds"]))
                _, processor, memory = finished([albert, *arguments, "-o", out])
                runs.append((memory, processor))
                shutil.rmtree(out)
            (memory, processor), (used, took) = ([statistics.median(column) for column in zip(*rows)] for rows in (plans, runs))
            print(f"| {name} | {memory / 2**20:.1f} | {used / 2**20:.1f} | {memory / used:.3f} | {processor:.2f} | {took:.2f} | {processor / took:.3f} |", flush=True)
            far += abs(memory / used - 1) > 0.05 or abs(processor / took - 1) > 0.15
    print(f"{far} recipes differ by more than 5 % (memory) or 15 % (processor time)")
    sys.exit(far > 0)


if __name__ == "__main__":
    main()
