//! Pre-training as an objective: masked tokens and sentence pairs of a corpus.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use engine::io::hash64;
use engine::{Communicator, EngineError, Gradients, Lanes};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::figures::{HeldOutFigures, LossReadings, PretrainFigures, Tally};
use super::initial::initial_model;
use super::loss::{Denominators, LossWeights, pretraining_loss};
use super::report::panels;
use super::sentence::Sentence;
use super::{PretrainError, PretrainRecipe};
use crate::checkpoint::{CheckpointError, save_model};
use crate::data::{
    Baseline, Batch, BatchCapacity, Cursor, DataError, Dataset, EvaluationSet, Objective as SentencePairs, Prefetch,
    Sampler, Shards, Side, Unigram, Vocabulary,
};
use crate::loaded::LoadedModel;
use crate::model::ForwardOptions;
use crate::report::{ReportError, write_panels};
use crate::tokenizer::Tokenizer;
use crate::train::{
    About, BatchShape, EVALUATE, Evaluated, EvaluationRecord, MicroBatchSums, Objective, Pass, Position, ProgressOf,
    RecordOf, Replan, RunObjective, TrainSettings, Trainer, Worker, bits,
};

/// Number of batches prefetched.
const PREFETCH: usize = 2;

/// Inputs of a run other than its recipe.
#[derive(Debug)]
pub struct PretrainSources {
    /// Shards of the corpus.
    pub dataset: Dataset,
    /// Vocabulary that they were encoded with.
    pub vocabulary: Arc<Vocabulary>,
    /// Files of the tokenizer, kept with the model: names and contents.
    pub tokenizer: Vec<(&'static str, Vec<u8>)>,
}

impl PretrainSources {
    /// Opens the shards in the folder `data`, which `tokenizer` encoded.
    ///
    /// # Errors
    /// The shards cannot be read, or were encoded by another tokenizer.
    pub fn open(data: &Path, tokenizer: &Tokenizer) -> Result<Self, PretrainError> {
        let vocabulary = Arc::new(Vocabulary::of(tokenizer)?);
        Ok(Self { dataset: Dataset::open(data, &vocabulary)?, vocabulary, tokenizer: tokenizer.to_files()? })
    }
}

/// Masked language modeling and, unless the recipe turns it off, sentence order or next sentence.
#[derive(Debug)]
pub struct Pretraining {
    recipe: PretrainRecipe,
    /// Lanes of this rank.
    lanes: Range<usize>,
    shards: Arc<Shards>,
    vocabulary: Arc<Vocabulary>,
    batches: Prefetch,
    /// Bytes of the sampler's tables.
    table: usize,
    held_out: Option<HeldOut>,
    /// Files of the tokenizer, kept with the model.
    tokenizer: Vec<(&'static str, Vec<u8>)>,
    about: About<PretrainDetails>,
}

/// Details of a run, known before its first step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PretrainDetails {
    /// Number of instances of an epoch.
    pub instances: usize,
    /// Number of held-out sequences of an evaluation.
    pub evaluation_sequences: usize,
    /// Cross-entropy of the held-out masked pieces under the unigram frequencies of the training text; `None` without
    /// held-out text.
    pub unigram_loss: Option<f64>,
    /// Reason why nothing is evaluated, if so.
    pub no_evaluation: Option<String>,
}

/// Results of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PretrainSummary {
    /// Number of completed steps.
    pub step: u64,
    /// Number of tokens processed.
    pub tokens: u64,
    /// Seconds of training, including earlier starts of the run.
    pub seconds: f64,
    /// True if the run stopped before its last step because the patience was exhausted.
    pub stopped_early: bool,
    /// The last evaluation, if there was one.
    pub evaluation: Option<EvaluationRecord<HeldOutFigures>>,
}

/// Lowest held-out loss so far; infinite before the first evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    #[serde(rename = "best", with = "bits")]
    pub(super) loss: f64,
}

impl Default for Best {
    fn default() -> Self {
        Self { loss: f64::INFINITY }
    }
}

/// Held-out text with its baseline.
#[derive(Debug)]
pub(super) struct HeldOut {
    set: EvaluationSet,
    batch: Batch,
    baseline: Baseline,
}

