//! One optimizer step of fine-tuning: micro-batches forward and backward, clipping, the optimizer. And scores of any
//! features, in batches of similar length.
//!
//! As in pre-training, the denominator is that of the whole step, so the cut into micro-batches changes rounding alone;
//! memory is planned for the largest batch of the token budget, and no later step allocates tensors. Every number is the
//! same for any number of threads.

use std::path::PathBuf;
use std::time::Instant;

use engine::optim::{Optimizer, Schedule};
use engine::{Communicator, Cpu, Device, EngineError, Gradients, ParamStore, Tape, Var, Workspace};

use super::batch::{Batch, Budget, Order};
use super::feature::{Content, Feature, Target};
use super::loss::{Kind, Scores, WindowScore, loss, scores, window_scores};
use super::start::Start;
use super::{FinetuneError, Recipe, Steps};
use crate::checkpoint::{Checkpoints, Heads, LoadedState, StateHeader, TaskHead};
use crate::cost::Flops;
use crate::metrics::{Mean, Proportion};
use crate::model::{ForwardOptions, Model, dropout_key};
use crate::tasks::Problem;
use crate::tokenizer::SpecialIds;
use crate::training::{ActivationType, MemoryPlan, Update, expect_finite, restore_state, save_state};

const TRAIN: &str = "train";
const EVALUATE: &str = "evaluate";

/// One optimizer step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepReport {
    /// Steps done, this one included.
    pub step: u64,
    /// Mean loss of the step's examples (of words, for tags).
    pub loss: f64,
    /// Share of classes that were right; `None` for numbers.
    pub accuracy: Option<f64>,
    /// The rate of the step.
    pub learning_rate: f64,
    /// Global norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// Tokens of the step.
    pub tokens: u64,
    /// Sequences of the step.
    pub sequences: u64,
    /// Floating-point operations of the step's matrix products (see `cost`).
    pub flops: f64,
    /// Seconds that the step took.
    pub seconds: f64,
}

/// A model with its memory: gives scores.
#[derive(Debug)]
pub(super) struct Scorer {
    pub(super) workspace: Workspace,
    pub(super) model: Model,
    pub(super) params: ParamStore,
    pub(super) specials: SpecialIds,
    pub(super) budget: Budget,
    pub(super) options: ForwardOptions,
}

/// Model, optimizer and examples of a run, without files.
#[derive(Debug)]
pub struct Trainer {
    recipe: Recipe,
    steps: Steps,
    cpu: Cpu,
    communicator: Communicator,
    scorer: Scorer,
    gradients: Gradients,
    optimizer: Optimizer,
    schedule: Schedule,
    features: Vec<Feature>,
    kind: Kind,
    order: Order,
    /// Room for a micro-batch.
    batch: Batch,
    memory: MemoryPlan,
}

/// Sums over the micro-batches of a step.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    loss: Mean,
    correct: Proportion,
    tokens: u64,
    sequences: u64,
    flops: f64,
}

impl Scorer {
    /// Lays the memory of evaluation out for the largest batch like `like`.
    pub(super) fn plan(&mut self, like: &Feature) -> Result<usize, FinetuneError> {
        let batch = Batch::largest(self.budget, self.model.config().max_position_embeddings, like);
        let Self { workspace, model, params, options, .. } = self;
        let plan = workspace.plan(EVALUATE, |workspace| {
            let tape = workspace.infer(params, None);
            match &like.target {
                Target::Span { .. } => window_scores(model, &tape, &batch, options).map(|_| ()),
                _ => scores(model, &tape, &batch, options).map(|_| ()),
            }
        })?;
        Ok(plan.bytes())
    }

    /// The scores of `features`, in their order: a score a class (words one after another), one for a number, one an
    /// option. They are run by length, so that batches are even; no score depends on the others in its batch but for
    /// rounding.
    pub(super) fn scores(&mut self, features: &[Feature]) -> Result<Vec<Vec<f32>>, FinetuneError> {
        self.by_length(features, |model, tape, batch, options, batched| {
            let values = match scores(model, tape, batch, options)? {
                Scores::Values(values) => values.value().to_vec()?,
                Scores::Answers { .. } => unreachable!("windows have scores of their own"),
            };
            let rows: usize = batched.iter().map(|&at| rows_of(&features[at])).sum();
            let width = values.len() / rows.max(1);
            let mut from = 0;
            let parts = batched.iter().map(|&at| {
                let part = from..from + rows_of(&features[at]) * width;
                from = part.end;
                values[part].to_vec()
            });
            Ok(parts.collect())
        })
    }

