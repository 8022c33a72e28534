//! Folder of a run and its exclusive lock.
//!
//! The lock is on a file in the folder. The operating system releases it when the process ends, even if it is killed, so
//! stale locks never have to be removed.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use engine::EngineError;
use engine::io::{create_dir_synced, open_lock_file};

use crate::checkpoint::CheckpointError;

/// Exclusive lock on a folder until it is dropped.
#[derive(Debug)]
pub struct FolderLock {
    _file: File,
}

impl FolderLock {
    const FILE: &str = ".lock";

    /// Locks `folder`, which is created if missing; `None` if another process has the lock.
    ///
    /// # Errors
    /// The folder or the lock file cannot be created, or the file system does not support locks.
    pub fn take(folder: &Path) -> Result<Option<Self>, EngineError> {
        let (file, path) = Self::open(folder)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(EngineError::io(&path, "lock the file", error)),
        }
    }

    /// Locks `folder` as soon as no other process has the lock.
    ///
    /// # Errors
    /// As for [`FolderLock::take`].
    pub fn wait(folder: &Path) -> Result<Self, EngineError> {
        let (file, path) = Self::open(folder)?;
        file.lock().map_err(|error| EngineError::io(&path, "lock the file", error))?;
        Ok(Self { _file: file })
    }

    fn open(folder: &Path) -> Result<(File, PathBuf), EngineError> {
        create_dir_synced(folder)?;
        let path = folder.join(Self::FILE);
        Ok((open_lock_file(&path)?, path))
    }
}

/// Rejects a `folder` that cannot be created because a file is in its path.
///
/// # Errors
/// [`CheckpointError::Folder`], which names the file.
pub(crate) fn expect_folder(folder: &Path) -> Result<(), CheckpointError> {
    match folder.ancestors().find(|path| path.exists()) {
        Some(path) if !path.is_dir() => Err(CheckpointError::Folder {
            path: folder.to_owned(),
            problem: format!("cannot be the folder of a run: {} is a file; choose another folder", path.display()),
        }),
        _ => Ok(()),
    }
}

/// Locks the folder of a run if it exists. Otherwise [`claim_folder`] creates it once the run is known to be valid, so
/// that a rejected run does not leave a folder.
///
/// # Errors
/// As for [`claim_folder`].
pub(crate) fn claim_present(folder: &Path) -> Result<Option<FolderLock>, CheckpointError> {
    if folder.is_dir() { claim_folder(folder).map(Some) } else { Ok(None) }
}

/// Creates and locks the folder of a run.
///
/// # Errors
/// [`CheckpointError::Folder`] if another process trains there.
pub(crate) fn claim_folder(folder: &Path) -> Result<FolderLock, CheckpointError> {
    FolderLock::take(folder)?.ok_or_else(|| CheckpointError::Folder {
        path: folder.to_owned(),
        problem: "another process trains there; wait for it, stop it, or choose another folder".to_owned(),
    })
}
