//! Read-only memory maps of whole files.
//!
//! Opening copies nothing, and processes that read one file share its pages.
//! Limits: the file must not change while it is mapped. Files of [`super::write_atomically`] never do: a new version is another
//! file under the same name.
#![allow(unsafe_code)]
use crate::error::{EngineError, Result};
use std::{
    fs::{File, Metadata},
    ops::Deref,
    path::Path,
};

/// A read-only memory map of a whole file.
#[derive(Debug)]
pub struct Mmap(Option<memmap2::Mmap>);

impl Mmap {
    /// Maps the file at `path`. An empty file gives an empty slice.
    ///
    /// # Errors
    /// There is no such file, or it is a folder, or it cannot be mapped.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let is_regular = |meta: Metadata| match meta.is_file() {
            true => Ok(meta),
            false => Err(EngineError::file(path, "expected a regular file")),
        };
        // Before opening, because opening a FIFO waits for a writer.
        is_regular(std::fs::metadata(path).map_err(|e| EngineError::io(path, "open the file", e))?)?;
        let file = File::open(path).map_err(|e| EngineError::io(path, "open the file", e))?;
        let meta = is_regular(file.metadata().map_err(|e| EngineError::io(path, "look at the file", e))?)?;
        if meta.len() == 0 {
            return Ok(Self(None));
        }
        // SAFETY: the map is private and read-only. The file must not be truncated while it is mapped, which cannot be
        // enforced; this project replaces files by renaming and never writes into an existing one.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(|e| EngineError::io(path, "map the file", e))?;
        Ok(Self(Some(map)))
    }
}

impl Deref for Mmap {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.0.as_deref().unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_tests::refused;

    #[test]
    fn says_which_file_is_missing_or_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        refused(Mmap::open(folder.path().join("missing")), "missing: cannot open the file: No such file");
        refused(Mmap::open(folder.path()), "expected a regular file");
        // Without waiting for a writer.
        refused(Mmap::open(&pipe), "expected a regular file");
    }
}
