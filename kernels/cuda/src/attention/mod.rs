//! Attention on a GPU: tensor cores of Ampere (`sm80`) and Hopper (`sm90`), f32 operands (`simt`).

pub mod arguments;
mod simt;
pub mod sm80;
mod sm80_backward;
mod sm80_forward;
pub mod sm90;
pub mod sm90_backward;
mod sm90_pipeline;
mod sm90_scores;
pub mod sm90_short;
mod tile;
