//! A small data set, its recipe and comparisons of runs.

mod ranks;
mod runs;
mod trainer;

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::{Cpu, Device, Isa, philox::Stream};

use super::*;
use crate::checkpoint::{Checkpoints, Heads, ModelFolder};
use crate::cost::{Memory, Recompute, Training, Workload};
use crate::data::{CorpusSettings, Dataset, Source, SplitSettings, Vocabulary, build_with};
use crate::report::read_metrics;
use crate::tokenizer::SpecialIds;
use crate::train::{EvaluationRecord, Observer, Outcome, Replan, Setting, StartMode, Started, StepReport, Trainer};

const PIECES: u32 = 60;

/// Documents of numbers that count upwards from a random start: a masked number follows from its neighbors, and the
/// order of two sentences from their numbers.
fn text() -> String {
    let mut out = String::new();
    for document in 0..400 {
        let mut stream = Stream::new(1, [document, 0, 0]);
        let mut next = stream.below(PIECES);
        for _ in 0..8 {
            for _ in 0..4 + stream.below(4) {
                write!(out, "{} ", 5 + next % (PIECES - 5)).unwrap();
                next += 1;
            }
            out.push('\n');
        }
        out.push('\n');
    }
    out
}

pub(super) struct World {
    folder: tempfile::TempDir,
    sources: PretrainSources,
}

pub(super) fn world() -> World {
    world_of(PIECES)
}

/// A world whose vocabulary has more pieces than the text.
fn world_of(pieces: u32) -> World {
    let folder = tempfile::tempdir().unwrap();
    let specials = SpecialIds { pad: 0, unk: 1, cls: 2, sep: 3, mask: 4 };
    let vocabulary = Vocabulary::new(vec![true; pieces as usize], specials, b"numbers").unwrap();
    let encode = |text: &str, ids: &mut Vec<u32>| {
        ids.extend(text.split_whitespace().map(|w| w.parse::<u32>().unwrap()));
        Ok(())
    };
    let source = Source::Memory { name: "numbers.txt".into(), text: text().into_bytes().into() };
    let (corpus, split) = (CorpusSettings::default(), SplitSettings::default());
    let data = folder.path().join("data");
    build_with(vec![source], &data, (&corpus, &split), &vocabulary, || encode, &engine::Communicator::default())
        .unwrap();
    let tokenizer = ["tokenizer.json", "tokenizer_config.json"].map(|name| (name, b"{}".to_vec())).to_vec();
    let dataset = Dataset::open(&data, &vocabulary).unwrap();
    World { sources: PretrainSources { dataset, vocabulary: Arc::new(vocabulary), tokenizer }, folder }
}

const RECIPE: &str = r#"
seed = 7
[model]
preset = "tiny"
embedding_size = 16
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 2
max_position_embeddings = 32
hidden_dropout_prob = 0.1
attention_probs_dropout_prob = 0.1
[data.batch]
max_tokens = 128
max_sequences = 6
sequences_per_step = 12
[optimizer]
kind = "lamb"
learning_rate = 0.02
[schedule]
kind = "smooth"
steps = 14
warmup_steps = 2
[evaluation]
interval = 5
[run]
log_interval = 3
checkpoint_interval = 4
"#;

/// Settings are separated by spaces or are separate strings.
pub(super) fn recipe(overrides: &[&str]) -> PretrainRecipe {
    let overrides: Vec<&str> = overrides.iter().flat_map(|several| several.split_whitespace()).collect();
    PretrainRecipe::from_toml(RECIPE, &Setting::all(&overrides).unwrap()).unwrap()
}

pub(super) fn device(threads: usize) -> Device {
    Device::Cpu(Cpu::new(Isa::choose().unwrap(), threads).unwrap())
}

/// Sets the stop flag after some steps, changes the number of steps after one, and records all callbacks.
#[derive(Debug, Default)]
pub(super) struct Listener<'s> {
    stop: Option<(&'s AtomicBool, u64)>,
    replan: Option<(u64, u64)>,
    pub(super) steps: Vec<StepReport<PretrainFigures>>,
    evaluations: Vec<(EvaluationRecord<HeldOutFigures>, bool)>,
    saved: Vec<u64>,
    damaged: Vec<String>,
    warnings: Vec<String>,
    notes: Vec<String>,
    first_step: u64,
}

