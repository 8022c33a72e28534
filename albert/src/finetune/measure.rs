//! How good predictions are, and whether a model has collapsed.
//!
//! A model collapses when it gives up on the examples and says the same of all of them: the commonest class, or the mean.
//! Two signs are looked for, which have to be told from a slow start:
//!
//! ```text
//! constant    all dev predictions are one class, of at least two that are right somewhere
//!             numbers: their deviation is below 1 % of the right ones'
//! at chance   after the warm-up, the mean training loss is not 1 % below that of guessing by frequency:
//!             classes, words   -Σ_c p_c log p_c         p_c the share of class c in the training set
//!             options          the mean of log(number of options)
//!             numbers          the variance of the training set
//!             answers          the mean of log(tokens of the window)
//! ```

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::feature::{Content, Feature, Target};
use super::prediction::{Gold, Prediction, gold, greatest, threshold_of};
use super::{Examples, FinetuneError, Recipe, Task};
use crate::metrics::{
    self, Confusion, EntityCounts, LevelAccuracy, Mean, Metric, ThresholdPoint, evaluate_squad1, evaluate_squad2,
    pearson, spearman, threshold_curve,
};
use crate::tasks::{Problem, Question};

/// What was measured of predictions beside what is right.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Figures by name; the first is what checkpoints are chosen by. More is better.
    pub figures: Vec<(String, f64)>,
    /// Mean loss, as in training; absent for answers in text.
    pub loss: Option<f64>,
    /// Examples with a known answer.
    pub count: u64,
    /// How often each class was right (rows) and predicted (columns); empty for numbers and options.
    pub confusion: Vec<Vec<u64>>,
    /// What all predictions have in common, in words, if they do.
    pub constant: Option<String>,
    /// Of answers that may be missing: (threshold of the null score, mean F1 in percent), by rising threshold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub thresholds: Vec<(f64, f64)>,
}

impl Measured {
    /// The figure that checkpoints are chosen by.
    pub fn main(&self) -> f64 {
        self.figures.first().map_or(f64::NEG_INFINITY, |(_, value)| *value)
    }
}

/// Pairs of classes, right and predicted, and pairs of numbers.
#[derive(Default)]
struct Pairs {
    classes: Vec<(u32, u32)>,
    numbers: Vec<(f64, f64)>,
    /// Classes of the words of each sentence.
    sentences: Vec<(Vec<u32>, Vec<u32>)>,
    loss: Mean,
    examples: u64,
}

impl Pairs {
    fn add(&mut self, gold: &Gold, prediction: &Prediction) {
        self.examples += 1;
        let mut class = |right: u32, p: &[f32]| {
            self.classes.push((right, greatest(p) as u32));
            // A probability of 0 is one that f32 cannot tell from it.
            self.loss.add(-f64::from(p[right as usize].max(f32::MIN_POSITIVE)).ln(), 1);
        };
        match (gold, prediction) {
            (Gold::Class(right), Prediction::Class(p)) => class(*right, p),
            (Gold::Words(right), Prediction::Words(words)) => {
                right.iter().zip(words).for_each(|(&right, p)| class(right, p));
                let given = words.iter().map(|p| greatest(p) as u32).collect();
                self.sentences.push((right.clone(), given));
            }
            (Gold::Number(right), Prediction::Number(number)) => {
                let (right, number) = (f64::from(*right), f64::from(*number));
                self.numbers.push((right, number));
                self.loss.add((right - number).powi(2), 1);
            }
            _ => unreachable!("predictions are made for the problem of the examples"),
        }
    }

    fn confusion(&self, labels: usize) -> Confusion {
        let classes = self.classes.iter().map(|pair| pair.0.max(pair.1) as usize + 1).max().unwrap_or(0);
        // F1 is that of class 1, which may be neither right nor predicted.
        let mut confusion = Confusion::new(classes.max(labels).max(2));
        self.classes.iter().for_each(|&(right, predicted)| confusion.add(right, predicted));
        confusion
    }
}

