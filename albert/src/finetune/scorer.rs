//! Scores of features by a model, in batches of similar length.

use engine::{EngineError, Tape};

use super::FinetuneError;
use super::batch::{Batch, Budget};
use super::feature::{Feature, Target};
use super::loss::{Scores, WindowScore, scores, window_scores};
use crate::loaded::LoadedModel;
use crate::model::{ForwardOptions, Model};
use crate::tokenizer::SpecialIds;
use crate::train::EVALUATE;

/// Settings of scoring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scorer {
    pub(super) specials: SpecialIds,
    pub(super) budget: Budget,
    pub(super) options: ForwardOptions,
}

impl Scorer {
    /// Plans the memory of evaluations for the largest batch like `like` and returns its bytes.
    pub(super) fn plan(&self, loaded: &mut LoadedModel, like: &Feature) -> Result<usize, EngineError> {
        let LoadedModel { workspace, model, params } = loaded;
        let (batch, options) =
            (Batch::largest(self.budget, model.config().max_position_embeddings, like), &self.options);
        let plan = workspace.plan(EVALUATE, |workspace| {
            let tape = workspace.infer(params, None);
            match &like.target {
                Target::Span { .. } => window_scores(model, &tape, &batch, options).map(|_| ()),
                _ => scores(model, &tape, &batch, options).map(|_| ()),
            }
        })?;
        Ok(plan.bytes())
    }

    /// Scores of `features`, in their order: one per class (words one after another), one for a number, one per option.
    /// Features are run by length, so that batches are even; up to rounding, no score depends on the others in its batch.
    pub(super) fn scores(
        &self,
        loaded: &mut LoadedModel,
        features: &[Feature],
    ) -> Result<Vec<Vec<f32>>, FinetuneError> {
        self.by_length(loaded, features, |model, tape, batch, options, batched| {
            let values = match scores(model, tape, batch, options)? {
                Scores::Values(values) => values.value().to_vec()?,
                Scores::Answers { .. } => unreachable!("windows have scores of their own"),
            };
            let rows: usize = batched.iter().map(|&at| features[at].rows()).sum();
            let width = values.len() / rows.max(1);
            let mut from = 0;
            let parts = batched.iter().map(|&at| {
                let part = from..from + features[at].rows() * width;
                from = part.end;
                values[part].to_vec()
            });
            Ok(parts.collect())
        })
    }

    /// Scores of windows, in their order.
    pub(super) fn window_scores(
        &self,
        loaded: &mut LoadedModel,
        features: &[Feature],
    ) -> Result<Vec<WindowScore>, FinetuneError> {
        self.by_length(loaded, features, |model, tape, batch, options, _| window_scores(model, tape, batch, options))
    }

    /// Runs `score` over batches of `features`, by length; it returns one result for each feature of the batch, whose
    /// indices it gets.
    fn by_length<R: Clone + Default + Send>(
        &self,
        loaded: &mut LoadedModel,
        features: &[Feature],
        score: impl Fn(&Model, &Tape<'_>, &Batch, &ForwardOptions, &[usize]) -> Result<Vec<R>, EngineError> + Sync,
    ) -> Result<Vec<R>, FinetuneError> {
        let mut by_length: Vec<usize> = (0..features.len()).collect();
        // Stable, so that batches are the same every time.
        by_length.sort_by_key(|&at| features[at].content.tokens());
        let mut out = vec![R::default(); features.len()];
        let mut batch = Batch::default();
        let mut rest = &by_length[..];
        let LoadedModel { workspace, model, params } = loaded;
        let cpu = workspace.device().processor().clone();
        while !rest.is_empty() {
            batch.clear();
            let mut count = 0;
            while let Some(&at) = rest.get(count)
                && batch.has_room_for(&features[at], self.budget)
            {
                batch.push(&features[at], self.specials);
                count += 1;
            }
            let results = cpu.enter(|| {
                let tape = workspace.infer(params, Some(EVALUATE));
                score(model, &tape, &batch, &self.options, &rest[..count])
            })?;
            for (&at, result) in rest[..count].iter().zip(results) {
                out[at] = result;
            }
            rest = &rest[count..];
        }
        Ok(out)
    }
}

/// The feature with the fewest options, and the number of options if all of `features` have that many.
pub(super) fn fewest_options(features: &[Feature]) -> (&Feature, Option<usize>) {
    let count = |feature: &Feature| feature.content.sequences();
    let fewest = features.iter().min_by_key(|feature| count(feature)).expect("there are examples");
    let is_uniform = features.iter().all(|feature| count(feature) == count(fewest));
    (fewest, is_uniform.then(|| count(fewest)))
}
