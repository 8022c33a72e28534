//! From gradients to new parameters: LAMB and AdamW, learning-rate schedules, clipping.
mod optimizer;
mod schedule;

pub use optimizer::{AdamConfig, Optimizer, OptimizerKind, ParamOptions, clip_global_norm, parts};
pub use schedule::{Decay, Schedule};
