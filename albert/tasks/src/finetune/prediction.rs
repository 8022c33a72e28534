//! Predictions: conversion from scores, averages over models, and output as JSON and TSV.
//!
//! ```text
//! classes, options    softmax of the scores                    average: of the probabilities
//! labels              1 / (1 + exp(-z)) of each score z        average: of the probabilities
//! number              the score                                average: of the numbers
//! words               softmax of each word's scores            average: of the probabilities
//! answers             decoded from windows, see `span`         average: of the probabilities of equal texts
//! ```
//!
//! As JSON, one object per line: `{"id":"7","label":"yes","probabilities":{"no":0.1,"yes":0.9}}`; as TSV, columns under
//! a header. Averages are computed in f64, in the order of the models.

use std::borrow::Cow;
use std::ops::Range;

use serde_json::{Map, Value, json};

use super::feature::{Feature, Target};
use super::loss::WindowScore;
use super::{Examples, FinetuneError, Task};
use crate::files::{Label, Problem, Question};
use crate::span::{self, Answers, DecodeSettings, SpanFeature, Threshold, WindowScores};

/// Prediction of a model, or of an ensemble, for an example.
#[derive(Clone, Debug, PartialEq)]
pub enum Prediction {
    /// Probability of each class or option; for a multi-label problem, independent probabilities of the labels.
    Class(Vec<f32>),
    /// Predicted number of a regression.
    Number(f32),
    /// Probability of each class, for each word.
    Words(Vec<Vec<f32>>),
    /// Answer spans of the passage.
    Answers(Answers),
}

/// Index of the greatest value; the first one on ties.
pub(super) fn greatest(values: &[f32]) -> usize {
    let mut best = 0;
    for (at, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = at;
        }
    }
    best
}

fn softmax(scores: &[f32]) -> Vec<f32> {
    let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = scores.iter().map(|&z| libm::exp(f64::from(z - highest))).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|power| (power / sum) as f32).collect()
}

fn sigmoid(z: f32) -> f32 {
    (1.0 / (1.0 + libm::exp(-f64::from(z)))) as f32
}

/// Labels with a probability of at least one half.
fn likely<'l>(labels: &'l [String], p: &'l [f32]) -> impl Iterator<Item = &'l str> {
    labels.iter().zip(p).filter(|&(_, &p)| p >= 0.5).map(|(label, _)| label.as_str())
}

/// Computes the predictions for the examples in `range` from the scores of their features. A word without pieces is outside.
pub(super) fn predictions(
    problem: &Problem,
    range: Range<usize>,
    examples: &Examples,
    features: &[Feature],
    scores: &[Vec<f32>],
) -> Vec<Prediction> {
    let first = range.start;
    let outside = || {
        let class = problem.labels().iter().position(|label| label == "O").unwrap_or(0);
        (0..problem.labels().len()).map(|at| f32::from(u8::from(at == class))).collect::<Vec<f32>>()
    };
    let words = |at: usize| if let Examples::Tagged(list) = examples { list[at].words.len() } else { 0 };
    let mut out: Vec<_> = range.map(|at| Prediction::Words(vec![Vec::new(); words(at)])).collect();
    for (feature, scores) in features.iter().zip(scores) {
        let place = &mut out[feature.example - first];
        match (&feature.target, problem) {
            (Target::Words { words: of, .. }, _) => {
                let width = scores.len() / of.len().max(1);
                if let Prediction::Words(words) = place {
                    let scored = of.iter().zip(scores.chunks_exact(width.max(1)));
                    scored.for_each(|(&at, scores)| words[at as usize] = softmax(scores));
                }
            }
            (_, Problem::Number) => *place = Prediction::Number(scores[0]),
            (_, Problem::Labels { .. }) => *place = Prediction::Class(scores.iter().map(|&z| sigmoid(z)).collect()),
            _ => *place = Prediction::Class(softmax(scores)),
        }
    }
    for prediction in &mut out {
        if let Prediction::Words(words) = prediction {
            words.iter_mut().filter(|word| word.is_empty()).for_each(|word| *word = outside());
        }
    }
    out
}

/// Unit of a position in a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offsets {
    /// Characters (Unicode code points), as in Python.
    #[default]
    Characters,
    /// Bytes of UTF-8.
    Bytes,
    /// Units of UTF-16, as in JavaScript and Java.
    Utf16,
}

