//! The temporary file `.NAME.partial`: created exclusively, locked by its writer, recognized by its inode.
//!
//! A name alone says nothing here: between two system calls another writer may have renamed or removed the file and
//! created its own. Two rules follow from it:
//! * a file is the writer's own when it is locked *and* the name still refers to it; both are checked in this order;
//! * only the holder of the lock renames or removes the file.
//!
//! An unlocked file is a leftover of a killed process. It is removed and not written to: it may be a
//! planted link, or a file that another program has open.
use crate::error::{EngineError, Result};
use std::{
    fs::{File, OpenOptions, Permissions, TryLockError},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown},
    path::{Path, PathBuf},
};

/// Attempts to create the file. One is enough unless other writers come and go in between.
const ATTEMPTS: usize = 1000;

/// The name under which the file `target` is written; `None` if `target` has no file name.
pub(super) fn name_of(target: &Path) -> Option<PathBuf> {
    let mut name = std::ffi::OsString::from(".");
    name.push(target.file_name()?);
    name.push(".partial");
    Some(target.with_file_name(name))
}

/// True if `path` itself, not the target of a link, is the open `file`.
pub(super) fn names(path: &Path, file: &File) -> io::Result<bool> {
    let open = file.metadata()?;
    match std::fs::symlink_metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (open.dev(), open.ino())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// Removes `partial` if it is still `file`, which the caller has locked.
pub(super) fn remove(partial: &Path, file: &File) {
    if names(partial, file).unwrap_or(false) {
        // A leftover that cannot be removed does no harm: the next writer removes it.
        let _ = std::fs::remove_file(partial);
    }
}

/// Creates `partial` for the new contents of `target` and locks it; leftovers are removed. `shown` is the path for
/// messages, `kind` what it is: a file or a folder.
///
/// # Errors
/// The folder is missing or not writable, something that cannot be removed is in the way, another process is writing the
/// same file, or the file system has no locks.
pub(super) fn claim(partial: &Path, target: &Path, shown: &Path, kind: &str) -> Result<File> {
    for _ in 0..ATTEMPTS {
        // Private until it has the permissions of the file that it replaces.
        let replaced = std::fs::metadata(target).ok().filter(std::fs::Metadata::is_file);
        match create(partial, if replaced.is_some() { 0o600 } else { 0o666 }) {
            Ok(file) => {
                if lock_own(partial, &file).map_err(|e| EngineError::io(shown, "lock the temporary file", e))? {
                    if let Some(replaced) = &replaced {
                        take_permissions(&file, replaced);
                    }
                    return Ok(file);
                }
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                if let Some(file) = open_leftover(partial, shown)? {
                    remove_leftover(partial, &file, shown, kind)?;
                }
            }
            Err(e) => return Err(cannot_create(shown, target, e)),
        }
        std::thread::yield_now();
    }
    Err(busy(shown, kind))
}

fn busy(shown: &Path, kind: &str) -> EngineError {
    EngineError::file(shown, format!("another process is writing this {kind}; wait for it or stop it"))
}

fn cannot_create(shown: &Path, target: &Path, error: io::Error) -> EngineError {
    let folder = super::super::folder::parent_of(target);
    match error.kind() {
        io::ErrorKind::NotFound if !folder.exists() => {
            let problem = format!(
                "cannot create the file: the folder {} does not exist; create it or choose another path",
                folder.display()
            );
            EngineError::file(shown, problem)
        }
        io::ErrorKind::NotADirectory => {
            let problem = format!(
                "cannot create the file: {} is not a folder; choose another path",
                folder.ancestors().find(|path| path.exists()).unwrap_or(folder).display()
            );
            EngineError::file(shown, problem)
        }
        _ => EngineError::io(shown, "create the file", error),
    }
}

/// Creates `partial`, which must not exist, not even as a link.
pub(super) fn create(partial: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(mode).open(partial)
}

/// Locks `file`, just created as `partial`; false if another writer has found it without a lock and taken it for a
/// leftover.
pub(super) fn lock_own(partial: &Path, file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => names(partial, file),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(e)) => {
            // Without locks no other writer can have taken it.
            remove(partial, file);
            Err(e)
        }
    }
}

/// Opens the file that is in the way of a new `partial`. `None` if it has gone, or was no regular file and is removed.
pub(super) fn open_leftover(partial: &Path, shown: &Path) -> Result<Option<File>> {
    let in_the_way = |action, e| Err(EngineError::io(partial, action, e));
    let gone = |e: &io::Error| e.kind() == io::ErrorKind::NotFound;
    match std::fs::symlink_metadata(partial) {
        Err(e) if gone(&e) => return Ok(None),
        Err(e) => return in_the_way("look at the file", e),
        Ok(there) if there.is_dir() => {
            let problem = format!("{} is a folder and in the way; remove it", partial.display());
            return Err(EngineError::file(shown, problem));
        }
        Ok(there) if !there.is_file() => {
            return match std::fs::remove_file(partial) {
                Err(e) if !gone(&e) => in_the_way("remove what is in the way", e),
                _ => Ok(None),
            };
        }
        Ok(_) => {}
    }
    // A lock over a network may need a file that is open for writing; a leftover of another user may not be writable.
    let open = |write: bool| {
        OpenOptions::new()
            .read(!write)
            .write(write)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(partial)
    };
    let opened = open(true).or_else(|e| if e.kind() == io::ErrorKind::PermissionDenied { open(false) } else { Err(e) });
    match opened {
        Ok(file) => Ok(Some(file)),
        // Replaced by a link or a FIFO after the look: the next attempt sees it.
        Err(e) if gone(&e) || matches!(e.raw_os_error(), Some(libc::ELOOP | libc::ENXIO)) => Ok(None),
        Err(e) => in_the_way("open the temporary file of another writer", e),
    }
}

/// Removes `partial`, opened before as `file`, if no writer has it locked and if it is still that file.
///
/// # Errors
/// Another process is writing it; it cannot be removed.
pub(super) fn remove_leftover(partial: &Path, file: &File, shown: &Path, kind: &str) -> Result<()> {
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(busy(shown, kind)),
        Err(TryLockError::Error(e)) => return Err(EngineError::io(shown, "lock the temporary file", e)),
    }
    let result = names(partial, file).and_then(|is_it| if is_it { std::fs::remove_file(partial) } else { Ok(()) });
    result.map_err(|e| EngineError::io(partial, "remove the leftover of a killed process", e))
}

/// Gives `file` the permissions of the file that it will replace, and its owner where the system allows it.
fn take_permissions(file: &File, replaced: &std::fs::Metadata) {
    let mut mode = replaced.mode() & 0o7777;
    let Ok(new) = file.metadata() else { return };
    let (owner, group) = (replaced.uid(), replaced.gid());
    if (new.uid(), new.gid()) != (owner, group) && fchown(file, Some(owner), Some(group)).is_err() {
        // Only root gives files away. Bits that let a program run as its owner are not for another owner.
        mode &= 0o777;
        if fchown(file, None, Some(group)).is_err() {
            // Another group gets what everybody gets.
            mode &= !0o070 | (mode & 0o007) << 3;
        }
    }
    // File systems without permissions refuse; the file is then as private as they make it.
    let _ = file.set_permissions(Permissions::from_mode(mode));
}
