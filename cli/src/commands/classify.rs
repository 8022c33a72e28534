//! `albert classify`: predictions of fine-tuned models for texts or pairs, one at a time or as a stream.

use crate::{
    input::{Batches, Entries, Errors, Kind, Line, Lines, answer, null_entry, null_text},
    output::{Sink, tell},
    running::{Batch, Field, Results, Running, Streaming},
};
use albert_tasks::{
    files::{Problem, Tagged, Text},
    finetune::{Examples, Offsets, Prediction, Predictor, Task, escaped},
};
use anyhow::{Result, bail, ensure};
use clap::Args;
use engine::Device;
use serde_json::{Map, Value, json};
use std::{cell::RefCell, fmt::Write as _, path::PathBuf, process::ExitCode};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  albert classify --model runs/film \"a dull film\"
  albert classify --model runs/film --input reviews.txt --json --with-input > labels.jsonl
  tail -f log | albert classify --model runs/alarm -")]
pub(crate) struct Arguments {
    /// Fine-tuned model folder; several are averaged. A run over seeds counts as all of its models
    #[arg(long, required = true)]
    model: Vec<PathBuf>,
    #[command(flatten)]
    running: Running,
    #[command(flatten)]
    streaming: Streaming,
    #[command(flatten)]
    field: Field,
    #[command(flatten)]
    batch: Batch,
    /// Text, or the first of a pair; for a tagging model, words separated by spaces; - is the lines of standard input, where a
    /// TAB separates the texts of a pair
    #[arg(required_unless_present = "input", conflicts_with = "input")]
    text: Option<String>,
    /// Second text of a pair
    second: Option<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let results = &arguments.streaming.results;
    let mut out = results.sink()?;
    let kind = Kind::texts(arguments.field.field.as_ref(), true);
    let lines = arguments.streaming.lines(arguments.text.as_deref(), kind)?;
    let (device, mut predictor) = arguments.running.predictor(&arguments.model)?;
    match predictor.task().problem {
        Problem::Choice => bail!("the model chooses between options; write questions to a file for albert predict"),
        Problem::Span { .. } => bail!("the model answers questions; use albert answer"),
        _ => {}
    }
    let mut ended = None;
    if let Some(lines) = lines {
        ended = classify_lines(arguments, lines, &device, &mut predictor, &mut out)?;
    } else {
        let (first, second) = (arguments.text.clone().unwrap_or_default(), arguments.second.clone());
        let examples = example(first, second, &predictor.task().problem)?;
        let predictions = predictor.predict(&examples)?;
        if results.json() || results.with_input {
            let truncated = predictor.truncated()[0];
            let line = in_line(arguments, predictor.task(), &examples, &predictions[0], truncated);
            out.put(&(line + "\n"))?;
        } else {
            out.put(&in_full(&predictor.task().problem, &examples, &predictions[0]))?;
        }
    }
    arguments.running.profile.print(predictor.profile(), &device);
    let cut = predictor.cut();
    if cut > 0 {
        tell!(
            "note: {cut} texts exceeded the model's maximum length and were truncated; classify their parts separately"
        );
    }
    out.finish()?;
    ended.map_or(Ok(ExitCode::SUCCESS), Err)
}

/// Classifies lines; returns the error that ended the input.
fn classify_lines(
    arguments: &Arguments,
    mut lines: Lines,
    device: &Device,
    predictor: &mut Predictor,
    out: &mut Sink,
) -> Result<Option<anyhow::Error>> {
    ensure!(arguments.second.is_none(), "the texts of a pair are separated by a TAB in each line");
    let task = predictor.task().clone();
    let mut errors = Errors::new(arguments.streaming.faults, false);
    let write = |entries: Entries<Examples, (Prediction, usize)>| {
        let mut text = String::new();
        for (line, result) in entries {
            text += &match result {
                Ok((examples, (prediction, truncated))) => in_line(arguments, &task, &examples, &prediction, truncated),
                Err(reason) => without_result(&arguments.streaming.results, &task, &line, &reason),
            };
            text.push('\n');
        }
        out.put(&text)
    };
    let predictor = &RefCell::new(predictor);
    let run = |items: &[Examples]| {
        let mut all = items[0].clone();
        items[1..].iter().for_each(|one| all.append(one.clone()));
        let later = predictor.borrow_mut().predict_each_later(&all)?;
        Ok(move || Ok(later(&mut predictor.borrow_mut())?))
    };
    let (parse, batches) = (|line: &Line| of_line(&line.text, &task), Batches::on(device, arguments.batch.lines));
    let (total, stopped) = answer(&mut lines, batches, &mut errors, parse, run, write)?;
    errors.tell(total);
    Ok(stopped)
}

