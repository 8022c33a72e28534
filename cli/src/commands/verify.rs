//! `albert doctor --verify`: compares the bits that this machine computes with recorded ones.
//!
//! First every case of every operation ([`kernels_proof::bits`]), then whole runs on a part of the built-in text: a vocabulary,
//! shards, pre-training in f32 and bf16, forward passes in f32 and int8, fine-tuning. Each uses every instruction set of the
//! machine, or the one in `ALBERT_ISA`, with one thread and with all threads.

use super::text;
use crate::output::{results, tell};
use albert::{
    checkpoint::ModelFolder,
    data::CorpusSettings,
    forward::{Example, Forward, OutputSelection},
    pretrain::{HeldOutFigures, PretrainFigures, PretrainRecipe, PretrainSources, Pretraining, pretrain},
    tokenizer::{self, Tokenizer, TrainerConfig},
    train::{EvaluationRecord, Observer, Setting, StartMode, StepReport},
};
use albert_tasks::finetune::{
    self, DataFiles, DataSource, FinetuneFigures, FinetuneRecipe, FinetuneSources, Finetuning, Task, TaskName,
};
use anyhow::{Context, Result, ensure};
use engine::{Communicator, Cpu, Device, Isa, Precision, io::Safetensors};
use kernels_proof::{
    OPERATIONS,
    bits::{Comparison, MOST_FLOPS, Output, compare, difference},
};
use std::{fs, io::Write, path::Path, sync::atomic::AtomicBool, time::Instant};

static RECIPE: &str = include_str!("verify.toml");
/// Lines `RUN: OUTPUT HASH`, and `RUN: loss` with the loss of each step.
static RECORDED: &str = include_str!("verify.txt");

/// Number of lines of the built-in text that the runs use.
const LINES: usize = 2500;
/// Pieces of the vocabulary.
const VOCABULARY: usize = 600;
/// Number of steps of fine-tuning, and of its examples.
const FINETUNE_STEPS: usize = 10;
const EXAMPLES: usize = 80;
/// Name of the output with the loss of each step.
const LOSS: &str = "loss";

/// A run and its outputs.
struct Run {
    name: &'static str,
    outputs: Vec<Output>,
}

/// Compares all bits, prints a summary, and returns an error with the first differences, if any.
pub(super) fn verify(cpu: &Cpu) -> Result<()> {
    let cpus = cpus(cpu.threads().max(2))?;
    let mut out = results();
    let (mut start, mut total) = (Instant::now(), Comparison::default());
    for operation in OPERATIONS {
        let found = compare(operation, &cpus, MOST_FLOPS);
        total.cases += found.cases;
        total.outputs += found.outputs;
        total.differences.extend(found.differences);
    }
    let names = |cpus: &[Cpu]| cpus.iter().map(Cpu::to_string).collect::<Vec<_>>().join(", ");
    writeln!(out, "operations        {}, {} cases, {} outputs", OPERATIONS.len(), total.cases, total.outputs)?;
    writeln!(out, "                  on {} ({:.0} s)", names(&cpus), start.elapsed().as_secs_f64())?;
    start = Instant::now();
    total.differences.extend(compare_runs(&cpus)?);
    writeln!(out, "runs              {} ({:.0} s)", RUNS.join(", "), start.elapsed().as_secs_f64())?;
    writeln!(out, "{}", losses())?;
    if total.differences.is_empty() {
        writeln!(out, "all bits          as recorded")?;
        return Ok(());
    }
    // Only the first of each operation and run: as a rule, later ones follow from the same change.
    let mut before = "";
    for difference in &total.differences {
        let subject = difference.split([' ', ',', ':']).next().unwrap_or_default();
        if subject != before {
            tell!("{difference}");
        }
        before = subject;
    }
    anyhow::bail!(
        "{} differences between instruction sets or from the recorded bits, the first of each kind above: results of this \
         machine differ from those of other machines; please report the whole output",
        total.differences.len()
    )
}

/// Each instruction set, or the one in `ALBERT_ISA`, with one thread and with `threads`.
fn cpus(threads: usize) -> Result<Vec<Cpu>> {
    let isas = if std::env::var_os("ALBERT_ISA").is_some() { vec![Isa::choose()?] } else { Isa::real() };
    Ok(isas.into_iter().flat_map(|isa| [1, threads].map(|threads| Cpu::new(isa, threads))).collect::<Result<_, _>>()?)
}

