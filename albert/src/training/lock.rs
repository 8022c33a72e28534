//! Exclusive lock on a run folder.
//!
//! The lock is on a file in the folder, and the operating system lets go of it when the process ends, however it does: a
//! run that was killed is free again, and nobody has to remove anything.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use engine::EngineError;
use engine::io::{create_dir_synced, open_lock_file};

/// The folder is this process's as long as this lives.
#[derive(Debug)]
pub(crate) struct FolderLock {
    _file: File,
}

impl FolderLock {
    const FILE: &str = ".lock";

    /// Takes `folder`, which is made if it is not there; `None` if another process has it.
    ///
    /// # Errors
    /// The folder or the file in it cannot be made, or the file system has no locks.
    pub(crate) fn take(folder: &Path) -> Result<Option<Self>, EngineError> {
        let (file, path) = Self::open(folder)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(EngineError::io(&path, "lock the file", error)),
        }
    }

    /// Takes `folder` as soon as no other process has it.
    ///
    /// # Errors
    /// As for [`FolderLock::take`].
    pub(crate) fn wait(folder: &Path) -> Result<Self, EngineError> {
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
