//! The official evaluations of SQuAD 1.1 and 2.0.
//!
//! ```text
//! exact   the answer equals one of the annotators' answers, both normalized
//! F1      2·p·r / (p + r) over the words shared with the best of these answers
//! ```
//!
//! Both are means over all questions, in percent. The correct prediction for a question without an answer is the empty text.
//! In 2.0, predictions whose null score (high for an unlikely answer) is above a threshold count as empty; the best threshold
//! for these questions is also reported. Scores at the best threshold are tuned on their own data and must be labeled so.
//!
//! Digits equal those of the official scripts under Python 3.11, whose `sum` adds from left to right in f64. One difference:
//! in 2.0, a question without a prediction counts 0, while the official script fails.
//!
//! Source: Rajpurkar et al. 2016 and 2018.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::answer_text::{normalize_answer, shared_words};

/// A question with its gold answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gold {
    pub id: String,
    /// Answers by annotators; empty for no answer.
    pub answers: Vec<String>,
}

/// Version of the official evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// Unusable input of an evaluation.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EvaluationError {
    /// There are no questions.
    #[error("no question to evaluate; is the file of questions the right one?")]
    NoQuestions,
    /// A duplicate id.
    #[error("duplicate question {0:?}; ids of questions must be unique")]
    TwoQuestions(String),
    /// A SQuAD 1.1 question without an answer.
    #[error("question {0:?} has no answer; evaluate the file as SQuAD 2.0")]
    NoAnswer(String),
    /// A prediction without a null score.
    #[error("question {0:?} has a prediction but no null score; give scores for all questions or for none")]
    NoNullScore(String),
    /// A null score that is NaN.
    #[error("question {0:?} has a null score of NaN; is the output of the model finite?")]
    NullScore(String),
}

/// Scores over some questions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SquadScores {
    /// Share of exact answers, in percent.
    pub exact: f64,
    /// Mean F1, in percent.
    pub f1: f64,
    /// Number of questions.
    pub total: u64,
}

/// Official scores of SQuAD 1.1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Squad1Scores {
    /// Scores of all questions.
    pub all: SquadScores,
    /// Number of questions without a prediction, which count 0.
    pub missing: u64,
}

/// Scores at the best thresholds for these questions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct BestThresholds {
    /// The best share of exact answers, in percent.
    pub exact: f64,
    /// Its threshold: questions with a higher null score have no answer.
    pub exact_threshold: f64,
    /// The best mean F1, in percent.
    pub f1: f64,
    /// Its threshold.
    pub f1_threshold: f64,
}

/// Official scores of SQuAD 2.0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Squad2Scores {
    /// All questions.
    pub all: SquadScores,
    /// Questions with an answer.
    pub has_answer: Option<SquadScores>,
    /// Questions without an answer.
    pub no_answer: Option<SquadScores>,
    /// Scores at the best thresholds, which are tuned on these questions; `None` without null scores.
    pub best: Option<BestThresholds>,
    /// Number of questions without a prediction, which count 0.
    pub missing: u64,
}

/// F1 of the words of two normalized answers. In 2.0 it is 1 if both answers have no words.
fn f1_of_normal(version: Version, gold: &str, prediction: &str) -> f64 {
    let (shared, of_gold, of_prediction) = shared_words(gold, prediction);
    if version == Version::V2 && (of_gold == 0 || of_prediction == 0) {
        return f64::from(u8::from(of_gold == of_prediction));
    }
    if shared == 0 {
        return 0.0;
    }
    let precision = shared as f64 / of_prediction as f64;
    let recall = shared as f64 / of_gold as f64;
    (2.0 * precision * recall) / (precision + recall)
}

/// Scores of a question before any threshold, 0 to 1.
#[derive(Clone, Copy, Default)]
struct Raw {
    exact: f64,
    f1: f64,
}

/// Scores of a prediction against the best gold answer.
fn raw(version: Version, gold: &Gold, prediction: &str) -> Raw {
    let prediction = normalize_answer(prediction);
    let mut answers: Vec<String> = gold.answers.iter().map(|answer| normalize_answer(answer)).collect();
    if version == Version::V2 {
        answers.retain(|answer| !answer.is_empty());
        if answers.is_empty() {
            answers.push(String::new());
        }
    }
    answers.iter().fold(Raw::default(), |best, answer| Raw {
        exact: best.exact.max(f64::from(u8::from(*answer == prediction))),
        f1: best.f1.max(f1_of_normal(version, answer, &prediction)),
    })
}

fn check(golds: &[Gold]) -> Result<(), EvaluationError> {
    if golds.is_empty() {
        return Err(EvaluationError::NoQuestions);
    }
    let mut seen = HashSet::new();
    match golds.iter().find(|gold| !seen.insert(gold.id.as_str())) {
        Some(gold) => Err(EvaluationError::TwoQuestions(gold.id.clone())),
        None => Ok(()),
    }
}

/// 100·Σ / n, from left to right.
fn mean(raws: impl Iterator<Item = Raw>) -> Option<SquadScores> {
    let (mut exact, mut f1, mut total) = (0.0, 0.0, 0u64);
    for raw in raws {
        exact += raw.exact;
        f1 += raw.f1;
        total += 1;
    }
    let n = total as f64;
    (total > 0).then(|| SquadScores { exact: 100.0 * exact / n, f1: 100.0 * f1 / n, total })
}

