//! One optimizer step: micro-batches forward and backward, clipping, the optimizer.
//!
//! ```text
//! batches of the step ──> M, B of all of them (the denominators)
//! each: tape ── loss/(M, B) ── backward ──> gradients +=
//! gradients ── clip to a global norm ── LAMB or AdamW ──> parameters
//! ```
//!
//! All batches of a step are drawn before the first is run, because the mean over the effective batch needs its counts;
//! so the step does not depend on how the batch is cut, but for rounding. Every number is the same for any number of
//! threads: kernels guarantee it, and everything here is in order.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use engine::ops::CrossEntropyOutput;
use engine::optim::Optimizer;
use engine::{Communicator, Cpu, Device, EngineError, Gradients, ParamStore, Workspace};

use super::observer::StepReport;
use super::progress::Tally;
use super::{MemoryPlan, OutputBias, PretrainError, Recipe, Replan};
use crate::checkpoint::{CheckpointError, Checkpoints, Heads, LoadedState, ModelFolder, StateHeader};
use crate::cost::Flops;
use crate::data::{
    Batch, BatchCapacity, Cursor, Dataset, EvaluationSet, Objective, Prefetch, Sampler, Side, Unigram, Vocabulary,
};
use crate::model::{ForwardOptions, Model, dropout_key};
use crate::pretrain::{Denominators, LossWeights, PretrainingLoss, pretraining_loss};
use crate::report::Sentence;
use crate::training::{Update, expect_finite, restore_state, save_state};

/// Batches that are made ahead of their use.
const PREFETCH: usize = 2;
const TRAIN: &str = "train";
const EVALUATE: &str = "evaluate";

/// Model, optimizer and data of a run, without files.
#[derive(Debug)]
pub struct Trainer {
    recipe: Recipe,
    cpu: Cpu,
    workspace: Workspace,
    communicator: Communicator,
    model: Model,
    params: ParamStore,
    gradients: Gradients,
    optimizer: Optimizer,
    batches: Prefetch,
    instances: usize,
    /// Room for the batches of a step.
    room: Vec<Batch>,
    memory: MemoryPlan,
}

impl Trainer {
    /// Builds the model with its first values, the optimizer and the data at their beginning, and plans the memory.
    ///
    /// # Errors
    /// The recipe, the data and the vocabulary do not belong together, or there is not enough memory.
    pub fn new(
        recipe: &Recipe,
        dataset: &Dataset,
        vocabulary: &Arc<Vocabulary>,
        device: Device,
    ) -> Result<Self, PretrainError> {
        let recipe = recipe.clone().with_vocabulary(vocabulary.size())?;
        let cpu = device.processor();
        let cpu = cpu.clone();
        let heads = heads_of(&recipe);
        let (model, mut params) = Model::allocate(&recipe.model, heads)?;
        let loaded = match &recipe.input.start_from {
            Some(folder) => start_from(folder, &recipe, heads, &mut params)?,
            None => BTreeSet::new(),
        };
        params.draw(&cpu, recipe.seed, |info| !loaded.contains(&info.name))?;
        if recipe.first_values.output_bias == OutputBias::Unigram && !loaded.contains("predictions.bias") {
            let unigram = Unigram::of(dataset.side(Side::Train), recipe.model.vocab_size);
            let bias = params.find("predictions.bias").expect("every pre-training model has an MLM head");
            let values = params.values_mut(bias)?.iter_mut();
            values.zip(0..).for_each(|(value, piece)| *value = -unigram.nats(piece) as f32);
        }
        let optimizer = recipe.optimizer.optimizer(&params)?.on(&device)?;
        recipe.schedule.schedule(recipe.optimizer.learning_rate, 0)?;
        let shards = Arc::clone(dataset.side(Side::Train));
        let sampler = Sampler::new(shards, Arc::clone(vocabulary), &recipe.data, recipe.seed)?;
        let (instances, table) = (sampler.instances(), sampler.memory());
        let room: Vec<Batch> = (0..most_micro_batches(&recipe)).map(|_| Batch::new(&recipe.data)).collect();
        let mut trainer = Self {
            gradients: params.gradients(&device)?,
            batches: Prefetch::new(sampler, PREFETCH)?,
            workspace: Workspace::new(device),
            communicator: Communicator::default(),
            memory: MemoryPlan::default(),
            recipe,
            cpu,
            model,
            params,
            optimizer,
            instances,
            room,
        };
        trainer.plan(table)?;
        Ok(trainer)
    }

