//! Prediction files for the GLUE server.
//!
//! ```text
//! index \t prediction
//! 0     \t entailment          class name or score
//! ```
//!
//! Source: the released ALBERT `run_classifier.py`, which writes unrounded scores.

use std::fs;
use std::path::{Path, PathBuf};

use engine::io::write_atomically;

use super::error::TaskError;
use super::example::Label;
use super::glue::GlueTask;

/// Writes the submission file for GLUE in `folder` and returns its path; the folder is created if missing.
/// Predictions are ids with labels, in the order of the test set.
///
/// # Errors
/// [`TaskError::Prediction`] for a class or a score that the task does not have, and [`TaskError::File`] if the file cannot
/// be written; an earlier file is kept.
pub fn write_submission<'a>(
    folder: &Path,
    task: GlueTask,
    predictions: impl IntoIterator<Item = (&'a str, Label)>,
) -> Result<PathBuf, TaskError> {
    let path = folder.join(task.submission_file());
    let mut lines = String::from("index\tprediction\n");
    for (id, label) in predictions {
        lines.push_str(&format!("{id}\t{}\n", written(task, id, label)?));
    }
    fs::create_dir_all(folder).map_err(TaskError::io(folder, "create the folder"))?;
    write_atomically(&path, |out| out.write_all(lines.as_bytes()))?;
    Ok(path)
}

fn written(task: GlueTask, id: &str, label: Label) -> Result<String, TaskError> {
    let labels = task.labels();
    let error = |problem: String| TaskError::Prediction { id: id.to_owned(), problem };
    match label {
        Label::Class(_) if labels.is_empty() => Err(error(format!("a class, but {task} predicts scores"))),
        Label::Class(index) => (labels.get(index as usize))
            .map(|&name| name.to_owned())
            .ok_or_else(|| error(format!("class {index}, but {task} has {} classes", labels.len()))),
        Label::Number(_) if !labels.is_empty() => Err(error(format!("a score, but {task} predicts classes"))),
        Label::Number(score) if score.is_finite() => Ok(score.to_string()),
        Label::Number(score) => Err(error(format!("{score} is not a finite score"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_submission_replaces_another_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let write = |labels: &[Label]| {
            write_submission(folder.path(), GlueTask::Cola, labels.iter().map(|&label| ("0", label)))
        };
        let path = write(&[Label::Class(1)]).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, "index\tprediction\n0\t1\n");
        // Link the first file under another name: a rename keeps it, writing in place would change it.
        let first = folder.path().join("first");
        fs::hard_link(&path, &first).unwrap();
        write(&[Label::Class(0)]).unwrap();
        assert_eq!(fs::read_to_string(&first).unwrap(), text, "the file was written in place");
        assert_eq!(fs::read_to_string(&path).unwrap(), "index\tprediction\n0\t0\n");
        write(&[Label::Class(7)]).unwrap_err();
        assert_eq!(fs::read_to_string(&path).unwrap(), "index\tprediction\n0\t0\n");
    }
}
