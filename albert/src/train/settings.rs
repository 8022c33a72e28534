//! Settings shared by all objectives: optimizer, schedule, computation, evaluation, reports and checkpoints.

use std::ops::Range;
use std::path::Path;

use engine::optim::{AdamConfig, Decay, Optimizer, ParamOptions, Schedule};
use engine::param::ParamInfo;
use engine::{Device, EngineError, ParamStore, Precision};
use serde::{Deserialize, Serialize};

use super::overrides::SettingError;
use crate::model::{Blocks, ForwardOptions, Recompute};

pub use engine::optim::OptimizerKind;

/// Section `optimizer` of a recipe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerSettings {
    /// Algorithm of the optimizer.
    pub kind: OptimizerKind,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Term added to √v, outside the root.
    pub epsilon: f64,
    /// Weight decay, added to the update; not for biases and LayerNorms.
    pub weight_decay: f64,
    /// True to divide the moments by 1 - βᵗ; the released code does not.
    pub bias_correction: bool,
    /// Gradients with a larger global norm are scaled down to it; 0 turns clipping off.
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
    /// Checks every setting.
    ///
    /// # Errors
    /// Message about the first invalid one.
    pub fn check(&self) -> Result<(), SettingError> {
        let Self { learning_rate, beta1, beta2, epsilon, weight_decay, clip_norm, .. } = *self;
        let is_rate = learning_rate > 0.0 && learning_rate <= 10.0;
        expect("optimizer.learning_rate", learning_rate, is_rate, "above 0, at most 10")?;
        expect("optimizer.beta1", beta1, (0.0..1.0).contains(&beta1), "at least 0, below 1")?;
        expect("optimizer.beta2", beta2, (0.0..1.0).contains(&beta2), "at least 0, below 1")?;
        expect("optimizer.epsilon", epsilon, epsilon > 0.0 && epsilon < 1.0, "above 0, below 1")?;
        expect("optimizer.weight_decay", weight_decay, (0.0..10.0).contains(&weight_decay), "at least 0, below 10")?;
        expect("optimizer.clip_norm", clip_norm, clip_norm >= 0.0 && clip_norm.is_finite(), "at least 0 (0 is off)")
    }

    /// Creates the optimizer for the values `own` of the model's parameters; biases and LayerNorms are neither decayed nor adapted.
    ///
    /// # Errors
    /// A setting is invalid, or there is not enough memory.
    pub(crate) fn optimizer(&self, params: &ParamStore, own: Range<usize>) -> Result<Optimizer, EngineError> {
        let adam = AdamConfig {
            beta1: self.beta1,
            beta2: self.beta2,
            eps: self.epsilon,
            weight_decay: self.weight_decay,
            bias_correction: self.bias_correction,
        };
        let options = |info: &ParamInfo| ParamOptions { weight_decay: info.is_weight(), trust_ratio: info.is_weight() };
        Optimizer::of_part(params, own, self.kind, adam, options)
    }
}

/// Rejects `value` of the setting `key` unless `holds` is true.
///
/// # Errors
/// Message with the key, its value and `expected`.
pub fn expect(key: &str, value: f64, holds: bool, expected: &str) -> Result<(), SettingError> {
    if holds { Ok(()) } else { Err(SettingError(format!("`{key}` is {value}, expected {expected}"))) }
}

/// Rejects an invalid power or final rate of a decay from `peak`.
///
/// # Errors
/// Message about the first such value.
pub fn check_decay(power: f64, end_learning_rate: f64, peak: f64) -> Result<(), SettingError> {
    expect("schedule.power", power, power > 0.0 && power <= 100.0, "above 0, at most 100")?;
    let is_end = (0.0..=peak).contains(&end_learning_rate);
    expect("schedule.end_learning_rate", end_learning_rate, is_end, "at least 0, at most `optimizer.learning_rate`")
}

