//! `albert answer`: answers of fine-tuned models to a question about a text.

use super::evaluate::NullThreshold;
use crate::{
    input::{Batches, Entries, Errors, Kind, Line, answer, null_entry, null_text},
    numbers::whole,
    output::tell,
    running::{Batch, Places, Running, Streaming},
};
use albert_tasks::{
    files::{Problem, Question},
    finetune::{Examples, Prediction, Predictor, Task, escaped, threshold_of},
};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use engine::io::limits::{mended_surrogates, text};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::{
    cell::RefCell,
    fmt::Write as _,
    io::Read,
    path::{Path, PathBuf},
    process::ExitCode,
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  albert answer --model runs/squad --context-file book.txt \"Who finds the letter?\"
  albert answer --model runs/squad --input questions.jsonl --json > answers.jsonl
  echo '{\"question\": \"where\", \"context\": \"rain falls on the hills\"}' | albert answer --model runs/squad -")]
pub(crate) struct Arguments {
    /// Fine-tuned model folder; several are averaged. A run over seeds counts as all of its models
    #[arg(long, required = true)]
    model: Vec<PathBuf>,
    /// Text that contains the answer, of any length
    #[arg(long, value_name = "TEXT", conflicts_with = "context_file")]
    context: Option<String>,
    /// File with the text that contains the answer
    #[arg(long, value_name = "FILE")]
    context_file: Option<PathBuf>,
    #[command(flatten)]
    places: Places,
    /// Maximum number of answers to print
    #[arg(long, default_value_t = 3, value_parser = whole::<1, usize>)]
    top: usize,
    #[command(flatten)]
    threshold: NullThreshold,
    #[command(flatten)]
    running: Running,
    #[command(flatten)]
    streaming: Streaming,
    #[command(flatten)]
    batch: Batch,
    /// Question; - reads lines of standard input, objects {"question": "..", "context": ".."}, where the context may be
    /// omitted with --context or --context-file
    #[arg(required_unless_present = "input", conflicts_with = "input")]
    question: Option<String>,
}

/// A line of input.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    #[serde(default)]
    id: Option<Value>,
    question: String,
    #[serde(alias = "passage")]
    context: Option<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let results = &arguments.streaming.results;
    let mut out = results.sink()?;
    let common = context(arguments)?;
    let lines = arguments.streaming.lines(arguments.question.as_deref(), Kind::Objects)?;
    let (device, mut predictor) = arguments.running.predictor(&arguments.model)?;
    if !matches!(predictor.task().problem, Problem::Span { .. }) {
        bail!("the model does not answer questions about a text; use albert classify or albert predict");
    }
    arguments.threshold.set(&mut predictor)?;
    let task = predictor.task().clone();
    let mut ended = None;
    if let Some(mut lines) = lines {
        let mut errors = Errors::new(arguments.streaming.faults, false);
        let write = |entries: Entries<(Asked, Question), (Prediction, usize)>| {
            let mut text = String::new();
            for (line, result) in entries {
                text += &match result {
                    Ok(((asked, question), (prediction, _))) => {
                        in_line(arguments, &task, &asked, &question.passage, &prediction)
                    }
                    Err(reason) if results.json() => {
                        let mut entry = null_entry("answer", line.number, &reason);
                        if results.with_input {
                            entry.insert("input".into(), json!(line.text));
                        }
                        Value::Object(entry).to_string()
                    }
                    Err(reason) => null_text(line.number, &reason),
                };
                text.push('\n');
            }
            out.put(&text)
        };
        let predictor = &RefCell::new(&mut predictor);
        let run = |items: &[(Asked, Question)]| {
            let questions = items.iter().map(|(_, question)| question.clone()).collect();
            let later = predictor.borrow_mut().predict_each_later(&Examples::Questions(questions))?;
            Ok(move || Ok(later(&mut predictor.borrow_mut())?))
        };
        let parse = |line: &Line| of_line(&line.text, common.as_deref());
        let batches = Batches::on(&device, arguments.batch.lines);
        let (total, stopped) = answer(&mut lines, batches, &mut errors, parse, run, write)?;
        errors.tell(total);
        ended = stopped;
    } else {
        let text = common.context("give the text that contains the answer with --context or --context-file")?;
        let asked = Asked { id: None, question: arguments.question.clone().unwrap_or_default(), context: None };
        let questions = Examples::Questions(vec![question(asked.question.clone(), &text)]);
        let predictions = predictor.predict(&questions)?;
        if results.json() {
            out.put(&(in_line(arguments, &task, &asked, &text, &predictions[0]) + "\n"))?;
        } else {
            out.put(&in_full(arguments, &predictor, &predictions[0]))?;
        }
    }
    arguments.running.profile.print(predictor.profile(), &device);
    out.finish()?;
    ended.map_or(Ok(ExitCode::SUCCESS), Err)
}

