//! Outputs and inputs that are not regular files: devices, FIFOs, folders, links, missing folders, unusual names.

use crate::situation::{Situation, row};

/// Commands that write one file, `{}`, and an accepted name.
const WRITERS: [(&str, &str, &str); 8] = [
    ("tokenizer train", "$A tokenizer train $T/text.txt --vocab-size 200 -o {}", "v.json"),
    ("tokenizer convert", "$A tokenizer convert --tokenizer $T/tokenizer.json -o {}", "v.json"),
    ("embed", "$A embed --model $T/run $T/text.txt -o {}", "v.npy"),
    ("forward", "$A forward --model $T/run --ids $T/ids.jsonl -o {}", "t.safetensors"),
    ("predict", "$A predict --model $T/tuned --input $T/task/dev.tsv --output {}", "p.jsonl"),
    ("evaluate --json", "$A evaluate --model $T/tuned --data $T/task --json {}", "f.json"),
    ("evaluate --report", "$A evaluate --model $T/tuned --data $T/task --report {}", "f.html"),
    ("bench --report", "$A bench gelu --m 3 --n 8 --seconds 0 --rounds 1 --report {}", "b.html"),
];

/// Commands that write a folder, `{}`.
const FOLDERS: [(&str, &str); 4] = [
    ("data build", "$A data build $T/text.txt --tokenizer $T/tokenizer.json -o {}"),
    ("convert", "$A convert --from $T/run --to {}"),
    ("pretrain", "pretrain -o {} schedule.steps=4 evaluation.interval=0"),
    ("finetune", "finetune -o {}"),
];

pub(crate) fn rows() -> Vec<Situation> {
    let mut rows = Vec::new();
    for (name, command, file) in WRITERS {
        let to = |path: &str| command.replace("{}", path);
        // Inputs are also missing: outputs are checked before any work.
        let early = to(&format!("missing/{file}")).replace("$T", "/nowhere");
        let fifo = format!("mkfifo {file}; cat {file} > got & {}; code=$?; wait; exit $code", to(file));
        let planted = format!("echo precious > victim; ln -s victim .{file}.partial; {}", to(file));
        let limited = format!("echo old > {file}; trap '' XFSZ; ulimit -f 0; {} 2> /dev/full", to(file));
        let below = format!("f/{file}");
        rows.extend([
            row("missing folder", name, early).fails("missing does not exist").then("test ! -e missing"),
            row("a folder of that name", name, format!("mkdir {file}; {}", to(file))).fails("folder"),
            row("a file as folder", name, format!("touch f; {}", to(&below))).fails(&below),
            row("link to /dev/null", name, format!("ln -s /dev/null {file}; {}", to(file)))
                .then(&format!("test -L {file} && test -c /dev/null")),
            row("link to /dev/full", name, format!("ln -s /dev/full {file}; {}", to(file))).fails("No space left"),
            row("FIFO", name, fifo).then(&format!("test -p {file} && test -s got")),
            row("planted link", name, planted).ends_with(&[0, 1]).then("test \"$(cat victim)\" = precious"),
            row("files of 0 bytes at most", name, limited)
                .ends_with(&[1])
                .then(&format!("test \"$(cat {file})\" = old")),
        ]);
    }
    for (name, command) in FOLDERS {
        let to = |path: &str| command.replace("{}", path);
        let link = format!("ln -s nowhere/at/all out; {}", to("out"));
        rows.extend([
            row("a file of that name", name, format!("echo x > out; {}", to("out"))).fails("out").then("test -f out"),
            row("below a file", name, format!("echo x > f; {}", to("f/out"))).fails("f").then("test -f f"),
            row("device as folder", name, to("/dev/null")).fails("/dev/null").then("test -c /dev/null"),
            row("dangling link", name, link).fails("out").then("test -L out"),
        ]);
    }
    rows.extend(devices());
    rows.extend(inputs());
    rows.extend(names());
    rows
}

fn devices() -> Vec<Situation> {
    vec![
        row("/dev/stdout", "forward", "$A forward --model $T/run --ids $T/ids.jsonl -o /dev/stdout | cat > got")
            .then("test -s got"),
        row("/dev/fd/1", "tokenizer train", "$A tokenizer train $T/text.txt --vocab-size 200 -o /dev/fd/1 | cat > got")
            .then("cmp got $T/tokenizer.json"),
        row("/dev/null", "tokenizer train", "$A tokenizer train $T/text.txt --vocab-size 200 -o /dev/null")
            .then("test -c /dev/null"),
        row("/dev/null", "embed", "$A embed --model $T/run $T/text.txt -o /dev/null").then("test -c /dev/null"),
        row("/dev/full", "tokenizer train", "$A tokenizer train $T/text.txt --vocab-size 200 -o /dev/full")
            .fails("No space left"),
        row("/dev/stdout", "a closed pipe as output", "no_reader; $A embed --model $T/run $T/text.txt -o /dev/fd/7")
            .fails("Broken pipe"),
        row(
            "link as output",
            "the target is replaced, or the link",
            "echo old > real; ln -s real v.npy; $A embed --model $T/run $T/text.txt -o v.npy",
        )
        .then("test -s v.npy && ! grep -q old v.npy"),
    ]
}

