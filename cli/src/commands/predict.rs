//! `albert predict`: writes the predictions of fine-tuned models for the examples in a file.

use super::evaluate::{NullThreshold, as_task};
use crate::{
    output::{Sink, tell},
    running::Running,
};
use albert::{
    finetune::{DataSource, ExampleReader, Examples, Prediction, Predictor, Task, TaskName, threshold_of},
    tasks::{Label, Problem, Purpose, write_submission},
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

/// Examples that are read and sorted by length together.
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
    /// standard input: JSON lines, for tags CoNLL, for answers a file of SQuAD
    #[arg(short, long, value_name = "FILE")]
    input: PathBuf,
    /// File for the predictions, one line per example: JSON for .jsonl, columns for .tsv; for tags also .conll; for answers also
    /// .json, as the official SQuAD evaluation reads them. - is JSON lines on standard output, the default
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write JSON lines, whatever the name of the output
    #[arg(long)]
    json: bool,
    /// Repeat the input in each line of JSON
    #[arg(long)]
    with_input: bool,
    /// Folder for the file to submit to the GLUE server
    #[arg(long, value_name = "DIR")]
    glue_submission: Option<PathBuf>,
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
    /// A word and its tag a line, a blank line behind each sentence.
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
            _ => bail!("{}: expected a file that ends in .jsonl or .tsv", path.display()),
        }
    }
}

/// Examples as they are read: a window of a file, or those of a pipe that have arrived.
enum Windows {
    File(Box<ExampleReader>),
    Pipe(Receiver<Result<Examples>>, thread::JoinHandle<Box<ExampleReader>>),
}

impl Windows {
    /// Examples of `reader`; another thread reads those of a pipe, so that none waits for others.
    fn new(reader: ExampleReader, is_pipe: bool) -> Self {
        let mut reader = Box::new(reader);
        if !is_pipe {
            return Self::File(reader);
        }
        let (sender, receiver) = sync_channel(WINDOW);
        let read = move || {
            loop {
                let one = reader.take(1).map_err(anyhow::Error::from);
                let is_last = one.as_ref().map_or(true, Examples::is_empty);
                if sender.send(one).is_err() || is_last {
                    return reader;
                }
            }
        };
        Self::Pipe(receiver, thread::spawn(read))
    }

    /// The next examples; none at the end.
    fn next(&mut self) -> Result<Option<Examples>> {
        let window = match self {
            Self::File(reader) => reader.take(WINDOW)?,
            Self::Pipe(receiver, _) => {
                let Ok(first) = receiver.recv() else { return Ok(None) };
                let mut window = first?;
                while window.len() < WINDOW
                    && !window.is_empty()
                    && let Ok(more) = receiver.try_recv()
                {
                    let more = more?;
                    if more.is_empty() {
                        break;
                    }
                    window.append(more);
                }
                window
            }
        };
        Ok((!window.is_empty()).then_some(window))
    }

