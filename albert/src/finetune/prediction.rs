//! From scores to predictions, their averages over models, and how they are written.
//!
//! ```text
//! classes, options    softmax of the scores                    average: of the probabilities
//! labels              1 / (1 + exp(-z)) of each score z        average: of the probabilities
//! number              the score                                average: of the numbers
//! words               softmax of each word's scores            average: of the probabilities
//! answers             decoded from windows, see `span`         average: of the probabilities of equal texts
//! ```
//!
//! As JSON, one object a line: `{"id":"7","label":"yes","probabilities":{"no":0.1,"yes":0.9}}`; as TSV, columns under a
//! header. Averages are taken in f64, in the order of the models.

use std::ops::Range;

use serde_json::{Map, Value, json};

use super::feature::{Feature, Target};
use super::loss::WindowScore;
use super::{Examples, FinetuneError, Task};
use crate::span::{self, Absent, Answers, DecodeSettings, SpanFeature, Threshold, WindowScores};
use crate::tasks::{Label, Problem, Question};

/// What a model, or several, says of an example.
#[derive(Clone, Debug, PartialEq)]
pub enum Prediction {
    /// The probability of each class or option; of each label by itself where there may be several.
    Class(Vec<f32>),
    /// A number.
    Number(f32),
    /// The probability of each class, word by word.
    Words(Vec<Vec<f32>>),
    /// Parts of the passage.
    Answers(Answers),
}

/// The index of the greatest, the first of equals.
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
    let powers: Vec<f64> = scores.iter().map(|&z| f64::from(z - highest).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|power| (power / sum) as f32).collect()
}

fn sigmoid(z: f32) -> f32 {
    (1.0 / (1.0 + (-f64::from(z)).exp())) as f32
}

/// The labels whose probability is one half or more.
fn likely<'l>(labels: &'l [String], p: &'l [f32]) -> impl Iterator<Item = &'l str> {
    labels.iter().zip(p).filter(|&(_, &p)| p >= 0.5).map(|(label, _)| label.as_str())
}

/// The predictions of `examples` from the scores of their features.
pub(super) fn predictions(
    problem: &Problem,
    examples: Range<usize>,
    features: &[Feature],
    scores: &[Vec<f32>],
) -> Vec<Prediction> {
    let first = examples.start;
    let mut out: Vec<Prediction> = examples.map(|_| Prediction::Words(Vec::new())).collect();
    for (feature, scores) in features.iter().zip(scores) {
        let place = &mut out[feature.example - first];
        match (&feature.target, problem) {
            (Target::Words { pieces, .. }, _) => {
                let width = scores.len() / pieces.len().max(1);
                if let Prediction::Words(words) = place {
                    words.extend(scores.chunks_exact(width.max(1)).map(softmax));
                }
            }
            (_, Problem::Number) => *place = Prediction::Number(scores[0]),
            (_, Problem::Labels { .. }) => *place = Prediction::Class(scores.iter().map(|&z| sigmoid(z)).collect()),
            _ => *place = Prediction::Class(softmax(scores)),
        }
    }
    out
}