/// Shape of the learning-rate schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    /// As released: decay is counted from step 0, so the rate drops at the end of the warm-up and is 0 in the first
    /// step.
    Released,
    /// Linear warm-up to the peak, then decay from the peak.
    Smooth,
}

/// Learning-rate schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleSettings {
    /// Shape of the schedule.
    pub kind: ScheduleKind,
    /// Number of optimizer steps of the whole run.
    pub steps: u64,
    /// Number of steps of linear warm-up.
    pub warmup_steps: u64,
    /// Exponent of the decay; 1 is linear.
    pub power: f64,
    /// Learning rate at the end.
    pub end_learning_rate: f64,
    /// Changes of `steps` during the run, by ascending step, so that the run can be repeated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replans: Vec<Replan>,
}

/// A change of the number of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replan {
    /// Number of completed steps at the change.
    pub after: u64,
    /// New number of optimizer steps of the whole run.
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
    /// Checks the schedule with the peak rate `peak`.
    ///
    /// # Errors
    /// Message about the first invalid setting.
    pub(crate) fn check(&self, peak: f64) -> Result<(), SettingError> {
        let Self { steps, warmup_steps, .. } = *self;
        check_decay(self.power, self.end_learning_rate, peak)?;
        if steps == 0 || steps > 1 << 40 || warmup_steps > steps {
            return Err(SettingError(format!(
                "`schedule.steps` is {steps} and `schedule.warmup_steps` {warmup_steps}, expected at least one step and \
                 no more steps of warm-up than that; `schedule.warmup_share` makes the warm-up a share of the steps"
            )));
        }
        let mut before = 0;
        for Replan { after, steps } in &self.replans {
            if *after < before.max(1) || steps < after || warmup_steps > *steps || *steps > 1 << 40 {
                return Err(SettingError(format!(
                    "`schedule.replans` has {steps} steps after step {after}, expected rising `after` from 1 and no fewer \
                     `steps` than that or `schedule.warmup_steps`"
                )));
            }
            before = after + 1;
        }
        Ok(())
    }

    /// Number of optimizer steps of the whole run, as planned after `done` steps.
    pub fn steps_after(&self, done: u64) -> u64 {
        self.replans.iter().rev().find(|replan| replan.after <= done).map_or(self.steps, |replan| replan.steps)
    }

    /// Schedule with the peak rate `peak`, as planned after `done` steps.
    ///
    /// # Errors
    /// There are no steps, or fewer than those of the warm-up.
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

/// Precision of training. Sums, statistics, parameters and gradients are always f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainPrecision {
    /// Activations and products in f32.
    F32,
    /// Activations and the operands of products in bf16.
    Bf16,
    /// f32 activations; dense layers multiply operands split into two bf16 parts. CPUs only.
    Bf16x3,
    /// f32 activations; dense layers multiply operands split into three bf16 parts. CPUs only.
    Bf16x6,
    /// bf16 on devices that multiply it faster than f32, else f32.
    Auto,
}

impl TrainPrecision {
    /// Precision to use on `device`.
    pub fn on(self, device: &Device) -> Precision {
        match self {
            Self::F32 => Precision::F32,
            Self::Bf16 => Precision::Bf16,
            Self::Bf16x3 => Precision::Bf16x3,
            Self::Bf16x6 => Precision::Bf16x6,
            Self::Auto if device.multiplies_bf16_faster() => Precision::Bf16,
            Self::Auto => Precision::F32,
        }
    }

    /// Choice of [`Auto`](Self::Auto) for a run in `folder` on `device`: the precision of the run, if it has begun.
    /// `None` for all other precisions.
    pub fn chosen(self, device: &Device, folder: &Path) -> Option<Self> {
        if self != Self::Auto {
            return None;
        }
        #[derive(Deserialize)]
        struct Begun {
            compute: ComputeSettings,
        }
        let begun = std::fs::read_to_string(folder.join("config.toml")).ok();
        let begun = begun.and_then(|text| toml::from_str::<Begun>(&text).ok()).map(|begun| begun.compute.precision);
        let fastest = if device.multiplies_bf16_faster() { Self::Bf16 } else { Self::F32 };
        Some(begun.filter(|&precision| precision != Self::Auto).unwrap_or(fastest))
    }
}

