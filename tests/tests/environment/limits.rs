//! Limits of the system: full disks, read-only folders, file sizes, descriptors, memory, processes; environment variables.

use crate::situation::{Situation, row};

pub(crate) fn rows() -> Vec<Situation> {
    let mut rows = disks();
    rows.extend(rights());
    rows.extend(resources());
    rows.extend(surroundings());
    rows
}

/// Commands that fill the disk on which they write `disk/out`, with the sizes of the disks.
fn disks() -> Vec<Situation> {
    let mut rows = Vec::new();
    for size in ["4k", "16k", "64k", "128k"] {
        for (name, command) in [
            ("pretrain", "pretrain -o disk/out schedule.steps=40 run.checkpoint_interval=4"),
            ("data build", "$A data build $T/text.txt $T/text.txt --tokenizer $T/tokenizer.json -o disk/out"),
            ("forward", "$A forward --model $T/run --ids $T/ids.jsonl --gradients --layers --attention -o disk/out"),
        ] {
            let script = format!("disk {size} && {command}");
            rows.push(row("full disk", format!("{name}, {size}"), script).needing_root().ends_with(&[0, 1]));
        }
    }
    rows.extend([
        row("full disk", "pretrain resumes with room again", "disk 64k; pretrain -o disk/out run.checkpoint_interval=4; mount -o remount,size=64m disk; pretrain -o disk/out run.checkpoint_interval=4 --resume && pretrain -o whole run.checkpoint_interval=4 && same_run disk/out whole")
            .needing_root(),
        row("full disk", "the vocabulary that was there stays", "disk 16k; echo old > disk/v.json; head -c 1m /dev/zero > disk/fill; $A tokenizer train $T/text.txt --vocab-size 200 -o disk/v.json; code=$?; test \"$(cat disk/v.json)\" = old || exit 9; exit $code")
            .needing_root()
            .fails("No space left"),
        row("full disk", "the temporary folder", "disk 4k; head -c 1m /dev/zero > disk/fill; TMPDIR=$PWD/disk $A tokenizer train $T/text.txt --vocab-size 200 -o v.json")
            .needing_root()
            .then("cmp v.json $T/tokenizer.json"),
        row("full disk", "of inodes", "mkdir disk; mount -t tmpfs -o nr_inodes=3 tmpfs disk; pretrain -o disk/out schedule.steps=4")
            .needing_root()
            .fails("No space left"),
        row("read-only disk", "pretrain", "disk 1m; mount -o remount,ro disk; pretrain -o disk/out schedule.steps=4")
            .needing_root()
            .fails("Read-only file system"),
        row("read-only disk", "in the middle of a run", "disk 8m; run -o disk/out schedule.steps=4000 run.checkpoint_interval=50 2> log & wait_for 'memory at' log; sleep 1; mount -o remount,ro disk 2> /dev/null || { kill $!; wait; exit 0; }; wait $!; code=$?; cat log >&2; exit $code")
            .needing_root()
            .ends_with(&[0, 1]),
    ]);
    rows
}

/// Actions without permission.
fn rights() -> Vec<Situation> {
    let folder = "mkdir closed; echo old > closed/v.json; chmod 755 closed;";
    [
        ("tokenizer train", "nobody $A tokenizer train $T/text.txt --vocab-size 200 -o closed/v.json"),
        ("embed", "nobody $A embed --model $T/run $T/text.txt -o closed/v.npy"),
        ("data build", "nobody $A data build $T/text.txt --tokenizer $T/tokenizer.json -o closed/out"),
        ("convert", "nobody $A convert --from $T/run --to closed/out"),
        ("pretrain", "nobody $A pretrain $T/recipe.toml --data $T/data --tokenizer $T/tokenizer.json -o closed/out schedule.steps=4"),
        ("finetune", "nobody $A finetune classify --model $T/run --data $T/task --steps 1 -o closed/out"),
    ]
    .into_iter()
    .map(|(name, command)| {
        row("read-only folder", name, format!("{folder} {command}"))
            .needing_root()
            .fails("Permission denied")
            .then("test \"$(cat closed/v.json)\" = old && test \"$(ls -A closed)\" = v.json")
    })
    .chain([
        row("unreadable file", "embed", "cp $T/text.txt x; chmod 600 x; nobody $A embed --model $T/run x")
            .needing_root()
            .fails("Permission denied"),
        row("another user's temporary file", "tokenizer train", "echo other > .v.json.partial; chmod 600 .v.json.partial; nobody $A tokenizer train $T/text.txt --vocab-size 200 -o v.json; code=$?; rm .v.json.partial; exit $code")
            .needing_root()
            .ends_with(&[0, 1]),
    ])
    .collect()
}

/// Runs `command` with a file size limit of `kib` KiB, except for its messages; SIGXFSZ is ignored, so that a write fails, as on a
/// full disk.
fn limited(kib: u32, command: &str) -> String {
    format!("trap '' XFSZ; (ulimit -f {kib}; {command}) 2>&1 | cat >&2; exit ${{PIPESTATUS[0]}}")
}

