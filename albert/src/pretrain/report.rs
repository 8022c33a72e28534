//! `curves.svg`: overview of a pre-training run.
//!
//! Three panels over the optimizer steps: MLM loss (training, held out, and the unigram baseline), accuracies (MLM and
//! sentence objective, training and held out), learning rate.

use super::PretrainRecord;
use super::figures::{HeldOutFigures, PretrainFigures};
use super::sentence::Sentence;
use crate::report::{BLUE, Curve, GREEN, GREY, Line, ORANGE, Panel, RED, averaged};
use crate::train::{Record, TrainRecord, evaluation_points, train_points};

pub(super) fn panels(records: &[PretrainRecord]) -> Vec<Panel> {
    let train = |value: fn(&TrainRecord<PretrainFigures>) -> Option<f64>| averaged(train_points(records, value));
    let held_out = |value: fn(&HeldOutFigures) -> Option<f64>| evaluation_points(records, |r| value(&r.figures));
    let curve = Curve::new;
    let sentence = |record: &PretrainRecord| match record {
        Record::Train(record) => record.figures.sentence,
        Record::Evaluation(record) => record.figures.sentence,
    };
    let measured = records.iter().map(sentence).find(|sentence: &Sentence| sentence.accuracy.is_some());
    let meaning = measured.unwrap_or_default().objective.meaning();
    let panel = |title: &str, curves| Panel { title: title.to_owned(), meaning: "", axis: "step", curves };
    vec![
        panel(
            "MLM loss (nats a masked piece)",
            vec![
                curve("training", BLUE, train(|r| Some(r.figures.mlm_loss))),
                curve("held out", ORANGE, held_out(|f| Some(f.mlm_loss))),
                curve("held out, shown as [MASK]", RED, held_out(|f| Some(f.hidden_loss))),
                Curve { line: Line::Dashed, ..curve("unigram baseline", GREY, held_out(|f| Some(f.unigram_loss))) },
            ],
        ),
        panel(
            "accuracy",
            vec![
                curve("MLM, training", BLUE, train(|r| Some(r.figures.mlm_accuracy))),
                curve("MLM, held out", ORANGE, held_out(|f| Some(f.mlm_accuracy))),
                curve(&format!("{meaning}, training"), GREEN, train(|r| r.figures.sentence.accuracy)),
                curve(&format!("{meaning}, held out"), RED, held_out(|f| f.sentence.accuracy)),
            ],
        ),
        panel("learning rate", vec![curve("learning rate", BLUE, train(|r| Some(r.learning_rate)))]),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::sentence::{Sentence, SentenceObjective};
    use super::*;
    use crate::report::draw;
    use crate::report::write_panels;
    use crate::train::EvaluationRecord;

    fn run(steps: u64) -> Vec<PretrainRecord> {
        run_of(steps, SentenceObjective::Sop)
    }

    fn run_of(steps: u64, objective: SentenceObjective) -> Vec<PretrainRecord> {
        (1..=steps)
            .flat_map(|step| {
                let loss = 8.0 - step as f64 * 2e-3;
                let figures = PretrainFigures { mlm_loss: loss, ..Default::default() };
                let train = TrainRecord { step, figures, learning_rate: 1e-3, ..Default::default() };
                let evaluation = step.is_multiple_of(100).then(|| {
                    let sentence = Sentence { objective, accuracy: Some(0.6), ..Sentence::default() };
                    let figures = HeldOutFigures { mlm_loss: loss, sentence, ..Default::default() };
                    Record::Evaluation(EvaluationRecord { step, figures, ..Default::default() })
                });
                [Some(Record::Train(train)), evaluation].into_iter().flatten()
            })
            .collect()
    }

    #[test]
    fn draws_every_curve_that_has_points() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("curves.svg");
        write_panels(&path, &panels(&run(300))).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        for name in ["MLM loss", "unigram baseline", "sentence order, held out", "learning rate", "step"] {
            assert!(text.contains(name), "{name} is not in the picture");
        }
        assert!(!text.contains("sentence order, training"), "a curve without points has a legend");
        assert!(!text.contains("NaN"), "a coordinate is not a number");
    }

    #[test]
    fn the_curve_of_sentences_is_called_by_their_objective() {
        let text = draw(&panels(&run_of(300, SentenceObjective::Nsp))).unwrap();
        assert!(text.contains("next sentence, held out") && !text.contains("sentence order"));
    }

    #[test]
    fn stays_small_for_long_runs_and_works_without_records() {
        assert!(draw(&panels(&run(20_000))).unwrap().len() < 200_000);
        assert!(draw(&panels(&[])).unwrap().contains("learning rate"));
        let figures = PretrainFigures { mlm_loss: f64::NAN, ..Default::default() };
        let broken = [Record::Train(TrainRecord { step: 1, figures, ..Default::default() })];
        assert!(!draw(&panels(&broken)).unwrap().contains("NaN"));
    }
}
