//! The temporary file `.NAME.partial`: created exclusively, locked by its writer, recognized by its inode.
//!
//! Between two system calls another writer may rename or remove the file and create its own. Hence two rules:
//! * a writer owns a file when it has the lock *and* the name still refers to the file, checked in this order;
//! * only the holder of the lock renames or removes the file.
//!
//! A file without a lock is a leftover of a killed process. It is removed, not reused: it may be a planted link, or open in
//! another program.
use crate::error::{EngineError, Result};
use std::{
    fs::{File, OpenOptions, Permissions, TryLockError},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown},
    path::{Path, PathBuf},
};

/// Attempts to create the file; more than one only with concurrent writers.
const ATTEMPTS: usize = 1000;

/// Temporary name of `target`; `None` if `target` has no file name.
pub(super) fn name_of(target: &Path) -> Option<PathBuf> {
    let mut name = std::ffi::OsString::from(".");
    name.push(target.file_name()?);
    name.push(".partial");
    Some(target.with_file_name(name))
}

/// Whether `path`, without following links, is the open `file`.
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
        // The next writer removes a leftover that stays.
        let _ = std::fs::remove_file(partial);
    }
}

/// Creates and locks `partial` for the new contents of `target`; leftovers are removed. Messages contain the path `shown`
/// and its `kind`, file or folder.
///
/// # Errors
/// The folder is missing or not writable, an obstacle cannot be removed, another process writes the same file, or the file
/// system has no locks.
pub(super) fn claim(partial: &Path, target: &Path, shown: &Path, kind: &str) -> Result<File> {
    for _ in 0..ATTEMPTS {
        // Private until it has the permissions of the replaced file.
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

/// Locks `file`, just created as `partial`; false if another writer removed it as a leftover before the lock.
pub(super) fn lock_own(partial: &Path, file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => names(partial, file),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(e)) => {
            // Without locks no other writer can have removed it.
            remove(partial, file);
            Err(e)
        }
    }
}

/// Opens the existing `partial`. `None` if it is gone, or was not a regular file and is removed.
pub(super) fn open_leftover(partial: &Path, shown: &Path) -> Result<Option<File>> {
    let in_the_way = |action, e| Err(EngineError::io(partial, action, e));
    let gone = |e: &io::Error| e.kind() == io::ErrorKind::NotFound;
    match std::fs::symlink_metadata(partial) {
        Err(e) if gone(&e) => return Ok(None),
        Err(e) => return in_the_way("look at the file", e),
        Ok(there) if there.is_dir() => {
            let problem = format!("{} is a folder; remove it", partial.display());
            return Err(EngineError::file(shown, problem));
        }
        Ok(there) if !there.is_file() => {
            return match std::fs::remove_file(partial) {
                Err(e) if !gone(&e) => in_the_way("remove the obstacle", e),
                _ => Ok(None),
            };
        }
        Ok(_) => {}
    }
    // Locks over a network may need write access, which a leftover of another user may not grant.
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
        // Replaced by a link or a FIFO in the meantime: the next attempt handles it.
        Err(e) if gone(&e) || matches!(e.raw_os_error(), Some(libc::ELOOP | libc::ENXIO)) => Ok(None),
        Err(e) => in_the_way("open the temporary file of another writer", e),
    }
}

/// Removes `partial`, which is open as `file`, if no writer has locked it and if it is still that file.
///
/// # Errors
/// Another process writes it, or it cannot be removed.
pub(super) fn remove_leftover(partial: &Path, file: &File, shown: &Path, kind: &str) -> Result<()> {
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(busy(shown, kind)),
        Err(TryLockError::Error(e)) => return Err(EngineError::io(shown, "lock the temporary file", e)),
    }
    let result = names(partial, file).and_then(|is_it| if is_it { std::fs::remove_file(partial) } else { Ok(()) });
    result.map_err(|e| EngineError::io(partial, "remove the leftover of a killed process", e))
}

/// Copies the permissions of the replaced file to `file`, and its owner where the system allows it.
fn take_permissions(file: &File, replaced: &std::fs::Metadata) {
    let mut mode = replaced.mode() & 0o7777;
    let Ok(new) = file.metadata() else { return };
    let (owner, group) = (replaced.uid(), replaced.gid());
    if (new.uid(), new.gid()) != (owner, group) && fchown(file, Some(owner), Some(group)).is_err() {
        // Only root may change owners. Set-user-ID bits must not apply to another owner.
        mode &= 0o777;
        if fchown(file, None, Some(group)).is_err() {
            // Another group has the permissions of all others.
            mode &= !0o070 | (mode & 0o007) << 3;
        }
    }
    // File systems without permissions fail; their default applies.
    let _ = file.set_permissions(Permissions::from_mode(mode));
}