/// Measures `predictions` of `examples` in the task's metrics; examples whose answer is unknown do not count. `None` if
/// all are unknown.
///
/// # Errors
/// Questions cannot be evaluated: two have one id, or a model's scores are not finite.
pub fn measure(
    task: &Task,
    examples: &Examples,
    predictions: &[Prediction],
) -> Result<Option<Measured>, FinetuneError> {
    if let Examples::Questions(questions) = examples {
        return measure_answers(task, questions, predictions).map(Some);
    }
    let mut pairs = Pairs::default();
    for (at, prediction) in predictions.iter().enumerate() {
        if let Some(gold) = gold(examples, at) {
            pairs.add(&gold, prediction);
        }
    }
    if pairs.examples == 0 {
        return Ok(None);
    }
    let labels = super::start::labels_of(&task.problem);
    let confusion = pairs.confusion(labels.len());
    let mut figures: Vec<(String, f64)> = task
        .metrics
        .iter()
        .map(|&metric| (metric.name().to_owned(), figure(metric, &pairs, &confusion, labels)))
        .collect();
    figures.extend(levels(examples, predictions));
    let square = |classes: usize| {
        (0..classes).map(|row| (0..classes).map(|column| confusion.count(row, column)).collect()).collect()
    };
    Ok(Some(Measured {
        figures,
        loss: pairs.loss.value(),
        count: pairs.examples,
        constant: constant(&task.problem, &pairs),
        confusion: square(labels.len()),
        thresholds: Vec::new(),
    }))
}

/// One figure; a correlation with what is constant is 0.
fn figure(metric: Metric, pairs: &Pairs, confusion: &Confusion, labels: &[String]) -> f64 {
    let [right, given]: [Vec<f64>; 2] =
        [pairs.numbers.iter().map(|pair| pair.0).collect(), pairs.numbers.iter().map(|pair| pair.1).collect()];
    match metric {
        Metric::Accuracy => confusion.accuracy(),
        Metric::F1 => confusion.f1(1),
        Metric::MacroF1 => confusion.macro_f1(),
        Metric::Matthews => confusion.matthews(),
        Metric::Pearson => pearson(&right, &given).unwrap_or(0.0),
        Metric::Spearman => spearman(&right, &given).unwrap_or(0.0),
        Metric::EntityF1 => {
            let mut counts = EntityCounts::default();
            let names = |classes: &[u32]| classes.iter().map(|&class| &labels[class as usize]).collect::<Vec<_>>();
            for (right, given) in &pairs.sentences {
                counts.add(&names(right), &names(given));
            }
            counts.f1()
        }
        Metric::ExactMatch | Metric::SpanF1 => unreachable!("answers are measured apart"),
    }
}

/// What is right about questions, as the official evaluations take it.
pub(super) fn golds(questions: &[Question]) -> Vec<metrics::Gold> {
    let texts = |question: &Question| question.answers.iter().map(|answer| answer.text.clone()).collect();
    questions.iter().map(|question| metrics::Gold { id: question.id.clone(), answers: texts(question) }).collect()
}

/// The official figures. Where there may be no answer, those at the fixed threshold come first; what was tuned on these
/// very questions is called so.
fn measure_answers(task: &Task, questions: &[Question], predictions: &[Prediction]) -> Result<Measured, FinetuneError> {
    let (problem, threshold, golds) = (&task.problem, threshold_of(task), golds(questions));
    let (mut texts, mut nulls, mut answered) = (HashMap::new(), Vec::new(), 0);
    for (question, prediction) in questions.iter().zip(predictions) {
        let Prediction::Answers(answers) = prediction else { unreachable!("questions are answered") };
        texts.insert(question.id.clone(), answers.best().to_owned());
        nulls.push((question.id.clone(), answers.null_score));
        answered += usize::from(!threshold.answer(answers).is_empty());
    }
    let mut figures = Vec::new();
    let mut add = |name: &str, value: f64| figures.push((name.to_owned(), value));
    if *problem == (Problem::Span { may_be_impossible: false }) {
        let scores = evaluate_squad1(&golds, &texts)?;
        add(Metric::SpanF1.name(), scores.all.f1);
        add(Metric::ExactMatch.name(), scores.all.exact);
    } else {
        let scores = evaluate_squad2(&golds, &texts, Some(&nulls), threshold.value())?;
        add(Metric::SpanF1.name(), scores.all.f1);
        add(Metric::ExactMatch.name(), scores.all.exact);
        for (part, scores) in [("has_answer", scores.has_answer), ("no_answer", scores.no_answer)] {
            if let Some(scores) = scores {
                add(&format!("{}_{part}", Metric::SpanF1.name()), scores.f1);
            }
        }
        if let Some(best) = scores.best {
            add("span_f1_tuned_here", best.f1);
            add("exact_tuned_here", best.exact);
            add("threshold_tuned_here", best.f1_threshold);
        }
    }
    let may_be_impossible = matches!(problem, Problem::Span { may_be_impossible: true });
    let thresholds = if may_be_impossible { thinned(&threshold_curve(&golds, &texts, &nulls)?) } else { Vec::new() };
    let has_answers = golds.iter().any(|gold| !gold.answers.is_empty());
    let is_silent = answered == 0 && has_answers && golds.len() as u64 >= FEWEST;
    Ok(Measured {
        figures,
        loss: None,
        count: questions.len() as u64,
        confusion: Vec::new(),
        constant: is_silent.then(|| "that there is no answer".to_owned()),
        thresholds,
    })
}

