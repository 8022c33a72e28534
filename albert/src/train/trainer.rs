//! One optimizer step: micro-batches forward and backward, clipping, the optimizer.
//!
//! ```text
//! micro-batches of the step ──> denominator of all of them
//! each of this rank's lanes: tape ── loss / denominator ── backward ──> gradients +=
//! gradients ── sum over lanes of all ranks ── clip to a global norm ── LAMB or AdamW ──> parameters
//! ```
//!
//! All batches of a step are drawn before the first one runs, because the mean over the effective batch depends on their counts. The
//! split into micro-batches changes only rounding and dropout. Results are the same for any number of threads.
//!
//! The host launches the next step on a GPU before it reads the losses and the norm of the last one:
//!
//! ```text
//! host   begin 1 | begin 2 | finish 1 | begin 3 | finish 2 | ...
//! GPU            step 1 ───────| step 2 ──────────| step 3 ── ...
//! ```
//!
//! The GPU checks whether a step is finite. A step that is not changes nothing, and neither do the steps begun after it
//! ([`Gradients::clip`]).

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Instant;

use engine::io::hash64;
use engine::optim::{Optimizer, parts};
use engine::{Communicator, Cpu, EngineError, GradientNorm, Gradients, LaneSums, Lanes, ParamStore, Workspace, trace};

use super::memory::MemoryPlan;
use super::objective::{BatchShape, MicroBatchSums, Objective, Pass, Worker};
use super::records::StepReport;
use super::settings::TrainSettings;
use crate::checkpoint::{CheckpointError, Checkpoints, LoadedState, StateHeader, TensorGroup};
use crate::cost::Flops;
use crate::loaded::LoadedModel;
use crate::model::{Model, Recompute, dropout_key};

/// Bits for the number of a micro-batch, below those of its lane.
const LANE_SHIFT: u32 = 32 - Lanes::MOST.ilog2();

/// Name of the memory plan of a step.
const TRAIN: &str = "train";

/// Model, optimizer and objective of a run, without files.
#[derive(Debug)]
pub struct Trainer<O: Objective> {
    pub(crate) objective: O,
    pub(crate) settings: TrainSettings,
    pub(crate) loaded: LoadedModel,
    cpu: Cpu,
    pub(crate) communicator: Communicator,
    lanes: LaneSums,
    gradients: Gradients,
    optimizer: Optimizer,
    /// Ranges of values that each rank updates, if the optimizer is shared among them.
    parts: Option<Vec<Range<usize>>>,
    /// Buffers for the batches of a step.
    pub(crate) room: Vec<O::Batch>,
    memory: MemoryPlan,
    /// Steps that were begun but not finished, the oldest first.
    in_flight: VecDeque<InFlight<O>>,
    /// Time at which the last finished step ended.
    counted: Instant,
}

/// A step that was begun but not finished.
#[derive(Debug)]
struct InFlight<O: Objective> {
    /// Report without loss, metrics, norm and seconds, which are not known yet.
    report: StepReport<O::Figures>,
    losses: Vec<O::Losses>,
    norm: GradientNorm,
}

/// FLOPs, tokens and sequences of `batches`.
fn work_of<O: Objective>(batches: &[O::Batch], model: &Model, checkpointing: Recompute) -> StepReport<O::Figures> {
    let mut report = StepReport::default();
    for batch in batches {
        let BatchShape { cu_seqlens, masked, .. } = O::shape(batch);
        report.flops += Flops::training_of(model.config(), cu_seqlens, masked, checkpointing);
        report.tokens += u64::from(cu_seqlens.last().copied().unwrap_or(0));
        report.sequences += cu_seqlens.len() as u64 - 1;
    }
    report
}

/// Returns an error if the loss of a step is not finite.
fn expect_finite(loss: f64, step: u64) -> Result<(), EngineError> {
    if loss.is_finite() {
        return Ok(());
    }
    Err(EngineError::NotFinite { what: "the loss".into(), value: loss, step: step + 1 })
}