impl HeldOut {
    /// The held-out text of `sources`, or the reason for having none.
    pub(super) fn open(
        recipe: &PretrainRecipe,
        sources: &PretrainSources,
    ) -> Result<Result<Self, String>, PretrainError> {
        let shards = Arc::clone(sources.dataset.side(Side::HeldOut));
        match EvaluationSet::new(shards, Arc::clone(&sources.vocabulary), &recipe.data) {
            Ok(mut set) => {
                let unigram = Unigram::of(sources.dataset.side(Side::Train), sources.vocabulary.size());
                let baseline = set.baseline(&unigram);
                let batch = Batch::new(set.settings());
                Ok(Ok(Self { set, batch, baseline }))
            }
            Err(error @ DataError::NoInstances { .. }) => Ok(Err(error.to_string())),
            Err(error) => Err(error.into()),
        }
    }

    /// Runs the model over the whole text, without dropout; of R ranks, each runs every R-th batch.
    pub(super) fn tally(
        &mut self,
        loaded: &mut LoadedModel,
        options: &ForwardOptions,
        weights: LossWeights,
        communicator: &Communicator,
    ) -> Result<Tally, EngineError> {
        let Self { set, batch, .. } = self;
        let mask = set.mask_id();
        let cpu = loaded.workspace.device().processor().clone();
        let (mut own, mut batches, mut begun) = (Vec::new(), 0, None);
        let mut finish = |(losses, hidden): (LossReadings, Vec<bool>)| -> Result<(), EngineError> {
            let mut tally = Tally::default();
            let masked = tally.add_losses(losses)?;
            tally.add_hidden(&hidden, &masked);
            tally.write(&mut own);
            Ok(())
        };
        set.rewind();
        loop {
            let is_own = batches % communicator.size() == communicator.rank();
            let is_more = if is_own { set.fill(batch) } else { set.skip() };
            if !is_more {
                break;
            }
            batches += 1;
            if !is_own {
                continue;
            }
            let LoadedModel { workspace, model, params } = loaded;
            let losses = cpu.enter(|| {
                let tape = workspace.infer(params, Some(EVALUATE));
                LossReadings::begin(&pretraining_loss(model, &tape, batch, options, weights, Denominators::of(batch))?)
            })?;
            let hidden = batch.masked_positions.iter().map(|&position| batch.ids[position as usize] == mask).collect();
            // A GPU computes this batch while the one before it is read.
            begun.replace((losses, hidden)).map_or(Ok(()), &mut finish)?;
        }
        begun.map_or(Ok(()), &mut finish)?;
        let all = communicator.gather("held-out losses", bytemuck::cast_slice(&own))?;
        let all: Vec<Vec<f64>> = all.iter().map(|theirs| bytemuck::pod_collect_to_vec(theirs)).collect();
        let mut sum = Tally::default();
        for batch in 0..batches {
            let theirs = &all[batch % all.len()][batch / all.len() * Tally::VALUES..];
            sum.add(&theirs[..Tally::VALUES]);
        }
        Ok(sum)
    }
}

impl Trainer<Pretraining> {
    /// Builds the model with its initial values, the optimizer and the data at their start, and plans the memory.
    ///
    /// # Errors
    /// Recipe, data and vocabulary do not match, or there is not enough memory.
    pub fn new(
        recipe: &PretrainRecipe,
        sources: &PretrainSources,
        worker: impl Into<Worker>,
    ) -> Result<Self, PretrainError> {
        let worker = worker.into();
        let recipe = recipe.clone().with_vocabulary(sources.vocabulary.size())?;
        let model = initial_model(&recipe, &sources.dataset, worker.device.processor())?;
        let settings = recipe.train_settings();
        let lanes = Lanes::new(&worker.communicator, "data.batch.lanes", recipe.data.batch.lanes)?;
        let objective = Pretraining::new(recipe, sources, lanes.own())?;
        Self::over(objective, settings, model, worker, lanes)
    }

    /// Recipe of the run, with the vocabulary's size.
    pub fn recipe(&self) -> &PretrainRecipe {
        &self.objective.recipe
    }
}

