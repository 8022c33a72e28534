//! Descriptions of metrics.

/// Meaning of a metric by its name in `metrics.jsonl`, and its better direction; empty for an unknown name.
pub fn meaning(name: &str) -> &'static str {
    match name.rsplit('.').next().unwrap_or(name) {
        "loss" => "what training lowers, in nats; lower is better",
        "train_loss" => "training loss since the previous evaluation; lower is better",
        "mlm_loss" => "cross-entropy of the masked pieces, in nats a piece; lower is better",
        "mlm_accuracy" => "share of the masked pieces that are predicted; higher is better",
        "unigram_loss" => "baseline of mlm_loss: pieces guessed by their frequency, without context",
        "hidden_loss" => "mlm_loss of the pieces shown as [MASK], which only context predicts; lower is better",
        "hidden_unigram_loss" => "baseline of hidden_loss: pieces guessed by their frequency, without context",
        "sop_loss" => "cross-entropy of sentence order (were two segments swapped?); chance is 0.693",
        "sop_accuracy" => "share of segment pairs whose order is recognized; chance is 0.5",
        "nsp_loss" => "cross-entropy of next sentence (do two segments follow each other?); chance is 0.693",
        "nsp_accuracy" => "share of segment pairs that are recognized as following or not; chance is 0.5",
        "learning_rate" | "learning rate" => "step size of the optimizer, by the schedule",
        "gradient_norm" => "global norm of the gradient before clipping",
        "accuracy" => "share of examples that are right; higher is better",
        "f1" => "F1 of the second of two classes; 1 is best",
        "macro_f1" => "mean F1 of all classes; 1 is best",
        "matthews" => "Matthews correlation; 0 is chance, 1 is best",
        "pearson" => "Pearson correlation with the labels; 1 is best",
        "spearman" => "rank correlation with the labels; 1 is best",
        "exact" => "share of questions answered exactly; 1 is best",
        "span_f1" => "mean F1 of the words of the answers; 1 is best",
        "span_f1_has_answer" => "span_f1 of the questions with an answer",
        "span_f1_no_answer" => "share of the questions without an answer that get none",
        "span_f1_tuned_here" | "exact_tuned_here" => "the same with the threshold that is best on these questions",
        "threshold_tuned_here" => "null score above which a question has no answer, best on these questions",
        "entity_f1" => "F1 of whole entities; 1 is best",
        _ => "",
    }
}

/// Metric whose chart shows `name` as a baseline, and the name of the line.
pub(super) fn baseline(name: &str) -> Option<(&'static str, &'static str)> {
    match name {
        "unigram_loss" => Some(("mlm_loss", "unigram baseline")),
        "hidden_unigram_loss" => Some(("hidden_loss", "unigram baseline")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::meaning;
    use crate::pretrain::{HeldOutFigures, PretrainFigures, Sentence, SentenceObjective};

    #[test]
    fn every_figure_has_a_meaning() {
        let mut names: Vec<String> = ["loss", "train_loss", "learning_rate", "gradient_norm"].map(str::to_owned).into();
        for objective in [SentenceObjective::Sop, SentenceObjective::Nsp] {
            let sentence = Sentence { objective, loss: Some(0.5), accuracy: Some(0.5), ..Sentence::default() };
            let step = serde_json::to_value(PretrainFigures { sentence, ..PretrainFigures::default() }).unwrap();
            let held_out = serde_json::to_value(HeldOutFigures { sentence, ..HeldOutFigures::default() }).unwrap();
            names.extend([step, held_out].iter().flat_map(|record| record.as_object().unwrap().keys().cloned()));
        }
        names.retain(|name| !super::super::comparison::COUNTERS.contains(&name.as_str()));
        assert!(names.len() > 12, "{names:?}");
        let missing: Vec<_> = names.iter().filter(|name| meaning(name).is_empty()).collect();
        assert!(missing.is_empty(), "without a meaning: {missing:?}");
    }
}
