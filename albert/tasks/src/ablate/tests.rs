//! Small plans: finished, interrupted and rejected.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use albert::data::{CorpusSettings, Source, SplitSettings, build};
use albert::pretrain::Pretraining;
use albert::tokenizer::{TrainerConfig, train};
use albert::train::{NoopObserver, Observer};
use engine::{Cpu, Device, Isa, philox::Stream};

use super::plan::folder_name;
use super::*;
use crate::finetune::Finetuning;

/// Documents of number words that count upwards from a random start, so that the next word can be learned.
fn sentences(documents: u32) -> Vec<Vec<String>> {
    const NAMES: [&str; 12] =
        ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"];
    let document = |d| {
        let mut stream = Stream::new(3, [d, 0, 0]);
        let mut next = stream.below(12) as usize;
        let mut sentence = || {
            let count = 4 + stream.below(3) as usize;
            next += count;
            (next - count..next).map(|at| NAMES[at % 12]).collect::<Vec<_>>().join(" ")
        };
        (0..8).map(|_| sentence()).collect()
    };
    (0..documents).map(document).collect()
}

/// A folder with shards, a tokenizer and a task: is the first number of a text even?
fn world() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let documents = sentences(300);
    let text: String = documents.iter().map(|document| document.join("\n") + "\n\n").collect();
    let config = TrainerConfig { vocab_size: 40, ..TrainerConfig::default() };
    let tokenizer = train(text.lines(), &config, |_| {}).unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_json().unwrap()).unwrap();
    let source = Source::Memory { name: "numbers.txt".into(), text: text.into_bytes().into() };
    let (corpus, split) = (CorpusSettings::default(), SplitSettings::default());
    build(vec![source], &folder.path().join("data"), &corpus, &split, &tokenizer, &engine::Communicator::default())
        .unwrap();
    let task = folder.path().join("task");
    std::fs::create_dir(&task).unwrap();
    for (name, from) in [("train", 0), ("dev", 200)] {
        let mut rows = "text\tlabel\n".to_owned();
        for sentence in documents[from..from + 60].iter().flatten() {
            let is_even =
                ["two", "four", "six", "eight", "ten", "twelve"].contains(&sentence.split(' ').next().unwrap());
            writeln!(rows, "{sentence}\t{}", if is_even { "even" } else { "odd" }).unwrap();
        }
        std::fs::write(task.join(format!("{name}.tsv")), rows).unwrap();
    }
    folder
}

fn plan(world: &Path) -> String {
    format!(
        r#"
seeds = [1, 2]
[input]
data = "{0}/data"
tokenizer = "{0}/tokenizer.json"
[base.model]
preset = "tiny"
embedding_size = 16
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 2
max_position_embeddings = 32
[base.data.batch]
max_tokens = 128
max_sequences = 6
sequences_per_step = 6
[base.schedule]
steps = 6
warmup_steps = 1
[base.run]
checkpoint_interval = 2
[[task]]
name = "Even?"
task = "classify"
data = "{0}/task"
set = ["schedule.steps=4", "evaluation.interval=2"]
[[section]]
title = "Objectives"
[[section.row]]
name = "SOP"
[[section.row]]
name = "NSP"
set = ['data.instances.objective="nsp"']
[[section.row]]
name = "none"
set = ['data.instances.objective="none"']
[[section]]
title = "Sharing"
[[section.row]]
name = "all"
[[section.row]]
name = "none"
set = ['model.sharing="none"']
"#,
        world.display()
    )
}

/// Row, seed and task of a stage.
type Begun = (String, u64, Option<String>);

/// Sets `stop` when `left` stages have begun; never if `left` is 0.
struct Stopper<'a> {
    stop: &'a AtomicBool,
    left: usize,
    stages: Vec<Begun>,
    budgets: Vec<Budget>,
    done: usize,
    silent: NoopObserver,
}

impl Watcher for Stopper<'_> {
    fn planned(&mut self, budgets: &[Budget], _seeds: usize, done: usize) {
        self.budgets = budgets.to_vec();
        self.done = done;
    }
    fn begins(&mut self, stage: Stage<'_>) {
        self.stages.push((stage.row.to_owned(), stage.seed, stage.task.map(str::to_owned)));
        self.left = self.left.wrapping_sub(1);
        if self.left == 0 {
            self.stop.store(true, Ordering::Relaxed);
        }
    }
    fn pretraining(&mut self) -> &mut dyn Observer<Pretraining> {
        &mut self.silent
    }
    fn finetuning(&mut self) -> &mut dyn Observer<Finetuning> {
        &mut self.silent
    }
}

fn run(text: &str, folder: &Path, stages: usize) -> (RunOutcome, Vec<Begun>, Vec<Budget>) {
    let device = Device::Cpu(Cpu::new(Isa::choose().unwrap(), 1).unwrap());
    let stop = AtomicBool::new(false);
    let silent = NoopObserver;
    let mut watcher = Stopper { stop: &stop, left: stages, stages: vec![], budgets: vec![], done: 0, silent };
    let ended = ablate(text, folder, &device, &stop, &mut watcher).unwrap();
    (ended, watcher.stages, watcher.budgets)
}