impl Pretraining {
    /// Objective of a rank that computes `lanes`.
    fn new(recipe: PretrainRecipe, sources: &PretrainSources, lanes: Range<usize>) -> Result<Self, PretrainError> {
        let PretrainSources { dataset, vocabulary, tokenizer } = sources;
        let shards = Arc::clone(dataset.side(Side::Train));
        let mut sampler = Sampler::new(Arc::clone(&shards), Arc::clone(vocabulary), &recipe.data, recipe.seed)?;
        sampler.limit_to_lanes(lanes.clone());
        let (held_out, no_evaluation) = match HeldOut::open(&recipe, sources)? {
            Ok(held_out) => (Some(held_out), None),
            Err(reason) => (None, Some(reason)),
        };
        let details = PretrainDetails {
            instances: sampler.instances(),
            evaluation_sequences: held_out.as_ref().map_or(0, |held_out| held_out.set.sequences()),
            unigram_loss: held_out.as_ref().and_then(|held_out| held_out.baseline.all.value()),
            no_evaluation,
        };
        // The index contains the checksum of every shard.
        let index = serde_json::to_string(&dataset.index().train).expect("an index has string keys");
        let inputs = json!({
            "tokenizer": format!("{:016x}", vocabulary.fingerprint()),
            "data": format!("{:016x}", hash64(index.as_bytes())),
        });
        let evaluated = details.evaluation_sequences;
        Ok(Self {
            table: sampler.memory(),
            batches: Prefetch::new(sampler, PREFETCH)?,
            vocabulary: Arc::clone(vocabulary),
            tokenizer: tokenizer.clone(),
            about: About { details, warnings: recipe.warnings().to_vec(), inputs, evaluated },
            recipe,
            lanes,
            shards,
            held_out,
        })
    }
}

impl PretrainRecipe {
    pub(super) fn weights(&self) -> LossWeights {
        LossWeights { mlm: self.loss.mlm_weight as f32, sentence: self.loss.sentence_weight as f32 }
    }
}

/// Plans the memory of evaluations, on the largest batch of `recipe`.
pub(super) fn plan_evaluation(
    recipe: &PretrainRecipe,
    loaded: &mut LoadedModel,
    options: &ForwardOptions,
) -> Result<usize, EngineError> {
    let batch = largest_batch(recipe);
    let LoadedModel { workspace, model, params } = loaded;
    let plan = workspace.plan(EVALUATE, |workspace| {
        let tape = workspace.infer(params, None);
        pretraining_loss(model, &tape, &batch, options, recipe.weights(), Denominators::of(&batch)).map(|_| ())
    })?;
    Ok(plan.bytes())
}

impl Objective for Pretraining {
    type Error = PretrainError;
    type Batch = Batch;
    type Denominator = Denominators;
    type Losses = LossReadings;
    type Sums = Tally;
    type Figures = PretrainFigures;
    type Evaluation = HeldOutFigures;
    type State = Best;

    fn draw(&mut self, _step: u64, room: &mut Vec<Batch>) -> usize {
        for count in 0.. {
            if count == room.len() {
                room.push(Batch::new(&self.recipe.data));
            }
            self.batches.fill(&mut room[count]);
            if room[count].ends_step {
                return count + 1;
            }
        }
        unreachable!("some batch ends the step")
    }

