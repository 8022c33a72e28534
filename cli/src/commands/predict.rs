//! `albert predict`: writes the predictions of fine-tuned models for the examples in a file.

use super::evaluate::{NullThreshold, as_task};
use crate::{
    input::{Errors, Faults, null_entry},
    output::{Sink, tell},
    running::{Places, Running},
};
use albert_tasks::{
    files::{GlueTask, Label, Place, Problem, Purpose, Unusable, write_submission},
    finetune::{
        DataSource, ExampleReader, Examples, OfExample, Portion, Prediction, Task, TaskName, escaped, threshold_of,
    },
};
use anyhow::{Result, bail, ensure};
use clap::Args;
use serde_json::{Map, Value, json};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::mpsc::{Receiver, sync_channel},
    thread,
};

/// Number of examples that are read and sorted by length together.
const WINDOW: usize = 4096;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  albert predict --model runs/film --input test.tsv --output predictions.tsv
  albert predict --model runs/film --input texts.jsonl.gz --with-input | jq -r .label
  albert predict --model runs/names --input words.conll --output tags.conll")]
pub(crate) struct Arguments {
    /// Fine-tuned model folder; several are averaged. A run over seeds counts as all of its models
    #[arg(long, required = true)]
    model: Vec<PathBuf>,
    /// Read the examples of another task with the same labels: mnli-mismatched or ax for a model of mnli
    #[arg(long)]
    task: Option<String>,
    /// Examples: a published test or dev file of the task, or a custom file, also .gz and .zst; labels are optional. - is
    /// standard input: JSON lines, for tags CoNLL, for answers a SQuAD file
    #[arg(short, long, value_name = "FILE")]
    input: PathBuf,
    /// File for the predictions, one line per example: JSON for .jsonl, columns for .tsv; for tags also .conll; for answers also
    /// .json, as the official SQuAD evaluation reads them. - is JSON lines on standard output, the default
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write JSON lines for any name of the output
    #[arg(long)]
    json: bool,
    /// Repeat the input in each line of JSON
    #[arg(long)]
    with_input: bool,
    /// Folder for the file to submit to the GLUE server
    #[arg(long, value_name = "DIR")]
    glue_submission: Option<PathBuf>,
    #[command(flatten)]
    places: Places,
    #[command(flatten)]
    faults: Faults,
    #[command(flatten)]
    threshold: NullThreshold,
    #[command(flatten)]
    running: Running,
}

/// Output format.
#[derive(Clone, Copy, PartialEq)]
enum Format {
    Json,
    Tsv,
    /// A word and its tag per line, and a blank line after each sentence.
    Conll,
    /// One JSON object of ids and answers.
    Squad,
}

impl Format {
    fn of(path: &Path, problem: &Problem) -> Result<Self> {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("json") if matches!(problem, Problem::Span { .. }) => Ok(Self::Squad),
            Some("jsonl" | "ndjson") => Ok(Self::Json),
            Some("tsv") => Ok(Self::Tsv),
            Some("conll") if matches!(problem, Problem::Tags { .. }) => Ok(Self::Conll),
            _ => bail!(
                "{}: expected a file that ends in .jsonl or .tsv, for tags .conll, for answers .json",
                path.display()
            ),
        }
    }
}

/// Examples in portions: a window of a file, or the examples of a pipe that have arrived.
enum Windows {
    File(Box<ExampleReader>),
    Pipe(Receiver<Portion>, thread::JoinHandle<Box<ExampleReader>>),
}

/// True after the last example.
fn is_end(portion: &Portion) -> bool {
    portion.examples.is_empty() && portion.unusable.is_empty()
}

impl Windows {
    /// Reads the examples of `reader`; for a pipe another thread reads them, so that no example waits for later ones.
    fn new(reader: ExampleReader, is_pipe: bool) -> Self {
        let mut reader = Box::new(reader);
        if !is_pipe {
            return Self::File(reader);
        }
        let (sender, receiver) = sync_channel(WINDOW);
        let read = move || {
            loop {
                let one = reader.portion(1, 1);
                let is_last = is_end(&one) || one.error.is_some();
                if sender.send(one).is_err() || is_last {
                    return reader;
                }
            }
        };
        Self::Pipe(receiver, thread::spawn(read))
    }

    /// Next examples; none at the end. For a file, up to `skips` of them may be unusable.
    fn next(&mut self, skips: u64) -> Option<Portion> {
        match self {
            Self::File(reader) => Some(reader.portion(WINDOW, skips)),
            Self::Pipe(receiver, _) => {
                let mut window = receiver.recv().ok()?;
                while window.examples.len() < WINDOW
                    && window.error.is_none()
                    && let Ok(more) = receiver.try_recv()
                {
                    let before = window.examples.len();
                    window.unusable.extend(more.unusable.into_iter().map(|one| Unusable { before, ..one }));
                    window.examples.append(more.examples);
                    window.error = more.error;
                }
                Some(window)
            }
        }
    }