/// Most points of a curve of thresholds.
const POINTS: usize = 200;

/// Evenly chosen points of the curve of F1 over thresholds, the last among them.
fn thinned(curve: &[ThresholdPoint]) -> Vec<(f64, f64)> {
    let every = curve.len().div_ceil(POINTS).max(1);
    let last = curve.len().saturating_sub(1);
    let chosen = curve.iter().enumerate().filter(|(at, _)| at.is_multiple_of(every) || *at == last);
    // A question without any candidate has an infinite null score, which no axis reaches.
    chosen.map(|(_, point)| (point.threshold, point.f1)).filter(|(threshold, _)| threshold.is_finite()).collect()
}

/// Accuracies of the levels of RACE.
fn levels(examples: &Examples, predictions: &[Prediction]) -> Vec<(String, f64)> {
    let Examples::Choices(choices) = examples else { return Vec::new() };
    let mut levels = LevelAccuracy::default();
    for (choice, prediction) in choices.iter().zip(predictions) {
        if let (Some(answer), Some(level), Prediction::Class(p)) = (choice.answer, choice.level, prediction) {
            levels.add(level, greatest(p) as u32 == answer);
        }
    }
    [("accuracy_middle", levels.middle), ("accuracy_high", levels.high)]
        .into_iter()
        .filter_map(|(name, part)| Some((name.to_owned(), part.value()?)))
        .collect()
}

/// What all predictions have in common.
fn constant(problem: &Problem, pairs: &Pairs) -> Option<String> {
    if pairs.examples < FEWEST {
        return None;
    }
    if *problem == Problem::Number {
        let [right, given] = [0, 1].map(|side| {
            let values: Vec<f64> = pairs.numbers.iter().map(|pair| [pair.0, pair.1][side]).collect();
            variance(&values).sqrt()
        });
        return (given < 0.01 * right)
            .then(|| format!("the same number (deviation {given:.1e}, of the right ones {right:.2})"));
    }
    let (first, predicted) = *pairs.classes.first()?;
    let is_constant = pairs.classes.iter().all(|pair| pair.1 == predicted);
    let has_others = pairs.classes.iter().any(|pair| pair.0 != first);
    (is_constant && has_others).then(|| match super::start::labels_of(problem).get(predicted as usize) {
        Some(label) => format!("the class {label:?}"),
        None => format!("option {predicted}"),
    })
}

/// Fewer examples than this may well be alike.
const FEWEST: u64 = 8;

fn variance(values: &[f64]) -> f64 {
    let n = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / n;
    values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / n
}

