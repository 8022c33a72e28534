//! Answers from the scores of window tokens.
//!
//! ```text
//! SQuAD 1.1, Hugging Face   score(i, j) = start_i + end_j            for the n best starts and ends of a window
//!                           null score  = start_0 + end_0            [CLS] to [CLS]; the minimum over windows
//! SQuAD 2.0                 score(i, j) = log p(i) + log p(j | i)    for a beam of 5 starts with 5 ends each
//!                           null score  = the logit of "no answer"   the minimum over windows
//! ```
//!
//! Spans have i and j in the passage, i owned by its window, i ≤ j, and at most `max_answer` pieces. Candidates of all windows
//! are sorted by score, then by window, start and end; the first of equal texts is kept; probabilities are the softmax over
//! the `n_best` scores. Answers are substrings of the passage, trimmed.
//!
//! Sums are f64. Cost: n_best² a window. Source: the released ALBERT `squad_utils.py`; Devlin et al. 2019 for the
//! null score of `[CLS]`.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::features::SpanFeature;

/// Limits on answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DecodeSettings {
    /// Candidates kept, and starts and ends considered in each window.
    pub n_best: usize,
    /// Maximum number of pieces of an answer.
    pub max_answer: usize,
}

impl Default for DecodeSettings {
    fn default() -> Self {
        Self { n_best: 20, max_answer: 30 }
    }
}

/// A start token of the SQuAD 2.0 head with its end tokens.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BeamStart {
    pub token: usize,
    pub log_probability: f64,
    /// End tokens with log-probabilities.
    pub ends: Vec<(usize, f64)>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WindowScores<'a> {
    /// SQuAD 1.1 and Hugging Face: logits of each token.
    Independent {
        /// Start logits.
        start: &'a [f32],
        /// End logits.
        end: &'a [f32],
    },
    /// SQuAD 2.0.
    Beam {
        /// Start tokens, best first.
        starts: &'a [BeamStart],
        /// Logit of "no answer".
        no_answer: f32,
    },
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Its text in the passage.
    pub text: String,
    /// Its bytes in the passage.
    pub bytes: Range<usize>,
    /// Score, as defined in the module.
    pub score: f64,
    /// Probability among the candidates.
    pub probability: f64,
}

/// Answers to a question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answers {
    /// Candidates, best first; empty without a valid span.
    pub candidates: Vec<Candidate>,
    /// Score of "no answer", compared with thresholds. For `[CLS]` scores, the difference to the best candidate;
    /// infinite without a candidate.
    pub null_score: f64,
}

impl Answers {
    /// Text of the best candidate; empty without one.
    pub(crate) fn best(&self) -> &str {
        self.candidates.first().map_or("", |candidate| &candidate.text)
    }
}

/// A span of a window.
struct Span {
    window: usize,
    start: usize,
    end: usize,
    score: f64,
}

