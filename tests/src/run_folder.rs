//! Inputs for the program: a seeded corpus, its vocabulary, its shards and a recipe of a tiny model.

use crate::program::{Finished, albert, finish, finish_with_input, run, words};
use albert::{
    checkpoint::{Heads, save_model},
    config::AlbertConfig,
    model::Model,
    tokenizer::Tokenizer,
};
use engine::{Cpu, philox::Stream};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

/// Temporary folder with corpus, vocabulary and shards.
#[derive(Debug)]
pub struct World {
    folder: TempDir,
}

/// `documents` documents of short sentences whose later words follow from earlier ones.
pub fn corpus(documents: u32) -> String {
    const SUBJECTS: [&str; 8] =
        ["the river", "a farmer", "the old ship", "my sister", "the king", "a bird", "rain", "night"];
    const VERBS: [&str; 8] =
        ["flows to", "ploughs", "sails over", "writes to", "rules", "sings over", "falls on", "hides"];
    const PLACES: [&str; 6] =
        ["the sea", "the northern field", "a quiet harbour", "the village", "the hills", "the garden"];
    let mut text = String::new();
    for document in 0..documents {
        let mut stream = Stream::new(11, [document, 0, 0]);
        let mut which = stream.below(8) as usize;
        for sentence in 0..4 + stream.below(6) {
            let place = PLACES[stream.below(6) as usize];
            let (subject, verb, year) = (SUBJECTS[which], VERBS[which], 1800 + 7 * sentence + document);
            writeln!(text, "{subject} {verb} {place} in the year {year}.").expect("a string accepts everything");
            which = (which + 1) % 8;
        }
        text.push('\n');
    }
    text
}

/// Recipe of a tiny model, with steps of milliseconds, and different intervals of checkpoints, evaluations and records.
pub const RECIPE: &str = r#"seed = 7
optimizer = { kind = "lamb", learning_rate = 0.01 }
schedule = { kind = "smooth", steps = 40, warmup_steps = 4 }
evaluation.interval = 12
run = { log_interval = 3, checkpoint_interval = 5 }
data.batch = { max_tokens = 512, max_sequences = 8, sequences_per_step = 12 }
[model]
preset = "tiny"
embedding_size = 16
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 2
max_position_embeddings = 64
hidden_dropout_prob = 0.1
attention_probs_dropout_prob = 0.1
"#;

impl World {
    /// Writes the corpus, trains the vocabulary and builds the shards, with the program.
    ///
    /// # Panics
    /// If the program fails.
    pub fn new() -> Self {
        let world = Self::of_text(&corpus(150));
        // The shards store the whole path of their source.
        let [text, tokenizer, data] = ["text.txt", "tokenizer.json", "data"].map(|name| world.text_path(name));
        run(&format!("tokenizer train {text} --vocab-size 200 -o {tokenizer}")).succeeds();
        run(&format!("data build {text} --tokenizer {tokenizer} -o {data}")).succeeds();
        world
    }

    /// A folder with only `text.txt` and `recipe.toml`.
    ///
    /// # Panics
    /// If they cannot be written.
    pub fn of_text(text: &str) -> Self {
        let world = Self { folder: tempfile::tempdir().expect("a temporary folder can be made") };
        world.write("text.txt", text);
        world.write("recipe.toml", RECIPE);
        world
    }

