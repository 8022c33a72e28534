//! Several processes in one folder, and signals.

use crate::{
    situation::{Situation, row},
    streams::LONG,
};

pub(crate) fn rows() -> Vec<Situation> {
    let mut rows = together();
    rows.extend(signals());
    rows
}

/// Starts `script` `count` times at once; compares the numbers of processes that exit with 0 and with 1.
fn at_once(count: usize, command: &str, ends: &str) -> String {
    format!(
        "for i in $(seq {count}); do ( {command}; echo $? > code$i ) 2> log$i & done; wait; cat log* >&2; \
         zero=$(grep -lx 0 code* | wc -l); one=$(grep -lx 1 code* | wc -l); test $((zero + one)) = {count} && {ends}"
    )
}

fn together() -> Vec<Situation> {
    let mut rows = Vec::new();
    for count in [2, 4] {
        for (name, command, whole) in LONG {
            let all = format!("test $zero = {count}");
            // Processes share the runs of an ablation.
            let ends = if name == "ablate" { &all } else { "test $zero -ge 1" };
            rows.push(row("at once", format!("{count} times {name}"), at_once(count, command, ends)).then(whole));
        }
    }
    rows.push(
        row("at once", "a run and its resumption", "run -o out schedule.steps=2000 run.checkpoint_interval=10 2> log & wait_for 'memory at' log; pretrain -o out schedule.steps=2000 run.checkpoint_interval=10 --resume; code=$?; kill -TERM %1; wait; exit $code")
            .fails("out"),
    );
    rows.push(row("at once", "the folder of a run is removed", "run -o out schedule.steps=2000 run.checkpoint_interval=10 2> log & wait_for 'memory at' log; pid=$!; sleep 0.3; rm -rf out; wait $pid; code=$?; cat log >&2; exit $code").ends_with(&[0, 1]));
    rows
}

/// A long run in the background, after its first step, with its process id in `$!`.
const RUN: &str =
    "run -o out schedule.steps=3000 run.checkpoint_interval=0 2> log & wait_for 'memory at' log; sleep 0.2; pid=$!;";

fn signals() -> Vec<Situation> {
    let mut rows = Vec::new();
    for signal in ["INT", "TERM", "HUP"] {
        // Background jobs of a script ignore SIGINT, unless job control is on.
        let control = if signal == "INT" { "set -m; " } else { "" };
        rows.push(
            row(
                "signal",
                format!("SIG{signal} to pretrain"),
                format!("{control}{RUN} kill -{signal} $pid; wait $!; code=$?; cat log >&2; exit $code"),
            )
            .ends_with(&[130])
            .says("stopped and saved")
            .then("test $(ls out/checkpoints | wc -l) = 1"),
        );
        rows.push(
            row("signal", format!("SIG{signal} twice to pretrain"), format!("{control}{RUN} kill -{signal} $pid; kill -{signal} $pid; sleep 0.01; kill -{signal} $pid 2> /dev/null; wait $!"))
                .ends_with(&[130])
                .leaves_partial()
                .then("run -o out schedule.steps=3000 run.checkpoint_interval=0 --resume 2> /dev/null & sleep 1; kill -TERM $!; wait $!; test $? = 130"),
        );
        rows.push(
            row("signal", format!("SIG{signal} to finetune"), format!("{control}$A finetune classify --model $T/run --data $T/task --steps 4000 --set run.checkpoint_interval=50 -o out 2> log & wait_for 'memory at' log; sleep 0.3; kill -{signal} $!; wait $!; code=$?; cat log >&2; exit $code"))
                .ends_with(&[130])
                .says("stopp"),
        );
        rows.push(
            row("signal", format!("SIG{signal} to ablate"), format!("{control}$A ablate $T/plan.toml -o out 2> log & wait_for 'memory at' log; kill -{signal} $!; wait $!; code=$?; cat log >&2; exit $code"))
                .ends_with(&[0, 130]),
        );
        rows.push(
            row("signal", format!("SIG{signal} to tokenizer train"), format!("{control}echo old > v.json; $A tokenizer train $T/text.txt --vocab-size 200 -o v.json & sleep 0.05; kill -{signal} $!; wait $!; code=$?; [ $code != 0 ] && test \"$(cat v.json)\" != old && exit 9; exit 0"))
                .leaves_partial(),
        );
        rows.push(
            row("signal", format!("SIG{signal} to data build"), format!("{control}$A data build $T/text.txt --tokenizer $T/tokenizer.json -o out & sleep 0.05; kill -{signal} $!; wait $!; test ! -e out/dataset.json || $A data inspect out --tokenizer $T/tokenizer.json --seq 64"))
                .leaves_partial()
                .then("$A data build $T/text.txt --tokenizer $T/tokenizer.json -o out 2> /dev/null && diff -r out $T/data"),
        );
    }
    rows.extend([
        row("signal", "SIGHUP that is ignored (nohup)", "trap '' HUP; run -o out schedule.steps=100 2> log & wait_for 'memory at' log; kill -HUP $!; wait $!").then("test -s out/last/model.safetensors"),
        row("signal", "SIGINT in a background job of a script", "$A pretrain $T/recipe.toml --data $T/data --tokenizer $T/tokenizer.json -o out schedule.steps=100 2> log & wait_for 'memory at' log; kill -INT $!; wait $!").then("test -s out/last/model.safetensors"),
        row("signal", "SIGPIPE from outside", format!("{RUN} kill -PIPE $pid; kill -TERM $pid; wait $!")).ends_with(&[130]),
        row("signal", "SIGSTOP and SIGCONT", format!("{RUN} kill -STOP $pid; sleep 0.3; kill -CONT $pid; kill -TERM $pid; wait $!")).ends_with(&[130]),
        row("signal", "SIGUSR1 ends the program, the next start continues", format!("{RUN} kill -USR1 $pid; wait $!")).ends_with(&[138]).leaves_partial(),
        row("signal", "SIGKILL, then the same command with --resume", "run -o out schedule.steps=120 run.checkpoint_interval=20 2> log & wait_for 'memory at' log; sleep 0.5; kill -KILL $!; wait; pretrain -o out schedule.steps=120 run.checkpoint_interval=20 --resume && pretrain -o whole schedule.steps=120 run.checkpoint_interval=20 && same_run out whole"),
        row("signal", "SIGTERM with standard error closed", "run -o out schedule.steps=3000 2>&- & sleep 2; kill -TERM $!; wait $!").ends_with(&[130]),
        row("signal", "SIGTERM with standard error full", "run -o out schedule.steps=3000 2> /dev/full & sleep 2; kill -TERM $!; wait $!").ends_with(&[130]),
        row("signal", "SIGTERM while printing", "mkfifo p; yes 'the river flows' > p & $A tokenizer encode --tokenizer $T/tokenizer.json < p > out & sleep 0.5; kill -TERM $!; wait $!").ends_with(&[143]),
    ]);
    rows
}