/// Evaluates predictions for SQuAD 1.1. A question without a prediction counts 0.
///
/// # Errors
/// There are no questions, an id is repeated, or a question has no answer.
pub(crate) fn evaluate_squad1(
    golds: &[Gold],
    predictions: &HashMap<String, String>,
) -> Result<Squad1Scores, EvaluationError> {
    check(golds)?;
    if let Some(gold) = golds.iter().find(|gold| gold.answers.is_empty()) {
        return Err(EvaluationError::NoAnswer(gold.id.clone()));
    }
    let raws = golds.iter().map(|gold| predictions.get(&gold.id).map(|text| raw(Version::V1, gold, text)));
    let raws: Vec<Option<Raw>> = raws.collect();
    let missing = raws.iter().filter(|raw| raw.is_none()).count() as u64;
    let all = mean(raws.into_iter().map(Option::unwrap_or_default)).ok_or(EvaluationError::NoQuestions)?;
    Ok(Squad1Scores { all, missing })
}

/// Evaluates predictions for SQuAD 2.0. A question without a prediction counts 0. With null scores, a prediction whose score
/// is above `threshold` (officially 1) counts as empty, and the best thresholds are determined; ties are resolved by the
/// order of the scores.
///
/// # Errors
/// There are no questions, an id is repeated, only some predictions have a null score, or a null score is NaN.
pub(crate) fn evaluate_squad2(
    golds: &[Gold],
    predictions: &HashMap<String, String>,
    null_scores: Option<&[(String, f64)]>,
    threshold: f64,
) -> Result<Squad2Scores, EvaluationError> {
    check(golds)?;
    let by_id: Option<HashMap<&str, f64>> =
        null_scores.map(|scores| scores.iter().map(|(id, score)| (id.as_str(), *score)).collect());
    let mut raws = Vec::with_capacity(golds.len());
    let mut judged = Vec::with_capacity(golds.len());
    let mut missing = 0;
    for gold in golds {
        let Some(prediction) = predictions.get(&gold.id) else {
            missing += 1;
            raws.push(Raw::default());
            judged.push(Raw::default());
            continue;
        };
        let raw = raw(Version::V2, gold, prediction);
        let null_score = match &by_id {
            None => 0.0,
            Some(scores) => match scores.get(gold.id.as_str()) {
                None => return Err(EvaluationError::NoNullScore(gold.id.clone())),
                Some(score) if score.is_nan() => return Err(EvaluationError::NullScore(gold.id.clone())),
                Some(&score) => score,
            },
        };
        let empty = f64::from(u8::from(gold.answers.is_empty()));
        raws.push(raw);
        judged.push(if null_score > threshold { Raw { exact: empty, f1: empty } } else { raw });
    }
    let of = |has_answer: bool| {
        mean(golds.iter().zip(&judged).filter(|(gold, _)| gold.answers.is_empty() != has_answer).map(|(_, &raw)| raw))
    };
    let all = mean(judged.iter().copied()).ok_or(EvaluationError::NoQuestions)?;
    let best = match null_scores {
        None => None,
        Some(scores) => Some(best_thresholds(golds, predictions, &raws, scores)?),
    };
    Ok(Squad2Scores { all, has_answer: of(true), no_answer: of(false), best, missing })
}

/// Finds the best thresholds for these questions: starts with no answers and adds them by ascending null score.
fn best_thresholds(
    golds: &[Gold],
    predictions: &HashMap<String, String>,
    raws: &[Raw],
    null_scores: &[(String, f64)],
) -> Result<BestThresholds, EvaluationError> {
    let index: HashMap<&str, usize> = golds.iter().enumerate().map(|(at, gold)| (gold.id.as_str(), at)).collect();
    let mut order: Vec<(usize, f64)> = Vec::with_capacity(null_scores.len());
    for (id, score) in null_scores {
        if score.is_nan() {
            return Err(EvaluationError::NullScore(id.clone()));
        }
        if let Some(&at) = index.get(id.as_str()).filter(|&&at| predictions.contains_key(&golds[at].id)) {
            order.push((at, *score));
        }
    }
    // Stable, as in Python, where 0 and -0 are equal.
    order.sort_by(|(_, a), (_, b)| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    let search = |of: fn(&Raw) -> f64| {
        let mut score = golds.iter().filter(|gold| gold.answers.is_empty()).count() as f64;
        let (mut best, mut threshold) = (score, 0.0);
        for &(at, null_score) in &order {
            score += match golds[at].answers.is_empty() {
                false => of(&raws[at]),
                true if predictions.get(&golds[at].id).is_some_and(|text| !text.is_empty()) => -1.0,
                true => 0.0,
            };
            if score > best {
                (best, threshold) = (score, null_score);
            }
        }
        (100.0 * best / golds.len() as f64, threshold)
    };
    let ((exact, exact_threshold), (f1, f1_threshold)) = (search(|raw| raw.exact), search(|raw| raw.f1));
    Ok(BestThresholds { exact, exact_threshold, f1, f1_threshold })
}

/// Scores at one threshold.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ThresholdPoint {
    /// Threshold: questions with a higher null score have no answer.
    pub threshold: f64,
    /// Share of exact answers, in percent.
    pub exact: f64,
    /// Mean F1, in percent.
    pub f1: f64,
}