/// Sums of the losses of all ranks.
fn sums_of_all<O: Objective>(communicator: &Communicator, step: u64, own: &[f64]) -> Result<O::Sums, EngineError> {
    let mut sums = O::Sums::default();
    // In the order of micro-batches, because ranks have lanes in order.
    for theirs in communicator.gather(&format!("losses of step {}", step + 1), bytemuck::cast_slice(own))? {
        let theirs: Vec<f64> = bytemuck::pod_collect_to_vec(&theirs);
        theirs.chunks_exact(O::Sums::VALUES).for_each(|micro| sums.add(micro));
    }
    Ok(sums)
}

impl<O: Objective> Trainer<O> {
    /// Combines a model with the optimizer of `settings` and plans the memory of steps and evaluations.
    ///
    /// # Errors
    /// A setting is invalid, or there is not enough memory.
    pub fn over(
        objective: O,
        settings: TrainSettings,
        (model, params): (Model, ParamStore),
        Worker { device, communicator }: Worker,
        lanes: Lanes,
    ) -> Result<Self, O::Error> {
        let is_shared = settings.run.shard_optimizer && communicator.size() > 1;
        let parts = is_shared.then(|| parts(&params, communicator.size()));
        let own = parts.as_ref().map_or(0..params.len(), |parts| parts[communicator.rank()].clone());
        let optimizer = settings.optimizer.optimizer(&params, own)?.on(&device)?;
        settings.schedule.schedule(settings.optimizer.learning_rate, 0)?;
        let (room, data) = objective.room();
        let gradients = params.gradients(&device)?;
        let precision = settings.compute.precision.on(&device);
        let mut workspace = Workspace::new(device);
        workspace.set_precision(precision)?;
        let mut trainer = Self {
            lanes: LaneSums::new(communicator.clone(), lanes, &gradients)?,
            gradients,
            cpu: workspace.device().processor().clone(),
            loaded: LoadedModel { workspace, model, params },
            communicator,
            memory: MemoryPlan { data, ..MemoryPlan::default() },
            objective,
            settings,
            optimizer,
            parts,
            room,
            in_flight: VecDeque::new(),
            counted: Instant::now(),
        };
        trainer.plan()?;
        Ok(trainer)
    }

    /// Runs the largest step and evaluation dry, so that the memory of all later ones is planned.
    fn plan(&mut self) -> Result<(), O::Error> {
        let Self { objective, settings, loaded, gradients, .. } = self;
        let batch = objective.largest();
        let denominator = objective.denominator(objective.counts(std::slice::from_ref(&batch)));
        let LoadedModel { workspace, model, params } = loaded;
        let options = settings.compute.options(workspace.device(), Some(0));
        let train = workspace.plan(TRAIN, |workspace| {
            let tape = workspace.train(params, None);
            let pass = Pass { model, tape: &tape, options: &options };
            objective.run(&pass, &batch, denominator, gradients).map(|_| ())
        })?;
        let evaluate = objective.plan_evaluation(loaded, settings)?;
        gradients.clear()?;
        let params = &loaded.params;
        self.memory = MemoryPlan {
            parameters: 4 * params.len(),
            gradients: 4 * params.len() + self.lanes.bytes(),
            optimizer: self.optimizer.bytes(),
            packed: params.packed_bytes(),
            step: train.bytes().max(evaluate),
            threads: loaded.workspace.scratch_bytes(),
            data: self.memory.data,
        };
        Ok(())
    }

    /// Runs one optimizer step.
    ///
    /// # Errors
    /// The loss or the gradient is not finite ([`EngineError::NotFinite`]): the parameters are unchanged. Or the engine
    /// failed.
    pub fn train_step(&mut self) -> Result<StepReport<O::Figures>, EngineError> {
        self.begin_step_while(&mut |_, _| true)?;
        let mut report = StepReport::default();
        while self.steps_in_flight() > 0 {
            report = self.finish_step()?;
        }
        Ok(report)
    }

