//! ALBERT: the model, its data, its training.
#![forbid(unsafe_code)]

pub mod config;
pub mod cost;

pub use config::AlbertConfig;