/// The answers to `questions` from what was said of their windows, which stand one after another.
pub(super) fn answers(
    questions: &[Question],
    features: &[Feature],
    scores: &[WindowScore],
    settings: &DecodeSettings,
) -> Vec<Prediction> {
    let mut of_question: Vec<(Vec<SpanFeature>, Vec<WindowScores<'_>>)> = vec![Default::default(); questions.len()];
    for (feature, score) in features.iter().zip(scores) {
        let Target::Span { window: Some(window), .. } = &feature.target else {
            unreachable!("questions that are predicted keep their windows")
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

/// The mean of what several models say of the same examples.
///
/// # Errors
/// They do not speak of the same classes.
pub fn average(lists: Vec<Vec<Prediction>>) -> Result<Vec<Prediction>, FinetuneError> {
    let count = lists.len() as f64;
    if let Some(Prediction::Answers(_)) = lists.first().and_then(|list| list.first()) {
        return Ok(average_answers(&lists));
    }
    let other = || FinetuneError::Data("the models have different classes, so their predictions have no mean".into());
    let mut lists = lists.into_iter();
    let Some(mut sums) = lists.next().map(|list| list.iter().map(Sum::of).collect::<Vec<_>>()) else {
        return Err(FinetuneError::Data("no model was given".into()));
    };
    for list in lists {
        if list.len() != sums.len() {
            return Err(other());
        }
        for (sum, prediction) in sums.iter_mut().zip(&list) {
            let values = Sum::of(prediction);
            if values.widths != sum.widths {
                return Err(other());
            }
            sum.values.iter_mut().zip(&values.values).for_each(|(sum, value)| *sum += value);
        }
    }
    Ok(sums.into_iter().map(|sum| sum.over(count)).collect())
}

fn average_answers(lists: &[Vec<Prediction>]) -> Vec<Prediction> {
    let of = |prediction: &Prediction| match prediction {
        Prediction::Answers(answers) => answers.clone(),
        _ => unreachable!("models of one problem"),
    };
    if let [only] = lists {
        return only.clone();
    }
    (0..lists[0].len())
        .map(|at| {
            let all: Vec<Answers> = lists.iter().map(|list| of(&list[at])).collect();
            Prediction::Answers(span::average(&all, Absent::default()))
        })
        .collect()
}

/// The values of a prediction one after another, and how they belong together.
struct Sum {
    kind: u8,
    widths: Vec<usize>,
    values: Vec<f64>,
}

impl Sum {
    fn of(prediction: &Prediction) -> Self {
        let wide = |values: &[f32]| values.iter().map(|&value| f64::from(value)).collect::<Vec<_>>();
        match prediction {
            Prediction::Class(values) => Self { kind: 0, widths: vec![values.len()], values: wide(values) },
            Prediction::Number(value) => Self { kind: 1, widths: vec![1], values: vec![f64::from(*value)] },
            Prediction::Words(words) => Self {
                kind: 2,
                widths: words.iter().map(Vec::len).collect(),
                values: words.iter().flat_map(|word| wide(word)).collect(),
            },
            Prediction::Answers(_) => unreachable!("answers are averaged by their texts"),
        }
    }

    fn over(self, count: f64) -> Prediction {
        let mut values = self.values.into_iter().map(|sum| (sum / count) as f32);
        match self.kind {
            0 => Prediction::Class(values.collect()),
            1 => Prediction::Number(values.next().unwrap_or(0.0)),
            _ => Prediction::Words(self.widths.iter().map(|&width| values.by_ref().take(width).collect()).collect()),
        }
    }
}

impl Prediction {
    /// As a label, where there is one for the whole example.
    pub fn label(&self) -> Option<Label> {
        match self {
            Self::Class(probabilities) => Some(Label::Class(greatest(probabilities) as u32)),
            Self::Number(number) => Some(Label::Number(*number)),
            Self::Words(_) | Self::Answers(_) => None,
        }
    }

    /// One line of JSON about example `id`, of which `truncated` pieces did not fit the model (the key is there if some
    /// did not). Of more than 100 classes the 100 likeliest have a probability in it.
    pub fn to_json(&self, id: &str, task: &Task, truncated: usize) -> String {
        let rounded = |p: f32| json!((f64::from(p) * 1e6).round() / 1e6);
        let mut line = Map::new();
        line.insert("id".into(), json!(id));
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
                let labels = super::start::labels_of(problem);
                line.insert("tags".into(), words.iter().map(|p| json!(labels[greatest(p)])).collect());
                line.insert("probabilities".into(), words.iter().map(|p| rounded(p[greatest(p)])).collect());
            }
            (Self::Answers(answers), _) => {
                line.insert("answer".into(), json!(threshold_of(task).answer(answers)));
                line.insert("null_score".into(), json!(answers.null_score));
                let shown = answers.candidates.iter().take(SHOWN).map(|candidate| {
                    let share = rounded(candidate.probability as f32);
                    let Range { start, end } = candidate.bytes;
                    json!({"text": candidate.text, "probability": share, "bytes": [start, end]})
                });
                line.insert("candidates".into(), shown.collect());
            }
        }
        if truncated > 0 {
            line.insert("truncated".into(), json!(truncated));
        }
        Value::Object(line).to_string()
    }

    /// The header of the lines that [`Prediction::to_tsv`] gives.
    pub fn tsv_header(problem: &Problem) -> String {
        match problem {
            Problem::Number => "id\tnumber".into(),
            Problem::Classes { labels } => format!("id\tlabel\t{}", labels.join("\t")),
            Problem::Labels { labels } => format!("id\tlabels\t{}", labels.join("\t")),
            Problem::Tags { .. } => "id\ttags\tprobabilities".into(),
            Problem::Choice => "id\toption\tprobabilities".into(),
            Problem::Span { .. } => "id\tanswer\tprobability\tnull_score".into(),
        }
    }

    /// One line of columns about example `id`; several values of one column stand beside each other with spaces.
    pub fn to_tsv(&self, id: &str, task: &Task) -> String {
        // A tab or a line break in an id would be a column or a row.
        let id = id.replace(['\t', '\n', '\r'], " ");
        let joined = |p: &[f32], by: &str| p.iter().map(|p| format!("{p:.6}")).collect::<Vec<_>>().join(by);
        match (self, &task.problem) {
            (Self::Number(number), _) => format!("{id}\t{number}"),
            (Self::Class(p), Problem::Classes { labels }) => {
                format!("{id}\t{}\t{}", labels[greatest(p)], joined(p, "\t"))
            }
            (Self::Class(p), Problem::Labels { labels }) => {
                format!("{id}\t{}\t{}", likely(labels, p).collect::<Vec<_>>().join(" "), joined(p, "\t"))
            }
            (Self::Class(p), _) => format!("{id}\t{}\t{}", greatest(p), joined(p, " ")),
            (Self::Words(words), problem) => {
                let labels = super::start::labels_of(problem);
                let tags: Vec<_> = words.iter().map(|p| labels[greatest(p)].as_str()).collect();
                let best: Vec<f32> = words.iter().map(|p| p[greatest(p)]).collect();
                format!("{id}\t{}\t{}", tags.join(" "), joined(&best, " "))
            }
            (Self::Answers(answers), _) => {
                let text = threshold_of(task).answer(answers).replace(['\t', '\n', '\r'], " ");
                let share = answers.candidates.first().map_or(0.0, |best| best.probability);
                format!("{id}\t{text}\t{share:.6}\t{:.6}", answers.null_score)
            }
        }
    }
}

/// Candidates that a line of JSON has.
const SHOWN: usize = 5;

/// Classes whose probabilities a line of JSON has: with all of them, lines would grow with the number of classes, and a
/// file with its square where every example has a class of its own.
const NAMED: usize = 100;

/// The classes that a line names, in the order of the classes: all, or the [`NAMED`] likeliest.
fn likeliest(p: &[f32]) -> Vec<usize> {
    let mut classes: Vec<usize> = (0..p.len()).collect();
    if p.len() > NAMED {
        // Stable: of equals the first.
        classes.sort_by(|&a, &b| p[b].total_cmp(&p[a]));
        classes.truncate(NAMED);
        classes.sort_unstable();
    }
    classes
}

/// From which null score on there is no answer, as the task says ([`SpanRecipe::null_threshold`]).
pub fn threshold_of(task: &Task) -> Threshold {
    match task.problem {
        Problem::Span { may_be_impossible: true } => Threshold::Fixed(task.span.null_threshold.unwrap_or(0.0)),
        _ => Threshold::Never,
    }
}

/// What is right about each example, as far as it is known; compare [`Prediction`].
#[derive(Clone, Debug, PartialEq)]
pub enum Gold {
    /// A class or an option.
    Class(u32),
    /// A number.
    Number(f32),
    /// A class for each word.
    Words(Vec<u32>),
}

/// What is right about example `at`; `None` if unknown.
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
            prediction.to_json("a\t7", &task(&problem), 0),
            r#"{"id":"a\t7","label":"yes","probabilities":{"no":0.25,"yes":0.75}}"#
        );
        assert_eq!(Prediction::tsv_header(&problem), "id\tlabel\tno\tyes");
        assert_eq!(prediction.to_tsv("a\t7", &task(&problem)), "a 7\tyes\t0.250000\t0.750000");
        let tags = Problem::Tags { labels: vec!["O".into(), "B".into()] };
        let words = Prediction::Words(vec![vec![0.9, 0.1], vec![0.2, 0.8]]);
        assert_eq!(words.to_json("s", &task(&tags), 0), r#"{"id":"s","tags":["O","B"],"probabilities":[0.9,0.8]}"#);
        assert_eq!(words.to_tsv("s", &task(&tags)), "s\tO B\t0.900000 0.800000");
        assert_eq!(Prediction::Class(vec![0.5, 0.5]).to_tsv("c", &task(&Problem::Choice)), "c\t0\t0.500000 0.500000");
        assert_eq!(Prediction::Number(2.5).to_json("n", &task(&Problem::Number), 0), r#"{"id":"n","number":2.5}"#);
        assert_eq!(
            Prediction::Number(2.5).to_json("n", &task(&Problem::Number), 436),
            r#"{"id":"n","number":2.5,"truncated":436}"#
        );
    }

    #[test]
    fn a_line_has_the_likeliest_of_many_classes() {
        let labels: Vec<String> = (0..5000).map(|class| format!("c{class}")).collect();
        let problem = Problem::Classes { labels };
        let mut p = vec![1e-4; 5000];
        (p[4321], p[17]) = (0.3, 0.2);
        let line: Value = serde_json::from_str(&Prediction::Class(p).to_json("a", &task(&problem), 0)).unwrap();
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
