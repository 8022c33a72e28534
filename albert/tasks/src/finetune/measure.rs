//! Metrics of predictions, and detection of a collapsed model.
//!
//! A collapsed model predicts the same for all examples: the most frequent class, or the mean. Two signs are checked,
//! and distinguished from a slow start:
//!
//! ```text
//! constant    all dev predictions are one class, while at least two classes occur in the gold labels
//!             numbers: their deviation is below 1 % of that of the gold values
//! at chance   after the warm-up, the mean training loss is not 1 % below that of the simplest constant answer:
//!             classes, words   -Σ_c p_c log p_c                  guessing by frequency, p_c the share of class c
//!             options          the mean of log(options)          guessing one of the options
//!             numbers          the variance of the training set  always answering the mean
//!             answers          the mean of log(window's tokens)  guessing the tokens
//! ```
//!
//! Memory of a measurement is linear in the examples and in the classes: predictions are added in parts ([`Measurer`]),
//! and the confusion matrix stores only pairs that occur.

use std::cmp::Ordering;
use std::collections::HashMap;

use albert::mean::Mean;
use serde::{Deserialize, Serialize};

use super::feature::{Content, Feature, Target};
use super::prediction::{Gold, Prediction, gold, greatest, threshold_of};
use super::{Examples, FinetuneError, FinetuneRecipe, Task, named};
use crate::files::{Problem, Question};
use crate::metrics::{
    self, Confusion, EntityCounts, LevelAccuracy, Metric, PairCount, ThresholdPoint, evaluate_squad1, evaluate_squad2,
    pearson, spearman, threshold_curve,
};

/// Metrics of predictions against the gold answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Metrics by name; the first one selects checkpoints. Metrics are fractions (see [`Metric`]).
    #[serde(with = "named")]
    pub figures: Vec<(String, f64)>,
    /// Mean loss, as in training; `None` for answer spans.
    pub loss: Option<f64>,
    /// Number of examples with a known answer.
    pub count: u64,
    /// Pairs of a gold and a predicted class that occur, with counts; empty for numbers, options and answers.
    pub confusions: Vec<PairCount>,
    /// Description of the common value if all predictions are the same.
    pub constant: Option<String>,
    /// Curve of (null-score threshold, mean F1 from 0 to 1) by rising threshold, for questions that may have no answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub thresholds: Vec<(f64, f64)>,
}

impl Measured {
    /// Metric that selects checkpoints.
    pub fn main(&self) -> f64 {
        self.figures.first().map_or(f64::NEG_INFINITY, |(_, value)| *value)
    }

    /// True if this model replaces `best`, which was measured at an earlier step. The higher main metric wins; for
    /// equal metrics, the lower loss; for equal losses, the earlier step. A NaN metric or loss loses.
    ///
    /// This is the only rule for ties: it determines the saved model of a run and its patience, and so the results of
    /// seeds and ablations.
    pub(crate) fn is_better_than(&self, best: &Self) -> bool {
        let order = |a: f64, b: f64| a.partial_cmp(&b).unwrap_or_else(|| b.is_nan().cmp(&a.is_nan()));
        match order(self.main(), best.main()) {
            Ordering::Greater => true,
            Ordering::Less => false,
            Ordering::Equal => {
                // Negated, because the lower loss wins.
                let both = self.loss.zip(best.loss);
                both.is_some_and(|(own, other)| order(-own, -other) == Ordering::Greater)
            }
        }
    }
}

/// Pairs of gold and predicted classes, and of gold and predicted numbers.
#[derive(Default)]
struct Pairs {
    classes: Vec<(u32, u32)>,
    numbers: Vec<(f64, f64)>,
    /// Gold and predicted classes of the words of each sentence.
    sentences: Vec<(Vec<u32>, Vec<u32>)>,
    loss: Mean,
    examples: u64,
}