/// Settings of the computation of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ComputeSettings {
    /// Precision of activations and products.
    pub precision: TrainPrecision,
    /// Activations stored for backward; by default `cheap` on a CPU and `none` on a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpointing: Option<Recompute>,
}

impl Default for ComputeSettings {
    fn default() -> Self {
        Self { precision: TrainPrecision::F32, checkpointing: None }
    }
}

impl ComputeSettings {
    /// Activations stored on `device`.
    pub(crate) fn checkpointing(&self, device: &Device) -> Recompute {
        let usual = match device {
            Device::Cpu(_) => Recompute::ON_CPU,
            Device::Cuda(_) => Recompute::ON_GPU,
        };
        self.checkpointing.unwrap_or(usual)
    }

    /// Options of a forward pass on `device`; `dropout` is the key of its masks.
    pub fn options(&self, device: &Device, dropout: Option<u64>) -> ForwardOptions {
        let dtype = self.precision.on(device).activations();
        ForwardOptions { dtype, dropout, blocks: Blocks::Fused(self.checkpointing(device)) }
    }
}

/// Settings of evaluations during a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvaluationSettings {
    /// Steps between evaluations; the end of a run is always evaluated. Released for pre-training: every 5,000. With 0,
    /// pre-training evaluates only at the end; fine-tuning evaluates once per epoch, but at most about 20 times per run and
    /// at least 10 steps apart (a third of the run if that is less).
    pub interval: u64,
    /// Number of evaluations without improvement after which the run stops; 0, the default, never stops early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience: Option<u64>,
}

/// Reports and checkpoints; they may change when a run is resumed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSettings {
    /// Steps between training records in `metrics.jsonl`.
    pub log_interval: u64,
    /// Steps between checkpoints. Pre-training also writes one whenever the run stops or ends (released: every 5,000).
    /// By default, fine-tuning writes one only when the run is stopped; with 0 it writes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_interval: Option<u64>,
    /// Stop if the smoothed loss is this many nats above its lowest value so far; 0 turns that off. A loss or gradient
    /// that is not finite always stops the run.
    #[serde(default)]
    pub divergence_margin: f64,
    /// Seconds that a rank waits for another in one exchange; after that it names the rank and ends all ranks. By default 600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub communication_timeout: Option<f64>,
    /// True if each rank updates a part of the parameters and stores only its moments; then all ranks receive the
    /// parameters. The result is bit-identical, and a step exchanges half as many bytes more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shard_optimizer: bool,
}

impl RunSettings {
    /// Checks every setting.
    ///
    /// # Errors
    /// Message about the first invalid one.
    pub fn check(&self) -> Result<(), SettingError> {
        let margin = self.divergence_margin;
        expect("run.divergence_margin", margin, margin >= 0.0, "at least 0 (0 is off)")?;
        expect("run.log_interval", self.log_interval as f64, self.log_interval > 0, "at least 1")?;
        let timeout = self.communication_timeout.unwrap_or(1.0);
        expect("run.communication_timeout", timeout, timeout > 0.0 && timeout <= 1e6, "above 0, at most 1e6 seconds")
    }
}

/// Settings of a recipe for the training core, resolved.
#[derive(Clone, Debug)]
pub struct TrainSettings {
    /// Seed of all random numbers.
    pub seed: u64,
    /// Settings of the optimizer.
    pub optimizer: OptimizerSettings,
    /// Steps and learning rates.
    pub schedule: ScheduleSettings,
    /// Precision, checkpointing, dropout.
    pub compute: ComputeSettings,
    /// Evaluations, early stopping.
    pub evaluation: EvaluationSettings,
    /// Records and checkpoints.
    pub run: RunSettings,
}