/// The training loss of who guesses by frequency; see the module.
pub fn chance(problem: &Problem, features: &[Feature]) -> f64 {
    let mut counts = vec![0u64; super::start::labels_of(problem).len()];
    let (mut options, mut numbers) = (Mean::default(), Vec::new());
    for feature in features {
        match (&feature.target, &feature.content) {
            (Target::Class(_), Content::Options { options: list, .. }) => options.add((list.len() as f64).ln(), 1),
            (Target::Class(Some(class)), _) => counts[*class as usize] += 1,
            (Target::Words { tags, .. }, _) => tags.iter().for_each(|&tag| counts[tag as usize] += 1),
            (Target::Number(Some(number)), _) => numbers.push(f64::from(*number)),
            // Two uniform guesses of a token each.
            (Target::Span { .. }, content) => options.add((content.tokens() as f64).ln(), 1),
            (Target::Class(None) | Target::Number(None), _) => {}
        }
    }
    match problem {
        Problem::Number => variance(&numbers),
        Problem::Choice | Problem::Span { .. } => options.value().unwrap_or(0.0),
        _ => {
            let total = counts.iter().sum::<u64>().max(1) as f64;
            let shares = counts.iter().filter(|&&count| count > 0).map(|&count| count as f64 / total);
            shares.map(|p| -p * p.ln()).sum()
        }
    }
}

/// Steps before which a model that says the same of all has not collapsed but only begun, and a mean loss is noise.
pub(super) const FEW_STEPS: u64 = 20;