impl Offsets {
    /// Converts a range of bytes of `text` to this unit.
    ///
    /// # Panics
    /// If the range is not in `text`.
    pub fn of(self, text: &str, bytes: &Range<usize>) -> Range<usize> {
        let (start, end) = self.of_all(text, &[(bytes.start, bytes.end)])[0];
        start..end
    }

    /// Converts several ranges of bytes to this unit, in linear time if they are in order. A position within a character is
    /// moved to its start.
    ///
    /// # Panics
    /// If a range is not in `text`.
    pub fn of_all(self, text: &str, bytes: &[(usize, usize)]) -> Vec<(usize, usize)> {
        let (mut byte, mut count) = (0, 0);
        let mut place = |mut to: usize| {
            while !text.is_char_boundary(to) {
                to -= 1;
            }
            if to < byte {
                (byte, count) = (0, 0);
            }
            count += match self {
                Self::Characters => text[byte..to].chars().count(),
                Self::Bytes => to - byte,
                Self::Utf16 => text[byte..to].encode_utf16().count(),
            };
            byte = to;
            count
        };
        bytes.iter().map(|&(start, end)| (place(start), place(end))).collect()
    }
}

/// Escapes a value of a table: TAB and line ends are written `\t`, `
/// ` and `\r` as in JSON, and then `\` as `\\`.
pub fn escaped(value: &str) -> Cow<'_, str> {
    if value.contains(['\t', '\n', '\r']) {
        Cow::Owned(value.replace('\\', "\\\\").replace('\t', "\\t").replace('\n', "\\n").replace('\r', "\\r"))
    } else {
        Cow::Borrowed(value)
    }
}

