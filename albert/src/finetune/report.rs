//! Pictures of a run: `curves.svg`, and `report.html` with everything in one file.

use std::path::Path;

use super::observer::Record;
use super::start::labels_of;
use super::{FinetuneError, Measured, Recipe, Task};
use crate::report::{Curve, Panel, Section, read_metrics, write_html, write_panels};

const BLUE: [u8; 3] = [31, 119, 180];
const ORANGE: [u8; 3] = [255, 127, 14];

/// Writes both for the run in `folder`, whose best model was measured as `best`.
pub(super) fn draw(folder: &Path, task: &Task, best: Option<&Measured>, recipe: &Recipe) -> Result<(), FinetuneError> {
    let records: Vec<Record> = read_metrics(&folder.join("metrics.jsonl"))?;
    let panels = panels(&records);
    write_panels(&folder.join("curves.svg"), &panels)?;
    let mut sections = Vec::new();
    if let Some(best) = best {
        sections.push(Section::Table { title: "The best model on the dev set".into(), rows: rows(best) });
        if !best.confusion.is_empty() {
            let labels = labels_of(&task.problem).to_vec();
            sections.push(Section::Confusion { labels, counts: best.confusion.clone() });
        }
        sections.extend(threshold_panel(best).map(|panel| Section::Panels(vec![panel])));
    }
    sections.push(Section::Panels(panels));
    sections.push(Section::Text { title: "Recipe".into(), text: recipe.to_toml() });
    Ok(write_html(&folder.join("report.html"), &format!("Fine-tuning: {}", task.name.name()), &sections)?)
}

/// How F1 depends on the null score above which there is no answer; `None` where there always is one.
pub fn threshold_panel(measured: &Measured) -> Option<Panel> {
    let curve = Curve { name: "F1 (tuned here)".into(), color: BLUE, points: measured.thresholds.clone() };
    let title = "F1 over the threshold of the null score".to_owned();
    (!measured.thresholds.is_empty()).then(|| Panel { title, axis: "threshold", curves: vec![curve] })
}

/// Figures as a table has them.
pub fn rows(measured: &Measured) -> Vec<(String, String)> {
    let figures = measured.figures.iter().map(|(name, value)| (name.clone(), format!("{value:.4}")));
    let loss = measured.loss.map(|loss| ("loss".to_owned(), format!("{loss:.4}")));
    let others = loss.into_iter().chain([("examples".to_owned(), measured.count.to_string())]);
    figures.chain(others).collect()
}

fn panels(records: &[Record]) -> Vec<Panel> {
    let train = |value: fn(&super::TrainRecord) -> Option<f64>| {
        let points = records.iter().filter_map(|record| match record {
            Record::Train(record) => Some((record.step as f64, value(record)?)),
            Record::Evaluation(_) => None,
        });
        points.collect::<Vec<_>>()
    };
    let dev = |value: &dyn Fn(&Measured) -> Option<f64>| {
        let points = records.iter().filter_map(|record| match record {
            Record::Evaluation(record) => Some((record.step as f64, value(&record.measured)?)),
            Record::Train(_) => None,
        });
        points.collect::<Vec<_>>()
    };
    let name = records.iter().find_map(|record| match record {
        Record::Evaluation(record) => record.measured.figures.first().map(|(name, _)| name.clone()),
        Record::Train(_) => None,
    });
    let name = name.unwrap_or_else(|| "dev set".into());
    let curve = |name: &str, color, points| Curve { name: name.to_owned(), color, points };
    let panel = |title: &str, curves| Panel { title: title.to_owned(), axis: "step", curves };
    vec![
        panel("loss", vec![curve("training", BLUE, train(|r| Some(r.loss))), curve("dev", ORANGE, dev(&|m| m.loss))]),
        panel(
            &name,
            vec![
                curve("accuracy, training", BLUE, train(|r| r.accuracy)),
                curve(&format!("{name}, dev"), ORANGE, dev(&|m| Some(m.main()))),
            ],
        ),
        panel("learning rate", vec![curve("learning rate", BLUE, train(|r| Some(r.learning_rate)))]),
    ]
}
