//! `albert classify`: prediction of fine-tuned models for one text or pair.

use super::Precision;
use crate::{
    output::{results, tell},
    roofline::Profiling,
};
use albert::{
    finetune::{Examples, Prediction, Predictor},
    tasks::{Problem, Tagged, Text},
};
use anyhow::{Result, bail};
use clap::Args;
use engine::Device;
use std::{io::Write, path::PathBuf, process::ExitCode};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Fine-tuned model folder; several are averaged. A run over seeds counts as all of its models
    #[arg(long, required = true)]
    model: Vec<PathBuf>,
    /// f32, bf16, bf16x3, bf16x6, int8 or auto: bf16 if this machine multiplies it faster than f32
    #[arg(long, default_value = "f32")]
    precision: Precision,
    #[command(flatten)]
    profile: Profiling,
    /// Text, or the first of a pair; for a tagging model, words separated by spaces
    text: String,
    /// Second text of a pair
    second: Option<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let device = Device::cpu()?;
    let mut predictor = Predictor::load(&arguments.model, &device)?;
    predictor.set_precision(arguments.precision.on(&device))?;
    predictor.profile().set(arguments.profile.on);
    let problem = predictor.task().problem.clone();
    let (id, first, second) = (String::new(), arguments.text.clone(), arguments.second.clone());
    let words: Vec<String> = first.split_whitespace().map(str::to_owned).collect();
    let examples = match &problem {
        Problem::Classes { .. } | Problem::Labels { .. } | Problem::Number => {
            Examples::Texts(vec![Text { id, first, second, label: None }])
        }
        Problem::Tags { .. } if second.is_some() => bail!("the model tags words and takes one text"),
        Problem::Tags { .. } if words.is_empty() => bail!("the text contains no words to tag"),
        Problem::Tags { .. } => Examples::Tagged(vec![Tagged { id, words: words.clone(), tags: Vec::new() }]),
        Problem::Choice => bail!("the model chooses between options; write questions to a file for albert predict"),
        Problem::Span { .. } => bail!("the model answers questions; use albert answer"),
    };
    let predictions = predictor.predict(&examples)?;
    arguments.profile.print(predictor.profile(), &device);
    if predictor.cut() > 0 {
        tell!("note: the text exceeds the model's maximum length and was truncated; classify its parts separately");
    }
    let mut out = results();
    match (&predictions[0], &problem) {
        (Prediction::Class(probabilities), Problem::Classes { labels } | Problem::Labels { labels }) => {
            let mut both: Vec<_> = labels.iter().zip(probabilities).collect();
            both.sort_by(|a, b| b.1.total_cmp(a.1));
            for (label, probability) in both {
                writeln!(out, "{probability:.4}\t{label}")?;
            }
        }
        (Prediction::Number(number), _) => writeln!(out, "{number}")?,
        (Prediction::Words(tags), Problem::Tags { labels }) => {
            for (word, probabilities) in words.iter().zip(tags) {
                let best = (0..labels.len()).max_by(|&a, &b| probabilities[a].total_cmp(&probabilities[b]));
                let best = best.expect("there are at least two labels");
                writeln!(out, "{word}\t{}\t{:.4}", labels[best], probabilities[best])?;
            }
        }
        _ => unreachable!("predictions are made for the problem"),
    }
    Ok(ExitCode::SUCCESS)
}