    fn shape(batch: &Batch) -> BatchShape<'_> {
        BatchShape { cu_seqlens: &batch.cu_seqlens, masked: batch.masked_positions.len(), lane: batch.lane }
    }

    fn counts(&self, batches: &[Batch]) -> [u64; 2] {
        let sum = |count: fn(&Batch) -> usize| batches.iter().map(count).sum::<usize>() as u64;
        [sum(|batch| batch.masked_positions.len()), sum(Batch::sequences)]
    }

    fn denominator(&self, [masked, sequences]: [u64; 2]) -> Denominators {
        Denominators { masked: masked as f32, sequences: sequences as f32 }
    }

    fn run(
        &self,
        pass: &Pass<'_, '_>,
        batch: &Batch,
        denominator: Denominators,
        gradients: &mut Gradients,
    ) -> Result<LossReadings, EngineError> {
        let Pass { model, tape, options } = pass;
        let losses = pretraining_loss(model, tape, batch, options, self.recipe.weights(), denominator)?;
        if let Some(total) = &losses.total {
            tape.backward(total, gradients)?;
        }
        if tape.is_dry() { Ok(LossReadings::default()) } else { LossReadings::begin(&losses) }
    }

    fn sums(losses: LossReadings) -> Result<Tally, EngineError> {
        let mut sums = Tally::default();
        sums.add_losses(losses)?;
        Ok(sums)
    }

    fn figures(&self, sums: &Tally) -> (f64, PretrainFigures) {
        let (mlm, sentence, weights) = (sums.mlm.value(), sums.sentence.value(), self.recipe.weights());
        // A loss of weight 0 does not affect the gradient, so the run continues if it is not finite.
        let weighted = |weight: f32, loss: Option<f64>| match loss {
            Some(loss) if weight > 0.0 => f64::from(weight) * loss,
            _ => 0.0,
        };
        let loss = weighted(weights.mlm, mlm) + weighted(weights.sentence, sentence);
        let figures = PretrainFigures {
            mlm_loss: mlm.unwrap_or(0.0),
            mlm_accuracy: sums.mlm_correct.value().unwrap_or(0.0),
            sentence: Sentence {
                objective: self.recipe.data.instances.objective.into(),
                loss: sentence,
                accuracy: sums.sentence_correct.value(),
                ..Sentence::default()
            },
        };
        (loss, figures)
    }

    fn largest(&self) -> Batch {
        largest_batch(&self.recipe)
    }

    fn plan_evaluation(&self, loaded: &mut LoadedModel, settings: &TrainSettings) -> Result<usize, PretrainError> {
        let options = settings.compute.options(loaded.workspace.device(), None);
        Ok(plan_evaluation(&self.recipe, loaded, &options)?)
    }

    fn room(&self) -> (Vec<Batch>, usize) {
        let room: Vec<Batch> =
            (0..most_micro_batches(&self.recipe, self.lanes.len())).map(|_| Batch::new(&self.recipe.data)).collect();
        let bytes = |batch: &Batch| {
            4 * (3 * batch.ids.capacity() + batch.cu_seqlens.capacity() + 2 * batch.masked_positions.capacity())
        };
        let data = self.table + (room.len() + PREFETCH) * room.first().map_or(0, bytes);
        (room, data)
    }
}

impl RunObjective for Pretraining {
    type Details = PretrainDetails;
    type Summary = PretrainSummary;

    const KEEPS_STATE: bool = true;

    fn about(&self) -> &About<PretrainDetails> {
        &self.about
    }

    fn evaluate(
        &mut self,
        loaded: &mut LoadedModel,
        settings: &TrainSettings,
        communicator: &Communicator,
        progress: &mut ProgressOf<Self>,
        _position: Position,
    ) -> Result<Option<Evaluated<HeldOutFigures>>, PretrainError> {
        let Some(held_out) = &mut self.held_out else { return Ok(None) };
        let options = settings.compute.options(loaded.workspace.device(), None);
        let tally = held_out.tally(loaded, &options, self.recipe.weights(), communicator)?;
        let figures = HeldOutFigures {
            mlm_loss: tally.mlm.value().unwrap_or(0.0),
            mlm_accuracy: tally.mlm_correct.value().unwrap_or(0.0),
            masked: tally.mlm.count,
            unigram_loss: held_out.baseline.all.value().unwrap_or(0.0),
            hidden_loss: tally.hidden.value().unwrap_or(0.0),
            hidden_unigram_loss: held_out.baseline.hidden.value().unwrap_or(0.0),
            sentence: Sentence {
                objective: self.recipe.data.instances.objective.into(),
                loss: tally.sentence.value(),
                accuracy: tally.sentence_correct.value(),
                count: tally.sentence.count,
                standard_error: tally.sentence_correct.standard_error(),
            },
        };
        // The trained loss decides: the MLM loss, unless its weight is 0.
        let loss = match figures.sentence.loss {
            Some(sentence) if self.recipe.loss.mlm_weight == 0.0 => sentence,
            _ => figures.mlm_loss,
        };
        let best = &mut progress.objective.loss;
        let is_best = loss < *best;
        *best = best.min(loss);
        Ok(Some(Evaluated { figures, is_best, files: Vec::new() }))
    }