/// Whether a run has collapsed, as one sentence that says what to try. `loss` is the mean training loss since the last
/// evaluation, if that is of enough steps to judge by, `chance` that of guessing, `step` the steps so far, `is_warm` whether
/// the warm-up is over.
pub(super) fn collapse(
    recipe: &Recipe,
    measured: &Measured,
    loss: Option<f64>,
    chance: f64,
    step: u64,
    is_warm: bool,
) -> Option<String> {
    if !is_warm {
        return None;
    }
    let at_chance = loss.filter(|loss| chance > 0.0 && *loss >= 0.99 * chance);
    let sign = match (&measured.constant, at_chance) {
        (Some(what), Some(loss)) => {
            format!(
                "all {} dev predictions are {what}, and the training loss {loss:.4} is that of guessing ({chance:.4})",
                measured.count
            )
        }
        (Some(what), None) => format!("all {} dev predictions are {what}", measured.count),
        (None, Some(loss)) => {
            format!("after the warm-up the training loss {loss:.4} is still that of guessing ({chance:.4})")
        }
        (None, None) => return None,
    };
    if step < FEW_STEPS {
        let text = format!("the model has learnt nothing in {step} steps: {sign}; give it more (schedule.epochs)");
        return Some(text);
    }
    let rate = recipe.optimizer.learning_rate;
    Some(format!(
        "the model seems to have collapsed: {sign}; try a lower rate (optimizer.learning_rate={:e}, now {rate:e}), more \
         warm-up (schedule.warmup_share=0.2), a larger batch (batch.examples_per_step={}, now {}), clipping at 0.1 \
         (optimizer.clip_norm=0.1, now {}) or another seed (seed={})",
        rate / 4.0,
        2 * recipe.batch.examples_per_step,
        recipe.batch.examples_per_step,
        recipe.optimizer.clip_norm,
        recipe.seed + 1
    ))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{features, made_up, problems, task};
    use super::*;
    use crate::span::{Answers, Candidate};

    fn classes(p: &[f32]) -> Vec<Prediction> {
        p.iter().map(|&p| Prediction::Class(vec![1.0 - p, p])).collect()
    }

    #[test]
    fn a_constant_prediction_is_noticed_and_a_poor_one_is_not() {
        let problem = &problems()[0];
        let examples = made_up(problem, 20, 1);
        let of = |p: &[f32]| measure(&task(problem), &examples, &classes(p)).unwrap().unwrap();
        assert_eq!(of(&[0.4; 20]).constant.as_deref(), Some("the class \"early\""));
        let mut poor = [0.4; 20];
        poor[7] = 0.6;
        assert_eq!(of(&poor).constant, None);
        let confusion = of(&poor).confusion;
        assert_eq!(confusion.iter().flatten().sum::<u64>(), 20);
        assert_eq!(confusion[0][1] + confusion[1][1], 1);
        let Examples::Texts(few) = made_up(problem, 4, 1) else { unreachable!() };
        let few = Examples::Texts(few);
        assert_eq!(measure(&task(problem), &few, &classes(&[0.4; 4])).unwrap().unwrap().constant, None);
        let numbers: Vec<_> = (0..20).map(|at| Prediction::Number(0.5 + 1e-4 * at as f32)).collect();
        let examples = made_up(&Problem::Number, 20, 1);
        let measured = measure(&task(&Problem::Number), &examples, &numbers).unwrap().unwrap();
        assert!(measured.constant.is_some_and(|what| what.contains("the same number")));
    }

    #[test]
    fn chance_is_the_loss_of_guessing_by_frequency() {
        for problem in problems() {
            let features = features(&problem, &made_up(&problem, 400, 1));
            let expected = match &problem {
                Problem::Classes { labels } if labels.len() == 3 => 1.5 * 2f64.ln(),
                Problem::Number => 0.5,
                Problem::Choice => 3f64.ln(),
                // Windows have 17 to 33 tokens.
                Problem::Span { .. } => 25f64.ln(),
                _ => 2f64.ln(),
            };
            let chance = chance(&problem, &features);
            let bound = if matches!(problem, Problem::Span { .. }) { 0.3 } else { 0.06 };
            assert!((chance - expected).abs() < bound, "{problem:?}: {chance}, expected about {expected}");
        }
    }

    #[test]
    fn a_collapse_says_what_to_try() {
        let recipe = Recipe::for_model(&crate::config::AlbertConfig::preset("xlarge").unwrap());
        let healthy = Measured { count: 100, ..Measured::default() };
        let constant = Measured { constant: Some("the class \"1\"".into()), ..healthy.clone() };
        assert_eq!(collapse(&recipe, &healthy, Some(0.60), 0.693, 100, true), None);
        assert_eq!(collapse(&recipe, &healthy, Some(0.70), 0.693, 100, false), None);
        assert_eq!(collapse(&recipe, &healthy, None, 0.693, 100, true), None);
        // In the warm-up a model may say the same of all.
        assert_eq!(collapse(&recipe, &constant, Some(0.70), 0.693, 100, false), None);
        for (measured, loss, expected) in [
            (&constant, Some(0.60), "all 100 dev predictions are the class \"1\";"),
            (&constant, None, "all 100 dev predictions are the class \"1\";"),
            (&constant, Some(0.70), "and the training loss 0.7000 is that of guessing (0.6930)"),
            (&healthy, Some(0.70), "the training loss 0.7000 is still that of guessing"),
        ] {
            let text = collapse(&recipe, measured, loss, 0.693, 100, true).unwrap();
            assert!(text.contains(expected), "{text}");
            assert!(text.contains("learning_rate=2.5e-6, now 1e-5") && text.contains("examples_per_step=64"), "{text}");
        }
        // Three steps teach nothing; no other rate helps.
        let text = collapse(&recipe, &constant, Some(0.60), 0.693, 3, true).unwrap();
        assert!(
            text.contains("nothing in 3 steps") && text.contains("schedule.epochs") && !text.contains("rate"),
            "{text}"
        );
    }

    #[test]
    fn the_curve_of_thresholds_meets_the_official_figures() {
        let problem = Problem::Span { may_be_impossible: true };
        let Examples::Questions(questions) = made_up(&problem, 300, 3) else { unreachable!() };
        let predictions: Vec<_> = (0..)
            .zip(&questions)
            .map(|(at, question)| {
                // Every third answer is wrong; null scores know something, and cross.
                let text = match question.answers.first() {
                    Some(answer) if at % 3 > 0 => answer.text.clone(),
                    _ => "x y".to_owned(),
                };
                let null_score = f64::from(at % 7) / 7.0 + if question.is_impossible { 0.3 } else { -0.3 };
                let candidates = vec![Candidate { text, bytes: 0..1, score: 0.0, probability: 1.0 }];
                Prediction::Answers(Answers { candidates, null_score })
            })
            .collect();
        let examples = Examples::Questions(questions);
        let measured = measure(&task(&problem), &examples, &predictions).unwrap().unwrap();
        let named = |name: &str| measured.figures.iter().find(|(own, _)| own == name).unwrap().1;
        let highest = measured.thresholds.iter().map(|point| point.1).fold(0.0, f64::max);
        assert!((highest - named("span_f1_tuned_here")).abs() < 1.0, "{highest}: {:?}", measured.figures);
        assert!(measured.thresholds.is_sorted_by(|a, b| a.0 <= b.0) && measured.thresholds.len() <= POINTS + 1);
        assert!(named("span_f1_tuned_here") >= measured.main());
    }
}
