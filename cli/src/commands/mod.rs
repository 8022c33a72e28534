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

use crate::output::tell;
use albert::train::ComputeSettings;
use engine::Device;
use std::path::Path;

/// The compute settings of a run in `folder`, with the choice of an automatic precision, which is printed.
pub(crate) fn with_precision(compute: &ComputeSettings, device: &Device, folder: &Path) -> ComputeSettings {
    let mut compute = compute.clone();
    if let Some(chosen) = compute.precision.chosen(device, folder) {
        tell!("precision: {}", chosen.on(device));
        compute.precision = chosen;
    }
    compute
}

/// Precision on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Precision {
    /// f32
    F32,
    /// bf16: activations and operands of products
    Bf16,
    /// f32 activations; dense layers multiply two parts of bf16
    Bf16x3,
    /// f32 activations; dense layers multiply three parts of bf16
    Bf16x6,
    /// 8-bit integers: weights quantized per output channel, activations per row; everything else in f32
    Int8,
    /// bf16 if this machine multiplies it faster than f32, else f32
    Auto,
}

impl Precision {
    /// The precision on `device`; prints the choice of `auto`.
    pub(crate) fn on(self, device: &Device) -> engine::Precision {
        match self {
            Self::F32 => engine::Precision::F32,
            Self::Bf16 => engine::Precision::Bf16,
            Self::Bf16x3 => engine::Precision::Bf16x3,
            Self::Bf16x6 => engine::Precision::Bf16x6,
            Self::Int8 => engine::Precision::Int8,
            Self::Auto => {
                let is_faster = device.multiplies_bf16_faster();
                let precision = if is_faster { engine::Precision::Bf16 } else { engine::Precision::F32 };
                tell!("precision: {precision}; this device multiplies {precision} faster");
                precision
            }
        }
    }
}
