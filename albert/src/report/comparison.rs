//! Runs of any kind, from their own files, on one page: figures, curves over each other, differences of settings.
//!
//! ```text
//! RUN/metrics.jsonl ── numbers by name, of training and of evaluations ──┐
//! RUN/config.toml ─── settings by name ─────────────────────────────────┴── sections of a page, or JSON
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use engine::io::limits;
use serde_json::{Map, Value, json};

use super::curves::{COLORS, averaged};
use super::{Curve, Panel, ReportError, Section};

/// Names of a record that are no figures.
const COUNTERS: [&str; 10] = [
    "step",
    "kind",
    "tokens",
    "tokens_per_second",
    "data_share",
    "seconds",
    "masked",
    "sop_count",
    "count",
    "sop_standard_error",
];

/// (step, value) of each figure.
type Figures = BTreeMap<String, Vec<(f64, f64)>>;

/// A run as its files tell it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunLog {
    /// Name on the page.
    pub name: String,
    /// Of training.
    train: Figures,
    /// Of evaluations.
    evaluation: Figures,
    /// Settings by name.
    settings: BTreeMap<String, String>,
    steps: u64,
    seconds: f64,
    tokens: Option<f64>,
}

/// Objects of a record whose numbers go by their own names.
const GROUPS: [&str; 2] = ["measured", "figures"];

/// Adds the numbers in `value` under their names; those inside of an object that is no group have its name before them. A list of
/// names and values is like an object.
fn numbers(name: &str, value: &Value, add: &mut impl FnMut(&str, f64)) {
    let mut member = |key: &str, value: &Value| match name {
        _ if GROUPS.contains(&key) => numbers(name, value, add),
        "" => numbers(key, value, add),
        name => numbers(&format!("{name}.{key}"), value, add),
    };
    match value {
        Value::Object(object) => object.iter().for_each(|(key, value)| member(key, value)),
        Value::Array(list) => {
            for pair in list {
                if let [Value::String(key), value] = &pair.as_array().map_or(&[][..], Vec::as_slice) {
                    member(key, value);
                }
            }
        }
        Value::Number(number) => {
            if let Some(number) = number.as_f64() {
                add(name, number);
            }
        }
        _ => {}
    }
}

/// Adds the settings in `value` under their names.
fn settings(name: &str, value: &toml::Value, all: &mut BTreeMap<String, String>) {
    match value {
        toml::Value::Table(table) => {
            for (key, value) in table {
                let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                settings(&name, value, all);
            }
        }
        other => {
            all.insert(name.to_owned(), other.to_string());
        }
    }
}

impl RunLog {
    /// Reads the run in `folder`. A line of the metrics that was cut off by a kill is left out.
    ///
    /// # Errors
    /// The folder holds no run, or a line of its metrics is no record.
    pub fn read(folder: &Path, name: &str) -> Result<Self, ReportError> {
        let mut run = Self { name: name.to_owned(), ..Self::default() };
        let path = folder.join("metrics.jsonl");
        let text =
            limits::read_text(&path, limits::LARGEST_FILE).map_err(ReportError::io(&path, "read the metrics"))?;
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in (1..).zip(&lines) {
            let record: Value = match serde_json::from_str(line) {
                Ok(record) => record,
                Err(_) if number == lines.len() && !text.ends_with('\n') => break,
                Err(error) => {
                    return Err(ReportError::Record { path, line: number, problem: error.to_string() });
                }
            };
            run.add(&record);
        }
        let path = folder.join("config.toml");
        let text =
            limits::read_text(&path, limits::LARGEST_SETTINGS).map_err(ReportError::io(&path, "read the settings"))?;
        if let Ok(table) = text.parse::<toml::Table>() {
            settings("", &toml::Value::Table(table), &mut run.settings);
        }
        Ok(run)
    }

