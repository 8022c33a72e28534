//! How well a pre-trained model does what it was, or was not, trained for: sentences in order, sentences that belong
//! together. Paper, table 5: a model trained on the one is asked the other.

use std::path::Path;

use engine::Device;

use super::run::held_out;
use super::{PretrainError, Recipe, Sources, Trainer};
use crate::data::Objective;
use crate::metrics::Proportion;

/// How often the sentence head of the model in `folder`, pre-trained with `recipe`, is right about pairs of `objective`
/// made from the held-out text; `None` if the model was trained without sentences, or the text gives no pairs.
///
/// Both objectives call a pair that stands in the text as it is 0, so that one head can be asked both.
///
/// # Errors
/// The folder is not of this recipe, or the engine failed.
pub fn sentence_accuracy(
    folder: &Path,
    recipe: &Recipe,
    sources: &Sources<'_>,
    objective: Objective,
    device: Device,
) -> Result<Option<Proportion>, PretrainError> {
    if recipe.data.instances.objective == Objective::None || objective == Objective::None {
        return Ok(None);
    }
    let mut recipe = recipe.clone();
    recipe.data.instances.objective = objective;
    recipe.input.start_from = Some(folder.to_owned());
    recipe.input.fresh.clear();
    let mut trainer = Trainer::new(&recipe, sources.dataset, sources.vocabulary, device)?;
    let (Some(mut held_out), _) = held_out(trainer.recipe(), sources)? else { return Ok(None) };
    let tally = trainer.evaluate(&mut held_out.set, &mut held_out.batch)?;
    Ok((tally.sop_correct.count > 0).then_some(tally.sop_correct))
}