fn resources() -> Vec<Situation> {
    let mut rows = Vec::new();
    for kib in [0, 1, 8, 32, 64] {
        let script = limited(kib, "pretrain -o out run.checkpoint_interval=4");
        rows.push(
            row("file size", format!("pretrain, {kib} KiB at most"), script)
                .fails("File too large")
                .then("pretrain -o out run.checkpoint_interval=4 --resume"),
        );
    }
    let later = format!(
        "pretrain -o out && cp -r out whole; rm $(ls out/checkpoints/*.safetensors | tail -n 1); cp -r out before; {}",
        limited(64, "pretrain -o out --resume")
    );
    let old = "for file in before/checkpoints/*; do cmp $file out/checkpoints/${file##*/} || exit 1; done";
    let build = limited(4, "$A data build $T/text.txt --tokenizer $T/tokenizer.json -o out");
    rows.extend([
        row("file size", "a later checkpoint cannot be written", later)
            .fails("File too large")
            .then(&format!("{old}; pretrain -o out --resume && same_run out whole")),
        row("file size", "the data that were there stay", format!("cp -r $T/data out; {build}"))
            .fails("cannot write")
            .then("diff -r out $T/data"),
    ]);
    rows.push(
        row("file size", "SIGXFSZ is not ignored", "ulimit -f 8; pretrain -o out run.checkpoint_interval=4")
            .ends_with(&[1, 153])
            .leaves_partial(),
    );
    for count in [3, 4, 6, 8, 12, 20] {
        let script = format!("ulimit -n {count}; pretrain -o out schedule.steps=4 evaluation.interval=0");
        rows.push(row("descriptors", format!("pretrain, {count} at most"), script).ends_with(&[0, 1, 127]));
    }
    for mib in [64, 128, 192, 256, 384, 512] {
        for (name, command) in [
            ("pretrain", "pretrain -o out schedule.steps=4 evaluation.interval=0"),
            ("fill-mask", "$A fill-mask --model $T/run 'the [MASK]'"),
        ] {
            let script = format!("ulimit -v {}; {command}", mib * 1024);
            rows.push(
                row("memory", format!("{name}, {mib} MiB of addresses"), script)
                    .ends_with(&[0, 1, 127])
                    .leaves_partial(),
            );
        }
    }
    rows.extend([
        row("processes", "no thread may be started", "nobody prlimit --nproc=1 $A fill-mask --model $T/run 'the [MASK]'").needing_root().ends_with(&[0, 1]),
        row("processes", "no thread may be started for a run", "mkdir -m 777 o; nobody prlimit --nproc=1 $A pretrain $T/recipe.toml --data $T/data --tokenizer $T/tokenizer.json -o o/out schedule.steps=4")
            .needing_root()
            .ends_with(&[0, 1]),
        row("stack", "128 KiB", "ulimit -s 128; $A fill-mask --model $T/run 'the [MASK]'"),
        row("locked memory", "none", "ulimit -l 0; $A fill-mask --model $T/run 'the [MASK]'"),
        row("core files", "CPU time of 1 s", "ulimit -t 1; pretrain -o out schedule.steps=100000").ends_with(&[137, 152]).leaves_partial(),
        row("affinity", "one core, two threads", "taskset -c 0 $A fill-mask --model $T/run 'the [MASK]'"),
    ]);
    rows
}

fn surroundings() -> Vec<Situation> {
    let run = "$A fill-mask --model $T/run 'the [MASK]'";
    vec![
        row("environment", "no HOME", format!("env -u HOME {run}")),
        row("environment", "empty", format!("env -i {run}")),
        row("environment", "TMPDIR is missing", "TMPDIR=/nowhere $A tokenizer train $T/text.txt --vocab-size 200 -o v.json")
            .then("cmp v.json $T/tokenizer.json"),
        row("environment", "TMPDIR is missing for ptxas", "TMPDIR=/nowhere $A kernels list --arch sm_80 activation --ptxas /bin/true")
            .fails("temporary folder"),
        row("environment", "ptxas says nothing", "$A kernels list --arch sm_80 activation --ptxas /bin/true").fails("reports no registers"),
        row("environment", "ptxas is missing", "$A kernels list --arch sm_80 activation --ptxas /nowhere").fails("cannot run /nowhere"),
        row("environment", "a link is planted where ptxas works", "mkdir t victim; for p in $(seq $$ $(($$ + 300))); do ln -s ../victim t/albert-kernels-$p; done; TMPDIR=$PWD/t $A kernels list --arch sm_80 activation --ptxas /bin/true")
            .ends_with(&[1])
            .then("test -z \"$(ls -A victim)\""),
        row("environment", "a locale that does not exist", format!("LC_ALL=xx_YY.NOPE LANG=? {run}")),
        row("environment", "a locale with another alphabet", format!("LC_ALL=tr_TR.ISO-8859-9 {run}")),
        row("environment", "TERM is missing on a terminal", "script -qec \"env -u TERM $A fill-mask --model $T/run '[MASK]'\" log < /dev/null"),
        row("environment", "COLUMNS is 0", "COLUMNS=0 $A --help"),
        row("environment", "ALBERT_THREADS is not a number", format!("ALBERT_THREADS=many {run}")).fails("ALBERT_THREADS"),
        row("environment", "ALBERT_ISA is unknown", format!("ALBERT_ISA=mmx {run}")).fails("ALBERT_ISA"),
        row("environment", "a variable that is not text", format!("ALBERT_THREADS=$'\\xff' {run}")).fails("ALBERT_THREADS"),
        row("environment", "the working folder is gone", "mkdir w; cd w; rmdir ../w; $A fill-mask --model $T/run 'the [MASK]'"),
        row("environment", "the working folder is gone, output next to it", "mkdir w; cd w; rmdir ../w; $A embed --model $T/run $T/text.txt -o v.npy").fails("v.npy"),
        row("environment", "the clock is at 1970", "command -v faketime > /dev/null || exit 0; faketime '1970-01-01 00:00:01' $A info base"),
    ]
}