    fn add(&mut self, record: &Value) {
        let step = record["step"].as_u64().unwrap_or(0);
        self.steps = self.steps.max(step);
        self.seconds = record["seconds"].as_f64().unwrap_or(self.seconds).max(self.seconds);
        self.tokens = record["tokens"].as_f64().or(self.tokens);
        let figures = if record["kind"] == "evaluation" { &mut self.evaluation } else { &mut self.train };
        numbers("", record, &mut |name, value| {
            let last = name.rsplit('.').next().unwrap_or(name);
            if !COUNTERS.contains(&last) && value.is_finite() {
                figures.entry(name.to_owned()).or_default().push((step as f64, value));
            }
        });
    }

    /// The last value of each figure: of evaluations, and of training with `train.` before its name.
    pub fn figures(&self) -> Vec<(String, f64)> {
        let last = |(name, points): (&String, &Vec<(f64, f64)>)| (name.clone(), points[points.len() - 1].1);
        let train = self.train.iter().map(|entry| {
            let (name, value) = last(entry);
            (format!("train.{name}"), value)
        });
        self.evaluation.iter().map(last).chain(train).collect()
    }

    /// Steps, time, last figures and settings.
    pub fn to_json(&self) -> Value {
        let figures: Map<String, Value> =
            self.figures().into_iter().map(|(name, value)| (name, json!(value))).collect();
        json!({
            "run": self.name,
            "steps": self.steps,
            "seconds": self.seconds,
            "tokens": self.tokens,
            "figures": figures,
            "settings": self.settings,
        })
    }
}

/// Sections of a page about `runs`.
pub fn sections(runs: &[RunLog]) -> Vec<Section> {
    let mut sections = vec![figures_table(runs)];
    sections.push(Section::Panels(panels(runs)));
    if runs.len() > 1 {
        sections.push(differences(runs));
    } else if let [run] = runs {
        let rows = run.settings.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        sections.push(Section::Table { title: "Settings".into(), rows });
    }
    sections
}

/// A row for each run: its size, and the last value of each figure of evaluations, or of training where nothing was evaluated.
fn figures_table(runs: &[RunLog]) -> Section {
    let names = |of: fn(&RunLog) -> &Figures| {
        let mut names: Vec<&String> = runs.iter().flat_map(|run| of(run).keys()).collect();
        names.sort();
        names.dedup();
        names
    };
    let evaluated = names(|run| &run.evaluation);
    let of = |run: &RunLog| if evaluated.is_empty() { run.train.clone() } else { run.evaluation.clone() };
    let shown = if evaluated.is_empty() { names(|run| &run.train) } else { evaluated.clone() };
    let mut columns = vec!["run".to_owned(), "steps".to_owned(), "time".to_owned()];
    columns.extend(shown.iter().map(|name| (*name).clone()));
    let rows = runs.iter().map(|run| {
        let figures = of(run);
        let mut row = vec![run.name.clone(), run.steps.to_string(), format!("{:.0} s", run.seconds)];
        let last = |name: &&String| figures.get(*name).and_then(|points| points.last());
        row.extend(shown.iter().map(|name| last(name).map_or("-".to_owned(), |point| format!("{:.4}", point.1))));
        row
    });
    Section::Grid { title: "Figures".into(), rows: std::iter::once(columns).chain(rows).collect() }
}

/// A panel for each figure: of one run training and evaluation, of several the runs.
fn panels(runs: &[RunLog]) -> Vec<Panel> {
    let mut names: Vec<&String> = runs.iter().flat_map(|run| run.train.keys().chain(run.evaluation.keys())).collect();
    // Losses first, then accuracies.
    let rank = |name: &str| match name.rsplit('.').next().unwrap_or(name) {
        "loss" => 0,
        name if name.ends_with("loss") => 1,
        name if name.ends_with("accuracy") => 2,
        _ => 3,
    };
    names.sort_by_key(|name| (rank(name), *name));
    names.dedup();
    let mut panels = Vec::new();
    for name in names {
        let mut curves = Vec::new();
        for (part, is_training) in [("training", true), ("evaluation", false)] {
            for run in runs {
                let figures = if is_training { &run.train } else { &run.evaluation };
                let Some(points) = figures.get(name) else { continue };
                let label = if runs.len() == 1 { part.to_owned() } else { format!("{}, {part}", run.name) };
                let color = COLORS[curves.len() % COLORS.len()];
                curves.push(Curve { name: label, color, points: averaged(points.clone()) });
            }
        }
        panels.push(Panel { title: name.clone(), axis: "step", curves });
    }
    panels
}

