//! From gradients to new parameters: LAMB and AdamW, learning-rate schedules, clipping.
mod optimizer;
mod schedule;

pub use optimizer::{Adam, Optimizer, Rule, Treatment, clip_global_norm, global_norm};
pub use schedule::{Decay, Schedule};