impl Pairs {
    fn add(&mut self, gold: &Gold, prediction: &Prediction) {
        self.examples += 1;
        let mut class = |right: u32, p: &[f32]| {
            self.classes.push((right, greatest(p) as u32));
            // A probability that underflowed to 0 counts as the smallest normal f32.
            self.loss.add(-libm::log(f64::from(p[right as usize].max(f32::MIN_POSITIVE))), 1);
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
                self.loss.add((right - number) * (right - number), 1);
            }
            _ => unreachable!("predictions and examples belong to the same problem"),
        }
    }

    fn confusion(&self, labels: usize) -> Confusion {
        let classes = self.classes.iter().map(|pair| pair.0.max(pair.1) as usize + 1).max().unwrap_or(0);
        // F1 is computed for class 1, which may occur neither in the gold labels nor in the predictions.
        let mut confusion = Confusion::new(classes.max(labels).max(2));
        self.classes.iter().for_each(|&(right, predicted)| confusion.add(right, predicted));
        confusion
    }
}

/// Computes the task's metrics of `predictions`. Examples with unknown answers are skipped; `None` if all are unknown.
///
/// # Errors
/// Questions cannot be evaluated: two share an id, or a model's scores are not finite.
pub fn measure(
    task: &Task,
    examples: &Examples,
    predictions: &[Prediction],
) -> Result<Option<Measured>, FinetuneError> {
    if let Examples::Questions(questions) = examples {
        return measure_answers(task, questions, predictions).map(Some);
    }
    let mut measurer = Measurer::new(task, examples);
    measurer.add(0, predictions);
    Ok(measurer.finish())
}

/// Incremental [`measure`], so that predictions need not be in memory together. Not for answer spans.
pub(super) struct Measurer<'e> {
    task: &'e Task,
    examples: &'e Examples,
    pairs: Pairs,
    levels: LevelAccuracy,
}

impl<'e> Measurer<'e> {
    pub(super) fn new(task: &'e Task, examples: &'e Examples) -> Self {
        Self { task, examples, pairs: Pairs::default(), levels: LevelAccuracy::default() }
    }

    /// Adds the predictions of consecutive examples, starting at index `first`.
    pub(super) fn add(&mut self, first: usize, predictions: &[Prediction]) {
        for (at, prediction) in (first..).zip(predictions) {
            let Some(gold) = gold(self.examples, at) else { continue };
            self.pairs.add(&gold, prediction);
            if let (Examples::Choices(choices), Gold::Class(right), Prediction::Class(p)) =
                (self.examples, &gold, prediction)
                && let Some(level) = choices[at].level
            {
                self.levels.add(level, greatest(p) as u32 == *right);
            }
        }
    }

    /// Metrics of all added predictions; `None` if no example has a known answer.
    pub(super) fn finish(self) -> Option<Measured> {
        let Self { task, pairs, levels, .. } = self;
        if pairs.examples == 0 {
            return None;
        }
        let labels = task.problem.labels();
        let confusion = pairs.confusion(labels.len());
        let mut figures: Vec<(String, f64)> = task
            .metrics
            .iter()
            .map(|&metric| (metric.name().to_owned(), figure(metric, &pairs, &confusion, labels)))
            .collect();
        for (name, part) in [("accuracy_middle", levels.middle), ("accuracy_high", levels.high)] {
            figures.extend(part.value().map(|value| (name.to_owned(), value)));
        }
        Some(Measured {
            figures,
            loss: pairs.loss.value(),
            count: pairs.examples,
            constant: constant(&task.problem, &pairs),
            confusions: if labels.is_empty() { Vec::new() } else { confusion.outcomes().collect() },
            thresholds: Vec::new(),
        })
    }
}

/// Value of one metric; a correlation with constant values is 0.
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
        Metric::ExactMatch | Metric::SpanF1 => unreachable!("`measure_answers` computes these"),
    }
}

/// Gold answers of questions, in the form of the official evaluations.
pub(super) fn golds(questions: &[Question]) -> Vec<metrics::Gold> {
    let texts = |question: &Question| question.answers.iter().map(|answer| answer.text.clone()).collect();
    questions.iter().map(|question| metrics::Gold { id: question.id.clone(), answers: texts(question) }).collect()
}

