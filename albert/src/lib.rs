//! ALBERT: the model, its data, its training.
#![deny(clippy::print_stdout, clippy::print_stderr)]
#![forbid(unsafe_code)]

pub mod ablate;
pub mod checkpoint;
pub mod config;
pub mod cost;
pub mod data;
pub mod embed;
pub mod fill_mask;
pub mod finetune;
pub mod finite;
pub mod forward;
pub mod heads;
pub mod metrics;
pub mod model;
pub mod pretrain;
pub mod report;
pub mod span;
pub mod tasks;
pub mod train;

pub use albert_tokenizer as tokenizer;
pub use config::AlbertConfig;
