//! Files of version 1 (before sums had one order on every instruction set) are readable: `tests/golden/version-1` has a
//! tokenizer, data, and a run of 8 steps that ended after 4.

use albert_tests::program::{albert, finish};
use std::{fs, path::Path};

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[test]
fn models_tokenizers_shards_and_states_of_version_1_are_read() {
    let folder = tempfile::tempdir().unwrap();
    copy(Path::new("golden/version-1"), folder.path());
    let run = |arguments: &[&str]| finish(albert(arguments).current_dir(folder.path()));
    run(&["forward", "--model", "run", "--text", "It was a fine day.", "--output", "o.safetensors"]).succeeds();
    run(&["data", "inspect", "data", "--tokenizer", "tokenizer.json"]).succeeds();
    run(&["pretrain", "--resume", "--output", "run"]).succeeds().says(&[
        "is a state of version 1",
        "draws dropout differently",
        "8 steps",
    ]);
    // The state that it ends with is of this version.
    let again = run(&["pretrain", "--resume", "--output", "run"]).succeeds();
    assert!(!again.stderr.contains("is a state of version"), "{}", again.stderr);
    run(&[
        "pretrain",
        "tiny",
        "--data",
        "data",
        "--tokenizer",
        "tokenizer.json",
        "--output",
        "new",
        "schedule.steps=2",
        "schedule.warmup_steps=1",
    ])
    .succeeds();
}
