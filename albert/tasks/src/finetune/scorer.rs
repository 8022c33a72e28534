//! Scores of features by a model, in batches of similar length.

use albert::loaded::LoadedModel;
use albert::model::{ForwardOptions, Model};
use albert::tokenizer::SpecialIds;
use albert::train::EVALUATE;
use engine::{Communicator, EngineError, Tape};

use super::FinetuneError;
use super::batch::{Batch, Budget};
use super::feature::{Feature, Target};
use super::loss::{Later, Scores, WindowScore, scores, window_scores};
use crate::span::BeamStart;

/// A result exchanged between ranks.
trait Exchanged {
    /// Appends the result; an f32 is converted to f64.
    fn write(&self, words: &mut Vec<f64>);

    /// Reads a result written by `write`.
    fn read(words: &mut impl Iterator<Item = f64>) -> Self;
}

/// Reads the next word; all ranks run the same program, so there is one.
fn word(words: &mut impl Iterator<Item = f64>) -> f64 {
    words.next().expect("as many words as were written")
}

impl Exchanged for Vec<f32> {
    fn write(&self, words: &mut Vec<f64>) {
        words.push(self.len() as f64);
        words.extend(self.iter().copied().map(f64::from));
    }

    fn read(words: &mut impl Iterator<Item = f64>) -> Self {
        (0..word(words) as usize).map(|_| word(words) as f32).collect()
    }
}

impl Exchanged for WindowScore {
    fn write(&self, words: &mut Vec<f64>) {
        match self {
            Self::Logits(both) => {
                words.push(0.0);
                both.iter().for_each(|logits| logits.write(words));
            }
            Self::Beam { starts, no_answer } => {
                words.extend([1.0, f64::from(*no_answer), starts.len() as f64]);
                for BeamStart { token, log_probability, ends } in starts {
                    words.extend([*token as f64, *log_probability, ends.len() as f64]);
                    words.extend(ends.iter().flat_map(|&(token, log_probability)| [token as f64, log_probability]));
                }
            }
        }
    }

