//! Readers of files in the published layouts (`tests/golden/tasks`), and of malformed files.

mod damage;
mod glue;
mod hostile;
mod json_files;
mod own;

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use super::{Example, Label, Reader, Remark, TaskError, Text};

/// The small files in the published layouts.
fn golden() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/tasks"))
}

/// Reads all examples and remarks of `text` in a file called `name` with `open`.
fn read<E: Example>(
    name: &str,
    text: impl AsRef<[u8]>,
    open: impl FnOnce(&Path) -> Result<Reader<E>, TaskError>,
) -> Result<(Vec<E>, Vec<Remark>), TaskError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    open(&path)?.read_all()
}

/// Message of an expected error, without the folder.
fn message<T: Debug>(result: Result<T, TaskError>, name: &str) -> String {
    let message = result.expect_err("this must be an error").to_string();
    match message.find(name) {
        Some(at) => message[at..].to_owned(),
        None => message,
    }
}

/// Asserts that the file is rejected with a message that begins as expected.
fn assert_refused<E: Example + Debug>(
    name: &str,
    file: impl AsRef<[u8]> + Debug,
    expected: &str,
    open: impl FnOnce(&Path) -> Result<Reader<E>, TaskError>,
) {
    let message = message(read(name, &file, open), name);
    assert!(message.starts_with(expected), "{file:?}\n gave {message:?}\n not {expected:?}");
}

/// Asserts that a byte-order mark, Windows line ends and a missing last line end change nothing.
fn assert_alike<E: Example + Debug + PartialEq>(
    name: &str,
    file: &str,
    open: impl Fn(&Path) -> Result<Reader<E>, TaskError>,
) {
    let expected = read(name, file, &open).unwrap();
    let windows = format!("\u{feff}{}", file.replace('\n', "\r\n"));
    for changed in [windows.as_str(), file.trim_end()] {
        assert_eq!(read(name, changed, &open).unwrap(), expected, "{changed:?}");
    }
}

fn text(id: &str, first: &str, second: Option<&str>, label: Option<Label>) -> Text {
    Text { id: id.to_owned(), first: first.to_owned(), second: second.map(str::to_owned), label }
}

/// A SQuAD file with one passage.
fn one(context: &str, questions: &str) -> String {
    let context = serde_json::to_string(context).unwrap();
    format!(
        "{{\"version\": 2.0, \"data\": [{{\"paragraphs\": [{{\"context\": {context}, \"qas\": [{questions}]}}]}}]}}"
    )
}
