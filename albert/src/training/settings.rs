//! How gradients become steps, and how steps are computed: settings that every kind of training has.

use engine::optim::{AdamConfig, Decay, Optimizer, ParamOptions, Schedule, clip_global_norm};
use engine::param::ParamInfo;
use engine::{Communicator, Cpu, DType, Device, EngineError, Gradients, ParamStore};
use serde::{Deserialize, Serialize};

use crate::model::{Blocks, ForwardOptions, Recompute};

pub use engine::optim::OptimizerKind;

/// Settings of the optimizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerSettings {
    /// Which one.
    pub kind: OptimizerKind,
    /// Rate at the top of the schedule.
    pub learning_rate: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to √v, outside the root.
    pub epsilon: f64,
    /// Times the weights, added to the direction; not for biases and LayerNorms.
    pub weight_decay: f64,
    /// Divide the moments by 1 - βᵗ; the released code does not.
    pub bias_correction: bool,
    /// Gradients of a larger global norm are scaled down to it; 0 turns clipping off.
    pub clip_norm: f64,
}

impl Default for OptimizerSettings {
    fn default() -> Self {
        Self {
            kind: OptimizerKind::Lamb,
            learning_rate: 0.00176,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-6,
            weight_decay: 0.01,
            bias_correction: false,
            clip_norm: 1.0,
        }
    }
}

impl OptimizerSettings {
    /// Checks every number.
    ///
    /// # Errors
    /// A sentence about the first impossible one.
    pub fn check(&self) -> Result<(), String> {
        let Self { learning_rate, beta1, beta2, epsilon, weight_decay, clip_norm, .. } = *self;
        expect(&[
            (
                "optimizer.learning_rate",
                learning_rate,
                learning_rate > 0.0 && learning_rate <= 10.0,
                "above 0, at most 10",
            ),
            ("optimizer.beta1", beta1, (0.0..1.0).contains(&beta1), "at least 0, below 1"),
            ("optimizer.beta2", beta2, (0.0..1.0).contains(&beta2), "at least 0, below 1"),
            ("optimizer.epsilon", epsilon, epsilon > 0.0 && epsilon < 1.0, "above 0, below 1"),
            ("optimizer.weight_decay", weight_decay, (0.0..10.0).contains(&weight_decay), "at least 0, below 10"),
            ("optimizer.clip_norm", clip_norm, clip_norm >= 0.0 && clip_norm.is_finite(), "at least 0 (0 is off)"),
        ])
    }

    /// The optimizer of the parameters of a model; biases and LayerNorms are neither decayed nor adapted.
    ///
    /// # Errors
    /// A number is impossible, or there is not enough memory.
    pub(crate) fn optimizer(&self, params: &ParamStore) -> Result<Optimizer, EngineError> {
        let adam = AdamConfig {
            beta1: self.beta1,
            beta2: self.beta2,
            eps: self.epsilon,
            weight_decay: self.weight_decay,
            bias_correction: self.bias_correction,
        };
        let options = |info: &ParamInfo| ParamOptions { weight_decay: info.is_weight(), trust_ratio: info.is_weight() };
        Optimizer::new(params, self.kind, adam, options)
    }

    /// Sums the gradients over all processes, clips them and updates the parameters; gives the norm that the sum had.
    ///
    /// # Errors
    /// The norm is not finite, and nothing was updated; or the device or another process failed.
    pub(crate) fn update(&self, update: Update<'_>, learning_rate: f64) -> Result<f64, EngineError> {
        let Update { cpu, communicator, optimizer, params, gradients } = update;
        communicator.all_reduce(gradients)?;
        let limit = Some(self.clip_norm).filter(|limit| *limit > 0.0);
        cpu.enter(|| {
            let norm = clip_global_norm(gradients, 1.0, limit, optimizer.steps() + 1)?;
            optimizer.step(params, gradients, learning_rate)?;
            Ok(norm)
        })
    }
}

/// What an optimizer step works on. Every kind of training updates through it, so none leaves the sum over processes out.
#[derive(Debug)]
pub(crate) struct Update<'a> {
    pub(crate) cpu: &'a Cpu,
    pub(crate) communicator: Communicator,
    pub(crate) optimizer: &'a mut Optimizer,
    pub(crate) params: &'a mut ParamStore,
    pub(crate) gradients: &'a mut Gradients,
}

