//! The GLUE tasks: files, columns, labels and metrics.
//!
//! ```text
//! DIR/CoLA/train.tsv   DIR/MNLI/dev_matched.tsv   DIR/diagnostic/diagnostic.tsv      (or the files in DIR itself)
//! ```
//!
//! Columns are separated by TAB; quotes are literal, and a row is a line. All files but the training and development sets of
//! CoLA have a header; the names of the columns in use are checked. Test sets have no labels.
//!
//! Source: Wang et al. 2019 (GLUE) and the published files; the label order is that of ALBERT's released code.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::classes::class_of;
use super::error::{Place, TaskError, shown};
use super::example::{Label, Problem, Text};
use super::lines::Lines;
use super::reader::{Purpose, Reader, RemarkKind, Remarks, Rows};
use crate::metrics::Metric;

/// Split of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// Training.
    Train,
    /// Evaluation with known labels.
    Dev,
    /// Submission: without labels, except in RACE.
    Test,
}

impl Split {
    /// `train`, `dev` or `test`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Dev => "dev",
            Self::Test => "test",
        }
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Task of the GLUE benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GlueTask {
    /// Acceptability of a sentence.
    Cola,
    /// Sentiment of a sentence.
    #[serde(rename = "sst-2")]
    Sst2,
    /// Paraphrase of a sentence.
    Mrpc,
    /// Similarity of two sentences, 0 to 5.
    #[serde(rename = "sts-b")]
    Stsb,
    /// Equivalence of two questions.
    Qqp,
    /// Entailment of a hypothesis, evaluated on the genres of the training set.
    Mnli,
    /// MNLI, evaluated on other genres.
    MnliMismatched,
    /// True if a sentence answers a question.
    Qnli,
    /// Entailment of a hypothesis, two classes.
    Rte,
    /// Resolution of a pronoun.
    Wnli,
    /// Diagnostic set for MNLI models; test split only.
    Ax,
}

/// Columns in use and their names.
struct Columns {
    /// Columns of the file.
    count: usize,
    /// True if the first line is a header.
    has_header: bool,
    id: Option<(usize, &'static str)>,
    first: (usize, &'static str),
    second: Option<(usize, &'static str)>,
    label: Option<(usize, &'static str)>,
    /// True if the published file contains rows with too few columns.
    may_be_short: bool,
}

impl Columns {
    const fn new(count: usize, first: (usize, &'static str)) -> Self {
        Self { count, has_header: true, id: None, first, second: None, label: None, may_be_short: false }
    }

    const fn pair(count: usize, first: (usize, &'static str), second: (usize, &'static str)) -> Self {
        Self { second: Some(second), ..Self::new(count, first) }
    }

    const fn id(self, name: &'static str) -> Self {
        Self { id: Some((0, name)), ..self }
    }

    const fn label(self, column: usize, name: &'static str) -> Self {
        Self { label: Some((column, name)), ..self }
    }

    fn used(&self) -> impl Iterator<Item = (usize, &'static str)> {
        [self.id, Some(self.first), self.second, self.label].into_iter().flatten()
    }
}

const ZERO_ONE: &[&str] = &["0", "1"];
const ENTAILMENT: &[&str] = &["entailment", "not_entailment"];
const INFERENCE: &[&str] = &["contradiction", "entailment", "neutral"];

impl GlueTask {
    /// All tasks, in the order of the papers.
    pub(crate) const ALL: [Self; 11] = [
        Self::Cola,
        Self::Sst2,
        Self::Mrpc,
        Self::Stsb,
        Self::Qqp,
        Self::Mnli,
        Self::MnliMismatched,
        Self::Qnli,
        Self::Rte,
        Self::Wnli,
        Self::Ax,
    ];

    /// Names in commands and in papers.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Cola => ("cola", "CoLA"),
            Self::Sst2 => ("sst-2", "SST-2"),
            Self::Mrpc => ("mrpc", "MRPC"),
            Self::Stsb => ("sts-b", "STS-B"),
            Self::Qqp => ("qqp", "QQP"),
            Self::Mnli => ("mnli", "MNLI"),
            Self::MnliMismatched => ("mnli-mismatched", "MNLI-mm"),
            Self::Qnli => ("qnli", "QNLI"),
            Self::Rte => ("rte", "RTE"),
            Self::Wnli => ("wnli", "WNLI"),
            Self::Ax => ("ax", "AX"),
        }
    }

    /// Name in commands: `cola`, `sst-2`, `mnli`, `mnli-mismatched`, ...
    pub fn name(self) -> &'static str {
        self.names().0
    }

    /// Name in papers: `CoLA`, `SST-2`, `MNLI`, `MNLI-mm`, ...
    pub(crate) fn title(self) -> &'static str {
        self.names().1
    }

    /// Name of the prediction file that the GLUE server accepts.
    pub(crate) fn submission_file(self) -> String {
        match self {
            Self::Mnli => "MNLI-m.tsv".to_owned(),
            other => format!("{}.tsv", other.title()),
        }
    }

    /// Class names by index; none for a score.
    pub(crate) fn labels(self) -> &'static [&'static str] {
        match self {
            Self::Stsb => &[],
            Self::Mnli | Self::MnliMismatched | Self::Ax => INFERENCE,
            Self::Qnli | Self::Rte => ENTAILMENT,
            _ => ZERO_ONE,
        }
    }