    /// Begins an optimizer step, which [`Self::finish_step`] finishes. `goes_on` is called before the first micro-batch and after
    /// each, with the number of completed ones and the number of all on this rank; if it returns false, the step is aborted: the
    /// result is false, the parameters are unchanged, and the position in the data is after its batches.
    ///
    /// # Errors
    /// The engine failed.
    pub(crate) fn begin_step_while(
        &mut self,
        goes_on: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<bool, EngineError> {
        let (start, step) = (Instant::now(), self.step());
        if self.in_flight.is_empty() {
            self.counted = start;
        }
        let Self { objective, settings, loaded, cpu, communicator, lanes, gradients, optimizer, parts, room, .. } =
            self;
        let LoadedModel { workspace, model, params } = loaded;
        let checkpointing = settings.compute.checkpointing(workspace.device());
        let count = objective.draw(step, room);
        let batches = &room[..count];
        let data_seconds = start.elapsed().as_secs_f64();
        let mut report = StepReport { step: step + 1, data_seconds, ..work_of::<O>(batches, model, checkpointing) };
        let [first, second] = objective.counts(batches);
        let counts = [first, second, report.tokens, report.sequences];
        let [first, second, tokens, sequences] =
            communicator.sum_counts(&format!("counts of step {}", step + 1), counts)?;
        let denominator = objective.denominator([first, second]);
        (report.tokens, report.sequences) = (tokens, sequences);
        gradients.clear()?;
        lanes.begin_step();
        let (mut losses, mut lane, mut micro) = (Vec::with_capacity(count), 0, 0);
        if !goes_on(losses.len(), count) {
            return Ok(false);
        }
        for batch in batches.iter().filter(|batch| O::shape(batch).cu_seqlens.len() > 1) {
            let of = O::shape(batch).lane;
            (lane, micro) = if of == lane { (lane, micro) } else { (of, 0) };
            lanes.begin_lane(lane, gradients)?;
            // Micro-batches are numbered from 0 in each lane, so that they have the same masks on any rank.
            let key = dropout_key(settings.seed, step, (lane as u32) << LANE_SHIFT | micro);
            micro += 1;
            let options = settings.compute.options(workspace.device(), Some(key));
            // One entry into the pool per micro-batch, so that the worker threads spin from kernel to kernel.
            losses.push(cpu.enter(|| {
                let tape = workspace.train(params, Some(TRAIN));
                let pass = Pass { model, tape: &tape, options: &options };
                objective.run(&pass, batch, denominator, gradients)
            })?);
            if !goes_on(losses.len(), count) {
                return Ok(false);
            }
        }
        report.learning_rate = settings.schedule.schedule(settings.optimizer.learning_rate, step)?.rate(step);
        lanes.all_reduce(&format!("gradients of step {}", step + 1), gradients)?;
        let limit = Some(settings.optimizer.clip_norm).filter(|limit| *limit > 0.0);
        let norm = cpu.enter(|| -> Result<GradientNorm, EngineError> {
            let norm = trace::span("clip", &[], || gradients.clip(limit))?;
            trace::span("optimizer", &[], || optimizer.step(params, gradients, report.learning_rate))?;
            Ok(norm)
        })?;
        if let Some(parts) = parts {
            params.download()?;
            communicator.gather_parts(&format!("parameters of step {}", step + 1), parts, params.all_values_mut()?)?;
        }
        self.in_flight.push_back(InFlight { report, losses, norm });
        Ok(true)
    }

    /// Finishes the first step in flight: waits for its losses and its norm. Its seconds are counted from the end of the
    /// step before.
    ///
    /// # Errors
    /// The loss or the gradient is not finite ([`EngineError::NotFinite`]): this step and those in flight had no effect, and the
    /// parameters are unchanged. Or the engine failed.
    ///
    /// # Panics
    /// If no step is in flight.
    pub(crate) fn finish_step(&mut self) -> Result<StepReport<O::Figures>, EngineError> {
        let InFlight { mut report, losses, norm } = self.in_flight.pop_front().expect("a step is in flight");
        let (before, mut own) = (report.step - 1, Vec::new());
        for losses in losses {
            O::sums(losses)?.write(&mut own);
        }
        (report.loss, report.figures) = self.objective.figures(&sums_of_all::<O>(&self.communicator, before, &own)?);
        let norm = self.gradients.norm(norm, report.step);
        match expect_finite(report.loss, before).and(norm) {
            Ok(norm) => report.gradient_norm = norm,
            Err(error) => {
                self.in_flight.clear();
                self.optimizer.forget_steps_after(before);
                return Err(error);
            }
        }
        let now = Instant::now();
        report.seconds = (now - self.counted).as_secs_f64();
        self.counted = now;
        Ok(report)
    }

    /// Number of steps that were begun but not finished.
    pub(crate) fn steps_in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Number of steps in flight when the next one begins.
    pub(crate) fn steps_ahead(&self) -> usize {
        // With a shared optimizer, or gradients that ranks exchange through their hosts, the host waits in every step.
        usize::from(self.parts.is_none() && self.lanes.is_on_gpu(&self.gradients))
    }

    /// Number of optimizer steps, including those in flight.
    pub(crate) fn step(&self) -> u64 {
        self.optimizer.steps()
    }

    /// Parameters in host memory. Parameters trained on a GPU are copied there for checkpoints and hashes.
    pub fn params(&self) -> &ParamStore {
        &self.loaded.params
    }

    /// The objective, the model in memory, and the ranks.
    pub fn parts(&mut self) -> (&mut O, &mut LoadedModel, &Communicator) {
        (&mut self.objective, &mut self.loaded, &self.communicator)
    }

    /// Memory of the steps, and the profiler.
    pub fn workspace(&self) -> &Workspace {
        &self.loaded.workspace
    }

    /// Planned peak memory.
    pub fn memory(&self) -> MemoryPlan {
        self.memory
    }

    /// Hash of the parameters.
    pub(crate) fn hash(&mut self) -> Result<u64, EngineError> {
        self.download()?;
        Ok(hash64(bytemuck::cast_slice(self.params().all_values())))
    }

    /// Copies the parameters from the device that trains them to the host.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn download(&mut self) -> Result<(), EngineError> {
        self.loaded.params.download()
    }