    /// Writes the file `name`, in new folders if necessary.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("it is in the world")).expect("the folder is writable");
        fs::write(path, contents).expect("the folder is writable");
    }

    /// The program with the [`words()`] of `line`, in the folder.
    pub fn albert(&self, line: &str) -> Command {
        let mut command = albert(&words(line));
        command.current_dir(self.folder.path());
        command
    }

    /// Runs the program with the [`words()`] of `line`, in the folder.
    pub fn run(&self, line: &str) -> Finished {
        finish(&mut self.albert(line))
    }

    /// As [`run`](Self::run), with `input` on standard input.
    pub fn run_with_input(&self, line: &str, input: &[u8]) -> Finished {
        finish_with_input(&mut self.albert(line), input)
    }

    /// Runs pre-training with the arguments of [`pretrain`](Self::pretrain).
    pub fn run_pretrain(&self, run: &str, more: &[&str]) -> Finished {
        finish(&mut albert(&self.pretrain(run, more)))
    }

    /// Path of `name` in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Path of `name` in the folder, as an argument.
    pub fn text_path(&self, name: &str) -> String {
        self.path(name).to_str().expect("temporary folders have UTF-8 names").to_owned()
    }

    /// Arguments of a pre-training run in the folder `run` with the recipe and `more` settings or flags.
    pub fn pretrain(&self, run: &str, more: &[&str]) -> Vec<String> {
        let [recipe, run, data, tokenizer] =
            ["recipe.toml", run, "data", "tokenizer.json"].map(|name| self.text_path(name));
        let fixed = ["pretrain", &recipe, "-o", &run, "--data", &data, "--tokenizer", &tokenizer];
        fixed.iter().chain(more).map(|&argument| argument.to_owned()).collect()
    }

    /// Inputs with a pre-trained model in `run`, one fine-tuned for classification in `tuned` and one for answering
    /// questions in `finder`, their examples in `task` and `questions`, and `ids.jsonl`, a line for `forward`.
    ///
    /// # Panics
    /// If the program fails.
    pub fn with_models() -> Self {
        let world = Self::new();
        for name in ["task/train.tsv", "task/dev.tsv"] {
            world.write(name, "text\tlabel\nrain falls\twet\nthe sun\tdry\n");
        }
        let passage = r#"{"context": "rain falls on the hills", "qas": [{"id": "a", "question": "where", "answers":
            [{"text": "the hills", "answer_start": 14}]}]}"#;
        for name in ["questions/train.json", "questions/dev.json"] {
            world.write(
                name,
                format!(r#"{{"version": "v2.0", "data": [{{"title": "t", "paragraphs": [{passage}]}}]}}"#),
            );
        }
        world.write("ids.jsonl", "{\"input_ids\": [2, 7, 3]}\n");
        world.run_pretrain("run", &["schedule.steps=4", "evaluation.interval=0"]).succeeds();
        for (task, data, output) in [("classify", "task", "tuned"), ("qa", "questions", "finder")] {
            let [model, data, output] = ["run", data, output].map(|name| world.text_path(name));
            run(&format!("finetune {task} --model {model} --data {data} -o {output} --steps 1")).succeeds();
        }
        world
    }

    /// Plan of an ablation of the tiny model: rows `all` and `none` (sharing), pre-trained for `steps` steps and fine-tuned
    /// on the folder `task` for 2. `seeds` is a TOML list, and `run` contains TOML settings of `[base.run]`.
    pub fn plan(&self, seeds: &str, steps: u64, run: &str) -> String {
        let [data, tokenizer, task] = ["data", "tokenizer.json", "task"].map(|name| self.text_path(name));
        format!(
            r#"seeds = {seeds}
input = {{ data = "{data}", tokenizer = "{tokenizer}" }}
[base]
schedule = {{ steps = {steps}, warmup_steps = 1 }}
data.batch = {{ max_tokens = 512, max_sequences = 8, sequences_per_step = 8 }}
[base.model]
preset = "tiny"
embedding_size = 16
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 2
max_position_embeddings = 64
[base.run]
{run}
[[task]]
name = "weather"
task = "classify"
data = "{task}"
set = ["schedule.steps=2"]
[[section]]
title = "Sharing"
row = [{{ name = "all" }}, {{ name = "none", set = ["model.sharing=none"] }}]
"#
        )
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

/// Saves a model without heads, with random weights and the golden SentencePiece model, to `folder`. The argument of
/// `config` is the number of pieces.
///
/// # Panics
/// If the model cannot be built or saved.
pub fn random_model(folder: &Path, config: impl FnOnce(usize) -> AlbertConfig) {
    let spiece = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/tokenizer/spiece.model");
    let config = config(Tokenizer::load(&spiece).expect("the golden tokenizer").vocab_size());
    let cpu = Cpu::detect().expect("a CPU");
    let (_, params) = Model::new(&config, Heads::MODEL, &cpu, 3).expect("a valid configuration");
    let values = |name: &str| params.values(params.find(name).expect("a parameter of the model"));
    save_model(folder, &config, Heads::MODEL, &[], values).expect("the folder is writable");
    fs::copy(spiece, folder.join("spiece.model")).expect("the folder is writable");
}

/// Contents of every file below `path` by relative name; a single file is its own listing.
///
/// # Panics
/// If a file cannot be read.
pub fn files(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let (mut found, mut open) = (BTreeMap::new(), vec![path.to_owned()]);
    while let Some(at) = open.pop() {
        if at.is_dir() {
            open.extend(fs::read_dir(at).expect("a folder can be listed").map(|entry| entry.expect("an entry").path()));
        } else if at.is_file() {
            let name = at.strip_prefix(path).expect("below the folder").to_str().expect("UTF-8").to_owned();
            found.insert(name, fs::read(&at).expect("a file can be read"));
        }
    }
    found
}

/// Copies a folder with its subfolders.
///
/// # Panics
/// If it cannot be copied.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("the folder is writable");
    for (name, bytes) in files(from) {
        let target = to.join(name);
        fs::create_dir_all(target.parent().expect("it is in the folder")).expect("the folder is writable");
        fs::write(target, bytes).expect("the folder is writable");
    }
}