    fn config(&self) -> String {
        self.recipe.to_toml()
    }

    fn fingerprint(&self, step: u64) -> Value {
        self.recipe.fingerprint_after(step)
    }

    fn cursor(&self) -> Value {
        serde_json::to_value(self.batches.cursor()).expect("a cursor has string keys")
    }

    fn seek(&mut self, cursor: &Value) -> Result<(), PretrainError> {
        let cursor: Cursor = serde_json::from_value(cursor.clone())
            .map_err(|error| PretrainError::Recipe(format!("the cursor of the checkpoint: {error}")))?;
        let Self { shards, vocabulary, recipe, .. } = self;
        let mut sampler = Sampler::new(Arc::clone(shards), Arc::clone(vocabulary), &recipe.data, recipe.seed)?;
        sampler.limit_to_lanes(self.lanes.clone());
        sampler.seek(cursor)?;
        self.batches = Prefetch::new(sampler, PREFETCH)?;
        Ok(())
    }

    fn replan(&mut self, replan: Replan) -> Result<(), PretrainError> {
        let mut recipe = self.recipe.clone();
        recipe.schedule.replans.push(replan);
        recipe.validate()?;
        self.recipe = recipe;
        Ok(())
    }

    fn save_model(&self, loaded: &LoadedModel, folder: &Path) -> Result<(), CheckpointError> {
        let LoadedModel { model, params, .. } = loaded;
        save_model(folder, model.config(), model.heads(), &self.tokenizer, |name| {
            params.values(params.find(name).expect("the store was built from the same list"))
        })
    }

    fn report(&self, folder: &Path, records: &[RecordOf<Self>], _state: &Best) -> Result<(), ReportError> {
        write_panels(&folder.join("curves.svg"), &panels(records))
    }

    fn summary(
        &self,
        position: Position,
        progress: &ProgressOf<Self>,
        last: Option<&EvaluationRecord<HeldOutFigures>>,
    ) -> PretrainSummary {
        let (tokens, seconds) = (progress.tokens, progress.seconds);
        let stopped_early = position.stopped_early(progress.worse);
        PretrainSummary { step: position.step, tokens, seconds, stopped_early, evaluation: last.cloned() }
    }
}

/// Upper bound of the number of micro-batches of a step in `lanes` lanes: in a lane, each but the last reaches the
/// maximum number of sequences or of tokens.
fn most_micro_batches(recipe: &PretrainRecipe, lanes: usize) -> usize {
    let batch = &recipe.data.batch;
    let longest = recipe.data.instances.max_sequence_length;
    match batch.sequences_per_step / batch.lanes {
        0 => 1,
        sequences => {
            let full_of_tokens = batch.max_tokens - longest.min(batch.max_tokens) + 1;
            let most = 1 + sequences.div_ceil(batch.max_sequences) + (sequences * longest).div_ceil(full_of_tokens);
            lanes * most.min(sequences)
        }
    }
}

/// A batch with the maximum number of sequences and tokens, one sequence of which has maximum length.
fn largest_batch(recipe: &PretrainRecipe) -> Batch {
    let capacity = BatchCapacity::of(&recipe.data);
    let longest = recipe.data.instances.max_sequence_length;
    let sequences = capacity.sequences.max(1);
    let tokens = capacity.tokens.min(sequences * longest);
    let mut batch = Batch { cu_seqlens: vec![0], ..Batch::default() };
    for left in (0..sequences).rev() {
        // As long as possible, with one token left for each later sequence.
        let length = (tokens - batch.ids.len() - left).min(longest);
        batch.ids.resize(batch.ids.len() + length, 0);
        batch.positions.extend(0..length as u32);
        batch.cu_seqlens.push(batch.ids.len() as u32);
    }
    batch.segments.resize(batch.ids.len(), 0);
    let masked = capacity.masked.min(batch.ids.len());
    batch.masked_positions.extend(0..masked as u32);
    batch.masked_labels.resize(masked, 0);
    if recipe.data.instances.objective != SentencePairs::None {
        batch.sop_labels.resize(sequences, 0);
    }
    batch
}
