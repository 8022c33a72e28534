//! Comparison of runs of any kind, from their files, on one page: metrics, overlaid curves, differences of settings.
//!
//! ```text
//! RUN/metrics.jsonl ── numbers by name, of training and of evaluations ──┐
//! RUN/config.toml ─── settings by name ─────────────────────────────────┴── sections of a page, or JSON
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use engine::io::limits;
use serde_json::{Map, Value, json};

use super::curves::{COLORS, GREY, averaged};
use super::words::{baseline, meaning};
use super::{Curve, Line, Panel, ReportError, Section};

/// Names of record fields that are not metrics.
pub(super) const COUNTERS: [&str; 12] = [
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
    "nsp_count",
    "nsp_standard_error",
];

/// Position of a record in its run: steps, tokens, seconds.
type Place = [f64; 3];

/// (position, value) pairs of each metric.
type Figures = BTreeMap<String, Vec<(Place, f64)>>;

/// Choice of the x axis of curves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Axis {
    Step,
    Tokens,
    Minutes,
    Share,
}

impl Axis {
    fn name(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Tokens => "million tokens",
            Self::Minutes => "minutes",
            Self::Share => "% of the run",
        }
    }

    /// Coordinate of a position in `run`.
    fn of(self, run: &RunLog, [step, tokens, seconds]: Place) -> f64 {
        match self {
            Self::Step => step,
            Self::Tokens => tokens / 1e6,
            Self::Minutes => seconds / 60.0,
            Self::Share => 100.0 * step / (run.steps as f64).max(1.0),
        }
    }
}

/// A run as recorded in its files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunLog {
    /// Name on the page.
    pub name: String,
    /// Metrics of training.
    train: Figures,
    /// Metrics of evaluations.
    evaluation: Figures,
    /// Settings by name.
    settings: BTreeMap<String, String>,
    steps: u64,
    seconds: f64,
    tokens: Option<f64>,
}

/// Objects of a record whose numbers keep their own names.
const GROUPS: [&str; 2] = ["measured", "figures"];

/// Adds the numbers in `value` under their names; the names of those inside an object that is not a group are prefixed with its
/// name. A list of names and values is treated like an object.
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
    /// Reads the run in `folder`. A line of the metrics that was cut off by a kill is skipped.
    ///
    /// # Errors
    /// The folder does not contain a run, or a line of its metrics is not a record.
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
        let place = [step as f64, self.tokens.unwrap_or(0.0), self.seconds];
        let figures = if record["kind"] == "evaluation" { &mut self.evaluation } else { &mut self.train };
        numbers("", record, &mut |name, value| {
            let last = name.rsplit('.').next().unwrap_or(name);
            if !COUNTERS.contains(&last) && value.is_finite() {
                figures.entry(name.to_owned()).or_default().push((place, value));
            }
        });
    }

    /// Last value of each metric: of evaluations, and of training with the prefix `train.`.
    pub(crate) fn figures(&self) -> Vec<(String, f64)> {
        let last = |(name, points): (&String, &Vec<(Place, f64)>)| (name.clone(), points[points.len() - 1].1);
        let train = self.train.iter().map(|entry| {
            let (name, value) = last(entry);
            (format!("train.{name}"), value)
        });
        self.evaluation.iter().map(last).chain(train).collect()
    }

    /// Steps, time, last metrics and settings as JSON.
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
    sections.push(Section::Axes(axes(runs).into_iter().map(|axis| panels(runs, axis)).collect()));
    if runs.len() > 1 {
        sections.push(differences(runs));
    } else if let [run] = runs {
        let rows = run.settings.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        sections.push(Section::Table { title: "Settings".into(), rows });
    }
    sections
}