/// Question of a line, for its own context or else for `common`.
fn of_line(line: &str, common: Option<&str>) -> Result<(Asked, Question)> {
    ensure!(!line.trim().is_empty(), "the line is blank");
    let asked: Asked = serde_json::from_str(&mended_surrogates(line)).map_err(|error| {
        let problem = error.to_string();
        let problem = problem.rsplit_once(" at line ").map_or(&*problem, |(problem, _)| problem);
        anyhow::anyhow!("{problem} at column {}; expected an object with question and context", error.column())
    })?;
    ensure!(!asked.question.trim().is_empty(), "the question is empty");
    let text = asked.context.as_deref().or(common).filter(|text| !text.trim().is_empty());
    let question = question(asked.question.clone(), text.context("there is no context to search")?);
    Ok((asked, question))
}

fn question(question: String, text: &str) -> Question {
    Question { id: String::new(), passage: text.into(), question, answers: Vec::new(), is_impossible: false }
}

/// Answers in one line: the best one, which may be empty, and its probability, or JSON.
fn in_line(arguments: &Arguments, task: &Task, asked: &Asked, passage: &str, prediction: &Prediction) -> String {
    let Prediction::Answers(answers) = prediction else { unreachable!("questions are answered") };
    let (best, results) = (threshold_of(task).answer(answers), &arguments.streaming.results);
    if !results.json() {
        let probability = answers.candidates.first().map_or(0.0, |candidate| candidate.probability);
        let input = if results.with_input { format!("{}\t", escaped(&asked.question)) } else { String::new() };
        return format!("{input}{}\t{probability:.4}", escaped(best));
    }
    let mut line = Map::new();
    line.extend(asked.id.as_ref().map(|id| ("id".to_owned(), id.clone())));
    line.insert("question".into(), json!(asked.question));
    if results.with_input {
        line.extend(asked.context.as_ref().map(|context| ("context".to_owned(), json!(context))));
    }
    let of = |candidate: &albert_tasks::span::Candidate| {
        let place = arguments.places.offsets().of(passage, &candidate.bytes);
        json!({ "text": candidate.text, "start": place.start, "end": place.end, "score": candidate.score,
                "probability": candidate.probability })
    };
    line.insert("answers".into(), answers.candidates.iter().take(arguments.top).map(of).collect());
    line.insert("answer".into(), json!(best));
    line.insert("null_score".into(), json!(answers.null_score));
    Value::Object(line).to_string()
}

/// Answers on separate lines.
fn in_full(arguments: &Arguments, predictor: &Predictor, prediction: &Prediction) -> String {
    let Prediction::Answers(answers) = prediction else { unreachable!("questions are answered") };
    let (threshold, mut text) = (threshold_of(predictor.task()), String::new());
    if threshold.answer(answers).is_empty() {
        text += "no answer\n";
    }
    for candidate in answers.candidates.iter().take(arguments.top) {
        let _ = writeln!(text, "{:.4}\t{}", candidate.probability, candidate.text);
    }
    tell!("null score {:.4}, threshold {threshold}", answers.null_score);
    text
}

/// Reads the text to search that the command line names.
fn context(arguments: &Arguments) -> Result<Option<String>> {
    if let Some(path) = &arguments.context_file {
        let mut found = String::new();
        let read = text::open(path).and_then(|mut file| file.read_to_string(&mut found));
        read.with_context(|| format!("{} cannot be read", path.display()))?;
        ensure!(!found.trim().is_empty(), "{}: the file contains no text", path.display());
        return Ok(Some(found));
    }
    let Some(text) = &arguments.context else { return Ok(None) };
    ensure!(!text.trim().is_empty(), "--context: the text is empty");
    if Path::new(text).is_file() {
        tell!("note: --context is the text itself; to search the file {text}, use --context-file {text}");
    }
    Ok(Some(text.clone()))
}
