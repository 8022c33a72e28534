//! Output files: whole or not at all, and the one way in which commands write them.
//!
//! ```text
//! create .NAME.partial, lock  ->  write  ->  flush, fsync  ->  rename to NAME  ->  fsync the folder
//!        └ a crash here leaves NAME as it was                  └ from here on NAME is the new version, on disk
//! ```
//!
//! rename(2) replaces atomically within one folder; the two fsyncs order it after the data and before the caller goes
//! on. The temporary name is fixed, so that the next writer of the same file finds and removes the leftover of a killed
//! process; the file under it is created exclusively, so that nothing is written through a link that somebody planted;
//! it is locked, so that of two writers one is refused. See [`partial`] for how they are told apart.
//!
//! Existing files keep their permissions. Links are followed, a dangling one creates what it points to. Devices, FIFOs,
//! sockets and open descriptors are written in place, see [`destination`]: what was written there cannot be taken back.
//!
//! [`AtomicFile::create`] finds nearly everything that can be wrong with a path. A command creates its outputs before its
//! work and commits them after it; [`check_output`] is for those that cannot.
//!
//! Limits: Unix. File systems that ignore fsync keep none of this. A hard link to the old version keeps the old version;
//! access lists and extended attributes are not carried over.
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

/// An output that is being written. [`AtomicFile::commit`] gives it its name; dropped without that, it vanishes and what
/// stood under the name before stays.
#[derive(Debug)]
pub struct AtomicFile {
    /// As the caller named it, for messages.
    path: PathBuf,
    writer: Option<BufWriter<File>>,
    /// Absent for what is written in place.
    renaming: Option<Renaming>,
}

/// The two names of a file that is written under the first and committed under the second.
#[derive(Debug)]
struct Renaming {
    partial: PathBuf,
    target: PathBuf,
}

impl AtomicFile {
    /// Starts writing what will be `path`. A FIFO waits here for its reader.
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
                let partial = partial::name_of(&target)
                    .ok_or_else(|| EngineError::file(path, "the name of a file was expected"))?;
                (partial::claim(&partial, &target, path, "file")?, Some(Renaming { partial, target }))
            }
        };
        Ok(Self { path: path.to_owned(), writer: Some(BufWriter::with_capacity(1 << 20, file)), renaming })
    }

    /// Puts everything on disk and gives the file its name.
    ///
    /// # Errors
    /// The disk is full or failing, or a reader has gone. What stood under the name before is then untouched, unless the
    /// output is written in place.
    pub fn commit(mut self) -> Result<()> {
        let mut writer = self.writer.take().expect("commit consumes the file");
        let flushed = writer.flush();
        // The lock is on this file: it stays open until the name has moved.
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
        // Without a flush: what was not committed is not wanted.
        if let (Some(writer), Some(renaming)) = (self.writer.take(), &self.renaming) {
            partial::remove(&renaming.partial, &writer.into_parts().0);
        }
    }
}

/// Writes `path` through `write`, whole or not at all. See the module.
///
/// # Errors
/// `write` failed, or the file could not be created, flushed or renamed; what stood there before is untouched.
pub fn write_atomically(path: impl AsRef<Path>, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    let path = path.as_ref();
    let mut file = AtomicFile::create(path)?;
    write(&mut file).map_err(|e| EngineError::io(path, "write the file", e))?;
    file.commit()
}

/// Removes what a killed writer of `path` has left beside it, if anything. [`AtomicFile::create`] does so for its own path;
/// this is for files that may never be written again.
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

/// Checks, before the work whose result goes there, that [`write_atomically`] could write `path` now. Nothing is left
/// behind and nothing changed.
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