    /// Task kind.
    pub fn problem(self) -> Problem {
        match self.labels() {
            [] => Problem::Number,
            labels => Problem::Classes { labels: labels.iter().map(|&label| label.to_owned()).collect() },
        }
    }

    /// True if examples are pairs.
    pub fn is_pair(self) -> bool {
        !matches!(self, Self::Cola | Self::Sst2)
    }

    /// Metrics of the leaderboard. The first selects checkpoints and is that of ALBERT's tables.
    pub(crate) fn metrics(self) -> &'static [Metric] {
        match self {
            Self::Cola => &[Metric::Matthews, Metric::Accuracy],
            Self::Mrpc | Self::Qqp => &[Metric::Accuracy, Metric::F1],
            Self::Stsb => &[Metric::Pearson, Metric::Spearman],
            Self::Ax => &[Metric::Matthews],
            _ => &[Metric::Accuracy],
        }
    }

    pub(crate) fn splits(self) -> &'static [Split] {
        match self {
            Self::Ax => &[Split::Test],
            _ => &[Split::Train, Split::Dev, Split::Test],
        }
    }

    /// Name of the published folder.
    fn folder(self) -> &'static str {
        match self {
            Self::Ax => "diagnostic",
            Self::MnliMismatched => "MNLI",
            other => other.title(),
        }
    }

    fn file(self, split: Split) -> &'static str {
        match (self, split) {
            (Self::Ax, _) => "diagnostic.tsv",
            (_, Split::Train) => "train.tsv",
            (Self::Mnli, Split::Dev) => "dev_matched.tsv",
            (Self::Mnli, Split::Test) => "test_matched.tsv",
            (Self::MnliMismatched, Split::Dev) => "dev_mismatched.tsv",
            (Self::MnliMismatched, Split::Test) => "test_mismatched.tsv",
            (_, Split::Dev) => "dev.tsv",
            (_, Split::Test) => "test.tsv",
        }
    }

    /// File of a split; `folder` contains all tasks or this one.
    ///
    /// # Errors
    /// [`TaskError::NoSplit`] or [`TaskError::Missing`].
    pub(crate) fn path(self, folder: &Path, split: Split) -> Result<PathBuf, TaskError> {
        if !self.splits().contains(&split) {
            let known = self.splits().iter().map(|split| split.name()).collect::<Vec<_>>().join(", ");
            return Err(TaskError::NoSplit { task: self.title().to_owned(), split: split.name(), known });
        }
        let name = self.file(split);
        let published = folder.join(self.folder()).join(name);
        [published, folder.join(name)].into_iter().find(|path| path.is_file()).ok_or_else(|| TaskError::Missing {
            folder: folder.to_owned(),
            file: format!("{}/{name} (nor {name})", self.folder()),
        })
    }

    /// Reads a split; `folder` contains the folders of all tasks or the files of this one. Examples of files without ids are
    /// numbered from 0.
    ///
    /// # Errors
    /// As [`Self::path`], and if the file cannot be opened. The reader returns all other errors.
    pub(crate) fn read(self, folder: &Path, split: Split) -> Result<Reader<Text>, TaskError> {
        self.read_file(&self.path(folder, split)?, split, Purpose::Training)
    }

    /// Reads a file in the layout of a split of this task. Labels are not read for prediction.
    ///
    /// # Errors
    /// As `Self::read`.
    pub fn read_file(self, path: &Path, split: Split, purpose: Purpose) -> Result<Reader<Text>, TaskError> {
        let (lines, labels) = (Lines::open(path)?, self.labels());
        let mut columns = self.columns(split);
        if !purpose.needs_labels() {
            columns.label = None;
        }
        Ok(Reader::new(path, GlueRows { lines, columns, labels, count: 0, is_checked: false, id: None }))
    }

    fn columns(self, split: Split) -> Columns {
        let is_test = split == Split::Test;
        match self {
            Self::Cola if is_test => Columns::new(2, (1, "sentence")).id("index"),
            Self::Cola => Columns { has_header: false, ..Columns::new(4, (3, "sentence")).label(1, "label") },
            Self::Sst2 if is_test => Columns::new(2, (1, "sentence")).id("index"),
            Self::Sst2 => Columns::new(2, (0, "sentence")).label(1, "label"),
            Self::Mrpc if is_test => Columns::pair(5, (3, "#1 String"), (4, "#2 String")).id("index"),
            Self::Mrpc => Columns::pair(5, (3, "#1 String"), (4, "#2 String")).label(0, "Quality"),
            Self::Stsb if is_test => Columns::pair(9, (7, "sentence1"), (8, "sentence2")).id("index"),
            Self::Stsb => Columns::pair(10, (7, "sentence1"), (8, "sentence2")).id("index").label(9, "score"),
            Self::Qqp if is_test => Columns::pair(3, (1, "question1"), (2, "question2")).id("id"),
            Self::Qqp => Columns {
                may_be_short: true,
                ..Columns::pair(6, (3, "question1"), (4, "question2")).id("id").label(5, "is_duplicate")
            },
            Self::Mnli | Self::MnliMismatched => {
                let columns = |count| Columns::pair(count, (8, "sentence1"), (9, "sentence2")).id("index");
                match split {
                    Split::Train => columns(12).label(11, "gold_label"),
                    Split::Dev => columns(16).label(15, "gold_label"),
                    Split::Test => columns(10),
                }
            }
            Self::Ax => Columns::pair(3, (1, "sentence1"), (2, "sentence2")).id("index"),
            Self::Qnli | Self::Rte | Self::Wnli => {
                let first = if self == Self::Qnli { "question" } else { "sentence1" };
                let second = if self == Self::Qnli { "sentence" } else { "sentence2" };
                let columns = |count| Columns::pair(count, (1, first), (2, second)).id("index");
                if is_test { columns(3) } else { columns(4).label(3, "label") }
            }
        }
    }
}

