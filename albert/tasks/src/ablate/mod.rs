//! Ablations: a set of recipes, each pre-trained and fine-tuned under several seeds, compared in tables.
//!
//! ```text
//! plan ── rows x seeds ──> pre-training ──> accuracy on both sentence objectives ──> fine-tuning, once per task
//!                                                                                          └> table, with error bars
//! OUTPUT/plan.toml                         the plan, as given
//! OUTPUT/table.md  table.json              rewritten after every stage
//! OUTPUT/ROW/seed-N/pretrain/  TASK/       runs (see `pretrain` and `finetune`)
//! OUTPUT/ROW/seed-N/result.json            results of the finished stages
//! ```
//!
//! Finished stages are not repeated; an interrupted stage resumes from its newest checkpoint. Several processes may
//! share OUTPUT: each executes only runs that are not locked. Rows with equal recipes run once, even across sections.
//! The tables are structured like the paper's (Lan et al. 2020, tables 3 to 6 and 11 to 12): parameters, speed,
//! accuracies of the pre-training objectives, task scores, their average.

mod plan;
mod result;
mod run;
mod table;
#[cfg(test)]
mod tests;

pub use plan::{Budget, Input, Plan, Row, Section, TaskPlan, Variant};

pub use run::{Ablation, RunOutcome, Stage, Watcher, ablate, read};
pub use table::{Cell, Table};

use albert::pretrain::PretrainError;
use albert::tokenizer::TokenizerError;
use engine::EngineError;

use crate::finetune::FinetuneError;

/// Error of an ablation.
#[derive(Debug, thiserror::Error)]
pub enum AblationError {
    /// The plan is invalid.
    #[error("plan: {0}")]
    Plan(String),
    /// The recipe of a row is invalid, or its pre-training failed.
    #[error("row {row:?}: {source}")]
    Row {
        /// Name of the row.
        row: String,
        /// Error of pre-training.
        source: Box<PretrainError>,
    },
    /// Fine-tuning on a task failed.
    #[error("task {task:?}: {source}")]
    Task {
        /// Name of the task.
        task: String,
        /// Error of fine-tuning.
        source: Box<FinetuneError>,
    },
    /// The shards cannot be read, or were encoded by another tokenizer.
    #[error(transparent)]
    Sources(#[from] PretrainError),
    /// The tokenizer cannot be loaded.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A file cannot be read, written or locked.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The folder contains another plan, another recipe, or a damaged result.
    #[error("{0}")]
    Folder(String),
}
