//! `albert answer`: answers of fine-tuned models to a question about a text.

use super::{Precision, evaluate::NullThreshold};
use crate::{
    numbers::whole,
    output::{results, tell},
    roofline::Profiling,
};
use albert::{
    finetune::{Examples, Prediction, Predictor, threshold_of},
    tasks::{Problem, Question},
};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use engine::Device;
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Fine-tuned model folder; several are averaged. A run over seeds counts as all of its models
    #[arg(long, required = true)]
    model: Vec<PathBuf>,
    /// Text that contains the answer, of any length
    #[arg(long, value_name = "TEXT", required_unless_present = "context_file", conflicts_with = "context_file")]
    context: Option<String>,
    /// File with the text that contains the answer
    #[arg(long, value_name = "FILE")]
    context_file: Option<PathBuf>,
    /// Maximum number of answers to print
    #[arg(long, default_value_t = 3, value_parser = whole::<1, usize>)]
    top: usize,
    #[command(flatten)]
    threshold: NullThreshold,
    /// f32, bf16, bf16x3, bf16x6, int8 or auto: bf16 if this machine multiplies it faster than f32
    #[arg(long, default_value = "f32")]
    precision: Precision,
    #[command(flatten)]
    profile: Profiling,
    /// Question
    question: String,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let text = context(arguments)?;
    let device = Device::cpu()?;
    let mut predictor = Predictor::load(&arguments.model, &device)?;
    predictor.set_precision(arguments.precision.on(&device))?;
    predictor.profile().set(arguments.profile.on);
    let problem = predictor.task().problem.clone();
    if !matches!(problem, Problem::Span { .. }) {
        bail!("the model does not answer questions about a text; use albert classify or albert predict");
    }
    arguments.threshold.set(&mut predictor)?;
    let question = Question {
        id: String::new(),
        passage: text.into(),
        question: arguments.question.clone(),
        answers: Vec::new(),
        is_impossible: false,
    };
    let predictions = predictor.predict(&Examples::Questions(vec![question]))?;
    arguments.profile.print(predictor.profile(), &device);
    let Prediction::Answers(answers) = &predictions[0] else { unreachable!("questions are answered") };
    let threshold = threshold_of(predictor.task());
    let mut out = results();
    if threshold.answer(answers).is_empty() {
        writeln!(out, "no answer")?;
    }
    for candidate in answers.candidates.iter().take(arguments.top) {
        writeln!(out, "{:.4}\t{}", candidate.probability, candidate.text)?;
    }
    tell!("null score {:.4}, threshold {threshold}", answers.null_score);
    Ok(ExitCode::SUCCESS)
}

/// The text to search.
fn context(arguments: &Arguments) -> Result<String> {
    if let Some(path) = &arguments.context_file {
        let text = fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
        ensure!(!text.trim().is_empty(), "{}: the file contains no text", path.display());
        return Ok(text);
    }
    let text = arguments.context.clone().unwrap_or_default();
    ensure!(!text.trim().is_empty(), "--context: the text is empty");
    if Path::new(&text).is_file() {
        tell!("note: --context is taken as the text itself; to search the file {text}, give --context-file {text}");
    }
    Ok(text)
}
