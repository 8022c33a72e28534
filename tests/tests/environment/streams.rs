//! Standard streams: closed pipes, full devices, streams closed at the start, closed terminals.

use crate::situation::{Situation, row};

/// Commands whose result is their output, with their names here.
const PRINTING: [(&str, &str); 20] = [
    ("help", "$A --help"),
    ("help of a command", "$A pretrain --help"),
    ("version", "$A --version"),
    ("info", "$A info base"),
    ("info --json", "$A info base --json"),
    ("doctor", "$A doctor --seconds 0"),
    ("kernels list", "$A kernels list --arch sm_80 activation"),
    ("kernels ptx", "$A kernels ptx activation.forward-bf16-sm80-128x8-tanh --arch sm_80"),
    ("data inspect", "$A data inspect $T/data --tokenizer $T/tokenizer.json --seq 64"),
    ("fill-mask", "$A fill-mask --model $T/run 'the [MASK]'"),
    ("embed", "$A embed --model $T/run $T/text.txt"),
    ("tokenizer encode", "$A tokenizer encode --tokenizer $T/tokenizer.json < $T/text.txt"),
    ("tokenizer decode", "$A tokenizer decode --tokenizer $T/tokenizer.json <<< '7 8 9'"),
    ("forward --compare", "$A forward --model $T/run --ids $T/ids.jsonl -o t --compare"),
    ("classify", "$A classify --model $T/tuned rain"),
    ("evaluate", "$A evaluate --model $T/tuned --data $T/task"),
    ("evaluate --json -", "$A evaluate --model $T/tuned --data $T/task --json -"),
    ("answer", "$A answer --model $T/finder --context-file $T/text.txt where"),
    ("convert", "$A convert --from $T/run --to out"),
    ("bench", "$A bench gelu --m 3 --n 8 --seconds 0 --rounds 1"),
];

/// Long commands that write files, with a check that the files exist.
pub(crate) const LONG: [(&str, &str, &str); 8] = [
    ("tokenizer train", "$A tokenizer train $T/text.txt --vocab-size 200 -o out", "cmp out $T/tokenizer.json"),
    ("data build", "$A data build $T/text.txt --tokenizer $T/tokenizer.json -o out", "diff -r out $T/data"),
    ("pretrain", "pretrain -o out schedule.steps=4 evaluation.interval=0", "same_run out $T/run"),
    ("finetune", "finetune -o out", "test -s out/model.safetensors && test -s out/config.json"),
    ("ablate", "$A ablate $T/plan.toml -o out", "test -s out/table.md"),
    ("evaluate --json", "$A evaluate --model $T/tuned --data $T/task --json out", "test -s out"),
    ("predict", "$A predict --model $T/tuned --input $T/task/dev.tsv --output p.jsonl", "test $(wc -l < p.jsonl) = 2"),
    (
        "convert",
        "$A convert --from $T/run --to out",
        "cmp out/model.safetensors $T/run/model.safetensors && test -s out/config.json && test -s out/tokenizer.json",
    ),
];

pub(crate) fn rows() -> Vec<Situation> {
    let mut rows = Vec::new();
    for (name, command) in PRINTING {
        rows.push(row("closed pipe", name, format!("no_reader; {command} >&7")));
        rows.push(row("full device", name, format!("{command} > /dev/full")).fails("cannot write to standard output"));
        rows.push(row("standard error closed pipe", name, format!("no_reader; {command} 2>&7")));
        rows.push(row("standard error full", name, format!("{command} 2> /dev/full")));
    }
    for (name, command, whole) in LONG {
        rows.push(row("nobody listens", name, format!("no_reader; {command} >&7 2>&7")).then(whole));
        // Some print a last line to standard output and fail; their files are complete.
        let full = format!("{command} > /dev/full 2> /dev/full");
        rows.push(row("both streams full", name, full).ends_with(&[0, 1]).then(whole));
        rows.push(row("streams closed at the start", name, format!("{command} <&- >&- 2>&-")).then(whole));
    }
    for (name, stream) in [("0", "<&-"), ("1", ">&-"), ("2", "2>&-")] {
        let (_, train, whole) = LONG[0];
        rows.push(row("stream closed at the start", name, format!("$A info base {stream}")));
        rows.push(
            row("stream closed at the start", format!("{name}, a file"), format!("{train} {stream}")).then(whole),
        );
    }
    rows.extend([
        row("closed pipe", "head takes one line", "set -o pipefail; $A kernels list activation | head -n 1 | grep -q kernel"),
        row(
            "closed pipe",
            "a reader that leaves in the middle",
            "set -o pipefail; yes rain falls | head -n 200000 | $A tokenizer encode --tokenizer $T/tokenizer.json | head -n 1 | wc -l",
        )
        .ends_with(&[0, 141]),
        row("closed pipe", "pretrain 2>&1 into head", "pretrain -o out schedule.steps=4 evaluation.interval=0 2>&1 | head -n 1; wait; sleep 2")
            .then("for _ in $(seq 200); do test -s out/last/config.json && break; sleep 0.1; done; same_run out $T/run"),
        row("non-blocking pipe", "embed", "mkfifo p; (sleep 0.3; cat p > got) & exec 8<>p; $A embed --model $T/run $T/text.txt > p; exec 8>&-; wait")
            .then("test -s got"),
        row("terminal", "pretrain shows a bar", "script -qec 'bash -c \"$A pretrain $T/recipe.toml --data $T/data --tokenizer $T/tokenizer.json -o out schedule.steps=4 evaluation.interval=0\"' log < /dev/null")
            .then("same_run out $T/run && ! grep -q '0/0' log"),
        row("terminal", "wrong usage is exit code 2 with standard error full", "$A pretrain 2> /dev/full").ends_with(&[2]),
        row("standard input", "embed reads nothing", "$A embed --model $T/run < /dev/null"),
        row("standard input", "embed reads a closed stream", "$A embed --model $T/run <&-"),
        row("standard input", "embed reads a folder", "$A embed --model $T/run < $T").fails("standard input"),
        row("standard input", "tokenizer encode gets bytes that are not text", "printf '\\xff\\n' | $A tokenizer encode --on-error stop --tokenizer $T/tokenizer.json")
            .fails("standard input, line 1: invalid UTF-8"),
    ]);
    rows
}
