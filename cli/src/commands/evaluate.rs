//! `albert evaluate`: metrics of fine-tuned models on labeled examples.

use super::finetune::figures;
use crate::{
    input::LabeledFaults,
    output::{Sink, check_ending, tell},
    running::Running,
};
use albert::report::{Section, write_html};
use albert_tasks::{
    files::{Purpose, Split},
    finetune::{
        DataSource, Examples, Measured, Predictor, Task, TaskName, confusion_section, measure, rows, threshold_panel,
    },
};
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use engine::io::{check_output, write_atomically};
use serde_json::Value;
use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// File name for standard output.
const STANDARD_OUTPUT: &str = "-";

/// Split of the data.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Part {
    /// Training set
    Train,
    /// Development set
    Dev,
    /// Test set, if it has labels
    Test,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  albert evaluate --model runs/film --data films
  albert evaluate --model runs/film --data films/test.tsv --json | jq .figures.accuracy
  albert evaluate --model runs/mnli --data glue --task mnli-mismatched --report mnli.html")]
pub(crate) struct Arguments {
    /// Fine-tuned model folder; several are averaged. A run over seeds counts as all of its models
    #[arg(long, required = true)]
    model: Vec<PathBuf>,
    /// Folder of examples as for training, or one file
    #[arg(long)]
    data: PathBuf,
    /// Evaluate on another task with the same labels: mnli-mismatched for a model of mnli
    #[arg(long)]
    task: Option<String>,
    /// Split to evaluate
    #[arg(long, value_enum, default_value = "dev")]
    split: Part,
    /// Print metrics as JSON; with a file, write them there and print them as lines
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Output file; - is standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write metrics and confusion matrix as an HTML page to this file
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    #[command(flatten)]
    faults: LabeledFaults,
    #[command(flatten)]
    threshold: NullThreshold,
    #[command(flatten)]
    running: Running,
}

/// Options for the null score above which a question has no answer.
#[derive(Debug, Args)]
pub(super) struct NullThreshold {
    /// Null score above which a question has no answer [default: 0, for models trained on such questions]
    #[arg(long, value_name = "SCORE", allow_negative_numbers = true)]
    null_threshold: Option<f64>,
    /// Choose the null score with the best F1 on the labeled questions in this file
    #[arg(long, value_name = "FILE", conflicts_with = "null_threshold")]
    tune_null_threshold: Option<PathBuf>,
}

impl NullThreshold {
    /// Applies the options.
    pub(super) fn set(&self, predictor: &mut Predictor) -> Result<()> {
        if let Some(score) = self.null_threshold {
            predictor.set_null_threshold(score)?;
        }
        if let Some(path) = &self.tune_null_threshold {
            let task = predictor.task().clone();
            let source = DataSource { task: task.name, settings: &task.data };
            let examples = source.open_file(path, &task.problem, Purpose::Evaluation)?.take(usize::MAX)?;
            let Examples::Questions(questions) = &examples else {
                bail!("--tune-null-threshold: the model does not answer questions about a text");
            };
            let threshold = predictor.tune_null_threshold(questions, &path.display().to_string())?;
            tell!("null threshold {threshold}");
        }
        Ok(())
    }
}

/// Returns `task` under another name with the same labels.
pub(super) fn as_task(task: &Task, name: Option<&str>) -> Result<Task> {
    let Some(name) = name.map(str::parse::<TaskName>).transpose()? else { return Ok(task.clone()) };
    match name {
        TaskName::Glue(glue) if glue.problem() == task.problem => {
            Ok(Task { name, metrics: name.metrics(), ..task.clone() })
        }
        _ => {
            bail!("--task {}: the model was fine-tuned for `{}`, which has other labels", name.name(), task.name.name())
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let json = arguments.json.as_ref().filter(|path| *path != Path::new(STANDARD_OUTPUT));
    for (path, endings) in
        json.map(|path| (path, &["json"])).into_iter().chain(arguments.report.as_ref().map(|path| (path, &["html"])))
    {
        check_ending(path, endings)?;
        check_output(path)?;
    }
    let out = Sink::create(arguments.output.as_deref())?;
    let (device, mut predictor) = arguments.running.predictor(&arguments.model)?;
    arguments.threshold.set(&mut predictor)?;
    let task = as_task(predictor.task(), arguments.task.as_deref())?;
    let source = DataSource { task: task.name, settings: &task.data };
    let mut reader = if arguments.data.is_dir() {
        let split = match arguments.split {
            Part::Train => Split::Train,
            Part::Dev => Split::Dev,
            Part::Test => Split::Test,
        };
        source.open(&arguments.data, split, &task.problem, Purpose::Evaluation)?
    } else {
        source.open_file(&arguments.data, &task.problem, Purpose::Evaluation)?
    };
    let examples = reader.take_usable(arguments.faults.skips())?;
    reader.remarks().iter().for_each(|remark| tell!("note: {remark}"));
    let predictions = predictor.predict(&examples)?;
    arguments.running.profile.print(predictor.profile(), &device);
    let measured = measure(&task, &examples, &predictions)?
        .with_context(|| format!("{}: no example has a label; use albert predict", arguments.data.display()))?;
    tell!("{}", figures(&measured));
    if let Some(constant) = &measured.constant {
        tell!("warning: all predictions are {constant}");
    }
    if predictor.cut() > 0 {
        tell!("{} examples exceeded the model's maximum length and were truncated", predictor.cut());
    }
    if let Some(path) = &arguments.report {
        let title = format!("{} on {}", task.name.name(), arguments.data.display());
        let mut sections = vec![Section::Table { title: "Figures".to_owned(), rows: rows(&measured) }];
        sections.extend(confusion_section(&measured, &task.problem));
        sections.extend(threshold_panel(&measured).map(|panel| Section::Panels(vec![panel])));
        write_html(path, &title, &sections)?;
    }
    print(out, &named(&measured, &task)?, &measured, arguments.json.as_deref())?;
    Ok(ExitCode::SUCCESS)
}

/// The metrics with the names of the classes.
fn named(measured: &Measured, task: &Task) -> Result<Value> {
    let mut value = serde_json::to_value(measured)?;
    let labels = task.problem.labels();
    for pair in value["confusions"].as_array_mut().into_iter().flatten() {
        for key in ["truth", "predicted"] {
            let label = pair[key].as_u64().and_then(|class| labels.get(usize::try_from(class).ok()?));
            if let Some(label) = label {
                pair[format!("{key}_label")] = label.as_str().into();
            }
        }
    }
    Ok(value)
}

/// Writes the metrics: as lines to `out`, and as JSON to `json` if given; with `-`, only JSON to `out`.
fn print(mut out: Sink, named: &Value, measured: &Measured, json: Option<&Path>) -> Result<()> {
    let mut text = String::new();
    match json {
        Some(path) if path == Path::new(STANDARD_OUTPUT) => text = serde_json::to_string_pretty(named)? + "\n",
        _ => {
            for (name, value) in &measured.figures {
                let _ = writeln!(text, "{name}\t{value}");
            }
        }
    }
    if let Some(path) = json.filter(|path| *path != Path::new(STANDARD_OUTPUT)) {
        let text = serde_json::to_string_pretty(named)?;
        write_atomically(path, |out| writeln!(out, "{text}"))?;
    }
    out.put(&text)?;
    out.finish()
}