/// Builds a row for each metric: the last value of each run in evaluations, or in training if nothing was evaluated, and its meaning.
fn figures_table(runs: &[RunLog]) -> Section {
    let is_evaluated = runs.iter().any(|run| !run.evaluation.is_empty());
    let of = |run: &'_ RunLog| if is_evaluated { run.evaluation.clone() } else { run.train.clone() };
    let figures: Vec<Figures> = runs.iter().map(of).collect();
    let mut names: Vec<&String> = figures.iter().flat_map(BTreeMap::keys).collect();
    names.sort_by_key(|name| (rank(name), *name));
    names.dedup();
    let row = |name: &str, cells: Vec<String>, meaning: &str| {
        std::iter::once(name.to_owned()).chain(cells).chain([meaning.to_owned()]).collect::<Vec<_>>()
    };
    let cells = |of: fn(&RunLog) -> String| runs.iter().map(of).collect();
    let mut rows = vec![
        row("figure", cells(|run| run.name.clone()), "meaning"),
        row("steps", cells(|run| run.steps.to_string()), "updates of the parameters"),
        // A no-break space.
        row("time", cells(|run| format!("{:.0}\u{a0}s", run.seconds)), "training alone, without evaluations"),
    ];
    rows.extend(names.into_iter().map(|name| {
        let last = |figures: &Figures| figures.get(name).and_then(|points| points.last().copied());
        let cell = |figures| last(figures).map_or("-".to_owned(), |point| format!("{:.4}", point.1));
        row(name, figures.iter().map(cell).collect(), meaning(name))
    }));
    Section::Grid { title: "Figures".into(), rows }
}

/// Losses first, then accuracies.
fn rank(name: &str) -> u32 {
    match name.rsplit('.').next().unwrap_or(name) {
        "loss" => 0,
        name if name.ends_with("loss") => 1,
        name if name.ends_with("accuracy") => 2,
        _ => 3,
    }
}

/// Axes to choose from; the first is shown. Runs of very different lengths are compared by their relative length.
fn axes(runs: &[RunLog]) -> Vec<Axis> {
    if runs.len() < 2 {
        return vec![Axis::Step];
    }
    let mut axes = vec![Axis::Step, Axis::Share, Axis::Minutes];
    let steps = || runs.iter().map(|run| run.steps);
    if steps().max() > steps().min().map(|least| 2 * least) {
        axes.swap(0, 1);
    }
    if runs.iter().all(|run| run.tokens.is_some()) {
        axes.push(Axis::Tokens);
    }
    axes
}

/// Builds a panel for each metric, with its baseline as a line. A run has one color: evaluation lines are solid, training lines thin.
fn panels(runs: &[RunLog], axis: Axis) -> Vec<Panel> {
    let mut names: Vec<&String> = runs.iter().flat_map(|run| run.train.keys().chain(run.evaluation.keys())).collect();
    names.sort_by_key(|name| (rank(name), *name));
    names.dedup();
    names.retain(|name| baseline(name).is_none_or(|(of, _)| !has_figure(runs, of)));
    names.into_iter().map(|name| panel(runs, name, axis)).collect()
}

/// True if a run has the metric.
fn has_figure(runs: &[RunLog], name: &str) -> bool {
    runs.iter().any(|run| run.train.contains_key(name) || run.evaluation.contains_key(name))
}

fn panel(runs: &[RunLog], name: &str, axis: Axis) -> Panel {
    let label = |run: &RunLog, part: &str| match runs.len() {
        1 => part.to_owned(),
        _ => format!("{}, {part}", run.name),
    };
    let mut curves = Vec::new();
    let is_evaluated = runs.iter().any(|run| run.evaluation.contains_key(name));
    let training = if is_evaluated { Line::Thin } else { Line::Solid };
    for (run, color) in runs.iter().zip(COLORS.into_iter().cycle()) {
        let parts = [("training", training, &run.train), ("evaluation", Line::Solid, &run.evaluation)];
        for (part, line, figures) in parts {
            let Some(points) = figures.get(name) else { continue };
            let points = points.iter().map(|(place, value)| (axis.of(run, *place), *value)).collect();
            curves.push(Curve { line, ..Curve::new(&label(run, part), color, averaged(points)) });
        }
    }
    curves.extend(baselines(runs, name, axis, label));
    Panel { title: name.to_owned(), meaning: meaning(name), axis: axis.name(), curves }
}

