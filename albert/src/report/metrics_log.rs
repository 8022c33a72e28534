//! `metrics.jsonl`: one JSON object a line, flushed line by line.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use engine::io::write_atomically;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::ReportError;

/// A line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Record {
    /// What training met since the record before.
    Train(TrainRecord),
    /// What the model does on held-out text.
    Evaluation(EvaluationRecord),
}

/// What a line of `metrics.jsonl` holds, whatever is trained.
pub trait Logged: Serialize + DeserializeOwned {
    /// The optimiser steps that were done when the record was made.
    fn step(&self) -> u64;
}

impl Logged for Record {
    fn step(&self) -> u64 {
        match self {
            Self::Train(record) => record.step,
            Self::Evaluation(record) => record.step,
        }
    }
}

/// Means over the steps since the record before. Losses are in nats.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainRecord {
    /// Optimiser steps done.
    pub step: u64,
    /// Weighted sum of both losses.
    pub loss: f64,
    /// Cross-entropy of a masked piece.
    pub mlm_loss: f64,
    /// Share of masked pieces that were guessed.
    pub mlm_accuracy: f64,
    /// Cross-entropy of the sentence label; absent without that objective.
    pub sop_loss: Option<f64>,
    /// Share of sentence labels that were guessed.
    pub sop_accuracy: Option<f64>,
    /// Rate of the last step.
    pub learning_rate: f64,
    /// Global norm of the last step's gradient before clipping.
    pub gradient_norm: f64,
    /// Tokens seen since the run began.
    pub tokens: u64,
    /// Speed since the record before.
    pub tokens_per_second: f64,
    /// Share of that time in which steps waited for their batches; 0 in logs of programs that did not measure it.
    #[serde(default)]
    pub data_share: f64,
    /// Seconds of training since the run began, over all its starts.
    pub seconds: f64,
}

/// Figures over the held-out instances. Losses are in nats.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluationRecord {
    /// Optimiser steps done.
    pub step: u64,
    /// Cross-entropy of a masked piece.
    pub mlm_loss: f64,
    /// Share of masked pieces that were guessed.
    pub mlm_accuracy: f64,
    /// Number of masked pieces.
    pub masked: u64,
    /// Cross-entropy of the same pieces under the frequencies of the training text.
    pub unigram_loss: f64,
    /// Cross-entropy of the masked pieces that the model sees as `[MASK]`. The others stand there, kept or replaced, and
    /// can be guessed without context; this loss falls by context alone.
    pub hidden_loss: f64,
    /// Cross-entropy of those under the frequencies of the training text.
    pub hidden_unigram_loss: f64,
    /// Cross-entropy of the sentence label; absent without that objective.
    pub sop_loss: Option<f64>,
    /// Share of sentence labels that were guessed.
    pub sop_accuracy: Option<f64>,
    /// Number of pairs.
    pub sop_count: u64,
    /// Standard error of `sop_accuracy`.
    pub sop_standard_error: Option<f64>,
    /// Seconds of training since the run began, over all its starts.
    pub seconds: f64,
}

/// The open `metrics.jsonl` of a run.
#[derive(Debug)]
pub struct MetricsLog {
    path: PathBuf,
    file: File,
}

impl MetricsLog {
    /// Opens the log at `path` to go on after `step` steps: records of later steps, and a last line that a killed run
    /// left half written, are removed.
    ///
    /// # Errors
    /// The file cannot be read, rewritten or opened, or holds a whole line that is no record.
    pub fn resume<R: Logged>(path: &Path, step: u64) -> Result<Self, ReportError> {
        if path.exists() {
            let text = std::fs::read_to_string(path).map_err(ReportError::io(path, "read the metrics"))?;
            let kept: Vec<&str> = whole_lines(&text)
                .enumerate()
                .map(|(at, line)| Ok((parse::<R>(path, at, line)?.step() <= step, line)))
                .collect::<Result<Vec<_>, ReportError>>()?
                .into_iter()
                .filter_map(|(keep, line)| keep.then_some(line))
                .collect();
            write_atomically(path, |out| kept.iter().try_for_each(|line| writeln!(out, "{line}")))?;
        }
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .map_err(ReportError::io(path, "open the metrics"))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Adds one line.
    ///
    /// # Errors
    /// The line cannot be written.
    pub fn append(&mut self, record: &impl Logged) -> Result<(), ReportError> {
        let mut line = serde_json::to_string(record).expect("a record has string keys");
        line.push('\n');
        // One write a line: a kill in between leaves at most one broken line, the last.
        self.file.write_all(line.as_bytes()).map_err(ReportError::io(&self.path, "add to the metrics"))
    }
}

/// All records of `path`, oldest first; a half-written last line is passed over.
///
/// # Errors
/// The file cannot be read, or a whole line is no record.
pub fn read_metrics<R: Logged>(path: &Path) -> Result<Vec<R>, ReportError> {
    let text = std::fs::read_to_string(path).map_err(ReportError::io(path, "read the metrics"))?;
    whole_lines(&text).enumerate().map(|(at, line)| parse(path, at, line)).collect()
}

fn whole_lines(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).filter(|line| !line.trim().is_empty())
}

fn parse<R: Logged>(path: &Path, at: usize, line: &str) -> Result<R, ReportError> {
    serde_json::from_str(line).map_err(|error| ReportError::Record {
        path: path.to_owned(),
        line: at + 1,
        problem: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn train(step: u64) -> Record {
        Record::Train(TrainRecord { step, loss: 9.25, sop_loss: Some(0.7), ..TrainRecord::default() })
    }

    fn evaluation(step: u64) -> Record {
        Record::Evaluation(EvaluationRecord { step, mlm_loss: 8.0, unigram_loss: 7.5, ..EvaluationRecord::default() })
    }

    #[test]
    fn what_is_written_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let records = [train(10), evaluation(10), train(20)];
        let mut log = MetricsLog::resume::<Record>(&path, 0).unwrap();
        records.iter().for_each(|record| log.append(record).unwrap());
        assert_eq!(read_metrics::<Record>(&path).unwrap(), records);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with(r#"{"kind":"train","step":10,"loss":9.25"#), "{text}");
    }

    #[test]
    fn resuming_forgets_later_steps_and_a_broken_last_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut log = MetricsLog::resume::<Record>(&path, 0).unwrap();
        [train(10), evaluation(10), train(20), evaluation(20)].iter().for_each(|r| log.append(r).unwrap());
        log.file.write_all(br#"{"kind":"train","st"#).unwrap();
        drop(log);
        let mut log = MetricsLog::resume::<Record>(&path, 10).unwrap();
        log.append(&train(15)).unwrap();
        assert_eq!(read_metrics::<Record>(&path).unwrap(), [train(10), evaluation(10), train(15)]);
    }

    #[test]
    fn names_the_line_that_is_no_record() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        std::fs::write(&path, format!("{}\nnonsense\n", serde_json::to_string(&train(1)).unwrap())).unwrap();
        for result in [read_metrics::<Record>(&path).map(|_| ()), MetricsLog::resume::<Record>(&path, 5).map(|_| ())] {
            let message = result.unwrap_err().to_string();
            assert!(message.contains("metrics.jsonl:2: not a metrics record"), "{message}");
        }
    }
}
