//! Atomic output files: whole or not at all.
//!
//! ```text
//! create .NAME.partial, lock  ->  write  ->  flush, fsync  ->  rename to NAME  ->  fsync the folder
//!        └ a crash here leaves NAME unchanged                  └ from here on NAME is the new version, on disk
//! ```
//!
//! rename(2) replaces atomically within one folder; the two fsyncs order it after the data and before the return. The
//! temporary name is fixed, so that the next writer of the same file removes the leftover of a killed process; the file is
//! created exclusively, so that nothing is written through a planted link; it is locked, so that one of two writers fails.
//! See [`partial`].
//!
//! Existing files keep their permissions. Links are followed; a dangling one creates its target. Devices, FIFOs, sockets and
//! open descriptors are written in place, see [`destination`], and cannot be undone.
//!
//! [`AtomicFile::create`] detects nearly all errors of a path. Commands create their outputs before the work and commit them
//! after it; [`check_output`] is for commands that cannot.
//!
//! Limits: Unix. File systems that ignore fsync keep none of this. A hard link to the old version keeps the old version;
//! access lists and extended attributes are not carried over. A name has at most 246 bytes.
mod destination;
mod folder;
mod partial;
#[cfg(test)]
mod tests;

use super::folder::{open_and_sync, parent_of};
use crate::error::{EngineError, Result};
use destination::Destination;
pub use folder::AtomicFolder;
use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

/// An open output file. [`AtomicFile::commit`] renames it to its path; without a commit it is removed, and an earlier file
/// stays.
#[derive(Debug)]
pub struct AtomicFile {
    /// Path of the caller, for messages.
    path: PathBuf,
    writer: Option<BufWriter<File>>,
    /// `None` for outputs that are written in place.
    renaming: Option<Renaming>,
}

/// Temporary and final name.
#[derive(Debug)]
struct Renaming {
    partial: PathBuf,
    target: PathBuf,
}

impl AtomicFile {
    /// Opens the output `path`. A FIFO waits for its reader.
    ///
    /// # Errors
    /// The folder is missing or not writable, `path` names no file or a folder, or another process is writing the same
    /// file.
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let (file, renaming) = match Destination::of(path)? {
            Destination::Stream(stream) => {
                (stream.open().map_err(|e| EngineError::io(path, "open the file for writing", e))?, None)
            }
            Destination::File(target) => {
                let partial =
                    partial::name_of(&target).ok_or_else(|| EngineError::file(path, "expected the name of a file"))?;
                (partial::claim(&partial, &target, path, "file")?, Some(Renaming { partial, target }))
            }
        };
        Ok(Self { path: path.to_owned(), writer: Some(BufWriter::with_capacity(1 << 20, file)), renaming })
    }

    /// Syncs the file and renames it to its path.
    ///
    /// # Errors
    /// The disk is full or failing, or the reader has closed. An earlier file is then unchanged, unless the output is written
    /// in place.
    pub fn commit(mut self) -> Result<()> {
        let mut writer = self.writer.take().expect("commit consumes the file");
        let flushed = writer.flush();
        // This file has the lock: it stays open until the rename.
        let (file, _) = writer.into_parts();
        let result = flushed.and_then(|()| match &self.renaming {
            None => {
                if file.metadata()?.is_file() {
                    file.sync_all()
                } else {
                    Ok(())
                }
            }
            Some(renaming) => renaming.publish(&file),
        });
        if let (Err(_), Some(renaming)) = (&result, &self.renaming) {
            partial::remove(&renaming.partial, &file);
        }
        result.map_err(|e| EngineError::io(&self.path, "write the file", e))
    }

    fn writer(&mut self) -> &mut BufWriter<File> {
        self.writer.as_mut().expect("open until committed")
    }
}

impl Renaming {
    fn publish(&self, file: &File) -> io::Result<()> {
        file.sync_all()?;
        if !partial::names(&self.partial, file)? {
            let problem = format!("{} was removed or replaced meanwhile", self.partial.display());
            return Err(io::Error::other(problem));
        }
        std::fs::rename(&self.partial, &self.target)?;
        open_and_sync(parent_of(&self.target))
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.writer().flush()
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        // Not flushed: the content is discarded.
        if let (Some(writer), Some(renaming)) = (self.writer.take(), &self.renaming) {
            partial::remove(&renaming.partial, &writer.into_parts().0);
        }
    }
}

/// Writes `path` with `write`, whole or not at all.
///
/// # Errors
/// `write` failed, or the file cannot be created, flushed or renamed; an earlier file is unchanged.
pub fn write_atomically(path: impl AsRef<Path>, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    let path = path.as_ref();
    let mut file = AtomicFile::create(path)?;
    write(&mut file).map_err(|e| EngineError::io(path, "write the file", e))?;
    file.commit()
}

/// Removes the temporary file of a killed writer of `path`. [`AtomicFile::create`] does so for its own path; this is for
/// files that may never be written again.
///
/// # Errors
/// Another process is writing the file, or the leftover cannot be removed.
pub fn remove_leftover(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    let Some(partial) = partial::name_of(path) else { return Ok(()) };
    match partial::open_leftover(&partial, path)? {
        Some(file) => partial::remove_leftover(&partial, &file, path, "file"),
        None => Ok(()),
    }
}

/// Checks that [`write_atomically`] could write `path` now, without leaving or changing anything.
///
/// # Errors
/// As for [`AtomicFile::create`].
pub fn check_output(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    match Destination::of(path)? {
        Destination::Stream(stream) => {
            stream.check().map_err(|e| EngineError::io(path, "open the file for writing", e))
        }
        Destination::File(_) => AtomicFile::create(path).map(drop),
    }
}
