//! `metrics.jsonl`: one JSON object per line, written line by line.
//!
//! A checkpoint stores the number of its records ([`MetricsLog::records`]), which were synced before
//! ([`MetricsLog::sync`]). Resuming keeps exactly these: later records, and lines that a crash left incomplete or as zeros,
//! are truncated and reported. A missing record is an error.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use engine::io::sync_parent;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::ReportError;

/// A line of `metrics.jsonl`.
pub trait Logged: Serialize + DeserializeOwned {
    /// Optimizer steps done at the time of the record.
    fn step(&self) -> u64;
}

/// Open `metrics.jsonl` of a run.
#[derive(Debug)]
pub(crate) struct MetricsLog {
    path: PathBuf,
    file: File,
    records: u64,
}

impl MetricsLog {
    /// Opens the log at `path` to continue after `step` steps. Returns a remark about truncated lines.
    ///
    /// `counted` is the number of records stored in the checkpoint of `step`; checkpoints of older versions do not store
    /// it, and all records up to `step` are kept.
    ///
    /// # Errors
    /// The file cannot be read, cut or opened; a counted record is missing; or, without `counted`, a complete line other
    /// than zeros is not a record.
    pub(crate) fn resume<R: Logged>(
        path: &Path,
        step: u64,
        counted: Option<u64>,
    ) -> Result<(Self, Option<String>), ReportError> {
        let is_new = !path.exists();
        let bytes = if is_new { Vec::new() } else { read(path)? };
        let kept = keep::<R>(path, &bytes, step, counted)?;
        let missing = counted.unwrap_or(0).saturating_sub(kept.records);
        if missing > 0 && !is_new {
            let (found, counted) = (kept.records, kept.records + missing);
            return Err(ReportError::Missing { path: path.to_owned(), found, counted, step });
        }
        let remark = if missing > 0 {
            Some(format!("{}: no such file; the {missing} records up to step {step} are lost", path.display()))
        } else {
            kept.dropped.map(|dropped| format!("{}: cut off after step {step}: {dropped}", path.display()))
        };
        let mut options = OpenOptions::new();
        let file = options.create(true).append(true).open(path).map_err(ReportError::io(path, "open the metrics"))?;
        if kept.bytes < bytes.len() {
            let cut = file.set_len(kept.bytes as u64).and_then(|()| file.sync_all());
            cut.map_err(ReportError::io(path, "cut the metrics"))?;
        }
        if is_new {
            sync_parent(path)?;
        }
        Ok((Self { path: path.to_owned(), file, records: kept.records }, remark))
    }

    /// Adds one line.
    ///
    /// # Errors
    /// The line cannot be written.
    pub(crate) fn append(&mut self, record: &impl Logged) -> Result<(), ReportError> {
        let mut line = serde_json::to_string(record).expect("a record has string keys");
        line.push('\n');
        // One write per line: a kill leaves at most one incomplete line, the last.
        self.file.write_all(line.as_bytes()).map_err(ReportError::io(&self.path, "add to the metrics"))?;
        self.records += 1;
        Ok(())
    }

    /// Number of records in the file.
    pub(crate) fn records(&self) -> u64 {
        self.records
    }

    /// Flushes all records to disk, before a checkpoint that counts them.
    ///
    /// # Errors
    /// The disk is full or failing.
    pub(crate) fn sync(&self) -> Result<(), ReportError> {
        self.file.sync_all().map_err(ReportError::io(&self.path, "sync the metrics"))
    }
}

/// Kept part of a log.
struct Kept {
    records: u64,
    bytes: usize,
    /// Description of the dropped part.
    dropped: Option<String>,
}

/// Finds the first `counted` records, or all up to `step`, of the log in `bytes`.
fn keep<R: Logged>(path: &Path, bytes: &[u8], step: u64, counted: Option<u64>) -> Result<Kept, ReportError> {
    let mut kept = Kept { records: 0, bytes: 0, dropped: None };
    for line in lines(bytes) {
        if counted.is_some_and(|counted| kept.records >= counted) {
            break;
        }
        match parse::<R>(path, &line) {
            Ok(record) if record.step() <= step => {
                kept.records += 1;
                kept.bytes = line.end;
            }
            Ok(_) => break,
            // Torn by a crash if nothing else follows; if this was a counted record, the caller reports it as missing.
            Err(_) if line.is_torn() && lines(&bytes[line.end..]).all(|line| line.is_torn()) => break,
            Err(error) => return Err(error),
        }
    }
    let rest = &bytes[kept.bytes..];
    let records = lines(rest).filter(|line| parse::<R>(path, line).is_ok()).count();
    let other: usize = lines(rest).filter(|line| parse::<R>(path, line).is_err()).map(|line| line.text.len()).sum();
    kept.dropped = match (records, other) {
        (0, 0) => None,
        (records, 0) => Some(format!("{records} records")),
        (0, other) => Some(format!("{other} bytes that are not a record")),
        (records, other) => Some(format!("{records} records and {other} bytes that are not a record")),
    };
    Ok(kept)
}