/// The official metrics as fractions (the official scripts use percent). If questions may have no answer, metrics at
/// the fixed threshold come first; metrics tuned on the same questions end in `_tuned_here`.
fn measure_answers(task: &Task, questions: &[Question], predictions: &[Prediction]) -> Result<Measured, FinetuneError> {
    let (problem, threshold, golds) = (&task.problem, threshold_of(task), golds(questions));
    let (mut texts, mut nulls, mut answered) = (HashMap::new(), Vec::new(), 0);
    for (question, prediction) in questions.iter().zip(predictions) {
        let Prediction::Answers(answers) = prediction else { unreachable!("questions have answer predictions") };
        texts.insert(question.id.clone(), answers.best().to_owned());
        nulls.push((question.id.clone(), answers.null_score));
        answered += usize::from(!threshold.answer(answers).is_empty());
    }
    let mut figures = Vec::new();
    let mut add = |name: &str, value: f64| figures.push((name.to_owned(), value));
    if *problem == (Problem::Span { may_be_impossible: false }) {
        let scores = evaluate_squad1(&golds, &texts)?;
        add(Metric::SpanF1.name(), scores.all.f1 / 100.0);
        add(Metric::ExactMatch.name(), scores.all.exact / 100.0);
    } else {
        let scores = evaluate_squad2(&golds, &texts, Some(&nulls), threshold.value())?;
        add(Metric::SpanF1.name(), scores.all.f1 / 100.0);
        add(Metric::ExactMatch.name(), scores.all.exact / 100.0);
        for (part, scores) in [("has_answer", scores.has_answer), ("no_answer", scores.no_answer)] {
            if let Some(scores) = scores {
                add(&format!("{}_{part}", Metric::SpanF1.name()), scores.f1 / 100.0);
            }
        }
        if let Some(best) = scores.best {
            add("span_f1_tuned_here", best.f1 / 100.0);
            add("exact_tuned_here", best.exact / 100.0);
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
        confusions: Vec::new(),
        constant: is_silent.then(|| "\"no answer\"".to_owned()),
        thresholds,
    })
}

/// Maximum number of evenly spaced points of a threshold curve.
const POINTS: usize = 200;

/// Evenly spaced points of the curve of F1 over thresholds, including the last.
fn thinned(curve: &[ThresholdPoint]) -> Vec<(f64, f64)> {
    let every = curve.len().div_ceil(POINTS).max(1);
    let last = curve.len().saturating_sub(1);
    let chosen = curve.iter().enumerate().filter(|(at, _)| at.is_multiple_of(every) || *at == last);
    // A question without any candidate has an infinite null score, which cannot be plotted.
    chosen
        .map(|(_, point)| (point.threshold, point.f1 / 100.0))
        .filter(|(threshold, _)| threshold.is_finite())
        .collect()
}

/// Description of the common value of all predictions; `None` if they differ or are too few.
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
            .then(|| format!("the same number (deviation {given:.1e}, of the gold values {right:.2})"));
    }
    let (first, predicted) = *pairs.classes.first()?;
    let is_constant = pairs.classes.iter().all(|pair| pair.1 == predicted);
    let has_others = pairs.classes.iter().any(|pair| pair.0 != first);
    (is_constant && has_others).then(|| match problem.labels().get(predicted as usize) {
        Some(label) => format!("the class {label:?}"),
        None => format!("option {predicted}"),
    })
}

/// Minimum number of examples for a decision; fewer may be equal by chance.
const FEWEST: u64 = 8;

fn variance(values: &[f64]) -> f64 {
    let n = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / n;
    values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / n
}

