//! The tables of an ablation: a row per recipe, with its size, speed and scores as columns.
//!
//! Accuracies and scores are stored as fractions and printed in percent. A value is mean ± standard deviation over the
//! seeds (√(Σ (x - mean)² / (n - 1)); without ± for one seed). The last column is the mean over tasks, computed seed
//! by seed as in the paper.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::plan::{Plan, Row, Variant};
use super::result::RunResult;
use crate::metrics::percent;

/// A metric over the seeds for which it was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// One value per seed, in the order of the seeds.
    pub values: Vec<f64>,
    /// Mean of the values; `None` without values.
    pub mean: Option<f64>,
    /// Sample standard deviation; `None` for fewer than two values.
    pub deviation: Option<f64>,
}

impl Cell {
    fn new(values: Vec<f64>) -> Self {
        let n = values.len() as f64;
        let mean = (!values.is_empty()).then(|| values.iter().sum::<f64>() / n);
        let deviation = mean.filter(|_| values.len() > 1).map(|mean| {
            let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
            (squares / (n - 1.0)).sqrt()
        });
        Self { values, mean, deviation }
    }

    /// Mean ± deviation, each formatted by `text`.
    fn text(&self, text: impl Fn(f64) -> String) -> String {
        match (self.mean, self.deviation) {
            (None, _) => "-".to_owned(),
            (Some(mean), None) => text(mean),
            (Some(mean), Some(deviation)) => format!("{} ± {}", text(mean), text(deviation)),
        }
    }

    /// Mean ± deviation of a fraction, in percent.
    fn percent(&self) -> String {
        self.text(|fraction| percent(fraction, 1))
    }
}

/// One line of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Name of the row.
    pub name: String,
    /// Parameters of the encoder.
    pub parameters: u64,
    /// Pre-training speed in tokens per second.
    pub speed: Cell,
    /// Accuracies of MLM, NSP and SOP on held-out text, 0 to 1.
    pub objectives: [Cell; 3],
    /// Score of each task, 0 to 1 (correlations -1 to 1).
    pub tasks: Vec<Cell>,
    /// Mean over the tasks.
    pub average: Cell,
    /// Messages of diverged runs.
    pub problems: Vec<String>,
}

/// Results of a section of the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Title of the section.
    pub title: String,
    /// Column headings of the tasks, `NAME (METRIC)`.
    pub tasks: Vec<String>,
    /// Lines, one per row of the section.
    pub lines: Vec<Line>,
    /// Sentence about the budget of the rows.
    pub budget: String,
}

/// The tables of `plan`; `results[v][s]` is the result of variant v under seed s.
pub(crate) fn tables(plan: &Plan, variants: &[Variant], results: &[Vec<RunResult>]) -> Vec<Table> {
    let find = |s: usize, r: usize| variants.iter().position(|variant| variant.rows.contains(&(s, r)));
    let metric = |task: &str| {
        let of = |result: &RunResult| result.tasks.get(task).map(|scored| scored.metric.clone());
        let found = results.iter().flatten().find_map(of);
        found.map_or_else(|| task.to_owned(), |metric| format!("{task} ({metric})"))
    };
    let table = |(s, section): (usize, &super::Section)| {
        // Each row with its variant; a row without one is omitted, including its name.
        let found: Vec<(usize, &Row)> =
            (0..).zip(&section.rows).filter_map(|(r, row)| Some((find(s, r)?, row))).collect();
        Table {
            title: section.title.clone(),
            tasks: plan.tasks.iter().map(|task| metric(&task.name)).collect(),
            lines: found.iter().map(|&(v, row)| line(plan, &row.name, &variants[v], &results[v])).collect(),
            budget: budget(found.iter().map(|&(v, _)| &variants[v])),
        }
    };
    plan.sections.iter().enumerate().map(table).collect()
}

fn line(plan: &Plan, name: &str, variant: &Variant, results: &[RunResult]) -> Line {
    let over = |value: &dyn Fn(&RunResult) -> Option<f64>| Cell::new(results.iter().filter_map(value).collect());
    let pretrained = |result: &RunResult| result.pretrained.clone();
    let task = |name: &str| over(&|result| result.tasks.get(name).map(|scored| scored.score));
    let average = |result: &RunResult| {
        let values: Option<Vec<f64>> =
            plan.tasks.iter().map(|task| result.tasks.get(&task.name).map(|scored| scored.score)).collect();
        values.filter(|values| !values.is_empty()).map(|values| values.iter().sum::<f64>() / values.len() as f64)
    };
    Line {
        name: name.to_owned(),
        parameters: variant.budget().parameters,
        speed: over(&|result| {
            pretrained(result).map(|pretrained| pretrained.tokens as f64 / pretrained.seconds.max(1e-9))
        }),
        objectives: [
            over(&|result| pretrained(result)?.mlm_accuracy),
            over(&|result| pretrained(result)?.nsp?.value()),
            over(&|result| pretrained(result)?.sop?.value()),
        ],
        tasks: plan.tasks.iter().map(|entry| task(&entry.name)).collect(),
        average: over(&average),
        problems: results.iter().filter_map(|result| result.problem.clone()).collect(),
    }
}