/// Differences of the first CPU's runs from the recorded ones, and of all other CPUs' runs from the first.
fn compare_runs(cpus: &[Cpu]) -> Result<Vec<String>> {
    let mut differences = Vec::new();
    let mut first: Option<Vec<Run>> = None;
    for cpu in cpus {
        let runs = runs(cpu).with_context(|| cpu.to_string())?;
        differences.extend(match &first {
            None => changed(&runs).into_iter().map(|line| format!("{line}, on {cpu}")).collect::<Vec<_>>(),
            Some(first) => first
                .iter()
                .zip(&runs)
                .filter_map(|(a, b)| {
                    let found = difference(&a.outputs, &b.outputs)?;
                    Some(format!("{}, {} and {cpu}: {found}", a.name, cpus[0]))
                })
                .collect(),
        });
        first.get_or_insert(runs);
    }
    Ok(differences)
}

/// Names (`RUN: OUTPUT`) and recorded forms of all outputs: a hash, or the value of each step for a loss.
fn described(runs: &[Run]) -> Vec<(String, String)> {
    let form = |output: &Output| match output.name == LOSS {
        true => floats(output).iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
        false => format!("{:016x}", output.hash()),
    };
    let named = |run: &Run, output: &Output| (format!("{}: {}", run.name, output.name), form(output));
    runs.iter().flat_map(|run| run.outputs.iter().map(move |output| named(run, output))).collect()
}

/// Recorded outputs: names and forms, as in [`described`].
fn recorded() -> impl Iterator<Item = (&'static str, &'static str)> {
    // Names may contain spaces, and so may the list of losses.
    let split = |line: &'static str| match line.find(&format!(": {LOSS} ")) {
        Some(at) => line.split_at(at + format!(": {LOSS}").len()),
        None => line.rsplit_once(' ').unwrap_or((line, "")),
    };
    let lines = RECORDED.lines().filter(|line| !line.starts_with('#'));
    lines.map(split).map(|(name, form)| (name, form.trim_start()))
}

/// Differences from the recorded outputs, including missing and new ones; for a loss, the first step.
fn changed(runs: &[Run]) -> Vec<String> {
    let found = described(runs);
    let mut differences = Vec::new();
    for (name, form) in &found {
        match recorded().find(|(other, _)| other == name) {
            None => differences.push(format!("{name}: not recorded")),
            Some((_, recorded)) if recorded == form => {}
            Some((_, recorded)) => {
                let mut steps = form.split(' ').zip(recorded.split(' ')).zip(1..);
                differences.push(match steps.find(|((a, b), _)| a != b) {
                    Some(((a, b), step)) if name.ends_with(LOSS) => format!("{name} of step {step}: {a}, recorded {b}"),
                    Some(((a, b), _)) => format!("{name}: {a}, recorded {b}"),
                    None => format!("{name}: another number of steps is recorded"),
                });
            }
        }
    }
    let is_missing = |name: &str| !found.iter().any(|(other, _)| other == name);
    differences.extend(recorded().filter(|(name, _)| is_missing(name)).map(|(name, _)| format!("{name}: missing")));
    differences
}

/// Recorded losses of pre-training in f32, every tenth step.
fn losses() -> String {
    let key = format!("{}: {LOSS}", RUNS[2]);
    let (_, line) = recorded().find(|(name, _)| *name == key).expect("the losses are recorded");
    let all: Vec<&str> = line.split(' ').collect();
    let every_tenth = all.iter().enumerate().filter(|(i, _)| *i == 0 || (i + 1) % 10 == 0);
    let steps =
        every_tenth.map(|(i, loss)| format!("                  step {:>2}  {loss}\n", i + 1)).collect::<String>();
    format!("losses            recorded for {}\n{}", RUNS[2], steps.trim_end())
}

/// Elements of an f64 output.
fn floats(output: &Output) -> Vec<f64> {
    let pairs = output.bits.chunks_exact(output.words);
    pairs.map(|words| f64::from_bits(u64::from(words[0]) | u64::from(words[1]) << 32)).collect()
}

/// Names of the runs, in order.
const RUNS: [&str; 10] = [
    "vocabulary",
    "data",
    "pre-training f32",
    "pre-training bf16",
    "forward",
    "forward bf16",
    "forward bf16x3",
    "forward bf16x6",
    "forward int8",
    "fine-tuning",
];

