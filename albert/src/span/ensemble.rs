//! Several models as one: the probabilities of equal answers and the null scores are averaged.
//!
//! Answers are equal if their texts are, as among the candidates of one model, so that models with different
//! tokenizers and windows can vote together.
//!
//! Source: Lan et al. 2020, section 5, where an answer's probabilities are averaged over the models that have it, and
//! so are the scores of there being no answer. Models that do not have it among their best say nothing then
//! ([`Absent::LeftOut`]), and one model alone may carry an answer; by default they count as 0.

use std::collections::HashMap;

use super::decode::{Answers, Candidate, descending};

/// What a model has to say of an answer that is not among its best.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Absent {
    /// That its probability is 0.
    #[default]
    Zero,
    /// Nothing.
    LeftOut,
}

/// The answers of several models to one question as one: candidates by mean probability, which becomes their score,
/// at most as many as the model with the most has, and with probabilities that sum to 1; the mean of the null scores.
///
/// # Panics
/// If there is no model.
pub fn average(models: &[Answers], absent: Absent) -> Answers {
    assert!(!models.is_empty(), "an ensemble of at least one model");
    let mut spans: Vec<(Candidate, u32)> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for candidate in models.iter().flat_map(|answers| &answers.candidates) {
        let place = *places.entry(candidate.text.as_str()).or_insert(spans.len());
        if place == spans.len() {
            spans.push((Candidate { score: 0.0, probability: 0.0, ..candidate.clone() }, 0));
        }
        let (span, votes) = &mut spans[place];
        span.score += candidate.probability;
        *votes += 1;
    }
    let mut candidates: Vec<Candidate> = Vec::with_capacity(spans.len());
    for (mut span, votes) in spans {
        span.score /= match absent {
            Absent::Zero => models.len() as f64,
            Absent::LeftOut => f64::from(votes),
        };
        candidates.push(span);
    }
    candidates.sort_by(|a, b| descending(a.score, b.score));
    candidates.truncate(models.iter().map(|answers| answers.candidates.len()).max().unwrap_or_default());
    let sum: f64 = candidates.iter().map(|candidate| candidate.score).sum();
    candidates.iter_mut().for_each(|candidate| candidate.probability = candidate.score / sum);
    let null_score = models.iter().map(|answers| answers.null_score).sum::<f64>() / models.len() as f64;
    Answers { candidates, null_score }
}