/// The first of (key, value, whether it holds, what is expected) that does not hold, as a sentence.
pub(crate) fn expect(checks: &[(&str, f64, bool, &str)]) -> Result<(), String> {
    match checks.iter().find(|(_, _, holds, _)| !holds) {
        None => Ok(()),
        Some((key, value, _, expected)) => Err(format!("`{key}` is {value}, expected {expected}")),
    }
}

/// The shapes of the learning rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    /// Decay is counted from step 0 while the warm-up runs, so that the rate drops at its end and is 0 in the first
    /// step: as released.
    Released,
    /// Warm-up from one part to all of the rate, then decay from there.
    Smooth,
}

/// The learning rate over the steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleSettings {
    /// Its shape.
    pub kind: ScheduleKind,
    /// Optimizer steps of the whole run.
    pub steps: u64,
    /// Steps of linear warm-up.
    pub warmup_steps: u64,
    /// Exponent of the decay; 1 is linear.
    pub power: f64,
    /// Rate at the end.
    pub end_learning_rate: f64,
    /// Changes of `steps` on the way, by rising step: what a run decided while it went, so that it can be repeated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replans: Vec<Replan>,
}

/// A change of the number of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replan {
    /// Steps that were done when the number changed.
    pub after: u64,
    /// Optimizer steps of the whole run from then on.
    pub steps: u64,
}

impl Default for ScheduleSettings {
    fn default() -> Self {
        Self {
            kind: ScheduleKind::Released,
            steps: 125_000,
            warmup_steps: 3_125,
            power: 1.0,
            end_learning_rate: 0.0,
            replans: Vec::new(),
        }
    }
}

impl ScheduleSettings {
    /// Optimizer steps of the whole run, as planned when `done` are done.
    pub fn steps_after(&self, done: u64) -> u64 {
        self.replans.iter().rev().find(|replan| replan.after <= done).map_or(self.steps, |replan| replan.steps)
    }

    /// The rate of every step, up to `peak`, as planned when `done` are done.
    ///
    /// # Errors
    /// There are no steps, or fewer than the warm-up has.
    pub(crate) fn schedule(&self, peak: f64, done: u64) -> Result<Schedule, EngineError> {
        let schedule = Schedule {
            peak,
            end: self.end_learning_rate,
            steps: self.steps_after(done),
            warmup: self.warmup_steps,
            power: self.power,
            decay: match self.kind {
                ScheduleKind::Released => Decay::Released,
                ScheduleKind::Smooth => Decay::Smooth,
            },
        };
        schedule.check()?;
        Ok(schedule)
    }
}

/// Storage of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActivationType {
    /// 32 bits.
    F32,
    /// 16 bits; sums, statistics, parameters and gradients stay f32.
    Bf16,
}

/// How steps are computed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ComputeSettings {
    /// Storage of activations.
    pub activations: ActivationType,
    /// What forward keeps for backward; left out, `cheap` on a processor and `none` on a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpointing: Option<Recompute>,
}

impl Default for ComputeSettings {
    fn default() -> Self {
        Self { activations: ActivationType::F32, checkpointing: None }
    }
}

impl ComputeSettings {
    /// What forward keeps on `device`.
    pub(crate) fn checkpointing(&self, device: &Device) -> Recompute {
        let usual = match device {
            Device::Cpu(_) => Recompute::ON_CPU,
            Device::Cuda(_) => Recompute::ON_GPU,
        };
        self.checkpointing.unwrap_or(usual)
    }

    /// How a pass is run on `device`; `dropout` is the key of its masks.
    pub(crate) fn options(&self, device: &Device, dropout: Option<u64>) -> ForwardOptions {
        let dtype = match self.activations {
            ActivationType::F32 => DType::F32,
            ActivationType::Bf16 => DType::Bf16,
        };
        ForwardOptions { dtype, dropout, blocks: Blocks::Fused(self.checkpointing(device)) }
    }
}