/// Decodes answers to `questions` from the scores of their windows, which are in the order of the questions.
pub(super) fn answers(
    questions: &[Question],
    features: &[Feature],
    scores: &[WindowScore],
    settings: &DecodeSettings,
) -> Vec<Prediction> {
    let mut of_question: Vec<(Vec<SpanFeature>, Vec<WindowScores<'_>>)> = vec![Default::default(); questions.len()];
    for (feature, score) in features.iter().zip(scores) {
        let Target::Span { window: Some(window), .. } = &feature.target else {
            unreachable!("features for prediction keep their windows")
        };
        let (windows, all) = &mut of_question[feature.example];
        windows.push((**window).clone());
        all.push(score.borrowed());
    }
    let pairs = questions.iter().zip(of_question);
    pairs
        .map(|(question, (windows, scores))| {
            Prediction::Answers(span::decode(&question.passage, &windows, &scores, settings))
        })
        .collect()
}

/// Mean of the predictions of several models for the same examples.
///
/// # Errors
/// There is no model, or the models have different classes.
pub fn average(mut lists: Vec<Vec<Prediction>>) -> Result<Vec<Prediction>, FinetuneError> {
    let Some(examples) = lists.first().map(Vec::len) else {
        return Err(FinetuneError::Data("no model given".into()));
    };
    if let Some(Prediction::Answers(_)) = lists[0].first() {
        return Ok(average_answers(&lists));
    }
    let other = || FinetuneError::Data("the models have different classes; predictions cannot be averaged".into());
    if lists.iter().any(|list| list.len() != examples) {
        return Err(other());
    }
    for at in 0..examples {
        let mut all: Vec<Vec<&mut [f32]>> = lists.iter_mut().map(|list| list[at].groups()).collect();
        let widths = |groups: &[&mut [f32]]| groups.iter().map(|group| group.len()).collect::<Vec<_>>();
        if all.iter().any(|groups| widths(groups) != widths(&all[0])) {
            return Err(other());
        }
        for (group, width) in widths(&all[0]).into_iter().enumerate() {
            for place in 0..width {
                let values = all.iter().map(|groups| f64::from(groups[group][place]));
                let sum = values.reduce(|sum, value| sum + value).expect("there is a model");
                all[0][group][place] = (sum / all.len() as f64) as f32;
            }
        }
    }
    Ok(lists.swap_remove(0))
}

fn average_answers(lists: &[Vec<Prediction>]) -> Vec<Prediction> {
    let of = |prediction: &Prediction| match prediction {
        Prediction::Answers(answers) => answers.clone(),
        _ => unreachable!("all models have the same problem"),
    };
    if let [only] = lists {
        return only.clone();
    }
    (0..lists[0].len())
        .map(|at| {
            let all: Vec<Answers> = lists.iter().map(|list| of(&list[at])).collect();
            Prediction::Answers(span::average(&all))
        })
        .collect()
}

impl Prediction {
    /// Values to average: those of each word, or one group.
    fn groups(&mut self) -> Vec<&mut [f32]> {
        match self {
            Self::Class(values) => vec![values],
            Self::Number(value) => vec![std::slice::from_mut(value)],
            Self::Words(words) => words.iter_mut().map(|word| &mut word[..]).collect(),
            Self::Answers(_) => unreachable!("answers are averaged by their texts"),
        }
    }

    /// The prediction as a label; `None` for words and answers.
    pub fn label(&self) -> Option<Label> {
        match self {
            Self::Class(probabilities) => Some(Label::Class(greatest(probabilities) as u32)),
            Self::Number(number) => Some(Label::Number(*number)),
            Self::Words(_) | Self::Answers(_) => None,
        }
    }

    /// One line of JSON for example `id`: the id, then the fields of [`fields`](Self::fields).
    pub fn to_json(&self, id: &str, task: &Task, truncated: usize, passage: &str) -> String {
        let mut line = Map::new();
        line.insert("id".into(), json!(id));
        line.extend(self.fields(task, truncated, passage, Offsets::default()));
        Value::Object(line).to_string()
    }

    /// The prediction as fields of an object. `truncated` is the number of pieces of the example that did not fit the model (0: no key).
    /// With more than 100 classes, only the 100 most probable are listed. Positions of answers in `passage` are in `offsets`.
    pub fn fields(&self, task: &Task, truncated: usize, passage: &str, offsets: Offsets) -> Map<String, Value> {
        let rounded = |p: f32| json!((f64::from(p) * 1e6).round() / 1e6);
        let mut line = Map::new();
        match (self, &task.problem) {
            (Self::Number(number), _) => {
                line.insert("number".into(), json!(number));
            }
            (Self::Class(p), Problem::Classes { labels }) => {
                line.insert("label".into(), json!(labels[greatest(p)]));
                let named = likeliest(p).into_iter().map(|class| (labels[class].clone(), rounded(p[class])));
                line.insert("probabilities".into(), Value::Object(named.collect()));
            }
            (Self::Class(p), Problem::Labels { labels }) => {
                line.insert("labels".into(), likely(labels, p).collect());
                let named: Map<_, _> = labels.iter().zip(p).map(|(label, p)| (label.clone(), rounded(*p))).collect();
                line.insert("probabilities".into(), Value::Object(named));
            }
            (Self::Class(p), _) => {
                line.insert("option".into(), json!(greatest(p)));
                line.insert("probabilities".into(), p.iter().map(|p| rounded(*p)).collect());
            }
            (Self::Words(words), problem) => {
                let labels = problem.labels();
                line.insert("tags".into(), words.iter().map(|p| json!(labels[greatest(p)])).collect());
                line.insert("probabilities".into(), words.iter().map(|p| rounded(p[greatest(p)])).collect());
            }
            (Self::Answers(answers), _) => {
                line.insert("answer".into(), json!(threshold_of(task).answer(answers)));
                line.insert("null_score".into(), json!(answers.null_score));
                let shown = answers.candidates.iter().take(SHOWN).map(|candidate| {
                    let share = rounded(candidate.probability as f32);
                    let Range { start, end } = offsets.of(passage, &candidate.bytes);
                    json!({"text": candidate.text, "start": start, "end": end, "probability": share})
                });
                line.insert("candidates".into(), shown.collect());
            }
        }
        if truncated > 0 {
            line.insert("truncated".into(), json!(truncated));
        }
        line
    }

    /// Header of the lines of [`Prediction::to_tsv`].
    pub fn tsv_header(problem: &Problem) -> String {
        match problem {
            Problem::Number => "id\tnumber".into(),
            Problem::Classes { labels } => format!("id\tlabel\t{}", all_escaped(labels, "\t")),
            Problem::Labels { labels } => format!("id\tlabels\t{}", all_escaped(labels, "\t")),
            Problem::Tags { .. } => "id\ttags\tprobabilities".into(),
            Problem::Choice => "id\toption\tprobabilities".into(),
            Problem::Span { .. } => "id\tanswer\tprobability\tnull_score".into(),
        }
    }

    /// Name of the field of [`fields`](Self::fields) that is `null` for an example without a prediction.
    pub fn field(problem: &Problem) -> &'static str {
        match problem {
            Problem::Number => "number",
            Problem::Classes { .. } => "label",
            Problem::Labels { .. } => "labels",
            Problem::Tags { .. } => "tags",
            Problem::Choice => "option",
            Problem::Span { .. } => "answer",
        }
    }

    /// One tab-separated line for example `id`, with values as [`escaped`]; values within a column are separated by spaces.
    pub fn to_tsv(&self, id: &str, task: &Task) -> String {
        let id = escaped(id);
        let joined = |p: &[f32], by: &str| p.iter().map(|p| format!("{p:.6}")).collect::<Vec<_>>().join(by);
        match (self, &task.problem) {
            (Self::Number(number), _) => format!("{id}\t{number}"),
            (Self::Class(p), Problem::Classes { labels }) => {
                format!("{id}\t{}\t{}", escaped(&labels[greatest(p)]), joined(p, "\t"))
            }
            (Self::Class(p), Problem::Labels { labels }) => {
                let likely: Vec<_> = likely(labels, p).collect();
                format!("{id}\t{}\t{}", all_escaped(&likely, " "), joined(p, "\t"))
            }
            (Self::Class(p), _) => format!("{id}\t{}\t{}", greatest(p), joined(p, " ")),
            (Self::Words(words), problem) => {
                let labels = problem.labels();
                let tags: Vec<_> = words.iter().map(|p| labels[greatest(p)].as_str()).collect();
                let best: Vec<f32> = words.iter().map(|p| p[greatest(p)]).collect();
                format!("{id}\t{}\t{}", all_escaped(&tags, " "), joined(&best, " "))
            }
            (Self::Answers(answers), _) => {
                let text = escaped(threshold_of(task).answer(answers));
                let share = answers.candidates.first().map_or(0.0, |best| best.probability);
                format!("{id}\t{text}\t{share:.6}\t{:.6}", answers.null_score)
            }
        }
    }
}

