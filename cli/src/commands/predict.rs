//! `albert predict`: writes the predictions of fine-tuned models for the examples in a file.

use super::{
    Precision,
    evaluate::{NullThreshold, as_task},
};
use crate::{output::tell, roofline::Profiling};
use albert::{
    finetune::{DataSource, Prediction, Predictor, TaskName, threshold_of},
    tasks::{Label, Problem, Purpose, write_submission},
};
use anyhow::{Context, Result, bail};
use clap::Args;
use engine::{
    Cpu, Device,
    io::{AtomicFile, check_output},
};
use std::{
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Examples that are read and sorted by length together.
const WINDOW: usize = 4096;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Fine-tuned model folder; several are averaged. A run over seeds counts as all of its models
    #[arg(long, required = true)]
    model: Vec<PathBuf>,
    /// Read the examples of another task with the same labels: mnli-mismatched or ax for a model of mnli
    #[arg(long)]
    task: Option<String>,
    /// Examples: a published test or dev file of the task, or a custom file; labels are optional
    #[arg(long)]
    input: PathBuf,
    /// Predictions, one line per example: JSON for .jsonl, columns for .tsv; for answers also .json, as the official
    /// SQuAD evaluation reads them
    #[arg(long, required_unless_present = "glue_submission")]
    output: Option<PathBuf>,
    /// Folder for the file to submit to the GLUE server
    #[arg(long, value_name = "DIR")]
    glue_submission: Option<PathBuf>,
    /// Device: cpu, cuda (the first GPU), cuda:N, or cuda-sim (a simulated GPU, for tests)
    #[arg(long, default_value = "cpu")]
    device: String,
    #[command(flatten)]
    threshold: NullThreshold,
    /// f32, bf16, bf16x3, bf16x6, int8 or auto: bf16 if this machine multiplies it faster than f32
    #[arg(long, default_value = "f32")]
    precision: Precision,
    #[command(flatten)]
    profile: Profiling,
}

/// Output format.
#[derive(Clone, Copy)]
enum Format {
    Json,
    Tsv,
    /// One JSON object of ids and answers.
    Squad,
}

impl Format {
    fn of(path: &Path, problem: &Problem) -> Result<Self> {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("json") if matches!(problem, Problem::Span { .. }) => Ok(Self::Squad),
            Some("jsonl" | "ndjson") => Ok(Self::Json),
            Some("tsv") => Ok(Self::Tsv),
            _ => bail!("{}: expected a file that ends in .jsonl or .tsv", path.display()),
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    arguments.output.as_ref().map_or(Ok(()), check_output)?;
    let device = Device::named(&arguments.device, Cpu::detect()?)?;
    let mut predictor = Predictor::load(&arguments.model, &device)?;
    predictor.set_precision(arguments.precision.on(&device))?;
    predictor.profile().set(arguments.profile.on);
    arguments.threshold.set(&mut predictor)?;
    let task = as_task(predictor.task(), arguments.task.as_deref())?;
    let format = arguments.output.as_deref().map(|path| Format::of(path, &task.problem)).transpose()?;
    let glue = match (task.name, &arguments.glue_submission) {
        (TaskName::Glue(glue), Some(folder)) => Some((glue, folder)),
        (_, None) => None,
        (other, Some(_)) => {
            bail!("--glue-submission: the model was fine-tuned for `{}`, which is not a GLUE task", other.name())
        }
    };
    let source = DataSource { task: task.name, settings: &task.data };
    let mut reader = source.open_file(&arguments.input, &task.problem, Purpose::Prediction)?;
    let mut out = arguments.output.as_deref().map(AtomicFile::create).transpose()?;
    let cannot_write =
        || format!("{} cannot be written", arguments.output.as_deref().unwrap_or(Path::new("")).display());
    if let (Some(out), Some(Format::Tsv)) = (&mut out, format) {
        writeln!(out, "{}", Prediction::tsv_header(&task.problem)).with_context(cannot_write)?;
    }
    let (mut count, mut submission) = (0, Vec::<(String, Label)>::new());
    loop {
        let examples = reader.take(WINDOW)?;
        if examples.is_empty() {
            break;
        }
        let predictions = predictor.predict(&examples)?;
        for (at, prediction) in predictions.iter().enumerate() {
            let id = examples.id(at);
            if let (Some(out), Some(format)) = (&mut out, format) {
                let line = match (format, prediction) {
                    (Format::Squad, Prediction::Answers(answers)) => {
                        let before = if count + at == 0 { "{" } else { "," };
                        let answer = threshold_of(&task).answer(answers);
                        format!("{before}{}: {}", serde_json::to_string(id)?, serde_json::to_string(answer)?)
                    }
                    (Format::Tsv, _) => prediction.to_tsv(id, &task),
                    (Format::Json | Format::Squad, _) => prediction.to_json(id, &task, predictor.truncated()[at]),
                };
                writeln!(out, "{line}").with_context(cannot_write)?;
            }
            if glue.is_some() {
                submission.extend(prediction.label().map(|label| (id.to_owned(), label)));
            }
        }
        count += examples.len();
    }
    reader.remarks().iter().for_each(|remark| tell!("note: {remark}"));
    arguments.profile.print(predictor.profile(), &device);
    if let Some(mut out) = out {
        if matches!(format, Some(Format::Squad)) {
            writeln!(out, "{}", if count == 0 { "{}" } else { "}" }).with_context(cannot_write)?;
        }
        out.commit()?;
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