/// Decodes the windows of one question, all of one head.
///
/// # Panics
/// If the numbers of scores and windows, or of logits and tokens, differ.
pub(crate) fn decode(
    passage: &str,
    windows: &[SpanFeature],
    scores: &[WindowScores<'_>],
    settings: &DecodeSettings,
) -> Answers {
    assert_eq!(windows.len(), scores.len(), "scores for each window");
    let mut spans = Vec::new();
    let (mut null, mut is_margin) = (f64::INFINITY, false);
    for (index, (window, scores)) in windows.iter().zip(scores).enumerate() {
        let mut add = |start: usize, end: usize, score: f64| {
            if is_span(window, start, end, settings.max_answer) {
                spans.push(Span { window: index, start, end, score });
            }
        };
        match scores {
            WindowScores::Independent { start, end } => {
                let count = window.sequence.ids.len();
                assert!(start.len() == count && end.len() == count, "a logit for each of {count} tokens");
                let [starts, ends] = [start, end].map(|logits| {
                    top(settings.n_best, &logits.iter().map(|&logit| f64::from(logit)).collect::<Vec<_>>())
                });
                for &(first, first_logit) in &starts {
                    for &(last, last_logit) in &ends {
                        add(first, last, first_logit + last_logit);
                    }
                }
                null = null.min(f64::from(start[0]) + f64::from(end[0]));
                is_margin = true;
            }
            WindowScores::Beam { starts, no_answer } => {
                for start in *starts {
                    for &(end, log_probability) in &start.ends {
                        add(start.token, end, start.log_probability + log_probability);
                    }
                }
                null = null.min(f64::from(*no_answer));
            }
        }
    }
    let candidates = best_of(passage, windows, spans, settings.n_best);
    let null_score = match (is_margin, candidates.first()) {
        (false, _) => null,
        (true, Some(best)) => null - best.score,
        (true, None) => f64::INFINITY,
    };
    Answers { candidates, null_score }
}

/// True if an answer may have these first and last tokens.
fn is_span(window: &SpanFeature, start: usize, end: usize, max_answer: usize) -> bool {
    window.paragraph.contains(&start)
        && window.paragraph.contains(&end)
        && window.is_max_context[start - window.paragraph.start]
        && start <= end
        && end - start < max_answer
}

/// Best spans with distinct texts, with probabilities.
fn best_of(passage: &str, windows: &[SpanFeature], mut spans: Vec<Span>, n_best: usize) -> Vec<Candidate> {
    spans.sort_by(|a, b| descending(a.score, b.score));
    let (mut candidates, mut seen) = (Vec::new(), HashSet::new());
    for span in spans {
        if candidates.len() == n_best {
            break;
        }
        let Some(bytes) = windows[span.window].bytes(passage, span.start, span.end) else { continue };
        let text = &passage[bytes.clone()];
        if seen.insert(text) {
            candidates.push(Candidate { text: text.to_owned(), bytes, score: span.score, probability: 0.0 });
        }
    }
    share(&mut candidates);
    candidates
}

/// Sets probabilities to the softmax of the scores, which are in order.
fn share(candidates: &mut [Candidate]) {
    let Some(most) = candidates.first().map(|best| best.score) else { return };
    let mut sum = 0.0;
    for candidate in &mut *candidates {
        candidate.probability = libm::exp(candidate.score - most);
        sum += candidate.probability;
    }
    candidates.iter_mut().for_each(|candidate| candidate.probability /= sum);
}

/// Descending order with NaN last, so that the output of a broken model can be sorted.
pub(super) fn descending(a: f64, b: f64) -> Ordering {
    match (a.is_nan(), b.is_nan()) {
        (false, false) => b.partial_cmp(&a).unwrap_or(Ordering::Equal),
        (a, b) => a.cmp(&b),
    }
}

/// The `count` largest values with their indices, in descending order, equal ones by index.
pub(crate) fn top(count: usize, values: &[f64]) -> Vec<(usize, f64)> {
    let mut order: Vec<(usize, f64)> = values.iter().copied().enumerate().collect();
    let by_value = |a: &(usize, f64), b: &(usize, f64)| descending(a.1, b.1).then(a.0.cmp(&b.0));
    if count < order.len() {
        order.select_nth_unstable_by(count, by_value);
        order.truncate(count);
    }
    order.sort_by(by_value);
    order
}

/// Log-probabilities of the tokens that are not hidden; -∞ for hidden ones.
///
/// # Panics
/// If `logits` and `is_hidden` differ in length.
pub(crate) fn log_softmax(logits: &[f32], is_hidden: &[bool]) -> Vec<f64> {
    assert_eq!(logits.len(), is_hidden.len(), "hidden or not for each token");
    let seen: Vec<f64> = (logits.iter().zip(is_hidden))
        .map(|(&logit, &is_hidden)| if is_hidden { f64::NEG_INFINITY } else { f64::from(logit) })
        .collect();
    let most = seen.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let log_sum = libm::log(seen.iter().map(|logit| libm::exp(logit - most)).sum());
    seen.iter().map(|logit| logit - most - log_sum).collect()
}