/// Sentence about the budget shared by all rows, or about their different budgets.
fn budget<'v>(variants: impl Iterator<Item = &'v Variant>) -> String {
    let mut budgets: Vec<_> = variants.map(|variant| (variant.budget().steps, variant.budget().tokens)).collect();
    budgets.sort_unstable();
    budgets.dedup();
    match &budgets[..] {
        [(steps, tokens)] => format!("Budget of each row: {steps} steps, at most {tokens} tokens."),
        _ => {
            let all: Vec<_> = budgets.iter().map(|(steps, tokens)| format!("{steps} steps, {tokens} tokens")).collect();
            format!("The rows have different budgets: {}.", all.join("; "))
        }
    }
}

impl Table {
    /// Rows of cells; the first row has the names of the columns.
    pub fn grid(&self) -> Vec<Vec<String>> {
        let first = self.lines.iter().find_map(|line| line.speed.mean);
        let mut head = ["", "parameters", "tokens/s", "speed", "MLM %", "NSP %", "SOP %"].map(str::to_owned).to_vec();
        head.extend(self.tasks.iter().cloned());
        if self.tasks.len() > 1 {
            head.push("average".to_owned());
        }
        let row = |line: &Line| {
            let speed =
                line.speed.mean.zip(first).map_or("-".to_owned(), |(own, first)| format!("{:.2}x", own / first));
            let parameters = format!("{:.2} M", line.parameters as f64 / 1e6);
            let mut cells =
                vec![line.name.clone(), parameters, line.speed.text(|tokens| format!("{tokens:.0}")), speed];
            cells.extend(line.objectives.iter().map(Cell::percent));
            cells.extend(line.tasks.iter().map(Cell::percent));
            if self.tasks.len() > 1 {
                cells.push(line.average.percent());
            }
            cells
        };
        std::iter::once(head).chain(self.lines.iter().map(row)).collect()
    }

    /// The budget, and the problems of diverged runs.
    pub fn remarks(&self) -> Vec<String> {
        let of =
            |line: &Line| line.problems.iter().map(|problem| format!("{}: {problem}.", line.name)).collect::<Vec<_>>();
        std::iter::once(self.budget.clone()).chain(self.lines.iter().flat_map(of)).collect()
    }
}

/// The table in Markdown.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "### {}\n", self.title)?;
        for (at, cells) in self.grid().iter().enumerate() {
            writeln!(f, "| {} |", cells.join(" | "))?;
            if at == 0 {
                writeln!(f, "|{}", "---|".repeat(cells.len()))?;
            }
        }
        writeln!(f)?;
        self.remarks().iter().try_for_each(|remark| writeln!(f, "{remark}"))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::result::{PretrainResult, TaskResult};
    use super::*;
    use crate::finetune::TaskName;

    /// A plan of two rows and one task for each of `tasks`.
    fn plan(tasks: &[TaskName]) -> Plan {
        let mut text = "seeds = [1, 2]\n[input]\ndata = \"d\"\ntokenizer = \"t\"\n[base.model]\npreset = \"tiny\"\n\
                        [base.schedule]\nwarmup_steps = 1\n"
            .to_owned();
        for task in tasks {
            text += &format!("[[task]]\nname = \"{0}\"\ntask = \"{0}\"\ndata = \"d\"\n", task.name());
        }
        text += "[[section]]\ntitle = \"All\"\n[[section.row]]\nname = \"one\"\n[[section.row]]\nname = \"two\"\n\
                 set = [\"schedule.steps=7\"]\n";
        Plan::from_toml(&text).unwrap()
    }

    fn result(scores: &[(TaskName, f64)]) -> RunResult {
        let of = |&(task, score): &(TaskName, f64)| {
            let metric = task.metrics()[0].name().to_owned();
            (task.name().to_owned(), TaskResult { metric, score, seconds: 1.0 })
        };
        let tasks: BTreeMap<_, _> = scores.iter().map(of).collect();
        RunResult { pretrained: Some(PretrainResult::default()), tasks, ..RunResult::default() }
    }

    #[test]
    fn every_metric_is_printed_in_percent_once() {
        // One task per kind of metric: answers, correlation, Matthews' coefficient, classes, entities.
        let names = ["squad2", "sts-b", "cola", "classify", "tag"].map(|name| name.parse::<TaskName>().unwrap());
        let plan = plan(&names);
        let variants = plan.variants(1000).unwrap();
        let scores = [0.9125, 0.8, -0.25, 0.75, 0.5];
        let run = result(&names.into_iter().zip(scores).collect::<Vec<_>>());
        let text = tables(&plan, &variants, &[vec![run.clone(); 2], vec![run; 2]])[0].to_string();
        assert!(
            text.contains(
                "squad2 (span_f1) | sts-b (pearson) | cola (matthews) | classify (accuracy) | tag (entity_f1)"
            ),
            "{text}"
        );
        assert!(
            text.contains("| 91.2 ± 0.0 | 80.0 ± 0.0 | -25.0 ± 0.0 | 75.0 ± 0.0 | 50.0 ± 0.0 | 54.2 ± 0.0 |"),
            "{text}"
        );
    }

    #[test]
    fn a_row_without_a_variant_does_not_shift_the_others() {
        let classify = "classify".parse::<TaskName>().unwrap();
        let plan = plan(&[classify]);
        let second = plan.variants(1000).unwrap().remove(1);
        let tables = tables(&plan, &[second], &[vec![result(&[(classify, 0.5)])]]);
        let names: Vec<&str> = tables[0].lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(names, ["two"]);
        assert!(tables[0].budget.starts_with("Budget of each row: 7 steps"), "{}", tables[0].budget);
    }
}