/// Training loss of the constant answer named by [`baseline`], see the module.
pub(crate) fn chance(problem: &Problem, features: &[Feature]) -> f64 {
    let mut counts = vec![0u64; problem.labels().len()];
    let (mut options, mut numbers) = (Mean::default(), Vec::new());
    for feature in features {
        match (&feature.target, &feature.content) {
            (Target::Class(_), Content::Options { options: list, .. }) => options.add(libm::log(list.len() as f64), 1),
            (Target::Class(Some(class)), _) => counts[*class as usize] += 1,
            (Target::Words { tags, .. }, _) => tags.iter().for_each(|&tag| counts[tag as usize] += 1),
            (Target::Number(Some(number)), _) => numbers.push(f64::from(*number)),
            // The mean of two uniform guesses, of the start and the end token.
            (Target::Span { .. }, content) => options.add(libm::log(content.tokens() as f64), 1),
            (Target::Class(None) | Target::Number(None), _) => {}
        }
    }
    match problem {
        Problem::Number => variance(&numbers),
        Problem::Choice | Problem::Span { .. } => options.value().unwrap_or(0.0),
        _ => {
            let total = counts.iter().sum::<u64>().max(1) as f64;
            let shares = counts.iter().filter(|&&count| count > 0).map(|&count| count as f64 / total);
            shares.map(|p| -p * libm::log(p)).sum()
        }
    }
}

/// Baseline whose loss is [`chance`], as a phrase for messages.
pub(crate) fn baseline(problem: &Problem) -> &'static str {
    match problem {
        Problem::Classes { .. } | Problem::Labels { .. } | Problem::Tags { .. } => "guessing by frequency",
        Problem::Choice => "guessing one of the options",
        Problem::Number => "always answering the mean",
        Problem::Span { .. } => "guessing the tokens",
    }
}

/// Steps before which constant predictions only indicate an early stage of training, and a mean loss is noise.
pub(super) const FEW_STEPS: u64 = 20;

/// Evaluation and state of the run, the input of [`collapse`].
#[derive(Clone, Copy, Debug)]
pub(super) struct CollapseCheck<'m> {
    pub(super) problem: &'m Problem,
    pub(super) measured: &'m Measured,
    /// Mean training loss since the last evaluation; `None` if it covers too few steps.
    pub(super) loss: Option<f64>,
    /// Loss of the baseline: [`chance`].
    pub(super) chance: f64,
    /// Number of completed optimizer steps.
    pub(super) step: u64,
    /// True after the warm-up.
    pub(super) is_warm: bool,
    /// True at the last step.
    pub(super) is_last: bool,
}