impl fmt::Display for GlueTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.title())
    }
}

/// Unknown name of a GLUE task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown GLUE task {0:?}; expected one of cola, sst-2, mrpc, sts-b, qqp, mnli, mnli-mismatched, qnli, rte, wnli, \
     ax"
)]
pub struct UnknownTask(pub String);

impl FromStr for GlueTask {
    type Err = UnknownTask;

    /// By [`GlueTask::name`] or `GlueTask::title`; case and hyphens are ignored.
    fn from_str(name: &str) -> Result<Self, UnknownTask> {
        let plain = |name: &str| name.to_lowercase().replace(['-', '_'], "");
        let wanted = plain(name);
        let is_wanted = |task: &Self| plain(task.name()) == wanted || plain(task.title()) == wanted;
        Self::ALL.into_iter().find(is_wanted).ok_or_else(|| UnknownTask(name.to_owned()))
    }
}

/// Parses a finite number.
pub(super) fn number_of(found: &str, at: impl FnOnce() -> Place) -> Result<f32, TaskError> {
    match found.trim().parse::<f32>() {
        Ok(number) if number.is_finite() => Ok(number),
        _ if found.trim().is_empty() => Err(at().no_label()),
        _ => Err(at().error(format!("{} is not a number; expected a decimal such as 3.25", shown(found)))),
    }
}

