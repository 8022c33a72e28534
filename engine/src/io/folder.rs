//! Durable folders.
//!
//! A new entry of a folder is durable after fsync of that folder, not of the entry.
use crate::error::{EngineError, Result};
use std::{fs::File, io, os::unix::fs::OpenOptionsExt, path::Path};

/// Parent of `path`; `.` for a plain name.
pub(super) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Syncs the parent of `path`, so that creating, renaming or removing `path` is durable.
///
/// # Errors
/// The folder cannot be opened or synced.
pub fn sync_parent(path: impl AsRef<Path>) -> Result<()> {
    let folder = parent_of(path.as_ref());
    open_and_sync(folder).map_err(|e| EngineError::io(folder, "sync the folder", e))
}

pub(super) fn open_and_sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Creates `folder` and its missing parents, and syncs the parent of each.
///
/// # Errors
/// A file has the name, a parent is not writable, or a folder cannot be synced.
pub fn create_dir_synced(folder: impl AsRef<Path>) -> Result<()> {
    let folder = folder.as_ref();
    if folder.as_os_str().is_empty() || folder.is_dir() {
        return Ok(());
    }
    let created = match std::fs::create_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            create_dir_synced(parent_of(folder))?;
            std::fs::create_dir(folder)
        }
        result => result,
    };
    match created {
        Ok(()) => sync_parent(folder),
        // Another process created it, and may not have synced it yet.
        Err(_) if folder.is_dir() => sync_parent(folder),
        Err(e) => Err(EngineError::io(folder, "create the folder", e)),
    }
}

/// Opens the lock file `path`: created if missing, not truncated, links not followed.
///
/// # Errors
/// The folder is missing or not writable, or `path` is a link.
pub fn open_lock_file(path: impl AsRef<Path>) -> Result<File> {
    let path = path.as_ref();
    let mut options = File::options();
    options.write(true).create(true).truncate(false).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options.open(path).map_err(|e| EngineError::io(path, "create the lock file", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_file_is_no_link() {
        let root = tempfile::tempdir().unwrap();
        let (lock, elsewhere) = (root.path().join(".lock"), root.path().join("elsewhere"));
        open_lock_file(&lock).unwrap().try_lock().unwrap();
        open_lock_file(&lock).unwrap();
        std::fs::remove_file(&lock).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &lock).unwrap();
        let error = open_lock_file(&lock).unwrap_err().to_string();
        assert!(error.contains(".lock: cannot create the lock file: Too many levels of symbolic links"), "{error}");
        assert!(!elsewhere.exists());
    }

    #[test]
    fn creates_every_missing_folder_once() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("a/b/c");
        create_dir_synced(&deep).unwrap();
        std::fs::write(deep.join("file"), "kept").unwrap();
        create_dir_synced(&deep).unwrap();
        create_dir_synced(deep.join("d/../e")).unwrap();
        assert_eq!(std::fs::read(deep.join("file")).unwrap(), b"kept");
        assert!(deep.join("e").is_dir());
    }

    #[test]
    fn says_which_folder_cannot_be_created() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        std::fs::write(&file, "x").unwrap();
        for path in [file.clone(), file.join("below/deeper")] {
            let error = create_dir_synced(&path).unwrap_err().to_string();
            assert!(error.starts_with(path.to_str().unwrap()) && error.contains("cannot create the folder"), "{error}");
        }
    }
}