/// Dashed lines at the last baselines of metric `name`, across the chart: one if it is the same for all runs.
fn baselines(runs: &[RunLog], name: &str, axis: Axis, label: impl Fn(&RunLog, &str) -> String) -> Vec<Curve> {
    let of = |run: &RunLog| {
        let (key, points) = run.evaluation.iter().find(|(key, _)| baseline(key).is_some_and(|(of, _)| of == name))?;
        Some((baseline(key)?.1, points.last()?.1))
    };
    let end = |run: &RunLog| axis.of(run, [run.steps as f64, run.tokens.unwrap_or(0.0), run.seconds]);
    let line = |name: &str, color, y: f64, end: f64| Curve {
        line: Line::Dashed,
        ..Curve::new(name, color, vec![(0.0, y), (end, y)])
    };
    let found: Vec<_> = runs
        .iter()
        .zip(COLORS.into_iter().cycle())
        .filter_map(|(run, color)| {
            let (name, y) = of(run)?;
            Some((run, color, name, y))
        })
        .collect();
    match &found[..] {
        [] => Vec::new(),
        [(_, _, name, y), others @ ..] if others.iter().all(|other| other.3 == *y) => {
            vec![line(name, GREY, *y, runs.iter().map(end).fold(0.0, f64::max))]
        }
        all => all.iter().map(|(run, color, name, y)| line(&label(run, name), *color, *y, end(run))).collect(),
    }
}

/// Settings that differ between runs.
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
            "{{\"kind\":\"train\",\"step\":10,\"loss\":2.0,\"mlm_loss\":2.0,\"learning_rate\":{rate},\"tokens\":5,\"seconds\":1.0}}\n\
             {{\"kind\":\"evaluation\",\"step\":10,\"measured\":{{\"loss\":3.0,\"count\":7,\"figures\":[[\"accuracy\",0.5]]}},\"mlm_loss\":3.0,\"unigram_loss\":7.0,\"seconds\":2.0}}\n\
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
        let Section::Axes(axes) = &sections[1] else { panic!("{sections:?}") };
        assert_eq!(axes.len(), 4);
        let loss = axes[0].iter().find(|panel| panel.title == "mlm_loss").unwrap();
        let names: Vec<&str> = loss.curves.iter().map(|curve| curve.name.as_str()).collect();
        let both = ["training", "evaluation"];
        let expected = ["a", "b"].map(|run| both.map(|part| format!("{run}, {part}"))).concat();
        assert_eq!(names, [&expected[..], &["unigram baseline".to_owned()]].concat());
        // One color for each run, another for their common line, and the baseline as a line across.
        let colors: Vec<_> = loss.curves.iter().map(|curve| curve.color).collect();
        assert!(colors[0] == colors[1] && colors[2] == colors[3] && colors[0] != colors[2] && colors[4] == GREY);
        assert_eq!((loss.curves[4].line, &loss.curves[4].points), (Line::Dashed, &vec![(0.0, 7.0), (10.0, 7.0)]));
        assert!(axes[0].iter().all(|panel| panel.title != "unigram_loss"), "a baseline has a chart of its own");
    }

    #[test]
    fn runs_of_different_length_are_shown_by_their_share() {
        let (short, mut long) = (run("short", 0.5), run("long", 0.5));
        let metrics = "{\"kind\":\"train\",\"step\":1651,\"mlm_loss\":2.0,\"tokens\":50,\"seconds\":120.0}";
        long.add(&serde_json::from_str(metrics).unwrap());
        let runs = [short, long];
        assert_eq!(axes(&runs), [Axis::Share, Axis::Step, Axis::Minutes, Axis::Tokens]);
        let panels = panels(&runs, Axis::Share);
        let ends = panels.iter().flat_map(|panel| &panel.curves).filter(|curve| curve.name.ends_with("training"));
        for curve in ends.filter(|curve| curve.points.len() > 1 || curve.name.starts_with("short")) {
            assert_eq!(curve.points.last().unwrap().0, 100.0, "{}", curve.name);
        }
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
