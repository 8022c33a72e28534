#![doc = include_str!("../README.md")]
//!
//! ```text
//! file ── `files` ──> examples ── `finetune` ──> model, predictions ── `metrics` ──> scores
//!                                     └ questions about passages: `span`
//! ```
//!
//! * [`files`]: readers of GLUE, SQuAD, RACE, CoNLL and custom files.
//! * [`mod@finetune`]: recipes, runs, evaluation; [`finetune::Predictor`]: inference with a fine-tuned model.
//! * [`metrics`], [`span`]: task metrics; answers to questions.
//! * [`mod@ablate`]: tables of pre-trained and fine-tuned variants, as in the paper.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(clippy::print_stdout, clippy::print_stderr)]
#![forbid(unsafe_code)]

pub mod ablate;
pub mod files;
pub mod finetune;
pub mod metrics;
pub mod span;