    /// What the model says of windows, in their order.
    pub(super) fn window_scores(&mut self, features: &[Feature]) -> Result<Vec<WindowScore>, FinetuneError> {
        self.by_length(features, |model, tape, batch, options, _| window_scores(model, tape, batch, options))
    }

    /// Runs `score` over batches of `features`, by length; it gives one result for each feature of the batch, which it
    /// gets the places of.
    fn by_length<R: Clone + Default + Send>(
        &mut self,
        features: &[Feature],
        score: impl Fn(&Model, &Tape<'_>, &Batch, &ForwardOptions, &[usize]) -> Result<Vec<R>, EngineError> + Sync,
    ) -> Result<Vec<R>, FinetuneError> {
        let mut by_length: Vec<usize> = (0..features.len()).collect();
        // Stable, so that batches are the same every time.
        by_length.sort_by_key(|&at| features[at].content.tokens());
        let mut out = vec![R::default(); features.len()];
        let mut batch = Batch::default();
        let mut rest = &by_length[..];
        let cpu = self.workspace.device().processor().clone();
        while !rest.is_empty() {
            batch.clear();
            let mut count = 0;
            while let Some(&at) = rest.get(count)
                && batch.has_room_for(&features[at], self.budget)
            {
                batch.push(&features[at], self.specials);
                count += 1;
            }
            let Self { workspace, model, params, options, .. } = self;
            let results = cpu.enter(|| {
                let tape = workspace.infer(params, Some(EVALUATE));
                score(model, &tape, &batch, options, &rest[..count])
            })?;
            for (&at, result) in rest[..count].iter().zip(results) {
                out[at] = result;
            }
            rest = &rest[count..];
        }
        Ok(out)
    }
}

/// Rows of scores that a feature has.
pub(super) fn rows_of(feature: &Feature) -> usize {
    match &feature.target {
        Target::Words { pieces, .. } => pieces.len(),
        Target::Class(_) | Target::Number(_) | Target::Span { .. } => feature.content.sequences(),
    }
}

/// How scores of these features become a loss, and a feature like the one with the fewest options.
fn kind_of<'f>(problem: &Problem, features: &'f [Feature]) -> (Kind, &'f Feature) {
    let fewest = features.iter().min_by_key(|feature| feature.content.sequences()).expect("there are examples");
    let most = features.iter().map(|feature| feature.content.sequences()).max().expect("there are examples");
    let kind = match (problem, &fewest.content) {
        (Problem::Number, _) => Kind::Number,
        (Problem::Span { .. }, _) => Kind::Answers,
        (_, Content::Options { options, .. }) if options.len() == most => Kind::Options(most),
        (_, Content::Options { .. }) => Kind::Ragged,
        _ => Kind::Classes,
    };
    (kind, fewest)
}

impl Trainer {
    /// The model of `start` and the optimizer before their first step over `features`, and the memory laid out for them
    /// and for evaluations of `others`.
    ///
    /// # Errors
    /// There are no examples, one has no label, the recipe does not fit, or there is not enough memory.
    pub fn new(
        recipe: &Recipe,
        problem: &Problem,
        start: Start,
        features: Vec<Feature>,
        others: &[Feature],
        device: Device,
    ) -> Result<Self, FinetuneError> {
        if let Some(unknown) = features.iter().find(|feature| !feature.target.is_known()) {
            let problem = format!("example {} of the training set has no label", unknown.example + 1);
            return Err(FinetuneError::Data(problem));
        }
        if features.is_empty() {
            return Err(FinetuneError::Data("the training set has no examples".into()));
        }
        let is_released_head = start.model.heads().task == Some(TaskHead::SquadV2);
        if is_released_head && recipe.compute.activations != ActivationType::F32 {
            return Err(FinetuneError::Recipe(
                "`compute.activations` must be \"f32\" with the released head of SQuAD 2.0; or give span.head=logits"
                    .into(),
            ));
        }
        let steps = recipe.steps(features.len())?;
        let cpu = device.processor().clone();
        let optimizer = recipe.optimizer.optimizer(&start.params)?.on(&device)?;
        let budget = Budget { tokens: recipe.batch.max_tokens, sequences: recipe.batch.max_sequences };
        let (kind, _) = kind_of(problem, &features);
        let options = recipe.compute.options(&device, None);
        let mut trainer = Self {
            communicator: Communicator::default(),
            gradients: start.params.gradients(&device)?,
            schedule: recipe.schedule(steps).schedule(recipe.optimizer.learning_rate, 0)?,
            order: Order::new(recipe.seed, features.len()),
            batch: Batch::default(),
            memory: MemoryPlan::default(),
            scorer: Scorer {
                workspace: Workspace::new(device),
                model: start.model,
                params: start.params,
                specials: start.tokenizer.specials(),
                budget: budget.with_room_for(features.iter().chain(others)),
                options,
            },
            recipe: recipe.clone(),
            steps,
            cpu,
            optimizer,
            features,
            kind,
        };
        trainer.plan(problem, others)?;
        Ok(trainer)
    }

