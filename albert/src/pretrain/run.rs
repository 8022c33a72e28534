//! Entry points: a run of pre-training in a folder, and the sentence accuracy of a pre-trained model.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use engine::{Communicator, Device, Workspace};

use super::initial::initial_model;
use super::objective::{HeldOut, PretrainSources, Pretraining, plan_evaluation};
use super::{PretrainError, PretrainRecipe, PretrainSummary};
use crate::data::Objective;
use crate::loaded::LoadedModel;
use crate::mean::Proportion;
use crate::train::{Observer, Outcome, StartMode, Trainer, Worker, run};

/// Pre-trains in `folder`. `stop` may be set at any time, for example by a signal; it is checked after every step.
///
/// # Errors
/// Recipe, data and folder do not match, a resumed run has other settings, or a file cannot be written. Earlier
/// checkpoints are kept.
pub fn pretrain(
    recipe: &PretrainRecipe,
    sources: &PretrainSources,
    (folder, mode): (&Path, StartMode),
    worker: impl Into<Worker>,
    stop: &AtomicBool,
    observer: &mut dyn Observer<Pretraining>,
) -> Result<Outcome<PretrainSummary>, PretrainError> {
    let worker = worker.into().with_timeout(&recipe.run);
    let communicator = worker.communicator.clone();
    run((folder, mode), stop, observer, communicator, || Trainer::<Pretraining>::new(recipe, sources, worker))
}

/// Accuracy of the sentence head of the model in `folder`, pre-trained with `recipe`, on pairs of `objective` from the
/// held-out text; `None` if the model was trained without sentence pairs, or the text contains no pairs. Paper, table
/// 5: a model trained on one objective is evaluated on the other.
///
/// Both objectives use label 0 for a pair in its original order, so one head can be evaluated on both.
///
/// # Errors
/// The folder does not match the recipe, or the engine failed.
pub fn sentence_accuracy(
    folder: &Path,
    recipe: &PretrainRecipe,
    sources: &PretrainSources,
    objective: Objective,
    device: Device,
) -> Result<Option<Proportion>, PretrainError> {
    if recipe.data.instances.objective == Objective::None || objective == Objective::None {
        return Ok(None);
    }
    let mut recipe = recipe.clone().with_vocabulary(sources.vocabulary.size())?;
    recipe.data.instances.objective = objective;
    recipe.input.start_from = Some(folder.to_owned());
    recipe.input.fresh.clear();
    let (model, params) = initial_model(&recipe, &sources.dataset, device.processor())?;
    let Ok(mut held_out) = HeldOut::open(&recipe, sources)? else { return Ok(None) };
    let options = recipe.compute.options(&device, None);
    let precision = recipe.compute.precision.on(&device);
    let mut workspace = Workspace::new(device);
    workspace.set_precision(precision)?;
    let mut loaded = LoadedModel { workspace, model, params };
    plan_evaluation(&recipe, &mut loaded, &options)?;
    let alone = Communicator::default();
    let correct = held_out.tally(&mut loaded, &options, recipe.weights(), &alone)?.sentence_correct;
    Ok((correct.count > 0).then_some(correct))
}