/// Entry of a line that cannot be used.
fn without_result(results: &Results, task: &Task, line: &Line, reason: &str) -> String {
    if results.json() {
        let mut entry = Map::new();
        if results.with_input {
            entry.insert("text".into(), json!(line.text));
        }
        entry.extend(null_entry(Prediction::field(&task.problem), line.number, reason));
        Value::Object(entry).to_string()
    } else if results.with_input {
        format!("{}\t{}", line.text, null_text(line.number, reason))
    } else {
        null_text(line.number, reason)
    }
}

/// Converts texts to an example of a problem.
fn example(first: String, second: Option<String>, problem: &Problem) -> Result<Examples> {
    let id = String::new();
    let Problem::Tags { .. } = problem else {
        return Ok(Examples::Texts(vec![Text { id, first, second, label: None }]));
    };
    ensure!(second.is_none(), "the model tags words and accepts one text");
    let words: Vec<String> = first.split_whitespace().map(str::to_owned).collect();
    ensure!(!words.is_empty(), "the text contains no words to tag");
    Ok(Examples::Tagged(vec![Tagged { id, words, tags: Vec::new() }]))
}

/// Converts a line to an example. For a model of single texts and for a tagging model, a TAB is white space. A line without
/// words to tag has no tags.
fn of_line(line: &str, task: &Task) -> Result<Examples> {
    if matches!(task.problem, Problem::Tags { .. }) {
        let words = line.split_whitespace().map(str::to_owned).collect();
        return Ok(Examples::Tagged(vec![Tagged { id: String::new(), words, tags: Vec::new() }]));
    }
    ensure!(!line.trim().is_empty(), "the line is blank");
    match line.split_once('\t').filter(|_| task.pairs != Some(false)) {
        Some((first, second)) => example(first.to_owned(), Some(second.to_owned()), &task.problem),
        None if task.pairs == Some(true) => bail!("one text, but the model requires pairs, separated by a TAB"),
        None => example(line.to_owned(), None, &task.problem),
    }
}

/// A prediction on one line: the label and its probability, or JSON.
fn in_line(
    arguments: &Arguments,
    task: &Task,
    examples: &Examples,
    prediction: &Prediction,
    truncated: usize,
) -> String {
    let results = &arguments.streaming.results;
    if results.json() {
        let mut line = if results.with_input { examples.input(0) } else { Map::new() };
        line.extend(prediction.fields(task, truncated, "", Offsets::default()));
        return Value::Object(line).to_string();
    }
    let labels = task.problem.labels();
    let label = |class: usize| escaped(&labels[class]);
    let result = match (prediction, &task.problem) {
        (Prediction::Class(probabilities), Problem::Labels { .. }) => {
            let likely = probabilities.iter().enumerate().filter(|(_, p)| **p >= 0.5);
            likely.map(|(class, p)| format!("{} {p:.4}", label(class))).collect::<Vec<_>>().join("\t")
        }
        (Prediction::Class(probabilities), _) => {
            let best = greatest(probabilities);
            format!("{}\t{:.4}", label(best), probabilities[best])
        }
        (Prediction::Number(number), _) => number.to_string(),
        (Prediction::Words(words), _) => words.iter().map(|word| label(greatest(word))).collect::<Vec<_>>().join(" "),
        (Prediction::Answers(_), _) => unreachable!("the model does not answer questions"),
    };
    match examples {
        Examples::Texts(list) if results.with_input => {
            let second = list[0].second.as_deref().map_or(String::new(), |second| format!("{}\t", escaped(second)));
            format!("{}\t{second}{result}", escaped(&list[0].first))
        }
        Examples::Tagged(list) if results.with_input => format!("{}\t{result}", list[0].words.join(" ")),
        _ => result,
    }
}

/// A prediction on separate lines, with all its probabilities.
fn in_full(problem: &Problem, examples: &Examples, prediction: &Prediction) -> String {
    let (labels, mut text) = (problem.labels(), String::new());
    match (prediction, examples) {
        (Prediction::Class(probabilities), _) => {
            let mut both: Vec<_> = labels.iter().zip(probabilities).collect();
            both.sort_by(|a, b| b.1.total_cmp(a.1));
            for (label, probability) in both {
                let _ = writeln!(text, "{probability:.4}\t{}", escaped(label));
            }
        }
        (Prediction::Number(number), _) => {
            let _ = writeln!(text, "{number}");
        }
        (Prediction::Words(tags), Examples::Tagged(tagged)) => {
            for (word, probabilities) in tagged[0].words.iter().zip(tags) {
                let best = greatest(probabilities);
                let _ = writeln!(text, "{word}\t{}\t{:.4}", labels[best], probabilities[best]);
            }
        }
        _ => unreachable!("predictions are made for the problem"),
    }
    text
}

/// Index of the greatest value.
fn greatest(values: &[f32]) -> usize {
    (0..values.len()).max_by(|&a, &b| values[a].total_cmp(&values[b])).expect("there are at least two labels")
}