    /// Remarks about the input.
    fn remarks(self) -> Vec<String> {
        match self {
            Self::File(reader) => reader.remarks(),
            Self::Pipe(_, thread) => thread.join().map_or(Vec::new(), |reader| reader.remarks()),
        }
    }
}

/// An example of a window, with its prediction or the reason why there is none.
enum Entry<'e> {
    Predicted { at: usize, prediction: &'e Prediction, truncated: usize },
    Null { id: Option<&'e str>, at: Option<&'e Place>, reason: &'e str },
}

/// Examples of a window in the order of the file.
fn entries<'e>(portion: &'e Portion, results: &'e [OfExample]) -> Vec<Entry<'e>> {
    let mut unusable = portion.unusable.iter().peekable();
    let mut all = Vec::with_capacity(results.len() + portion.unusable.len());
    for at in 0..=results.len() {
        while let Some(Unusable { id, at, problem, .. }) = unusable.next_if(|one| one.before == at) {
            all.push(Entry::Null { id: id.as_deref(), at: Some(at), reason: problem });
        }
        all.extend(results.get(at).map(|result| match result {
            Ok((prediction, truncated)) => Entry::Predicted { at, prediction, truncated: *truncated },
            Err(reason) => Entry::Null { id: Some(portion.examples.id(at)), at: None, reason },
        }));
    }
    all
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let is_standard = |path: &Path| path == Path::new("-");
    let mut out = match (&arguments.output, &arguments.glue_submission) {
        (None, Some(_)) => None,
        (output, _) => Some(Sink::create(output.as_deref())?),
    };
    let (device, mut predictor) = arguments.running.predictor(&arguments.model)?;
    arguments.threshold.set(&mut predictor)?;
    let task = as_task(predictor.task(), arguments.task.as_deref())?;
    let format = match arguments.output.as_deref() {
        Some(path) if !arguments.json && !is_standard(path) => Format::of(path, &task.problem)?,
        _ => Format::Json,
    };
    let has_room = !arguments.with_input || format == Format::Json;
    ensure!(has_room, "--with-input: only lines of JSON have room for the input");
    let glue = glue_of(&task, arguments.glue_submission.as_deref())?;
    let source = DataSource { task: task.name, settings: &task.data };
    let examples = source.open_file(&arguments.input, &task.problem, Purpose::Prediction)?;
    let mut windows = Windows::new(examples, is_standard(&arguments.input));
    if let (Some(out), Format::Tsv) = (&mut out, format) {
        out.put(&format!("{}\n", Prediction::tsv_header(&task.problem)))?;
    }
    let mut errors = Errors::new(arguments.faults, format != Format::Json);
    let mut done = Done::default();
    while done.ended.is_none()
        && let Some(portion) = windows.next(errors.left())
        && !(is_end(&portion) && portion.error.is_none())
    {
        let results = predictor.predict_each(&portion.examples)?;
        let text = done.add(arguments, format, &task, &portion, &results, &mut errors)?;
        if let Some(out) = &mut out {
            out.put(&text)?;
        }
        done.ended = done.ended.or_else(|| portion.error.map(|error| ending(error.into(), &errors)));
    }
    windows.remarks().iter().for_each(|remark| tell!("note: {remark}"));
    arguments.running.profile.print(predictor.profile(), &device);
    if let Some(mut out) = out {
        if format == Format::Squad {
            out.put(if done.answers == 0 { "{}\n" } else { "}\n" })?;
        }
        out.finish()?;
    }
    errors.tell(done.count);
    if let Some(error) = done.ended {
        return Err(error);
    }
    if let Some((glue, folder)) = glue {
        let all = !errors.any();
        ensure!(all, "--glue-submission: the server expects a prediction for every example; none was written");
        let path = write_submission(folder, glue, done.labels.iter().map(|(id, label)| (id.as_str(), *label)))?;
        tell!("GLUE submission written to {}", path.display());
    }
    let means = (predictor.models() > 1).then(|| format!(", means of {} models", predictor.models()));
    tell!("{} predictions{}", done.count, means.unwrap_or_default());
    if predictor.cut() > 0 {
        tell!("{} examples exceeded the model's maximum length and were truncated", predictor.cut());
    }
    Ok(ExitCode::SUCCESS)
}

/// Error that ended the reading of examples, with a note if it exceeded the number of skipped ones.
fn ending(error: anyhow::Error, errors: &Errors) -> anyhow::Error {
    if errors.any() && errors.left() == 0 { error.context(errors.too_many()) } else { error }
}

/// Task and folder of a submission, if requested.
fn glue_of<'f>(task: &Task, folder: Option<&'f Path>) -> Result<Option<(GlueTask, &'f Path)>> {
    match (task.name, folder) {
        (TaskName::Glue(glue), Some(folder)) => Ok(Some((glue, folder))),
        (_, None) => Ok(None),
        (other, Some(_)) => {
            bail!("--glue-submission: the model was fine-tuned for `{}`, which is not a GLUE task", other.name())
        }
    }
}

