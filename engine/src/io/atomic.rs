//! Writing a file so that its name always stands for one whole version of it.
//!
//! ```text
//! create .NAME.partial  ->  write  ->  flush, fsync  ->  rename to NAME  ->  fsync the folder
//!        └ a crash here leaves NAME as it was           └ from here on NAME is the new version, on disk
//! ```
//!
//! rename(2) replaces atomically within one folder; the two fsyncs order it after the data and before the caller goes
//! on. The temporary name is fixed, so a leftover of a killed process is overwritten by the next attempt, and it is
//! locked, so two writers cannot mix their bytes.
//!
//! Limits: Unix semantics of rename; file systems that ignore fsync keep none of this.
use crate::error::{EngineError, Result};
use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

/// A file being written under a temporary name; [`AtomicFile::commit`] gives it its own. Dropped without that, it
/// vanishes and what stood under the name before stays.
#[derive(Debug)]
pub struct AtomicFile {
    path: PathBuf,
    partial: PathBuf,
    writer: Option<BufWriter<File>>,
}

impl AtomicFile {
    /// Starts writing what will be `path`.
    ///
    /// # Errors
    /// The folder is missing or not writable, `path` names no file, or another process is writing the same file.
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let name = path.file_name().ok_or_else(|| EngineError::file(path, "the name of a file was expected"))?;
        if path.is_dir() {
            return Err(EngineError::file(
                path,
                "a folder stands where the file is to be written; choose another name",
            ));
        }
        let mut partial_name = std::ffi::OsString::from(".");
        partial_name.push(name);
        partial_name.push(".partial");
        let partial = path.with_file_name(partial_name);
        // Not truncated before the lock is held: another writer may be at it.
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&partial)
            .map_err(|e| EngineError::io(path, "create the file", e))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(EngineError::file(path, "another process is writing this file; wait for it or stop it"));
            }
            Err(TryLockError::Error(e)) => return Err(EngineError::io(path, "lock the file", e)),
        }
        file.set_len(0).map_err(|e| EngineError::io(path, "empty the temporary file", e))?;
        Ok(Self { path: path.to_owned(), partial, writer: Some(BufWriter::with_capacity(1 << 20, file)) })
    }

    /// Puts everything on disk and gives the file its name.
    ///
    /// # Errors
    /// The disk is full or failing. What stood under the name before is then untouched.
    pub fn commit(mut self) -> Result<()> {
        let writer = self.writer.take().expect("commit consumes the file");
        let result = writer
            .into_inner()
            .map_err(io::IntoInnerError::into_error)
            .and_then(|file| {
                file.sync_all()?;
                // The lock is held until the name has moved: nobody else may empty this file in between.
                std::fs::rename(&self.partial, &self.path)
            })
            .and_then(|()| sync_folder(&self.path));
        result.map_err(|e| {
            // Gone already if the rename was done and only the folder could not be flushed.
            let _ = std::fs::remove_file(&self.partial);
            EngineError::io(&self.path, "write the file", e)
        })
    }

    fn writer(&mut self) -> &mut BufWriter<File> {
        self.writer.as_mut().expect("open until committed")
    }
}

/// Makes a rename in the folder of `path` last through a power cut.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
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
        if let Some(writer) = self.writer.take() {
            // Nobody is there to hear of a failure, and a leftover does no harm: the next attempt overwrites it.
            drop(writer.into_parts());
            let _ = std::fs::remove_file(&self.partial);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn replaces_the_file_and_leaves_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        for text in ["first", "second, longer", ""] {
            write_atomically(&path, |w| w.write_all(text.as_bytes())).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            assert_eq!(names(folder.path()), ["state"]);
        }
    }

    /// A disk that fills: takes `room` bytes, then fails.
    struct Full<'a> {
        inner: &'a mut dyn Write,
        room: usize,
    }
    impl Write for Full<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.room == 0 {
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
            let n = self.inner.write(&bytes[..bytes.len().min(self.room)])?;
            self.room -= n;
            Ok(n)
        }
        fn flush(&mut self) -> io::Result<()> {
            self.inner.flush()
        }
    }

    #[test]
    fn a_disk_that_fills_leaves_the_file_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let new = vec![7u8; 3_000_000];
        for old in [None, Some(b"old".to_vec())] {
            if let Some(old) = &old {
                std::fs::write(&path, old).unwrap();
            }
            for room in [0, 1, 4096, 1 << 20, 2_999_999] {
                let error = write_atomically(&path, |w| Full { inner: w, room }.write_all(&new)).unwrap_err();
                let text = error.to_string();
                assert!(text.contains("state: cannot write the file"), "after {room} bytes: {text}");
                assert_eq!(std::fs::read(&path).ok(), old, "after {room} bytes");
                assert_eq!(names(folder.path()).len(), usize::from(old.is_some()), "after {room} bytes");
            }
        }
    }

    #[test]
    fn a_leftover_of_a_killed_process_is_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(".state.partial"), "a longer leftover than what follows").unwrap();
        write_atomically(folder.path().join("state"), |w| w.write_all(b"new")).unwrap();
        assert_eq!(std::fs::read(folder.path().join("state")).unwrap(), b"new");
        assert_eq!(names(folder.path()), ["state"]);
    }

    #[test]
    fn two_writers_of_one_file_cannot_mix() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let mut first = AtomicFile::create(&path).unwrap();
        first.write_all(b"first").unwrap();
        let error = AtomicFile::create(&path).unwrap_err().to_string();
        assert!(error.contains("another process is writing this file"), "{error}");
        first.commit().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"first");
    }

    #[test]
    fn says_what_is_in_the_way() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "x").unwrap();
        for (path, expected) in [
            (folder.path().join("missing/state"), "cannot create the file: No such file"),
            (file.join("state"), "cannot create the file: Not a directory"),
            (folder.path().to_owned(), "a folder stands where the file is to be written"),
        ] {
            let error = write_atomically(&path, |w| w.write_all(b"x")).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
