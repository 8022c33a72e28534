//! Atomic output folders: all files or none.
//!
//! ```text
//! create .NAME.lock, lock  ->  create .NAME.partial/  ->  files in it  ->  rename to NAME  ->  remove .NAME.lock
//! ```
//!
//! The lock is a file next to the folder: not every file system has locks on folders, and a lock file inside would be part of
//! the result. The next writer of the same folder removes the leftovers of a killed process.
use super::{
    super::folder::{create_dir_synced, open_and_sync, parent_of},
    partial,
};
use crate::error::{EngineError, Result};
use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

/// An open output folder. [`AtomicFolder::commit`] renames it to its path; without a commit it is removed.
#[derive(Debug)]
pub struct AtomicFolder {
    target: PathBuf,
    partial: PathBuf,
    lock: PathBuf,
    lock_file: File,
}

impl AtomicFolder {
    /// Opens the output folder `path`, which must be missing or empty. Missing parents are created.
    ///
    /// # Errors
    /// `path` is in use or not the name of a folder, its parent cannot be created or written to, or another process writes the
    /// same folder.
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        // The target of a link is replaced, not the link.
        let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let Some(name) = target.file_name() else {
            return Err(EngineError::file(path, "expected the name of a folder"));
        };
        let hidden = |ending: &str| {
            let mut hidden = std::ffi::OsString::from(".");
            hidden.push(name);
            hidden.push(ending);
            target.with_file_name(hidden)
        };
        let (partial, lock) = (hidden(".partial"), hidden(".lock"));
        create_dir_synced(parent_of(&target))?;
        let lock_file = partial::claim(&lock, &target, path, "folder")?;
        let folder = Self { target, partial, lock, lock_file };
        // With the lock: another process may have finished this folder by now.
        if is_in_use(&folder.target) {
            return Err(EngineError::file(path, "is in use; choose another name"));
        }
        remove_all(&folder.partial).map_err(|e| EngineError::io(&folder.partial, "remove the leftover", e))?;
        std::fs::create_dir(&folder.partial).map_err(|e| EngineError::io(&folder.partial, "create the folder", e))?;
        Ok(folder)
    }

    /// Temporary folder for the files.
    pub fn path(&self) -> &Path {
        &self.partial
    }

    /// Syncs the folder and renames it to its path. Writers sync the files in it, as [`super::AtomicFile`] does.
    ///
    /// # Errors
    /// The path is in use by now, or the disk is failing.
    pub fn commit(self) -> Result<()> {
        open_and_sync(&self.partial)
            .and_then(|()| std::fs::rename(&self.partial, &self.target))
            .and_then(|()| open_and_sync(parent_of(&self.target)))
            .map_err(|e| EngineError::io(&self.target, "rename the folder to its final name", e))
    }
}

impl Drop for AtomicFolder {
    fn drop(&mut self) {
        // Gone after a commit. Otherwise, the next writer removes a folder that stays.
        let _ = remove_all(&self.partial);
        partial::remove(&self.lock, &self.lock_file);
    }
}

/// Whether `path` exists and is not an empty folder.
fn is_in_use(path: &Path) -> bool {
    match std::fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_some(),
        Err(_) => path.symlink_metadata().is_ok(),
    }
}

/// Removes a folder with its contents, a file, a link, or nothing.
fn remove_all(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
        Ok(metadata) if metadata.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::names;
    use super::*;
    use crate::{io::write_atomically, shared_tests::refused};
    use std::os::unix::fs::symlink;

    fn fill(folder: &AtomicFolder, text: &str) {
        for name in ["a", "b"] {
            write_atomically(folder.path().join(name), |w| w.write_all(text.as_bytes())).unwrap();
        }
    }

    #[test]
    fn appears_with_all_files_or_not_at_all() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("new/model");
        for commit in [false, true] {
            let folder = AtomicFolder::create(&path).unwrap();
            fill(&folder, "x");
            assert!(!path.exists());
            // Dropped without a commit.
            commit.then_some(folder).into_iter().for_each(|folder| folder.commit().unwrap());
            assert_eq!(path.exists(), commit);
        }
        assert_eq!(names(&path), ["a", "b"]);
        assert_eq!(names(path.parent().unwrap()), ["model"], "neither lock nor leftover");
        // The lock of a process that was killed after its rename.
        std::fs::write(root.path().join("new/.model.lock"), "").unwrap();
        refused(AtomicFolder::create(&path), "model: is in use; choose another name");
        assert_eq!(names(path.parent().unwrap()), ["model"], "the lock is removed");
    }

    #[test]
    fn an_empty_folder_and_a_link_to_one_are_replaced() {
        let root = tempfile::tempdir().unwrap();
        let (empty, link) = (root.path().join("empty"), root.path().join("link"));
        std::fs::create_dir(&empty).unwrap();
        symlink("empty", &link).unwrap();
        let folder = AtomicFolder::create(&link).unwrap();
        fill(&folder, "x");
        folder.commit().unwrap();
        assert_eq!([names(&empty), names(root.path())], [["a", "b"], ["empty", "link"]]);
    }

    #[test]
    fn two_writers_of_one_folder_are_told_apart() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("model");
        let first = AtomicFolder::create(&path).unwrap();
        fill(&first, "first");
        refused(AtomicFolder::create(&path), "another process is writing this folder; wait for it or stop it");
        assert_eq!(names(first.path()), ["a", "b"], "the second has removed nothing");
        first.commit().unwrap();
        assert_eq!(std::fs::read(path.join("a")).unwrap(), b"first");
    }

    #[test]
    fn leftovers_of_a_killed_process_are_removed_and_links_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let (path, partial) = (root.path().join("model"), root.path().join(".model.partial"));
        let precious = root.path().join("precious");
        std::fs::create_dir(&precious).unwrap();
        std::fs::write(precious.join("file"), "kept").unwrap();
        let plant: [fn(&Path, &Path) -> io::Result<()>; 3] = [
            |_, partial| std::fs::create_dir(partial).and_then(|()| std::fs::write(partial.join("old"), "leftover")),
            |precious, partial| symlink(precious, partial),
            |_, partial| std::fs::write(partial, "a file"),
        ];
        for plant in plant {
            plant(&precious, &partial).unwrap();
            std::fs::write(root.path().join(".model.lock"), "").unwrap();
            let folder = AtomicFolder::create(&path).unwrap();
            fill(&folder, "new");
            folder.commit().unwrap();
            assert_eq!((names(&path), names(&precious)), (vec!["a".into(), "b".into()], vec!["file".to_owned()]));
            assert_eq!(names(root.path()), ["model", "precious"]);
            std::fs::remove_dir_all(&path).unwrap();
        }
    }
}