fn inputs() -> Vec<Situation> {
    let train = |input: &str| format!("$A tokenizer train {input} --vocab-size 200 -o v.json");
    let build = "$A data build /dev/zero --tokenizer $T/tokenizer.json -o out";
    let encode = "$A tokenizer encode --tokenizer /dev/zero < /dev/null";
    let predict = "$A predict --model $T/tuned --input /dev/zero --output p.jsonl";
    let harmed = |name: &str, harm: &str| {
        row("input", name, format!("cp -r $T/run m; {harm}; $A fill-mask --model m '[MASK]'"))
            .fails("model.safetensors")
    };
    vec![
        row("input", "a process substitution", train("<(cat $T/text.txt)")).then("cmp v.json $T/tokenizer.json"),
        row("input", "/dev/stdin", format!("cat $T/text.txt | {}", train("/dev/stdin")))
            .then("cmp v.json $T/tokenizer.json"),
        row("input", "/dev/null", train("/dev/null")).fails("").then("test ! -e v.json"),
        row("input", "a folder", train("$T")).fails("it is a directory"),
        row("input", "a missing file", train("nowhere")).fails("nowhere: no such file"),
        row("input", "an endless device under 500 MB", format!("ulimit -v 500000; {}", train("/dev/zero")))
            .ends_with(&[1]),
        // 256 MiB are read, in a buffer that doubles.
        row("input", "an endless device as shards' text", format!("ulimit -v 1000000; {build}"))
            .ends_with(&[1])
            .says("from a pipe, a device or a compressed file"),
        row("input", "an endless device as tokenizer", format!("ulimit -v 500000; {encode}")).ends_with(&[1]),
        row("input", "an endless device as examples", format!("ulimit -v 500000; {predict}")).ends_with(&[1]),
        row("input", "a link to itself", "ln -s loop loop; $A embed --model $T/run loop").fails("loop"),
        harmed("a model folder without its weights", "rm m/model.safetensors"),
        harmed("weights cut short", "truncate -s -100 m/model.safetensors"),
        harmed("/dev/null as weights", "ln -sf /dev/null m/model.safetensors"),
        row(
            "input",
            "output is the input",
            "cp $T/task/dev.tsv x.tsv; $A predict --model $T/tuned --input x.tsv --output x.tsv",
        )
        .ends_with(&[0, 1])
        .then("test -s x.tsv"),
    ]
}

fn names() -> Vec<Situation> {
    let train = |name: &str| format!("$A tokenizer train $T/text.txt --vocab-size 200 -o {name}");
    let whole = |name: &str| format!("cmp {name} $T/tokenizer.json");
    let mut rows = Vec::new();
    for (name, path) in [
        ("spaces", "'a name with spaces.json'"),
        ("a newline", "$'a\\nb.json'"),
        ("bytes that are not text", "$'\\xff\\xfe.json'"),
        ("quotes", "\\\"\\'.json"),
        ("a dollar and a star", "'$*.json'"),
    ] {
        rows.push(row("name", name, train(path)).then(&whole(path)));
    }
    rows.extend([
        row("name", "a leading dash", "$A tokenizer train $T/text.txt --vocab-size 200 --output=-x.json").then(&whole("./-x.json")),
        row("name", "230 bytes", train("$(printf 'n%.0s' {1..230})")).then(&whole("$(printf 'n%.0s' {1..230})")),
        row("name", "300 bytes", train("$(printf 'n%.0s' {1..300})")).fails("File name too long"),
        row("name", "empty", train("''")).ends_with(&[1, 2]),
        row("name", "a dot", train(".")).fails(""),
        row("name", "two dots", train("..")).fails(""),
        row("name", "a run in a folder with spaces and a newline", "pretrain -o $'a b\\nc' schedule.steps=4 evaluation.interval=0")
            .then("same_run $'a b\\nc' $T/run"),
        row("name", "a run in a folder whose name is not text", "pretrain -o $'\\xff' schedule.steps=4 evaluation.interval=0")
            .ends_with(&[0, 1]),
        row("name", "shards in a folder whose name is not text", "cp -r $T/data $'\\xff'; $A pretrain $T/recipe.toml --data $'\\xff' --tokenizer $T/tokenizer.json -o out schedule.steps=4")
            .fails("UTF-8"),
        row("name", "an input whose name is not text", "cp $T/text.txt $'\\xff'; $A embed --model $T/run $'\\xff' -o v.npy").then("test -s v.npy"),
        row("name", "an argument that is not text", "$A classify --model $T/tuned $'\\xff'").ends_with(&[2]),
    ]);
    rows
}
