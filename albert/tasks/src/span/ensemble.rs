//! Ensemble of models: means of the probabilities of equal answers and of the null scores.
//!
//! Answers with equal texts are merged, so models with different tokenizers and windows can be combined.
//!
//! Source: Lan et al. 2020, section 5. There the probability of an answer is averaged over the models that have it, so a single
//! model can decide; here the remaining models count as 0.

use std::collections::HashMap;

use super::decode::{Answers, Candidate, descending};

/// Combines the answers of several models to one question. The score of a candidate is its mean probability; there are at
/// most as many candidates as in the longest list of a model, and their probabilities sum to 1. Null scores are averaged.
///
/// # Panics
/// If there is no model.
pub(crate) fn average(models: &[Answers]) -> Answers {
    assert!(!models.is_empty(), "an ensemble of at least one model");
    let mut candidates: Vec<Candidate> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for candidate in models.iter().flat_map(|answers| &answers.candidates) {
        let place = *places.entry(candidate.text.as_str()).or_insert(candidates.len());
        if place == candidates.len() {
            candidates.push(Candidate { score: 0.0, probability: 0.0, ..candidate.clone() });
        }
        candidates[place].score += candidate.probability;
    }
    candidates.iter_mut().for_each(|candidate| candidate.score /= models.len() as f64);
    candidates.sort_by(|a, b| descending(a.score, b.score));
    candidates.truncate(models.iter().map(|answers| answers.candidates.len()).max().unwrap_or_default());
    let sum: f64 = candidates.iter().map(|candidate| candidate.score).sum();
    candidates.iter_mut().for_each(|candidate| candidate.probability = candidate.score / sum);
    let null_score = models.iter().map(|answers| answers.null_score).sum::<f64>() / models.len() as f64;
    Answers { candidates, null_score }
}