impl Observer<Pretraining> for Listener<'_> {
    fn started(&mut self, started: &Started<'_, PretrainDetails>) {
        self.damaged = started.damaged.to_vec();
        self.warnings = started.warnings.to_vec();
        self.notes = started.notes.to_vec();
        self.first_step = started.step;
    }
    fn stepped(&mut self, report: &StepReport<PretrainFigures>) {
        self.steps.push(*report);
        if let Some((stop, at)) = self.stop {
            stop.store(report.step >= at, Ordering::Relaxed);
        }
    }
    fn evaluated(&mut self, record: &EvaluationRecord<HeldOutFigures>, is_best: bool) {
        self.evaluations.push((record.clone(), is_best));
    }
    fn saved(&mut self, step: u64, _: &Path) {
        self.saved.push(step);
    }
    fn replanned(&mut self, report: &StepReport<PretrainFigures>) -> Option<u64> {
        self.replan.and_then(|(after, steps)| (report.step == after).then_some(steps))
    }
}

impl World {
    fn run(
        &self,
        recipe: &PretrainRecipe,
        folder: &Path,
        mode: StartMode,
        threads: usize,
        stop_at: Option<u64>,
    ) -> Result<(Outcome<PretrainSummary>, Listener<'static>), PretrainError> {
        self.run_on(device(threads), recipe, folder, mode, stop_at)
    }

    pub(super) fn run_on(
        &self,
        device: Device,
        recipe: &PretrainRecipe,
        folder: &Path,
        mode: StartMode,
        stop_at: Option<u64>,
    ) -> Result<(Outcome<PretrainSummary>, Listener<'static>), PretrainError> {
        let stop: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let mut listener = Listener { stop: stop_at.map(|at| (stop, at)), ..Listener::default() };
        let outcome = pretrain(recipe, &self.sources, (folder, mode), device, stop, &mut listener)?;
        Ok((outcome, listener))
    }

    pub(super) fn trainer(&self, recipe: &PretrainRecipe, device: Device) -> Trainer<Pretraining> {
        Trainer::<Pretraining>::new(recipe, &self.sources, device).unwrap()
    }

    pub(super) fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }
}

/// Contents of all files of a run without times: equal for any number of threads and interruptions.
fn result(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let checkpoints = Checkpoints::of_run(folder);
    let steps = checkpoints.steps().unwrap();
    let found = checkpoints.newest().unwrap().unwrap();
    let mut out = vec![("steps".to_owned(), format!("{steps:?} {}", found.header.cursor).into_bytes())];
    let mut model = Vec::new();
    let open = ModelFolder::open(&folder.join("last")).unwrap();
    open.load(Heads::PRE_TRAINING, &[], |spec, values| {
        model.push((spec.name.clone(), values.iter().flat_map(|x| x.to_le_bytes()).collect()));
        // The checkpoint contains the same parameters, and also moments.
        for group in ["parameter", "first_moment", "second_moment"] {
            let mut tensor = vec![0.0; values.len()];
            found.read(group, &spec.name, &spec.shape, &mut tensor).unwrap();
            assert!(group != "parameter" || tensor == values, "{}", spec.name);
            model.push((format!("{group}/{}", spec.name), tensor.iter().flat_map(|x| x.to_le_bytes()).collect()));
        }
        Ok(())
    })
    .unwrap();
    out.extend(model);
    for name in ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"] {
        out.push((name.to_owned(), std::fs::read(folder.join(name)).unwrap()));
    }
    let records: Vec<PretrainRecord> = read_metrics(&folder.join("metrics.jsonl")).unwrap();
    let timeless = records.into_iter().map(|record| match record {
        Record::Train(mut record) => {
            (record.seconds, record.tokens_per_second, record.data_share) = (0.0, 0.0, None);
            Record::Train(record)
        }
        Record::Evaluation(mut record) => {
            record.seconds = 0.0;
            Record::Evaluation(record)
        }
    });
    out.push(("metrics".to_owned(), format!("{:#?}", timeless.collect::<Vec<_>>()).into_bytes()));
    out
}

fn assert_same(a: &Path, b: &Path, what: &str) {
    for ((name, a), (other, b)) in result(a).into_iter().zip(result(b)) {
        assert_eq!(name, other, "{what}");
        assert!(a == b, "{what}: {name} differs");
    }
}
