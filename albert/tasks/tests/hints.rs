//! Settings named in messages exist in the recipe of the command that prints them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use albert::config::AlbertConfig;
use albert::pretrain::PretrainRecipe;
use albert_tasks::finetune::FinetuneRecipe;

/// Sources of the messages of pre-training, of fine-tuning, and of both.
const PRETRAINING: [&str; 5] = [
    "albert/src/pretrain",
    "albert/src/data/settings.rs",
    "albert/src/train/settings.rs",
    "cli/src/commands/pretrain.rs",
    "cli/src/commands/deadline.rs",
];
const FINETUNING: [&str; 3] = ["albert/tasks/src/finetune", "albert/tasks/src/files", "cli/src/commands/finetune.rs"];
const BOTH: [&str; 1] = ["albert/src/train"];

fn sources(path: &Path, found: &mut Vec<PathBuf>) {
    if path.is_file() {
        found.push(path.to_owned());
        return;
    }
    for entry in fs::read_dir(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())) {
        sources(&entry.unwrap().path(), found);
    }
}

/// Names such as `data.batch.max_tokens` in the string literals of a file, for sections of recipes.
fn named(text: &str) -> BTreeSet<String> {
    const SECTIONS: &str =
        "input model data first_values loss optimizer schedule compute evaluation run text span batch dropout seed";
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    // Tests use wrong settings on purpose.
    let code = code.split("#[cfg(test)]").next().unwrap();
    let mut found = BTreeSet::new();
    for literal in code.split('"').skip(1).step_by(2) {
        for word in literal.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.') {
            let word = word.trim_matches('.');
            let is_file = [".toml", ".rs", ".html", ".json", ".jsonl", ".txt", ".svg", ".safetensors"]
                .iter()
                .any(|end| word.ends_with(end));
            if word.split_once('.').is_some_and(|(section, _)| SECTIONS.split(' ').any(|own| own == section))
                && !is_file
            {
                found.insert(word.to_owned());
            }
        }
    }
    found
}

/// True if the error about a value of a wrong type is not about the key.
fn is_known(key: &str, error: &str) -> bool {
    !key.split('.').any(|part| error.contains(&format!("unknown field `{part}`")))
}

fn pretraining_has(key: &str) -> bool {
    let wrong = [format!("{key}={{ no_such_key = 1 }}").parse().unwrap()];
    is_known(key, &PretrainRecipe::from_toml("", &wrong).unwrap_err().to_string())
}

fn finetuning_has(key: &str) -> bool {
    let recipe = FinetuneRecipe::for_model(&AlbertConfig::preset("tiny").unwrap());
    let wrong = [format!("{key}={{ no_such_key = 1 }}").parse().unwrap()];
    is_known(key, &recipe.with("", &wrong).unwrap_err().to_string())
}

#[test]
fn every_setting_in_a_message_is_one_of_its_command() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let (mut wrong, mut count) = (vec![], 0);
    let of = |places: &[&str]| {
        let mut files = vec![];
        places.iter().for_each(|place| sources(&root.join(place), &mut files));
        files.retain(|file| {
            let name = file.display().to_string();
            // The schedule of settings.rs is that of pre-training.
            let is_shared = places != BOTH || !name.ends_with("settings.rs");
            name.ends_with(".rs") && !name.contains("tests") && is_shared
        });
        files
    };
    for (places, knows) in [
        (&PRETRAINING[..], &pretraining_has as &dyn Fn(&str) -> bool),
        (&FINETUNING[..], &finetuning_has),
        (&BOTH[..], &|key: &str| pretraining_has(key) && finetuning_has(key)),
    ] {
        for file in of(places) {
            for key in named(&fs::read_to_string(&file).unwrap()) {
                count += 1;
                if !knows(&key) {
                    wrong.push(format!("{}: {key}", file.display()));
                }
            }
        }
    }
    assert!(count > 40, "{count} settings found");
    assert!(wrong.is_empty(), "{wrong:#?}");
    // Check that this test can fail.
    assert!(!pretraining_has("batch.max_tokens") && finetuning_has("batch.max_tokens"));
    assert!(pretraining_has("data.batch.max_tokens") && !finetuning_has("data.batch.max_tokens"));
    assert!(pretraining_has("schedule.warmup_share") && !pretraining_has("schedule.epochs"));
}
