//! Reports of a run: `curves.svg`, and `report.html` with curves, tables and recipe in one file.

use std::path::Path;

use albert::report::{BLUE, Curve, ORANGE, Panel, ReportError, Section, meaning, write_html, write_panels};
use albert::train::{Record, TrainRecord, evaluation_points, train_points};

use super::figures::FinetuneFigures;
use super::{FinetuneRecipe, FinetuneRecord, Measured, Task};
use crate::files::Problem;
use crate::metrics::PairCount;

/// Writes both reports for the run in `folder`; `best` are the metrics of its best model.
pub(super) fn draw(
    folder: &Path,
    records: &[FinetuneRecord],
    task: &Task,
    best: Option<&Measured>,
    recipe: &FinetuneRecipe,
) -> Result<(), ReportError> {
    let panels = panels(records);
    write_panels(&folder.join("curves.svg"), &panels)?;
    let mut sections = Vec::new();
    if let Some(best) = best {
        sections.push(Section::Table { title: "The best model on the dev set".into(), rows: rows(best) });
        sections.extend(confusion_section(best, &task.problem));
        sections.extend(threshold_panel(best).map(|panel| Section::Panels(vec![panel])));
    }
    sections.push(Section::Panels(panels));
    sections.push(Section::Text { title: "Recipe".into(), text: recipe.to_toml() });
    write_html(&folder.join("report.html"), &format!("Fine-tuning: {}", task.name.name()), &sections)
}

/// Maximum number of classes of a full matrix; with more classes, number of listed pairs.
const MATRIX: usize = 20;

/// Confusion matrix for up to 20 classes, or the 20 most frequent mistakes if there are more. `None` for problems
/// without classes.
pub fn confusion_section(measured: &Measured, problem: &Problem) -> Option<Section> {
    let labels = problem.labels();
    let confusions = &measured.confusions;
    if confusions.is_empty() || labels.is_empty() {
        return None;
    }
    if labels.len() <= MATRIX {
        let mut counts = vec![vec![0; labels.len()]; labels.len()];
        for &PairCount { truth, predicted, count } in confusions {
            counts[truth as usize][predicted as usize] = count;
        }
        return Some(Section::Confusion { labels: labels.to_vec(), counts });
    }
    let mut mistakes: Vec<_> = confusions.iter().filter(|pair| pair.truth != pair.predicted).collect();
    // The sort is stable: equal counts keep the order of the classes.
    mistakes.sort_by_key(|pair| std::cmp::Reverse(pair.count));
    let title = format!("Most frequent mistakes ({} classes, {} confused pairs)", labels.len(), mistakes.len());
    let name = |class: u32| &labels[class as usize];
    let rows = mistakes
        .iter()
        .take(MATRIX)
        .map(|pair| (format!("{} predicted as {}", name(pair.truth), name(pair.predicted)), pair.count.to_string()));
    Some(Section::Table { title, rows: rows.collect() })
}

/// Curve of F1 over the null-score threshold; `None` if every question has an answer.
pub fn threshold_panel(measured: &Measured) -> Option<Panel> {
    let curve = Curve::new("F1 (tuned here)", BLUE, measured.thresholds.clone());
    let title = "F1 over the threshold of the null score".to_owned();
    (!measured.thresholds.is_empty()).then(|| Panel { title, meaning: "", axis: "threshold", curves: vec![curve] })
}

/// Metrics as (name, value) rows of a table.
pub fn rows(measured: &Measured) -> Vec<(String, String)> {
    let figures = measured.figures.iter().map(|(name, value)| (name.clone(), format!("{value:.4}")));
    let loss = measured.loss.map(|loss| ("loss".to_owned(), format!("{loss:.4}")));
    let others = loss.into_iter().chain([("examples".to_owned(), measured.count.to_string())]);
    figures.chain(others).collect()
}

fn panels(records: &[FinetuneRecord]) -> Vec<Panel> {
    let train = |value: fn(&TrainRecord<FinetuneFigures>) -> Option<f64>| train_points(records, value);
    let dev = |value: fn(&Measured) -> Option<f64>| evaluation_points(records, |r| value(&r.figures.measured));
    let name = records.iter().find_map(|record| match record {
        Record::Evaluation(record) => record.figures.measured.figures.first().map(|(name, _)| name.clone()),
        Record::Train(_) => None,
    });
    let name = name.unwrap_or_else(|| "dev set".into());
    let panel = |title: &str, curves| Panel { title: title.to_owned(), meaning: meaning(title), axis: "step", curves };
    let curve = Curve::new;
    vec![
        panel("loss", vec![curve("training", BLUE, train(|r| Some(r.loss))), curve("dev", ORANGE, dev(|m| m.loss))]),
        panel(
            &name,
            vec![
                curve("training (accuracy)", BLUE, train(|r| r.figures.accuracy)),
                curve("dev", ORANGE, dev(|m| Some(m.main()))),
            ],
        ),
        panel("learning rate", vec![curve("training", BLUE, train(|r| Some(r.learning_rate)))]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One example of every class, predicted as the next class, and three more of class 3.
    fn shifted(classes: u32) -> (Measured, Problem) {
        let pair = |truth| PairCount { truth, predicted: (truth + 1) % classes, count: if truth == 3 { 4 } else { 1 } };
        let labels = (0..classes).map(|class| format!("c{class}")).collect();
        (Measured { confusions: (0..classes).map(pair).collect(), ..Measured::default() }, Problem::Classes { labels })
    }

    #[test]
    fn a_matrix_is_printed_of_few_classes_and_mistakes_of_many() {
        let (measured, problem) = shifted(20);
        let Some(Section::Confusion { labels, counts }) = confusion_section(&measured, &problem) else { panic!() };
        assert_eq!((labels.len(), counts.len(), counts[3][4], counts[4][3], counts[19][0]), (20, 20, 4, 0, 1));
        let (measured, problem) = shifted(8000);
        let Some(Section::Table { title, rows }) = confusion_section(&measured, &problem) else { panic!() };
        assert_eq!(title, "Most frequent mistakes (8000 classes, 8000 confused pairs)");
        assert_eq!((rows.len(), &rows[0]), (20, &("c3 predicted as c4".to_owned(), "4".to_owned())));
        assert_eq!(confusion_section(&Measured::default(), &Problem::Number), None);
        // An evaluation record is linear in the classes: a matrix of 8,000 classes would have 64 million elements.
        assert!(serde_json::to_string(&measured).unwrap().len() < 64 * 8000);
    }
}
