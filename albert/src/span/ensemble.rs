//! Ensemble of models: means of the probabilities of equal answers and of the null scores.
//!
//! Answers with equal texts are equal, so models with different tokenizers and windows can be combined.
//!
//! Source: Lan et al. 2020, section 5: the probability of an answer is averaged over the models that have it
//! ([`Absent::LeftOut`]), so a single model can decide. By default, the other models count as 0.

use std::collections::HashMap;

use super::decode::{Answers, Candidate, descending};

/// Contribution of a model to an answer that is not among its candidates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Absent {
    /// Probability 0.
    #[default]
    Zero,
    /// None.
    LeftOut,
}

/// Combines the answers of several models to one question. The score of a candidate is its mean probability; there are at
/// most as many candidates as the largest model list, with probabilities that sum to 1. Null scores are averaged.
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