/// All records of `path`, oldest first. Half a line or zeros after the last one, left by a crash, are skipped.
///
/// # Errors
/// The file cannot be read, or a complete line is not a record.
pub fn read_metrics<R: Logged>(path: &Path) -> Result<Vec<R>, ReportError> {
    let bytes = read(path)?;
    let mut whole: Vec<_> = lines(&bytes).collect();
    while whole.last().is_some_and(Line::is_torn) {
        whole.pop();
    }
    whole.iter().map(|line| parse(path, line)).collect()
}

fn read(path: &Path) -> Result<Vec<u8>, ReportError> {
    std::fs::read(path).map_err(ReportError::io(path, "read the metrics"))
}

/// A line that is not blank.
struct Line<'a> {
    /// Number of the line, from 1.
    number: usize,
    text: &'a [u8],
    /// Offset after its line break.
    end: usize,
    is_ended: bool,
}

impl Line<'_> {
    /// True for a line that a crash left incomplete: without a line break, or zeros (blocks that were allocated but not written).
    fn is_torn(&self) -> bool {
        !self.is_ended || self.text.contains(&0)
    }
}

/// Lines of a log that are not blank.
fn lines(bytes: &[u8]) -> impl Iterator<Item = Line<'_>> {
    let mut end = 0;
    let lines = bytes.split_inclusive(|&byte| byte == b'\n').zip(1..).map(move |(line, number)| {
        end += line.len();
        let text = line.strip_suffix(b"\n");
        Line { number, text: text.unwrap_or(line), end, is_ended: text.is_some() }
    });
    lines.filter(|line| !line.text.trim_ascii().is_empty())
}