/// The settings that are not the same in all runs.
fn differences(runs: &[RunLog]) -> Section {
    let mut names: Vec<&String> = runs.iter().flat_map(|run| run.settings.keys()).collect();
    names.sort();
    names.dedup();
    let of = |run: &RunLog, name: &String| run.settings.get(name).cloned().unwrap_or_else(|| "-".to_owned());
    names.retain(|name| runs.iter().any(|run| of(run, name) != of(&runs[0], name)));
    let header = std::iter::once("setting".to_owned()).chain(runs.iter().map(|run| run.name.clone())).collect();
    let rows = names.iter().map(|name| {
        std::iter::once((*name).clone()).chain(runs.iter().map(|run| of(run, name))).collect::<Vec<String>>()
    });
    Section::Grid { title: "Settings that differ".into(), rows: std::iter::once(header).chain(rows).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str, rate: f64) -> RunLog {
        let folder = tempfile::tempdir().unwrap();
        let lines = format!(
            "{{\"kind\":\"train\",\"step\":10,\"loss\":2.0,\"learning_rate\":{rate},\"tokens\":5,\"seconds\":1.0}}\n\
             {{\"kind\":\"evaluation\",\"step\":10,\"measured\":{{\"loss\":3.0,\"count\":7,\"figures\":[[\"accuracy\",0.5]]}},\"seconds\":2.0}}\n\
             {{\"kind\":\"train\",\"st"
        );
        std::fs::write(folder.path().join("metrics.jsonl"), lines).unwrap();
        std::fs::write(folder.path().join("config.toml"), format!("seed = 1\n[optimizer]\nrate = {rate}\n")).unwrap();
        RunLog::read(folder.path(), name).unwrap()
    }

    #[test]
    fn a_run_has_its_last_figures_and_its_settings() {
        let run = run("a", 0.5);
        let value = run.to_json();
        assert_eq!((&value["steps"], &value["figures"]["accuracy"]), (&json!(10), &json!(0.5)));
        assert_eq!((&value["figures"]["train.loss"], &value["figures"]["loss"]), (&json!(2.0), &json!(3.0)));
        assert_eq!((&value["settings"]["optimizer.rate"], &value["seconds"]), (&json!("0.5"), &json!(2.0)));
    }

    #[test]
    fn several_runs_show_what_differs() {
        let sections = sections(&[run("a", 0.5), run("b", 0.25)]);
        let Section::Grid { rows, .. } = &sections[2] else { panic!("{sections:?}") };
        assert_eq!(rows[1..], [["optimizer.rate", "0.5", "0.25"].map(str::to_owned).to_vec()]);
        let Section::Panels(panels) = &sections[1] else { panic!("{sections:?}") };
        let loss = panels.iter().find(|panel| panel.title == "loss").unwrap();
        let names: Vec<&str> = loss.curves.iter().map(|curve| curve.name.as_str()).collect();
        assert_eq!(names, ["a, training", "b, training", "a, evaluation", "b, evaluation"]);
    }

    #[test]
    fn a_damaged_record_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("metrics.jsonl"), "{\"step\":1}\nx\n").unwrap();
        let error = RunLog::read(folder.path(), "a").unwrap_err().to_string();
        assert!(error.contains("metrics.jsonl:2: not a metrics record"), "{error}");
        assert!(RunLog::read(&folder.path().join("none"), "a").is_err());
    }
}