    /// Runs the largest step dry, so that all later ones find their memory laid out.
    fn plan(&mut self, problem: &Problem, others: &[Feature]) -> Result<(), FinetuneError> {
        let (_, like) = kind_of(problem, &self.features);
        let like = like.clone();
        let positions = self.scorer.model.config().max_position_embeddings;
        let batch = Batch::largest(self.scorer.budget, positions, &like);
        let (kind, options, gradients) = (self.kind, self.options(Some(0)), &mut self.gradients);
        let Scorer { workspace, model, params, .. } = &mut self.scorer;
        let train = workspace.plan(TRAIN, |workspace| {
            let tape = workspace.train(params, None);
            let scores = scores(model, &tape, &batch, &options)?;
            let loss = loss(model, &tape, &batch, &scores, kind, batch.weight as f32)?;
            tape.backward(&loss.total, gradients)?;
            Ok(())
        })?;
        gradients.clear()?;
        let others = if others.is_empty() { like } else { kind_of(problem, others).1.clone() };
        let evaluate = self.scorer.plan(&others)?;
        let ids: usize = self.features.iter().map(|feature| feature.content.tokens()).sum();
        let params = &self.scorer.params;
        self.memory = MemoryPlan {
            parameters: 4 * params.len(),
            gradients: 4 * params.len(),
            optimizer: self.optimizer.bytes(),
            packed: params.packed_bytes(),
            step: train.bytes().max(evaluate),
            threads: self.scorer.workspace.scratch_bytes(),
            data: 4 * ids,
        };
        Ok(())
    }

    fn options(&self, dropout: Option<u64>) -> ForwardOptions {
        self.recipe.compute.options(self.scorer.workspace.device(), dropout)
    }

    /// Optimizer steps done.
    pub fn step(&self) -> u64 {
        self.optimizer.steps()
    }

    /// The steps of the whole run.
    pub fn steps(&self) -> Steps {
        self.steps
    }

