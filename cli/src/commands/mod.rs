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
pub(crate) mod manual;
pub(crate) mod plan;
pub(crate) mod predict;
pub(crate) mod pretrain;
pub(crate) mod quickstart;
pub(crate) mod report;
mod text;
pub(crate) mod tokenizer;
mod verify;

use crate::output::tell;
use albert::train::ComputeSettings;
use engine::Device;
use std::{path::Path, str::FromStr};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precision {
    /// A named one.
    Is(engine::Precision),
    /// bf16 if the device multiplies it faster than f32, else f32.
    Auto,
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            Ok(Self::Auto)
        } else {
            text.parse().map(Self::Is).map_err(|error| format!("{error}, or auto"))
        }
    }
}

impl Precision {
    /// The precision on `device`; prints the choice of `auto`.
    pub(crate) fn on(self, device: &Device) -> engine::Precision {
        match self {
            Self::Is(precision) => precision,
            Self::Auto => {
                let is_faster = device.multiplies_bf16_faster();
                let precision = if is_faster { engine::Precision::Bf16 } else { engine::Precision::F32 };
                tell!("precision: {precision}; this device multiplies {precision} faster");
                precision
            }
        }
    }
}