    /// Remarks about what was read.
    fn remarks(self) -> Vec<String> {
        match self {
            Self::File(reader) => reader.remarks(),
            Self::Pipe(_, thread) => thread.join().map_or(Vec::new(), |reader| reader.remarks()),
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let is_standard = |path: &Path| path == Path::new("-");
    let file = arguments.output.as_deref().filter(|path| !is_standard(path));
    let mut out = match (&arguments.output, &arguments.glue_submission) {
        (None, Some(_)) => None,
        (output, _) => Some(Sink::create(output.as_deref())?),
    };
    let device = arguments.running.device()?;
    let mut predictor = Predictor::load(&arguments.model, &device)?;
    predictor.set_precision(arguments.running.precision.on(&device))?;
    predictor.profile().set(arguments.running.profile.on);
    arguments.threshold.set(&mut predictor)?;
    let task = as_task(predictor.task(), arguments.task.as_deref())?;
    let format = match file {
        Some(path) if !arguments.json => Format::of(path, &task.problem)?,
        _ => Format::Json,
    };
    ensure!(
        !arguments.with_input || format == Format::Json,
        "--with-input: only lines of JSON have room for the input"
    );
    let glue = match (task.name, &arguments.glue_submission) {
        (TaskName::Glue(glue), Some(folder)) => Some((glue, folder)),
        (_, None) => None,
        (other, Some(_)) => {
            bail!("--glue-submission: the model was fine-tuned for `{}`, which is not a GLUE task", other.name())
        }
    };
    let source = DataSource { task: task.name, settings: &task.data };
    let reader = source.open_file(&arguments.input, &task.problem, Purpose::Prediction)?;
    let mut windows = Windows::new(reader, is_standard(&arguments.input));
    if let (Some(out), Format::Tsv) = (&mut out, format) {
        out.put(&format!("{}\n", Prediction::tsv_header(&task.problem)))?;
    }
    let (mut count, mut submission) = (0, Vec::<(String, Label)>::new());
    while let Some(examples) = windows.next()? {
        let predictions = predictor.predict(&examples)?;
        let mut text = String::new();
        for (at, prediction) in predictions.iter().enumerate() {
            let truncated = predictor.truncated()[at];
            text += &line(format, &task, (&examples, at), prediction, (count + at, truncated, arguments.with_input))?;
            if glue.is_some() {
                submission.extend(prediction.label().map(|label| (examples.id(at).to_owned(), label)));
            }
        }
        if let Some(out) = &mut out {
            out.put(&text)?;
        }
        count += examples.len();
    }
    windows.remarks().iter().for_each(|remark| tell!("note: {remark}"));
    arguments.running.profile.print(predictor.profile(), &device);
    if let Some(mut out) = out {
        if format == Format::Squad {
            out.put(if count == 0 { "{}\n" } else { "}\n" })?;
        }
        out.finish()?;
    }
    if let Some((glue, folder)) = glue {
        let path = write_submission(folder, glue, submission.iter().map(|(id, label)| (id.as_str(), *label)))?;
        tell!("GLUE submission written to {}", path.display());
    }
    let models =
        if predictor.models() > 1 { format!(", means of {} models", predictor.models()) } else { String::new() };
    tell!("{count} predictions{models}");
    if predictor.cut() > 0 {
        tell!("{} examples exceeded the model's maximum length and were truncated", predictor.cut());
    }
    Ok(ExitCode::SUCCESS)
}

/// The prediction of an example, in lines. It is number `number` of the file, and `truncated` pieces of it did not fit the model.
fn line(
    format: Format,
    task: &Task,
    (examples, at): (&Examples, usize),
    prediction: &Prediction,
    (number, truncated, with_input): (usize, usize, bool),
) -> Result<String> {
    let id = examples.id(at);
    let mut line = match (format, prediction) {
        (Format::Squad, Prediction::Answers(answers)) => {
            let before = if number == 0 { "{" } else { "," };
            let answer = threshold_of(task).answer(answers);
            format!("{before}{}: {}", serde_json::to_string(id)?, serde_json::to_string(answer)?)
        }
        (Format::Tsv, _) => prediction.to_tsv(id, task),
        (Format::Conll, Prediction::Words(_)) => {
            let fields = prediction.fields(task, truncated);
            let (words, tags) = (examples.input(at), fields["tags"].as_array().cloned().unwrap_or_default());
            let words = words["words"].as_array().cloned().unwrap_or_default();
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            words.iter().zip(&tags).map(|(word, tag)| format!("{}\t{}\n", text(word), text(tag))).collect()
        }
        _ => {
            let mut line = Map::new();
            line.insert("id".into(), json!(id));
            // Tags alone do not say of which words.
            if with_input || matches!(prediction, Prediction::Words(_)) {
                line.extend(examples.input(at));
            }
            line.extend(prediction.fields(task, truncated));
            Value::Object(line).to_string()
        }
    };
    line.push('\n');
    Ok(line)
}
