//! `albert classify`: predictions of fine-tuned models for texts or pairs, one at a time or as a stream.

use crate::{
    input::{Line, Lines},
    output::tell,
    running::{Batch, Running, Streaming},
};
use albert::{
    finetune::{Examples, Prediction, Predictor},
    tasks::{Problem, Tagged, Text},
};
use anyhow::{Result, bail, ensure};
use clap::Args;
use serde_json::{Map, Value};
use std::{fmt::Write as _, path::PathBuf, process::ExitCode};

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
    batch: Batch,
    /// Text, or the first of a pair; for a tagging model, words separated by spaces; - is the lines of standard input, where a
    /// TAB separates the texts of a pair
    #[arg(required_unless_present = "input", conflicts_with = "input")]
    text: Option<String>,
    /// Second text of a pair
    second: Option<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut out = arguments.streaming.results.sink()?;
    let device = arguments.running.device()?;
    let mut predictor = Predictor::load(&arguments.model, &device)?;
    predictor.set_precision(arguments.running.precision.on(&device))?;
    predictor.profile().set(arguments.running.profile.on);
    match predictor.task().problem {
        Problem::Choice => bail!("the model chooses between options; write questions to a file for albert predict"),
        Problem::Span { .. } => bail!("the model answers questions; use albert answer"),
        _ => {}
    }
    if let Some(mut lines) = arguments.streaming.lines(arguments.text.as_deref())? {
        ensure!(arguments.second.is_none(), "the texts of a pair are separated by a TAB in each line");
        loop {
            let batch = lines.batch(arguments.batch.lines)?;
            if batch.is_empty() {
                break;
            }
            let examples = of_lines(&lines, &batch, &predictor.task().problem)?;
            let predictions = if examples.is_empty() { vec![] } else { predictor.predict(&examples)? };
            let (mut text, mut answered) = (String::new(), 0);
            for line in &batch {
                if has_example(line, &predictor.task().problem) {
                    let truncated = predictor.truncated()[answered];
                    text += &in_line(arguments, &predictor, (&examples, answered), &predictions[answered], truncated);
                    answered += 1;
                } else {
                    let (examples, prediction) = (Examples::Tagged(vec![tagged(vec![])]), Prediction::Words(vec![]));
                    text += &in_line(arguments, &predictor, (&examples, 0), &prediction, 0);
                }
                text.push('\n');
            }
            out.put(&text)?;
        }
    } else {
        let (first, second) = (arguments.text.clone().unwrap_or_default(), arguments.second.clone());
        let examples = example(first, second, &predictor.task().problem).map_err(anyhow::Error::msg)?;
        let predictions = predictor.predict(&examples)?;
        if arguments.streaming.results.json {
            let line = in_line(arguments, &predictor, (&examples, 0), &predictions[0], predictor.truncated()[0]);
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
    Ok(ExitCode::SUCCESS)
}

/// Texts as examples of a problem; an error is a sentence without its place.
fn example(first: String, second: Option<String>, problem: &Problem) -> Result<Examples, &'static str> {
    let id = String::new();
    let Problem::Tags { .. } = problem else {
        return Ok(Examples::Texts(vec![Text { id, first, second, label: None }]));
    };
    let words: Vec<String> = first.split_whitespace().map(str::to_owned).collect();
    match second {
        Some(_) => Err("the model tags words and takes one text"),
        None if words.is_empty() => Err("the text contains no words to tag"),
        None => Ok(Examples::Tagged(vec![tagged(words)])),
    }
}

/// Words to tag.
fn tagged(words: Vec<String>) -> Tagged {
    Tagged { id: String::new(), words, tags: Vec::new() }
}

/// False for a line without words to tag, whose answer is a line without tags: answers stay beside their lines.
fn has_example(line: &Line, problem: &Problem) -> bool {
    !matches!(problem, Problem::Tags { .. }) || !line.text.trim().is_empty()
}

/// The examples of lines.
fn of_lines(lines: &Lines, batch: &[Line], problem: &Problem) -> Result<Examples> {
    let mut all: Option<Examples> = None;
    for line in batch.iter().filter(|line| has_example(line, problem)) {
        let (first, second) = match line.text.split_once('\t') {
            Some((first, second)) => (first, Some(second.to_owned())),
            None => (line.text.as_str(), None),
        };
        let one = example(first.to_owned(), second, problem)
            .map_err(|error| anyhow::anyhow!("{}: {error}", lines.place(line)))?;
        match &mut all {
            Some(all) => all.append(one),
            None => all = Some(one),
        }
    }
    // Without words to tag in any line.
    Ok(all.unwrap_or(Examples::Tagged(vec![])))
}

/// A prediction in one line: the label and its probability, or JSON.
fn in_line(
    arguments: &Arguments,
    predictor: &Predictor,
    (examples, at): (&Examples, usize),
    prediction: &Prediction,
    truncated: usize,
) -> String {
    let task = predictor.task();
    if arguments.streaming.results.json {
        let mut line = if arguments.streaming.results.with_input { examples.input(at) } else { Map::new() };
        line.extend(prediction.fields(task, truncated));
        return Value::Object(line).to_string();
    }
    let labels = task.problem.labels();
    match (prediction, &task.problem) {
        (Prediction::Class(probabilities), Problem::Labels { .. }) => {
            let likely = labels.iter().zip(probabilities).filter(|(_, p)| **p >= 0.5);
            likely.map(|(label, p)| format!("{label} {p:.4}")).collect::<Vec<_>>().join("\t")
        }
        (Prediction::Class(probabilities), _) => {
            let best = greatest(probabilities);
            format!("{}\t{:.4}", labels[best], probabilities[best])
        }
        (Prediction::Number(number), _) => number.to_string(),
        (Prediction::Words(words), _) => {
            words.iter().map(|word| labels[greatest(word)].as_str()).collect::<Vec<_>>().join(" ")
        }
        (Prediction::Answers(_), _) => unreachable!("the model does not answer questions"),
    }
}

/// A prediction in lines of its own, with all its probabilities.
fn in_full(problem: &Problem, examples: &Examples, prediction: &Prediction) -> String {
    let (labels, mut text) = (problem.labels(), String::new());
    match (prediction, examples) {
        (Prediction::Class(probabilities), _) => {
            let mut both: Vec<_> = labels.iter().zip(probabilities).collect();
            both.sort_by(|a, b| b.1.total_cmp(a.1));
            for (label, probability) in both {
                let _ = writeln!(text, "{probability:.4}\t{label}");
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
