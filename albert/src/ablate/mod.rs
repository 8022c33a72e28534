//! Ablations: a set of recipes, each pre-trained and fine-tuned under several seeds at the same budget, in one table.
//!
//! ```text
//! plan ── rows x seeds ──> pre-training ──> accuracy on both sentence objectives ──> fine-tuning, a task each
//!                                                                                          └> table, with error bars
//! OUTPUT/plan.toml                         what is run, as given
//! OUTPUT/table.md  table.json              rewritten after every stage
//! OUTPUT/ROW/seed-N/pretrain/  TASK/       runs (see `pretrain` and `finetune`)
//! OUTPUT/ROW/seed-N/result.json            figures of the stages that are done
//! ```
//!
//! Stages that are done are not run again, and one that was interrupted goes on from its newest checkpoint. Several
//! processes may share OUTPUT: each takes the runs that no other has. Rows that say the same in different sections are run
//! once. The tables have the structure of the paper's (Lan et al. 2020, tables 3 to 6 and 11 to 12): parameters, speed,
//! accuracies of the objectives themselves, scores of tasks, their average.

mod plan;
mod run;
mod table;
#[cfg(test)]
mod tests;

pub use plan::{Budget, Input, Plan, Row, Section, TaskPlan, Variant};
pub use run::{PretrainResult, RunOutcome, RunResult, Stage, TaskResult, Watcher, ablate};
pub use table::{Cell, Table, tables};

use engine::EngineError;

use crate::data::DataError;
use crate::finetune::FinetuneError;
use crate::pretrain::PretrainError;
use crate::tokenizer::TokenizerError;

/// Why an ablation cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum AblationError {
    /// The plan.
    #[error("plan: {0}")]
    Plan(String),
    /// A row's recipe.
    #[error("row {row:?}: {source}")]
    Row {
        /// Its name.
        row: String,
        /// What is wrong with it.
        source: Box<PretrainError>,
    },
    /// Fine-tuning on a task.
    #[error("task {task:?}: {source}")]
    Task {
        /// Its name.
        task: String,
        /// What is wrong.
        source: Box<FinetuneError>,
    },
    /// The shards.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A file.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The folder holds something else.
    #[error("{0}")]
    Folder(String),
}