    /// Runs the largest step dry, so that all later ones find their memory laid out.
    fn plan(&mut self, table: usize) -> Result<(), PretrainError> {
        let batch = largest_batch(&self.recipe);
        let denominators = Denominators::of(&batch);
        let (options, weights) = (self.options(Some(0)), self.loss_weights());
        let Self { workspace, model, params, gradients, .. } = self;
        let train = workspace.plan(TRAIN, |workspace| {
            let tape = workspace.train(params, None);
            let losses = pretraining_loss(model, &tape, &batch, &options, weights, denominators)?;
            if let Some(total) = losses.total {
                tape.backward(&total, gradients)?;
            }
            Ok(())
        })?;
        let options = ForwardOptions { dropout: None, ..options };
        let evaluate = workspace.plan(EVALUATE, |workspace| {
            let tape = workspace.infer(params, None);
            pretraining_loss(model, &tape, &batch, &options, weights, denominators).map(|_| ())
        })?;
        gradients.clear()?;
        let batch_bytes = |batch: &Batch| {
            4 * (3 * batch.ids.capacity() + batch.cu_seqlens.capacity() + 2 * batch.masked_positions.capacity())
        };
        self.memory = MemoryPlan {
            parameters: 4 * self.params.len(),
            gradients: 4 * self.params.len(),
            optimizer: self.optimizer.bytes(),
            packed: self.params.packed_bytes(),
            step: train.bytes().max(evaluate.bytes()),
            threads: self.workspace.scratch_bytes(),
            data: table + (self.room.len() + PREFETCH) * self.room.first().map_or(0, batch_bytes),
        };
        Ok(())
    }

    fn options(&self, dropout: Option<u64>) -> ForwardOptions {
        self.recipe.compute.options(self.workspace.device(), dropout)
    }

    fn loss_weights(&self) -> LossWeights {
        LossWeights { mlm: self.recipe.loss.mlm_weight as f32, sentence: self.recipe.loss.sentence_weight as f32 }
    }

    /// Optimizer steps done.
    pub fn step(&self) -> u64 {
        self.optimizer.steps()
    }

    /// Brings the parameters back from the device that trains them, so that they can be read.
    ///
    /// # Errors
    /// The device failed.
    pub fn download(&mut self) -> Result<(), EngineError> {
        self.params.download()
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The parameters.
    pub fn params(&self) -> &ParamStore {
        &self.params
    }

    /// The recipe, with the vocabulary's size.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// Changes the number of steps of the run from now on, and notes it in the recipe.
    ///
    /// # Errors
    /// So many steps are done already, or the warm-up is longer.
    pub(super) fn replan(&mut self, steps: u64) -> Result<(), PretrainError> {
        let after = self.step();
        let mut recipe = self.recipe.clone();
        recipe.schedule.replans.push(Replan { after, steps });
        recipe.validate()?;
        self.recipe = recipe;
        Ok(())
    }

    /// What the run will hold.
    pub fn memory(&self) -> MemoryPlan {
        self.memory
    }

    /// The memory of the steps and the profiler.
    pub fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    /// Instances of an epoch.
    pub fn instances(&self) -> usize {
        self.instances
    }

    /// Where the next batch begins.
    pub fn cursor(&self) -> Cursor {
        self.batches.cursor()
    }

    /// Makes a parameter NaN.
    #[cfg(test)]
    pub(super) fn poison(&mut self, name: &str) {
        let id = self.params.find(name).unwrap();
        self.params.values_mut(id).unwrap().fill(f32::NAN);
    }

    /// Takes the weight gradients of each application of a layer by themselves, whatever the plan says.
    #[cfg(test)]
    pub(super) fn take_weight_gradients_per_use(&mut self) {
        self.workspace.set_weight_gradients(engine::WeightGradients::PerUse);
    }

    /// Batches that a step has room for.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.room.len()
    }

    /// Takes one optimizer step.
    ///
    /// # Errors
    /// The loss or the gradient is not finite ([`EngineError::NotFinite`]): the step was not taken, and the parameters are
    /// those before it. Or the engine failed.
    pub(super) fn train_step(&mut self) -> Result<StepReport, PretrainError> {
        let start = Instant::now();
        let step = self.step();
        let mut room = std::mem::take(&mut self.room);
        let outcome = self.fill_and_run(&mut room, step);
        self.room = room;
        let tally = outcome?;
        let learning_rate = self.recipe.schedule.schedule(self.recipe.optimizer.learning_rate, step)?.rate(step);
        let Self { recipe, cpu, communicator, optimizer, params, gradients, .. } = self;
        let update = Update { cpu, communicator: *communicator, optimizer, params, gradients };
        let gradient_norm = recipe.optimizer.update(update, learning_rate)?;
        let (mlm_loss, sop_loss) = (tally.mlm.value(), tally.sop.value());
        let weights = self.loss_weights();
        Ok(StepReport {
            step: step + 1,
            loss: f64::from(weights.mlm) * mlm_loss.unwrap_or(0.0)
                + f64::from(weights.sentence) * sop_loss.unwrap_or(0.0),
            mlm_loss: mlm_loss.unwrap_or(0.0),
            mlm_accuracy: tally.mlm_correct.value().unwrap_or(0.0),
            sentence: Sentence {
                objective: self.recipe.data.instances.objective.into(),
                loss: sop_loss,
                accuracy: tally.sop_correct.value(),
                ..Sentence::default()
            },
            learning_rate,
            gradient_norm,
            tokens: tally.tokens,
            sequences: tally.sequences,
            flops: tally.flops,
            seconds: start.elapsed().as_secs_f64(),
            data_seconds: tally.data_seconds,
        })
    }