/// The tables without measured speeds.
fn numbers(folder: &Path) -> serde_json::Value {
    let mut tables: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("table.json")).unwrap()).unwrap();
    for table in tables.as_array_mut().unwrap() {
        for line in table["lines"].as_array_mut().unwrap() {
            line["speed"] = serde_json::Value::Null;
        }
    }
    tables
}

#[test]
fn a_plan_that_is_interrupted_ends_with_the_same_table() {
    let world = world();
    let text = plan(world.path());
    let (whole, parts) = (world.path().join("whole"), world.path().join("parts"));
    let (ended, stages, budgets) = run(&text, &whole, 0);
    assert_eq!(ended, RunOutcome::Finished);
    // "all" in the second table has the recipe of "SOP" in the first: four recipes, two seeds, two stages.
    assert_eq!((stages.len(), budgets.len()), (16, 4));
    assert!(stages[..8].iter().all(|(_, seed, _)| *seed == 1));
    assert!(budgets.iter().all(|budget| budget.tokens == 6 * 6 * 32 && budget.flops > 0.0));
    assert!(budgets[3].parameters > budgets[0].parameters, "no sharing has more parameters");

    let mut met = 0;
    for sitting in 0.. {
        let (ended, stages, _) = run(&text, &parts, 3);
        met += stages.len();
        if ended == RunOutcome::Finished {
            break;
        }
        assert!(sitting < 20, "no progress");
    }
    assert!(met > 16, "nothing was interrupted");
    assert_eq!(numbers(&whole), numbers(&parts));
    // A process killed after it wrote a stage's result leaves training states; the next call only removes them.
    let states = ["sop/seed-1/pretrain/checkpoints", "nsp/seed-2/even/checkpoints"].map(|name| parts.join(name));
    states.iter().for_each(|states| std::fs::create_dir(states).unwrap());
    assert_eq!(run(&text, &parts, 0).1.len(), 0);
    assert!(!states.iter().any(|states| states.exists()), "states of finished runs");

    let tables = numbers(&whole);
    let line = |table: usize, row: usize| &tables[table]["lines"][row];
    assert_eq!(line(0, 0)["tasks"], line(1, 0)["tasks"]);
    let has = |row: usize| [1, 2].map(|at| !line(0, row)["objectives"][at]["mean"].is_null());
    assert_eq!((has(0), has(1), has(2)), ([true, true], [true, true], [false, false]));
    assert_eq!(line(0, 2)["tasks"][0]["values"].as_array().unwrap().len(), 2);
    let markdown = std::fs::read_to_string(whole.join("table.md")).unwrap();
    assert!(
        markdown.contains("### Objectives") && markdown.contains("| MLM % | NSP % | SOP % | Even? (accuracy) |"),
        "{markdown}"
    );
    assert!(markdown.contains("Budget of each row: 6 steps, at most 1152 tokens."), "{markdown}");
    assert!(!whole.join("sop/seed-1/pretrain/checkpoints").exists(), "states of finished runs are removed");
}

#[test]
fn what_another_process_has_is_left_to_it() {
    let world = world();
    let text = plan(world.path());
    let folder = world.path().join("shared");
    let theirs = folder.join("nsp/seed-2");
    std::fs::create_dir_all(&theirs).unwrap();
    let lock = std::fs::File::create(theirs.join(".lock")).unwrap();
    lock.lock().unwrap();
    let (ended, stages, _) = run(&text, &folder, 0);
    assert_eq!((ended, stages.len()), (RunOutcome::Elsewhere(1), 14));
    assert!(!stages.contains(&("NSP".into(), 2, None)), "{stages:?}");
    // The other process was killed, which releases its run.
    drop(lock);
    let (ended, stages, _) = run(&text, &folder, 0);
    assert_eq!((ended, stages.len()), (RunOutcome::Finished, 2));
}

#[test]
fn another_plan_or_recipe_is_refused() {
    let world = world();
    let text = plan(world.path());
    let folder = world.path().join("run");
    run(&text, &folder, 1);
    let device = Device::Cpu(Cpu::new(Isa::choose().unwrap(), 1).unwrap());
    let stop = AtomicBool::new(true);
    let silent = NoopObserver;
    let mut watcher = Stopper { stop: &stop, left: 0, stages: vec![], budgets: vec![], done: 0, silent };
    let mut message = |text: &str| ablate(text, &folder, &device, &stop, &mut watcher).unwrap_err().to_string();
    assert!(message(&text.replace("steps = 6", "steps = 7")).contains("contains another plan"));
    for (from, to, expected) in [
        ("seeds = [1, 2]", "seeds = [1, 1]", "`seeds` is [1, 1]"),
        ("seeds = [1, 2]", "sseeds = [1]", "unknown field `sseeds`"),
        ("name = \"NSP\"", "name = \"SOP\"", "two rows named \"SOP\""),
        ("name = \"Even?\"", "name = \"Pretrain!\"", "would have the folder \"pretrain\""),
        ("model.sharing=\"none\"", "model.sharing=\"some\"", "row \"none\""),
    ] {
        let found = message(&text.replace(from, to));
        assert!(found.contains(expected), "{to}: {found}");
    }
}

#[test]
fn folders_have_plain_names() {
    assert_eq!(folder_name("E = 128, all shared"), "e-128-all-shared");
    assert_eq!(folder_name("../../x"), "x");
    assert_eq!(folder_name("§"), "row");
}