/// Escaped values of one column, or of several.
fn all_escaped<S: AsRef<str>>(values: &[S], between: &str) -> String {
    values.iter().map(|value| escaped(value.as_ref())).collect::<Vec<_>>().join(between)
}

/// Maximum number of candidate answers in a line of JSON.
const SHOWN: usize = 5;

/// Maximum number of classes in a line of JSON. With all of them, lines would grow with the number of classes, and a
/// file with its square if every example has its own class.
const NAMED: usize = 100;

/// Classes listed in a line of JSON, in ascending order: all, or the [`NAMED`] most probable.
fn likeliest(p: &[f32]) -> Vec<usize> {
    let mut classes: Vec<usize> = (0..p.len()).collect();
    if p.len() > NAMED {
        // The sort is stable: ties keep the lower class.
        classes.sort_by(|&a, &b| p[b].total_cmp(&p[a]));
        classes.truncate(NAMED);
        classes.sort_unstable();
    }
    classes
}

/// Null-score threshold of the task (`SpanRecipe::null_threshold`).
pub fn threshold_of(task: &Task) -> Threshold {
    match task.problem {
        Problem::Span { may_be_impossible: true } => Threshold::Fixed(task.span.null_threshold.unwrap_or(0.0)),
        _ => Threshold::Never,
    }
}

/// Gold answer of an example, the counterpart of [`Prediction`].
#[derive(Clone, Debug, PartialEq)]
pub enum Gold {
    /// Index of the class or option.
    Class(u32),
    /// Regression target.
    Number(f32),
    /// Class of each word.
    Words(Vec<u32>),
}