    /// Draws the batches of a step and runs them forward and backward.
    fn fill_and_run(&mut self, room: &mut Vec<Batch>, step: u64) -> Result<Tally, PretrainError> {
        let mut count = 0;
        let start = Instant::now();
        loop {
            if count == room.len() {
                room.push(Batch::new(&self.recipe.data));
            }
            self.batches.fill(&mut room[count]);
            count += 1;
            if room[count - 1].ends_step {
                break;
            }
        }
        let mut tally = Tally { data_seconds: start.elapsed().as_secs_f64(), ..Tally::default() };
        let batches = &room[..count];
        let denominators = Denominators {
            masked: batches.iter().map(|batch| batch.masked_positions.len()).sum::<usize>() as f32,
            sequences: batches.iter().map(Batch::sequences).sum::<usize>() as f32,
        };
        self.gradients.clear()?;
        for (micro, batch) in batches.iter().enumerate() {
            let options = self.options(Some(dropout_key(self.recipe.seed, step, micro as u32)));
            let weights = self.loss_weights();
            let checkpointing = self.recipe.compute.checkpointing(self.workspace.device());
            let Self { workspace, model, params, gradients, cpu, .. } = self;
            // Inside the pool every kernel of the step finds its threads awake.
            cpu.enter(|| -> Result<(), PretrainError> {
                let tape = workspace.train(params, Some(TRAIN));
                let losses = pretraining_loss(model, &tape, batch, &options, weights, denominators)?;
                if let Some(total) = &losses.total {
                    tape.backward(total, gradients)?;
                }
                // A GPU is waited for once, when it has the whole of the micro-batch; the gradients of a loss that turns
                // out not to be finite are cleared with the next step.
                tally.add(batch, &losses)?;
                tally.flops += Flops::training_of(model.config(), &batch.cu_seqlens, masked(batch), checkpointing);
                Ok(expect_finite(tally.mlm.sum + tally.sop.sum, step + 1)?)
            })?;
        }
        Ok(tally)
    }

    /// Measures the model on all of `set`, without dropout.
    ///
    /// # Errors
    /// The engine failed.
    pub(super) fn evaluate(&mut self, set: &mut EvaluationSet, batch: &mut Batch) -> Result<Tally, PretrainError> {
        let (options, weights) = (self.options(None), self.loss_weights());
        let mask = set.mask_id();
        let mut tally = Tally::default();
        set.rewind();
        while set.fill(batch) {
            let Self { workspace, model, params, cpu, .. } = self;
            let batch = &*batch;
            let tally = &mut tally;
            cpu.enter(|| -> Result<(), EngineError> {
                let tape = workspace.infer(params, Some(EVALUATE));
                let losses = pretraining_loss(model, &tape, batch, &options, weights, Denominators::of(batch))?;
                tally.add(batch, &losses)?;
                tally.add_hidden(batch, &losses, mask)?;
                Ok(())
            })?;
        }
        Ok(tally)
    }

    /// Writes the tensors of a checkpoint to `checkpoints`.
    ///
    /// # Errors
    /// The file cannot be written, or the device failed.
    pub(super) fn save(&mut self, checkpoints: &Checkpoints, header: &StateHeader) -> Result<PathBuf, PretrainError> {
        Ok(save_state(&mut self.params, &self.optimizer, checkpoints, header)?)
    }