/// Number of entries so far.
#[derive(Default)]
struct Done {
    count: usize,
    /// Number of entries of a JSON object.
    answers: usize,
    /// Ids and labels of a submission.
    labels: Vec<(String, Label)>,
    /// The error that ends the job.
    ended: Option<anyhow::Error>,
}

impl Done {
    /// Adds the examples of a window; returns their entries as lines.
    fn add(
        &mut self,
        arguments: &Arguments,
        format: Format,
        task: &Task,
        portion: &Portion,
        results: &[OfExample],
        errors: &mut Errors,
    ) -> Result<String> {
        let mut text = String::new();
        for entry in entries(portion, results) {
            if let Entry::Null { id, at, reason } = entry {
                let place = at.map_or_else(|| format!("example {}", id.unwrap_or("null")), ToString::to_string);
                if let Err(error) = errors.add(&place, reason) {
                    self.ended = Some(error);
                    break;
                }
            }
            text += &line(arguments, format, task, &portion.examples, &entry, &mut self.answers)?;
            if let (Some(_), Entry::Predicted { at, prediction, .. }) = (&arguments.glue_submission, &entry) {
                self.labels.extend(prediction.label().map(|label| (portion.examples.id(*at).to_owned(), label)));
            }
            self.count += 1;
        }
        Ok(text)
    }
}

/// Entry of an example as lines. `answers` counts the entries of a JSON object.
fn line(
    arguments: &Arguments,
    format: Format,
    task: &Task,
    examples: &Examples,
    entry: &Entry<'_>,
    answers: &mut usize,
) -> Result<String> {
    let (at, prediction, truncated) = match *entry {
        Entry::Predicted { at, prediction, truncated } => (at, prediction, truncated),
        Entry::Null { id, at, reason } => return Ok(null_line(format, task, (id, at, reason), answers)),
    };
    let id = examples.id(at);
    let fields = || prediction.fields(task, truncated, examples.passage(at), arguments.places.offsets());
    let mut line = match (format, prediction) {
        (Format::Squad, Prediction::Answers(found)) => answer_line(id, threshold_of(task).answer(found), answers),
        (Format::Tsv, _) => prediction.to_tsv(id, task),
        (Format::Conll, Prediction::Words(_)) => {
            let (words, tags) = (examples.input(at), fields()["tags"].as_array().cloned().unwrap_or_default());
            let words = words["words"].as_array().cloned().unwrap_or_default();
            let text = |value: &Value| escaped(value.as_str().unwrap_or_default()).into_owned();
            words.iter().zip(&tags).map(|(word, tag)| format!("{}\t{}\n", text(word), text(tag))).collect()
        }
        _ => {
            let mut line = Map::new();
            line.insert("id".into(), json!(id));
            // Tags alone do not identify their words.
            if arguments.with_input || matches!(prediction, Prediction::Words(_)) {
                line.extend(examples.input(at));
            }
            line.extend(fields());
            Value::Object(line).to_string()
        }
    };
    line.push('\n');
    Ok(line)
}

/// An answer in SQuAD's JSON object.
fn answer_line(id: &str, answer: &str, answers: &mut usize) -> String {
    let before = if *answers == 0 { "{" } else { "," };
    *answers += 1;
    format!("{before}{}: {}", json!(id), json!(answer))
}

/// Entry of an unusable example. SQuAD's object contains only texts: an empty one, or nothing without an id.
fn null_line(
    format: Format,
    task: &Task,
    (id, at, reason): (Option<&str>, Option<&Place>, &str),
    answers: &mut usize,
) -> String {
    let number = at.map_or(0, |at| at.line);
    match format {
        Format::Squad => id.map_or(String::new(), |id| answer_line(id, "", answers) + "\n"),
        Format::Conll => format!("# null line {number}: {}\n\n", escaped(reason)),
        Format::Tsv => {
            let columns = Prediction::tsv_header(&task.problem).matches('\t').count();
            format!("{}\tnull{}\n", id.map_or("null".into(), escaped), "\t".repeat(columns - 1))
        }
        Format::Json => {
            let mut line = Map::new();
            line.insert("id".into(), json!(id));
            line.extend(null_entry(Prediction::field(&task.problem), number, reason));
            format!("{}\n", Value::Object(line))
        }
    }
}
