//! Entry point: a run of fine-tuning in a folder.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use albert::train::{Observer, Outcome, StartMode, Worker, run};

use super::objective::{FinetuneSources, Finetuning};
use super::{FinetuneError, FinetuneRecipe, FinetuneSummary};

/// Runs fine-tuning in `folder`. `stop` may be set at any time, for example by a signal; it is checked after every
/// step.
///
/// # Errors
/// Recipe, examples, model and folder do not match, a resumed run has other settings, or a file cannot be written.
pub fn finetune(
    recipe: &FinetuneRecipe,
    sources: &FinetuneSources<'_>,
    (folder, mode): (&Path, StartMode),
    worker: impl Into<Worker>,
    stop: &AtomicBool,
    observer: &mut dyn Observer<Finetuning>,
) -> Result<Outcome<FinetuneSummary>, FinetuneError> {
    let worker = worker.into().with_timeout(&recipe.run);
    let communicator = worker.communicator.clone();
    run((folder, mode), stop, observer, communicator, || Finetuning::trainer(recipe, sources, worker))
}