/// Runs everything on a CPU.
fn runs(cpu: &Cpu) -> Result<Vec<Run>> {
    let folder = tempfile::tempdir().context("no temporary folder")?;
    let path = |name: &str| folder.path().join(name);
    let text = text::first_lines(LINES);
    let config = TrainerConfig { vocab_size: VOCABULARY, ..TrainerConfig::default() };
    let tokenizer = cpu.install(|| tokenizer::train(text.lines(), &config, |_| ()))?;
    let vocabulary = vec![bytes("tokenizer.json", tokenizer.to_json()?.as_bytes())];
    cpu.install(|| {
        let (corpus, split) = (CorpusSettings::default(), albert::data::SplitSettings::default());
        albert::data::build(
            vec![text::source(text)],
            &path("data"),
            &corpus,
            &split,
            &tokenizer,
            &Communicator::default(),
        )
    })?;
    let data = files(&path("data"))?;
    let pretraining = |dtype: &str| pretrained(&path("data"), &tokenizer, dtype, &path(dtype), cpu);
    let forward_in = |precision: Precision| forward(&path("f32"), &tokenizer, precision, cpu);
    let outputs = [
        vocabulary,
        data,
        pretraining("f32")?,
        pretraining("bf16")?,
        forward_in(Precision::F32)?,
        forward_in(Precision::Bf16)?,
        forward_in(Precision::Bf16x3)?,
        forward_in(Precision::Bf16x6)?,
        forward_in(Precision::Int8)?,
        finetuned(&path("f32"), text, &path("task"), cpu)?,
    ];
    Ok(RUNS.into_iter().zip(outputs).map(|(name, outputs)| Run { name, outputs }).collect())
}

/// Output for the bytes of a file.
fn bytes(name: &str, bytes: &[u8]) -> Output {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
    Output::of_u32(name, bytes.chunks(4).map(word).collect())
}

/// Outputs of the files in a folder, by name.
fn files(folder: &Path) -> Result<Vec<Output>> {
    let mut names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect::<Result<Vec<_>>>()?;
    names.sort();
    names.iter().map(|name| Ok(bytes(&name.display().to_string(), &fs::read(folder.join(name))?))).collect()
}

/// Tensors of a model.
fn tensors(folder: &Path) -> Result<Vec<Output>> {
    let file = Safetensors::open(folder.join("model.safetensors"))?;
    let output = |name: &String| {
        let shape = file.shape(name).context("a tensor without a shape")?;
        Ok(Output::new(name, &file.f32s(name, shape)?))
    };
    file.names().iter().map(output).collect()
}

/// Loss of each step, and losses on held-out text.
#[derive(Default)]
struct Losses {
    steps: Vec<f64>,
    held_out: Vec<f64>,
}

impl Observer<Pretraining> for Losses {
    fn stepped(&mut self, report: &StepReport<PretrainFigures>) {
        self.steps.push(report.loss);
    }

    fn evaluated(&mut self, record: &EvaluationRecord<HeldOutFigures>, _: bool) {
        let HeldOutFigures { mlm_loss, unigram_loss, hidden_loss, hidden_unigram_loss, .. } = record.figures;
        self.held_out.extend([mlm_loss, unigram_loss, hidden_loss, hidden_unigram_loss]);
    }
}

impl Observer<Finetuning> for Losses {
    fn stepped(&mut self, report: &StepReport<FinetuneFigures>) {
        self.steps.push(report.loss);
    }
}

/// Losses and parameters of pre-training.
fn pretrained(data: &Path, tokenizer: &Tokenizer, dtype: &str, run: &Path, cpu: &Cpu) -> Result<Vec<Output>> {
    let recipe = PretrainRecipe::from_toml(RECIPE, &[Setting::new("compute.precision", dtype)?])?;
    let sources = PretrainSources::open(data, tokenizer)?;
    let (mut losses, stop) = (Losses::default(), AtomicBool::new(false));
    pretrain(&recipe, &sources, (run, StartMode::New), Device::Cpu(cpu.clone()), &stop, &mut losses)?;
    let outputs = vec![Output::of_f64(LOSS, &losses.steps), Output::of_f64("held-out", &losses.held_out)];
    Ok([outputs, tensors(run)?].concat())
}

/// All tensors of a forward pass.
fn forward(model: &Path, tokenizer: &Tokenizer, precision: Precision, cpu: &Cpu) -> Result<Vec<Output>> {
    let mut forward = Forward::load(model, Device::Cpu(cpu.clone()))?;
    forward.set_precision(precision)?;
    let specials = tokenizer.specials();
    let text = tokenizer.encode("She was very glad to see her sister.")?;
    let ids = [&[specials.cls], &text[..], &[specials.sep]].concat();
    let example = Example::from_ids(&ids, &vec![0; ids.len()], forward.model().config())?;
    let selection = OutputSelection { layers: true, attention: true, ..OutputSelection::default() };
    let tensors = forward.run(&example, selection)?;
    Ok(tensors.iter().map(|tensor| Output::new(&tensor.name, &tensor.values)).collect())
}

