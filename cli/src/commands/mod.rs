//! One module per command: arguments, calls of the library, output.

pub(crate) mod ablate;
pub(crate) mod answer;
pub(crate) mod bench;
pub(crate) mod classify;
pub(crate) mod convert;
pub(crate) mod data;
pub(crate) mod deadline;
pub(crate) mod doctor;
pub(crate) mod embed;
pub(crate) mod evaluate;
pub(crate) mod exchange;
pub(crate) mod fill_mask;
pub(crate) mod finetune;
pub(crate) mod forward;
pub(crate) mod info;
pub(crate) mod kernels;
pub(crate) mod predict;
pub(crate) mod pretrain;
pub(crate) mod quickstart;
mod text;
pub(crate) mod tokenizer;
mod verify;

/// Arithmetic of the encoder's GEMMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Precision {
    /// f32
    F32,
    /// 8-bit integers: weights quantized per output channel, activations per row; everything else in f32
    Int8,
}