/// Warning about a collapsed run, with remedies. `None` in the first [`FEW_STEPS`] steps, except at the last step.
pub(super) fn collapse(recipe: &FinetuneRecipe, check: CollapseCheck<'_>) -> Option<String> {
    let CollapseCheck { problem, measured, chance, step, .. } = check;
    if !check.is_warm || (step < FEW_STEPS && !check.is_last) {
        return None;
    }
    let at_chance = check.loss.filter(|loss| chance > 0.0 && *loss >= 0.99 * chance).map(|loss| {
        let relation = if loss <= 1.05 * chance { "that" } else { "above that" };
        format!("the training loss {loss:.4} is {relation} of {} ({chance:.4})", baseline(problem))
    });
    let sign = match (&measured.constant, at_chance) {
        (Some(what), Some(loss)) => format!("all {} dev predictions are {what}, and {loss}", measured.count),
        (Some(what), None) => format!("all {} dev predictions are {what}", measured.count),
        (None, Some(loss)) => format!("after the warm-up {loss}"),
        (None, None) => return None,
    };
    if step < FEW_STEPS {
        let text = format!("the model has learned nothing in {step} steps: {sign}; train longer (schedule.epochs)");
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
        let confusions = of(&poor).confusions;
        assert_eq!(confusions.iter().map(|pair| pair.count).sum::<u64>(), 20);
        assert_eq!(confusions.iter().filter(|pair| pair.predicted == 1).map(|pair| pair.count).sum::<u64>(), 1);
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
        let recipe = FinetuneRecipe::for_model(&albert::config::AlbertConfig::preset("xlarge").unwrap());
        let healthy = Measured { count: 100, ..Measured::default() };
        let constant = Measured { constant: Some("the class \"1\"".into()), ..healthy.clone() };
        let classes = &problems()[0];
        let after = |problem, measured, loss, step, is_warm, is_last| {
            collapse(&recipe, CollapseCheck { problem, measured, loss, chance: 0.693, step, is_warm, is_last })
        };
        assert_eq!(after(classes, &healthy, Some(0.60), 100, true, false), None);
        assert_eq!(after(classes, &healthy, Some(0.70), 100, false, false), None);
        assert_eq!(after(classes, &healthy, None, 100, true, false), None);
        // Constant predictions are normal during the warm-up.
        assert_eq!(after(classes, &constant, Some(0.70), 100, false, false), None);
        for (problem, measured, loss, expected) in [
            (classes, &constant, Some(0.60), "all 100 dev predictions are the class \"1\";"),
            (classes, &constant, None, "all 100 dev predictions are the class \"1\";"),
            (classes, &constant, Some(0.70), "and the training loss 0.7000 is that of guessing by frequency (0.6930)"),
            (classes, &healthy, Some(0.70), "the training loss 0.7000 is that of guessing by frequency (0.6930)"),
            (&Problem::Choice, &healthy, Some(0.70), "is that of guessing one of the options (0.6930)"),
            (&Problem::Number, &healthy, Some(0.70), "is that of always answering the mean (0.6930)"),
            (&Problem::Number, &healthy, Some(1.4), "1.4000 is above that of always answering the mean (0.6930)"),
        ] {
            let text = after(problem, measured, loss, 100, true, false).unwrap();
            assert!(text.contains(expected), "{text}");
            assert!(text.contains("learning_rate=2.5e-6, now 1e-5") && text.contains("examples_per_step=64"), "{text}");
        }
        // After three steps no other rate helps. There is no warning while steps remain.
        assert_eq!(after(classes, &constant, Some(0.60), 3, true, false), None);
        let text = after(classes, &constant, Some(0.60), 3, true, true).unwrap();
        assert!(
            text.contains("nothing in 3 steps") && text.contains("schedule.epochs") && !text.contains("rate"),
            "{text}"
        );
    }

    #[test]
    fn ties_go_to_the_lower_loss_and_then_to_the_earlier_step() {
        let of = |figure: f64, loss: Option<f64>| Measured {
            figures: vec![("accuracy".into(), figure)],
            loss,
            ..Measured::default()
        };
        for (later, earlier, is_better) in [
            (of(0.9, Some(1.0)), of(0.8, Some(0.1)), true),
            (of(0.8, Some(0.1)), of(0.9, Some(1.0)), false),
            (of(1.0, Some(0.003)), of(1.0, Some(0.457)), true),
            (of(1.0, Some(0.457)), of(1.0, Some(0.003)), false),
            (of(1.0, Some(0.5)), of(1.0, Some(0.5)), false),
            (of(1.0, None), of(1.0, None), false),
            (of(f64::NAN, Some(0.1)), of(0.0, Some(0.5)), false),
            (of(0.0, Some(0.5)), of(f64::NAN, Some(0.1)), true),
            (of(1.0, Some(f64::NAN)), of(1.0, Some(0.5)), false),
            (of(1.0, Some(0.5)), of(1.0, Some(f64::NAN)), true),
        ] {
            assert_eq!(later.is_better_than(&earlier), is_better, "{later:?} after {earlier:?}");
        }
    }

    #[test]
    fn the_curve_of_thresholds_meets_the_official_figures() {
        let problem = Problem::Span { may_be_impossible: true };
        let Examples::Questions(questions) = made_up(&problem, 300, 3) else { unreachable!() };
        let predictions: Vec<_> = (0..)
            .zip(&questions)
            .map(|(at, question)| {
                // Every third answer is wrong; null scores of the two kinds of question differ but overlap.
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
        assert!((highest - named("span_f1_tuned_here")).abs() < 0.01, "{highest}: {:?}", measured.figures);
        assert!(measured.thresholds.is_sorted_by(|a, b| a.0 <= b.0) && measured.thresholds.len() <= POINTS + 1);
        assert!(named("span_f1_tuned_here") >= measured.main());
    }
}