/// Gold answer of example `at`; `None` if unknown, and for questions about passages.
pub fn gold(examples: &Examples, at: usize) -> Option<Gold> {
    match examples {
        Examples::Texts(list) => list[at].label.map(|label| match label {
            Label::Class(class) => Gold::Class(class),
            Label::Number(number) => Gold::Number(number),
        }),
        Examples::Tagged(list) => {
            let example = &list[at];
            (example.tags.len() == example.words.len()).then(|| Gold::Words(example.tags.clone()))
        }
        Examples::Choices(list) => list[at].answer.map(Gold::Class),
        Examples::Questions(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::task;
    use super::*;

    #[test]
    fn a_mean_is_of_probabilities_and_numbers() {
        let lists = vec![
            vec![Prediction::Class(vec![0.5, 0.5]), Prediction::Number(1.0), Prediction::Words(vec![vec![1.0, 0.0]])],
            vec![Prediction::Class(vec![0.0, 1.0]), Prediction::Number(4.0), Prediction::Words(vec![vec![0.5, 0.5]])],
        ];
        let expected =
            [Prediction::Class(vec![0.25, 0.75]), Prediction::Number(2.5), Prediction::Words(vec![vec![0.75, 0.25]])];
        assert_eq!(average(lists).unwrap(), expected);
        let other = vec![vec![Prediction::Class(vec![1.0, 0.0])], vec![Prediction::Class(vec![1.0, 0.0, 0.0])]];
        assert!(average(other).unwrap_err().to_string().contains("different classes"));
        assert!(average(Vec::new()).is_err());
    }

    #[test]
    fn lines_name_the_classes() {
        let problem = Problem::Classes { labels: vec!["no".into(), "yes".into()] };
        let prediction = Prediction::Class(vec![0.25, 0.75]);
        assert_eq!(
            prediction.to_json("a\t7", &task(&problem), 0, ""),
            r#"{"id":"a\t7","label":"yes","probabilities":{"no":0.25,"yes":0.75}}"#
        );
        assert_eq!(Prediction::tsv_header(&problem), "id\tlabel\tno\tyes");
        assert_eq!(prediction.to_tsv("a\t7", &task(&problem)), "a\\t7\tyes\t0.250000\t0.750000");
        let tags = Problem::Tags { labels: vec!["O".into(), "B".into()] };
        let words = Prediction::Words(vec![vec![0.9, 0.1], vec![0.2, 0.8]]);
        assert_eq!(words.to_json("s", &task(&tags), 0, ""), r#"{"id":"s","tags":["O","B"],"probabilities":[0.9,0.8]}"#);
        assert_eq!(words.to_tsv("s", &task(&tags)), "s\tO B\t0.900000 0.800000");
        assert_eq!(Prediction::Class(vec![0.5, 0.5]).to_tsv("c", &task(&Problem::Choice)), "c\t0\t0.500000 0.500000");
        assert_eq!(Prediction::Number(2.5).to_json("n", &task(&Problem::Number), 0, ""), r#"{"id":"n","number":2.5}"#);
        assert_eq!(
            Prediction::Number(2.5).to_json("n", &task(&Problem::Number), 436, ""),
            r#"{"id":"n","number":2.5,"truncated":436}"#
        );
    }

    #[test]
    fn places_have_a_unit_and_values_of_tables_no_ends() {
        let text = "né 😀 old";
        for (offsets, expected) in [(Offsets::Characters, 5..8), (Offsets::Bytes, 9..12), (Offsets::Utf16, 6..9)] {
            assert_eq!(offsets.of(text, &(9..12)), expected);
        }
        assert_eq!((&*escaped("a\\b"), &*escaped("a\\\tb\r\n")), ("a\\b", "a\\\\\\tb\\r\\n"));
    }

    #[test]
    fn a_line_has_the_likeliest_of_many_classes() {
        let labels: Vec<String> = (0..5000).map(|class| format!("c{class}")).collect();
        let problem = Problem::Classes { labels };
        let mut p = vec![1e-4; 5000];
        (p[4321], p[17]) = (0.3, 0.2);
        let line: Value = serde_json::from_str(&Prediction::Class(p).to_json("a", &task(&problem), 0, "")).unwrap();
        let named = line["probabilities"].as_object().unwrap();
        assert_eq!((line["label"].as_str(), named.len()), (Some("c4321"), NAMED));
        assert!(named.contains_key("c4321") && named.contains_key("c17") && named.contains_key("c0"));
    }

    #[test]
    fn scores_far_apart_have_probabilities() {
        assert_eq!(softmax(&[1000.0, -1000.0]), [1.0, 0.0]);
        let p = softmax(&[0.0, 3.0f32.ln()]);
        assert!((p[0] - 0.25).abs() < 1e-6 && (p[1] - 0.75).abs() < 1e-6, "{p:?}");
    }
}