    /// First and second moments of all parameters on the first rank, empty on all other ranks; all ranks must call it.
    ///
    /// # Errors
    /// A rank failed or timed out, or the device failed.
    pub(crate) fn moments(&self) -> Result<[Cow<'_, [f32]>; 2], EngineError> {
        if self.parts.is_none() && !self.communicator.is_first() {
            // They remain in place, perhaps on a GPU.
            return Ok(Default::default());
        }
        let moments = self.optimizer.moments()?;
        let Some(parts) = &self.parts else { return Ok(moments) };
        let [first, second] =
            moments.map(|moments| self.communicator.collect_parts("moments of the optimizer", parts, &moments));
        Ok([Cow::Owned(first?), Cow::Owned(second?)])
    }

    /// Writes the parameters, [downloaded](Self::download), and the [`moments`](Self::moments) as the checkpoint of `header`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn save(
        &self,
        checkpoints: &Checkpoints,
        header: &StateHeader,
        [first, second]: &[Cow<'_, [f32]>; 2],
    ) -> Result<PathBuf, CheckpointError> {
        let params = self.params();
        let groups = [("parameter", params.all_values()), ("first_moment", first), ("second_moment", second)];
        let groups = groups.map(|(group, flat)| {
            let tensors = params.ids().map(|id| {
                let info = params.info(id);
                (info.name.as_str(), &info.shape[..], &flat[info.range.clone()])
            });
            TensorGroup { group, tensors: tensors.collect() }
        });
        checkpoints.save(header, &groups)
    }

    /// Restores parameters and moments.
    ///
    /// # Errors
    /// A tensor is missing, or the device failed.
    pub(crate) fn restore(&mut self, state: &LoadedState) -> Result<(), CheckpointError> {
        self.download()?;
        let params = &mut self.loaded.params;
        let infos: Vec<_> = params.ids().map(|id| params.info(id).clone()).collect();
        let [mut first, mut second] = [(); 2].map(|()| vec![0.0; params.len()]);
        let values = params.all_values_mut()?;
        for info in &infos {
            for (group, flat) in
                [("parameter", &mut *values), ("first_moment", &mut first[..]), ("second_moment", &mut second[..])]
            {
                state.read(group, &info.name, &info.shape, &mut flat[info.range.clone()])?;
            }
        }
        let own = self.parts.as_ref().map_or(0..first.len(), |parts| parts[self.communicator.rank()].clone());
        Ok(self.optimizer.restore(state.header.step, [&first[own.clone()], &second[own]])?)
    }
}
