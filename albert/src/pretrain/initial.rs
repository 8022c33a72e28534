//! Initial values of a model: random, from another model, or from the frequencies of the training text.

use std::collections::BTreeSet;
use std::path::Path;

use engine::{Cpu, EngineError, ParamStore};

use super::{OutputBias, PretrainError, PretrainRecipe};
use crate::checkpoint::{CheckpointError, Heads, ModelFolder};
use crate::data::{Dataset, Objective, Side, Unigram};
use crate::model::Model;

/// Heads that the recipe trains: without a sentence objective, no pooler.
fn heads_of(recipe: &PretrainRecipe) -> Heads {
    match recipe.data.instances.objective {
        Objective::None => Heads::MASKED_LM,
        Objective::Sop | Objective::Nsp => Heads::PRE_TRAINING,
    }
}

/// Builds the model of `recipe` with its initial values: those of `input.start_from`, and random ones.
pub(super) fn initial_model(
    recipe: &PretrainRecipe,
    dataset: &Dataset,
    cpu: &Cpu,
) -> Result<(Model, ParamStore), PretrainError> {
    let heads = heads_of(recipe);
    let (model, mut params) = Model::allocate(&recipe.model, heads)?;
    let loaded = match &recipe.input.start_from {
        Some(folder) => start_from(folder, recipe, heads, &mut params)?,
        None => BTreeSet::new(),
    };
    params.draw(cpu, recipe.seed, |info| !loaded.contains(&info.name))?;
    if recipe.first_values.output_bias == OutputBias::Unigram && !loaded.contains("predictions.bias") {
        let unigram = Unigram::of(dataset.side(Side::Train), recipe.model.vocab_size);
        let bias = params.find("predictions.bias").expect("every pre-training model has an MLM head");
        let values = params.values_mut(bias)?.iter_mut();
        values.zip(0..).for_each(|(value, piece)| *value = -unigram.nats(piece) as f32);
    }
    Ok((model, params))
}

/// Reads initial values from a model folder and returns the names of the parameters found there.
fn start_from(
    folder: &Path,
    recipe: &PretrainRecipe,
    heads: Heads,
    params: &mut ParamStore,
) -> Result<BTreeSet<String>, PretrainError> {
    let model = ModelFolder::open(folder)?;
    // Depth and dropout rates may differ (a shared layer can be applied more often); settings of tensor shapes may not.
    let (theirs, ours) = (&model.config().config, &recipe.model);
    if theirs.sharing != ours.sharing || theirs.has_embedding_map() != ours.has_embedding_map() {
        return Err(PretrainError::Recipe(format!(
            "`input.start_from`: {} shares `{}`, but the recipe `{}`; give both the same `model.sharing`",
            folder.display(),
            theirs.sharing,
            ours.sharing
        )));
    }
    let fresh: Vec<&str> = recipe.input.fresh.iter().map(String::as_str).collect();
    let mut loaded = BTreeSet::new();
    model.load(heads, &fresh, |spec, values| {
        let wrong = |problem: String| EngineError::Parameter { name: spec.name.clone(), problem };
        let id = params.find(&spec.name).ok_or_else(|| wrong("the recipe's model does not have it".into()))?;
        if params.shape(id)[..] != spec.shape[..] {
            let problem =
                format!("its shape is {:?} there, but {:?} in the recipe's model", spec.shape, params.shape(id));
            return Err(wrong(problem));
        }
        params.values_mut(id)?.copy_from_slice(values);
        loaded.insert(spec.name.clone());
        Ok(())
    })?;
    let is_fresh = |name: &str| fresh.iter().any(|prefix| name.starts_with(prefix));
    let names = params.ids().map(|id| params.name(id).to_owned());
    let missing: Vec<String> = names.filter(|name| !loaded.contains(name) && !is_fresh(name)).collect();
    if missing.is_empty() {
        Ok(loaded)
    } else {
        Err(CheckpointError::Missing { path: folder.to_owned(), names: missing, prefix: None }.into())
    }
}
