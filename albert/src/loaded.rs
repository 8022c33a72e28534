//! A model in memory, ready to run: the base of [`crate::embed`], [`crate::fill_mask`], [`crate::forward`], predictions of
//! `albert_tasks::finetune` and training.

use engine::{EngineError, ParamStore, Precision, Tape, Workspace};
use half::bf16;

use crate::checkpoint::{CheckpointError, LoadReport, ModelFolder};
use crate::config::Heads;
use crate::finite::NotFinite;
use crate::model::Model;
use crate::tokenizer::TokenizerError;

/// Error of loading a model or of running it on an input.
#[derive(Debug, thiserror::Error)]
pub enum InferenceError {
    /// The model folder cannot be loaded.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The tokenizer cannot be loaded or does not fit the model.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// An output is NaN or infinite.
    #[error(transparent)]
    NotFinite(#[from] NotFinite),
    /// The text or example does not fit the model.
    #[error("{0}")]
    Input(String),
}

/// A model with its parameters and workspace.
#[derive(Debug)]
pub struct LoadedModel {
    /// The model and its configuration.
    pub model: Model,
    /// Parameters of the model.
    pub params: ParamStore,
    /// Device, memory and profiler.
    pub workspace: Workspace,
}

impl LoadedModel {
    /// Loads the model in `files` with `heads`, to run in `workspace`. A missing tensor is an error, never initialized at
    /// random.
    ///
    /// # Errors
    /// A tensor is missing or damaged, or there is not enough memory.
    pub fn new(files: &ModelFolder, heads: Heads, workspace: Workspace) -> Result<(Self, LoadReport), CheckpointError> {
        let (model, params, report) = files.model(heads, &[], workspace.device().processor(), 0)?;
        Ok((Self { model, params, workspace }, report))
    }

    /// Sets the precision of later steps.
    ///
    /// # Errors
    /// A weight exceeds the range of bf16, or the device does not have the precision.
    pub fn set_precision(&mut self, precision: Precision) -> Result<(), EngineError> {
        let is_beyond = |x: &&f32| x.is_finite() && !bf16::from_f32(**x).is_finite();
        let rounds = matches!(precision, Precision::Bf16 | Precision::Bf16Weights);
        for id in self.params.ids().filter(|_| rounds) {
            if let Some(x) = self.params.values(id).iter().find(is_beyond) {
                let name = self.params.name(id);
                let problem = format!("{name} contains {x:e}, but bf16 represents at most 3.39e38; choose f32");
                return Err(EngineError::Setting { setting: "precision", value: precision.to_string(), problem });
            }
        }
        self.workspace.set_precision(precision)
    }

    /// Runs `compute` in a step without gradients, with the worker threads awake.
    ///
    /// # Errors
    /// As `compute`.
    pub fn infer<R, E>(&mut self, compute: impl FnOnce(&Model, &Tape<'_>) -> Result<R, E>) -> Result<R, E> {
        let Self { model, params, workspace, .. } = self;
        let cpu = workspace.device().processor().clone();
        cpu.enter(|| compute(model, &workspace.infer(params, None)))
    }
}