fn parse<R: Logged>(path: &Path, line: &Line<'_>) -> Result<R, ReportError> {
    let wrong = |problem: String| ReportError::Record { path: path.to_owned(), line: line.number, problem };
    if !line.is_ended {
        return Err(wrong("the line has no end".to_owned()));
    }
    serde_json::from_slice(line.text).map_err(|error| wrong(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pretrain::{HeldOutFigures, PretrainFigures, PretrainRecord as Record, Sentence, SentenceObjective};
    use crate::train::{EvaluationRecord, TrainRecord};

    fn train(step: u64) -> Record {
        let sentence = Sentence { loss: Some(0.7), ..Sentence::default() };
        let figures = PretrainFigures { sentence, ..PretrainFigures::default() };
        Record::Train(TrainRecord { step, loss: 9.25, figures, ..TrainRecord::default() })
    }

    fn evaluation(step: u64) -> Record {
        let figures = HeldOutFigures { mlm_loss: 8.0, unigram_loss: 7.5, ..HeldOutFigures::default() };
        Record::Evaluation(EvaluationRecord { step, figures, ..EvaluationRecord::default() })
    }

    fn resume(path: &Path, step: u64, counted: Option<u64>) -> (MetricsLog, Option<String>) {
        MetricsLog::resume::<Record>(path, step, counted).unwrap()
    }

    /// A log of records at steps 10 and 20.
    fn log_of_four(path: &Path) -> MetricsLog {
        let (mut log, remark) = resume(path, 0, None);
        assert_eq!(remark, None);
        [train(10), evaluation(10), train(20), evaluation(20)].iter().for_each(|r| log.append(r).unwrap());
        assert_eq!(log.records(), 4);
        log
    }

    #[test]
    fn resuming_forgets_later_steps_and_a_broken_last_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        for (counted, tail) in
            [(None, &br#"{"kind":"train","st"#[..]), (Some(2), br#"{"kind":"train","st"#), (None, &[0; 40])]
        {
            let _ = std::fs::remove_file(&path);
            let mut log = log_of_four(&path);
            log.file.write_all(tail).unwrap();
            drop(log);
            let (mut log, remark) = resume(&path, 10, counted);
            let expected = format!("2 records and {} bytes that are not a record", tail.len());
            assert!(remark.as_deref().is_some_and(|remark| remark.ends_with(&expected)), "{remark:?}");
            log.append(&train(15)).unwrap();
            assert_eq!(log.records(), 3);
            assert_eq!(read_metrics::<Record>(&path).unwrap(), [train(10), evaluation(10), train(15)]);
        }
    }

    /// Zeros with and without line breaks, followed by later records: blocks of a file lost in a power failure.
    #[test]
    fn what_no_checkpoint_counts_on_never_blocks_resuming() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let record = serde_json::to_string(&train(20)).unwrap();
        for tail in [&b"\0\0\0\n"[..], b"nonsense\n", &[&[0; 4096][..], record.as_bytes(), b"\n"].concat(), b"\xff\n"] {
            let _ = std::fs::remove_file(&path);
            log_of_four(&path).file.write_all(tail).unwrap();
            let (log, remark) = resume(&path, 20, Some(4));
            assert!(remark.is_some_and(|remark| remark.contains("not a record")));
            assert_eq!((log.records(), read_metrics::<Record>(&path).unwrap().len()), (4, 4));
            let (_, remark) = resume(&path, 20, Some(4));
            assert_eq!(remark, None, "nothing is left to cut off");
        }
    }

    #[test]
    fn a_counted_record_that_is_missing_is_an_error_and_nothing_is_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        drop(log_of_four(&path));
        let whole = std::fs::read(&path).unwrap();
        let mut zeroed = whole.clone();
        zeroed[whole.len() / 2..].fill(0);
        let mut holed = whole.clone();
        holed[5..20].fill(0);
        for (bytes, expected) in [
            (&whole[..whole.len() - 9], "has 3 of the 4 records counted by the checkpoint of step 20"),
            (b"", "has 0 of the 4 records"),
            (&zeroed, "has 2 of the 4 records"),
            (&holed, "metrics.jsonl:1: not a metrics record"),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let error = MetricsLog::resume::<Record>(&path, 20, Some(4)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), bytes);
        }
        // Removing the file allows continuing without the records.
        std::fs::remove_file(&path).unwrap();
        let (log, remark) = resume(&path, 20, Some(4));
        assert!(remark.is_some_and(|remark| remark.contains("the 4 records up to step 20 are lost")));
        assert_eq!(log.records(), 0);
    }

    #[test]
    fn the_sentence_objective_names_its_figures() {
        let sentence = |objective| Sentence {
            objective,
            loss: Some(0.5),
            accuracy: Some(0.75),
            count: 8,
            standard_error: Some(0.125),
        };
        for (objective, key) in [(SentenceObjective::Sop, "sop"), (SentenceObjective::Nsp, "nsp")] {
            let figures = HeldOutFigures { sentence: sentence(objective), ..Default::default() };
            let record = Record::Evaluation(EvaluationRecord { figures, ..Default::default() });
            let text = serde_json::to_string(&record).unwrap();
            let expected =
                format!(r#""{key}_loss":0.5,"{key}_accuracy":0.75,"{key}_count":8,"{key}_standard_error":0.125"#);
            assert!(text.contains(&expected), "{text}");
            assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
        }
    }

    /// Lines in the format of versions before metrics were named after their objective.
    #[test]
    fn older_records_are_read() {
        let line = r#"{"kind":"evaluation","step":3,"mlm_loss":5.5,"mlm_accuracy":0.1,"masked":7,"unigram_loss":6.0,
            "hidden_loss":5.0,"hidden_unigram_loss":6.5,"sop_loss":0.7,"sop_accuracy":0.5,"sop_count":4,
            "sop_standard_error":0.25,"seconds":1.5}"#;
        let Record::Evaluation(record) = serde_json::from_str(line).unwrap() else { panic!("an evaluation") };
        let expected = Sentence {
            objective: SentenceObjective::Sop,
            loss: Some(0.7),
            accuracy: Some(0.5),
            count: 4,
            standard_error: Some(0.25),
        };
        assert_eq!((record.step, record.figures.sentence), (3, expected));
        let line = r#"{"kind":"train","step":10,"loss":9.25,"mlm_loss":9.25,"mlm_accuracy":0.0,"sop_loss":null,
            "sop_accuracy":null,"learning_rate":0.1,"gradient_norm":1.0,"tokens":5,"tokens_per_second":1.0,"seconds":2.0}"#;
        let Record::Train(record) = serde_json::from_str(line).unwrap() else { panic!("a training record") };
        assert_eq!((record.tokens, record.figures.sentence), (Some(5), Sentence::default()));
    }
}
