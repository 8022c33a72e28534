//! `albert kernels predict`: predicted times of the kernels of a training step on an H200.

use crate::{output::results, progress::Progress};
use anyhow::Result;
use clap::Args;
use kernels_proof::predicted::{GROUPS, Prediction, predict_all, report};
use std::io::Write;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Print all columns as Markdown tables: programs, the share of each resource, bank conflicts
    #[arg(long)]
    markdown: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let mut progress = Progress::new("group", 0, GROUPS.len() as u64);
    let predictions = predict_all(|done, title| progress.step(done as u64, title));
    progress.finish();
    let predictions = predictions.map_err(anyhow::Error::msg)?;
    let mut out = results();
    if arguments.markdown {
        write!(out, "{}", report(&predictions))?;
        return Ok(());
    }
    writeln!(out, "floor      least time for the FLOPs (790 TFLOP/s) and bytes (4.3 TB/s)")?;
    writeln!(out, "predicted  time on the resource that takes the longest, which the last column names")?;
    writeln!(out, "reached    floor over predicted")?;
    for (group, rows) in GROUPS.iter().zip(&predictions) {
        write!(out, "\n{}\n{}", group.title, table(rows))?;
    }
    Ok(())
}

/// One line for each workload, with times in µs of all its uses, and their sum.
fn table(rows: &[Prediction]) -> String {
    let mut text = format!("{:>10} {:>13} {:>8}  {:<42} longest\n", "floor, µs", "predicted, µs", "reached", "");
    let mut line = |floor: f64, predicted: f64, what: &str, longest: &str| {
        let reached = format!("{:.0} %", 100.0 * floor / predicted);
        let line = format!("{:>10.1} {:>13.1} {reached:>8}  {what:<42} {longest}", 1e6 * floor, 1e6 * predicted);
        text += line.trim_end();
        text += "\n";
    };
    let (mut floor, mut predicted) = (0.0, 0.0);
    for row in rows {
        let times = row.workload.times as f64;
        let uses = if row.workload.times > 1 { format!("{} x ", row.workload.times) } else { String::new() };
        line(times * row.floor, times * row.seconds, &format!("{uses}{}", row.workload.what), row.bound);
        floor += times * row.floor;
        predicted += times * row.seconds;
    }
    line(floor, predicted, "all", "");
    text
}