/// Reproducible outputs of a run by name: contents of the models, tensors of the last checkpoint, and the metrics
/// without timings.
///
/// # Panics
/// If a file is missing or unreadable.
pub fn lasting(run: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut out = BTreeMap::new();
    for name in ["model.safetensors", "config.json", "tokenizer.json", "last/model.safetensors", "last/config.json"] {
        let bytes = fs::read(run.join(name)).unwrap_or_else(|error| panic!("{}/{name}: {error}", run.display()));
        out.insert(name.to_owned(), bytes);
    }
    // Stops during the run leave checkpoints at other steps before it.
    if let Some(path) = checkpoints(run).last() {
        let bytes = fs::read(path).expect("it was just listed");
        // Length of the header, header (which contains the seconds of the run), tensors.
        let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
        let name = path.file_name().expect("it has a name").to_string_lossy().into_owned();
        out.insert(format!("tensors of {name}"), bytes[8 + header..].to_vec());
    }
    let metrics = fs::read_to_string(run.join("metrics.jsonl")).expect("a run has metrics");
    for (i, line) in metrics.lines().enumerate() {
        let mut record: serde_json::Value = serde_json::from_str(line).expect("a line of the metrics is JSON");
        let record = record.as_object_mut().expect("a record is an object");
        for clock in ["seconds", "tokens_per_second", "data_share"] {
            record.shift_remove(clock);
        }
        out.insert(format!("metrics.jsonl:{}", i + 1), serde_json::to_vec(record).expect("JSON can be written"));
    }
    out
}

/// Checkpoints of a run, oldest first.
///
/// # Panics
/// If the folder cannot be read.
pub fn checkpoints(run: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(run.join("checkpoints")).expect("a run has a folder of checkpoints");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("it can be listed").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "safetensors"));
    paths.sort();
    paths
}

/// Asserts that both runs produced the same bytes, naming the first file or line that differs.
///
/// # Panics
/// If they did not.
#[track_caller]
pub fn assert_same_run(expected: &Path, got: &Path, what: &str) {
    let (expected, got) = (lasting(expected), lasting(got));
    let names = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&expected), names(&got), "{what}: not the same files and records");
    for (name, bytes) in &expected {
        let (got, first) = (&got[name], bytes.iter().zip(&got[name]).position(|(a, b)| a != b));
        let sizes = (bytes.len(), got.len());
        assert!(bytes == got, "{what}: {name} differs from byte {first:?} on; sizes {sizes:?}");
    }
}
