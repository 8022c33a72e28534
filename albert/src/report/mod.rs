//! Files that report on a run.
//!
//! ```text
//! metrics.jsonl              one JSON object per line: `train` and `evaluation` records
//! events.out.tfevents.*      the same metrics for TensorBoard; one file for every start of the run
//! curves.svg                 loss, accuracy and learning rate over the steps
//! report.html                metrics, confusion matrix and curves of fine-tuning, in one file
//! `albert report`            the same of one or several runs of any kind, from their metrics and settings
//! ```
//!
//! A killed run may have logged steps beyond its last checkpoint. Resuming removes them from the metrics and makes
//! TensorBoard drop them, so that the files end like those of an uninterrupted run.

mod comparison;
mod curves;
mod html;
mod metrics_log;
mod tensorboard;
mod words;

pub use comparison::{RunLog, sections};
#[cfg(test)]
pub(crate) use curves::draw;
pub use curves::{BLUE, Curve, Line, ORANGE, Panel, write_panels};
pub(crate) use curves::{GREEN, GREY, RED, averaged};
pub use html::{Section, write_html};
pub use metrics_log::Logged;
pub(crate) use metrics_log::MetricsLog;
pub use metrics_log::read_metrics;
pub(crate) use tensorboard::EventFile;
pub use words::meaning;

use std::path::{Path, PathBuf};

use engine::EngineError;

/// Error of a report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A file could not be written.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A file could not be opened, read or appended to.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The action that failed, in the infinitive.
        action: &'static str,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A line of the metrics is not a record.
    #[error("{}:{line}: not a metrics record: {problem}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Message of the parser.
        problem: String,
    },
    /// Records counted by a checkpoint are missing from the metrics.
    #[error(
        "{}: has {found} of the {counted} records counted by the checkpoint of step {step}; restore the file, or \
         remove it to continue without its records",
        path.display()
    )]
    Missing {
        /// The file.
        path: PathBuf,
        /// Number of records in the file.
        found: u64,
        /// Number of records counted by the checkpoint.
        counted: u64,
        /// Step of the checkpoint.
        step: u64,
    },
    /// The plot could not be drawn.
    #[error("{}: cannot draw the curves: {problem}", path.display())]
    Plot {
        /// The file.
        path: PathBuf,
        /// Message of the plotter.
        problem: String,
    },
}

impl ReportError {
    fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, action, source }
    }
}
