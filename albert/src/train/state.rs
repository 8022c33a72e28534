//! Parameters and moments to and from a checkpoint, the memory plan of a run, and its folder.

use std::path::PathBuf;

use engine::ParamStore;
use engine::optim::Optimizer;

use super::FolderLock;
use crate::checkpoint::{CheckpointError, Checkpoints, LoadedState, StateHeader, TensorGroup};

/// Planned bytes of a run by purpose, known before the first step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// f32 parameters.
    pub parameters: usize,
    /// f32 gradients.
    pub gradients: usize,
    /// Moments of the optimizer, and its scratch.
    pub optimizer: usize,
    /// Packed copies of the weights for GEMM.
    pub packed: usize,
    /// Activations and scratch of the largest step.
    pub step: usize,
    /// Scratch memory of the worker threads.
    pub threads: usize,
    /// Instances and batches.
    pub data: usize,
}

impl MemoryPlan {
    /// Sum over all purposes.
    pub fn total(&self) -> usize {
        self.parameters + self.gradients + self.optimizer + self.packed + self.step + self.threads + self.data
    }
}

/// Writes parameters and moments as the checkpoint of `header`.
///
/// # Errors
/// The file cannot be written, or the device failed.
pub(crate) fn save_state(
    params: &mut ParamStore,
    optimizer: &Optimizer,
    checkpoints: &Checkpoints,
    header: &StateHeader,
) -> Result<PathBuf, CheckpointError> {
    params.download()?;
    let [first, second] = optimizer.moments()?;
    let groups = [("parameter", params.all_values()), ("first_moment", &first), ("second_moment", &second)];
    let groups = groups.map(|(group, flat)| {
        let tensors = params.ids().map(|id| {
            let info = params.info(id);
            (info.name.as_str(), &info.shape[..], &flat[info.range.clone()])
        });
        TensorGroup { group, tensors: tensors.collect() }
    });
    checkpoints.save(header, &groups)
}

/// Restores parameters and moments from `found`.
///
/// # Errors
/// A tensor is missing, or the device failed.
pub(crate) fn restore_state(
    params: &mut ParamStore,
    optimizer: &mut Optimizer,
    found: &LoadedState,
) -> Result<(), CheckpointError> {
    let infos: Vec<_> = params.ids().map(|id| params.info(id).clone()).collect();
    params.download()?;
    let [mut first, mut second] = [(); 2].map(|()| vec![0.0; params.len()]);
    let values = params.all_values_mut()?;
    for info in &infos {
        for (group, flat) in
            [("parameter", &mut *values), ("first_moment", &mut first[..]), ("second_moment", &mut second[..])]
        {
            found.read(group, &info.name, &info.shape, &mut flat[info.range.clone()])?;
        }
    }
    Ok(optimizer.restore(found.header.step, [&first, &second])?)
}

/// Refuses a `folder` that cannot be created because a file is in its path.
///
/// # Errors
/// [`CheckpointError::Folder`] that names the file.
pub(crate) fn expect_folder(folder: &std::path::Path) -> Result<(), CheckpointError> {
    match folder.ancestors().find(|path| path.exists()) {
        Some(path) if !path.is_dir() => Err(CheckpointError::Folder {
            path: folder.to_owned(),
            problem: format!("cannot be the folder of a run: {} is a file; choose another folder", path.display()),
        }),
        _ => Ok(()),
    }
}

/// Locks the folder of a run if it exists. Otherwise [`claim_folder`] creates it once the run is known to be valid: a run
/// that is refused leaves no folder.
///
/// # Errors
/// As for [`claim_folder`].
pub(crate) fn claim_present(folder: &std::path::Path) -> Result<Option<FolderLock>, CheckpointError> {
    if folder.is_dir() { claim_folder(folder).map(Some) } else { Ok(None) }
}

/// Creates and locks the folder of a run.
///
/// # Errors
/// [`CheckpointError::Folder`] if another process trains there.
pub(crate) fn claim_folder(folder: &std::path::Path) -> Result<FolderLock, CheckpointError> {
    FolderLock::take(folder)?.ok_or_else(|| CheckpointError::Folder {
        path: folder.to_owned(),
        problem: "another process trains there; wait for it, stop it, or choose another folder".to_owned(),
    })
}