    /// Puts everything back as it was when `found` was written.
    ///
    /// # Errors
    /// A tensor is missing, or the data has no such place.
    pub(super) fn restore(
        &mut self,
        found: &LoadedState,
        dataset: &Dataset,
        vocabulary: &Arc<Vocabulary>,
    ) -> Result<(), PretrainError> {
        restore_state(&mut self.params, &mut self.optimizer, found)?;
        let cursor: Cursor = serde_json::from_value(found.header.cursor.clone())
            .map_err(|error| PretrainError::Recipe(format!("{}: its cursor: {error}", found.path.display())))?;
        let shards = Arc::clone(dataset.side(Side::Train));
        let mut sampler = Sampler::new(shards, Arc::clone(vocabulary), &self.recipe.data, self.recipe.seed)?;
        sampler.seek(cursor)?;
        self.batches = Prefetch::new(sampler, PREFETCH)?;
        Ok(())
    }
}

fn masked(batch: &Batch) -> usize {
    batch.masked_positions.len()
}

impl Tally {
    fn add(&mut self, batch: &Batch, losses: &PretrainingLoss) -> Result<(), EngineError> {
        let sums = |classified: &CrossEntropyOutput| {
            let sum: f64 = classified.losses.elements::<f32>()?.iter().map(|&x| f64::from(x)).sum();
            Ok::<_, EngineError>((sum, classified.correct()? as u64, classified.losses.len() as u64))
        };
        if let Some((sum, correct, count)) = losses.mlm.as_ref().map(sums).transpose()? {
            self.mlm.add(sum, count);
            self.mlm_correct.add(correct, count);
        }
        if let Some((sum, correct, count)) = losses.sentence.as_ref().map(sums).transpose()? {
            self.sop.add(sum, count);
            self.sop_correct.add(correct, count);
        }
        self.tokens += batch.tokens() as u64;
        self.sequences += batch.sequences() as u64;
        Ok(())
    }

    /// Adds the masked pieces that stand as `mask` in the input.
    fn add_hidden(&mut self, batch: &Batch, losses: &PretrainingLoss, mask: u32) -> Result<(), EngineError> {
        let Some(classified) = &losses.mlm else { return Ok(()) };
        for (&position, &loss) in batch.masked_positions.iter().zip(&*classified.losses.elements::<f32>()?) {
            if batch.ids[position as usize] == mask {
                self.hidden.add(f64::from(loss), 1);
            }
        }
        Ok(())
    }
}

/// The heads that the objective trains: without a sentence objective, no pooler.
pub(super) fn heads_of(recipe: &Recipe) -> Heads {
    match recipe.data.instances.objective {
        Objective::None => Heads::MASKED_LM,
        Objective::Sop | Objective::Nsp => Heads::PRE_TRAINING,
    }
}

/// Reads initial values from a model folder; gives the names of the parameters that it has.
fn start_from(
    folder: &Path,
    recipe: &Recipe,
    heads: Heads,
    params: &mut ParamStore,
) -> Result<BTreeSet<String>, PretrainError> {
    let model = ModelFolder::open(folder)?;
    // Depth and rates may differ (a shared layer can be applied more often); what gives tensors their shapes may not.
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
        Err(CheckpointError::Missing { path: folder.to_owned(), names: missing }.into())
    }
}

/// More micro-batches than a step can have: each but the last is full of sequences or of tokens.
fn most_micro_batches(recipe: &Recipe) -> usize {
    let batch = &recipe.data.batch;
    let longest = recipe.data.instances.max_sequence_length;
    match batch.sequences_per_step {
        0 => 1,
        sequences => {
            let full_of_tokens = batch.max_tokens - longest.min(batch.max_tokens) + 1;
            1 + sequences.div_ceil(batch.max_sequences) + (sequences * longest).div_ceil(full_of_tokens)
        }
    }
    .min(recipe.data.batch.sequences_per_step.max(1))
}

/// A batch of the whole budget: as many sequences and tokens as any batch can have, one of them as long as any.
fn largest_batch(recipe: &Recipe) -> Batch {
    let capacity = BatchCapacity::of(&recipe.data);
    let longest = recipe.data.instances.max_sequence_length;
    let sequences = capacity.sequences.max(1);
    let tokens = capacity.tokens.min(sequences * longest);
    let mut batch = Batch { cu_seqlens: vec![0], ..Batch::default() };
    for left in (0..sequences).rev() {
        // As long as possible, so that one token is left for each sequence that follows.
        let length = (tokens - batch.ids.len() - left).min(longest);
        batch.ids.resize(batch.ids.len() + length, 0);
        batch.positions.extend(0..length as u32);
        batch.cu_seqlens.push(batch.ids.len() as u32);
    }
    batch.segments.resize(batch.ids.len(), 0);
    let masked = capacity.masked.min(batch.ids.len());
    batch.masked_positions.extend(0..masked as u32);
    batch.masked_labels.resize(masked, 0);
    if recipe.data.instances.objective != Objective::None {
        batch.sop_labels.resize(sequences, 0);
    }
    batch
}
