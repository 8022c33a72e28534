//! Modules of the commands, with their arguments, library calls and output, and modules shared by several commands.

pub(crate) mod ablate;
pub(crate) mod answer;
pub(crate) mod bench;
mod books;
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
pub(crate) mod verify_run;

use crate::output::tell;
use albert::train::ComputeSettings;
use engine::Device;
use std::path::Path;

/// Compute settings of a run in `folder`, with the choice for an automatic precision, which is printed.
pub(crate) fn with_precision(compute: &ComputeSettings, device: &Device, folder: &Path) -> ComputeSettings {
    let mut compute = compute.clone();
    if let Some(chosen) = compute.precision.chosen(device, folder) {
        tell!("precision: {}", chosen.on(device));
        compute.precision = chosen;
    }
    compute
}
