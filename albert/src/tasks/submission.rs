//! Files of predictions as the server of GLUE takes them.
//!
//! ```text
//! index \t prediction
//! 0     \t entailment          the name of a class, or a score
//! ```
//!
//! Source: the released ALBERT `run_classifier.py`, which writes scores as the model gives them.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::error::TaskError;
use super::example::Label;
use super::glue::GlueTask;

/// Writes `folder/`[`GlueTask::submission_file`], the folder being made if it is not there, and returns its path.
/// Predictions are ids with labels, in the order of the test set.
///
/// # Errors
/// [`TaskError::Prediction`] for a class that the task does not have, a class where a score is due or a score where a
/// class is due, and for a score that is no number; [`TaskError::Io`].
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
    fs::create_dir_all(folder).map_err(TaskError::io(folder, "make"))?;
    let file = fs::File::create(&path).map_err(TaskError::io(&path, "write"))?;
    let mut file = BufWriter::new(file);
    file.write_all(lines.as_bytes()).and_then(|()| file.flush()).map_err(TaskError::io(&path, "write"))?;
    Ok(path)
}

fn written(task: GlueTask, id: &str, label: Label) -> Result<String, TaskError> {
    let labels = task.labels();
    let error = |problem: String| TaskError::Prediction { id: id.to_owned(), problem };
    match label {
        Label::Class(_) if labels.is_empty() => Err(error(format!("a class, but {task} is about scores"))),
        Label::Class(index) => (labels.get(index as usize))
            .map(|&name| name.to_owned())
            .ok_or_else(|| error(format!("class {index}, but {task} has {}", labels.len()))),
        Label::Number(_) if !labels.is_empty() => Err(error(format!("a score, but {task} is about classes"))),
        Label::Number(score) if score.is_finite() => Ok(score.to_string()),
        Label::Number(score) => Err(error(format!("{score} is no score"))),
    }
}
