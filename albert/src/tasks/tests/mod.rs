//! Readers on files in the published layouts (`tests/golden/tasks`), and on what can be wrong with them.

mod damage;
mod glue;
mod hostile;
mod json_files;
mod own;

use std::path::PathBuf;

use super::{Example, Reader, Remark, TaskError};

/// The small files in the published layouts.
fn golden() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/tasks"))
}

/// All examples and remarks of `text` in a file called `name`, read by `open`.
fn read<E: Example>(
    name: &str,
    text: impl AsRef<[u8]>,
    open: impl FnOnce(&std::path::Path) -> Result<Reader<E>, TaskError>,
) -> Result<(Vec<E>, Vec<Remark>), TaskError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    open(&path)?.read_all()
}

/// The message of what must be an error, without the folder.
fn message<T: std::fmt::Debug>(result: Result<T, TaskError>, name: &str) -> String {
    let message = result.expect_err("this must be an error").to_string();
    match message.find(name) {
        Some(at) => message[at..].to_owned(),
        None => message,
    }
}