/// Scores at every distinct threshold, in ascending order: first one below all null scores, without answers, then each null
/// score.
///
/// # Errors
/// As [`evaluate_squad2`].
pub(crate) fn threshold_curve(
    golds: &[Gold],
    predictions: &HashMap<String, String>,
    null_scores: &[(String, f64)],
) -> Result<Vec<ThresholdPoint>, EvaluationError> {
    // Checks the input.
    evaluate_squad2(golds, predictions, Some(null_scores), f64::INFINITY)?;
    let by_id: HashMap<&str, f64> = null_scores.iter().map(|(id, score)| (id.as_str(), *score)).collect();
    let (mut exact, mut f1) = (0.0, 0.0);
    let mut changes: Vec<(f64, Raw)> = Vec::with_capacity(golds.len());
    for gold in golds {
        let Some(prediction) = predictions.get(&gold.id) else { continue };
        let unanswered = f64::from(u8::from(gold.answers.is_empty()));
        let answered = raw(Version::V2, gold, prediction);
        exact += unanswered;
        f1 += unanswered;
        let change = Raw { exact: answered.exact - unanswered, f1: answered.f1 - unanswered };
        changes.push((by_id[gold.id.as_str()], change));
    }
    changes.sort_by(|(a, _), (b, _)| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    let n = golds.len() as f64;
    let point = |threshold: f64, exact: f64, f1: f64| ThresholdPoint {
        threshold,
        exact: 100.0 * exact / n,
        f1: 100.0 * f1 / n,
    };
    let first = changes.first().map(|(score, _)| *score).filter(|score| score.is_finite());
    let lowest = first.map_or(0.0, |score| score.min(0.0) - score.abs().max(1.0));
    let mut curve = vec![point(lowest, exact, f1)];
    for equal in changes.chunk_by(|(a, _), (b, _)| a == b) {
        for (_, change) in equal {
            exact += change.exact;
            f1 += change.f1;
        }
        curve.push(point(equal[0].0, exact, f1));
    }
    Ok(curve)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gold(id: &str, answers: &[&str]) -> Gold {
        Gold { id: id.to_owned(), answers: answers.iter().map(|&answer| answer.to_owned()).collect() }
    }

    fn predictions(texts: &[(&str, &str)]) -> HashMap<String, String> {
        texts.iter().map(|&(id, text)| (id.to_owned(), text.to_owned())).collect()
    }

    #[test]
    fn the_curve_has_the_figures_at_its_thresholds() {
        let golds = [gold("a", &["x"]), gold("b", &[]), gold("c", &["y z"]), gold("d", &[]), gold("e", &["w"])];
        let texts = predictions(&[("a", "x"), ("b", "w"), ("c", "y"), ("d", "")]);
        for values in [[-2.0, 3.0, -1.0, 0.5], [1.0, 1.0, 0.0, 1.0], [7.0, 7.0, 7.0, 7.0], [-1e9, 1e9, 0.0, -0.0]] {
            let scores: Vec<(String, f64)> =
                ["a", "b", "c", "d"].iter().zip(values).map(|(id, score)| ((*id).to_owned(), score)).collect();
            let curve = threshold_curve(&golds, &texts, &scores).unwrap();
            assert!(values.iter().all(|score| curve[0].threshold < *score), "{curve:?}");
            assert!(curve.windows(2).all(|pair| pair[0].threshold < pair[1].threshold), "{curve:?}");
            for ThresholdPoint { threshold, exact, f1 } in curve {
                let found = evaluate_squad2(&golds, &texts, Some(&scores), threshold).unwrap().all;
                assert!((found.exact - exact).abs() < 1e-12 && (found.f1 - f1).abs() < 1e-12, "{threshold}: {found:?}");
            }
        }
    }

    #[test]
    fn what_cannot_be_evaluated_is_said() {
        let none = HashMap::new();
        assert_eq!(evaluate_squad1(&[], &none), Err(EvaluationError::NoQuestions));
        let twice = [gold("a", &["x"]), gold("a", &["y"])];
        assert_eq!(evaluate_squad1(&twice, &none), Err(EvaluationError::TwoQuestions("a".to_owned())));
        assert_eq!(evaluate_squad1(&[gold("a", &[])], &none), Err(EvaluationError::NoAnswer("a".to_owned())));
        let golds = [gold("a", &["x"])];
        let texts = predictions(&[("a", "x")]);
        assert_eq!(evaluate_squad2(&golds, &texts, Some(&[]), 1.0), Err(EvaluationError::NoNullScore("a".to_owned())));
        let nan = [("a".to_owned(), f64::NAN)];
        assert_eq!(evaluate_squad2(&golds, &texts, Some(&nan), 1.0), Err(EvaluationError::NullScore("a".to_owned())));
    }
}
