//! ALBERT: the model, its data, its training.
#![forbid(unsafe_code)]

pub mod config;
pub mod cost;
pub mod tokenizer;

pub use config::AlbertConfig;
