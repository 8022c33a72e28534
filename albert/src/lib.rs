#![doc = include_str!("../README.md")]
//!
//! A model folder is Hugging Face's: each can read what the other writes.
//!
//! * [`config`], [`model`], [`heads`]: the paper's model, equation by equation; [`cost`]: its parameters, FLOPs, memory.
//! * [`checkpoint`]: model folders and training states; [`loaded`]: a model in memory.
//! * [`embed`], [`fill_mask`], [`forward`]: inference.
//! * [`tokenizer`], [`data`]: from text to batches.
//! * [`mod@pretrain`], [`train`], [`report`]: pre-training, and the training core shared with `albert-tasks`.
//!
//! Example programs are in `examples/`.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(clippy::print_stdout, clippy::print_stderr)]
#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod config;
pub mod cost;
pub mod data;
pub mod embed;
pub mod fill_mask;
pub mod finite;
pub mod forward;
pub mod heads;
pub mod loaded;
pub mod mean;
pub mod model;
pub mod pretrain;
mod ranks;
pub mod report;
pub mod sentence;
pub mod train;

pub use albert_tokenizer as tokenizer;
pub use config::AlbertConfig;
pub use engine::Device;