    /// The recipe.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.scorer.model
    }

    /// The parameters; see [`Trainer::download`].
    pub fn params(&self) -> &ParamStore {
        &self.scorer.params
    }

    /// The memory of the steps.
    pub fn workspace(&self) -> &Workspace {
        &self.scorer.workspace
    }

    /// What the run will hold.
    pub fn memory(&self) -> MemoryPlan {
        self.memory
    }

    /// What is trained on.
    pub fn features(&self) -> &[Feature] {
        &self.features
    }

    /// Brings the parameters back from the device that trains them, so that they can be read.
    ///
    /// # Errors
    /// The device failed.
    pub fn download(&mut self) -> Result<(), EngineError> {
        self.scorer.params.download()
    }

    /// The scores of `features` by the model as it is; see the module of predictions for what they mean.
    ///
    /// # Errors
    /// The engine failed.
    pub fn scores(&mut self, features: &[Feature]) -> Result<Vec<Vec<f32>>, FinetuneError> {
        self.scorer.scores(features)
    }

    /// What the model as it is says of windows.
    pub(super) fn window_scores(&mut self, features: &[Feature]) -> Result<Vec<WindowScore>, FinetuneError> {
        self.scorer.window_scores(features)
    }

    /// Takes one optimizer step.
    ///
    /// # Errors
    /// The loss or the gradient is not finite ([`EngineError::NotFinite`]): the step was not taken, and the parameters are
    /// those before it. Or the engine failed.
    pub(super) fn train_step(&mut self) -> Result<StepReport, FinetuneError> {
        let start = Instant::now();
        let step = self.step();
        let mut batch = std::mem::take(&mut self.batch);
        let outcome = self.run(&mut batch, step);
        self.batch = batch;
        let tally = outcome?;
        let learning_rate = self.schedule.rate(step);
        let Self { recipe, cpu, communicator, optimizer, scorer, gradients, .. } = self;
        let update = Update { cpu, communicator: *communicator, optimizer, params: &mut scorer.params, gradients };
        let gradient_norm = recipe.optimizer.update(update, learning_rate)?;
        Ok(StepReport {
            step: step + 1,
            loss: tally.loss.value().unwrap_or(0.0),
            accuracy: tally.correct.value(),
            learning_rate,
            gradient_norm,
            tokens: tally.tokens,
            sequences: tally.sequences,
            flops: tally.flops,
            seconds: start.elapsed().as_secs_f64(),
        })
    }

    /// Runs the examples of a step forward and backward.
    fn run(&mut self, batch: &mut Batch, step: u64) -> Result<Tally, FinetuneError> {
        let count = self.recipe.batch.examples_per_step as u64;
        let examples: Vec<usize> = (step * count..(step + 1) * count).map(|at| self.order.at(at)).collect();
        let weight: usize = examples.iter().map(|&at| self.features[at].target.weight()).sum();
        let mut tally = Tally::default();
        self.gradients.clear()?;
        let (mut rest, mut micro) = (&examples[..], 0);
        while !rest.is_empty() {
            batch.clear();
            let mut count = 0;
            while let Some(&at) = rest.get(count)
                && batch.has_room_for(&self.features[at], self.scorer.budget)
            {
                batch.push(&self.features[at], self.scorer.specials);
                count += 1;
            }
            rest = &rest[count..];
            let options = self.options(Some(dropout_key(self.recipe.seed, step, micro)));
            self.backward(batch, &options, weight as f32, &mut tally)?;
            expect_finite(tally.loss.sum, step + 1)?;
            micro += 1;
        }
        Ok(tally)
    }

    /// Adds the gradients of a micro-batch.
    fn backward(
        &mut self,
        batch: &Batch,
        options: &ForwardOptions,
        denominator: f32,
        tally: &mut Tally,
    ) -> Result<(), FinetuneError> {
        let Self { scorer, gradients, cpu, kind, recipe, .. } = self;
        let Scorer { workspace, model, params, .. } = scorer;
        let checkpointing = recipe.compute.checkpointing(workspace.device());
        // Inside the pool every kernel of the step finds its threads awake.
        cpu.enter(|| {
            let tape = workspace.train(params, Some(TRAIN));
            let scores = scores(model, &tape, batch, options)?;
            let loss = loss(model, &tape, batch, &scores, *kind, denominator)?;
            tape.backward(&loss.total, gradients)?;
            tally.add(&tape, batch, &loss.total, denominator)?;
            if let Some(classified) = &loss.classified {
                tally.correct.add(classified.correct()? as u64, batch.weight as u64);
            }
            tally.flops += Flops::training_of(model.config(), &batch.cu_seqlens, 0, checkpointing);
            Ok(())
        })
    }

    /// Writes the tensors of a checkpoint.
    pub(super) fn save(&mut self, checkpoints: &Checkpoints, header: &StateHeader) -> Result<PathBuf, FinetuneError> {
        Ok(save_state(&mut self.scorer.params, &self.optimizer, checkpoints, header)?)
    }

    /// Puts everything back as it was when `found` was written.
    pub(super) fn restore(&mut self, found: &LoadedState) -> Result<(), FinetuneError> {
        Ok(restore_state(&mut self.scorer.params, &mut self.optimizer, found)?)
    }

    /// The heads of the model.
    pub fn heads(&self) -> Heads {
        self.scorer.model.heads()
    }
}

impl Tally {
    fn add(&mut self, tape: &Tape<'_>, batch: &Batch, total: &Var, denominator: f32) -> Result<(), EngineError> {
        // The mean of the micro-batch was divided by the weight of the step.
        let sum = f64::from(tape.item(total)?) * f64::from(denominator);
        self.loss.add(sum, batch.weight as u64);
        self.tokens += batch.tokens() as u64;
        self.sequences += batch.sequences() as u64;
        Ok(())
    }
}