/// Rows of a GLUE file.
struct GlueRows {
    lines: Lines,
    columns: Columns,
    labels: &'static [&'static str],
    /// Rows so far.
    count: u64,
    /// True after the header was checked.
    is_checked: bool,
    /// Id of the last row.
    id: Option<String>,
}

impl GlueRows {
    fn check_header(&mut self) -> Result<(), TaskError> {
        let Some(line) = self.lines.next()? else { return Ok(()) };
        let columns = line.split('\t').count();
        let names: Vec<String> = line.split('\t').take(self.columns.count).map(str::to_owned).collect();
        let at = self.lines.place();
        if columns != self.columns.count {
            return Err(at.columns(columns, self.columns.count, "TAB"));
        }
        match self.columns.used().find(|&(column, name)| !names[column].trim().eq_ignore_ascii_case(name)) {
            None => Ok(()),
            Some((column, name)) => Err(at.error(format!(
                "header column {} is {}, expected {name:?}; is it the published file?",
                column + 1,
                shown(&names[column])
            ))),
        }
    }
}

impl Rows<Text> for GlueRows {
    fn next(&mut self, remarks: &mut Remarks) -> Result<Option<Text>, TaskError> {
        if !self.is_checked && self.columns.has_header {
            self.check_header()?;
        }
        self.is_checked = true;
        loop {
            let number = self.count;
            self.count += 1;
            self.id = self.are_numbered().then(|| number.to_string());
            let line = self.lines.next().map(|line| line.map(str::to_owned));
            let at = || self.lines.place();
            let Some(line) = line? else { return Ok(None) };
            let (fields, columns) = (line.split('\t').collect::<Vec<_>>(), &self.columns);
            let found = fields.len();
            if found < columns.count && columns.may_be_short {
                remarks.push(at(), || RemarkKind::ShortRow { columns: found });
                self.count = number;
                continue;
            }
            if found != columns.count {
                return Err(at().columns(found, columns.count, "TAB"));
            }
            let id = columns.id.map_or_else(|| number.to_string(), |(column, _)| fields[column].to_owned());
            self.id = Some(id.clone());
            let label = match columns.label.map(|(column, _)| fields[column]) {
                None => None,
                Some(score) if self.labels.is_empty() => Some(Label::Number(number_of(score, at)?)),
                Some(label) => Some(Label::Class(class_of(label, self.labels, at)?)),
            };
            let second = columns.second.map(|(column, _)| fields[column].to_owned());
            return Ok(Some(Text { id, first: fields[columns.first.0].to_owned(), second, label }));
        }
    }

    fn place(&self) -> Place {
        self.lines.place()
    }

    fn id(&self) -> Option<String> {
        self.id.clone()
    }

    fn resumes(&self) -> bool {
        self.is_checked
    }

    fn are_numbered(&self) -> bool {
        self.columns.id.is_none()
    }
}