    fn read(words: &mut impl Iterator<Item = f64>) -> Self {
        if word(words) == 0.0 {
            return Self::Logits([Vec::read(words), Vec::read(words)]);
        }
        let (no_answer, starts) = (word(words) as f32, word(words) as usize);
        let starts = (0..starts).map(|_| {
            let (token, log_probability, ends) = (word(words) as usize, word(words), word(words) as usize);
            BeamStart { token, log_probability, ends: (0..ends).map(|_| (word(words) as usize, word(words))).collect() }
        });
        Self::Beam { starts: starts.collect(), no_answer }
    }
}

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

    /// Begins to compute scores of `features`, in their order: one per class (words one after another), one for a number, one
    /// per option. Features run in the order of their lengths, so that batches are even; up to rounding, no score depends on
    /// other features in its batch. The result waits for the last of them.
    pub(super) fn scores(
        &self,
        loaded: &mut LoadedModel,
        features: &[Feature],
        communicator: &Communicator,
    ) -> Result<Later<Vec<f32>>, FinetuneError> {
        self.by_length(loaded, features, communicator, |model, tape, batch, options, batched| {
            let values = match scores(model, tape, batch, options)? {
                Scores::Values(values) => values.value().to_vec_later()?,
                Scores::Answers { .. } => unreachable!("windows have scores of their own"),
            };
            let rows: Vec<usize> = batched.iter().map(|&at| features[at].rows()).collect();
            Ok(Box::new(move || {
                let values = values.wait()?;
                let width = values.len() / rows.iter().sum::<usize>().max(1);
                let parts = rows.iter().scan(&values[..], |rest, &rows| rest.split_off(..rows * width));
                Ok(parts.map(<[f32]>::to_vec).collect())
            }))
        })
    }

    /// Begins to compute scores of windows, in their order, like [`scores`](Self::scores).
    pub(super) fn window_scores(
        &self,
        loaded: &mut LoadedModel,
        features: &[Feature],
        communicator: &Communicator,
    ) -> Result<Later<WindowScore>, FinetuneError> {
        self.by_length(loaded, features, communicator, |model, tape, batch, options, _| {
            window_scores(model, tape, batch, options)
        })
    }

    /// Runs `score` over batches of `features`, by length; it receives the indices of the features in the batch and begins one
    /// result for each. Of R ranks, each runs every R-th batch, and all receive all results. While a GPU computes a batch, the
    /// one before it is read.
    fn by_length<R: Clone + Default + Send + Exchanged + 'static>(
        &self,
        loaded: &mut LoadedModel,
        features: &[Feature],
        communicator: &Communicator,
        score: impl Fn(&Model, &Tape<'_>, &Batch, &ForwardOptions, &[usize]) -> Result<Later<R>, EngineError> + Sync,
    ) -> Result<Later<R>, FinetuneError> {
        let mut by_length: Vec<usize> = (0..features.len()).collect();
        // Stable, so that batches are the same every time.
        by_length.sort_by_key(|&at| features[at].content.tokens());
        let mut out = vec![R::default(); features.len()];
        let mut batch = Batch::default();
        let mut rest = &by_length[..];
        let LoadedModel { workspace, model, params } = loaded;
        let cpu = workspace.device().processor().clone();
        let communicator = communicator.clone();
        let (rank, size) = (communicator.rank(), communicator.size());
        let (mut own, mut of_others, mut begun) = (Vec::new(), Vec::new(), None);
        let finish = move |out: &mut [R], own: &mut Vec<f64>, (batched, results): (Vec<usize>, Later<R>)| {
            for (at, result) in batched.into_iter().zip(results()?) {
                if size > 1 {
                    result.write(own);
                }
                out[at] = result;
            }
            Ok::<_, EngineError>(())
        };
        for owner in (0..size).cycle() {
            if rest.is_empty() {
                break;
            }
            batch.clear();
            let mut count = 0;
            while let Some(&at) = rest.get(count)
                && batch.has_room_for(&features[at], self.budget)
            {
                batch.push(&features[at], self.specials);
                count += 1;
            }
            let batched = rest.split_off(..count).expect("a prefix").to_vec();
            if owner != rank {
                of_others.push((owner, batched));
                continue;
            }
            let results = cpu.enter(|| {
                let tape = workspace.infer(params, Some(EVALUATE));
                score(model, &tape, &batch, &self.options, &batched)
            })?;
            if let Some(earlier) = begun.replace((batched, results)) {
                finish(&mut out, &mut own, earlier)?;
            }
        }
        Ok(Box::new(move || {
            begun.map_or(Ok(()), |last| finish(&mut out, &mut own, last))?;
            receive(&communicator, &own, of_others, &mut out)?;
            Ok(out)
        }))
    }
}

/// Exchanges the results of all ranks, `own` being those of this one; results of other ranks are written to `out`.
fn receive<R: Exchanged>(
    communicator: &Communicator,
    own: &[f64],
    of_others: Vec<(usize, Vec<usize>)>,
    out: &mut [R],
) -> Result<(), EngineError> {
    let all = communicator.gather("scores of an evaluation", bytemuck::cast_slice(own))?;
    let all: Vec<Vec<f64>> = all.iter().map(|theirs| bytemuck::pod_collect_to_vec(theirs)).collect();
    let mut all: Vec<_> = all.iter().map(|theirs| theirs.iter().copied()).collect();
    for (owner, batched) in of_others {
        for at in batched {
            out[at] = R::read(&mut all[owner]);
        }
    }
    Ok(())
}

/// Feature with the fewest options, and the number of options if it is the same for all `features`.
pub(super) fn fewest_options(features: &[Feature]) -> (&Feature, Option<usize>) {
    let count = |feature: &Feature| feature.content.sequences();
    let fewest = features.iter().min_by_key(|feature| count(feature)).expect("there are examples");
    let is_uniform = features.iter().all(|feature| count(feature) == count(fewest));
    (fewest, is_uniform.then(|| count(fewest)))
}