/// Losses and parameters of fine-tuning, with the task of recognizing questions.
fn finetuned(model: &Path, text: &str, folder: &Path, cpu: &Cpu) -> Result<Vec<Output>> {
    let sentences: Vec<&str> = text.lines().filter(|line| line.len() > 40 && !line.contains('\t')).collect();
    ensure!(sentences.len() > 2 * EXAMPLES, "the text has {} sentences", sentences.len());
    fs::create_dir(folder)?;
    for (name, sentences) in ["train.tsv", "dev.tsv"].into_iter().zip(sentences.chunks(EXAMPLES)) {
        let label = |text: &str| if text.contains('?') { "question" } else { "statement" };
        let rows = sentences.iter().map(|text| format!("{text}\t{}\n", label(text))).collect::<String>();
        fs::write(folder.join(name), format!("text\tlabel\n{rows}"))?;
    }
    let mut recipe = FinetuneRecipe::for_task(TaskName::Classify, &ModelFolder::open(model)?.config().config);
    recipe.input.model = Some(model.to_owned());
    let settings = [Setting::new("schedule.steps", FINETUNE_STEPS)?, Setting::new("batch.examples_per_step", 8)?];
    let recipe = recipe.with("", &settings)?;
    let loaded = DataSource { task: TaskName::Classify, settings: &recipe.data }.load(DataFiles::Folder(folder))?;
    let task = Task::new(TaskName::Classify, loaded.problem, &recipe);
    let sources = FinetuneSources { task: &task, train: &loaded.train, dev: loaded.dev.as_ref() };
    let (mut losses, stop, run) = (Losses::default(), AtomicBool::new(false), folder.join("run"));
    let device = Device::Cpu(cpu.clone());
    finetune::finetune(&recipe, &sources, (&run, StartMode::New), device, &stop, &mut losses)?;
    Ok([vec![Output::of_f64(LOSS, &losses.steps)], tensors(&run)?].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_on_every_instruction_set_give_the_recorded_bits() {
        let mut cpus = cpus(2).unwrap();
        // Under emulation even one thread takes a quarter of an hour, so .ci/aarch64.sh sets two. For other numbers, both run.
        let wanted = std::env::var("ALBERT_THREADS").unwrap_or_default();
        let is_wanted = |cpu: &Cpu| cpu.threads().to_string() == wanted;
        if cpus.iter().any(is_wanted) {
            cpus.retain(is_wanted);
        }
        let differences = compare_runs(&cpus).unwrap();
        assert!(differences.is_empty(), "{}", differences.join("\n"));
    }

    /// Writes the recorded bits, after intentional changes of bits (`docs/decisions.md`).
    #[test]
    #[ignore = "writes a file of the repository"]
    fn record() {
        let runs = runs(&Cpu::new(Isa::real()[0], 1).unwrap()).unwrap();
        let header = "# Bits of the runs of `albert doctor --verify`: cli/src/commands/verify.rs\n";
        let lines = described(&runs).iter().map(|(name, form)| format!("{name} {form}\n")).collect::<String>();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/commands/verify.txt");
        fs::write(path, header.to_owned() + &lines).unwrap();
    }

    /// Differences of `runs`, without those of outputs that they do not have.
    fn changed_in(runs: &[Run]) -> Vec<String> {
        changed(runs).into_iter().filter(|line| !line.ends_with(": missing")).collect()
    }

    #[test]
    fn a_changed_loss_names_its_step() {
        let (_, losses) = recorded().find(|(name, _)| *name == "pre-training f32: loss").unwrap();
        let mut values: Vec<f64> = losses.split(' ').map(|loss| loss.parse().unwrap()).collect();
        let run = |values: &[f64]| [Run { name: RUNS[2], outputs: vec![Output::of_f64(LOSS, values)] }];
        assert!(changed_in(&run(&values)).is_empty());
        let before = values[12];
        values[12] += 1.0;
        let message = format!("pre-training f32: loss of step 13: {}, recorded {before}", before + 1.0);
        assert_eq!(changed_in(&run(&values)), [message]);
        assert_eq!(changed_in(&run(&values[..12])), ["pre-training f32: loss: another number of steps is recorded"]);
    }

    #[test]
    fn changed_missing_and_new_outputs_are_named() {
        let runs = |name| [Run { name: "forward", outputs: vec![Output::new(name, &[1f32])] }];
        let found = changed_in(&runs("pooled"));
        assert!(found.len() == 1 && found[0].starts_with("forward: pooled: "), "{found:?}");
        assert_eq!(changed_in(&runs("other")), ["forward: other: not recorded"]);
        let missing = changed(&[]);
        assert_eq!(missing.len(), RECORDED.lines().count() - 1);
        assert_eq!(missing[0], "vocabulary: tokenizer.json: missing");
    }
}
