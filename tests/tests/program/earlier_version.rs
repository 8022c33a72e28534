//! Files of version 1 (before sums had the same order on every instruction set) are readable: `tests/golden/version-1`
//! contains a tokenizer, data, and a run of 8 steps that ended after 4.

use albert_tests::{
    program::{albert, finish, words},
    run_folder::copy,
};
use std::path::Path;

#[test]
fn models_tokenizers_shards_and_states_of_version_1_are_read() {
    let folder = tempfile::tempdir().unwrap();
    copy(Path::new("golden/version-1"), folder.path());
    let run = |line: &str| finish(albert(&words(line)).current_dir(folder.path())).succeeds();
    run("forward --model run --text 'It was a fine day.' --output o.safetensors");
    run("data inspect data --tokenizer tokenizer.json");
    let resumed = run("pretrain --resume --output run");
    resumed.says(&["is a state of version 1", "draws dropout differently", "8 steps"]);
    // The final state has the current version.
    let again = run("pretrain --resume --output run");
    assert!(!again.stderr.contains("is a state of version"), "{}", again.stderr);
    let new = "pretrain tiny --data data --tokenizer tokenizer.json --output new";
    run(&format!("{new} schedule.steps=2 schedule.warmup_steps=1"));
}
